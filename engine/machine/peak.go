package machine

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// PeakResident is the most memory that this process ever had, in bytes; 0 =
// unknown.
func PeakResident() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return int64(u.Maxrss)
	}
	return int64(u.Maxrss) << 10 // kilobytes
}
