package machine

import (
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// groups visits the control groups of this process that a controller's limits may
// stand in, its own and all above it, whose limits hold too; first says which version
// their files are of. Where a container sees only its own group, that is the top. root
// is the folder that proc and sys lie in.
func groups(root, controller string, visit func(dir string, first bool)) {
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		base, first := "sys/fs/cgroup", false
		switch {
		case fields[0] == "0" && fields[1] == "":
		case slices.Contains(strings.Split(fields[1], ","), controller):
			base, first = filepath.Join(base, controller), true
		default:
			continue
		}
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			visit(filepath.Join(root, base, dir), first)
			if dir == "/" {
				break
			}
		}
	}
}

// groupMemory returns the least memory, in bytes, that the control groups of this
// process allow it, as a container has it, and the least that one of them has left.
// Files that can be read again count as left, as Linux counts them for the machine.
// false = no limit.
func groupMemory(root string) (limit, left uint64, ok bool) {
	limit, left = math.MaxUint64, math.MaxUint64
	groups(root, "memory", func(dir string, first bool) {
		most, used, files := "memory.max", "memory.current", []string{"inactive_file", "active_file"}
		if first {
			most, used, files = "memory.limit_in_bytes", "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}
		}
		m, known := number(filepath.Join(dir, most))
		if !known {
			return
		}
		limit = min(limit, m)
		if u, known := number(filepath.Join(dir, used)); known {
			again := uint64(0)
			stat, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
			for _, key := range files {
				n, _ := strconv.ParseUint(valueOf(string(stat), key, " "), 10, 64)
				again += n
			}
			u -= min(u, again)
			left = min(left, m-min(m, u))
		}
	})
	return limit, min(limit, left), limit < math.MaxUint64
}

// Cores is how many cores this process may use: by its affinity and by the quota of
// its control groups. GOMAXPROCS in the environment goes before.
//
// The Go runtime does the same, but never takes fewer than two, for its own sake;
// where two threads that compute share one core's time, one waits for the other.
func Cores() int {
	procs := runtime.GOMAXPROCS(0)
	if os.Getenv("GOMAXPROCS") != "" {
		return procs
	}
	return max(1, min(procs, int(math.Ceil(groupQuota("/")))))
}

// groupQuota is how many cores' time the control groups of this process allow it;
// where nothing is said, very many.
func groupQuota(root string) float64 {
	cores := float64(1 << 20)
	groups(root, "cpu", func(dir string, first bool) {
		var quota, period uint64
		var known, ok bool
		if first {
			quota, known = number(filepath.Join(dir, "cpu.cfs_quota_us")) // -1 = none
			period, ok = number(filepath.Join(dir, "cpu.cfs_period_us"))
		} else {
			text, _ := os.ReadFile(filepath.Join(dir, "cpu.max")) // "max 100000" = none
			n, err := fmt.Sscan(string(text), &quota, &period)
			known, ok = n == 2, err == nil
		}
		if known && ok && quota > 0 && period > 0 {
			cores = min(cores, float64(quota)/float64(period))
		}
	})
	return cores
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
