package arch

import (
	"fmt"
	"math"
	"slices"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// lfm2Layer is attention or a gated short convolution, then a feed-forward
// block or experts (Liquid AI, LFM2 technical report, 2025).
type lfm2Layer struct {
	opNorm compute.View

	attn         Attention // where attends
	qNorm, kNorm compute.View
	attends      bool

	in, out    Linear // the convolution's
	taps, bias compute.View

	ffNorm  compute.View
	mlp     MLP
	experts *Experts
}

// lfm2 is also lfm2_moe, which has experts behind the first dense layers.
func lfm2(cfg checkpoint.Config, l *Loader) *Model {
	moe := cfg.String("model_type") == "lfm2_moe"
	var (
		hidden   = cfg.Int("hidden_size")
		n        = cfg.Int("num_hidden_layers")
		heads    = cfg.Int("num_attention_heads")
		kvHeads  = cfg.Int("num_key_value_heads")
		vocab    = cfg.Int("vocab_size")
		eps      = float32(cfg.Float("norm_eps"))
		convBias = cfg.BoolOr("conv_bias", false)
		kernel   = cfg.Int("conv_L_cache")
		types    = cfg.Strings("layer_types")
		full     = cfg.Ints("full_attn_idxs")
	)
	l.Positive("hidden_size", hidden)
	l.Positive("num_hidden_layers", n)
	l.Positive("vocab_size", vocab)
	l.Positive("num_attention_heads", heads)
	l.Positive("conv_L_cache", kernel)
	if l.err != nil {
		return &Model{}
	}
	dim := hidden / heads
	l.heads(heads, kvHeads, dim)
	l.perLayer("layer_types", len(types), n)
	if len(full) == 0 && len(types) == 0 {
		l.Fail("%w: neither full_attn_idxs nor layer_types says which layers attend", errConfig)
	}
	m := &Model{Hidden: hidden, Vocab: vocab, Layers: n, Context: cfg.IntOr("max_position_embeddings", 0), EmbedScale: 1}

	var experts, expertSize, dense int
	var rule compute.MoERoute
	width := 0
	if moe {
		l.Rename(mixtralNames(".feed_forward."))
		experts, expertSize, dense = cfg.Int("num_experts"), cfg.Int("moe_intermediate_size"), cfg.IntOr("num_dense_layers", 0)
		width = cfg.Int("intermediate_size")
		rule = compute.MoERoute{
			Kind: compute.SigmoidTop, TopK: cfg.Int("num_experts_per_tok"),
			Normalize: cfg.BoolOr("norm_topk_prob", false), NormEps: 1e-6,
			Scale: float32(cfg.FloatOr("routed_scaling_factor", 1)),
		}
		l.experts(experts, rule.TopK)
	} else {
		width = l.lfm2Width(cfg)
	}

	l.Tables(m, true)
	norm := l.Vector("model.embedding_norm.weight", hidden)
	rope := l.Rope(cfg, dim, ropeTheta(cfg, 1e6), false)
	var layers []lfm2Layer
	for i := 0; i < n && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		w := lfm2Layer{
			opNorm:  l.Vector(p+"operator_norm.weight", hidden),
			ffNorm:  l.Vector(p+"ffn_norm.weight", hidden),
			attends: slices.Contains(full, i) || len(full) == 0 && types[i] == "full_attention",
		}
		if w.attends {
			a := p + "self_attn."
			w.attn = Attention{
				Q: l.Linear(a+"q_proj", heads*dim, hidden, false),
				K: l.Linear(a+"k_proj", kvHeads*dim, hidden, false),
				V: l.Linear(a+"v_proj", kvHeads*dim, hidden, false),
				O: l.Linear(a+"out_proj", hidden, heads*dim, false),
			}
			w.qNorm, w.kNorm = l.Vector(a+"q_layernorm.weight", dim), l.Vector(a+"k_layernorm.weight", dim)
			m.Caches = append(m.Caches, l.attentionCache("full_attention", kvHeads, dim, 0))
		} else {
			w.in, w.out = l.Linear(p+"conv.in_proj", 3*hidden, hidden, convBias), l.Linear(p+"conv.out_proj", hidden, hidden, convBias)
			w.taps = l.Conv(p+"conv.conv.weight", hidden, kernel)
			if convBias {
				w.bias = l.Vector(p+"conv.conv.bias", hidden)
			}
			m.Caches = append(m.Caches, convCache(hidden, kernel))
		}
		ff := p + "feed_forward."
		switch {
		case !moe:
			w.mlp = MLP{Gate: l.Linear(ff+"w1", width, hidden, false), Up: l.Linear(ff+"w3", width, hidden, false), Down: l.Linear(ff+"w2", hidden, width, false)}
		case i < dense:
			w.mlp = l.MLP(ff, hidden, width, false)
		default:
			r := rule
			if cfg.BoolOr("use_expert_bias", false) {
				r.Bias = l.Vector(ff+"expert_bias", experts)
			}
			w.experts = &Experts{Router: l.Linear(ff+"gate", experts, hidden, false), Rule: r, Act: compute.ActSwiGLU}
			l.GatedExperts(w.experts, ff+"switch_mlp.", ff+"experts.", experts, hidden, expertSize)
		}
		layers = append(layers, w)
	}

	scale := float32(1 / math.Sqrt(float64(dim)))
	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.opNorm, eps)
			if w.attends {
				q, k, v := f.QKV(h, w.attn)
				f.HeadNorm(q, w.qNorm, eps, dim)
				f.HeadNorm(k, w.kNorm, eps, dim)
				f.Rotate(q, rope, dim)
				f.Rotate(k, rope, dim)
				f.LinearAdd(f.Attend(q, k, v, i, heads, scale), w.attn.O, x)
			} else {
				bcu := f.Linear(h, w.in) // [B | C | u]: C * conv(B * u)
				b, c, u := bcu.Columns(0, hidden), bcu.Columns(hidden, 2*hidden), bcu.Columns(2*hidden, 3*hidden)
				f.P.Add(compute.Binary{Kind: compute.BinMul, A: b, B: u, Out: b, Scale: 1})
				y := f.Convolve(b, w.taps, w.bias, compute.ActNone, i)
				f.P.Add(compute.Binary{Kind: compute.BinMul, A: c, B: y, Out: y, Scale: 1})
				f.LinearAdd(y, w.out, x)
			}

			h = f.Norm(x, w.ffNorm, eps)
			if w.experts != nil {
				f.MixtureAdd(h, *w.experts, x)
			} else {
				f.MLPAdd(h, w.mlp, compute.ActSwiGLU, x)
			}

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, eps, m.Head)
	}
	return m
}

// lfm2Width is the width of the dense feed-forward block.
func (l *Loader) lfm2Width(cfg checkpoint.Config) int {
	width := cfg.IntOr("block_ff_dim", cfg.IntOr("intermediate_size", 0))
	l.Positive("block_ff_dim", width)
	if cfg.BoolOr("block_auto_adjust_ff_dim", false) {
		unit := cfg.IntOr("block_multiple_of", 256)
		l.Positive("block_multiple_of", unit)
		if l.err != nil {
			return width
		}
		width = 2 * width / 3
		width = int(cfg.FloatOr("block_ffn_dim_multiplier", 1) * float64(width))
		width = (width + unit - 1) / unit * unit
	}
	return width
}
