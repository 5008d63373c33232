package arch

import (
	"fmt"
	"math"
	"strings"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// nemotronLayer is one block of Nemotron-H (2025): a norm and a mixer of one of
// four kinds.
type nemotronLayer struct {
	kind  byte // M Mamba-2, * attention, E experts, - feed-forward
	norm  compute.View
	cache int // the first cache of M, or that of *

	attn Attention // *

	up, down Linear // -, and the shared expert of E

	in, out               Linear // M
	taps, tapBias         compute.View
	aLog, d, dtBias, gate compute.View

	experts              Experts // E
	toLatent, fromLatent Linear  // W nil: experts work on the full width
}

func nemotronH(cfg checkpoint.Config, l *Loader) *Model {
	pattern := l.nemotronPattern(cfg)
	var (
		hidden  = cfg.Int("hidden_size")
		vocab   = cfg.Int("vocab_size")
		inter   = cfg.IntOr("intermediate_size", 0)
		eps     = float32(cfg.FloatOr("layer_norm_epsilon", 1e-5))
		mlpBias = cfg.BoolOr("mlp_bias", false)

		heads    = cfg.IntOr("num_attention_heads", 1)
		kvHeads  = cfg.IntOr("num_key_value_heads", heads)
		attnBias = cfg.BoolOr("attention_bias", false)

		mHeads   = cfg.IntOr("mamba_num_heads", 1)
		mDim     = cfg.IntOr("mamba_head_dim", 1)
		groups   = cfg.IntOr("n_groups", 1)
		state    = cfg.IntOr("ssm_state_size", 1)
		kernel   = cfg.IntOr("conv_kernel", 4)
		projBias = cfg.BoolOr("mamba_proj_bias", false)
		convBias = cfg.BoolOr("use_conv_bias", true)
		limits   = cfg.Floats("time_step_limit")

		experts    = cfg.IntOr("n_routed_experts", 0)
		expertSize = cfg.IntOr("moe_intermediate_size", 0)
		latent     = cfg.IntOr("moe_latent_size", 0)
		shared     = cfg.IntOr("n_shared_experts", 0)
		sharedSize = cfg.IntOr("moe_shared_expert_intermediate_size", 0)
	)
	l.AllPositive(map[string]int{"hidden_size": hidden, "vocab_size": vocab, "num_attention_heads": heads, "mamba_num_heads": mHeads,
		"mamba_head_dim": mDim, "n_groups": groups, "ssm_state_size": state, "conv_kernel": kernel})
	if len(limits) == 0 {
		limits = []float64{0, math.Inf(1)}
	}
	if len(limits) != 2 {
		l.Fail("%w: time_step_limit must have two numbers, has %d", errConfig, len(limits))
	}
	if l.err == nil && mHeads%groups != 0 {
		l.Fail("%w: mamba_num_heads (%d) is not a multiple of n_groups (%d)", errConfig, mHeads, groups)
	}
	if l.err != nil {
		return &Model{}
	}
	dim := cfg.IntOr("head_dim", hidden/heads)
	l.heads(heads, kvHeads, dim)
	width := mHeads * mDim
	channels := width + 2*groups*state
	rule := compute.MoERoute{
		Kind: compute.SigmoidTop, TopK: cfg.IntOr("num_experts_per_tok", 1),
		Groups: cfg.IntOr("n_group", 1), TopGroups: cfg.IntOr("topk_group", 1),
		NormEps: 1e-20, Scale: float32(cfg.FloatOr("routed_scaling_factor", 1)),
	}
	rule.Normalize = cfg.BoolOr("norm_topk_prob", true) && rule.TopK > 1
	m := &Model{Hidden: hidden, Vocab: vocab, Layers: len(pattern), Context: cfg.IntOr("max_position_embeddings", 0), EmbedScale: 1}

	l.Drop(func(n string) bool { return strings.HasPrefix(n, "mtp.") })
	m.Embedding, m.Head = l.Table("backbone.embeddings", vocab, hidden), l.Weight("lm_head", vocab, hidden)
	norm := l.Vector("backbone.norm_f.weight", hidden)
	var layers []nemotronLayer
	for i := 0; i < len(pattern) && l.err == nil; i++ {
		p := fmt.Sprintf("backbone.layers.%d.", i)
		mix := p + "mixer."
		w := nemotronLayer{kind: pattern[i], norm: l.Vector(p+"norm.weight", hidden), cache: len(m.Caches)}
		switch w.kind {
		case '*':
			w.attn = l.Attention(mix, hidden, heads, kvHeads, dim, attnBias, attnBias)
			m.Caches = append(m.Caches, l.attentionCache("full_attention", kvHeads, dim, 0))
		case '-':
			w.up, w.down = l.Linear(mix+"up_proj", inter, hidden, mlpBias), l.Linear(mix+"down_proj", hidden, inter, mlpBias)
		case 'M':
			w.in, w.out = l.Linear(mix+"in_proj", width+channels+mHeads, hidden, projBias), l.Linear(mix+"out_proj", hidden, width, projBias)
			w.taps = l.Conv(mix+"conv1d.weight", channels, kernel)
			if convBias {
				w.tapBias = l.Vector(mix+"conv1d.bias", channels)
			}
			w.aLog, w.d, w.dtBias = l.Vector(mix+"A_log", mHeads), l.Vector(mix+"D", mHeads), l.Vector(mix+"dt_bias", mHeads)
			w.gate = l.Vector(mix+"norm.weight", width)
			m.Caches = append(m.Caches, convCache(channels, kernel),
				compute.CacheSpec{Kind: compute.CacheState, Size: width * state, Log: width + groups*state + mHeads})
		case 'E':
			l.experts(experts, rule.TopK)
			l.groups(experts, rule.Groups, rule.TopGroups)
			w.experts = Experts{Router: l.Linear(mix+"gate", experts, hidden, false), Rule: rule, Act: compute.ActReLU2}
			w.experts.Rule.Bias = l.Vector(mix+"gate.e_score_correction_bias", experts)
			in := hidden
			if latent > 0 {
				in = latent
				w.toLatent, w.fromLatent = l.Linear(mix+"fc1_latent_proj", latent, hidden, mlpBias), l.Linear(mix+"fc2_latent_proj", hidden, latent, mlpBias)
			}
			if l.Has(mix + "experts.0.up_proj.weight") {
				w.experts.Up = l.stack(mix+"experts.", "up_proj", experts, rule.TopK, expertSize, in)
				w.experts.Down = l.stack(mix+"experts.", "down_proj", experts, rule.TopK, in, expertSize)
				l.alias(mix+"switch_mlp.fc1", w.experts.Up)
				l.alias(mix+"switch_mlp.fc2", w.experts.Down)
			} else {
				w.experts.Up = l.Experts(mix+"switch_mlp.fc1", experts, rule.TopK, expertSize, in)
				w.experts.Down = l.Experts(mix+"switch_mlp.fc2", experts, rule.TopK, in, expertSize)
			}
			if shared > 0 {
				w.up = l.Linear(mix+"shared_experts.up_proj", sharedSize, hidden, mlpBias)
				w.down = l.Linear(mix+"shared_experts.down_proj", hidden, sharedSize, mlpBias)
			}
		}
		layers = append(layers, w)
	}

	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.norm, eps)
			switch w.kind {
			case '*': // no positions: the recurrent layers know the order
				q, k, v := f.QKV(h, w.attn)
				a := f.Attend(q, k, v, w.cache, heads, float32(1/math.Sqrt(float64(dim))))
				f.LinearAdd(a, w.attn.O, x)
			case 'M':
				zud := f.Linear(h, w.in) // [z | u | dt]
				z, u, dt := zud.Columns(0, width), zud.Columns(width, width+channels), zud.Columns(width+channels, zud.Cols)
				xbc := f.Convolve(u, w.taps, w.tapBias, compute.ActSiLU, w.cache) // [x | B | C]
				y := f.Scan(compute.SSMScan{
					X: xbc.Columns(0, width), B: xbc.Columns(width, width+groups*state), C: xbc.Columns(width+groups*state, channels),
					Dt: dt, ALog: w.aLog, D: w.d, DtBias: w.dtBias, Heads: mHeads, Dim: mDim, Groups: groups, StateDim: state,
					DtMin: float32(limits[0]), DtMax: float32(limits[1]),
				}, w.cache+1)
				f.P.Add(compute.Norm{X: y, Out: y, W: w.gate, Eps: eps, Scale: 1, Group: width / groups, Gate: z, Place: compute.GateBefore})
				f.LinearAdd(y, w.out, x)
			case 'E':
				ids, weights := f.Route(h, w.experts.Router, w.experts.Rule)
				if w.toLatent.W != nil {
					y := f.New(x.Rows, latent)
					f.P.Add(compute.MoECombine{X: f.Experts(f.Linear(h, w.toLatent), ids, w.experts), Weights: weights, Scale: 1, Out: y})
					f.LinearAdd(y, w.fromLatent, x)
				} else {
					f.P.Add(compute.MoECombine{X: f.Experts(h, ids, w.experts), Weights: weights, Scale: 1, Residual: x, Out: x})
				}
			}
			if w.up.W != nil { // feed-forward, or the shared expert
				f.LinearAdd(f.Activated(h, w.up, compute.ActReLU2), w.down, x)
			}

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, eps, m.Head)
	}
	return m
}

// nemotronPattern is the kind of each block, one letter of M*E- each.
func (l *Loader) nemotronPattern(cfg checkpoint.Config) string {
	letters := map[string]string{
		"mamba": "M", "linear_attention": "M", "conv": "M", "attention": "*", "full_attention": "*", "moe": "E", "mlp": "-",
	}
	var pattern strings.Builder
	for _, key := range []string{"hybrid_override_pattern", "layers_block_type", "layer_types"} {
		for _, name := range cfg.Strings(key) {
			if letter, ok := letters[name]; ok {
				name = letter
			}
			if strings.Trim(name, "M*E-") != "" {
				l.Fail("%w: %s has a block of unknown kind %q", errConfig, key, name)
				return ""
			}
			pattern.WriteString(name)
		}
		if pattern.Len() > 0 {
			return pattern.String()
		}
	}
	l.Fail("%w: none of hybrid_override_pattern, layers_block_type and layer_types says what the blocks are", errConfig)
	return ""
}
