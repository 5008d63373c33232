// Package decode turns prompts into tokens: prefill, then rounds of
// propose, verify, accept, roll back, emit. generation.accept is the only place
// where a token is accepted, whatever drafter proposed it: the logits of the
// target's verify forward decide, so greedy output with speculation is the greedy
// output without it, and sampled output has the target's distribution.
//
// A Runner owns one loaded model: its caches, its drafter, its prefix store. It
// runs several jobs at once: a step (schedule.go) is one ragged forward of the
// target with a round of every answer and a chunk of prompts. What runs beside a
// job changes none of its tokens. With measured costs, drafts are shared out
// among the answers of a step (budget.go). One goroutine uses a Runner at a time.
//
// Never here: text (stop strings, detokenizing, templates), HTTP, loading, who may
// run when (the queue of package engine), telemetry formats; those watch through
// Job's callbacks.
//
// Read first: Job, then Runner.Step, then round.go.
package decode
