package decode

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/draft"
	"sparkbar/engine/draft/ngram"
	"sparkbar/engine/internal/testmodel"
	"sparkbar/engine/sample"
)

// texts are prompts of the tiny target: prose, code, repetition, sums.
var texts = []string{
	"The quick brown fox ",
	"def add(x, y):\n    return x",
	"The quick white cat sits on the old wall. The quick white cat sits on the old wall. The quick white ",
	"3 plus 4 equals ",
}

func ids(s string) []int32 {
	var out []int32
	for _, b := range []byte(s) {
		out = append(out, int32(b))
	}
	return out
}

// way is one way to generate: a mode with a drafter.
type way struct {
	name   string
	dir    string // of the drafter; "" = none
	mode   Mode
	lookup bool
	wrap   func(draft.Drafter) draft.Drafter
}

// ways are all ways to speculate on the tiny target.
func ways(t testing.TB) []way {
	t.Helper()
	out := []way{{name: "lookup", mode: Lookup}}
	dirs, err := filepath.Glob(specDir + "/checkpoints/d[sf]*")
	if err != nil || len(dirs) < 12 {
		t.Fatal(dirs, err)
	}
	for _, d := range dirs {
		if name := filepath.Base(d); name != "dspark_gemma4" { // made for another target
			out = append(out, way{name: name, dir: d, mode: Draft})
		}
	}
	out = append(out,
		way{name: "gguf", dir: specDir + "/tiny-dspark-bf16.gguf", mode: Draft},
		way{name: "draft model, the target itself", dir: specDir + "/checkpoints/target_qwen3", mode: Draft},
		way{name: "draft model, disturbed", dir: disturbed(t), mode: Draft},
		way{name: "hybrid dspark", dir: specDir + "/checkpoints/dspark_deepspec", mode: Draft, lookup: true},
		way{name: "hybrid dflash", dir: specDir + "/checkpoints/dflash1", mode: Draft, lookup: true})
	return out
}

// disturbed is the target with its last layers' weights exchanged: a draft model
// that is often wrong.
func disturbed(t testing.TB) string {
	return testmodel.Edit(t, specDir+"/checkpoints/target_qwen3", func(_ map[string]any, w map[string]testmodel.Tensor) {
		a, b := "model.layers.2.mlp.down_proj.weight", "model.layers.3.mlp.down_proj.weight"
		w[a], w[b] = w[b], w[a]
	})
}

func (w way) open(t testing.TB, b compute.Backend) *rig {
	return open(t, b, specDir+"/checkpoints/target_qwen3", w.dir, 0, w.wrap)
}

func (w way) job(prompt []int32, limit, cap int) Job {
	return Job{Prompt: prompt, MaxTokens: limit, Logprobs: -1, NoStore: true, Mode: w.mode, Lookup: w.lookup, Cap: cap, LongLookup: 4 * cap}
}

func (g *rig) generate(t testing.TB, j Job) Outcome {
	t.Helper()
	out, err := g.run.Generate(context.Background(), j)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func baseline(j Job) Job {
	j.Mode, j.Lookup = Baseline, false
	return j
}

// Greedy output is that of the target alone, whatever proposes: for every
// drafter, cap and prompt.
func TestGreedyIdentity(t *testing.T) {
	t.Parallel()
	limit := 28
	for _, b := range backends(t) {
		plain := way{}.open(t, b)
		var want [][]int32
		for _, s := range texts {
			want = append(want, plain.generate(t, Job{Prompt: ids(s), MaxTokens: limit, Logprobs: -1, NoStore: true, Mode: Baseline}).Tokens)
		}
		rejected, accepted := 0, 0
		for n, w := range ways(t) {
			g := w.open(t, b)
			for cap := 1; cap <= 8; cap++ {
				for i, s := range texts {
					if some := 2; (cap+i+n)%some != 0 || testmodel.Race && (cap+i+n)%(8*some) != 0 {
						continue // each cap meets every other prompt
					}
					j := w.job(ids(s), limit, cap)
					j.Round = func(r Round) {
						accepted += r.Accepted
						if len(r.Draft) > max(6, 4*cap) || w.mode == Lookup && len(r.Draft) > cap || r.Accepted+r.RolledBack != len(r.Draft) {
							t.Errorf("%s, cap %d: %+v", w.name, cap, r)
						}
					}
					out := g.generate(t, j)
					if !slices.Equal(out.Tokens, want[i]) {
						t.Errorf("%s, %s, cap %d, prompt %d:\n got %v\nwant %v", b.Name(), w.name, cap, i, out.Tokens, want[i])
					}
					rejected += out.RolledBack
				}
			}
		}
		t.Logf("%s: %d drafts accepted, %d rejected", b.Name(), accepted, rejected)
		if least := 1000; !testmodel.Race && (rejected < least || accepted < least) {
			t.Errorf("%d drafts rejected, %d accepted: too few to mean anything", rejected, accepted)
		}
	}
}

// scripted drafts what a function of the text so far says.
type scripted struct {
	next func(text []int32, n int) []int32
}

func (s *scripted) Mode() string        { return "scripted" }
func (s *scripted) Taps() []int         { return nil }
func (s *scripted) MaxDraft() int       { return 8 }
func (s *scripted) Cache() *cache.Cache { return nil }
func (s *scripted) WeightBytes() int64  { return 0 }
func (s *scripted) Close()              {}
func (s *scripted) NewContext(*cache.Seq) (draft.Context, error) {
	return &scriptedContext{s: s}, nil
}

type scriptedContext struct {
	s    *scripted
	text []int32
}

func (x *scriptedContext) Observe(tokens []int32, _ compute.View, _ *compute.Stop) error {
	x.text = append(x.text, tokens...)
	return nil
}
func (x *scriptedContext) Flush(*compute.Stop) error                { return nil }
func (x *scriptedContext) Finish(*compute.Stop) (*cache.Seq, error) { return nil, nil }
func (x *scriptedContext) Close()                                   {}
func (x *scriptedContext) Propose(r draft.Request) (draft.Proposal, error) {
	d := x.s.next(append(slices.Clone(x.text), r.Pending), r.Cap)
	return draft.Proposal{Tokens: d, Drafted: d}, nil
}

// A drafter that is always right makes every round full, one that is always
// wrong makes every round plain; neither changes the text.
func TestAlwaysRightAlwaysWrong(t *testing.T) {
	t.Parallel()
	const limit = 37
	for _, b := range backends(t) {
		prompt := ids(texts[1])
		text := append(slices.Clone(prompt), way{}.open(t, b).generate(t, Job{Prompt: prompt, MaxTokens: limit + 8, Logprobs: -1, NoStore: true, Mode: Baseline}).Tokens...)
		want := text[len(prompt):][:limit]
		for _, wrong := range []int32{0, 1} {
			w := way{mode: Draft, wrap: func(draft.Drafter) draft.Drafter {
				return &scripted{func(soFar []int32, n int) []int32 {
					d := slices.Clone(text[len(soFar):][:n])
					for i := range d {
						d[i] = (d[i] + wrong) % 272
					}
					return d
				}}
			}}
			g := w.open(t, b)
			for cap := 1; cap <= 8; cap++ {
				if testmodel.Race && cap%3 != 0 {
					continue
				}
				out := g.generate(t, w.job(prompt, limit, cap))
				if !slices.Equal(out.Tokens, want) {
					t.Errorf("wrong %d, cap %d: %v, wants %v", wrong, cap, out.Tokens, want)
				}
				rounds, rejected := (limit-1+cap)/(cap+1), 0
				if wrong == 1 {
					rounds = limit - 1
					for left := limit - 1; left > 0; left-- {
						rejected += min(cap, left-1)
					}
				}
				if out.Rounds != rounds || out.RolledBack != rejected {
					t.Errorf("wrong %d, cap %d: %d rounds with %d rejected, wants %d and %d", wrong, cap, out.Rounds, out.RolledBack, rounds, rejected)
				}
			}
		}
	}
}

// Limits, end tokens and Emit's wish are exact in every mode, wherever in a
// block they fall.
func TestEnds(t *testing.T) {
	t.Parallel()
	const cap = 5
	for _, b := range backends(t) {
		prompt := ids(texts[2])
		want := way{}.open(t, b).generate(t, Job{Prompt: prompt, MaxTokens: 30, Logprobs: -1, NoStore: true, Mode: Baseline}).Tokens
		for n, w := range ways(t) {
			if testmodel.Race && n%8 != 0 {
				continue
			}
			g := w.open(t, b)
			for limit := 1 + n%2; limit <= 13; limit += 3 {
				j := w.job(prompt, limit, cap)
				emitted := 0
				j.Emit = func(ts []Token) bool { emitted += len(ts); return false }
				if out := g.generate(t, j); !slices.Equal(out.Tokens, want[:limit]) || out.Finish != FinishLength || emitted != limit {
					t.Errorf("%s, limit %d: %v (%s, %d emitted), wants %v", w.name, limit, out.Tokens, out.Finish, emitted, want[:limit])
				}
			}
			for at := n % 5; at < len(want); at += 9 {
				j := w.job(prompt, 30, cap)
				j.End = map[int32]bool{want[at]: true}
				first := slices.Index(want, want[at]) + 1
				var emitted []int32
				j.Emit = func(ts []Token) bool {
					for _, x := range ts {
						emitted = append(emitted, x.ID)
					}
					return false
				}
				if out := g.generate(t, j); !slices.Equal(out.Tokens, want[:first]) || out.Finish != FinishEnd || !slices.Equal(emitted, out.Tokens) {
					t.Errorf("%s, end token %d: %v (%s), wants %v", w.name, want[at], out.Tokens, out.Finish, want[:first])
				}
			}
			for stop := 1 + n%3; stop <= 9; stop += 5 {
				j := w.job(prompt, 30, cap)
				calls, emitted := 0, 0
				j.Emit = func(ts []Token) bool { calls++; emitted += len(ts); return emitted >= stop }
				rounds := 0
				j.Round = func(Round) { rounds++ }
				out := g.generate(t, j)
				if !slices.Equal(out.Tokens, want[:len(out.Tokens)]) || len(out.Tokens) < stop || len(out.Tokens) != emitted || out.Finish != FinishEmit || calls != rounds+1 {
					t.Errorf("%s, stop at %d: %v (%s) in %d rounds, %d calls", w.name, stop, out.Tokens, out.Finish, rounds, calls)
				}
			}
		}
	}
}

// Copies stop before an end token, which comes from the row before it as well; but
// rounds without a controller are the reference's.
func TestCopiesEndBeforeEndTokens(t *testing.T) {
	flat := &calibrate.Costs{Verify: calibrate.NewCurve(map[int]float64{1: 10, 8: 10.1})}
	for _, c := range []struct {
		text, end, want []int32
		without         bool
	}{
		{[]int32{1, 2, 3, 4, 5, 9, 6, 7, 1, 2, 3}, nil, []int32{4, 5, 9, 6, 7, 1}, false},
		{[]int32{1, 2, 3, 4, 5, 9, 6, 7, 1, 2, 3}, []int32{8, 9}, []int32{4, 5}, false},
		{[]int32{1, 2, 3, 9, 5, 4, 6, 7, 1, 2, 3}, []int32{9, 8}, nil, false},
		{[]int32{1, 2, 3, 9, 5, 4, 6, 7, 1, 2, 3}, []int32{9, 8}, []int32{9, 5, 4, 6, 7, 1}, true},
	} {
		x, err := ngram.New(ngram.Standalone)
		if err != nil {
			t.Fatal(err)
		}
		x.Append(c.text...)
		g := &generation{j: Job{Mode: Lookup, MaxTokens: 50, End: map[int32]bool{}}, index: x}
		if !c.without {
			g.j.Controller = calibrate.NewController(flat, calibrate.ControllerConfig{Park: true, Patient: true}).Begin(len(c.text))
		}
		for _, id := range c.end {
			g.j.End[id] = true
		}
		if g.look(); !slices.Equal(g.copied, c.want) {
			t.Errorf("of %v with the ends %v %v is copied, wants %v", c.text, c.end, g.copied, c.want)
		}
	}
}

// Where costs are known, as much is copied as pays, and always as much as the match
// allows where a seed or a cap promises so.
func TestCopiesThatPay(t *testing.T) {
	t.Parallel()
	flat := &calibrate.Costs{Verify: calibrate.NewCurve(map[int]float64{1: 10, 8: 10.1})}
	steep := &calibrate.Costs{Verify: calibrate.NewCurve(map[int]float64{1: 10, 2: 20, 8: 80})}
	seed := uint64(3)
	for _, b := range backends(t) {
		g := way{}.open(t, b)
		var clock time.Time // every round takes as long
		g.run.SetClock(func() time.Time { clock = clock.Add(time.Millisecond); return clock })
		play := func(c *calibrate.Costs, j Job) (tokens, drafts []int32) {
			g.run.SetCosts(c)
			j.Round = func(r Round) { drafts = append(drafts, int32(len(r.Draft))) }
			return g.generate(t, j).Tokens, drafts
		}
		j := Job{Prompt: ids(texts[2]), MaxTokens: 60, Logprobs: -1, NoStore: true, Mode: Lookup}
		sum := func(xs []int32) (n int32) {
			for _, x := range xs {
				n += x
			}
			return n
		}
		want, all := play(nil, j)
		cheap, some := play(flat, j)
		dear, few := play(steep, j)
		if !slices.Equal(cheap, want) || !slices.Equal(dear, want) {
			t.Errorf("%v and %v, wants %v", cheap, dear, want)
		}
		if sum(all) < 20 || 2*sum(some) < sum(all) || 4*sum(few) > sum(all) {
			t.Errorf("%v tokens are copied in rounds, where they cost nothing %v, where they cost much %v", all, some, few)
		}
		for i := range 2 {
			fixed := j
			if fixed.Cap = 4; i == 0 {
				fixed.Cap, fixed.Params = 0, sample.Params{Temperature: 0.3, Seed: &seed}
			}
			want, all := play(nil, fixed)
			got, same := play(steep, fixed)
			if !slices.Equal(got, want) || !slices.Equal(same, all) || sum(all) == 0 {
				t.Errorf("%d: %v in rounds of %v drafts, wants %v of %v", i, got, same, want, all)
			}
		}
	}
}

// Penalties, bias and log-probabilities are the baseline's in every mode, to the
// bit.
func TestOptionsInEveryMode(t *testing.T) {
	t.Parallel()
	window := 12
	params := []sample.Params{
		{PresencePenalty: 0.6, FrequencyPenalty: 0.4},
		{RepetitionPenalty: 1.3, RepetitionContextSize: &window},
		{LogitBias: map[int32]float64{32: -4, 101: 2.5}},
		{LogitBias: map[int32]float64{116: 3}, RepetitionPenalty: 1.2, PresencePenalty: -0.3, FrequencyPenalty: 0.2},
	}
	for _, b := range backends(t) {
		plain := way{}.open(t, b)
		collect := func(g *rig, j Job) (ts []Token) {
			j.Emit = func(new []Token) bool { ts = append(ts, new...); return false }
			g.generate(t, j)
			return ts
		}
		for n, w := range ways(t) {
			if testmodel.Race && n%8 != 1 {
				continue
			}
			g := w.open(t, b)
			for i, p := range params {
				j := w.job(ids(texts[(n+i)%len(texts)]), 24, 1+(n+3*i)%8)
				j.Params, j.Logprobs = p, 3
				want, got := collect(plain, baseline(j)), collect(g, j)
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s, options %d:\n got %v\nwant %v", w.name, i, got, want)
				}
			}
		}
	}
}

// Any model drafts for itself, and copies work on any model, whatever its layers
// remember: windows, convolutions, recurrent state.
func TestIdentityOfFamilies(t *testing.T) {
	known := arch.Types()
	dirs, err := filepath.Glob("../testdata/models/*/*/config.json")
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, b := range backends(t) {
		for i, file := range dirs {
			dir := filepath.Dir(file)
			kind := modelType(t, dir)
			if !slices.Contains(known, kind) || testmodel.Race && i%6 != 0 {
				continue
			}
			t.Run(strings.TrimPrefix(dir, "../testdata/models/")+"/"+b.Name(), func(t *testing.T) {
				g := open(t, b, dir, dir, 0, nil)
				var prompt []int32
				for i := range 30 {
					prompt = append(prompt, int32((i%7)*5+i%3+1))
				}
				j := Job{Prompt: prompt, MaxTokens: 20, Logprobs: -1, NoStore: true, Mode: Baseline}
				want := g.generate(t, j).Tokens
				for _, mode := range []Mode{Lookup, Draft} {
					for _, cap := range []int{1, 4} {
						j.Mode, j.Cap = mode, cap
						out := g.generate(t, j)
						if !slices.Equal(out.Tokens, want) {
							t.Errorf("%s, cap %d:\n got %v\nwant %v", mode, cap, out.Tokens, want)
						}
						if mode == Draft && out.RolledBack > 0 {
							t.Errorf("cap %d: the model disagrees with itself %d times", cap, out.RolledBack)
						}
					}
				}
				tested[kind] = true
			})
		}
	}
	if len(tested) < 2 {
		t.Errorf("only %v", tested)
	}
}

func modelType(t *testing.T, dir string) string {
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	return ck.Config().StringOr("model_type", "")
}

// What a config says about a head matters: with a wrong first slot, norm or rope
// it still runs, but fewer drafts are accepted.
func TestWrongHeadsAcceptLess(t *testing.T) {
	t.Parallel()
	b := compute.NewReference()
	accepted := func(dir string) int {
		n := 0
		w := way{dir: dir, mode: Draft}
		g := w.open(t, b)
		for _, s := range texts {
			j := w.job(ids(s), 32, 0)
			j.Round = func(r Round) { n += r.Accepted }
			g.generate(t, j)
		}
		return n
	}
	for i, c := range []struct {
		drafter, what string
		change        func(map[string]any, map[string]testmodel.Tensor)
	}{
		{"dspark_deepspec", "first slot", func(c map[string]any, _ map[string]testmodel.Tensor) { c["logits_start"] = 1 }},
		{"dspark_reduced", "first slot", func(c map[string]any, _ map[string]testmodel.Tensor) {
			c["speculators_config"].(map[string]any)["proposal_methods"].([]any)[0].(map[string]any)["speculative_tokens"] = 7
		}},
		{"dspark_qwen35", "norm offset", func(c map[string]any, _ map[string]testmodel.Tensor) { c["model_type"] = "qwen3" }},
		{"dspark_lfm2", "rope pairs", func(c map[string]any, _ map[string]testmodel.Tensor) { c["rope_is_neox_style"] = true }},
		{"dspark_deepspec", "rope base", func(c map[string]any, _ map[string]testmodel.Tensor) {
			c["rope_parameters"] = map[string]any{"rope_theta": 3.0}
		}},
		{"dspark_deepspec", "layers read", func(c map[string]any, _ map[string]testmodel.Tensor) { c["target_layer_ids"] = []int{2, 1, 0} }},
		{"dflash1", "layers read", func(c map[string]any, _ map[string]testmodel.Tensor) {
			c["dflash_config"].(map[string]any)["target_layer_ids"] = []int{2, 1, 0}
		}},
	} {
		if testmodel.Race && i > 0 {
			break
		}
		right, wrong := accepted(specDir+"/checkpoints/"+c.drafter), accepted(testmodel.Edit(t, specDir+"/checkpoints/"+c.drafter, c.change))
		if wrong >= right {
			t.Errorf("%s with a wrong %s: %d drafts accepted, rightly %d", c.drafter, c.what, wrong, right)
		}
		t.Logf("%s: %d drafts accepted, %d with a wrong %s", c.drafter, right, wrong, c.what)
	}
}

// The reuse of a conversation, with the drafter's context, gives what a cold
// start gives, round by round.
func TestPrefixReuseGolden(t *testing.T) {
	var doc struct {
		Drafter string
		Max     int `json:"max_new_tokens"`
		Cap     int
		Turns   []struct {
			Prompt  []int32 `json:"prompt_ids"`
			Reuse   int
			Tokens  []int32 `json:"token_ids"`
			Accepts []int   `json:"accept_lengths"`
			Stored  int     `json:"stored_tokens"`
		}
	}
	readJSON(t, specDir+"/prefix_reuse_dspark.json", &doc)
	for _, b := range backends(t) {
		w := way{dir: specDir + "/checkpoints/" + doc.Drafter, mode: Draft}
		g := w.open(t, b)
		for i, turn := range doc.Turns {
			j := w.job(turn.Prompt, doc.Max+doc.Cap+1, doc.Cap)
			j.NoStore = false
			n := 0
			j.Emit = func(ts []Token) bool { n += len(ts); return n >= doc.Max }
			var accepts []int
			j.Round = func(r Round) { accepts = append(accepts, len(r.Committed)) }
			out := g.generate(t, j)
			if out.Cached != turn.Reuse || !slices.Equal(out.Tokens, turn.Tokens) || !slices.Equal(accepts, turn.Accepts) {
				t.Errorf("turn %d: %d reused, tokens %v, rounds %v; wants %d, %v, %v", i, out.Cached, out.Tokens, accepts, turn.Reuse, turn.Tokens, turn.Accepts)
			}
			if s := g.run.Store().Stats().Tokens; s[0] != turn.Stored {
				t.Errorf("turn %d stored %v, wants %d", i, s, turn.Stored)
			}
		}
	}
}

// A stored window of context goes on as if it had never been stored; one that
// cannot be cut to the reused prefix is left out, and the text is the same.
func TestWindowRestoreGolden(t *testing.T) {
	ck, err := checkpoint.Open(specDir + "/window_restore_dflash2.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	meta := func(key string, v any) {
		if err := json.Unmarshal([]byte(ck.FileMetadata()[key]), v); err != nil {
			t.Fatal(key, err)
		}
	}
	var prompt, warm []int32
	var cut int
	meta("prompt_ids", &prompt)
	meta("warm", &warm)
	meta("cut", &cut)
	for _, b := range backends(t) {
		w := way{dir: specDir + "/checkpoints/dflash2", mode: Draft}
		run := func(g *rig, p []int32, limit int) (Outcome, []string) {
			j := w.job(p, limit, 0)
			j.NoStore = false
			var rounds []string
			j.Round = func(r Round) { rounds = append(rounds, fmt.Sprint(r.Draft, r.Accepted)) }
			return g.generate(t, j), rounds
		}
		cold, coldRounds := run(w.open(t, b), prompt, 24)
		g := w.open(t, b)
		run(g, prompt[:cut], 1)
		again, rounds := run(g, prompt, 24)
		if again.Cached != cut || !slices.Equal(again.Tokens, warm[:24]) || !slices.Equal(cold.Tokens, warm[:24]) {
			t.Errorf("%d reused, %v cold, %v warm, wants %d and %v", again.Cached, cold.Tokens, again.Tokens, cut, warm)
		}
		if !slices.Equal(rounds, coldRounds) {
			t.Errorf("rounds\ncold %v\nwarm %v", coldRounds, rounds)
		}
		// A prompt that leaves the stored one before its end.
		other := append(slices.Clone(prompt[:cut-10]), ids("and then the old ")...)
		g = w.open(t, b)
		run(g, prompt[:cut], 1)
		got, _ := run(g, other, 24)
		want := g.generate(t, baseline(w.job(other, 24, 0)))
		if got.Cached != cut-10 || !slices.Equal(got.Tokens, want.Tokens) {
			t.Errorf("%d reused, %v, wants %d and %v", got.Cached, got.Tokens, cut-10, want.Tokens)
		}
	}
}
