package models

import (
	"bufio"
	"crypto/sha1"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// killer counts file operations and, from one of them on, lets none happen, as
// if the process had been killed there. It also knows what had not been flushed.
type killer struct {
	mu       sync.Mutex
	ops      int
	at       int // the operation that is the last; 0 = none
	trace    []string
	unsynced map[string][][2]int64 // by present name: [at, n] of writes
}

var errKilled = errors.New("killed")

func (k *killer) hook(op, path string, at, n int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ops++
	if k.at > 0 && k.ops >= k.at {
		if op == "write" {
			k.unsynced[path] = append(k.unsynced[path], [2]int64{at, n / 2})
		}
		return &os.PathError{Op: op, Path: path, Err: errKilled}
	}
	k.trace = append(k.trace, op)
	switch op {
	case "write":
		k.unsynced[path] = append(k.unsynced[path], [2]int64{at, n})
	case "sync":
		delete(k.unsynced, path)
	case "rename":
		from, to, _ := strings.Cut(path, "\x00")
		if u, ok := k.unsynced[from]; ok {
			k.unsynced[to] = u
			delete(k.unsynced, from)
		}
	}
	return nil
}

// powerLoss overwrites what had not been flushed with zeros.
func (k *killer) powerLoss(t *testing.T) {
	for path, writes := range k.unsynced {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			continue // never got this far, or removed
		}
		for _, w := range writes {
			if _, err := f.WriteAt(make([]byte, w[1]), w[0]); err != nil {
				t.Fatal(err)
			}
		}
		f.Close()
	}
}

// sound checks a cache after a kill: everything with a final name is right to
// the byte, and what the catalogue offers is whole.
func sound(t *testing.T, cache string, files map[string][]byte) (offered bool) {
	t.Helper()
	folder := filepath.Join(cache, repoFolder(repo))
	blobs, _ := filepath.Glob(filepath.Join(folder, "blobs", "*"))
	for _, path := range blobs {
		name := filepath.Base(path)
		if strings.HasSuffix(name, ".incomplete") {
			continue
		}
		data := read(t, path)
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		if len(name) == 40 {
			sum = fmt.Sprintf("%x", sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(data)), data...)))
		}
		if sum != name {
			t.Errorf("blob %s has the hash %s", name, sum)
		}
	}
	filepath.WalkDir(filepath.Join(folder, "snapshots"), func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !strings.HasSuffix(path, ".incomplete") {
			rel, _ := filepath.Rel(filepath.Join(folder, "snapshots"), path)
			_, rel, _ = strings.Cut(rel, "/")
			if string(read(t, path)) != string(files[rel]) {
				t.Errorf("%s has wrong bytes", rel)
			}
		}
		return nil
	})
	m, ok := NewCatalogue(CatalogueOptions{Places: Places{Hub: cache}}).Find(repo)
	if ok && m.Loadable() {
		for name, data := range files {
			if got, err := os.ReadFile(filepath.Join(m.Path, name)); err != nil || string(got) != string(data) {
				t.Errorf("offered, but %s is not whole: %v", name, err)
			}
		}
		if _, err := os.Stat(filepath.Join(folder, "refs", "main")); err == nil {
			if ref := string(read(t, filepath.Join(folder, "refs", "main"))); ref != m.Revision {
				t.Errorf("ref %q", ref)
			}
		}
		return true
	}
	if ok && m.Reason == "" {
		t.Errorf("not offered without a reason: %+v", m)
	}
	return false
}

// TestKilledAnywhere stops downloads at operations drawn uniformly from a
// traced one, half of them with the loss of everything not flushed.
func TestKilledAnywhere(t *testing.T) {
	h := newHubDouble(t)
	files := modelFiles(t)
	h.add(repo, files)
	want := wanted(files)
	size := int64(0)
	for _, data := range want {
		size += int64(len(data))
	}
	traced := &killer{unsynced: map[string][][2]int64{}}
	o := h.options(t)
	o.disk.hook = traced.hook
	if _, err := download(t, o, Request{Repo: repo}); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, op := range traced.trace {
		kinds[op]++
	}
	for _, op := range []string{"mkdir", "open", "write", "sync", "syncdir", "rename", "symlink", "remove", "truncate"} {
		if kinds[op] == 0 {
			t.Errorf("the trace has no %s: %v", op, kinds)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	offered, reused := 0, 0
	for run := range 200 {
		k := &killer{unsynced: map[string][][2]int64{}, at: 1 + r.IntN(traced.ops)}
		o := h.options(t)
		o.disk.hook = k.hook
		before := h.total()
		_, err := download(t, o, Request{Repo: repo})
		if k.ops < k.at {
			continue // this run needed fewer operations
		}
		if !errors.Is(err, errKilled) {
			t.Fatalf("run %d, operation %d: %v", run, k.at, err)
		}
		first := h.total() - before
		if run%2 == 1 {
			k.powerLoss(t)
		}
		if sound(t, o.Cache, want) {
			offered++
		}
		o.disk.hook = nil
		got, err := download(t, o, Request{Repo: repo})
		if err != nil {
			t.Fatalf("run %d, operation %d: %v", run, k.at, err)
		}
		check(t, got[0].Path, want)
		if !sound(t, o.Cache, want) {
			t.Errorf("run %d: not offered after all", run)
		}
		if l := leftovers(o.Cache); len(l) > 0 {
			t.Errorf("run %d, operation %d leaves %v", run, k.at, l)
		}
		second := h.total() - before - first
		if second > size+int64(o.Workers)*o.chunk { // requests of the killed run that the server takes up late count here
			t.Errorf("run %d: %d bytes to resume a model of %d", run, second, size)
		}
		if second < size {
			reused++
		}
		// Without loss, only chunks on their way come twice.
		if most := size + int64(o.Workers)*o.chunk + 2*256<<10; run%2 == 0 && first+second > most {
			t.Errorf("run %d: %d and %d bytes for a model of %d", run, first, second, size)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	if reused < 100 || offered == 0 {
		t.Errorf("%d runs resumed, %d were offered already", reused, offered)
	}
}

// TestMain is also the process that TestKilled kills.
func TestMain(m *testing.M) {
	if spec := os.Getenv("SPARKBAR_TEST_DOWNLOAD"); spec != "" {
		victim(strings.Split(spec, "|"))
	}
	os.Exit(m.Run())
}

// victim downloads, and kills itself at the operation of that number.
func victim(args []string) {
	at, _ := strconv.Atoi(args[2])
	var n atomic.Int64
	o := HubOptions{Endpoint: args[0], Cache: args[1], Workers: 4, chunk: 16 << 10, Proxy: noProxy}
	o.disk.hook = func(string, string, int64, int64) error {
		if n.Add(1) == int64(at) {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}
	d, err := NewDownloader(o)
	if err == nil {
		j := d.Start(Request{Repo: repo})
		<-j.Done()
		err = j.err
	}
	fmt.Println("ended", n.Load(), err)
	os.Exit(0)
}

// TestKilled kills real processes: half of them at a file operation, half after
// a number of bytes from the hub.
func TestKilled(t *testing.T) {
	files := modelFiles(t)
	want := wanted(files)
	size := 0
	for _, data := range want {
		size += len(data)
	}
	start := func(h *hubDouble, cache string, at int) *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("SPARKBAR_TEST_DOWNLOAD=%s|%s|%d", h.URL, cache, at))
		return cmd
	}
	h := newHubDouble(t)
	h.add(repo, files)
	out, err := start(h, t.TempDir(), 0).Output()
	var ops int
	if _, scan := fmt.Sscanf(string(out), "ended %d <nil>", &ops); err != nil || scan != nil || ops < 50 {
		t.Fatalf("%s %v %v", out, err, scan)
	}
	r := rand.New(rand.NewPCG(3, 4))
	var killed atomic.Int64
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for run := range 50 {
		at, bytes := 1+r.IntN(ops), int64(1+r.IntN(size))
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			h := newHubDouble(t)
			h.add(repo, files)
			cache := filepath.Join(t.TempDir(), "hub")
			if run%2 == 1 {
				at = 0
			}
			cmd := start(h, cache, at)
			pipe, err := cmd.StdoutPipe()
			if err != nil {
				t.Error(err)
				return
			}
			started := make(chan struct{})
			if run%2 == 1 {
				var once sync.Once
				h.mu.Lock()
				h.onServed = func(total int64) {
					if total >= bytes {
						<-started
						once.Do(func() { cmd.Process.Kill() })
					}
				}
				h.mu.Unlock()
			}
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			close(started)
			for lines := bufio.NewScanner(pipe); lines.Scan(); {
			}
			if err := cmd.Wait(); err != nil {
				killed.Add(1)
			}
			sound(t, cache, want)
			o := h.options(t)
			o.Cache = cache
			d, err := NewDownloader(o)
			if err != nil {
				t.Error(err)
				return
			}
			got, err := d.Start(Request{Repo: repo}).Wait(t.Context())
			if err != nil {
				t.Errorf("run %d: %v", run, err)
				return
			}
			check(t, got[0].Path, want)
			if !sound(t, cache, want) || len(leftovers(cache)) > 0 {
				t.Errorf("run %d: %v is left over", run, leftovers(cache))
			}
		})
	}
	wg.Wait()
	if killed.Load() < 40 {
		t.Errorf("only %d of 50 processes were killed", killed.Load())
	}
}
