package decode_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"sparkbar/engine/arch"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/decode"
	"sparkbar/engine/draft"
	"sparkbar/engine/testbench"
	"sparkbar/engine/testneed"
)

// The tests of this file measure: `make bench` runs them on a machine that rests.
// They never fail because of a time. Ways of answering are compared in lanes: each
// has a runner of its own and a clock that goes only while that runner works, and
// the lane whose clock is behind makes the next step. So what disturbs the machine
// disturbs all of them alike.

// smolBench is SmolLM2 with its DSpark head, for lanes.
type smolBench struct {
	*testing.T
	b    compute.Backend
	m    *arch.Model
	head *checkpoint.Checkpoint
}

func openSmolBench(t *testing.T) *smolBench {
	testbench.Need(t)
	dir := testneed.SmolLM2(t)
	s := &smolBench{T: t}
	var err error
	if s.b, err = cpu.New(cpu.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.b.Close() })
	open := func(path string) *checkpoint.Checkpoint {
		c, err := checkpoint.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	if s.m, err = arch.Load(open(filepath.Join(dir, "mlx")), s.b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.m.Close)
	s.head = open("../testdata/smollm2/dspark")
	return s
}

// prompts are the twenty that the controller was tuned on, and twenty others.
func (s *smolBench) prompts() (tuned, others [][]int32) {
	type prompt struct {
		IDs []int32 `json:"prompt_ids"`
	}
	var golden struct{ Cases []prompt }
	var trained struct{ Prompts []prompt }
	var varied []prompt
	for name, v := range map[string]any{"smollm2.json": &golden, "smollm2_expected.json": &trained, "varied.json": &varied} {
		text, err := os.ReadFile("../testdata/smollm2/" + name)
		if err == nil {
			err = json.Unmarshal(text, v)
		}
		if err != nil {
			s.Fatal(name, err)
		}
	}
	for _, p := range append(golden.Cases, trained.Prompts...) {
		tuned = append(tuned, p.IDs)
	}
	for _, p := range varied {
		others = append(others, p.IDs)
	}
	if len(tuned) != 20 || len(others) != 20 {
		s.Fatal(len(tuned), len(others))
	}
	return tuned, others
}

// lane is one way of answering.
type lane struct {
	s       *smolBench
	r       *decode.Runner
	job     decode.Job
	streams int

	own  time.Duration // its clock, without the step in progress,
	from time.Time     // which began then

	running []*answer
	// Of steps in which nobody read a prompt.
	took   time.Duration
	tokens int
	rounds []round // of one stream
}

// round is the time of one.
type round struct {
	prompt int
	kind   kind
	took   time.Duration
}

// kind is what is the same work in all answers. The first drafts of an answer are a
// kind of their own, as the drafter has rested before them. Rounds that read a prompt
// are as many kinds as there are prompts.
type kind struct {
	source decode.Source
	drafts int
	first  bool
	reads  int // number of the prompt and 1; 0: an answer
}

// answer is one of a lane's.
type answer struct {
	prompt  int
	tokens  []int32
	over    bool
	drafted bool
	kind    kind // of the last round
}

// lane opens one of so many streams, with speculation or without.
func (s *smolBench) lane(streams int, speculate bool) *lane {
	o := decode.Options{Positions: streams * 256, Running: streams}
	l := &lane{s: s, streams: streams, job: decode.Job{Mode: decode.Baseline}}
	var d draft.Drafter
	var err error
	if speculate {
		if d, err = draft.Open(s.head, draft.Host{Model: s.m, Backend: s.b, Positions: o.Positions + 64, Sequences: 2*streams + 2, Window: 4096, Bits: 4, Frequent: draft.Frequent(s.m.Vocab), Spare: draft.Spare}); err != nil {
			s.Fatal(err)
		}
	}
	if l.r, err = decode.New(s.b, s.m, d, o); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(l.r.Close)
	if speculate {
		costs, err := l.r.Measure(context.Background())
		if err != nil {
			s.Fatal(err)
		}
		text, _ := json.Marshal(costs)
		s.Logf("costs %s", text)
		l.r.SetCosts(costs)
		l.job = decode.Job{Mode: decode.Draft, Lookup: true, Controller: calibrate.NewController(costs, calibrate.ControllerConfig{MaxCap: d.MaxDraft(), Park: true, Patient: true})}
	}
	began := time.Now()
	l.r.SetClock(func() time.Time {
		t := l.own
		if !l.from.IsZero() {
			t += time.Since(l.from)
		}
		return began.Add(t)
	})
	return l
}

// start begins an answer of up to 64 tokens.
func (l *lane) start(prompt int, ids []int32) {
	a := &answer{prompt: prompt}
	j := l.job
	j.Prompt, j.MaxTokens, j.End, j.Logprobs, j.NoStore = ids, 64, map[int32]bool{2: true}, -1, true
	j.Round = func(r decode.Round) {
		a.kind = kind{source: r.Source, drafts: len(r.Draft), first: r.Source == decode.FromDrafter && !a.drafted}
		a.drafted = a.drafted || a.kind.first
	}
	j.Emit = func(ts []decode.Token) bool {
		for _, t := range ts {
			a.tokens = append(a.tokens, t.ID)
		}
		return false
	}
	l.running = append(l.running, a)
	if err := l.r.Start(context.Background(), j, func(_ decode.Outcome, err error) {
		if a.over = true; err != nil {
			l.s.Fatal(err)
		}
	}); err != nil {
		l.s.Fatal(err)
	}
}

// step makes one step and returns the answers that it ended.
func (l *lane) step() (ended []*answer) {
	reading := slices.ContainsFunc(l.running, func(a *answer) bool { return len(a.tokens) == 0 })
	count := func() (n int) {
		for _, a := range l.running {
			n += len(a.tokens)
		}
		return n
	}
	before := count()
	l.from = time.Now()
	l.r.Step()
	took := time.Since(l.from)
	l.own, l.from = l.own+took, time.Time{}
	if !reading {
		l.took += took
		l.tokens += count() - before
	}
	if l.streams == 1 {
		a := l.running[0]
		k := a.kind
		if reading {
			k = kind{reads: a.prompt + 1}
		}
		l.rounds = append(l.rounds, round{a.prompt, k, took})
	}
	l.running = slices.DeleteFunc(l.running, func(a *answer) bool {
		if a.over {
			ended = append(ended, a)
		}
		return a.over
	})
	return ended
}

// behind is the lane with the earliest clock of those that have something to do.
func behind(lanes []*lane) (next *lane) {
	for _, l := range lanes {
		if len(l.running) > 0 && (next == nil || l.took < next.took) {
			next = l
		}
	}
	return next
}

// known checks that every answer to a prompt is the same.
type known map[int][]int32

func (k known) check(s *smolBench, a *answer) {
	if want, ok := k[a.prompt]; !ok {
		k[a.prompt] = a.tokens
	} else if !slices.Equal(a.tokens, want) {
		s.Errorf("prompt %d is answered %v and %v", a.prompt, a.tokens, want)
	}
}

// undisturbed is the time of each lane for each prompt if a round counts as so many
// times the median of its kind at most: of its answers, and with that for reading it.
// All lanes are cut by the same medians.
func undisturbed(lanes []*lane, prompts int, most float64) (answers, whole [][]time.Duration) {
	kinds := map[kind][]time.Duration{}
	for _, l := range lanes {
		for _, r := range l.rounds {
			kinds[r.kind] = append(kinds[r.kind], r.took)
		}
	}
	longest := map[kind]time.Duration{}
	for k, list := range kinds {
		slices.Sort(list)
		longest[k] = time.Duration(most * float64(list[len(list)/2]))
	}
	for range prompts {
		answers, whole = append(answers, make([]time.Duration, len(lanes))), append(whole, make([]time.Duration, len(lanes)))
	}
	for k, l := range lanes {
		for _, r := range l.rounds {
			took := min(r.took, longest[r.kind])
			if r.kind.reads == 0 {
				answers[r.prompt][k] += took
			}
			whole[r.prompt][k] += took
		}
	}
	return answers, whole
}

// TestBenchDrafter: one stream with the head and the cap chosen on the way, beside
// two without: the second says what the machine alone makes of such a comparison.
func TestBenchDrafter(t *testing.T) {
	s := openSmolBench(t)
	// Sweeps over the prompts; short answers are repeated, up to so many times, until
	// they are as many tokens as the long ones.
	const sweeps, repeats = 10, 4
	const disturbed = 1.25
	tuned, others := s.prompts()
	var figures []testbench.Figure
	for _, list := range []struct {
		name    string
		prompts [][]int32
		want    string
		worst   string
	}{{"prompts that the choice was tuned on", tuned, ">= 1.2", ">= 0.97"}, {"other prompts", others, "", ">= 0.97"}} {
		lanes := []*lane{s.lane(1, false), s.lane(1, false), s.lane(1, true)}
		runs := make([]int, len(list.prompts))
		answers := known{}
		for n := range sweeps {
			for i, p := range list.prompts {
				again := 1
				for k := 0; k < again; k++ {
					for _, l := range lanes {
						l.start(i, p)
						l.took = 0
					}
					turn := []*lane{lanes[(n+k)%3], lanes[(n+k+1)%3], lanes[(n+k+2)%3]}
					for l := behind(turn); l != nil; l = behind(turn) {
						for _, a := range l.step() {
							answers.check(s, a)
						}
					}
					runs[i]++
					again = min(repeats, 64/max(1, len(answers[i])))
				}
			}
		}
		// One answer of each prompt, in all.
		sum := func(times [][]time.Duration) (all [3]float64) {
			for i, x := range times {
				for k := range x {
					all[k] += x[k].Seconds() / float64(runs[i])
				}
			}
			return all
		}
		gain := func(x [3]float64) float64 { return (x[0] + x[1]) / 2 / x[2] }
		times, whole := undisturbed(lanes, len(list.prompts), disturbed)
		uncut, _ := undisturbed(lanes, len(list.prompts), 1e9)
		all, raw, read := sum(times), sum(uncut), sum(whole)
		var ratios []float64
		least, at, same, leastRead := 10.0, 0, 10.0, 10.0
		for i, x := range times {
			r, control := float64(x[0]+x[1])/2/float64(x[2]), float64(x[0])/float64(x[1])
			leastRead = min(leastRead, float64(whole[i][0]+whole[i][1])/2/float64(whole[i][2]))
			t.Logf("%s, %d: %.3f x, plain over plain %.3f, %d tokens in %v, %d times", list.name, i, r, control, len(answers[i]), (x[0]+x[1])/2/time.Duration(runs[i]), runs[i])
			if ratios = append(ratios, r); r < least {
				least, at = r, i
			}
			same = min(same, control, 1/control)
		}
		slices.Sort(ratios)
		figures = append(figures,
			testbench.Figure{Name: list.name, Value: gain(all), Unit: "x", Want: list.want, Note: fmt.Sprintf("plain over plain %.3f; with all that disturbed %.2f and %.3f", all[0]/all[1], gain(raw), raw[0]/raw[1])},
			testbench.Figure{Name: "the median of them", Value: ratios[len(ratios)/2], Unit: "x"},
			testbench.Figure{Name: "the worst of them", Value: least, Unit: "x", Want: list.worst, Note: fmt.Sprintf("number %d; of plain over plain %.3f", at, same)},
			testbench.Figure{Name: "all with the reading of their prompts", Value: gain(read), Unit: "x", Note: fmt.Sprintf("the worst %.3f", leastRead)})
	}
	testbench.Write(t, "drafter", "SmolLM2 with its DSpark head", fmt.Sprintf("Two lists of 20 prompts, up to 64 tokens, the cap chosen on the way, copies from the context as by default; decoding time of %d runs (short answers up to %d times as many), plain over speculative, round by round in turns. So that a few rounds that something else held up do not decide, a round counts as %.2f times the median of its kind at most; kinds are rounds without drafts, those with as many drafts of the same source, and an answer's first ones of the drafter. Prompts are read before, by the drafter too; with that time the ratio stands beside. Two plain lanes run beside each other, to show what is noise.", sweeps, repeats, disturbed), figures)
}

// TestBenchStreams: several answers at once, with speculation and without.
func TestBenchStreams(t *testing.T) {
	s := openSmolBench(t)
	const each = 9 * time.Second
	tuned, others := s.prompts()
	prompts := append(tuned, others...)
	var lanes []*lane
	for _, speculate := range []bool{false, true} {
		for _, n := range []int{1, 4, 8} {
			lanes = append(lanes, s.lane(n, speculate))
		}
	}
	next := make(map[*lane]int)
	answers := known{}
	for {
		l := lanes[0]
		for _, o := range lanes {
			if o.took < l.took {
				l = o
			}
		}
		if l.took >= each {
			break
		}
		for len(l.running) < l.streams {
			i := next[l] % len(prompts)
			l.start(i, prompts[i])
			next[l]++
		}
		for _, a := range l.step() {
			answers.check(s, a)
		}
	}
	rate := func(l *lane) float64 { return float64(l.tokens) / l.took.Seconds() }
	plain, spec := lanes[:3], lanes[3:]
	figures := []testbench.Figure{
		{Name: "one plain stream", Value: rate(plain[0]), Unit: "tok/s"},
		{Name: "one stream with speculation", Value: rate(spec[0]), Unit: "tok/s"},
	}
	for i, want := range []string{"", ">= 2.5", ">= 3.5"} {
		if want == "" {
			continue
		}
		n, best := plain[i].streams, max(rate(plain[i]), rate(spec[0]))
		figures = append(figures,
			testbench.Figure{Name: fmt.Sprintf("%d plain streams", n), Value: rate(plain[i]), Unit: "tok/s"},
			testbench.Figure{Name: fmt.Sprintf("%d plain streams over one", n), Value: rate(plain[i]) / rate(plain[0]), Unit: "x", Want: want},
			testbench.Figure{Name: fmt.Sprintf("%d streams with speculation", n), Value: rate(spec[i]), Unit: "tok/s"},
			testbench.Figure{Name: fmt.Sprintf("%d streams with speculation over the best other", n), Value: rate(spec[i]) / best, Unit: "x", Want: ">= 0.97"})
	}
	testbench.Write(t, "streams", "Several answers at once", fmt.Sprintf("SmolLM2-135M (4-bit MLX) and its DSpark head, 40 prompts, up to 64 tokens each, always as many answers at once as it says; tokens of all per second of decoding (steps that read a prompt do not count), %.0f seconds of each way, step by step in turns. Every answer is the same in all ways. The best other way is the better of as many plain streams and of one with speculation.", each.Seconds()), figures)
}
