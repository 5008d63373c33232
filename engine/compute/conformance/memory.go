package conformance

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// memLayout is how the views of a case lie in memory.
type memLayout int

const (
	memPacked  memLayout = iota // rows follow each other, aligned to 64 bytes
	memSpread                   // rows lie apart, at odd element offsets
	memLayouts                  // how many there are
)

// memory holds the buffers of one case. Around the elements of every view lie
// guard words; after a run they must be as before.
type memory struct {
	b      compute.Backend
	layout memLayout
	bufs   []*compute.Buffer
	guards []guard
	freed  []func()
	err    error
}

type guard struct {
	b        *compute.Buffer
	at, size int
}

// guardWord is a NaN, as float32, that no computation makes; as an id or
// position it lies outside everything. guardHalf is the same for two bytes.
const (
	guardWord = 0x7fa5a5a5
	guardHalf = 0x7fa5
)

func (g guard) bytes() []byte {
	if g.size == 2 {
		return binary.LittleEndian.AppendUint16(nil, guardHalf)
	}
	return binary.LittleEndian.AppendUint32(nil, guardWord)
}

// front is the room before the first element.
const front = 64

func (m *memory) fail(err error) {
	if m.err == nil {
		m.err = err
	}
}

// buffer allocates n bytes of data between guards and returns where they start.
func (m *memory) buffer(label string, n int) (*compute.Buffer, int) {
	size := front + (n+3)/4*4 + front
	b, err := m.b.Alloc(label, size)
	if err != nil || len(b.Bytes) < size {
		m.fail(fmt.Errorf("allocating %d bytes: %v", size, err))
		b = compute.NewBuffer(label, make([]byte, size), nil, nil)
	}
	m.bufs = append(m.bufs, b)
	for at := 0; at < front; at += 4 {
		m.guard(b, at, 4)
		m.guard(b, size-front+at, 4)
	}
	return b, front
}

func (m *memory) guard(b *compute.Buffer, at, size int) {
	g := guard{b, at, size}
	copy(b.Bytes[at:], g.bytes())
	m.guards = append(m.guards, g)
}

// place returns room for rows x cols elements, with guards between the rows.
func (m *memory) place(t layout.DType, rows, cols int) compute.View {
	stride, shift, size := cols, 0, t.Size()
	if m.layout == memSpread {
		stride, shift = cols+5, 3
	}
	b, off := m.buffer("view", (rows*stride+shift)*size)
	for i := range shift {
		m.guard(b, off+i*size, size)
	}
	off += shift * size
	for r := range rows {
		for c := cols; c < stride; c++ {
			m.guard(b, off+(r*stride+c)*size, size)
		}
	}
	return compute.View{Buf: b, Off: off, Rows: rows, Cols: cols, Stride: stride, Type: t}
}

// view returns rows x cols elements that hold NaN (floats) or nonsense (I32).
func (m *memory) view(t layout.DType, rows, cols int) compute.View {
	v := m.place(t, rows, cols)
	for r := range rows {
		row := bytesOf(v, r)
		for i := 0; i < len(row); i += t.Size() {
			copy(row[i:], guard{size: t.Size()}.bytes())
		}
	}
	return v
}

// bytesOf is the memory of row i of a view.
func bytesOf(v compute.View, i int) []byte {
	size := v.Type.Size()
	return v.Buf.Bytes[v.Off+i*v.Stride*size:][:v.Cols*size]
}

// floats returns a view with the elements of x, in float32 whatever the backend
// keeps activations in.
func (m *memory) floats(rows, cols int, x []float32) compute.View {
	v := m.place(layout.F32, rows, cols)
	for r := range rows {
		copy(v.F32(r), x[r*cols:(r+1)*cols])
	}
	return v
}

// activations is the type of the backend's activations.
func (m *memory) activations() layout.DType { return compute.Activations(m.b) }

// pick returns activations: the chosen rows of x, each of cols elements. They are
// rounded in x too, to what the memory holds, so that what is expected of the
// backend comes from the same numbers.
func (m *memory) pick(rows []int, cols int, x []float32) compute.View {
	v := m.place(m.activations(), len(rows), cols)
	for i, r := range rows {
		m.put(v, i, x[r*cols:(r+1)*cols])
	}
	return v
}

// put stores a row, and leaves in x what the memory then holds.
func (m *memory) put(v compute.View, row int, x []float32) {
	mem := bytesOf(v, row)[:0]
	for i, f := range x {
		switch v.Type {
		case layout.I32:
			mem = binary.LittleEndian.AppendUint32(mem, uint32(int32(f)))
		case layout.F32: // the bits of a NaN too
			mem = binary.LittleEndian.AppendUint32(mem, math.Float32bits(f))
		default:
			var held float64
			mem, held = put(mem, v.Type, float64(f))
			x[i] = float32(held)
		}
	}
}

// round leaves in each x what activations can hold of it: for what is expected
// before memory is filled.
func (m *memory) round(all ...[]float32) {
	for _, x := range all {
		v := compute.NewBuffer("", make([]byte, 4*len(x)), nil, nil).Of(m.activations(), 0, 1, len(x))
		m.put(v, 0, x)
	}
}

// ints returns a view of one row.
func (m *memory) ints(x ...int32) compute.View { return m.table(1, len(x), x) }

func (m *memory) table(rows, cols int, x []int32) compute.View {
	v := m.place(layout.I32, rows, cols)
	for r := range rows {
		copy(v.I32(r), x[r*cols:(r+1)*cols])
	}
	return v
}

// out returns activations for results.
func (m *memory) out(rows, cols int) compute.View { return m.view(m.activations(), rows, cols) }

// outInts returns an I32 view for results.
func (m *memory) outInts(rows, cols int) compute.View { return m.view(layout.I32, rows, cols) }

// device returns n bytes of device memory that hold x, off bytes further than
// aligned.
func (m *memory) device(x []byte, off int) []byte {
	if x == nil {
		return nil
	}
	b, at := m.buffer("bytes", len(x)+off)
	copy(b.Bytes[at+off:], x)
	return b.Bytes[at+off:][:len(x):len(x)]
}

// load hands a weight to the backend until close.
func (m *memory) load(w packed) *compute.Weight {
	x := w.Matrix
	off := 0
	if m.layout == memSpread {
		off = 4
	}
	x.Weight, x.Scales, x.Biases = m.device(x.Weight, off), m.device(x.Scales, off), m.device(x.Biases, off)
	got, err := m.b.Load(x)
	if err != nil {
		m.fail(fmt.Errorf("loading %s: %w", x.Name, err))
		return &compute.Weight{Matrix: x}
	}
	m.freed = append(m.freed, func() { m.b.Unload(got) })
	return got
}

// run runs the ops and checks the guards.
func (m *memory) run(ops ...compute.Op) error {
	if m.err != nil {
		return m.err
	}
	var p compute.Program
	p.Add(ops...)
	if err := compute.Run(m.b, &p, nil); err != nil {
		return err
	}
	for _, g := range m.guards {
		if !bytes.HasPrefix(g.b.Bytes[g.at:], g.bytes()) {
			return errors.New("memory outside the views was written")
		}
	}
	return nil
}

func (m *memory) close() {
	for _, f := range m.freed {
		f()
	}
	for _, b := range m.bufs {
		b.Close()
	}
}
