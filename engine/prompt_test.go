package engine_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine"
)

// TestMLXRules: parts are joined without a separator, as mlx_lm.server does, and
// with one otherwise; each is the prompt of the joined text.
func TestMLXRules(t *testing.T) {
	e, _ := demoEngine(t, reference, engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)})
	parts := json.RawMessage(`[{"role":"user","content":[{"type":"text","text":"What is "},{"type":"text","text":"your name?"}]}]`)
	ids := func(p engine.Prompt) []int32 {
		return answer(t, e, engine.Request{Prompt: p, MaxTokens: 1, Logprobs: -1}).PromptTokens
	}
	if got, want := ids(engine.Prompt{Messages: parts, MLXRules: true}), ids(message("What is your name?")); !slices.Equal(got, want) {
		t.Errorf("mlx_lm.server's rules: %v, want %v", got, want)
	}
	if got, want := ids(engine.Prompt{Messages: parts}), ids(message("What is \nyour name?")); !slices.Equal(got, want) {
		t.Errorf("sparkbar's rules: %v, want %v", got, want)
	}
}

// TestFoldSystem: a system message in the middle is accepted when asked for.
func TestFoldSystem(t *testing.T) {
	e, _ := demoEngine(t, reference, engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)})
	p := engine.Prompt{Messages: json.RawMessage(`[{"role":"user","content":"Hi"},{"role":"system","content":"Be brief."},{"role":"user","content":"Go"}]`), FoldSystem: true}
	if n, err := e.CountTokens(context.Background(), "", p); err != nil || n < 8 {
		t.Errorf("%d tokens, %v", n, err)
	}
}

func TestRoleMappingRefused(t *testing.T) {
	e, _ := demoEngine(t, reference, engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)})
	p := message("hi")
	p.RoleMapping = json.RawMessage(`["user"]`)
	_, err := e.CountTokens(context.Background(), "", p)
	if kindOf(err) != engine.ErrInvalid || !strings.Contains(err.Error(), "role_mapping") {
		t.Errorf("%v", err)
	}
}
