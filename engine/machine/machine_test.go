package machine

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

func TestLinuxPressure(t *testing.T) {
	const gb = 1 << 30
	stalled := func(avg10 string) string {
		return "some avg10=90.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=" + avg10 + " avg60=0.00 avg300=0.00 total=1\n"
	}
	for _, c := range []struct {
		total, available uint64
		psi              string
		want             Level
	}{
		{0, 0, "", Unknown},
		{100 * gb, 50 * gb, "", Normal},
		{100 * gb, 50 * gb, stalled("80.00"), Normal}, // something else than memory is short
		{100 * gb, 15 * gb, stalled("6.00"), Warn},
		{100 * gb, 15 * gb, stalled("30.00"), Critical},
		{100 * gb, 9 * gb, "", Warn},
		{100 * gb, 3 * gb, "", Critical},
		{100 * gb, 50 * gb, "full avg10=x\nfull\n\n", Normal},
	} {
		if got := linuxPressure(c.total, c.available, c.psi); got != c.want {
			t.Errorf("%d of %d, %q: %s, want %s", c.available/gb, c.total/gb, c.psi, got, c.want)
		}
	}
}

// TestGroupMemory: a limit of the process's own group or of one above it holds, of
// either version.
func TestGroupMemory(t *testing.T) {
	for name, c := range map[string]struct {
		files       map[string]string
		limit, left uint64
		ok          bool
	}{
		"nothing":  {},
		"no limit": {files: map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "5\n"}},
		"second version": {files: map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1000\n", "sys/fs/cgroup/a/b/memory.current": "700\n",
			"sys/fs/cgroup/a/b/memory.stat": "anon 400\ninactive_file 100\nactive_file 50\n"}, limit: 1000, left: 450, ok: true},
		"above": {files: map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1000\n", "sys/fs/cgroup/a/b/memory.current": "700\n",
			"sys/fs/cgroup/a/memory.max": "900\n", "sys/fs/cgroup/a/memory.current": "899\n"}, limit: 900, left: 1, ok: true},
		"first version, in a container": {files: map[string]string{"proc/self/cgroup": "12:cpuacct,cpu:/docker/x\n4:memory:/docker/x\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "1200\n", "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 20\n"}, limit: 1000, left: 120, ok: true},
		"above its limit": {files: map[string]string{"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "1200\n"}, limit: 1000, ok: true},
		"damaged":         {files: map[string]string{"proc/self/cgroup": "0::\n:\n\nx", "sys/fs/cgroup/memory.max": "", "sys/fs/cgroup/memory.current": "x"}},
	} {
		root := system(t, c.files)
		limit, left, ok := groupMemory(root)
		if ok != c.ok || ok && (limit != c.limit || left != c.left) {
			t.Errorf("%s: %d of %d, %v", name, left, limit, ok)
		}
	}
}

// system is a folder with files of a machine.
func system(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for file, text := range files {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestGroupQuota: the least quota of the process's own group and of those above it
// holds, of either version.
func TestGroupQuota(t *testing.T) {
	const many = 1 << 20
	for name, c := range map[string]struct {
		files map[string]string
		want  float64
	}{
		"nothing":        {nil, many},
		"no limit":       {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, many},
		"second version": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "50000 100000\n"}, 0.5},
		"above":          {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5},
		"first version": {map[string]string{"proc/self/cgroup": "12:cpuacct,cpu:/docker/x\n4:memory:/\n0::/\n",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n"}, 2},
		"first version, no limit": {map[string]string{"proc/self/cgroup": "3:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, many},
		"another controller":      {map[string]string{"proc/self/cgroup": "3:cpuset:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, many},
		"damaged":                 {map[string]string{"proc/self/cgroup": "0::/\n9:cpu:/\n", "sys/fs/cgroup/cpu.max": "5\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "x", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "0"}, many},
	} {
		if got := groupQuota(system(t, c.files)); got != c.want {
			t.Errorf("%s: %v cores, want %v", name, got, c.want)
		}
	}
	if n := Cores(); n < 1 || n > runtime.GOMAXPROCS(0) {
		t.Errorf("%d cores", n)
	}
	t.Setenv("GOMAXPROCS", "3") // read by the runtime at its start; here it only has the last word
	if Cores() != runtime.GOMAXPROCS(0) {
		t.Error(Cores())
	}
}

// TestReadings: what this machine tells is plausible.
func TestReadings(t *testing.T) {
	m := ReadMemory()
	if m.Total < 1<<28 || m.Available == 0 || m.Available > m.Total || m.Pressure == "" {
		t.Errorf("%+v", m)
	}
	if p, ok := m.FreePercent(); !ok || p < 0 || p > 100 {
		t.Errorf("%d %v", p, ok)
	}
	if _, ok := (Memory{}).FreePercent(); ok {
		t.Error("a share of nothing")
	}
	if c := ReadChip(); c.Cores < 1 || c.OS == "" || c.Arch == "" {
		t.Errorf("%+v", c)
	}
	if r := Resident(); runtime.GOOS == "linux" && r < 1<<20 || uint64(r) > m.Total {
		t.Errorf("resident %d", r)
	}
}

func TestDisk(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, "not", "there", "yet")
	if DiskFree(deep) <= 0 || !Writable(deep) || !Writable(dir) {
		t.Errorf("%d %v", DiskFree(deep), Writable(deep))
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if Writable(file) || Writable(filepath.Join(file, "below")) {
		t.Error("a file is no folder")
	}
}

// TestBandwidth: the figure is bytes over time, of the fastest run.
func TestBandwidth(t *testing.T) {
	var at time.Time
	steps := []time.Duration{0, 10, 0, 4, 0, 8, 0} // pairs of before and after, in ms
	now := func() time.Time {
		d := steps[0]
		if len(steps) > 1 {
			steps = steps[1:]
		}
		at = at.Add(d * time.Millisecond)
		return at
	}
	b := measureBandwidth(80<<20, 3, now)
	want := float64(80<<20) / 0.004 / 1e9
	if b.GBs < want-0.2 || b.GBs > want+0.2 {
		t.Errorf("%+v, want %.1f", b, want)
	}
}

func TestBandwidthFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "deep", "machine.json")
	chip := Chip{Name: "test chip", Cores: 2}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "null", "{", `{"other|1":{"gb_s":5}}`} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		first := bandwidthOf(file, chip, 8<<20)
		if again := bandwidthOf(file, chip, 8<<20); first.GBs <= 0 || again != first {
			t.Errorf("%q: %+v, then %+v", text, first, again)
		}
	}
}
