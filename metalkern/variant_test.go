package metalkern_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

// bench is a backend with a few weights, a cache and inputs.
type bench struct {
	t          *testing.T
	b          compute.Backend
	w, up      []*compute.Weight // of several formats
	x, q       compute.View
	kv         compute.KV
	pages      compute.Pages
	pos        []int32
	heads, dim int
}

const benchRows, benchCols, benchOuts, benchHistory = 40, 320, 45, 400

func newBench(t *testing.T, b compute.Backend) *bench {
	t.Helper()
	x := &bench{t: t, b: b, heads: 6, dim: 40}
	seed := uint32(1)
	next := func() float32 {
		seed = seed*1664525 + 1013904223
		return float32(int32(seed)) / (1 << 31)
	}
	dense := layout.Matrix{Name: "bench", Scheme: layout.Dense, Rows: benchOuts, Cols: benchCols, DType: layout.F32}
	for range 2 {
		mem := x.alloc(4 * benchOuts * benchCols)
		v := mem.Of(layout.F32, 0, 1, benchOuts*benchCols).F32(0)
		for i := range v {
			v[i] = next()
		}
		dense.Weight = mem.Bytes
		packed, err := dense.Quantize(4, 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []layout.Matrix{dense, packed} {
			w, err := b.Load(m)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { b.Unload(w) })
			if len(x.w) < 2 {
				x.w = append(x.w, w)
			} else {
				x.up = append(x.up, w)
			}
		}
	}
	floats := func(rows, cols int) compute.View {
		v := x.alloc(4*rows*cols).Of(layout.F32, 0, rows, cols)
		for r := range rows {
			for i := range v.F32(r) {
				v.F32(r)[i] = next()
			}
		}
		return v
	}
	x.x, x.q = floats(benchRows, benchCols), floats(benchRows, x.heads*x.dim)
	const blocks = benchHistory/compute.PageSize + 1
	x.kv = compute.KV{Pages: blocks, Heads: 2, KDim: x.dim, VDim: x.dim, Type: layout.F16}
	k, v := x.kv.PageBytes()
	x.kv.K, x.kv.V = x.alloc(k*blocks), x.alloc(v*blocks)
	var table, pos []int32
	for i := range blocks {
		table = append(table, int32(blocks-1-i))
	}
	for i := range benchHistory {
		pos = append(pos, int32(i))
	}
	x.pages.Table = x.ints(table...)
	for r := range benchRows { // rows anywhere in the history
		x.pos = append(x.pos, int32(benchHistory-1-r*9))
	}
	x.run(compute.KVWrite{K: floats(benchHistory, 2*x.dim), V: floats(benchHistory, 2*x.dim), KV: x.kv, Rows: x.rows(pos), Pages: x.pages})
	return x
}

func (x *bench) alloc(n int) *compute.Buffer { x.t.Helper(); return newBuffer(x.t, x.b, n) }

func (x *bench) ints(v ...int32) compute.View { x.t.Helper(); return newInts(x.t, x.b, v...) }

// rows are rows of one sequence, at these positions.
func (x *bench) rows(pos []int32) compute.Rows {
	n := len(pos)
	return compute.Rows{N: n, Segments: 1, Prefill: n, Pos: x.ints(pos...), Of: x.ints(make([]int32, n)...), Start: x.ints(0, int32(n))}
}

func (x *bench) run(ops ...compute.Op) {
	x.t.Helper()
	var p compute.Program
	p.Add(ops...)
	if err := compute.Run(x.b, &p, nil); err != nil {
		x.t.Fatal(err)
	}
}

// results runs rows [lo, hi) through every linear layer and attention, and returns
// what each row gives. From row prefill on they may run as a prompt.
func (x *bench) results(lo, hi, prefill int) [][]float32 {
	x.t.Helper()
	n := hi - lo
	var ops []compute.Op
	var outs []compute.View
	out := func(cols int) compute.View {
		outs = append(outs, x.alloc(4*n*cols).Of(layout.F32, 0, n, cols))
		return outs[len(outs)-1]
	}
	in := x.x.Slice(lo, hi)
	for i, w := range x.w {
		ops = append(ops, compute.Linear{X: in, W: w, Scale: 1, Out: out(benchOuts), Prefill: prefill},
			compute.Linear{X: in, W: w, Up: x.up[i], Act: compute.ActSwiGLU, Scale: 1, Out: out(benchOuts), Prefill: prefill})
	}
	rows, pages := x.rows(x.pos[lo:hi]), x.pages
	rows.Prefill = prefill
	ends := make([]int32, n)
	for i, p := range x.pos[lo:hi] {
		ends[i] = p + 1
	}
	pages.Lo, pages.Hi = x.ints(make([]int32, n)...), x.ints(ends...)
	ops = append(ops, compute.Attention{Q: x.q.Slice(lo, hi), KV: x.kv, Rows: rows, Pages: pages, Heads: x.heads, Scale: 0.3, Out: out(x.heads * x.dim)})
	x.run(ops...)
	all := make([][]float32, n)
	for r := range all {
		for _, v := range outs {
			all[r] = append(all[r], v.F32(r)...)
		}
	}
	return all
}

// far reports how far results are from what is wanted, relative to that above 1.
func far(got, want [][]float32) float64 {
	worst := 0.0
	for r := range got {
		for i, v := range got[r] {
			worst = max(worst, math.Abs(float64(v)-float64(want[r][i]))/max(1, math.Abs(float64(want[r][i]))))
		}
	}
	return worst
}

// bits reports whether results are the same to the bit.
func bits(a, b [][]float32) bool {
	return slices.EqualFunc(a, b, func(x, y []float32) bool {
		return slices.EqualFunc(x, y, func(u, v float32) bool { return math.Float32bits(u) == math.Float32bits(v) })
	})
}

// sameBits are the kernels whose variants give the same bits.
var sameBits = []string{"linear_rows", "linear_tiles"}

// TestRowsOfVariants: within each variant of a kernel a row has the same bits
// alone and among 2 to 16 rows, and the results are those of the reference; the
// variants of linear kernels have the bits of one another.
func TestRowsOfVariants(t *testing.T) {
	metaltest.Need(t)
	if testing.Short() {
		t.Skip("the plain run does this: the race detector does not watch the kernels")
	}
	want := newBench(t, compute.NewReference()).results(0, benchRows, benchRows)
	b, _ := metaltest.Open(t, metaltest.Build{}, metaltest.Order{})
	x := newBench(t, b)
	first, prompt := x.results(0, 16, 16), x.results(0, benchRows, 0)
	tried := 0
	for _, kernel := range metalkern.VariedKernels() {
		for _, name := range metalkern.Variants(kernel) {
			restore := metalkern.Prefer(kernel, name)
			what := fmt.Sprintf("%s, %s", kernel, name)
			all, pre := x.results(0, 16, 16), x.results(0, benchRows, 0)
			if d, e := far(all, want[:16]), far(pre, want); !(d < 3e-5 && e < 3e-5) {
				t.Errorf("%s: results are off by %g, as a prompt by %g", what, d, e)
			}
			if slices.Contains(sameBits, kernel) && !(bits(all, first) && bits(pre, prompt)) {
				t.Errorf("%s: other bits than by default", what)
			}
			for _, n := range []int{1, 2, 3, 5, 8, 9, 12} {
				for lo := 0; lo+n <= 16; lo += n {
					if !bits(x.results(lo, lo+n, n), all[lo:lo+n]) {
						t.Errorf("%s: rows %d to %d have other bits than among 16", what, lo, lo+n-1)
					}
				}
			}
			tried++
			restore()
		}
	}
	if tried < 15 {
		t.Errorf("only %d variants", tried)
	}
	t.Logf("%d variants of %v", tried, metalkern.VariedKernels())
}

// TestRelaxed: where identity is relaxed, 9 to 16 rows go through the matrix units,
// and fewer do not.
func TestRelaxed(t *testing.T) {
	metaltest.Need(t)
	want := newBench(t, compute.NewReference()).results(0, 16, 16)
	exact, _ := metaltest.Open(t, metaltest.Build{}, metaltest.Order{})
	loose, dev := metaltest.OpenWith(t, metaltest.Build{}, metaltest.Order{}, metalkern.Options{Relaxed: true})
	x, y := newBench(t, exact), newBench(t, loose)
	for _, n := range []int{8, 9, 16} {
		before := uses(dev, "linear_tiles")
		a, b := x.results(0, n, n), y.results(0, n, n)
		if used := uses(dev, "linear_tiles") > before; used != (n > 8) || bits(a, b) == used {
			t.Errorf("%d rows: matrix units %v, the bits of the exact kernel %v", n, used, bits(a, b))
		}
		if d := far(b, want[:n]); !(d < 3e-5) {
			t.Errorf("%d rows are off by %g", n, d)
		}
	}
}

// TestNoKernel: what has no kernel says so as a reason to use another backend.
func TestNoKernel(t *testing.T) {
	b := metalkern.New(metalkern.NewRecorder(), metalkern.Options{})
	defer b.Close()
	m := layout.Matrix{Name: "double", Scheme: layout.Dense, Rows: 2, Cols: 2, DType: layout.F64, Weight: make([]byte, 32)}
	if _, err := b.Load(m); !errors.Is(err, compute.ErrUnfit) || !strings.Contains(err.Error(), "F64") {
		t.Errorf("a matrix of float64: %v", err)
	}
	x := newBuffer(t, b, 4*4096).Of(layout.F32, 0, 1, 4096)
	n := newInts(t, b, 0)
	kv := compute.KV{Pages: 1, Heads: 1, KDim: 16, VDim: 2048, Type: layout.F16}
	k, v := kv.PageBytes()
	kv.K, kv.V = newBuffer(t, b, k), newBuffer(t, b, v)
	var p compute.Program
	p.Add(compute.Attention{Q: x.Columns(0, 16), KV: kv, Rows: compute.Rows{N: 1, Segments: 1, Prefill: 1, Pos: n, Of: n}, Pages: compute.Pages{Table: n, Lo: n, Hi: n}, Heads: 1, Scale: 1, Out: x.Columns(0, 2048)})
	if err := compute.Run(b, &p, nil); !errors.Is(err, compute.ErrUnfit) || !strings.Contains(err.Error(), "2048") {
		t.Errorf("values of 2048 dimensions: %v", err)
	}
}

func newBuffer(t *testing.T, b compute.Backend, n int) *compute.Buffer {
	t.Helper()
	x, err := b.Alloc("test", n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	return x
}

func newInts(t *testing.T, b compute.Backend, v ...int32) compute.View {
	t.Helper()
	w := newBuffer(t, b, 4*len(v)).Of(layout.I32, 0, 1, len(v))
	copy(w.I32(0), v)
	return w
}

// TestChunks: rows of a prompt have the same bits whatever chunks the prompt is cut
// into, however small, and whatever runs beside it; in a step, they follow rows of
// answers.
func TestChunks(t *testing.T) {
	metaltest.Need(t)
	b, dev := metaltest.Open(t, metaltest.Build{}, metaltest.Order{})
	x := newBench(t, b)
	whole := x.results(0, benchRows, 0)
	for _, chunk := range []int{1, 3, 16, 17, 23} {
		for lo := 0; lo < benchRows; lo += chunk {
			hi := min(lo+chunk, benchRows)
			if !bits(x.results(lo, hi, 0), whole[lo:hi]) {
				t.Errorf("rows %d to %d as a chunk have other bits than in a whole prompt", lo, hi-1)
			}
		}
	}
	answers := x.results(0, 5, 5)
	for _, hi := range []int{6, 20, benchRows} { // 5 rows of answers, then those of the prompt
		all := x.results(0, hi, 5)
		if !bits(all[:5], answers) || !bits(all[5:], whole[5:hi]) {
			t.Errorf("rows 0 to 4 of answers and 5 to %d of a prompt have other bits than alone", hi-1)
		}
	}
	// two prompts that share their pages: the first 9 rows are of the one
	attend := func(two bool) [][]float32 {
		rows, pages, table := x.rows(x.pos), x.pages, x.pages.Table
		rows.Prefill = 0
		ends := make([]int32, benchRows)
		for i, p := range x.pos {
			ends[i] = p + 1
		}
		pages.Lo, pages.Hi = x.ints(make([]int32, benchRows)...), x.ints(ends...)
		if two {
			of := make([]int32, benchRows)
			for i := range 9 {
				of[i] = 1
			}
			rows.Segments, rows.Of, rows.Start = 2, x.ints(of...), x.ints(0, 9, benchRows)
			pages.Table = x.ints(slices.Concat(table.I32(0), table.I32(0))...).Reshape(2, table.Cols)
		}
		out := x.alloc(4*benchRows*x.heads*x.dim).Of(layout.F32, 0, benchRows, x.heads*x.dim)
		x.run(compute.Attention{Q: x.q, KV: x.kv, Rows: rows, Pages: pages, Heads: x.heads, Scale: 0.3, Out: out})
		all := make([][]float32, benchRows)
		for r := range all {
			all[r] = out.F32(r)
		}
		return all
	}
	if !bits(attend(true), attend(false)) {
		t.Error("rows of two prompts have other bits than those of one")
	}
	if uses(dev, "attention_tiles") == 0 || uses(dev, "linear_tiles") == 0 {
		t.Error("nothing ran on the matrix units")
	}
}
