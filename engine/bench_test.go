package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/testbench"
	"sparkbar/engine/testneed"
)

// The tests of this file measure: `make bench` runs them on a machine that rests
// and turns what they write into docs/performance.md. They never fail because of
// a time.

// bencher is an engine with a model for measurements.
func bencher(t *testing.T, builtins map[string]engine.Builtin, r engine.LoadRequest) *engine.Engine {
	t.Helper()
	e := engine.New(engine.Options{Builtins: builtins, Version: "bench", Calibrations: filepath.Join(t.TempDir(), "c.json"), Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }})
	t.Cleanup(func() { e.Close(context.Background()) })
	if _, err := e.LoadFrom(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	return e
}

// contest is one prompt in several ways: the seconds of decoding and the tokens.
type contest struct {
	seconds []float64 // the fastest of the runs, by way: what else the machine does only adds
	accept  []float64
	tokens  []int32
}

// race answers a prompt in all ways, interleaved, and checks that they agree.
func race(t *testing.T, e *engine.Engine, prompt []int32, limit, runs int, arms []engine.Arm) contest {
	t.Helper()
	all := make([][]float64, len(arms))
	c := contest{accept: make([]float64, len(arms))}
	for range runs {
		for i, a := range arms {
			res, err := e.Generate(context.Background(), engine.Request{Prompt: engine.Prompt{Tokens: prompt}, MaxTokens: limit, Sampling: greedy(), Logprobs: -1, Arm: &a}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var ids []int32
			for _, tok := range res.Tokens {
				ids = append(ids, tok.ID)
			}
			if c.tokens == nil {
				c.tokens = ids
			}
			if !slices.Equal(ids, c.tokens) {
				t.Errorf("%s answers %v, %s answers %v", a.Mode, ids, arms[0].Mode, c.tokens)
			}
			all[i] = append(all[i], res.Stats.DecodeSeconds)
			c.accept[i] = res.Stats.AcceptLen
		}
	}
	for _, s := range all {
		c.seconds = append(c.seconds, slices.Min(s))
	}
	return c
}

func greedy() (s engine.Sampling) {
	s.Temperature = ptr(0.0)
	return s
}

// TestBenchInflated: speculation on a target of 200 MB whose drafters fit it.
func TestBenchInflated(t *testing.T) {
	testbench.Need(t)
	x := expected(t)
	builtins := inflated(t, 20, 24576)
	weights := float64(len(builtins["inflated"].Target["model.safetensors"])) / 1e6
	var figures []testbench.Figure
	for _, mode := range []string{"dspark", "dflash"} {
		e := bencher(t, builtins, engine.LoadRequest{Model: "inflated", Mode: mode, LookupDrafts: ptr(false), MaxDraft: ptr(0)})
		arms := []engine.Arm{{Mode: "baseline"}, {Mode: mode}, {Mode: mode, Cap: 64}}
		sum := make([]float64, len(arms))
		tokens := 0
		for _, p := range x.Prompts {
			c := race(t, e, p.IDs, x.MaxTokens, 1, arms)
			for i, s := range c.seconds {
				sum[i] += s
			}
			tokens += len(c.tokens)
		}
		figures = append(figures, testbench.Figure{Name: mode + " with the cap chosen on the way", Value: sum[0] / sum[1], Unit: "x", Want: ">= 2.5", Note: fmt.Sprintf("%.1f against %.1f tok/s", float64(tokens)/sum[1], float64(tokens)/sum[0])},
			testbench.Figure{Name: mode + " with its whole block", Value: sum[0] / sum[2], Unit: "x", Note: fmt.Sprintf("%.1f tok/s", float64(tokens)/sum[2])})
		if c := e.Calibration(); c.Costs != nil {
			text, _ := json.Marshal(c.Costs)
			t.Logf("%s costs %s", mode, text)
		}
	}
	testbench.Write(t, "inflated", "Speculation on the heavy demo", fmt.Sprintf("The demo's target with 20 more layers that change nothing and a wider inside (%.0f MB of 4-bit weights), its own drafters, 13 prompts; decoding time of all answers together, plain over speculative.", weights), figures)
}

// copyPrompts have a file, in testdata/copies, written out again, as editors do
// it. The model changes next to nothing, also where it is told to.
var copyPrompts = []struct{ name, task, file, language string }{
	{"C, again", copyTask, "list.c", "c"},
	{"C, rename", "Rename `push` to `prepend` and print the whole program again:", "list.c", "c"},
	{"CSS, rename", "Rename `header` to `banner` and print the whole program again:", "style.css", "css"},
	{"HTML, again", copyTask, "club.html", "html"},
	{"HTML, change", "Rename the title to `Flower club` and print the whole program again:", "club.html", "html"},
	{"settings, again", copyTask, "server.ini", "ini"},
	{"Java, rename", "Rename `Rectangle` to `Box` and print the whole program again:", "rectangle.java", "java"},
	{"JavaScript, again", copyTask, "config.js", "javascript"},
	{"JavaScript, rename", "Rename the function `readConfig` to `loadConfig` and print the whole program again:", "config.js", "javascript"},
}

const copyTask = "Copy the following code exactly and change nothing:"

// TestBenchCopies: lookup where the answer stands in the prompt.
func TestBenchCopies(t *testing.T) {
	testbench.Need(t)
	dir := testneed.SmolLM2(t)
	e := bencher(t, nil, engine.LoadRequest{Model: filepath.Join(dir, "model.gguf"), Mode: "lookup", ContextWindow: ptr(2048)})
	arms := []engine.Arm{{Mode: "baseline"}, {Mode: "lookup"}}
	var figures []testbench.Figure
	var plain, spec float64
	for _, p := range copyPrompts {
		text, err := os.ReadFile("testdata/copies/" + p.file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := json.Marshal([]map[string]string{{"role": "user", "content": fmt.Sprintf("%s\n\n```%s\n%s```", p.task, p.language, text)}})
		if err != nil {
			t.Fatal(err)
		}
		res, err := e.Generate(context.Background(), engine.Request{Prompt: engine.Prompt{Messages: m}, MaxTokens: 1, Sampling: greedy(), Logprobs: -1, Arm: &arms[0]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := race(t, e, res.PromptTokens, 400, 3, arms)
		share := copied(res.PromptTokens, c.tokens)
		r := c.seconds[0] / c.seconds[1]
		f := testbench.Figure{Name: p.name, Value: r, Unit: "x", Note: fmt.Sprintf("%.0f %% of %d tokens copied, %.1f tokens a round", 100*share, len(c.tokens), c.accept[1])}
		if share >= 0.8 {
			plain, spec = plain+c.seconds[0], spec+c.seconds[1]
			f.Want = ">= 3"
		}
		figures = append(figures, f)
	}
	if spec > 0 {
		figures = append(figures, testbench.Figure{Name: "those with at least 80 % copied", Value: plain / spec, Unit: "x", Want: ">= 3"})
	}
	testbench.Write(t, "copies", "Lookup on copied text", "SmolLM2-135M (Q4_1) asked to write a file again (testdata/copies), up to 400 tokens; decoding time, plain over lookup, each the fastest of three runs. A token counts as copied when it and the two before it stand together in what came before.", figures)
}

// copied is the share of tokens that end a run of three which stands earlier.
func copied(prompt, answer []int32) float64 {
	seen := map[[3]int32]bool{}
	text := slices.Clone(prompt)
	n := 0
	for i := 2; i < len(text); i++ {
		seen[[3]int32(text[i-2:i+1])] = true
	}
	for _, id := range answer {
		text = append(text, id)
		k := [3]int32(text[len(text)-3:])
		if seen[k] {
			n++
		}
		seen[k] = true
	}
	return float64(n) / float64(max(len(answer), 1))
}
