package decode

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

// first is how many tokens' joint distribution is checked, and v the size of the
// vocabulary.
const (
	first = 3
	v     = testmodel.Vocab
)

// joint is the exact joint distribution of the first tokens after a prompt, from
// the target's own logits.
func joint(t *testing.T, dir string, prompt []int32, p sample.Params) []float64 {
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
	out := make([]float64, v*v*v)
	var walk func(text []int32, at int, prob float64)
	walk = func(text []int32, at int, prob float64) {
		done := len(text) - len(prompt)
		if done == first {
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

// observed counts the first tokens of n generations.
func observed(t *testing.T, g *rig, j Job, n int, source func(seed uint64) sample.Source) (counts []int, rejected, accepted int) {
	t.Helper()
	counts = make([]int, v*v*v)
	for i := range n {
		got := 0
		j.Rand = source(uint64(i))
		j.Emit = func(ts []Token) bool { got += len(ts); return got >= first }
		j.Round = func(r Round) { rejected += r.RolledBack; accepted += r.Accepted }
		out := g.generate(t, j)
		at := 0
		for _, id := range out.Tokens[:first] {
			at = at*v + int(id)
		}
		counts[at]++
	}
	return counts, rejected, accepted
}

// chiSquare is the probability of a fit at least as bad as this one, if the
// expectation is right. Cells that are expected fewer than five times are
// counted together.
func chiSquare(counts []int, expect []float64) float64 {
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

func TestChiSquare(t *testing.T) {
	// Q for known arguments (tables of the chi-square distribution).
	for _, c := range []struct{ dof, x, p float64 }{{1, 3.841, 0.05}, {10, 18.307, 0.05}, {10, 3.940, 0.95}, {100, 149.449, 0.001}} {
		if got := upperGamma(c.dof/2, c.x/2); math.Abs(got-c.p) > 1e-4 {
			t.Errorf("%v degrees, %v: %v, wants %v", c.dof, c.x, got, c.p)
		}
	}
}

// eager accepts too often: a planted error in the acceptance rule.
type eager struct{ sample.Source }

func (e eager) Uniforms(u []float32) {
	e.Source.Uniforms(u)
	for i := range u {
		u[i] *= 0.8
	}
}

// Sampled output with speculation has the target's distribution, however the
// tokens are proposed and whatever the options; the same test finds a rule that
// accepts too often.
func TestSampledOutputIsExact(t *testing.T) {
	draws := 20000
	if testmodel.Race {
		draws = 300
	}
	target := testmodel.Target(t, 1)
	// Every token follows "1 2" somewhere, so that there is always a copy to try.
	var repeats []int32
	for id := range int32(v) {
		repeats = append(repeats, 1, 2, id, (id*7+3)%v, (id*5+1)%v)
	}
	repeats = append(repeats, 1, 2)
	short := []int32{3, 7}
	flags := sample.Params{Temperature: 0.8, TopP: 0.95, TopK: 9, PresencePenalty: 0.5, FrequencyPenalty: 0.3, RepetitionPenalty: 1.1}
	for _, c := range []struct {
		name   string
		dir    string
		mode   Mode
		prompt []int32
		params sample.Params
	}{
		{"lookup", "", Lookup, repeats, flags},
		{"dspark", testmodel.DSpark(t, 2), Draft, short, flags},
		{"dflash 1", testmodel.DFlash(t, 3, false), Draft, short, sample.Params{Temperature: 1.1, TopK: 8, PresencePenalty: 0.4}},
		{"dflash 2", testmodel.DFlash(t, 4, true), Draft, short, sample.Params{Temperature: 0.9, TopP: 0.9}},
		{"draft model", testmodel.Target(t, 5), Draft, short, flags},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := open(t, compute.NewReference(), target, c.dir, 0, nil)
			j := Job{Prompt: c.prompt, MaxTokens: 8, Logprobs: -1, Mode: c.mode, Cap: 2, Params: c.params}
			want := joint(t, target, c.prompt, c.params)
			fresh := func(seed uint64) sample.Source { return sample.NewRNG(seed) }
			counts, rejected, accepted := observed(t, g, j, draws, fresh)
			p := chiSquare(counts, want)
			t.Logf("p = %.3g over %d draws, %d drafts accepted, %d rejected", p, draws, accepted, rejected)
			if !(p > 1e-4) {
				t.Errorf("p = %g: the distribution is not the target's", p)
			}
			if least := draws / 20; accepted < least || rejected < least {
				t.Errorf("%d drafts accepted, %d rejected: too few to mean anything", accepted, rejected)
			}
		})
	}
	t.Run("planted error", func(t *testing.T) {
		t.Parallel()
		g := open(t, compute.NewReference(), target, testmodel.DSpark(t, 2), 0, nil)
		j := Job{Prompt: short, MaxTokens: 8, Logprobs: -1, Mode: Draft, Cap: 2, Params: flags}
		counts, _, _ := observed(t, g, j, max(draws/4, 300), func(seed uint64) sample.Source { return eager{sample.NewRNG(seed)} })
		p := chiSquare(counts, joint(t, target, short, flags))
		t.Logf("p = %.3g", p)
		if !testmodel.Race && !(p < 1e-6) {
			t.Errorf("p = %g: a rule that accepts too often is not noticed", p)
		}
	})
}
