package arch

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// deepseekLayer attends over one latent vector per position (multi-head latent
// attention, DeepSeek-V2 2024, section 2.1): the cache keeps [latent | rotated
// key part], the heads' key and value maps are applied to queries and results.
type deepseekLayer struct {
	attnNorm   compute.View
	qA, qB     Linear // low-rank query; qA.W nil: qB is the whole map
	qNorm      compute.View
	kvA        Linear
	kvNorm     compute.View
	embedQ     *compute.Weight // [heads, latent, nope]
	unembedOut *compute.Weight // [heads, value, latent]
	o          Linear
	mlpNorm    compute.View
	mlp        MLP
	experts    *Experts
}

// deepseekV3 is also kimi_k2 and joyai_llm_flash (DeepSeek-V3, 2024).
func deepseekV3(cfg checkpoint.Config, l *Loader) *Model {
	var (
		hidden = cfg.Int("hidden_size")
		n      = cfg.Int("num_hidden_layers")
		inter  = cfg.Int("intermediate_size")
		heads  = cfg.Int("num_attention_heads")
		vocab  = cfg.Int("vocab_size")
		eps    = float32(cfg.FloatOr("rms_norm_eps", 1e-6))
		qRank  = cfg.IntOr("q_lora_rank", 0)
		rank   = cfg.IntOr("kv_lora_rank", 512)
		nope   = cfg.IntOr("qk_nope_head_dim", 128)
		turn   = cfg.IntOr("qk_rope_head_dim", 64)
		value  = cfg.IntOr("v_head_dim", 128)
		bias   = cfg.BoolOr("attention_bias", false)

		experts = cfg.IntOr("n_routed_experts", 0)
		moeSize = cfg.IntOr("moe_intermediate_size", 0)
		shared  = cfg.IntOr("n_shared_experts", 0)
		dense   = cfg.IntOr("first_k_dense_replace", 0)
		freq    = cfg.IntOr("moe_layer_freq", 1)
	)
	rule := compute.MoERoute{
		Kind: compute.SigmoidTop, TopK: cfg.IntOr("num_experts_per_tok", 1),
		Groups: cfg.IntOr("n_group", 1), TopGroups: cfg.IntOr("topk_group", 1),
		NormEps: 1e-20, Scale: float32(cfg.FloatOr("routed_scaling_factor", 1)),
	}
	rule.Normalize = cfg.BoolOr("norm_topk_prob", true) && rule.TopK > 1
	l.AllPositive(map[string]int{"hidden_size": hidden, "num_hidden_layers": n, "vocab_size": vocab, "num_attention_heads": heads, "kv_lora_rank": rank,
		"qk_nope_head_dim": nope, "qk_rope_head_dim": turn, "v_head_dim": value, "moe_layer_freq": freq})
	if experts > 0 {
		l.experts(experts, rule.TopK)
		l.groups(experts, rule.Groups, rule.TopGroups)
	}
	m := &Model{Hidden: hidden, Vocab: vocab, Layers: n, Context: cfg.IntOr("max_position_embeddings", 0), EmbedScale: 1}

	l.Tables(m, cfg.BoolOr("tie_word_embeddings", false))
	l.Drop(layersFrom(n)) // multi-token prediction
	norm := l.Vector("model.norm.weight", hidden)
	rope := l.Rope(cfg, turn, ropeTheta(cfg, 10000), true)
	scale := 1 / math.Sqrt(float64(nope+turn))
	scaling := cfg.Sub("rope_scaling")
	if all, factor := scaling.FloatOr("mscale_all_dim", 0), scaling.FloatOr("factor", 1); all != 0 && factor > 1 {
		scale *= math.Pow(yarnScale(factor, all), 2)
	}
	const lowRankEps = 1e-6
	var layers []deepseekLayer
	for i := 0; i < n && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		a := p + "self_attn."
		w := deepseekLayer{
			attnNorm: l.Vector(p+"input_layernorm.weight", hidden),
			kvA:      l.Linear(a+"kv_a_proj_with_mqa", rank+turn, hidden, bias),
			kvNorm:   l.Vector(a+"kv_a_layernorm.weight", rank),
			o:        l.Linear(a+"o_proj", hidden, heads*value, bias),
			mlpNorm:  l.Vector(p+"post_attention_layernorm.weight", hidden),
		}
		if qRank > 0 {
			w.qA, w.qNorm = l.Linear(a+"q_a_proj", qRank, hidden, bias), l.Vector(a+"q_a_layernorm.weight", qRank)
			w.qB = l.Linear(a+"q_b_proj", heads*(nope+turn), qRank, false)
		} else {
			w.qB = l.Linear(a+"q_proj", heads*(nope+turn), hidden, false)
		}
		if l.Has(a + "kv_b_proj.weight") {
			w.embedQ, w.unembedOut = l.splitLatent(a+"kv_b_proj", heads, nope, value, rank)
		} else {
			w.embedQ = l.Experts(a+"embed_q", heads, heads, rank, nope)
			w.unembedOut = l.Experts(a+"unembed_out", heads, heads, value, rank)
		}
		if experts > 0 && i >= dense && i%freq == 0 {
			r := rule
			if l.Has(p + "mlp.gate.e_score_correction_bias") {
				r.Bias = l.Vector(p+"mlp.gate.e_score_correction_bias", experts)
			}
			w.experts = &Experts{Router: l.Linear(p+"mlp.gate", experts, hidden, false), Rule: r, Act: compute.ActSwiGLU}
			l.GatedExperts(w.experts, p+"mlp.switch_mlp.", p+"mlp.experts.", experts, hidden, moeSize)
			if shared > 0 {
				one := l.MLP(p+"mlp.shared_experts.", hidden, moeSize*shared, false)
				w.experts.Shared = &one
			}
		} else {
			w.mlp = l.MLP(p+"mlp.", hidden, inter, false)
		}
		layers = append(layers, w)
		m.Caches = append(m.Caches, compute.CacheSpec{Kind: compute.CacheFull, Heads: 1, KDim: rank + turn, VDim: rank, VInK: true})
	}

	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		for i, w := range layers {
			mark := f.S.Mark()
			rows := x.Rows

			h := f.Norm(x, w.attnNorm, eps)
			low := h
			if w.qA.W != nil {
				low = f.Norm(f.Linear(h, w.qA), w.qNorm, lowRankEps)
			}
			// Each head's query is [nope | turn]; the first part moves to the latent.
			heads2D := f.Linear(low, w.qB).Reshape(rows*heads, nope+turn)
			qNope, qTurn := f.New(rows, heads*nope), f.New(rows, heads*turn)
			f.P.Add(
				compute.CopyRows{Src: heads2D.Columns(0, nope), Dst: qNope.Reshape(rows*heads, nope)},
				compute.CopyRows{Src: heads2D.Columns(nope, nope+turn), Dst: qTurn.Reshape(rows*heads, turn)})
			f.Rotate(qTurn, rope, turn)
			qLatent, q := f.New(rows, heads*rank), f.New(rows, heads*(rank+turn))
			qHeads := q.Reshape(rows*heads, rank+turn)
			f.P.Add(
				compute.HeadLinear{X: qNope, W: w.embedQ, Out: qLatent},
				compute.CopyRows{Src: qLatent.Reshape(rows*heads, rank), Dst: qHeads.Columns(0, rank)},
				compute.CopyRows{Src: qTurn.Reshape(rows*heads, turn), Dst: qHeads.Columns(rank, rank+turn)})

			k := f.Linear(h, w.kvA) // [latent | turn]
			latent := k.Columns(0, rank)
			f.P.Add(compute.Norm{X: latent, Out: latent, W: w.kvNorm, Eps: lowRankEps, Scale: 1})
			f.Rotate(k.Columns(rank, rank+turn), rope, turn)
			f.Remember(k, compute.View{}, i)
			seen := f.Recall(q, i, compute.Attention{Heads: heads, Scale: float32(scale)})
			a := f.New(rows, heads*value)
			f.P.Add(compute.HeadLinear{X: seen, W: w.unembedOut, Out: a})
			f.LinearAdd(a, w.o, x)

			h = f.Norm(x, w.mlpNorm, eps)
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

// groups checks the numbers of a grouped choice of experts.
func (l *Loader) groups(experts, groups, top int) {
	if l.err == nil && (groups < 1 || experts%groups != 0 || top < 1 || top > groups) {
		l.Fail("%w: %d of %d groups of %d experts cannot be chosen (n_group, topk_group)", errConfig, top, groups, experts)
	}
}

// layersFrom matches the tensors of layers that the stack does not have.
func layersFrom(n int) func(string) bool {
	return func(name string) bool {
		rest, ok := strings.CutPrefix(name, "model.layers.")
		var i int
		_, err := fmt.Sscanf(rest, "%d.", &i)
		return ok && err == nil && i >= n
	}
}

// splitLatent makes the two per-head maps of Hugging Face's kv_b_proj, whose rows
// are, for each head, nope key rows and then the value rows: the key rows
// transposed, [heads, rank, nope], and the value rows, [heads, value, rank].
func (l *Loader) splitLatent(name string, heads, nope, value, rank int) (embedQ, unembedOut *compute.Weight) {
	m := l.matrix(name, 0, heads*(nope+value), rank)
	if l.kept[name] {
		return l.load(l.keep(layout.Matrix{Name: name + " keys"})), l.load(l.keep(layout.Matrix{Name: name + " values"}))
	}
	keys := l.dense(name+" keys", heads, rank, nope)
	values := l.dense(name+" values", heads, value, rank)
	row := make([]float32, rank)
	for r := 0; r < m.Rows && l.err == nil; r++ {
		if err := m.Row(row, 0, r); err != nil {
			l.Fail("%w", err)
		}
		h, i := r/(nope+value), r%(nope+value)
		for c, x := range row {
			at, dst := (h*rank+c)*nope+i, keys.Weight
			if i >= nope {
				at, dst = (h*value+i-nope)*rank+c, values.Weight
			}
			binary.LittleEndian.PutUint32(dst[4*at:], math.Float32bits(x))
		}
	}
	return l.load(keys), l.load(values)
}

// dense is a stacked float32 matrix in memory of the backend, to be filled
// before load.
func (l *Loader) dense(name string, batch, rows, cols int) layout.Matrix {
	m := layout.Matrix{Name: name, Scheme: layout.Dense, Batch: batch, Rows: rows, Cols: cols, DType: layout.F32, GlobalScale: 1}
	if l.err != nil {
		return m
	}
	buf, err := l.b.Alloc(name, batch*rows*cols*4)
	if err != nil {
		l.Fail("%s: %w", name, err)
		return m
	}
	l.buffers = append(l.buffers, buf)
	m.Weight = buf.Bytes
	return m
}
