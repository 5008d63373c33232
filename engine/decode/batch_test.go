package decode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/compute"
	"sparkbar/engine/draft"
	"sparkbar/engine/internal/testmodel"
	"sparkbar/engine/layout"
	"sparkbar/engine/sample"
)

// answer is what a job gave.
type answer struct {
	out    Outcome
	err    error
	over   bool
	tokens []Token
	rounds []string
}

// watch lets an answer note what a job does.
func (a *answer) watch(j Job) Job {
	emit := j.Emit
	j.Emit = func(ts []Token) bool {
		a.tokens = append(a.tokens, ts...)
		return emit != nil && emit(ts)
	}
	j.Round = func(r Round) {
		a.rounds = append(a.rounds, fmt.Sprint(r.Index, r.Source, r.Draft, r.Drafted, r.Confidence, r.Choice, r.Committed, r.Cap))
	}
	return j
}

func (a *answer) end(out Outcome, err error) { a.out, a.err, a.over = out, err, true }

func (a *answer) same(b *answer) bool {
	return fmt.Sprint(a.out.Tokens, a.out.Finish, a.out.Rounds, a.out.LookupRounds, a.out.TargetForwards, a.out.RolledBack, a.out.Cap, a.err, a.tokens, a.rounds) ==
		fmt.Sprint(b.out.Tokens, b.out.Finish, b.out.Rounds, b.out.LookupRounds, b.out.TargetForwards, b.out.RolledBack, b.out.Cap, b.err, b.tokens, b.rounds)
}

func (g *rig) start(t testing.TB, ctx context.Context, j Job, a *answer) {
	t.Helper()
	if err := g.run.Start(ctx, a.watch(j), a.end); err != nil {
		t.Fatal(err)
	}
}

// mixed is a random job of a drafter's kind; long enough prompts have a part that
// can be copied.
func mixed(rng *rand.Rand, g *rig) Job {
	vocab := int32(min(g.model.Vocab, 250))
	prompt := make([]int32, 1+rng.IntN(170))
	for i := range prompt {
		prompt[i] = 1 + rng.Int32N(vocab-1)
		if i >= 20 {
			prompt[i] = prompt[i-20+rng.IntN(30)/29]
		}
	}
	j := Job{Prompt: prompt, MaxTokens: 1 + rng.IntN(30), Logprobs: -1, NoStore: true, Mode: []Mode{Baseline, Lookup, Draft}[rng.IntN(3)], Cap: 1 + rng.IntN(6), LongLookup: 9}
	if g.run.drafter == nil && j.Mode == Draft {
		j.Mode = Lookup
	}
	j.Lookup = rng.IntN(3) == 0
	if rng.IntN(4) == 0 {
		j.Logprobs = rng.IntN(3)
	}
	if rng.IntN(4) == 0 && j.Mode == Draft {
		j.Threshold = 0.2
	}
	if rng.IntN(2) == 0 {
		seed := rng.Uint64()
		j.Params = sample.Params{Temperature: 0.6 + rng.Float64(), TopP: 0.95, TopK: 40, Seed: &seed}
	}
	if rng.IntN(4) == 0 {
		j.Params.PresencePenalty, j.Params.FrequencyPenalty = 0.4, 0.3
	}
	return j
}

// Whatever runs beside it, comes, goes or fails, a job gives token for token and
// round for round what it gives alone.
func TestBatchIdentity(t *testing.T) {
	t.Parallel()
	const checkpoints, families = specDir + "/checkpoints/", "../testdata/models/"
	most, cancelled, stopped, together := 0, 0, 0, 0
	for n, c := range []struct {
		target, drafter string
		o               Options
	}{
		{checkpoints + "target_qwen3", checkpoints + "dspark_deepspec", Options{}},
		{checkpoints + "target_gemma4", checkpoints + "dspark_gemma4", Options{}},   // windows
		{checkpoints + "hybrid_qwen3_5", checkpoints + "hybrid_qwen3_5", Options{}}, // state on both sides
		{checkpoints + "target_qwen3", checkpoints + "dflash1", Options{}},
		{checkpoints + "target_qwen3", checkpoints + "dflash2", Options{}},
		{checkpoints + "target_qwen3", checkpoints + "dspark_redhat", Options{}}, // causal, a window, the target's head
		{checkpoints + "target_qwen3", checkpoints + "dspark_reduced", Options{}},
		{checkpoints + "hybrid_nemotron_h", checkpoints + "hybrid_qwen3_5", Options{}}, // mostly wrong
		{families + "lfm2/dense", families + "lfm2/dense", Options{}},                  // convolutions
		{families + "gpt_oss/moe", families + "gpt_oss/moe", Options{}},                // experts, windows, sinks
		{families + "deepseek_v3/mla", "", Options{}},                                  // latent attention
		{families + "qwen3/kvquant", "", Options{KVBits: 8, KVGroup: 32}},
	} {
		for _, b := range backends(t) {
			if b.Name() == "reference" && n%3 != 0 || testmodel.Race && (n > 3 || b.Name() == "reference") {
				continue
			}
			rng := rand.New(rand.NewPCG(uint64(n), 7))
			g := open(t, b, c.target, c.drafter, 0, nil)
			o := c.o
			o.Positions, o.Stored, o.Running, o.Chunk = 2048, 2, 2+(n+3)%7, 24
			if o.KVBits > 0 && g.model.Caches[0].KDim%o.KVGroup != 0 {
				t.Fatal("heads are not whole groups")
			}
			r, err := New(b, g.model, g.run.drafter, o)
			if err != nil {
				t.Fatal(err)
			}
			g.run.t.close() // the new runner has the drafter
			g.run = r

			jobs := make([]Job, 12)
			alone := make([]*answer, len(jobs))
			for i := range jobs {
				jobs[i], alone[i] = mixed(rng, g), &answer{}
				limit := rng.IntN(20)
				until := func() func([]Token) bool {
					n := 0
					return func(ts []Token) bool { n += len(ts); return n > limit }
				}
				if i%4 == 3 { // one that is ended by whoever reads it
					jobs[i].Emit = until()
					stopped++
				}
				out, err := g.run.Generate(context.Background(), alone[i].watch(jobs[i]))
				alone[i].end(out, err)
				if i%4 == 3 {
					jobs[i].Emit = until()
				}
			}
			got := make([]*answer, len(jobs))
			type victim struct {
				cancel context.CancelFunc
				steps  int
				*answer
			}
			var victims []*victim
			next := 0
			for next < len(jobs) || g.run.Active() > 0 {
				for next < len(jobs) && g.run.Active() < o.Running && rng.IntN(3) > 0 {
					got[next] = &answer{}
					j := jobs[next]
					// What others store, and reuse, changes no greedy text.
					if j.Params.Temperature == 0 && next%2 == 0 {
						j.NoStore = false
					}
					g.start(t, context.Background(), j, got[next])
					next++
				}
				if g.run.Active() < o.Running && rng.IntN(6) == 0 && next < len(jobs) {
					v := &victim{steps: rng.IntN(9), answer: &answer{}}
					ctx, cancel := context.WithCancel(context.Background())
					v.cancel = cancel
					j := mixed(rng, g)
					j.MaxTokens, j.NoStore = 60, rng.IntN(2) == 0
					g.start(t, ctx, j, v.answer)
					victims = append(victims, v)
				}
				most = max(most, g.run.Active())
				for _, v := range victims {
					if v.steps--; v.steps == 0 {
						v.cancel()
					}
				}
				g.run.Step()
				for _, v := range victims {
					if v.steps == 0 && !v.over || v.over && v.err != nil && !errors.Is(v.err, context.Canceled) {
						t.Errorf("%d: over %v, %v after it was cancelled", n, v.over, v.err)
					}
				}
			}
			for _, v := range victims {
				v.cancel()
				if v.err != nil {
					cancelled++
				}
			}
			for i, a := range got {
				if !a.over || a.err != nil {
					t.Errorf("case %d, job %d: over %v, %v", n, i, a.over, a.err)
				} else if jobs[i].Params.Temperature == 0 && i%2 == 0 {
					if !slices.Equal(a.out.Tokens, alone[i].out.Tokens) {
						t.Errorf("case %d %s, job %d with a store: %v, alone %v", n, b.Name(), i, a.out.Tokens, alone[i].out.Tokens)
					}
				} else if !a.same(alone[i]) {
					t.Errorf("case %d %s, job %d %+v:\n got %v %v\nwant %v %v", n, b.Name(), i, jobs[i].Mode, a.out, a.rounds, alone[i].out, alone[i].rounds)
				}
				together++
			}
			g.run.Store().Clear()
			empty(t, g)
		}
	}
	t.Logf("up to %d at once, %d compared, %d cancelled, %d stopped", most, together, cancelled, stopped)
	if most < 6 || cancelled < 2 || stopped < together/10 {
		t.Errorf("up to %d at once, %d cancelled, %d stopped: too few to mean anything", most, cancelled, stopped)
	}
}

// With costs, drafts are shared out; texts, and the rounds of those whose seed
// promises the same tokens, stay. A drafter that was passed over for a while knows
// what it missed when it is asked again.
func TestSharedDrafts(t *testing.T) {
	t.Parallel()
	free := &calibrate.Costs{Verify: calibrate.Constant(10), Drafter: calibrate.Constant(0.1)}
	dear := &calibrate.Costs{Verify: calibrate.NewCurve(map[int]float64{1: 10, 2: 20}), Drafter: calibrate.Constant(5)}
	for _, drafter := range []string{"dspark_deepspec", "dflash1", "dflash2", "target_qwen3"} {
		b := backends(t)[1]
		g := open(t, b, specDir+"/checkpoints/target_qwen3", specDir+"/checkpoints/"+drafter, 0, nil)
		g.run.lateRows = 24 // less than some jobs put off
		seed := uint64(5)
		var jobs [5]Job
		var want [5]answer
		drafts := map[[2]int]int32{} // the first one, by job and position
		for i := range jobs {
			jobs[i] = Job{Prompt: ids(texts[i%len(texts)]), MaxTokens: 150, Logprobs: -1, NoStore: true, Mode: Draft, Cap: 5}
			if i == 4 {
				jobs[i].Params = sample.Params{Temperature: 0.8, TopP: 1, Seed: &seed}
			}
			for cap := 1; cap <= 5; cap++ {
				j, a := jobs[i], &answer{}
				j.Cap = cap
				j = a.watch(j)
				note := j.Round
				j.Round = func(r Round) {
					if len(r.Draft) > 0 {
						drafts[[2]int{i, len(a.tokens)}] = r.Draft[0]
					}
					note(r)
				}
				a.end(g.run.Generate(context.Background(), j))
				if cap == 5 {
					want[i] = *a
				}
			}
		}
		got := make([]answer, len(jobs))
		rounds, drafted, again, parked := 0, 0, 0, 0
		for i := range jobs {
			a := &got[i]
			j := a.watch(jobs[i])
			note := j.Round
			j.Round = func(r Round) {
				note(r)
				if i == 4 {
					return
				}
				first, known := drafts[[2]int{i, len(a.tokens)}]
				rounds++
				if len(r.Draft) > 0 {
					drafted++
				}
				if known && len(r.Draft) > 0 {
					again++
					if r.Draft[0] != first {
						t.Errorf("%s, job %d drafts %v after %d tokens, alone %d", drafter, i, r.Draft, len(a.tokens), first)
					}
				} else if len(r.Draft) == 0 {
					parked++
				}
			}
			if err := g.run.Start(context.Background(), j, a.end); err != nil {
				t.Fatal(err)
			}
		}
		for step := 0; g.run.Active() > 0; step++ {
			g.run.SetCosts(dear)
			if step%30 > 25 {
				g.run.SetCosts(free)
			}
			if step > 110 {
				g.run.SetCosts(dear) // long enough for what is put off to be too much
			}
			g.run.Step()
		}
		g.run.SetCosts(nil)
		for i := range got {
			if !slices.Equal(got[i].out.Tokens, want[i].out.Tokens) || i == 4 && !got[i].same(&want[i]) {
				t.Errorf("%s, job %d: %v, alone %v", drafter, i, got[i].out, want[i].out)
			}
		}
		t.Logf("%s: %d rounds, %d with drafts, %d known, %d parked", drafter, rounds, drafted, again, parked)
		if parked < rounds/3 || again < 8 {
			t.Errorf("%s: %d rounds, %d with drafts, %d known, %d parked: too few to mean anything", drafter, rounds, drafted, again, parked)
		}
		empty(t, g)
	}
}

// empty fails if a cache holds anything.
func empty(t *testing.T, g *rig) {
	t.Helper()
	caches := []*cache.Cache{g.run.Cache()}
	if d := g.run.Drafter(); d != nil && d.Cache() != nil {
		caches = append(caches, d.Cache())
	}
	for i, c := range caches {
		if used, _ := c.Pages(); used != 0 || c.Slots() != 0 {
			t.Errorf("cache %d: %d pages and %d slots are in use", i, used, c.Slots())
		}
	}
}

// The reference's batches, with as many at once: each row's text, rounds and
// forwards.
func TestBatchGoldens(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(specDir + "/batch_[bs]*.json")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		var doc struct {
			Drafter  string
			Capacity int
			Cap      int
			Prompts  [][]int32
			Max      []int     `json:"max_new_tokens"`
			Single   [][]int32 `json:"greedy_single"`
			Results  []json.RawMessage
		}
		readJSON(t, file, &doc)
		for _, b := range backends(t) {
			w := way{mode: Baseline}
			if doc.Drafter != "" {
				w = way{dir: specDir + "/checkpoints/" + doc.Drafter, mode: Draft}
			} else {
				doc.Capacity = len(doc.Prompts) // a static batch
			}
			g := w.open(t, b)
			g.run.opts.Running = doc.Capacity
			answers := make([]*answer, len(doc.Prompts))
			most, next := 0, 0
			for next < len(answers) || g.run.Active() > 0 {
				for next < len(answers) && g.run.Active() < doc.Capacity {
					answers[next] = &answer{}
					j := w.job(doc.Prompts[next], doc.Max[next], doc.Cap)
					j.End = map[int32]bool{258: true}
					g.start(t, context.Background(), j, answers[next])
					next++
				}
				most = max(most, g.run.Active())
				g.run.Step()
			}
			if most != doc.Capacity {
				t.Errorf("%s: up to %d at once, wants %d", filepath.Base(file), most, doc.Capacity)
			}
			for i, a := range answers {
				var want struct {
					Tokens   []int32 `json:"token_ids"`
					Accepts  []int   `json:"accept_lengths"`
					Forwards int     `json:"target_forwards"`
				}
				if doc.Single == nil {
					if err := json.Unmarshal(doc.Results[i], &want.Tokens); err != nil {
						t.Fatal(err)
					}
					want.Forwards = len(want.Tokens)
				} else {
					if err := json.Unmarshal(doc.Results[i], &want); err != nil {
						t.Fatal(err)
					}
					want.Tokens = doc.Single[i] // the reference overshoots in the last round
				}
				if a.err != nil || !slices.Equal(a.out.Tokens, want.Tokens) || a.out.TargetForwards != want.Forwards {
					t.Errorf("%s, row %d: %v in %d forwards (%v), wants %v in %d", filepath.Base(file), i, a.out.Tokens, a.out.TargetForwards, a.err, want.Tokens, want.Forwards)
				}
				if want.Accepts != nil && len(a.rounds) != len(want.Accepts) {
					t.Errorf("%s, row %d: %d rounds, wants %v", filepath.Base(file), i, len(a.rounds), want.Accepts)
				}
			}
		}
	}
}

// What the reference's masks of a batch show, the visible ranges of ragged rows
// show: verify rows see what lies before them, a drafter's block sees the context
// of its own sequence and all of itself.
func TestBatchMasks(t *testing.T) {
	t.Parallel()
	type mask [][][][]int // [row of the batch][1][query][column]
	var doc struct {
		Verify []struct {
			Offsets []int
			T       int
			Mask    mask
		} `json:"verify_mask"`
		Drafter []struct {
			Lens  []int
			Block int
			Mask  mask
		} `json:"drafter_mask"`
	}
	readJSON(t, specDir+"/batch_masks.json", &doc)
	if len(doc.Verify) < 2 || len(doc.Drafter) < 2 {
		t.Fatal(len(doc.Verify), len(doc.Drafter))
	}
	b := compute.NewReference()
	c, err := cache.New(b, []compute.CacheSpec{{Kind: compute.CacheFull, Heads: 1, KDim: 4, VDim: 4}}, cache.Options{Type: layout.F32, Positions: 512, Sequences: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	params := compute.NewParams(b)
	t.Cleanup(params.Close)
	check := func(lens []int, rows int, block bool, m mask, ahead int) {
		t.Helper()
		var parts []cache.Part
		for _, n := range lens {
			q, err := c.NewSeq()
			if err == nil {
				err = q.Reserve(n)
			}
			if err != nil {
				t.Fatal(err)
			}
			q.Advance(n)
			parts = append(parts, cache.Part{Seq: q, N: rows, Block: block, Verify: true})
		}
		var p compute.Program
		params.Next()
		st, err := c.Plan(&p, params, parts)
		if err != nil {
			t.Fatal(err)
		}
		lo, hi := st.Layers[0].Pages.Lo.I32(0), st.Layers[0].Pages.Hi.I32(0)
		for s, n := range lens {
			for i := range rows {
				row := m[s][0][i]
				got := make([]int, len(row))
				for at := lo[s*rows+i]; at < hi[s*rows+i]; at++ {
					column := int(at)
					if block && column >= n { // the mask has the block after the longest context
						column += ahead - n
					}
					got[column] = 1
				}
				if !slices.Equal(got, row) {
					t.Errorf("lengths %v, row %d of %d: sees %v, wants %v", lens, i, s, got, row)
				}
			}
			parts[s].Seq.Close()
		}
	}
	for _, x := range doc.Verify {
		check(x.Offsets, x.T, false, x.Mask, 0)
	}
	for _, x := range doc.Drafter {
		check(x.Lens, x.Block, true, x.Mask, slices.Max(x.Lens))
	}
}

// A long prompt holds the answers beside it up by one chunk at most: every step
// moves each of them on. Long prompts take turns, too.
func TestPromptsHoldNobodyUp(t *testing.T) {
	t.Parallel()
	b := compute.NewReference()
	g := way{}.open(t, b)
	g.run.opts.Chunk, g.run.chunk = 32, 32
	var answers, prompts [2]answer
	for i := range answers {
		g.start(t, context.Background(), Job{Prompt: span(i, 5), MaxTokens: 400, Logprobs: -1, NoStore: true, Mode: Baseline}, &answers[i])
	}
	g.run.Step()
	var read [2]int
	for i := range prompts {
		j := Job{Prompt: span(10+i, 300), MaxTokens: 5, Logprobs: -1, NoStore: true, Mode: Baseline}
		j.Prefill = func(done, _ int) { read[i] = done }
		g.start(t, context.Background(), j, &prompts[i])
	}
	steps := 0
	for !prompts[0].over || !prompts[1].over {
		before, was := [2]int{len(answers[0].tokens), len(answers[1].tokens)}, read
		g.run.Step()
		steps++
		for i := range answers {
			if n := len(answers[i].tokens) - before[i]; n != 1 {
				t.Fatalf("step %d moved answer %d on by %d tokens", steps, i, n)
			}
		}
		rows := read[0] - was[0] + read[1] - was[1]
		if rows > g.run.opts.Chunk {
			t.Fatalf("step %d read %d tokens of prompts", steps, rows)
		}
		if d := read[0] - read[1]; max(d, -d) > g.run.opts.Chunk && max(read[0], read[1]) < 300 {
			t.Fatalf("step %d: %d and %d tokens read", steps, read[0], read[1])
		}
	}
	if least := 600 / 32; steps < least {
		t.Errorf("%d steps", steps)
	}
	for g.run.Active() > 0 {
		g.run.Step()
	}
	empty(t, g)
}

// faulty is a drafter that fails for texts with one of two first tokens: it
// proposes nothing, or cannot read what was committed.
type faulty struct {
	draft.Drafter
	first [2]int32
}

var errFault = errors.New("a fault")

func (f *faulty) NewContext(from *cache.Seq) (draft.Context, error) {
	x, err := f.Drafter.NewContext(from)
	return &faultyContext{Context: x, f: f}, err
}

type faultyContext struct {
	draft.Context
	f   *faulty
	bad [2]bool
	n   int
}

func (x *faultyContext) Observe(tokens []int32, fused compute.View, stop *compute.Stop) error {
	for i, first := range x.f.first {
		x.bad[i] = x.bad[i] || x.n == 0 && tokens[0] == first
	}
	x.n += len(tokens)
	return x.Context.Observe(tokens, fused, stop)
}

func (x *faultyContext) Propose(r draft.Request) (draft.Proposal, error) {
	if x.bad[0] && x.n > 12 {
		return draft.Proposal{}, errFault
	}
	return x.Context.Propose(r)
}

func (x *faultyContext) Flush(stop *compute.Stop) error {
	if x.bad[1] && x.n > 12 {
		return errFault
	}
	return x.Context.Flush(stop)
}

// The failure of one job, of its drafter or for lack of memory, is nobody else's.
func TestFailuresAreAlone(t *testing.T) {
	t.Parallel()
	for _, b := range backends(t) {
		g := open(t, b, specDir+"/checkpoints/target_qwen3", specDir+"/checkpoints/dspark_deepspec", 0, func(d draft.Drafter) draft.Drafter { return &faulty{d, [2]int32{77, 78}} })
		j := Job{MaxTokens: 20, Logprobs: -1, NoStore: true, Mode: Draft, Cap: 4}
		var want [3]answer
		for i := range want {
			j.Prompt = span(i, 10+i)
			want[i].end(g.run.Generate(context.Background(), want[i].watch(j)))
		}
		var got [3]answer
		var bad, worse answer
		for i := range got {
			j.Prompt = span(i, 10+i)
			g.start(t, context.Background(), j, &got[i])
		}
		j.Prompt = append([]int32{77}, span(9, 9)...)
		g.start(t, context.Background(), j, &bad)
		j.Prompt = append([]int32{78}, span(9, 9)...)
		g.start(t, context.Background(), j, &worse)
		for g.run.Active() > 0 {
			g.run.Step()
		}
		for _, a := range []*answer{&bad, &worse} {
			if !errors.Is(a.err, errFault) || len(a.out.Tokens) == 0 {
				t.Errorf("the drafter's fault gives %v after %v", a.err, a.out.Tokens)
			}
		}
		for i := range got {
			if !got[i].same(&want[i]) {
				t.Errorf("job %d beside a fault: %v, alone %v", i, got[i], want[i])
			}
		}
		empty(t, g)

		// No page is left: who needs another one fails, who does not goes on.
		got, bad = [3]answer{}, answer{}
		for i := range got {
			j.Prompt = span(i, 10+i)
			g.start(t, context.Background(), j, &got[i])
		}
		j.Prompt, j.MaxTokens = span(7, compute.PageSize-8), 30
		g.start(t, context.Background(), j, &bad)
		g.run.Step()
		hold, err := g.run.Cache().NewSeq()
		if err != nil {
			t.Fatal(err)
		}
		for err = nil; err == nil; {
			err = hold.Reserve(compute.PageSize)
			hold.Advance(compute.PageSize)
		}
		for g.run.Active() > 0 {
			g.run.Step()
		}
		hold.Close()
		if !errors.Is(bad.err, cache.ErrFull) {
			t.Errorf("without a page left the job ends with %v", bad.err)
		}
		for i := range got {
			if !got[i].same(&want[i]) {
				t.Errorf("job %d beside one without memory: %v, alone %v", i, got[i], want[i])
			}
		}
		empty(t, g)
	}
}

// Jobs with different adapters run at once, in turn, each with its own weights.
func TestAdaptersInTurn(t *testing.T) {
	t.Parallel()
	for _, b := range backends(t) {
		g := open(t, b, adapterDir+"/model", adapterDir+"/model", 0, nil)
		adapters := []*arch.Adapter{nil}
		for _, name := range []string{"lora", "dora"} {
			a, err := arch.LoadAdapter(g.model, adapterDir+"/"+name)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			adapters = append(adapters, a)
		}
		var want, got [6]answer
		job := func(i int) Job {
			return Job{Prompt: span(i/3, 9), MaxTokens: 12, Logprobs: 1, Mode: []Mode{Baseline, Draft}[i%2], Cap: 3, Adapter: adapters[i%3]}
		}
		for i := range want {
			j := job(i)
			j.NoStore = true
			want[i].end(g.run.Generate(context.Background(), want[i].watch(j)))
		}
		for i := range got {
			g.start(t, context.Background(), job(i), &got[i])
		}
		for g.run.Active() > 0 {
			g.run.Step()
		}
		for i := range got {
			if !slices.Equal(got[i].out.Tokens, want[i].out.Tokens) || fmt.Sprint(got[i].tokens) != fmt.Sprint(want[i].tokens) {
				t.Errorf("%s, job %d: %v, alone %v", b.Name(), i, got[i], want[i])
			}
		}
		if slices.Equal(want[0].out.Tokens, want[2].out.Tokens) && slices.Equal(want[0].out.Tokens, want[1].out.Tokens) {
			t.Error("the adapters change nothing")
		}
	}
}

// What does not fit is refused, until others have ended.
func TestRoom(t *testing.T) {
	t.Parallel()
	g := way{}.open(t, compute.NewReference())
	g.run.opts.Running, g.run.opts.Positions = 3, 100
	j := Job{Prompt: span(1, 20), MaxTokens: 20, Logprobs: -1, NoStore: true, Mode: Baseline}
	var a [4]answer
	g.start(t, context.Background(), j, &a[0])
	g.start(t, context.Background(), j, &a[1])
	if err := g.run.Start(context.Background(), j, a[2].end); !errors.Is(err, ErrBusy) {
		t.Errorf("a job of 40 positions beside two such, of 100: %v", err)
	}
	j.MaxTokens = 0
	if err := g.run.Start(context.Background(), j, a[2].end); err == nil || errors.Is(err, ErrBusy) {
		t.Errorf("a bad job: %v", err)
	}
	j.MaxTokens = 1
	j.Prompt = span(1, 18)
	g.start(t, context.Background(), j, &a[2])
	j.Prompt = span(1, 1)
	if err := g.run.Start(context.Background(), j, a[3].end); !errors.Is(err, ErrBusy) {
		t.Errorf("a fourth job: %v", err)
	}
	for g.run.Active() > 0 {
		g.run.Step()
	}
	g.start(t, context.Background(), j, &a[3])
}
