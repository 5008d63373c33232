package decode

import (
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/internal/exact"
	"sparkbar/engine/internal/testmodel"
	"sparkbar/engine/sample"
)

// first is how many tokens' joint distribution is checked, and v the size of the
// vocabulary.
const (
	first = 3
	v     = testmodel.Vocab
)

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
			want := exact.Joint(t, target, c.prompt, c.params, first)
			fresh := func(seed uint64) sample.Source { return sample.NewRNG(seed) }
			counts, rejected, accepted := observed(t, g, j, draws, fresh)
			p := exact.ChiSquare(counts, want)
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
		p := exact.ChiSquare(counts, exact.Joint(t, target, short, flags, first))
		t.Logf("p = %.3g", p)
		if !testmodel.Race && !(p < 1e-6) {
			t.Errorf("p = %g: a rule that accepts too often is not noticed", p)
		}
	})
}
