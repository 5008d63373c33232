package engine_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/telemetry"
)

// TestPrefillEnds: whoever follows a prompt's reading is told its end, also where
// the request ends first.
func TestPrefillEnds(t *testing.T) {
	var b brake
	e := engine.New(engine.Options{Builtins: demoBuiltins(), Version: "test", Backend: b.on(reference), Chunk: 16})
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if _, err := e.LoadFrom(t.Context(), engine.LoadRequest{Model: "demo", Mode: "baseline", Warmup: ptr(false)}); err != nil {
		t.Fatal(err)
	}
	sub := e.Events().Subscribe(4096)
	defer sub.Close()
	long := engine.Request{Prompt: message(strings.Repeat("one two three ", 200)), MaxTokens: 2, Logprobs: -1}
	told := func(id string) (list []telemetry.Prefill) {
		for {
			ev, err := sub.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			switch data := ev.Data.(type) {
			case telemetry.Prefill:
				list = append(list, data)
			case engine.RequestEvent:
				if data.ID == id && (data.State == "done" || data.State == "failed") {
					return list
				}
			}
		}
	}
	for _, id := range []string{"cancelled", "whole"} {
		if long.ID = id; id == "cancelled" {
			b.put(3, time.Minute)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err := e.Generate(ctx, long, func(d engine.Delta) error {
			if d.Prefill != nil && id == "cancelled" {
				cancel()
			}
			return nil
		})
		cancel()
		b.letGo()
		if (kindOf(err) == engine.ErrCancelled) != (id == "cancelled") {
			t.Fatalf("%s: %v", id, err)
		}
		list := told(id)
		if len(list) < 2 {
			t.Fatalf("%s: %+v", id, list)
		}
		for i, p := range list {
			if p.Done != (i == len(list)-1) || p.Req != id || p.Total != list[0].Total {
				t.Errorf("%s: event %d of %d: %+v", id, i, len(list), p)
			}
		}
		if last := list[len(list)-1]; last.Processed != last.Total {
			t.Errorf("%s: %+v", id, last)
		}
	}
}
