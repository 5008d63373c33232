package machine

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// groupMemory returns the least memory, in bytes, that the control groups of this
// process allow it, as a container has it, and the least that one of them has left.
// Files that can be read again count as left, as Linux counts them for the machine.
// false = no limit. root is the folder that proc and sys lie in.
func groupMemory(root string) (limit, left uint64, ok bool) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0, 0, false
	}
	limit, left = math.MaxUint64, math.MaxUint64
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		base, most, used, files := "sys/fs/cgroup", "memory.max", "memory.current", []string{"inactive_file", "active_file"}
		switch {
		case fields[0] == "0" && fields[1] == "":
		case slices.Contains(strings.Split(fields[1], ","), "memory"): // the first version
			base, most, used, files = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}
		default:
			continue
		}
		// The limits of all groups above hold too. Where a container sees only its
		// own group, that is the top.
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			group := filepath.Join(root, base, dir)
			if m, known := number(filepath.Join(group, most)); known {
				limit = min(limit, m)
				if u, known := number(filepath.Join(group, used)); known {
					again := uint64(0)
					stat, _ := os.ReadFile(filepath.Join(group, "memory.stat"))
					for _, key := range files {
						n, _ := strconv.ParseUint(valueOf(string(stat), key, " "), 10, 64)
						again += n
					}
					u -= min(u, again)
					left = min(left, m-min(m, u))
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit, min(limit, left), limit < math.MaxUint64
}

// number reads a file that holds one.
func number(file string) (n uint64, ok bool) {
	text, err := os.ReadFile(file)
	if err == nil {
		n, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	}
	return n, err == nil
}

// valueOf finds "key <separator> value" among lines.
func valueOf(text, key, separator string) string {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, separator); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
