package cache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

const page = compute.PageSize

// TestForksShareAndCopy: forks read the pages of what they came from and copy
// those that they write, and only those.
func TestForksShareAndCopy(t *testing.T) {
	m := newToy(t, Options{Positions: 10 * page, Sequences: 4}, full, conv)
	base := text(1, 2*page+10)
	a := m.seq()
	m.add(a, base)
	if used, _ := m.c.Pages(); used != 3 {
		t.Fatalf("%d pages for %d positions", used, len(base))
	}
	b, err := a.Fork()
	if err != nil {
		t.Fatal(err)
	}
	if used, _ := m.c.Pages(); used != 3 || m.c.Slots() != 2 {
		t.Fatalf("%d pages and %d slots after the fork", used, m.c.Slots())
	}
	left, right := text(2, 5), text(3, page)
	m.expect("fork", m.add(b, right), base, right)
	if used, _ := m.c.Pages(); used != 5 { // the shared last page was copied, and one more
		t.Errorf("%d pages after the fork wrote", used)
	}
	m.expect("origin", m.add(a, left), base, left)
	if used, _ := m.c.Pages(); used != 5 { // the copy left the page to the origin alone
		t.Errorf("%d pages after the origin wrote", used)
	}
	a.Close()
	more := text(4, 3)
	m.expect("fork after the origin is gone", m.add(b, more), slices.Concat(base, right), more)
	b.Close()
	b.Close()
}

// TestPagesOfAllLayersInOnePiece: the same where the pages of layers lie between each
// other, also in eight bits; no byte is part of two pages, and none is left over.
func TestPagesOfAllLayersInOnePiece(t *testing.T) {
	wide := func(s compute.CacheSpec) compute.CacheSpec { s.KDim, s.VDim = 32, 64; return s }
	for _, k := range []struct {
		o     Options
		specs []compute.CacheSpec
		runs  bool // by the toy, whose rows have four columns
	}{
		{Options{}, []compute.CacheSpec{full, window(page + 6), full, conv, window(page + 6)}, true},
		{Options{Bits: 8, Group: 32}, []compute.CacheSpec{wide(full), wide(window(8)), wide(full)}, false},
	} {
		k.o.Positions, k.o.Sequences = 10*page, 4
		m := buildOn(t, strided{compute.NewReference()}, k.o, k.specs)
		seen := 0
		for _, g := range m.c.groups {
			for p := range g.refs {
				for i, part := range m.c.parts(g, int32(p)) {
					for j := range part {
						if part[j] != 0 {
							t.Fatalf("byte %d of part %d of page %d is part of another page", j, i, p)
						}
						part[j] = 1
					}
					seen += len(part)
				}
			}
		}
		for _, b := range m.c.shared {
			seen -= len(b.Bytes)
			clear(b.Bytes)
		}
		if seen != 0 || len(m.c.shared) != 2 {
			t.Errorf("%d bytes of %d blocks are part of no page", -seen, len(m.c.shared))
		}
		if k.runs {
			base, right, left := text(1, 2*page+10), text(3, page), text(2, 5)
			a := m.seq()
			m.expect("prompt", m.add(a, base), nil, base)
			b, err := a.Fork()
			if err != nil {
				t.Fatal(err)
			}
			m.expect("fork", m.add(b, right), base, right)
			m.expect("origin", m.add(a, left), base, left)
			a.Close()
			b.Close()
		}
		m.close()
	}
}

// TestRollbackAtPageBorders verifies blocks around the border of a page and goes
// on with one or three rows, for windows smaller than, as large as and larger
// than a page.
func TestRollbackAtPageBorders(t *testing.T) {
	m := newToy(t, Options{Positions: 20 * page, Sequences: 2}, full, window(1), window(8), window(page), window(page+6), conv)
	const width = 7
	for _, at := range []int{1, page - width, page - 3, page - 1, page, page + 1, 2*page + 3, 3*page - 2} {
		for keep := range width + 1 {
			for _, next := range []int{1, 3} {
				prefix, block, after := text(at, at), text(keep, width), text(next, next)
				name := fmt.Sprintf("%d of %d rows kept at %d, then %d", keep, width, at, next)
				q := m.seq()
				m.add(q, prefix)
				m.expect(name, m.verify(q, block, keep), prefix, block)
				kept := slices.Concat(prefix, block[:keep])
				if q.Len() != len(kept) {
					t.Fatalf("%s: %d positions", name, q.Len())
				}
				m.expect(name, m.add(q, after), kept, after)
				q.Close()
			}
		}
	}
}

// TestWindowsGivePagesBack: pages that no later row can see are dropped, and the
// full layers keep theirs.
func TestWindowsGivePagesBack(t *testing.T) {
	m := newToy(t, Options{Positions: 20 * page, Sequences: 1}, full, window(10))
	q := m.seq()
	defer q.Close()
	var all []int32
	for i := range 8 {
		ids := text(i, page)
		m.expect("chunk", m.add(q, ids), all, ids)
		all = append(all, ids...)
	}
	var used []int
	for _, g := range m.c.groups {
		used = append(used, int(g.next)-len(g.free))
	}
	if used[0] != 8 || used[1] != 1 {
		t.Errorf("the full layer holds %d pages, the windowed one %d; wants 8 and 1", used[0], used[1])
	}
}

// TestRandomLives lets sequences grow, verify, roll back, fork, be cut and be
// closed in random order, several in a step, and compares every row with a model
// that never saw anything else.
func TestRandomLives(t *testing.T) {
	for _, specs := range [][]compute.CacheSpec{
		{full},
		{window(8), full, window(70)},
		{conv, full},
		{conv, window(100)},
	} {
		m := newToy(t, Options{Positions: 40 * page, Sequences: 8}, specs...)
		rng := rand.New(rand.NewPCG(uint64(len(specs)), uint64(specs[0].Kind)))
		type life struct {
			q    *Seq
			text []int32
		}
		var lives []*life
		for step := range 150 {
			name := fmt.Sprintf("step %d", step)
			switch n := rng.IntN(10); {
			case n < 2 && len(lives) < 5:
				lives = append(lives, &life{q: m.seq()})
			case n < 3 && len(lives) > 0 && len(lives) < 6:
				from := lives[rng.IntN(len(lives))]
				q, err := from.q.Fork()
				if err != nil {
					t.Fatal(err)
				}
				lives = append(lives, &life{q, slices.Clone(from.text)})
			case n < 4 && len(lives) > 1:
				i := rng.IntN(len(lives))
				lives[i].q.Close()
				lives = slices.Delete(lives, i, i+1)
			case n < 5 && len(lives) > 0:
				l := lives[rng.IntN(len(lives))]
				if to := rng.IntN(len(l.text) + 1); l.q.CanTruncate(to) {
					if err := l.q.Truncate(to); err != nil {
						t.Fatal(err)
					}
					l.text = l.text[:to]
				} else if l.q.Truncate(to) == nil {
					t.Fatalf("%s: cut to %d against CanTruncate", name, to)
				}
			default:
				var parts []Part
				var keeps []int
				var of []*life
				for _, l := range lives {
					if rng.IntN(3) == 0 || len(l.text) > 5*page {
						continue
					}
					n := rng.IntN(9)
					if rng.IntN(4) == 0 {
						n = rng.IntN(2 * page)
					}
					p := Part{Seq: l.q, IDs: text(rng.Int(), n), Verify: rng.IntN(2) == 0}
					keep := n
					if p.Verify {
						keep = rng.IntN(n + 1)
					}
					parts, keeps, of = append(parts, p), append(keeps, keep), append(of, l)
				}
				if len(parts) == 0 {
					continue
				}
				rows, err := m.run(parts...)
				if err != nil {
					t.Fatal(err)
				}
				for i, l := range of {
					if len(parts[i].IDs) > 0 {
						m.expect(name, rows[i], l.text, parts[i].IDs)
					}
					l.q.Advance(keeps[i])
					l.text = append(l.text, parts[i].IDs[:keeps[i]]...)
					if l.q.Len() != len(l.text) {
						t.Fatalf("%s: %d positions, wants %d", name, l.q.Len(), len(l.text))
					}
				}
			}
		}
		for _, l := range lives {
			l.q.Close()
		}
	}
}

// TestForkSettles: a fork right after a verify step has the state of what was
// kept.
func TestForkSettles(t *testing.T) {
	m := newToy(t, Options{Positions: 4 * page, Sequences: 2}, conv, full)
	prefix, block, next := text(1, 9), text(2, 4), text(3, 2)
	q := m.seq()
	m.add(q, prefix)
	m.verify(q, block, 2)
	f, err := q.Fork()
	if err != nil {
		t.Fatal(err)
	}
	kept := slices.Concat(prefix, block[:2])
	m.expect("fork", m.add(f, next), kept, next)
	m.expect("origin", m.add(q, next), kept, next)
	q.Close()
	f.Close()
}

// TestClosedStateLeavesNoTrace: a slot whose last owner was closed right after a
// verify step begins empty.
func TestClosedStateLeavesNoTrace(t *testing.T) {
	m := newToy(t, Options{Positions: 4 * page, Sequences: 1}, conv)
	q := m.seq()
	m.add(q, text(1, 9))
	m.verify(q, text(2, 4), 3)
	q.Close()
	q = m.seq()
	m.expect("new owner", m.add(q, text(3, 5)), nil, text(3, 5))
	q.Close()
}

func TestFullCache(t *testing.T) {
	m := newToy(t, Options{Positions: 2 * page, Sequences: 2}, full, conv)
	a, b := m.seq(), m.seq()
	if _, err := m.c.NewSeq(); !errors.Is(err, ErrFull) {
		t.Errorf("a third sequence: %v", err)
	}
	m.add(a, text(1, 3*page))
	_, err := m.run(Part{Seq: b, IDs: text(2, page+1)})
	if !errors.Is(err, ErrFull) {
		t.Fatalf("more positions than there are: %v", err)
	}
	// The failed step cost nothing: the sequence goes on with what fits.
	m.expect("after the failure", m.add(b, text(3, page)), nil, text(3, page))

	// Eviction makes room.
	asked := 0
	m.c.Evict = func() bool {
		asked++
		a.Close()
		return asked < 2
	}
	m.expect("after eviction", m.add(b, text(4, page)), text(3, page), text(4, page))
	if asked != 1 {
		t.Errorf("asked %d times for pages", asked)
	}
	if _, err := m.run(Part{Seq: b, IDs: text(5, 3*page)}); !errors.Is(err, ErrFull) || asked != 2 {
		t.Errorf("asked %d times, then %v", asked, err)
	}
	b.Close()
}

func TestOptionsAreChecked(t *testing.T) {
	b := compute.NewReference()
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Type: layout.F32, Positions: 0, Sequences: 1}, "0 positions"},
		{Options{Type: layout.F32, Positions: 10, Sequences: 0}, "0 sequences"},
		{Options{Bits: 8, Group: 64, Positions: 10, Sequences: 1}, "groups of 64"},
	} {
		if _, err := New(b, []compute.CacheSpec{full}, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, wants an error about %s", c.o, err, c.want)
		}
	}
}

func TestTruncateOfWindows(t *testing.T) {
	m := newToy(t, Options{Positions: 10 * page, Sequences: 1}, window(page))
	q := m.seq()
	defer q.Close()
	ids := text(1, 3*page)
	m.add(q, ids[:page+2])
	if !q.CanTruncate(0) || !q.CanTruncate(page) || q.CanTruncate(page+3) || q.CanTruncate(-1) {
		t.Error("before anything is forgotten, every shorter length is possible")
	}
	m.add(q, ids[page+2:])
	if q.CanTruncate(page) || !q.CanTruncate(3*page-1) || !q.CanTruncate(3*page) {
		t.Error("only lengths whose window is still there are possible")
	}
	if err := q.Truncate(page); err == nil || !strings.Contains(err.Error(), "192") {
		t.Errorf("cut into what is forgotten: %v", err)
	}
	if err := q.Truncate(3*page - 1); err != nil {
		t.Fatal(err)
	}
	m.expect("after the cut", m.add(q, text(2, 2)), ids[:3*page-1], text(2, 2))
}

func TestSizes(t *testing.T) {
	m := newToy(t, Options{Type: layout.BF16, Positions: 10 * page, Sequences: 1}, full, window(8), conv)
	if got, want := m.c.PositionBytes(), int64(2*2*dim*2); got != want {
		t.Errorf("%d bytes a position, wants %d", got, want)
	}
	if m.c.Trimmable() {
		t.Error("a cache with windows and state is not trimmable")
	}
}
