package decode

import (
	"context"
	"time"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/draft"
	"sparkbar/engine/draft/ngram"
	"sparkbar/engine/sample"
)

// generation is a job in progress.
type generation struct {
	r   *Runner
	j   Job
	out Outcome

	reuse *cache.Reuse  // what the prefix store had
	seq   *cache.Seq    // the target's past: everything committed but the pending token
	ctx   draft.Context // the drafter's, alike; nil without one
	good  bool          // both are consistent and may be stored

	sampler   *sample.Sampler
	penalties *sample.Penalizer
	rand      sample.Source
	scratch   sample.Scratch
	dists     []sample.Dist
	index     *ngram.Index
	gate      ngram.Gate

	stop  compute.Stop
	began time.Time
	last  time.Time // end of the round before
}

func (g *generation) run(ctx context.Context) error {
	first, err := g.prefill(ctx)
	if err != nil {
		return err
	}
	if g.j.Mode == Baseline { // here the first token counts as a round
		g.out.Rounds = 1
		g.report(Round{Source: Plain, Committed: []int32{first.ID}, Pending: g.j.Prompt[len(g.j.Prompt)-1]})
	}
	done := g.commit([]Token{first})
	for !done {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if done, err = g.round(); err != nil {
			return err
		}
	}
	return nil
}

// prefill reads the prompt, as far as the prefix store does not have it, and
// chooses the first token.
func (g *generation) prefill(ctx context.Context) (Token, error) {
	r, prompt := g.r, g.j.Prompt
	var err error
	g.reuse = &cache.Reuse{}
	if !g.j.NoStore {
		if g.reuse, err = r.store.Take(g.key(), prompt); err != nil {
			return Token{}, err
		}
	}
	g.out.Cached = g.reuse.Length
	var own *cache.Seq // the drafter's past
	if len(g.reuse.Seqs) > 1 {
		own = g.reuse.Seqs[1]
	}
	if g.out.Cached > 0 {
		g.seq = g.reuse.Seqs[0]
	} else if g.seq, err = r.t.cache.NewSeq(); err != nil {
		return Token{}, err
	}
	if g.j.Mode != Draft {
		own.Close()
	} else if g.ctx, err = r.drafter.NewContext(own); err != nil {
		own.Close()
		return Token{}, err
	}
	marks := g.marks()
	var p pass
	for at := g.out.Cached; at < len(prompt); {
		if ctx.Err() != nil {
			return Token{}, context.Cause(ctx)
		}
		n := min(r.opts.Chunk, len(prompt)-at)
		if len(marks) > 0 {
			n = min(n, marks[0]-at)
		}
		want := noRows
		if at+n == len(prompt) {
			want = lastRow
		}
		if p, err = g.forward(prompt[at:at+n], want); err != nil {
			return Token{}, err
		}
		if err := g.keep(p.fused, prompt[at:at+n]); err != nil {
			return Token{}, err
		}
		at += n
		if len(marks) > 0 && at == marks[0] {
			if err := g.snapshot(len(marks) == 1); err != nil {
				return Token{}, err
			}
			marks = marks[1:]
		}
		if g.j.Prefill != nil {
			g.j.Prefill(at, len(prompt))
		}
	}
	g.good = true
	tokens, _, err := g.accept(p, nil, nil)
	if err != nil {
		return Token{}, err
	}
	g.last = r.now()
	g.out.Prefill = g.last.Sub(g.began)
	return tokens[0], nil
}

// marks are where the prompt's past is to be remembered on the way, because it
// cannot be cut later: at rungs, and last at the stable boundary, up to which
// the next turn's prompt will be the same.
func (g *generation) marks() []int {
	r := g.r
	own := r.drafter == nil || g.ctx == nil || r.drafter.Cache() == nil || r.drafter.Cache().Trimmable()
	if g.j.NoStore || r.opts.Stored <= 0 || own && r.t.cache.Trimmable() {
		return nil
	}
	stable := len(g.j.Prompt) - max(g.j.Tail, 1)
	if stable <= g.out.Cached {
		return nil
	}
	return append(cache.Marks(g.out.Cached, stable, g.reuse.Anchor, max(r.opts.Rungs, 0)), stable)
}

// snapshot remembers the past as it is now: as a rung, or for good.
func (g *generation) snapshot(stable bool) error {
	snaps := make([]*cache.Snapshot, 0, 2)
	add := func(q *cache.Seq) error {
		s, err := q.Snapshot()
		if err == nil {
			snaps = append(snaps, s)
		}
		return err
	}
	err := add(g.seq)
	if err == nil && g.ctx != nil && g.r.drafter.Cache() != nil {
		var own *cache.Seq
		if own, err = g.ctx.Finish(&g.stop); err == nil {
			if err = add(own); err == nil {
				g.ctx, err = g.r.drafter.NewContext(own)
			}
		}
		if err != nil {
			own.Close()
			g.ctx = nil
		}
	}
	if err != nil {
		for _, s := range snaps {
			s.Close()
		}
		return err
	}
	if stable {
		g.r.store.Put(g.key(), g.j.Prompt[:g.seq.Len()], g.reuse, snaps...)
	} else {
		g.reuse.Rung(snaps...)
	}
	return nil
}

// key tells pasts of different weights apart.
func (g *generation) key() any { return adapterKey(g.j.Adapter) }

func adapterKey(a *arch.Adapter) any {
	if a == nil { // not a nil pointer in an interface
		return nil
	}
	return a
}

// forward runs the target once.
func (g *generation) forward(ids []int32, want outputs) (pass, error) {
	g.good = false
	if g.ctx != nil { // the drafter still reads the last forward's rows
		if err := g.ctx.Flush(&g.stop); err != nil {
			return pass{}, err
		}
	}
	g.out.TargetForwards++
	if want != allRows && g.out.TargetForwards > 1 {
		g.out.TargetForwards = 1 // all chunks of a prompt are one forward of it
	}
	return g.r.t.forward(g.seq, ids, want, g.ctx != nil, &g.stop)
}

// keep commits the first rows of the last forward, those of ids.
func (g *generation) keep(fused compute.View, ids []int32) error {
	g.seq.Advance(len(ids))
	if g.ctx == nil {
		return nil
	}
	if fused.Given() {
		fused = fused.Slice(0, len(ids))
	}
	return g.ctx.Observe(ids, fused, &g.stop)
}

// round proposes, verifies, accepts, rolls back and emits.
func (g *generation) round() (done bool, err error) {
	r, j := g.r, &g.j
	pending := g.out.Tokens[len(g.out.Tokens)-1]
	room := j.MaxTokens - len(g.out.Tokens) - 1 // drafts beyond this cannot be used
	rd := Round{Index: g.out.Rounds, Pending: pending, Source: Plain}

	var prop draft.Proposal
	if g.index != nil {
		if copied := g.index.Propose(nil, room, g.gate.Allowed()); len(copied) > 0 {
			prop.Tokens, prop.Drafted = copied, copied
			rd.Source = FromLookup
		}
	}
	rd.Cap = g.cap()
	if j.Mode == Draft && rd.Source == Plain && min(rd.Cap, room) > 0 {
		prop, err = g.ctx.Propose(draft.Request{Pending: pending, Cap: min(rd.Cap, room), Threshold: j.Threshold, Sampler: g.sampler, Temperature: j.Params.Temperature, Rand: g.rand, Stop: &g.stop})
		if err != nil {
			return false, err
		}
		rd.Source = FromDrafter
	}
	if j.Mode == Lookup {
		rd.Cap = len(prop.Tokens)
	}

	ids := append([]int32{pending}, prop.Tokens...)
	p, err := g.forward(ids, allRows)
	if err != nil {
		return false, err
	}
	tokens, n, err := g.accept(p, prop.Tokens, prop.Dists)
	if err != nil {
		return false, err
	}
	if err := g.keep(p.fused, ids[:n+1]); err != nil {
		return false, err
	}
	g.good = true

	rd.Draft, rd.Drafted, rd.Confidence = prop.Tokens, prop.Drafted, prop.Confidence
	rd.Accepted, rd.RolledBack = n, len(prop.Tokens)-n
	rd.Choice = append([]int32(nil), p.best...)
	for _, t := range tokens {
		rd.Committed = append(rd.Committed, t.ID)
	}
	g.out.Rounds++
	g.out.RolledBack += rd.RolledBack
	if rd.Source == FromLookup {
		g.gate.Update(len(prop.Tokens), n, g.index.Draft())
		if j.Mode == Draft {
			g.out.LookupRounds++
		}
	}
	now := r.now()
	rd.Time = now.Sub(g.last)
	g.last = now
	if j.Controller != nil && rd.Source != FromLookup {
		j.Controller.Update(rd.Cap, n, len(tokens), float64(rd.Time)/float64(time.Millisecond))
	}
	g.report(rd)
	return g.commit(tokens), nil
}

// cap is how many tokens the drafter may propose in the coming round.
func (g *generation) cap() int {
	j := &g.j
	if j.Mode != Draft {
		return 0
	}
	c := g.r.drafter.MaxDraft()
	if j.Controller != nil {
		j.Controller.SetDepth(len(j.Prompt) + len(g.out.Tokens))
		c = min(c, j.Controller.Cap())
	} else if j.Cap > 0 {
		c = min(c, j.Cap)
	}
	g.out.Cap = c
	return c
}

// accept decides which drafts stand, from the target's logits alone: the tokens
// to commit (the accepted drafts and one more) and how many drafts were
// accepted. dists are the drafts' distributions, nil if they were certain.
func (g *generation) accept(p pass, drafts []int32, dists []sample.Dist) ([]Token, int, error) {
	var next int32
	n := 0
	var raw [][]float32 // rows before penalties, for log-probabilities
	if g.penalties.Active() {
		done := g.penalties.Completion()
		for i := range p.logits.Rows {
			row := p.logits.F32(i)
			if g.j.Logprobs >= 0 {
				raw = append(raw, append([]float32(nil), row...))
			}
			g.penalties.Apply(row)
			p.best[i] = sample.Greedy(row)
			if i < len(drafts) {
				g.penalties.Push(drafts[i])
			}
		}
		g.penalties.Truncate(done)
	}
	if g.sampler.Greedy() {
		n = sample.AcceptGreedy(drafts, p.best)
		next = p.best[n]
	} else {
		rows := len(drafts) + 1
		for len(g.dists) < rows {
			g.dists = append(g.dists, sample.Dist{})
		}
		for i := range rows {
			if err := g.sampler.Dist(&g.dists[i], p.logits.F32(i), g.rand); err != nil {
				return nil, 0, err
			}
		}
		if len(drafts) == 0 {
			next = g.rand.Draw(&g.dists[0])
		} else {
			n, next = sample.Accept(drafts, dists, g.dists[:rows], g.rand, &g.scratch)
		}
	}
	tokens := make([]Token, 0, n+1)
	for i := range n + 1 {
		t := Token{ID: next}
		if i < n {
			t.ID = drafts[i]
		}
		if g.j.Logprobs >= 0 {
			row := p.logits.F32(i)
			if raw != nil {
				row = raw[i]
			}
			lp, top := sample.Logprobs(row, t.ID, g.j.Logprobs, nil)
			t.Logprob, t.Top = float64(lp), top
		}
		tokens = append(tokens, t)
	}
	return tokens, n, nil
}

// commit adds tokens to the output, cut at an end token and at the limit, and
// hands them on. It reports whether the generation is over.
func (g *generation) commit(tokens []Token) (done bool) {
	for i, t := range tokens {
		g.out.Tokens = append(g.out.Tokens, t.ID)
		g.penalties.Push(t.ID)
		if g.index != nil {
			g.index.Append(t.ID)
		}
		end := g.j.End[t.ID]
		if end || len(g.out.Tokens) == g.j.MaxTokens {
			tokens, done = tokens[:i+1], true
			g.out.Finish = FinishLength
			if end {
				g.out.Finish = FinishEnd
			}
			break
		}
	}
	if g.j.Emit != nil && g.j.Emit(tokens) {
		if !done || g.out.Finish == FinishLength {
			g.out.Finish = FinishEmit
		}
		return true
	}
	return done
}

func (g *generation) report(rd Round) {
	if g.j.Round != nil {
		g.j.Round(rd)
	}
}

// end stores the conversation for reuse, or drops what it held. The drafter's past
// is stored beside the target's if it can be brought to the same length;
// otherwise a later request starts the drafter's context anew.
func (g *generation) end() {
	var own *cache.Seq
	if g.ctx != nil && g.good {
		s, err := g.ctx.Finish(nil)
		own, g.good = s, err == nil
	} else if g.ctx != nil {
		g.ctx.Close()
	}
	defer func() {
		g.seq.Close()
		own.Close()
		if g.reuse != nil {
			g.reuse.Close()
		}
	}()
	tokens := append(append([]int32(nil), g.j.Prompt...), g.out.Tokens...)
	tokens = tokens[:max(len(tokens)-1, 0)] // the last one never went through the model
	if !g.good || g.j.NoStore || len(g.out.Tokens) == 0 || !fit(g.seq, len(tokens)) {
		return
	}
	snaps := make([]*cache.Snapshot, 0, 2)
	for _, q := range []*cache.Seq{g.seq, own} {
		if q == nil || !fit(q, len(tokens)) {
			break
		}
		s, err := q.Snapshot()
		if err != nil {
			break
		}
		snaps = append(snaps, s)
	}
	if len(snaps) > 0 {
		g.r.store.Put(g.key(), tokens, g.reuse, snaps...)
	}
}

// fit cuts a sequence to n positions, if it can be.
func fit(s *cache.Seq, n int) bool {
	return s.Len() == n || s.Len() > n && s.Truncate(n) == nil
}
