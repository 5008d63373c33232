// Package draft holds the drafters: what guesses the next tokens that the
// target then verifies. All of them stand behind one interface, Drafter, and
// none can change the output: engine/decode alone decides what is accepted.
//
// A drafter reads the target's hidden states (taps) of committed positions and
// keeps them as a context of its own, one per sequence. The n-gram drafter
// needs no model and lives in draft/ngram.
//
// Never here: acceptance, rollback of the target, caps and their control
// (engine/decode, engine/calibrate).
//
// Read first: Drafter, then dspark.go.
package draft
