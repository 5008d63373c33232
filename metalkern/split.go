package metalkern

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// Split lets the CPU make a part of each quantized Linear of a prompt's rows while the
// GPU makes the rest (cpu_split). The share of a weight is its last rows, that is
// output columns, the same for every row of every prompt: had it the first rows of a
// chunk instead, as elsewhere, a row's bits would depend on its place in the chunk.
// Rows of answers, and programs of drafters, are never shared.
type Split struct {
	// Open opens the CPU's backend: float32, reading weights where they lie, and
	// taking buffers of any backend.
	Open func() (compute.Backend, error)
	// Threads is how many threads it has: shares that were measured are kept for it.
	Threads int
	// Tile is what the GPU's outputs are a multiple of; 0 = 64, the widest tile of
	// linear_tiles, below which the GPU loses. Less is for sharing the narrow layers
	// of tests.
	Tile int
}

const (
	widestShare = 65536 // wider ones are heads, which answers use
	// A share is measured with a long chunk and a short one, because both are shared.
	longChunk, shortChunk = 512, 32
	shareRuns             = 3
)

// shareFractions are tried in this order; beyond the balance of the two devices a
// larger share is slower.
var shareFractions = []float64{0, 0.1, 0.2, 0.3, 0.4}

// splitKey and splitName are the sharing in the book and in trials.
var splitKey = Key{Kernel: "cpu_split"}

const splitName = "the CPU's part"

// splitter is the CPU's side of a backend. All but what is atomic belongs to the
// goroutine that uses the backend; run has one of its own.
type splitter struct {
	o         Split
	dev       Device
	fraction  *float64 // nil: measured; 0: the CPU takes part in nothing
	fracs     map[int]float64
	cpu       compute.Backend // nil: not opened yet
	off       error           // why it is not used any more
	suspended atomic.Bool
	dead      atomic.Bool // the GPU hangs: no list waits for it any more
	told      atomic.Pointer[map[int]float64]

	value uint64 // of the last meeting
	jobs  chan *job
	ended chan struct{} // closed when the goroutine has ended
}

// SetPromptSplit says what the CPU makes of a prompt's wide layers: a fraction of
// them, 0 = nothing, nil = what measurements say is best. It comes before the first
// program.
func (b *backend) SetPromptSplit(fraction *float64) {
	if b.split != nil {
		b.split.fraction = fraction
	}
}

// PromptSplit returns the CPU's fraction by the width of a layer, its outputs, as far
// as it is known; nil where it makes nothing. Any goroutine may call it.
func (b *backend) PromptSplit() map[int]float64 {
	if b.split == nil {
		return nil
	}
	if m := b.split.told.Load(); m != nil {
		return *m
	}
	return nil
}

// SuspendPromptSplit ends the CPU's part with the next program. Any goroutine may
// call it.
func (b *backend) SuspendPromptSplit() {
	if b.split != nil {
		b.split.suspended.Store(true)
	}
}

// shares reports whether the CPU takes part in a program.
func (s *splitter) shares(p *compute.Program) bool {
	return s != nil && s.off == nil && s.cpu != nil && !s.suspended.Load() && p.Label != compute.LabelDraft
}

// fail ends the CPU's part for good.
func (s *splitter) fail(err error) {
	s.off = err
	s.told.Store(nil)
}

// splittable reports whether a Linear has a part that the CPU could make.
func (s *splitter) splittable(o compute.Linear) bool {
	ok := func(w *compute.Weight) bool {
		return w.Scheme != layout.Dense && w.Batch == 0 && 2*s.o.Tile <= w.Rows && w.Rows <= widestShare
	}
	return ok(o.W) && (o.Up == nil || ok(o.Up)) && o.Adapter == nil && o.UpAdapter == nil && o.Prefill < o.X.Rows && o.X.Rows > 0
}

// cutAt is how many outputs of a weight the GPU makes when the CPU makes a fraction.
func (s *splitter) cutAt(rows int, fraction float64) int {
	tile := s.o.Tile
	n := shareOf(rows, fraction, tile)
	if n == 0 {
		return rows
	}
	return max((rows-n)/tile*tile, tile)
}

// shareOf is a fraction of rows in whole tiles.
func shareOf(rows int, fraction float64, tile int) int {
	return int(math.Round(float64(rows)*fraction/float64(tile))) * tile
}

// parts are a weight's outputs for the two devices.
type parts struct {
	cut      int
	gpu, cpu *compute.Weight
}

// parts cuts a weight, without a copy.
func (s *splitter) parts(w *compute.Weight, cut int) (*parts, error) {
	h, ok := w.Handle.(*loaded)
	if !ok {
		return nil, fmt.Errorf("weight %s does not belong to this backend", w.Name)
	}
	if h.parts != nil && h.parts.cut == cut {
		return h.parts, nil
	}
	s.forget(h)
	whole := w.Matrix
	whole.Weight, whole.Scales, whole.Biases = h.weight.Bytes, h.scales.Bytes, h.biases.Bytes
	first, last := whole.RowRange(0, cut), whole.RowRange(cut, whole.Rows)
	cpu, err := s.cpu.Load(last)
	if err != nil {
		return nil, err
	}
	gpu := &loaded{weight: h.weight, scales: h.scales, biases: h.biases}
	gpu.weight.Bytes, gpu.scales.Bytes, gpu.biases.Bytes = first.Weight, first.Scales, first.Biases
	h.parts = &parts{cut, &compute.Weight{Matrix: first, Handle: gpu}, cpu}
	return h.parts, nil
}

// forget gives up the parts of a weight. No program that uses them is in flight.
func (s *splitter) forget(h *loaded) {
	if s != nil && s.cpu != nil && h.parts != nil {
		s.cpu.Unload(h.parts.cpu)
		h.parts = nil
	}
}

// meeting is what the CPU reads and writes until the mark at which it has ended.
type meeting struct{ reads, writes []span }

// concerns reports whether a dispatch has to wait for it.
func (m *meeting) concerns(binds []bind) bool {
	return m != nil && slices.ContainsFunc(binds, func(b bind) bool {
		s := span{b.Buffer, b.Off, b.Off + b.Len}
		return (b.reads || b.writes) && overlaps(m.writes, s) || b.writes && overlaps(m.reads, s)
	})
}

// meet makes what follows wait for the CPU.
func (l *lowerer) meet() {
	if l.meeting != nil {
		l.list.Marks = append(l.list.Marks, Mark{At: u32(len(l.list.Dispatches)), Wait: 1, Value: uint64(len(l.work))})
		l.meeting = nil
	}
}

// handOver hands the CPU its part of rows prefill and up of Linears with one input,
// and returns what of them is left for the GPU. done follows once the GPU's dispatches
// are in the list.
func (l *lowerer) handOver(ops []compute.Op, prefill int) (left []compute.Op, done func() error, err error) {
	nothing := func() error { return nil }
	x := ops[0].(compute.Linear).X
	rows := x.Rows - prefill
	if !l.share || rows == 0 {
		return ops, nothing, nil
	}
	var mine []compute.Linear // of the CPU
	left = slices.Clone(ops)
	size := 0 // bytes of work memory
	room := func(t layout.DType, cols int) {
		if t != layout.F32 {
			size += 4*rows*cols + 64
		}
	}
	for i, op := range ops {
		o := op.(compute.Linear)
		cut := o.W.Rows
		if l.split.splittable(o) {
			cut = l.split.cutAt(o.W.Rows, l.split.fracs[o.W.Rows])
		}
		if cut == o.W.Rows {
			continue
		}
		columns := func(v compute.View, lo, hi int) compute.View {
			if v.Given() {
				v = v.Columns(lo, hi)
			}
			return v
		}
		gpu, cpu := o, o
		w, err := l.split.parts(o.W, cut)
		if err == nil {
			gpu.W, cpu.W = w.gpu, w.cpu
			if o.Up != nil {
				if w, err = l.split.parts(o.Up, cut); err == nil {
					gpu.Up, cpu.Up = w.gpu, w.cpu
				}
			}
		}
		if err != nil {
			l.split.fail(err)
			l.share = false
			return ops, nothing, nil
		}
		for _, part := range []struct {
			o      *compute.Linear
			lo, hi int
		}{{&gpu, 0, cut}, {&cpu, cut, o.W.Rows}} {
			part.o.Bias, part.o.UpBias = columns(o.Bias, part.lo, part.hi), columns(o.UpBias, part.lo, part.hi)
			part.o.Residual, part.o.Out = columns(o.Residual, part.lo, part.hi), columns(o.Out, part.lo, part.hi)
		}
		cpu.Prefill, cpu.Out = 0, cpu.Out.Slice(prefill, x.Rows)
		if o.Residual.Given() {
			cpu.Residual = cpu.Residual.Slice(prefill, x.Rows)
			room(o.Residual.Type, o.W.Rows-cut)
		}
		room(o.Out.Type, o.W.Rows-cut)
		left[i], mine = gpu, append(mine, cpu)
	}
	if len(mine) == 0 {
		return ops, nothing, nil
	}
	x = x.Slice(prefill, x.Rows)
	room(x.Type, x.Cols)
	var work *compute.Buffer
	if size > 0 {
		m, err := l.floats.get(l.dev, size)
		if err != nil {
			return nil, nil, err
		}
		work = compute.NewBuffer(workMemory, m.Bytes, m, nil)
	}
	used := 0
	wide := func(v compute.View) compute.View { // memory for v as float32
		w := work.Of(layout.F32, used, v.Rows, v.Cols)
		used += (4*v.Rows*v.Cols + 63) &^ 63
		return w
	}
	reading := func(v compute.View) (compute.View, error) {
		if !v.Given() || v.Type == layout.F32 {
			return v, nil
		}
		w := wide(v)
		return w, l.copyRows(compute.CopyRows{Src: v, Dst: w})
	}
	var m meeting
	touch := func(list *[]span, v compute.View) {
		if b := l.view(v); b.Len > 0 {
			*list = append(*list, span{b.Buffer, b.Off, b.Off + b.Len})
		}
	}
	if x, err = reading(x); err != nil {
		return nil, nil, err
	}
	touch(&m.reads, x)
	var rounded []compute.CopyRows // results to what the activations are
	for i := range mine {
		o := &mine[i]
		o.X = x
		if o.Residual, err = reading(o.Residual); err != nil {
			return nil, nil, err
		}
		if o.Out.Type != layout.F32 {
			w := wide(o.Out)
			rounded = append(rounded, compute.CopyRows{Src: w, Dst: o.Out})
			o.Out = w
		}
		touch(&m.reads, o.Residual)
		touch(&m.writes, o.Out)
	}
	l.meet() // with what came before
	var p compute.Program
	for _, o := range mine {
		p.Add(o)
	}
	l.work = append(l.work, p)
	l.list.Marks = append(l.list.Marks, Mark{At: u32(len(l.list.Dispatches)), Value: uint64(len(l.work))})
	return left, func() error {
		l.meeting = &m
		for _, o := range rounded {
			if err := l.copyRows(o); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// job is the CPU's work of one list.
type job struct {
	first     uint64 // value of its first meeting
	work      []compute.Program
	stop      *compute.Stop
	quit      atomic.Bool // nobody waits for it any more
	computing atomic.Bool
	done      chan struct{}
	err       error // once done
}

// glance is how long the one device waits for the other before it looks whether it
// still has to.
const glance = 50 * time.Millisecond

// run does the work of lists in the order of their submission.
func (s *splitter) run() {
	defer close(s.ended)
	for j := range s.jobs {
		over := func() bool { return j.err != nil || j.quit.Load() || s.dead.Load() }
		for i := range j.work {
			value := j.first + uint64(i)
			for !over() && !s.dev.Await(value, glance) {
				if j.stop.IsSet() {
					j.err = compute.ErrStopped
				}
			}
			if !over() {
				j.computing.Store(true)
				j.err = compute.Run(s.cpu, &j.work[i], j.stop)
				j.computing.Store(false)
			}
			if over() {
				break
			}
			s.dev.Answer(value)
		}
		s.dev.Answer(j.first + uint64(len(j.work)) - 1) // the GPU goes on at once where there is nothing to wait for
		close(j.done)
	}
}

// open opens the CPU's side.
func (s *splitter) open() error {
	b, err := s.o.Open()
	if err != nil {
		return fmt.Errorf("the CPU cannot take part in prompts: %w", err)
	}
	s.cpu, s.jobs, s.ended = b, make(chan *job, 64), make(chan struct{})
	go s.run()
	return nil
}

// close ends the CPU's side. No list is in flight.
func (s *splitter) close() error {
	if s == nil || s.cpu == nil {
		return nil
	}
	close(s.jobs)
	<-s.ended
	err := s.cpu.Close()
	s.cpu = nil
	return err
}

// launch starts a list and the CPU's work of it.
func (b *backend) launch(l *List, work []compute.Program, stop *compute.Stop) (Fence, error) {
	if len(l.Marks) == 0 {
		return b.dev.Submit(l)
	}
	s := b.split
	j := &job{first: s.value + 1, work: work, stop: stop, done: make(chan struct{})}
	x := *l
	x.Marks = slices.Clone(l.Marks)
	from := x.Marks[0].Value // the list may be a part of one
	for i := range x.Marks {
		x.Marks[i].Value += s.value + 1 - from
	}
	s.value += uint64(len(work))
	s.jobs <- j
	f, err := b.dev.Submit(&x)
	if err != nil {
		j.quit.Store(true)
		<-j.done
		return nil, err
	}
	return &sharedFence{f, s, j}, nil
}

// sharedFence is a list in flight that the CPU has a part of.
type sharedFence struct {
	Fence
	split *splitter
	job   *job
}

// Wait waits for both devices. The time that the CPU works is none in which the GPU
// could hang. If the CPU fails, it has no part in what comes.
func (f *sharedFence) Wait(limit time.Duration) (time.Duration, error) {
	for waited := time.Duration(0); ; waited += glance {
		took, err := f.Fence.Wait(glance)
		if hangs := errors.Is(err, ErrHung); hangs && waited+glance < limit {
			if f.job.computing.Load() {
				waited -= glance
			}
			continue
		} else if hangs {
			f.split.dead.Store(true)
			<-f.job.done
			return took, err
		}
		f.job.quit.Store(true) // the GPU needs nothing more
		<-f.job.done
		if err == nil {
			if err = f.job.err; err != nil && !errors.Is(err, compute.ErrStopped) {
				f.split.fail(err)
			}
		}
		return took, err
	}
}

// decide finds the CPU's shares of the layers that a program has and none had before.
func (b *backend) decide(p *compute.Program, stop *compute.Stop) error {
	s := b.split
	if s == nil || s.off != nil || s.suspended.Load() || s.fraction != nil && *s.fraction == 0 || p.Label == compute.LabelDraft {
		return nil
	}
	for _, op := range p.Ops {
		o, ok := op.(compute.Linear)
		if !ok || !s.splittable(o) {
			continue
		}
		if _, known := s.fracs[o.W.Rows]; known {
			continue
		}
		f, err := b.share(o.W, stop)
		if err != nil {
			return err
		}
		if s.off != nil {
			return nil
		}
		s.fracs[o.W.Rows] = f
		told := maps.Clone(s.fracs)
		maps.DeleteFunc(told, func(rows int, f float64) bool { return s.cutAt(rows, f) == rows })
		if len(told) > 0 {
			s.told.Store(&told)
		}
	}
	return nil
}

// share is the CPU's share of weights like w.
func (b *backend) share(w *compute.Weight, stop *compute.Stop) (float64, error) {
	s, r := b.split, b.trials
	if r != nil {
		if err := r.open(b); err != nil {
			return 0, err
		}
		if f := r.book.banned(splitKey, splitName); f != nil {
			s.fail(r.book.known(f))
			return 0, nil
		}
	}
	if s.cpu == nil {
		if err := s.open(); err != nil {
			s.fail(err)
			return 0, nil
		}
	}
	if s.fraction != nil {
		return *s.fraction, nil
	}
	if r != nil {
		if f, ok := r.book.shares[w.Rows]; ok {
			return f, nil
		}
	}
	times, err := b.timeShares(w, stop)
	if err != nil || s.off != nil {
		return 0, err
	}
	f := chooseShare(times)
	if r != nil {
		for i, t := range times {
			r.tell(Trial{Kernel: splitKey.Kernel, Variant: fmt.Sprintf("%.0f %% on the CPU", 100*shareFractions[i]), Key: fmt.Sprint(splitKey.Kernel, " ", w.Rows), Took: t, Chosen: shareFractions[i] == f})
		}
		r.book.enter(func() { r.book.share(w.Rows, f) })
	}
	return f, nil
}

// chooseShare takes the smallest fraction whose time is within 3 % of the best, if that
// is 5 % better than the first, the GPU alone. There may be fewer times than fractions.
func chooseShare(times []time.Duration) float64 {
	if best := pickFraction(times); float64(times[best]) <= 0.95*float64(times[0]) {
		return shareFractions[best]
	}
	return 0
}

// pickFraction returns the first time that is within 3 % of the best.
func pickFraction(times []time.Duration) int {
	best := slices.Min(times)
	return slices.IndexFunc(times, func(t time.Duration) bool { return float64(t) <= 1.03*float64(best) })
}

// timeShares times a layer with the weight w for each fraction, a long chunk and a
// short one together.
func (b *backend) timeShares(w *compute.Weight, stop *compute.Stop) (times []time.Duration, err error) {
	s := b.split
	defer delete(s.fracs, w.Rows)
	t := b.Activations()
	in, err := b.Alloc("measured rows", longChunk*w.Cols*t.Size())
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out, err := b.Alloc("measured results", longChunk*w.Rows*t.Size())
	if err != nil {
		return nil, err
	}
	defer out.Close()
	one := map[layout.DType][]byte{layout.F32: {0, 0, 0x80, 0x3f}, layout.F16: {0, 0x3c}, layout.BF16: {0x80, 0x3f}}[t]
	for i := range in.Bytes {
		if in.Bytes[i] = one[i%len(one)]; i%len(one) == len(one)-1 && i*2654435761>>16&1 == 1 {
			in.Bytes[i] |= 0x80
		}
	}
	for _, f := range shareFractions {
		s.fracs[w.Rows] = f
		if f > 0 && s.cutAt(w.Rows, f) == w.Rows {
			times = append(times, times[0])
			continue
		}
		var sum time.Duration
		for _, rows := range []int{longChunk, shortChunk} {
			var p compute.Program
			p.Add(compute.Linear{X: in.Of(t, 0, rows, w.Cols), W: w, Scale: 1, Out: out.Of(t, 0, rows, w.Rows)})
			took, err := b.timed(&p, stop)
			if f > 0 && err != nil && b.lost == nil && !errors.Is(err, compute.ErrStopped) {
				s.fail(err)
				return nil, nil
			}
			if err != nil || s.off != nil {
				return nil, err
			}
			sum += took
		}
		times = append(times, sum)
		if float64(sum) > 1.2*float64(slices.Min(times)) {
			break // past the balance
		}
	}
	return times, nil
}

// timed runs a program some times and returns the device's time, after it was tried.
func (b *backend) timed(p *compute.Program, stop *compute.Stop) (time.Duration, error) {
	x := &b.ring[b.at]
	var took []time.Duration
	for range shareRuns {
		for i := range b.ring {
			b.ring[i].wait() // who started it has its error
		}
		if stop.IsSet() {
			return 0, compute.ErrStopped
		}
		if err := x.lower.program(p); err != nil {
			return 0, err
		}
		if b.trials != nil && !b.trials.relies(&x.lower) {
			if err := b.trials.run(b, p, stop); err != nil {
				return 0, err
			}
			if err := x.lower.program(p); err != nil {
				return 0, err
			}
		}
		f, err := b.launch(&x.lower.list, x.lower.work, stop)
		if err != nil {
			return 0, err
		}
		one, err := f.Wait(patience)
		if errors.Is(err, ErrHung) {
			return 0, b.lose(err)
		}
		if err != nil {
			return 0, err
		}
		took = append(took, one)
	}
	slices.Sort(took)
	return took[shareRuns/2], nil
}
