package cpu

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

func needKernels(t *testing.T) {
	t.Helper()
	if len(Levels()) == 0 {
		skip(t, "this build has no C kernels; build with cgo")
	}
}

// skip leaves a test out, loudly, or fails where everything is required.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("SPARKBAR_REQUIRE") == "all" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func TestOptions(t *testing.T) {
	needKernels(t)
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Threads: -1}, "-1 threads"},
		{Options{Threads: 257}, "257 threads"},
		{Options{Level: "sse9"}, `level "sse9" of Options.Level cannot run`},
	} {
		if b, err := New(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%+v) = %v, %v; want an error with %q", c.o, b, err, c.want)
		}
	}
	missing := "neon"
	if runtime.GOARCH == "arm64" {
		missing = "avx2"
	}
	t.Setenv(LevelVariable, missing)
	if _, err := New(Options{}); err == nil || !strings.Contains(err.Error(), LevelVariable) || !strings.Contains(err.Error(), "scalar") {
		t.Errorf("a level that this machine lacks: %v", err)
	}
	t.Setenv(LevelVariable, "scalar")
	if b, err := New(Options{}); err != nil || b.Name() != "cpu" || b.Close() != nil || b.Close() != nil {
		t.Errorf("scalar by environment: %v, %v", b, err)
	}
	if b, err := New(Options{Threads: MaxThreads}); err != nil {
		t.Errorf("%d threads: %v", MaxThreads, err)
	} else {
		b.Close()
	}
}

func TestLoadRefusesWhatItCannotRead(t *testing.T) {
	needKernels(t)
	b := open(t, Options{Threads: 1})
	affine := layout.Matrix{Name: "w", Scheme: layout.Affine, Rows: 2, Cols: 64, Bits: 4, Group: 32, DType: layout.F16,
		Weight: make([]byte, 64), Scales: make([]byte, 8), Biases: make([]byte, 8)}
	if w, err := b.Load(affine); err != nil {
		t.Fatal(err)
	} else {
		b.Unload(w)
		b.Unload(w)
	}
	for what, change := range map[string]func(m *layout.Matrix){
		"short weight": func(m *layout.Matrix) { m.Weight = m.Weight[1:] },
		"short scales": func(m *layout.Matrix) { m.Scales = m.Scales[1:] },
		"no biases":    func(m *layout.Matrix) { m.Biases = nil },
		"7 bits":       func(m *layout.Matrix) { m.Bits = 7 },
		"group 16":     func(m *layout.Matrix) { m.Group = 16 },
		"group 0":      func(m *layout.Matrix) { m.Group = 0 },
		"odd columns":  func(m *layout.Matrix) { m.Cols = 60 },
		"int scales":   func(m *layout.Matrix) { m.DType = layout.I32 },
		"scheme":       func(m *layout.Matrix) { m.Scheme = 99 },
		"negative":     func(m *layout.Matrix) { m.Rows = -1 },
		"huge":         func(m *layout.Matrix) { m.Batch, m.Rows = 1<<31-1, 1<<31-1 },
		"Q4_K columns": func(m *layout.Matrix) { m.Scheme, m.Bits, m.Group = layout.Q4_K, 4, 256 },
	} {
		m := affine
		change(&m)
		if w, err := b.Load(m); err == nil {
			t.Errorf("%s: loaded", what)
			b.Unload(w)
		} else if !strings.HasPrefix(err.Error(), "w: ") {
			t.Errorf("%s: %v does not name the weight", what, err)
		}
	}
	_, err := b.Alloc("cache", math.MaxInt)
	if err == nil || !strings.Contains(err.Error(), "cache") || !strings.Contains(err.Error(), fmt.Sprint(math.MaxInt)) {
		t.Errorf("too large an Alloc: %v", err)
	}
}

// TestSmallBuffers: blocks that share a mapping are zeroed, apart from each other and
// aligned, and the mapping ends with the last of them.
func TestSmallBuffers(t *testing.T) {
	be := open(t, Options{Threads: 1}).(*backend)
	r := rand.New(rand.NewPCG(1, 2))
	var all []*compute.Buffer
	for i := range 1200 {
		buf, err := be.Alloc("block", 1+r.IntN(200_000))
		if err != nil {
			t.Fatal(err)
		}
		if uintptr(unsafe.Pointer(&buf.Bytes[0]))%64 != 0 {
			t.Fatal("a block is not aligned")
		}
		if slices.Max(buf.Bytes) != 0 {
			t.Fatal("a block is not zeroed")
		}
		for j := range buf.Bytes {
			buf.Bytes[j] = byte(1 + i%255)
		}
		if all = append(all, buf); i%3 == 2 { // one in three ends early
			all[len(all)-2].Close()
			all = slices.Delete(all, len(all)-2, len(all)-1)
		}
	}
	if n := len(be.buffers.list); n < 2 {
		t.Fatalf("%d mappings: too few to tell", n)
	}
	for _, buf := range all {
		if slices.Min(buf.Bytes) != slices.Max(buf.Bytes) {
			t.Fatal("blocks lie on each other")
		}
		buf.Close()
		buf.Close()
	}
	if n := len(be.buffers.list); n != 0 {
		t.Errorf("%d mappings stay", n)
	}
}

func TestWeightOfAnotherBackend(t *testing.T) {
	needKernels(t)
	b, ref := open(t, Options{Threads: 1}), compute.NewReference()
	w, err := ref.Load(dense(1, 4, 4))
	if err != nil {
		t.Fatal(err)
	}
	s := compute.NewScratch(b)
	defer s.Close()
	x, _ := s.F32(1, 4)
	out, _ := s.F32(1, 4)
	var p compute.Program
	p.Add(compute.Linear{X: x, W: w, Scale: 1, Out: out})
	if err := compute.Run(b, &p, nil); err == nil || !strings.Contains(err.Error(), "not loaded") {
		t.Errorf("a weight of another backend: %v", err)
	}
}

func dense(seed uint64, rows, cols int) layout.Matrix {
	r := rand.New(rand.NewPCG(seed, 0))
	w := make([]float32, rows*cols)
	for i := range w {
		w[i] = float32(r.NormFloat64())
	}
	return layout.Matrix{Name: "dense", Scheme: layout.Dense, Rows: rows, Cols: cols, DType: layout.F32, GlobalScale: 1,
		Weight: unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), 4*len(w))}
}

// TestIdentityOfRows: a row of a Linear has the same bits among any number of
// rows from 1 to 33, at any place, on any number of threads.
func TestIdentityOfRows(t *testing.T) {
	needKernels(t)
	const most, out, in = 33, 50, 512
	bf16 := dense(2, out, in/2+1) // any bytes are bfloat16 numbers, but keep them small
	bf16.DType, bf16.Cols = layout.BF16, in+1
	for i := range bf16.Weight {
		if i%2 == 1 {
			bf16.Weight[i] &= 0x3f
		}
	}
	bf16.Weight = bf16.Weight[:out*(in+1)*2]
	weights := map[string]layout.Matrix{"f32": dense(1, out, in), "bf16": bf16}
	for _, m := range quantized(out, in) {
		weights[m.Name] = m
	}
	eachLevel(t, func(t *testing.T, level string) {
		for name, m := range weights {
			for _, exact := range []bool{true, false} {
				if exact && m.Scheme != layout.Dense && (m.Scheme != layout.Affine || m.Bits != 4) {
					continue // one decoded to float32 is like another
				}
				r := rand.New(rand.NewPCG(5, 5))
				x := make([]float32, most*m.Cols)
				for i := range x {
					x[i] = float32(r.NormFloat64())
				}
				var want []float32
				for _, threads := range []int{1, 3} {
					b := open(t, Options{Threads: threads, Exact: exact, Level: level})
					w, err := b.Load(m)
					if err != nil {
						t.Fatal(err)
					}
					run := func(from, n int) []float32 {
						s := compute.NewScratch(b)
						defer s.Close()
						xv, _ := s.F32(n, m.Cols)
						y, err := s.F32(n, out)
						if err != nil {
							t.Fatal(err)
						}
						for i := range n {
							copy(xv.F32(i), x[(from+i)*m.Cols:])
						}
						var p compute.Program
						p.Add(compute.Linear{X: xv, W: w, Up: w, Act: compute.ActSwiGLU, Scale: 1, Out: y, Prefill: n})
						if err := compute.Run(b, &p, nil); err != nil {
							t.Fatal(err)
						}
						var all []float32
						for i := range n {
							all = append(all, y.F32(i)...)
						}
						return all
					}
					if want == nil {
						want = run(0, most)
					}
					for n := 1; n <= most; n++ {
						from := r.IntN(most - n + 1)
						got := run(from, n)
						for i, v := range got {
							if math.Float32bits(v) != math.Float32bits(want[from*out+i]) {
								t.Fatalf("%s, exact %v, %d threads, rows %d to %d: element %d is %v, among all rows %v", name, exact, threads, from, from+n, i, v, want[from*out+i])
							}
						}
					}
					b.Unload(w)
				}
			}
		}
	})
}

// TestIdentityOfAttention: the bits do not depend on whether pages are cut among
// threads, which depends on threads, rows and the length of the table.
func TestIdentityOfAttention(t *testing.T) {
	needKernels(t)
	const blocks, heads, kvHeads, dim = 20, 6, 2, 40
	eachLevel(t, func(t *testing.T, level string) {
		var want []float32
		for _, threads := range []int{1, 2, 3, 7} {
			b := open(t, Options{Threads: threads, Level: level})
			run := func(rows int) []float32 {
				r := rand.New(rand.NewPCG(9, 9))
				s, params := compute.NewScratch(b), compute.NewParams(b)
				defer s.Close()
				defer params.Close()
				kv := compute.KV{Pages: blocks, Heads: kvHeads, KDim: dim, VDim: dim, Type: layout.F16}
				size, _ := kv.PageBytes()
				kv.K, _ = b.Alloc("k", size*blocks)
				kv.V, _ = b.Alloc("v", size*blocks)
				defer kv.K.Close()
				defer kv.V.Close()
				ints := func(rows int, f func(i int) int32, n int) compute.View {
					v := make([]int32, n)
					for i := range v {
						v[i] = f(i)
					}
					w, err := params.Ints(rows, v)
					if err != nil {
						t.Fatal(err)
					}
					return w
				}
				fill := func(rows, cols int) compute.View {
					v, err := s.F32(rows, cols)
					if err != nil {
						t.Fatal(err)
					}
					for i := range rows {
						for j := range v.F32(i) {
							v.F32(i)[j] = float32(r.NormFloat64())
						}
					}
					return v
				}
				zero := func(int) int32 { return 0 }
				n := blocks * compute.PageSize
				pages := compute.Pages{Table: ints(1, func(i int) int32 { return int32(blocks - 1 - i) }, blocks)}
				all := compute.Rows{N: n, Segments: 1, Pos: ints(1, func(i int) int32 { return int32(i) }, n), Of: ints(1, zero, n)}
				var p compute.Program
				p.Add(compute.KVWrite{K: fill(n, kvHeads*dim), V: fill(n, kvHeads*dim), KV: kv, Rows: all, Pages: pages})
				last := compute.Rows{N: rows, Segments: 1, Pos: ints(1, func(i int) int32 { return int32(n - 1 - i) }, rows), Of: ints(1, zero, rows)}
				pages.Lo = ints(1, func(i int) int32 { return int32(70 + i) }, rows)
				pages.Hi = ints(1, func(i int) int32 { return int32(n - 3 - i) }, rows)
				q, out := fill(rows, heads*dim), fill(rows, heads*dim)
				p.Add(compute.Attention{Q: q, KV: kv, Rows: last, Pages: pages, Heads: heads, Scale: 0.2, Out: out})
				if err := compute.Run(b, &p, nil); err != nil {
					t.Fatal(err)
				}
				return slices.Clone(out.F32(0))
			}
			for _, rows := range []int{1, 3, 40} {
				got := run(rows)
				if want == nil {
					want = got
				}
				if !slices.EqualFunc(got, want, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
					t.Fatalf("%d threads, %d rows: row 0 differs from 1 thread, 1 row", threads, rows)
				}
			}
		}
	})
}

// TestStop stops a program inside its one op, and checks that the backend works
// afterwards.
func TestStop(t *testing.T) {
	needKernels(t)
	for _, threads := range []int{1, 3} {
		b := open(t, Options{Threads: threads, Level: "scalar"})
		const rows, size = 4096, 2048
		w, err := b.Load(dense(1, size, size))
		if err != nil {
			t.Fatal(err)
		}
		s := compute.NewScratch(b)
		defer s.Close()
		x, _ := s.F32(rows, size)
		for i := range x.F32(0) {
			x.F32(0)[i] = 1
		}
		out, err := s.F32(rows, size)
		if err != nil {
			t.Fatal(err)
		}
		var p compute.Program
		p.Add(compute.Linear{X: x, W: w, Scale: 1, Out: out, Prefill: rows})
		var stop compute.Stop
		go func() {
			first := (*uint32)(unsafe.Pointer(&out.F32(0)[0]))
			for atomic.LoadUint32(first) == 0 { // until the first of about a hundred chunks is done
				runtime.Gosched()
			}
			stop.Set()
		}()
		if err := compute.Run(b, &p, &stop); !errors.Is(err, compute.ErrStopped) {
			t.Errorf("%d threads: a stopped op returns %v", threads, err)
		}
		if err := compute.Run(b, &p, &stop); !errors.Is(err, compute.ErrStopped) {
			t.Errorf("%d threads: a program that starts stopped returns %v", threads, err)
		}
		stop.Clear()
		p.Reset("")
		p.Add(compute.Unary{Kind: compute.UnScale, X: x.Slice(0, 1), Out: out.Slice(0, 1), V: 3})
		if err := compute.Run(b, &p, &stop); err != nil || out.F32(0)[size-1] != 3 {
			t.Errorf("%d threads: after a stop: %v, %v", threads, err, out.F32(0)[size-1])
		}
		b.Unload(w)
	}
}

func TestSubmitDoesNotAllocate(t *testing.T) {
	needKernels(t)
	b := open(t, Options{Threads: 2})
	w, err := b.Load(affine4("w", 64, 64))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Unload(w)
	s := compute.NewScratch(b)
	defer s.Close()
	x, _ := s.F32(2, 64)
	y, _ := s.F32(2, 64)
	p := compute.Program{Label: compute.LabelTarget}
	for range 50 {
		p.Add(compute.Norm{X: x, Out: x, Scale: 1, Eps: 1e-5}, compute.Linear{X: x, W: w, Up: w, Act: compute.ActSwiGLU, Scale: 1, Residual: x, Out: y})
	}
	if n := testing.AllocsPerRun(20, func() {
		if err := compute.Run(b, &p, nil); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a submit allocates %v times", n)
	}
	if b.Submits(compute.LabelTarget) != 21 {
		t.Errorf("%d submits counted, want 21", b.Submits(compute.LabelTarget))
	}
}

// TestSanitizers builds the C code with the address and undefined-behaviour
// sanitizers, and again with the thread sanitizer, and runs every op.
func TestSanitizers(t *testing.T) {
	needKernels(t)
	if testing.Short() || raceEnabled {
		t.Skip("the C code is not instrumented by the race detector: the plain run does this")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		skip(t, "no C compiler `cc` to build the sanitized code with")
	}
	sources, err := filepath.Glob("*.c")
	if err != nil || len(sources) < 5 {
		t.Fatal(sources, err)
	}
	for name, flags := range map[string][]string{
		"memory":  {"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"},
		"threads": {"-fsanitize=thread"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin := filepath.Join(t.TempDir(), "sanitize")
			common := []string{"-O0", "-g", "-std=c11", "-D_GNU_SOURCE", "-fno-strict-aliasing"}
			probe := exec.Command(cc, append(flags, "-x", "c", "-", "-o", bin)...)
			probe.Stdin = strings.NewReader("int main(void) { return 0; }")
			if out, err := probe.CombinedOutput(); err != nil {
				skip(t, fmt.Sprintf("cc cannot link %v: %s", flags, out))
			}
			args := append(append(append(common, flags...), "testdata/sanitize.c"), sources...)
			if out, err := exec.Command(cc, append(args, "-o", bin, "-lm", "-lpthread")...).CombinedOutput(); err != nil {
				t.Fatalf("cc: %v\n%s", err, out)
			}
			out, err := exec.Command(bin).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if want := 2 * len(Levels()); strings.Count(string(out), "threads\n") != want {
				t.Errorf("wants %d runs:\n%s", want, out)
			}
		})
	}
}

// TestArm64 builds these tests for 64-bit Arm and runs the ones about numbers on
// an emulated processor that has every level.
func TestArm64(t *testing.T) {
	if testing.Short() || raceEnabled || runtime.GOARCH == "arm64" {
		t.Skip("the plain run on another kind of processor does this")
	}
	cc, qemu := "aarch64-linux-gnu-gcc", "qemu-aarch64"
	for _, tool := range []string{cc, qemu} {
		if _, err := exec.LookPath(tool); err != nil {
			skip(t, fmt.Sprintf("no %s to test the kernels for Arm with; run `make setup-cross`", tool))
		}
	}
	bin := filepath.Join(t.TempDir(), "cpu.test")
	build := exec.Command("go", "test", "-c", "-ldflags", "-linkmode external -extldflags -static", "-o", bin, ".")
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=1", "CC="+cc)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go test -c for arm64: %v\n%s", err, out)
	}
	out, err := exec.Command(qemu, "-cpu", "max", bin, "-test.v", "-test.run", "^(TestInt8|TestIdentityOfRows|TestIdentityOfAttention|TestQuantGoldens|TestConformanceInt8)$").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, level := range []string{"i8mm", "dotprod", "neon"} {
		if !strings.Contains(string(out), "PASS: TestInt8/level="+level+" ") {
			t.Errorf("level %s was not tested:\n%s", level, out)
		}
	}
}

// affine4 returns a 4-bit weight in groups of 32 with bfloat16 scales.
func affine4(name string, rows, cols int) layout.Matrix {
	r := rand.New(rand.NewPCG(uint64(rows), uint64(cols)))
	m := layout.Matrix{Name: name, Scheme: layout.Affine, Rows: rows, Cols: cols, Bits: 4, Group: 32, DType: layout.BF16, GlobalScale: 1}
	m.Weight = make([]byte, m.Rows*m.RowBytes())
	m.Scales, m.Biases = make([]byte, m.Rows*m.ScaleBytes()), make([]byte, m.Rows*m.ScaleBytes())
	for i := 0; i+8 <= len(m.Weight); i += 8 {
		*(*uint64)(unsafe.Pointer(&m.Weight[i])) = r.Uint64()
	}
	for i := 1; i < len(m.Scales); i += 2 { // about 0.01 and -0.08
		m.Scales[i], m.Scales[i-1] = 0x3c, byte(r.Uint32())
		m.Biases[i], m.Biases[i-1] = 0xbd, byte(r.Uint32())
	}
	return m
}

// quantized is a random weight of every kind that is packed.
func quantized(rows, cols int) []layout.Matrix {
	r := rand.New(rand.NewPCG(uint64(rows), uint64(cols)))
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	var all []layout.Matrix
	for i, bits := range []int{1, 2, 3, 4, 5, 6, 8, 4, 8} {
		m := layout.Matrix{Scheme: layout.Affine, Rows: rows, Cols: cols, Bits: bits, Group: 32 << (i % 3), DType: []layout.DType{layout.F32, layout.F16, layout.BF16}[(i+i/7)%3], GlobalScale: 1}
		m.Name = m.String()
		m.Weight, m.Scales, m.Biases = random(rows*m.RowBytes()), random(rows*m.ScaleBytes()), random(rows*m.ScaleBytes())
		top := map[layout.DType]byte{layout.F32: 0x3c, layout.F16: 0x21, layout.BF16: 0x3c}[m.DType] // about 0.01
		for i := m.DType.Size() - 1; i < len(m.Scales); i += m.DType.Size() {
			m.Scales[i], m.Biases[i] = top, top|0x80+1
		}
		all = append(all, m)
	}
	for _, m := range []layout.Matrix{{Scheme: layout.MXFP4, Bits: 4, Group: 32}, {Scheme: layout.NVFP4, Bits: 4, Group: 16}} {
		m.Name, m.Rows, m.Cols, m.GlobalScale = m.Scheme.String(), rows, cols, 1
		m.Weight, m.Scales = random(rows*m.RowBytes()), random(rows*m.ScaleBytes())
		for i := range m.Scales {
			if m.Scales[i] = 120 + m.Scales[i]%10; m.Scheme == layout.NVFP4 {
				m.GlobalScale, m.Scales[i] = 0.03, m.Scales[i]-80
			}
		}
		all = append(all, m)
	}
	floats := map[layout.Scheme][]int{layout.Q4_0: {0}, layout.Q4_1: {0, 2}, layout.Q5_0: {0}, layout.Q5_1: {0, 2}, layout.Q8_0: {0}, layout.IQ4_NL: {0}, layout.GGUFMXFP4: nil,
		layout.Q2_K: {80, 82}, layout.Q3_K: {108}, layout.Q4_K: {0, 2}, layout.Q5_K: {0, 2}, layout.Q6_K: {208}}
	for s := layout.Q4_0; s <= layout.GGUFMXFP4; s++ {
		m := layout.Matrix{Name: s.String(), Scheme: s, Rows: rows, Cols: cols, Bits: s.CodeBits(), Group: s.BlockSize(), GlobalScale: 1}
		m.Weight = random(rows * m.RowBytes())
		for at := 0; at < len(m.Weight); at += s.BlockBytes() {
			for _, f := range floats[s] {
				m.Weight[at+f+1] = 0x21
			}
			if s == layout.GGUFMXFP4 {
				m.Weight[at] = 120 + m.Weight[at]%10
			}
		}
		all = append(all, m)
	}
	return all
}

// TestEmbedPacked: a row of a packed weight is the row that was stored, bit for bit;
// of an affine one also when what was stored is gone.
func TestEmbedPacked(t *testing.T) {
	const rows, cols = 37, 512
	eachLevel(t, func(t *testing.T, level string) {
		packed, stored := open(t, Options{Threads: 2, Level: level}), open(t, Options{Threads: 2, Level: level, Exact: true})
		ids := []int32{36, 0, 15, 16, 7, 8, 31, 36, -1, 37}
		for _, m := range quantized(rows, cols) {
			embed := func(b compute.Backend, wipe bool) (all []float32) {
				m := m
				m.Weight, m.Scales, m.Biases = slices.Clone(m.Weight), slices.Clone(m.Scales), slices.Clone(m.Biases)
				w, err := b.Load(m)
				if err != nil {
					t.Fatal(err)
				}
				defer b.Unload(w)
				if wipe && w.Repacked {
					clear(m.Weight)
					clear(m.Scales)
					clear(m.Biases)
				}
				s, params := compute.NewScratch(b), compute.NewParams(b)
				defer s.Close()
				defer params.Close()
				at, _ := params.Ints(1, ids)
				x, _ := s.F32(len(ids), cols)
				var p compute.Program
				p.Add(compute.Embed{IDs: at, W: w, Scale: 3, Out: x})
				if err := compute.Run(b, &p, nil); err != nil {
					t.Fatal(err)
				}
				for i := range x.Rows {
					all = append(all, x.F32(i)...)
				}
				return all
			}
			want := embed(stored, false)
			if got := embed(packed, m.Scheme == layout.Affine); !slices.Equal(got, want) {
				t.Errorf("%s: rows differ", m.Name)
			}
			if want[0] == 0 && want[1] == 0 {
				t.Errorf("%s: a row of zeros tells nothing", m.Name)
			}
		}
	})
}

// TestInt8 computes from its definition what a Linear over packed weights gives:
// per 32 columns, activations rounded to 127ths of the largest. The rows are as
// many as need every kernel.
func TestInt8(t *testing.T) {
	needKernels(t)
	const out, rows, cols = 37, 27, 512
	eachLevel(t, func(t *testing.T, level string) {
		if level == "scalar" {
			t.Skip("no int8 kernels")
		}
		b := open(t, Options{Threads: 2, Level: level})
		for _, m := range quantized(out, cols) {
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			w, err := b.Load(m)
			if err != nil {
				t.Fatal(err)
			}
			if !w.Repacked {
				t.Errorf("%s is not packed", m.Name)
			}
			s := compute.NewScratch(b)
			x, _ := s.F32(rows, cols)
			y, _ := s.F32(rows, out)
			r := rand.New(rand.NewPCG(3, uint64(m.Bits)))
			for i := range rows {
				for j := range x.F32(i) {
					x.F32(i)[j] = float32(r.NormFloat64() * math.Exp(4*r.NormFloat64()))
				}
			}
			clear(x.F32(1)[64:128]) // nothing but zeros
			x.F32(2)[5] = float32(math.Inf(1))
			var p compute.Program
			p.Add(compute.Linear{X: x, W: w, Scale: 1, Out: y})
			if err := compute.Run(b, &p, nil); err != nil {
				t.Fatal(err)
			}
			row, wrong := make([]float32, cols), 0
			for o := 0; o < out && wrong == 0; o++ {
				if err := m.Row(row, 0, o); err != nil {
					t.Fatal(err)
				}
				most := 0.0 // codes are multiplied before their zero is taken away
				for _, v := range row {
					most = math.Max(most, math.Abs(float64(v)))
				}
				for i := range rows {
					var want, size float64
					for at := 0; at < cols; at += 32 {
						xs := x.F32(i)[at : at+32]
						var top float32
						for _, v := range xs {
							top = max(top, float32(math.Abs(float64(v))))
						}
						for j, v := range xs {
							if top > 0 {
								rounded := math.RoundToEven(float64(v*(127/top))) * float64(top/127)
								want, size = want+rounded*float64(row[at+j]), size+math.Abs(rounded)*most
							}
						}
					}
					got := float64(y.F32(i)[o])
					if i == 2 && got == got || i != 2 && math.Abs(got-want) > 3e-6*size {
						wrong++
						t.Logf("%s: row %d output %d is %v, want %v", m.Name, i, o, got, want)
					}
				}
			}
			if wrong > 0 {
				t.Errorf("%s: wrong", m.Name)
			}
			s.Close()
			b.Unload(w)
		}
	})
}
