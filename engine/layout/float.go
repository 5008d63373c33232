package layout

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Widen converts the first len(dst) numbers of src, little endian and of float type d, to float32: exactly, except that
// F64 is rounded. It panics when src is shorter or d is not a float type, see DType.IsFloat.
func Widen(dst []float32, src []byte, d DType) {
	switch d {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
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
			dst[i] = F16ToF32(uint16(src[i]) << 8)
		}
	case E8M0:
		for i := range dst {
			dst[i] = e8m0(src[i])
		}
	default:
		panic(fmt.Sprintf("layout: %s is not a float type", d))
	}
}

// F16ToF32 widens an IEEE float16.
func F16ToF32(h uint16) float32 {
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

// F32ToBF16 rounds to the nearest bfloat16, ties to even. NaN becomes the quiet NaN 0x7fc0.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return 0x7fc0
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// narrow stores one value as F32, F16 or BF16, rounded to nearest even.
func narrow(dst []byte, v float32, t DType) {
	switch t {
	case F32:
		binary.LittleEndian.PutUint32(dst, math.Float32bits(v))
	case BF16:
		binary.LittleEndian.PutUint16(dst, F32ToBF16(v))
	case F16:
		binary.LittleEndian.PutUint16(dst, roundF16(v))
	}
}

// roundF16 rounds to the nearest half, ties to even; what is too large becomes infinite.
func roundF16(f float32) uint16 {
	sign := uint16(math.Float32bits(f) >> 16 & 0x8000)
	a := math.Abs(float64(f))
	switch {
	case a != a:
		return sign | 0x7e00
	case a >= 65520:
		return sign | 0x7c00
	case a < 1.0/(1<<14): // subnormal: multiples of 2^-24
		return sign | uint16(math.RoundToEven(a*(1<<24)))
	}
	frac, exp := math.Frexp(a) // a = frac * 2^exp, frac in [0.5, 1)
	m := math.RoundToEven(frac * 2048)
	return sign | uint16((exp+13)<<10+int(m))
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
