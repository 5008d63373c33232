package tokenizer

import (
	"fmt"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// model turns one word (a piece of normalized, pre-split text) into ids.
type model interface {
	// encode appends the ids of word, which is not empty and valid UTF-8 unless the model takes raw bytes.
	encode(ids []int32, word string) []int32
}

// bpe is byte-pair encoding: a word starts as single characters (or bytes), and the adjacent pair
// with the lowest merge rank, leftmost first, is merged until none is left.
type bpe struct {
	merges *pairTable // (left id, right id) → rank, merged id

	// Start symbols. If raw is set, words are raw bytes and byteIDs holds one symbol per byte (-1: the
	// byte is dropped); otherwise words are text and a symbol is one character.
	raw      bool
	byteIDs  [256]int32
	ascii    [utf8.RuneSelf]int32 // ids of one-character entries, -1 if none
	chars    map[rune]int32
	fallback bool       // unknown characters become their "<0xNN>" entries, if all exist
	fallIDs  [256]int32 // ids of "<0xNN>", -1 if none
	unk      int32      // id of the unknown token, -1: unknown characters are dropped
	fuseUnk  bool

	whole  map[string]int32 // with ignore_merges: words that are an entry are taken whole
	prefix string           // continuing_subword_prefix
	suffix string           // end_of_word_suffix
	vocab  map[string]int32 // entries, consulted only with prefix or suffix

	cache   *wordCache
	scratch sync.Pool // *mergeScratch
}

// bpeConfig is what a BPE model is built from.
type bpeConfig struct {
	vocab        map[string]int32
	merges       [][2]string
	unk          string // "" if none
	fuseUnk      bool
	byteFallback bool
	ignoreMerges bool
	prefix       string
	suffix       string
	raw          bool // words will arrive as raw bytes, the vocabulary is in the byte alphabet
}

func newBPE(c bpeConfig) (*bpe, error) {
	m := &bpe{unk: -1, fuseUnk: c.fuseUnk, raw: c.raw, prefix: c.prefix, suffix: c.suffix}
	if c.unk != "" {
		id, ok := c.vocab[c.unk]
		if !ok {
			return nil, fmt.Errorf("model.unk_token %q is not in model.vocab", c.unk)
		}
		m.unk = id
	}
	m.merges = newPairTable(len(c.merges))
	for i, ab := range c.merges {
		a, okA := c.vocab[ab[0]]
		b, okB := c.vocab[ab[1]]
		if !okA || !okB {
			return nil, fmt.Errorf("model.merges[%d]: %q or %q is not in model.vocab", i, ab[0], ab[1])
		}
		right, hasPrefix := strings.CutPrefix(ab[1], c.prefix)
		if !hasPrefix {
			return nil, fmt.Errorf("model.merges[%d]: %q lacks the continuing_subword_prefix %q", i, ab[1], c.prefix)
		}
		id, ok := c.vocab[ab[0]+right]
		if !ok {
			return nil, fmt.Errorf("model.merges[%d]: the merged token %q is not in model.vocab", i, ab[0]+right)
		}
		m.merges.put(a, b, int32(i), id)
	}
	m.setSymbols(c.vocab, c.byteFallback)
	if c.prefix != "" || c.suffix != "" {
		m.vocab = c.vocab
	}
	if c.ignoreMerges {
		m.whole = c.vocab
		if c.raw {
			m.whole = make(map[string]int32, len(c.vocab))
			for token, id := range c.vocab {
				if raw, ok := fromByteChars(token); ok {
					m.whole[raw] = id
				}
			}
		}
	}
	m.cache = newWordCache()
	return m, nil
}

// setSymbols fills the tables of start symbols.
func (m *bpe) setSymbols(vocab map[string]int32, byteFallback bool) {
	lookup := func(s string) int32 {
		if id, ok := vocab[s]; ok {
			return id
		}
		return -1
	}
	for b := range 256 {
		m.byteIDs[b] = lookup(byteChars[b])
		m.fallIDs[b] = lookup(byteTokenName(byte(b)))
	}
	m.fallback = byteFallback
	m.chars = make(map[rune]int32)
	for i := range m.ascii {
		m.ascii[i] = -1
	}
	for token, id := range vocab {
		r, size := utf8.DecodeRuneInString(token)
		if size == 0 || size != len(token) {
			continue
		}
		if r < utf8.RuneSelf {
			m.ascii[r] = id
		} else {
			m.chars[r] = id
		}
	}
}

func (m *bpe) encode(ids []int32, word string) []int32 {
	if m.whole != nil {
		if id, ok := m.whole[word]; ok {
			return append(ids, id)
		}
	}
	if len(word) > maxCachedWord {
		return m.merge(ids, word)
	}
	hash := m.cache.hash(word)
	if hit := m.cache.get(hash, word); hit != nil {
		return append(ids, hit...)
	}
	start := len(ids)
	ids = m.merge(ids, word)
	m.cache.put(hash, word, ids[start:])
	return ids
}

// mergeScratch holds the working arrays of one merge: symbols are a linked list of ids.
type mergeScratch struct {
	id, prev, next []int32
	rank           []int32 // rank of the pair (symbol, next symbol), noRank if it does not merge
	heap           []uint64
}

const (
	noRank = math.MaxInt32
	// shortWord is the number of symbols up to which scanning for the best pair beats a heap.
	shortWord = 24
)

func (m *bpe) merge(ids []int32, word string) []int32 {
	s, _ := m.scratch.Get().(*mergeScratch)
	if s == nil {
		s = new(mergeScratch)
	}
	s.id = m.symbols(s.id[:0], word)
	if len(s.id) <= shortWord {
		ids = m.mergeShort(ids, s)
	} else {
		ids = m.mergeLong(ids, s)
	}
	if cap(s.id) <= 1<<16 {
		m.scratch.Put(s)
	}
	return ids
}

// symbols appends the start symbols of word.
func (m *bpe) symbols(ids []int32, word string) []int32 {
	if m.raw && m.vocab == nil && m.unk < 0 && !m.fallback {
		for i := 0; i < len(word); i++ {
			if id := m.byteIDs[word[i]]; id >= 0 {
				ids = append(ids, id)
			}
		}
		return ids
	}
	if m.raw {
		word = toByteChars(word)
	}
	unknown := false // an unknown token waits to be written, it may absorb further ones
	for i := 0; i < len(word); {
		r, size := utf8.DecodeRuneInString(word[i:])
		id := int32(-1)
		switch {
		case m.vocab != nil:
			char := word[i : i+size]
			if i > 0 {
				char = m.prefix + char
			}
			if i+size == len(word) {
				char += m.suffix
			}
			if v, ok := m.vocab[char]; ok {
				id = v
			}
		case r < utf8.RuneSelf:
			id = m.ascii[r]
		default:
			if v, ok := m.chars[r]; ok {
				id = v
			}
		}
		char := word[i : i+size]
		i += size
		if id >= 0 {
			if unknown {
				ids, unknown = append(ids, m.unk), false
			}
			ids = append(ids, id)
			continue
		}
		if m.fallback {
			if ids2, ok := m.fallbackIDs(ids, char); ok {
				ids = ids2
				continue
			}
		}
		if m.unk < 0 {
			continue
		}
		if unknown && !m.fuseUnk {
			ids = append(ids, m.unk)
		}
		unknown = true
	}
	if unknown {
		ids = append(ids, m.unk)
	}
	return ids
}

func (m *bpe) fallbackIDs(ids []int32, char string) ([]int32, bool) {
	for i := 0; i < len(char); i++ {
		if m.fallIDs[char[i]] < 0 {
			return ids, false
		}
	}
	for i := 0; i < len(char); i++ {
		ids = append(ids, m.fallIDs[char[i]])
	}
	return ids, true
}

// mergeShort merges by looking for the best pair again and again.
func (m *bpe) mergeShort(ids []int32, s *mergeScratch) []int32 {
	sym := s.id
	rank := s.rank[:0]
	for i := 0; i+1 < len(sym); i++ {
		rank = append(rank, m.rankOf(sym[i], sym[i+1]))
	}
	s.rank = rank
	for len(rank) > 0 {
		best, at := int32(noRank), -1
		for i, r := range rank {
			if r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			break
		}
		_, sym[at], _ = m.merges.get(sym[at], sym[at+1])
		sym = append(sym[:at+1], sym[at+2:]...)
		rank = append(rank[:at], rank[at+1:]...)
		if at > 0 {
			rank[at-1] = m.rankOf(sym[at-1], sym[at])
		}
		if at < len(rank) {
			rank[at] = m.rankOf(sym[at], sym[at+1])
		}
	}
	return append(ids, sym...)
}

func (m *bpe) rankOf(a, b int32) int32 {
	if rank, _, ok := m.merges.get(a, b); ok {
		return rank
	}
	return noRank
}

// mergeLong merges with a heap of (rank, position), so n symbols cost O(n log n).
func (m *bpe) mergeLong(ids []int32, s *mergeScratch) []int32 {
	n := len(s.id)
	s.prev, s.next, s.rank = grow(s.prev, n), grow(s.next, n), grow(s.rank, n)
	h := s.heap[:0]
	for i := range n {
		s.prev[i], s.next[i], s.rank[i] = int32(i-1), int32(i+1), noRank
		if i+1 < n {
			if r := m.rankOf(s.id[i], s.id[i+1]); r != noRank {
				s.rank[i] = r
				h = append(h, uint64(r)<<32|uint64(i))
			}
		}
	}
	for i := len(h)/4 + 1; i >= 0; i-- {
		siftDown(h, i)
	}
	update := func(at int32) {
		r := int32(noRank)
		if next := s.next[at]; int(next) < n {
			r = m.rankOf(s.id[at], s.id[next])
		}
		s.rank[at] = r
		if r != noRank {
			h = append(h, uint64(r)<<32|uint64(at))
			siftUp(h)
		}
	}
	for len(h) > 0 {
		top := h[0]
		h[0] = h[len(h)-1]
		h = h[:len(h)-1]
		siftDown(h, 0)
		at := int32(uint32(top))
		if s.rank[at] != int32(top>>32) {
			continue // the pair changed since
		}
		right := s.next[at]
		_, s.id[at], _ = m.merges.get(s.id[at], s.id[right])
		s.rank[right] = noRank
		s.next[at] = s.next[right]
		if int(s.next[at]) < n {
			s.prev[s.next[at]] = at
		}
		update(at)
		if p := s.prev[at]; p >= 0 {
			update(p)
		}
	}
	s.heap = h
	for i := int32(0); int(i) < n; i = s.next[i] {
		ids = append(ids, s.id[i])
	}
	return ids
}

func grow(s []int32, n int) []int32 {
	if cap(s) < n {
		return make([]int32, n)
	}
	return s[:n]
}

// siftDown and siftUp keep h a 4-ary min-heap.
func siftDown(h []uint64, i int) {
	for {
		first := 4*i + 1
		if first >= len(h) {
			return
		}
		least := first
		for c := first + 1; c < min(first+4, len(h)); c++ {
			if h[c] < h[least] {
				least = c
			}
		}
		if h[i] <= h[least] {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

func siftUp(h []uint64) {
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if h[parent] <= h[i] {
			return
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
}

// wordCache remembers the ids of recent words: a fixed number of slots, each holding the last word
// that fell into it. Reads and writes are lock-free.
type wordCache struct {
	seed  maphash.Seed
	slots [cacheSlots]atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word string
	ids  []int32
}

const (
	cacheSlots    = 1 << 14
	maxCachedWord = 64 // bytes; longer words rarely repeat
)

func newWordCache() *wordCache { return &wordCache{seed: maphash.MakeSeed()} }

func (c *wordCache) hash(word string) uint64 { return maphash.String(c.seed, word) }

func (c *wordCache) get(hash uint64, word string) []int32 {
	if e := c.slots[hash%cacheSlots].Load(); e != nil && e.word == word {
		return e.ids
	}
	return nil
}

func (c *wordCache) put(hash uint64, word string, ids []int32) {
	if len(ids) == 0 {
		return
	}
	e := &cachedWord{word: strings.Clone(word), ids: append([]int32(nil), ids...)}
	c.slots[hash%cacheSlots].Store(e)
}
