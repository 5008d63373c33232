package cache

import (
	"cmp"
	"errors"
	"slices"

	"sparkbar/engine/compute"
)

// Store keeps the pasts of conversations for later requests that begin alike.
//
// An entry is a conversation: its tokens, and snapshots of the sequences that
// hold them (the target's first, then the drafter's). Where a past can be cut to
// any length, one snapshot at the end serves every prefix. Where it cannot
// (recurrent layers, windows that forget), an entry is a ladder: the snapshot at
// its end and rungs below, of which the deepest one that a prompt shares is
// used. A conversation that goes on takes the place of its shorter self, whose
// snapshots become rungs.
//
// Attach puts a tier on disk below.
type Store struct {
	slots   int
	limits  limits
	entries []*entry // most recently used first
	taking  *entry   // being restored: not to be evicted
	tier    *tier    // on disk; nil = none
	stats   StoreStats
}

type entry struct {
	key    any
	tokens []int32
	rungs  []*rung // by length; the last one is the end
}

// rung is a past at one length. Entries that began alike share it.
type rung struct {
	length int
	snaps  []*Snapshot
	refs   int
}

func (r *rung) drop() {
	if r.refs--; r.refs == 0 {
		for _, s := range r.snaps {
			s.Close()
		}
	}
}

// usable is the longest past of at most n positions that the first of the
// rung's snapshots gives, and how many of the snapshots give it.
func (r *rung) usable(n int) (length, snaps int) {
	length = min(n, r.length)
	for snaps < len(r.snaps) && r.snaps[snaps].CanTruncate(length) {
		snaps++
	}
	if snaps == 0 {
		return 0, 0
	}
	return length, snaps
}

// StoreStats counts what the store did since it was made.
type StoreStats struct {
	Hits         int
	PartialHits  int // the entry was longer than what could be reused
	DiskHits     int // restored from disk, which had more than memory
	ReusedTokens int
	Tokens       []int      // of each entry, most recently used first
	Rungs        [][]int    // of each entry: lengths of the snapshots below its end
	Disk         *DiskStats // nil = no tier on disk
}

// limits are the numbers behind a store's decisions.
type limits struct {
	reuse int // shortest prefix worth restoring
	rungs int // most rungs of an entry: a state can be hundreds of megabytes
	// context is how many tokens may be read again so that the drafter keeps its
	// context.
	context int
	// A prompt under short tokens never displaces conversations that are all at
	// least longer times as long.
	short, longer int
}

// NewStore returns a store of the given number of conversations.
func NewStore(slots int) *Store {
	return &Store{slots: slots, limits: limits{reuse: 16, rungs: 8, context: 512, short: 1024, longer: 4}}
}

// Reuse is what the store has for a prompt. Whoever took it calls Close.
type Reuse struct {
	// Length is how many tokens of the prompt the sequences hold; 0 = none.
	Length int
	// Seqs are the target's past and, if it has one of that length, the
	// drafter's. They are the caller's.
	Seqs []*Seq
	// Anchor is where the prompt leaves what is stored, when that is far behind
	// Length: a place where later prompts may branch off too, worth a Rung. Else
	// 0.
	Anchor int

	limits limits
	rungs  []*rung // of the prompt: inherited and added
}

// Take finds the longest usable prefix of the prompt among the entries of a key
// (pasts of different keys never mix), at most len(prompt)-1 tokens, since the
// last one must still be run. Where the drafter's past cannot be cut as far as
// the target's, a slightly shorter one is preferred that both have; failing
// that, the target's is returned alone. The disk is asked for what is at least a
// page longer than memory has.
func (s *Store) Take(key any, prompt []int32) (*Reuse, error) {
	r := &Reuse{limits: s.limits}
	var e *entry
	var from *rung
	shared, best, found := 0, 0, 0
	for _, x := range s.entries {
		if x.key != key {
			continue
		}
		n := common(x.tokens, prompt)
		shared = max(shared, n)
		n = min(n, len(prompt)-1)
		for _, g := range x.rungs {
			length, snaps := g.usable(n)
			if length < s.limits.reuse {
				continue
			}
			score := length
			if snaps < len(g.snaps) {
				score -= s.limits.context
			}
			if from == nil || score > best {
				e, from, best, r.Length, found = x, g, score, length, snaps
			}
		}
	}
	if shared >= s.limits.reuse && shared-r.Length >= s.limits.reuse && shared < len(prompt) {
		r.Anchor = shared
	}
	if from != nil {
		s.touch(e)
		s.taking = e
		defer func() { s.taking = nil }()
	}
	if s.tier != nil {
		if n, seqs := s.tier.take(key, prompt, max(r.Length+compute.PageSize, s.limits.reuse), s.limits.context); n > 0 {
			r.Length, r.Seqs = n, seqs
			if r.Anchor-n < s.limits.reuse {
				r.Anchor = 0
			}
			s.stats.Hits++
			s.stats.DiskHits++
			s.stats.ReusedTokens += n
			return r, nil
		}
	}
	if from == nil {
		return r, nil
	}
	for _, snap := range from.snaps[:found] {
		q, err := snap.Restore(r.Length)
		if err != nil {
			closeAll(r.Seqs)
			r.Seqs, r.Length = nil, 0
			if errors.Is(err, ErrFull) { // no slot for a state: run the prompt anew
				return r, nil
			}
			return nil, err
		}
		r.Seqs = append(r.Seqs, q)
	}
	s.stats.Hits++
	s.stats.ReusedTokens += r.Length
	if r.Length < len(e.tokens) {
		s.stats.PartialHits++
		for _, g := range e.rungs[:len(e.rungs)-1] {
			if g.length <= r.Length {
				g.refs++
				r.rungs = append(r.rungs, g)
			}
		}
	}
	return r, nil
}

func (s *Store) touch(e *entry) {
	i := slices.Index(s.entries, e)
	copy(s.entries[1:i+1], s.entries[:i])
	s.entries[0] = e
}

// Rung adds snapshots inside the prompt, all of one length, to the ladder of the
// entry that the prompt will become. The reuse takes them over.
func (r *Reuse) Rung(snaps ...*Snapshot) {
	g := &rung{length: snaps[0].Len(), snaps: snaps, refs: 1}
	if g.length < r.limits.reuse {
		g.drop()
		return
	}
	// Put knows better which ones to keep; this only bounds their memory.
	r.rungs = thin(insert(r.rungs, g), 2*r.limits.rungs)
}

// Marks are where a prompt that begins with reuse stored tokens is worth a rung,
// below its stable end: every spacing tokens (0 = nowhere), and at the anchor (0
// = none).
func Marks(reuse, stable, anchor, spacing int) []int {
	var marks []int
	if spacing > 0 {
		for m := (reuse/spacing + 1) * spacing; m < stable; m += spacing {
			marks = append(marks, m)
		}
	}
	if anchor > reuse && anchor < stable {
		if i, there := slices.BinarySearch(marks, anchor); !there {
			marks = slices.Insert(marks, i, anchor)
		}
	}
	return marks
}

// Close drops the rungs that no Put has taken. The sequences are not touched.
func (r *Reuse) Close() {
	for _, g := range r.rungs {
		g.drop()
	}
	r.rungs = nil
}

// insert adds a rung to a ladder; one of the same length goes.
func insert(ladder []*rung, g *rung) []*rung {
	i, there := slices.BinarySearchFunc(ladder, g.length, func(x *rung, n int) int { return cmp.Compare(x.length, n) })
	if there {
		ladder[i].drop()
		ladder[i] = g
		return ladder
	}
	return slices.Insert(ladder, i, g)
}

// thin drops the rungs closest to the one below them until at most n are left.
func thin(ladder []*rung, n int) []*rung {
	for len(ladder) > n {
		ladder = dropClosest(ladder)
	}
	return ladder
}

func dropClosest(ladder []*rung) []*rung {
	worst, least, below := 0, 0, 0
	for i, g := range ladder {
		if gap := g.length - below; i == 0 || gap < least {
			worst, least = i, gap
		}
		below = g.length
	}
	ladder[worst].drop()
	return slices.Delete(ladder, worst, worst+1)
}

// Put stores a conversation, of which every snapshot holds all tokens, and takes
// the snapshots over, and the rungs of r (nil = none). Entries that are a prefix
// of it become part of it; the least recently used ones go when there are too
// many.
func (s *Store) Put(key any, tokens []int32, r *Reuse, snaps ...*Snapshot) {
	end := &rung{length: len(tokens), snaps: snaps, refs: 1}
	var below []*rung
	if r != nil {
		below, r.rungs = r.rungs, nil
	}
	if s.slots <= 0 || len(tokens) < s.limits.reuse || s.refuses(len(tokens)) {
		end.drop()
		for _, g := range below {
			g.drop()
		}
		return
	}
	keep := s.entries[:0]
	for _, x := range s.entries {
		if x.key != key || common(x.tokens, tokens) < len(x.tokens) {
			keep = append(keep, x)
			continue
		}
		for _, g := range x.rungs {
			below = insert(below, g)
		}
	}
	clear(s.entries[len(keep):])
	ladder := below[:0]
	for _, g := range below {
		if _, n := end.usable(g.length); g.length == end.length || n >= len(g.snaps) {
			g.drop() // the end serves instead
			continue
		}
		ladder = append(ladder, g)
	}
	clear(below[len(ladder):])
	e := &entry{key: key, tokens: slices.Clone(tokens), rungs: append(thin(ladder, s.limits.rungs), end)}
	if s.tier != nil {
		s.tier.drain()
		s.tier.save(key, e.tokens, e.rungs)
	}
	s.entries = append([]*entry{e}, keep...)
	for len(s.entries) > s.slots {
		s.remove(len(s.entries) - 1)
	}
}

func (s *Store) refuses(n int) bool {
	if len(s.entries) < s.slots || n >= s.limits.short {
		return false
	}
	for _, e := range s.entries {
		if len(e.tokens) < s.limits.longer*n {
			return false
		}
	}
	return true
}

func (s *Store) remove(i int) {
	for _, g := range s.entries[i].rungs {
		g.drop()
	}
	s.entries = slices.Delete(s.entries, i, i+1)
}

// Evict makes room: it drops a rung of the least recently used entry or, when it
// has none, the entry. It reports whether there was something that could go.
func (s *Store) Evict() bool {
	if s.tier != nil && s.tier.settle() { // pages that were only kept for writing
		return true
	}
	n := len(s.entries)
	if n == 0 || s.entries[n-1] == s.taking {
		return false
	}
	e := s.entries[n-1]
	if len(e.rungs) == 1 {
		s.remove(n - 1)
		return true
	}
	end := e.rungs[len(e.rungs)-1]
	e.rungs = append(dropClosest(e.rungs[:len(e.rungs)-1]), end)
	return true
}

// Thin gives memory back and keeps every conversation: all rungs go but the
// given number of lowest ones of each, from which most later prompts branch
// off. It returns how many went.
func (s *Store) Thin(keep int) (dropped int) {
	for _, e := range s.entries {
		n := len(e.rungs) - 1
		for _, g := range e.rungs[min(keep, n):n] {
			g.drop()
			dropped++
		}
		e.rungs = slices.Delete(e.rungs, min(keep, n), n)
	}
	return dropped
}

// Forget drops all entries of a key.
func (s *Store) Forget(key any) {
	for i := len(s.entries) - 1; i >= 0; i-- {
		if s.entries[i].key == key {
			s.remove(i)
		}
	}
}

// Clear drops all entries from memory, once what the disk is to have is there.
func (s *Store) Clear() {
	if s.tier != nil {
		s.tier.settle()
	}
	for len(s.entries) > 0 {
		s.remove(len(s.entries) - 1)
	}
}

// Stats returns the counters.
func (s *Store) Stats() StoreStats {
	st := s.stats
	if s.tier != nil {
		d := s.tier.disk.Stats()
		st.Disk = &d
	}
	for _, e := range s.entries {
		st.Tokens = append(st.Tokens, len(e.tokens))
		var below []int
		for _, g := range e.rungs[:len(e.rungs)-1] {
			below = append(below, g.length)
		}
		st.Rungs = append(st.Rungs, below)
	}
	return st
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
