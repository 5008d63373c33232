package decode

import (
	"context"
	"time"

	"sparkbar/engine/cache"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/draft"
	"sparkbar/engine/draft/ngram"
	"sparkbar/engine/sample"
)

// Measuring: timed calls per point after one to warm up, and the longest that
// all points together may take, half of it for the widths. Points that are left
// out are extrapolated.
const (
	measureCalls  = 3
	measureSweeps = 8 // over the widths of one sequence
	measureDepth  = 512
	measureBudget = 5 * time.Second
	// farDepth is the context of the second measurement, farBytes the most memory
	// that it may fill.
	farDepth = 4096
	farBytes = 256 << 20
)

// DeepContext is the context from which on Measure measures at all depths that it
// ever does.
const DeepContext = farDepth + measureDepth

// Measure times what a round costs on this machine: a verify forward of each
// width and of several sequences together, and the drafter at its smallest, middle
// and largest cap, at a context of up to 512 tokens. The cap controller and the
// division of drafts among jobs work on these curves. Jobs that run wait meanwhile.
func (r *Runner) Measure(ctx context.Context) (*calibrate.Costs, error) {
	mode, widest := Lookup, ngram.Standalone.Draft+1
	if r.drafter != nil {
		mode, widest = Draft, r.drafter.MaxDraft()+1
	}
	g := &generation{r: r, j: Job{Mode: mode}, sampler: sample.NewSampler(sample.Params{})}
	defer g.close()
	r.flush()
	if len(r.active) == 0 { // see forward: others' states would be undefined
		defer context.AfterFunc(ctx, g.stop.Set)()
	}
	var err error
	if g.seq, err = r.t.cache.NewSeq(); err != nil {
		return nil, err
	}
	if r.drafter != nil {
		if g.drafts, err = r.drafter.NewContext(nil); err != nil {
			return nil, err
		}
	}
	forward := func(shares ...*share) error {
		if g.drafts != nil {
			if err := g.drafts.Flush(&g.stop); err != nil {
				return err
			}
		}
		return r.t.forward(r.t.model, shares, g.drafts != nil, &g.stop)
	}
	depth := min(measureDepth, max(r.opts.Positions/2-widest, 1))
	ids := make([]int32, max(depth, widest))
	for i := range ids {
		ids[i] = min(7, int32(r.t.model.Vocab)-1)
	}
	g.plan(ids[:depth], noRows)
	if err := forward(&g.share); err != nil {
		return nil, stopError(ctx, err)
	}
	if err := g.keep(depth); err != nil {
		return nil, stopError(ctx, err)
	}
	began := r.now()
	late := func() bool { return r.now().Sub(began) >= measureBudget }
	once := func(f func() error) (ms float64, err error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		at := r.now()
		if err := f(); err != nil {
			return 0, stopError(ctx, err)
		}
		return float64(r.now().Sub(at)) / float64(time.Millisecond), nil
	}
	point := func(f func() error) (best float64, err error) {
		for i := range measureCalls + 1 {
			ms, err := once(f)
			if err != nil {
				return 0, err
			}
			if i == 1 || i > 0 && ms < best {
				best = ms
			}
		}
		return best, nil
	}
	step := func(seqs []*cache.Seq, w int) func() error {
		var shares []*share
		for _, q := range seqs {
			shares = append(shares, &share{seq: q, ids: ids[:w], want: allRows})
		}
		return func() error {
			err := forward(shares...)
			for _, q := range seqs {
				q.Advance(0)
			}
			return err
		}
	}
	verify := func(seqs []*cache.Seq, w int) (ms float64, err error) { return point(step(seqs, w)) }
	widths, drafter, batch := map[int]float64{}, map[int]float64{}, map[int]float64{}
	// All widths in turn, several times: what disturbs for a while then does not
	// make one width look dear. The first call of all warms up.
	if _, err := once(step([]*cache.Seq{g.seq}, widest)); err != nil {
		return nil, err
	}
	for i := range measureSweeps {
		for w := 1; w <= widest && (i == 0 && (w <= 2 || !late()) || i > 0 && r.now().Sub(began) < measureBudget/2); w++ {
			ms, err := once(step([]*cache.Seq{g.seq}, w))
			if err != nil {
				return nil, err
			}
			if i == 0 || ms < widths[w] {
				widths[w] = ms
			}
		}
	}
	for _, c := range []int{1, (widest - 1) / 2, widest - 1} {
		if g.drafts == nil || c < 1 || drafter[c] > 0 {
			continue
		}
		if drafter[c], err = point(func() error {
			_, err := g.drafts.Propose(draft.Request{Pending: ids[0], Cap: c, Sampler: g.sampler, Stop: &g.stop})
			return err
		}); err != nil {
			return nil, err
		}
	}
	costs := &calibrate.Costs{Verify: calibrate.NewCurve(widths).Rising(), Drafter: calibrate.NewCurve(drafter).Rising()}
	if g.drafts != nil {
		// What a whole round of full acceptance takes beyond the two: the drafter
		// reads the rows that stay.
		const drafts = 2
		whole, err := point(func() error {
			if err := g.catchUp(); err != nil {
				return err
			}
			if _, err := g.drafts.Propose(draft.Request{Pending: ids[0], Cap: drafts, Sampler: g.sampler, Stop: &g.stop}); err != nil {
				return err
			}
			g.plan(ids[:drafts+1], allRows)
			if err := forward(&g.share); err != nil {
				return err
			}
			return g.keep(drafts + 1)
		})
		if err != nil {
			return nil, err
		}
		// Reading rows is a part of the drafter: what is beyond it is a disturbance.
		costs.Overhead = min(max(0, whole-costs.Verify.At(drafts+1)-costs.Drafter.At(drafts)), costs.Drafter.At(1))
	}
	if far := r.farDepth(); far > 0 && !late() {
		if costs.Depth, err = g.deeper(far, widest, costs, verify); err != nil {
			return nil, err
		}
	}

	seqs := []*cache.Seq{g.seq}
	defer func() {
		for _, q := range seqs[1:] {
			q.Close()
		}
	}()
	for len(seqs) < r.opts.Running && len(r.active) == 0 {
		q, err := g.seq.Fork()
		if err != nil { // what runs beside leaves no room for it
			return costs, nil
		}
		if seqs = append(seqs, q); q.Reserve(widest) != nil {
			return costs, nil
		}
	}
	for _, w := range []int{1, 2, 4, widest} {
		if len(seqs) < 2 || late() {
			break
		}
		if batch[w], err = verify(seqs, w); err != nil {
			return nil, err
		}
	}
	if len(batch) > 0 {
		costs.Grid = map[int]calibrate.Curve{len(seqs): calibrate.NewCurve(batch).Rising()}
	}
	return costs, nil
}

// farDepth is the depth that a second measurement is made at, as far as memory
// that is set aside anyway and is quick to fill allows; 0 = nowhere.
func (r *Runner) farDepth() int {
	most := min(farDepth, r.opts.Positions-measureDepth, int(farBytes/max(r.t.cache.PositionBytes(), 1)))
	if most < 4*measureDepth || len(r.active) > 0 {
		return 0
	}
	return most
}

// deeper measures how verification grows with the context, at the smallest, the
// middle and the largest width; nil where there is no room for it.
func (g *generation) deeper(far, widest int, costs *calibrate.Costs, verify func([]*cache.Seq, int) (float64, error)) (*calibrate.DepthCosts, error) {
	q, err := g.seq.Fork()
	if err != nil {
		return nil, nil
	}
	defer q.Close()
	near := q.Len()
	if q.Pad(far-near) != nil {
		return nil, nil
	}
	slope := map[int]float64{}
	for _, w := range []int{1, (widest + 1) / 2, widest} {
		if slope[w] > 0 {
			continue
		}
		ms, err := verify([]*cache.Seq{q}, w)
		if err != nil {
			return nil, err
		}
		slope[w] = max(0, ms-costs.Verify.At(w)) / float64(far-near)
	}
	return &calibrate.DepthCosts{From: near, To: far, Slope: calibrate.NewCurve(slope)}, nil
}

// close drops what a generation holds without storing it.
func (g *generation) close() {
	if g.seq != nil {
		g.seq.Close()
	}
	if g.drafts != nil {
		g.drafts.Close()
	}
	g.r.giveLate(g.late)
}
