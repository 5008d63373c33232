package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/sample"
	"sparkbar/engine/telemetry"
)

func message(text string) engine.Prompt {
	b, _ := json.Marshal([]map[string]string{{"role": "user", "content": text}})
	return engine.Prompt{Messages: b}
}

// reference is the reference backend; in short runs, which are those under the
// race detector, the CPU backend, since the detector slows Go code tenfold.
func reference() (compute.Backend, error) {
	if testing.Short() {
		return cpu.New(cpu.Options{Exact: true})
	}
	return compute.NewReference(), nil
}

func kindOf(err error) engine.ErrorKind {
	var e *engine.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

func answer(t *testing.T, e *engine.Engine, r engine.Request) engine.Result {
	t.Helper()
	res, err := e.Generate(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestLimitsAreExact: max_tokens, stop strings and end tokens inside a drafted
// block cut the answer exactly where plain decoding cuts it.
func TestLimitsAreExact(t *testing.T) {
	plain, _ := demoEngine(t, reference, engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)})
	for _, load := range []engine.LoadRequest{{Mode: "dspark"}, {Mode: "dflash"}, {Mode: "lookup"}, {Mode: "dspark", ConfidenceThreshold: ptr(0.5)}} {
		load.Warmup = ptr(false)
		spec, _ := demoEngine(t, reference, load)
		for _, stop := range [][]string{nil, {"drafter"}, {" tokens ahead"}, {"a", "guess"}, {"nowhere in the text"}} {
			for n := 1; n <= 40; n += 3 {
				r := engine.Request{ID: "r", Prompt: message("What is speculative decoding?"), MaxTokens: n, Stop: stop, Logprobs: 2}
				want, got := answer(t, plain, r), answer(t, spec, r)
				if got.Text != want.Text || got.FinishReason != want.FinishReason || got.StopString != want.StopString || len(got.Tokens) != len(want.Tokens) {
					t.Fatalf("%s, %d tokens, stop %q: %q (%s, %d tokens), plain %q (%s, %d tokens)", load.Mode, n, stop,
						got.Text, got.FinishReason, len(got.Tokens), want.Text, want.FinishReason, len(want.Tokens))
				}
				if len(got.Tokens) > n || got.Stats.CompletionTokens != len(got.Tokens) {
					t.Fatalf("%d tokens for a limit of %d, usage says %d", len(got.Tokens), n, got.Stats.CompletionTokens)
				}
				for _, s := range stop {
					if strings.Contains(got.Text, s) {
						t.Fatalf("stop string %q leaked into %q", s, got.Text)
					}
				}
				for i := range got.Tokens {
					if a, b := got.Tokens[i], want.Tokens[i]; a.ID != b.ID || a.Logprob != b.Logprob || fmt.Sprint(a.Top) != fmt.Sprint(b.Top) {
						t.Fatalf("token %d is %+v, plain %+v", i, a, b)
					}
				}
			}
		}
	}
}

// TestPenaltiesInEveryMode: penalties, bias and min_p change the answer, and
// alike in every mode.
func TestPenaltiesInEveryMode(t *testing.T) {
	plain, _ := demoEngine(t, reference, engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)})
	request := engine.Request{ID: "r", Prompt: message("Tell me a story"), MaxTokens: 40, Logprobs: -1}
	base := answer(t, plain, request).Text
	params := []sample.Params{{PresencePenalty: 2}, {FrequencyPenalty: 1.5}, {RepetitionPenalty: 1.6}, {RepetitionPenalty: 1.6, RepetitionContextSize: ptr(8)}, {LogitBias: map[int32]float64{300: 30}}}
	for _, mode := range []string{"dspark", "dflash", "lookup"} {
		spec, _ := demoEngine(t, reference, engine.LoadRequest{Mode: mode, Warmup: ptr(false)})
		for i, p := range params {
			r := request
			r.Sampling.Params = p
			want, got := answer(t, plain, r), answer(t, spec, r)
			if got.Text != want.Text {
				t.Errorf("%s, options %d: %q\nplain: %q", mode, i, got.Text, want.Text)
			}
			if want.Text == base {
				t.Errorf("options %d change nothing", i)
			}
		}
	}
}

// TestStates: load, swap, cancel and unload pass through the documented states,
// each told on the bus, and requests are refused with the right kind.
func TestStates(t *testing.T) {
	block := make(chan struct{})
	var slow sync.Once
	e, _ := demoEngine(t, reference, engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)})
	sub := e.Events().Subscribe(256)
	defer sub.Close()
	ctx := context.Background()

	if _, err := e.Unload(ctx); err != nil {
		t.Fatal(err)
	}
	_, err := e.Generate(ctx, engine.Request{Prompt: message("hi"), Logprobs: -1}, nil)
	if kindOf(err) != engine.ErrNoModel {
		t.Errorf("without a model: %v", err)
	}
	if _, err := e.CountTokens(ctx, "", message("hi")); kindOf(err) != engine.ErrNoModel {
		t.Errorf("counting without a model: %v", err)
	}
	if e.CancelLoad(false) {
		t.Error("cancelled a load that is not there")
	}
	if _, err := e.LoadFrom(ctx, engine.LoadRequest{Model: "demo", Mode: "dspark"}); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for len(seen) == 0 || seen[len(seen)-1] != string(engine.StateReady) {
		ev, err := sub.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := ev.Data.(engine.Status); ok && (len(seen) == 0 || seen[len(seen)-1] != string(s.State)) {
			seen = append(seen, string(s.State))
		}
	}
	if got := strings.Join(seen, " "); got != "unloading idle resolving loading warming ready" {
		t.Errorf("states %s", got)
	}

	// A swap that is cancelled leaves the old model as it was.
	before := e.Status().Model
	blocking := engine.New(engine.Options{Backend: func() (compute.Backend, error) {
		slow.Do(func() { <-block })
		return reference()
	}, Builtins: demoBuiltins()})
	defer blocking.Close(ctx)
	if _, err := blocking.StartLoad(engine.LoadRequest{Model: "demo"}); err != nil {
		t.Fatal(err)
	}
	if _, err := blocking.StartLoad(engine.LoadRequest{Model: "demo"}); kindOf(err) != engine.ErrBusy {
		t.Errorf("a second load: %v", err)
	}
	if _, err := blocking.Generate(ctx, engine.Request{Prompt: message("hi"), Logprobs: -1}, nil); kindOf(err) != engine.ErrLoading {
		t.Errorf("while loading: %v", err)
	}
	watch := blocking.Events().Subscribe(64)
	if !blocking.CancelLoad(false) {
		t.Error("there was a load to cancel")
	}
	close(block)
	for {
		ev, err := watch.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := ev.Data.(engine.Status); ok && s.Loading == nil {
			if s.State != engine.StateIdle || !strings.Contains(s.LastError, "cancelled") {
				t.Errorf("after the cancel: %+v", s)
			}
			break
		}
	}
	if _, err := e.LoadFrom(ctx, engine.LoadRequest{Model: "demo", Mode: "draft"}); err == nil {
		t.Error("mode draft needs a drafter that the demo does not have")
	}
	if after := e.Status().Model; after == nil || *after != *before || e.Status().State != engine.StateReady {
		t.Errorf("a failed swap left %+v", e.Status())
	}
	answer(t, e, engine.Request{Prompt: message("hi"), MaxTokens: 3, Logprobs: -1})
}

// TestSwapUnderLoad: while a model answers, another is loaded; each request is
// answered by one of the two, completely.
func TestSwapUnderLoad(t *testing.T) {
	e, _ := demoEngine(t, reference, engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)})
	r := engine.Request{Prompt: message("What day comes after Monday?"), MaxTokens: 12, Logprobs: -1}
	want := answer(t, e, r).Text
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 6 {
				q := r
				q.Client = fmt.Sprint("client", i)
				res, err := e.Generate(context.Background(), q, nil)
				if err != nil || res.Text != want {
					t.Errorf("%q %v", res.Text, err)
				}
			}
		}()
	}
	for _, mode := range []string{"dspark", "lookup", "baseline", "dspark"} {
		if _, err := e.LoadFrom(context.Background(), engine.LoadRequest{Model: "demo", Mode: mode, Warmup: ptr(false)}); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if s := e.Status(); s.InFlight != 0 || s.Queued != 0 || s.Model.Mode != "dspark" {
		t.Errorf("%+v", s)
	}
}

// TestCancelWithinARound: a cancelled request ends before its tokens are out, in
// decoding, while it waits, and by an error of the receiver; the next one runs.
func TestCancelWithinARound(t *testing.T) {
	var b brake
	e, _ := demoEngine(t, b.on(reference), engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)})
	t.Cleanup(b.letGo)
	long := engine.Request{ID: "long", Prompt: message("Tell me a story"), MaxTokens: 80, IgnoreEnd: true, Logprobs: -1}

	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	b.put(20, time.Minute)
	_, err := e.Generate(ctx, long, func(d engine.Delta) error {
		if d.Text != "" {
			if n++; n == 3 {
				cancel()
			}
		}
		return nil
	})
	if kindOf(err) != engine.ErrCancelled {
		t.Errorf("cancelled: %v", err)
	}

	gone := errors.New("the client is gone")
	b.put(20, time.Minute)
	_, err = e.Generate(context.Background(), long, func(d engine.Delta) error { return gone })
	if kindOf(err) != engine.ErrCancelled || !errors.Is(err, gone) {
		t.Errorf("receiver failed: %v", err)
	}

	// One that has not begun leaves at once.
	b.put(2, time.Minute)
	ctx, cancel = context.WithCancel(context.Background())
	started := make(chan struct{})
	var once sync.Once
	release := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := e.Generate(context.Background(), engine.Request{Prompt: message("hi"), MaxTokens: 4, Logprobs: -1}, func(engine.Delta) error {
			once.Do(func() { close(started); <-release })
			return nil
		})
		done <- err
	}()
	<-started
	waiting := make(chan error, 1)
	go func() { _, err := e.Generate(ctx, long, nil); waiting <- err }()
	for s := e.Status(); s.Queued+s.InFlight < 2; s = e.Status() {
		time.Sleep(time.Millisecond)
	}
	cancel()
	b.letGo()
	close(release)
	if err := <-waiting; kindOf(err) != engine.ErrCancelled {
		t.Errorf("while waiting: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	answer(t, e, long)
}

// TestPrefixReuse: a conversation that goes on reuses what was read before, and
// its answer is the one of a cold start.
func TestPrefixReuse(t *testing.T) {
	for _, mode := range []string{"dspark", "dflash", "lookup", "baseline"} {
		warm, _ := demoEngine(t, reference, engine.LoadRequest{Mode: mode, Warmup: ptr(false)})
		turns := []map[string]string{{"role": "user", "content": "What is speculative decoding?"}}
		for i := range 3 {
			b, _ := json.Marshal(turns)
			r := engine.Request{Prompt: engine.Prompt{Messages: b}, MaxTokens: 30, Logprobs: -1}
			cold, _ := demoEngine(t, reference, engine.LoadRequest{Mode: mode, Warmup: ptr(false)})
			got, want := answer(t, warm, r), answer(t, cold, r)
			if got.Text != want.Text {
				t.Errorf("%s, turn %d: %q, cold %q", mode, i, got.Text, want.Text)
			}
			if reused := got.Stats.CachedTokens; (i > 0) != (reused > 0) {
				t.Errorf("%s, turn %d reused %d tokens", mode, i, reused)
			}
			turns = append(turns, map[string]string{"role": "assistant", "content": got.Text}, map[string]string{"role": "user", "content": "And then?"})
		}
	}
}

// TestContextWindow: a prompt that does not fit is refused in the agreed words;
// an answer ends at the window.
func TestContextWindow(t *testing.T) {
	e, _ := demoEngine(t, reference, engine.LoadRequest{Mode: "dspark", Warmup: ptr(false), ContextWindow: ptr(40)})
	_, err := e.Generate(context.Background(), engine.Request{Prompt: message(strings.Repeat("word ", 60)), Logprobs: -1}, nil)
	if kindOf(err) != engine.ErrContextLength || !strings.HasPrefix(err.Error(), "prompt is too long: ") || !strings.HasSuffix(err.Error(), " tokens > 40 maximum") {
		t.Errorf("%v", err)
	}
	res := answer(t, e, engine.Request{Prompt: message("What is speculative decoding?"), MaxTokens: 500, Logprobs: -1})
	if n := len(res.PromptTokens) + len(res.Tokens); n != 40 || res.FinishReason != engine.FinishLength {
		t.Errorf("%d positions, %s", n, res.FinishReason)
	}
}

// TestRounds: the round log agrees with the summary of the request.
func TestRounds(t *testing.T) {
	e, _ := demoEngine(t, reference, engine.LoadRequest{Mode: "dspark", Warmup: ptr(false), LookupDrafts: ptr(false), MaxDraft: ptr(7)}) // not what rounds cost here and now
	res := answer(t, e, engine.Request{ID: "abc", Prompt: message("What is speculative decoding?"), Logprobs: -1})
	var rounds []telemetry.Round
	committed := 1
	for _, r := range e.Rounds().Rounds(0) {
		if r.Req == "abc" {
			rounds = append(rounds, r)
			committed += r.Committed
		}
	}
	if len(rounds) != res.Stats.TargetForwards-1 || committed < len(res.Tokens) {
		t.Errorf("%d rounds with %d tokens, %d forwards for %d tokens", len(rounds), committed, res.Stats.TargetForwards, len(res.Tokens))
	}
	if st := e.Rounds().Stats(); st.MeanAcceptLen < 3 || st.DraftAcceptance <= 0 {
		t.Errorf("%+v", st)
	}
	if tot := e.Totals(); tot.Requests != 1 || tot.CompletionTokens != len(res.Tokens) {
		t.Errorf("%+v", tot)
	}
}

// TestBadRequests: every impossible value is refused by name.
func TestBadRequests(t *testing.T) {
	e, _ := demoEngine(t, reference, engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)})
	bad := func(change func(*engine.Request)) engine.Request {
		r := engine.Request{Prompt: message("hi"), Logprobs: -1}
		change(&r)
		return r
	}
	for name, r := range map[string]engine.Request{
		"temperature":    bad(func(r *engine.Request) { r.Sampling.Temperature = ptr(-1.0) }),
		"top_p":          bad(func(r *engine.Request) { r.Sampling.TopP = ptr(-0.5) }),
		"logit_bias":     bad(func(r *engine.Request) { r.Sampling.Params.LogitBias = map[int32]float64{99999: 1} }),
		"empty messages": bad(func(r *engine.Request) { r.Prompt.Messages = json.RawMessage(`[]`) }),
		"no object":      bad(func(r *engine.Request) { r.Prompt.Messages = json.RawMessage(`["hi"]`) }),
		"an image": bad(func(r *engine.Request) {
			r.Prompt.Messages = json.RawMessage(`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]`)
		}),
		"token out of range": bad(func(r *engine.Request) { r.Prompt = engine.Prompt{Tokens: []int32{5, 1 << 20}} }),
		"no tokens":          bad(func(r *engine.Request) { r.Prompt = engine.Prompt{Tokens: []int32{}} }),
	} {
		if _, err := e.Generate(context.Background(), r, nil); kindOf(err) != engine.ErrInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	answer(t, e, engine.Request{Prompt: message("hi"), MaxTokens: 2, Logprobs: -1})
}
