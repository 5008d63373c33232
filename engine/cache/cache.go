package cache

import (
	"errors"
	"fmt"
	"math"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// ErrFull is returned when no page or slot is left and nothing can be evicted.
var ErrFull = errors.New("the cache is full: fewer or shorter conversations fit into the memory set aside for it")

// Options sizes a cache.
type Options struct {
	// Type is how keys and values are kept: F32, F16 or BF16. With Bits 4 or 8
	// they are quantized in groups of Group instead.
	Type        layout.DType
	Bits, Group int
	// Positions is how many positions all sequences together may hold; memory is
	// touched only as they fill.
	Positions int
	// Sequences is how many sequences (also stored ones) may hold state.
	Sequences int
}

// Cache holds the pages and slots of one model on one backend.
type Cache struct {
	b      compute.Backend
	specs  []compute.CacheSpec
	kv     []compute.KV   // per spec; zero for state specs
	state  []compute.View // per spec; zero for KV specs
	group  []int          // per spec: its page group
	groups []*group
	shared []*compute.Buffer // memory of several layers
	slots  []int32           // free state slots
	opts   Options

	// Evict is asked to give pages back when the cache is full; it reports
	// whether it freed anything. Nil means it never does.
	Evict func() bool

	params  *compute.Params     // of Settle
	scratch [2]*compute.Scratch // logs of verify steps; the last one lives until the next step
	flip    int
	pending *logged
}

// group is a set of layers that share page tables: those with the same window.
type group struct {
	window int // 0 = full
	layers []int
	refs   []int32 // per page
	free   []int32
	next   int32 // pages from here on were never used
}

// logged is a verify step whose state is not yet committed.
type logged struct {
	ops  []compute.StateCommit
	seqs []*Seq
	keep []int32
}

// New reserves the memory of a cache for a model with the given layers.
func New(b compute.Backend, specs []compute.CacheSpec, o Options) (*Cache, error) {
	if o.Positions <= 0 || o.Sequences <= 0 {
		return nil, fmt.Errorf("cache for %d positions in %d sequences", o.Positions, o.Sequences)
	}
	for i, s := range specs {
		if s.Kind != compute.CacheState && o.Bits > 0 && (o.Group <= 0 || s.KDim%o.Group != 0 || !s.VInK && s.VDim%o.Group != 0) {
			return nil, fmt.Errorf("the cache of layer %d cannot be quantized in groups of %d: its heads have %d and %d columns; choose another group size or no quantization", i, o.Group, s.KDim, s.VDim)
		}
	}
	c := &Cache{b: b, specs: specs, opts: o, kv: make([]compute.KV, len(specs)), state: make([]compute.View, len(specs)), group: make([]int, len(specs))}
	pages := (o.Positions+compute.PageSize-1)/compute.PageSize + o.Sequences // each sequence may end inside a page
	for i, s := range specs {
		if s.Kind == compute.CacheState {
			buf, err := b.Alloc(fmt.Sprintf("state %d", i), o.Sequences*s.Size*4)
			if err != nil {
				c.Close()
				return nil, fmt.Errorf("state memory: %w", err)
			}
			c.state[i] = buf.Of(layout.F32, 0, o.Sequences, s.Size)
			continue
		}
		c.kv[i] = compute.KV{Pages: pages, Heads: s.Heads, KDim: s.KDim, VDim: s.VDim, VInK: s.VInK, Type: o.Type, Bits: o.Bits, Group: o.Group}
		c.group[i] = c.groupFor(s, pages)
		g := c.groups[c.group[i]]
		g.layers = append(g.layers, i)
	}
	for _, g := range c.groups {
		if err := c.reserve(g, pages); err != nil {
			c.Close()
			return nil, fmt.Errorf("memory for %d positions of context: %w", o.Positions, err)
		}
	}
	for s := o.Sequences - 1; s >= 0; s-- {
		c.slots = append(c.slots, int32(s))
	}
	c.scratch = [2]*compute.Scratch{compute.NewScratch(b), compute.NewScratch(b)}
	c.params = compute.NewParams(b)
	return c, nil
}

// reserve allocates the pages of the layers of a group. Where the backend can do with
// it, a page of all layers lies in one piece: what a few sequences use is then a
// small part of the memory, and not a small part of the memory of each layer.
func (c *Cache) reserve(g *group, pages int) error {
	if !compute.StridedPages(c.b) {
		for _, l := range g.layers {
			kv := &c.kv[l]
			k, v := kv.PageBytes()
			var err error
			if kv.K, err = c.b.Alloc(fmt.Sprintf("keys %d", l), k*pages); err == nil && v > 0 {
				kv.V, err = c.b.Alloc(fmt.Sprintf("values %d", l), v*pages)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	stride := 0
	for _, l := range g.layers {
		k, v := c.kv[l].PageBytes()
		stride += k + v
	}
	all, err := c.b.Alloc("keys and values", stride*pages)
	if err != nil {
		return err
	}
	c.shared = append(c.shared, all)
	at := 0
	part := func(what string, l, n int) *compute.Buffer {
		from := at
		at += n
		return compute.NewBuffer(fmt.Sprintf("%s %d", what, l), all.Bytes[from:from+stride*(pages-1)+n], nil, nil)
	}
	for _, l := range g.layers {
		kv := &c.kv[l]
		k, v := kv.PageBytes()
		kv.Stride = stride
		kv.K = part("keys", l, k)
		if v > 0 {
			kv.V = part("values", l, v)
		}
	}
	return nil
}

func (c *Cache) groupFor(s compute.CacheSpec, pages int) int {
	window := 0
	if s.Kind == compute.CacheWindow {
		window = s.Window
	}
	for i, g := range c.groups {
		if g.window == window {
			return i
		}
	}
	c.groups = append(c.groups, &group{window: window, refs: make([]int32, pages)})
	return len(c.groups) - 1
}

// Close frees the memory. Sequences of the cache must not be used afterwards.
func (c *Cache) Close() {
	for _, kv := range c.kv {
		for _, b := range []*compute.Buffer{kv.K, kv.V} {
			if b != nil {
				b.Close()
			}
		}
	}
	for _, b := range c.shared {
		b.Close()
	}
	for _, v := range c.state {
		if v.Given() {
			v.Buf.Close()
		}
	}
	for _, s := range c.scratch {
		if s != nil {
			s.Close()
		}
	}
	if c.params != nil {
		c.params.Close()
	}
}

// Pages returns how many pages are in use and how many there are, over the
// fullest group of layers.
func (c *Cache) Pages() (used, total int) {
	for _, g := range c.groups {
		if u := int(g.next) - len(g.free); u >= used {
			used, total = u, len(g.refs)
		}
	}
	return used, total
}

// Slots returns how many state slots are in use.
func (c *Cache) Slots() int { return c.opts.Sequences - len(c.slots) }

// PositionBytes returns the memory of one position over all paged layers.
func (c *Cache) PositionBytes() int64 {
	var n int64
	for _, kv := range c.kv {
		if kv.K != nil {
			k, v := kv.PageBytes()
			n += int64(k + v)
		}
	}
	return n / compute.PageSize
}

// Trimmable reports whether every sequence can be cut to any shorter length:
// nothing recurrent, no window that forgets. Seq.CanTruncate knows more.
func (c *Cache) Trimmable() bool {
	for _, s := range c.specs {
		if s.Kind != compute.CacheFull {
			return false
		}
	}
	return true
}

func (c *Cache) hasState() bool {
	for _, s := range c.specs {
		if s.Kind == compute.CacheState {
			return true
		}
	}
	return false
}

// page takes a free page of a group, evicting if need be.
func (c *Cache) page(g *group) (int32, error) {
	for {
		if n := len(g.free); n > 0 {
			p := g.free[n-1]
			g.free = g.free[:n-1]
			g.refs[p] = 1
			return p, nil
		}
		if int(g.next) < len(g.refs) {
			p := g.next
			g.next++
			g.refs[p] = 1
			return p, nil
		}
		if c.Evict == nil || !c.Evict() {
			return 0, ErrFull
		}
	}
}

func (g *group) drop(p int32) {
	if p < 0 {
		return
	}
	if g.refs[p]--; g.refs[p] == 0 {
		g.free = append(g.free, p)
	}
}

// copyPage copies a page of every layer of the group. No program that writes
// the page may be in flight.
func (c *Cache) copyPage(g *group, dst, src int32) {
	for _, l := range g.layers {
		from := parts(nil, c.kv[l], src)
		for i, to := range parts(nil, c.kv[l], dst) {
			copy(to, from[i])
		}
	}
}

// parts appends the memory of a page of K, and of V, to list.
func parts(list [][]byte, kv compute.KV, page int32) [][]byte {
	k, v := kv.PageBytes()
	kstep, vstep := kv.PageSteps()
	list = append(list, kv.K.Bytes[int(page)*kstep:][:k])
	if v > 0 {
		list = append(list, kv.V.Bytes[int(page)*vstep:][:v])
	}
	return list
}

// Seq is one sequence: its length and where its past lies.
type Seq struct {
	c      *Cache
	length int
	tables [][]int32 // per group: page of each block, -1 = dropped
	slot   int32     // state slot, -1 = none
}

// NewSeq returns an empty sequence.
func (c *Cache) NewSeq() (*Seq, error) {
	s := &Seq{c: c, tables: make([][]int32, len(c.groups)), slot: -1}
	if c.hasState() {
		if err := c.takeSlot(s); err != nil {
			return nil, err
		}
		for _, v := range c.state {
			if v.Given() {
				clear(v.F32(int(s.slot)))
			}
		}
	}
	return s, nil
}

func (c *Cache) takeSlot(s *Seq) error {
	for len(c.slots) == 0 {
		if c.Evict == nil || !c.Evict() {
			return ErrFull
		}
	}
	s.slot = c.slots[len(c.slots)-1]
	c.slots = c.slots[:len(c.slots)-1]
	return nil
}

// Len returns the number of committed positions.
func (s *Seq) Len() int { return s.length }

// Fork returns a sequence with the same past. Pages are shared and copied on
// write; state is copied, after a Settle. The sequence must not be one that
// Cache.Evict may close.
func (s *Seq) Fork() (*Seq, error) {
	f := &Seq{c: s.c, length: s.length, slot: -1}
	if s.slot >= 0 {
		if err := s.c.Settle(); err != nil {
			return nil, err
		}
		if err := s.c.takeSlot(f); err != nil {
			return nil, err
		}
		for _, v := range s.c.state {
			if v.Given() {
				copy(v.F32(int(f.slot)), v.F32(int(s.slot)))
			}
		}
	}
	f.tables = s.c.share(s.tables)
	return f, nil
}

// CanTruncate reports whether the sequence can be cut to n positions: n is no
// more than Len, nothing is recurrent, and windowed layers still have what the
// next row would see.
func (s *Seq) CanTruncate(n int) bool {
	return s.c.canTruncate(s.tables, s.length, n)
}

func (c *Cache) canTruncate(tables [][]int32, length, n int) bool {
	if n < 0 || n > length {
		return false
	}
	if n == length {
		return true
	}
	if c.hasState() {
		return false
	}
	for i, g := range c.groups {
		if g.window == 0 {
			continue
		}
		for j := max(n-g.window+1, 0) / compute.PageSize; j < blocks(n); j++ {
			if tables[i][j] < 0 {
				return false
			}
		}
	}
	return true
}

// Truncate cuts the sequence to n positions, if CanTruncate says so.
func (s *Seq) Truncate(n int) error {
	if !s.CanTruncate(n) {
		return fmt.Errorf("a sequence of %d positions cannot be cut to %d", s.length, n)
	}
	s.length = n
	s.release(blocks(n))
	return nil
}

// Snapshot is the past of a sequence at one moment, for later. It shares the
// sequence's pages; state is copied out of the slots, so that any number of
// snapshots can be kept.
type Snapshot struct {
	c      *Cache
	length int
	tables [][]int32
	state  [][]float32 // per state layer
}

// Snapshot returns the sequence's past as it is now. The last step must have
// ended.
func (s *Seq) Snapshot() (*Snapshot, error) {
	f := &Snapshot{c: s.c, length: s.length}
	if s.slot >= 0 {
		if err := s.c.Settle(); err != nil {
			return nil, err
		}
		for _, v := range s.c.state {
			if v.Given() {
				f.state = append(f.state, append([]float32(nil), v.F32(int(s.slot))...))
			}
		}
	}
	f.tables = s.c.share(s.tables)
	return f, nil
}

// share copies page tables, counting the pages once more.
func (c *Cache) share(tables [][]int32) [][]int32 {
	all := make([][]int32, len(tables))
	for i, t := range tables {
		all[i] = append([]int32(nil), t...)
		for _, p := range t {
			if p >= 0 {
				c.groups[i].refs[p]++
			}
		}
	}
	return all
}

// Len returns the number of positions.
func (f *Snapshot) Len() int { return f.length }

// CanTruncate reports whether Restore can give n positions, as for a Seq.
func (f *Snapshot) CanTruncate(n int) bool { return f.c.canTruncate(f.tables, f.length, n) }

// Restore returns a new sequence of the first n positions, if CanTruncate says
// so. The snapshot stays; it must not be one that Cache.Evict may close.
func (f *Snapshot) Restore(n int) (*Seq, error) {
	s := &Seq{c: f.c, length: f.length, slot: -1}
	if f.c.hasState() {
		// A step that is not yet committed writes to slots when it is, perhaps
		// to the one that is taken here.
		if err := f.c.Settle(); err != nil {
			return nil, err
		}
		if err := f.c.takeSlot(s); err != nil {
			return nil, err
		}
		i := 0
		for _, v := range f.c.state {
			if v.Given() {
				copy(v.F32(int(s.slot)), f.state[i])
				i++
			}
		}
	}
	s.tables = f.c.share(f.tables)
	if err := s.Truncate(n); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close gives the pages back. Closing twice, or nil, does nothing.
func (f *Snapshot) Close() {
	if f == nil {
		return
	}
	for i, t := range f.tables {
		for _, p := range t {
			f.c.groups[i].drop(p)
		}
	}
	f.tables, f.state = nil, nil
}

func blocks(n int) int { return (n + compute.PageSize - 1) / compute.PageSize }

// release gives back the pages of blocks from keep on.
func (s *Seq) release(keep int) {
	for i, t := range s.tables {
		for j := keep; j < len(t); j++ {
			s.c.groups[i].drop(t[j])
		}
		if keep < len(t) {
			s.tables[i] = t[:keep]
		}
	}
}

// Close gives back everything the sequence holds. Closing twice does nothing.
func (s *Seq) Close() {
	if s == nil || s.tables == nil {
		return
	}
	s.release(0)
	s.tables = nil
	if s.slot >= 0 {
		if p := s.c.pending; p != nil {
			for i, q := range p.seqs {
				if q == s {
					p.keep[i] = 0
				}
			}
		}
		s.c.slots = append(s.c.slots, s.slot)
		s.slot = -1
	}
}

// Part is one sequence's share of a step.
type Part struct {
	Seq *Seq
	// IDs are the tokens of the rows. Nil: N rows whose ids an earlier op writes
	// into Step.Rows.IDs.
	IDs []int32
	N   int
	// Block lets every row of the part see all of its rows; otherwise a row sees
	// itself and what lies before.
	Block bool
	// Context limits rows to this many positions before the part; 0 = all.
	Context int
	// Verify keeps the way back open: Advance may be called with fewer rows.
	Verify bool
	// Prefill rows may use prefill kernels; they must come last.
	Prefill bool
}

func (p Part) rows() int {
	if p.IDs != nil {
		return len(p.IDs)
	}
	return p.N
}

// Plan lays out a step: it makes room for the rows of every part, records into
// prog the state commits that the step before left behind, and returns what the
// forward pass reads. The step's rows count only once Seq.Advance says so.
//
// When the program does not run to its end, recurrent state is undefined: the
// sequences of this step and of the one before must be closed then, unless the
// model has none.
func (c *Cache) Plan(prog *compute.Program, params *compute.Params, parts []Part) (*compute.Step, error) {
	st := &compute.Step{}
	r := &st.Rows
	r.Segments = len(parts)
	var ids, pos, of, slots []int32
	start := []int32{0}
	r.Prefill = math.MaxInt
	verify := false
	for s, p := range parts {
		n := p.rows()
		if p.Prefill && r.Prefill == math.MaxInt {
			r.Prefill = r.N
		}
		if err := p.Seq.Reserve(n); err != nil {
			return nil, err
		}
		for i := range n {
			id := int32(0)
			if p.IDs != nil {
				id = p.IDs[i]
			}
			ids, pos, of = append(ids, id), append(pos, int32(p.Seq.length+i)), append(of, int32(s))
		}
		r.N += n
		start = append(start, int32(r.N))
		slots = append(slots, p.Seq.slot)
		verify = verify || p.Verify
	}
	var err error
	view := func(rows int, v []int32) compute.View {
		w, e := params.Ints(rows, v)
		if e != nil && err == nil {
			err = e
		}
		return w
	}
	r.IDs, r.Pos, r.Of, r.Start = view(1, ids), view(1, pos), view(1, of), view(1, start)
	slotView := view(1, slots)

	pages := make([]compute.Pages, len(c.groups))
	for g, grp := range c.groups {
		width := 1
		for _, p := range parts {
			width = max(width, len(p.Seq.tables[g]))
		}
		table := make([]int32, 0, width*len(parts))
		lo, hi := make([]int32, 0, r.N), make([]int32, 0, r.N)
		for _, p := range parts {
			table = append(table, p.Seq.tables[g]...)
			for range width - len(p.Seq.tables[g]) {
				table = append(table, -1)
			}
			n, base := p.rows(), p.Seq.length
			for i := range n {
				l, h := 0, base+i+1
				if p.Block {
					h = base + n
				}
				if grp.window > 0 {
					l = max(l, base+i-grp.window+1)
				}
				if p.Context > 0 {
					l = max(l, base-p.Context)
				}
				lo, hi = append(lo, int32(l)), append(hi, int32(h))
			}
		}
		pages[g] = compute.Pages{Table: view(len(parts), table), Lo: view(1, lo), Hi: view(1, hi)}
	}
	if err != nil {
		return nil, err
	}
	if err := c.commit(prog, params); err != nil {
		return nil, err
	}
	c.flip = 1 - c.flip
	c.scratch[c.flip].Reset()
	for i, s := range c.specs {
		if s.Kind != compute.CacheState {
			st.Layers = append(st.Layers, compute.LayerCache{KV: c.kv[i], Pages: pages[c.group[i]]})
			continue
		}
		state := compute.State{Mem: c.state[i], Slots: slotView}
		if verify {
			if state.Log, err = c.scratch[c.flip].F32(r.N, s.Log); err != nil {
				return nil, err
			}
		}
		st.Layers = append(st.Layers, compute.LayerCache{State: state})
	}
	return st, nil
}

// Ran tells the cache that the step's program has been recorded, so that its
// logged state can be committed later. Rows are all kept unless Seq.Advance
// says otherwise.
func (c *Cache) Ran(st *compute.Step, parts []Part) {
	if len(st.Logged) == 0 {
		return
	}
	p := &logged{ops: st.Logged}
	for _, part := range parts {
		p.seqs, p.keep = append(p.seqs, part.Seq), append(p.keep, int32(part.rows()))
	}
	c.pending = p
}

// commit records the state commits of the step before.
func (c *Cache) commit(prog *compute.Program, params *compute.Params) error {
	if c.pending == nil {
		return nil
	}
	keep, err := params.Ints(1, c.pending.keep)
	if err != nil {
		return err
	}
	for _, op := range c.pending.ops {
		op.Keep = keep
		prog.Add(op)
	}
	c.pending = nil
	return nil
}

// Settle runs the state commits that the last step left behind, so that states
// can be read or copied. That step must have ended.
func (c *Cache) Settle() error {
	if c.pending == nil {
		return nil
	}
	c.params.Next()
	var prog compute.Program
	prog.Reset("commit")
	if err := c.commit(&prog, c.params); err != nil {
		return err
	}
	return compute.Run(c.b, &prog, nil)
}

// Reserve makes room for n more positions: writable pages for each of them, which
// the next step takes. Plan does so, too; asking first tells whose rows do not fit.
func (s *Seq) Reserve(n int) error {
	if n == 0 {
		return nil
	}
	first, last := s.length/compute.PageSize, (s.length+n-1)/compute.PageSize
	for i, g := range s.c.groups {
		for j := first; j <= last; j++ {
			if j < len(s.tables[i]) {
				p := s.tables[i][j]
				if p >= 0 && g.refs[p] > 1 { // shared: copy on write
					q, err := s.c.page(g)
					if err != nil {
						return err
					}
					s.c.copyPage(g, q, p)
					g.drop(p)
					s.tables[i][j] = q
				}
				continue
			}
			p, err := s.c.page(g)
			if err != nil {
				return err
			}
			s.tables[i] = append(s.tables[i], p)
		}
	}
	return nil
}

// Keys are a layer's keys at the positions that are still there but the first,
// which many models treat as none of the text; heads side by side. Nil where the
// layer keeps none, or not as float32.
func (s *Seq) Keys(layer int) [][]float32 {
	kv := s.c.kv[layer]
	if kv.K == nil || kv.VInK || kv.Bits > 0 || kv.Type != layout.F32 {
		return nil
	}
	step, _ := kv.PageSteps()
	var rows [][]float32
	for block, page := range s.tables[s.c.group[layer]] {
		for at := range compute.PageSize {
			if pos := block*compute.PageSize + at; page < 0 || pos == 0 || pos >= s.length {
				continue
			}
			row := make([]float32, 0, kv.Heads*kv.KDim)
			for h := range kv.Heads {
				row = append(row, kv.K.Of(layout.F32, int(page)*step+4*kv.KDim*(h*compute.PageSize+at), 1, kv.KDim).F32(0)...)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// Pad adds n positions whose keys and values are those of the page before, where
// only time matters: for measurements. State stays as it is. The sequence must
// have a whole page.
func (s *Seq) Pad(n int) error {
	from, to := s.length/compute.PageSize, blocks(s.length+n)
	if from == 0 {
		return errors.New("a sequence without a whole page cannot be padded")
	}
	if err := s.Reserve(n); err != nil {
		return err
	}
	for i, g := range s.c.groups {
		for b := from; b < to; b++ {
			s.c.copyPage(g, s.tables[i][b], s.tables[i][from-1])
		}
	}
	s.Advance(n)
	return nil
}

// Advance commits the first keep rows of the sequence's last step; the others
// never were.
func (s *Seq) Advance(keep int) {
	s.length += keep
	if p := s.c.pending; p != nil {
		for i, q := range p.seqs {
			if q == s {
				p.keep[i] = int32(keep)
			}
		}
	}
	s.release(blocks(s.length))
	for i, g := range s.c.groups {
		if g.window == 0 {
			continue
		}
		// The next row stands at length and sees length-window+1 and later.
		for j := 0; j < len(s.tables[i]) && (j+1)*compute.PageSize <= s.length-g.window+1; j++ {
			if p := s.tables[i][j]; p >= 0 {
				g.drop(p)
				s.tables[i][j] = -1
			}
		}
	}
}
