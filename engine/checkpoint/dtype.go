package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
)

// DType is the type of one stored element.
type DType uint8

// Element types. F8E8M0 is an exponent-only scale; MLX stores both 8-bit float types as U8.
const (
	F32 DType = iota + 1
	F16
	BF16
	F64
	I8
	U8
	I16
	U16
	I32
	U32
	I64
	U64
	Bool
	F8E4M3
	F8E5M2
	F8E8M0
)

var dtypes = [...]struct {
	name string // as safetensors spells it
	size int
}{
	F32: {"F32", 4}, F16: {"F16", 2}, BF16: {"BF16", 2}, F64: {"F64", 8},
	I8: {"I8", 1}, U8: {"U8", 1}, I16: {"I16", 2}, U16: {"U16", 2}, I32: {"I32", 4}, U32: {"U32", 4}, I64: {"I64", 8}, U64: {"U64", 8},
	Bool: {"BOOL", 1}, F8E4M3: {"F8_E4M3", 1}, F8E5M2: {"F8_E5M2", 1}, F8E8M0: {"F8_E8M0", 1},
}

// Size is the number of bytes of one element, 0 for the zero DType.
func (d DType) Size() int {
	if int(d) < len(dtypes) {
		return dtypes[d].size
	}
	return 0
}

// String is the safetensors spelling, such as "BF16".
func (d DType) String() string {
	if d > 0 && int(d) < len(dtypes) {
		return dtypes[d].name
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

func parseDType(s string) (DType, bool) {
	for d, t := range dtypes {
		if d > 0 && t.name == s {
			return DType(d), true
		}
	}
	return 0, false
}

// isFloat reports whether d can be widened to float32 (exactly, except F64).
func (d DType) isFloat() bool {
	switch d {
	case F32, F16, BF16, F64, F8E4M3, F8E5M2, F8E8M0:
		return true
	}
	return false
}

// Tensor is one stored array.
type Tensor struct {
	Name  string
	DType DType
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
	case F64:
		for i := range out {
			out[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(t.Data[8*i:])))
		}
	case I8:
		for i := range out {
			out[i] = float32(int8(t.Data[i]))
		}
	case U8, Bool:
		for i := range out {
			out[i] = float32(t.Data[i])
		}
	case I16:
		for i := range out {
			out[i] = float32(int16(binary.LittleEndian.Uint16(t.Data[2*i:])))
		}
	case U16:
		for i := range out {
			out[i] = float32(binary.LittleEndian.Uint16(t.Data[2*i:]))
		}
	case I32:
		for i := range out {
			out[i] = float32(int32(binary.LittleEndian.Uint32(t.Data[4*i:])))
		}
	case U32:
		for i := range out {
			out[i] = float32(binary.LittleEndian.Uint32(t.Data[4*i:]))
		}
	case I64:
		for i := range out {
			out[i] = float32(int64(binary.LittleEndian.Uint64(t.Data[8*i:])))
		}
	case U64:
		for i := range out {
			out[i] = float32(binary.LittleEndian.Uint64(t.Data[8*i:]))
		}
	default:
		widen(out, t.Data, t.DType)
	}
	return out, nil
}

// Int64 returns a widened copy of an integer tensor, such as a drafter's d2t table.
func (t Tensor) Int64() ([]int64, error) {
	out := make([]int64, t.Len())
	for i := range out {
		switch t.DType {
		case I8:
			out[i] = int64(int8(t.Data[i]))
		case U8, Bool:
			out[i] = int64(t.Data[i])
		case I16:
			out[i] = int64(int16(binary.LittleEndian.Uint16(t.Data[2*i:])))
		case U16:
			out[i] = int64(binary.LittleEndian.Uint16(t.Data[2*i:]))
		case I32:
			out[i] = int64(int32(binary.LittleEndian.Uint32(t.Data[4*i:])))
		case U32:
			out[i] = int64(binary.LittleEndian.Uint32(t.Data[4*i:]))
		case I64:
			out[i] = int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
		case U64:
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

// widen converts len(dst) floats of type d at the start of src. The caller has checked the length and d.isFloat.
func widen(dst []float32, src []byte, d DType) {
	switch d {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = half(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		}
	case F8E4M3:
		for i := range dst {
			dst[i] = e4m3[src[i]]
		}
	case F8E5M2:
		for i := range dst { // the upper byte of a float16
			dst[i] = half(uint16(src[i]) << 8)
		}
	case F8E8M0:
		for i := range dst {
			dst[i] = e8m0(src[i])
		}
	}
}

// half widens an IEEE float16.
func half(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, man := uint32(h>>10)&31, uint32(h)&1023
	switch exp {
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	case 0: // zero or subnormal: man * 2^-24 is exact in float32
		f := float32(man) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(f) | sign)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}

// e2m1 holds the sixteen 4-bit float values: bit 3 is the sign.
var e2m1 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}

// e4m3 holds the 256 values of the 8-bit float with 4 exponent bits, bias 7, no infinities; 0x7f and 0xff are NaN.
var e4m3 = func() (t [256]float32) {
	for b := range t {
		exp, man := b>>3&15, float64(b&7)
		v := math.Ldexp(1+man/8, exp-7)
		if exp == 0 {
			v = math.Ldexp(man, -9)
		}
		if b&127 == 127 {
			v = math.NaN()
		}
		if b&128 != 0 {
			v = math.Copysign(v, -1)
		}
		t[b] = float32(v)
	}
	return t
}()

// e8m0 is the exponent-only scale 2^(b-127); 255, which the format reserves, is infinite as in MLX.
func e8m0(b byte) float32 {
	if b == 0 {
		return math.Float32frombits(0x00400000) // 2^-127, subnormal
	}
	return math.Float32frombits(uint32(b) << 23)
}
