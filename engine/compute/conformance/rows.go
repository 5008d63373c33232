package conformance

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// testBackend checks what holds for programs, not for ops.
func testBackend(s *suite) {
	check := func(what string, ok bool) {
		s.cases++
		if !ok {
			s.fail("Backend", "%s", what)
		}
	}
	check("has no name", s.b.Name() != "")
	buf, err := s.b.Alloc("zeroed", 100_000)
	if err != nil {
		s.fail("Backend", "Alloc: %v", err)
		return
	}
	defer buf.Close()
	check("Alloc gives other than zeroed memory of the size asked", len(buf.Bytes) >= 100_000 && !slices.ContainsFunc(buf.Bytes, func(b byte) bool { return b != 0 }))
	_, err = s.b.Alloc("too much", -1)
	check("Alloc of -1 bytes succeeds", err != nil)
	if empty, err := s.b.Alloc("nothing", 0); err != nil {
		s.fail("Backend", "Alloc of nothing: %v", err)
	} else {
		empty.Close()
	}

	// ops run in order; token ids stay on the device
	w := denseF32.pack(rng("Backend"), 0, 7, 4)
	ids := []float32{0, 0, 3, 0, 0, 9, 0, 0, 0}
	got, err := s.run(memPacked, 1, func(m *memory) ([]compute.Op, []compute.View) {
		id, mapped, out := m.outInts(1, 1), m.outInts(1, 1), m.out(1, 4)
		return []compute.Op{
			compute.Argmax{X: m.floats(1, 9, ids), Out: id},
			compute.MapIDs{IDs: id, Offset: m.ints(0, 0, 0, 0, 0, 1), Out: mapped},
			compute.Embed{IDs: mapped, W: m.load(w), Scale: 1, Out: out},
			compute.Unary{Kind: compute.UnScale, X: out, Out: out, V: 2},
		}, []compute.View{mapped, out}
	})
	val, _ := w.row(0, 6)
	want := []approx{exactly(6)}
	for _, v := range val {
		want = append(want, exactly(2*v))
	}
	s.cases++
	if err != nil {
		s.fail("Backend", "chain of ops: %v", err)
	} else {
		s.judge("Backend, chain of ops", 0, got[0], want, 0)
	}

	// labels are counted, stops and bad programs reported
	m := &memory{b: s.b}
	defer m.close()
	x := m.floats(1, 3, []float32{1, 2, 3})
	target, draft := s.b.Submits(compute.LabelTarget), s.b.Submits(compute.LabelDraft)
	p := &compute.Program{Label: compute.LabelTarget}
	p.Add(compute.Unary{Kind: compute.UnScale, X: x, Out: x, V: 2})
	check("fails to run a program", compute.Run(s.b, p, nil) == nil && x.F32(0)[2] == 6)
	var stop compute.Stop
	check("fails with a stop that is not set", compute.Run(s.b, p, &stop) == nil && x.F32(0)[2] == 12)
	stop.Set()
	check("ignores a stop", errors.Is(compute.Run(s.b, p, &stop), compute.ErrStopped) && x.F32(0)[2] == 12)
	stop.Clear()
	check("stays stopped", compute.Run(s.b, p, &stop) == nil && x.F32(0)[2] == 24)
	check("miscounts submits", s.b.Submits(compute.LabelTarget) == target+4 && s.b.Submits(compute.LabelDraft) == draft)
	bad := &compute.Program{}
	bad.Add(compute.Unary{Kind: compute.UnScale, X: x, V: 2})
	check("runs a program without an output", bad.Err() != nil && compute.Run(s.b, bad, nil) != nil)
	var empty compute.Program
	check("fails to run an empty program", compute.Run(s.b, &empty, nil) == nil)
}

func testNorm(s *suite) {
	type norm struct {
		cols, group int
		kind        compute.NormKind
		weight      int // 0 none, 1 as wide as a group, 2 as wide as a row
		offset      float32
		place       compute.GatePlace
		scale       float32
		inPlace     bool
	}
	var norms []norm
	for i, cols := range []int{1, 7, 64, 96, 576, 2050} {
		for place := compute.GateNone; place <= compute.GateAfter; place++ {
			for weight := range 2 {
				norms = append(norms, norm{cols, 0, compute.NormKind(i+weight) % 2, weight, float32(i % 2), place, []float32{1, 0.125}[i%2], i%2 == 1})
			}
		}
	}
	for _, g := range [][2]int{{96, 16}, {160, 80}, {512, 128}, {50, 25}, {6, 1}} {
		for weight := range 3 {
			for place := compute.GateNone; place <= compute.GateAfter; place++ {
				norms = append(norms, norm{g[0], g[1], compute.NormKind(weight+int(place)) % 2, weight, float32(weight) / 2, place, 1, place == compute.GateBefore})
			}
		}
	}
	for _, c := range norms {
		name := fmt.Sprintf("Norm %+v", c)
		r := rng(name)
		const rows = 33
		x, gate := normals(r, rows*c.cols), normals(r, rows*c.cols)
		clear(x[2*c.cols : 3*c.cols]) // a row of zeros
		for i := range c.cols {
			x[3*c.cols+i] *= 1e4
			x[4*c.cols+i] *= 1e-6
		}
		group := c.group
		if group == 0 {
			group = c.cols
		}
		width := []int{1, group, c.cols}[c.weight]
		w := normals(r, width)
		s.row(rowCase{name: name, rows: rows,
			record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
				op := compute.Norm{X: m.pick(rows, c.cols, x), Kind: c.kind, Eps: 1e-5, Scale: c.scale, Offset: c.offset, Group: c.group, Place: c.place}
				if c.weight > 0 {
					op.W = m.floats(1, width, w)
				}
				if c.place != compute.GateNone {
					op.Gate = m.pick(rows, c.cols, gate)
				}
				op.Out = op.X
				if !c.inPlace {
					op.Out = m.out(len(rows), c.cols)
				}
				return []compute.Op{op}, []compute.View{op.Out}
			},
			want: func(row int) []approx {
				var want []approx
				for at := 0; at < c.cols; at += group {
					z := make([]approx, group)
					var sum total
					for i := range z {
						z[i] = exactly(float64(x[row*c.cols+at+i]))
						if c.place == compute.GateBefore {
							z[i] = z[i].mul(exactly(float64(gate[row*c.cols+at+i])).apply(silu, 0, s.opt.Tol))
						}
						sum.add(z[i].mul(z[i]))
					}
					mean := sum.result()
					if c.kind == compute.RMS {
						mean = mean.times(1 / float64(group))
					}
					inv := mean.add(exactly(float64(float32(1e-5)))).apply(func(x float64) float64 { return 1 / math.Sqrt(max(x, 1e-7)) }, 0, s.opt.Tol)
					for i := range z {
						y := z[i].mul(inv).times(float64(c.scale))
						if c.weight > 0 {
							y = y.mul(exactly(float64(w[(at+i)%width])).add(exactly(float64(c.offset))))
						}
						if c.place == compute.GateAfter {
							y = y.mul(exactly(float64(gate[row*c.cols+at+i])).apply(silu, 0, s.opt.Tol))
						}
						want = append(want, y)
					}
				}
				return want
			}})
	}
}

func testRoPE(s *suite) {
	type rope struct {
		heads, dim, pairs int
		interleaved       bool
		mul               float32
		beta              float32
		orig              int
		zeros             bool // some frequencies are 0
	}
	ropes := []rope{
		{1, 16, 8, false, 1, 0, 0, false}, {3, 24, 12, true, 1, 0, 0, false}, {4, 64, 32, false, 1, 0, 0, false}, {2, 80, 20, false, 1, 0, 0, false},
		{2, 80, 20, true, 1, 0, 0, false}, {2, 128, 64, false, 1.19, 0, 0, false}, {1, 256, 32, false, 1, 0, 0, true}, {3, 64, 32, true, 0.8, 0.1, 16, false},
		{2, 48, 24, false, 1, 0.25, 8192, true}, {2, 6, 3, false, 1, 0, 0, false}, {1, 10, 1, true, 1.5, 0.1, 1, false},
	}
	for _, c := range ropes {
		name := fmt.Sprintf("RoPE %+v", c)
		r := rng(name)
		const rows = 33
		cols := c.heads * c.dim
		x := normals(r, rows*cols)
		pos := []int32{0, 1, 2, 63, 64, 65, 127, 8191, 8192, 100_003}
		for len(pos) < rows {
			pos = append(pos, int32(r.IntN(40_000)))
		}
		freq := make([]float32, c.pairs)
		for i := range freq {
			freq[i] = float32(math.Pow(10_000, -float64(i)/float64(c.pairs)))
			if c.zeros && i >= c.pairs/2 {
				freq[i] = 0
			}
		}
		s.row(rowCase{name: name, rows: rows,
			record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
				v := m.pick(rows, cols, x)
				return []compute.Op{compute.RoPE{X: v, Pos: m.ints(pickInts(pos, rows)...), Freq: m.floats(1, c.pairs, freq), HeadDim: c.dim,
					Interleaved: c.interleaved, Mul: c.mul, QBeta: c.beta, QOrig: c.orig}}, []compute.View{v}
			},
			want: func(row int) []approx {
				want := make([]approx, cols)
				for i := range want {
					want[i] = exactly(float64(x[row*cols+i]))
				}
				p := float64(pos[row])
				for h := range c.heads {
					head := want[h*c.dim:][:c.dim]
					for i, f := range freq {
						a, b := i, i+c.pairs
						if c.interleaved {
							a, b = 2*i, 2*i+1
						}
						angle := p * float64(f)
						// the angle itself is rounded to float32
						slack := 1 + math.Abs(angle)*1.2e-7/s.opt.Tol
						u, v := head[a].times(float64(c.mul)), head[b].times(float64(c.mul))
						sin, cos := approx{math.Sin(angle), slack}, approx{math.Cos(angle), slack}
						head[a], head[b] = u.mul(cos).add(v.mul(sin).times(-1)), v.mul(cos).add(u.mul(sin))
					}
					if c.beta != 0 {
						for i := range head {
							head[i] = head[i].times(1 + float64(c.beta)*math.Log(1+math.Floor(p/float64(c.orig))))
						}
					}
				}
				return want
			}})
	}
}

func testBinary(s *suite) {
	for kind := compute.BinAdd; kind <= compute.BinSiLUMul; kind++ {
		for variant := range 9 {
			cols := []int{1, 37, 96, 24, 80, 64, 515, 8, 6}[variant]
			group := []int{0, 0, 0, 6, 80, 1, 0, 4, 3}[variant]
			oneRow := variant == 2 || variant == 3
			scale := []float32{1, 0.3}[variant%2]
			inPlace := variant%3 == 1
			name := fmt.Sprintf("Binary kind %d variant %d", kind, variant)
			r := rng(name)
			const rows = 33
			bcols := cols
			if group > 0 {
				bcols = cols / group
			}
			a, b := normals(r, rows*cols), normals(r, rows*bcols)
			for i := range b {
				b[i] *= 4
			}
			s.row(rowCase{name: name, rows: rows,
				record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
					op := compute.Binary{Kind: kind, A: m.pick(rows, cols, a), BGroup: group, Scale: scale}
					if oneRow {
						op.B = m.floats(1, bcols, b)
					} else {
						op.B = m.pick(rows, bcols, b)
					}
					op.Out = op.A
					if !inPlace {
						op.Out = m.out(len(rows), cols)
					}
					return []compute.Op{op}, []compute.View{op.Out}
				},
				want: func(row int) []approx {
					want := make([]approx, cols)
					for i := range want {
						at := i
						if group > 0 {
							at = i / group
						}
						if !oneRow {
							at += row * bcols
						}
						x, y := exactly(float64(a[row*cols+i])), exactly(float64(b[at]))
						switch kind {
						case compute.BinAdd:
							y = x.add(y)
						case compute.BinMul:
							y = x.mul(y)
						case compute.BinSigmoidMul:
							y = x.mul(y.apply(sigmoid, 0, s.opt.Tol))
						case compute.BinSiLUMul:
							y = x.mul(y.apply(silu, 0, s.opt.Tol))
						}
						want[i] = y.times(float64(scale))
					}
					return want
				}})
		}
	}
}

func testUnary(s *suite) {
	for kind := compute.UnScale; kind <= compute.UnSiLU; kind++ {
		for _, cols := range []int{1, 37, 512} {
			for _, inPlace := range []bool{false, true} {
				name := fmt.Sprintf("Unary kind %d, %d columns, in place %v", kind, cols, inPlace)
				r := rng(name)
				const rows, v = 33, 30
				x := normals(r, rows*cols)
				for i := range x {
					x[i] *= float32(math.Exp2(float64(r.IntN(20) - 10)))
				}
				x[0], x[rows*cols-1] = 1e4, -1e4 // far out: no overflow to NaN
				s.row(rowCase{name: name, rows: rows,
					record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
						op := compute.Unary{Kind: kind, X: m.pick(rows, cols, x), V: v}
						op.Out = op.X
						if !inPlace {
							op.Out = m.out(len(rows), cols)
						}
						return []compute.Op{op}, []compute.View{op.Out}
					},
					want: func(row int) []approx {
						want := make([]approx, cols)
						for i := range want {
							y := exactly(float64(x[row*cols+i]))
							switch kind {
							case compute.UnScale:
								y = y.times(v)
							case compute.UnSoftcap:
								y = y.apply(func(x float64) float64 { return v * math.Tanh(x/v) }, min(math.Abs(y.v), v), s.opt.Tol)
							case compute.UnSigmoid:
								y = y.apply(sigmoid, 0, s.opt.Tol)
							case compute.UnSiLU:
								y = y.apply(silu, 0, s.opt.Tol)
							}
							want[i] = y
						}
						return want
					}})
			}
		}
	}
}

func testCopyRows(s *suite) {
	pairs := [][2]layout.DType{{layout.F32, layout.F32}, {layout.I32, layout.I32}}
	if a := compute.Activations(s.b); a != layout.F32 {
		pairs = append(pairs, [2]layout.DType{a, a}, [2]layout.DType{a, layout.F32}, [2]layout.DType{layout.F32, a})
	}
	for _, t := range pairs {
		for _, cols := range []int{1, 5, 64, 129} {
			for _, indexed := range []bool{false, true} {
				name := fmt.Sprintf("CopyRows %v to %v, %d columns, indexed %v", t[0], t[1], cols, indexed)
				r := rng(name)
				const rows = 33
				src := make([]float32, rows*cols)
				for i := range src {
					src[i] = float32(r.IntN(1 << 20))
				}
				index := []int32{3, 3, -1, 0, rows, rows - 1, math.MaxInt32, math.MinInt32}
				for len(index) < rows {
					index = append(index, int32(r.IntN(rows)))
				}
				if !indexed {
					for i := range index {
						index[i] = int32(i)
					}
				}
				s.row(rowCase{name: name, rows: rows,
					record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
						from := rows
						if indexed {
							from = ascending(33)
						}
						op := compute.CopyRows{Src: m.view(t[0], len(from), cols), Dst: m.view(t[1], len(rows), cols)}
						for i, r := range from {
							m.put(op.Src, i, src[r*cols:][:cols])
						}
						if indexed {
							op.Index = m.ints(pickInts(index, rows)...)
						}
						return []compute.Op{op}, []compute.View{op.Dst}
					},
					want: func(row int) []approx {
						want := make([]approx, cols)
						if from := int(index[row]); from >= 0 && from < rows {
							for c := range want {
								want[c] = exactly(float64(src[from*cols+c]))
							}
						}
						return want
					}})
			}
		}
	}
	// taps: columns of every other row, into columns of a wider matrix; NaN keeps its bits
	s.cases++
	got, err := s.run(memSpread, 2, func(m *memory) ([]compute.Op, []compute.View) {
		src, dst := m.floats(4, 3, []float32{1, 2, 3, 4, 5, 6, 7, nan, 9, 10, 11, 12}), m.floats(2, 4, make([]float32, 8))
		every := src.Columns(1, 3)
		every.Rows, every.Stride = 2, 2*src.Stride
		return []compute.Op{compute.CopyRows{Src: every, Dst: dst.Columns(1, 3)}}, []compute.View{dst}
	})
	if err != nil || !same(got[0], []float32{0, 2, 3, 0}) || !same(got[1], []float32{0, nan, 9, 0}) {
		s.fail("CopyRows of taps", "%v %v", got, err)
	}
}

// selections are rows for Argmax and TopK of n columns: random ones, and ties,
// NaN and infinities in awkward places.
func selections(r *rand.Rand, rows, n int) []float32 {
	x := normals(r, rows*n)
	row := func(i int) []float32 { return x[i*n:][:n] }
	copy(row(1), filled(n, 2))         // all equal
	copy(row(2), filled(n, nan))       // nothing but NaN
	copy(row(3), filled(n, -inf))      // nothing but -Inf
	row(4)[0] = nan                    // NaN first
	row(5)[n-1], row(5)[n/2] = 50, 50  // tie far apart
	row(6)[n-1] = nan                  // NaN last
	copy(row(7), filled(n, nan))       // one number among NaN
	row(7)[n-1] = -inf                 //
	row(8)[n/2], row(8)[n/3] = inf, 60 //
	for i := range n {                 // few values, many ties
		row(9)[i] = float32(r.IntN(3))
		row(10)[i] = float32(math.Copysign(0, float64(r.IntN(2))-0.5)) // 0 and -0 are equal
	}
	row(11)[n-1] = 99 // the last wins
	row(12)[0] = 99
	return x
}

func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func testArgmax(s *suite) {
	for i, n := range []int{1, 2, 7, 8, 9, 33, 64, 1025, 5003} {
		name := fmt.Sprintf("Argmax of %d", n)
		const rows = 33
		x := selections(rng(name), rows, n)
		s.row(rowCase{name: name, rows: rows,
			record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
				op := compute.Argmax{X: m.pick(rows, n, x), Out: m.outInts(1, len(rows))}
				if i%2 == 1 {
					op.Out = m.outInts(len(rows), 1)
				}
				return []compute.Op{op}, []compute.View{op.Out}
			},
			want: func(row int) []approx { return []approx{exactly(float64(order(wide(x[row*n:][:n]))[0]))} }})
	}
}

func testTopK(s *suite) {
	for _, c := range [][2]int{{1, 1}, {7, 1}, {7, 7}, {33, 5}, {64, 16}, {1025, 40}, {5003, 8}} {
		n, k := c[0], c[1]
		name := fmt.Sprintf("TopK %d of %d", k, n)
		const rows = 33
		x := selections(rng(name), rows, n)
		s.row(rowCase{name: name, rows: rows,
			record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
				op := compute.TopK{X: m.pick(rows, n, x), IDs: m.outInts(len(rows), k), Vals: m.out(len(rows), k)}
				return []compute.Op{op}, []compute.View{op.IDs, op.Vals}
			},
			want: func(row int) []approx {
				x := wide(x[row*n:][:n])
				want := make([]approx, 2*k)
				for j, i := range order(x)[:k] {
					want[j], want[k+j] = exactly(float64(i)), exactly(x[i])
				}
				return want
			}})
	}
}

func testLogSumExp(s *suite) {
	for _, n := range []int{1, 2, 8, 33, 1025, 5003} {
		name := fmt.Sprintf("LogSumExp of %d", n)
		r := rng(name)
		const rows = 33
		x := normals(r, rows*n)
		row := func(i int) []float32 { return x[i*n:][:n] }
		copy(row(1), filled(n, 1e30))
		copy(row(2), filled(n, -1e30))
		copy(row(3), filled(n, -inf))
		row(4)[n-1] = inf
		row(5)[n/2] = 3e38
		row(5)[0] = -3e38
		copy(row(6), filled(n, 88.5)) // exp overflows as a sum
		copy(row(7), filled(n, -110)) // exp underflows
		row(8)[0] = -inf
		for i := range n {
			row(9)[i] *= 100
			row(10)[i] += 700
		}
		s.row(rowCase{name: name, rows: rows,
			record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
				op := compute.LogSumExp{X: m.pick(rows, n, x), Out: m.out(len(rows), 1)}
				return []compute.Op{op}, []compute.View{op.Out}
			},
			want: func(row int) []approx {
				x := wide(x[row*n:][:n])
				m := slices.Max(x)
				if math.IsInf(m, 0) {
					return []approx{exactly(m)}
				}
				var sum float64
				for _, v := range x {
					sum += math.Exp(v - m)
				}
				return []approx{{m + math.Log(sum), math.Abs(m) + math.Log(sum) + 1}}
			}})
	}
}

func testMapIDs(s *suite) {
	for _, inPlace := range []bool{false, true} {
		name := fmt.Sprintf("MapIDs, in place %v", inPlace)
		r := rng(name)
		const rows, vocab = 33, 29
		offset := make([]int32, vocab)
		for i := range offset {
			offset[i] = int32(r.IntN(1000)) - 10
		}
		ids := []int32{0, vocab - 1, vocab, -1, math.MaxInt32, math.MinInt32}
		for len(ids) < rows {
			ids = append(ids, int32(r.IntN(vocab)))
		}
		s.row(rowCase{name: name, rows: rows,
			record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
				op := compute.MapIDs{IDs: m.ints(pickInts(ids, rows)...), Offset: m.ints(offset...)}
				op.Out = op.IDs
				if !inPlace {
					op.Out = m.outInts(1, len(rows))
				}
				return []compute.Op{op}, []compute.View{op.Out}
			},
			want: func(row int) []approx {
				id := ids[row]
				if id < 0 || id >= vocab {
					return []approx{{}}
				}
				return []approx{exactly(float64(id + offset[id]))}
			}})
	}
}

func testBlockConv(s *suite) {
	for _, c := range []struct{ cols, group, block, taps int }{
		{1, 1, 1, 1}, {12, 4, 8, 3}, {64, 16, 7, 4}, {33, 33, 5, 9}, {40, 1, 16, 2}, {96, 32, 9, 4},
	} {
		name := fmt.Sprintf("BlockConv %+v", c)
		r := rng(name)
		const blocks = 4
		rows, groups := blocks*c.block, c.cols/c.group
		x, base, p := normals(r, rows*c.cols), normals(r, c.taps*c.cols), normals(r, rows*c.taps*groups)
		s.row(rowCase{name: name, rows: blocks,
			record: func(m *memory, blocks []int) ([]compute.Op, []compute.View) {
				rows := expand(blocks, c.block)
				op := compute.BlockConv{X: m.pick(rows, c.cols, x), Base: m.floats(c.taps, c.cols, base), P: m.pick(rows, c.taps*groups, p),
					Group: c.group, Block: c.block, Out: m.out(len(rows), c.cols)}
				return []compute.Op{op}, []compute.View{op.Out}
			},
			want: func(b int) []approx {
				var want []approx
				for t := range c.block {
					for col := range c.cols {
						var sum total
						for j := range min(c.taps, t+1) {
							row := b*c.block + t
							k := exactly(float64(base[j*c.cols+col])).add(exactly(float64(p[row*c.taps*groups+j*groups+col/c.group])))
							sum.add(k.times(float64(x[(row-j)*c.cols+col])))
						}
						want = append(want, sum.result())
					}
				}
				return want
			}})
	}
}

func testPairSelect(s *suite) {
	for variant := range 8 {
		sampled := variant%2 == 1
		slots, k, rank := []int{1, 7, 4, 3}[variant/2], []int{1, 4, 16, 5}[variant/2], []int{8, 3, 16, 33}[variant/2]
		name := fmt.Sprintf("PairSelect %d slots, %d candidates, rank %d, sampled %v", slots, k, rank, sampled)
		r := rng(name)
		const blocks, vocab = 9, 40
		n := blocks * slots
		f := []format{denseF32, {scheme: layout.Dense, dtype: layout.BF16}}[variant/4]
		a, b := f.pack(r, 0, vocab, rank), f.pack(r, 0, vocab, rank)
		unary, h := normals(r, n*k), normals(r, n*rank)
		cand, anchor, uniform := make([]int32, n*k), make([]int32, blocks), make([]float32, n)
		for i := range cand {
			cand[i] = int32(r.IntN(vocab))
		}
		for i := range anchor {
			anchor[i] = int32(r.IntN(vocab))
		}
		for i := range uniform {
			uniform[i] = 1
		}
		anchor[1], cand[2*slots*k] = -1, vocab // outside: add nothing
		if k > 1 {                             // a tie: the first wins
			unary[3*slots*k], unary[3*slots*k+1] = 1e3, 1e3
			cand[3*slots*k+1] = cand[3*slots*k]
		}
		(&memory{b: s.b}).round(unary, h)
		const temperature = 0.7
		tol := s.opt.Tol
		// the walk in float64; it also chooses the uniforms
		want := make([][]approx, blocks)
		for bl := range blocks {
			var ids, probs []approx
			prev := int(anchor[bl])
			for t := bl * slots; t < (bl+1)*slots; t++ {
				score := make([]approx, k)
				for c := range score {
					var sum total
					if id := int(cand[t*k+c]); prev >= 0 && prev < vocab && id >= 0 && id < vocab {
						av, _ := a.row(0, prev)
						bv, _ := b.row(0, id)
						for i := range rank {
							sum.dot(av[i]*float64(h[t*rank+i]), bv[i])
						}
					}
					score[c] = exactly(float64(unary[t*k+c])).add(sum.result())
				}
				values := make([]float64, k)
				for c := range values {
					values[c] = score[c].v
				}
				pick := order(values)[0]
				if sampled {
					for c := range score {
						score[c] = score[c].times(1 / float64(float32(temperature)))
					}
					score = softmax(score)
					pick = k - 1
					if t%5 != 4 || score[pick].v < 1e-3 { // else a uniform of 1: the last candidate
						u, sum := r.Float64(), 0.0
						for c, p := range score {
							if u < sum+p.v && p.v > 1e-3 || c == k-1 {
								pick, u = c, sum+p.v/2 // the middle: no rounding decides
								break
							}
							sum += p.v
						}
						uniform[t] = float32(u)
					}
				}
				prev = int(cand[t*k+pick])
				ids, probs = append(ids, exactly(float64(prev))), append(probs, score...)
			}
			want[bl] = append(ids, probs...)
		}
		s.row(rowCase{name: name, rows: blocks, tol: tol,
			record: func(m *memory, blocks []int) ([]compute.Op, []compute.View) {
				rows := expand(blocks, slots)
				op := compute.PairSelect{Unary: m.pick(rows, k, unary), Anchor: m.ints(pickInts(anchor, blocks)...), A: m.load(a), B: m.load(b),
					H: m.pick(rows, rank, h), Slots: slots, Temperature: temperature, IDs: m.outInts(1, len(rows)), Probs: m.out(len(rows), k)}
				var chosen []int32
				for _, r := range rows {
					chosen = append(chosen, cand[r*k:][:k]...)
				}
				op.Cand = m.table(len(rows), k, chosen)
				if sampled {
					u := make([]float32, len(rows))
					for i, r := range rows {
						u[i] = uniform[r]
					}
					op.Uniform = m.floats(1, len(u), u)
				}
				return []compute.Op{op}, []compute.View{op.IDs, op.Probs}
			},
			want: func(b int) []approx { return want[b] }})
	}
}
