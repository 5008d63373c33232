package ngram

import (
	"fmt"
	"math/rand/v2"
)

// Config sets the n-gram lengths and draft lengths of an [Index].
type Config struct {
	MinN, MaxN int // suffix lengths that are looked up, longest first
	Draft      int // drafted tokens for an ordinary match
	LongDraft  int // ceiling for long matches; 0 or less = never more than Draft
	// GoOn lets a copy go on where the last one was copied from, and run into itself
	// (see Propose). The reference's do not.
	GoOn bool
}

// Standalone is the configuration when copying is the only drafter.
var Standalone = Config{MinN: 3, MaxN: 4, Draft: 6, LongDraft: 32}

// Hybrid is the configuration beside a model drafter: trigrams are left out,
// because their chance hits cost more than they bring.
var Hybrid = Config{MinN: 4, MaxN: 5, Draft: 6, LongDraft: 32}

const (
	// longMatch is the matched length from which a draft may grow to twice
	// the match.
	longMatch = 8
	// mostMatch is how far two matches are compared.
	mostMatch = 64
	// maxN bounds Config.MaxN, so that one token costs little.
	maxN = 16
	// maxTokens is where an index forgets its older half (about 40 MB).
	maxTokens = 1 << 20
)

// Index finds earlier occurrences of the current suffix. For every n in
// [MinN, MaxN] it keeps the last two end positions of each n-gram seen: the
// newest is the suffix itself, the one before it is the place to copy from, unless
// the last copy goes on elsewhere (Config.GoOn). Not safe for concurrent use.
type Index struct {
	cfg    Config
	limit  int // of len(tokens)
	tokens []int32
	tables []table // one per n, from MinN up
	seed   uint64  // of the hashes, so that no prompt can aim at collisions
	next   int     // where the last copy goes on; 0 = nowhere
}

// New returns an empty index.
func New(cfg Config) (*Index, error) {
	if cfg.MinN < 1 || cfg.MaxN < cfg.MinN || cfg.MaxN > maxN {
		return nil, fmt.Errorf("ngram: n-gram lengths %d to %d: need 1 ≤ min ≤ max ≤ %d", cfg.MinN, cfg.MaxN, maxN)
	}
	if cfg.Draft < 1 {
		return nil, fmt.Errorf("ngram: draft length %d: must be at least 1", cfg.Draft)
	}
	x := &Index{cfg: cfg, limit: maxTokens, seed: rand.Uint64()}
	x.tables = make([]table, cfg.MaxN-cfg.MinN+1)
	for i := range x.tables {
		x.tables[i].seed = x.seed
	}
	return x, nil
}

// Draft returns the ordinary draft length (what [Gate.Update] calls base).
func (x *Index) Draft() int { return x.cfg.Draft }

// Append adds committed tokens: the prompt, then the output as it grows.
func (x *Index) Append(tokens ...int32) {
	for _, t := range tokens {
		if len(x.tokens) >= x.limit {
			x.forget()
		}
		x.tokens = append(x.tokens, t)
		x.enter()
		if x.next > 0 {
			x.next++
		}
	}
}

// enter registers the n-grams that end at the last token.
func (x *Index) enter() {
	hash := x.seed
	for n := 1; n <= x.cfg.MaxN && n <= len(x.tokens); n++ {
		hash = mix(hash, x.tokens[len(x.tokens)-n])
		if n >= x.cfg.MinN {
			x.tables[n-x.cfg.MinN].put(x.tokens, n, hash)
		}
	}
}

// forget drops the older half of the tokens and indexes the rest anew.
func (x *Index) forget() {
	kept := append([]int32(nil), x.tokens[len(x.tokens)-x.limit/2:]...)
	x.tokens, x.next = x.tokens[:0], 0
	for i := range x.tables {
		x.tables[i] = table{seed: x.seed}
	}
	x.Append(kept...)
}

// Propose appends up to max draft tokens to dst: those that followed the latest
// earlier occurrence of the longest known suffix, up to the end of the text. It
// appends nothing on a miss. A match of at least 8 tokens earns twice its length, up
// to Config.LongDraft, when long is true ([Gate.Allowed]).
//
// With Config.GoOn it takes those after the place where the last copy goes on, if no
// less matches there: parts of a file begin alike, and the one copied from is then
// the right one, also past a token that differed. And a copy that comes to the end of
// the text goes on with itself, as what repeats itself every few tokens does.
func (x *Index) Propose(dst []int32, max int, long bool) []int32 {
	end := x.source()
	if m := x.matched(x.next, mostMatch); m >= x.cfg.MinN && m >= x.matched(end, mostMatch) {
		end = x.next
	}
	if end == 0 {
		x.next = 0
		return dst
	}
	length := x.cfg.Draft
	if long && x.cfg.LongDraft > 0 {
		if m := x.matched(end, x.cfg.LongDraft); m >= longMatch {
			length = min(x.cfg.LongDraft, 2*m)
		}
	}
	turn := len(x.tokens) - end // until the copy is of itself
	if length = min(length, max); x.cfg.GoOn {
		x.next = end
	} else {
		length = min(length, turn)
	}
	for i := range length {
		if i < turn {
			dst = append(dst, x.tokens[end+i])
		} else {
			dst = append(dst, dst[len(dst)-turn])
		}
	}
	return dst
}

// source returns the position after the match to copy from, 0 if there is
// none.
func (x *Index) source() int {
	var hashes [maxN + 1]uint64
	hashes[0] = x.seed
	n := min(x.cfg.MaxN, len(x.tokens))
	for i := 1; i <= n; i++ {
		hashes[i] = mix(hashes[i-1], x.tokens[len(x.tokens)-i])
	}
	for ; n >= x.cfg.MinN; n-- {
		if end := x.tables[n-x.cfg.MinN].previous(x.tokens, n, hashes[n]); end > 0 {
			return end
		}
	}
	return 0
}

// matched returns how many tokens before end equal the tokens before the end
// of the sequence, counting no further than limit.
func (x *Index) matched(end, limit int) int {
	m := 0
	for m < limit && m < end && x.tokens[end-1-m] == x.tokens[len(x.tokens)-1-m] {
		m++
	}
	return m
}

// mix extends the hash of a suffix by the token before it.
func mix(h uint64, t int32) uint64 {
	h = (h ^ uint64(uint32(t))) * 0x9E3779B97F4A7C15
	return h ^ h>>29
}

// table is an open-addressing hash table from n-grams to their last two end
// positions. Keys are not stored: they are read from the token sequence.
type table struct {
	slots []slot // power of two
	used  int
	seed  uint64
}

type slot struct {
	last, prev int32 // end positions; last 0 = free, prev 0 = seen once
}

// put registers the n-gram at the end of tokens.
func (t *table) put(tokens []int32, n int, hash uint64) {
	if 2*(t.used+1) > len(t.slots) {
		t.double(tokens, n)
	}
	s := t.find(tokens, n, hash)
	if s.last == 0 {
		t.used++
	}
	s.last, s.prev = int32(len(tokens)), s.last
}

// previous returns the end of the latest occurrence of the final n-gram other
// than itself, 0 if there is none.
func (t *table) previous(tokens []int32, n int, hash uint64) int {
	if t.used == 0 {
		return 0
	}
	s := t.find(tokens, n, hash)
	if int(s.last) == len(tokens) {
		return int(s.prev)
	}
	return int(s.last)
}

// find returns the slot of the final n-gram, or the free slot for it.
func (t *table) find(tokens []int32, n int, hash uint64) *slot {
	key := tokens[len(tokens)-n:]
	mask := uint64(len(t.slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.last == 0 || equal(tokens[int(s.last)-n:s.last], key) {
			return s
		}
	}
}

// double grows the table and moves all entries.
func (t *table) double(tokens []int32, n int) {
	old := t.slots
	t.slots = make([]slot, max(16, 2*len(old)))
	for _, s := range old {
		if s.last == 0 {
			continue
		}
		hash := t.seed
		for i := 1; i <= n; i++ {
			hash = mix(hash, tokens[int(s.last)-i])
		}
		*t.find(tokens[:s.last], n, hash) = s
	}
}

func equal(a, b []int32) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
