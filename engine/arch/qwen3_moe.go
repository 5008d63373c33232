package arch

import (
	"fmt"
	"math"
	"slices"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// qwen3MoELayer is a qwen3 layer with experts, or with the plain feed-forward
// block where experts is nil.
type qwen3MoELayer struct {
	qwen3Layer
	experts *Experts
}

// qwen3MoE is qwen3 with a mixture of experts; its rope is never scaled.
func qwen3MoE(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	c.tied = cfg.BoolOr("tie_word_embeddings", false)
	var (
		n     = cfg.Int("num_experts")
		inter = cfg.Int("moe_intermediate_size")
		step  = cfg.IntOr("decoder_sparse_step", 1)
		dense = cfg.Ints("mlp_only_layers")
		rule  = compute.MoERoute{
			Kind: compute.SoftmaxAll, TopK: cfg.Int("num_experts_per_tok"), Scale: 1,
			Normalize: cfg.BoolOr("norm_topk_prob", false),
		}
	)
	l.experts(n, rule.TopK)
	l.Positive("decoder_sparse_step", step)
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

	l.Tables(m, c.tied)
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.PlainRope(c.dim, c.theta, false)
	var layers []qwen3MoELayer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		w := qwen3MoELayer{qwen3Layer: qwen3Layer{
			llamaLayer: llamaLayer{
				attnNorm: l.Vector(p+"input_layernorm.weight", c.hidden),
				attn:     l.Attention(p+"self_attn.", c.hidden, c.heads, c.kvHeads, c.dim, c.attnBias, c.attnBias),
				mlpNorm:  l.Vector(p+"post_attention_layernorm.weight", c.hidden),
			},
			qNorm: l.Vector(p+"self_attn.q_norm.weight", c.dim),
			kNorm: l.Vector(p+"self_attn.k_norm.weight", c.dim),
		}}
		if slices.Contains(dense, i) || (i+1)%step != 0 {
			w.mlp = l.MLP(p+"mlp.", c.hidden, c.inter, false)
		} else {
			w.experts = &Experts{Router: l.Linear(p+"mlp.gate", n, c.hidden, false), Rule: rule, Act: compute.ActSwiGLU}
			l.GatedExperts(w.experts, p+"mlp.switch_mlp.", p+"mlp.experts.", n, c.hidden, inter)
		}
		layers = append(layers, w)
		m.Caches = append(m.Caches, l.attentionCache("full_attention", c.kvHeads, c.dim, 0))
	}

	scale := float32(1 / math.Sqrt(float64(c.dim)))
	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.attnNorm, c.eps)
			q, k, v := f.QKV(h, w.attn)
			f.HeadNorm(q, w.qNorm, c.eps, c.dim)
			f.HeadNorm(k, w.kNorm, c.eps, c.dim)
			f.Rotate(q, rope, c.dim)
			f.Rotate(k, rope, c.dim)
			a := f.Attend(q, k, v, i, c.heads, scale)
			f.LinearAdd(a, w.attn.O, x)

			h = f.Norm(x, w.mlpNorm, c.eps)
			if w.experts != nil {
				f.MixtureAdd(h, *w.experts, x)
			} else {
				f.MLPAdd(h, w.mlp, compute.ActSwiGLU, x)
			}

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, c.eps, m.Head)
	}
	return m
}
