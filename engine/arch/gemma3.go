package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// gemma3Layer is a gemma2 layer with norms on the heads of q and k; five of six
// see a window only (Gemma 3, 2025).
type gemma3Layer struct {
	gemma2Layer
	qNorm, kNorm compute.View
	rope         Rope
}

// gemma3 is the language model of gemma3 (under text_config) and gemma3_text.
func gemma3(cfg checkpoint.Config, l *Loader) *Model {
	l.TextTower("vision_tower", "multi_modal_projector")
	text := textConfig(cfg)
	defHeads, defKV, defVocab := 4, 1, 262144
	if cfg.Has("text_config") {
		defHeads, defKV, defVocab = 8, 4, 262208
	}
	var (
		hidden  = text.IntOr("hidden_size", 1152)
		n       = text.IntOr("num_hidden_layers", 26)
		inter   = text.IntOr("intermediate_size", 6912)
		heads   = text.IntOr("num_attention_heads", defHeads)
		kvHeads = text.IntOr("num_key_value_heads", defKV)
		dim     = text.IntOr("head_dim", 256)
		vocab   = cfg.IntOr("vocab_size", defVocab)
		eps     = float32(text.FloatOr("rms_norm_eps", 1e-6))
		window  = text.IntOr("sliding_window", 512)
		pattern = text.IntOr("sliding_window_pattern", text.IntOr("_sliding_window_pattern", 6))
		types   = text.Strings("layer_types")
		scale   = float32(1 / math.Sqrt(text.FloatOr("query_pre_attn_scalar", 256)))
	)
	l.Positive("hidden_size", hidden)
	l.Positive("num_hidden_layers", n)
	l.Positive("vocab_size", vocab)
	l.Positive("sliding_window_pattern", pattern)
	l.heads(heads, kvHeads, dim)
	l.perLayer("layer_types", len(types), n)
	embed := bf16(math.Sqrt(float64(hidden))) // the reference keeps this factor in bfloat16
	m := &Model{Hidden: hidden, Vocab: vocab, Layers: n, Context: text.IntOr("max_position_embeddings", 0), EmbedScale: embed}

	l.Tables(m, !l.Has("lm_head.weight"))
	norm := l.Centred("model.norm.weight", hidden)
	local := l.PlainRope(dim, text.FloatOr("rope_local_base_freq", text.Sub("rope_parameters", "sliding_attention").FloatOr("rope_theta", 1e4)), false)
	full := l.Rope(text, dim, ropeTheta(text, 1e6), false)
	if nested := text.Sub("rope_parameters", "full_attention"); !nested.Empty() {
		full = l.RopeScaled(text, nested, dim, nested.FloatOr("rope_theta", 1e6), false)
	}
	var layers []gemma3Layer
	for i := 0; i < n && l.err == nil; i++ {
		kind, rope := "sliding_attention", local
		if len(types) > 0 {
			kind = types[i]
		} else if (i+1)%pattern == 0 {
			kind = "full_attention"
		}
		if kind == "full_attention" {
			rope = full
		}
		p := fmt.Sprintf("model.layers.%d.", i)
		layers = append(layers, gemma3Layer{
			gemma2Layer: l.gemma2Layer(p, hidden, inter, heads, kvHeads, dim),
			qNorm:       l.Centred(p+"self_attn.q_norm.weight", dim),
			kNorm:       l.Centred(p+"self_attn.k_norm.weight", dim),
			rope:        rope,
		})
		m.Caches = append(m.Caches, l.attentionCache(kind, kvHeads, dim, window))
	}

	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, embed)
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.attnNorm, eps)
			q, k, v := f.QKV(h, w.attn)
			f.HeadNorm(q, w.qNorm, eps, dim)
			f.HeadNorm(k, w.kNorm, eps, dim)
			f.Rotate(q, w.rope, dim)
			f.Rotate(k, w.rope, dim)
			a := f.Attend(q, k, v, i, heads, scale)
			f.AddNorm(x, f.Linear(a, w.attn.O), w.postAttnNorm, eps)

			h = f.Norm(x, w.mlpNorm, eps)
			f.AddNorm(x, f.MLP(h, w.mlp, compute.ActGeGLU), w.postMLPNorm, eps)

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, eps, m.Head)
	}
	return m
}

// bf16 rounds to bfloat16, ties to even.
func bf16(x float64) float32 {
	b := math.Float32bits(float32(x))
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}
