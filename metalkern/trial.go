package metalkern

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"slices"
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
	// Dir is the folder of the files; "" = nothing is kept, and neither where it cannot
	// be written.
	Dir string
	// Machine is the chip and the build of the system. What hung or crashed there stays
	// out for as long as the kernels are the same.
	Machine string
	// Version is that of the program: another one tries everything else anew.
	Version string
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

// unfitError is the end of a backend on a machine: all ways to run a kernel fail.
// It is a compute.ErrUnfit.
type unfitError struct {
	Kernel string
	Why    error
}

func (e *unfitError) Error() string { return fmt.Sprintf("%s does not work here: %v", e.Kernel, e.Why) }

// Unwrap makes it a compute.ErrUnfit.
func (e *unfitError) Unwrap() []error { return []error{compute.ErrUnfit, e.Why} }

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
	shared             bool // the CPU makes a part of it
}

// signature names what a group asks of the device: pipelines, variants, sizes of
// weights, and roughly the grid. The same one need not be tried twice.
func (l *lowerer) signature(g group) uint64 {
	h := fnv.New64a()
	var word [8]byte
	add := func(v uint64) {
		binary.LittleEndian.PutUint64(word[:], v)
		h.Write(word[:])
	}
	if g.shared {
		add(1)
	}
	for i, d := range l.list.Dispatches[g.first:g.end] {
		add(l.pipes.hashes[d.Pipeline])
		if k := l.keys[g.first+i]; k.Kernel != "" {
			h.Write([]byte(l.choices.name(k)))
		}
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
		class := func(n uint32) uint64 { return uint64(min(bits.Len32(n), 5)) }
		add(class(d.Groups[1])<<8 | class(d.Groups[2]))
	}
	return h.Sum64()
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
		if g.first < g.end && !r.tried(l, g) {
			return false
		}
	}
	return true
}

// tried reports whether a group was tried, and nothing of it is known to be bad.
func (r *rehearsal) tried(l *lowerer, g group) bool {
	for i := g.first; i < g.end && len(r.book.faults) > 0; i++ {
		if k, name := l.author(i); r.book.banned(k, name) != nil {
			return false
		}
	}
	return r.book.proven[l.signature(g)]
}

// author is the key of a dispatch and the variant that the key has now; where there is
// one way only, a key of its own and "".
func (l *lowerer) author(i int) (Key, string) {
	if k := l.keys[i]; k.Kernel != "" {
		return k, l.choices.name(k)
	}
	id := l.list.Dispatches[i].Pipeline
	h := l.pipes.hashes[id]
	return Key{l.pipes.names[id], [8]uint32{6: uint32(h >> 32), 7: uint32(h)}}, ""
}

// open reads the book, once all weights of the model are known.
func (r *rehearsal) open(b *backend) error {
	if r.book != nil {
		return nil
	}
	sources, err := sourcesSum()
	if err != nil {
		return err
	}
	r.book = openBook(r.o, r.shape(sources, b.options), sources)
	if r.book.kept {
		r.book.read()
	}
	return nil
}

// run runs a program group by group and tries what was not tried before.
func (r *rehearsal) run(b *backend, p *compute.Program, stop *compute.Stop) (err error) {
	for i := range b.ring {
		b.ring[i].wait() // who started it has its error
	}
	if b.lost != nil {
		return b.lost
	}
	if err := r.open(b); err != nil {
		return err
	}
	unlock := r.book.lock()
	defer unlock()
	b.choices.listen = true
	if !r.applied {
		r.book.apply(b.choices)
		r.applied = true
	}
	defer func() {
		b.choices.listen = false
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
		if err := r.try(b, l, p.Label, ops); err != nil {
			return err
		}
	}
	return nil
}

// culprit is the error of one dispatch: the device failed at it, or nothing is
// known of it but that it must not run.
type culprit struct {
	key   Key
	name  string // of the variant; "" = there is one way only
	hard  bool   // the device failed
	known bool   // it is in the book
	error
}

func (e *culprit) Unwrap() error { return e.error }

// mostTries is how many combinations of variants of one group are tried.
const mostTries = 64

// trying is the trial of one group.
type trying struct {
	*rehearsal
	b     *backend
	l     *lowerer
	label string // of the program
	ops   []compute.Op
	twin  *twin
}

// try runs the ops of one group, which may be new. Where the CPU has a part of it and
// it does not work, the GPU does it alone from then on.
func (r *rehearsal) try(b *backend, l *lowerer, label string, ops []compute.Op) error {
	t := &trying{rehearsal: r, b: b, l: l, label: label, ops: ops}
	keys, err := t.lower(ops)
	if err != nil || len(l.list.Dispatches) == 0 {
		return err
	}
	shared := len(l.work) > 0
	why := t.try(keys)
	if t.twin != nil {
		defer t.twin.close()
	}
	if why == nil || !shared || b.lost != nil {
		return why
	}
	if t.twin != nil {
		t.twin.restore()
	}
	b.split.fail(why)
	if err := r.try(b, l, label, ops); err != nil {
		return err // it was not the CPU's part
	}
	r.blame(&culprit{key: splitKey, name: splitName, error: why})
	return nil
}

// try first looks for a combination of variants that agrees with the judge; after that
// what differs from it in one variant tells of that variant alone.
func (t *trying) try(keys []Key) (err error) {
	r, b, l, ops := t.rehearsal, t.b, t.l, t.ops
	shared := len(l.work) > 0 // then it may be the CPU's fault
	sig := l.signature(l.groups[0])
	if r.tried(l, l.groups[0]) {
		_, err := t.run(&l.list, l.work)
		return err
	}
	whole := Key{Kernel: l.pipes.names[l.list.Dispatches[0].Pipeline]} // all of it, where nothing is known of its parts
	name := ""
	if len(keys) > 0 {
		whole.Kernel, name = keys[0].Kernel, "any"
	}
	whole.Class[6], whole.Class[7] = uint32(sig>>32), uint32(sig)
	if f := r.book.banned(whole, name); f != nil {
		return &unfitError{"the kernel " + whole.Kernel, r.book.known(f)}
	}
	if t.twin, err = r.twin(ops); err != nil {
		return err
	}
	if keys, err = t.anyGood(); err != nil {
		var c *culprit
		if b.lost == nil && !shared && !errors.As(err, &c) {
			r.blame(&culprit{key: whole, name: name, error: err})
		}
		return err
	}
	settled := slices.Clone(keys)
	for i := 0; i < len(settled); i++ {
		if err := t.settle(settled, settled[i]); err != nil {
			return err
		}
		if keys, err = t.lower(ops); err != nil {
			return err
		}
		for _, k := range keys { // a choice may lead to others
			if !slices.Contains(settled, k) {
				settled = append(settled, k)
			}
		}
	}
	if len(keys) == 0 {
		r.tell(Trial{Kernel: whole.Kernel, Key: whole.String(), Chosen: true})
	}
	for _, k := range keys {
		if f := r.book.banned(k, b.choices.name(k)); f != nil { // it agreed, then it failed
			return &unfitError{"the kernel " + k.Kernel, r.book.known(f)}
		}
	}
	// as it will run from now on: in one list
	t.twin.restore()
	if shared {
		r.book.trying(splitKey, splitName)
	}
	_, err = t.run(&l.list, l.work)
	if shared && b.lost == nil {
		r.book.tried()
	}
	if err != nil {
		return err
	}
	if err := t.twin.compare(); err != nil {
		if !shared {
			r.blame(&culprit{key: whole, name: name, error: err})
		}
		return &unfitError{"the kernel " + whole.Kernel, err}
	}
	r.book.prove(l.signature(l.groups[0]))
	return nil
}

// lower lowers ops as the choices are now, and returns the keys that were asked for.
func (t *trying) lower(ops []compute.Op) ([]Key, error) {
	t.b.choices.asked = t.b.choices.asked[:0]
	err := t.l.program(&compute.Program{Label: t.label, Ops: ops})
	return slices.Clone(t.b.choices.asked), err
}

// run runs a list to its end.
func (t *trying) run(list *List, work []compute.Program) (time.Duration, error) {
	fence, err := t.b.launch(list, work, nil)
	if err != nil {
		return 0, err
	}
	took, err := fence.Wait(t.o.Limit)
	if errors.Is(err, ErrHung) {
		return took, t.b.lose(err)
	}
	return took, err
}

// attempt runs the group as the choices are now, one dispatch after the other so that
// it is known which one fails, and compares. The error is a culprit, or it may be
// anybody's.
func (t *trying) attempt() ([]Key, error) {
	keys, err := t.lower(t.ops)
	if err != nil {
		return keys, err
	}
	t.twin.restore()
	made := 0 // of the CPU's work
	for i, d := range t.l.list.Dispatches {
		for ; made < len(t.l.work) && int(t.l.list.Marks[2*made].At) == i; made++ {
			if err := compute.Run(t.b.split.cpu, &t.l.work[made], nil); err != nil {
				return keys, err
			}
		}
		k, name := t.l.author(i)
		if f := t.book.banned(k, name); f != nil {
			return keys, &culprit{key: k, name: name, known: true, error: t.book.known(f)}
		}
		if err := t.l.pipes.failed[d.Pipeline]; err != nil {
			return keys, &culprit{key: k, name: name, error: err}
		}
		t.book.trying(k, name)
		_, err := t.run(&List{Dispatches: t.l.list.Dispatches[i : i+1], Binds: t.l.list.Binds, Args: t.l.list.Args}, nil)
		if t.b.lost == nil {
			t.book.tried()
		}
		if err != nil {
			return keys, &culprit{key: k, name: name, hard: true, error: err}
		}
	}
	return keys, t.twin.compare()
}

// blame notes a fault.
func (r *rehearsal) blame(c *culprit) {
	if !c.known {
		r.book.blame(c.key, c.name, c.Error(), c.hard)
		r.tell(Trial{Kernel: c.key.Kernel, Variant: c.name, Key: c.key.String(), Why: c.error})
	}
}

// anyGood looks for variants with which the group agrees with the judge, those that
// are chosen by now first, and returns the keys that it has then. Its error is a
// culprit if one is known.
func (t *trying) anyGood() ([]Key, error) {
	type digit struct {
		k     Key
		order []int
		at    int
	}
	var digits []*digit // of a number whose values are the combinations
	set := func(d *digit, at int) {
		d.at = at
		t.b.choices.chosen[d.k] = d.order[at]
	}
	next := func() bool {
		for _, d := range digits {
			if d.at+1 < len(d.order) {
				set(d, d.at+1)
				return true
			}
			set(d, 0)
		}
		return false
	}
	var last error
	for tries := 0; tries < mostTries; {
		keys, err := t.lower(t.ops)
		if err != nil {
			return nil, err
		}
		barred := false
		for _, k := range keys {
			if !slices.ContainsFunc(digits, func(d *digit) bool { return d.k == k }) {
				d := &digit{k: k}
				d.order = append(d.order, t.b.choices.chosen[k])
				for i := range variants[k.Kernel] {
					if i != d.order[0] {
						d.order = append(d.order, i)
					}
				}
				digits = append(digits, d)
			}
			if f := t.book.banned(k, t.b.choices.name(k)); f != nil {
				barred, last = true, &culprit{key: k, name: t.b.choices.name(k), known: true, error: t.book.known(f)}
			}
		}
		if !barred {
			tries++
			if keys, err = t.attempt(); err == nil {
				return keys, nil
			}
			last = err
			var c *culprit
			if errors.As(err, &c) {
				t.blame(c)
				if t.b.lost != nil {
					return nil, t.b.lost
				}
				if c.name == "" { // nothing can stand in for it
					break
				}
			}
		}
		if !next() {
			break
		}
	}
	for _, d := range digits {
		delete(t.b.choices.chosen, d.k)
	}
	kernel := t.l.pipes.names[t.l.list.Dispatches[0].Pipeline]
	var c *culprit
	if errors.As(last, &c) {
		kernel = c.key.Kernel
	}
	return nil, &unfitError{"the kernel " + kernel, last}
}

// settle tries the variants of a key, of which the one in use agrees, and takes the
// fastest that agrees. Where it was chosen before, the others are not tried. What
// fails is blamed only where all other choices are settled.
func (t *trying) settle(settled []Key, k Key) error {
	list, chosen, base := variants[k.Kernel], t.b.choices.chosen, t.b.choices.chosen[k]
	if t.book.chosen[k] == list[base].Name {
		t.tell(Trial{Kernel: k.Kernel, Variant: list[base].Name, Key: k.String(), Chosen: true})
		return nil
	}
	good := []int{}
	for i := range list {
		if i == base {
			good = append(good, i)
			continue
		}
		if t.book.banned(k, list[i].Name) != nil {
			continue
		}
		chosen[k] = i
		keys, err := t.attempt()
		var c *culprit
		switch {
		case err == nil:
			good = append(good, i)
		case errors.As(err, &c):
			t.blame(c)
		case !slices.ContainsFunc(keys, func(o Key) bool { return !slices.Contains(settled, o) }):
			t.blame(&culprit{key: k, name: list[i].Name, error: err})
		}
		if t.b.lost != nil {
			return t.b.lost
		}
	}
	const runs = 5
	best, bestTime := base, time.Duration(math.MaxInt64)
	times := make([]time.Duration, len(good))
	ops, free, err := t.served(k)
	if err != nil {
		return err
	}
	defer free()
	for at, i := range good {
		if len(good) == 1 {
			break
		}
		chosen[k] = i
		var took []time.Duration
		t.book.trying(k, list[i].Name)
		for range runs {
			if _, err := t.lower(ops); err != nil {
				return err
			}
			alone := t.l.list // without the CPU
			alone.Marks = nil
			one, err := t.run(&alone, nil)
			if err != nil {
				t.blame(&culprit{key: k, name: list[i].Name, hard: true, error: err})
				if t.b.lost != nil {
					return t.b.lost
				}
				took = nil
				break
			}
			took = append(took, one)
		}
		t.book.tried()
		if took == nil {
			continue
		}
		slices.Sort(took)
		times[at] = took[runs/2]
		if float64(times[at]) < 0.97*float64(bestTime) { // the earlier one where it hardly matters
			best, bestTime = i, times[at]
		}
	}
	if len(good) > 1 && bestTime == math.MaxInt64 {
		return &unfitError{"the kernel " + k.Kernel, errors.New("every variant failed when it was timed")}
	}
	for at, i := range good {
		t.tell(Trial{Kernel: k.Kernel, Variant: list[i].Name, Key: k.String(), Took: times[at], Chosen: i == best})
	}
	chosen[k] = best
	t.book.choose(k, list[best].Name)
	return nil
}

// longHistory is the positions that attention is timed with, as far as the cache has
// them: the first answers have a short past, in which all ways are alike.
const longHistory = 8192

// served is what the variants of a key are timed with, where that is not the group
// itself. Of a Norm, which is chosen once for prompts and answers, it is the few rows of
// an answer, since there are many more of those; of attention one row with a long past,
// of whatever the cache's pages hold. free gives back its memory.
func (t *trying) served(k Key) (ops []compute.Op, free func(), err error) {
	free = func() {}
	if len(t.ops) > 1 {
		return t.ops, free, nil
	}
	switch o := t.ops[0].(type) {
	case compute.Norm:
		n := min(o.X.Rows, 4)
		o.X, o.Out = o.X.Slice(0, n), o.Out.Slice(0, n)
		if o.Gate.Given() {
			o.Gate = o.Gate.Slice(0, n)
		}
		return []compute.Op{o}, free, nil
	case compute.Attention:
		pages := min(o.KV.Pages, longHistory/compute.PageSize)
		if k.Kernel != "attention" || pages <= o.Pages.Table.Cols {
			break
		}
		buf, err := t.b.Alloc("a long past", 4*(pages+6))
		if err != nil {
			return nil, nil, err
		}
		ints := func(at int, v ...int32) compute.View {
			w := buf.Of(layout.I32, 4*at, 1, len(v))
			copy(w.I32(0), v)
			return w
		}
		table := make([]int32, pages)
		for i := range table {
			table[i] = int32(i)
		}
		end := int32(pages * compute.PageSize)
		o.Q, o.Out = o.Q.Slice(0, 1), o.Out.Slice(0, 1)
		o.Pages = compute.Pages{Table: ints(0, table...), Lo: ints(pages, 0), Hi: ints(pages+1, end)}
		o.Rows = compute.Rows{N: 1, Segments: 1, Prefill: 1, Pos: ints(pages+2, end-1), Of: ints(pages+3, 0), Start: ints(pages+4, 0, 1)}
		return []compute.Op{o}, buf.Close, nil
	}
	return t.ops, free, nil
}

func (r *rehearsal) tell(t Trial) {
	if r.o.Heard != nil {
		r.o.Heard(t)
	}
}
