package layout

import "fmt"

// Matrix is a linear or embedding weight as it is stored. Logically it is Rows x Cols numbers (a linear layer computes
// y = x W^T, so Rows is its output width and Cols its input width), or Batch such matrices for stacked experts.
//
// The bytes are contiguous, row after row, expert after expert, read-only, and belong to whoever made the matrix: those
// of a checkpoint lie in its mappings and are valid until it is closed. Methods that copy take the memory from Alloc, and
// the copy keeps that Alloc.
type Matrix struct {
	Name              string
	Scheme            Scheme
	Batch, Rows, Cols int   // Batch 0: a plain matrix
	Bits, Group       int   // bits of a code and columns per scale; for GGUF kinds the code bits and the block size; 0 when dense
	DType             DType // dense: the element type; affine: the type of scales and biases; otherwise 0
	Weight            []byte
	Scales, Biases    []byte
	GlobalScale       float32 // 1 unless NVFP4 has a scale for the whole tensor

	Alloc func(n int) []byte // n zero bytes for copies, living as long as the bytes above; nil: the Go heap
}

// RowBytes is the number of Weight bytes of one row.
func (m Matrix) RowBytes() int {
	switch {
	case m.Scheme == Dense:
		return m.Cols * m.DType.Size()
	case m.Scheme.IsBlock():
		return m.Cols / m.Scheme.BlockSize() * m.Scheme.BlockBytes()
	}
	return m.Cols * m.Bits / 8
}

// ScaleBytes is the number of Scales bytes of one row (and of Biases bytes, when there are any); 0 when there are none.
func (m Matrix) ScaleBytes() int {
	switch m.Scheme {
	case Affine:
		return m.Cols / m.Group * m.DType.Size()
	case MXFP4, MXFP8, NVFP4:
		return m.Cols / m.Group
	}
	return 0
}

// Bytes is the storage of the whole matrix.
func (m Matrix) Bytes() int64 {
	return int64(len(m.Weight)) + int64(len(m.Scales)) + int64(len(m.Biases))
}

// count is the number of stored rows over the whole batch.
func (m Matrix) count() int { return max(m.Batch, 1) * m.Rows }

// Check makes sure that the fields fit each other and that the byte slices have the lengths they promise.
func (m Matrix) Check() error {
	if m.Rows <= 0 || m.Cols <= 0 || m.Batch < 0 {
		return fmt.Errorf("matrix %q: shape [%d, %d, %d] is empty", m.Name, m.Batch, m.Rows, m.Cols)
	}
	if err := m.Scheme.Check(m.Bits, m.Group); err != nil {
		return fmt.Errorf("matrix %q: %w", m.Name, err)
	}
	switch {
	case (m.Scheme == Dense || m.Scheme == Affine) && !m.DType.IsFloat():
		return fmt.Errorf("matrix %q: %s cannot hold weights", m.Name, m.DType)
	case m.Scheme != Dense && m.Cols%m.Group != 0:
		return fmt.Errorf("matrix %q: %d columns are not whole groups of %d", m.Name, m.Cols, m.Group)
	}
	n := m.count()
	want := n * m.ScaleBytes()
	wantBias := 0
	if m.Scheme == Affine {
		wantBias = want
	}
	if len(m.Weight) != n*m.RowBytes() || len(m.Scales) != want || len(m.Biases) != wantBias {
		return fmt.Errorf("matrix %q: stored bytes (weight %d, scales %d, biases %d) do not fit %s [%d, %d, %d]",
			m.Name, len(m.Weight), len(m.Scales), len(m.Biases), m.Scheme, m.Batch, m.Rows, m.Cols)
	}
	return nil
}

// alloc returns n zero bytes for a copy.
func (m Matrix) alloc(n int) []byte {
	if m.Alloc == nil {
		return make([]byte, n)
	}
	return m.Alloc(n)
}

// slice is the view of stored rows [lo, hi) counted over the whole batch.
func (m Matrix) slice(lo, hi int) Matrix {
	r, s := m.RowBytes(), m.ScaleBytes()
	m.Weight = m.Weight[lo*r : hi*r : hi*r]
	if m.Scales != nil {
		m.Scales = m.Scales[lo*s : hi*s : hi*s]
	}
	if m.Biases != nil {
		m.Biases = m.Biases[lo*s : hi*s : hi*s]
	}
	return m
}

// Expert is the plain matrix of one expert of a stacked matrix, a view. It panics if b is out of range.
func (m Matrix) Expert(b int) Matrix {
	if b < 0 || b >= m.Batch {
		panic(fmt.Sprintf("layout: expert %d of %d in %q", b, m.Batch, m.Name))
	}
	v := m.slice(b*m.Rows, (b+1)*m.Rows)
	v.Batch = 0
	return v
}

// RowRange is rows [lo, hi). For a plain matrix it shares the bytes; for a stacked one the same rows of every expert are
// copied, because they are not contiguous. It panics if the range is not inside the matrix, as slicing does.
//
// It is how an architecture splits fused projections, such as qkv_proj or gate_up_proj.
func (m Matrix) RowRange(lo, hi int) Matrix {
	if lo < 0 || hi < lo || hi > m.Rows {
		panic(fmt.Sprintf("layout: rows [%d, %d) of %d in %q", lo, hi, m.Rows, m.Name))
	}
	if m.Batch == 0 {
		v := m.slice(lo, hi)
		v.Rows = hi - lo
		return v
	}
	rows := make([]int, hi-lo)
	for i := range rows {
		rows[i] = lo + i
	}
	return m.PickRows(rows)
}

// PickRows copies the given rows, in that order, of the matrix or of every expert. It is how rows that were stored
// interleaved (gpt_oss experts, GGUF llama heads) are put in order. It panics if a row is out of range.
func (m Matrix) PickRows(rows []int) Matrix {
	for _, r := range rows {
		if r < 0 || r >= m.Rows {
			panic(fmt.Sprintf("layout: row %d of %d in %q", r, m.Rows, m.Name))
		}
	}
	pick := func(src []byte, size int) []byte {
		if src == nil {
			return nil
		}
		dst := m.alloc(max(m.Batch, 1) * len(rows) * size)
		at := 0
		for b := range max(m.Batch, 1) {
			for _, r := range rows {
				at += copy(dst[at:], src[(b*m.Rows+r)*size:][:size])
			}
		}
		return dst
	}
	v := m
	v.Rows = len(rows)
	v.Weight, v.Scales, v.Biases = pick(m.Weight, m.RowBytes()), pick(m.Scales, m.ScaleBytes()), pick(m.Biases, m.ScaleBytes())
	return v
}

// Stack copies plain matrices of one shape and scheme into a stacked matrix named name: experts that a file holds one
// by one, in memory of the first one's Alloc. It fails when they differ, naming the first one that does.
func Stack(name string, parts []Matrix) (Matrix, error) {
	return join(name, parts, true)
}

// Concat copies plain matrices of one width and scheme into one matrix whose rows follow each other, as Stack does.
func Concat(name string, parts []Matrix) (Matrix, error) {
	return join(name, parts, false)
}

func join(name string, parts []Matrix, stack bool) (Matrix, error) {
	if len(parts) == 0 {
		return Matrix{}, fmt.Errorf("matrix %q: nothing to join", name)
	}
	m := parts[0]
	w, s, b, rows := 0, 0, 0, 0
	for _, p := range parts {
		if p.Batch != 0 || p.Scheme != m.Scheme || p.Cols != m.Cols || p.Bits != m.Bits || p.Group != m.Group || p.DType != m.DType ||
			p.GlobalScale != m.GlobalScale || stack && p.Rows != m.Rows {
			return Matrix{}, fmt.Errorf("matrix %q cannot be joined with %q: %s against %s", p.Name, m.Name, p, m)
		}
		w, s, b, rows = w+len(p.Weight), s+len(p.Scales), b+len(p.Biases), rows+p.Rows
	}
	alloc := func(n int) []byte {
		if n == 0 {
			return nil
		}
		return m.alloc(n)[:0]
	}
	m.Name, m.Weight, m.Scales, m.Biases = name, alloc(w), alloc(s), alloc(b)
	for _, p := range parts {
		m.Weight, m.Scales, m.Biases = append(m.Weight, p.Weight...), append(m.Scales, p.Scales...), append(m.Biases, p.Biases...)
	}
	if stack {
		m.Batch = len(parts)
	} else {
		m.Rows = rows
	}
	return m, nil
}

// String says what the matrix is without its name, such as "affine [2, 128] F16, 4 bits, group 64".
func (m Matrix) String() string {
	s := fmt.Sprintf("%s [%d, %d]", m.Scheme, m.Rows, m.Cols)
	if m.Batch > 0 {
		s = fmt.Sprintf("%s [%d, %d, %d]", m.Scheme, m.Batch, m.Rows, m.Cols)
	}
	if m.DType != 0 {
		s += " " + m.DType.String()
	}
	if m.Scheme != Dense {
		s += fmt.Sprintf(", %d bits, group %d", m.Bits, m.Group)
	}
	return s
}
