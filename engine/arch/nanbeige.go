package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// nanbeige runs a llama stack several times over the same weights, each loop
// with caches of its own (Nanbeige4.2, 2026). Layers, taps and caches count over
// the unrolled stack.
func nanbeige(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	for _, key := range []string{"enable_double_loop_split", "loop_share_kv", "enable_depth_attention"} {
		if cfg.BoolOr(key, false) {
			l.Fail("%w: %s is not supported", errConfig, key)
		}
	}
	loops := 1
	if n := len(cfg.Floats("loop_loss_weights")); n > 0 {
		loops = n + 1
	}
	loops = cfg.IntOr("num_loops", loops)
	normEach := !cfg.BoolOr("skip_loop_final_norm", false)
	if loops < 1 || loops > maxLoops {
		l.Fail("%w: num_loops must be from 1 to %d, is %d", errConfig, maxLoops, loops)
		return &Model{}
	}
	// A tap on the last unrolled layer would be the final norm's input of no loop.
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: loops * c.layers, Tappable: loops*c.layers - 1, Context: c.context, EmbedScale: 1}

	l.Tables(m, cfg.BoolOr("tie_word_embeddings", false))
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, c.dim, c.theta, c.interleaved)
	before := l.bytes
	var layers []llamaLayer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		layers = append(layers, llamaLayer{
			attnNorm: l.Vector(p+"input_layernorm.weight", c.hidden),
			attn:     l.Attention(p+"self_attn.", c.hidden, c.heads, c.kvHeads, c.dim, c.attnBias, c.attnBias),
			mlpNorm:  l.Vector(p+"post_attention_layernorm.weight", c.hidden),
			mlp:      l.MLP(p+"mlp.", c.hidden, c.inter, c.mlpBias),
		})
	}
	for range loops * len(layers) {
		m.Caches = append(m.Caches, l.attentionCache("full_attention", c.kvHeads, c.dim, 0))
	}
	m.ActiveBytes = int64(loops-1) * (l.bytes - before)

	scale := float32(1 / math.Sqrt(float64(c.dim)))
	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		for loop := range loops {
			for i, w := range layers {
				mark := f.S.Mark()
				at := loop*len(layers) + i

				h := f.Norm(x, w.attnNorm, c.eps)
				q, k, v := f.QKV(h, w.attn)
				f.Rotate(q, rope, c.dim)
				f.Rotate(k, rope, c.dim)
				a := f.Attend(q, k, v, at, c.heads, scale)
				f.LinearAdd(a, w.attn.O, x)

				h = f.Norm(x, w.mlpNorm, c.eps)
				f.MLPAdd(h, w.mlp, compute.ActSwiGLU, x)

				if i == len(layers)-1 && loop < loops-1 && normEach {
					f.P.Add(compute.Norm{X: x, Out: x, W: norm, Eps: c.eps, Scale: 1})
				}
				f.Tap(at, x)
				f.S.Release(mark)
			}
		}
		f.Head(x, norm, c.eps, m.Head)
	}
	return m
}

// maxLoops bounds num_loops, and with it the caches.
const maxLoops = 64
