package compute

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"unsafe"

	"sparkbar/engine/layout"
)

// Buffer is device memory that the CPU can see. A backend makes buffers;
// programs name them by (buffer, offset). A buffer is closed explicitly; the
// memory stays until the last program in flight has ended.
type Buffer struct {
	Label  string
	Bytes  []byte // the CPU's view; never Go heap when C or a GPU keeps it
	Handle any    // the backend's own handle, nil where Bytes says it all

	refs atomic.Int32
	free func()
	once sync.Once
}

// NewBuffer wraps memory that a backend allocated or mapped. free runs once,
// after Close and after the last program that holds the buffer has ended.
func NewBuffer(label string, mem []byte, handle any, free func()) *Buffer {
	b := &Buffer{Label: label, Bytes: mem, Handle: handle, free: free}
	b.refs.Store(1)
	return b
}

// Retain keeps the memory alive until a matching Release.
func (b *Buffer) Retain() { b.refs.Add(1) }

// Release drops one reference; the last one frees the memory.
func (b *Buffer) Release() {
	if b.refs.Add(-1) == 0 && b.free != nil {
		b.free()
	}
}

// Close drops the owner's reference. Closing twice does nothing.
func (b *Buffer) Close() { b.once.Do(b.Release) }

// View is a matrix inside a buffer: Rows rows of Cols elements, Stride elements
// apart, starting at byte Off. The zero View means "not given". Off is a multiple
// of the element's size, nothing more.
type View struct {
	Buf                *Buffer
	Off                int // bytes
	Rows, Cols, Stride int // Stride in elements
	Type               layout.DType
}

// Of returns the view of a whole region: rows x cols elements, densely packed,
// at byte off of b.
func (b *Buffer) Of(t layout.DType, off, rows, cols int) View {
	return View{Buf: b, Off: off, Rows: rows, Cols: cols, Stride: cols, Type: t}
}

// Given reports whether the view names memory.
func (v View) Given() bool { return v.Buf != nil }

// Slice returns rows [lo, hi).
func (v View) Slice(lo, hi int) View {
	if lo < 0 || hi < lo || hi > v.Rows {
		return v.invalid()
	}
	v.Off += lo * v.Stride * v.Type.Size()
	v.Rows = hi - lo
	return v
}

// Columns returns columns [lo, hi) of every row.
func (v View) Columns(lo, hi int) View {
	if lo < 0 || hi < lo || hi > v.Cols {
		return v.invalid()
	}
	v.Off += lo * v.Type.Size()
	v.Cols = hi - lo
	return v
}

// Reshape returns the same densely packed elements as rows x cols.
func (v View) Reshape(rows, cols int) View {
	if rows < 0 || cols < 0 || rows*cols != v.Rows*v.Cols || (v.Rows > 1 && v.Stride != v.Cols) {
		return v.invalid()
	}
	v.Rows, v.Cols, v.Stride = rows, cols, cols
	return v
}

// invalid returns a view that no op accepts: a part was asked for that does not
// exist. The program that uses it then fails with its name.
func (v View) invalid() View {
	v.Rows = -1
	return v
}

// check reports a view that does not lie inside its buffer.
func (v View) check() error {
	if v.Buf == nil {
		return fmt.Errorf("no buffer")
	}
	if v.Rows < 0 || v.Cols < 0 || v.Off < 0 || (v.Rows > 1 && v.Stride < v.Cols) {
		return fmt.Errorf("%s: bad shape %dx%d stride %d offset %d", v.Buf.Label, v.Rows, v.Cols, v.Stride, v.Off)
	}
	if v.Rows == 0 || v.Cols == 0 {
		return nil
	}
	size := v.Type.Size()
	if end := v.Off + ((v.Rows-1)*v.Stride+v.Cols)*size; end > len(v.Buf.Bytes) || v.Off%size != 0 {
		return fmt.Errorf("%s: %dx%d %v at byte %d does not lie aligned within %d bytes", v.Buf.Label, v.Rows, v.Cols, v.Type, v.Off, len(v.Buf.Bytes))
	}
	return nil
}

// F32 returns row i as float32 memory that the CPU can read and write.
// The view must be of type F32.
func (v View) F32(i int) []float32 { return row[float32](v, i, layout.F32) }

// I32 returns row i as int32 memory. The view must be of type I32.
func (v View) I32(i int) []int32 { return row[int32](v, i, layout.I32) }

func row[T any](v View, i int, want layout.DType) []T {
	if v.Type != want {
		panic(fmt.Sprintf("compute: %s holds %v, not %v", v.Buf.Label, v.Type, want))
	}
	if i < 0 || i >= v.Rows {
		panic(fmt.Sprintf("compute: row %d of %d", i, v.Rows))
	}
	if v.Cols == 0 {
		return nil
	}
	off := v.Off + i*v.Stride*4
	b := v.Buf.Bytes[off : off+v.Cols*4]
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), v.Cols)
}

// Scratch hands out activation memory for one program: a stack of views. Views stay valid until Reset; Mark and Release reuse memory
// between layers. Not safe for concurrent use.
type Scratch struct {
	b      Backend
	floats layout.DType
	chunks []*Buffer
	chunk  int // current chunk
	used   int // bytes used of it
	least  int // bytes asked of the backend at once
}

// The smallest pieces asked of the backend at once: of activations a large page,
// since the small pages of a program that seldom runs are slow to find again.
const (
	scratchChunk = 2 << 20
	paramsChunk  = 64 << 10
)

// NewScratch returns an empty scratch on b.
func NewScratch(b Backend) *Scratch {
	return &Scratch{b: b, floats: Activations(b), least: scratchChunk}
}

// Mark is a position in a Scratch.
type Mark struct{ chunk, used int }

// Mark returns the present position.
func (s *Scratch) Mark() Mark { return Mark{s.chunk, s.used} }

// Release gives back everything handed out since m. Ops recorded before may
// still use it: programs run in order.
func (s *Scratch) Release(m Mark) { s.chunk, s.used = m.chunk, m.used }

// Reset gives back everything.
func (s *Scratch) Reset() { s.chunk, s.used = 0, 0 }

// F32 returns a new rows x cols float32 view with undefined content.
func (s *Scratch) F32(rows, cols int) (View, error) { return s.get(layout.F32, rows, cols) }

// Floats returns a new rows x cols view of what the backend keeps activations in,
// with undefined content: for what the CPU does not read.
func (s *Scratch) Floats(rows, cols int) (View, error) { return s.get(s.floats, rows, cols) }

// I32 returns a new rows x cols int32 view with undefined content.
func (s *Scratch) I32(rows, cols int) (View, error) { return s.get(layout.I32, rows, cols) }

func (s *Scratch) get(t layout.DType, rows, cols int) (View, error) {
	if rows < 0 || cols < 0 || cols > 0 && rows > math.MaxInt32/cols {
		return View{}, fmt.Errorf("activation memory: %d x %d elements", rows, cols)
	}
	const align = 64
	need := (rows*cols*t.Size() + align - 1) / align * align
	for s.chunk < len(s.chunks) && s.used+need > len(s.chunks[s.chunk].Bytes) {
		s.chunk, s.used = s.chunk+1, 0
	}
	if s.chunk == len(s.chunks) {
		buf, err := s.b.Alloc("scratch", max(need, s.least))
		if err != nil {
			return View{}, fmt.Errorf("activation memory: %w", err)
		}
		s.chunks, s.used = append(s.chunks, buf), 0
	}
	v := s.chunks[s.chunk].Of(t, s.used, rows, cols)
	s.used += need
	return v, nil
}

// Close frees the memory.
func (s *Scratch) Close() {
	for _, c := range s.chunks {
		c.Close()
	}
	s.chunks, s.chunk, s.used = nil, 0, 0
}

// Params is the small ring of buffers that carries the numbers of a step to
// the device: ids, positions, visible ranges, page tables, kept rows. Three
// steps may be in flight.
type Params struct {
	ring [3]*Scratch
	at   int
}

// NewParams returns an empty ring on b.
func NewParams(b Backend) *Params {
	p := &Params{}
	for i := range p.ring {
		p.ring[i] = NewScratch(b)
		p.ring[i].least = paramsChunk
	}
	return p
}

// Next starts a new step; views of the step before the last two become invalid.
func (p *Params) Next() {
	p.at = (p.at + 1) % len(p.ring)
	p.ring[p.at].Reset()
}

// Ints copies v to the device as rows x (len(v)/rows).
func (p *Params) Ints(rows int, v []int32) (View, error) {
	cols := 0
	if rows > 0 {
		cols = len(v) / rows
	}
	if rows*cols != len(v) {
		return View{}, fmt.Errorf("step numbers: %d do not fill %d rows", len(v), rows)
	}
	w, err := p.ring[p.at].I32(rows, cols)
	if err != nil {
		return w, err
	}
	for r := range rows {
		copy(w.I32(r), v[r*cols:(r+1)*cols])
	}
	return w, nil
}

// Floats copies v to the device as one row.
func (p *Params) Floats(v []float32) (View, error) {
	w, err := p.ring[p.at].F32(1, len(v))
	if err != nil {
		return w, err
	}
	copy(w.F32(0), v)
	return w, nil
}

// Close frees the memory.
func (p *Params) Close() {
	for _, s := range p.ring {
		s.Close()
	}
}
