package engine_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/resources"
)

// expectation is testdata/demo/expected.json: what the reference implementation
// answered with the demo model in float32.
type expectation struct {
	MaxTokens int `json:"max_tokens"`
	Prompts   []struct {
		Name     string
		Messages json.RawMessage
		Kwargs   map[string]json.RawMessage `json:"template_kwargs"`
		IDs      []int32                    `json:"prompt_ids"`
		Tokens   []int32                    `json:"token_ids"`
		Text     string
		Finish   string `json:"finish_reason"`
		Modes    map[string]struct {
			AcceptLen float64 `json:"accept_len"`
			Forwards  int     `json:"target_forwards"`
		}
	}
}

func expected(t testing.TB) expectation {
	t.Helper()
	text, err := os.ReadFile("testdata/demo/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var x expectation
	if err := json.Unmarshal(text, &x); err != nil || len(x.Prompts) < 10 {
		t.Fatalf("%d prompts, %v", len(x.Prompts), err)
	}
	return x
}

// backendFactory is a way to make a backend.
type backendFactory func() (compute.Backend, error)

func backendFactories() map[string]backendFactory {
	if testing.Short() { // under the race detector
		return map[string]backendFactory{"cpu": func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }}
	}
	return map[string]backendFactory{
		"reference": func() (compute.Backend, error) { return compute.NewReference(), nil },
		"cpu":       func() (compute.Backend, error) { return cpu.New(cpu.Options{}) },
		"cpu-exact": func() (compute.Backend, error) { return cpu.New(cpu.Options{Exact: true}) },
	}
}

// brake holds a backend up, so that no answer is over before a test has cancelled it,
// however late the test's goroutines come to run. It is off at first.
type brake struct {
	pause time.Duration
	left  atomic.Int64 // programs that pass
	isOn  atomic.Bool
}

// put lets so many programs pass; each further one begins a pause later, unless
// it is stopped or the brake is let go.
func (b *brake) put(programs int64, pause time.Duration) {
	b.isOn.Store(false)
	b.pause = pause
	b.left.Store(programs)
	b.isOn.Store(true)
}

func (b *brake) letGo() { b.isOn.Store(false) }

// on is a factory of backends that the brake acts on.
func (b *brake) on(make backendFactory) backendFactory {
	return func() (compute.Backend, error) {
		inner, err := make()
		return braked{inner, b}, err
	}
}

type braked struct {
	compute.Backend
	brake *brake
}

func (b braked) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	if b.brake.isOn.Load() && b.brake.left.Add(-1) < 0 {
		for end := time.Now().Add(b.brake.pause); b.brake.isOn.Load() && !stop.IsSet() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
	return b.Backend.Submit(p, stop)
}

func demoBuiltins() map[string]engine.Builtin {
	target, drafter := resources.Demo()
	return map[string]engine.Builtin{"demo": {Target: target, Drafter: drafter, DFlash: resources.DemoDFlash()}}
}

// demoEngine is an engine with the demo loaded.
func demoEngine(t testing.TB, make backendFactory, r engine.LoadRequest) (*engine.Engine, *[]compute.Backend) {
	t.Helper()
	var made []compute.Backend
	e := engine.New(engine.Options{Builtins: demoBuiltins(), Version: "test",
		Backend: func() (compute.Backend, error) {
			b, err := make()
			made = append(made, b)
			return b, err
		}})
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r.Model = "demo"
	if _, err := e.LoadFrom(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	return e, &made
}

func ptr[T any](v T) *T { return &v }

// prompt builds the request of one expectation.
func (x expectation) request(i int) engine.Request {
	p := x.Prompts[i]
	kwargs := map[string]any{}
	var tools json.RawMessage
	for k, v := range p.Kwargs {
		if k == "tools" {
			tools = v
			continue
		}
		kwargs[k] = v
	}
	return engine.Request{ID: p.Name, Prompt: engine.Prompt{Messages: p.Messages, Tools: tools, Kwargs: kwargs}, MaxTokens: x.MaxTokens, Logprobs: -1}
}

// TestDemoAnswers: the demo's answers equal the recorded ones in every mode, and
// speculation accepts as much as recorded, which the backend's own count of
// target forwards confirms.
func TestDemoAnswers(t *testing.T) {
	x := expected(t)
	modes := []struct {
		name string
		load engine.LoadRequest
	}{
		{"baseline", engine.LoadRequest{Mode: "baseline"}},
		{"lookup", engine.LoadRequest{Mode: "lookup"}},
		{"dspark", engine.LoadRequest{Mode: "dspark", LookupDrafts: ptr(false)}},
		{"dspark_cap4", engine.LoadRequest{Mode: "dspark", LookupDrafts: ptr(false), MaxDraft: ptr(4)}},
		{"dspark_hybrid", engine.LoadRequest{Mode: "dspark", LookupDrafts: ptr(true)}},
		{"dflash", engine.LoadRequest{Mode: "dflash", LookupDrafts: ptr(false)}},
		{"dflash_cap4", engine.LoadRequest{Mode: "dflash", LookupDrafts: ptr(false), MaxDraft: ptr(4)}},
		{"dspark_auto", engine.LoadRequest{Mode: "dspark", LookupDrafts: ptr(false), MaxDraft: ptr(0)}},
		{"dspark_conf_0.5", engine.LoadRequest{Mode: "dspark", LookupDrafts: ptr(false), ConfidenceThreshold: ptr(0.5)}},
	}
	for name, factory := range backendFactories() {
		for _, m := range modes {
			t.Run(name+"/"+m.name, func(t *testing.T) {
				m.load.Warmup = ptr(false)
				e, backends := demoEngine(t, factory, m.load)
				var tokens, forwards, wantForwards, wantTokens int
				for i, p := range x.Prompts {
					before := (*backends)[0].Submits(compute.LabelTarget)
					req := x.request(i)
					var streamed strings.Builder
					res, err := e.Generate(context.Background(), req, func(d engine.Delta) error { streamed.WriteString(d.Text); return nil })
					if err != nil {
						t.Fatal(p.Name, err)
					}
					if !slices.Equal(res.PromptTokens, p.IDs) {
						t.Errorf("%s: prompt ids %v, want %v", p.Name, res.PromptTokens, p.IDs)
					}
					var ids []int32
					for _, tok := range res.Tokens {
						ids = append(ids, tok.ID)
					}
					if !slices.Equal(ids, p.Tokens) || res.Text != p.Text || streamed.String() != p.Text || string(res.FinishReason) != p.Finish {
						t.Errorf("%s: answer %q (%s)\nwant %q (%s)", p.Name, res.Text, res.FinishReason, p.Text, p.Finish)
					}
					counted := int((*backends)[0].Submits(compute.LabelTarget) - before)
					if counted != res.Stats.TargetForwards {
						t.Errorf("%s: %d target forwards reported, the backend counted %d", p.Name, res.Stats.TargetForwards, counted)
					}
					tokens += len(ids)
					forwards += counted
					wantTokens += len(p.Tokens)
					wantForwards += p.Modes[m.name].Forwards
				}
				if m.name == "dspark_auto" {
					return // the controller's caps depend on the machine's times
				}
				if m.name == "baseline" {
					if forwards != tokens {
						t.Errorf("baseline took %d forwards for %d tokens", forwards, tokens)
					}
					return
				}
				rounds := func(f int) float64 { return float64(f - len(x.Prompts)) }
				got, want := float64(tokens)/rounds(forwards), float64(wantTokens)/rounds(wantForwards)
				t.Logf("accept_len %.3f, recorded %.3f", got, want)
				if math.Abs(got-want) > 0.05*want {
					t.Errorf("accept_len %.3f is not within 5 %% of the recorded %.3f", got, want)
				}
			})
		}
	}
}
