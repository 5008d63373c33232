package engine_test

import (
	"context"
	"math"
	"slices"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
)

// TestEchoPrompt: the log-probabilities of a prompt are those with which its tokens
// were generated, in every mode, however many rows are read at once and whatever is
// stored of it; the answer after it is what it is without.
func TestEchoPrompt(t *testing.T) {
	const text = "Speculative decoding lets a small drafter"
	var want []engine.Token
	for _, chunk := range []int{0, 7} {
		for _, mode := range []string{"baseline", "lookup", "dspark"} {
			e := engine.New(engine.Options{Builtins: demoBuiltins(), Version: "test", Chunk: chunk, Slots: 4,
				Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }})
			t.Cleanup(func() { e.Close(context.Background()) })
			if _, err := e.LoadFrom(context.Background(), engine.LoadRequest{Model: "demo", Mode: mode, Warmup: ptr(false)}); err != nil {
				t.Fatal(err)
			}
			first := answer(t, e, engine.Request{ID: "a", Prompt: engine.Prompt{Text: ptr(text)}, MaxTokens: 40, Logprobs: 3})
			if first.Prompt != nil || len(first.Tokens) < 20 {
				t.Fatalf("%d tokens, a prompt of %d without being asked", len(first.Tokens), len(first.Prompt))
			}
			whole := append(slices.Clone(first.PromptTokens), ids(first)...)
			plain := answer(t, e, engine.Request{ID: "b", Prompt: engine.Prompt{Tokens: whole}, MaxTokens: 6, Logprobs: 0, IgnoreEnd: true})
			for _, k := range []int{3, 0, -1} {
				var told [][]engine.Token
				early := true
				res, err := e.Generate(context.Background(), engine.Request{ID: "c", Prompt: engine.Prompt{Tokens: whole}, MaxTokens: 6, Logprobs: k, IgnoreEnd: true, EchoPrompt: true}, func(d engine.Delta) error {
					if d.Prompt != nil {
						told = append(told, d.Prompt)
					} else if len(told) == 0 && d.Prefill == nil {
						early = false
					}
					return nil
				})
				if err != nil || len(told) != 1 || !early || len(told[0]) != len(whole) || len(res.Prompt) != len(whole) {
					t.Fatalf("%s, chunks of %d, %d alternatives: %v, told %d times, before the text %v", mode, chunk, k, err, len(told), early)
				}
				for i, x := range res.Prompt {
					if x.ID != whole[i] || told[0][i].ID != x.ID || len(x.Top) > max(k, 0) || i > 0 && len(x.Top) != max(k, 0) {
						t.Errorf("%s, chunks of %d: token %d is %+v", mode, chunk, i, x)
					}
					if at := i - len(first.PromptTokens); k >= 0 && at >= 0 && math.Abs(x.Logprob-first.Tokens[at].Logprob) > 1e-4 {
						t.Errorf("%s, chunks of %d: token %d has %v, was generated with %v", mode, chunk, i, x.Logprob, first.Tokens[at].Logprob)
					}
					if k == 3 && want != nil && x.Logprob != want[i].Logprob {
						t.Errorf("%s, chunks of %d: token %d has %v, elsewhere %v", mode, chunk, i, x.Logprob, want[i].Logprob)
					}
				}
				if k == 3 && want == nil {
					want = res.Prompt
				}
				if !slices.Equal(ids(res), ids(plain)) {
					t.Errorf("%s, chunks of %d: the answer is %q, without the echo %q", mode, chunk, res.Text, plain.Text)
				}
			}
		}
	}
}
