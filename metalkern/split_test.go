package metalkern_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sparkbar/engine/compute"
	"sparkbar/engine/compute/conformance"
	"sparkbar/engine/cpu"
	"sparkbar/engine/layout"
	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

// partner is the CPU's backend of a split, and what it was asked.
type partner struct {
	compute.Backend
	mu      sync.Mutex
	formats map[string]bool // of its weights
	runs    atomic.Int64
	before  func(run int64, p *compute.Program) error // nil: nothing
}

func (h *partner) Load(m layout.Matrix) (*compute.Weight, error) {
	h.mu.Lock()
	h.formats[stored(m.Scheme, m.Bits, m.Group, m.DType)] = true
	h.mu.Unlock()
	return h.Backend.Load(m)
}

func (h *partner) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	n := h.runs.Add(1)
	if h.before != nil {
		if err := h.before(n, p); err != nil {
			return nil, err
		}
	}
	return h.Backend.Submit(p, stop)
}

// onCPU returns the exact CPU backend.
func onCPU(t testing.TB) compute.Backend {
	t.Helper()
	b, err := cpu.New(cpu.Options{Threads: 2, Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// halved is a Split and its partner.
func halved(t testing.TB, tile int) (*metalkern.Split, *partner) {
	t.Helper()
	h := &partner{formats: map[string]bool{}}
	return &metalkern.Split{Tile: tile, Threads: 2, Open: func() (compute.Backend, error) {
		h.Backend = onCPU(t)
		return h, nil
	}}, h
}

// splitter is what a backend offers beside compute.Backend.
type splitter interface {
	SetPromptSplit(*float64)
	PromptSplit() map[int]float64
	SuspendPromptSplit()
}

func pin(b compute.Backend, f float64) { b.(splitter).SetPromptSplit(&f) }

var orders = map[string]metaltest.Order{"a fast CPU": {}, "a slow CPU": {Kind: metaltest.Reverse}, "both at once": {Kind: metaltest.Shuffled, Seed: 9}}

// TestSplitConformance runs the suite where the CPU makes 40 % of every quantized
// layer's outputs for rows of prompts.
func TestSplitConformance(t *testing.T) {
	metaltest.Need(t)
	if testing.Short() {
		t.Skip("the plain run does this: the race detector does not watch the kernels")
	}
	modes := []layout.DType{layout.F32}
	if os.Getenv("SPARKBAR_REQUIRE") == "all" {
		modes = append(modes, layout.F16, layout.BF16)
	}
	for i, mode := range modes {
		o := []metaltest.Order{{Kind: metaltest.Reverse}, {}, {Kind: metaltest.Shuffled, Seed: 2}}[i]
		s, h := halved(t, 8)
		b, _ := metaltest.OpenWith(t, metaltest.Build{}, o, metalkern.Options{Activations: mode, Split: s})
		pin(b, 0.4)
		conformance.Run(t, "split "+mode.String(), b, options)
		t.Logf("%v: the CPU had %d parts", mode, h.runs.Load())
		if t.Failed() || len(h.formats) == 0 {
			continue
		}
		for _, f := range quantized() {
			if !h.formats[stored(f.Scheme, f.Bits, f.Group, f.DType)] {
				t.Errorf("%v: no weights of %s were shared", mode, stored(f.Scheme, f.Bits, f.Group, f.DType))
			}
		}
	}
}

// quantized lists every layout but dense, as matrices without bytes.
func quantized() (all []layout.Matrix) {
	for s := layout.Affine; s <= layout.GGUFMXFP4; s++ {
		if s != layout.Affine {
			all = append(all, layout.Matrix{Scheme: s, Bits: s.CodeBits(), Group: max(s.BlockSize(), map[layout.Scheme]int{layout.MXFP4: 32, layout.MXFP8: 32, layout.NVFP4: 16}[s]), GlobalScale: 1})
			continue
		}
		for _, d := range []layout.DType{layout.F32, layout.F16, layout.BF16} {
			for _, bits := range []int{1, 2, 3, 4, 5, 6, 8} {
				for _, g := range []int{32, 64, 128} {
					all = append(all, layout.Matrix{Scheme: s, Bits: bits, Group: g, DType: d, GlobalScale: 1})
				}
			}
		}
	}
	return all
}

// prompt is a layer and rows of a prompt.
type prompt struct {
	t     testing.TB
	b     compute.Backend
	w, up *compute.Weight
	x     compute.View
	bias  compute.View
	outs  int
}

// newPrompt makes the same layer on every backend: weights of random bytes, but for
// scales in float32.
func newPrompt(t testing.TB, b compute.Backend, m layout.Matrix, outs, cols, rows int) *prompt {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	x := &prompt{t: t, b: b, outs: outs}
	bytes := func(n int) []byte {
		v := make([]byte, n+4)[:n]
		for i := range v {
			v[i] = byte(rng.Uint32())
		}
		return v
	}
	m.Name, m.Rows, m.Cols = "shared", outs, cols
	for _, to := range []**compute.Weight{&x.w, &x.up} {
		m.Weight, m.Scales, m.Biases = bytes(outs*m.RowBytes()), bytes(outs*m.ScaleBytes()), nil
		if m.Scheme == layout.Affine {
			m.Biases = bytes(outs * m.ScaleBytes())
		}
		for i := 0; m.DType == layout.F32 && i < len(m.Scales); i += 4 {
			binary.LittleEndian.PutUint32(m.Scales[i:], math.Float32bits(0.01+0.01*rng.Float32()))
			binary.LittleEndian.PutUint32(m.Biases[i:], math.Float32bits(0.1*rng.Float32()-0.15))
		}
		w, err := b.Load(m)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Unload(w) })
		*to = w
	}
	floats := func(rows, cols int) compute.View {
		buf, err := b.Alloc("test", 4*rows*cols)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(buf.Close)
		v := buf.Of(layout.F32, 0, rows, cols)
		for r := range rows {
			for i := range v.F32(r) {
				v.F32(r)[i] = float32(rng.NormFloat64())
			}
		}
		return v
	}
	x.x, x.bias = floats(rows, cols), floats(1, outs)
	return x
}

// run reads rows [lo, hi), from row prefill of them on as a prompt.
func (x *prompt) run(lo, hi, prefill int) [][]float32 {
	x.t.Helper()
	n := hi - lo
	var p compute.Program
	var outs []compute.View
	out := func() compute.View {
		buf, err := x.b.Alloc("out", 4*n*x.outs)
		if err != nil {
			x.t.Fatal(err)
		}
		x.t.Cleanup(buf.Close)
		outs = append(outs, buf.Of(layout.F32, 0, n, x.outs))
		return outs[len(outs)-1]
	}
	in := x.x.Slice(lo, hi)
	p.Add(compute.Linear{X: in, W: x.w, Scale: 1, Bias: x.bias, Out: out(), Prefill: prefill}, compute.Linear{X: in, W: x.up, Scale: 1, Bias: x.bias, Out: out(), Prefill: prefill},
		compute.Linear{X: in, W: x.w, Up: x.up, Act: compute.ActSwiGLU, Scale: 0.5, Residual: outs[0], Out: out(), Prefill: prefill})
	if err := compute.Run(x.b, &p, nil); err != nil {
		x.t.Fatal(err)
	}
	all := make([][]float32, n)
	for r := range all {
		for _, v := range outs {
			all[r] = append(all[r], v.F32(r)...)
		}
	}
	return all
}

// TestSplitLayouts: in every layout each output has, to the bit, what the device that
// made it makes alone.
func TestSplitLayouts(t *testing.T) {
	metaltest.Need(t)
	if testing.Short() {
		t.Skip("the plain run does this: the race detector does not watch the kernels")
	}
	const outs, cols, rows, cut = 200, 256, 19, 128 // 200 * 0.3 is 64 in whole tiles; the CPU has the ragged rest too
	exact := onCPU(t)
	defer exact.Close()
	alone, _ := metaltest.Open(t, metaltest.Build{}, metaltest.Order{})
	s, h := halved(t, 0)
	both, _ := metaltest.OpenWith(t, metaltest.Build{}, metaltest.Order{Kind: metaltest.Shuffled, Seed: 4}, metalkern.Options{Split: s})
	pin(both, 0.3)
	layouts := 0
	for _, m := range quantized() {
		got := newPrompt(t, both, m, outs, cols, rows).run(0, rows, 0)
		gpu, cpu := newPrompt(t, alone, m, outs, cols, rows).run(0, rows, 0), newPrompt(t, exact, m, outs, cols, rows).run(0, rows, 0)
		for r := range got {
			for i, g := range got[r] {
				want := gpu[r][i]
				if i%outs >= cut {
					want = cpu[r][i]
				}
				if math.Float32bits(g) != math.Float32bits(want) && !(g != g && want != want) {
					t.Fatalf("%s: output %d of row %d is %v, the device that makes it has %v", stored(m.Scheme, m.Bits, m.Group, m.DType), i, r, g, want)
				}
			}
		}
		layouts++
	}
	if f := both.(splitter).PromptSplit(); len(f) != 1 || f[outs] != 0.3 {
		t.Errorf("the split is told as %v", f)
	}
	t.Logf("%d layouts, %d parts of the CPU", layouts, h.runs.Load())
	if h.runs.Load() != int64(2*layouts) {
		t.Errorf("the CPU had %d parts of %d layouts", h.runs.Load(), layouts)
	}
}

// TestSplitChunks: with the same split a row has the same bits in chunks of any size,
// and rows of answers have those that they have without.
func TestSplitChunks(t *testing.T) {
	metaltest.Need(t)
	const rows = 210
	alone, _ := metaltest.Open(t, metaltest.Build{}, metaltest.Order{})
	answers := newPrompt(t, alone, sane(), 136, 64, rows)
	for name, o := range orders {
		t.Run(name, func(t *testing.T) {
			s, h := halved(t, 0)
			b, _ := metaltest.OpenWith(t, metaltest.Build{}, o, metalkern.Options{Split: s})
			pin(b, 0.4)
			x := newPrompt(t, b, sane(), 136, 64, rows)
			whole := x.run(0, rows, 0)
			for _, chunk := range []int{1, 16, 17, 64, 200} {
				for lo := 0; lo < rows && (chunk > 1 || lo < 40); lo += chunk {
					hi := min(lo+chunk, rows)
					if !bits(x.run(lo, hi, 0), whole[lo:hi]) {
						t.Errorf("rows %d to %d as a chunk have other bits than in a whole prompt", lo, hi-1)
					}
				}
			}
			before := h.runs.Load()
			if n := rows - 5; !bits(x.run(0, 16, 16), answers.run(0, 16, 16)) || h.runs.Load() != before {
				t.Errorf("rows of answers are shared, or other than without: %d", n)
			}
			mixed := x.run(0, 100, 5)
			if !bits(mixed[:5], answers.run(0, 5, 5)) || !bits(mixed[5:], whole[5:100]) {
				t.Error("5 rows of answers and 95 of a prompt have other bits than alone")
			}
			if bits(whole, answers.run(0, rows, 0)) {
				t.Error("the CPU made nothing")
			}
			b.(splitter).SuspendPromptSplit()
			before = h.runs.Load()
			if !bits(x.run(0, rows, 0), answers.run(0, rows, 0)) || h.runs.Load() != before {
				t.Error("suspended, a prompt has other bits than the GPU's")
			}
		})
	}
}

// sane is the layout that newPrompt fills with numbers of about one size.
func sane() layout.Matrix {
	return layout.Matrix{Scheme: layout.Affine, Bits: 4, Group: 32, DType: layout.F32, GlobalScale: 1}
}

// chain is a program whose layers each need the one before: six meetings.
func (x *prompt) chain(rows int) (*compute.Program, compute.View) {
	x.t.Helper()
	p := &compute.Program{}
	in := x.x.Slice(0, rows)
	for range 6 {
		buf, err := x.b.Alloc("out", 4*rows*x.outs)
		if err != nil {
			x.t.Fatal(err)
		}
		x.t.Cleanup(buf.Close)
		out := buf.Of(layout.F32, 0, rows, x.outs)
		p.Add(compute.Linear{X: in, W: x.w, Scale: 0.1, Out: out})
		in = out
	}
	return p, in
}

func (x *prompt) chained(rows int) [][]float32 {
	x.t.Helper()
	p, out := x.chain(rows)
	if err := compute.Run(x.b, p, nil); err != nil {
		x.t.Fatal(err)
	}
	all := make([][]float32, rows)
	for r := range all {
		all[r] = out.F32(r)
	}
	return all
}

// onDevice opens a backend with a split on an emulated device that wrap changes; nil:
// it stays.
func onDevice(t testing.TB, o metaltest.Order, s *metalkern.Split, trials *metalkern.Trials, wrap func(metalkern.Device) metalkern.Device) compute.Backend {
	t.Helper()
	metaltest.Need(t)
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	d, err := metaltest.NewDevice(sources, metaltest.Build{}, o)
	if err != nil {
		t.Fatal(err)
	}
	var dev metalkern.Device = d
	if wrap != nil {
		dev = wrap(d)
	}
	b := metalkern.New(dev, metalkern.Options{Split: s, Trials: trials})
	t.Cleanup(func() { b.Close() })
	return b
}

// gate is a device that tells when the CPU waits for it.
type gate struct {
	metalkern.Device
	waits func(value uint64) (come bool) // before each Await; false: not yet
}

func (g gate) Await(value uint64, limit time.Duration) bool {
	return g.waits(value) && g.Device.Await(value, limit)
}

// TestSplitCancel: a stop that comes while a chunk is read, when the CPU works or
// waits, ends the CPU's part: it begins nothing more, the GPU waits for nothing more,
// and the next program is whole.
func TestSplitCancel(t *testing.T) {
	for name, o := range orders {
		t.Run(name, func(t *testing.T) {
			var stop compute.Stop
			s, h := halved(t, 0)
			waiting := false // the stop comes when the CPU waits
			b := onDevice(t, o, s, nil, func(d metalkern.Device) metalkern.Device {
				return gate{d, func(value uint64) bool {
					if waiting && value%6 == 4 { // the fourth meeting of a list
						stop.Set()
						return false
					}
					return true
				}}
			})
			pin(b, 0.4)
			x := newPrompt(t, b, sane(), 192, 192, 40)
			want := x.chained(40)
			if n := h.runs.Load(); n != 6 {
				t.Fatalf("%d parts of the CPU", n)
			}
			h.before = func(run int64, _ *compute.Program) error {
				if run == 9 { // the third of the second list
					stop.Set()
				}
				return nil
			}
			p, _ := x.chain(40)
			if err := compute.Run(b, p, &stop); !errors.Is(err, compute.ErrStopped) {
				t.Fatalf("stopped while the CPU works: %v", err)
			}
			if n := h.runs.Load(); n != 9 {
				t.Errorf("after a stop in part 9 the CPU began part %d", n)
			}
			stop.Clear()
			waiting = true
			p, _ = x.chain(40)
			if err := compute.Run(b, p, &stop); !errors.Is(err, compute.ErrStopped) {
				t.Fatalf("stopped while the CPU waits: %v", err)
			}
			if n := h.runs.Load(); n != 9+3 {
				t.Errorf("after a stop before part 4 the CPU had %d parts", n-9)
			}
			waiting = false
			stop.Clear()
			p, out := x.chain(40)
			if err := compute.Run(b, p, &stop); err != nil {
				t.Fatal(err)
			}
			for r := range want {
				if !slices.Equal(want[r], out.F32(r)) {
					t.Fatalf("after a stop, row %d has other numbers", r)
				}
			}
		})
	}
}

// broken is a device that takes lists and gives fences of its own.
type broken struct {
	metalkern.Device
	submit func(metalkern.Device, *metalkern.List) (metalkern.Fence, error)
}

func (d *broken) Submit(l *metalkern.List) (metalkern.Fence, error) {
	if d.submit == nil {
		return d.Device.Submit(l)
	}
	return d.submit(d.Device, l)
}

type fenceFunc func(limit time.Duration) (time.Duration, error)

func (f fenceFunc) Wait(limit time.Duration) (time.Duration, error) { return f(limit) }

// TestSplitFails: where the GPU fails, takes no list or hangs, that is the program's
// error, and the CPU does not wait for it.
func TestSplitFails(t *testing.T) {
	errGPU := errors.New("planted: the GPU failed")
	s, h := halved(t, 0)
	var dev *broken
	b := onDevice(t, metaltest.Order{Kind: metaltest.Shuffled, Seed: 1}, s, nil, func(d metalkern.Device) metalkern.Device {
		dev = &broken{Device: d}
		return dev
	})
	pin(b, 0.4)
	x := newPrompt(t, b, sane(), 192, 192, 20)
	want := x.chained(20)
	fails := func(what string, wants error, runs int64) {
		t.Helper()
		before := h.runs.Load()
		p, _ := x.chain(20)
		if err := compute.Run(b, p, nil); !errors.Is(err, wants) {
			t.Errorf("%s: %v", what, err)
		}
		if n := h.runs.Load() - before; n != runs {
			t.Errorf("%s: the CPU had %d parts, wants %d", what, n, runs)
		}
	}
	whole := func(what string) {
		t.Helper()
		dev.submit = nil
		if !bits(x.chained(20), want) {
			t.Errorf("after %s the results are others", what)
		}
	}
	dev.submit = func(metalkern.Device, *metalkern.List) (metalkern.Fence, error) {
		return fenceFunc(func(time.Duration) (time.Duration, error) { return 0, errGPU }), nil
	}
	fails("the GPU fails at once", errGPU, 0)
	whole("a failure of the GPU")
	dev.submit = func(d metalkern.Device, l *metalkern.List) (metalkern.Fence, error) {
		half := *l // it fails behind the second meeting
		half.Marks = half.Marks[:4]
		half.Dispatches = half.Dispatches[:half.Marks[3].At]
		if f, err := d.Submit(&half); err != nil {
			return f, err
		}
		return fenceFunc(func(time.Duration) (time.Duration, error) { return 0, errGPU }), nil
	}
	fails("the GPU fails in the midst", errGPU, 2)
	whole("a failure of the GPU in the midst")
	dev.submit = func(metalkern.Device, *metalkern.List) (metalkern.Fence, error) { return nil, errGPU }
	fails("the GPU takes no list", errGPU, 0)
	whole("a list that was refused")
	dev.submit = func(metalkern.Device, *metalkern.List) (metalkern.Fence, error) {
		return fenceFunc(func(time.Duration) (time.Duration, error) { return 0, metalkern.ErrHung }), nil
	}
	fails("the GPU hangs", metalkern.ErrHung, 0)
	fails("a GPU that hung", compute.ErrUnfit, 0)
}

// TestSplitCPUFails: a failure of the CPU is the program's error, and the GPU reads
// later prompts alone.
func TestSplitCPUFails(t *testing.T) {
	errCPU := errors.New("planted: the CPU failed")
	alone := newPrompt(t, onDevice(t, metaltest.Order{}, nil, nil, nil), sane(), 192, 192, 20).chained(20)
	s, h := halved(t, 0)
	b := onDevice(t, metaltest.Order{Kind: metaltest.Shuffled, Seed: 1}, s, nil, nil)
	pin(b, 0.4)
	x := newPrompt(t, b, sane(), 192, 192, 20)
	h.before = func(run int64, _ *compute.Program) error {
		if run == 3 {
			return errCPU
		}
		return nil
	}
	p, _ := x.chain(20)
	if err := compute.Run(b, p, nil); !errors.Is(err, errCPU) || h.runs.Load() != 3 {
		t.Errorf("%v after %d parts of the CPU", err, h.runs.Load())
	}
	if got := x.chained(20); !bits(got, alone) || h.runs.Load() != 3 {
		t.Errorf("the CPU had %d parts, the results are the GPU's: %v", h.runs.Load(), bits(got, alone))
	}
	if shares := b.(splitter).PromptSplit(); shares != nil {
		t.Errorf("the CPU is said to have %v", shares)
	}
}

// TestSplitHangsInParts: when the GPU hangs in the first of several lists, the CPU
// waits for none of the others either, and the backend can be closed.
func TestSplitHangsInParts(t *testing.T) {
	s, h := halved(t, 0)
	lists := 0
	b := onDevice(t, metaltest.Order{}, s, nil, func(d metalkern.Device) metalkern.Device {
		return &broken{d, func(metalkern.Device, *metalkern.List) (metalkern.Fence, error) {
			lists++
			return fenceFunc(func(time.Duration) (time.Duration, error) { return 0, metalkern.ErrHung }), nil
		}}
	})
	pin(b, 0.4)
	metalkern.Slow(b)
	p, _ := newPrompt(t, b, sane(), 192, 192, 20).chain(20)
	if err := compute.Run(b, p, nil); !errors.Is(err, metalkern.ErrHung) || lists < 2 || h.runs.Load() != 0 {
		t.Errorf("%v with %d lists, of which the CPU had %d parts", err, lists, h.runs.Load())
	}
	// Closing, when the test ends, waits for the CPU.
}

// TestSplitSlowCPU: the time in which the CPU works does not count as the GPU's. The
// fence says far more often that the list has not ended than a hang would take.
func TestSplitSlowCPU(t *testing.T) {
	s, h := halved(t, 0)
	works, release := make(chan bool), make(chan bool)
	asked := 0
	b := onDevice(t, metaltest.Order{}, s, nil, func(d metalkern.Device) metalkern.Device {
		return &broken{d, func(d metalkern.Device, l *metalkern.List) (metalkern.Fence, error) {
			copied := *l // the host may use its slices again
			copied.Dispatches, copied.Binds, copied.Args = slices.Clone(l.Dispatches), slices.Clone(l.Binds), slices.Clone(l.Args)
			var f metalkern.Fence
			var err error
			ended := make(chan bool)
			go func() {
				f, err = d.Submit(&copied)
				close(ended)
			}()
			<-works // from here on the CPU works, until it is let go
			return fenceFunc(func(limit time.Duration) (time.Duration, error) {
				if asked++; asked < 10000 {
					return 0, metalkern.ErrHung
				}
				if asked == 10000 {
					close(release)
				}
				if <-ended; err != nil {
					return 0, err
				}
				return f.Wait(limit)
			}), nil
		}}
	})
	h.before = func(int64, *compute.Program) error {
		works <- true
		<-release
		return nil
	}
	pin(b, 0.4)
	x := newPrompt(t, b, sane(), 192, 192, 5)
	var p compute.Program
	out := newBuffer(t, b, 4*5*192).Of(layout.F32, 0, 5, 192)
	p.Add(compute.Linear{X: x.x, W: x.w, Scale: 1, Out: out})
	if err := compute.Run(b, &p, nil); err != nil {
		t.Fatal(err)
	}
	if asked != 10000 {
		t.Errorf("the fence was asked %d times", asked)
	}
}

// scales is a device whose lists take a time that is given for each size of the
// GPU's part of the weights.
type scales struct {
	metalkern.Device
	times map[uint64]time.Duration
}

func (d *scales) Submit(l *metalkern.List) (metalkern.Fence, error) {
	f, err := d.Device.Submit(l)
	if err != nil || len(l.Dispatches) != 1 {
		return f, err
	}
	took := d.times[l.Binds[l.Dispatches[0].Bind+1].Len]
	return fenceFunc(func(limit time.Duration) (time.Duration, error) {
		_, err := f.Wait(limit)
		return took, err
	}), nil
}

// TestSplitMeasured: the share is what given times say, it is kept for the next start
// and for as many threads, and the times of shares beyond the balance are not taken.
func TestSplitMeasured(t *testing.T) {
	metaltest.Need(t)
	if testing.Short() {
		t.Skip("the plain run does this: the race detector does not watch the kernels")
	}
	const outs = 80 // the GPU has 80, 72, 64, 56 or 48 of them, 16 bytes each
	start := func(dir string, threads int, ms ...int) (share float64, heard []metalkern.Trial) {
		t.Helper()
		s, _ := halved(t, 8)
		s.Threads = threads
		trials := &metalkern.Trials{Judge: judge, Dir: dir, Machine: "a test", Limit: time.Second, Heard: func(x metalkern.Trial) {
			if x.Kernel == "cpu_split" {
				heard = append(heard, x)
			}
		}}
		b := onDevice(t, metaltest.Order{}, s, trials, func(x metalkern.Device) metalkern.Device {
			d := &scales{x, map[uint64]time.Duration{}}
			for i, n := range ms {
				d.times[16*uint64(outs-8*i)] = time.Duration(n) * time.Millisecond
			}
			return d
		})
		x := newPrompt(t, b, sane(), outs, 32, 3)
		var p compute.Program
		out := newBuffer(t, b, 4*3*outs).Of(layout.F32, 0, 3, outs)
		p.Add(compute.Linear{X: x.x, W: x.w, Scale: 1, Out: out})
		if err := compute.Run(b, &p, nil); err != nil {
			t.Fatal(err)
		}
		return b.(splitter).PromptSplit()[outs], heard
	}
	dir := t.TempDir()
	for _, c := range []struct {
		ms    []int
		want  float64
		tried int
	}{
		{[]int{100, 80, 70, 69, 80}, 0.2, 5},  // 0.3 is not 3 % better
		{[]int{100, 80, 70, 60, 58}, 0.4, 5},  // it is
		{[]int{100, 97, 96, 96, 99}, 0, 5},    // no 5 %
		{[]int{100, 94, 130, 10, 10}, 0.1, 3}, // past the balance
		{[]int{100, 130, 10, 10, 10}, 0, 2},   // at once
	} {
		share, heard := start(t.TempDir(), 2, c.ms...)
		if share != c.want || len(heard) != c.tried {
			t.Errorf("with %v ms the CPU has %v, wants %v; %d shares were tried, wants %d", c.ms, share, c.want, len(heard), c.tried)
		}
		for _, x := range heard {
			if x.Why != nil || x.Took == 0 {
				t.Errorf("%+v", x)
			}
		}
	}
	if share, heard := start(dir, 2, 100, 80, 60, 50, 45); share != 0.4 || len(heard) == 0 {
		t.Errorf("the first start: %v, %v", share, heard)
	}
	if share, heard := start(dir, 2, 45, 80, 100, 100, 100); share != 0.4 || len(heard) > 0 {
		t.Errorf("the second start measured again: %v, %v", share, heard)
	}
	if share, heard := start(dir, 3, 45, 80, 100, 100, 100); share != 0 || len(heard) == 0 {
		t.Errorf("with other threads: %v, %v", share, heard)
	}
}

// wrong is a CPU that makes a mistake in the last of its outputs.
type wrong struct{ *partner }

func (w wrong) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	f, err := w.partner.Submit(p, stop)
	o := p.Ops[0].(compute.Linear).Out
	row := o.F32(o.Rows - 1)
	row[len(row)-1] += 1e3
	return f, err
}

// TestSplitTried: where the CPU's part is wrong, fails, cannot be had or hangs the GPU,
// prompts are read by the GPU alone, no kernel is blamed, and the next start knows.
func TestSplitTried(t *testing.T) {
	metaltest.Need(t)
	if testing.Short() {
		t.Skip("the plain run does this: the race detector does not watch the kernels")
	}
	for _, do := range []string{"nothing", "wrong", "fail", "closed", "hang", "hang later"} {
		t.Run(do, func(t *testing.T) {
			dir := t.TempDir()
			runs, lists := int64(0), 0
			start := func(do string) (heard []metalkern.Trial, shared map[int]float64, err error) {
				s, h := halved(t, 8)
				open := s.Open
				s.Open = func() (compute.Backend, error) {
					b, err := open()
					switch do {
					case "wrong":
						return wrong{h}, err
					case "fail":
						h.before = func(int64, *compute.Program) error { return errors.New("planted: the CPU failed") }
					case "closed":
						b.Close()
						return nil, errors.New("planted: there is no CPU")
					}
					return b, err
				}
				trials := &metalkern.Trials{Judge: judge, Dir: dir, Machine: "a test", Limit: time.Second, Heard: func(x metalkern.Trial) { heard = append(heard, x) }}
				b := onDevice(t, metaltest.Order{}, s, trials, func(d metalkern.Device) metalkern.Device {
					return &broken{d, func(d metalkern.Device, l *metalkern.List) (metalkern.Fence, error) {
						if len(l.Marks) > 0 {
							lists++
						}
						if len(l.Marks) > 0 && (do == "hang" || do == "hang later" && lists > 1) { // the first is a trial
							return fenceFunc(func(time.Duration) (time.Duration, error) { return 0, metalkern.ErrHung }), nil
						}
						return d.Submit(l)
					}}
				})
				pin(b, 0.4)
				if err = steps(b); do == "hang later" && err == nil {
					err = steps(b)
				}
				runs = h.runs.Load()
				return heard, b.(splitter).PromptSplit(), err
			}
			heard, shared, err := start(do)
			if strings.HasPrefix(do, "hang") {
				if !errors.Is(err, compute.ErrUnfit) {
					t.Fatal(err)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			for _, x := range heard {
				if x.Why != nil && x.Kernel != "cpu_split" {
					t.Errorf("%s is blamed: %v", x.Kernel, x.Why)
				}
			}
			if (do == "nothing") != (len(shared) == 1) {
				t.Errorf("told as %v", shared)
			}
			heard, shared, err = start(do)
			if err != nil || (do == "nothing") != (runs > 0) || (do == "nothing") != (len(shared) > 0) {
				t.Errorf("the next start: %v, %d parts of the CPU, tried %v, told as %v", err, runs, heard, shared)
			}
			if heard, _, err := start("nothing"); err != nil || len(heard) > 0 && (do == "nothing" || do == "wrong" || do == "fail") {
				t.Errorf("a start with a good CPU: %v, tried %v", err, heard)
			}
		})
	}
}

// TestNoSplit: without a Split, or with a share of 0, the setting changes nothing.
func TestNoSplit(t *testing.T) {
	metaltest.Need(t)
	b, _ := metaltest.Open(t, metaltest.Build{}, metaltest.Order{})
	x := newPrompt(t, b, sane(), 192, 64, 20)
	want := x.run(0, 20, 0)
	pin(b, 0.4)
	b.(splitter).SuspendPromptSplit()
	if !bits(x.run(0, 20, 0), want) || b.(splitter).PromptSplit() != nil {
		t.Error("a backend without a CPU shares")
	}
	c := onDevice(t, metaltest.Order{}, &metalkern.Split{Open: func() (compute.Backend, error) { return nil, errors.New("not asked for") }}, nil, func(d metalkern.Device) metalkern.Device { return d })
	pin(c, 0)
	if !bits(newPrompt(t, c, sane(), 192, 64, 20).run(0, 20, 0), want) || c.(splitter).PromptSplit() != nil {
		t.Error("a share of 0 is one")
	}
}
