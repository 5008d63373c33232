package arch

import (
	"fmt"
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// mixtureLayer is a llama layer whose feed-forward block is a mixture of
// experts.
type mixtureLayer struct {
	attnNorm, mlpNorm compute.View
	attn              Attention
	experts           Experts
}

// qwen2MoE is qwen2 with experts in every layer, beside a shared expert that a
// sigmoid scales (Qwen1.5-MoE, 2024).
func qwen2MoE(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	c.theta = ropeTheta(cfg, 1e6)
	var (
		n      = cfg.Int("num_experts")
		inter  = cfg.Int("moe_intermediate_size")
		shared = cfg.Int("shared_expert_intermediate_size")
		rule   = compute.MoERoute{Kind: compute.SoftmaxAll, TopK: cfg.Int("num_experts_per_tok"), Scale: 1}
	)
	l.experts(n, rule.TopK)
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

	l.Tables(m, false)
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, c.dim, c.theta, c.interleaved)
	var layers []mixtureLayer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		layers = append(layers, mixtureLayer{
			attnNorm: l.Vector(p+"input_layernorm.weight", c.hidden),
			attn:     l.Attention(p+"self_attn.", c.hidden, c.heads, c.kvHeads, c.dim, true, false),
			mlpNorm:  l.Vector(p+"post_attention_layernorm.weight", c.hidden),
			experts:  l.qwenExperts(p+"mlp.", rule, n, c.hidden, inter, shared),
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
			f.MixtureAdd(h, w.experts, x)

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, c.eps, m.Head)
	}
	return m
}

// qwenExperts loads experts beside a shared one with a gate, below p.
func (l *Loader) qwenExperts(p string, rule compute.MoERoute, n, hidden, inter, shared int) Experts {
	one := l.MLP(p+"shared_expert.", hidden, shared, false)
	gate := l.Linear(p+"shared_expert_gate", 1, hidden, false)
	e := Experts{Router: l.Linear(p+"gate", n, hidden, false), Rule: rule, Act: compute.ActSwiGLU, Shared: &one, SharedGate: &gate}
	l.GatedExperts(&e, p+"switch_mlp.", p+"experts.", n, hidden, inter)
	return e
}
