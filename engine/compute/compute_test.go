package compute

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"sparkbar/engine/layout"
)

func alloc(t *testing.T, b Backend, bytes int) *Buffer {
	t.Helper()
	buf, err := b.Alloc("test", bytes)
	if err != nil {
		t.Fatal(err)
	}
	return buf
}

func TestViewParts(t *testing.T) {
	buf := alloc(t, NewReference(), 4*12)
	v := buf.Of(layout.F32, 0, 3, 4)
	for i := range 12 {
		v.F32(i / 4)[i%4] = float32(i)
	}
	for _, c := range []struct {
		name string
		v    View
		want [][]float32 // nil: a part that does not exist
	}{
		{"rows", v.Slice(1, 3), [][]float32{{4, 5, 6, 7}, {8, 9, 10, 11}}},
		{"no rows", v.Slice(3, 3), [][]float32{}},
		{"columns", v.Columns(1, 3), [][]float32{{1, 2}, {5, 6}, {9, 10}}},
		{"rows of columns", v.Columns(3, 4).Slice(2, 3), [][]float32{{11}}},
		{"columns of columns", v.Columns(1, 4).Columns(2, 3), [][]float32{{3}, {7}, {11}}},
		{"reshaped", v.Reshape(2, 6), [][]float32{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}}},
		{"one row reshaped", v.Columns(2, 4).Slice(1, 2).Reshape(2, 1), [][]float32{{6}, {7}}},
		{"rows beyond", v.Slice(1, 4), nil},
		{"rows before", v.Slice(-1, 2), nil},
		{"rows backwards", v.Slice(2, 1), nil},
		{"columns beyond", v.Columns(2, 5), nil},
		{"columns before", v.Columns(-1, 2), nil},
		{"reshaped to more", v.Reshape(3, 5), nil},
		{"reshaped with gaps", v.Columns(0, 2).Reshape(2, 3), nil},
		{"reshaped to less than nothing", v.Reshape(-3, -4), nil},
	} {
		var p Program
		p.Add(Unary{Kind: UnSiLU, X: c.v, Out: c.v})
		if c.want == nil {
			if c.v.check() == nil || p.Err() == nil {
				t.Errorf("%s: %+v is accepted", c.name, c.v)
			}
			continue
		}
		if p.Err() != nil || c.v.Rows != len(c.want) {
			t.Errorf("%s: %v, %d rows", c.name, p.Err(), c.v.Rows)
			continue
		}
		for i, want := range c.want {
			if got := c.v.F32(i); fmt.Sprint(got) != fmt.Sprint(want) || cap(got) != len(got) && cap(got) > 12 {
				t.Errorf("%s: row %d is %v, want %v", c.name, i, got, want)
			}
		}
	}
}

func TestViewInsideBuffer(t *testing.T) {
	buf := alloc(t, NewReference(), 100)
	for _, c := range []struct {
		v  View
		ok bool
	}{
		{View{Buf: buf, Rows: 5, Cols: 5, Stride: 5, Type: layout.F32}, true},
		{View{Buf: buf, Rows: 5, Cols: 4, Stride: 5, Off: 4, Type: layout.F32}, true}, // the last row needs no gap
		{View{Buf: buf, Rows: 5, Cols: 5, Stride: 5, Off: 4, Type: layout.F32}, false},
		{View{Buf: buf, Rows: 5, Cols: 5, Stride: 6, Type: layout.F32}, false},
		{View{Buf: buf, Rows: 2, Cols: 5, Stride: 4, Type: layout.F32}, false}, // rows overlap
		{View{Buf: buf, Rows: 1, Cols: 5, Stride: 0, Type: layout.F32}, true},
		{View{Buf: buf, Rows: 1, Cols: 5, Off: 2, Stride: 5, Type: layout.F32}, false}, // not aligned
		{View{Buf: buf, Rows: 1, Cols: 5, Off: -4, Stride: 5, Type: layout.F32}, false},
		{View{Buf: buf, Rows: 0, Cols: 5, Off: 400, Stride: 5, Type: layout.F32}, true},
		{View{Buf: buf, Rows: 1, Cols: 50, Stride: 50, Type: layout.F16}, true},
		{View{Rows: 1, Cols: 1, Stride: 1, Type: layout.F32}, false},
	} {
		if err := c.v.check(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.v, err)
		}
	}
}

func TestViewMisuse(t *testing.T) {
	v := alloc(t, NewReference(), 16).Of(layout.F32, 0, 2, 2)
	for name, f := range map[string]func(){
		"row beyond": func() { v.F32(2) }, "row before": func() { v.F32(-1) }, "other type": func() { v.I32(0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
	if got := v.Columns(1, 1).F32(1); got != nil {
		t.Errorf("no columns: %v", got)
	}
}

func TestBufferFreedOnce(t *testing.T) {
	freed := 0
	b := NewBuffer("x", nil, nil, func() { freed++ })
	b.Retain() // a program in flight
	b.Close()
	b.Close()
	if freed != 0 {
		t.Fatal("freed under a program")
	}
	b.Release()
	if freed != 1 {
		t.Fatalf("freed %d times", freed)
	}
}

// limited is a backend with little memory.
type limited struct {
	*Reference
	left   int
	allocs int
}

func (l *limited) Alloc(label string, bytes int) (*Buffer, error) {
	if bytes > l.left {
		return nil, fmt.Errorf("no room for %d bytes", bytes)
	}
	l.left -= bytes
	l.allocs++
	return l.Reference.Alloc(label, bytes)
}

func TestScratch(t *testing.T) {
	b := &limited{Reference: NewReference(), left: 4 << 20}
	s := NewScratch(b)
	get := func(rows, cols int) View {
		t.Helper()
		v, err := s.F32(rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.check(); err != nil {
			t.Fatal(err)
		}
		if v.Off%64 != 0 {
			t.Fatalf("view at byte %d is not aligned", v.Off)
		}
		return v
	}
	overlap := func(a, b View) bool {
		return a.Buf == b.Buf && a.Off < b.Off+b.Rows*b.Stride*4 && b.Off < a.Off+a.Rows*a.Stride*4
	}
	a, c := get(3, 7), get(1, 1)
	ints, err := s.I32(1, 5)
	if err != nil || ints.Type != layout.I32 || overlap(a, c) || overlap(c, ints) {
		t.Fatal("views overlap", err)
	}
	mark := s.Mark()
	d := get(100, 100)
	s.Release(mark)
	if e := get(10, 10); e.Buf != d.Buf || e.Off != d.Off {
		t.Error("Release did not give the memory back")
	}
	// more than what is left of the first piece
	big := get(600, 500)
	if overlap(a, big) {
		t.Error("views overlap")
	}
	small := get(1, 1)
	if overlap(big, small) {
		t.Error("views overlap")
	}
	used := b.allocs
	s.Release(mark)
	get(100, 100)
	get(600, 500)
	if b.allocs != used {
		t.Errorf("%d pieces became %d on the second use", used, b.allocs)
	}
	s.Reset()
	if f := get(3, 7); f.Buf != a.Buf || f.Off != a.Off {
		t.Error("Reset did not go back to the start")
	}
	if v := get(0, 9); v.Rows != 0 {
		t.Error("no rows")
	}
	for _, c := range [][2]int{{-1, 4}, {4, -1}, {math.MaxInt, math.MaxInt}, {1 << 20, 1 << 20}} {
		if _, err := s.F32(c[0], c[1]); err == nil {
			t.Errorf("%v elements are handed out", c)
		}
	}
	if _, err := s.F32(1<<10, 1<<11); err == nil || !strings.Contains(err.Error(), "activation memory") {
		t.Errorf("memory beyond the backend's: %v", err)
	}
	s.Close()
	b.left = 4 << 20
	if g, err := s.F32(1, 1); err != nil || g.Off != 0 {
		t.Errorf("after Close: %v", err)
	}
}

func TestParams(t *testing.T) {
	p := NewParams(NewReference())
	defer p.Close()
	var steps []View
	for step := range int32(9) {
		p.Next()
		v, err := p.Ints(2, []int32{step, step + 1, step + 2, step + 3, step + 4, step + 5})
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.Floats([]float32{float32(step)})
		if err != nil || f.F32(0)[0] != float32(step) {
			t.Fatal(err, f)
		}
		steps = append(steps, v)
		// three steps may be in flight
		for back := range min(step+1, 3) {
			old := step - back
			w := steps[old]
			if w.Rows != 2 || w.Cols != 3 || w.I32(0)[0] != old || w.I32(1)[2] != old+5 {
				t.Errorf("in step %d the numbers of step %d are %v %v", step, old, w.I32(0), w.I32(1))
			}
		}
	}
	if steps[0].Buf != steps[3].Buf || steps[0].Off != steps[3].Off {
		t.Error("the ring grows")
	}
	if v, err := p.Ints(0, nil); err != nil || v.Rows != 0 {
		t.Errorf("no numbers: %v", err)
	}
	if _, err := p.Ints(2, []int32{1, 2, 3}); err == nil {
		t.Error("three numbers in two rows")
	}
	if _, err := p.Ints(0, []int32{1}); err == nil {
		t.Error("a number in no row")
	}
}

func TestProgram(t *testing.T) {
	b := NewReference()
	v := alloc(t, b, 64).Of(layout.F32, 0, 4, 4)
	good := Unary{Kind: UnScale, X: v, Out: v, V: 2}
	var p Program
	p.Add(good, Argmax{X: v, Out: v}, Unary{})
	if p.Err() == nil || !strings.Contains(p.Err().Error(), "op 1 Argmax") {
		t.Errorf("the first bad op is not named: %v", p.Err())
	}
	if _, err := b.Submit(&p, nil); err != p.Err() {
		t.Errorf("submitted: %v", err)
	}
	p.Reset(LabelDraft)
	if p.Err() != nil || len(p.Ops) != 0 || p.Label != LabelDraft {
		t.Error("Reset left something")
	}
	p.Fail(errors.New("no memory"))
	p.Fail(errors.New("later"))
	p.Add(Unary{})
	if _, err := b.Submit(&p, nil); err == nil || err.Error() != "no memory" {
		t.Errorf("Fail: %v", err)
	}
	p.Reset(LabelDraft)
	p.Add(good)
	if err := Run(b, &p, nil); err != nil {
		t.Fatal(err)
	}
	if b.Submits(LabelDraft) != 1 || b.Submits(LabelTarget) != 0 {
		t.Error("a refused program counts as submitted")
	}
}

// stopper is an op that asks for a stop while it runs.
type stopper struct{ *Stop }

func (stopper) check() error { return nil }
func (stopper) name() string { return "stopper" }

func TestStopBetweenOps(t *testing.T) {
	b := NewReference()
	v := alloc(t, b, 4).Of(layout.F32, 0, 1, 1)
	v.F32(0)[0] = 1
	var stop Stop
	double := Unary{Kind: UnScale, X: v, Out: v, V: 2}
	var p Program
	p.Add(double, double)
	stop.Set()
	if err := Run(b, &p, &stop); !errors.Is(err, ErrStopped) || v.F32(0)[0] != 1 {
		t.Errorf("%v, %v", err, v.F32(0))
	}
	stop.Clear()
	if err := Run(b, &p, &stop); err != nil || v.F32(0)[0] != 4 {
		t.Errorf("%v, %v", err, v.F32(0))
	}
	p.Add(stopper{&stop})
	if err := Run(b, &p, nil); err == nil || !strings.Contains(err.Error(), "op 2 stopper") {
		t.Errorf("an unknown op: %v", err)
	}
	if (*Stop)(nil).IsSet() {
		t.Error("no stop is set")
	}
}

// TestOpsRefused: each op refuses shapes that do not fit, naming what.
func TestOpsRefused(t *testing.T) {
	b := NewReference()
	buf := alloc(t, b, 1<<16)
	f := func(rows, cols int) View { return buf.Of(layout.F32, 0, rows, cols) }
	i := func(rows, cols int) View { return buf.Of(layout.I32, 0, rows, cols) }
	w := func(batch, rows, cols int) *Weight {
		return &Weight{Matrix: layout.Matrix{Name: "w", Scheme: layout.Dense, DType: layout.F32, Batch: batch, Rows: rows, Cols: cols}}
	}
	kv := KV{K: buf, V: buf, Pages: 1, Heads: 1, KDim: 16, VDim: 16, Type: layout.F32}
	rows := Rows{N: 2, Segments: 1, Pos: i(1, 2), Of: i(1, 2), Start: i(1, 2)}
	pages := Pages{Table: i(1, 1), Lo: i(1, 2), Hi: i(1, 2)}
	state := State{Mem: f(3, 12), Slots: i(1, 1)}
	conv := ShortConv{X: f(2, 4), W: f(4, 4), State: state, Rows: rows, Out: f(2, 4)}
	logged := conv
	logged.State.Log = f(2, 4)
	delta := GatedDelta{Q: f(2, 4), K: f(2, 4), V: f(2, 3), A: f(2, 1), B: f(2, 1), ALog: f(1, 1), DtBias: f(1, 1), HeadsK: 1, HeadsV: 1, DimK: 4, DimV: 3, State: state, Rows: rows, Out: f(2, 3)}
	ssm := SSMScan{X: f(2, 4), B: f(2, 3), C: f(2, 3), Dt: f(2, 1), ALog: f(1, 1), D: f(1, 1), DtBias: f(1, 1), Heads: 1, Dim: 4, Groups: 1, StateDim: 3, State: state, Rows: rows, Out: f(2, 4)}
	attn := Attention{Q: f(2, 32), KV: kv, Rows: rows, Pages: pages, Heads: 2, Scale: 1, Out: f(2, 32)}
	lin := Linear{X: f(2, 4), W: w(0, 3, 4), Scale: 1, Out: f(2, 3)}
	route := MoERoute{Logits: f(2, 8), TopK: 2, Scale: 1, IDs: i(2, 2), Weights: f(2, 2)}
	moe := MoELinear{X: f(2, 4), IDs: i(2, 2), W: w(5, 3, 4), Out: f(4, 3)}
	comb := MoECombine{X: f(4, 3), Weights: f(2, 2), Scale: 1, Out: f(2, 3)}
	pair := PairSelect{Unary: f(4, 3), Cand: i(4, 3), Anchor: i(1, 2), A: w(0, 9, 5), B: w(0, 9, 5), H: f(4, 5), Slots: 2, IDs: i(1, 4)}
	write := KVWrite{K: f(2, 16), V: f(2, 16), KV: kv, Rows: rows, Pages: pages}
	good := []Op{conv, logged, delta, ssm, attn, lin, route, moe, comb, pair, write, StateCommit{Conv: &logged, Keep: i(1, 1)},
		Embed{IDs: i(1, 2), W: w(0, 9, 4), Out: f(2, 4)}, Norm{X: f(2, 4), Out: f(2, 4), W: f(1, 2), Group: 2}, HeadLinear{X: f(2, 8), W: w(2, 3, 4), Out: f(2, 6)},
		RoPE{X: f(2, 8), Pos: i(1, 2), Freq: f(1, 2), HeadDim: 4}, Binary{A: f(2, 4), B: f(1, 2), Out: f(2, 4), BGroup: 2}, Unary{X: f(2, 4), Out: f(2, 4)},
		CopyRows{Src: i(9, 4), Dst: i(2, 4), Index: i(1, 2)}, Argmax{X: f(2, 4), Out: i(2, 1)}, TopK{X: f(2, 4), IDs: i(2, 3), Vals: f(2, 3)}, LogSumExp{X: f(2, 4), Out: f(2, 1)},
		MapIDs{IDs: i(1, 2), Offset: i(1, 9), Out: i(1, 2)}, BlockConv{X: f(4, 6), Base: f(3, 6), P: f(4, 9), Group: 2, Block: 2, Out: f(4, 6)}}
	for _, op := range good {
		if err := op.check(); err != nil {
			t.Errorf("%s: %v", op.name(), err)
		}
	}
	edit := func(op any) Op { return op.(Op) }
	bad := []struct {
		op   Op
		want string
	}{
		{edit(func() any { o := lin; o.Out = f(2, 4); return o }()), "Out"},
		{edit(func() any { o := lin; o.W = w(0, 3, 5); return o }()), "W w"},
		{edit(func() any { o := lin; o.W = nil; return o }()), "W is not given"},
		{edit(func() any { o := lin; o.Act = ActSwiGLU; return o }()), "Up"},
		{edit(func() any { o := lin; o.Bias = f(1, 4); return o }()), "Bias"},
		{edit(func() any { o := lin; o.Residual = f(1, 3); return o }()), "Residual"},
		{edit(func() any { o := lin; o.Adapter = &Adapter{A: w(0, 2, 4), B: w(0, 3, 3)}; return o }()), "rank"},
		{edit(func() any { o := attn; o.Heads = 0; return o }()), "heads"},
		{edit(func() any { o := attn; o.Q = f(2, 16); return o }()), "Q"},
		{edit(func() any { o := attn; o.Pages.Hi = i(1, 1); return o }()), "Hi"},
		{edit(func() any { o := attn; o.KV.Pages = 1000; return o }()), "buffer"},
		{edit(func() any { o := attn; o.KV.Bits, o.KV.Group = 4, 32; return o }()), "4 bits"},
		{edit(func() any { o := attn; o.KV.Bits, o.KV.Group = 8, 0; return o }()), "8 bits"},
		{edit(func() any { o := write; o.V = View{}; return o }()), "V is given"},
		{edit(func() any { o := write; o.KV.VInK = true; return o }()), "V is given"},
		{edit(func() any { o := conv; o.W = f(4, 3); return o }()), "State"},
		{edit(func() any { o := conv; o.W = f(4, 0); return o }()), "taps"},
		{edit(func() any { o := conv; o.Act = ActGELU; return o }()), "activation"},
		{edit(func() any { o := conv; o.Rows.Start = i(1, 1); return o }()), "Start"},
		{edit(func() any { o := delta; o.HeadsV = 3; o.HeadsK = 2; return o }()), "heads"},
		{edit(func() any { o := delta; o.State.Log = f(2, 5); return o }()), "Log"},
		{edit(func() any { o := ssm; o.Groups = 0; return o }()), "groups"},
		{StateCommit{Keep: i(1, 1)}, "one op"},
		{StateCommit{Conv: &conv, Keep: i(1, 1)}, "logged"},
		{StateCommit{Conv: &logged, Keep: i(1, 2)}, "Keep"},
		{edit(func() any { o := route; o.TopK = 9; return o }()), "top 9"},
		{edit(func() any { o := route; o.Groups, o.TopGroups = 3, 1; return o }()), "groups"},
		{edit(func() any { o := moe; o.W = w(0, 3, 4); return o }()), "stacked"},
		{edit(func() any { o := moe; o.X = f(3, 4); return o }()), "3 rows"},
		{edit(func() any { o := comb; o.SharedGate = f(2, 1); return o }()), "Shared"},
		{edit(func() any { o := pair; o.Slots = 3; return o }()), "blocks"},
		{edit(func() any { o := pair; o.Uniform = f(1, 4); return o }()), "temperature"},
		{Embed{IDs: i(2, 1), W: w(0, 9, 4), Out: f(2, 4)}, "IDs"},
		{Norm{X: f(2, 4), Out: f(2, 4), Group: 3}, "groups"},
		{Norm{X: f(2, 4), Out: f(2, 4), Gate: f(2, 4)}, "gate"},
		{Norm{X: f(2, 4), Out: f(2, 4), W: f(1, 3)}, "weight"},
		{RoPE{X: f(2, 8), Pos: i(1, 2), Freq: f(1, 3), HeadDim: 4}, "pairs"},
		{RoPE{X: f(2, 8), Pos: i(1, 2), Freq: f(1, 2), HeadDim: 4, QBeta: 1}, "QOrig"},
		{Binary{A: f(2, 4), B: f(3, 4), Out: f(2, 4)}, "3 rows"},
		{Binary{A: f(2, 4), B: f(1, 4), Out: f(2, 4), BGroup: 3}, "groups"},
		{Unary{Kind: UnSoftcap, X: f(2, 4), Out: f(2, 4)}, "soft cap"},
		{CopyRows{Src: i(9, 4), Dst: f(9, 4)}, "Dst"},
		{CopyRows{Src: f(9, 4), Dst: f(2, 4)}, "Dst"},
		{Argmax{X: f(2, 4), Out: i(1, 1)}, "output"},
		{Argmax{X: f(2, 0), Out: i(1, 2)}, "columns"},
		{TopK{X: f(2, 4), IDs: i(2, 5), Vals: f(2, 5)}, "top 5"},
		{LogSumExp{X: f(2, 4), Out: f(1, 2)}, "Out"},
		{MapIDs{IDs: i(1, 2), Offset: f(1, 9), Out: i(1, 2)}, "Offset"},
		{BlockConv{X: f(4, 6), Base: f(3, 6), P: f(4, 9), Group: 2, Block: 3, Out: f(4, 6)}, "blocks"},
		{HeadLinear{X: f(2, 8), W: w(0, 3, 4), Out: f(2, 6)}, "stacked"},
	}
	for n, c := range bad {
		if err := c.op.check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d %s: %v, want something about %q", n, c.op.name(), err, c.want)
		}
	}
}
