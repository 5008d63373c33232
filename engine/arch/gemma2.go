package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// gemma2Layer has norms before and behind each block. All norms of the Gemma
// families before the fourth multiply by 1+weight.
type gemma2Layer struct {
	attnNorm, postAttnNorm compute.View
	attn                   Attention
	mlpNorm, postMLPNorm   compute.View
	mlp                    MLP
}

// gemma2 caps attention scores and logits softly (Gemma 2, 2024). Its layers
// see the whole past here: no windows.
func gemma2(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	attnCap := float32(cfg.FloatOr("attn_logit_softcapping", 50))
	headCap := float32(cfg.FloatOr("final_logit_softcapping", 30))
	scale := float32(1 / math.Sqrt(cfg.FloatOr("query_pre_attn_scalar", 144)))
	embed := float32(math.Sqrt(float64(c.hidden)))
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: embed, HeadSoftCap: headCap}

	l.Tables(m, true)
	norm := l.Centred("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, c.dim, c.theta, c.interleaved)
	var layers []gemma2Layer
	for i := 0; i < c.layers && l.err == nil; i++ {
		layers = append(layers, l.gemma2Layer(fmt.Sprintf("model.layers.%d.", i), c.hidden, c.inter, c.heads, c.kvHeads, c.dim))
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
			f.Remember(k, v, i)
			a := f.Recall(q, i, compute.Attention{Heads: c.heads, Scale: scale, SoftCap: attnCap})
			f.AddNorm(x, f.Linear(a, w.attn.O), w.postAttnNorm, c.eps)

			h = f.Norm(x, w.mlpNorm, c.eps)
			f.AddNorm(x, f.MLP(h, w.mlp, compute.ActGeGLU), w.postMLPNorm, c.eps)

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.HeadCapped(x, norm, c.eps, m.Head, 1, headCap)
	}
	return m
}

func (l *Loader) gemma2Layer(p string, hidden, inter, heads, kvHeads, dim int) gemma2Layer {
	return gemma2Layer{
		attnNorm:     l.Centred(p+"input_layernorm.weight", hidden),
		attn:         l.Attention(p+"self_attn.", hidden, heads, kvHeads, dim, false, false),
		postAttnNorm: l.Centred(p+"post_attention_layernorm.weight", hidden),
		mlpNorm:      l.Centred(p+"pre_feedforward_layernorm.weight", hidden),
		mlp:          l.MLP(p+"mlp.", hidden, inter, false),
		postMLPNorm:  l.Centred(p+"post_feedforward_layernorm.weight", hidden),
	}
}
