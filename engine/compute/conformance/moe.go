package conformance

import (
	"fmt"
	"math"
	"slices"

	"sparkbar/engine/compute"
)

// order returns the indices of x, largest first, equal ones ascending, NaN last.
func order(x []float64) []int {
	at := ascending(len(x))
	slices.SortStableFunc(at, func(a, b int) int {
		switch {
		case isNaN(x[a]) || isNaN(x[b]):
			return btoi(isNaN(x[a])) - btoi(isNaN(x[b]))
		case x[a] > x[b]:
			return -1
		case x[a] < x[b]:
			return 1
		}
		return 0
	})
	return at
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// softmax is exact softmax with the scale of its error: each score's own error
// scale and that of the others moves the result.
func softmax(x []approx) []approx {
	m := math.Inf(-1)
	for _, a := range x {
		m = max(m, a.v)
	}
	var sum, err float64
	p := make([]approx, len(x))
	for i, a := range x {
		p[i].v = math.Exp(a.v - m)
		p[i].e = a.e + math.Abs(a.v-m)
		sum += p[i].v
		err += p[i].v * p[i].e
	}
	for i := range p {
		p[i].v /= sum
		p[i].e = p[i].v * (2 + p[i].e + err/sum)
	}
	return p
}

func testMoERoute(s *suite) {
	type route struct {
		kind              compute.RouteKind
		experts, topK     int
		groups, topGroups int
		bias, normalize   bool
		perExpert         bool
		scale             float32
	}
	routes := []route{
		{kind: compute.SoftmaxAll, experts: 8, topK: 2, scale: 1},
		{kind: compute.SoftmaxAll, experts: 60, topK: 4, normalize: true, scale: 1},
		{kind: compute.SoftmaxAll, experts: 1, topK: 1, scale: 2.5},
		{kind: compute.SoftmaxAll, experts: 128, topK: 8, normalize: true, perExpert: true, scale: 1},
		{kind: compute.SoftmaxTop, experts: 32, topK: 4, scale: 1},
		{kind: compute.SoftmaxTop, experts: 7, topK: 7, perExpert: true, scale: 1.5},
		{kind: compute.SoftmaxTop, experts: 16, topK: 1, scale: 1},
		{kind: compute.SigmoidTop, experts: 24, topK: 5, scale: 1},
		{kind: compute.SigmoidTop, experts: 24, topK: 5, bias: true, normalize: true, scale: 2.5},
		{kind: compute.SigmoidTop, experts: 32, topK: 6, groups: 4, topGroups: 2, bias: true, normalize: true, scale: 2.5},
		{kind: compute.SigmoidTop, experts: 256, topK: 8, groups: 8, topGroups: 4, bias: true, normalize: true, scale: 2.5},
		{kind: compute.SigmoidTop, experts: 12, topK: 3, groups: 12, topGroups: 5, bias: true, scale: 1},
		{kind: compute.SigmoidTop, experts: 12, topK: 4, groups: 1, topGroups: 1, scale: 1},
		{kind: compute.SigmoidTop, experts: 12, topK: 5, groups: 6, topGroups: 2, bias: true, scale: 1}, // more choices than experts left: zeros win
	}
	for i, c := range routes {
		name := fmt.Sprintf("MoERoute %d: %+v", i, c)
		r := rng(name)
		const rows = 33
		logits := normals(r, rows*c.experts)
		for e := range c.experts {
			if e%3 == 1 { // ties, to the lower index
				logits[c.experts+e] = logits[c.experts+e-1]
			}
			logits[2*c.experts+e] = 0.25
		}
		bias, perExpert := make([]float32, c.experts), make([]float32, c.experts)
		for e := range bias {
			bias[e] = float32(r.Float64()) // positive: zeroed experts come last
			perExpert[e] = float32(0.5 + r.Float64())
		}
		s.row(rowCase{name: name, rows: rows,
			record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
				op := compute.MoERoute{Logits: m.pick(rows, c.experts, logits), Kind: c.kind, TopK: c.topK, Groups: c.groups, TopGroups: c.topGroups,
					Normalize: c.normalize, NormEps: 1e-6, Scale: c.scale, IDs: m.outInts(len(rows), c.topK), Weights: m.out(len(rows), c.topK)}
				if c.bias {
					op.Bias = m.floats(1, c.experts, bias)
				}
				if c.perExpert {
					op.PerExpert = m.floats(1, c.experts, perExpert)
				}
				return []compute.Op{op}, []compute.View{op.IDs, op.Weights}
			},
			want: func(row int) []approx {
				scores := make([]approx, c.experts)
				for e := range scores {
					scores[e] = exactly(float64(logits[row*c.experts+e]))
				}
				switch c.kind {
				case compute.SoftmaxAll:
					scores = softmax(scores)
				case compute.SigmoidTop:
					for e := range scores {
						scores[e] = scores[e].apply(sigmoid, 0, s.opt.Tol)
					}
				}
				choice := make([]float64, c.experts)
				for e := range choice {
					choice[e] = scores[e].v
					if c.bias {
						choice[e] += float64(bias[e])
					}
				}
				if c.groups > 1 {
					size := c.experts / c.groups
					sums := make([]float64, c.groups)
					for g := range sums {
						for _, e := range order(choice[g*size:][:size])[:min(2, size)] {
							sums[g] += choice[g*size+e]
						}
					}
					for _, g := range order(sums)[c.topGroups:] {
						clear(choice[g*size:][:size])
					}
				}
				var want, weights []approx
				for _, e := range order(choice)[:c.topK] {
					want = append(want, exactly(float64(e)))
					weights = append(weights, scores[e])
				}
				if c.kind == compute.SoftmaxTop {
					weights = softmax(weights)
				}
				if c.normalize {
					var t total
					for _, w := range weights {
						t.add(w)
					}
					sum := t.result().add(exactly(float64(float32(1e-6))))
					inverse := approx{1 / sum.v, sum.e / sum.v / sum.v}
					for j := range weights {
						weights[j] = weights[j].mul(inverse)
					}
				}
				for j := range weights {
					weights[j] = weights[j].times(float64(c.scale))
					if c.perExpert {
						weights[j] = weights[j].times(float64(perExpert[int(want[j].v)]))
					}
				}
				return append(want, weights...)
			}})
	}
	// numbers gone wrong: still experts that exist, each once
	s.cases++
	bad := []float32{nan, nan, nan, nan, nan, inf, -inf, nan, 1, 2, -inf, -inf, -inf, -inf, -inf}
	for _, kind := range []compute.RouteKind{compute.SoftmaxAll, compute.SoftmaxTop, compute.SigmoidTop} {
		got, err := s.run(memPacked, 3, func(m *memory) ([]compute.Op, []compute.View) {
			op := compute.MoERoute{Logits: m.floats(3, 5, bad), Kind: kind, TopK: 3, Scale: 1, IDs: m.outInts(3, 3), Weights: m.out(3, 3)}
			return []compute.Op{op}, []compute.View{op.IDs}
		})
		if err != nil {
			s.fail("MoERoute of NaN", "%v", err)
			continue
		}
		for r, ids := range got {
			seen := map[float32]bool{}
			for _, id := range ids {
				if !(id >= 0 && id < 5) || seen[id] {
					s.fail("MoERoute of NaN", "kind %d row %d chose %v", kind, r, ids)
					break
				}
				seen[id] = true
			}
		}
	}
}

var (
	nan = float32(math.NaN())
	inf = float32(math.Inf(1))
)

func testMoECombine(s *suite) {
	for variant := range 8 {
		for _, topK := range []int{1, 2, 5} {
			for _, cols := range []int{1, 37, 64} {
				name := fmt.Sprintf("MoECombine variant %d, top %d, %d columns", variant, topK, cols)
				r := rng(name)
				const rows = 33
				x, w, sh, gate, res := normals(r, rows*topK*cols), normals(r, rows*topK), normals(r, rows*cols), normals(r, rows), normals(r, rows*cols)
				shared, gated := variant >= 2, variant >= 4
				residual := residualKind(variant % 3)
				scale := float32(1)
				if variant%2 == 1 {
					scale = 0.4
				}
				s.row(rowCase{name: name, rows: rows,
					record: func(m *memory, rows []int) ([]compute.Op, []compute.View) {
						op := compute.MoECombine{X: m.pick(expand(rows, topK), cols, x), Weights: m.pick(rows, topK, w), Scale: scale}
						if shared {
							op.Shared = m.pick(rows, cols, sh)
						}
						if gated {
							op.SharedGate = m.pick(rows, 1, gate)
						}
						switch residual {
						case noResidual:
							op.Out = m.out(len(rows), cols)
						case residualApart:
							op.Out, op.Residual = m.out(len(rows), cols), m.pick(rows, cols, res)
						case residualInPlace:
							op.Out = m.pick(rows, cols, res)
							op.Residual = op.Out
						}
						return []compute.Op{op}, []compute.View{op.Out}
					},
					want: func(row int) []approx {
						want := make([]approx, cols)
						for i := range want {
							var t total
							for j := range topK {
								t.dot(float64(w[row*topK+j]), float64(x[(row*topK+j)*cols+i]))
							}
							if shared {
								y := exactly(float64(sh[row*cols+i]))
								if gated {
									y = y.mul(exactly(float64(gate[row])).apply(sigmoid, 0, s.opt.Tol))
								}
								t.add(y)
							}
							want[i] = t.result().times(float64(scale))
							if residual != noResidual {
								want[i] = want[i].add(exactly(float64(res[row*cols+i])))
							}
						}
						return want
					}})
			}
		}
	}
}
