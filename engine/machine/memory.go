package machine

import "github.com/shirou/gopsutil/v3/mem"

// Memory is physical memory in bytes; zero = unknown.
type Memory struct {
	Total, Available  uint64
	SwapTotal, SwapIn uint64 // swap space and how much of it is in use
}

// ReadMemory returns the memory as it is now.
func ReadMemory() Memory {
	var m Memory
	if v, err := mem.VirtualMemory(); err == nil {
		m.Total, m.Available = v.Total, v.Available
	}
	if s, err := mem.SwapMemory(); err == nil {
		m.SwapTotal, m.SwapIn = s.Total, s.Used
	}
	return m
}
