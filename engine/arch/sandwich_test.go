package arch

import (
	"fmt"
	"math"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// sandwich is a family made up for this test, the way docs/add-a-model.md says:
// llama with a norm on either side of each block and a sigmoid gate on what
// attention gives.
func sandwich(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, EmbedScale: 1}

	l.Tables(m, c.tied)
	norm := l.Vector("model.norm.weight", c.hidden)
	rope := l.Rope(cfg, c.dim, c.theta, false)
	type layer struct {
		attnNorm, postAttnNorm, mlpNorm, postMLPNorm compute.View
		attn                                         Attention
		gate                                         Linear
		mlp                                          MLP
	}
	var layers []layer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		layers = append(layers, layer{
			attnNorm:     l.Vector(p+"input_layernorm.weight", c.hidden),
			attn:         l.Attention(p+"self_attn.", c.hidden, c.heads, c.kvHeads, c.dim, false, false),
			gate:         l.Linear(p+"self_attn.gate_proj", c.heads*c.dim, c.hidden, false),
			postAttnNorm: l.Vector(p+"post_attention_layernorm.weight", c.hidden),
			mlpNorm:      l.Vector(p+"pre_feedforward_layernorm.weight", c.hidden),
			mlp:          l.MLP(p+"mlp.", c.hidden, c.inter, false),
			postMLPNorm:  l.Vector(p+"post_feedforward_layernorm.weight", c.hidden),
		})
		m.Caches = append(m.Caches, l.attentionCache("full_attention", c.kvHeads, c.dim, 0))
	}

	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.attnNorm, c.eps)
			q, k, v := f.QKV(h, w.attn)
			f.Rotate(q, rope, c.dim)
			f.Rotate(k, rope, c.dim)
			a := f.Attend(q, k, v, i, c.heads, float32(1/math.Sqrt(float64(c.dim))))
			f.P.Add(compute.Binary{Kind: compute.BinSigmoidMul, A: a, B: f.Linear(h, w.gate), Out: a, Scale: 1})
			f.AddNorm(x, f.Linear(a, w.attn.O), w.postAttnNorm, c.eps)

			h = f.Norm(x, w.mlpNorm, c.eps)
			f.AddNorm(x, f.MLP(h, w.mlp, compute.ActSwiGLU), w.postMLPNorm, c.eps)

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, c.eps, m.Head)
	}
	return m
}

// TestNewFamily adds a family and compares it with testdata/gen_sandwich.py.
func TestNewFamily(t *testing.T) {
	families["sandwich"] = sandwich
	defer delete(families, "sandwich")
	data := openTensors(t, "testdata/sandwich/golden.safetensors")
	want := data.rows(t, "logits")
	for _, b := range backends(t) {
		r := newRig(t, b, "testdata/sandwich", cache.Options{Type: layout.F32})
		q := r.seq()
		for i, row := range r.step(q, data.ids(t), len(want)) {
			near(t, fmt.Sprintf("row %d", i), row, want[i], 2e-5)
		}
		q.Close()
		r.rollback(randomIDs(compute.PageSize+12, r.m.Vocab))
	}
}
