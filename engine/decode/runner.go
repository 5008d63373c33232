package decode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/draft"
	"sparkbar/engine/draft/ngram"
	"sparkbar/engine/sample"
)

// Runner runs jobs on one loaded model.
type Runner struct {
	t       target
	drafter draft.Drafter // nil = none
	store   *cache.Store
	opts    Options
	now     func() time.Time
}

// New returns a runner for a model and, if there is one, its drafter, which the
// runner then owns.
func New(b compute.Backend, m *arch.Model, d draft.Drafter, o Options) (*Runner, error) {
	o.defaults()
	c, err := cache.New(b, m.Caches, cache.Options{Type: o.KVType, Bits: o.KVBits, Group: o.KVGroup, Positions: o.Positions, Sequences: o.Stored + 2})
	if err != nil {
		return nil, err
	}
	r := &Runner{drafter: d, store: cache.NewStore(o.Stored), opts: o, now: time.Now,
		t: target{b: b, base: m, model: m, cache: c, params: compute.NewParams(b), s: compute.NewScratch(b)}}
	c.Evict = r.store.Evict
	if d != nil {
		r.t.taps = d.Taps()
		if dc := d.Cache(); dc != nil {
			dc.Evict = r.store.Evict
		}
	}
	return r, nil
}

// Drafter returns the runner's drafter, nil if it has none.
func (r *Runner) Drafter() draft.Drafter { return r.drafter }

// Store returns the prefix store.
func (r *Runner) Store() *cache.Store { return r.store }

// Cache returns the target's cache.
func (r *Runner) Cache() *cache.Cache { return r.t.cache }

// Forget drops the stored conversations of an adapter, which may then be closed.
func (r *Runner) Forget(a *arch.Adapter) {
	r.store.Forget(adapterKey(a))
	r.t.model = r.t.base
}

// SetClock replaces the clock that rounds are timed with.
func (r *Runner) SetClock(now func() time.Time) { r.now = now }

// Close frees everything but the model.
func (r *Runner) Close() {
	r.store.Clear()
	r.t.close()
	if r.drafter != nil {
		r.drafter.Close()
	}
}

// Check reports what is wrong with a job, as an error for its author.
func (r *Runner) Check(j *Job) error {
	v := int32(r.t.base.Vocab) // callers check while another job runs
	switch {
	case len(j.Prompt) == 0:
		return errors.New("the prompt is empty")
	case j.MaxTokens < 1:
		return fmt.Errorf("max tokens must be at least 1, is %d", j.MaxTokens)
	case j.Mode == Draft && r.drafter == nil:
		return errors.New("no drafter is loaded")
	case j.Adapter != nil && !j.Adapter.Of(r.t.base):
		return errors.New("the adapter was loaded for another model")
	case j.Tail < 0:
		return fmt.Errorf("the tail of the prompt has %d tokens", j.Tail)
	case len(j.Prompt)+j.MaxTokens > r.opts.Positions:
		return fmt.Errorf("prompt and answer need %d positions of cache, %d are set aside", len(j.Prompt)+j.MaxTokens, r.opts.Positions)
	}
	for i, id := range j.Prompt {
		if id < 0 || id >= v {
			return fmt.Errorf("prompt token %d is %d, outside the vocabulary of %d", i, id, v)
		}
	}
	return j.Params.Validate(int(v))
}

// Generate runs a job to its end. A cancelled context stops it within a round,
// in prefill too; the tokens so far are in the outcome beside the error.
func (r *Runner) Generate(ctx context.Context, j Job) (out Outcome, err error) {
	if err := r.Check(&j); err != nil {
		return Outcome{}, err
	}
	r.t.model = r.t.base.WithAdapter(j.Adapter)
	g := &generation{r: r, j: j, began: r.now(), sampler: sample.NewSampler(j.Params), penalties: sample.NewPenalizer(j.Params, j.Prompt), rand: j.Rand}
	if g.rand == nil {
		seed := sample.RandomSeed()
		if j.Params.Seed != nil {
			seed = *j.Params.Seed
		}
		g.rand = sample.NewRNG(seed)
	}
	if j.Mode == Lookup || j.Mode == Draft && j.Lookup {
		cfg := ngram.Hybrid
		if j.Mode == Lookup {
			cfg = ngram.Standalone
		}
		if j.LongLookup > 0 {
			cfg.LongDraft = j.LongLookup
		}
		if g.index, err = ngram.New(cfg); err != nil {
			return Outcome{}, err
		}
		g.index.Append(j.Prompt...)
	}
	defer context.AfterFunc(ctx, g.stop.Set)()
	err = stopError(ctx, g.run(ctx))
	g.end()
	g.out.Total = r.now().Sub(g.began)
	return g.out, err
}
