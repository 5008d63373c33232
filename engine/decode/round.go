package decode

import (
	"context"
	"math"
	"slices"
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
	r     *Runner
	j     Job
	ctx   context.Context
	model *arch.Model // with the job's adapter
	over  func(Outcome, error)
	out   Outcome

	reuse  *cache.Reuse  // what the prefix store had; nil before open
	seq    *cache.Seq    // the target's past: everything committed but the pending token
	drafts draft.Context // the drafter's, alike; nil without one
	good   bool          // both are consistent and may be stored
	at     int           // prompt tokens in the past
	marks  []int         // see marks

	// The coming step, or the one that just ran.
	share   share
	copied  []int32 // from the context
	offered int     // copies before the controller's choice
	prop    draft.Proposal
	rd      Round
	n       int // accepted drafts
	next    []Token

	drafted, copies acceptance
	late            late

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

// reading reports whether the prompt is not yet in the past.
func (g *generation) reading() bool { return g.at < len(g.j.Prompt) }

// open begins the past: with what the prefix store has of the prompt.
func (g *generation) open() (err error) {
	r := g.r
	g.reuse = &cache.Reuse{}
	if !g.j.NoStore {
		if g.reuse, err = r.store.Take(g.key(), g.j.Prompt); err != nil {
			return err
		}
	}
	var own *cache.Seq // the drafter's past
	switch {
	case len(g.reuse.Seqs) > 1:
		own = g.reuse.Seqs[1]
	case g.reuse.Length > 0 && g.j.Mode == Draft && g.pinned():
		// What a seed draws must not depend on how much of the text a drafter has seen.
		g.reuse.Seqs[0].Close()
		g.reuse.Close()
		g.reuse = &cache.Reuse{}
	}
	g.at, g.out.Cached = g.reuse.Length, g.reuse.Length
	if g.at > 0 {
		g.seq = g.reuse.Seqs[0]
	} else if g.seq, err = r.t.cache.NewSeq(); err != nil {
		return err
	}
	if g.j.Mode != Draft {
		own.Close()
	} else if g.drafts, err = r.drafter.NewContext(own); err != nil {
		own.Close()
		return err
	}
	g.marks = g.rememberAt()
	return nil
}

// read plans the next rows of the prompt, at most room of them.
func (g *generation) read(room int) error {
	if g.reuse == nil {
		if err := g.open(); err != nil {
			return err
		}
	}
	end := min(g.at+room, len(g.j.Prompt))
	if len(g.marks) > 0 {
		end = min(end, g.marks[0])
	}
	want := noRows
	if end == len(g.j.Prompt) {
		want = lastRow
	}
	g.out.TargetForwards = 1 // all chunks of a prompt are one forward of it
	if g.j.Prompted != nil {
		g.readAll(end)
		return nil
	}
	g.plan(g.j.Prompt[g.at:end], want)
	return nil
}

// plan sets the rows of the coming step.
func (g *generation) plan(ids []int32, want outputs) {
	g.share = share{seq: g.seq, ids: ids, want: want}
}

// readOn ends a step that read prompt: it remembers the past at marks and, at
// the end of the prompt, commits the first token.
func (g *generation) readOn() (done bool, err error) {
	if g.j.Prompted != nil {
		g.prompted()
	}
	g.at += len(g.share.ids)
	if len(g.marks) > 0 && g.at == g.marks[0] {
		if err := g.snapshot(len(g.marks) == 1); err != nil {
			return false, err
		}
		g.marks = g.marks[1:]
	}
	if g.j.Prefill != nil {
		g.j.Prefill(g.at, len(g.j.Prompt))
	}
	if g.reading() {
		return false, nil
	}
	first, _, err := g.accept(nil, nil)
	if err != nil {
		return false, err
	}
	g.last = g.r.now()
	g.out.Prefill = g.last.Sub(g.began)
	if g.j.Mode == Baseline { // here the first token counts as a round
		g.out.Rounds = 1
		g.report(Round{Source: Plain, Committed: []int32{first[0].ID}, Pending: g.j.Prompt[len(g.j.Prompt)-1]})
	}
	return g.commit(first), nil
}

// rememberAt says where the prompt's past is to be remembered on the way, because
// it cannot be cut later: at rungs, and last at the stable boundary, up to which
// the next turn's prompt will be the same.
func (g *generation) rememberAt() []int {
	r := g.r
	own := r.drafter == nil || g.drafts == nil || r.drafter.Cache() == nil || r.drafter.Cache().Trimmable()
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
	if err == nil && g.drafts != nil && g.r.drafter.Cache() != nil {
		var own *cache.Seq
		if err = g.catchUp(); err != nil {
			g.drafts.Close()
		} else if own, err = g.drafts.Finish(&g.stop); err == nil {
			if own.Len() == g.seq.Len() { // not if it began in the middle of the text
				err = add(own)
			}
			if err == nil {
				g.drafts, err = g.r.drafter.NewContext(own)
			}
		}
		if err != nil {
			own.Close()
			g.drafts = nil
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

// keep commits the first n rows of the step. The drafter reads the taps of a prompt's,
// and of more than can be put off, at once: they are many, and just made. Those of an
// answer's it reads when it is asked for drafts, many rows together, at the latest when
// the conversation is stored.
func (g *generation) keep(n int) error {
	g.seq.Advance(n)
	if g.drafts == nil {
		return nil
	}
	fused := g.share.fused
	if fused.Given() {
		fused = fused.Slice(0, n)
	}
	if g.share.want == allRows && n <= g.r.lateRows {
		return g.postpone(fused, n)
	}
	if err := g.catchUp(); err != nil {
		return err
	}
	if err := g.drafts.Observe(g.share.ids[:n], fused, &g.stop); err != nil {
		return err
	}
	return g.drafts.Flush(&g.stop)
}

// look finds what can be copied from the context.
func (g *generation) look() {
	if g.j.Controller != nil {
		g.j.Controller.SetDepth(len(g.j.Prompt) + len(g.out.Tokens))
	}
	g.copied = nil
	if g.index == nil {
		return
	}
	most := g.room()
	if g.j.Mode == Lookup && g.j.Cap > 0 {
		most = min(most, g.j.Cap)
	}
	g.copied = g.index.Propose(nil, most, g.gate.Allowed())
	if g.offered = len(g.copied); g.j.Controller == nil {
		return
	}
	g.copied = g.copied[:g.j.Controller.Copies(g.offered, g.index.Draft())]
	// An end token comes just as well from the row before it, and nothing after it
	// counts. A prompt that is copied to its end has one there.
	if end := slices.IndexFunc(g.copied, func(id int32) bool { return g.j.End[id] }); end >= 0 {
		g.copied = g.copied[:end]
	}
}

// room is how many drafts can be used.
func (g *generation) room() int { return g.j.MaxTokens - len(g.out.Tokens) - 1 }

// propose begins a round, after look: drafts, at most budget of them (below 0 = as
// many as the job allows), and with them the rows to verify.
func (g *generation) propose(budget int) (err error) {
	j := &g.j
	pending := g.out.Tokens[len(g.out.Tokens)-1]
	rd := Round{Index: g.out.Rounds, Pending: pending, Source: Plain}
	if budget < 0 {
		budget = math.MaxInt
	}

	g.prop = draft.Proposal{}
	if copied := g.copied[:min(len(g.copied), budget)]; len(copied) > 0 {
		g.prop.Tokens, g.prop.Drafted = copied, copied
		rd.Source = FromLookup
	}
	rd.Cap = min(g.cap(), budget)
	n := min(rd.Cap, g.room())
	if j.Mode == Draft && len(g.copied) == 0 && n > 0 {
		if err = g.catchUp(); err == nil {
			g.prop, err = g.drafts.Propose(draft.Request{Pending: pending, Cap: n, Threshold: j.Threshold, Sampler: g.sampler, Temperature: j.Params.Temperature, Rand: g.rand, Whole: g.pinned(), Stop: &g.stop})
		}
		if err != nil {
			g.loseDrafter()
			return err
		}
		rd.Source = FromDrafter
	}
	if j.Mode == Lookup {
		rd.Cap = len(g.prop.Tokens)
	}
	g.rd = rd
	g.out.TargetForwards++
	g.plan(append([]int32{pending}, g.prop.Tokens...), allRows)
	return nil
}

// loseDrafter drops the drafter's past after an error of the drafter: it may count rows
// that were never read.
func (g *generation) loseDrafter() {
	g.drafts.Close()
	g.drafts = nil
}

// settle decides which rows of the step stay.
func (g *generation) settle() (err error) {
	n := len(g.share.ids)
	if g.share.want == allRows {
		if g.next, g.n, err = g.accept(g.prop.Tokens, g.prop.Dists); err != nil {
			return err
		}
		n = g.n + 1
	}
	if err := g.keep(n); err != nil {
		return err
	}
	g.good = true
	return nil
}

// roundOn ends a step that was a round: it reports and commits. alone says that
// the round's time is its own.
func (g *generation) roundOn(alone bool) (done bool) {
	j, rd := &g.j, g.rd
	rd.Draft, rd.Drafted, rd.Confidence = g.prop.Tokens, g.prop.Drafted, g.prop.Confidence
	rd.Accepted, rd.RolledBack = g.n, len(g.prop.Tokens)-g.n
	rd.Choice = append([]int32(nil), g.share.best...)
	for _, t := range g.next {
		rd.Committed = append(rd.Committed, t.ID)
	}
	switch rd.Source {
	case FromDrafter:
		g.drafted.learn(&g.r.drafted, len(g.prop.Tokens), g.n)
	case FromLookup:
		g.copies.learn(&g.r.copies, len(g.prop.Tokens), g.n)
	}
	g.out.Rounds++
	g.out.RolledBack += rd.RolledBack
	if rd.Source == FromLookup {
		g.gate.Update(len(g.prop.Tokens), g.n, g.index.Draft())
		if j.Mode == Draft {
			g.out.LookupRounds++
		}
	}
	now := g.r.now()
	rd.Time = now.Sub(g.last)
	g.last = now
	if j.Controller != nil {
		ms := float64(rd.Time) / float64(time.Millisecond)
		if !alone {
			ms = 0
		}
		if rd.Source == FromLookup {
			j.Controller.Copied(g.offered, g.index.Draft(), len(g.prop.Tokens), g.n, ms)
		} else {
			j.Controller.Update(min(rd.Cap, g.room()), g.n, len(g.next), ms) // so many drafts were asked for
		}
	}
	g.report(rd)
	return g.commit(g.next)
}

// cap is how many tokens the drafter may propose in the coming round.
func (g *generation) cap() int {
	j := &g.j
	if j.Mode != Draft {
		return 0
	}
	c := g.r.drafter.MaxDraft()
	if j.Controller != nil {
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
func (g *generation) accept(drafts []int32, dists []sample.Dist) ([]Token, int, error) {
	p := &g.share
	var next int32
	n := 0
	var raw [][]float32 // rows before penalties, for log-probabilities
	if g.penalties.Active() {
		done := g.penalties.Completion()
		for i := range p.logits.Rows {
			row := p.logits.F32(i)
			if g.j.Logprobs >= 0 && !g.j.Penalized {
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
	g.stop.Clear() // what was cancelled is stored too
	if g.drafts != nil && g.good && !g.j.NoStore && g.catchUp() != nil {
		g.good = false
	}
	if g.drafts != nil && g.good && !g.j.NoStore {
		s, err := g.drafts.Finish(nil)
		own, g.good = s, err == nil
	} else if g.drafts != nil {
		g.drafts.Close()
	}
	defer func() {
		g.r.giveLate(g.late)
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
