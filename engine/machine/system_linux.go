package machine

import (
	"os"
	"strconv"
	"strings"
)

func (m *Memory) readPressure() {
	psi, _ := os.ReadFile("/proc/pressure/memory") // absent on older kernels
	m.Pressure = linuxPressure(m.Total, m.Available, string(psi))
}

func (c *Chip) read() {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for _, key := range []string{"model name", "Model"} { // the latter on arm64 boards
		if c.Name == "" {
			c.Name = valueOf(string(text), key, ":")
		}
	}
	text, _ = os.ReadFile("/etc/os-release")
	c.OSVersion = strings.Trim(valueOf(string(text), "PRETTY_NAME", "="), `"`)
}

// Resident is how much memory this process has, in bytes; 0 = unknown.
func Resident() int64 {
	text, _ := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
