package engine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"sparkbar/engine"
)

// TestTogether: requests of several clients run at once, are counted so, and each
// gets the answer that it gets alone; those that are cancelled go, and nobody
// else; a model that is swapped out lets its answers end.
func TestTogether(t *testing.T) {
	for _, mode := range []string{"dspark", "dflash", "lookup", "baseline"} {
		var b brake
		e, _ := demoEngine(t, b.on(reference), engine.LoadRequest{Mode: mode, Warmup: ptr(mode == "dspark")})
		var requests []engine.Request
		var want []engine.Result
		for i, text := range []string{"What is speculative decoding?", "Tell me a story", "hi", "What is a token?", "Who are you?", "Name a colour", "What is a drafter?", "Why?"} {
			r := engine.Request{ID: fmt.Sprint(mode, i), Client: fmt.Sprint("client", i%3), Prompt: message(text), MaxTokens: 12 + 5*i, Logprobs: -1}
			if i%3 == 2 {
				r.Sampling.Temperature, r.Sampling.Seed = ptr(0.9), ptr(uint64(i))
				r.Logprobs = 2
			}
			var alone engine.Result
			if i == 1 { // to be cancelled: it takes half a minute if the others are late to begin
				r.MaxTokens, r.IgnoreEnd = 1500, true
			} else {
				alone = answer(t, e, r)
			}
			requests, want = append(requests, r), append(want, alone)
		}
		b.put(200, 20*time.Millisecond)
		// All begin before any goes on: the first delta of each waits for the others.
		var begun, all sync.WaitGroup
		begun.Add(len(requests))
		most := 0
		var mu sync.Mutex
		for i, r := range requests {
			all.Go(func() {
				var once sync.Once
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				res, err := e.Generate(ctx, r, func(d engine.Delta) error {
					once.Do(func() {
						begun.Done()
						begun.Wait()
						mu.Lock()
						defer mu.Unlock()
						most = max(most, len(e.Requests()))
						if running := e.Status().InFlight; running > len(requests) {
							t.Errorf("%d of %d run", running, len(requests))
						}
					})
					if i == 1 {
						cancel()
						b.letGo()
					}
					return nil
				})
				if i == 1 {
					if kindOf(err) != engine.ErrCancelled {
						t.Errorf("%s: cancelled: %v", mode, err)
					}
					return
				}
				if err != nil || res.Text != want[i].Text || fmt.Sprint(res.Tokens) != fmt.Sprint(want[i].Tokens) || res.FinishReason != want[i].FinishReason {
					t.Errorf("%s, request %d: %q (%s, %v), alone %q (%s)", mode, i, res.Text, res.FinishReason, err, want[i].Text, want[i].FinishReason)
				}
			})
		}
		if mode == "lookup" {
			begun.Wait()
			if _, err := e.LoadFrom(context.Background(), engine.LoadRequest{Model: "demo", Mode: "baseline", Warmup: ptr(false)}); err != nil {
				t.Error(err)
			}
		}
		all.Wait()
		if most != len(requests) {
			t.Errorf("%s: up to %d requests were listed, wants %d", mode, most, len(requests))
		}
		if s := e.Status(); s.InFlight != 0 || s.Queued != 0 {
			t.Errorf("%s: %d run and %d wait after the end", mode, s.InFlight, s.Queued)
		}
		if p := e.Gauges(); p != nil && mode != "lookup" {
			if n := len(p.Store.Tokens); n != 2 {
				t.Errorf("%s: %d conversations are kept", mode, n)
			}
		}
	}
}
