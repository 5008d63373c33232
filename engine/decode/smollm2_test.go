package decode_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sparkbar/engine/arch"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/cpu"
	"sparkbar/engine/decode"
	"sparkbar/engine/draft"
	"sparkbar/engine/testneed"
)

// TestIdentitySmolLM2: on a real model and twenty prompts, greedy output with
// lookup, with a draft model (the same model from its other format) and with a
// DSpark head is the output without speculation; the head accepts what it
// accepted in the reference implementation.
func TestIdentitySmolLM2(t *testing.T) {
	dir := testneed.SmolLM2(t)
	var golden struct {
		Cases []struct {
			IDs []int32 `json:"prompt_ids"`
		}
	}
	var trained struct {
		Mean    map[string]float64 `json:"mean_accept_len"`
		Prompts []struct {
			IDs []int32 `json:"prompt_ids"`
		}
	}
	for name, v := range map[string]any{"smollm2.json": &golden, "smollm2_expected.json": &trained} {
		text, err := os.ReadFile("../testdata/smollm2/" + name)
		if err == nil {
			err = json.Unmarshal(text, v)
		}
		if err != nil {
			t.Fatal(name, err)
		}
	}
	var prompts [][]int32
	for _, p := range trained.Prompts {
		prompts = append(prompts, p.IDs)
	}
	heads := len(prompts)
	for _, c := range golden.Cases {
		prompts = append(prompts, c.IDs)
	}
	if len(prompts) < 20 {
		t.Fatalf("%d prompts", len(prompts))
	}
	limit := 32
	if testing.Short() {
		prompts, limit = prompts[:2], 12
	}
	b, err := cpu.New(cpu.Options{Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	open := func(path string) *checkpoint.Checkpoint {
		c, err := checkpoint.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	m, err := arch.Load(open(filepath.Join(dir, "mlx")), b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	runner := func(drafter string) *decode.Runner {
		var d draft.Drafter
		if drafter != "" {
			var err error
			if d, err = draft.Open(open(drafter), draft.Host{Model: m, Backend: b, Positions: 1024, Sequences: 4, Window: 4096}); err != nil {
				t.Fatal(err)
			}
		}
		r, err := decode.New(b, m, d, decode.Options{Positions: 1024})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	run := func(r *decode.Runner, j decode.Job, i int) decode.Outcome {
		j.Prompt, j.MaxTokens, j.End, j.Logprobs, j.NoStore = prompts[i], limit, map[int32]bool{2: true}, -1, true
		if i >= heads {
			j.MaxTokens = limit / 2
		}
		out, err := r.Generate(context.Background(), j)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	plain := runner("")
	ways := []struct {
		name string
		r    *decode.Runner
		j    decode.Job
	}{
		{"lookup", plain, decode.Job{Mode: decode.Lookup}},
		{"dspark", runner("../testdata/smollm2/dspark"), decode.Job{Mode: decode.Draft, Cap: 7}},
		{"draft model", runner(filepath.Join(dir, "model.gguf")), decode.Job{Mode: decode.Draft, Cap: 3}},
	}
	tokens, rounds := 0, 0
	for i := range prompts {
		want := run(plain, decode.Job{Mode: decode.Baseline}, i).Tokens
		for _, w := range ways {
			out := run(w.r, w.j, i)
			if !slices.Equal(out.Tokens, want) {
				t.Errorf("%s, prompt %d: %v\nwithout speculation: %v", w.name, i, out.Tokens, want)
			}
			if w.name == "dspark" && i < heads {
				tokens, rounds = tokens+len(out.Tokens), rounds+out.Rounds
			}
			if w.name == "draft model" && out.Rounds > (len(want)+2)/3 {
				t.Errorf("the model drafting for itself needs %d rounds for %d tokens", out.Rounds, len(want))
			}
		}
	}
	got, mean := float64(tokens)/float64(rounds), trained.Mean["smollm2-dspark-markov"]
	t.Logf("dspark accept_len %.3f, recorded mean %.3f", got, mean)
	if !testing.Short() && math.Abs(got-mean) > 0.1*mean {
		t.Errorf("accept_len %.3f is far from the recorded %.3f", got, mean)
	}
}
