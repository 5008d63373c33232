package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// phi3 is llama with fused projections and a partly rotated head (Phi-3
// technical report, 2024). A scaled rope uses its long factors at every length.
func phi3(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	rotary := l.rotaryDims(cfg, c.dim, 1)
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

	l.Tables(m, cfg.BoolOr("tie_word_embeddings", false))
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, rotary, c.theta, c.interleaved)
	var layers []llamaLayer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		qkv := l.Fused(p+"self_attn.qkv_proj", c.hidden, false, c.heads*c.dim, c.kvHeads*c.dim, c.kvHeads*c.dim)
		gateUp := l.Fused(p+"mlp.gate_up_proj", c.hidden, false, c.inter, c.inter)
		layers = append(layers, llamaLayer{
			attnNorm: l.Vector(p+"input_layernorm.weight", c.hidden),
			attn:     Attention{Q: qkv[0], K: qkv[1], V: qkv[2], O: l.Linear(p+"self_attn.o_proj", c.hidden, c.heads*c.dim, false)},
			mlpNorm:  l.Vector(p+"post_attention_layernorm.weight", c.hidden),
			mlp:      MLP{Gate: gateUp[0], Up: gateUp[1], Down: l.Linear(p+"mlp.down_proj", c.hidden, c.inter, false)},
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
