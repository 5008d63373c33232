package metalkern_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

// planted is a device on which something is wrong with lists that use some
// kernel.
type planted struct {
	metalkern.Device
	hit    func(kernel string, c []metalkern.Constant) bool
	do     string // wrong, hang, fail, slow, crash
	marked map[uint32]bool
	hits   int
	runs   int
}

func (p *planted) Pipeline(kernel string, c []metalkern.Constant) (uint32, error) {
	if p.do == "compile" && p.hit(kernel, c) {
		return 0, errors.New("planted: the compiler gives up")
	}
	id, err := p.Device.Pipeline(kernel, c)
	if err == nil && p.hit(kernel, c) {
		p.marked[id] = true
	}
	return id, err
}

type plantedFence struct {
	metalkern.Fence
	do string
}

func (f plantedFence) Wait(limit time.Duration) (time.Duration, error) {
	switch f.do {
	case "hang":
		return 0, metalkern.ErrHung
	case "fail":
		return 0, errors.New("planted: the GPU failed")
	case "quick": // as a GPU, whatever the emulation takes: nothing is cut into parts
		_, err := f.Fence.Wait(limit)
		return time.Millisecond, err
	case "slow":
		took, err := f.Fence.Wait(limit)
		return took + time.Hour, err
	}
	return f.Fence.Wait(limit)
}

func (p *planted) Submit(l *metalkern.List) (metalkern.Fence, error) {
	p.runs++
	bad := slices.ContainsFunc(l.Dispatches, func(d metalkern.Dispatch) bool { return p.marked[d.Pipeline] })
	if !bad {
		f, err := p.Device.Submit(l)
		if err != nil {
			return nil, err
		}
		return plantedFence{f, "quick"}, nil
	}
	p.hits++
	if p.do == "crash" {
		os.Exit(7)
	}
	f, err := p.Device.Submit(l)
	if err == nil && p.do == "wrong" {
		for _, d := range l.Dispatches {
			if p.marked[d.Pipeline] {
				spoil(p.Device.(*watched), l, d)
			}
		}
	}
	return plantedFence{f, p.do}, err
}

// watched knows the memory behind buffers.
type watched struct {
	metalkern.Device
	memory map[uint32]metalkern.Memory
}

func (w *watched) Alloc(n int) (metalkern.Memory, error) {
	m, err := w.Device.Alloc(n)
	w.memory[m.ID] = m
	return m, err
}

// spoil changes the last element of the last thing that a dispatch binds: a
// result.
func spoil(w *watched, l *metalkern.List, d metalkern.Dispatch) {
	for i := int(d.Bind+d.Binds) - 1; i >= int(d.Bind); i-- {
		b := l.Binds[i]
		m, ok := w.memory[b.Buffer]
		if !ok || b.Len < 4 {
			continue
		}
		end := m.Bytes[b.Off+b.Len-4 : b.Off+b.Len]
		end[3] ^= 0x41
		return
	}
}

// stand is what a test of trials runs: a program on a device with a plant.
type stand struct {
	t       *testing.T
	dir     string
	hit     func(kernel string, c []metalkern.Constant) bool
	do      string
	again   bool
	version string
	steps   func(compute.Backend) error // nil: steps
	heard   []metalkern.Trial
	device  *planted
}

// run runs the program once on a new backend, as a start of the process would.
func (s *stand) run() error {
	s.t.Helper()
	sources, err := metalkern.Sources()
	if err != nil {
		s.t.Fatal(err)
	}
	d, err := metaltest.NewDevice(sources, metaltest.Build{}, metaltest.Order{})
	if err != nil {
		s.t.Fatal(err)
	}
	if s.hit == nil {
		s.hit = func(string, []metalkern.Constant) bool { return false }
	}
	s.device = &planted{Device: &watched{d, map[uint32]metalkern.Memory{}}, hit: s.hit, do: s.do, marked: map[uint32]bool{}}
	s.heard = nil
	b := metalkern.New(s.device, metalkern.Options{Trials: &metalkern.Trials{Judge: judge, Dir: s.dir, Machine: "a test", Version: s.version, Again: s.again, Limit: time.Second,
		Heard: func(t metalkern.Trial) { s.heard = append(s.heard, t) }}})
	defer b.Close()
	if s.steps != nil {
		return s.steps(b)
	}
	return steps(b)
}

func judge() (compute.Backend, error) { return compute.NewReference(), nil }

// steps runs a norm and projections of a row of an answer and of 20 rows of a prompt,
// and checks the results.
func steps(b compute.Backend) error {
	return errors.Join(step(b, 1, 1, 48), step(b, 20, 0, 48))
}

// step runs rows, those of a prompt from row prefill on, through a small model.
func step(b compute.Backend, rows, prefill, outs int) error {
	ref := compute.NewReference()
	var results [2][]float32
	for i, b := range []compute.Backend{b, ref} {
		x, err := b.Alloc("x", 4*rows*512)
		if err != nil {
			return err
		}
		defer x.Close()
		y, err := b.Alloc("y", 4*rows*outs)
		if err != nil {
			return err
		}
		defer y.Close()
		in, out := x.Of(layout.F32, 0, rows, 512), y.Of(layout.F32, 0, rows, outs)
		for r := range rows {
			for c := range in.F32(r) {
				in.F32(r)[c] = float32((r*31+c*17)%23) - 11
			}
		}
		m := layout.Matrix{Name: "w", Scheme: layout.Affine, Rows: outs, Cols: 512, Bits: 8, Group: 32, DType: layout.F32, GlobalScale: 1,
			Weight: make([]byte, outs*512), Scales: make([]byte, outs*16*4), Biases: make([]byte, outs*16*4)}
		for j := range m.Weight {
			m.Weight[j] = byte(j * 7)
		}
		for j := 3; j < len(m.Scales); j += 4 {
			m.Scales[j], m.Biases[j] = 0x3c, 0x3d
		}
		w, err := b.Load(m)
		if err != nil {
			return err
		}
		defer b.Unload(w)
		var p compute.Program
		p.Add(compute.Norm{X: in, Out: in, Kind: compute.RMS, Eps: 1e-5, Scale: 1},
			compute.Linear{X: in, W: w, Scale: 1, Out: out, Prefill: prefill},
			compute.Norm{X: in.Slice(0, 0), Out: in.Slice(0, 0), Kind: compute.RMS, Eps: 1e-5, Scale: 1}, // nothing to do
			compute.Unary{X: out, Out: out, Kind: compute.UnSiLU})
		if err := compute.Run(b, &p, nil); err != nil {
			return err
		}
		for r := range rows {
			results[i] = append(results[i], out.F32(r)...)
		}
	}
	for i, want := range results[1] {
		if d := results[0][i] - want; d > 1e-3 || d < -1e-3 {
			return fmt.Errorf("%d rows: result %d is %v, want %v", rows, i, results[0][i], want)
		}
	}
	return nil
}

// files lists what lies in a folder of choices.
func files(t *testing.T, dir, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestTrials: the first start tries every kernel, the second none; what is kept is
// trusted only whole and only on the same machine.
func TestTrials(t *testing.T) {
	metaltest.Need(t)
	s := &stand{t: t, dir: t.TempDir()}
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	first := len(s.heard)
	kernels := map[string]bool{}
	for _, x := range s.heard {
		kernels[x.Kernel] = true
		if x.Why != nil {
			t.Errorf("%+v", x)
		}
	}
	if !kernels["norm"] || !kernels["linear_rows"] || !kernels["linear_tiles"] || !kernels["unary"] || first < 5 {
		t.Errorf("tried %v", s.heard)
	}
	book := files(t, s.dir, "*.json")
	if len(book) != 1 || len(files(t, s.dir, "*.trying")) > 0 {
		t.Fatalf("files %v", files(t, s.dir, "*"))
	}
	whole, err := os.ReadFile(book[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := s.run(); err != nil || len(s.heard) != 0 {
		t.Errorf("the second start tried %v, %v", s.heard, err)
	}
	if s.device.runs != 3+1 { // the first program group by group, the second at once
		t.Errorf("%d lists at the second start", s.device.runs)
	}
	for name, text := range map[string]string{
		"torn":            string(whole[:len(whole)/2]),
		"of another form": strings.Replace(string(whole), `"format": 2`, `"format": 1`, 1),
		"of another GPU":  strings.Replace(string(whole), "a test", "b test", 1),
		"changed by hand": strings.Replace(string(whole), `"proven": [`, `"proven": ["1", `, 1),
		"with more in it": strings.Replace(string(whole), `"format"`, `"extra": 1, "format"`, 1),
		"empty":           "",
		"not JSON":        strings.Repeat("[", 1<<20),
		"huge":            string(whole) + strings.Repeat(" ", 1<<20),
	} {
		if text == string(whole) {
			t.Fatalf("%s: nothing was changed", name)
		}
		if err := os.WriteFile(book[0], []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := s.run(); err != nil || len(s.heard) != first {
			t.Errorf("a file %s: %d trials, want %d; %v", name, len(s.heard), first, err)
		}
		if err := s.run(); err != nil || len(s.heard) != 0 {
			t.Errorf("a file %s was not written anew: %d trials, %v", name, len(s.heard), err)
		}
	}
	s.again = true
	if err := s.run(); err != nil || len(s.heard) != first {
		t.Errorf("asked to try again: %d trials, %v", len(s.heard), err)
	}
}

func kernelNamed(name string) func(string, []metalkern.Constant) bool {
	return func(kernel string, _ []metalkern.Constant) bool { return kernel == name }
}

// TestUnfit: where the only way to run a kernel is wrong, fails, hangs or does not
// compile, the backend says that it is unfit, at once at later starts.
func TestUnfit(t *testing.T) {
	metaltest.Need(t)
	for do, say := range map[string]string{"wrong": "the CPU has", "fail": "the GPU failed", "hang": "hangs", "compile": "gives up"} {
		t.Run(do, func(t *testing.T) {
			s := &stand{t: t, dir: t.TempDir(), do: do, hit: kernelNamed("unary")}
			err := s.run()
			if !errors.Is(err, compute.ErrUnfit) || !strings.Contains(err.Error(), say) {
				t.Fatalf("%v", err)
			}
			if do == "hang" {
				// the device cannot be used any more in this process; the next one finds
				// the note
				if len(files(t, s.dir, "*.trying")) != 1 {
					t.Errorf("files %v", files(t, s.dir, "*"))
				}
			}
			s.do = "crash" // it must not even be run
			if do == "compile" {
				s.do = do
			}
			err = s.run()
			if !errors.Is(err, compute.ErrUnfit) || !strings.Contains(err.Error(), "unary") || !strings.Contains(err.Error(), s.dir) {
				t.Errorf("the second start: %v", err)
			}
			if len(files(t, s.dir, "*.trying")) != 0 {
				t.Errorf("files %v", files(t, s.dir, "*"))
			}
		})
	}
}

// TestCrash: a kernel that takes the process with it is not run again.
func TestCrash(t *testing.T) {
	metaltest.Need(t)
	if dir := os.Getenv("CRASH_IN"); dir != "" {
		s := &stand{t: t, dir: dir, do: "crash", hit: kernelNamed("unary")}
		t.Fatal(s.run())
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestCrash$")
	cmd.Env = append(os.Environ(), "CRASH_IN="+dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Fatalf("%v\n%s", err, out)
	}
	notes := files(t, dir, "*.trying")
	if len(notes) != 1 {
		t.Fatalf("files %v", files(t, dir, "*"))
	}
	s := &stand{t: t, dir: dir, do: "crash", hit: kernelNamed("unary")}
	if err := s.run(); !errors.Is(err, compute.ErrUnfit) || !strings.Contains(err.Error(), "ended the process") {
		t.Errorf("%v", err)
	}
	var f struct {
		Faults []struct {
			Key  metalkern.Key
			Hard bool
		}
	}
	text, err := os.ReadFile(files(t, dir, "*.json")[0])
	if err != nil || json.Unmarshal(text, &f) != nil || len(f.Faults) != 1 || f.Faults[0].Key.Kernel != "unary" || !f.Faults[0].Hard {
		t.Errorf("%s, %v", text, err)
	}
	// asked to try again, what crashed stays out
	s.again = true
	if err := s.run(); !errors.Is(err, compute.ErrUnfit) || s.device.hits > 0 {
		t.Errorf("%v, %d runs", err, s.device.hits)
	}
	// another machine, or another version, knows nothing of it
	if err := os.WriteFile(notes[0], []byte("{\"machine\":\"another\",\"key\":\"unary 1\"}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(files(t, dir, "*.json")[0]); err != nil {
		t.Fatal(err)
	}
	s.do = ""
	if err := s.run(); err != nil {
		t.Errorf("a note of another machine: %v", err)
	}
}

// simdGroups hits Norm with that many SIMD-groups: it is not a function constant,
// so lists are looked at.
type simdGroups struct {
	*watched
	do    string
	bad   []uint32 // threads of threadgroups
	pipes map[uint32]bool
	hits  map[uint32]int
}

func (d *simdGroups) Pipeline(kernel string, c []metalkern.Constant) (uint32, error) {
	id, err := d.watched.Pipeline(kernel, c)
	if kernel == "norm" {
		d.pipes[id] = true
	}
	return id, err
}

func (d *simdGroups) Submit(l *metalkern.List) (metalkern.Fence, error) {
	do := ""
	for _, x := range l.Dispatches {
		if d.pipes[x.Pipeline] {
			d.hits[x.Threads]++
			if slices.Contains(d.bad, x.Threads) {
				do = d.do
			}
		}
	}
	if do == "crash" {
		os.Exit(7)
	}
	f, err := d.watched.Submit(l)
	if do == "wrong" {
		for _, x := range l.Dispatches {
			if slices.Contains(d.bad, x.Threads) && d.pipes[x.Pipeline] {
				spoil(d.watched, l, x)
			}
		}
	}
	return plantedFence{f, do}, err
}

// TestVariants: of the variants of a kernel the wrong, hanging, crashing, failing
// and slow ones are not chosen.
func TestVariants(t *testing.T) {
	metaltest.Need(t)
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	names := metalkern.Variants("norm")
	if len(names) != 3 {
		t.Fatal(names)
	}
	threads := map[string]uint32{"8 SIMD-groups": 256, "4 SIMD-groups": 128, "16 SIMD-groups": 512}
	start := func(t *testing.T, dir, do string, bad ...uint32) (heard []metalkern.Trial, d *simdGroups, err error) {
		t.Helper()
		emulated, err := metaltest.NewDevice(sources, metaltest.Build{}, metaltest.Order{})
		if err != nil {
			t.Fatal(err)
		}
		d = &simdGroups{&watched{emulated, map[uint32]metalkern.Memory{}}, do, bad, map[uint32]bool{}, map[uint32]int{}}
		b := metalkern.New(d, metalkern.Options{Trials: &metalkern.Trials{Judge: judge, Dir: dir, Machine: "a test", Limit: time.Second,
			Heard: func(t metalkern.Trial) { heard = append(heard, t) }}})
		defer b.Close()
		err = steps(b)
		return heard, d, err
	}
	chosen := func(heard []metalkern.Trial) (name string, dropped []string) {
		for _, x := range heard {
			switch {
			case x.Kernel != "norm":
			case x.Why != nil:
				dropped = append(dropped, x.Variant)
			case x.Chosen:
				name = x.Variant
			}
		}
		return name, dropped
	}
	if dir := os.Getenv("CRASH_IN"); dir != "" {
		_, _, err := start(t, dir, "crash", 128)
		t.Fatal(err)
	}
	t.Run("slow", func(t *testing.T) { // all but one
		for name, n := range threads {
			var bad []uint32
			for _, m := range threads {
				if m != n {
					bad = append(bad, m)
				}
			}
			dir := t.TempDir()
			heard, _, err := start(t, dir, "slow", bad...)
			if got, dropped := chosen(heard); err != nil || got != name || len(dropped) > 0 {
				t.Errorf("%s is fast: chosen %s, dropped %v, %v", name, got, dropped, err)
			}
			heard, d, err := start(t, dir, "")
			if err != nil || len(heard) > 0 || len(d.hits) != 1 || d.hits[n] == 0 {
				t.Errorf("%s is chosen: the next start ran %v, tried %v, %v", name, d.hits, heard, err)
			}
		}
	})
	for _, do := range []string{"wrong", "fail"} {
		t.Run(do, func(t *testing.T) {
			for i := range names { // one of them, then two
				var bad []uint32
				for _, n := range names[:i] {
					bad = append(bad, threads[n])
				}
				dir := t.TempDir()
				heard, _, err := start(t, dir, do, bad...)
				if got, dropped := chosen(heard); err != nil || slices.Contains(names[:i], got) || got == "" || !slices.Equal(dropped, names[:i]) {
					t.Errorf("%v are bad: chosen %s, dropped %v, %v", names[:i], got, dropped, err)
				}
				_, d, err := start(t, dir, do, bad...)
				for _, n := range bad {
					if d.hits[n] > 0 || err != nil {
						t.Errorf("%v are bad: the next start ran %v, %v", names[:i], d.hits, err)
					}
				}
			}
			if _, _, err := start(t, t.TempDir(), do, 128, 256, 512); !errors.Is(err, compute.ErrUnfit) {
				t.Errorf("all are bad: %v", err)
			}
		})
	}
	t.Run("hang", func(t *testing.T) {
		dir := t.TempDir()
		if _, _, err := start(t, dir, "hang", 256); !errors.Is(err, compute.ErrUnfit) {
			t.Fatalf("the default hangs: %v", err)
		}
		heard, d, err := start(t, dir, "hang", 256)
		if got, _ := chosen(heard); err != nil || got == "" || got == names[0] || d.hits[256] > 0 {
			t.Errorf("the next start: chosen %s, ran %v, %v", got, d.hits, err)
		}
	})
	t.Run("crash", func(t *testing.T) {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run", "^TestVariants$")
		cmd.Env = append(os.Environ(), "CRASH_IN="+dir)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 7 {
			t.Fatalf("%v\n%s", err, out)
		}
		heard, d, err := start(t, dir, "crash", 128)
		if got, _ := chosen(heard); err != nil || got == "" || got == "4 SIMD-groups" || d.hits[128] > 0 {
			t.Errorf("the next start: chosen %s, ran %v, %v", got, d.hits, err)
		}
	})
	t.Run("two at once", func(t *testing.T) { // who does not hold the lock keeps nothing
		dir := t.TempDir()
		if _, _, err := start(t, dir, ""); err != nil {
			t.Fatal(err)
		}
		lock := files(t, dir, "*.lock")
		if len(lock) != 1 || os.Remove(files(t, dir, "*.json")[0]) != nil {
			t.Fatal(lock)
		}
		f, err := os.Open(lock[0])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		heard, _, err := start(t, dir, "")
		if err != nil || len(heard) == 0 || len(files(t, dir, "*.json")) > 0 {
			t.Errorf("%v, %v", heard, err)
		}
	})
}

// TestTwoChoices: in a step with rows of answers and of a prompt, a bad variant of one
// kernel is not blamed on the other, whether it is wrong, fails or hangs.
func TestTwoChoices(t *testing.T) {
	metaltest.Need(t)
	mixed := func(b compute.Backend) error { return step(b, 25, 5, 48) }
	for _, do := range []string{"wrong", "fail", "hang", "compile"} {
		for kernel, cut := range map[string][2]uint32{"linear_rows": {4, 2}, "linear_tiles": {32, 1}} { // the default way: outputs, SIMD-groups
			t.Run(do+" "+kernel, func(t *testing.T) {
				s := &stand{t: t, dir: t.TempDir(), do: do, steps: mixed, hit: func(k string, c []metalkern.Constant) bool {
					return k == kernel && c[9].Bits != 64 && c[10].Bits == cut[0] && c[11].Bits == cut[1]
				}}
				err := s.run()
				if do == "hang" {
					if !errors.Is(err, compute.ErrUnfit) {
						t.Fatal(err)
					}
					for i := 0; i < 3 && err != nil; i++ { // each start finds one of the ways that hang
						err = s.run()
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range s.heard {
					if x.Why != nil && x.Kernel != kernel {
						t.Errorf("%s is blamed: %v", x.Kernel, x.Why)
					}
				}
				if err := s.run(); err != nil || len(s.heard) > 0 {
					t.Errorf("the next start: %v, tried %v", err, s.heard)
				}
			})
		}
	}
}

// TestEveryModel: what hung with one model is not run with another one, nor by another
// version of the program.
func TestEveryModel(t *testing.T) {
	metaltest.Need(t)
	s := &stand{t: t, dir: t.TempDir(), do: "hang", hit: kernelNamed("unary")}
	if err := s.run(); !errors.Is(err, compute.ErrUnfit) {
		t.Fatal(err)
	}
	s.steps, s.version = func(b compute.Backend) error { return step(b, 1, 1, 40) }, "next"
	if err := s.run(); !errors.Is(err, compute.ErrUnfit) || !strings.Contains(err.Error(), "unary") || s.device.hits > 0 {
		t.Errorf("%v, %d runs", err, s.device.hits)
	}
}

// TestNoFolder: where nothing can be kept, kernels are tried at each start.
func TestNoFolder(t *testing.T) {
	metaltest.Need(t)
	file := filepath.Join(t.TempDir(), "a file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := &stand{t: t, dir: filepath.Join(file, "folder")}
	for range 2 {
		if err := s.run(); err != nil || len(s.heard) == 0 {
			t.Errorf("%v, %d trials", err, len(s.heard))
		}
	}
}

// TestSharedBook: what a process found while another one had read the file stays.
func TestSharedBook(t *testing.T) {
	metaltest.Need(t)
	dir := t.TempDir()
	other := &stand{t: t, dir: dir, steps: func(b compute.Backend) error { return step(b, 20, 0, 48) }}
	s := &stand{t: t, dir: dir, steps: func(b compute.Backend) error {
		return errors.Join(step(b, 1, 1, 48), other.run(), step(b, 25, 5, 48))
	}}
	if err := s.run(); err != nil || len(other.heard) == 0 {
		t.Fatal(err, other.heard)
	}
	if err := other.run(); err != nil || len(other.heard) > 0 {
		t.Errorf("%v, tried again: %v", err, other.heard)
	}
}

// pastLengths is a device on which a list takes the longer the more parts its attention
// is cut into.
type pastLengths struct {
	metalkern.Device
	attention map[uint32]bool // pipelines
}

func (d *pastLengths) Pipeline(kernel string, c []metalkern.Constant) (uint32, error) {
	id, err := d.Device.Pipeline(kernel, c)
	d.attention[id] = d.attention[id] || kernel == "attention"
	return id, err
}

func (d *pastLengths) Submit(l *metalkern.List) (metalkern.Fence, error) {
	f, err := d.Device.Submit(l)
	took := time.Duration(0)
	for _, x := range l.Dispatches {
		if d.attention[x.Pipeline] {
			took = time.Duration(x.Groups[0]*x.Groups[1]*x.Groups[2]) * time.Millisecond
		}
	}
	return fenceFunc(func(limit time.Duration) (time.Duration, error) {
		_, err := f.Wait(limit)
		return took, err
	}), err
}

// TestLongPast: attention's variants are timed with a long past, though the first rows
// have a short one; the results are those of the first rows.
func TestLongPast(t *testing.T) {
	metaltest.Need(t)
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	d, err := metaltest.NewDevice(sources, metaltest.Build{}, metaltest.Order{})
	if err != nil {
		t.Fatal(err)
	}
	chosen := ""
	b := metalkern.New(&pastLengths{d, map[uint32]bool{}}, metalkern.Options{Trials: &metalkern.Trials{Judge: judge, Machine: "a test", Limit: time.Second, Heard: func(x metalkern.Trial) {
		if x.Kernel == "attention" && x.Chosen {
			chosen = x.Variant
		}
	}}})
	defer b.Close()
	kv := compute.KV{Pages: 40, Heads: 1, KDim: 32, VDim: 32, Type: layout.F16}
	k, v := kv.PageBytes()
	kv.K, kv.V = newBuffer(t, b, 40*k), newBuffer(t, b, 40*v)
	for i := range kv.V.Bytes {
		kv.V.Bytes[i] = byte(i % 59) // small numbers
	}
	q, out := newBuffer(t, b, 4*32).Of(layout.F32, 0, 1, 32), newBuffer(t, b, 4*32).Of(layout.F32, 0, 1, 32)
	var p compute.Program
	p.Add(compute.Attention{Q: q, KV: kv, Heads: 1, Scale: 1, Out: out, Rows: compute.Rows{N: 1, Segments: 1, Prefill: 1, Pos: newInts(t, b, 0), Of: newInts(t, b, 0), Start: newInts(t, b, 0, 1)},
		Pages: compute.Pages{Table: newInts(t, b, 7), Lo: newInts(t, b, 0), Hi: newInts(t, b, 1)}})
	if err := compute.Run(b, &p, nil); err != nil {
		t.Fatal(err)
	}
	if chosen != "16 pages" { // which cut the least
		t.Errorf("chosen %q", chosen)
	}
	for i, got := range out.F32(0) {
		at := kv.V.Bytes[7*v+2*i:]
		if want := layout.F16ToF32(uint16(at[0]) | uint16(at[1])<<8); got != want {
			t.Fatalf("value %d is %v, wants that of the only position, %v", i, got, want)
		}
	}
}
