//go:build darwin && cgo

package metalkern

/*
#cgo CFLAGS: -x objective-c -fblocks -Werror=objc-method-access -Werror=incompatible-pointer-types -Werror=unguarded-availability-new
#cgo LDFLAGS: -framework Metal -framework Foundation
#include <stdlib.h>
#include "bridge_darwin.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"
)

// languageVersion is MSL 3.1, of macOS 14.
const languageVersion = 3<<16 | 1

// metalDevice is the system's GPU.
type metalDevice struct {
	dev       *C.mk_device
	sources   []Source
	libraries map[string]C.uint32_t // by file
	pins      map[uint32]*runtime.Pinner
	archive   string // file of compiled kernels, "" = they are not kept
	used      map[uint32]int
	sum       int // of used
	limit     int // bytes that may be in use
}

// Open returns the GPU of this machine. Kernel files are compiled when the first
// of their kernels is asked for; archive is the file that keeps what was compiled,
// "" = none. It fails where there is no Apple GPU.
func Open(archive string) (Device, error) {
	sources, err := Sources()
	if err != nil {
		return nil, err
	}
	var msg [1024]C.char
	var path *C.char
	if archive != "" {
		path = C.CString(archive)
		defer C.free(unsafe.Pointer(path))
	}
	var none C.int
	dev := C.mk_open(path, &none, &msg[0], C.int(len(msg)))
	switch {
	case dev == nil && none != 0:
		return nil, fmt.Errorf("%w: %s", ErrNoDevice, C.GoString(&msg[0]))
	case dev == nil:
		return nil, fmt.Errorf("metal: %s", C.GoString(&msg[0]))
	}
	return &metalDevice{dev: dev, sources: sources, libraries: map[string]C.uint32_t{}, pins: map[uint32]*runtime.Pinner{}, archive: archive, used: map[uint32]int{}, limit: int(C.mk_limit(dev))}, nil
}

func (d *metalDevice) Name() string {
	var name [256]C.char
	C.mk_name(d.dev, &name[0], C.int(len(name)))
	return C.GoString(&name[0])
}

func (d *metalDevice) Alloc(bytes int) (Memory, error) {
	if err := roomFor(bytes, d.sum, d.limit); err != nil {
		return Memory{}, err
	}
	var p unsafe.Pointer
	id := C.mk_alloc(d.dev, C.uint64_t(bytes), &p)
	if id == 0 {
		return Memory{}, fmt.Errorf("the GPU has no room for a buffer of %d bytes", bytes)
	}
	d.note(uint32(id), bytes)
	return Memory{ID: uint32(id), Bytes: unsafe.Slice((*byte)(p), bytes)}, nil
}

// note keeps count of the memory that the GPU uses.
func (d *metalDevice) note(id uint32, bytes int) {
	d.sum += bytes - d.used[id]
	d.used[id] = bytes
}

func (d *metalDevice) Wrap(b []byte) (Memory, error) {
	if err := CheckWords(b); err != nil {
		return Memory{}, err
	}
	if err := roomFor(len(b), d.sum, d.limit); err != nil {
		return Memory{}, err
	}
	pin := &runtime.Pinner{}
	pin.Pin(&b[0])
	var off C.uint64_t
	id := uint32(C.mk_wrap(d.dev, unsafe.Pointer(&b[0]), C.uint64_t(len(b)), &off))
	if id == 0 {
		pin.Unpin()
		return Memory{}, fmt.Errorf("the GPU cannot map a weight of %d bytes", len(b))
	}
	d.pins[id] = pin
	d.note(id, len(b))
	return Memory{ID: id, Off: uint64(off), Bytes: b}, nil
}

func (d *metalDevice) Free(m Memory) {
	C.mk_free(d.dev, C.uint32_t(m.ID))
	d.note(m.ID, 0)
	if pin := d.pins[m.ID]; pin != nil {
		pin.Unpin()
		delete(d.pins, m.ID)
	}
}

func (d *metalDevice) Pipeline(kernel string, constants []Constant) (uint32, error) {
	i := slices.IndexFunc(d.sources, func(s Source) bool { return slices.Contains(s.Kernels, kernel) })
	if i < 0 {
		return 0, errors.New("there is no such kernel")
	}
	var msg [8192]C.char
	src := d.sources[i]
	lib, ok := d.libraries[src.Name]
	if !ok {
		text := C.CString(src.Text)
		defer C.free(unsafe.Pointer(text))
		if lib = C.mk_library(d.dev, text, languageVersion, &msg[0], C.int(len(msg))); lib == 0 {
			return 0, fmt.Errorf("%s does not compile: %s", src.Name, C.GoString(&msg[0]))
		}
		d.libraries[src.Name] = lib
	}
	name := C.CString(kernel)
	defer C.free(unsafe.Pointer(name))
	id := C.mk_pipeline(d.dev, lib, name, (*C.mk_constant)(unsafe.Pointer(unsafe.SliceData(constants))), C.int(len(constants)), &msg[0], C.int(len(msg)))
	if id == 0 {
		return 0, errors.New(C.GoString(&msg[0]))
	}
	return uint32(id), nil
}

func (d *metalDevice) Submit(l *List) (Fence, error) {
	var msg [1024]C.char
	t := C.mk_submit(d.dev, (*C.mk_dispatch)(unsafe.Pointer(unsafe.SliceData(l.Dispatches))), C.int(len(l.Dispatches)), (*C.mk_bind)(unsafe.Pointer(unsafe.SliceData(l.Binds))),
		(*C.char)(unsafe.Pointer(unsafe.SliceData(l.Args))), (*C.mk_mark)(unsafe.Pointer(unsafe.SliceData(l.Marks))), C.int(len(l.Marks)), &msg[0], C.int(len(msg)))
	if t == 0 {
		return nil, errors.New("metal: " + C.GoString(&msg[0]))
	}
	return &metalFence{d: d, ticket: t}, nil
}

func (d *metalDevice) Await(value uint64, limit time.Duration) bool {
	return C.mk_await(d.dev, C.uint64_t(value), C.uint64_t(limit.Milliseconds())) != 0
}

func (d *metalDevice) Answer(value uint64) { C.mk_answer(d.dev, C.uint64_t(value)) }

// save keeps what was compiled; without it the next start compiles again. The file
// is put in its place whole.
func (d *metalDevice) save() {
	if d.archive == "" {
		return
	}
	part := d.archive + ".part"
	path := C.CString(part)
	defer C.free(unsafe.Pointer(path))
	var msg [512]C.char
	if C.mk_save(d.dev, path, &msg[0], C.int(len(msg))) == 1 {
		if _, err := os.Stat(part); err == nil {
			_ = os.Rename(part, d.archive)
		}
	}
}

func (d *metalDevice) Close() error {
	d.save()
	C.mk_close(d.dev)
	for _, pin := range d.pins {
		pin.Unpin()
	}
	d.pins = nil
	return nil
}

// metalFence is a command buffer.
type metalFence struct {
	d      *metalDevice
	ticket C.uint64_t // 0: it has ended
	took   time.Duration
	err    error
}

func (f *metalFence) Wait(limit time.Duration) (time.Duration, error) {
	if f.ticket == 0 {
		return f.took, f.err
	}
	var seconds C.double
	var msg [1024]C.char
	var code C.int
	switch C.mk_wait(f.d.dev, f.ticket, C.double(limit.Seconds()), &seconds, &code, &msg[0], C.int(len(msg))) {
	case C.MK_HUNG:
		return 0, ErrHung
	case 0:
		f.err = explain(int(code), C.GoString(&msg[0]))
	}
	f.took, f.ticket = time.Duration(float64(seconds)*1e9), 0
	return f.took, f.err
}
