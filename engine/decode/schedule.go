package decode

import (
	"context"
	"errors"
	"slices"
	"time"

	"sparkbar/engine/compute"
	"sparkbar/engine/draft/ngram"
	"sparkbar/engine/sample"
)

// ErrBusy is returned by Start when there is no room for another job now.
var ErrBusy = errors.New("no room for another job: wait for one to end")

// Rows of prompt beside rows of answers: how many at first, how few at least,
// and how long a step may take because of them.
const (
	firstChunk  = 64
	leastChunk  = 16
	chunkPeriod = 250 * time.Millisecond
)

// Need is how many positions of cache a job may come to hold, which are set aside
// for it while it runs.
func (r *Runner) Need(j *Job) int { return len(j.Prompt) + j.MaxTokens }

// Room is how many jobs may run at once, and how many positions they may need
// together.
func (r *Runner) Room() (jobs, positions int) { return r.opts.Running, r.opts.Positions }

// Active returns how many jobs run.
func (r *Runner) Active() int { return len(r.active) }

// Start adds a job to those that Step moves on. over is told its end, by Step;
// the tokens so far are in the outcome beside an error. A cancelled context ends
// the job within a step, and no other. ErrBusy says that jobs must end first.
func (r *Runner) Start(ctx context.Context, j Job, over func(Outcome, error)) error {
	if err := r.Check(&j); err != nil {
		return err
	}
	need := r.Need(&j)
	for _, g := range r.active {
		need += r.Need(&g.j)
	}
	if len(r.active) >= r.opts.Running || need > r.opts.Positions {
		return ErrBusy
	}
	g := &generation{r: r, j: j, ctx: ctx, model: r.t.model.WithAdapter(j.Adapter), began: r.now(), sampler: sample.NewSampler(j.Params), penalties: sample.NewPenalizer(j.Params, j.Prompt), rand: j.Rand,
		drafted: acceptance{p: r.drafted.p}, copies: acceptance{p: r.copies.p}}
	if j.Mode == Lookup && j.Cap == 0 && j.Controller == nil && !g.pinned() {
		g.j.Controller = r.copying
	}
	if g.j.Controller != nil {
		g.j.Controller = g.j.Controller.Begin(len(j.Prompt))
	}
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
			cfg, g.out.Cap = ngram.Standalone, j.Cap
		}
		if j.LongLookup > 0 {
			cfg.LongDraft = j.LongLookup
		}
		cfg.GoOn = g.j.Controller != nil // without one, rounds are the reference's
		var err error
		if g.index, err = ngram.New(cfg); err != nil {
			return err
		}
		g.index.Append(j.Prompt...)
	}
	unhook := context.AfterFunc(ctx, g.stop.Set)
	g.over = func(out Outcome, err error) { unhook(); over(out, err) }
	r.active = append(r.active, g)
	return nil
}

// Generate runs a job to its end, and meanwhile those that Start added. A
// cancelled context stops it within a round, in prefill too; the tokens so far
// are in the outcome beside the error.
func (r *Runner) Generate(ctx context.Context, j Job) (out Outcome, err error) {
	over := false
	if err := r.Start(ctx, j, func(o Outcome, e error) { out, err, over = o, e, true }); err != nil {
		return Outcome{}, err
	}
	for !over {
		r.Step()
	}
	return out, err
}

// Step moves jobs on by one forward of the target: every answer by a round, and
// prompts by a chunk in all, which they take turns for. Jobs of different
// adapters take turns for steps.
func (r *Runner) Step() {
	for _, g := range slices.Clone(r.active) {
		if g.ctx.Err() != nil {
			r.finish(g, context.Cause(g.ctx))
		}
	}
	batch, mixed := r.gather()
	r.flush()
	batch = slices.DeleteFunc(batch, func(g *generation) bool {
		if !slices.Contains(r.active, g) {
			return true
		}
		err := g.seq.Reserve(len(g.share.ids))
		if err != nil {
			r.finish(g, err)
		}
		return err != nil
	})
	if len(batch) == 0 {
		return
	}
	var began time.Time
	if mixed {
		began = r.now()
	}
	if err := r.forward(batch); err != nil {
		for _, g := range slices.Clone(r.active) {
			g.good = false // states are undefined now
			r.finish(g, err)
		}
		return
	}
	if mixed {
		r.pace(batch, r.now().Sub(began))
	}
	// Nothing may look at a past before every row of the step is kept or not.
	failed := map[*generation]error{}
	for _, g := range batch {
		if err := g.settle(); err != nil {
			failed[g] = err
		}
	}
	alone := len(r.active) == 1
	for _, g := range batch {
		err := failed[g]
		done := false
		switch {
		case err != nil:
		case g.share.want == allRows:
			done = g.roundOn(alone)
		default:
			done, err = g.readOn()
			if g.reading() { // the others' turn
				r.active = append(slices.DeleteFunc(r.active, func(x *generation) bool { return x == g }), g)
			}
		}
		if done || err != nil {
			r.finish(g, err)
		}
	}
}

// flush lets drafters read what they have not yet read of the last forward, which
// goes with the next.
func (r *Runner) flush() {
	for _, g := range slices.Clone(r.active) {
		if g.drafts != nil {
			if err := g.drafts.Flush(&g.stop); err != nil {
				g.loseDrafter()
				r.finish(g, err)
			}
		}
	}
}

// gather chooses the jobs of the coming step and plans their rows, answers first.
// mixed says that there are rows of both kinds.
func (r *Runner) gather() (batch []*generation, mixed bool) {
	var ready, reading []*generation
	for _, g := range r.turn() {
		if g.reading() {
			reading = append(reading, g)
		} else {
			ready = append(ready, g)
		}
	}
	for _, g := range ready {
		g.look()
	}
	budget := r.budget(ready)
	for i, g := range ready {
		if err := g.propose(budget[i]); err != nil {
			r.finish(g, err)
			continue
		}
		batch = append(batch, g)
	}
	room := r.opts.Chunk
	if len(batch) > 0 {
		room = r.chunk
	}
	answers := len(batch)
	for _, g := range reading {
		if room == 0 {
			break
		}
		if err := g.read(room); err != nil {
			r.finish(g, err)
			continue
		}
		room -= len(g.share.ids)
		batch = append(batch, g)
	}
	return batch, answers > 0 && len(batch) > answers
}

// turn returns the jobs of the adapter whose turn it is.
func (r *Runner) turn() []*generation {
	if len(r.active) == 0 {
		return nil
	}
	// Adapters in the order of their first job; the one after the last is next.
	order := []*generation{}
	for _, g := range r.active {
		if !slices.ContainsFunc(order, func(x *generation) bool { return x.j.Adapter == g.j.Adapter }) {
			order = append(order, g)
		}
	}
	i := slices.IndexFunc(order, func(g *generation) bool { return g.j.Adapter == r.last })
	r.last = order[(i+1)%len(order)].j.Adapter
	return slices.DeleteFunc(slices.Clone(r.active), func(g *generation) bool { return g.j.Adapter != r.last })
}

// forward runs the target on the rows of a batch.
func (r *Runner) forward(batch []*generation) error {
	// A program that is stopped leaves the states of all its sequences, and of
	// those of the step before, undefined. So only a job that is alone can be
	// stopped inside one.
	var stop *compute.Stop
	if len(r.active) == 1 {
		stop = &batch[0].stop
	}
	tap := false
	shares := make([]*share, len(batch))
	for i, g := range batch {
		g.good = false
		shares[i] = &g.share
		tap = tap || g.drafts != nil
	}
	return r.t.forward(batch[0].model, shares, tap, stop)
}

// pace fits the rows of prompt beside answers to the time that they take.
func (r *Runner) pace(batch []*generation, took time.Duration) {
	rows := 0
	for _, g := range batch {
		if g.share.want != allRows {
			rows += len(g.share.ids)
		}
	}
	switch {
	case took > chunkPeriod:
		r.chunk = max(r.chunk/2, leastChunk)
	case took < chunkPeriod/3 && rows >= r.chunk:
		r.chunk = min(2*r.chunk, r.opts.Chunk)
	}
}

// finish ends a job.
func (r *Runner) finish(g *generation, err error) {
	r.active = slices.DeleteFunc(r.active, func(x *generation) bool { return x == g })
	err = stopError(g.ctx, err)
	g.out.Total = r.now().Sub(g.began)
	g.end()
	g.over(g.out, err)
}
