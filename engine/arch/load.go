package arch

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// Linear is a weight with its optional bias.
type Linear struct {
	W    *compute.Weight
	Bias compute.View
}

// Loader hands tensors of a checkpoint to a backend. The first error sticks;
// calls after it return empty values, so a family (or a drafter) reads without
// error checks and asks for Err at the end.
type Loader struct {
	c       *checkpoint.Checkpoint
	b       compute.Backend
	err     error
	used    map[string]bool
	weights []*compute.Weight
	buffers []*compute.Buffer
	bytes   int64
}

// NewLoader returns a loader for an opened checkpoint.
func NewLoader(c *checkpoint.Checkpoint, b compute.Backend) *Loader {
	return &Loader{c: c, b: b, used: map[string]bool{}}
}

// Err returns the first error.
func (l *Loader) Err() error { return l.err }

// Bytes returns the storage of everything loaded so far.
func (l *Loader) Bytes() int64 { return l.bytes }

// Fail remembers an error, unless there is one already.
func (l *Loader) Fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf(format, args...)
	}
}

// Has reports whether the checkpoint has a tensor.
func (l *Loader) Has(name string) bool { return l.c.Has(name) }

// Weight loads the matrix name+".weight" (dense or quantized) of the given
// logical shape.
func (l *Loader) Weight(name string, rows, cols int) *compute.Weight {
	for _, part := range []string{".weight", ".scales", ".biases"} {
		l.used[name+part] = true
	}
	if l.err != nil {
		return empty(rows, cols)
	}
	m, err := l.c.MatrixCols(name, cols)
	if err != nil {
		l.err = err
		return empty(rows, cols)
	}
	if m.Batch != 0 || m.Rows != rows || m.Cols != cols {
		l.Fail("tensor %s.weight is %s, but the configuration asks for %dx%d; the folder mixes files of different models or config.json was edited",
			name, shapeOf(m.Batch, m.Rows, m.Cols), rows, cols)
		return empty(rows, cols)
	}
	w, err := l.b.Load(m)
	if err != nil {
		l.Fail("tensor %s.weight: %w", name, err)
		return empty(rows, cols)
	}
	l.weights = append(l.weights, w)
	l.bytes += matrixBytes(m)
	return w
}

// empty stands in for a weight after an error, so that families need not check.
func empty(rows, cols int) *compute.Weight {
	return &compute.Weight{Matrix: layout.Matrix{Rows: rows, Cols: cols}}
}

func shapeOf(batch, rows, cols int) string {
	if batch > 0 {
		return fmt.Sprintf("%dx%dx%d", batch, rows, cols)
	}
	return fmt.Sprintf("%dx%d", rows, cols)
}

func matrixBytes(m layout.Matrix) int64 {
	return int64(len(m.Weight) + len(m.Scales) + len(m.Biases))
}

// Linear loads a weight and, when asked for, name+".bias".
func (l *Loader) Linear(name string, out, in int, bias bool) Linear {
	lin := Linear{W: l.Weight(name, out, in)}
	if bias {
		lin.Bias = l.Vector(name+".bias", out)
	}
	return lin
}

// Vector loads a tensor of n elements as float32.
func (l *Loader) Vector(name string, n int) compute.View {
	l.used[name] = true
	if l.err != nil {
		return compute.View{}
	}
	t, err := l.c.Tensor(name)
	if err == nil && t.Len() != n {
		err = fmt.Errorf("tensor %s has %d elements, but the configuration asks for %d", name, t.Len(), n)
	}
	var v []float32
	if err == nil {
		v, err = t.Float32()
	}
	if err != nil {
		l.Fail("%w", err)
		return compute.View{}
	}
	l.bytes += int64(len(t.Data))
	return l.Constant(name, v)
}

// Constant puts numbers that come from the configuration on the device.
func (l *Loader) Constant(name string, v []float32) compute.View {
	if l.err != nil {
		return compute.View{}
	}
	buf, err := l.b.Alloc(name, max(len(v), 1)*4)
	if err != nil {
		l.Fail("%s: %w", name, err)
		return compute.View{}
	}
	l.buffers = append(l.buffers, buf)
	w := buf.Of(layout.F32, 0, 1, len(v))
	copy(w.F32(0), v)
	return w
}

// Drop marks tensors that the family does not read.
func (l *Loader) Drop(match func(name string) bool) {
	for _, n := range l.c.Names() {
		if match(n) {
			l.used[n] = true
		}
	}
}

// Finish reports tensors that nobody asked for: a sign of a checkpoint that
// would run wrongly rather than not at all.
func (l *Loader) Finish() {
	if l.err != nil {
		return
	}
	var left []string
	for _, n := range l.c.Names() {
		if !l.used[n] {
			left = append(left, n)
		}
	}
	if len(left) == 0 {
		return
	}
	sort.Strings(left)
	shown := left
	if len(shown) > 4 {
		shown = shown[:4]
	}
	l.err = fmt.Errorf("%d tensors do not belong to this model type (%s, ...); check that config.json and the weights are of the same model", len(left), strings.Join(shown, ", "))
}

// Close gives everything back to the backend.
func (l *Loader) Close() {
	for _, w := range l.weights {
		l.b.Unload(w)
	}
	for _, b := range l.buffers {
		b.Close()
	}
	l.weights, l.buffers = nil, nil
}

var errConfig = errors.New("config.json")

// Positive checks sizes that everything else is computed from.
func (l *Loader) Positive(what string, n int) {
	if n <= 0 {
		l.Fail("%w: %s must be positive, is %d", errConfig, what, n)
	}
}
