package draft

import (
	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/sample"
)

// Drafter proposes tokens for one target model.
type Drafter interface {
	// Mode is the name users know: dspark, dflash, draft.
	Mode() string
	// Taps are the target layers whose outputs Observe wants, side by side; nil
	// = none.
	Taps() []int
	// MaxDraft is the longest block it can propose.
	MaxDraft() int
	// NewContext returns an empty memory, or one that goes on from a stored
	// sequence (which it takes over). An empty one may be asked for in the middle
	// of a text: it knows nothing of what came before.
	NewContext(from *cache.Seq) (Context, error)
	// Cache is where contexts keep their past.
	Cache() *cache.Cache
	WeightBytes() int64
	Close()
}

// Context is a drafter's memory of one sequence.
type Context interface {
	// Observe takes in committed positions: their tokens, and the fused rows of
	// the taps, which stay valid until the target's next forward; Flush must be
	// called before it.
	Observe(tokens []int32, fused compute.View, stop *compute.Stop) error
	// Flush reads the rows that Observe was given.
	Flush(stop *compute.Stop) error
	// Propose drafts up to r.Cap tokens after the pending one.
	Propose(r Request) (Proposal, error)
	// Finish ends the context and gives its past away, for the prefix store: as
	// many positions as were observed. After an error the past is lost.
	Finish(stop *compute.Stop) (*cache.Seq, error)
	// Close drops everything. It does nothing after Finish.
	Close()
}

// Request is one call for drafts.
type Request struct {
	Pending   int32   // the last committed token, not yet in any cache
	Cap       int     // at most this many drafts
	Threshold float64 // confidence below which the block is cut; 0 = no cut
	// Sampler and Rand draw the tokens, at Temperature; a greedy sampler takes
	// the best ones.
	Sampler     *sample.Sampler
	Temperature float64
	Rand        sample.Source
	// Whole drafts the whole block from the whole vocabulary in any case (see Host.Spare
	// and Host.Frequent): what is drawn must not depend on how much of the text this
	// context has seen, nor on Cap.
	Whole bool
	Stop  *compute.Stop
}

// Proposal is a drafted block.
type Proposal struct {
	Tokens []int32 // to be verified
	// Drafted is the whole block, before the confidence cut; Confidence its
	// confidences where they were computed.
	Drafted    []int32
	Confidence []float64
	// Dists are the distributions that Tokens were drawn from; nil if each was
	// chosen with certainty. Valid until the next Propose.
	Dists []sample.Dist
}

// Host is what a drafter may borrow from its target, and how it is to be set up.
type Host struct {
	Model   *arch.Model
	Backend compute.Backend
	// Positions and Sequences size the drafter's own cache (see cache.Options).
	Positions, Sequences int
	// Window limits how far back the draft block attends (rows of context); 0 =
	// all. Heads that were trained with a window ignore it.
	Window int
	// Bits quantizes a head's matrices while loading (MLX affine, groups of 64);
	// below 2 counts as 2, 0 keeps the stored precision. What is stored quantized
	// stays as it is. It changes how many drafts are accepted, never the output.
	Bits int
	// Frequent limits the drafts of a DSpark head to ids below it, as long as the text
	// has few others; 0 = none. Tokenizers number their tokens by how frequent they
	// are, and most of a small head's time goes into the rows of a large vocabulary
	// (FR-Spec: Frequency-Ranked Speculative Sampling). It changes which drafts are
	// made, never the output.
	Frequent int
	// Spare limits the block of a DSpark head whose slots see each other to so many
	// more than the drafts that are asked for; 0 = the whole block, as in training. It
	// changes which drafts are made, never the output.
	Spare int
	// Tokens is how many ids the tokenizer that target and draft model share can
	// produce; 0 = unknown. A draft model may then have a table padded to another
	// size than the target's.
	Tokens int
}

// Frequent is the number of ids that a head of a vocabulary does well to draft from
// (see Host.Frequent): measured with SmolLM2's 49152, a twelfth of them accepts 1 or 2
// of 100 drafts less and makes a draft in half the time. Small vocabularies are no
// burden: 0.
func Frequent(vocab int) int {
	if vocab < 32768 {
		return 0
	}
	return vocab / 12
}

// Spare is the number of slots beyond the wanted ones with which as many drafts are
// accepted as with the whole block (see Host.Spare), measured with SmolLM2's head.
const Spare = 2
