//go:build !linux && !darwin

package machine

func (m *Memory) readPressure() {}

func (c *Chip) read() {}

// Resident is how much memory this process has, in bytes; 0 = unknown.
func Resident() int64 { return 0 }
