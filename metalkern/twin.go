package metalkern

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// twin is a group of ops and what the judge made of the same inputs.
type twin struct {
	judge  compute.Backend
	ops    []compute.Op
	bufs   []*compute.Buffer
	before []saved
	pairs  []pair
	caches []cachePair
}

// saved is a stretch of a buffer as it was before the ops.
type saved struct {
	buf   *compute.Buffer
	off   int
	bytes []byte
}

// pair is a matrix of the device and the judge's.
type pair struct {
	where       string
	got, want   compute.View
	choosesTies bool // ids that may differ where scores are as good as equal
}

// cachePair is a cache that is written, and the pages that the ops know.
type cachePair struct {
	got, want compute.KV
	pages     []int32
}

// twin copies what the ops read to buffers of the judge, in float32 where the
// device has halves, and lets it run them.
func (r *rehearsal) twin(ops []compute.Op) (*twin, error) {
	if r.judge == nil {
		b, err := r.o.Judge()
		if err != nil {
			return nil, fmt.Errorf("the kernels cannot be tried: %w", err)
		}
		r.judge, r.weights = b, map[*compute.Weight]*compute.Weight{}
	}
	t := &twin{judge: r.judge, ops: ops}
	m := &mirror{twin: t, r: r, plain: map[*compute.Buffer]*compute.Buffer{}, wide: map[*compute.Buffer]*compute.Buffer{}}
	var p compute.Program
	for _, op := range ops {
		m.op, m.table = op, nil
		switch o := op.(type) {
		case compute.KVWrite:
			m.table = pagesOf(o.Pages, o.KV.Pages)
		case compute.Attention:
			m.table = pagesOf(o.Pages, o.KV.Pages)
		}
		p.Add(m.of(reflect.ValueOf(op), "").Interface().(compute.Op))
	}
	if m.err == nil {
		m.err = compute.Run(r.judge, &p, nil)
	}
	if m.err != nil {
		t.close()
		return nil, fmt.Errorf("the kernels cannot be tried: %w", m.err)
	}
	return t, nil
}

func (t *twin) close() {
	for _, b := range t.bufs {
		b.Close()
	}
}

// pagesOf lists the pages that a table names, each once.
func pagesOf(p compute.Pages, pages int) (list []int32) {
	for r := range p.Table.Rows {
		for _, n := range p.Table.I32(r) {
			if n >= 0 && int(n) < pages && !slices.Contains(list, n) {
				list = append(list, n)
			}
		}
	}
	return list
}

// mirror turns the memory that ops name into the judge's.
type mirror struct {
	*twin
	r           *rehearsal
	op          compute.Op
	table       []int32
	plain, wide map[*compute.Buffer]*compute.Buffer
	err         error
}

// of returns a copy of v, an op or a part of one, with the judge's memory in it.
func (m *mirror) of(v reflect.Value, name string) reflect.Value {
	switch x := v.Interface().(type) {
	case compute.View:
		return reflect.ValueOf(m.view(x, name))
	case compute.KV:
		return reflect.ValueOf(m.cache(x))
	case *compute.Weight:
		return reflect.ValueOf(m.weight(x))
	}
	switch v.Kind() {
	case reflect.Struct:
		out := reflect.New(v.Type()).Elem()
		for i := range v.NumField() {
			out.Field(i).Set(m.of(v.Field(i), v.Type().Field(i).Name))
		}
		return out
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		out := reflect.New(v.Type().Elem())
		out.Elem().Set(m.of(v.Elem(), name))
		return out
	}
	return v
}

func (m *mirror) weight(w *compute.Weight) *compute.Weight {
	if w == nil || m.err != nil {
		return w
	}
	if m.r.weights[w] == nil {
		x, err := m.judge.Load(w.Matrix)
		if err != nil {
			m.err = err
			return w
		}
		m.r.weights[w] = x
	}
	return m.r.weights[w]
}

// buffer returns the judge's buffer for b, with times its bytes.
func (m *mirror) buffer(b *compute.Buffer, of map[*compute.Buffer]*compute.Buffer, times int) *compute.Buffer {
	if of[b] == nil && m.err == nil {
		x, err := m.judge.Alloc("twin of "+b.Label, times*len(b.Bytes))
		if err != nil {
			m.err = err
			return b
		}
		m.bufs = append(m.bufs, x)
		of[b] = x
	}
	if of[b] == nil {
		return b
	}
	return of[b]
}

func (m *mirror) keep(b *compute.Buffer, off, n int) {
	m.before = append(m.before, saved{b, off, slices.Clone(b.Bytes[off : off+n])})
}

func (m *mirror) view(v compute.View, name string) compute.View {
	if !v.Given() || m.err != nil {
		return v
	}
	w := v
	wide := v.Type == layout.F16 || v.Type == layout.BF16
	if wide {
		w.Buf, w.Off, w.Type = m.buffer(v.Buf, m.wide, 2), 2*v.Off, layout.F32
	} else {
		w.Buf = m.buffer(v.Buf, m.plain, 1)
	}
	if m.err != nil || v.Rows <= 0 || v.Cols <= 0 {
		return w
	}
	size := v.Type.Size()
	m.keep(v.Buf, v.Off, ((v.Rows-1)*v.Stride+v.Cols)*size)
	for r := range v.Rows {
		from := v.Buf.Bytes[v.Off+r*v.Stride*size:][:v.Cols*size]
		if !wide {
			copy(w.Buf.Bytes[v.Off+r*v.Stride*size:], from)
			continue
		}
		to := w.F32(r)
		for i := range to {
			to[i] = half(v.Type, from[2*i:])
		}
	}
	_, route := m.op.(compute.MoERoute)
	m.pairs = append(m.pairs, pair{where: name, got: v, want: w, choosesTies: route && name == "IDs"})
	return w
}

// half reads a 16-bit float.
func half(t layout.DType, b []byte) float32 {
	u := binary.LittleEndian.Uint16(b)
	if t == layout.BF16 {
		return math.Float32frombits(uint32(u) << 16)
	}
	return layout.F16ToF32(u)
}

// cache copies the pages that the op's table names.
func (m *mirror) cache(kv compute.KV) compute.KV {
	out := kv
	k, v := kv.PageBytes()
	_, writes := m.op.(compute.KVWrite)
	for _, side := range []struct {
		from *compute.Buffer
		to   **compute.Buffer
		n    int
	}{{kv.K, &out.K, k}, {kv.V, &out.V, v}} {
		if side.from == nil || side.n == 0 || m.err != nil {
			continue
		}
		*side.to = m.buffer(side.from, m.plain, 1)
		if m.err != nil {
			return out
		}
		for _, page := range m.table {
			off := int(page) * side.n
			copy((*side.to).Bytes[off:], side.from.Bytes[off:off+side.n])
			if writes {
				m.keep(side.from, off, side.n)
			}
		}
	}
	if writes {
		m.caches = append(m.caches, cachePair{kv, out, m.table})
	}
	return out
}

// restore makes the device's memory what it was before the ops.
func (t *twin) restore() {
	for _, s := range t.before {
		copy(s.buf.Bytes[s.off:], s.bytes)
	}
}

// tolerance is how far a result may be from the judge's: a part of itself, and of
// the largest result beside it. Sums of float32 differ by their order, halves are
// rounded when they are stored.
func tolerance(t layout.DType) (own, peak float64) {
	switch t {
	case layout.F16:
		return 2e-3, 2e-4
	case layout.BF16:
		return 1.6e-2, 1e-3
	}
	return 2e-4, 5e-5
}

// compare holds what the device made against what the judge made.
func (t *twin) compare() error {
	for _, p := range t.pairs {
		if err := p.compare(); err != nil {
			return err
		}
	}
	for _, c := range t.caches {
		if err := c.compare(); err != nil {
			return err
		}
	}
	return nil
}

func (p pair) compare() error {
	if p.got.Type == layout.I32 {
		wrong := 0
		for r := range p.got.Rows {
			got, want := p.got.I32(r), p.want.I32(r)
			for i := range got {
				if got[i] == want[i] {
					continue
				}
				if wrong++; !p.choosesTies || wrong > max(2, p.got.Rows*p.got.Cols/100) {
					return fmt.Errorf("%s of row %d, column %d is %d, the CPU has %d", p.where, r, i, got[i], want[i])
				}
			}
		}
		return nil
	}
	peak := 0.0
	for r := range p.want.Rows {
		for _, x := range p.want.F32(r) {
			if x := math.Abs(float64(x)); !math.IsInf(x, 0) && x > peak {
				peak = x
			}
		}
	}
	own, share := tolerance(p.got.Type)
	size := p.got.Type.Size()
	for r := range p.got.Rows {
		want := p.want.F32(r)
		at := p.got.Buf.Bytes[p.got.Off+r*p.got.Stride*size:]
		for i, w := range want {
			var g float32
			if size == 4 {
				g = math.Float32frombits(binary.LittleEndian.Uint32(at[4*i:]))
			} else {
				g = half(p.got.Type, at[2*i:])
			}
			if !near(float64(g), float64(w), own, share*peak) {
				return fmt.Errorf("%s of row %d, column %d is %v, the CPU has %v", p.where, r, i, g, w)
			}
		}
	}
	return nil
}

func near(got, want, own, peak float64) bool {
	if math.IsNaN(want) || math.IsInf(want, 0) {
		return math.IsNaN(want) && math.IsNaN(got) || got == want
	}
	return math.Abs(got-want) <= own*math.Abs(want)+peak
}

// compare holds the pages against each other, element by element as attention
// reads them; codes of quantized caches may be off by one.
func (c cachePair) compare() error {
	k, v := c.got.PageBytes()
	for _, side := range []struct {
		what      string
		got, want *compute.Buffer
		n, dim    int
	}{{"K", c.got.K, c.want.K, k, c.got.KDim}, {"V", c.got.V, c.want.V, v, c.got.VDim}} {
		if side.n == 0 {
			continue
		}
		for _, page := range c.pages {
			off := int(page) * side.n
			got, want := c.elements(side.got.Bytes[off:off+side.n], side.dim), c.elements(side.want.Bytes[off:off+side.n], side.dim)
			own, _ := tolerance(c.got.Type)
			for i := range want {
				step := want[i].step
				if !near(got[i].value, want[i].value, own, 1e-6+1.01*step) {
					return fmt.Errorf("%s of page %d, element %d is %v in the cache, the CPU has %v", side.what, page, i, got[i].value, want[i].value)
				}
			}
		}
	}
	return nil
}

type element struct{ value, step float64 }

func (c cachePair) elements(page []byte, dim int) []element {
	n := c.got.Heads * compute.PageSize * dim
	out := make([]element, n)
	if c.got.Bits == 0 {
		for i := range out {
			if c.got.Type == layout.F32 {
				out[i].value = float64(math.Float32frombits(binary.LittleEndian.Uint32(page[4*i:])))
			} else {
				out[i].value = float64(half(c.got.Type, page[2*i:]))
			}
		}
		return out
	}
	codes := n * c.got.Bits / 8
	groups := n / c.got.Group
	number := func(i int) float64 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(page[codes+4*i:])))
	}
	for i := range out {
		code := page[i*c.got.Bits/8]
		if c.got.Bits == 4 {
			code = code >> (4 * (i % 2)) & 15
		}
		scale := number(i / c.got.Group)
		out[i] = element{float64(code)*scale + number(groups+i/c.got.Group), math.Abs(scale)}
	}
	return out
}
