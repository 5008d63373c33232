package layout

import "fmt"

// Row writes the exact float32 values of one row into dst, which must hold Cols elements. Batch selects the expert of
// a stacked matrix and is 0 for a plain one.
//
// It is the definition of the stored bytes, not a fast path. Each value is computed in float32 in the order the
// schemes are documented in, one rounding per operation.
func (m Matrix) Row(dst []float32, batch, row int) error {
	switch {
	case len(dst) != m.Cols:
		return fmt.Errorf("matrix %q: the destination holds %d values, a row has %d", m.Name, len(dst), m.Cols)
	case batch < 0 || batch >= max(m.Batch, 1) || row < 0 || row >= m.Rows:
		return fmt.Errorf("matrix %q has no row %d of expert %d", m.Name, row, batch)
	}
	if err := m.Check(); err != nil {
		return err
	}
	row += batch * m.Rows
	w := m.Weight[row*m.RowBytes():][:m.RowBytes()]
	if m.Scheme == Dense {
		Widen(dst, w, m.DType)
		return nil
	}
	if m.Scheme.IsBlock() {
		m.blocks(dst, w)
		return nil
	}
	s := m.Scales[row*m.ScaleBytes():][:m.ScaleBytes()]
	groups := m.Cols / m.Group
	if m.Scheme == Affine {
		scales, biases := make([]float32, groups), make([]float32, groups)
		Widen(scales, s, m.DType)
		Widen(biases, m.Biases[row*m.ScaleBytes():][:m.ScaleBytes()], m.DType)
		for i := range dst {
			g := i / m.Group
			dst[i] = float32(scales[g]*float32(code(w, i, m.Bits))) + biases[g]
		}
		return nil
	}
	for i := range dst {
		b := s[i/m.Group]
		switch m.Scheme {
		case MXFP4:
			dst[i] = e2m1[code(w, i, 4)] * e8m0(b)
		case MXFP8:
			dst[i] = e4m3[w[i]] * e8m0(b)
		case NVFP4:
			dst[i] = float32(e2m1[code(w, i, 4)]*e4m3[b]) * m.GlobalScale
		}
	}
	return nil
}

// code is code i of a row packed least significant bit first.
func code(row []byte, i, bits int) uint32 {
	at := i * bits
	v := uint32(row[at/8])
	if at/8+1 < len(row) {
		v |= uint32(row[at/8+1]) << 8
	}
	return v >> (at % 8) & (1<<bits - 1)
}
