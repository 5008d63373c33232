package layout

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
)

// Quantize returns the matrix in MLX's affine layout: codes of the given bits (2, 3, 4, 5, 6 or 8) with a scale and a
// bias for each group (32, 64 or 128) of columns. Codes, scales and biases equal those of mx.quantize to the bit; scales
// and biases have the element type of a dense source, bfloat16 for any other. The result is a copy in memory of
// m.Alloc.
//
// It fails when a row is not whole groups or a value is not finite.
func (m Matrix) Quantize(bits, group int) (Matrix, error) {
	if err := Affine.Check(bits, group); err != nil || bits == 1 {
		if err == nil {
			err = errors.New("quantizing to 1 bit is not supported; the choices are 2, 3, 4, 5, 6 and 8")
		}
		return m, fmt.Errorf("matrix %q: %w", m.Name, err)
	}
	if err := m.Check(); err != nil {
		return m, err
	}
	if m.Cols%group != 0 {
		return m, fmt.Errorf("matrix %q: %d columns are not whole groups of %d", m.Name, m.Cols, group)
	}
	q := m
	q.Scheme, q.Bits, q.Group, q.GlobalScale = Affine, bits, group, 1
	if m.Scheme != Dense || m.DType != F32 && m.DType != F16 && m.DType != BF16 {
		q.DType = BF16
	}
	rows := m.count()
	q.Weight = m.alloc(rows * q.RowBytes())
	q.Scales, q.Biases = m.alloc(rows*q.ScaleBytes()), m.alloc(rows*q.ScaleBytes())

	workers := min(runtime.GOMAXPROCS(0), rows)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			row := make([]float32, m.Cols)
			for r := rows * w / workers; r < rows*(w+1)/workers && errs[w] == nil; r++ {
				if errs[w] = m.Row(row, r/m.Rows, r%m.Rows); errs[w] == nil {
					errs[w] = q.encode(r, row)
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return m, err
		}
	}
	return q, nil
}

// encode quantizes stored row r.
func (m Matrix) encode(r int, x []float32) error {
	codes := m.Weight[r*m.RowBytes():][:m.RowBytes()]
	scales, biases := m.Scales[r*m.ScaleBytes():], m.Biases[r*m.ScaleBytes():]
	size := m.DType.Size()
	for g := 0; g < len(x); g += m.Group {
		scale, bias := affine(codes, g, x[g:g+m.Group], m.Bits)
		if s := float64(scale) + float64(bias); math.IsNaN(s) || math.IsInf(s, 0) {
			return fmt.Errorf("matrix %q: row %d holds a value that is not finite; the file is damaged, download it again", m.Name, r)
		}
		at := g / m.Group * size
		narrow(scales[at:], scale, m.DType)
		narrow(biases[at:], bias, m.DType)
	}
	return nil
}

// affine stores the codes of one group from element at on and returns its scale and bias. The end of the range that is
// farther from zero is met exactly, and so is zero.
func affine(codes []byte, at int, x []float32, bits int) (scale, bias float32) {
	lo, hi := x[0], x[0]
	for _, v := range x {
		if v != v {
			return v, v
		}
		lo, hi = min(lo, v), max(hi, v)
	}
	rint := func(v float32) float32 { return float32(math.RoundToEven(float64(v))) }
	top := float32(int(1)<<bits - 1)
	scale = max((hi-lo)/top, 1e-7)
	edge := lo
	if !(math.Abs(float64(lo)) > math.Abs(float64(hi))) {
		scale, edge = -scale, hi
	}
	if q := rint(edge / scale); q != 0 {
		scale, bias = edge/q, edge
	}
	for i, v := range x {
		c := uint16(min(max(rint((v-bias)/scale), 0), top))
		bit := (at + i) * bits
		c <<= bit % 8
		codes[bit/8] |= byte(c)
		if c > 0xff {
			codes[bit/8+1] |= byte(c >> 8)
		}
	}
	return scale, bias
}
