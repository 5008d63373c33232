// Package draft holds the drafters: what guesses the next tokens that the
// target then verifies. All of them stand behind one interface, Drafter, and
// none can change the output: engine/decode alone decides what is accepted.
//
// DSpark and DFlash heads (head.go has what they share) read the target's hidden
// states of committed positions and keep keys and values made from them as a
// context of their own, one per sequence. Classic is a small model that reads the
// committed tokens. Open tells from a checkpoint's configuration which of them it
// holds; dsparkconfig.go and dflashconfig.go bring every published packaging to
// one form. The n-gram drafter needs no model and lives in draft/ngram.
//
// Never here: acceptance, rollback of the target, caps and their control
// (engine/decode, engine/calibrate).
//
// Read first: Drafter, then head.go.
package draft
