package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// smollm3 is llama without positions on every fourth layer (SmolLM3, 2025;
// NoPE: Yang et al. 2025).
func smollm3(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	useRope := cfg.Ints("no_rope_layers") // 1: with rope, whatever the name says
	interval := cfg.IntOr("no_rope_layer_interval", 4)
	l.perLayer("no_rope_layers", len(useRope), c.layers)
	l.Positive("no_rope_layer_interval", interval)
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

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
		m.Caches = append(m.Caches, l.attentionCache(c.layerType(i), c.kvHeads, c.dim, c.window))
	}

	rotates := func(i int) bool {
		if i < len(useRope) {
			return useRope[i] != 0
		}
		return (i+1)%interval != 0
	}
	scale := float32(1 / math.Sqrt(float64(c.dim)))
	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.attnNorm, c.eps)
			q, k, v := f.QKV(h, w.attn)
			if rotates(i) {
				f.Rotate(q, rope, c.dim)
				f.Rotate(k, rope, c.dim)
			}
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
