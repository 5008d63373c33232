package cache

import "errors"

// Store keeps the pasts of finished conversations for later requests that
// begin alike. An entry is a bundle: the tokens, and the sequences that hold
// them in each cache (the target's first, then the drafter's). Entries stay in
// the store while forks of them are in use.
type Store struct {
	slots   int
	entries []*bundle // most recently used first
	taking  *bundle   // being forked: not to be evicted
	stats   StoreStats
}

type bundle struct {
	tokens []int32
	seqs   []*Seq
}

// StoreStats counts what the store did since it was made.
type StoreStats struct {
	Hits         int
	PartialHits  int // the entry was longer than what could be reused
	ReusedTokens int
	Tokens       []int // of each entry, most recently used first
}

// minReuse is the shortest prefix worth restoring.
const minReuse = 16

// shortPrompt and muchLonger: a prompt under shortPrompt tokens never displaces
// conversations that are all at least muchLonger times as long.
const (
	shortPrompt = 1024
	muchLonger  = 4
)

// NewStore returns a store of the given number of conversations.
func NewStore(slots int) *Store { return &Store{slots: slots} }

// Take returns forks of the stored sequences that share the longest usable
// prefix with the prompt, and its length: at most len(prompt)-1, since the last
// token must still be run. Zero means there is nothing to reuse. A past that
// cannot be cut is used only whole; where it is the drafter's, the target's is
// returned alone.
func (s *Store) Take(prompt []int32) (reuse int, seqs []*Seq, err error) {
	best := -1
	for i, e := range s.entries {
		n := common(e.tokens, prompt)
		n = min(n, len(prompt)-1)
		if !e.seqs[0].CanTruncate(n) {
			continue
		}
		if n >= minReuse && n > reuse {
			best, reuse = i, n
		}
	}
	if best < 0 {
		return 0, nil, nil
	}
	e := s.entries[best]
	copy(s.entries[1:best+1], s.entries[:best])
	s.entries[0] = e
	s.taking = e
	defer func() { s.taking = nil }()
	for i, q := range e.seqs {
		if i > 0 && !q.CanTruncate(reuse) {
			break
		}
		f, err := q.Fork()
		if err == nil && reuse < f.Len() {
			err = f.Truncate(reuse)
		}
		if err != nil {
			f.Close()
			closeAll(seqs)
			if errors.Is(err, ErrFull) { // no slot for a second state: run the prompt anew
				return 0, nil, nil
			}
			return 0, nil, err
		}
		seqs = append(seqs, f)
	}
	s.stats.Hits++
	s.stats.ReusedTokens += reuse
	if reuse < len(e.tokens) {
		s.stats.PartialHits++
	}
	return reuse, seqs, nil
}

// Put stores a conversation and takes the sequences over. tokens are the
// positions that each of them holds. Entries that the new one can serve instead
// go; the least recently used ones go when there are too many.
func (s *Store) Put(tokens []int32, seqs ...*Seq) {
	if s.slots <= 0 || len(tokens) < minReuse || s.refuses(len(tokens)) {
		closeAll(seqs)
		return
	}
	keep := s.entries[:0]
	for _, e := range s.entries {
		if n := len(e.tokens); common(e.tokens, tokens) == n && canTruncate(seqs, n) {
			closeAll(e.seqs)
			continue
		}
		keep = append(keep, e)
	}
	s.entries = append([]*bundle{{append([]int32(nil), tokens...), seqs}}, keep...)
	for len(s.entries) > s.slots {
		s.Evict()
	}
}

func (s *Store) refuses(n int) bool {
	if len(s.entries) < s.slots || n >= shortPrompt {
		return false
	}
	for _, e := range s.entries {
		if len(e.tokens) < muchLonger*n {
			return false
		}
	}
	return true
}

// Evict drops the least recently used entry; it reports whether there was one
// that could go.
func (s *Store) Evict() bool {
	n := len(s.entries)
	if n == 0 || s.entries[n-1] == s.taking {
		return false
	}
	closeAll(s.entries[n-1].seqs)
	s.entries[n-1] = nil
	s.entries = s.entries[:n-1]
	return true
}

// Clear drops all entries.
func (s *Store) Clear() {
	for s.Evict() {
	}
}

// Stats returns the counters.
func (s *Store) Stats() StoreStats {
	st := s.stats
	for _, e := range s.entries {
		st.Tokens = append(st.Tokens, len(e.tokens))
	}
	return st
}

func canTruncate(seqs []*Seq, n int) bool {
	for _, q := range seqs {
		if !q.CanTruncate(n) {
			return false
		}
	}
	return true
}

func common(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func closeAll(seqs []*Seq) {
	for _, q := range seqs {
		q.Close()
	}
}
