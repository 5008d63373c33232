package cache

import (
	"slices"
	"testing"

	"sparkbar/engine/compute"
)

// conversation runs a text and stores it.
func (m *toy) conversation(s *Store, ids []int32) {
	m.t.Helper()
	q := m.seq()
	m.add(q, ids)
	s.Put(ids, q)
}

// take asks the store for a prompt, checks what it gives by running the rest,
// and returns how much was reused.
func (m *toy) take(s *Store, prompt []int32) int {
	m.t.Helper()
	n, seqs, err := s.Take(prompt)
	if err != nil {
		m.t.Fatal(err)
	}
	if n == 0 {
		if len(seqs) != 0 {
			m.t.Fatalf("nothing reused, but %d sequences", len(seqs))
		}
		return 0
	}
	if n >= len(prompt) {
		m.t.Fatalf("%d of %d tokens reused: the last one must be run", n, len(prompt))
	}
	for _, q := range seqs {
		if q.Len() != n {
			m.t.Fatalf("a sequence of %d for %d tokens", q.Len(), n)
		}
		m.expect("continued", m.add(q, prompt[n:]), prompt[:n], prompt[n:])
		q.Close()
	}
	return n
}

func newStore(t *testing.T, m *toy, slots int) *Store {
	s := NewStore(slots)
	m.c.Evict = s.Evict
	t.Cleanup(s.Clear) // before the toy's own check
	return s
}

func TestStoreTakesTheLongestPrefix(t *testing.T) {
	m := newToy(t, Options{Positions: 40 * page, Sequences: 8}, full)
	s := newStore(t, m, 4)
	a := text(1, 100)
	b := slices.Concat(a[:60], text(2, 80))
	m.conversation(s, a)
	m.conversation(s, b)
	for _, c := range []struct {
		what   string
		prompt []int32
		want   int
	}{
		{"continues the first", slices.Concat(a, text(3, 5)), 100},
		{"continues the second", slices.Concat(b, text(3, 5)), 140},
		{"leaves the first in the middle", slices.Concat(a[:90], text(4, 9)), 90},
		{"is the first, word for word", a, 99},
		{"shares the beginning of both", slices.Concat(a[:50], text(5, 9)), 50},
		{"shares too little", slices.Concat(a[:minReuse-1], text(6, 9)), 0},
		{"shares nothing", text(7, 60), 0},
		{"is empty", nil, 0},
	} {
		if got := m.take(s, c.prompt); got != c.want {
			t.Errorf("a prompt that %s reuses %d tokens, wants %d", c.what, got, c.want)
		}
	}
	st := s.Stats()
	if st.Hits != 5 || st.PartialHits != 3 || st.ReusedTokens != 100+140+90+99+50 || len(st.Tokens) != 2 {
		t.Errorf("counted %+v", st)
	}
}

// TestStoreOfStates: a past with recurrent layers is taken whole or not at all.
func TestStoreOfStates(t *testing.T) {
	m := newToy(t, Options{Positions: 40 * page, Sequences: 6}, conv, full)
	s := newStore(t, m, 3)
	a := text(1, 50)
	m.conversation(s, a)
	if got := m.take(s, slices.Concat(a, text(2, 3))); got != 50 {
		t.Errorf("a continuation reuses %d", got)
	}
	if got := m.take(s, slices.Concat(a[:49], text(3, 9))); got != 0 {
		t.Errorf("a prompt that leaves the past reuses %d", got)
	}
	// The shorter past stays useful: the longer one cannot serve it.
	longer := slices.Concat(a, text(4, 20))
	m.conversation(s, longer)
	if got := m.take(s, slices.Concat(a, text(5, 3))); got != 50 {
		t.Errorf("the shorter past gives %d", got)
	}
	// The same text again replaces its entry.
	m.conversation(s, longer)
	if st := s.Stats(); len(st.Tokens) != 2 {
		t.Errorf("entries of %v tokens", st.Tokens)
	}
}

// TestStoreOfWindows: a past shorter than the window can be cut.
func TestStoreOfWindows(t *testing.T) {
	m := newToy(t, Options{Positions: 40 * page, Sequences: 6}, window(page), full)
	s := newStore(t, m, 3)
	short, long := text(1, 40), text(2, 5*page)
	m.conversation(s, short)
	m.conversation(s, long)
	if got := m.take(s, slices.Concat(short[:30], text(3, 3))); got != 30 {
		t.Errorf("a past inside the window gives %d", got)
	}
	if got := m.take(s, slices.Concat(long[:page], text(3, 3))); got != 0 {
		t.Errorf("a past that is forgotten gives %d", got)
	}
	if got := m.take(s, slices.Concat(long, text(3, 3))); got != 5*page {
		t.Errorf("the whole past gives %d", got)
	}
}

func TestStoreKeepsTheRecentOnes(t *testing.T) {
	m := newToy(t, Options{Positions: 60 * page, Sequences: 9}, full)
	s := newStore(t, m, 2)
	a, b, c := text(1, 40), text(2, 40), text(3, 40)
	m.conversation(s, a)
	m.conversation(s, b)
	m.take(s, append(slices.Clone(a), 1)) // a is the most recent now
	m.conversation(s, c)
	if got := m.take(s, append(slices.Clone(b), 1)); got != 0 {
		t.Errorf("the least recent one still gives %d", got)
	}
	if got := m.take(s, append(slices.Clone(a), 1)); got != 40 {
		t.Errorf("the recent one gives %d", got)
	}
	// One that extends an entry takes its place.
	more := append(slices.Clone(a), text(4, 10)...)
	m.conversation(s, more)
	if st := s.Stats(); !slices.Equal(st.Tokens, []int{50, 40}) {
		t.Errorf("entries of %v tokens", st.Tokens)
	}
	// Too short to be worth a slot, and no slots at all.
	m.conversation(s, text(5, minReuse-1))
	m.conversation(NewStore(0), text(5, 40))
	if st := s.Stats(); len(st.Tokens) != 2 {
		t.Errorf("entries of %v tokens", st.Tokens)
	}
}

// TestStoreRefusesShortPrompts: a short prompt does not push out conversations
// that are much longer; a long one does.
func TestStoreRefusesShortPrompts(t *testing.T) {
	m := newToy(t, Options{Positions: 60 * page, Sequences: 9}, full)
	s := newStore(t, m, 2)
	m.conversation(s, text(1, 200))
	m.conversation(s, text(2, 300))
	m.conversation(s, text(3, 50))
	if st := s.Stats(); !slices.Equal(st.Tokens, []int{300, 200}) {
		t.Errorf("a short prompt made it %v", st.Tokens)
	}
	m.conversation(s, text(4, 51))
	if st := s.Stats(); !slices.Equal(st.Tokens, []int{51, 300}) {
		t.Errorf("a prompt of a quarter made it %v", st.Tokens)
	}
	m.conversation(s, text(5, shortPrompt))
	if st := s.Stats(); !slices.Equal(st.Tokens, []int{shortPrompt, 51}) {
		t.Errorf("a long prompt made it %v", st.Tokens)
	}
}

// TestStoreMakesRoom: entries go when pages or slots run out, but not the one
// that is being taken.
func TestStoreMakesRoom(t *testing.T) {
	for _, specs := range [][]compute.CacheSpec{{full}, {full, conv}} {
		m := newToy(t, Options{Positions: 4 * page, Sequences: 2}, specs...)
		s := newStore(t, m, 8)
		for i := range 5 { // there are six pages
			m.conversation(s, text(i, 2*page))
		}
		if st := s.Stats(); len(st.Tokens) != 3-len(specs)/2 {
			t.Errorf("entries of %v tokens", st.Tokens)
		}
		if got := m.take(s, append(text(4, 2*page), 1)); got != 2*page {
			t.Errorf("the last one gives %d", got)
		}
	}
	// With a single state slot nothing can be forked: the prompt runs anew.
	m := newToy(t, Options{Positions: 4 * page, Sequences: 1}, conv)
	s := newStore(t, m, 2)
	m.conversation(s, text(1, 40))
	if got := m.take(s, append(text(1, 40), 1)); got != 0 {
		t.Errorf("the only slot was forked: %d", got)
	}
	m.conversation(s, text(2, 40))
	if st := s.Stats(); len(st.Tokens) != 1 {
		t.Errorf("entries of %v tokens", st.Tokens)
	}
}
