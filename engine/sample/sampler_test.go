package sample

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// naive is the sampling rule written plainly, in float64 with full sorts.
func naive(row []float32, p Params, xtc bool) map[int32]float64 {
	type tok struct {
		id int32
		z  float64
	}
	var left []tok
	m := float64(slices.Max(row))
	for id, x := range row {
		if !math.IsInf(float64(x), -1) {
			left = append(left, tok{int32(id), float64(x - float32(m))})
		}
	}
	slices.SortStableFunc(left, func(a, b tok) int { return -cmpFloat(a.z, b.z) })
	if p.TopP > 0 && p.TopP < 1 {
		total, before := 0.0, 0.0
		for _, t := range left {
			total += math.Exp(t.z)
		}
		n := 0
		for n < len(left) && (before < p.TopP*total || left[n].z == left[n-1].z) {
			before += math.Exp(left[n].z)
			n++
		}
		left = left[:n]
	}
	if p.MinP > 0 {
		n := 0
		for n < len(left) && (n < p.MinTokensToKeep || left[n].z >= float64(float32(math.Log(p.MinP)))) {
			n++
		}
		left = left[:n]
	}
	if xtc {
		total, edge := 0.0, math.Inf(1)
		for _, t := range left {
			total += math.Exp(t.z)
		}
		for _, t := range left {
			if float32(math.Exp(t.z)) > float32(p.XTCThreshold*total) {
				edge = t.z
			}
		}
		left = slices.DeleteFunc(left, func(t tok) bool { return t.z > edge && !slices.Contains(p.XTCSpecialTokens, t.id) })
	}
	if p.TopK > 0 && p.TopK < len(left) {
		left = left[:p.TopK]
	}
	out, total, top := map[int32]float64{}, 0.0, left[0].z
	for _, t := range left {
		out[t.id] = math.Exp((t.z - top) / p.Temperature)
		total += out[t.id]
	}
	for id := range out {
		out[id] /= total
	}
	return out
}

func TestDistAgainstFullSort(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(v ...float64) float64 { return v[r.IntN(len(v))] }
	for i := range 3000 {
		row := make([]float32, 1+r.IntN(300))
		spread := pick(0.01, 1, 5, 40)
		for j := range row {
			row[j] = float32(r.NormFloat64() * spread)
			if i%3 == 0 {
				row[j] = float32(math.Round(float64(row[j]))) // ties
			}
			if i%5 == 0 && j > 0 && r.IntN(4) == 0 {
				row[j] = float32(math.Inf(-1))
			}
		}
		p := Params{Temperature: pick(0.2, 1, 1.7), TopP: pick(0, 0.3, 0.9, 0.9999, 1), MinP: pick(0, 0, 0.05, 1), MinTokensToKeep: r.IntN(4),
			TopK: r.IntN(60) - 20, XTCProbability: pick(0, 0, 1), XTCThreshold: pick(0, 0.05, 0.5), XTCSpecialTokens: []int32{0, 3}}
		p.TopK = max(p.TopK, 0)
		name := fmt.Sprintf("row %d (V %d) %+v", i, len(row), p)
		want := naive(row, p, p.XTCProbability == 1)
		d := mustDist(t, p, row)
		kept := 0
		for id, got := range d.All {
			if _, ok := want[id]; ok {
				kept++
			}
			if !near(got, want[id], 1e-5) {
				t.Errorf("%s: probability of %d is %v, want %v", name, id, got, want[id])
			}
		}
		if kept != len(want) {
			t.Errorf("%s: %d of %d tokens kept", name, kept, len(want))
		}
		if t.Failed() {
			t.FailNow()
		}
	}
}

func TestExpInto(t *testing.T) {
	exp32 := func(x float32) float32 {
		w := []float32{0}
		if sum := expInto(w, []float32{x}, 1, 0); sum != float64(w[0]) {
			t.Errorf("sum %v of one weight %v", sum, w[0])
		}
		return w[0]
	}
	worst := 0.0
	for x := float32(0); x > -104; x -= 0.00037 {
		want := math.Exp(float64(x))
		if err := math.Abs(float64(exp32(x))-want) / want; x > -87 && err > worst {
			worst = err
		}
	}
	if worst > 6.1e-8 { // half a unit in the last place, and a little
		t.Errorf("relative error %g", worst)
	}
	if exp32(0) != 1 || exp32(float32(math.Inf(-1))) != 0 || exp32(-1000) != 0 {
		t.Error("wrong at the ends")
	}
}

func TestGreedy(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		row  []float32
		want int32
	}{
		{[]float32{1, 3, 3, 2}, 1}, {[]float32{-inf, -inf}, 0}, {[]float32{nan, 2, nan, 2}, 1}, {nil, 0}, {[]float32{-5}, 0}, {[]float32{1, inf}, 1},
	} {
		if got := Greedy(c.row); got != c.want {
			t.Errorf("Greedy(%v) = %d, want %d", c.row, got, c.want)
		}
	}
	s := NewSampler(Params{TopP: 0.5, XTCProbability: 1})
	rng := NewRNG(3)
	if id, err := s.Next([]float32{0, 4, 4}, rng); id != 1 || err != nil || *rng != *NewRNG(3) {
		t.Errorf("greedy Next gives %d (%v), or used the stream", id, err)
	}
	// A temperature whose inverse overflows float32 is greedy too.
	if id, err := NewSampler(Params{Temperature: 1e-300}).Next([]float32{0, 4, 4}, rng); id != 1 || err != nil {
		t.Errorf("tiny temperature gives %d (%v)", id, err)
	}
}

func TestUnusableRows(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, row := range [][]float32{nil, {-inf}, {nan}, {1, nan}, {nan, 1}, {1, inf}} {
		for _, p := range []Params{{}, {Temperature: 1}, {Temperature: 1, TopP: 0.5, TopK: 1}} {
			if _, err := NewSampler(p).Next(row, NewRNG(1)); !errors.Is(err, ErrLogits) {
				t.Errorf("row %v: error %v, want ErrLogits", row, err)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	neg := -1
	for field, p := range map[string]Params{
		"temperature":             {Temperature: -0.1},
		"top_p":                   {TopP: math.NaN()},
		"min_p":                   {MinP: 1.5},
		"min_tokens_to_keep":      {MinTokensToKeep: -1},
		"top_k":                   {Temperature: 1, TopK: 64},
		"xtc_probability":         {XTCProbability: 2},
		"xtc_threshold":           {XTCThreshold: 0.51},
		"repetition_penalty":      {RepetitionPenalty: -1},
		"presence_penalty":        {PresencePenalty: math.Inf(1)},
		"frequency_penalty":       {FrequencyPenalty: math.NaN()},
		"repetition_context_size": {RepetitionContextSize: &neg},
		"presence_context_size":   {PresenceContextSize: &neg},
		"frequency_context_size":  {FrequencyContextSize: &neg},
		"logit_bias":              {LogitBias: map[int32]float64{64: 1}},
	} {
		var e *ParamError
		if err := p.Validate(64); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: Validate gives %v", field, err)
		}
	}
	for _, bias := range []map[int32]float64{{-1: 0}, {3: math.NaN()}, {3: 1e300}} {
		if (&Params{LogitBias: bias}).Validate(64) == nil {
			t.Errorf("logit_bias %v is accepted", bias)
		}
	}
	for _, p := range []Params{{}, {Temperature: 2, TopP: 1, TopK: 63, MinP: 1, XTCThreshold: 0.5}, {TopK: 64}} {
		if err := p.Validate(64); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

func TestSampleNeverReturnsWeightlessTokens(t *testing.T) {
	var d Dist
	if err := d.SetWeights([]int32{9, 2, 5, 7}, []float32{0, 0, 3, 1}); err != nil {
		t.Fatal(err)
	}
	for u, want := range map[float32]int32{0: 5, 0.5: 5, 0.75: 7, math.Nextafter32(1, 0): 7} {
		if got := d.Sample(u); got != want {
			t.Errorf("Sample(%v) = %d, want %d", u, got, want)
		}
	}
}

func TestSetWeightsAndMapIDs(t *testing.T) {
	var d Dist
	for _, c := range []struct {
		ids []int32
		w   []float32
	}{
		{nil, nil}, {[]int32{1}, nil}, {[]int32{1, 1}, []float32{1, 2}}, {[]int32{1}, []float32{0}}, {[]int32{1}, []float32{-1}}, {[]int32{1}, []float32{float32(math.NaN())}},
	} {
		if d.SetWeights(c.ids, c.w) == nil {
			t.Errorf("SetWeights(%v, %v) is accepted", c.ids, c.w)
		}
	}
	// Draft ids 0..3 stand for target ids that are not even in order.
	if err := NewSampler(Params{Temperature: 1}).Dist(&d, []float32{0, 1, 2, 3}, nil); err != nil {
		t.Fatal(err)
	}
	p1 := d.Prob(1)
	if err := d.MapIDs([]int32{40, 10, 30, 20}); err != nil {
		t.Fatal(err)
	}
	if d.Prob(10) != p1 || d.Prob(1) != 0 || d.id(0) != 10 || d.id(3) != 40 {
		t.Errorf("mapped to %v", d.ids)
	}
	if d.MapIDs([]int32{1, 2}) == nil {
		t.Error("an id outside the map is accepted")
	}
}

func TestLogprobs(t *testing.T) {
	row := []float32{1, 4, 2, 4, float32(math.Inf(-1)), 3}
	lse := math.Log(math.Exp(1) + 2*math.Exp(4) + math.Exp(2) + math.Exp(3))
	chosen, top := Logprobs(row, 2, 4, nil)
	if !near(float64(chosen), 2-lse, 1e-6) {
		t.Errorf("chosen %v, want %v", chosen, 2-lse)
	}
	for i, id := range []int32{1, 3, 5, 2} {
		if top[i].ID != id || !near(float64(top[i].Logprob), float64(row[id])-lse, 1e-6) {
			t.Errorf("top[%d] = %v, want token %d", i, top[i], id)
		}
	}
	if _, top = Logprobs(row, 2, 20, top[:0]); len(top) != 5 || top[4].ID != 0 {
		t.Errorf("asked for more than there are: %v", top)
	}
	if v, top := Logprobs(row, 99, 0, nil); !math.IsInf(float64(v), -1) || top != nil {
		t.Errorf("token outside the row: %v %v", v, top)
	}
}

func TestRandomSeed(t *testing.T) {
	if a, b := RandomSeed(), RandomSeed(); a == b {
		t.Error("RandomSeed repeats")
	}
}

func TestPenaltiesIgnoreThePromptByDefault(t *testing.T) {
	z := NewPenalizer(Params{PresencePenalty: 1, RepetitionPenalty: 2}, []int32{0, 1})
	z.Push(2)
	row := []float32{4, 4, 4}
	z.Apply(row)
	if !slices.Equal(row, []float32{4, 4, 1}) {
		t.Errorf("row %v, want only the completion token penalised", row)
	}
	z.Apply(row[:2]) // a token outside the row is ignored
}

const bigVocab = 151936

func bigRow() []float32 {
	r := rand.New(rand.NewPCG(5, 6))
	row := make([]float32, bigVocab)
	for i := range row {
		row[i] = float32(r.NormFloat64() * 2.5)
	}
	for range 50 {
		row[r.IntN(len(row))] += 12
	}
	return row
}

var benchParams = map[string]Params{
	"plain":           {Temperature: 0.8},
	"top_p":           {Temperature: 0.8, TopP: 0.95},
	"top_k":           {Temperature: 0.8, TopK: 40},
	"top_p+top_k":     {Temperature: 0.6, TopP: 0.95, TopK: 20},
	"min_p":           {Temperature: 1, MinP: 0.05},
	"top_p flat":      {Temperature: 1, TopP: 0.9999},
	"everything":      {Temperature: 1, TopP: 0.99, MinP: 0.001, MinTokensToKeep: 2, XTCProbability: 0.5, XTCThreshold: 0.1, TopK: 100},
	"greedy (argmax)": {},
}

func TestNoAllocationsPerToken(t *testing.T) {
	row := bigRow()
	for name, p := range benchParams {
		s, rng := NewSampler(p), NewRNG(1)
		p.RepetitionPenalty, p.PresencePenalty, p.FrequencyPenalty = 1.1, 0.1, 0.1
		window := 64
		p.FrequencyContextSize = &window
		z := NewPenalizer(p, nil)
		for i := range 2000 { // all tokens seen once: the maps have their final size
			z.Push(int32(i % 97))
		}
		top := make([]TokenLogprob, 0, 20)
		work := slices.Clone(row)
		i := 0
		if n := testing.AllocsPerRun(20, func() {
			copy(work, row)
			z.Apply(work)
			if _, err := s.Next(work, rng); err != nil {
				t.Fatal(err)
			}
			_, top = Logprobs(work, 3, 20, top[:0])
			z.Push(int32(i % 97))
			i++
		}); n > 0.5 { // the token history itself grows now and then
			t.Errorf("%s: %v allocations per token", name, n)
		}
	}
	// A speculative round.
	s, rng := NewSampler(Params{Temperature: 0.9, TopP: 0.95}), NewRNG(1)
	draft, q, p := []int32{4, 5, 6}, make([]Dist, 3), make([]Dist, 4)
	var scratch Scratch
	if n := testing.AllocsPerRun(5, func() {
		for j := range p {
			if err := s.Dist(&p[j], row, rng); err != nil {
				t.Fatal(err)
			}
		}
		for j := range q {
			if err := s.Dist(&q[j], row, rng); err != nil {
				t.Fatal(err)
			}
			draft[j] = q[j].Sample(rng.Uniform())
		}
		Accept(draft, q, p, rng, &scratch)
		Accept(draft, nil, p, rng, &scratch)
	}); n > 0 {
		t.Errorf("%v allocations per round", n)
	}
}

func BenchmarkNext(b *testing.B) {
	row := bigRow()
	for name, p := range benchParams {
		b.Run(name, func(b *testing.B) {
			s, rng := NewSampler(p), NewRNG(1)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Next(row, rng); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLogprobs(b *testing.B) {
	row, top := bigRow(), make([]TokenLogprob, 0, 20)
	b.ReportAllocs()
	for b.Loop() {
		_, top = Logprobs(row, 3, 20, top[:0])
	}
}
