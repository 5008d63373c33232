// Package ngram proposes draft tokens by copying: when the last few tokens
// occurred before in prompt or output, what followed them then is the guess
// for what follows now. It needs no model; it pays on edits, code and quotes.
//
// What lives here: the incremental n-gram [Index], the match-scaled draft
// length, and the [Gate] that stops long drafts where they keep failing.
//
// What must never live here: verification, acceptance, caches, model code.
// Only committed tokens are appended; a rejected draft never enters the index,
// so nothing has to be taken back.
//
// Appending costs O(MaxN) per token, a proposal O(MaxN + draft length), and
// memory is bounded: beyond a fixed number of tokens the older half is
// forgotten.
//
// Read [Index] first.
package ngram
