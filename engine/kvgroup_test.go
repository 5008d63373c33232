package engine_test

import (
	"testing"

	"sparkbar/engine"
)

// TestKVGroup: a quantized cache fits heads that are narrower than the usual group;
// a group that somebody asks for is kept to.
func TestKVGroup(t *testing.T) {
	e, _ := demoEngine(t, reference, engine.LoadRequest{KVBits: ptr(8), Warmup: ptr(false)})
	if res := answer(t, e, engine.Request{Prompt: message("What is speculative decoding?"), MaxTokens: 8, Logprobs: -1}); res.Text == "" {
		t.Errorf("%+v", res)
	}
	if _, err := e.LoadFrom(t.Context(), engine.LoadRequest{Model: "demo", KVBits: ptr(8), KVGroup: ptr(64)}); kindOf(err) != engine.ErrLoadFailed {
		t.Errorf("groups of 64 in heads of 32: %v", err)
	}
}
