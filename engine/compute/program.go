package compute

import (
	"fmt"

	"sparkbar/engine/layout"
)

// Op is one fused operation: one of the structs of ops.go.
type Op interface {
	check() error // shapes, given the op alone
	name() string
}

// Program is a flat list of ops over device buffers, recorded anew for each
// step and run by a backend in one call, in order. It is immutable once
// submitted. The zero Program is empty and ready to use.
type Program struct {
	// Label says whose forward this is ("target", "draft"); backends count
	// submits by it.
	Label string
	Ops   []Op
	err   error
}

// Reset empties the program and keeps its memory.
func (p *Program) Reset(label string) {
	clear(p.Ops)
	p.Label, p.Ops, p.err = label, p.Ops[:0], nil
}

// Add appends ops. A shape that does not fit is remembered, and reported by
// Err and by the backend that is asked to run the program.
func (p *Program) Add(ops ...Op) {
	for _, op := range ops {
		if err := op.check(); err != nil && p.err == nil {
			p.err = fmt.Errorf("op %d %s: %w", len(p.Ops), op.name(), err)
		}
		p.Ops = append(p.Ops, op)
	}
}

// Fail makes the program unusable with the given reason, unless it has one.
func (p *Program) Fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// Err returns the first shape error of the recording, nil if there is none.
func (p *Program) Err() error { return p.err }

// Rows describes the ragged rows of one step. Row r belongs to segment Of[r]
// and stands at position Pos[r] of that sequence; the rows of segment s are
// Start[s] to Start[s+1] (a segment may be empty).
type Rows struct {
	N, Segments int
	// Prefill is the first row that prefill kernels may serve; rows before it
	// are decode and verify rows.
	Prefill int
	IDs     View // I32 [1,N] token ids; may be written by an earlier op
	Pos     View // I32 [1,N]
	Of      View // I32 [1,N]
	Start   View // I32 [1,Segments+1]
}

// Pages tells attention where the positions of each segment lie and what each
// row may see.
type Pages struct {
	Table View // I32 [Segments, blocks]: page number of each block of PageSize positions, -1 = dropped
	Lo    View // I32 [1,N]: first visible position of each row
	Hi    View // I32 [1,N]: one past the last visible position
}

// PageSize is the number of positions in one page of a KV cache.
const PageSize = 64

// KV is the paged cache of one attention layer. K holds pages of
// [Heads, PageSize, KDim] elements, V pages of [Heads, PageSize, VDim]. With
// VInK, V is the first VDim elements of each K row (latent attention) and no V
// buffer exists. With Bits 4 or 8, each row of a head is MLX-affine quantized in
// groups of Group: a page then holds the codes of all rows, followed by
// float32 scales [Heads, PageSize, dim/Group], followed by biases alike.
type KV struct {
	K, V       *Buffer
	Pages      int
	Heads      int
	KDim, VDim int
	VInK       bool
	Type       layout.DType // F32, F16 or BF16; ignored when Bits is set
	Bits       int
	Group      int
	// Stride is the bytes from a page to the next one, of K and of V alike, where
	// the pages of several layers lie between each other (see StridedPages); 0: a
	// page begins where the one before ends.
	Stride int
}

// PageSteps returns the bytes from a page of K, and of V, to the next.
func (kv KV) PageSteps() (k, v int) {
	if kv.Stride > 0 {
		return kv.Stride, kv.Stride
	}
	return kv.PageBytes()
}

// PageBytes returns the bytes of one page of K and of V (0 with VInK).
func (kv KV) PageBytes() (k, v int) {
	side := func(dim int) int {
		if kv.Bits > 0 {
			return kv.Heads * PageSize * (dim*kv.Bits/8 + dim/kv.Group*8)
		}
		return kv.Heads * PageSize * dim * kv.Type.Size()
	}
	if kv.VInK {
		return side(kv.KDim), 0
	}
	return side(kv.KDim), side(kv.VDim)
}

func (kv KV) check() error {
	if kv.Heads <= 0 || kv.KDim <= 0 || kv.VDim <= 0 || kv.Pages < 0 {
		return fmt.Errorf("cache has %d heads of %d/%d in %d pages", kv.Heads, kv.KDim, kv.VDim, kv.Pages)
	}
	if kv.VInK && kv.VDim > kv.KDim {
		return fmt.Errorf("cache keeps V (%d) inside K (%d)", kv.VDim, kv.KDim)
	}
	switch {
	case kv.Bits == 0 && (kv.Type == layout.F32 || kv.Type == layout.F16 || kv.Type == layout.BF16):
	case (kv.Bits == 4 || kv.Bits == 8) && (kv.Group == 32 || kv.Group == 64 || kv.Group == 128) && kv.KDim%kv.Group == 0 && (kv.VInK || kv.VDim%kv.Group == 0):
	default:
		return fmt.Errorf("cache type %v, %d bits in groups of %d does not fit dims %d/%d", kv.Type, kv.Bits, kv.Group, kv.KDim, kv.VDim)
	}
	k, v := kv.PageBytes()
	kstep, vstep := kv.PageSteps()
	if kstep < k || vstep < v {
		return fmt.Errorf("cache pages of %d and %d bytes do not fit into steps of %d", k, v, kv.Stride)
	}
	if kv.K == nil || kv.Pages > 0 && len(kv.K.Bytes) < kstep*(kv.Pages-1)+k {
		return fmt.Errorf("cache K buffer is smaller than %d pages of %d bytes", kv.Pages, k)
	}
	if v > 0 && (kv.V == nil || kv.Pages > 0 && len(kv.V.Bytes) < vstep*(kv.Pages-1)+v) {
		return fmt.Errorf("cache V buffer is smaller than %d pages of %d bytes", kv.Pages, v)
	}
	return nil
}

// State is numbered slots of recurrent or convolution state, float32: slot i
// is row i of Mem. Rows of a segment whose slot is none or outside Mem give
// zeros and leave no trace. Rows outside all segments are left alone.
type State struct {
	Mem   View // F32 [slots, size]
	Slots View // I32 [1,Segments]: slot of each segment, -1 = none (an empty segment)
	// Log, when given, makes the op leave the state untouched and record its
	// inputs, one row per step row, for a later StateCommit. Without it the op
	// advances the state over all rows of the segment.
	Log View // F32 [N, inputs of the op]
}

// CacheKind is what a layer keeps of the past.
type CacheKind uint8

// CacheFull and CacheWindow are paged KV (a window forgets positions p with
// q-p >= Window); CacheState is a slot of recurrent or convolution state.
const (
	CacheFull CacheKind = iota
	CacheWindow
	CacheState
)

// CacheSpec is what one layer keeps between steps.
type CacheSpec struct {
	Kind       CacheKind
	Heads      int // KV
	KDim, VDim int
	VInK       bool
	Window     int // CacheWindow
	Size, Log  int // CacheState: floats of a slot, floats of a logged row
}

// Step is what a forward pass sees of the caches: the ragged rows, and for each
// CacheSpec of the model, in order, where its past lies.
type Step struct {
	Rows   Rows
	Layers []LayerCache
	// Logged collects the state ops that recorded their inputs; the cache turns
	// them into StateCommits of the next program.
	Logged []StateCommit
}

// LayerCache is one layer's part of a Step: KV and Pages, or State.
type LayerCache struct {
	KV    KV
	Pages Pages
	State State
}
