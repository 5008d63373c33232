package conformance

import (
	"fmt"
	"math"
	"math/rand/v2"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

var (
	denseF32 = format{scheme: layout.Dense, dtype: layout.F32}
	affine4  = format{layout.Affine, 4, 32, layout.BF16}
)

// linearTol is the tolerance of a product with w.
func (s *suite) linearTol(w packed) float64 {
	if w.exact() {
		return s.opt.Tol
	}
	return s.opt.LinearTol
}

func testEmbed(s *suite) {
	for _, f := range formats {
		name := "Embed " + f.String()
		r := rng(name)
		w := f.pack(r, 0, 37, 3*f.unit())
		if f.scheme == layout.Dense {
			w = f.pack(r, 0, 37, 45)
		}
		scale := float32(1)
		if r.IntN(2) == 1 {
			scale = 5.5
		}
		ids := []int32{0, 36, 36, -1, 37, math.MaxInt32, math.MinInt32, 17, 5}
		for len(ids) < 33 {
			ids = append(ids, int32(r.IntN(37)))
		}
		s.row(rowCase{name: name, rows: len(ids), counts: []int{0, 1, 9, 33},
			record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
				out := m.out(len(rows), w.Cols)
				return []compute.Op{compute.Embed{IDs: m.ints(pickInts(ids, rows)...), W: m.load(w), Scale: scale, Out: out}}, []compute.View{out}
			},
			want: func(row int) []approx {
				want := make([]approx, w.Cols)
				if id := int(ids[row]); id >= 0 && id < w.Rows {
					val, mag := w.row(0, id)
					for i := range want {
						want[i] = approx{val[i] * float64(scale), mag[i] * float64(scale)}
					}
				}
				return want
			}})
	}
}

func pickInts(x []int32, rows []int) []int32 {
	y := make([]int32, len(rows))
	for i, r := range rows {
		y[i] = x[r]
	}
	return y
}

// activation is Act in float64: z the (gate) value, u the up value.
func activation(a compute.Act, z, u approx, tol float64) approx {
	switch a {
	case compute.ActSiLU:
		return z.apply(silu, 0, tol)
	case compute.ActReLU2:
		return z.apply(func(x float64) float64 { return max(x, 0) * max(x, 0) }, 0, tol)
	case compute.ActGELU:
		return z.apply(gelu, math.Abs(z.v), tol)
	case compute.ActSigmoid:
		return z.apply(sigmoid, 0, tol)
	case compute.ActSwiGLU:
		return z.apply(silu, 0, tol).mul(u)
	case compute.ActGeGLU:
		return z.apply(gelu, math.Abs(z.v), tol).mul(u)
	case compute.ActClampedSwiGLU:
		g := z.apply(func(x float64) float64 { return min(x, 7) }, 0, tol)
		u = u.apply(func(x float64) float64 { return max(min(x, 7), -7) }, 0, tol)
		return g.apply(func(x float64) float64 { return x * sigmoid(1.702*x) }, 0, tol).mul(u.add(exactly(1)))
	}
	return z
}

var allActs = []compute.Act{compute.ActNone, compute.ActSiLU, compute.ActReLU2, compute.ActGELU, compute.ActSigmoid,
	compute.ActSwiGLU, compute.ActGeGLU, compute.ActClampedSwiGLU}

// adapter is a low-rank addition with its factors.
type adapter struct {
	a, b  packed
	scale float32
	mag   []float32
}

func (a *adapter) load(m *memory) *compute.Adapter {
	if a == nil {
		return nil
	}
	c := &compute.Adapter{A: m.load(a.a), B: m.load(a.b), Scale: a.scale}
	if a.mag != nil {
		c.Mag = m.floats(1, len(a.mag), a.mag)
	}
	return c
}

// add returns sum with the addition of output i.
func (a *adapter) add(sum approx, x []float32, i int) approx {
	if a == nil {
		return sum
	}
	var t total
	val, _ := a.b.row(0, i)
	for k, v := range val {
		t.add(a.a.dot(0, k, x).times(v))
	}
	sum = sum.add(t.result().times(float64(a.scale)))
	if a.mag != nil {
		sum = sum.times(float64(a.mag[i]))
	}
	return sum
}

// residualKind is where the residual of a Linear lies.
type residualKind int

const (
	noResidual residualKind = iota
	residualApart
	residualInPlace
)

// linear is one configuration of a Linear.
type linear struct {
	name     string
	w        packed
	up       *packed // with a gated act
	bias     bool
	a, upA   *adapter
	act      compute.Act
	scale    float32
	residual residualKind
	rows     int
	counts   []int
}

func (s *suite) linear(c linear) {
	r := rng(c.name)
	in, out := c.w.Cols, c.w.Rows
	x := normals(r, c.rows*in)
	res := normals(r, c.rows*out)
	bias, upBias := normals(r, out), normals(r, out)
	record := func(m *memory, rows []int, prefill int) ([]compute.Op, []compute.View) {
		op := compute.Linear{X: m.pick(rows, in, x), W: m.load(c.w), Act: c.act, Scale: c.scale, Prefill: prefill, Adapter: c.a.load(m), UpAdapter: c.upA.load(m)}
		if c.bias {
			op.Bias = m.floats(1, out, bias)
		}
		if c.up != nil {
			op.Up = m.load(*c.up)
			if c.bias {
				op.UpBias = m.floats(1, out, upBias)
			}
		}
		switch c.residual {
		case noResidual:
			op.Out = m.out(len(rows), out)
		case residualApart:
			op.Out, op.Residual = m.out(len(rows), out), m.pick(rows, out, res)
		case residualInPlace:
			op.Out = m.pick(rows, out, res)
			op.Residual = op.Out
		}
		return []compute.Op{op}, []compute.View{op.Out}
	}
	tol := s.linearTol(c.w)
	s.row(rowCase{name: c.name, rows: c.rows, counts: c.counts, tol: tol,
		record:  func(m *memory, rows []int) ([]compute.Op, []compute.View) { return record(m, rows, len(rows)) },
		prefill: record,
		want: func(row int) []approx {
			want := make([]approx, out)
			for i := range want {
				x := x[row*in:][:in]
				z, u := c.a.add(c.w.dot(0, i, x), x, i), approx{}
				if c.bias {
					z = z.add(exactly(float64(bias[i])))
				}
				if c.up != nil {
					u = c.upA.add(c.up.dot(0, i, x), x, i)
					if c.bias {
						u = u.add(exactly(float64(upBias[i])))
					}
				}
				y := activation(c.act, z, u, tol)
				if c.scale != 1 {
					y = y.times(float64(c.scale))
				}
				if c.residual != noResidual {
					y = y.add(exactly(float64(res[row*out+i])))
				}
				want[i] = y
			}
			return want
		}})
}

// linearShapes are outputs and units of columns.
var linearShapes = [][2]int{{37, 1}, {8, 3}, {1, 2}, {70, 9}}

func testLinear(s *suite) {
	// every epilogue
	for _, f := range []format{denseF32, affine4} {
		for _, act := range allActs {
			for variant := range 6 {
				name := fmt.Sprintf("Linear %v, act %d, variant %d", f, act, variant)
				r := rng(name)
				c := linear{name: name, w: f.pack(r, 0, 19, 96), act: act, scale: 1, rows: 9}
				if act.Gated() {
					up := f.pack(r, 0, 19, 96)
					c.up = &up
				}
				c.bias = variant%2 == 1
				c.residual = residualKind(variant % 3)
				if variant >= 3 {
					c.scale = 0.625
				}
				if variant%3 != 0 { // 1, 4: LoRA; 2, 5: DoRA
					c.a = newAdapter(r, 96, 19, variant%3 == 2)
					if act.Gated() && variant < 4 {
						c.upA = newAdapter(r, 96, 19, variant%3 == 2)
					}
				}
				s.linear(c)
			}
		}
	}
	// every format, in several shapes
	for _, f := range formats {
		for i, shape := range linearShapes {
			cols := shape[1] * f.unit()
			switch {
			case f.scheme == layout.Dense:
				cols = []int{32, 96, 1, 577}[i]
			case i == 3:
				cols = 576 / f.unit() * f.unit()
				if f.group == 256 {
					cols = 768
				}
				if f.scheme == layout.Affine && f.dtype != layout.BF16 {
					continue // the long rows once for each bits and group
				}
			}
			name := fmt.Sprintf("Linear %v, %d x %d", f, shape[0], cols)
			counts := [][]int{edgeCounts, {2, 8, 33}, {1, 9}, {1, 7, 9, 33}}[i]
			s.linear(linear{name: name, w: f.pack(rng(name), 0, shape[0], cols), scale: 1, rows: 33, counts: counts})
		}
	}
	// many tiles of outputs and a long row, rows beyond any tile of rows
	s.linear(linear{name: "Linear long", w: affine4.pack(rng("long"), 0, 130, 1056), scale: 1, rows: 67, counts: []int{3, 16, 17, 32, 67}})
}

func testHeadLinear(s *suite) {
	for _, f := range fewFormats {
		for _, heads := range []int{1, 3} {
			name := fmt.Sprintf("HeadLinear %v, %d heads", f, heads)
			r := rng(name)
			cols := 2 * f.unit()
			if f.scheme == layout.Dense {
				cols = 27
			}
			w := f.pack(r, heads, 13, cols)
			x := normals(r, 9*heads*cols)
			s.row(rowCase{name: name, rows: 9, tol: s.linearTol(w),
				record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
					op := compute.HeadLinear{X: m.pick(rows, heads*cols, x), W: m.load(w), Out: m.out(len(rows), heads*13)}
					return []compute.Op{op}, []compute.View{op.Out}
				},
				want: func(row int) []approx {
					var want []approx
					for h := range heads {
						for i := range 13 {
							want = append(want, w.dot(h, i, x[(row*heads+h)*cols:][:cols]))
						}
					}
					return want
				}})
		}
	}
}

func testMoELinear(s *suite) {
	const experts, out, rows = 5, 21, 33
	for fi, f := range fewFormats {
		for variant := range 4 {
			topK := []int{1, 2, 3, 2}[variant]
			shared := variant != 2 // X has a row for each row, not for each choice
			act := allActs[(fi*4+variant)%len(allActs)]
			name := fmt.Sprintf("MoELinear %v, variant %d, act %d", f, variant, act)
			r := rng(name)
			cols := 2 * f.unit()
			if f.scheme == layout.Dense {
				cols = 50
			}
			w := f.pack(r, experts, out, cols)
			var up *packed
			if act.Gated() {
				u := f.pack(r, experts, out, cols)
				up = &u
			}
			bias, upBias := normals(r, experts*out), normals(r, experts*out)
			hasBias := variant%2 == 1
			per := topK
			if shared {
				per = 1
			}
			x := normals(r, rows*per*cols)
			ids := make([]int32, rows*topK)
			for i := range ids {
				ids[i] = int32(r.IntN(experts))
				if variant == 3 && i%2 == 0 {
					ids[i] = 2 // one expert for all
				}
			}
			ids[0], ids[topK], ids[3*topK] = -1, experts, math.MinInt32
			tol := s.linearTol(w)
			record := func(m *memory, rows []int, prefill int) ([]compute.Op, []compute.View) {
				var chosen []int32
				for _, r := range rows {
					chosen = append(chosen, ids[r*topK:][:topK]...)
				}
				op := compute.MoELinear{X: m.pick(expand(rows, per), cols, x), IDs: m.table(len(rows), topK, chosen), W: m.load(w), Act: act, Out: m.out(len(rows)*topK, out), Prefill: prefill}
				if up != nil {
					op.Up = m.load(*up)
				}
				if hasBias {
					op.Bias = m.floats(experts, out, bias)
					if up != nil {
						op.UpBias = m.floats(experts, out, upBias)
					}
				}
				return []compute.Op{op}, []compute.View{op.Out}
			}
			s.row(rowCase{name: name, rows: rows, tol: tol,
				record:  func(m *memory, rows []int) ([]compute.Op, []compute.View) { return record(m, rows, len(rows)) },
				prefill: record,
				want: func(row int) []approx {
					var want []approx
					for j := range topK {
						e := int(ids[row*topK+j])
						if e < 0 || e >= experts {
							want = append(want, make([]approx, out)...)
							continue
						}
						x := x[(row*per+j%per)*cols:][:cols]
						for i := range out {
							z, u := w.dot(e, i, x), approx{}
							if hasBias {
								z = z.add(exactly(float64(bias[e*out+i])))
							}
							if up != nil {
								u = up.dot(e, i, x)
								if hasBias {
									u = u.add(exactly(float64(upBias[e*out+i])))
								}
							}
							want = append(want, activation(act, z, u, tol))
						}
					}
					return want
				}})
		}
	}
}

// expand turns rows into per rows each.
func expand(rows []int, per int) []int {
	var x []int
	for _, r := range rows {
		for j := range per {
			x = append(x, r*per+j)
		}
	}
	return x
}

func newAdapter(r *rand.Rand, in, out int, dora bool) *adapter {
	const rank = 5
	a := &adapter{a: denseF32.pack(r, 0, rank, in), b: denseF32.pack(r, 0, out, rank), scale: 0.75}
	if dora {
		a.a, a.b = format{scheme: layout.Dense, dtype: layout.BF16}.pack(r, 0, rank, in), format{scheme: layout.Dense, dtype: layout.F16}.pack(r, 0, out, rank)
		a.mag = normals(r, out)
	}
	return a
}
