// Package cache keeps what a model remembers between steps: paged keys and
// values (plain, windowed, quantized) and slots of recurrent or convolution
// state, both with rollback; and the store of prefixes that later requests
// reuse.
//
// Pages hold compute.PageSize positions, are counted by reference and copied
// when a shared one is written. Rollback of KV is a length (Seq.Advance keeps
// only the accepted rows); rollback of state is a StateCommit that the next
// program runs first. A window drops whole pages once no later row can see
// them.
//
// Where a past cannot be cut (state, windows), snapshots are the way back: Store
// keeps a ladder of them for each conversation. A Disk keeps pieces of stored
// prefixes in files, for the next process too (disk.go, tier.go).
//
// Cache plans steps: Plan turns (sequence, tokens) parts into the ragged rows,
// page tables and visible ranges that a forward pass reads.
//
// Never here: ops and kernels (engine/compute and its backends), model families,
// acceptance of tokens (engine/decode). Only Disk is safe for concurrent use: the
// engine goroutine owns all else.
//
// Read first: Cache, then Seq.
package cache
