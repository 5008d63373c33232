package arch

import (
	"encoding/binary"
	"math"
	"math/bits"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// Four bits cannot hold a head whose few large channels set the scale for all
// others. Where keys and values are kept so coarsely, each head is first turned by
// a Hadamard matrix, which spreads a large channel over all of them: queries are
// turned too, so the scores stay what they were, and what attention returns is
// turned back (the matrix is its own inverse). Source: QuaRot (Ashkboos et al.,
// 2024). Eight bits do without, and so does a model that CenterKeys was not called
// for: its caches are those of the reference.
const turnBits = 4

// leastTurn is the smallest matrix worth it.
const leastTurn = 16

// turnSize is the size of the matrix for heads of dim columns: the largest power
// of two that divides them. 0 = none.
func turnSize(dim int) int {
	if n := 1 << bits.TrailingZeros(uint(dim)); n >= leastTurn {
		return n
	}
	return 0
}

// loadTurns gives the backend the matrices that the model's caches may need.
func (m *Model) loadTurns() error {
	b := m.load.b
	m.turns = map[int]*compute.Weight{}
	for _, s := range m.Caches {
		if s.Kind == compute.CacheState || s.VInK {
			continue
		}
		for _, dim := range []int{s.KDim, s.VDim} {
			n := turnSize(dim)
			if n == 0 || m.turns[n] != nil {
				continue
			}
			w, err := b.Load(layout.Matrix{Name: "hadamard", Scheme: layout.Dense, DType: layout.F32, Rows: n, Cols: n, Weight: hadamard(n), GlobalScale: 1})
			if err != nil {
				return err
			}
			m.turns[n] = w
		}
	}
	return nil
}

// center moves and turns the keys of a layer.
type center struct {
	w    *compute.Weight // the matrices of all heads, on the diagonal
	bias compute.View
}

// CenterKeys tells the mean of the keys of caching layers, heads side by side, and
// has heads turned; call it once, before there is a past. Where keys are kept in four bits it is subtracted before: scores of a row all
// change by the same amount then, which the softmax does not see, and what is left
// needs fewer steps. Source: SageAttention (Zhang et al., 2024). Pasts that were
// kept before a change of the means cannot be used after it.
func (m *Model) CenterKeys(means map[int][]float32) error {
	if err := m.loadTurns(); err != nil {
		return err
	}
	m.centers = map[int]center{}
	blocks := map[[2]int]*compute.Weight{}
	for layer, mean := range means {
		dim := m.Caches[layer].KDim
		n, width := turnSize(dim), len(mean)
		if n == 0 || m.turns[n] == nil || width == 0 {
			continue
		}
		h := hadamard(n)
		k := [2]int{n, width}
		if blocks[k] == nil {
			all := make([]byte, 4*width*width)
			for i := range width {
				row := h[4*n*(i%n):][:4*n]
				copy(all[4*(i*width+i/n*n):], row)
			}
			w, err := m.load.b.Load(layout.Matrix{Name: "hadamard of all heads", Scheme: layout.Dense, DType: layout.F32, Rows: width, Cols: width, Weight: all, GlobalScale: 1})
			if err != nil {
				return err
			}
			blocks[k] = w
			m.blocks = append(m.blocks, w)
		}
		bias := make([]float32, width)
		for i := range bias {
			for j := range n {
				bias[i] -= math.Float32frombits(binary.LittleEndian.Uint32(h[4*(i%n*n+j):])) * mean[i/n*n+j]
			}
		}
		m.centers[layer] = center{blocks[k], m.load.Constant("mean keys", bias)}
	}
	return m.load.Err()
}

// Centered reports whether CenterKeys was called.
func (m *Model) Centered() bool { return m.centers != nil }

// turnKeys is turn for the keys of a layer, which are centered too.
func (f *Forward) turnKeys(k compute.View, layer int) compute.View {
	kv := f.Step.Layers[layer].KV
	c, ok := f.centers[layer]
	if kv.Bits != turnBits || kv.VInK || !ok {
		return f.turn(k, kv, kv.KDim)
	}
	out := f.New(k.Rows, k.Cols)
	f.P.Add(compute.Linear{X: k, W: c.w, Bias: c.bias, Scale: 1, Out: out, Prefill: k.Rows})
	return out
}

// hadamard is Sylvester's matrix of size n, a power of two, as float32, scaled to
// be orthogonal.
func hadamard(n int) []byte {
	unit := math.Float32bits(float32(1 / math.Sqrt(float64(n))))
	out := make([]byte, 0, 4*n*n)
	for i := range n {
		for j := range n {
			sign := uint32(bits.OnesCount(uint(i&j))&1) << 31
			out = binary.LittleEndian.AppendUint32(out, unit|sign)
		}
	}
	return out
}

// turn returns x with each head of dim columns turned, where the cache of a layer
// asks for it; else x itself.
func (f *Forward) turn(x compute.View, kv compute.KV, dim int) compute.View {
	w := f.turns[turnSize(dim)]
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
