//go:build cgo && unix && !linux

package cpu

const lazyFlag = 0

func adviseHuge([]byte) {}

// giveBack does nothing: what was never touched takes no memory, and pages are small.
func giveBack([]byte) {}
