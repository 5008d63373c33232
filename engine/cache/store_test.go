package cache

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"sparkbar/engine/compute"
)

// snapshot ends a sequence and returns its past.
func (m *toy) snapshot(q *Seq) *Snapshot {
	m.t.Helper()
	f, err := q.Snapshot()
	if err != nil {
		m.t.Fatal(err)
	}
	return f
}

// conversation runs a text and stores it.
func (m *toy) conversation(s *Store, ids []int32) {
	m.t.Helper()
	q := m.seq()
	m.add(q, ids)
	s.Put(nil, ids, nil, m.snapshot(q))
	q.Close()
}

// take asks the store for a prompt, checks what it gives by running the rest,
// and returns how much was reused.
func (m *toy) take(s *Store, prompt []int32) int {
	m.t.Helper()
	r, err := s.Take(nil, prompt)
	if err != nil {
		m.t.Fatal(err)
	}
	defer r.Close()
	n := r.Length
	if n == 0 {
		if len(r.Seqs) != 0 {
			m.t.Fatalf("nothing reused, but %d sequences", len(r.Seqs))
		}
		return 0
	}
	if n >= len(prompt) {
		m.t.Fatalf("%d of %d tokens reused: the last one must be run", n, len(prompt))
	}
	for _, q := range r.Seqs {
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
		{"shares too little", slices.Concat(a[:s.limits.reuse-1], text(6, 9)), 0},
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

// TestStoreOfStates: a past with recurrent layers is taken whole, where there is
// a snapshot of it, or not at all.
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
	// The shorter past becomes a rung of the longer one, which cannot be cut.
	longer := slices.Concat(a, text(4, 20))
	m.conversation(s, longer)
	if got := m.take(s, slices.Concat(a, text(5, 3))); got != 50 {
		t.Errorf("the shorter past gives %d", got)
	}
	// The same text again replaces its entry.
	m.conversation(s, longer)
	if st := s.Stats(); !slices.Equal(st.Tokens, []int{70}) || !slices.Equal(st.Rungs[0], []int{50}) {
		t.Errorf("entries of %v tokens with rungs at %v", st.Tokens, st.Rungs)
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
	m.conversation(s, text(5, s.limits.reuse-1))
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
	m.conversation(s, text(5, s.limits.short))
	if st := s.Stats(); !slices.Equal(st.Tokens, []int{s.limits.short, 51}) {
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
		if st := s.Stats(); len(st.Tokens) != 3 {
			t.Errorf("entries of %v tokens", st.Tokens)
		}
		if got := m.take(s, append(text(4, 2*page), 1)); got != 2*page {
			t.Errorf("the last one gives %d", got)
		}
	}
	// The only state slot is free between requests, and taken during one.
	m := newToy(t, Options{Positions: 4 * page, Sequences: 1}, conv)
	s := newStore(t, m, 2)
	m.conversation(s, text(1, 40))
	m.conversation(s, text(2, 40))
	prompt := append(text(1, 40), 1)
	if got := m.take(s, prompt); got != 40 {
		t.Errorf("with a free slot %d are reused", got)
	}
	q := m.seq()
	r, err := s.Take(nil, prompt)
	if err != nil || r.Length != 0 || len(r.Seqs) != 0 {
		t.Errorf("without a free slot %d are reused, %v", r.Length, err)
	}
	r.Close()
	q.Close()
}

// TestStoreKeys: pasts of different keys never mix.
func TestStoreKeys(t *testing.T) {
	m := newToy(t, Options{Positions: 60 * page, Sequences: 9}, full)
	s := newStore(t, m, 4)
	put := func(key any, ids []int32) {
		q := m.seq()
		m.add(q, ids)
		s.Put(key, ids, nil, m.snapshot(q))
		q.Close()
	}
	put(1, text(1, 40))
	put(2, text(1, 50)) // does not take the place of the other
	for key, want := range map[any]int{1: 40, 2: 50, 3: 0} {
		r, err := s.Take(key, text(1, 80))
		if err != nil || r.Length != want {
			t.Errorf("key %v gives %d, wants %d (%v)", key, r.Length, want, err)
		}
		closeAll(r.Seqs)
		r.Close()
	}
	s.Forget(2)
	if st := s.Stats(); !slices.Equal(st.Tokens, []int{40}) {
		t.Errorf("entries of %v tokens", st.Tokens)
	}
}

// TestStoreKeepsTheDraftersPast: a slightly shorter past that target and drafter
// both have is better than a longer one of the target alone.
func TestStoreKeepsTheDraftersPast(t *testing.T) {
	m := newToy(t, Options{Positions: 60 * page, Sequences: 9}, full)
	d := newToy(t, Options{Positions: 60 * page, Sequences: 9}, conv)
	s := newStore(t, m, 4)
	s.limits.context = 30
	ids := text(1, 200)
	r := &Reuse{limits: s.limits}
	q, p := m.seq(), d.seq()
	at := 0
	for _, n := range []int{100, 200} {
		m.add(q, ids[at:n])
		d.add(p, ids[at:n])
		if at = n; n < 200 {
			r.Rung(m.snapshot(q), d.snapshot(p))
		}
	}
	s.Put(nil, ids, r, m.snapshot(q), d.snapshot(p))
	q.Close()
	p.Close()
	for _, c := range []struct{ shared, length, seqs int }{{199, 199, 1}, {110, 100, 2}, {129, 100, 2}, {131, 131, 1}, {90, 90, 1}, {200, 200, 2}} {
		r, err := s.Take(nil, slices.Concat(ids[:c.shared], []int32{ids[c.shared%200] + 1}, text(2, 9)))
		if err != nil || r.Length != c.length || len(r.Seqs) != c.seqs {
			t.Errorf("%d shared tokens give %d in %d sequences, wants %+v (%v)", c.shared, r.Length, len(r.Seqs), c, err)
		}
		closeAll(r.Seqs)
		r.Close()
	}
}

// TestStoreGoldens replays requests on the reference's prefix cache: what is
// reused, where snapshots are taken, what is kept and what goes under memory
// pressure. Every reused past is run on and compared with a cold run.
func TestStoreGoldens(t *testing.T) {
	text, err := os.ReadFile("../testdata/speculation/prefix_cache.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Traces []struct {
			Seed       int
			Checkpoint bool `json:"checkpoint_mode"`
			Recurrent  bool `json:"recurrent_layer"`
			Slots      int  `json:"max_slots"`
			Spacing    int  `json:"rung_spacing"`
			Reuse      int  `json:"min_reuse"`
			Rungs      int  `json:"max_rungs"`
			Short      int  `json:"min_slot_tokens"`
			Requests   []struct {
				Prompt, Generated []int32
				Reuse, Anchor     int
				Marks             []int
				Hits              int
				Partial           int `json:"partial_hits"`
				Reused            int `json:"reused_tokens"`
				Slots             []struct {
					Tokens int
					Rungs  []int
				}
				Shed *struct {
					Level string
					Slots int `json:"slots_dropped"`
					Rungs int `json:"rungs_dropped"`
				}
			}
		}
	}
	if err := json.Unmarshal(text, &doc); err != nil || len(doc.Traces) < 9 {
		t.Fatal(len(doc.Traces), err)
	}
	ours, theirs := 0, 0
	for _, trace := range doc.Traces {
		specs := []compute.CacheSpec{full}
		if trace.Recurrent {
			specs = append(specs, conv)
		}
		m := newToy(t, Options{Positions: 200 * page, Sequences: 4}, specs...)
		s := newStore(t, m, trace.Slots)
		s.limits = limits{reuse: trace.Reuse, rungs: trace.Rungs, short: trace.Short, longer: 4}
		for i, x := range trace.Requests {
			what := fmt.Sprintf("trace %d, request %d", trace.Seed, i)
			r, err := s.Take(nil, x.Prompt)
			if err != nil {
				t.Fatal(err)
			}
			q := m.seq()
			at := r.Length
			if at > 0 {
				q.Close()
				q = r.Seqs[0]
			}
			var marks []int
			stable := len(x.Prompt) - 1
			if trace.Checkpoint {
				if marks = Marks(at, stable, r.Anchor, trace.Spacing); stable > at && stable >= trace.Reuse {
					marks = append(marks, stable)
				}
			}
			run := func(to int) {
				all := slices.Concat(x.Prompt, x.Generated)
				m.expect(what, m.add(q, all[at:to]), all[:at], all[at:to])
				at = to
			}
			for _, mark := range marks {
				run(mark)
				if mark == stable {
					s.Put(nil, x.Prompt[:mark], r, m.snapshot(q))
				} else {
					r.Rung(m.snapshot(q))
				}
			}
			run(len(x.Prompt) + len(x.Generated) - 1)
			if !trace.Checkpoint {
				s.Put(nil, slices.Concat(x.Prompt, x.Generated)[:at], r, m.snapshot(q))
			}
			q.Close()
			got := s.Stats()
			if !trace.Checkpoint {
				// A past that another conversation branches off stays here, where
				// the reference cuts it.
				ours, theirs = ours+r.Length, theirs+x.Reuse
				r.Close()
				continue
			}
			if r.Length != x.Reuse || r.Anchor != x.Anchor || !slices.Equal(marks, x.Marks) {
				t.Errorf("%s: %d reused, anchor %d, marks %v, wants %d, %d, %v", what, r.Length, r.Anchor, marks, x.Reuse, x.Anchor, x.Marks)
			}
			r.Close()
			if got.Hits != x.Hits || got.PartialHits != x.Partial || got.ReusedTokens != x.Reused {
				t.Errorf("%s: counted %+v, wants %d hits, %d partial, %d tokens", what, got, x.Hits, x.Partial, x.Reused)
			}
			// The recorded list is the one before memory was given back.
			same := len(got.Tokens) == len(x.Slots)
			for k := range x.Slots {
				same = same && got.Tokens[k] == x.Slots[k].Tokens && slices.Equal(got.Rungs[k], x.Slots[k].Rungs)
			}
			if !same {
				t.Fatalf("%s: entries of %v with rungs %v, wants %v", what, got.Tokens, got.Rungs, x.Slots)
			}
			if x.Shed == nil {
				continue
			}
			slots, rungs := 0, 0
			if x.Shed.Level == "warn" {
				rungs = s.Thin(2)
			} else {
				slots = len(got.Tokens)
				for _, l := range got.Rungs {
					rungs += len(l)
				}
				s.Clear()
			}
			if slots != x.Shed.Slots || rungs != x.Shed.Rungs {
				t.Errorf("%s: %d entries and %d rungs given back, wants %+v", what, slots, rungs, *x.Shed)
			}
		}
	}
	t.Logf("where pasts can be cut %d tokens are reused, by the reference %d", ours, theirs)
	if ours < theirs {
		t.Errorf("where pasts can be cut %d tokens are reused, by the reference %d", ours, theirs)
	}
}
