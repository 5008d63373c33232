package compute

import (
	"fmt"
	"math"
	"unsafe"

	"sparkbar/engine/layout"
)

// Reference is the executable meaning of each op: pure Go, float32, one plain
// loop per op. Sums run in ascending order, so the bits of a row never depend on
// the other rows. It runs a program within Submit.
//
// Numbers that come from the device cannot make it fail: what the doc comment of
// an op calls outside gives zero rows, is skipped or is not seen.
type Reference struct {
	SubmitCounter
}

// NewReference returns a reference backend.
func NewReference() *Reference { return &Reference{} }

var _ Backend = (*Reference)(nil)

// Name returns "reference".
func (*Reference) Name() string { return "reference" }

// maxReferenceAlloc bounds one buffer, so that a wrong size is an error and not
// the end of the process.
const maxReferenceAlloc = 1 << 40

// Alloc returns zeroed memory of the Go heap.
func (*Reference) Alloc(label string, bytes int) (*Buffer, error) {
	if bytes < 0 || bytes > maxReferenceAlloc {
		return nil, fmt.Errorf("%s: cannot allocate %d bytes", label, bytes)
	}
	if bytes == 0 {
		return NewBuffer(label, nil, nil, nil), nil
	}
	words := make([]uint64, (bytes+7)/8) // words, so that every element type is aligned
	return NewBuffer(label, unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), bytes), nil, nil), nil
}

// referenceCache is the largest float32 form of a weight that the reference
// keeps; rows of larger weights are decoded on each use.
const referenceCache = 16 << 20

// Load keeps the matrix, and its float32 rows if they are few.
func (*Reference) Load(m layout.Matrix) (*Weight, error) {
	if m.Rows < 0 || m.Cols < 0 || m.Batch < 0 {
		return nil, fmt.Errorf("%s: shape %d x %dx%d", m.Name, m.Batch, m.Rows, m.Cols)
	}
	w := &Weight{Matrix: m}
	n := max(m.Batch, 1) * m.Rows
	if n == 0 || m.Cols == 0 {
		return w, nil
	}
	if n > referenceCache/4/m.Cols {
		buf := make([]float32, m.Cols)
		if err := m.Row(buf, max(m.Batch, 1)-1, m.Rows-1); err != nil {
			return nil, err
		}
		return w, nil
	}
	all := make([]float32, n*m.Cols)
	for i := range n {
		if err := m.Row(all[i*m.Cols:][:m.Cols], i/m.Rows, i%m.Rows); err != nil {
			return nil, err
		}
	}
	w.Handle = all
	return w, nil
}

// Unload forgets the float32 rows.
func (*Reference) Unload(w *Weight) { w.Handle = nil }

// Close does nothing.
func (*Reference) Close() error { return nil }

// Submit runs p to its end.
func (r *Reference) Submit(p *Program, stop *Stop) (Pending, error) {
	if err := p.Err(); err != nil {
		return nil, err
	}
	r.Count(p.Label)
	for i, op := range p.Ops {
		if stop.IsSet() {
			return Done{ErrStopped}, nil
		}
		if err := runReference(op); err != nil {
			return Done{fmt.Errorf("op %d %s: %w", i, op.name(), err)}, nil
		}
	}
	return Done{}, nil
}

func runReference(op Op) error {
	switch o := op.(type) {
	case Embed:
		return refEmbed(o)
	case Norm:
		refNorm(o)
	case Linear:
		return refLinear(o)
	case HeadLinear:
		return refHeadLinear(o)
	case RoPE:
		refRoPE(o)
	case KVWrite:
		refKVWrite(o)
	case Attention:
		refAttention(o)
	case MoERoute:
		refMoERoute(o)
	case MoELinear:
		return refMoELinear(o)
	case MoECombine:
		refMoECombine(o)
	case ShortConv:
		refShortConv(o)
	case GatedDelta:
		refGatedDelta(o)
	case SSMScan:
		refSSMScan(o)
	case StateCommit:
		refStateCommit(o)
	case Binary:
		refBinary(o)
	case Unary:
		refUnary(o)
	case CopyRows:
		refCopyRows(o)
	case Argmax:
		refArgmax(o)
	case TopK:
		refTopK(o)
	case LogSumExp:
		refLogSumExp(o)
	case MapIDs:
		refMapIDs(o)
	case BlockConv:
		refBlockConv(o)
	case PairSelect:
		return refPairSelect(o)
	default:
		return fmt.Errorf("the reference backend does not know %T", op)
	}
	return nil
}

// weightRow returns row i of matrix b of w as float32: the kept one, or decoded
// into buf (len w.Cols).
func weightRow(w *Weight, buf []float32, b, i int) ([]float32, error) {
	if all, ok := w.Handle.([]float32); ok {
		return all[(b*w.Rows+i)*w.Cols:][:w.Cols], nil
	}
	return buf, w.Row(buf, b, i)
}

// Scalar functions: float64 inside, rounded once to float32.

func exp32(x float32) float32  { return float32(math.Exp(float64(x))) }
func tanh32(x float32) float32 { return float32(math.Tanh(float64(x))) }
func sigmoid32(x float32) float32 {
	return float32(1 / (1 + math.Exp(-float64(x))))
}
func silu32(x float32) float32 { return x * sigmoid32(x) }

// softplus32 is ln(1+exp(x)) without overflow.
func softplus32(x float32) float32 {
	v := float64(x)
	return float32(max(v, 0) + math.Log1p(math.Exp(-math.Abs(v))))
}

// gelu32 is the tanh form of GELU.
func gelu32(x float32) float32 {
	v := float64(x)
	return float32(0.5 * v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v))))
}

// apply returns a of z, or of gate z and up value u for a gated a.
func (a Act) apply(z, u float32) float32 {
	switch a {
	case ActSiLU:
		return silu32(z)
	case ActReLU2:
		z = max(z, 0)
		return z * z
	case ActGELU:
		return gelu32(z)
	case ActSigmoid:
		return sigmoid32(z)
	case ActSwiGLU:
		return silu32(z) * u
	case ActGeGLU:
		return gelu32(z) * u
	case ActClampedSwiGLU:
		g := min(z, SwiGLULimit)
		u = min(max(u, -SwiGLULimit), SwiGLULimit)
		return (u + 1) * g * sigmoid32(SwiGLUAlpha*g)
	}
	return z
}

// clamp returns the range [lo, hi) cut to [0, n).
func clamp(lo, hi int32, n int) (int, int) {
	a := min(max(int(lo), 0), n)
	return a, min(max(int(hi), a), n)
}
