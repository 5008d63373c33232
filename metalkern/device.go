package metalkern

import (
	"errors"
	"time"
	"unsafe"
)

// Device is a GPU, or the emulation of one that tests use. One goroutine at a
// time uses it.
type Device interface {
	// Name is what the system calls the chip.
	Name() string
	// Alloc returns zeroed memory that CPU and GPU share.
	Alloc(bytes int) (Memory, error)
	// Wrap makes memory that stays valid and unchanged until Free known to the
	// device, without a copy. It fails where b does not begin at a multiple of 4: the
	// kernels read words.
	Wrap(b []byte) (Memory, error)
	// Free forgets memory. Lists in flight must have ended.
	Free(Memory)
	// Pipeline returns the kernel of that name with its function constants fixed.
	Pipeline(kernel string, constants []Constant) (uint32, error)
	// Submit starts a list; lists run in the order of their submission. The list's
	// slices are not kept.
	Submit(l *List) (Fence, error)
	// Await reports whether the device has come to the mark with that value, which is
	// no Wait, and all before it has ended; it waits for that no longer than limit. Any
	// goroutine may call it.
	Await(value uint64, limit time.Duration) bool
	// Answer lets the device go on behind the marks that wait for a value up to this
	// one. Values never fall. Any goroutine may call it.
	Answer(value uint64)
	Close() error
}

// Fence is a list in flight.
type Fence interface {
	// Wait returns when the list has ended: how long the device worked on it, and
	// its error. After limit it gives up with ErrHung: then the list may still use
	// its memory, and the device takes no further one.
	Wait(limit time.Duration) (time.Duration, error)
}

// Memory is a stretch of device memory: Bytes as the CPU sees it, which lie at
// byte Off of buffer ID.
type Memory struct {
	ID    uint32
	Off   uint64
	Bytes []byte
}

// CheckWords is what Wrap says of bytes that do not begin at a multiple of 4.
func CheckWords(b []byte) error {
	if uintptr(unsafe.Pointer(&b[0]))%4 != 0 {
		return errors.New("metal: bytes that do not begin at a multiple of 4 must be copied")
	}
	return nil
}

// Constant is the value of a function constant, a 32-bit number.
type Constant struct{ Index, Bits uint32 }

// List is a flat list of dispatches: what a Program is lowered to, and what one
// call hands to the device, which encodes it into one command buffer. The slices
// have C's layout (bridge_darwin.h).
type List struct {
	Dispatches []Dispatch
	Binds      []Bind
	Args       []byte
	Marks      []Mark
}

// Mark is where the device and the CPU meet in the midst of a list: before dispatch
// At, or behind the last one.
type Mark struct {
	At    uint32
	Wait  uint32 // 0: the CPU is told that all before has ended (Await); 1: what follows waits for its answer (Answer)
	Value uint64 // of the meeting; each has one that is larger than all before
}

// Dispatch runs a kernel on a grid of threadgroups. Between two barriers
// dispatches may run at the same time and in any order.
type Dispatch struct {
	Pipeline uint32
	Barrier  uint32    // 1: what came before must have ended and be visible
	Groups   [3]uint32 // threadgroups
	Threads  uint32    // of one threadgroup, a multiple of 32
	Binds    uint32    // how many buffers are bound, at index 1 and up
	Bind     uint32    // the first of them in List.Binds
	Args     uint32    // where the argument struct (index 0) lies in List.Args, a multiple of 16
	ArgBytes uint32
	Shared   uint32 // bytes of threadgroup memory (index 0), a multiple of 16; 0 = the kernel has none
}

// Bind is a buffer argument: bytes [Off, Off+Len) of a buffer. Buffer 0 is none:
// the kernel does not touch it. The GPU knows only Off; Len is what the emulation
// checks.
type Bind struct {
	Buffer, _ uint32
	Off, Len  uint64
}

// ErrHung says that the device did not come to an end with a list.
var ErrHung = errors.New("metal: the GPU hangs")

// ErrNoDevice says that this build or this machine has no Metal device.
var ErrNoDevice = errors.New("metal: no device here")
