package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// qwen2 is llama with biases on q, k and v (Qwen2 technical report, 2024).
func qwen2(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	c.theta = ropeTheta(cfg, 1e6)
	c.context = cfg.IntOr("max_position_embeddings", 32768)
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

	l.Tables(m, c.tied)
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, c.dim, c.theta, c.interleaved)
	var layers []llamaLayer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		layers = append(layers, llamaLayer{
			attnNorm: l.Vector(p+"input_layernorm.weight", c.hidden),
			attn:     l.Attention(p+"self_attn.", c.hidden, c.heads, c.kvHeads, c.dim, true, false),
			mlpNorm:  l.Vector(p+"post_attention_layernorm.weight", c.hidden),
			mlp:      l.MLP(p+"mlp.", c.hidden, c.inter, false),
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
			f.LinearAdd(a, w.attn.O, x)

			h = f.Norm(x, w.mlpNorm, c.eps)
			f.MLPAdd(h, w.mlp, compute.ActSwiGLU, x)

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, c.eps, m.Head)
	}
	return m
}
