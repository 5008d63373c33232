//go:build cgo && unix && !linux

package cpu

const lazyFlag = 0

func adviseHuge([]byte) {}
