package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"sparkbar/engine/compute"
)

// tier connects a store to a Disk: it names the pieces of pasts, writes those of
// stored conversations in the background and restores them.
//
// The name of a page is a hash of the model (see Store.Attach), of the layout of
// the cache and of every token up to the page's end; so equal beginnings share
// files, and a prompt finds its own by hashing its tokens.
type tier struct {
	disk     *Disk
	identify func(key any) []string
	caches   []*Cache

	mu     sync.Mutex
	idle   *sync.Cond
	queue  []*saving // the first one is being written
	done   []*saving
	cancel bool
}

// saving is a conversation on its way to the disk.
type saving struct {
	pieces []piece
	pins   []pin
}

type piece struct {
	key   fileKey
	used  time.Time
	parts [][]byte
}

// age is when a block counts as used: the deeper it is, the earlier it may go,
// since without the first pages the others are worth nothing.
func age(now time.Time, block int) time.Time {
	return now.Add(-time.Duration(block) * time.Microsecond)
}

// pin keeps a page from being given back while it is written.
type pin struct {
	g    *group
	page int32
}

const (
	// diskLeast is the shortest past worth a file.
	diskLeast = 512
	// queued savings at most; what comes when the disk is slower is not written.
	diskQueue = 4
	// pages read at the same time
	diskReaders = 4
)

// diskWait is the longest wait for the disk when its pages are needed. Tests, whose
// subject is not a slow disk, wait longer.
var diskWait = 2 * time.Second

// Attach adds a tier on disk to the store: what Put takes is also written there,
// and Take looks there for what memory does not have. identify names all that the
// sequences of a key depend on besides their tokens and the layout of their
// cache: for each of the caches (the target's first, then the drafter's) a text;
// nil keeps the key off the disk.
func (s *Store) Attach(d *Disk, identify func(key any) []string, caches ...*Cache) {
	t := &tier{disk: d, identify: identify, caches: caches}
	t.idle = sync.NewCond(&t.mu)
	s.tier = t
}

// trimmable reports whether pasts of whole pages are enough for all caches.
func (t *tier) trimmable() bool {
	for _, c := range t.caches {
		if c != nil && !c.Trimmable() {
			return false
		}
	}
	return true
}

// chain are the hashes of a text's beginnings, one per whole page.
type chain struct {
	sums   [][sha256.Size]byte // sums[i]: of the first i pages
	tokens []int32
}

func (t *tier) chain(c *Cache, identity string, tokens []int32) chain {
	h := sha256.New()
	fmt.Fprintf(h, "%d %d %q %v %d %d %d", diskVersion, len(identity), identity, c.opts.Type, c.opts.Bits, c.opts.Group, compute.PageSize)
	for _, s := range c.specs {
		fmt.Fprintf(h, " %+v", s)
	}
	x := chain{tokens: tokens, sums: make([][sha256.Size]byte, 1, len(tokens)/compute.PageSize+1)}
	h.Sum(x.sums[0][:0])
	for i := range len(tokens) / compute.PageSize {
		x.sums = append(x.sums, link(x.sums[i], "page", tokens[i*compute.PageSize:(i+1)*compute.PageSize]))
	}
	return x
}

func link(before [sha256.Size]byte, what string, tokens []int32) [sha256.Size]byte {
	b := append(append(make([]byte, 0, 64+4*len(tokens)), before[:]...), what...)
	for _, id := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return sha256.Sum256(b)
}

// page is the key of a block of a group of layers.
func (x chain) page(group, block int) fileKey {
	return fileKey{sum: link(x.sums[block+1], fmt.Sprintf("group %d", group), nil)}
}

// end is the key of what a past of n positions has besides whole pages.
func (x chain) end(n int) fileKey {
	whole := n / compute.PageSize
	return fileKey{sum: link(x.sums[whole], "end", x.tokens[whole*compute.PageSize:n]), end: n}
}

// first is the first block of a group that a past of n positions needs.
func (g *group) first(n int) int {
	if g.window == 0 {
		return 0
	}
	return max(n-g.window+1, 0) / compute.PageSize
}

// parts are the memory of a page, layer by layer.
func (c *Cache) parts(g *group, page int32) [][]byte {
	var list [][]byte
	for _, l := range g.layers {
		list = parts(list, c.kv[l], page)
	}
	return list
}

// stateParts are the memory of a state.
func stateParts(state [][]float32) (list [][]byte) {
	for _, s := range state {
		if len(s) > 0 {
			list = append(list, unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), 4*len(s)))
		}
	}
	return list
}

// save begins to write the pasts of a conversation: those of its rungs, which
// hold its first tokens.
func (t *tier) save(key any, tokens []int32, rungs []*rung) {
	if len(tokens) < diskLeast || !t.disk.writable() {
		return
	}
	t.mu.Lock()
	full := len(t.queue) >= diskQueue
	t.mu.Unlock()
	ids := t.identify(key)
	if full || ids == nil {
		return
	}
	s := &saving{}
	now := time.Now()
	cut := t.trimmable()
	for i, c := range t.caches {
		if c == nil {
			continue
		}
		x := t.chain(c, ids[i], tokens)
		seen := map[fileKey]bool{}
		add := func(k fileKey, block int, pages []pin, parts [][]byte) {
			if len(parts) == 0 || seen[k] || t.disk.has(k) {
				return
			}
			seen[k] = true
			for _, p := range pages {
				p.g.refs[p.page]++
			}
			s.pins = append(s.pins, pages...)
			s.pieces = append(s.pieces, piece{k, age(now, block), parts})
		}
		for _, r := range rungs {
			if i >= len(r.snaps) || r.length < diskLeast || r.length > len(tokens) {
				continue
			}
			f := r.snaps[i]
			if f.length != r.length {
				continue
			}
			whole := r.length / compute.PageSize
			var rest []pin
			var parts [][]byte
			for g, grp := range c.groups {
				for b := grp.first(r.length); b < whole; b++ {
					if p := f.tables[g][b]; p >= 0 {
						add(x.page(g, b), b, []pin{{grp, p}}, c.parts(grp, p))
					}
				}
				if whole < len(f.tables[g]) && r.length%compute.PageSize > 0 {
					p := f.tables[g][whole]
					rest = append(rest, pin{grp, p})
					parts = append(parts, c.parts(grp, p)...)
				}
			}
			if !cut {
				add(x.end(r.length), whole, rest, append(parts, stateParts(f.state)...))
			}
		}
	}
	if len(s.pieces) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue = append(t.queue, s); len(t.queue) == 1 {
		t.cancel = false
		go t.write()
	}
}

// write writes what is queued, and ends when nothing is.
func (t *tier) write() {
	for {
		t.mu.Lock()
		if len(t.queue) == 0 {
			t.idle.Broadcast()
			t.mu.Unlock()
			return
		}
		s := t.queue[0]
		t.mu.Unlock()
		for _, p := range s.pieces {
			if t.cancelled() || t.disk.write(p.key, p.used, p.parts) != nil {
				break
			}
		}
		t.disk.sync()
		t.mu.Lock()
		t.queue = t.queue[1:]
		t.done = append(t.done, s)
		t.mu.Unlock()
	}
}

func (t *tier) cancelled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cancel
}

// drain gives back the pages of what has been written, and reports whether there
// were any.
func (t *tier) drain() bool {
	t.mu.Lock()
	done := t.done
	t.done = nil
	t.mu.Unlock()
	for _, s := range done {
		for _, p := range s.pins {
			p.g.drop(p.page)
		}
	}
	return len(done) > 0
}

// settle waits until everything is written, cancels what takes too long, and
// gives the pages back. It reports whether there were any.
func (t *tier) settle() bool {
	timer := time.AfterFunc(diskWait, func() {
		t.mu.Lock()
		t.cancel = true
		t.mu.Unlock()
	})
	defer timer.Stop()
	t.mu.Lock()
	for len(t.queue) > 0 {
		t.idle.Wait()
	}
	t.mu.Unlock()
	return t.drain()
}

// lengths are the pasts of at most n positions that the disk has of a text,
// longest first.
func (t *tier) lengths(c *Cache, x chain, n int) []int {
	// most whole blocks, from the first on, of each group: how far back from a
	// block the pages reach without a gap
	reach := make([][]int, len(c.groups))
	for g := range c.groups {
		gap := 0
		reach[g] = []int{0}
		for b := range n / compute.PageSize {
			if !t.disk.has(x.page(g, b)) {
				gap = b + 1
			}
			reach[g] = append(reach[g], gap)
			if gap > 0 && c.groups[g].window == 0 {
				break // a full group needs all of them
			}
		}
	}
	pages := func(n int) bool {
		whole := n / compute.PageSize
		for g, grp := range c.groups {
			if first := grp.first(n); first < whole && (whole >= len(reach[g]) || reach[g][whole] > first) {
				return false
			}
		}
		return true
	}
	var list []int
	ends := t.disk.lengths(n)
	for whole := n / compute.PageSize; ; whole-- {
		for len(ends) > 0 && ends[0] > whole*compute.PageSize {
			if pages(ends[0]) && t.disk.has(x.end(ends[0])) {
				list = append(list, ends[0])
			}
			ends = ends[1:]
		}
		if whole*compute.PageSize < diskLeast {
			return list
		}
		if at := whole * compute.PageSize; !c.hasState() && pages(at) {
			list = append(list, at)
		}
	}
}

// take restores the longest past of a prompt that has at least least positions;
// length 0 = there is none. Where the drafter's is shorter than the target's by
// at most context, the shorter one is taken of both.
func (t *tier) take(key any, prompt []int32, least, context int) (length int, seqs []*Seq) {
	ids := t.identify(key)
	if ids == nil || len(prompt) <= max(least, diskLeast) {
		return 0, nil
	}
	t.disk.refresh()
	n := len(prompt) - 1
	target := t.chain(t.caches[0], ids[0], prompt[:n])
	var own chain
	for range diskReaders { // a file that turns out to be bad is gone the next time
		lengths := t.lengths(t.caches[0], target, n)
		if len(lengths) == 0 || lengths[0] < least {
			return 0, nil
		}
		length = lengths[0]
		both := false
		if len(t.caches) > 1 && t.caches[1] != nil {
			own = t.chain(t.caches[1], ids[1], prompt[:n])
			has := map[int]bool{}
			for _, m := range t.lengths(t.caches[1], own, n) {
				has[m] = true
			}
			for _, m := range lengths {
				if m >= least && has[m] && m > lengths[0]-context {
					length, both = m, true
					break
				}
			}
		}
		q, again := t.restore(t.caches[0], target, length)
		if q == nil {
			if again {
				continue
			}
			return 0, nil
		}
		seqs = []*Seq{q}
		if both {
			if q, _ := t.restore(t.caches[1], own, length); q != nil {
				seqs = append(seqs, q)
			}
		}
		return length, seqs
	}
	return 0, nil
}

// restore reads a past of n positions. again says that a file was bad, so that
// other pasts may be there.
func (t *tier) restore(c *Cache, x chain, n int) (_ *Seq, again bool) {
	s := &Seq{c: c, length: n, slot: -1, tables: make([][]int32, len(c.groups))}
	if c.hasState() {
		if c.Settle() != nil || c.takeSlot(s) != nil {
			return nil, false
		}
	}
	whole := n / compute.PageSize
	now := time.Now()
	var pieces []piece
	var rest [][]byte
	for g, grp := range c.groups {
		for b := range blocks(n) {
			if b < grp.first(n) {
				s.tables[g] = append(s.tables[g], -1)
				continue
			}
			p, err := c.page(grp)
			if err != nil {
				s.Close()
				return nil, false
			}
			s.tables[g] = append(s.tables[g], p)
			if b < whole {
				pieces = append(pieces, piece{x.page(g, b), age(now, b), c.parts(grp, p)})
			} else {
				rest = append(rest, c.parts(grp, p)...)
			}
		}
	}
	if s.slot >= 0 {
		for _, v := range c.state {
			if v.Given() {
				rest = append(rest, stateParts([][]float32{v.F32(int(s.slot))})...)
			}
		}
	}
	if len(rest) > 0 {
		pieces = append(pieces, piece{x.end(n), age(now, whole), rest})
	}
	ok := t.read(pieces)
	if !ok {
		s.Close()
		return nil, true
	}
	return s, false
}

// read fills pieces, a few at a time.
func (t *tier) read(pieces []piece) bool {
	var wg sync.WaitGroup
	bad := make([]bool, diskReaders)
	for r := range diskReaders {
		wg.Go(func() {
			for i := r; i < len(pieces) && !bad[r]; i += diskReaders {
				bad[r] = !t.disk.read(pieces[i].key, pieces[i].used, pieces[i].parts)
			}
		})
	}
	wg.Wait()
	for _, b := range bad {
		if b {
			return false
		}
	}
	return true
}
