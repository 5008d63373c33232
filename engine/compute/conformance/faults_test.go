package conformance

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// fault is a mistake planted in the reference backend: an op run as something
// else, or followed by damage to its result, or a weight misread.
type fault struct {
	name string
	op   string // the part of the suite that must find it
	run  func(f *faulty, op compute.Op)
	load func(m layout.Matrix) layout.Matrix
}

// faulty is the reference backend with a fault.
type faulty struct {
	*compute.Reference
	fault
	hits int   // ops that the fault changed
	err  error // a planted op that did not run: the test's own mistake
	bufs []*compute.Buffer
}

func (f *faulty) Load(m layout.Matrix) (*compute.Weight, error) {
	if f.load != nil {
		f.hits++
		m = f.load(m)
	}
	return f.Reference.Load(m)
}

func (f *faulty) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	if f.fault.run == nil || p.Err() != nil || stop.IsSet() {
		return f.Reference.Submit(p, stop)
	}
	f.Count(p.Label)
	for _, op := range p.Ops {
		f.fault.run(f, op)
	}
	return compute.Done{Err: f.err}, nil
}

// do runs ops in the reference.
func (f *faulty) do(ops ...compute.Op) {
	p := compute.Program{Label: "planted"}
	p.Add(ops...)
	if err := compute.Run(f.Reference, &p, nil); err != nil && f.err == nil {
		f.err = fmt.Errorf("planted op: %w", err)
	}
}

// copyOf returns a densely packed copy of v.
func (f *faulty) copyOf(v compute.View) compute.View {
	buf, err := f.Alloc("copy", max(4*v.Rows*v.Cols, 4))
	if err != nil {
		f.err = err
		return v
	}
	f.bufs = append(f.bufs, buf)
	c := buf.Of(v.Type, 0, v.Rows, v.Cols)
	for r := range v.Rows {
		if v.Type == layout.I32 {
			copy(c.I32(r), v.I32(r))
		} else {
			copy(c.F32(r), v.F32(r))
		}
	}
	return c
}

// ints returns a copy of v with g done to each element of row 0.
func (f *faulty) ints(v compute.View, g func(i int, x int32) int32) compute.View {
	c := f.copyOf(v)
	for r := range c.Rows {
		for i, x := range c.I32(r) {
			c.I32(r)[i] = g(i, x)
			if c.I32(r)[i] != x {
				f.hits++
			}
		}
	}
	return c
}

// on makes the run function of a fault in ops of type T; others run as they are.
func on[T compute.Op](g func(f *faulty, o T)) func(*faulty, compute.Op) {
	return func(f *faulty, op compute.Op) {
		if o, ok := op.(T); ok {
			g(f, o)
			return
		}
		f.do(op)
	}
}

// instead makes the run function of a fault that replaces ops of type T.
func instead[T compute.Op](g func(f *faulty, o *T)) func(*faulty, compute.Op) {
	return on(func(f *faulty, o T) {
		g(f, &o)
		f.do(o)
	})
}

func nudge(x []float32, at int) { x[at] = math.Nextafter32(x[at], inf) }

var faults = []fault{
	{name: "grouped heads interleaved", op: "Attention", run: on(func(f *faulty, o compute.Attention) {
		// head h of the fault reads KV head h mod n
		var perm []int
		for kv := range o.KV.Heads {
			for h := kv; h < o.Heads; h += o.KV.Heads {
				perm = append(perm, h)
			}
		}
		p := o
		p.Q, p.Out = f.copyOf(o.Q), f.copyOf(o.Out)
		if o.Sinks.Given() {
			p.Sinks = f.copyOf(o.Sinks)
		}
		k, v := o.KV.KDim, o.KV.VDim
		for to, from := range perm {
			if to != from {
				f.hits++
			}
			for r := range o.Rows.N {
				copy(p.Q.F32(r)[to*k:][:k], o.Q.F32(r)[from*k:][:k])
			}
			if o.Sinks.Given() {
				p.Sinks.F32(0)[to] = o.Sinks.F32(0)[from]
			}
		}
		f.do(p)
		for to, from := range perm {
			for r := range o.Rows.N {
				copy(o.Out.F32(r)[from*v:][:v], p.Out.F32(r)[to*v:][:v])
			}
		}
	})},
	{name: "window one too wide", op: "Attention", run: instead(func(f *faulty, o *compute.Attention) {
		o.Pages.Lo = f.ints(o.Pages.Lo, func(_ int, x int32) int32 { return x - min(max(x, 0), 1) })
	})},
	{name: "window one too narrow, only at the border of a page", op: "Attention", run: instead(func(f *faulty, o *compute.Attention) {
		hi := o.Pages.Hi.I32(0)
		o.Pages.Lo = f.ints(o.Pages.Lo, func(i int, x int32) int32 {
			if x == 63 && hi[i] > 64 {
				return 64
			}
			return x
		})
	})},
	{name: "the last position of a full page unseen", op: "Attention", run: instead(func(f *faulty, o *compute.Attention) {
		o.Pages.Hi = f.ints(o.Pages.Hi, func(_ int, x int32) int32 {
			if x > 0 && x%64 == 0 {
				return x - 1
			}
			return x
		})
	})},
	{name: "draft block causal", op: "Attention", run: instead(func(f *faulty, o *compute.Attention) {
		o.Pages.Hi = f.ints(o.Pages.Hi, func(i int, x int32) int32 { return min(x, o.Rows.Pos.I32(0)[i]+1) })
	})},
	{name: "dropped page read as page 0", op: "Attention", run: instead(func(f *faulty, o *compute.Attention) {
		o.Pages.Table = f.ints(o.Pages.Table, func(_ int, x int32) int32 { return max(x, 0) })
	})},
	{name: "segments shifted after an empty one", op: "Attention", run: instead(func(f *faulty, o *compute.Attention) {
		o.Rows.Of = f.ints(o.Rows.Of, func(_ int, x int32) int32 { return min(max(x, 0), int32(o.Rows.Segments)-1) / 2 })
	})},
	{name: "soft cap forgotten", op: "Attention", run: instead(func(f *faulty, o *compute.Attention) {
		if o.SoftCap > 0 {
			o.SoftCap = 0
			f.hits++
		}
	})},
	{name: "sinks forgotten", op: "Attention", run: instead(func(f *faulty, o *compute.Attention) {
		if o.Sinks.Given() {
			o.Sinks = compute.View{}
			f.hits++
		}
	})},
	{name: "attention rows depend on how many there are", op: "Attention", run: on(func(f *faulty, o compute.Attention) {
		f.do(o)
		if o.Rows.N > 8 {
			f.hits++
			nudge(o.Out.F32(3), 0)
		}
	})},
	{name: "wrong quantization group at the border of a page", op: "KVWrite", run: on(func(f *faulty, o compute.KVWrite) {
		f.do(o)
		if o.KV.Bits == 0 || o.KV.KDim == o.KV.Group {
			return
		}
		groups := o.KV.KDim / o.KV.Group
		kb, _ := o.KV.PageBytes()
		for i := range o.Rows.N {
			pos, of := o.Rows.Pos.I32(0)[i], o.Rows.Of.I32(0)[i]
			if pos < 0 || pos%64 != 63 || of < 0 || int(of) >= o.Pages.Table.Rows || int(pos)/64 >= o.Pages.Table.Cols {
				continue
			}
			if pg := int(o.Pages.Table.I32(int(of))[pos/64]); pg >= 0 && pg < o.KV.Pages {
				scales := o.KV.K.Bytes[pg*kb+o.KV.Heads*64*o.KV.KDim*o.KV.Bits/8+63*groups*4:]
				copy(scales[4:8], scales[:4])
				f.hits++
			}
		}
	})},
	{name: "bfloat truncated", op: "KVWrite", run: instead(func(f *faulty, o *compute.KVWrite) {
		if o.KV.Type != layout.BF16 || o.KV.Bits > 0 {
			return
		}
		o.K = f.copyOf(o.K)
		for r := range o.K.Rows {
			for i, x := range o.K.F32(r) {
				o.K.F32(r)[i] = math.Float32frombits(math.Float32bits(x) &^ 0xffff)
				f.hits++
			}
		}
	})},
	{name: "row without a page written to the last page", op: "KVWrite", run: instead(func(f *faulty, o *compute.KVWrite) {
		o.Pages.Table = f.ints(o.Pages.Table, func(_ int, x int32) int32 {
			if x < 0 || x >= int32(o.KV.Pages) {
				return int32(o.KV.Pages) - 1
			}
			return x
		})
	})},
	{name: "last element of K dropped from row 8 on", op: "Linear", run: instead(func(f *faulty, o *compute.Linear) {
		o.X = f.copyOf(o.X)
		for r := 8; r < o.X.Rows; r++ {
			o.X.F32(r)[o.X.Cols-1] = 0
			f.hits++
		}
	})},
	{name: "residual forgotten in place", op: "Linear", run: instead(func(f *faulty, o *compute.Linear) {
		if o.Residual.Given() && o.Residual == o.Out {
			o.Residual = compute.View{}
			f.hits++
		}
	})},
	{name: "bits of a linear row depend on the number of rows", op: "Linear", run: on(func(f *faulty, o compute.Linear) {
		f.do(o)
		if o.X.Rows > 16 {
			f.hits++
			nudge(o.Out.F32(5), 0)
		}
	})},
	{name: "bits of prefill rows differ", op: "Linear", run: on(func(f *faulty, o compute.Linear) {
		f.do(o)
		for r := o.Prefill; r < o.X.Rows; r++ {
			f.hits++
			nudge(o.Out.F32(r), 0)
		}
	})},
	{name: "eight outputs written where seven belong", op: "Linear", run: on(func(f *faulty, o compute.Linear) {
		f.do(o)
		if o.Out.Cols%8 == 7 || o.Out.Cols%8 == 5 {
			for r := range o.Out.Rows {
				f.hits++
				wider := o.Out
				wider.Cols++
				if wider.Off+(r*wider.Stride+wider.Cols)*4 <= len(wider.Buf.Bytes) && r == o.Out.Rows-1 {
					wider.F32(r)[o.Out.Cols] = 0
				}
			}
		}
	})},
	{name: "magnitude of an adapter forgotten", op: "Linear", run: instead(func(f *faulty, o *compute.Linear) {
		if o.Adapter != nil && o.Adapter.Mag.Given() {
			a := *o.Adapter
			a.Mag = compute.View{}
			o.Adapter = &a
			f.hits++
		}
	})},
	{name: "bias of the up matrix forgotten", op: "Linear", run: instead(func(f *faulty, o *compute.Linear) {
		if o.UpBias.Given() {
			o.UpBias = compute.View{}
			f.hits++
		}
	})},
	{name: "the wrong gelu gate", op: "Linear", run: instead(func(f *faulty, o *compute.Linear) {
		if o.Act == compute.ActGeGLU {
			o.Act = compute.ActSwiGLU
			f.hits++
		}
	})},
	{name: "biases of the last group are those of the one before", op: "Linear", load: func(m layout.Matrix) layout.Matrix {
		if n := m.DType.Size(); m.Scheme == layout.Affine && m.Cols > m.Group {
			m.Biases = slices.Clone(m.Biases)
			copy(m.Biases[len(m.Biases)-n:], m.Biases[len(m.Biases)-2*n:][:n])
		}
		return m
	}},
	{name: "global scale forgotten", op: "Linear", load: func(m layout.Matrix) layout.Matrix { m.GlobalScale = 1; return m }},
	{name: "nibbles swapped in Q4_0", op: "Linear", load: func(m layout.Matrix) layout.Matrix {
		if m.Scheme == layout.Q4_0 {
			m.Weight = slices.Clone(m.Weight)
			for i := range m.Weight {
				if i%18 >= 2 {
					m.Weight[i] = m.Weight[i]<<4 | m.Weight[i]>>4
				}
			}
		}
		return m
	}},
	{name: "id outside read as the last row", op: "Embed", run: instead(func(f *faulty, o *compute.Embed) {
		o.IDs = f.ints(o.IDs, func(_ int, x int32) int32 { return min(max(x, 0), int32(o.W.Rows)-1) })
	})},
	{name: "gate after the norm", op: "Norm", run: instead(func(f *faulty, o *compute.Norm) {
		if o.Place == compute.GateBefore {
			o.Place = compute.GateAfter
			f.hits++
		}
	})},
	{name: "norm over the whole row", op: "Norm", run: instead(func(f *faulty, o *compute.Norm) {
		if o.W.Cols != o.Group && o.Group > 0 {
			o.Group = 0
			f.hits++
		}
	})},
	{name: "pairs of rope", op: "RoPE", run: instead(func(f *faulty, o *compute.RoPE) { o.Interleaved = !o.Interleaved; f.hits++ })},
	{name: "choice bias left in the weights", op: "MoERoute", run: on(func(f *faulty, o compute.MoERoute) {
		f.do(o)
		for r := range o.IDs.Rows {
			for j, e := range o.IDs.I32(r) {
				if o.Bias.Given() {
					o.Weights.F32(r)[j] += o.Bias.F32(0)[e]
					f.hits++
				}
			}
		}
	})},
	{name: "one group too many", op: "MoERoute", run: instead(func(f *faulty, o *compute.MoERoute) {
		if o.Groups > 1 && o.TopGroups < o.Groups {
			o.TopGroups++
			f.hits++
		}
	})},
	{name: "expert of the first choice", op: "MoELinear", run: instead(func(f *faulty, o *compute.MoELinear) {
		o.IDs = f.copyOf(o.IDs)
		for r := range o.IDs.Rows {
			for j := range o.IDs.I32(r) {
				o.IDs.I32(r)[j] = o.IDs.I32(r)[0]
				f.hits += j
			}
		}
	})},
	{name: "shared expert not gated", op: "MoECombine", run: instead(func(f *faulty, o *compute.MoECombine) {
		if o.SharedGate.Given() {
			o.SharedGate = compute.View{}
			f.hits++
		}
	})},
	{name: "matrices of the heads swapped", op: "HeadLinear", run: on(func(f *faulty, o compute.HeadLinear) {
		p := o
		p.X = f.copyOf(o.X)
		for r := range o.X.Rows {
			for h := range o.W.Batch {
				copy(p.X.F32(r)[h*o.W.Cols:][:o.W.Cols], o.X.F32(r)[(h+1)%o.W.Batch*o.W.Cols:][:o.W.Cols])
				f.hits++
			}
		}
		f.do(p)
	})},
	{name: "an empty segment clears a slot", op: "ShortConv", run: on(func(f *faulty, o compute.ShortConv) {
		f.do(o)
		start := o.Rows.Start.I32(0)
		for i := range o.Rows.Segments {
			if start[i] == start[i+1] && o.State.Mem.Cols > 0 {
				clear(o.State.Mem.F32(o.State.Mem.Rows - 1))
				f.hits++
			}
		}
	})},
	{name: "state of a long segment not kept", op: "GatedDelta", run: on(func(f *faulty, o compute.GatedDelta) {
		kept := f.copyOf(o.State.Mem)
		f.do(o)
		start := o.Rows.Start.I32(0)
		for i, at := range o.State.Slots.I32(0) {
			if start[i+1]-start[i] == 8 && at >= 0 && int(at) < kept.Rows {
				copy(o.State.Mem.F32(int(at)), kept.F32(int(at)))
				f.hits++
			}
		}
	})},
	{name: "step size not clipped", op: "SSMScan", run: instead(func(f *faulty, o *compute.SSMScan) { o.DtMin, o.DtMax = 0, inf; f.hits++ })},
	{name: "one row too many kept", op: "StateCommit", run: instead(func(f *faulty, o *compute.StateCommit) {
		o.Keep = f.ints(o.Keep, func(_ int, x int32) int32 { return min(x, 100) + 1 })
	})},
	{name: "logging changes the state", op: "StateCommit", run: on(func(f *faulty, o compute.GatedDelta) {
		f.do(o)
		if o.State.Log.Given() {
			o.State.Log = compute.View{}
			f.do(o)
			f.hits++
		}
	})},
	{name: "commit misreads the last gate", op: "StateCommit", run: on(func(f *faulty, o compute.SSMScan) {
		f.do(o)
		for r := range o.State.Log.Rows {
			nudge(o.State.Log.F32(r), o.State.Log.Cols-1)
			f.hits++
		}
	})},
	{name: "columns of B not shared by a head", op: "Binary", run: instead(func(f *faulty, o *compute.Binary) {
		if o.BGroup > 1 && o.B.Cols > 1 {
			b := f.copyOf(o.B)
			for r := range b.Rows {
				slices.Reverse(b.F32(r))
			}
			o.B = b
			f.hits++
		}
	})},
	{name: "soft cap as clip", op: "Unary", run: on(func(f *faulty, o compute.Unary) {
		in := f.copyOf(o.X)
		f.do(o)
		for r := range o.X.Rows {
			for i, x := range in.F32(r) {
				if o.Kind == compute.UnSoftcap {
					o.Out.F32(r)[i] = min(max(x, -o.V), o.V)
					f.hits++
				}
			}
		}
	})},
	{name: "negative index read as row 0", op: "CopyRows", run: instead(func(f *faulty, o *compute.CopyRows) {
		if o.Index.Given() {
			o.Index = f.ints(o.Index, func(_ int, x int32) int32 { return max(x, 0) })
		}
	})},
	{name: "argmax tie to the higher index", op: "Argmax", run: on(func(f *faulty, o compute.Argmax) {
		f.do(o)
		for r := range o.X.Rows {
			x := o.X.F32(r)
			for i := range x {
				at := &o.Out.I32(r * btoi(o.Out.Cols == 1))[r*btoi(o.Out.Cols != 1)]
				if i > int(*at) && x[i] == x[*at] {
					*at = int32(i)
					f.hits++
				}
			}
		}
	})},
	{name: "argmax lets NaN win", op: "Argmax", run: on(func(f *faulty, o compute.Argmax) {
		f.do(o)
		for r := range o.X.Rows {
			if o.X.F32(r)[0] != o.X.F32(r)[0] {
				o.Out.I32(r * btoi(o.Out.Cols == 1))[r*btoi(o.Out.Cols != 1)] = 0
				f.hits++
			}
		}
	})},
	{name: "top-k tie to the higher index", op: "TopK", run: on(func(f *faulty, o compute.TopK) {
		f.do(o)
		for r := range o.IDs.Rows {
			ids, vals := o.IDs.I32(r), o.Vals.F32(r)
			for j := 1; j < len(ids); j++ {
				if vals[j] == vals[j-1] {
					ids[j], ids[j-1] = ids[j-1], ids[j]
					f.hits++
				}
			}
		}
	})},
	{name: "log-sum-exp without the maximum", op: "LogSumExp", run: on(func(f *faulty, o compute.LogSumExp) {
		for r := range o.X.Rows {
			var sum float32
			for _, x := range o.X.F32(r) {
				sum += float32(math.Exp(float64(x)))
			}
			o.Out.F32(r)[0] = float32(math.Log(float64(sum)))
			f.hits++
		}
	})},
	{name: "id outside the map kept", op: "MapIDs", run: on(func(f *faulty, o compute.MapIDs) {
		in := f.copyOf(o.IDs)
		f.do(o)
		for i, id := range in.I32(0) {
			if id < 0 || int(id) >= o.Offset.Cols {
				o.Out.I32(0)[i] = id
				f.hits++
			}
		}
	})},
	{name: "convolution crosses blocks", op: "BlockConv", run: instead(func(f *faulty, o *compute.BlockConv) {
		if o.X.Rows > o.Block {
			o.Block = o.X.Rows
			f.hits++
		}
	})},
	{name: "predecessor is always the anchor", op: "PairSelect", run: instead(func(f *faulty, o *compute.PairSelect) {
		if o.Slots == 1 || o.Unary.Rows == 0 {
			return
		}
		wide := o.Anchor
		wide.Cols = o.Unary.Rows
		buf, err := f.Alloc("anchors", 4*wide.Cols)
		if err != nil {
			f.err = err
			return
		}
		f.bufs = append(f.bufs, buf)
		all := buf.Of(layout.I32, 0, 1, wide.Cols)
		for i := range all.I32(0) {
			all.I32(0)[i] = o.Anchor.I32(0)[i/o.Slots]
			f.hits++
		}
		o.Anchor, o.Slots = all, 1
	})},
	{name: "submits not counted", op: "Backend", run: func(f *faulty, op compute.Op) { f.Count(compute.LabelTarget); f.hits++; f.do(op) }},
}

// observer is the reporter of a suite that should fail: it ends the suite at
// the first failure.
type observer struct{ first string }

type foundFault struct{}

func (o *observer) Helper() {}
func (o *observer) Errorf(format string, args ...any) {
	o.first = fmt.Sprintf(format, args...)
	panic(foundFault{})
}

// observe runs the part of the suite that is named op.
func observe(t *testing.T, b compute.Backend, op string, opt Options) (first string) {
	t.Helper()
	var o observer
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(foundFault); !ok {
				panic(r)
			}
		}
		first = o.first
	}()
	for _, g := range groups {
		if g.op == op {
			s := newSuite(b, opt, &o)
			g.run(s)
			s.finish(op)
			return
		}
	}
	t.Fatalf("the suite has no part %s", op)
	return
}

// TestFaultsAreFound plants one fault after the other in the reference and
// wants the suite to fail each time, because of the fault.
func TestFaultsAreFound(t *testing.T) {
	found := map[string]int{}
	for _, fl := range faults {
		t.Run(fl.op+"/"+fl.name, func(t *testing.T) {
			f := &faulty{Reference: compute.NewReference(), fault: fl}
			first := observe(t, f, fl.op, Options{})
			switch {
			case f.err != nil:
				t.Fatalf("the fault is not planted well: %v", f.err)
			case f.hits == 0:
				t.Fatal("the suite never met the fault")
			case first == "":
				t.Fatalf("the suite passes in spite of the fault (met %d times)", f.hits)
			}
			found[fl.op]++
			t.Logf("found by: %.200s", first)
		})
	}
	for _, g := range groups {
		if found[g.op] == 0 && !t.Failed() {
			t.Errorf("no fault of %s is planted", g.op)
		}
	}
}

// TestNoFault runs the suite through the same wrapping without a fault: what
// TestFaultsAreFound sees is the fault and not the wrapping. The longest parts,
// which know no other wrapping, are left out.
func TestNoFault(t *testing.T) {
	for _, g := range groups {
		switch g.op {
		case "Attention", "Linear", "MoELinear", "StateCommit":
			continue
		}
		f := &faulty{Reference: compute.NewReference(), fault: fault{run: func(f *faulty, op compute.Op) { f.do(op) }}}
		if first := observe(t, f, g.op, Options{}); first != "" {
			t.Errorf("%s: %s", g.op, first)
		}
	}
}

// TestNothingRun: a suite of no cases is a failure.
func TestNothingRun(t *testing.T) {
	var o observer
	defer func() {
		if recover() == nil {
			t.Error("no case ran, and nobody complained")
		}
	}()
	newSuite(compute.NewReference(), Options{}, &o).finish("Nothing")
}

// TestRelaxedPrefill: with Options.RelaxedPrefill prefill rows may have bits of
// their own, but still the same ones each time, and the right values.
func TestRelaxedPrefill(t *testing.T) {
	runs := 0
	for _, c := range []struct {
		name   string
		damage func(x []float32, prefill bool)
		passes bool
	}{
		{"bits of their own", func(x []float32, prefill bool) {
			if prefill {
				nudge(x, 0)
			}
		}, true},
		{"other bits each time", func(x []float32, prefill bool) {
			if runs++; prefill && runs%2 == 0 {
				nudge(x, 0)
			}
		}, false},
		{"wrong values", func(x []float32, prefill bool) {
			if prefill {
				x[0] *= 1.001
			}
		}, false},
		{"decode rows too", func(x []float32, prefill bool) {
			if runs++; !prefill && runs%2 == 0 {
				nudge(x, 0)
			}
		}, false},
	} {
		f := &faulty{Reference: compute.NewReference(), fault: fault{run: on(func(f *faulty, o compute.Linear) {
			f.do(o)
			for r := range o.X.Rows {
				c.damage(o.Out.F32(r), r >= o.Prefill)
			}
		})}}
		first := observe(t, f, "Linear", Options{RelaxedPrefill: true})
		if f.err != nil || (first == "") != c.passes {
			t.Errorf("%s: %q, %v", c.name, first, f.err)
		}
	}
}
