package arch

import (
	"sparkbar/engine/compute"
)

// Forward is one forward pass being recorded. Its methods are the phrases that
// the families are written in; each records ops and returns where the result
// will be. Errors stick to the program.
type Forward struct {
	P    *compute.Program
	S    *compute.Scratch
	Step *compute.Step

	// Taps are layers whose output goes to Fused [N, len(Taps)*Hidden], in the
	// given order.
	Taps  []int
	Fused compute.View
	// Outputs are the rows whose logits are wanted, I32 [1,n]; not given: all.
	Outputs compute.View
	// NoLogits leaves the head out (prefill chunks before the last).
	NoLogits bool

	// Logits is the result [n, Vocab].
	Logits compute.View

	hidden int
}

// New returns scratch memory of n columns per row of x.
func (f *Forward) New(rows, cols int) compute.View {
	v, err := f.S.F32(rows, cols)
	if err != nil {
		f.P.Fail(err)
	}
	return v
}

// Embed looks the step's ids up.
func (f *Forward) Embed(w *compute.Weight, scale float32) compute.View {
	out := f.New(f.Step.Rows.N, w.Cols)
	f.P.Add(compute.Embed{IDs: f.Step.Rows.IDs, W: w, Scale: scale, Out: out})
	return out
}

// Norm is the RMS norm of whole rows.
func (f *Forward) Norm(x, w compute.View, eps float32) compute.View {
	out := f.New(x.Rows, x.Cols)
	f.P.Add(compute.Norm{X: x, Out: out, W: w, Eps: eps, Scale: 1})
	return out
}

// HeadNorm is the RMS norm of each head of dim columns, in place.
func (f *Forward) HeadNorm(x, w compute.View, eps float32, dim int) {
	f.P.Add(compute.Norm{X: x, Out: x, W: w, Eps: eps, Scale: 1, Group: dim})
}

// Linear is x W^T + bias.
func (f *Forward) Linear(x compute.View, l Linear) compute.View {
	out := f.New(x.Rows, l.W.Rows)
	f.P.Add(compute.Linear{X: x, W: l.W, Bias: l.Bias, Scale: 1, Out: out, Prefill: f.Step.Rows.Prefill})
	return out
}

// LinearAdd adds x W^T + bias to the residual stream, in place.
func (f *Forward) LinearAdd(x compute.View, l Linear, residual compute.View) {
	f.P.Add(compute.Linear{X: x, W: l.W, Bias: l.Bias, Scale: 1, Residual: residual, Out: residual, Prefill: f.Step.Rows.Prefill})
}

// Gated is act(x gate^T, x up^T).
func (f *Forward) Gated(x compute.View, gate, up Linear, act compute.Act) compute.View {
	out := f.New(x.Rows, gate.W.Rows)
	f.P.Add(compute.Linear{X: x, W: gate.W, Up: up.W, Bias: gate.Bias, UpBias: up.Bias, Act: act, Scale: 1, Out: out, Prefill: f.Step.Rows.Prefill})
	return out
}

// Rotate applies rotary positions to heads of dim columns, in place.
func (f *Forward) Rotate(x compute.View, r Rope, dim int) {
	f.P.Add(compute.RoPE{X: x, Pos: f.Step.Rows.Pos, Freq: r.Freq, HeadDim: dim, Interleaved: r.Interleaved, Mul: r.Mul})
}

// Attend stores k and v in the layer's cache and attends over it.
func (f *Forward) Attend(q, k, v compute.View, layer, heads int, scale float32) compute.View {
	c := f.Step.Layers[layer]
	out := f.New(q.Rows, heads*c.KV.VDim)
	f.P.Add(compute.KVWrite{K: k, V: v, KV: c.KV, Rows: f.Step.Rows, Pages: c.Pages},
		compute.Attention{Q: q, KV: c.KV, Rows: f.Step.Rows, Pages: c.Pages, Heads: heads, Scale: scale, Out: out})
	return out
}

// Tap copies the residual stream after a layer to the fused rows, if wanted.
func (f *Forward) Tap(layer int, x compute.View) {
	for i, t := range f.Taps {
		if t == layer {
			f.P.Add(compute.CopyRows{Src: x, Dst: f.Fused.Columns(i*f.hidden, (i+1)*f.hidden)})
		}
	}
}

// Head ends the pass: the wanted rows of x through norm and the head.
func (f *Forward) Head(x, norm compute.View, eps float32, head *compute.Weight) {
	if f.NoLogits {
		return
	}
	if f.Outputs.Given() {
		rows := f.New(f.Outputs.Cols, x.Cols)
		f.P.Add(compute.CopyRows{Src: x, Dst: rows, Index: f.Outputs})
		x = rows
	}
	f.Logits = f.New(x.Rows, head.Rows)
	h := f.Norm(x, norm, eps)
	f.P.Add(compute.Linear{X: h, W: head, Scale: 1, Out: f.Logits, Prefill: x.Rows})
}
