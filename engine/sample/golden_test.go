package sample

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// loadJSON reads a file of testdata.
func loadJSON(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// loadTensors reads the float32 tensors of a safetensors file.
func loadTensors(t *testing.T, name string) map[string][]float32 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(b)
	var head map[string]struct {
		Dtype   string `json:"dtype"`
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(b[8:8+n], &head); err != nil {
		t.Fatal(err)
	}
	data := b[8+n:]
	out := map[string][]float32{}
	for k, h := range head {
		if h.Dtype != "F32" {
			continue
		}
		raw := data[h.Offsets[0]:h.Offsets[1]]
		v := make([]float32, len(raw)/4)
		for i := range v {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		out[k] = v
	}
	return out
}

// samplingFile is sampling.json without its cache records (kv_quant,
// rotating_cache), which are not about sampling.
type samplingFile struct {
	Vocab int
	Cases []struct {
		Name, Kind, Input, Output string
		Params                    struct {
			TopP             float64 `json:"top_p"`
			MinP             float64 `json:"min_p"`
			MinTokensToKeep  int     `json:"min_tokens_to_keep"`
			TopK             int     `json:"top_k"`
			XTCProbability   float64 `json:"xtc_probability"`
			XTCThreshold     float64 `json:"xtc_threshold"`
			XTCSpecialTokens []int32 `json:"xtc_special_tokens"`
			Temperature      float64
			Order            []string

			Penalty     float64
			ContextSize int `json:"context_size"`
			Tokens      []int32
			LogitBias   map[int32]float64 `json:"logit_bias"`

			RepetitionPenalty     float64 `json:"repetition_penalty"`
			RepetitionContextSize int     `json:"repetition_context_size"`
			PresencePenalty       float64 `json:"presence_penalty"`
			PresenceContextSize   int     `json:"presence_context_size"`
			FrequencyPenalty      float64 `json:"frequency_penalty"`
			FrequencyContextSize  int     `json:"frequency_context_size"`
		}
	}
	Errors []struct {
		Call  string
		Args  []any
		Error string
	}
	PRNG []struct {
		Seed            uint64
		Key             [2]uint32
		Split2          [][2]uint32
		Split3          [][2]uint32
		Split5          [][2]uint32
		Uniform1        []float32
		Uniform0        float32
		Uniform5        []float32
		Gumbel5         []float32
		ImplicitUniform []float32 `json:"implicit_uniform"`
	}
	Draws []struct {
		Seed             uint64
		Logits           string
		Temperature      float64
		TopP             float64 `json:"top_p"`
		MinP             float64 `json:"min_p"`
		TopK             int     `json:"top_k"`
		XTCProbability   float64 `json:"xtc_probability"`
		XTCThreshold     float64 `json:"xtc_threshold"`
		XTCSpecialTokens []int32 `json:"xtc_special_tokens"`
		Tokens           []json.RawMessage
	}
}

// tiesByIndex names the filter cases in which equal logits compete for the
// last places. Which of them the record keeps is unspecified; here the lowest
// ids win, and the expectation is moved there.
var tiesByIndex = map[string]string{
	"min_p.ties.keep3": "argmax and truncation ties: lowest index",
}

func TestFilterGoldens(t *testing.T) {
	var f samplingFile
	loadJSON(t, "sampling.json", &f)
	tensors := loadTensors(t, "sampling.safetensors")
	ran := 0
	for _, c := range f.Cases {
		in, want := tensors[c.Input], tensors[c.Output]
		if len(in) != f.Vocab || len(want) != f.Vocab {
			t.Fatalf("%s: tensors have %d and %d entries", c.Name, len(in), len(want))
		}
		p := Params{Temperature: 1, TopP: c.Params.TopP, MinP: c.Params.MinP, MinTokensToKeep: c.Params.MinTokensToKeep, TopK: c.Params.TopK,
			XTCProbability: c.Params.XTCProbability, XTCThreshold: c.Params.XTCThreshold, XTCSpecialTokens: c.Params.XTCSpecialTokens}
		switch c.Kind {
		case "log_softmax":
			for id, w := range want {
				got, _ := Logprobs(in, int32(id), 0, nil)
				if !near(float64(got), float64(w), 2e-6) {
					t.Errorf("%s: log-probability of %d is %v, want %v", c.Name, id, got, w)
				}
			}
		case "top_p", "min_p", "top_k", "xtc":
			checkKept(t, c.Name, p, in, want)
		case "chain":
			p.Temperature = c.Params.Temperature
			d := mustDist(t, p, in)
			for id, w := range want {
				if !near(d.Prob(int32(id)), float64(w), 1e-6) {
					t.Errorf("%s: probability of %d is %v, want %v", c.Name, id, d.Prob(int32(id)), w)
				}
			}
		case "repetition", "presence", "frequency", "logit_bias", "chain_logits":
			q := Params{LogitBias: c.Params.LogitBias, RepetitionPenalty: c.Params.RepetitionPenalty, PresencePenalty: c.Params.PresencePenalty, FrequencyPenalty: c.Params.FrequencyPenalty,
				RepetitionContextSize: &c.Params.RepetitionContextSize, PresenceContextSize: &c.Params.PresenceContextSize, FrequencyContextSize: &c.Params.FrequencyContextSize}
			switch c.Kind {
			case "repetition":
				q.RepetitionPenalty, q.RepetitionContextSize = c.Params.Penalty, &c.Params.ContextSize
			case "presence":
				q.PresencePenalty, q.PresenceContextSize = c.Params.Penalty, &c.Params.ContextSize
			case "frequency":
				q.FrequencyPenalty, q.FrequencyContextSize = c.Params.Penalty, &c.Params.ContextSize
			}
			// However the history is divided into prompt and completion, and
			// whatever was taken back, a window sees the same tokens.
			for _, split := range []int{0, len(c.Params.Tokens) / 2, len(c.Params.Tokens)} {
				z := NewPenalizer(q, c.Params.Tokens[:split])
				for _, tok := range c.Params.Tokens[split:] {
					z.Push(tok)
				}
				for _, tok := range []int32{5, 5, 61, 3} {
					z.Push(tok)
				}
				z.Truncate(len(c.Params.Tokens) - split)
				row := slices.Clone(in)
				z.Apply(row)
				for id, w := range want {
					if !near(float64(row[id]), float64(w), 1e-5) {
						t.Errorf("%s: logit %d is %v, want %v", c.Name, id, row[id], w)
					}
				}
			}
		default:
			t.Fatalf("%s: unknown kind %q", c.Name, c.Kind)
		}
		ran++
	}
	t.Logf("%d cases", ran)
}

func near(a, b, tol float64) bool { return math.Abs(a-b) <= tol*max(1, math.Abs(b)) }

func mustDist(t *testing.T, p Params, row []float32) *Dist {
	t.Helper()
	var d Dist
	if err := NewSampler(p).Dist(&d, row, NewRNG(1)); err != nil {
		t.Fatal(err)
	}
	return &d
}

// checkKept compares the surviving tokens of a filter, and their relative
// weights, with log-probabilities that are -Inf where a token was removed.
func checkKept(t *testing.T, name string, p Params, in, want []float32) {
	t.Helper()
	d := mustDist(t, p, in)
	if tiesByIndex[name] != "" {
		want = lowestOfEquals(in, want)
	}
	total := 0.0
	for _, w := range want {
		total += math.Exp(float64(w))
	}
	kept := 0
	for id, w := range want {
		if !math.IsInf(float64(w), -1) {
			kept++
		}
		if got := d.Prob(int32(id)); !near(got, math.Exp(float64(w))/total, 1e-6) || (got > 0) != !math.IsInf(float64(w), -1) {
			t.Errorf("%s: probability of %d is %v, want %v", name, id, got, math.Exp(float64(w))/total)
		}
	}
	if kept != d.Len() {
		t.Errorf("%s: %d tokens kept, want %d", name, d.Len(), kept)
	}
}

// lowestOfEquals moves the kept entries of want to the lowest ids that carry
// the same value.
func lowestOfEquals(in, want []float32) []float32 {
	count := map[float32]int{}
	for _, w := range want {
		count[w]++
	}
	out := make([]float32, len(in))
	for i, x := range in {
		out[i] = float32(math.Inf(-1))
		if count[x] > 0 {
			out[i] = x
			count[x]--
		}
	}
	return out
}

func TestErrorGoldens(t *testing.T) {
	var f samplingFile
	loadJSON(t, "sampling.json", &f)
	for _, e := range f.Errors {
		if e.Error == "" {
			t.Fatalf("%s: no error recorded", e.Call)
		}
		p := Params{Temperature: 1}
		var field string
		switch e.Call {
		case "apply_top_k":
			p.TopK, field = int(e.Args[0].(float64)), "top_k"
		case "apply_min_p":
			p.MinP, field = e.Args[0].(float64), "min_p"
		case "apply_xtc":
			p.XTCProbability, p.XTCThreshold, field = e.Args[0].(float64), e.Args[1].(float64), "xtc_threshold"
		case "make_repetition_penalty":
			p.RepetitionPenalty, field = e.Args[0].(float64), "repetition_penalty"
		default:
			t.Fatalf("unknown call %q", e.Call)
		}
		if err, ok := p.Validate(f.Vocab).(*ParamError); !ok || err.Field != field {
			t.Errorf("%s: Validate gives %v, want an error about %s", e.Call, err, field)
		}
	}
}

func TestRNGGoldens(t *testing.T) {
	var f samplingFile
	loadJSON(t, "sampling.json", &f)
	for _, c := range f.PRNG {
		r := NewRNG(c.Seed)
		if r.key != c.Key {
			t.Errorf("seed %d: key %v, want %v", c.Seed, r.key, c.Key)
		}
		if got := (&RNG{key: c.Key}).next(); got != c.Split2[1] {
			t.Errorf("seed %d: split uses %v, want %v", c.Seed, got, c.Split2[1])
		}
		for i, w := range c.ImplicitUniform {
			if got := r.Uniform(); got != w {
				t.Errorf("seed %d: uniform %d is %v, want %v", c.Seed, i, got, w)
			}
		}
		// The other records use the key itself, without the split.
		for _, w := range [][][2]uint32{c.Split3, c.Split5} {
			flat := bitsOf(c.Key, 2*len(w))
			for i, pair := range w {
				if flat[2*i] != pair[0] || flat[2*i+1] != pair[1] {
					t.Errorf("seed %d: split %d of %d is %v, want %v", c.Seed, i, len(w), flat[2*i:2*i+2], pair)
				}
			}
		}
		for _, w := range [][]float32{c.Uniform1, {c.Uniform0}, c.Uniform5} {
			for i, b := range bitsOf(c.Key, len(w)) {
				if uniform(b) != w[i] {
					t.Errorf("seed %d: uniform %d of %d is %v, want %v", c.Seed, i, len(w), uniform(b), w[i])
				}
			}
		}
		for i, b := range bitsOf(c.Key, len(c.Gumbel5)) {
			if got := gumbel(uniform(b)); !near(got, float64(c.Gumbel5[i]), 1e-5) {
				t.Errorf("seed %d: gumbel %d is %v, want %v", c.Seed, i, got, c.Gumbel5[i])
			}
		}
		// One call of Uniforms steps the stream once and lays bits out alike.
		got := make([]float32, 5)
		r = NewRNG(c.Seed)
		r.Uniforms(got)
		for i, b := range bitsOf(c.Split2[1], 5) {
			if got[i] != uniform(b) {
				t.Errorf("seed %d: Uniforms[%d] is %v, want %v", c.Seed, i, got[i], uniform(b))
			}
		}
		if r.key != c.Split2[0] {
			t.Errorf("seed %d: Uniforms leaves key %v, want %v", c.Seed, r.key, c.Split2[0])
		}
	}
}

// bitsOf is the documented layout of n random words of a key, written apart
// from Uniforms.
func bitsOf(key [2]uint32, n int) []uint32 {
	out := make([]uint32, n)
	half, odd := n/2, n%2
	for i := range half {
		out[i], out[i+half+odd] = threefry(key, uint32(i), uint32(i+half+odd))
	}
	if odd == 1 {
		out[half], _ = threefry(key, uint32(half), 0)
	}
	return out
}

func gumbel(u float32) float64 {
	return -math.Log(-math.Log(float64(u)))
}

func TestDrawGoldens(t *testing.T) {
	var f samplingFile
	loadJSON(t, "sampling.json", &f)
	tensors := loadTensors(t, "sampling.safetensors")
	draws := 0
	for _, c := range f.Draws {
		name := fmt.Sprintf("seed %d %s T=%v top_k=%d", c.Seed, c.Logits, c.Temperature, c.TopK)
		row, single := tensors["logprobs."+c.Logits]
		if !single {
			// Two rows in one call: MLX then uses Gumbel-max. The server never
			// draws that way (every request has its own sampler); the record
			// still checks the bit layout of a large Uniforms call.
			if c.Logits != "rows: base, flat (batch of 2 in one call)" {
				t.Fatalf("unknown logits %q", c.Logits)
			}
			rows := slices.Concat(tensors["logprobs.base"], tensors["logprobs.flat"])
			rng, u := NewRNG(c.Seed), make([]float32, len(rows))
			for _, raw := range c.Tokens {
				var want [2]int32
				if err := json.Unmarshal(raw, &want); err != nil {
					t.Fatal(err)
				}
				rng.Uniforms(u)
				noisy := make([]float32, len(rows))
				for i, x := range rows {
					noisy[i] = x + float32(gumbel(u[i]))
				}
				got := [2]int32{Greedy(noisy[:f.Vocab]), Greedy(noisy[f.Vocab:])}
				if got != want {
					t.Errorf("%s: drew %v, want %v", name, got, want)
				}
			}
			continue
		}
		s := NewSampler(Params{Temperature: c.Temperature, TopP: c.TopP, MinP: c.MinP, TopK: c.TopK,
			XTCProbability: c.XTCProbability, XTCThreshold: c.XTCThreshold, XTCSpecialTokens: c.XTCSpecialTokens})
		rng := NewRNG(c.Seed)
		for i, raw := range c.Tokens {
			var want int32
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			got, err := s.Next(row, rng)
			if err != nil || got != want {
				t.Errorf("%s: draw %d is %d (%v), want %d", name, i, got, err, want)
			}
			draws++
		}
	}
	t.Logf("%d draws", draws)
}

// notByOurOrder names the cases of truncate_probs.json whose result differs
// under the decided rule: mlx-lm's top_k keeps exactly k tokens (the lowest
// ids of equals here), the recorded one keeps every token that ties with the
// k-th. Key: vocabulary, top_k, top_p of rows whose probabilities all tie.
var notByOurOrder = map[[3]float64]string{
	{5, 1, 0.9}:   "truncation order: mlx-lm's rule in every mode",
	{300, 1, 0.9}: "truncation order: mlx-lm's rule in every mode",
}

func TestTruncateGoldens(t *testing.T) {
	var f struct {
		Cases []struct {
			Probs   []float64
			TopP    float64 `json:"top_p"`
			TopK    int     `json:"top_k"`
			Out     []float64
			Vocab   int
			Largest [][2]float64
			Kept    [][2]float64
		}
	}
	loadJSON(t, "truncate_probs.json", &f)
	same, tied := 0, 0
	for i, c := range f.Cases {
		probs, want := c.Probs, c.Out
		if c.Vocab > 0 { // only the largest are listed
			probs, want = make([]float64, c.Vocab), make([]float64, c.Vocab)
			rest := 1.0
			for _, e := range c.Largest {
				probs[int(e[0])] = e[1]
				rest -= e[1]
			}
			for id := range probs {
				if probs[id] == 0 {
					probs[id] = rest / float64(c.Vocab-len(c.Largest))
				}
			}
			for _, e := range c.Kept {
				want[int(e[0])] = e[1]
			}
		}
		row := make([]float32, len(probs))
		for id, p := range probs {
			row[id] = float32(math.Log(p))
		}
		d := mustDist(t, Params{Temperature: 1, TopP: c.TopP, TopK: c.TopK}, row)
		if slices.Min(probs) == slices.Max(probs) && c.TopK > 0 && c.TopK < len(probs) {
			if notByOurOrder[[3]float64{float64(len(probs)), float64(c.TopK), c.TopP}] == "" {
				t.Errorf("case %d: a tie that the table does not list", i)
			}
			if d.Len() != c.TopK || d.Prob(0) == 0 {
				t.Errorf("case %d: %d tokens kept of ties, want the first %d", i, d.Len(), c.TopK)
			}
			tied++
			continue
		}
		for id, w := range want {
			if got := d.Prob(int32(id)); !near(got, w, 2e-6) {
				t.Errorf("case %d (V %d, top_p %v, top_k %d): probability of %d is %v, want %v", i, len(probs), c.TopP, c.TopK, id, got, w)
			}
		}
		same++
	}
	t.Logf("%d cases equal, %d by decision", same, tied)
}

func TestAcceptGoldens(t *testing.T) {
	var f struct {
		Cases []struct {
			Temperature  float64
			TopP         float64     `json:"top_p"`
			TopK         int         `json:"top_k"`
			TargetLogits [][]float32 `json:"target_logits"`
			Draft        []int32
			DraftQ       [][]float32 `json:"draft_q"`
			U            []float32
			NAccepted    int       `json:"n_accepted"`
			Replacement  []float64 `json:"replacement_distribution"`
			Is           string    `json:"replacement_is"`
		}
	}
	loadJSON(t, "spec_accept.json", &f)
	byRule, byPrimitive := 0, 0
	for i, c := range f.Cases {
		// top_p before temperature is the decided order, after it the recorded
		// one. Where that makes a difference, acceptance is still checked, on
		// the distributions of the record.
		ours := c.TopP == 1 || c.Temperature == 1
		s := NewSampler(Params{Temperature: c.Temperature, TopP: c.TopP, TopK: c.TopK})
		p, q := make([]Dist, len(c.TargetLogits)), make([]Dist, len(c.Draft))
		for j, row := range c.TargetLogits {
			ref := recordedTruncation(row, c.Temperature, c.TopP, c.TopK)
			if !ours {
				setDense(t, &p[j], ref)
				continue
			}
			if err := s.Dist(&p[j], row, nil); err != nil {
				t.Fatal(err)
			}
			for id, w := range ref {
				if !near(p[j].Prob(int32(id)), float64(w), 1e-6) {
					t.Errorf("case %d row %d: p(%d) is %v, want %v", i, j, id, p[j].Prob(int32(id)), w)
				}
			}
		}
		for j, row := range c.DraftQ {
			setDense(t, &q[j], row)
		}
		if n := accepted(c.Draft, q, p, c.U); n != c.NAccepted {
			t.Errorf("case %d: %d accepted, want %d", i, n, c.NAccepted)
			continue
		}
		d := &p[len(c.Draft)]
		if c.Is == "residual" {
			d = new(Dist)
			d.setResidual(&p[c.NAccepted], &q[c.NAccepted])
		}
		for id, w := range c.Replacement { // recorded with 1e-20 added
			if got := d.Prob(int32(id)); !near(got, w, 3e-6) {
				t.Errorf("case %d: replacement probability of %d is %v, want %v", i, id, got, w)
			}
		}
		if ours {
			byRule++
		} else {
			byPrimitive++
		}
	}
	t.Logf("%d cases by the decided truncation, %d on recorded distributions", byRule, byPrimitive)
}

func setDense(t *testing.T, d *Dist, w []float32) {
	t.Helper()
	ids := make([]int32, len(w))
	for i := range ids {
		ids[i] = int32(i)
	}
	if err := d.SetWeights(ids, w); err != nil {
		t.Fatal(err)
	}
}

// recordedTruncation is the order of operations behind spec_accept.json:
// temperature, softmax, top-k with ties, top-p on the unnormalised rest.
func recordedTruncation(row []float32, temp, topP float64, topK int) []float32 {
	p := make([]float64, len(row))
	m, sum := float64(slices.Max(row)), 0.0
	for i, x := range row {
		p[i] = math.Exp((float64(x) - m) / temp)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	sorted := slices.Clone(p)
	slices.SortFunc(sorted, func(a, b float64) int { return -cmpFloat(a, b) })
	if topK > 0 && topK < len(p) {
		sorted = sorted[:topK]
	}
	before, low := 0.0, sorted[0]
	for _, v := range sorted {
		if topP < 1 && before >= topP {
			break
		}
		low = v
		before += v
	}
	out := make([]float32, len(p))
	kept := 0.0
	for _, v := range p {
		if v >= low {
			kept += v
		}
	}
	for i, v := range p {
		if v >= low {
			out[i] = float32(v / kept)
		}
	}
	return out
}

func cmpFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func TestPenaltyBlockGoldens(t *testing.T) {
	var f struct {
		Cases []struct {
			Presence, Frequency float64
			Emitted, Draft      []int32
			Vocab               int
			Active              bool
			Rows                [][]float64 `json:"penalty_rows"`
		}
	}
	loadJSON(t, "penalties.json", &f)
	for i, c := range f.Cases {
		z := NewPenalizer(Params{PresencePenalty: c.Presence, FrequencyPenalty: c.Frequency}, []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
		if z.Active() != c.Active {
			t.Errorf("case %d: active %v, want %v", i, z.Active(), c.Active)
		}
		for _, tok := range c.Emitted {
			z.Push(tok)
		}
		before := z.Completion()
		for j, want := range c.Rows {
			row := make([]float32, c.Vocab)
			z.Apply(row)
			for id, w := range want {
				if !near(-float64(row[id]), w, 1e-6) {
					t.Errorf("case %d row %d: penalty of %d is %v, want %v", i, j, id, -row[id], w)
				}
			}
			if j < len(c.Draft) {
				z.Push(c.Draft[j])
			}
		}
		z.Truncate(before)
		if c.Active && z.Completion() != len(c.Emitted) {
			t.Errorf("case %d: %d completion tokens after rollback, want %d", i, z.Completion(), len(c.Emitted))
		}
	}
}
