package arch

import (
	"fmt"
	"math"
	"strings"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// llamaConfig holds the keys of a llama config.json (Touvron et al. 2023).
type llamaConfig struct {
	hidden, layers, inter int
	heads, kvHeads, dim   int
	vocab, context        int
	eps                   float32
	theta                 float64
	interleaved           bool // rope_traditional
	attnBias, outBias     bool // of q, k, v and of o
	mlpBias               bool
	tied                  bool
	layerTypes            []string
	window                int
	qBeta                 float32 // queries grow with the position (see compute.RoPE); 0 = no
	qOrig                 int
}

func readLlama(cfg checkpoint.Config, l *Loader) llamaConfig {
	c := llamaConfig{
		hidden:      cfg.Int("hidden_size"),
		layers:      cfg.Int("num_hidden_layers"),
		inter:       cfg.Int("intermediate_size"),
		heads:       cfg.Int("num_attention_heads"),
		vocab:       cfg.Int("vocab_size"),
		eps:         float32(cfg.Float("rms_norm_eps")),
		context:     cfg.IntOr("max_position_embeddings", 0),
		theta:       ropeTheta(cfg, 10000),
		interleaved: cfg.BoolOr("rope_traditional", false),
		attnBias:    cfg.BoolOr("attention_bias", false),
		mlpBias:     cfg.BoolOr("mlp_bias", false),
		tied:        cfg.BoolOr("tie_word_embeddings", true),
		layerTypes:  cfg.Strings("layer_types"),
		window:      cfg.IntOr("sliding_window", 0),
	}
	c.outBias = c.attnBias
	l.Positive("hidden_size", c.hidden)
	l.Positive("num_hidden_layers", c.layers)
	l.Positive("num_attention_heads", c.heads)
	l.Positive("vocab_size", c.vocab)
	if l.err != nil {
		return c
	}
	c.kvHeads = cfg.IntOr("num_key_value_heads", c.heads)
	c.dim = cfg.IntOr("head_dim", c.hidden/c.heads)
	l.heads(c.heads, c.kvHeads, c.dim)
	l.perLayer("layer_types", len(c.layerTypes), c.layers)
	return c
}

// layerType is the attention of layer i.
func (c llamaConfig) layerType(i int) string {
	if i < len(c.layerTypes) {
		return c.layerTypes[i]
	}
	return "full_attention"
}

// perLayer checks that a list of the configuration, if given, has an entry for
// each layer.
func (l *Loader) perLayer(key string, n, layers int) {
	if n > 0 && n != layers {
		l.Fail("%w: %s has %d entries for %d layers", errConfig, key, n, layers)
	}
}

// heads checks that query heads divide into key/value heads of a sane size.
func (l *Loader) heads(heads, kvHeads, dim int) {
	l.Positive("num_key_value_heads", kvHeads)
	l.Positive("head_dim", dim)
	if l.err == nil && heads%kvHeads != 0 {
		l.Fail("%w: %d attention heads do not divide into %d key/value heads", errConfig, heads, kvHeads)
	}
}

type llamaLayer struct {
	attnNorm, mlpNorm compute.View
	attn              Attention
	mlp               MLP
}

// llama is also mistral, iquestcoder and xverse.
func llama(cfg checkpoint.Config, l *Loader) *Model {
	return llamaTied(cfg, l, cfg.BoolOr("tie_word_embeddings", true))
}

// llamaTied is llama where the caller knows whether the head is the embedding.
func llamaTied(cfg checkpoint.Config, l *Loader, tied bool) *Model {
	c := readLlama(cfg, l)
	c.tied = tied
	l.Drop(activationScales)
	return c.build(cfg, l)
}

// build is also the model of families that differ from llama in their
// configuration only.
func (c llamaConfig) build(cfg checkpoint.Config, l *Loader) *Model {
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

	l.Tables(m, c.tied)
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, c.dim, c.theta, c.interleaved)
	ropeQ := rope
	ropeQ.QBeta, ropeQ.QOrig = c.qBeta, c.qOrig
	var layers []llamaLayer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		layers = append(layers, llamaLayer{
			attnNorm: l.Vector(p+"input_layernorm.weight", c.hidden),
			attn:     l.Attention(p+"self_attn.", c.hidden, c.heads, c.kvHeads, c.dim, c.attnBias, c.outBias),
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

// activationScales are left by FP8 conversions for kernels that quantize
// activations.
func activationScales(name string) bool {
	return strings.HasSuffix(name, ".activation_scale") || strings.HasSuffix(name, ".input_scale") || strings.HasSuffix(name, ".k_scale") || strings.HasSuffix(name, ".v_scale")
}

// attentionCache is the cache of one attention layer of the given layer type.
func (l *Loader) attentionCache(kind string, kvHeads, dim, window int) compute.CacheSpec {
	s := compute.CacheSpec{Kind: compute.CacheFull, Heads: kvHeads, KDim: dim, VDim: dim}
	switch kind {
	case "full_attention":
	case "sliding_attention":
		s.Kind, s.Window = compute.CacheWindow, window
		l.Positive("sliding_window", window)
	default:
		l.Fail("%w: layer type %q is not supported here", errConfig, kind)
	}
	return s
}
