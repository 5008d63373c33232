package tokenizer

import "math/bits"

// pairTable maps a pair of non-negative int32 to a pair of int32. It is an open-addressing
// hash table that is filled once and then only read; one probe touches one cache line.
type pairTable struct {
	slots []pairSlot
	shift uint
	n     int
}

type pairSlot struct {
	key  uint64 // a<<32 | b, plus 1 so that 0 means empty
	rank int32
	id   int32
}

func newPairTable(capacity int) *pairTable {
	size := 1 << max(bits.Len(uint(capacity*2)), 4)
	return &pairTable{slots: make([]pairSlot, size), shift: uint(64 - bits.TrailingZeros(uint(size)))}
}

func pairKey(a, b int32) uint64 { return (uint64(uint32(a))<<32 | uint64(uint32(b))) + 1 }

func (t *pairTable) find(key uint64) int {
	i := int((key * 0x9E3779B97F4A7C15) >> t.shift)
	for t.slots[i].key != 0 && t.slots[i].key != key {
		i = (i + 1) & (len(t.slots) - 1)
	}
	return i
}

// get returns the values stored for (a, b); ok is false if there are none.
func (t *pairTable) get(a, b int32) (rank, id int32, ok bool) {
	s := &t.slots[t.find(pairKey(a, b))]
	return s.rank, s.id, s.key != 0
}

// put stores the values of (a, b), replacing older ones.
func (t *pairTable) put(a, b, rank, id int32) {
	if (t.n+1)*2 > len(t.slots) {
		old := t.slots
		*t = *newPairTable(len(old))
		for _, s := range old {
			if s.key != 0 {
				t.slots[t.find(s.key)] = s
				t.n++
			}
		}
	}
	key := pairKey(a, b)
	i := t.find(key)
	if t.slots[i].key == 0 {
		t.n++
	}
	t.slots[i] = pairSlot{key: key, rank: rank, id: id}
}

// trie finds the strings of a set that are prefixes of a text.
// Nodes are numbered from 0 (the root); edges are (node, byte) pairs.
type trie struct {
	edges *pairTable
	value []int32   // value of the string ending at a node, -1 if none
	first [256]bool // bytes some string starts with
}

func newTrie(capacity int) *trie {
	return &trie{edges: newPairTable(capacity), value: []int32{-1}}
}

// add stores a non-empty string; the last value given for a string wins.
func (t *trie) add(s string, value int32) {
	node := int32(0)
	for i := 0; i < len(s); i++ {
		_, next, ok := t.edges.get(node, int32(s[i]))
		if !ok {
			next = int32(len(t.value))
			t.value = append(t.value, -1)
			t.edges.put(node, int32(s[i]), 0, next)
		}
		node = next
	}
	t.value[node] = value
	t.first[s[0]] = true
}

// step follows one edge; ok is false where no string continues with b.
func (t *trie) step(node int32, b byte) (next int32, ok bool) {
	_, next, ok = t.edges.get(node, int32(b))
	return next, ok
}

// longest returns the value and length of the longest stored string that s starts with.
func (t *trie) longest(s string) (value int32, length int) {
	value = -1
	node := int32(0)
	for i := 0; i < len(s); i++ {
		next, ok := t.step(node, s[i])
		if !ok {
			break
		}
		node = next
		if v := t.value[node]; v >= 0 {
			value, length = v, i+1
		}
	}
	return value, length
}
