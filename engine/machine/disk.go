package machine

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DiskFree is the room for this user on the disk of a path, which need not
// exist yet; 0 = unknown.
func DiskFree(path string) int64 {
	for {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err == nil {
			return int64(st.Bavail) * int64(st.Bsize)
		}
		up := filepath.Dir(path)
		if up == path {
			return 0
		}
		path = up
	}
}

// Writable reports whether files can be made in a folder, or the folder itself
// where it does not exist yet.
func Writable(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err == nil {
			return info.IsDir() && unix.Access(dir, unix.W_OK) == nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return false
		}
		dir = up
	}
}
