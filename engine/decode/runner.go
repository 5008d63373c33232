package decode

import (
	"errors"
	"fmt"
	"time"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/compute"
	"sparkbar/engine/draft"
)

// Runner runs jobs on one loaded model, several at a time.
type Runner struct {
	t       target
	drafter draft.Drafter // nil = none
	store   *cache.Store
	opts    Options
	now     func() time.Time

	active []*generation // those that read a prompt take turns from the front
	last   *arch.Adapter // of the step before
	chunk  int           // rows of prompt beside rows of answers

	sharing         *calibrate.Sharing    // nil = drafts are not shared out
	copying         *calibrate.Controller // of jobs that only copy; nil = none
	drafted, copies acceptance            // of all jobs
	probes          probes
	lateRows        int              // how many rows an answer puts off at most
	lates           []late           // free memory for them
	lateMem         *compute.Scratch // all of it
}

// New returns a runner for a model and, if there is one, its drafter, which the
// runner then owns.
func New(b compute.Backend, m *arch.Model, d draft.Drafter, o Options) (*Runner, error) {
	o.defaults()
	if o.KVBits == 4 {
		if err := TurnHeads(b, m); err != nil {
			return nil, err
		}
	}
	c, err := cache.New(b, m.Caches, cache.Options{Type: o.KVType, Bits: o.KVBits, Group: o.KVGroup, Positions: o.Positions, Sequences: o.Stored + o.Running + 1})
	if err != nil {
		return nil, err
	}
	r := &Runner{drafted: acceptance{p: calibrate.DerivedAcceptance}, copies: acceptance{p: calibrate.DerivedAcceptance}, drafter: d, store: cache.NewStore(o.Stored), opts: o, now: time.Now, chunk: min(o.Chunk, firstChunk), lateMem: compute.NewScratch(b),
		t: target{b: b, model: m, cache: c, params: compute.NewParams(b), s: compute.NewScratch(b)}}
	c.Evict = r.store.Evict
	if d != nil {
		r.t.taps = d.Taps()
		r.lateRows = lateFor(len(r.t.taps) * m.Hidden)
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

// Forget drops the stored conversations of an adapter, which may then be closed:
// no running job may have it.
func (r *Runner) Forget(a *arch.Adapter) { r.store.Forget(adapterKey(a)) }

// SetClock replaces the clock that rounds are timed with.
func (r *Runner) SetClock(now func() time.Time) { r.now = now }

// Close frees everything but the model.
func (r *Runner) Close() {
	r.store.Clear()
	r.lateMem.Close()
	r.t.close()
	if r.drafter != nil {
		r.drafter.Close()
	}
}

// Check reports what is wrong with a job, as an error for its author.
func (r *Runner) Check(j *Job) error {
	v := int32(r.t.model.Vocab) // callers check while jobs run
	switch {
	case len(j.Prompt) == 0:
		return errors.New("the prompt is empty")
	case j.MaxTokens < 1:
		return fmt.Errorf("max tokens must be at least 1, is %d", j.MaxTokens)
	case j.Mode == Draft && r.drafter == nil:
		return errors.New("no drafter is loaded")
	case j.Adapter != nil && !j.Adapter.Of(r.t.model):
		return errors.New("the adapter was loaded for another model")
	case j.Prompted != nil && !j.NoStore:
		return errors.New("log-probabilities of a prompt that is not read")
	case j.Tail < 0:
		return fmt.Errorf("the tail of the prompt has %d tokens", j.Tail)
	case r.Need(j) > r.opts.Positions:
		return fmt.Errorf("prompt and answer need %d positions of cache, %d are set aside", r.Need(j), r.opts.Positions)
	}
	for i, id := range j.Prompt {
		if id < 0 || id >= v {
			return fmt.Errorf("prompt token %d is %d, outside the vocabulary of %d", i, id, v)
		}
	}
	return j.Params.Validate(int(v))
}
