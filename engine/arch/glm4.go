package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// glm4Layer has norms before and behind each block; half of each head is
// rotated, in interleaved pairs (GLM-4-0414, 2025).
type glm4Layer struct {
	attnNorm, postAttnNorm compute.View
	attn                   Attention
	mlpNorm, postMLPNorm   compute.View
	mlp                    MLP
}

func glm4(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	rotary := l.rotaryDims(cfg, c.dim, 0.5)
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

	l.Tables(m, cfg.BoolOr("tie_word_embeddings", false))
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, rotary, c.theta, true)
	var layers []glm4Layer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		gateUp := l.Fused(p+"mlp.gate_up_proj", c.hidden, false, c.inter, c.inter)
		layers = append(layers, glm4Layer{
			attnNorm:     l.Vector(p+"input_layernorm.weight", c.hidden),
			attn:         l.Attention(p+"self_attn.", c.hidden, c.heads, c.kvHeads, c.dim, c.attnBias, false),
			postAttnNorm: l.Vector(p+"post_self_attn_layernorm.weight", c.hidden),
			mlpNorm:      l.Vector(p+"post_attention_layernorm.weight", c.hidden),
			mlp:          MLP{Gate: gateUp[0], Up: gateUp[1], Down: l.Linear(p+"mlp.down_proj", c.hidden, c.inter, false)},
			postMLPNorm:  l.Vector(p+"post_mlp_layernorm.weight", c.hidden),
		})
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
			f.AddNorm(x, f.Linear(a, w.attn.O), w.postAttnNorm, c.eps)

			h = f.Norm(x, w.mlpNorm, c.eps)
			f.AddNorm(x, f.MLP(h, w.mlp, compute.ActSwiGLU), w.postMLPNorm, c.eps)

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, c.eps, m.Head)
	}
	return m
}
