package metalkern

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sort"
	"time"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// Trials makes a backend try each kernel, with the sizes and the weights of the
// model that runs, before it relies on it: its results must agree with the judge's,
// and of the variants that agree the fastest is taken. What was found is kept in a
// file for this machine and model, so that a later start tries nothing.
type Trials struct {
	// Judge opens the backend that results are compared with: float32, on the CPU,
	// taking buffers of any backend. It is closed again.
	Judge func() (compute.Backend, error)
	// Dir is the folder of the files; "" = nothing is kept.
	Dir string
	// Machine says all that a choice holds for besides the model: the chip, the
	// build of the system, the version of the program.
	Machine string
	// Again forgets what was tried before, but not what hung.
	Again bool
	// Limit is how long a kernel may take in a trial; 0 = 5 seconds.
	Limit time.Duration
	// Heard is told of each trial; nil = nobody is.
	Heard func(Trial)
}

// Trial is one variant of a kernel that was tried.
type Trial struct {
	Kernel, Variant string        // Variant is "" where there is only one way
	Key             string        // the class of shapes
	Why             error         // what is wrong with it; nil = it agrees
	Took            time.Duration // of the device, where variants were timed
	Chosen          bool
}

// UnfitError is the end of a backend on a machine: all ways to run a kernel fail.
// It is a compute.ErrUnfit.
type UnfitError struct {
	Kernel string
	Why    error
}

func (e *UnfitError) Error() string { return fmt.Sprintf("%s does not work here: %v", e.Kernel, e.Why) }

// Unwrap makes it a compute.ErrUnfit.
func (e *UnfitError) Unwrap() []error { return []error{compute.ErrUnfit, e.Why} }

// rehearsal is the state of a backend's trials.
type rehearsal struct {
	o       Trials
	formats map[string]bool // of the loaded weights: the shape of the model
	book    *book           // nil: nothing was run yet
	applied bool            // its choices are in use
	judge   compute.Backend // open during a run
	weights map[*compute.Weight]*compute.Weight
}

func newRehearsal(o Trials) *rehearsal {
	if o.Limit <= 0 {
		o.Limit = 5 * time.Second
	}
	return &rehearsal{o: o, formats: map[string]bool{}}
}

// saw notes a weight of the model.
func (r *rehearsal) saw(m layout.Matrix) {
	r.formats[fmt.Sprint(m.Scheme, m.Bits, m.Group, m.DType, m.Batch, m.Rows, m.Cols)] = true
}

// group is a run of ops that are lowered together, and their dispatches.
type group struct {
	ops, n, first, end int
}

// signature names what a group asks of the device: pipelines, sizes of weights, and
// roughly the grid. The same one need not be tried twice.
func (l *lowerer) signature(g group) uint64 {
	const prime = 1099511628211
	h := uint64(14695981039346656037)
	add := func(v uint64) { h = (h ^ v) * prime }
	for _, d := range l.list.Dispatches[g.first:g.end] {
		add(l.pipes.hashes[d.Pipeline])
		add(uint64(d.Threads)<<32 | uint64(d.Shared))
		size := uint64(0)
		for i := range d.Binds {
			b := int(d.Bind + i)
			if l.fixed[b] {
				add(l.list.Binds[b].Len)
				size += l.list.Binds[b].Len
			}
		}
		if size > 0 {
			add(uint64(d.Groups[0]))
		}
		class := func(n uint32) uint64 { return uint64(min(bitLen(n), 5)) }
		add(class(d.Groups[1])<<8 | class(d.Groups[2]))
	}
	return h
}

func bitLen(n uint32) (bits int) {
	for ; n > 0; n >>= 1 {
		bits++
	}
	return bits
}

func (v variant) hash() uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, v.kernel, v.constants[:v.n])
	return h.Sum64()
}

// relies reports whether all that the lowered program asks for was tried.
func (r *rehearsal) relies(l *lowerer) bool {
	if r.book == nil {
		return false
	}
	for _, g := range l.groups {
		if !r.book.proven[l.signature(g)] {
			return false
		}
	}
	return true
}

// run runs a program group by group and tries what was not tried before.
func (r *rehearsal) run(b *backend, p *compute.Program, stop *compute.Stop) (err error) {
	for i := range b.ring {
		b.ring[i].wait() // who started it has its error
	}
	if b.lost != nil {
		return b.lost
	}
	if r.book == nil {
		shape, err := r.shape(b.options)
		if err != nil {
			return err
		}
		if r.book, err = openBook(r.o, shape); err != nil {
			return err
		}
	}
	unlock := r.book.lock()
	defer unlock()
	if !r.applied {
		r.book.apply(b.choices)
		r.applied = true
	}
	defer func() {
		if r.judge != nil {
			for _, w := range r.weights {
				r.judge.Unload(w)
			}
			err = errors.Join(err, r.judge.Close())
			r.judge, r.weights = nil, nil
		}
		r.book.save()
	}()
	l := &b.ring[b.at].lower
	if err := l.program(p); err != nil { // choices may have come from the file
		return err
	}
	for _, g := range slices.Clone(l.groups) {
		if stop.IsSet() {
			return compute.ErrStopped
		}
		ops := p.Ops[g.ops : g.ops+g.n]
		if err := r.try(b, l, ops); err != nil {
			return err
		}
	}
	return nil
}

// try runs the ops of one group, which may be new.
func (r *rehearsal) try(b *backend, l *lowerer, ops []compute.Op) error {
	lower := func() error {
		return l.program(&compute.Program{Ops: ops})
	}
	b.choices.asked = b.choices.asked[:0]
	if err := lower(); err != nil {
		return err
	}
	if len(l.list.Dispatches) == 0 {
		return nil
	}
	keys := slices.Clone(b.choices.asked)
	kernel := func() string { return l.pipes.names[l.list.Dispatches[0].Pipeline] }
	// run is one run of the group as the choices are now.
	run := func() (time.Duration, error) {
		fence, err := b.dev.Submit(&l.list)
		if err != nil {
			return 0, err
		}
		took, err := fence.Wait(r.o.Limit)
		if errors.Is(err, ErrHung) {
			b.lose(err)
		}
		return took, err
	}
	if sig := l.signature(l.groups[0]); r.book.proven[sig] {
		_, err := run()
		return err
	}

	twin, err := r.twin(ops)
	if err != nil {
		return err
	}
	defer twin.close()
	// attempt tries the group once and compares.
	attempt := func(k Key, name string) (err error) {
		if err := lower(); err != nil {
			return err
		}
		for _, d := range l.list.Dispatches {
			if err := l.pipes.failed[d.Pipeline]; err != nil {
				return err
			}
		}
		twin.restore()
		r.book.trying(k, name)
		if _, err = run(); err == nil || b.lost == nil {
			r.book.tried()
		}
		if err != nil {
			return &deviceError{err}
		}
		return twin.compare()
	}
	blame := func(k Key, name string, err error) {
		var failed *deviceError
		r.book.blame(k, name, err.Error(), errors.As(err, &failed))
		r.tell(Trial{Kernel: k.Kernel, Variant: name, Key: k.String(), Why: err})
	}
	if len(keys) == 0 {
		k := Key{Kernel: kernel()}
		sig := l.signature(l.groups[0])
		k.Class[6], k.Class[7] = uint32(sig>>32), uint32(sig)
		if f := r.book.banned(k, ""); f != nil {
			return &UnfitError{"the kernel " + k.Kernel, errors.New(f.Why + "; this was found before, see " + r.book.where())}
		}
		if err := attempt(k, ""); err != nil {
			blame(k, "", err)
			return &UnfitError{"the kernel " + k.Kernel, err}
		}
		r.tell(Trial{Kernel: k.Kernel, Key: k.String(), Chosen: true})
		r.book.prove(sig)
		return nil
	}
	for _, k := range keys {
		if err := r.choose(b, k, attempt, blame, func() (time.Duration, error) {
			if err := lower(); err != nil {
				return 0, err
			}
			return run()
		}); err != nil {
			return err
		}
	}
	if err := lower(); err != nil {
		return err
	}
	twin.restore()
	if _, err := run(); err != nil {
		return err
	}
	r.book.prove(l.signature(l.groups[0]))
	return nil
}

// deviceError is an error of the device, not a wrong result.
type deviceError struct{ error }

func (e *deviceError) Unwrap() error { return e.error }

// choose tries the variants of a key and takes the fastest that agrees. A variant
// that was chosen before is only tried: the others come when it fails.
func (r *rehearsal) choose(b *backend, k Key, attempt func(Key, string) error, blame func(Key, string, error), again func() (time.Duration, error)) error {
	list := variants[k.Kernel]
	var order []int
	chosen, known := b.choices.chosen[k]
	if known {
		order = append(order, chosen)
	}
	for i := range list {
		if !known || i != chosen {
			order = append(order, i)
		}
	}
	var good []int
	var last error
	for _, i := range order {
		if f := r.book.banned(k, list[i].Name); f != nil {
			last = fmt.Errorf("%s; this was found before, see %s", f.Why, r.book.where())
			continue
		}
		b.choices.chosen[k] = i
		if err := attempt(k, list[i].Name); err != nil {
			last = err
			blame(k, list[i].Name, err)
			if b.lost != nil {
				return b.lost
			}
			continue
		}
		good = append(good, i)
		if known && i == chosen {
			r.tell(Trial{Kernel: k.Kernel, Variant: list[i].Name, Key: k.String(), Chosen: true})
			return nil
		}
	}
	if len(good) == 0 {
		delete(b.choices.chosen, k)
		return &UnfitError{"the kernel " + k.Kernel, last}
	}
	const runs = 5
	best, bestTime := good[0], time.Duration(math.MaxInt64)
	times := make([]time.Duration, len(good))
	for at, i := range good {
		if len(good) == 1 {
			break
		}
		b.choices.chosen[k] = i
		var took []time.Duration
		for range runs {
			t, err := again()
			if err != nil {
				blame(k, list[i].Name, &deviceError{err})
				if b.lost != nil {
					return b.lost
				}
				took = nil
				break
			}
			took = append(took, t)
		}
		if took == nil {
			continue
		}
		sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
		times[at] = took[runs/2]
		if float64(times[at]) < 0.97*float64(bestTime) { // the earlier one where it hardly matters
			best, bestTime = i, times[at]
		}
	}
	if len(good) > 1 && bestTime == math.MaxInt64 {
		return &UnfitError{"the kernel " + k.Kernel, errors.New("every variant failed when it was timed")}
	}
	for at, i := range good {
		r.tell(Trial{Kernel: k.Kernel, Variant: list[i].Name, Key: k.String(), Took: times[at], Chosen: i == best})
	}
	b.choices.chosen[k] = best
	r.book.choose(k, list[best].Name)
	return nil
}

func (r *rehearsal) tell(t Trial) {
	if r.o.Heard != nil {
		r.o.Heard(t)
	}
}
