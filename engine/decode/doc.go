// Package decode turns prompts into tokens: prefill, then rounds of
// propose, verify, accept, roll back, emit. Runner.round is the only place where
// a token is accepted, whatever drafter proposed it: the logits of the target's
// verify forward decide, so greedy output with speculation is the greedy output
// without it, and sampled output has the target's distribution.
//
// A Runner owns one loaded model: its caches, its drafter, its prefix store. One
// goroutine uses it at a time.
//
// Never here: text (stop strings, detokenizing, templates), HTTP, loading,
// telemetry formats; those watch through Job's callbacks.
//
// Read first: Job, then Runner.Generate.
package decode
