package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"

	"sparkbar/engine/layout"
)

// Tensor is one stored array.
type Tensor struct {
	Name  string
	DType layout.DType
	Shape []int  // outermost dimension first; empty for a scalar
	Data  []byte // little endian, row major, read-only, valid until Checkpoint.Close
}

// Len is the number of elements.
func (t Tensor) Len() int {
	if s := t.DType.Size(); s > 0 {
		return len(t.Data) / s
	}
	return 0
}

// Float32 returns a widened copy of every element. It is meant for small tensors such as norms, biases and scales.
// Integers and F64 are rounded to the nearest float32. It never fails for a tensor that came from Checkpoint.Tensor.
func (t Tensor) Float32() ([]float32, error) {
	if t.DType.Size() == 0 {
		return nil, fmt.Errorf("tensor %q has no element type", t.Name)
	}
	out := make([]float32, t.Len())
	switch t.DType {
	case layout.F64:
		for i := range out {
			out[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(t.Data[8*i:])))
		}
	case layout.I8:
		for i := range out {
			out[i] = float32(int8(t.Data[i]))
		}
	case layout.U8, layout.Bool:
		for i := range out {
			out[i] = float32(t.Data[i])
		}
	case layout.I16:
		for i := range out {
			out[i] = float32(int16(binary.LittleEndian.Uint16(t.Data[2*i:])))
		}
	case layout.U16:
		for i := range out {
			out[i] = float32(binary.LittleEndian.Uint16(t.Data[2*i:]))
		}
	case layout.I32:
		for i := range out {
			out[i] = float32(int32(binary.LittleEndian.Uint32(t.Data[4*i:])))
		}
	case layout.U32:
		for i := range out {
			out[i] = float32(binary.LittleEndian.Uint32(t.Data[4*i:]))
		}
	case layout.I64:
		for i := range out {
			out[i] = float32(int64(binary.LittleEndian.Uint64(t.Data[8*i:])))
		}
	case layout.U64:
		for i := range out {
			out[i] = float32(binary.LittleEndian.Uint64(t.Data[8*i:]))
		}
	default:
		layout.Widen(out, t.Data, t.DType)
	}
	return out, nil
}

// Int64 returns a widened copy of an integer tensor, such as a drafter's d2t table.
func (t Tensor) Int64() ([]int64, error) {
	out := make([]int64, t.Len())
	for i := range out {
		switch t.DType {
		case layout.I8:
			out[i] = int64(int8(t.Data[i]))
		case layout.U8, layout.Bool:
			out[i] = int64(t.Data[i])
		case layout.I16:
			out[i] = int64(int16(binary.LittleEndian.Uint16(t.Data[2*i:])))
		case layout.U16:
			out[i] = int64(binary.LittleEndian.Uint16(t.Data[2*i:]))
		case layout.I32:
			out[i] = int64(int32(binary.LittleEndian.Uint32(t.Data[4*i:])))
		case layout.U32:
			out[i] = int64(binary.LittleEndian.Uint32(t.Data[4*i:]))
		case layout.I64:
			out[i] = int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
		case layout.U64:
			v := binary.LittleEndian.Uint64(t.Data[8*i:])
			if v > math.MaxInt64 {
				return nil, fmt.Errorf("tensor %q: element %d is %d, beyond a signed 64-bit integer", t.Name, i, v)
			}
			out[i] = int64(v)
		default:
			return nil, fmt.Errorf("tensor %q is %s, want an integer type", t.Name, t.DType)
		}
	}
	return out, nil
}
