package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/resources"
)

// unfit is a backend that runs some programs and then finds that it cannot.
type unfit struct {
	compute.Backend
	left *atomic.Int32
}

func (u unfit) Name() string { return "metal" }

func (u unfit) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	if u.left.Add(-1) < 0 {
		return compute.Done{Err: fmt.Errorf("the kernel planted does not work here: %w", compute.ErrUnfit)}, nil
	}
	return u.Backend.Submit(p, stop)
}

// TestFallback: a model whose backend is unfit is loaded on the other one, with a
// warning, both when the warm-up finds it and when a request does.
func TestFallback(t *testing.T) {
	target, drafter := resources.Demo()
	for _, c := range []struct {
		name     string
		warmup   bool
		programs int32 // that go well
	}{{"at the load", true, 1}, {"in a request", false, 1}} {
		t.Run(c.name, func(t *testing.T) {
			left := &atomic.Int32{}
			left.Store(c.programs)
			made := 0
			o := engine.Options{Builtins: map[string]engine.Builtin{"demo": {Target: target, Drafter: drafter}},
				Backend: func() (compute.Backend, error) {
					made++
					return unfit{compute.NewReference(), left}, nil
				},
				Fallback: func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }}
			e := engine.New(o)
			defer e.Close(context.Background())
			if _, err := e.LoadFrom(context.Background(), engine.LoadRequest{Model: "demo", Warmup: &c.warmup}); err != nil {
				t.Fatal(err)
			}
			ask := func() error {
				_, err := e.Generate(context.Background(), engine.Request{Prompt: engine.Prompt{Tokens: []int32{5, 6, 7, 8}}, MaxTokens: 4, Logprobs: -1}, nil)
				return err
			}
			if !c.warmup {
				if err := ask(); !errors.Is(err, compute.ErrUnfit) {
					t.Fatalf("the first request: %v", err)
				}
				for end := time.Now().Add(time.Minute); e.Status().State != engine.StateReady || e.Status().Model.Backend != "cpu"; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%+v", e.Status())
					}
				}
			}
			if err := ask(); err != nil {
				t.Fatal(err)
			}
			st := e.Status()
			said := false
			for _, w := range st.Warnings {
				said = said || w.Code == "backend_unfit" && strings.Contains(w.Message, "runs on the CPU: the kernel planted") && w.Action != nil
			}
			if st.Model.Backend != "cpu" || !said {
				t.Errorf("backend %s, warnings %+v", st.Model.Backend, st.Warnings)
			}
			before := made
			if _, err := e.LoadFrom(context.Background(), engine.LoadRequest{Model: "demo", Warmup: &c.warmup}); err != nil || (made > before) != c.warmup {
				t.Errorf("loaded again: %v, %d backends, before %d", err, made, before)
			}
		})
	}
	o := engine.Options{Builtins: map[string]engine.Builtin{"demo": {Target: target}}, Backend: func() (compute.Backend, error) { return unfit{compute.NewReference(), &atomic.Int32{}}, nil }}
	e := engine.New(o)
	defer e.Close(context.Background())
	on := true
	if _, err := e.LoadFrom(context.Background(), engine.LoadRequest{Model: "demo", Warmup: &on}); !errors.Is(err, compute.ErrUnfit) {
		t.Errorf("without another backend: %v", err)
	}
}
