package decode_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/decode"
	"sparkbar/engine/draft"
	"sparkbar/engine/sample"
	"sparkbar/resources"
)

// oracle is a drafter that knows the right answer and proposes it, or always
// something else.
type oracle struct {
	answer []int32 // prompt and greedy output
	wrong  bool
	vocab  int32
}

func (*oracle) Mode() string        { return "oracle" }
func (*oracle) Taps() []int         { return nil }
func (*oracle) MaxDraft() int       { return 8 }
func (*oracle) Cache() *cache.Cache { return nil }
func (*oracle) WeightBytes() int64  { return 0 }
func (*oracle) Close()              {}

func (o *oracle) NewContext(*cache.Seq) (draft.Context, error) { return &oracleContext{o: o}, nil }

// oracleContext counts the committed positions it is shown.
type oracleContext struct {
	o    *oracle
	seen int
}

func (x *oracleContext) Observe(tokens []int32, _ compute.View, _ *compute.Stop) error {
	x.seen += len(tokens)
	return nil
}
func (x *oracleContext) Flush(*compute.Stop) error                { return nil }
func (x *oracleContext) Finish(*compute.Stop) (*cache.Seq, error) { return nil, nil }
func (x *oracleContext) Close()                                   {}

func (x *oracleContext) Propose(r draft.Request) (draft.Proposal, error) {
	var tokens []int32
	for i := range r.Cap {
		at := x.seen + 1 + i // the pending token stands at seen
		if at >= len(x.o.answer) {
			break
		}
		t := x.o.answer[at]
		if x.o.wrong {
			t = (t + 1) % x.o.vocab
		}
		tokens = append(tokens, t)
	}
	return draft.Proposal{Tokens: tokens, Drafted: tokens}, nil
}

// demo is the embedded pair on a backend.
type demo struct {
	b     compute.Backend
	model *arch.Model
	files []*checkpoint.Checkpoint
}

func openDemo(t *testing.T, b compute.Backend) *demo {
	t.Helper()
	target, _ := resources.Demo()
	c, err := checkpoint.OpenBytes("demo", target)
	if err != nil {
		t.Fatal(err)
	}
	m, err := arch.Load(c, b)
	if err != nil {
		t.Fatal(err)
	}
	d := &demo{b: b, model: m, files: []*checkpoint.Checkpoint{c}}
	t.Cleanup(func() {
		m.Close()
		for _, f := range d.files {
			f.Close()
		}
		b.Close()
	})
	return d
}

func (d *demo) drafter(t *testing.T, files map[string][]byte) draft.Drafter {
	t.Helper()
	c, err := checkpoint.OpenBytes("demo drafter", files)
	if err != nil {
		t.Fatal(err)
	}
	d.files = append(d.files, c)
	dr, err := draft.Open(c, draft.Host{Model: d.model, Backend: d.b, Positions: 2048, Sequences: 4, Window: 4096})
	if err != nil {
		t.Fatal(err)
	}
	return dr
}

func (d *demo) runner(t *testing.T, dr draft.Drafter) *decode.Runner {
	t.Helper()
	r, err := decode.New(d.b, d.model, dr, decode.Options{Positions: 2048, Stored: 1, Chunk: 32})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestIdentity: greedy output with speculation is token for token the output
// without it, for every drafter, cap, number of threads and prompt, while
// thousands of rejected rows are rolled back.
func TestIdentity(t *testing.T) {
	text, err := os.ReadFile("../testdata/demo/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var x struct {
		Prompts []struct {
			IDs []int32 `json:"prompt_ids"`
		}
	}
	if err := json.Unmarshal(text, &x); err != nil || len(x.Prompts) < 10 {
		t.Fatal(len(x.Prompts), err)
	}
	const limit = 64
	caps := []int{1, 2, 3, 4, 5, 6, 7, 8}
	if testing.Short() { // under the race detector
		caps, x.Prompts = []int{3, 8}, x.Prompts[:4]
	}
	end := map[int32]bool{0: true, 2: true}
	var reference [][]int32 // the first backend's answers
	for _, threads := range []int{1, 2} {
		b, err := cpu.New(cpu.Options{Threads: threads, Exact: true})
		if err != nil {
			t.Fatal(err)
		}
		d := openDemo(t, b)
		generate := func(r *decode.Runner, j decode.Job) decode.Outcome {
			t.Helper()
			j.MaxTokens, j.End, j.Logprobs = limit, end, -1
			out, err := r.Generate(context.Background(), j)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		plain := d.runner(t, nil)
		var answers [][]int32
		for _, p := range x.Prompts {
			answers = append(answers, generate(plain, decode.Job{Prompt: p.IDs, Mode: decode.Baseline, NoStore: true}).Tokens)
		}
		if reference == nil {
			reference = answers
		} else if !slices.EqualFunc(answers, reference, slices.Equal) {
			t.Errorf("%d threads answer differently from 1", threads)
		}
		rolledBack := 0
		check := func(name string, r *decode.Runner, j decode.Job, i int) decode.Outcome {
			t.Helper()
			j.Prompt = x.Prompts[i].IDs
			out := generate(r, j)
			if !slices.Equal(out.Tokens, answers[i]) {
				t.Errorf("%s, prompt %d: %v\nwithout speculation: %v", name, i, out.Tokens, answers[i])
			}
			rolledBack += out.RolledBack
			return out
		}
		_, dspark := resources.Demo()
		ds := d.runner(t, d.drafter(t, dspark))
		df := d.runner(t, d.drafter(t, resources.DemoDFlash()))
		for _, cap := range caps {
			for i := range x.Prompts {
				check(fmt.Sprintf("dspark cap %d", cap), ds, decode.Job{Mode: decode.Draft, Cap: cap, NoStore: i%2 == 0}, i)
				check(fmt.Sprintf("dflash cap %d", cap), df, decode.Job{Mode: decode.Draft, Cap: cap, NoStore: i%2 == 1}, i)
				check(fmt.Sprintf("lookup up to %d", cap), plain, decode.Job{Mode: decode.Lookup, LongLookup: cap, NoStore: true}, i)
				for _, wrong := range []bool{true, false} {
					r := d.runner(t, &oracle{answer: append(slices.Clone(x.Prompts[i].IDs), answers[i]...), wrong: wrong, vocab: int32(d.model.Vocab)})
					out := check(fmt.Sprintf("oracle (wrong: %v) cap %d", wrong, cap), r, decode.Job{Mode: decode.Draft, Cap: cap, NoStore: true}, i)
					if n := len(answers[i]) - 1; !wrong && out.Rounds > (n+cap)/(cap+1) {
						t.Errorf("an always right drafter needs %d rounds for %d tokens at cap %d", out.Rounds, n, cap)
					} else if wrong && out.Rounds != n {
						t.Errorf("an always wrong drafter gives %d rounds for %d tokens", out.Rounds, n)
					}
					if used, _ := r.Cache().Pages(); used != 0 {
						t.Errorf("%d pages are still in use", used)
					}
					r.Close()
				}
			}
		}
		ds.Close()
		df.Close()
		plain.Close()
		t.Logf("%d threads: %d rejected rows rolled back", threads, rolledBack)
		if rolledBack < 1000 && !testing.Short() {
			t.Errorf("only %d rows were rolled back", rolledBack)
		}
	}
}

// TestSeedsAndStoredPasts: what a seed draws does not depend on a past that was stored
// without the drafter's; answers without a seed's promise go on from it.
func TestSeedsAndStoredPasts(t *testing.T) {
	b, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	d := openDemo(t, b)
	_, dspark := resources.Demo()
	prompt := make([]int32, 60)
	for i := range prompt {
		prompt[i] = int32(300 + 7*i)
	}
	generate := func(r *decode.Runner, j decode.Job) decode.Outcome {
		t.Helper()
		j.Prompt, j.MaxTokens, j.Logprobs = prompt, 40, -1
		out, err := r.Generate(context.Background(), j)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for seed := range uint64(4) {
		drawn := decode.Job{Mode: decode.Draft, Params: sample.Params{Temperature: 1, Seed: &seed}}
		cold, warm := d.runner(t, d.drafter(t, dspark)), d.runner(t, d.drafter(t, dspark))
		want := generate(cold, drawn).Tokens
		generate(warm, decode.Job{Mode: decode.Baseline})
		if out := generate(warm, decode.Job{Mode: decode.Draft}); out.Cached == 0 {
			t.Error("a greedy answer did not go on from what was stored")
		}
		warm.Forget(nil)
		generate(warm, decode.Job{Mode: decode.Baseline})
		if out := generate(warm, drawn); !slices.Equal(out.Tokens, want) {
			t.Errorf("seed %d: %v after a past without the drafter's, wants %v", seed, out.Tokens, want)
		}
		if used, _ := warm.Cache().Pages(); used == 0 {
			t.Error("nothing was stored")
		}
		cold.Close()
		warm.Close()
	}
}

// stopping is a backend that cancels at the n-th program of a drafter's that can be
// stopped.
type stopping struct {
	compute.Backend
	n      int
	cancel func()
}

func (s *stopping) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	if p.Label == compute.LabelDraft && stop != nil {
		if s.n--; s.n == 0 {
			s.cancel()
			return compute.Done{Err: compute.ErrStopped}, nil
		}
	}
	return s.Backend.Submit(p, stop)
}

// TestStoppedDrafts: what a drafter was stopped in reading does not count as read for
// the next turn.
func TestStoppedDrafts(t *testing.T) {
	b, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := &stopping{Backend: b}
	d := openDemo(t, s)
	_, dspark := resources.Demo()
	prompt := make([]int32, 30)
	for i := range prompt {
		prompt[i] = int32(300 + 7*i)
	}
	stopped := func(n int) (*decode.Runner, []int32) {
		r := d.runner(t, d.drafter(t, dspark))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s.n, s.cancel = n, cancel
		out, err := r.Generate(ctx, decode.Job{Prompt: prompt, Mode: decode.Draft, MaxTokens: 60, Logprobs: -1, Cap: 7})
		if err == nil {
			t.Fatalf("program %d was not stopped", n)
		}
		s.n = -1
		return r, append(slices.Clone(prompt), out.Tokens...)
	}
	reused := 0
	for n := 2; n < 6; n++ {
		for seed := range uint64(3) {
			warm, text := stopped(n)
			cold := d.runner(t, d.drafter(t, dspark))
			j := decode.Job{Prompt: append(text, 400, 401), Mode: decode.Draft, MaxTokens: 24, Logprobs: -1, Params: sample.Params{Temperature: 1, Seed: &seed}}
			got, err := warm.Generate(context.Background(), j)
			want, err2 := cold.Generate(context.Background(), j)
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			if !slices.Equal(got.Tokens, want.Tokens) {
				t.Errorf("stopped in program %d, seed %d: %v, wants %v", n, seed, got.Tokens, want.Tokens)
			}
			greedy := decode.Job{Prompt: j.Prompt, Mode: decode.Draft, MaxTokens: 4, Logprobs: -1}
			again, _ := stopped(n)
			out, err := again.Generate(context.Background(), greedy)
			if err != nil {
				t.Fatal(err)
			}
			reused += out.Cached
			for _, r := range []*decode.Runner{warm, cold, again} {
				r.Close()
			}
		}
	}
	if reused == 0 {
		t.Error("the target's past was lost too")
	}
}
