package decode

import (
	"time"

	"sparkbar/engine/arch"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/sample"
)

// Job is one generation.
type Job struct {
	Prompt    []int32
	MaxTokens int // exact; at least 1
	// End are the tokens that end a generation; the token itself is kept.
	End    map[int32]bool
	Params sample.Params
	// Rand is the source of random decisions; nil: an RNG of Params.Seed.
	Rand sample.Source
	// Logprobs is the number of alternatives per token, -1 = none. Penalized gives
	// the log-probabilities after bias and penalties instead of those of the
	// target's own distribution.
	Logprobs  int
	Penalized bool

	Mode      Mode
	Cap       int // drafts per round; 0 = the drafter's maximum
	Threshold float64
	// Lookup lets copies from the context stand in for the drafter.
	Lookup     bool
	LongLookup int // longest copy; 0 = 32
	// Controller chooses the cap from round to round; nil = Cap, or where only copies
	// are made, without Cap, the runner's own (SetCosts).
	Controller *calibrate.Controller
	// Adapter changes the target's weights for this job; nil = none.
	Adapter *arch.Adapter
	// Tail is how many tokens at the end of the prompt the next turn's prompt may
	// write differently (the opening of the answer, say). Where a past cannot be
	// cut it is kept up to there; 0 counts as 1.
	Tail int
	// NoStore keeps the conversation out of the prefix store, both ways.
	NoStore bool

	// Prompted is told the log-probabilities of the prompt's tokens, each after those
	// before it, in order and from the second token on; nil = nobody wants them. With
	// it the whole prompt is read: NoStore must be set.
	Prompted func(tokens []Token)
	// Prefill is told how many prompt tokens are in the cache.
	Prefill func(done, total int)
	// Round is told about each round before its tokens are emitted.
	Round func(Round)
	// Emit takes the tokens of a round; true ends the generation there.
	Emit func(tokens []Token) (stop bool)
}

// Mode is how tokens are proposed.
type Mode string

// Baseline proposes nothing, Lookup copies from the context, Draft asks the
// runner's drafter (dspark, dflash or a draft model).
const (
	Baseline Mode = "baseline"
	Lookup   Mode = "lookup"
	Draft    Mode = "draft"
)

// Token is one committed token.
type Token struct {
	ID      int32
	Logprob float64 // only when asked for, see Job.Logprobs
	Top     []sample.TokenLogprob
}

// Source says who proposed the drafts of a round.
type Source string

// The sources of a round.
const (
	FromDrafter Source = "drafter"
	FromLookup  Source = "lookup"
	Plain       Source = "plain"
)

// Round is what happened in one round.
type Round struct {
	Index      int
	Source     Source
	Pending    int32
	Draft      []int32 // verified
	Drafted    []int32 // before the confidence cut
	Confidence []float64
	Choice     []int32 // the target's own token per verified row (greedy only)
	Accepted   int
	Committed  []int32
	RolledBack int
	Cap        int
	Time       time.Duration
}

// Finish says why a generation ended.
type Finish string

// The ways to end: an end token, the token limit, or Emit's wish.
const (
	FinishEnd    Finish = "end"
	FinishLength Finish = "length"
	FinishEmit   Finish = "emit"
)

// Outcome is a finished generation.
type Outcome struct {
	Tokens         []int32
	Finish         Finish
	Cached         int // prompt tokens that the prefix store had
	Rounds         int
	LookupRounds   int
	TargetForwards int
	Cap            int // the cap at the end; 0 in baseline
	RolledBack     int // rejected rows
	Prefill        time.Duration
	Total          time.Duration
}
