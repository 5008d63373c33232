package arch

import (
	"fmt"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// granite is llama with four multipliers: on the embedding, on attention
// scores, on what each block adds and on the logits (IBM Granite 3, 2024).
func granite(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	embed := float32(cfg.Float("embedding_multiplier"))
	scale := float32(cfg.Float("attention_multiplier"))
	residual := float32(cfg.Float("residual_multiplier"))
	logits := cfg.Float("logits_scaling")
	if logits == 0 {
		l.Fail("%w: logits_scaling must not be zero", errConfig)
	}
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: embed}

	l.Tables(m, c.tied)
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, c.dim, c.theta, c.interleaved)
	var layers []llamaLayer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		layers = append(layers, llamaLayer{
			attnNorm: l.Vector(p+"input_layernorm.weight", c.hidden),
			attn:     l.Attention(p+"self_attn.", c.hidden, c.heads, c.kvHeads, c.dim, c.attnBias, c.attnBias),
			mlpNorm:  l.Vector(p+"post_attention_layernorm.weight", c.hidden),
			mlp:      l.MLP(p+"mlp.", c.hidden, c.inter, c.mlpBias),
		})
		m.Caches = append(m.Caches, l.attentionCache("full_attention", c.kvHeads, c.dim, 0))
	}

	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, embed)
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.attnNorm, c.eps)
			q, k, v := f.QKV(h, w.attn)
			f.Rotate(q, rope, c.dim)
			f.Rotate(k, rope, c.dim)
			a := f.Attend(q, k, v, i, c.heads, scale)
			f.LinearAddScaled(a, w.attn.O, residual, x)

			h = f.Norm(x, w.mlpNorm, c.eps)
			f.LinearAddScaled(f.Gated(h, w.mlp.Gate, w.mlp.Up, compute.ActSwiGLU), w.mlp.Down, residual, x)

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.HeadCapped(x, norm, c.eps, m.Head, float32(1/logits), 0)
	}
	return m
}
