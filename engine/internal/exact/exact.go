package exact

import (
	"math"
	"testing"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/internal/testmodel"
	"sparkbar/engine/layout"
	"sparkbar/engine/sample"
)

// Joint is the exact joint distribution of the first n tokens after a prompt, from
// the own logits of the model in dir on the reference backend: entry
// (a*v + b)*v + c for the tokens a, b, c of a vocabulary of v = testmodel.Vocab.
func Joint(t testing.TB, dir string, prompt []int32, p sample.Params, n int) []float64 {
	t.Helper()
	b := compute.NewReference()
	defer b.Close()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	m, err := arch.Load(ck, b)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c, err := cache.New(b, m.Caches, cache.Options{Type: layout.F32, Positions: 256, Sequences: 2})
	if err != nil {
		t.Fatal(err)
	}
	params, s := compute.NewParams(b), compute.NewScratch(b)
	defer func() { params.Close(); s.Close(); c.Close() }()
	sampler := sample.NewSampler(p)
	const v = testmodel.Vocab
	size := 1
	for range n {
		size *= v
	}
	out := make([]float64, size)
	var walk func(text []int32, at int, prob float64)
	walk = func(text []int32, at int, prob float64) {
		done := len(text) - len(prompt)
		if done == n {
			out[at] = prob
			return
		}
		q, err := c.NewSeq()
		if err != nil {
			t.Fatal(err)
		}
		s.Reset()
		params.Next()
		var prog compute.Program
		prog.Reset(compute.LabelTarget)
		st, err := c.Plan(&prog, params, []cache.Part{{Seq: q, IDs: text}})
		if err != nil {
			t.Fatal(err)
		}
		f := &arch.Forward{P: &prog, S: s, Step: st}
		m.Forward(f)
		if err := compute.Run(b, &prog, nil); err != nil {
			t.Fatal(err)
		}
		row := append([]float32(nil), f.Logits.F32(len(text)-1)...)
		q.Close()
		z := sample.NewPenalizer(p, prompt)
		for _, id := range text[len(prompt):] {
			z.Push(id)
		}
		z.Apply(row)
		var d sample.Dist
		if err := sampler.Dist(&d, row, nil); err != nil {
			t.Fatal(err)
		}
		next := make([]float64, v)
		for id, pr := range d.All {
			next[id] = pr
		}
		for id, pr := range next {
			if pr > 0 {
				walk(append(append([]int32(nil), text...), int32(id)), at*v+id, prob*pr)
			}
		}
	}
	walk(prompt, 0, 1)
	return out
}

// ChiSquare is the probability of a fit at least as bad as this one, if the
// expectation is right. Cells that are expected fewer than five times are
// counted together.
func ChiSquare(counts []int, expect []float64) float64 {
	n := 0
	for _, c := range counts {
		n += c
	}
	var x, restWant float64
	cells, rest := 0, 0
	cell := func(got int, want float64) {
		d := float64(got) - want
		x += d * d / want
		cells++
	}
	for i, p := range expect {
		want := p * float64(n)
		if want < 5 {
			restWant, rest = restWant+want, rest+counts[i]
			continue
		}
		cell(counts[i], want)
	}
	if restWant >= 5 {
		cell(rest, restWant)
	} else if restWant == 0 && rest > 0 {
		return 0 // what cannot happen did
	}
	return upperGamma(float64(cells-1)/2, x/2)
}

// upperGamma is the regularised upper incomplete gamma function Q(a, x), by its
// series or its continued fraction.
func upperGamma(a, x float64) float64 {
	lg, _ := math.Lgamma(a)
	scale := math.Exp(a*math.Log(x) - x - lg)
	if x < a+1 {
		term := 1 / a
		sum := term
		for k := 1; k < 10000 && term > sum*1e-16; k++ {
			term *= x / (a + float64(k))
			sum += term
		}
		return 1 - scale*sum
	}
	const tiny = 1e-300
	b := x + 1 - a
	c, d := 1/tiny, 1/b
	h := d
	for k := 1; k < 10000; k++ {
		n := float64(k)
		an := -n * (n - a)
		b += 2
		if d = an*d + b; math.Abs(d) < tiny {
			d = tiny
		}
		if c = b + an/c; math.Abs(c) < tiny {
			c = tiny
		}
		d = 1 / d
		h *= d * c
		if math.Abs(d*c-1) < 1e-15 {
			break
		}
	}
	return scale * h
}
