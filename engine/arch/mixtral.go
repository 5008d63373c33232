package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// mixtral is llama with experts in every layer (Jiang et al. 2024).
func mixtral(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	c.theta = ropeTheta(cfg, 1e6)
	n := cfg.IntOr("num_local_experts", 8)
	rule := compute.MoERoute{Kind: compute.SoftmaxTop, TopK: cfg.IntOr("num_experts_per_tok", 2), Scale: 1}
	l.experts(n, rule.TopK)
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

	l.Rename(mixtralNames(".block_sparse_moe.experts."))
	l.Tables(m, cfg.BoolOr("tie_word_embeddings", false))
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, c.dim, c.theta, c.interleaved)
	var layers []mixtureLayer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		moe := p + "block_sparse_moe."
		w := mixtureLayer{
			attnNorm: l.Vector(p+"input_layernorm.weight", c.hidden),
			attn:     l.Attention(p+"self_attn.", c.hidden, c.heads, c.kvHeads, c.dim, false, false),
			mlpNorm:  l.Vector(p+"post_attention_layernorm.weight", c.hidden),
			experts:  Experts{Router: l.Linear(moe+"gate", n, c.hidden, false), Rule: rule, Act: compute.ActSwiGLU},
		}
		l.GatedExperts(&w.experts, moe+"switch_mlp.", moe+"experts.", n, c.hidden, c.inter)
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
			f.Rotate(q, rope, c.dim)
			f.Rotate(k, rope, c.dim)
			a := f.Attend(q, k, v, i, c.heads, scale)
			f.LinearAdd(a, w.attn.O, x)

			h = f.Norm(x, w.mlpNorm, c.eps)
			f.MixtureAdd(h, w.experts, x)

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, c.eps, m.Head)
	}
	return m
}
