//go:build linux && amd64 && cgo

package metaltest

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
  void *(*open)(int, uint64_t);
  void (*close)(void *);
  uint32_t (*alloc)(void *, uint64_t, void **);
  uint32_t (*wrap)(void *, const void *, uint64_t);
  void (*free)(void *, uint32_t);
  uint32_t (*pipeline)(void *, const char *, const void *, int, char *, int);
  int (*run)(void *, const void *, int, const void *, const void *, char *, int);
  uint64_t (*uses)(void *, uint32_t);
} emu_lib;

static const char *emu_load(const char *path, emu_lib *l) {
  void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!h) return dlerror();
#define F(f) if (!(*(void **)&l->f = dlsym(h, "emu_" #f))) return "no emu_" #f;
  F(open) F(close) F(alloc) F(wrap) F(free) F(pipeline) F(run) F(uses)
  return 0;
}
static void *emu_open(emu_lib *l, int order, uint64_t seed) { return l->open(order, seed); }
static void emu_close(emu_lib *l, void *d) { l->close(d); }
static uint32_t emu_alloc(emu_lib *l, void *d, uint64_t n, void **p) { return l->alloc(d, n, p); }
static uint32_t emu_wrap(emu_lib *l, void *d, const void *p, uint64_t n) { return l->wrap(d, p, n); }
static void emu_free(emu_lib *l, void *d, uint32_t b) { l->free(d, b); }
static uint32_t emu_pipeline(emu_lib *l, void *d, const char *k, const void *v, int n, char *e, int en) { return l->pipeline(d, k, v, n, e, en); }
static int emu_run(emu_lib *l, void *d, const void *x, int n, const void *b, const void *a, char *e, int en) { return l->run(d, x, n, b, a, e, en); }
static uint64_t emu_uses(emu_lib *l, void *d, uint32_t p) { return l->uses(d, p); }
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"

	"sparkbar/metalkern"
)

const emulates = true

// library is a loaded set of kernels.
type library struct {
	once sync.Once
	fn   C.emu_lib
	err  error
}

var libraries sync.Map // path -> *library

func load(path string) (*library, error) {
	v, _ := libraries.LoadOrStore(path, &library{})
	l := v.(*library)
	l.once.Do(func() {
		p := C.CString(path)
		defer C.free(unsafe.Pointer(p))
		if e := C.emu_load(p, &l.fn); e != nil {
			l.err = errors.New(C.GoString(e))
		}
	})
	return l, l.err
}

// Device is an emulated GPU.
type Device struct {
	*meetings
	lib   *library
	dev   unsafe.Pointer
	pins  map[uint32]*runtime.Pinner
	pipes map[uint32]string
}

var _ metalkern.Device = (*Device)(nil)

// NewDevice compiles the kernels, or takes them from the cache, and returns a
// device that runs them in the given order.
func NewDevice(sources []metalkern.Source, b Build, o Order) (*Device, error) {
	dir, err := cacheDir()
	if err != nil {
		return nil, err
	}
	path, err := compile(dir, sources, b)
	if err != nil {
		return nil, err
	}
	lib, err := load(path)
	if err != nil {
		return nil, err
	}
	return &Device{meetings: newMeetings(o), lib: lib, dev: C.emu_open(&lib.fn, C.int(o.Kind), C.uint64_t(o.Seed)), pins: map[uint32]*runtime.Pinner{}, pipes: map[uint32]string{}}, nil
}

// Name says that this is no GPU.
func (*Device) Name() string { return "emulated" }

// Alloc returns zeroed memory whose end lies at a page that may not be touched.
func (d *Device) Alloc(bytes int) (metalkern.Memory, error) {
	var p unsafe.Pointer
	id := C.emu_alloc(&d.lib.fn, d.dev, C.uint64_t(bytes), &p)
	if id == 0 {
		return metalkern.Memory{}, fmt.Errorf("no memory for %d bytes", bytes)
	}
	return metalkern.Memory{ID: uint32(id), Bytes: unsafe.Slice((*byte)(p), bytes)}, nil
}

// Wrap pins b, which may be Go memory.
func (d *Device) Wrap(b []byte) (metalkern.Memory, error) {
	if err := metalkern.CheckWords(b); err != nil {
		return metalkern.Memory{}, err
	}
	pin := &runtime.Pinner{}
	pin.Pin(&b[0])
	id := uint32(C.emu_wrap(&d.lib.fn, d.dev, unsafe.Pointer(&b[0]), C.uint64_t(len(b))))
	d.pins[id] = pin
	return metalkern.Memory{ID: id, Bytes: b}, nil
}

// Free forgets memory.
func (d *Device) Free(m metalkern.Memory) {
	C.emu_free(&d.lib.fn, d.dev, C.uint32_t(m.ID))
	if pin := d.pins[m.ID]; pin != nil {
		pin.Unpin()
		delete(d.pins, m.ID)
	}
}

// Pipeline finds a kernel.
func (d *Device) Pipeline(kernel string, constants []metalkern.Constant) (uint32, error) {
	name := C.CString(kernel)
	defer C.free(unsafe.Pointer(name))
	var msg [512]C.char
	id := uint32(C.emu_pipeline(&d.lib.fn, d.dev, name, unsafe.Pointer(unsafe.SliceData(constants)), C.int(len(constants)), &msg[0], C.int(len(msg))))
	if id == 0 {
		return 0, errors.New(C.GoString(&msg[0]))
	}
	var b strings.Builder
	b.WriteString(kernel)
	for _, c := range constants {
		fmt.Fprintf(&b, " %d=%d", c.Index, c.Bits)
	}
	d.pipes[id] = b.String()
	return id, nil
}

// Submit runs the list to its end, the CPU's part of it between two marks.
func (d *Device) Submit(l *metalkern.List) (metalkern.Fence, error) {
	began := time.Now()
	at := 0
	for _, m := range l.Marks {
		if err := d.run(l, at, int(m.At)); err != nil {
			return fence{err: err}, nil
		}
		at = int(m.At)
		if !d.meet(m) {
			return fence{err: metalkern.ErrHung}, nil
		}
	}
	if err := d.run(l, at, len(l.Dispatches)); err != nil {
		return fence{err: err}, nil
	}
	d.ended()
	return fence{took: time.Since(began)}, nil
}

// run runs dispatches [from, to).
func (d *Device) run(l *metalkern.List, from, to int) error {
	if from >= to {
		return nil
	}
	var msg [2048]C.char
	if C.emu_run(&d.lib.fn, d.dev, unsafe.Pointer(&l.Dispatches[from]), C.int(to-from), unsafe.Pointer(unsafe.SliceData(l.Binds)),
		unsafe.Pointer(unsafe.SliceData(l.Args)), &msg[0], C.int(len(msg))) != 0 {
		return errors.New(C.GoString(&msg[0]))
	}
	return nil
}

type fence struct {
	took time.Duration
	err  error
}

func (f fence) Wait(time.Duration) (time.Duration, error) { return f.took, f.err }

// Uses counts how often each kernel ran with each set of function constants,
// such as "linear_rows 0=2 1=4".
func (d *Device) Uses() map[string]int {
	uses := map[string]int{}
	for id, name := range d.pipes {
		uses[name] += int(C.emu_uses(&d.lib.fn, d.dev, C.uint32_t(id)))
	}
	return uses
}

// Close frees the device.
func (d *Device) Close() error {
	if d.dev != nil {
		C.emu_close(&d.lib.fn, d.dev)
		d.dev = nil
	}
	return nil
}
