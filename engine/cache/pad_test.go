package cache

import (
	"math"
	"slices"
	"testing"
)

// TestKeys: the toy's keys are the rows of its embedding.
func TestKeys(t *testing.T) {
	m := newToy(t, Options{Positions: 20 * page, Sequences: 3}, full, conv)
	a := text(1, page+9)
	q := m.seq()
	defer q.Close()
	m.add(q, a)
	got := q.Keys(0)
	if len(got) != len(a)-1 || len(got[0]) != dim || q.Keys(1) != nil {
		t.Fatalf("%d keys, and %v of a state", len(got), q.Keys(1))
	}
	for i, id := range a[1:] {
		one := m.seq()
		row := m.add(one, []int32{id})[0] // attends to itself only: its value, which is its key
		for c, x := range got[i] {
			if math.Abs(float64(row[c])-float64(x)) > 1e-5 {
				t.Errorf("key %d, column %d: %v, want %v", i, c, x, row[c])
			}
		}
		one.Close()
	}
}

// TestPad: a padded sequence sees copies of its last page, shares none of them,
// and gives all of them back.
func TestPad(t *testing.T) {
	m := newToy(t, Options{Positions: 20 * page, Sequences: 3}, full, window(30))
	a := text(1, 2*page+5)
	q := m.seq()
	defer q.Close()
	m.add(q, a)
	f, err := q.Fork()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Pad(5*page - 1); err != nil {
		t.Fatal(err)
	}
	if f.Len() != len(a)+5*page-1 {
		t.Fatalf("%d positions", f.Len())
	}
	// What a row sees: two pages, then six times the second one, cut.
	want := slices.Concat(a[:2*page], a[page:2*page], a[page:2*page], a[page:2*page], a[page:2*page], a[page:2*page], a[page:2*page])[:f.Len()]
	next := text(2, 3)
	m.expect("padded", m.add(f, next), want, next)
	m.expect("its origin", m.add(q, next), a, next)
	short := m.seq()
	defer short.Close()
	m.add(short, text(3, page-1))
	if short.Pad(1) == nil {
		t.Error("there is no page to copy")
	}
	if f.Pad(100*page) == nil {
		t.Error("there is no room")
	}
}
