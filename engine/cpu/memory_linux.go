//go:build cgo

package cpu

import (
	"os"
	"syscall"
)

// lazyFlag lets a cache be larger than what the system could promise at once.
const lazyFlag = syscall.MAP_NORESERVE

// adviseHuge asks for large pages: packed weights are read from end to end, the caches
// of many sequences lie far from each other, and small buffers are many.
func adviseHuge(mem []byte) {
	const hugePages = 14                // MADV_HUGEPAGE
	_ = syscall.Madvise(mem, hugePages) // advice only: the system may not have them
}

// giveBack frees the memory behind what will not be used.
func giveBack(mem []byte) {
	page := os.Getpagesize()
	if skip := len(mem) % page; len(mem) > page { // mem ends on a page
		_ = syscall.Madvise(mem[skip:], syscall.MADV_DONTNEED)
	}
}
