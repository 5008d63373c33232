package conformance

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// Options says what a backend promises.
type Options struct {
	// Tol is the tolerated error of a result relative to the magnitude of the
	// terms that were summed; 0 means DefaultTol.
	Tol float64
	// LinearTol is the same for Linear, HeadLinear and MoELinear over quantized
	// weights, where a backend may quantize activations; 0 means Tol.
	LinearTol float64
	// RelaxedPrefill says that prefill rows (Rows.Prefill, Linear.Prefill) may
	// run in other kernels, so that their bits differ from those of decode rows.
	RelaxedPrefill bool
}

// DefaultTol is about 30 units in the last place of float32.
const DefaultTol = 2e-6

// Run runs the whole suite on b as subtests of t, one for each op, and logs how
// many cases ran. An op without cases is a failure.
func Run(t *testing.T, name string, b compute.Backend, opt Options) {
	total := 0
	var lines []string
	for _, g := range groups {
		t.Run(name+"/"+g.op, func(t *testing.T) {
			s := newSuite(b, opt, t)
			g.run(s)
			s.finish(g.op)
			total += s.cases
			lines = append(lines, fmt.Sprintf("%s %d", g.op, s.cases))
		})
	}
	t.Logf("conformance of %s: %d cases of %d ops: %s", name, total, len(lines), strings.Join(lines, ", "))
}

// groups are the parts of the suite: what is done for each op.
var groups = []struct {
	op  string
	run func(*suite)
}{
	{"Backend", testBackend},
	{"Embed", testEmbed},
	{"Norm", testNorm},
	{"Linear", testLinear},
	{"HeadLinear", testHeadLinear},
	{"RoPE", testRoPE},
	{"KVWrite", testKVWrite},
	{"Attention", testAttention},
	{"MoERoute", testMoERoute},
	{"MoELinear", testMoELinear},
	{"MoECombine", testMoECombine},
	{"ShortConv", testShortConv},
	{"GatedDelta", testGatedDelta},
	{"SSMScan", testSSMScan},
	{"StateCommit", testStateCommit},
	{"Binary", testBinary},
	{"Unary", testUnary},
	{"CopyRows", testCopyRows},
	{"Argmax", testArgmax},
	{"TopK", testTopK},
	{"LogSumExp", testLogSumExp},
	{"MapIDs", testMapIDs},
	{"BlockConv", testBlockConv},
	{"PairSelect", testPairSelect},
}

// reporter is what the suite needs of a testing.T; the suite's own test observes
// failures through it.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
}

// suite runs the cases of one op.
type suite struct {
	b        compute.Backend
	opt      Options
	rep      reporter
	rounding rounding // of the backend's activations
	cases    int
	failures int
}

func newSuite(b compute.Backend, opt Options, rep reporter) *suite {
	if opt.Tol == 0 {
		opt.Tol = DefaultTol
	}
	if opt.LinearTol == 0 {
		opt.LinearTol = opt.Tol
	}
	return &suite{b: b, opt: opt, rep: rep, rounding: roundingOf(compute.Activations(b))}
}

// maxFailures bounds the report of one op.
const maxFailures = 8

func (s *suite) fail(name, format string, args ...any) {
	s.rep.Helper()
	if s.failures++; s.failures <= maxFailures {
		s.rep.Errorf("%s: %s", name, fmt.Sprintf(format, args...))
	}
}

func (s *suite) finish(op string) {
	s.rep.Helper()
	if s.failures > maxFailures {
		s.rep.Errorf("%s: %d more failures", op, s.failures-maxFailures)
	}
	if s.cases == 0 {
		s.rep.Errorf("%s: no case ran", op)
	}
}

// rng returns the random numbers of a case.
func rng(name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(h.Sum64(), 1))
}

// approx is an expected value and the scale of its rounding error: a result may
// be off by tolerance * e.
type approx struct{ v, e float64 }

// exactly is a value that must be met to the bit.
func exactly(v float64) approx { return approx{v: v} }

// add and mul carry the error scale along: the parts' own, and the rounding of
// the result. A sum's terms count with their magnitude, so that cancellation is
// not blamed on the backend.
func (a approx) add(b approx) approx {
	return approx{a.v + b.v, a.e + b.e + math.Abs(a.v) + math.Abs(b.v)}
}

func (a approx) mul(b approx) approx {
	v := a.v * b.v
	return approx{v, a.e*math.Abs(b.v) + b.e*math.Abs(a.v) + math.Abs(v)}
}

func (a approx) times(x float64) approx { return a.mul(exactly(x)) }

// apply is f(a): the slope of f moves the error scale; terms is the magnitude
// of what f sums inside.
func (a approx) apply(f func(float64) float64, terms float64, tol float64) approx {
	v, d := f(a.v), a.e*tol
	e := max(math.Abs(f(a.v+d)-v), math.Abs(f(a.v-d)-v)) / tol
	return approx{v, e + math.Abs(v) + terms}
}

// total sums in one go: the terms count once each.
type total struct{ v, e float64 }

func (t *total) add(a approx)     { t.v += a.v; t.e += a.e + math.Abs(a.v) }
func (t *total) dot(x, y float64) { t.v += x * y; t.e += math.Abs(x * y) }
func (t total) result() approx    { return approx(t) }
func sigmoid(x float64) float64   { return 1 / (1 + math.Exp(-x)) }
func silu(x float64) float64      { return x * sigmoid(x) }
func softplus(x float64) float64  { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }
func gelu(x float64) float64      { return x * sigmoid(1.5957691216057308*(x+0.044715*x*x*x)) }
func sameBits(a, b float32) bool  { return math.Float32bits(a) == math.Float32bits(b) }
func same(a, b []float32) bool    { return slices.EqualFunc(a, b, sameBits) }
func isNaN(x float64) bool        { return x != x }
func normal(r *rand.Rand) float32 { return float32(r.NormFloat64()) }
func filled(n int, v float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = v
	}
	return x
}

// tiny is what may be flushed to zero.
const tiny = 1e-36

// rounding is what storing a result may cost where activations are kept in
// halves: the relative error of rounding to nearest, the absolute one where
// numbers get small, and what is too large.
type rounding struct{ rel, abs, largest float64 }

func roundingOf(t layout.DType) rounding {
	switch t {
	case layout.F16: // 11 bits, down to 2^-24
		return rounding{0x1p-11, 0x1p-25, 65504}
	case layout.BF16: // 8 bits; the smallest may be flushed
		return rounding{0x1p-8, tiny, 0x1.fep127}
	}
	return rounding{0, 0, math.Inf(1)}
}

// met reports whether got is what was expected: within the tolerance in float32,
// then rounded once.
func (o rounding) met(got float32, want approx, tol float64) bool {
	g := float64(got)
	switch {
	case isNaN(want.v):
		return isNaN(g)
	case math.IsInf(want.v, 0):
		return g == want.v
	}
	slack := tol*want.e + tiny
	if big := math.Abs(want.v) + slack; math.IsInf(g, 0) && g*want.v > 0 && big*(1+o.rel) > o.largest {
		return true
	} else {
		slack += o.rel*big + o.abs
	}
	return math.Abs(g-want.v) <= slack
}

func normals(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = normal(r)
	}
	return x
}

// judge compares one row of results.
func (s *suite) judge(name string, row int, got []float32, want []approx, tol float64) {
	s.rep.Helper()
	s.judgeRounded(name, row, got, want, tol, s.rounding)
}

// judge32 is judge for what is float32 whatever activations are.
func (s *suite) judge32(name string, row int, got []float32, want []approx, tol float64) {
	s.rep.Helper()
	s.judgeRounded(name, row, got, want, tol, roundingOf(layout.F32))
}

func (s *suite) judgeRounded(name string, row int, got []float32, want []approx, tol float64, o rounding) {
	s.rep.Helper()
	if len(got) != len(want) {
		s.fail(name, "row %d has %d results, want %d", row, len(got), len(want))
		return
	}
	for i, w := range want {
		if !o.met(got[i], w, tol) {
			s.fail(name, "row %d element %d is %g, want %g +- %g", row, i, got[i], w.v, tol*w.e)
			return
		}
	}
}

// rowCase is an op whose rows are independent of each other. It is run on
// several choices of its rows; each is judged by want, and all must agree to
// the bit on the rows that they share.
type rowCase struct {
	name string
	rows int     // how many different rows there are
	tol  float64 // 0: Options.Tol
	// record makes the op for the given rows in m, and returns the views that
	// hold the results: as many rows of each view for each row, or as many
	// elements of a view of one row.
	record func(m *memory, rows []int) ([]compute.Op, []compute.View)
	want   func(row int) []approx
	counts []int // row counts to run; nil: edgeCounts
	// prefill, where the op knows prefill rows, records like record, with rows
	// from the given one on marked so.
	prefill func(m *memory, rows []int, from int) ([]compute.Op, []compute.View)
	// orders are further choices of rows; nil: all in reverse, and every third.
	orders [][]int
}

// edgeCounts are the row counts at which kernels change.
var edgeCounts = []int{0, 1, 2, 7, 8, 9, 33}

// ascending returns 0..n-1.
func ascending(n int) []int {
	x := make([]int, n)
	for i := range x {
		x[i] = i
	}
	return x
}

func (s *suite) row(c rowCase) {
	s.rep.Helper()
	tol := c.tol
	if tol == 0 {
		tol = s.opt.Tol
	}
	counts := c.counts
	if counts == nil {
		counts = edgeCounts
	}
	type choice struct {
		what string
		rows []int
		lay  memLayout
	}
	var choices []choice
	most := 0
	for i, n := range counts {
		n = min(n, c.rows)
		most = max(most, n)
		choices = append(choices, choice{fmt.Sprintf("%d rows", n), ascending(n), memLayout(i % int(memLayouts))})
	}
	all := ascending(most)
	choices = append(choices, choice{"all rows, spread in memory", all, memSpread}, choice{"all rows, packed", all, memPacked})
	if most > 0 {
		choices = append(choices, choice{"the last row alone", all[most-1:], memPacked})
	}
	orders := c.orders
	if orders == nil {
		reversed := slices.Clone(all)
		slices.Reverse(reversed)
		orders = [][]int{reversed, everyThird(all)}
	}
	for i, rows := range orders {
		choices = append(choices, choice{fmt.Sprintf("order %d of the rows", i+1), rows, memLayout(i % int(memLayouts))})
	}
	wants := make([][]approx, c.rows)
	seen := make([][]float32, c.rows)
	firstSeen := make([]string, c.rows)
	compare := func(what string, rows []int, got [][]float32, bits bool) bool {
		before := s.failures
		for i, row := range rows {
			if wants[row] == nil {
				wants[row] = c.want(row)
			}
			s.judge(c.name+", "+what, row, got[i], wants[row], tol)
			switch {
			case !bits:
			case seen[row] == nil:
				seen[row], firstSeen[row] = got[i], what
			case !same(seen[row], got[i]):
				s.fail(c.name, "row %d has other bits in %s than in %s", row, what, firstSeen[row])
			}
			if s.failures > before {
				return false
			}
		}
		return true
	}
	for _, ch := range choices {
		s.cases++
		got, err := s.run(ch.lay, len(ch.rows), func(m *memory) ([]compute.Op, []compute.View) { return c.record(m, ch.rows) })
		if err != nil {
			s.fail(c.name+", "+ch.what, "%v", err)
			return
		}
		if !compare(ch.what, ch.rows, got, true) {
			return
		}
	}
	if c.prefill == nil {
		return
	}
	for _, from := range []int{0, most / 2} {
		s.cases++
		what := fmt.Sprintf("prefill from row %d", from)
		got, err := s.run(memPacked, most, func(m *memory) ([]compute.Op, []compute.View) { return c.prefill(m, all, from) })
		if err != nil {
			s.fail(c.name+", "+what, "%v", err)
			return
		}
		if !s.opt.RelaxedPrefill {
			compare(what, all, got, true)
			continue
		}
		compare(what, all[:from], got[:from], true)
		compare(what, all[from:], got[from:], false)
		again, err := s.run(memSpread, most, func(m *memory) ([]compute.Op, []compute.View) { return c.prefill(m, all, from) })
		if err != nil || !slices.EqualFunc(got, again, same) {
			s.fail(c.name, "%s twice: not the same bits (%v)", what, err)
		}
	}
}

func everyThird(rows []int) []int {
	var x []int
	for i := 0; i < len(rows); i += 3 {
		x = append(x, rows[i])
	}
	return x
}

// run records and runs a program in fresh memory and returns the results of n
// rows, after making sure that nothing was written outside the views.
func (s *suite) run(lay memLayout, n int, record func(m *memory) ([]compute.Op, []compute.View)) ([][]float32, error) {
	m := &memory{b: s.b, layout: lay}
	defer m.close()
	ops, outs := record(m)
	if err := m.run(ops...); err != nil {
		return nil, err
	}
	return results(outs, n), nil
}

// results collects what each of n rows has in each view.
func results(outs []compute.View, n int) [][]float32 {
	got := make([][]float32, n)
	for r := range got {
		for _, v := range outs {
			if v.Rows == 1 && n > 1 { // one row of elements that belong to the rows in turn
				per := v.Cols / n
				got[r] = append(got[r], floats(v, 0)[r*per:(r+1)*per]...)
				continue
			}
			for i := r * v.Rows / n; i < (r+1)*v.Rows/n; i++ {
				got[r] = append(got[r], floats(v, i)...)
			}
		}
	}
	return got
}

// floats copies row i of a view.
func floats(v compute.View, i int) []float32 {
	if v.Cols == 0 {
		return nil
	}
	x := make([]float32, v.Cols)
	if v.Type != layout.I32 {
		layout.Widen(x, bytesOf(v, i), v.Type)
		return x
	}
	for c, n := range v.I32(i) {
		x[c] = float32(n)
	}
	return x
}
