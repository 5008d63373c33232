package arch

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// Four bits cannot hold a head whose few large channels set the scale for all
// others. Where keys and values are kept so coarsely, each head is first turned by
// a Hadamard matrix, which spreads a large channel over all of them: queries are
// turned too, so the scores stay what they were, and what attention returns is
// turned back (the matrix is its own inverse). Source: QuaRot (Ashkboos et al.,
// 2024). Much of a key lies along one direction that all keys of its head have in
// common, so they are turned such that this becomes the same number in every
// channel: the bias of a quantized group then holds it, and the steps are left for
// the rest. Eight bits do without, and so does a model that TurnHeads was not called for: its caches are
// those of the reference.
const turnBits = 4

// leastTurn is the smallest matrix worth it.
const leastTurn = 16

// turnSize is the size of the matrices for heads of dim columns: the largest power
// of two that divides them. 0 = none.
func turnSize(dim int) int {
	if n := 1 << bits.TrailingZeros(uint(dim)); n >= leastTurn {
		return n
	}
	return 0
}

// turning has the matrices of the keys of a layer, one after the other, and those
// of the queries: each has that of the keys that it meets.
type turning struct{ keys, queries *compute.Weight }

// TurnHeads has heads turned wherever four bits keep them. keys returns examples of
// the keys of a caching layer, heads side by side, or none. It must be called after
// a forward pass, which tells how many heads of queries there are, and before
// anything is kept in four bits.
func (m *Model) TurnHeads(keys func(layer int) [][]float32) error {
	b := m.load.b
	load := func(name string, batch, n int, data []byte) (*compute.Weight, error) {
		w, err := b.Load(layout.Matrix{Name: name, Scheme: layout.Dense, DType: layout.F32, Batch: batch, Rows: n, Cols: n, Weight: data, GlobalScale: 1})
		if err == nil {
			m.turned = append(m.turned, w)
		}
		return w, err
	}
	m.turns, m.turnings = map[int]*compute.Weight{}, map[int]turning{}
	for layer, s := range m.Caches {
		if s.Kind == compute.CacheState || s.VInK {
			continue
		}
		if n := turnSize(s.VDim); n > 0 && m.turns[n] == nil {
			w, err := load("hadamard", 0, n, float32s(hadamard(n)))
			if err != nil {
				return err
			}
			m.turns[n] = w
		}
		n, heads, rows := turnSize(s.KDim), m.queries[layer], keys(layer)
		if n == 0 || heads == 0 || len(rows) == 0 {
			continue
		}
		var forKeys, forQueries []byte
		for at := 0; at < s.Heads*s.KDim; at += n {
			forKeys = append(forKeys, float32s(turnFor(direction(rows, at, n)))...)
		}
		each, per := 4*n*s.KDim, heads/s.Heads
		for h := range heads {
			forQueries = append(forQueries, forKeys[h/per*each:][:each]...)
		}
		var t turning
		var err error
		if t.keys, err = load("turn of keys", s.Heads*s.KDim/n, n, forKeys); err != nil {
			return err
		}
		if t.queries, err = load("turn of queries", heads*s.KDim/n, n, forQueries); err != nil {
			return err
		}
		m.turnings[layer] = t
	}
	return nil
}

// TurnsHeads reports whether TurnHeads was called.
func (m *Model) TurnsHeads() bool { return m.turnings != nil }

// hadamard is Sylvester's matrix of size n, a power of two, scaled to be
// orthogonal.
func hadamard(n int) []float64 {
	unit := 1 / math.Sqrt(float64(n))
	out := make([]float64, 0, n*n)
	for i := range n {
		for j := range n {
			if bits.OnesCount(uint(i&j))&1 == 1 {
				out = append(out, -unit)
			} else {
				out = append(out, unit)
			}
		}
	}
	return out
}

// direction is the unit vector along which n columns of rows, from at on, are
// longest (their first principal axis about the origin), by power iteration; zero
// where they are all zero.
func direction(rows [][]float32, at, n int) []float64 {
	u := make([]float64, n)
	for _, row := range rows { // the longest of them
		norm, longest := 0.0, 0.0
		for i, x := range row[at : at+n] {
			norm, longest = norm+float64(x)*float64(x), longest+u[i]*u[i]
		}
		for i, x := range row[at : at+n] {
			if norm > longest {
				u[i] = float64(x)
			}
		}
	}
	for range 32 {
		next, norm := make([]float64, n), 0.0
		for _, row := range rows {
			dot := 0.0
			for i, x := range row[at : at+n] {
				dot += u[i] * float64(x)
			}
			for i, x := range row[at : at+n] {
				next[i] += dot * float64(x)
			}
		}
		for _, x := range next {
			norm += x * x
		}
		if norm = math.Sqrt(norm); !(norm > 0) || math.IsInf(norm, 0) {
			return make([]float64, n)
		}
		for i, x := range next {
			u[i] = x / norm
		}
	}
	return u
}

// turnFor is the Hadamard matrix after a reflection that takes the unit vector u to
// the first channel, which the Hadamard matrix then spreads evenly.
func turnFor(u []float64) []float64 {
	n := len(u)
	h := hadamard(n)
	// The mirror is normal to u plus the first axis, of the sign that does not
	// cancel.
	normal, norm := slices.Clone(u), 0.0
	normal[0] += math.Copysign(1, u[0])
	for _, x := range normal {
		norm += x * x
	}
	for i := range n {
		row, dot := h[i*n:(i+1)*n], 0.0
		for j, x := range row {
			dot += x * normal[j]
		}
		for j := range row {
			row[j] -= 2 * dot * normal[j] / norm
		}
	}
	return h
}

func float32s(x []float64) []byte {
	out := make([]byte, 0, 4*len(x))
	for _, v := range x {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
	}
	return out
}

// turnKeys returns the keys k as the cache of a layer wants them.
func (f *Forward) turnKeys(k compute.View, layer int) compute.View {
	return f.turnHeads(k, f.turnings[layer].keys, layer)
}

// turnQueries is turnKeys for queries.
func (f *Forward) turnQueries(q compute.View, layer int) compute.View {
	return f.turnHeads(q, f.turnings[layer].queries, layer)
}

func (f *Forward) turnHeads(x compute.View, w *compute.Weight, layer int) compute.View {
	if kv := f.Step.Layers[layer].KV; kv.Bits != turnBits || w == nil {
		return x
	}
	out := f.New(x.Rows, x.Cols)
	f.P.Add(compute.HeadLinear{X: x, W: w, Out: out})
	return out
}

// turnValues returns values, or what attention made of them, with each head
// turned, where the cache of a layer asks for it; else x itself.
func (f *Forward) turnValues(x compute.View, kv compute.KV) compute.View {
	w := f.turns[turnSize(kv.VDim)]
	if kv.Bits != turnBits || kv.VInK || w == nil {
		return x
	}
	if x.Stride != x.Cols { // a part of wider rows
		packed := f.New(x.Rows, x.Cols)
		f.P.Add(compute.CopyRows{Src: x, Dst: packed})
		x = packed
	}
	out := f.New(x.Rows, x.Cols)
	n := x.Rows * (x.Cols / w.Cols)
	f.P.Add(compute.Linear{X: x.Reshape(n, w.Cols), W: w, Scale: 1, Out: out.Reshape(n, w.Cols), Prefill: n})
	return out
}
