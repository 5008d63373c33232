package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// olmo2Layer has norms behind attention and feed-forward instead of before
// them, and norms over all heads of q and of k together (OLMo 2, 2024).
type olmo2Layer struct {
	attn                  Attention
	qNorm, kNorm          compute.View
	mlp                   MLP
	postAttnNorm, mlpNorm compute.View
}

func olmo2(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

	l.Tables(m, c.tied)
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, c.dim, c.theta, c.interleaved)
	var layers []olmo2Layer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		layers = append(layers, olmo2Layer{
			attn:         l.Attention(p+"self_attn.", c.hidden, c.heads, c.kvHeads, c.dim, c.attnBias, c.attnBias),
			qNorm:        l.Vector(p+"self_attn.q_norm.weight", c.heads*c.dim),
			kNorm:        l.Vector(p+"self_attn.k_norm.weight", c.kvHeads*c.dim),
			postAttnNorm: l.Vector(p+"post_attention_layernorm.weight", c.hidden),
			mlp:          l.MLP(p+"mlp.", c.hidden, c.inter, c.mlpBias),
			mlpNorm:      l.Vector(p+"post_feedforward_layernorm.weight", c.hidden),
		})
		m.Caches = append(m.Caches, l.attentionCache("full_attention", c.kvHeads, c.dim, 0))
	}

	scale := float32(1 / math.Sqrt(float64(c.dim)))
	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		for i, w := range layers {
			mark := f.S.Mark()

			q, k, v := f.QKV(x, w.attn)
			q, k = f.Norm(q, w.qNorm, c.eps), f.Norm(k, w.kNorm, c.eps)
			f.Rotate(q, rope, c.dim)
			f.Rotate(k, rope, c.dim)
			a := f.Attend(q, k, v, i, c.heads, scale)
			f.AddNorm(x, f.Linear(a, w.attn.O), w.postAttnNorm, c.eps)
			f.AddNorm(x, f.MLP(x, w.mlp, compute.ActSwiGLU), w.mlpNorm, c.eps)

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, c.eps, m.Head)
	}
	return m
}
