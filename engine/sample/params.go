package sample

import (
	"fmt"
	"math"
)

// Params are the sampling options of one request. The zero value is greedy
// decoding without bias or penalties. Field names in errors are the request
// fields of the HTTP dialects.
type Params struct {
	Temperature float64 // 0 = greedy (lowest index among the largest logits)

	TopP            float64 // keep the smallest set with this mass; outside (0, 1) = off
	MinP            float64 // keep tokens with at least this fraction of the largest probability; 0 = off
	MinTokensToKeep int     // min_p keeps at least this many tokens; 0 and 1 mean one
	TopK            int     // keep the k most likely; 0 = off

	XTCProbability   float64 // chance per token of applying XTC; 0 = off
	XTCThreshold     float64 // XTC removes all tokens above the least likely one that exceeds this
	XTCSpecialTokens []int32 // never removed by XTC (newline and end tokens)

	// LogitBias is added to the logits of the named tokens, before penalties.
	LogitBias map[int32]float64

	// Penalties: 0 = off. RepetitionPenalty divides positive and multiplies
	// negative logits of seen tokens (so 1 changes nothing), presence is
	// subtracted once per seen token, frequency once per occurrence.
	RepetitionPenalty float64
	PresencePenalty   float64
	FrequencyPenalty  float64

	// Context sizes choose what "seen" means for each penalty. nil: every
	// completion token. A value n: the last n tokens of prompt and completion
	// together, where 0 means all of them.
	RepetitionContextSize *int
	PresenceContextSize   *int
	FrequencyContextSize  *int

	// Seed makes a request repeatable. nil: the caller seeds at random.
	Seed *uint64
}

// ParamError reports a sampling option with an impossible value.
type ParamError struct {
	Field  string // name of the request field, e.g. "top_p"
	Reason string // what is wrong with it and what is allowed
}

func (e *ParamError) Error() string { return e.Field + " " + e.Reason }

// Validate checks every option against a vocabulary of the given size (0 =
// not known yet: checks that need it are skipped). The error is a
// [*ParamError].
func (p *Params) Validate(vocab int) error {
	bad := func(field, format string, args ...any) error {
		return &ParamError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	finite := func(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
	for _, f := range []struct {
		name    string
		v       float64
		lo, hi  float64
		allowed string
	}{
		{"temperature", p.Temperature, 0, math.MaxFloat64, "a number that is at least 0"},
		{"top_p", p.TopP, 0, 1, "a number from 0 to 1"},
		{"min_p", p.MinP, 0, 1, "a number from 0 to 1"},
		{"xtc_probability", p.XTCProbability, 0, 1, "a number from 0 to 1"},
		{"xtc_threshold", p.XTCThreshold, 0, 0.5, "a number from 0 to 0.5"},
		{"repetition_penalty", p.RepetitionPenalty, 0, math.MaxFloat32, "a number that is at least 0"},
		{"presence_penalty", p.PresencePenalty, -math.MaxFloat32, math.MaxFloat32, "a finite number"},
		{"frequency_penalty", p.FrequencyPenalty, -math.MaxFloat32, math.MaxFloat32, "a finite number"},
	} {
		if !finite(f.v) || f.v < f.lo || f.v > f.hi {
			return bad(f.name, "must be %s, got %v", f.allowed, f.v)
		}
	}
	if p.TopK < 0 {
		return bad("top_k", "must be at least 0, got %d", p.TopK)
	}
	if vocab > 0 && p.Temperature > 0 && p.TopK >= vocab {
		return bad("top_k", "must be below the vocabulary size %d, got %d (0 switches it off)", vocab, p.TopK)
	}
	if p.MinTokensToKeep < 0 {
		return bad("min_tokens_to_keep", "must be at least 0, got %d", p.MinTokensToKeep)
	}
	for _, f := range []struct {
		name string
		v    *int
	}{
		{"repetition_context_size", p.RepetitionContextSize},
		{"presence_context_size", p.PresenceContextSize},
		{"frequency_context_size", p.FrequencyContextSize},
	} {
		if f.v != nil && *f.v < 0 {
			return bad(f.name, "must be at least 0, got %d", *f.v)
		}
	}
	for id, b := range p.LogitBias {
		if id < 0 || (vocab > 0 && int(id) >= vocab) {
			return bad("logit_bias", "names token id %d, which is outside the vocabulary of %d tokens", id, vocab)
		}
		if !finite(b) || math.Abs(b) > math.MaxFloat32 {
			return bad("logit_bias", "must map token ids to finite numbers, got %v for token %d", b, id)
		}
	}
	return nil
}
