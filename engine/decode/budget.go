package decode

import (
	"sparkbar/engine/calibrate"
	"sparkbar/engine/compute"
)

// acceptance is how often drafts are accepted, given that all before them in
// their block were.
type acceptance struct {
	p   float64
	obs int
}

// Numbers behind acceptances and budgets.
const (
	slowAcceptance = 0.05 // weight of a new observation, once there are many
	ownAcceptance  = 8    // observations after which a job's own count, not those of all
	probeEvery     = 32   // shared steps without drafts between two with some, to
	probeRarely    = 256  // begin with and at most
	probeCap       = 2
)

func (a *acceptance) observe(x float64) {
	a.obs++
	a.p += max(slowAcceptance, 1/float64(a.obs+1)) * (x - a.p)
}

// learn takes a round in, for a job and for all.
func (a *acceptance) learn(all *acceptance, drafts, accepted int) {
	for _, x := range []*acceptance{a, all} {
		for range accepted {
			x.observe(1)
		}
		if accepted < drafts {
			x.observe(0)
		}
	}
}

func (a *acceptance) of(all acceptance) float64 {
	if a.obs < ownAcceptance {
		return all.p
	}
	return a.p
}

// SetCosts gives the runner the measured costs of this machine (see Measure), by
// which it shares out drafts when several jobs answer at once: between deeper
// drafts of some and none at all; and by which a job of mode Lookup without a cap
// copies as much as pays, in place of always as much as the match allows. Nil, as at
// first: each keeps its own cap.
func (r *Runner) SetCosts(c *calibrate.Costs) {
	if r.sharing, r.copying = nil, nil; c != nil {
		r.sharing = c.Sharing()
		r.copying = calibrate.NewController(c, calibrate.ControllerConfig{Park: true, Patient: true})
	}
}

// pinned reports whether the job's seed promises the same tokens again.
func (g *generation) pinned() bool {
	return g.j.Params.Seed != nil && !g.sampler.Greedy() && g.j.Controller == nil
}

// probes decides when drafts that do not pay are tried all the same, because texts
// change: ever more rarely, unless more of them are accepted than before.
type probes struct {
	since, gap int // steps without drafts, and how many there may be
	p          float64
	turn       int
}

// next reports whether one of so many answers is to be drafted for in the coming
// step, and which; drafting says that some are anyhow, p how often drafts are
// accepted now.
func (b *probes) next(drafting bool, able int, p float64) (which int, now bool) {
	if drafting || b.gap == 0 {
		b.since, b.gap = 0, probeEvery
	}
	if drafting || able == 0 {
		return 0, false
	}
	if b.since++; b.since < b.gap {
		return 0, false
	}
	if b.gap = min(2*b.gap, probeRarely); p > b.p {
		b.gap = probeEvery
	}
	b.since, b.p = 0, p
	b.turn++
	return b.turn % able, true
}

// budget says how many drafts each of the jobs may have in the coming step, below
// 0 as many as it wants. A job that is alone is left to its own cap and
// controller; so are the drafts of one whose seed promises the same tokens again,
// since what is drawn depends on how much was drafted.
func (r *Runner) budget(jobs []*generation) []int {
	out := make([]int, len(jobs))
	for i := range out {
		out[i] = -1
	}
	if r.sharing == nil || len(jobs) < 2 {
		return out
	}
	streams := make([]calibrate.Stream, len(jobs))
	var able []int // could draft
	for i, g := range jobs {
		s := calibrate.Stream{P: g.drafted.of(r.drafted), Most: min(g.cap(), g.room())}
		if len(g.copied) > 0 {
			s = calibrate.Stream{P: g.copies.of(r.copies), Most: len(g.copied), Copies: true}
		} else if s.Most > 0 {
			able = append(able, i)
		}
		if g.pinned() {
			s.Least = s.Most
		}
		streams[i] = s
	}
	counts := r.sharing.Share(streams)
	drafting := false
	for _, i := range able {
		drafting = drafting || counts[i] > 0
	}
	if i, now := r.probes.next(drafting, len(able), r.drafted.p); now {
		counts[able[i]] = min(probeCap, streams[able[i]].Most)
	}
	for i, g := range jobs {
		if !g.pinned() {
			out[i] = counts[i]
		}
	}
	return out
}

// late is what a drafter will read of the target's rows when it is asked for drafts:
// all at once.
type late struct {
	ids  []int32
	rows compute.View // [Runner.lateRows, taps*hidden]
}

// At least leastLate rows of an answer are put off, and up to mostLate as far as they
// fit into lateBytes: the more are read together the less each costs. lateBlock is the
// memory that is asked for at once: a large page, as it is written a little at a time,
// where the first touch of a page that has long been left alone takes longest.
const (
	leastLate = 64
	mostLate  = 256
	lateBytes = 1 << 20
	lateBlock = 2 << 20
)

// lateFor is how many rows of so many numbers are put off at most.
func lateFor(cols int) int {
	if cols == 0 {
		return leastLate
	}
	return min(max(leastLate, lateBytes/(cols*4)), mostLate)
}

// late returns memory for the rows that an answer puts off, and giveLate takes it
// back for the next.
func (r *Runner) late(cols int) (late, error) {
	if len(r.lates) == 0 {
		n := max(1, lateBlock/(r.lateRows*cols*4))
		rows, err := r.lateMem.F32(n*r.lateRows, cols)
		if err != nil {
			return late{}, err
		}
		for i := range n {
			r.lates = append(r.lates, late{rows: rows.Slice(i*r.lateRows, (i+1)*r.lateRows)})
		}
	}
	l := r.lates[len(r.lates)-1]
	r.lates = r.lates[:len(r.lates)-1]
	return l, nil
}

func (r *Runner) giveLate(l late) {
	if l.rows.Given() {
		r.lates = append(r.lates, late{ids: l.ids[:0], rows: l.rows})
	}
}

// postpone puts off what the drafter is to observe: the first n rows of the step, at
// most lateRows.
func (g *generation) postpone(fused compute.View, n int) error {
	l := &g.late
	if n > 0 && len(l.ids)+n > g.r.lateRows {
		if err := g.catchUp(); err != nil {
			return err
		}
		if err := g.drafts.Flush(&g.stop); err != nil {
			return err
		}
	}
	if fused.Given() {
		if !l.rows.Given() {
			m, err := g.r.late(fused.Cols)
			if err != nil {
				return err
			}
			*l = m
		}
		for i := range n {
			copy(l.rows.F32(len(l.ids)+i), fused.F32(i))
		}
	}
	l.ids = append(l.ids, g.share.ids[:n]...)
	return nil
}

// catchUp lets the drafter observe what was put off.
func (g *generation) catchUp() error {
	l := &g.late
	if len(l.ids) == 0 {
		return nil
	}
	rows := l.rows
	if rows.Given() {
		rows = rows.Slice(0, len(l.ids))
	}
	ids := l.ids
	l.ids = l.ids[:0]
	return g.drafts.Observe(ids, rows, &g.stop)
}
