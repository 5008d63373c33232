package checkpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// mayVanish reports whether the file lies on a network or removable volume, where a mapped page can fail at any time
// and take the process with it.
func mayVanish(f *os.File) bool {
	const local, removable = 0x1000, 0x200 // MNT_LOCAL, MNT_REMOVABLE of sys/mount.h
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) != nil {
		return false
	}
	return st.Flags&local == 0 || st.Flags&removable != 0
}
