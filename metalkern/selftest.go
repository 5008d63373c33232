package metalkern

import (
	"fmt"
	"math"
	"math/rand/v2"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// Drill is a small program that runs the kernels of one file through all that
// can go wrong in them: several SIMD-groups, tiles with ragged ends, pages and
// splits, rows of several segments.
type Drill struct {
	Name, File string
	run        func(d *desk)
}

// desk records the same program for two backends: the one under test and the
// reference.
type desk struct {
	b    compute.Backend
	rng  *rand.Rand
	p    compute.Program
	outs []compute.View
	bufs []*compute.Buffer
	kept []*compute.Weight
	err  error
}

func (d *desk) view(t layout.DType, rows, cols int) compute.View {
	const apart = 3 // elements between rows that nobody may touch
	buf, err := d.b.Alloc("drill", max(4*rows*(cols+apart), 4))
	if err != nil {
		d.err = err
		return compute.View{}
	}
	d.bufs = append(d.bufs, buf)
	return compute.View{Buf: buf, Rows: rows, Cols: cols, Stride: cols + apart, Type: t}
}

func (d *desk) floats(rows, cols int) compute.View {
	v := d.view(layout.F32, rows, cols)
	for r := range v.Rows {
		for i := range v.F32(r) {
			v.F32(r)[i] = float32(d.rng.NormFloat64())
		}
	}
	return v
}

func (d *desk) ints(rows int, x ...int32) compute.View {
	v := d.view(layout.I32, rows, len(x)/rows)
	for r := range v.Rows {
		copy(v.I32(r), x[r*v.Cols:])
	}
	return v
}

// out is a result to compare.
func (d *desk) out(rows, cols int) compute.View {
	v := d.view(layout.F32, rows, cols)
	d.outs = append(d.outs, v)
	return v
}

func (d *desk) outInts(rows, cols int) compute.View {
	v := d.view(layout.I32, rows, cols)
	d.outs = append(d.outs, v)
	return v
}

// affine makes a 4-bit weight with distinct scales in every group of 32.
func (d *desk) affine(batch, rows, cols int) *compute.Weight {
	n := max(batch, 1) * rows
	m := layout.Matrix{Name: "drill", Scheme: layout.Affine, Batch: batch, Rows: rows, Cols: cols, Bits: 4, Group: 32, DType: layout.F32, GlobalScale: 1}
	m.Weight, m.Scales, m.Biases = make([]byte, n*cols/2), make([]byte, n*cols/8), make([]byte, n*cols/8)
	for i := range m.Weight {
		m.Weight[i] = byte(d.rng.Uint32())
	}
	for i := 0; i < len(m.Scales); i += 4 {
		put(m.Scales[i:], 0.1+d.rng.Float32())
		put(m.Biases[i:], d.rng.Float32()-5)
	}
	w, err := d.b.Load(m)
	if err != nil {
		d.err = err
		return &compute.Weight{Matrix: m}
	}
	d.kept = append(d.kept, w)
	return w
}

func put(b []byte, f float32) {
	u := math.Float32bits(f)
	b[0], b[1], b[2], b[3] = byte(u), byte(u>>8), byte(u>>16), byte(u>>24)
}

// segments describes rows of segments at given first positions.
func (d *desk) segments(spec ...[2]int) compute.Rows {
	r := compute.Rows{Segments: len(spec)}
	var pos, of []int32
	start := []int32{0}
	for s, x := range spec {
		for i := range x[1] {
			pos, of = append(pos, int32(x[0]+i)), append(of, int32(s))
		}
		start = append(start, int32(len(pos)))
	}
	r.N, r.Prefill = len(pos), len(pos)
	r.Pos, r.Of, r.Start = d.ints(1, pos...), d.ints(1, of...), d.ints(1, start...)
	return r
}

// cache makes a cache with a page for each block of each segment.
func (d *desk) cache(t layout.DType, bits, heads, dim, segments, blocks int) (compute.KV, compute.View) {
	kv := compute.KV{Pages: segments*blocks + 1, Heads: heads, KDim: dim, VDim: dim, Type: t, Bits: bits, Group: 32}
	k, v := kv.PageBytes()
	for _, side := range []struct {
		to **compute.Buffer
		n  int
	}{{&kv.K, k * kv.Pages}, {&kv.V, v * kv.Pages}} {
		buf, err := d.b.Alloc("cache", side.n)
		if err != nil {
			d.err = err
			return kv, compute.View{}
		}
		d.bufs, *side.to = append(d.bufs, buf), buf
	}
	var table []int32
	for i := range segments * blocks {
		table = append(table, int32(i+1))
	}
	return kv, d.ints(segments, table...)
}

// Drills are run on a GPU that this program has not met, and in tests: between
// them they run every kernel.
var Drills = []Drill{
	{"rows", "linear.metal", func(d *desk) {
		x := d.floats(5, 320)
		w, up := d.affine(0, 37, 320), d.affine(0, 37, 320)
		one := x.Slice(0, 1)
		d.p.Add(compute.Embed{IDs: d.ints(1, 3, 36, -1), W: w, Scale: 2, Out: d.out(3, 320)},
			compute.Linear{X: one, Prefill: 1, W: w, Scale: 1, Bias: d.floats(1, 37), Out: d.out(1, 37)},
			compute.Linear{X: x, Prefill: 5, W: w, Up: up, Act: compute.ActSwiGLU, Scale: 1, Residual: d.floats(5, 37), Out: d.out(5, 37)},
			compute.Linear{X: x, Prefill: 5, W: w, Scale: 1, Out: d.out(5, 37)}, compute.Linear{X: x, Prefill: 5, W: up, Scale: 1, Out: d.out(5, 37)})
	}},
	{"tiles", "linear.metal", func(d *desk) {
		x := d.floats(35, 96)
		w, up := d.affine(0, 45, 96), d.affine(0, 45, 96)
		d.p.Add(compute.Linear{X: x, W: w, Scale: 1, Bias: d.floats(1, 45), Out: d.out(35, 45)},
			compute.Linear{X: x, W: w, Up: up, Act: compute.ActGeGLU, Scale: 1, Out: d.out(35, 45)},
			compute.Linear{X: x.Slice(0, 5), Prefill: 2, W: w, Scale: 1, Out: d.out(5, 45)}) // 2 rows of an answer, 3 of a prompt
	}},
	{"chain", "linear.metal", func(d *desk) { // each needs the one before
		h, g := d.floats(3, 64), d.view(layout.F32, 3, 64)
		d.p.Add(compute.Linear{X: h, Prefill: 3, W: d.affine(0, 64, 64), Scale: 0.01, Out: g},
			compute.Linear{X: g, Prefill: 3, W: d.affine(0, 64, 64), Scale: 0.01, Residual: h, Out: h},
			compute.Linear{X: h, Prefill: 3, W: d.affine(0, 40, 64), Scale: 1, Out: d.out(3, 40)},
			compute.Unary{X: d.floats(3, 64), Out: h, V: 1}) // not before h was read
	}},
	{"shared", "linear.metal", func(d *desk) { // what a CPU that takes part makes is needed, and what it reads is written anew
		x, g := d.floats(20, 64), d.view(layout.F32, 20, 160)
		y, h := d.floats(20, 64), d.view(layout.F32, 20, 160)
		d.outs = append(d.outs, g)
		d.p.Add(compute.Unary{X: y, Out: x, V: 1},
			compute.Linear{X: x, Prefill: 2, W: d.affine(0, 160, 64), Up: d.affine(0, 160, 64), Act: compute.ActSwiGLU, Scale: 0.01, Bias: d.floats(1, 160), Out: g},
			compute.Unary{X: y, Out: x, V: 3}, // not before x was read
			compute.Linear{X: g, Prefill: 2, W: d.affine(0, 160, 160), Scale: 0.01, Residual: g, Out: h},
			compute.Linear{X: x, Prefill: 2, W: d.affine(0, 40, 64), Scale: 1, Out: d.out(20, 40)},
			compute.CopyRows{Src: h, Dst: d.out(20, 160)})
	}},
	{"norms and turns", "rows.metal", func(d *desk) {
		x, q, k := d.floats(3, 300), d.floats(3, 64), d.floats(3, 32)
		pos, freq := d.ints(1, 0, 7, 900), d.floats(1, 12)
		d.outs = append(d.outs, q, k)
		d.p.Add(compute.Norm{X: x, W: d.floats(1, 300), Eps: 1e-5, Scale: 1, Out: d.out(3, 300)}, compute.Norm{X: x, Kind: compute.L2, Eps: 1e-5, Scale: 1, Group: 30, Out: d.out(3, 300)},
			compute.Norm{X: q, Out: q, W: d.floats(1, 32), Eps: 1e-5, Scale: 1, Group: 32}, compute.Norm{X: k, Out: k, W: d.floats(1, 32), Eps: 1e-5, Scale: 1, Group: 32},
			compute.RoPE{X: q, Pos: pos, Freq: freq, HeadDim: 32, Mul: 1}, compute.RoPE{X: k, Pos: pos, Freq: freq, HeadDim: 32, Mul: 1})
	}},
	{"elements and choices", "rows.metal", func(d *desk) {
		x, ids, vals := d.floats(3, 600), d.outInts(3, 5), d.out(3, 5)
		top := d.outInts(1, 3)
		d.p.Add(compute.Binary{Kind: compute.BinSiLUMul, A: x, B: d.floats(3, 6), BGroup: 100, Scale: 0.5, Out: d.out(3, 600)},
			compute.Unary{Kind: compute.UnSoftcap, X: x, V: 3, Out: d.out(3, 600)}, compute.CopyRows{Src: x, Index: d.ints(1, 2, -1, 0, 9), Dst: d.out(4, 600)},
			compute.TopK{X: x, IDs: ids, Vals: vals}, compute.LogSumExp{X: x, Out: d.out(3, 1)}, compute.Argmax{X: x, Out: top},
			compute.MapIDs{IDs: top, Offset: d.ints(1, make([]int32, 600)...), Out: d.outInts(1, 3)})
	}},
	{"attention", "attention.metal", func(d *desk) {
		for i, c := range []struct {
			t    layout.DType
			bits int
		}{{layout.BF16, 0}, {0, 8}} {
			rows := d.segments([2]int{0, 70}, [2]int{250, 3})
			kv, table := d.cache(c.t, c.bits, 2, 32, 2, 6)
			pages := compute.Pages{Table: table}
			var lo, hi []int32
			for r := range rows.N {
				lo, hi = append(lo, int32(r%3)), append(hi, rows.Pos.I32(0)[r]+1)
				if rows.Of.I32(0)[r] == 1 {
					lo[r] = 250 // what lies before was not written
				}
			}
			pages.Lo, pages.Hi = d.ints(1, lo...), d.ints(1, hi...)
			at := compute.Attention{Q: d.floats(rows.N, 128), KV: kv, Rows: rows, Pages: pages, Heads: 4, Scale: 0.2, Out: d.out(rows.N, 128)}
			if i == 1 {
				at.Sinks, at.SoftCap = d.floats(1, 4), 5
			}
			prompt := at
			prompt.Rows.Prefill, prompt.Out = 0, d.out(rows.N, 128)
			d.p.Add(compute.KVWrite{K: d.floats(rows.N, 64), V: d.floats(rows.N, 64), KV: kv, Rows: rows, Pages: pages}, at, prompt)
		}
	}},
	{"choosing experts", "moe.metal", func(d *desk) {
		ids, weights := d.outInts(6, 2), d.out(6, 2)
		d.p.Add(compute.MoERoute{Logits: d.floats(6, 40), Bias: d.floats(1, 40), Kind: compute.SigmoidTop, TopK: 2, Groups: 4, TopGroups: 2, Normalize: true, Scale: 1.5, IDs: ids, Weights: weights},
			compute.MoECombine{X: d.floats(12, 300), Weights: weights, Shared: d.floats(6, 300), SharedGate: d.floats(6, 1), Scale: 1, Residual: d.floats(6, 300), Out: d.out(6, 300)})
	}},
	{"experts", "", func(d *desk) {
		ids := d.ints(6, 3, 1, 0, 3, 3, 2, -1, 3, 2, 0, 3, 9)
		x, w, up, bias := d.floats(6, 64), d.affine(4, 20, 64), d.affine(4, 20, 64), d.floats(4, 20)
		for _, prefill := range []int{6, 2} { // rows of answers; 2 of them, and 4 of a prompt
			d.p.Add(compute.MoELinear{X: x, IDs: ids, W: w, Up: up, Bias: bias, Act: compute.ActSwiGLU, Out: d.out(12, 20), Prefill: prefill})
		}
		var many []int32 // experts with more rows than a tile, and fewer
		for i := range 90 {
			many = append(many, int32([]int{0, 0, 0, 0, 0, 2, 3}[i%7]))
		}
		d.p.Add(compute.MoELinear{X: d.floats(90, 64), IDs: d.ints(45, many...), W: w, Out: d.out(90, 20)})
	}},
	{"states", "state.metal", func(d *desk) {
		rows := d.segments([2]int{0, 4}, [2]int{9, 1})
		slots := d.ints(1, 1, 0)
		conv := compute.ShortConv{X: d.floats(5, 40), W: d.floats(40, 4), Bias: d.floats(1, 40), Act: compute.ActSiLU, State: compute.State{Mem: d.floats(2, 120), Slots: slots}, Rows: rows, Out: d.out(5, 40)}
		delta := compute.GatedDelta{Q: d.floats(5, 48), K: d.floats(5, 48), V: d.floats(5, 20), A: d.floats(5, 2), B: d.floats(5, 2), ALog: d.floats(1, 2), DtBias: d.floats(1, 2),
			HeadsK: 1, HeadsV: 2, DimK: 48, DimV: 10, State: compute.State{Mem: d.floats(2, 960), Slots: slots, Log: d.out(5, 72)}, Rows: rows, Out: d.out(5, 20)}
		ssm := compute.SSMScan{X: d.floats(5, 20), B: d.floats(5, 40), C: d.floats(5, 40), Dt: d.floats(5, 2), ALog: d.floats(1, 2), D: d.floats(1, 2), DtBias: d.floats(1, 2), Heads: 2, Dim: 10,
			Groups: 1, StateDim: 40, DtMax: 10, State: compute.State{Mem: d.floats(2, 800), Slots: slots, Log: d.out(5, 62)}, Rows: rows, Out: d.out(5, 20)}
		d.outs = append(d.outs, conv.State.Mem, delta.State.Mem, ssm.State.Mem)
		d.p.Add(conv, delta, ssm, compute.StateCommit{Delta: &delta, Keep: d.ints(1, 3, 1)}, compute.StateCommit{SSM: &ssm, Keep: d.ints(1, 2, 0)})
	}},
	{"DFlash 2", "draft.metal", func(d *desk) {
		a, b := d.affine(0, 50, 64), d.affine(0, 50, 64)
		d.p.Add(compute.BlockConv{X: d.floats(8, 40), Base: d.floats(3, 40), P: d.floats(8, 12), Group: 10, Block: 4, Out: d.out(8, 40)},
			compute.PairSelect{Unary: d.floats(6, 5), Cand: d.ints(6, 1, 2, 3, 4, 5, 9, 8, 7, 6, 5, 11, 12, 13, 14, 15, 20, 21, 22, 23, 24, 30, 31, 32, 33, 34, 49, 48, 47, 46, -1),
				Anchor: d.ints(1, 7, 8), A: a, B: b, H: d.floats(6, 64), Slots: 3, IDs: d.outInts(1, 6), Probs: d.out(6, 5)})
	}},
}

// practise runs a drill on a backend and returns its results.
func practise(x Drill, b compute.Backend) ([]float64, error) {
	d := &desk{b: b, rng: rand.New(rand.NewPCG(7, 7))}
	defer func() {
		for _, w := range d.kept {
			b.Unload(w)
		}
		for _, buf := range d.bufs {
			buf.Close()
		}
	}()
	x.run(d)
	if d.err != nil {
		return nil, d.err
	}
	if err := compute.Run(b, &d.p, nil); err != nil {
		return nil, err
	}
	var all []float64
	for _, v := range d.outs {
		for r := range v.Rows {
			if v.Type == layout.I32 {
				for _, n := range v.I32(r) {
					all = append(all, float64(n))
				}
				continue
			}
			for _, f := range v.F32(r) {
				all = append(all, float64(f))
			}
		}
	}
	return all, nil
}

// Check runs the drill on a backend and compares its results with those of the
// reference backend: what disagrees is the error.
func (x Drill) Check(b compute.Backend) error {
	want, err := practise(x, compute.NewReference())
	if err != nil {
		return fmt.Errorf("%s: the reference: %w", x.Name, err)
	}
	got, err := practise(x, b)
	if err != nil {
		return fmt.Errorf("%s: %w", x.Name, err)
	}
	peak := 1.0 // of what the sums and products in between may have been
	for _, v := range want {
		if !math.IsInf(v, 0) {
			peak = max(peak, math.Abs(v))
		}
	}
	for i := range want {
		if !(math.Abs(got[i]-want[i]) <= 1e-4*(1+math.Abs(want[i]))+1e-5*peak) {
			return fmt.Errorf("%s: result %d of %d is %v, want %v", x.Name, i, len(want), got[i], want[i])
		}
	}
	return nil
}
