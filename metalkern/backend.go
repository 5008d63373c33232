package metalkern

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// backend runs programs on a Device.
type backend struct {
	compute.SubmitCounter
	dev     Device
	options Options
	choices *choices
	pace    pace
	trials  *rehearsal // nil: kernels run untried
	split   *splitter  // nil: prompts are read by the GPU alone
	lost    error      // the device hangs: nothing of it may be touched
	ring    [3]slot    // programs in flight
	at      int
}

// slot is the work memory of one program in flight.
type slot struct {
	lower   lowerer
	running *pending // nil: none so far
}

func (s *slot) wait() error {
	if s.running == nil {
		return nil
	}
	return s.running.Wait()
}

// pending is a program in flight.
type pending struct {
	b      *backend
	fence  Fence
	shared bool              // the CPU has a part of it
	held   []*compute.Buffer // what it uses must not go before its end
	done   bool
	err    error
}

// Wait returns when the program has ended.
func (p *pending) Wait() error {
	if !p.done {
		p.done = true
		if _, p.err = p.fence.Wait(patience); errors.Is(p.err, ErrHung) {
			p.err = p.b.lose(fmt.Errorf("%w: it did not end with a forward pass within %v", p.err, patience))
			if r := p.b.trials; r != nil && p.shared { // at the next start the GPU has prompts for itself
				r.book.enter(func() { r.book.blame(splitKey, splitName, p.err.Error(), true) })
			}
			return p.err // the buffers stay: it may still use them
		}
		for _, b := range p.held {
			b.Release()
		}
	}
	return p.err
}

// patience is how long a list may take before the device counts as lost. A list is
// one forward pass or one chunk of a prompt.
const patience = time.Minute

// hung are devices that were given up: they may still use their memory, so that
// it stays for as long as the process lives.
var hung struct {
	sync.Mutex
	devices []Device
}

// lose gives the device up.
func (b *backend) lose(err error) error {
	hung.Lock()
	hung.devices = append(hung.devices, b.dev)
	hung.Unlock()
	b.lost = &unfitError{"the GPU", err}
	if b.split != nil {
		b.split.fail(b.lost)
	}
	return b.lost
}

// Options says how a backend works.
type Options struct {
	// Activations is what lies between ops: F32 (0 means that too), F16 or BF16.
	// Sums are float32 in any case.
	Activations layout.DType
	// Relaxed lets 9 to 16 rows of a Linear use the matrix units, which sum in
	// another order: a row's bits then depend on how many rows run with it.
	Relaxed bool
	// Trials makes the backend try each kernel before it relies on it; nil = it
	// relies on them.
	Trials *Trials
	// Split lets the CPU take part in prompts; nil = it does not. How much is said by
	// a method of the backend, SetPromptSplit; by default that is measured.
	Split *Split
}

// New returns a backend that owns the device until Close.
func New(d Device, o Options) compute.Backend {
	b := &backend{dev: d, options: o, choices: &choices{chosen: map[Key]int{}}}
	pipes := &pipelines{dev: d, ids: map[variant]uint32{}, hashes: map[uint32]uint64{}, names: map[uint32]string{}}
	if o.Split != nil {
		b.split = &splitter{o: *o.Split, dev: d, fracs: map[int]float64{}}
		if b.split.o.Tile <= 0 {
			b.split.o.Tile = 64
		}
	}
	for i := range b.ring {
		b.ring[i].lower.split = b.split
		b.ring[i].lower.dev, b.ring[i].lower.pipes, b.ring[i].lower.choices, b.ring[i].lower.options = d, pipes, b.choices, o
	}
	if o.Trials != nil {
		b.trials = newRehearsal(*o.Trials)
		pipes.failed = map[uint32]error{}
	}
	return b
}

// Name returns "metal".
func (*backend) Name() string { return "metal" }

// Activations makes scratch memory hand out views of that type.
func (b *backend) Activations() layout.DType {
	if b.options.Activations == 0 {
		return layout.F32
	}
	return b.options.Activations
}

// Alloc returns zeroed memory that CPU and GPU share.
func (b *backend) Alloc(label string, bytes int) (*compute.Buffer, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("%s: cannot allocate %d bytes", label, bytes)
	}
	if bytes == 0 {
		return compute.NewBuffer(label, nil, nil, nil), nil
	}
	m, err := b.dev.Alloc(bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot allocate %d bytes: %w", label, bytes, err)
	}
	return compute.NewBuffer(label, m.Bytes, m, func() { b.free(m) }), nil
}

// free gives memory back; what a closed backend leaves went with its device.
func (b *backend) free(m Memory) {
	if b.dev != nil && b.lost == nil && m.ID != 0 {
		b.dev.Free(m)
	}
}

// loaded is the Handle of a Weight.
type loaded struct {
	weight, scales, biases Memory
	parts                  *parts // nil: the GPU has it whole
}

// Load wraps the bytes of m where they lie. Bytes that the device cannot map are
// copied.
func (b *backend) Load(m layout.Matrix) (*compute.Weight, error) {
	if m.Rows > 0 && m.Cols > 0 {
		if err := m.Check(); err != nil {
			return nil, err
		}
	}
	const most = 1 << 31 // the kernels count rows and columns in 32 bits
	if m.Rows < 0 || m.Cols < 0 || m.Batch < 0 || m.Rows >= most || m.Cols >= most || m.Batch >= most {
		return nil, fmt.Errorf("%s: shape %d x %dx%d is not possible", m.Name, m.Batch, m.Rows, m.Cols)
	}
	if (m.Scheme == layout.Dense || m.Scheme == layout.Affine) && m.DType != layout.F32 && m.DType != layout.F16 && m.DType != layout.BF16 {
		return nil, fmt.Errorf("%w: elements of type %v have no kernel (%s)", compute.ErrUnfit, m.DType, m.Name)
	}
	if b.trials != nil {
		b.trials.saw(m)
	}
	h := &loaded{}
	w := &compute.Weight{Matrix: m, Handle: h}
	for _, part := range []struct {
		bytes []byte
		to    *Memory
	}{{m.Weight, &h.weight}, {m.Scales, &h.scales}, {m.Biases, &h.biases}} {
		if len(part.bytes) == 0 {
			continue
		}
		if mem, err := b.dev.Wrap(part.bytes); err == nil {
			*part.to = mem
			continue
		}
		mem, err := b.dev.Alloc(len(part.bytes))
		if err != nil {
			b.Unload(w)
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		copy(mem.Bytes, part.bytes)
		*part.to, w.Repacked = mem, true
	}
	return w, nil
}

// Unload frees what Load made. Unloading twice does nothing.
func (b *backend) Unload(w *compute.Weight) {
	h, ok := w.Handle.(*loaded)
	if !ok {
		return
	}
	w.Handle = nil
	for i := range b.ring { // the GPU may still read it
		b.ring[i].wait()
	}
	b.split.forget(h)
	for _, m := range []Memory{h.weight, h.scales, h.biases} {
		b.free(m)
	}
}

// Submit lowers p and starts it: one list, one command buffer. A stop that is set
// before is obeyed; one that is set later ends what the CPU has a part in, and any
// other program that has started runs to its end.
func (b *backend) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	if err := p.Err(); err != nil {
		return nil, err
	}
	if b.dev == nil {
		return nil, errors.New("metal: the backend is closed")
	}
	if b.lost != nil {
		return nil, b.lost
	}
	b.Count(p.Label)
	if stop.IsSet() {
		return compute.Done{Err: compute.ErrStopped}, nil
	}
	if err := b.decide(p, stop); err != nil {
		return compute.Done{Err: err}, nil
	}
	s := &b.ring[b.at]
	b.at = (b.at + 1) % len(b.ring)
	s.wait() // its error is that program's
	if err := s.lower.program(p); err != nil {
		return nil, err
	}
	if len(s.lower.list.Dispatches) == 0 {
		return compute.Done{}, nil
	}
	if b.trials != nil && !b.trials.relies(&s.lower) {
		return compute.Done{Err: b.trials.run(b, p, stop)}, nil
	}
	fence, err := b.submit(&s.lower.list, s.lower.work, stop)
	if err != nil {
		return nil, err
	}
	s.running = &pending{b: b, fence: fence, shared: len(s.lower.work) > 0, held: slices.Clone(s.lower.used)}
	for _, buf := range s.running.held {
		buf.Retain()
	}
	return s.running, nil
}

// Close ends what runs and closes the device. Closing twice does nothing.
func (b *backend) Close() error {
	if b.dev == nil {
		return nil
	}
	for i := range b.ring {
		b.ring[i].wait() // who started it has its error
		b.ring[i].lower.close()
	}
	err := b.split.close()
	if b.lost == nil {
		err = errors.Join(err, b.dev.Close())
	}
	b.dev = nil
	return err
}

// variant is a kernel with its function constants.
type variant struct {
	kernel    string
	n         int
	constants [16]uint32
}

// pipelines are the variants that were asked for so far.
type pipelines struct {
	dev    Device
	ids    map[variant]uint32
	hashes map[uint32]uint64 // of the variants, by id
	names  map[uint32]string // of the kernels, by id
	// failed are those that the device cannot make, under ids of their own: what
	// needs them is not run. nil: the first one ends the lowering.
	failed map[uint32]error
}

func (p *pipelines) get(v variant) (uint32, error) {
	if id, ok := p.ids[v]; ok {
		return id, nil
	}
	var c []Constant
	for i, bits := range v.constants[:v.n] {
		c = append(c, Constant{uint32(i), bits})
	}
	id, err := p.dev.Pipeline(v.kernel, c)
	if err != nil {
		err = fmt.Errorf("kernel %s with constants %v: %w", v.kernel, v.constants[:v.n], err)
		if p.failed == nil {
			return 0, err
		}
		id = ^uint32(len(p.failed))
		p.failed[id] = err
	}
	p.ids[v], p.hashes[id], p.names[id] = id, v.hash(), v.kernel
	return id, nil
}

// scratch is device memory that only grows; what it has outgrown stays until the
// next program, because dispatches of this one may use it.
type scratch struct {
	mem Memory
	old []Memory
}

func (s *scratch) get(d Device, bytes int) (Memory, error) {
	if bytes > len(s.mem.Bytes) {
		m, err := d.Alloc(max((bytes+0xffff)&^0xffff, 2*len(s.mem.Bytes)))
		if err != nil {
			return m, fmt.Errorf("work memory of %d bytes: %w", bytes, err)
		}
		if s.mem.ID != 0 {
			s.old = append(s.old, s.mem)
		}
		s.mem = m
	}
	m := s.mem
	m.Bytes = m.Bytes[:bytes]
	return m, nil
}

func (s *scratch) trim(d Device) {
	for _, m := range s.old {
		d.Free(m)
	}
	s.old = s.old[:0]
}

// span is a stretch of a buffer that a dispatch touches.
type span struct {
	buffer uint32
	lo, hi uint64
}

func overlaps(list []span, s span) bool {
	return slices.ContainsFunc(list, func(o span) bool { return o.buffer == s.buffer && o.lo < s.hi && s.lo < o.hi })
}
