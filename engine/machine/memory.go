package machine

import (
	"strconv"
	"strings"

	"github.com/shirou/gopsutil/v3/mem"
)

// Memory is physical memory in bytes, or what a container leaves of it; zero =
// unknown.
type Memory struct {
	Total, Available uint64
	SwapTotal        uint64
	SwapUsed         uint64
	Pressure         Level
	// PressureLevel is 1, 2 or 4 as macOS counts; 0 = unknown.
	PressureLevel int
	// WiredLimitMB is the limit of memory for the GPU that was set by hand;
	// 0 = none or not a Mac.
	WiredLimitMB int
}

// FreePercent is the share of memory that is available; false = unknown.
func (m Memory) FreePercent() (int, bool) {
	if m.Total == 0 {
		return 0, false
	}
	return int(100 * m.Available / m.Total), true
}

// ReadMemory returns the memory as it is now.
func ReadMemory() Memory {
	m := Memory{Pressure: Unknown}
	if v, err := mem.VirtualMemory(); err == nil {
		m.Total, m.Available = v.Total, v.Available
		if limit, left, ok := groupMemory("/"); ok && limit < m.Total {
			m.Total, m.Available = limit, max(min(m.Available, left), 1) // 0 would be unknown
		}
	}
	if s, err := mem.SwapMemory(); err == nil {
		m.SwapTotal, m.SwapUsed = s.Total, s.Used
	}
	m.readPressure()
	m.PressureLevel = map[Level]int{Normal: 1, Warn: 2, Critical: 4}[m.Pressure]
	return m
}

// The shares of available memory, and of time in which every task waited for
// memory in the last ten seconds, from which Linux counts as short of memory.
// Where less than the first is available macOS, too, has begun to compress.
const (
	warnAvailable, criticalAvailable = 0.10, 0.04
	warnStall, criticalStall         = 5.0, 25.0 // percent
)

// linuxPressure judges by what is available, and by the stalls that
// /proc/pressure/memory reports ("" = the kernel does not tell).
func linuxPressure(total, available uint64, psi string) Level {
	if total == 0 {
		return Unknown
	}
	share, stall := float64(available)/float64(total), fullStall(psi)
	switch {
	case share < criticalAvailable, stall >= criticalStall && share < 2*warnAvailable:
		return Critical
	case share < warnAvailable, stall >= warnStall && share < 2*warnAvailable:
		return Warn
	}
	return Normal
}

// fullStall reads avg10 of the line "full", in percent.
func fullStall(psi string) float64 {
	for line := range strings.Lines(psi) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "full" {
			continue
		}
		if text, ok := strings.CutPrefix(fields[1], "avg10="); ok {
			if x, err := strconv.ParseFloat(text, 64); err == nil {
				return x
			}
		}
	}
	return 0
}
