//go:build linux || darwin

package checkpoint

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func mapPages(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
}

// newPages returns zeroed memory outside the Go heap, which C and devices may keep pointers into.
func newPages(size int) []byte {
	if b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err == nil {
		return b
	}
	return make([]byte, size)
}

func freePages(b []byte) error {
	if err := unix.Munmap(b); err != nil && err != unix.EINVAL { // EINVAL: it was the Go heap
		return err
	}
	return nil
}

// Evict tells the system that the given bytes of a mapped file are not needed for now, because a backend has repacked
// them. They stay readable. Whole pages inside b are dropped.
func Evict(b []byte) {
	page := os.Getpagesize()
	lo := (page - int(addr(b)%uintptr(page))) % page
	hi := len(b) - int((addr(b)+uintptr(len(b)))%uintptr(page))
	if lo < hi {
		_ = unix.Madvise(b[lo:hi], unix.MADV_DONTNEED) // advice: failing changes nothing
	}
}

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
