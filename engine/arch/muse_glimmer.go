package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// museLayer has norms before and behind each block and a sigmoid gate on what
// attention gives. Sliding layers rotate q and k, full ones do not.
type museLayer struct {
	attnNorm, postAttnNorm compute.View
	attn                   Attention
	gate                   Linear
	mlpNorm, postMLPNorm   compute.View
	mlp                    MLP
	rope                   Rope
	rotates                bool
}

func museGlimmer(cfg checkpoint.Config, l *Loader) *Model {
	l.TextTower("vision_tower", "vision_adapter", "vision_projection")
	text := textConfig(cfg)
	var (
		hidden  = text.IntOr("hidden_size", 6656)
		n       = text.IntOr("num_hidden_layers", 52)
		inter   = text.IntOr("intermediate_size", 19968)
		heads   = text.IntOr("num_attention_heads", 32)
		kvHeads = text.IntOr("num_key_value_heads", 2)
		dim     = text.IntOr("head_dim", 128)
		vocab   = text.IntOr("vocab_size", cfg.IntOr("vocab_size", 202048))
		eps     = float32(text.FloatOr("rms_norm_eps", 1e-5))
		postEps = float32(text.FloatOr("post_norm_eps", 1e-8))
		window  = text.IntOr("sliding_window", 2048)
		qkScale = float32(text.FloatOr("qk_scale_factor", 3.87))
		theta   = ropeTheta(text, 5e5)
		softcap = float32(text.FloatOr("final_logit_softcapping", 20))
		outMul  = float32(text.FloatOr("output_multiplier", 0.19611613513818404))
		types   = text.Strings("layer_types")
		thetas  = text.Floats("layer_rope_theta")
	)
	l.Positive("hidden_size", hidden)
	l.Positive("num_hidden_layers", n)
	l.Positive("vocab_size", vocab)
	l.heads(heads, kvHeads, dim)
	l.perLayer("layer_types", len(types), n)
	l.perLayer("layer_rope_theta", len(thetas), n)
	m := &Model{Hidden: hidden, Vocab: vocab, Layers: n, Context: text.IntOr("max_position_embeddings", 0), EmbedScale: 1}

	l.Tables(m, text.BoolOr("tie_word_embeddings", cfg.BoolOr("tie_word_embeddings", false)))
	norm := l.Vector("model.norm.weight", hidden)
	var layers []museLayer
	for i := 0; i < n && l.err == nil; i++ {
		kind := "sliding_attention"
		if i < len(types) {
			kind = types[i]
		} else if (i+1)%4 == 0 {
			kind = "full_attention"
		}
		base := 0.0
		if i < len(thetas) {
			base = thetas[i]
		} else if kind != "full_attention" {
			base = theta
		}
		p := fmt.Sprintf("model.layers.%d.", i)
		w := museLayer{
			attnNorm:     l.Centred(p+"input_layernorm.weight", hidden),
			attn:         l.Attention(p+"self_attn.", hidden, heads, kvHeads, dim, false, false),
			gate:         l.Linear(p+"self_attn.gate_proj", heads*dim, hidden, false),
			postAttnNorm: l.Centred(p+"post_attention_layernorm.weight", hidden),
			mlpNorm:      l.Centred(p+"pre_feedforward_layernorm.weight", hidden),
			mlp:          l.MLP(p+"mlp.", hidden, inter, false),
			postMLPNorm:  l.Centred(p+"post_feedforward_layernorm.weight", hidden),
			rotates:      base != 0,
		}
		if w.rotates {
			w.rope = l.PlainRope(dim, base, false)
		}
		layers = append(layers, w)
		m.Caches = append(m.Caches, l.attentionCache(kind, kvHeads, dim, window))
	}

	scale := float32(1 / math.Sqrt(float64(dim)))
	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		f.P.Add(compute.Norm{X: x, Out: x, Eps: eps, Scale: 1})
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.attnNorm, eps)
			q, k, v := f.QKV(h, w.attn)
			f.P.Add(compute.Norm{X: q, Out: q, Eps: eps, Scale: qkScale, Group: dim})
			f.HeadNorm(k, compute.View{}, eps, dim)
			if w.rotates {
				f.Rotate(q, w.rope, dim)
				f.Rotate(k, w.rope, dim)
			}
			a := f.Attend(q, k, v, i, heads, scale)
			f.P.Add(compute.Binary{Kind: compute.BinSigmoidMul, A: a, B: f.Linear(h, w.gate), Out: a, Scale: 1})
			f.AddNorm(x, f.Linear(a, w.attn.O), w.postAttnNorm, postEps)

			h = f.Norm(x, w.mlpNorm, eps)
			f.AddNorm(x, f.MLP(h, w.mlp, compute.ActSwiGLU), w.postMLPNorm, postEps)

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.HeadCapped(x, norm, eps, m.Head, outMul, softcap)
	}
	return m
}
