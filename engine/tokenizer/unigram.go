package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// unigram segments a word into the entries with the highest total score (log-probability), by dynamic
// programming over byte positions. A character no entry covers counts as unknown.
type unigram struct {
	entries  *trie
	ids      map[string]int32
	scores   []float64
	unkScore float64
	unk      int32 // -1: none
	fallback bool
	cache    *wordCache
}

const (
	unkPenalty      = 10   // unknown characters score this much below the worst entry
	maxUnigramEntry = 1024 // bytes; bounds the work per text position
)

func newUnigram(tokens []string, scores []float64, unk int32, byteFallback bool) (*unigram, error) {
	if len(tokens) == 0 {
		return nil, errors.New("model.vocab is empty")
	}
	if int(unk) >= len(tokens) || unk < -1 {
		return nil, fmt.Errorf("model.unk_id %d is not in model.vocab", unk)
	}
	m := &unigram{entries: newTrie(len(tokens) * 2), ids: make(map[string]int32, len(tokens)), scores: scores,
		unk: unk, fallback: byteFallback, cache: newWordCache()}
	worst := math.Inf(1)
	for i, token := range tokens {
		if math.IsNaN(scores[i]) || math.IsInf(scores[i], 0) {
			return nil, fmt.Errorf("model.vocab[%d]: the score of %q is not finite", i, token)
		}
		if len(token) > maxUnigramEntry {
			return nil, fmt.Errorf("model.vocab[%d]: longer than %d bytes", i, maxUnigramEntry)
		}
		worst = min(worst, scores[i])
		m.ids[token] = int32(i)
		if token != "" {
			m.entries.add(token, int32(i))
		}
	}
	m.unkScore = worst - unkPenalty
	return m, nil
}

func (m *unigram) encode(ids []int32, word string) []int32 {
	if len(word) > maxCachedWord {
		return m.segment(ids, word)
	}
	hash := m.cache.hash(word)
	if hit := m.cache.get(hash, word); hit != nil {
		return append(ids, hit...)
	}
	start := len(ids)
	ids = m.segment(ids, word)
	m.cache.put(hash, word, ids[start:])
	return ids
}

func (m *unigram) segment(ids []int32, word string) []int32 {
	type node struct {
		score float64
		from  int32 // start of the best entry that ends here, -1 if none does
		id    int32
	}
	best := make([]node, len(word)+1)
	for i := range best {
		best[i].from = -1
	}
	offer := func(from, to int, id int32, score float64) {
		if n := &best[to]; n.from < 0 || score > n.score {
			*n = node{score, int32(from), id}
		}
	}
	for at := 0; at < len(word); {
		_, size := utf8.DecodeRuneInString(word[at:])
		here := best[at].score
		covered := false
		for state, i := int32(0), at; i < len(word); i++ {
			next, ok := m.entries.step(state, word[i])
			if !ok {
				break
			}
			state = next
			if id := m.entries.value[state]; id >= 0 {
				offer(at, i+1, id, here+m.scores[id])
				covered = covered || i+1 == at+size
			}
		}
		if !covered {
			offer(at, at+size, m.unk, here+m.unkScore)
		}
		at += size
	}
	// Walk back; neighbouring unknown characters become one piece.
	type piece struct{ from, to int }
	var pieces []piece
	for to := len(word); to > 0; {
		n := best[to]
		from := int(n.from)
		for n.id == m.unk && from > 0 && best[from].id == m.unk {
			from = int(best[from].from)
		}
		pieces = append(pieces, piece{from, to})
		to = from
	}
	for i := len(pieces) - 1; i >= 0; i-- {
		ids = m.append(ids, word[pieces[i].from:pieces[i].to])
	}
	return ids
}

// append adds the id of one piece, or of its bytes, or the unknown id.
func (m *unigram) append(ids []int32, piece string) []int32 {
	if id, ok := m.ids[piece]; ok {
		return append(ids, id)
	}
	if m.fallback {
		start := len(ids)
		for i := 0; i < len(piece); i++ {
			id, ok := m.ids[byteTokenName(piece[i])]
			if !ok {
				ids = ids[:start]
				break
			}
			ids = append(ids, id)
		}
		if len(ids) > start {
			return ids
		}
	}
	if m.unk < 0 {
		return ids
	}
	return append(ids, m.unk)
}
