package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// qwen3Layer is a llama layer with norms on the heads of q and k (Qwen3
// technical report, 2025).
type qwen3Layer struct {
	llamaLayer
	qNorm, kNorm compute.View
}

func qwen3(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	c.dim = cfg.Int("head_dim")
	c.context = cfg.Int("max_position_embeddings")
	c.tied = cfg.Bool("tie_word_embeddings")
	if c.theta = ropeTheta(cfg, 0); c.theta == 0 {
		l.Fail("%w: rope_theta is missing", errConfig)
	}
	l.heads(c.heads, c.kvHeads, c.dim)
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

	l.Tables(m, c.tied)
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, c.dim, c.theta, false)
	var layers []qwen3Layer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		layers = append(layers, qwen3Layer{
			llamaLayer: llamaLayer{
				attnNorm: l.Vector(p+"input_layernorm.weight", c.hidden),
				attn:     l.Attention(p+"self_attn.", c.hidden, c.heads, c.kvHeads, c.dim, false, false),
				mlpNorm:  l.Vector(p+"post_attention_layernorm.weight", c.hidden),
				mlp:      l.MLP(p+"mlp.", c.hidden, c.inter, false),
			},
			qNorm: l.Vector(p+"self_attn.q_norm.weight", c.dim),
			kNorm: l.Vector(p+"self_attn.k_norm.weight", c.dim),
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
			f.HeadNorm(q, w.qNorm, c.eps, c.dim)
			f.HeadNorm(k, w.kNorm, c.eps, c.dim)
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
