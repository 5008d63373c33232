package decode

import (
	"context"
	"time"

	"sparkbar/engine/calibrate"
	"sparkbar/engine/draft"
	"sparkbar/engine/sample"
)

// Measuring: timed calls per point after one to warm up, and the longest that
// all points together may take. Points that are left out are extrapolated.
const (
	measureCalls  = 3
	measureDepth  = 512
	measureBudget = 5 * time.Second
)

// Measure times what a round costs on this machine: a verify forward of each
// width, and the drafter at its smallest, middle and largest cap, at a context of
// up to 512 tokens. The cap controller works on these curves.
func (r *Runner) Measure(ctx context.Context) (*calibrate.Costs, error) {
	g := &generation{r: r, j: Job{Mode: Draft}, sampler: sample.NewSampler(sample.Params{})}
	defer context.AfterFunc(ctx, g.stop.Set)()
	defer g.close()
	var err error
	if g.seq, err = r.t.cache.NewSeq(); err != nil {
		return nil, err
	}
	if g.drafts, err = r.drafter.NewContext(nil); err != nil {
		return nil, err
	}
	forward := func(ids []int32, want outputs) error {
		if err := g.drafts.Flush(&g.stop); err != nil {
			return err
		}
		g.plan(ids, want)
		return r.t.forward(r.t.model, []*share{&g.share}, true, &g.stop)
	}
	widest := r.drafter.MaxDraft() + 1
	depth := min(measureDepth, max(r.opts.Positions/2-widest, 1))
	ids := make([]int32, depth)
	for i := range ids {
		ids[i] = min(7, int32(r.t.model.Vocab)-1)
	}
	if err := forward(ids, noRows); err != nil {
		return nil, stopError(ctx, err)
	}
	if err := g.keep(len(ids)); err != nil {
		return nil, stopError(ctx, err)
	}
	began := r.now()
	point := func(f func() error) (ms float64, err error) {
		best := time.Duration(0)
		for i := range measureCalls + 1 {
			at := r.now()
			if err := f(); err != nil {
				return 0, stopError(ctx, err)
			}
			if d := r.now().Sub(at); i > 0 && (best == 0 || d < best) {
				best = d
			}
		}
		return float64(best) / float64(time.Millisecond), nil
	}
	verify, drafter := map[int]float64{}, map[int]float64{}
	for w := 1; w <= widest && (w <= 2 || r.now().Sub(began) < measureBudget); w++ {
		if verify[w], err = point(func() error {
			err := forward(ids[:w], allRows)
			g.seq.Advance(0)
			return err
		}); err != nil {
			return nil, err
		}
	}
	for _, c := range []int{1, (widest - 1) / 2, widest - 1} {
		if c < 1 || drafter[c] > 0 {
			continue
		}
		if drafter[c], err = point(func() error {
			_, err := g.drafts.Propose(draft.Request{Pending: ids[0], Cap: c, Sampler: g.sampler, Stop: &g.stop})
			return err
		}); err != nil {
			return nil, err
		}
	}
	return &calibrate.Costs{Verify: calibrate.NewCurve(verify), Drafter: calibrate.NewCurve(drafter)}, nil
}

// close drops what a generation holds without storing it.
func (g *generation) close() {
	if g.seq != nil {
		g.seq.Close()
	}
	if g.drafts != nil {
		g.drafts.Close()
	}
}
