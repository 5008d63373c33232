package cache

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

func openDisk(t testing.TB, dir string, limit int64) *Disk {
	t.Helper()
	d, err := OpenDisk(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	<-d.ready
	t.Cleanup(func() { d.Close() })
	return d
}

// attached returns a store of the toy with a tier in a folder: what a process
// has after its start.
func attached(t *testing.T, m *toy, d *Disk, identity string) *Store {
	s := newStore(t, m, 2)
	s.Attach(d, func(any) []string { return []string{identity, identity + " drafter"} }, m.c)
	return s
}

// pasts lists the files of a folder that are named like pasts, and others.
func pasts(t testing.TB, dir string) (own, other []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".past") {
			own = append(own, filepath.Join(dir, e.Name()))
		} else {
			other = append(other, e.Name())
		}
	}
	return own, other
}

// tierCases are the kinds of pasts; reuse says how much of a past of 1000 tokens
// a restarted process gives to a prompt that goes on from it.
var tierCases = []struct {
	name  string
	o     Options
	specs []compute.CacheSpec
	reuse int
}{
	{"plain", Options{}, []compute.CacheSpec{full, full}, 960},
	{"half precision", Options{Type: layout.BF16}, []compute.CacheSpec{full}, 960},
	{"window", Options{}, []compute.CacheSpec{full, window(100)}, 1000},
	{"only windows", Options{}, []compute.CacheSpec{window(40), window(100)}, 1000},
	{"state", Options{}, []compute.CacheSpec{conv, full}, 1000},
	{"only state", Options{}, []compute.CacheSpec{conv, conv}, 1000},
	{"state and window", Options{}, []compute.CacheSpec{window(70), conv, full}, 1000},
}

func TestDiskOutlivesTheProcess(t *testing.T) {
	for _, c := range tierCases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.o.Positions, c.o.Sequences = 60*page, 6
			a := text(1, 1000)
			m := newToy(t, c.o, c.specs...)
			s := attached(t, m, openDisk(t, dir, 1<<30), "model")
			m.conversation(s, a)
			s.Clear() // the process ends

			m = newToy(t, c.o, c.specs...)
			s = attached(t, m, openDisk(t, dir, 1<<30), "model")
			prompt := slices.Concat(a, text(2, 30))
			if got := m.take(s, prompt); got != c.reuse {
				t.Errorf("a continued text reuses %d tokens, wants %d", got, c.reuse)
			}
			st := s.Stats()
			if st.DiskHits != 1 || st.Disk.Read == 0 || st.Disk.Removed != 0 || st.Disk.Fault != nil {
				t.Errorf("counted %+v, disk %+v", st, st.Disk)
			}
			// A prompt that leaves the text on the way: a past that can be cut
			// gives whole pages, another one nothing.
			want := 0
			if m.c.Trimmable() {
				want = 640
			}
			if got := m.take(s, slices.Concat(a[:700], text(3, 30))); got != want && (want == 0 || got < 640) {
				t.Errorf("a text that branches off reuses %d tokens, wants %d", got, want)
			}
			// Memory goes before the disk when it has as much.
			m.conversation(s, prompt)
			if got := m.take(s, slices.Concat(prompt, text(4, 9))); got != len(prompt) {
				t.Errorf("memory gives %d of %d", got, len(prompt))
			}
			if n := s.Stats().DiskHits; n > 2 {
				t.Errorf("the disk was asked for what memory had: %d hits", n)
			}
		})
	}
}

// TestDiskKeepsQuantizedPages: the toy cannot attend to heads of 32 columns, so
// this compares the bytes of the pages.
func TestDiskKeepsQuantizedPages(t *testing.T) {
	for _, bits := range []int{4, 8} {
		spec := compute.CacheSpec{Kind: compute.CacheFull, Heads: 2, KDim: 64, VDim: 32}
		b := compute.NewReference()
		c, err := New(b, []compute.CacheSpec{spec}, Options{Type: layout.F32, Bits: bits, Group: 32, Positions: 40 * page, Sequences: 4})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		tokens := text(1, 10*page)
		q, err := c.NewSeq()
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Reserve(len(tokens)); err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(uint64(bits), 1))
		var want [][]byte
		for _, p := range q.tables[0] {
			for _, mem := range c.parts(c.groups[0], p) {
				for i := range mem {
					mem[i] = byte(rng.IntN(256))
				}
				want = append(want, bytes.Clone(mem))
			}
		}
		q.Advance(len(tokens))
		s := NewStore(1)
		s.Attach(openDisk(t, t.TempDir(), 1<<30), func(any) []string { return []string{"m"} }, c)
		f, err := q.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		q.Close()
		s.Put(nil, tokens, nil, f)
		s.Clear()
		r, err := s.Take(nil, append(slices.Clone(tokens), 1))
		if err != nil || r.Length != len(tokens) {
			t.Fatalf("%d bits: %d tokens, error %v", bits, r.Length, err)
		}
		var got [][]byte
		for _, p := range r.Seqs[0].tables[0] {
			got = append(got, c.parts(c.groups[0], p)...)
		}
		if !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%d bits: the pages differ", bits)
		}
		closeAll(r.Seqs)
	}
}

// TestDiskKeepsModelsApart: nothing of another model, layout or version is used.
func TestDiskKeepsModelsApart(t *testing.T) {
	dir := t.TempDir()
	o := Options{Positions: 60 * page, Sequences: 6}
	a := text(1, 1000)
	m := newToy(t, o, full)
	s := attached(t, m, openDisk(t, dir, 1<<30), "model")
	m.conversation(s, a)
	s.Clear()
	prompt := slices.Concat(a, text(2, 5))
	if got := m.take(attached(t, m, openDisk(t, dir, 1<<30), "model with an adapter"), prompt); got != 0 {
		t.Errorf("another model's past gives %d tokens", got)
	}
	o.Type = layout.F16
	half := newToy(t, o, full)
	if got := half.take(attached(t, half, openDisk(t, dir, 1<<30), "model"), prompt); got != 0 {
		t.Errorf("another layout's past gives %d tokens", got)
	}
	off := newStore(t, m, 2)
	off.Attach(openDisk(t, dir, 1<<30), func(any) []string { return nil }, m.c)
	if got := m.take(off, prompt); got != 0 {
		t.Errorf("a key without identity reads %d tokens", got)
	}
	m.conversation(off, text(9, 900))
	off.Clear()
	if n, _ := pasts(t, dir); len(n) != 15 {
		t.Errorf("%d files, of one past of 15 pages", len(n))
	}
	// The first token differs: not one page is shared.
	b := slices.Clone(prompt)
	b[0]++
	if got := m.take(attached(t, m, openDisk(t, dir, 1<<30), "model"), b); got != 0 {
		t.Errorf("a text with another beginning reuses %d tokens", got)
	}
}

// TestDiskKeepsTheDrafter: both pasts come back; a drafter's that is missing
// costs only itself.
func TestDiskKeepsTheDrafter(t *testing.T) {
	dir := t.TempDir()
	o := Options{Positions: 60 * page, Sequences: 6}
	a := text(1, 1000)
	start := func() (*toy, *toy, *Store) {
		m, own := newToy(t, o, full), newToy(t, o, window(80))
		s := newStore(t, m, 2)
		s.Attach(openDisk(t, dir, 1<<30), func(any) []string { return []string{"target", "drafter"} }, m.c, own.c)
		own.c.Evict = s.Evict
		return m, own, s
	}
	m, own, s := start()
	q, p := m.seq(), own.seq()
	m.add(q, a)
	own.add(p, a)
	s.Put(nil, a, nil, m.snapshot(q), own.snapshot(p))
	q.Close()
	p.Close()
	s.Clear()

	prompt := slices.Concat(a, text(2, 20))
	// The window's past exists at its end only, so the target's is kept there too.
	m, own, s = start()
	r, err := s.Take(nil, prompt)
	if err != nil {
		t.Fatal(err)
	}
	if r.Length != 1000 || len(r.Seqs) != 2 {
		t.Fatalf("%d tokens, %d sequences; wants 1000 of both", r.Length, len(r.Seqs))
	}
	m.expect("target", m.add(r.Seqs[0], prompt[1000:]), prompt[:1000], prompt[1000:])
	own.expect("drafter", own.add(r.Seqs[1], prompt[1000:]), prompt[:1000], prompt[1000:])
	closeAll(r.Seqs)
	r.Close()
	s.Clear()

	// Without the drafter's files the target's are used alone.
	x := s.tier.chain(own.c, "drafter", a)
	for b := range 15 {
		os.Remove(filepath.Join(dir, x.page(0, b).name()))
	}
	_, _, s = start()
	if r, err = s.Take(nil, prompt); err != nil || r.Length != 1000 || len(r.Seqs) != 1 {
		t.Fatalf("%d tokens, %d sequences, error %v; wants the target's 1000 alone", r.Length, len(r.Seqs), err)
	}
	closeAll(r.Seqs)
}

// TestDiskTrustsNothing damages each file in turn: it is not used, and removed.
func TestDiskTrustsNothing(t *testing.T) {
	a := text(1, diskLeast+20)
	prompt := slices.Concat(a, text(2, 5))
	o := Options{Positions: 60 * page, Sequences: 6}
	damage := map[string]func(content []byte) []byte{
		"empty":         func(c []byte) []byte { return nil },
		"half a header": func(c []byte) []byte { return c[:40] },
		"torn":          func(c []byte) []byte { return c[:len(c)-1] },
		"zeros at the end": func(c []byte) []byte {
			c = bytes.Clone(c)
			clear(c[len(c)-64:])
			return c
		},
		"one bit":         func(c []byte) []byte { c = bytes.Clone(c); c[diskHeader+77] ^= 4; return c },
		"longer":          func(c []byte) []byte { return append(bytes.Clone(c), 0) },
		"another version": func(c []byte) []byte { c = bytes.Clone(c); c[16]++; return c },
		"another kind":    func(c []byte) []byte { c = bytes.Clone(c); c[0]++; return c },
		"another key":     func(c []byte) []byte { c = bytes.Clone(c); c[30]++; return c },
		"a huge length": func(c []byte) []byte {
			c = bytes.Clone(c)
			for i := range 8 {
				c[24+32+i] = 0xff
			}
			return c
		},
	}
	for name, spoil := range damage {
		for _, specs := range [][]compute.CacheSpec{{full}, {conv, full}} {
			t.Run(fmt.Sprintf("%s %d", name, len(specs)), func(t *testing.T) {
				dir := t.TempDir()
				m := newToy(t, o, specs...)
				s := attached(t, m, openDisk(t, dir, 1<<30), "m")
				m.conversation(s, a)
				s.Clear()
				files, _ := pasts(t, dir)
				if len(specs) == 1 { // equal pages: two say it all
					files = files[:2]
				}
				for _, late := range []bool{false, true} { // damaged before the start, or while it runs
					for _, f := range files {
						good, err := os.ReadFile(f)
						if err != nil {
							t.Fatal(err)
						}
						var d *Disk
						if late {
							d = openDisk(t, dir, 1<<30)
						}
						if err := os.WriteFile(f, spoil(good), 0o600); err != nil {
							t.Fatal(err)
						}
						if !late {
							d = openDisk(t, dir, 1<<30)
						}
						s := attached(t, m, d, "m")
						got := m.take(s, prompt) // compares the bits of what is used
						if len(specs) > 1 && got != 0 {
							t.Errorf("%s: %d tokens are reused without one of their files", filepath.Base(f), got)
						}
						if _, err := os.Stat(f); err == nil {
							if c, _ := os.ReadFile(f); !bytes.Equal(c, good) && len(specs) > 1 {
								t.Errorf("%s is still there", filepath.Base(f))
							}
						}
						s.Clear()
						if err := os.WriteFile(f, good, 0o600); err != nil {
							t.Fatal(err)
						}
					}
				}
			})
		}
	}
	// A file under another's name.
	dir := t.TempDir()
	m := newToy(t, o, full)
	s := attached(t, m, openDisk(t, dir, 1<<30), "m")
	m.conversation(s, a)
	s.Clear()
	files, _ := pasts(t, dir)
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files[1:] {
		if err := os.WriteFile(f, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := openDisk(t, dir, 1<<30)
	if st := d.Stats(); st.Files != 1 || st.Removed != len(files)-1 {
		t.Errorf("renamed files: %+v", st)
	}
}

func TestDiskLeavesOtherFilesAlone(t *testing.T) {
	dir := t.TempDir()
	others := []string{"notes.txt", "target_cache_1.safetensors", strings.Repeat("a", 63) + ".past", strings.Repeat("z", 64) + ".past", ".past-x.tmp", strings.Repeat("0", 64) + "-0.past"}
	for _, n := range others {
		if err := os.WriteFile(filepath.Join(dir, n), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stale := filepath.Join(dir, ".past-123.tmp")
	if err := os.WriteFile(stale, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, strings.Repeat("0", 64)+".past"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := openDisk(t, dir, 1)
	for _, n := range others {
		if _, err := os.Stat(filepath.Join(dir, n)); err != nil {
			t.Errorf("%s is gone", n)
		}
	}
	if _, err := os.Stat(stale); err == nil {
		t.Error("the temporary file of a process that ended is still there")
	}
	if st := d.Stats(); st.Files != 0 || st.Removed != 0 {
		t.Errorf("counted %+v", st)
	}
	// While another process writes, its temporary file stays.
	if err := os.WriteFile(stale, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	openDisk(t, dir, 1)
	if _, err := os.Stat(stale); err != nil {
		t.Error("the temporary file of a running process is gone")
	}
}

// TestDiskStaysBelowItsLimit: the folder never grows beyond, the oldest goes
// first, and the deep pages of a text before its first ones.
func TestDiskStaysBelowItsLimit(t *testing.T) {
	dir := t.TempDir()
	m := newToy(t, Options{Positions: 90 * page, Sequences: 6}, full)
	size := int64(diskHeader + page*dim*4*2)
	d := openDisk(t, dir, 25*size)
	s := attached(t, m, d, "m")
	for i := range 4 { // of 15 pages each
		m.conversation(s, text(i+1, 1000))
		s.tier.settle()
		files, _ := pasts(t, dir)
		var bytes int64
		for _, f := range files {
			info, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			bytes += info.Size()
		}
		if st := d.Stats(); bytes > 25*size || st.Bytes != bytes || st.Files != len(files) {
			t.Fatalf("%d bytes in %d files, limit %d, counted %+v", bytes, len(files), 25*size, st)
		}
	}
	s.Clear()
	if got := m.take(s, append(text(4, 1000), 1)); got != 960 {
		t.Errorf("the latest text gives %d tokens", got)
	}
	if got := m.take(s, append(text(1, 1000), 1)); got != 0 {
		t.Errorf("the oldest text gives %d tokens", got)
	}
	before := m.take(s, append(text(3, 1000), 1))
	if before == 0 || before >= 960 {
		t.Errorf("the last but one gives %d tokens, wants its beginning", before)
	}
	// A smaller limit holds from the start.
	s.Clear()
	if st := openDisk(t, dir, 5*size).Stats(); st.Bytes > 5*size || st.Files == 0 {
		t.Errorf("counted %+v", st)
	}
}

// TestDiskGivesPagesBack: pages that wait for the disk are given back when the
// cache needs them.
func TestDiskGivesPagesBack(t *testing.T) {
	m := newToy(t, Options{Positions: 20 * page, Sequences: 4}, full)
	s := attached(t, m, openDisk(t, t.TempDir(), 1<<30), "m")
	for i := range 6 { // each needs most of the cache
		m.conversation(s, text(i, 15*page))
	}
	if got := m.take(s, append(text(0, 15*page), 1)); got != 15*page {
		t.Errorf("the first text gives %d tokens", got)
	}
}

// TestDiskFull: writes that fail leave nothing behind and harm nothing.
func TestDiskFull(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	m := newToy(t, Options{Positions: 60 * page, Sequences: 6}, full)
	d := openDisk(t, dir, 1<<30)
	s := attached(t, m, d, "m")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // so that it cannot be made again
		t.Fatal(err)
	}
	a := text(1, 900)
	m.conversation(s, a)
	s.tier.settle()
	if got := m.take(s, append(slices.Clone(a), 1)); got != 900 {
		t.Errorf("memory gives %d tokens", got)
	}
	if st := d.Stats(); st.Fault == nil || st.Files != 0 || st.Bytes != 0 {
		t.Errorf("counted %+v", st)
	}
	if d.writable() {
		t.Error("writes go on after a failure")
	}
	if _, err := OpenDisk(filepath.Join(t.TempDir(), "x", "y"), 1); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDisk(filepath.Join(file, "x"), 1); err == nil || !strings.Contains(err.Error(), "choose another") {
		t.Errorf("a file as folder: %v", err)
	}
}

// fresh makes the next look at the folder happen at once.
func fresh(disks ...*Disk) {
	for _, d := range disks {
		d.mu.Lock()
		d.took = 0
		d.mu.Unlock()
	}
}

// TestDiskShared: two processes see each other's pasts, and the limit is that of
// the folder.
func TestDiskShared(t *testing.T) {
	dir := t.TempDir()
	size := int64(diskHeader + page*dim*4*2)
	var disks []*Disk
	var stores []*Store
	m := newToy(t, Options{Positions: 90 * page, Sequences: 6}, full)
	for range 2 {
		d := openDisk(t, dir, 25*size)
		disks, stores = append(disks, d), append(stores, attached(t, m, d, "m"))
	}
	for i := range 6 { // of 15 pages each
		fresh(disks...)
		s := stores[i%2]
		m.conversation(s, text(i+1, 1000))
		s.tier.settle()
		s.Clear()
		if files, _ := pasts(t, dir); int64(len(files))*size > 25*size {
			t.Fatalf("%d files, limit 25", len(files))
		}
	}
	fresh(disks...)
	if got := m.take(stores[0], append(text(6, 1000), 1)); got != 960 {
		t.Errorf("the other's text gives %d tokens", got)
	}
	files, _ := pasts(t, dir)
	if st := disks[0].Stats(); st.Files != len(files) || st.Bytes != int64(len(files))*size {
		t.Errorf("%d files, counted %+v", len(files), st)
	}
}

// TestDiskRemoved: somebody clears the folder, or all of the caches, while it is in
// use.
func TestDiskRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	m := newToy(t, Options{Positions: 60 * page, Sequences: 6}, full)
	d := openDisk(t, dir, 1<<30)
	s := attached(t, m, d, "m")
	a := text(1, 900)
	keep := func() {
		t.Helper()
		m.conversation(s, a)
		s.tier.settle()
		s.Clear()
		files, other := pasts(t, dir)
		if st := d.Stats(); len(files) != 14 || st.Files != 14 || st.Fault != nil || !slices.Equal(other, []string{".lock"}) {
			t.Fatalf("%d files and %v, counted %+v", len(files), other, st)
		}
	}
	keep()
	if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
		t.Fatal(err)
	}
	if got := m.take(s, append(slices.Clone(a), 1)); got != 0 {
		t.Errorf("what is gone gives %d tokens", got)
	}
	keep()
	files, _ := pasts(t, dir)
	for _, f := range files {
		os.Remove(f)
	}
	fresh(d)
	keep()
	if got := m.take(s, append(slices.Clone(a), 1)); got != 896 {
		t.Errorf("after it was written again: %d tokens", got)
	}
}

// diskChild is the environment name that makes this test binary a process that
// writes pasts until it is killed.
const diskChild = "SPARKBAR_TEST_DISK"

func TestMain(m *testing.M) {
	if dir := os.Getenv(diskChild); dir != "" {
		writeForever(dir)
	}
	diskWait = time.Minute
	os.Exit(m.Run())
}

func writeForever(dir string) {
	d, err := OpenDisk(dir, 1<<20)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if os.Getenv(diskChild+"_FULL") != "" { // every file ends after 3000 bytes
		signal.Ignore(syscall.SIGXFSZ)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 3000, Max: 3000}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		err := d.write(fileKey{sum: [32]byte{1}}, time.Now(), [][]byte{make([]byte, 2000), make([]byte, 2000)})
		fmt.Println("full:", err)
		os.Exit(0)
	}
	fmt.Println("begin")
	for i := 0; ; i++ {
		rng := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(i)))
		k := fileKey{end: rng.IntN(3)}
		for j := range k.sum {
			k.sum[j] = byte(rng.IntN(256))
		}
		part := make([]byte, 20_000)
		for j := range part {
			part[j] = byte(rng.IntN(256))
		}
		d.write(k, time.Now(), [][]byte{part[:7000], part[7000:]})
	}
}

func TestDiskSurvivesKills(t *testing.T) {
	dir := t.TempDir()
	kills := 12
	for i := range kills {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), diskChild+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var b [6]byte
		if _, err := out.Read(b[:]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(5+7*i) * time.Millisecond)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			cmd.Wait()
		}()
		for i == kills-1 { // however slow the disk is, there is something to look at
			if whole, _ := pasts(t, dir); len(whole) > 0 {
				break
			}
			select {
			case <-ended:
				t.Fatalf("the process that writes ended by itself: %v", cmd.ProcessState)
			case <-time.After(time.Millisecond):
			}
		}
		cmd.Process.Kill()
		<-ended
	}
	_, left := pasts(t, dir)
	d := openDisk(t, dir, 1<<20)
	files, other := pasts(t, dir)
	if !slices.Equal(other, []string{".lock"}) {
		t.Errorf("also there: %v", other)
	}
	if st := d.Stats(); st.Files != len(files) || st.Removed != 0 || len(files) == 0 {
		t.Errorf("%d files, counted %+v: a named file was torn", len(files), st)
	}
	for _, f := range files {
		k, _ := parseName(filepath.Base(f))
		if !d.read(k, time.Now(), [][]byte{make([]byte, 20_000)}) {
			t.Errorf("%s is damaged", filepath.Base(f))
		}
	}
	t.Logf("%d kills, %d whole files, %d temporary ones removed", kills, len(files), len(left)-1)
}

func TestDiskFullInTheMiddleOfAFile(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), diskChild+"="+dir, diskChild+"_FULL=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "file too large") {
		t.Fatalf("%s (%v)", out, err)
	}
	var names []string
	filepath.WalkDir(dir, func(p string, e fs.DirEntry, _ error) error {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
		return nil
	})
	if !slices.Equal(names, []string{".lock"}) {
		t.Errorf("left behind: %v", names)
	}
}

func FuzzDiskFile(f *testing.F) {
	k := fileKey{sum: [32]byte{1, 2, 3}, end: 700}
	parts := func() [][]byte { return [][]byte{make([]byte, 10), make([]byte, 3)} }
	good := append(header(k, parts()), make([]byte, 13)...)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(append(bytes.Clone(good), 1))
	f.Add([]byte(diskMagic))
	f.Fuzz(func(t *testing.T, content []byte) {
		p := parts()
		if err := readPiece(bytes.NewReader(content), k, p); err == nil && !bytes.Equal(content, append(header(k, p), slices.Concat(p...)...)) {
			t.Errorf("accepted: %x", content)
		}
		parseName(string(content))
	})
}
