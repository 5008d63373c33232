package sample

import (
	"math"
	"testing"
)

// chiSquareP returns the probability of a Pearson statistic at least this
// large if counts were drawn from probabilities p. Cells with an expectation
// below 5 are merged.
func chiSquareP(counts []int, p []float64) float64 {
	total := 0
	for _, n := range counts {
		total += n
	}
	stat, cells := 0.0, 0
	restN, restE := 0.0, 0.0
	for i, n := range counts {
		e := p[i] * float64(total)
		if e < 5 {
			restN, restE = restN+float64(n), restE+e
			continue
		}
		stat += (float64(n) - e) * (float64(n) - e) / e
		cells++
	}
	if restE > 0 {
		stat += (restN - restE) * (restN - restE) / restE
		cells++
	} else if restN > 0 {
		return 0 // impossible outcomes happened
	}
	return gammaQ(float64(cells-1)/2, stat/2)
}

// gammaQ is the upper regularised incomplete gamma function, by its series
// (small x) or continued fraction.
func gammaQ(a, x float64) float64 {
	if x <= 0 {
		return 1
	}
	lg, _ := math.Lgamma(a)
	front := math.Exp(a*math.Log(x) - x - lg)
	if x < a+1 {
		term, sum := 1/a, 1/a
		for n := 1.0; n < 1000; n++ {
			term *= x / (a + n)
			sum += term
		}
		return 1 - front*sum
	}
	b := x + 1 - a
	c, d := 1e300, 1/b
	h := d
	for n := 1.0; n < 1000; n++ {
		an := -n * (n - a)
		b += 2
		d = 1 / (an*d + b)
		c = b + an/c
		h *= d * c
	}
	return front * h
}

func TestGammaQ(t *testing.T) {
	// Known tail values of chi-square: Q(k/2, x/2).
	for _, c := range []struct{ k, x, want float64 }{{1, 3.841459, 0.05}, {10, 18.30704, 0.05}, {30, 50.89218, 0.01}, {2, 27.63102, 1e-6}, {10, 3.940299, 0.95}} {
		if got := gammaQ(c.k/2, c.x/2); math.Abs(got-c.want) > 1e-4*c.want {
			t.Errorf("Q(%v, %v) = %v, want %v", c.k/2, c.x/2, got, c.want)
		}
	}
}

// acceptRule is one round: it returns the tokens that the round commits.
type acceptRule func(draft []int32, q, p []Dist, rng Source, scratch *Scratch) (int, int32)

// roundsP plays many rounds of a block of two drafts over a vocabulary of 12
// and compares the first three committed tokens, drawn on from p where a
// round ends earlier, with the exact joint distribution, and the first one
// with its own (few cells find a small bias). It returns the smaller p-value,
// doubled because there were two tests. The target's rows depend on the tokens before them, as a model's do. lookup drafts with
// certainty instead of by q.
func roundsP(t *testing.T, rule acceptRule, lookup bool, params Params) float64 {
	t.Helper()
	const vocab, rounds = 12, 100000
	seed := NewRNG(11)
	logits := func(n int) [][]float32 {
		rows := make([][]float32, n)
		for i := range rows {
			rows[i] = make([]float32, vocab)
			for j := range rows[i] {
				rows[i][j] = 3 * seed.Uniform()
			}
		}
		return rows
	}
	targetRows, draftRows := logits(1+vocab), logits(1+vocab) // after nothing, after token i
	s := NewSampler(params)
	target, draftDist := make([]Dist, 1+vocab), make([]Dist, 1+vocab)
	for i := range targetRows {
		for d, row := range map[*Dist][]float32{&target[i]: targetRows[i], &draftDist[i]: draftRows[i]} {
			if err := s.Dist(d, row, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	joint := make([]float64, vocab*vocab*vocab)
	for a, pa := range target[0].All {
		for b, pb := range target[1+a].All {
			for c, pc := range target[1+b].All {
				joint[(int(a)*vocab+int(b))*vocab+int(c)] = pa * pb * pc
			}
		}
	}
	rng, scratch := NewRNG(20), new(Scratch)
	counts, first := make([]int, len(joint)), make([]int, vocab)
	for range rounds {
		draft := make([]int32, 2)
		q, p := make([]Dist, 2), make([]Dist, 3)
		q[0], p[0] = draftDist[0], target[0]
		if lookup {
			draft[0], draft[1] = draftDist[0].Sample(0.3), draftDist[0].Sample(0.6)
		} else {
			draft[0] = q[0].Sample(rng.Uniform())
			q[1] = draftDist[1+draft[0]]
			draft[1] = q[1].Sample(rng.Uniform())
		}
		p[1], p[2] = target[1+draft[0]], target[1+draft[1]]
		qs := q
		if lookup {
			qs = nil
		}
		n, next := rule(draft, qs, p, rng, scratch)
		out := append(append([]int32{}, draft[:n]...), next)
		for len(out) < 3 {
			out = append(out, target[1+out[len(out)-1]].Sample(rng.Uniform()))
		}
		counts[(int(out[0])*vocab+int(out[1]))*vocab+int(out[2])]++
		first[out[0]]++
	}
	marginal := make([]float64, vocab)
	for id, p := range target[0].All {
		marginal[id] = p
	}
	return 2 * min(chiSquareP(counts, joint), chiSquareP(first, marginal))
}

func TestAcceptReproducesTheTargetDistribution(t *testing.T) {
	for name, params := range map[string]Params{
		"plain":     {Temperature: 1},
		"truncated": {Temperature: 0.7, TopP: 0.9, TopK: 8, MinP: 0.02},
	} {
		for _, lookup := range []bool{false, true} {
			if p := roundsP(t, Accept, lookup, params); p < 1e-4 {
				t.Errorf("%s, lookup %v: p-value %g", name, lookup, p)
			} else {
				t.Logf("%s, lookup %v: p-value %.3f", name, lookup, p)
			}
		}
	}
}

// Wrong rules that look plausible must be found by the same test.
func TestBiasedAcceptanceIsDetected(t *testing.T) {
	rules := map[string]acceptRule{
		"after a rejection draw from p instead of the residual": func(draft []int32, q, p []Dist, rng Source, s *Scratch) (int, int32) {
			u := make([]float32, len(draft))
			rng.Uniforms(u)
			n := accepted(draft, q, p, u)
			return n, p[n].Sample(rng.Uniform())
		},
		"accept 15 % too often": func(draft []int32, q, p []Dist, rng Source, s *Scratch) (int, int32) {
			u := make([]float32, len(draft))
			rng.Uniforms(u)
			for i := range u {
				u[i] *= 0.85
			}
			n := accepted(draft, q, p, u)
			if n == len(draft) {
				return n, p[n].Sample(rng.Uniform())
			}
			r := &s.r
			if q == nil {
				s.q.SetPoint(draft[n])
				r.setResidual(&p[n], &s.q)
			} else {
				r.setResidual(&p[n], &q[n])
			}
			return n, r.Sample(rng.Uniform())
		},
		"accept whenever the target's own sample agrees, else keep the draft's distribution": func(draft []int32, q, p []Dist, rng Source, s *Scratch) (int, int32) {
			for i, d := range draft {
				if p[i].Prob(d) < 0.02 {
					return i, p[i].Sample(rng.Uniform())
				}
			}
			return len(draft), p[len(draft)].Sample(rng.Uniform())
		},
	}
	for name, rule := range rules {
		for _, lookup := range []bool{false, true} {
			if p := roundsP(t, rule, lookup, Params{Temperature: 1}); p > 1e-6 {
				t.Errorf("%s (lookup %v) goes undetected: p-value %g", name, lookup, p)
			}
		}
	}
}

func TestNextDrawsFromTheDistribution(t *testing.T) {
	row := []float32{0, 1, 2, 0.5, -1, 1.5}
	params := Params{Temperature: 0.8, TopP: 0.95}
	s, rng := NewSampler(params), NewRNG(4)
	counts, want := make([]int, len(row)), make([]float64, len(row))
	for id, p := range mustDist(t, params, row).All {
		want[id] = p
	}
	for range 50000 {
		id, err := s.Next(row, rng)
		if err != nil {
			t.Fatal(err)
		}
		counts[id]++
	}
	if p := chiSquareP(counts, want); p < 1e-4 {
		t.Errorf("p-value %g", p)
	}
}

func TestAcceptEdges(t *testing.T) {
	var scratch Scratch
	point := func(id int32) (d Dist) { d.SetPoint(id); return }
	// Nothing drafted: the next token comes from the only target row.
	if n, next := Accept(nil, nil, []Dist{point(7)}, NewRNG(1), &scratch); n != 0 || next != 7 {
		t.Errorf("no drafts: %d, %d", n, next)
	}
	// Certain agreement and certain disagreement.
	if n, next := Accept([]int32{7}, nil, []Dist{point(7), point(8)}, NewRNG(1), &scratch); n != 1 || next != 8 {
		t.Errorf("agreement: %d, %d", n, next)
	}
	if n, next := Accept([]int32{6}, []Dist{point(6)}, []Dist{point(7), point(8)}, NewRNG(1), &scratch); n != 0 || next != 7 {
		t.Errorf("disagreement: %d, %d", n, next)
	}
	// Equal distributions always accept; a residual that rounding emptied
	// falls back to p.
	var p, r Dist
	setDense(t, &p, []float32{0.25, 0.75})
	r.setResidual(&p, &p)
	if r.Prob(0) != 0.25 || r.Prob(1) != 0.75 {
		t.Errorf("residual of equals is %v", r)
	}
	for _, c := range []struct {
		draft, argmax []int32
		want          int
	}{{nil, []int32{1}, 0}, {[]int32{1, 2}, []int32{1, 2, 3}, 2}, {[]int32{1, 9}, []int32{1, 2, 3}, 1}, {[]int32{9, 2}, []int32{1, 2, 3}, 0}} {
		if got := AcceptGreedy(c.draft, c.argmax); got != c.want {
			t.Errorf("AcceptGreedy(%v, %v) = %d, want %d", c.draft, c.argmax, got, c.want)
		}
	}
}
