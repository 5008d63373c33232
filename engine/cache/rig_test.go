package cache

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

const (
	vocab = 50
	dim   = 4 // columns of a row, and of each layer's result
	taps  = 3
)

// toy is a model of independent layers over the same embedded rows: attention
// (full or windowed), or a convolution. Its result shows every visible row and
// every row of state.
type toy struct {
	t      testing.TB
	b      compute.Backend
	c      *Cache
	params *compute.Params
	s      *compute.Scratch
	embed  *compute.Weight
	conv   compute.View
}

var (
	full = compute.CacheSpec{Kind: compute.CacheFull, Heads: 1, KDim: dim, VDim: dim}
	conv = compute.CacheSpec{Kind: compute.CacheState, Size: (taps - 1) * dim, Log: dim}
)

func window(w int) compute.CacheSpec {
	s := full
	s.Kind, s.Window = compute.CacheWindow, w
	return s
}

// newToy returns a toy that checks, when the test ends, that everything was
// given back.
func newToy(t testing.TB, o Options, specs ...compute.CacheSpec) *toy {
	t.Helper()
	m := build(t, o, specs)
	t.Cleanup(m.close)
	return m
}

func build(t testing.TB, o Options, specs []compute.CacheSpec) *toy {
	t.Helper()
	return buildOn(t, compute.NewReference(), o, specs)
}

// strided is a backend whose caches keep a page of all layers in one piece.
type strided struct{ compute.Backend }

func (strided) StridedPages() bool { return true }

func buildOn(t testing.TB, b compute.Backend, o Options, specs []compute.CacheSpec) *toy {
	t.Helper()
	if o.Type == 0 {
		o.Type = layout.F32
	}
	c, err := New(b, specs, o)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	numbers := make([]byte, 0, 4*vocab*dim)
	for range vocab * dim {
		numbers = binary.LittleEndian.AppendUint32(numbers, math.Float32bits(float32(rng.NormFloat64())))
	}
	m := &toy{t: t, b: b, c: c, params: compute.NewParams(b), s: compute.NewScratch(b)}
	if m.embed, err = b.Load(layout.Matrix{Name: "embed", Scheme: layout.Dense, DType: layout.F32, Rows: vocab, Cols: dim, Weight: numbers, GlobalScale: 1}); err != nil {
		t.Fatal(err)
	}
	buf, err := b.Alloc("taps", dim*taps*4)
	if err != nil {
		t.Fatal(err)
	}
	m.conv = buf.Of(layout.F32, 0, dim, taps)
	for i := range dim {
		for j := range taps {
			m.conv.F32(i)[j] = float32(rng.NormFloat64())
		}
	}
	return m
}

func (m *toy) close() {
	m.t.Helper()
	if used, _ := m.c.Pages(); used != 0 || m.c.Slots() != 0 {
		m.t.Errorf("%d pages and %d slots are still in use", used, m.c.Slots())
	}
	for i, g := range m.c.groups {
		for p, n := range g.refs {
			if n != 0 {
				m.t.Errorf("group %d, page %d is still referred to %d times", i, p, n)
			}
		}
	}
	m.s.Close()
	m.params.Close()
	m.c.Close()
}

// run runs a step and returns the rows of each part.
func (m *toy) run(parts ...Part) ([][][]float32, error) {
	m.t.Helper()
	m.s.Reset()
	m.params.Next()
	var p compute.Program
	p.Reset(compute.LabelTarget)
	st, err := m.c.Plan(&p, m.params, parts)
	if err != nil {
		return nil, err
	}
	view := func(cols int) compute.View {
		v, err := m.s.F32(st.Rows.N, cols)
		if err != nil {
			m.t.Fatal(err)
		}
		return v
	}
	x, out := view(dim), view(dim*len(m.c.specs))
	p.Add(compute.Embed{IDs: st.Rows.IDs, W: m.embed, Scale: 1, Out: x})
	for i, l := range st.Layers {
		y := out.Columns(i*dim, (i+1)*dim)
		if m.c.specs[i].Kind == compute.CacheState {
			op := &compute.ShortConv{X: x, W: m.conv, State: l.State, Rows: st.Rows, Out: y}
			p.Add(*op)
			if l.State.Log.Given() {
				st.Logged = append(st.Logged, compute.StateCommit{Conv: op})
			}
			continue
		}
		p.Add(compute.KVWrite{K: x, V: x, KV: l.KV, Rows: st.Rows, Pages: l.Pages},
			compute.Attention{Q: x, KV: l.KV, Rows: st.Rows, Pages: l.Pages, Heads: 1, Scale: 1, Out: y})
	}
	m.c.Ran(st, parts)
	if err := compute.Run(m.b, &p, nil); err != nil {
		m.t.Fatal(err)
	}
	var all [][][]float32
	at := 0
	for _, part := range parts {
		var rows [][]float32
		for range part.rows() {
			rows = append(rows, slices.Clone(out.F32(at)))
			at++
		}
		all = append(all, rows)
	}
	return all, nil
}

// add runs ids at the end of q and keeps them all.
func (m *toy) add(q *Seq, ids []int32) [][]float32 {
	m.t.Helper()
	rows, err := m.run(Part{Seq: q, IDs: ids})
	if err != nil {
		m.t.Fatal(err)
	}
	q.Advance(len(ids))
	return rows[0]
}

// verify runs ids and keeps the first keep.
func (m *toy) verify(q *Seq, ids []int32, keep int) [][]float32 {
	m.t.Helper()
	rows, err := m.run(Part{Seq: q, IDs: ids, Verify: true})
	if err != nil {
		m.t.Fatal(err)
	}
	q.Advance(keep)
	return rows[0]
}

func (m *toy) seq() *Seq {
	m.t.Helper()
	q, err := m.c.NewSeq()
	if err != nil {
		m.t.Fatal(err)
	}
	return q
}

// alone returns the rows of a text that a fresh model of the same layers runs in
// one step.
func (m *toy) alone(ids []int32) [][]float32 {
	m.t.Helper()
	fresh := build(m.t, Options{Type: m.c.opts.Type, Positions: len(ids) + 1, Sequences: 1}, m.c.specs)
	defer fresh.close()
	q := fresh.seq()
	defer q.Close()
	return fresh.add(q, ids)
}

// expect compares the rows that ids gave when they came after before.
func (m *toy) expect(what string, got [][]float32, before, ids []int32) {
	m.t.Helper()
	want := m.alone(slices.Concat(before, ids))[len(before):]
	for i := range got {
		for j := range got[i] {
			if math.Float32bits(got[i][j]) != math.Float32bits(want[i][j]) {
				m.t.Fatalf("%s: row %d at position %d, layer %d: %v, wants the bits of %v", what, i, len(before)+i, j/dim, got[i], want[i])
			}
		}
	}
}

func text(seed, n int) []int32 {
	rng := rand.New(rand.NewPCG(uint64(seed), 7))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(rng.IntN(vocab))
	}
	return ids
}
