//go:build cgo && unix

package cpu_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/layout"
	"sparkbar/engine/testbench"
	"sparkbar/engine/testneed"
)

// peerVariable names a Python interpreter that has llama-cpp-python, the peer of
// TestBenchSmolLM2 (CMAKE_ARGS="-DGGML_NATIVE=ON" pip install llama-cpp-python);
// with _AVX2 after it, one that was built for AVX2.
const peerVariable = "SPARKBAR_LLAMA_PYTHON"

// real is a real model on a backend, with one sequence.
type real struct {
	b      compute.Backend
	ck     *checkpoint.Checkpoint
	m      *arch.Model
	c      *cache.Cache
	q      *cache.Seq
	params *compute.Params
	s      *compute.Scratch
}

func openReal(t testing.TB, file string, o cpu.Options) *real {
	t.Helper()
	fatal := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := cpu.New(o)
	fatal(err)
	ck, err := checkpoint.Open(filepath.Join(testneed.SmolLM2(t), file))
	fatal(err)
	m, err := arch.Load(ck, b)
	fatal(err)
	c, err := cache.New(b, m.Caches, cache.Options{Type: layout.F16, Positions: 1024, Sequences: 2})
	fatal(err)
	q, err := c.NewSeq()
	fatal(err)
	r := &real{b, ck, m, c, q, compute.NewParams(b), compute.NewScratch(b)}
	t.Cleanup(func() {
		r.s.Close()
		r.params.Close()
		r.q.Close()
		r.c.Close()
		r.m.Close()
		r.ck.Close()
		r.b.Close()
	})
	return r
}

// step runs ids through the model, keeps the first keep of them and returns the
// logits of the last row, or of all rows.
func (r *real) step(t testing.TB, ids []int32, keep int, prefill, all bool) compute.View {
	r.s.Reset()
	r.params.Next()
	p := compute.Program{Label: compute.LabelTarget}
	parts := []cache.Part{{Seq: r.q, IDs: ids, Verify: keep < len(ids), Prefill: prefill}}
	st, err := r.c.Plan(&p, r.params, parts)
	if err != nil {
		t.Fatal(err)
	}
	f := &arch.Forward{P: &p, S: r.s, Step: st}
	rows := len(ids)
	if !all {
		if f.Outputs, err = r.params.Ints(1, []int32{int32(len(ids) - 1)}); err != nil {
			t.Fatal(err)
		}
		rows = 1
	}
	r.m.Forward(f)
	best, err := r.s.I32(1, rows)
	if err != nil {
		t.Fatal(err)
	}
	p.Add(compute.Argmax{X: f.Logits, Out: best})
	r.c.Ran(st, parts)
	if err := compute.Run(r.b, &p, nil); err != nil {
		t.Fatal(err)
	}
	r.q.Advance(keep)
	return f.Logits
}

func (r *real) rewind(t testing.TB) {
	if err := r.q.Truncate(0); err != nil {
		t.Fatal(err)
	}
}

// rates are tokens a second, and a second of processor time: the latter can be
// compared on a busy machine too.
type rates struct {
	Prefill    float64
	Decode     float64
	PrefillCPU float64 `json:"prefill_cpu"`
	DecodeCPU  float64 `json:"decode_cpu"`
}

func (r rates) all() []float64 { return []float64{r.Prefill, r.Decode, r.PrefillCPU, r.DecodeCPU} }

// cpuSeconds is the processor time of this process.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// rate measures as the peer does: tokens a second of a prompt, then of new
// tokens one by one, with logits and no sampling.
func (r *real) rate(t testing.TB, prompt []int32, n int) rates {
	r.rewind(t)
	one := []int32{5}
	start, used := time.Now(), cpuSeconds()
	r.step(t, prompt, len(prompt), true, false)
	mid, cpuMid := time.Now(), cpuSeconds()
	for range n {
		r.step(t, one, 1, false, true)
	}
	return rates{float64(len(prompt)) / mid.Sub(start).Seconds(), float64(n) / time.Since(mid).Seconds(),
		float64(len(prompt)) / (cpuMid - used), float64(n) / (cpuSeconds() - cpuMid)}
}

// peer is a running testdata/llama_cpp_peer.py.
type peer struct {
	in  io.Writer
	out *bufio.Scanner
}

func startPeer(t testing.TB, python, model string) *peer {
	if python == "" {
		return nil
	}
	cmd := exec.Command(python, "testdata/llama_cpp_peer.py", model)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("%s=%s: %v", peerVariable, python, err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return &peer{in, bufio.NewScanner(out)}
}

func (p *peer) rate(t testing.TB, threads, prompt, n int) (r rates) {
	fmt.Fprintln(p.in, threads, prompt, n)
	if !p.out.Scan() {
		t.Fatalf("the peer ended; run testdata/llama_cpp_peer.py by hand to see why: %v", p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// TestBenchSmolLM2 measures the real model from its GGUF file: a prompt of 512
// tokens, 128 new ones, verify steps of 2, 4 and 8 rows; and llama.cpp on the same
// file in turns, where peerVariable says that it is there. `make bench` runs it
// and makes a page of what it writes. It never fails because of a time.
func TestBenchSmolLM2(t *testing.T) {
	testbench.Need(t)
	levels := cpu.Levels()
	if len(levels) == 0 {
		t.Skip("this build has no kernels to measure")
	}
	best := levels[0]
	levels = slices.DeleteFunc(levels, func(l string) bool { return l != best && l != "avx2" })
	about := "SmolLM2-135M in Q4_1, the same file and threads. Medians of runs in turns with llama.cpp through its C API, without sampling on either side. " +
		"Verify: the time of a step of so many rows over that of one. The second ratio is that of the processor time, which a busy machine disturbs less."
	var figures []testbench.Figure
	for _, level := range levels {
		for _, threads := range slices.Compact([]int{1, runtime.GOMAXPROCS(0)}) {
			t.Run(fmt.Sprintf("%s/threads=%d", level, threads), func(t *testing.T) {
				figures = append(figures, contest(t, level, threads)...)
			})
		}
	}
	testbench.Write(t, "cpu", "CPU kernels", about, figures)
}

func contest(t *testing.T, level string, threads int) []testbench.Figure {
	const prompt, n, rounds = 512, 128, 5
	python := os.Getenv(peerVariable)
	if own := os.Getenv(peerVariable + "_AVX2"); level == "avx2" && own != "" {
		python = own
	}
	r, other := openReal(t, "model.gguf", cpu.Options{Threads: threads, Level: level}), startPeer(t, python, filepath.Join(testneed.SmolLM2(t), "model.gguf"))
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = 100 + rand.Int32N(int32(r.m.Vocab)-100)
	}
	r.rate(t, ids, 8)
	ours, theirs := make([][]float64, 4), make([][]float64, 4)
	note := func(to [][]float64, r rates) {
		for i, v := range r.all() {
			to[i] = append(to[i], v)
		}
	}
	steps := []int{1, 2, 4, 8}
	widths := map[int][]float64{}
	for range rounds {
		note(ours, r.rate(t, ids, n))
		for range 8 {
			for _, w := range steps {
				start := time.Now()
				r.step(t, ids[:w], 0, false, true)
				widths[w] = append(widths[w], time.Since(start).Seconds())
			}
		}
		if other != nil {
			note(theirs, other.rate(t, threads, prompt, n))
		}
	}
	name := func(what string) string { return fmt.Sprintf("%s, %d threads: %s", level, threads, what) }
	var figures []testbench.Figure
	for i, what := range []string{"prefill of 512", "decode"} {
		figures = append(figures, testbench.Figure{Name: name(what), Value: median(ours[i]), Unit: "tok/s"})
		if other == nil {
			continue
		}
		figures = append(figures, testbench.Figure{Name: name("llama.cpp, " + what), Value: median(theirs[i]), Unit: "tok/s"},
			testbench.Figure{Name: name(what + " over llama.cpp"), Value: median(ours[i]) / median(theirs[i]), Unit: "times", Want: []string{">= 3", ">= 2"}[i],
				Note: fmt.Sprintf("%.2f per processor second", median(ours[i+2])/median(theirs[i+2]))})
	}
	for i, w := range steps[1:] {
		figures = append(figures, testbench.Figure{Name: name(fmt.Sprintf("verify %d rows", w)), Value: median(widths[w]) / median(widths[1]), Unit: "of one row", Want: []string{"<= 1.15", "<= 1.55", "<= 2.8"}[i]})
	}
	rate := median(ours[1]) * float64(r.m.ActiveBytes)
	figures = append(figures, testbench.Figure{Name: name("decode reads"), Value: rate / 1e9, Unit: "GB/s", Note: fmt.Sprintf("%.0f %% of the %.1f GB/s that all cores can read", 100*rate/cpu.ReadBandwidth(), cpu.ReadBandwidth()/1e9)})
	return figures
}
