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

// dropPages gives up the whole pages inside b, which must be a view of a mapped file.
func dropPages(b []byte) {
	page := uintptr(os.Getpagesize())
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	lo := int((page - start%page) % page)
	hi := len(b) - int((start+uintptr(len(b)))%page)
	if lo < hi {
		_ = unix.Madvise(b[lo:hi], unix.MADV_DONTNEED) // advice: failing changes nothing
	}
}
