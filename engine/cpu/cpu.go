//go:build cgo && unix

package cpu

/*
#cgo CFLAGS: -O3 -std=c11 -D_GNU_SOURCE -Wall -Wextra -fno-strict-aliasing
#cgo LDFLAGS: -lm -lpthread
#include <stdlib.h>
#include "sb.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// levelNames are all levels, best first.
var levelNames = []string{"amx", "avx512", "avxvnni", "avx2", "i8mm", "dotprod", "neon", "scalar"}

// Levels returns the levels that this build has and this machine can run, best
// first.
func Levels() []string {
	var have []string
	for _, n := range levelNames {
		if findLevel(n) != nil {
			have = append(have, n)
		}
	}
	return have
}

func findLevel(name string) *C.sb_level {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return C.sb_level_find(s)
}

type backend struct {
	compute.SubmitCounter
	level *C.sb_level
	exact bool

	mu    sync.Mutex // a model may be loaded while another runs
	pool  *C.sb_pool // nil: closed
	lower lowerer

	weights, buffers slabs
}

// New returns a backend that owns a pool of threads until Close. It fails when
// the level is unknown or cannot run here.
func New(o Options) (compute.Backend, error) {
	threads, err := o.threads()
	if err != nil {
		return nil, err
	}
	name, from := o.Level, "Options.Level"
	if name == "" {
		name, from = DefaultLevel(), LevelVariable
	}
	level := findLevel(name)
	if level == nil {
		return nil, fmt.Errorf("cpu: level %q of %s cannot run on this machine; it can run: %s", name, from, strings.Join(Levels(), ", "))
	}
	pool := C.sb_pool_new(level, C.int(threads))
	if pool == nil {
		return nil, fmt.Errorf("cpu: cannot start %d threads", threads)
	}
	b := &backend{level: level, pool: pool, exact: o.Exact}
	b.lower.threads, b.lower.exact, b.lower.alloc = threads, o.Exact, b.Alloc
	return b, nil
}

func (*backend) Name() string { return "cpu" }

// StridedPages says that the pages of a cache may have gaps between them.
func (*backend) StridedPages() bool { return true }

// Alloc maps anonymous memory: zeroed, and committed when touched. Large blocks begin
// on a large page and ask for those, small ones lie together in some (see slab).
func (b *backend) Alloc(label string, bytes int) (*compute.Buffer, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("%s: cannot allocate %d bytes", label, bytes)
	}
	if bytes == 0 {
		return compute.NewBuffer(label, nil, nil, nil), nil
	}
	fail := func(err error) error { return fmt.Errorf("%s: cannot allocate %d bytes: %w", label, bytes, err) }
	size, up := bytes, (bytes+largePage-1)&^(largePage-1)
	most := 4*(up-bytes) <= bytes
	if bytes < largePage && !most {
		block, s, err := b.buffers.get(bytes)
		if err != nil {
			return nil, fail(err)
		}
		return compute.NewBuffer(label, block, nil, func() { b.buffers.release(s) }), nil
	}
	if most { // the last page whole, too, where little of it is lost
		size = up
	}
	mem, block, err := mapLarge(size)
	if err != nil {
		return nil, fail(err)
	}
	return compute.NewBuffer(label, block[:bytes:bytes], nil, func() { syscall.Munmap(mem) }), nil
}

func mapMemory(bytes int) ([]byte, error) {
	return syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|lazyFlag)
}

// mapLarge maps memory, mem, and returns the part of it of so many bytes that begins
// on a large page.
func mapLarge(bytes int) (mem, part []byte, err error) {
	if mem, err = mapMemory(bytes + largePage); err != nil {
		return nil, nil, err
	}
	skip := int(-uintptr(unsafe.Pointer(&mem[0])) & (largePage - 1))
	part = mem[skip : skip+bytes]
	adviseHuge(part)
	return mem, part, nil
}

// slab is memory for packed weights, or for small buffers: many lie in one, so that
// the system can back it with large pages. Reading a model from end to end at each
// token, misses of the address translation would cost more than the reading; and of
// what is read now and then only, as the norms of a drafter, a virtual machine takes
// longer to find each small page again than to read it.
type slab struct {
	mem  []byte // as mapped
	free []byte // what is left of it
	live int    // parts in use
}

const slabBytes, largePage = 32 << 20, 2 << 20

// slabs hands out parts of slabs. A slab ends with its last part; until then the memory
// of those that ended before stays, which is little beside what lives as long as a model.
type slabs struct {
	mu   sync.Mutex
	list []*slab // the last one has room
}

// get returns n zeroed bytes, for release.
func (l *slabs) get(n int) ([]byte, *slab, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	whole := (n + 63) &^ 63
	if k := len(l.list); k == 0 || len(l.list[k-1].free) < whole {
		if k > 0 {
			giveBack(l.list[k-1].free) // the rest of its last large page
		}
		mem, free, err := mapLarge((max(whole, slabBytes) + largePage - 1) &^ (largePage - 1))
		if err != nil {
			return nil, nil, err
		}
		l.list = append(l.list, &slab{mem: mem, free: free})
	}
	s := l.list[len(l.list)-1]
	part := s.free[:n:n]
	s.free = s.free[whole:]
	s.live++
	return part, s, nil
}

// release says that one part less is in use.
func (l *slabs) release(s *slab) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.live--; s.live == 0 {
		l.list = slices.DeleteFunc(l.list, func(t *slab) bool { return t == s })
		syscall.Munmap(s.mem)
	}
}

// loaded is the Handle of a Weight.
type loaded struct {
	c    *C.sb_weight
	slab *slab // of the packed form, nil without one
	pin  runtime.Pinner
}

// Load wraps the bytes of m where they lie. Bytes of the Go heap are pinned until
// Unload; mapped bytes need nothing. Unless the backend is exact, quantized weights
// are also packed (packed.h), which takes as much memory again: the mapped bytes
// are then read seldom, of affine weights not even by Embed, and may be dropped from
// memory (Weight.Repacked).
// MXFP8, whose codes are no small integers, is not packed.
func (b *backend) Load(m layout.Matrix) (*compute.Weight, error) {
	rowBytes, scaleBytes, err := sizes(m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name, err)
	}
	h := &loaded{c: (*C.sb_weight)(C.calloc(1, C.sizeof_sb_weight))}
	if h.c == nil {
		return nil, fmt.Errorf("%s: out of memory", m.Name)
	}
	*h.c = C.sb_weight{
		scheme: C.int32_t(m.Scheme), bits: C.int32_t(m.Bits), group: C.int32_t(m.Group),
		batch: C.int64_t(max(m.Batch, 1)), rows: C.int64_t(m.Rows), cols: C.int64_t(m.Cols),
		dtype: dtype(m.DType), w: h.address(m.Weight), s: h.address(m.Scales), b: h.address(m.Biases),
		row_bytes: C.int64_t(rowBytes), scale_bytes: C.int64_t(scaleBytes), global: C.float(m.GlobalScale),
	}
	w := &compute.Weight{Matrix: m, Handle: h}
	if b.exact {
		return w, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := int(C.sb_pack_size(b.level, h.c)); n > 0 {
		var packed []byte
		if b.pool == nil {
			err = errClosed
		} else if packed, h.slab, err = b.weights.get(n); err != nil {
			err = fmt.Errorf("cannot allocate %d bytes for the packed weight: %w", n, err)
		} else {
			h.c.packed = C.uintptr_t(uintptr(unsafe.Pointer(&packed[0])))
			err = b.pack(h.c)
		}
		if err != nil {
			b.unload(w)
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		w.Repacked = true
	}
	return w, nil
}

// pack fills w.packed on all threads.
func (b *backend) pack(w *C.sb_weight) error {
	b.lower.reset()
	blocks := (int(w.rows) + int(b.level.lanes) - 1) / int(b.level.lanes) * int(w.batch)
	if err := add(&b.lower, C.SB_PACK, blocks, C.sb_pack{w: C.uintptr_t(uintptr(unsafe.Pointer(w)))}); err != nil {
		return err
	}
	C.sb_run(b.pool, b.lower.ops(), C.int64_t(b.lower.n), nil)
	return nil
}

func (h *loaded) address(b []byte) C.uintptr_t {
	if len(b) == 0 {
		return 0
	}
	h.pin.Pin(&b[0])
	return C.uintptr_t(uintptr(unsafe.Pointer(&b[0])))
}

// Unload frees what Load made. Unloading twice does nothing.
func (b *backend) Unload(w *compute.Weight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unload(w)
}

func (b *backend) unload(w *compute.Weight) {
	h, ok := w.Handle.(*loaded)
	if !ok {
		return
	}
	w.Handle = nil
	h.pin.Unpin()
	if h.slab != nil {
		b.weights.release(h.slab)
	}
	C.free(unsafe.Pointer(h.c))
}

func dtype(t layout.DType) C.int32_t {
	switch t {
	case layout.F32:
		return C.SB_F32
	case layout.F16:
		return C.SB_F16
	case layout.BF16:
		return C.SB_BF16
	}
	return 0
}

// The schemes of sb.h are numbered as those of layout: a difference does not
// compile.
var (
	_ [layout.Dense - C.SB_DENSE]struct{}
	_ [C.SB_DENSE - layout.Dense]struct{}
	_ [layout.GGUFMXFP4 - C.SB_GGUF_MXFP4]struct{}
	_ [C.SB_GGUF_MXFP4 - layout.GGUFMXFP4]struct{}
)

// sizes returns the bytes of one row and of its scales, and checks that m holds
// what its fields promise: C trusts them.
func sizes(m layout.Matrix) (row, scales int, err error) {
	const most = 1 << 31 // C counts rows and columns in int64, but row ids are int32
	if m.Rows < 0 || m.Cols < 0 || m.Batch < 0 || m.Rows >= most || m.Cols >= most || m.Batch >= most {
		return 0, 0, fmt.Errorf("shape %d x %dx%d is not possible", m.Batch, m.Rows, m.Cols)
	}
	group := func(bits int, groups ...int) error {
		if m.Bits == bits && slices.Contains(groups, m.Group) && m.Cols%m.Group == 0 {
			return nil
		}
		return fmt.Errorf("%v with %d bits in groups of %d over %d columns is not supported", m.Scheme, m.Bits, m.Group, m.Cols)
	}
	switch {
	case m.Scheme == layout.Dense:
		if dtype(m.DType) == 0 {
			err = fmt.Errorf("elements of type %v are not supported", m.DType)
		}
	case m.Scheme == layout.Affine:
		if m.Bits < 1 || m.Bits > 8 || m.Bits == 7 || dtype(m.DType) == 0 {
			return 0, 0, fmt.Errorf("affine codes of %d bits with scales of type %v are not supported", m.Bits, m.DType)
		}
		err = group(m.Bits, 32, 64, 128)
	case m.Scheme == layout.MXFP4:
		err = group(4, 32)
	case m.Scheme == layout.MXFP8:
		err = group(8, 32)
	case m.Scheme == layout.NVFP4:
		err = group(4, 16)
	case m.Scheme.IsBlock():
		if m.Cols%m.Scheme.BlockSize() != 0 {
			err = fmt.Errorf("%d columns are not whole %v blocks of %d", m.Cols, m.Scheme, m.Scheme.BlockSize())
		}
	default:
		err = fmt.Errorf("scheme %v is not supported", m.Scheme)
	}
	if err != nil {
		return 0, 0, err
	}
	row, scales = m.RowBytes(), m.ScaleBytes()
	biases := 0
	if m.Scheme == layout.Affine {
		biases = scales
	}
	n := max(m.Batch, 1) * m.Rows
	for _, part := range []struct {
		what       string
		have, want int
	}{{"weight", len(m.Weight), row}, {"scales", len(m.Scales), scales}, {"biases", len(m.Biases), biases}} {
		if n > 0 && part.want > 0 && (n > (1<<62)/part.want || part.have < n*part.want) {
			return 0, 0, fmt.Errorf("%s has %d bytes, wants %d rows of %d", part.what, part.have, n, part.want)
		}
	}
	return row, scales, nil
}

// Submit runs p to its end on the pool.
func (b *backend) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	if err := p.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pool == nil {
		return nil, errClosed
	}
	b.Count(p.Label)
	if err := b.lower.program(p); err != nil {
		return nil, err
	}
	if C.sb_pool_scratch(b.pool, C.int64_t(b.lower.scratch)) == 0 {
		return compute.Done{Err: fmt.Errorf("cpu: cannot allocate %d bytes of scratch for each thread", b.lower.scratch)}, nil
	}
	var flag *C.int32_t
	if stop != nil {
		flag = (*C.int32_t)(unsafe.Pointer(stop.Flag()))
	}
	if n := b.lower.n; C.sb_run(b.pool, b.lower.ops(), C.int64_t(n), flag) != 0 {
		return stopped, nil
	}
	runtime.KeepAlive(p)
	return done, nil
}

var errClosed = errors.New("cpu: the backend is closed")

var done, stopped compute.Pending = compute.Done{}, compute.Done{Err: compute.ErrStopped}

// Close ends the threads and frees the memory. Closing twice does nothing.
func (b *backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pool != nil {
		C.sb_pool_free(b.pool)
		b.pool = nil
		b.lower.close()
	}
	return nil
}
