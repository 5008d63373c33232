package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// mistral3 wraps a vision tower around a language model of type ministral3 or,
// for the others, llama.
func mistral3(cfg checkpoint.Config, l *Loader) *Model {
	l.TextTower("vision_tower", "multi_modal_projector", "vision_encoder", "patch_merger", "image_newline")
	text := textConfig(cfg)
	tied := text.BoolOr("tie_word_embeddings", cfg.BoolOr("tie_word_embeddings", false))
	switch kind := text.StringOr("model_type", "mistral"); kind {
	case "ministral3":
		return ministral3(text, l, tied)
	case "mistral4":
		l.Fail("%w: text_config.model_type %q is not supported", errConfig, kind)
	}
	return llamaTied(text, l, tied)
}

// ministral3 is llama whose queries grow with the position (Ministral 3, 2025).
func ministral3(cfg checkpoint.Config, l *Loader, tied bool) *Model {
	c := readLlama(cfg, l)
	params := cfg.Sub("rope_parameters")
	beta, orig := params.Float("llama_4_scaling_beta"), params.Int("original_max_position_embeddings")
	l.Positive("rope_parameters.original_max_position_embeddings", orig)
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

	l.Tables(m, tied)
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, c.dim, c.theta, c.interleaved)
	ropeQ := rope
	ropeQ.QBeta, ropeQ.QOrig = float32(beta), orig
	l.Drop(activationScales)
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

	scale := float32(1 / math.Sqrt(float64(c.dim)))
	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.attnNorm, c.eps)
			q, k, v := f.QKV(h, w.attn)
			f.Rotate(q, ropeQ, c.dim)
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
