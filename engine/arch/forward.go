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

	hidden   int
	adapter  *Adapter
	turns    map[int]*compute.Weight // by size, see turnValues
	turnings map[int]turning         // by caching layer, see TurnHeads
	queries  map[int]int             // heads of queries by caching layer
}

// New returns scratch memory for activations, in the type that the backend keeps
// them in.
func (f *Forward) New(rows, cols int) compute.View { return f.take(f.S.Floats(rows, cols)) }

// Result returns scratch memory in float32, for what the CPU will read.
func (f *Forward) Result(rows, cols int) compute.View { return f.take(f.S.F32(rows, cols)) }

func (f *Forward) take(v compute.View, err error) compute.View {
	if err != nil {
		f.P.Fail(err)
	}
	return v
}

// Embed looks the step's ids up.
func (f *Forward) Embed(w *compute.Weight, scale float32) compute.View {
	out := f.New(f.Step.Rows.N, w.Cols)
	f.P.Add(compute.Embed{IDs: f.Step.Rows.IDs, W: w, Scale: scale, Out: out})
	f.adaptEmbedding(w, scale, out)
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
	f.P.Add(compute.Linear{X: x, W: l.W, Adapter: f.adapter.linear(l.W), Bias: l.Bias, Scale: 1, Out: out, Prefill: f.Step.Rows.Prefill})
	return out
}

// LinearAdd adds x W^T + bias to the residual stream, in place.
func (f *Forward) LinearAdd(x compute.View, l Linear, residual compute.View) {
	f.LinearAddScaled(x, l, 1, residual)
}

// LinearAddScaled is LinearAdd with a factor on what is added.
func (f *Forward) LinearAddScaled(x compute.View, l Linear, factor float32, residual compute.View) {
	f.P.Add(compute.Linear{X: x, W: l.W, Adapter: f.adapter.linear(l.W), Bias: l.Bias, Scale: factor, Residual: residual, Out: residual, Prefill: f.Step.Rows.Prefill})
}

// Activated is act(x W^T + bias).
func (f *Forward) Activated(x compute.View, l Linear, act compute.Act) compute.View {
	out := f.New(x.Rows, l.W.Rows)
	f.P.Add(compute.Linear{X: x, W: l.W, Adapter: f.adapter.linear(l.W), Bias: l.Bias, Act: act, Scale: 1, Out: out, Prefill: f.Step.Rows.Prefill})
	return out
}

// Gated is act(x gate^T, x up^T).
func (f *Forward) Gated(x compute.View, gate, up Linear, act compute.Act) compute.View {
	out := f.New(x.Rows, gate.W.Rows)
	f.P.Add(compute.Linear{X: x, W: gate.W, Up: up.W, Adapter: f.adapter.linear(gate.W), UpAdapter: f.adapter.linear(up.W), Bias: gate.Bias, UpBias: up.Bias, Act: act, Scale: 1, Out: out, Prefill: f.Step.Rows.Prefill})
	return out
}

// MLP is the gated feed-forward block.
func (f *Forward) MLP(x compute.View, m MLP, act compute.Act) compute.View {
	return f.Linear(f.Gated(x, m.Gate, m.Up, act), m.Down)
}

// MLPAdd adds the gated feed-forward block of h to the residual stream x, in
// place.
func (f *Forward) MLPAdd(h compute.View, m MLP, act compute.Act, x compute.View) {
	f.LinearAdd(f.Gated(h, m.Gate, m.Up, act), m.Down, x)
}

// QKV is the three projections of an attention layer.
func (f *Forward) QKV(h compute.View, a Attention) (q, k, v compute.View) {
	return f.Linear(h, a.Q), f.Linear(h, a.K), f.Linear(h, a.V)
}

// Add adds y to x, in place.
func (f *Forward) Add(x, y compute.View) {
	f.P.Add(compute.Binary{Kind: compute.BinAdd, A: x, B: y, Out: x, Scale: 1})
}

// AddNorm adds the RMS norm of y to x. y is overwritten by its norm.
func (f *Forward) AddNorm(x, y, w compute.View, eps float32) {
	f.P.Add(compute.Norm{X: y, Out: y, W: w, Eps: eps, Scale: 1})
	f.Add(x, y)
}

// Rotate applies rotary positions to heads of dim columns, in place.
func (f *Forward) Rotate(x compute.View, r Rope, dim int) {
	op := compute.RoPE{X: x, Pos: f.Step.Rows.Pos, Freq: r.Freq, HeadDim: dim, Interleaved: r.Interleaved, Mul: r.Mul, QBeta: r.QBeta, QOrig: r.QOrig}
	if r.far == nil {
		f.P.Add(op)
		return
	}
	pos := f.Step.Rows.Pos.I32(0)
	for lo, hi := 0, 0; lo < x.Rows; lo = hi {
		hi = lo + 1
		for hi < x.Rows && r.far.near(pos[lo]) && r.far.near(pos[hi]) {
			hi++
		}
		part := op
		part.X, part.Pos = x.Slice(lo, hi), op.Pos.Columns(lo, hi)
		if !r.far.near(pos[lo]) {
			freq, err := r.far.at(pos[lo])
			if err != nil {
				f.P.Fail(err)
				return
			}
			part.Freq = freq
		}
		f.P.Add(part)
	}
}

// Attend stores k and v in the layer's cache and attends over it.
func (f *Forward) Attend(q, k, v compute.View, layer, heads int, scale float32) compute.View {
	return f.AttendSinks(q, k, v, layer, heads, scale, compute.View{})
}

// AttendSinks is Attend with one learned logit per head that takes attention
// and gives no value.
func (f *Forward) AttendSinks(q, k, v compute.View, layer, heads int, scale float32, sinks compute.View) compute.View {
	f.Remember(k, v, layer)
	return f.Recall(q, layer, compute.Attention{Heads: heads, Scale: scale, Sinks: sinks})
}

// Remember stores k and v in the cache of a layer.
func (f *Forward) Remember(k, v compute.View, layer int) {
	c := f.Step.Layers[layer]
	k, v = f.turnKeys(k, layer), f.turnValues(v, c.KV)
	f.P.Add(compute.KVWrite{K: k, V: v, KV: c.KV, Rows: f.Step.Rows, Pages: c.Pages})
}

// Recall attends over the cache of a layer. Of how, it reads heads, scale, soft
// cap and sinks.
func (f *Forward) Recall(q compute.View, layer int, how compute.Attention) compute.View {
	c := f.Step.Layers[layer]
	if f.queries != nil { // a model, not a drafter
		f.queries[layer] = how.Heads
	}
	how.Q, how.KV, how.Rows, how.Pages = f.turnQueries(q, layer), c.KV, f.Step.Rows, c.Pages
	how.Out = f.New(q.Rows, how.Heads*c.KV.VDim)
	f.P.Add(how)
	return f.turnValues(how.Out, c.KV)
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
	f.HeadCapped(x, norm, eps, head, 1, 0)
}

// HeadCapped is Head with a factor on the logits and, above zero, a soft cap.
func (f *Forward) HeadCapped(x, norm compute.View, eps float32, head *compute.Weight, factor, softcap float32) {
	if f.NoLogits {
		return
	}
	if f.Outputs.Given() {
		rows := f.New(f.Outputs.Cols, x.Cols)
		f.P.Add(compute.CopyRows{Src: x, Dst: rows, Index: f.Outputs})
		x = rows
	}
	f.Logits = f.Result(x.Rows, head.Rows)
	h := f.Norm(x, norm, eps)
	f.P.Add(compute.Linear{X: h, W: head, Adapter: f.adapter.linear(head), Scale: factor, Out: f.Logits, Prefill: x.Rows})
	if softcap > 0 {
		f.P.Add(compute.Unary{Kind: compute.UnSoftcap, X: f.Logits, Out: f.Logits, V: softcap})
	}
}
