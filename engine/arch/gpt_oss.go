package arch

import (
	"fmt"
	"math"
	"strings"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// gptOSSLayer is a mixture layer with biases everywhere and one sink per head:
// a logit that takes attention and gives no value (gpt-oss model card, 2025).
type gptOSSLayer struct {
	mixtureLayer
	sinks compute.View
}

func gptOSS(cfg checkpoint.Config, l *Loader) *Model {
	var (
		hidden  = cfg.IntOr("hidden_size", 2880)
		n       = cfg.IntOr("num_hidden_layers", 36)
		inter   = cfg.IntOr("intermediate_size", 2880)
		heads   = cfg.IntOr("num_attention_heads", 64)
		kvHeads = cfg.IntOr("num_key_value_heads", 8)
		dim     = cfg.IntOr("head_dim", 64)
		vocab   = cfg.IntOr("vocab_size", 201088)
		eps     = float32(cfg.FloatOr("rms_norm_eps", 1e-5))
		window  = cfg.IntOr("sliding_window", 128)
		types   = cfg.Strings("layer_types")
		experts = cfg.IntOr("num_local_experts", 128)
		rule    = compute.MoERoute{Kind: compute.SoftmaxTop, TopK: cfg.IntOr("num_experts_per_tok", 4), Scale: 1}
	)
	l.Positive("hidden_size", hidden)
	l.Positive("num_hidden_layers", n)
	l.Positive("vocab_size", vocab)
	l.heads(heads, kvHeads, dim)
	l.experts(experts, rule.TopK)
	l.perLayer("layer_types", len(types), n)
	m := &Model{Hidden: hidden, Vocab: vocab, Layers: n, Context: cfg.IntOr("max_position_embeddings", 0), EmbedScale: 1}

	l.Rename(func(n string) (string, bool) {
		if strings.Contains(n, ".mlp.experts.") {
			n = strings.NewReplacer("_proj_blocks", "_proj.weight", "_proj_scales", "_proj.scales", "_proj_bias", "_proj.bias").Replace(n)
		}
		return n, true
	})
	l.Tables(m, false)
	norm := l.Vector("model.norm.weight", hidden)
	rope := l.Rope(cfg, dim, ropeTheta(cfg, 150000), false)
	var layers []gptOSSLayer
	for i := 0; i < n && l.err == nil; i++ {
		kind := "sliding_attention"
		if i < len(types) {
			kind = types[i]
		} else if i%2 == 1 {
			kind = "full_attention"
		}
		p := fmt.Sprintf("model.layers.%d.", i)
		w := gptOSSLayer{
			mixtureLayer: mixtureLayer{
				attnNorm: l.Vector(p+"input_layernorm.weight", hidden),
				attn:     l.Attention(p+"self_attn.", hidden, heads, kvHeads, dim, true, true),
				mlpNorm:  l.Vector(p+"post_attention_layernorm.weight", hidden),
				experts:  Experts{Router: l.Linear(p+"mlp.router", experts, hidden, true), Rule: rule, Act: compute.ActClampedSwiGLU},
			},
			sinks: l.Vector(p+"self_attn.sinks", heads),
		}
		l.gptOSSExperts(&w.experts, p+"mlp.experts.", experts, hidden, inter)
		layers = append(layers, w)
		m.Caches = append(m.Caches, l.attentionCache(kind, kvHeads, dim, window))
	}

	scale := float32(1 / math.Sqrt(float64(dim)))
	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.attnNorm, eps)
			q, k, v := f.QKV(h, w.attn)
			f.Rotate(q, rope, dim)
			f.Rotate(k, rope, dim)
			a := f.AttendSinks(q, k, v, i, heads, scale, w.sinks)
			f.LinearAdd(a, w.attn.O, x)

			h = f.Norm(x, w.mlpNorm, eps)
			f.MixtureAdd(h, w.experts, x)

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, eps, m.Head)
	}
	return m
}

// gptOSSExperts loads experts with biases. Hugging Face files keep gate and up
// in one matrix, gate in the even rows.
func (l *Loader) gptOSSExperts(e *Experts, p string, n, hidden, inter int) {
	k := e.Rule.TopK
	e.Down = l.Experts(p+"down_proj", n, k, hidden, inter)
	e.DownBias = l.Vector(p+"down_proj.bias", n*hidden).Reshape(n, hidden)
	if !l.Has(p + "gate_up_proj.weight") {
		e.Gate, e.Up = l.Experts(p+"gate_proj", n, k, inter, hidden), l.Experts(p+"up_proj", n, k, inter, hidden)
		e.GateBias = l.Vector(p+"gate_proj.bias", n*inter).Reshape(n, inter)
		e.UpBias = l.Vector(p+"up_proj.bias", n*inter).Reshape(n, inter)
		return
	}
	both := l.matrix(p+"gate_up_proj", n, 2*inter, hidden)
	if l.err != nil {
		return
	}
	even, odd := make([]int, inter), make([]int, inter)
	for i := range inter {
		even[i], odd[i] = 2*i, 2*i+1
	}
	e.Gate, e.Up = l.stacked(l.pick(both, even), k), l.stacked(l.pick(both, odd), k)
	l.alias(p+"gate_proj", e.Gate)
	l.alias(p+"up_proj", e.Up)
	bias := l.numbers(p+"gate_up_proj.bias", n*2*inter)
	if l.err != nil {
		return
	}
	gate, up := make([]float32, n*inter), make([]float32, n*inter)
	for i := range gate {
		gate[i], up[i] = bias[2*i], bias[2*i+1]
	}
	e.GateBias = l.Constant(p+"gate_proj.bias", gate).Reshape(n, inter)
	e.UpBias = l.Constant(p+"up_proj.bias", up).Reshape(n, inter)
}
