package telemetry

import "sync"

// Request is what the engine knows about a finished generation. Times are in
// seconds.
type Request struct {
	Mode             string
	PromptTokens     int
	CachedTokens     int // prompt tokens taken from the prefix cache
	CompletionTokens int
	Rounds           int // baseline: one per token
	TargetForwards   int
	LookupRounds     int
	Cap              *int // nil: the mode has none
	Seconds          float64
	PrefillSeconds   float64
	TTFTSeconds      float64
	Decay            *float64 // of [Log.Decay]
	SwapDeltaBytes   int64
	Cold             bool    // first request after a load without warm-up
	CeilingTPS       float64 // of [Roofline] at this context; 0 = unknown
}

// RequestSummary is the x_mlx_dspark block of a response.
type RequestSummary struct {
	Mode                string   `json:"mode"`
	AcceptLen           float64  `json:"accept_len"`
	TokensPerSec        float64  `json:"tokens_per_sec"`
	DecodeTokensPerSec  float64  `json:"decode_tokens_per_sec"`
	TargetForwards      int      `json:"target_forwards"`
	Cap                 *int     `json:"cap,omitempty"`
	LookupRounds        int      `json:"lookup_rounds,omitempty"`
	PromptTokens        int      `json:"prompt_tokens"`
	CachedTokens        int      `json:"cached_tokens"`
	CompletionTokens    int      `json:"completion_tokens"`
	ContextTokens       int      `json:"context_tokens"`
	PrefillSeconds      float64  `json:"prefill_seconds"`
	DecodeSeconds       float64  `json:"decode_seconds"`
	TTFTSeconds         float64  `json:"ttft_seconds"`
	PrefillTokensPerSec float64  `json:"prefill_tokens_per_sec,omitempty"`
	DecayRatio          *float64 `json:"decay_ratio,omitempty"`
	SwapDeltaBytes      int64    `json:"swap_delta_bytes,omitempty"`
	Cold                bool     `json:"cold,omitempty"`
	CeilingTokensPerSec float64  `json:"ceiling_tokens_per_sec,omitempty"`
	RooflineRatio       *float64 `json:"roofline_ratio,omitempty"`
}

// minFresh is the number of uncached prompt tokens from which a prefill rate
// means anything.
const minFresh = 16

// instant keeps rates finite.
const instant = 1e-9

func (r *Request) acceptLen() float64 {
	return float64(r.CompletionTokens) / float64(max(r.Rounds, 1))
}

func (r *Request) decodeSeconds() float64 { return max(r.Seconds-r.PrefillSeconds, instant) }

// DecodeTPS is the decode rate in tokens per second, unrounded.
func (r *Request) DecodeTPS() float64 { return float64(r.CompletionTokens) / r.decodeSeconds() }

// Summary derives the block that responses carry.
func (r *Request) Summary() RequestSummary {
	s := RequestSummary{
		Mode:               r.Mode,
		AcceptLen:          roundTo(r.acceptLen(), 3),
		TokensPerSec:       roundTo(float64(r.CompletionTokens)/max(r.Seconds, instant), 1),
		DecodeTokensPerSec: roundTo(r.DecodeTPS(), 1),
		TargetForwards:     r.TargetForwards,
		Cap:                r.Cap,
		LookupRounds:       r.LookupRounds,
		PromptTokens:       r.PromptTokens,
		CachedTokens:       r.CachedTokens,
		CompletionTokens:   r.CompletionTokens,
		ContextTokens:      r.PromptTokens + r.CompletionTokens,
		PrefillSeconds:     roundTo(r.PrefillSeconds, 3),
		DecodeSeconds:      roundTo(r.decodeSeconds(), 3),
		TTFTSeconds:        roundTo(r.TTFTSeconds, 3),
		DecayRatio:         r.Decay,
		SwapDeltaBytes:     r.SwapDeltaBytes,
		Cold:               r.Cold,
	}
	if fresh := r.PromptTokens - r.CachedTokens; r.PrefillSeconds > 0 && fresh >= minFresh {
		s.PrefillTokensPerSec = roundTo(float64(fresh)/r.PrefillSeconds, 1)
	}
	if r.CeilingTPS > 0 {
		s.CeilingTokensPerSec = roundTo(r.CeilingTPS, 1)
		ratio := roundTo(r.DecodeTPS()/r.CeilingTPS, 3)
		s.RooflineRatio = &ratio
	}
	return s
}

// Totals sums up finished requests since a load. The zero value is ready.
// Safe for concurrent use.
type Totals struct {
	mu                       sync.Mutex
	requests                 int
	prompt, completion       int
	weightedLen              float64 // accept_len weighted by tokens
	seconds, decodingSeconds float64
}

// Add counts a finished request.
func (t *Totals) Add(r *Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
	t.prompt += r.PromptTokens
	t.completion += r.CompletionTokens
	t.weightedLen += r.acceptLen() * float64(r.CompletionTokens)
	t.seconds += r.Seconds
	t.decodingSeconds += r.decodeSeconds()
}

// TotalsReport is the request part of GET /metrics. All means are 0 before
// the first request.
type TotalsReport struct {
	Requests               int     `json:"requests"`
	PromptTokens           int     `json:"prompt_tokens"`
	CompletionTokens       int     `json:"completion_tokens"`
	MeanAcceptLen          float64 `json:"mean_accept_len"`
	MeanTokensPerSec       float64 `json:"mean_tokens_per_sec"`
	MeanDecodeTokensPerSec float64 `json:"mean_decode_tokens_per_sec"`
}

// Report returns the totals so far.
func (t *Totals) Report() TotalsReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := TotalsReport{Requests: t.requests, PromptTokens: t.prompt, CompletionTokens: t.completion}
	if t.completion > 0 {
		r.MeanAcceptLen = roundTo(t.weightedLen/float64(t.completion), 3)
		r.MeanTokensPerSec = roundTo(float64(t.completion)/max(t.seconds, instant), 1)
		r.MeanDecodeTokensPerSec = roundTo(float64(t.completion)/max(t.decodingSeconds, instant), 1)
	}
	return r
}
