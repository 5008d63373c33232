package layout

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Row writes the float32 values of one row into dst (len Cols): the definition
// of the format, not a fast path.
func (m Matrix) Row(dst []float32, batch, row int) error {
	if row < 0 || row >= m.Rows || batch < 0 || batch >= max(m.Batch, 1) || len(dst) != m.Cols {
		return fmt.Errorf("%s: row %d of matrix %d is outside", m.Name, row, batch)
	}
	r := batch*m.Rows + row
	switch m.Scheme {
	case Dense:
		w := m.Weight[r*m.Cols*m.DType.Size():]
		for i := range dst {
			dst[i] = element(w, i, m.DType)
		}
		return nil
	case Affine:
		w := m.Weight[r*m.Cols*m.Bits/8:]
		g := r * (m.Cols / m.Group)
		for i := range dst {
			code := 0
			for b := range m.Bits {
				bit := i*m.Bits + b
				code |= int(w[bit/8]>>(bit%8)&1) << b
			}
			dst[i] = element(m.Scales, g+i/m.Group, m.DType)*float32(code) + element(m.Biases, g+i/m.Group, m.DType)
		}
		return nil
	}
	return fmt.Errorf("%s: no definition of %v", m.Name, m.Scheme)
}

func element(b []byte, i int, t DType) float32 {
	switch t {
	case F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b[i*4:]))
	case BF16:
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[i*2:])) << 16)
	case F16:
		return F16ToF32(binary.LittleEndian.Uint16(b[i*2:]))
	}
	panic("layout: " + t.String() + " is no float")
}

// F16ToF32 widens an IEEE half.
func F16ToF32(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exp {
	case 0:
		f := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}
