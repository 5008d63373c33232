package machine

import "golang.org/x/sys/unix"

func (m *Memory) readPressure() {
	switch level, err := unix.SysctlUint32("kern.memorystatus_vm_pressure_level"); {
	case err != nil:
	case level == 1:
		m.Pressure = Normal
	case level == 2:
		m.Pressure = Warn
	case level == 4:
		m.Pressure = Critical
	}
	if mb, err := unix.SysctlUint32("iogpu.wired_limit_mb"); err == nil {
		m.WiredLimitMB = int(mb)
	}
}

func (c *Chip) read() {
	c.Name, _ = unix.Sysctl("machdep.cpu.brand_string")
	c.OSVersion, _ = unix.Sysctl("kern.osproductversion")
	c.OSBuild, _ = unix.Sysctl("kern.osversion")
}

// Resident is how much memory this process has, in bytes; 0 = unknown.
func Resident() int64 { return 0 }
