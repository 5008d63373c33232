package machine

import (
	"runtime"

	"golang.org/x/sys/cpu"
)

// Chip is the processor and the system that runs on it.
type Chip struct {
	Name      string // "Apple M4 Pro", "AMD EPYC ...", "" = unknown
	Cores     int    // that this process may use
	OS        string // darwin, linux
	OSVersion string
	OSBuild   string // such as 23F79; "" = unknown
	Arch      string // arm64, amd64
	SIMD      bool   // has the vector instructions that the CPU backend is written for
}

// AppleSilicon reports whether the chip is one of Apple's own.
func (c Chip) AppleSilicon() bool { return c.OS == "darwin" && c.Arch == "arm64" }

// ReadChip returns the chip of this machine.
func ReadChip() Chip {
	c := Chip{Cores: Cores(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	c.SIMD = cpu.X86.HasAVX2 && cpu.X86.HasFMA || runtime.GOARCH == "arm64" // NEON is part of the latter
	c.read()
	return c
}
