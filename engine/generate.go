package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sparkbar/engine/decode"
	"sparkbar/engine/sample"
	"sparkbar/engine/telemetry"
)

// CountTokens renders a prompt and counts its tokens for a model, "" = the
// loaded one. It never waits for running generations, nor for a load.
func (e *Engine) CountTokens(ctx context.Context, model string, p Prompt) (int, error) {
	want, err := e.wanted(model)
	if err != nil {
		return 0, err
	}
	e.mu.Lock()
	if want == nil && e.model == nil {
		want = e.comingLocked()
	}
	if l := e.model; l != nil && (want == nil || l.info.Target == want.Model) {
		l.users.Add(1)
		e.mu.Unlock()
		defer l.users.Done()
		ids, _, err := l.encode(p)
		return len(ids), err
	}
	if want == nil {
		defer e.mu.Unlock()
		return 0, e.noneLocked()
	}
	v, id := e.voice, e.voiceID
	e.mu.Unlock()
	if id != want.Model {
		s, err := e.opts.locate(want.Model, "model")
		if err != nil {
			return 0, err
		}
		c, err := s.open()
		if err != nil {
			return 0, loadError(err)
		}
		defer c.Close()
		if v, err = s.voice(c, e.complete(*want)); err != nil {
			return 0, loadError(err)
		}
		if c.GGUF() == nil { // what comes from a GGUF file may lie in the file
			e.update(func() { e.voice, e.voiceID = v, want.Model })
		}
	}
	ids, _, err := v.encode(p)
	return len(ids), err
}

// Generate runs one request to its end. emit gets deltas in order, on the
// caller's goroutine; a slow emit holds nobody else up, and its error, like the
// end of ctx, stops the generation within a round.
//
// A request that names another model of this machine waits until that is
// loaded: such requests are gathered by model and answered in the order of
// their first. A request that names another drafter waits in the same way until
// the model is loaded with that. Nothing is ever downloaded for a request.
//
// Sampling values come from the request, else from the server's options, else
// from the model's generation_config.json, else are greedy (temperature 0,
// top_p 1, top_k 0).
func (e *Engine) Generate(ctx context.Context, req Request, emit func(Delta) error) (Result, error) {
	ctx, self, end := e.register(ctx, &req)
	defer end()
	event := RequestEvent{ID: req.ID, State: "queued", Client: req.Client}
	told := false
	tell := func() {
		told = true
		e.bus.Publish("request", event)
	}
	res, err := func() (Result, error) {
		if err := e.opts.inside("adapters", req.Adapter); err != nil {
			return Result{}, err
		}
		l, done, err := e.take(ctx, req.Model, req.Drafter, func() {
			event.Model = req.Model
			tell()
		})
		if err != nil {
			return Result{}, err
		}
		defer done()
		ids, text, err := l.encode(req.Prompt)
		if err != nil {
			return Result{}, err
		}
		job, err := e.plan(l, &req, ids)
		if err != nil {
			return Result{}, err
		}
		adapter := req.Adapter
		if adapter == "" {
			adapter = l.request.Adapter
		}
		var release func()
		if job.Adapter, release, err = l.adapter(ctx, adapter); err != nil {
			return Result{}, err
		}
		defer release()
		event.Model, event.Prompt = l.info.ID, len(ids)
		e.update(func() { self.Model, self.PromptTokens = l.info.ID, len(ids) })
		tell()
		jobs, room := l.run.Room()
		if running, _ := e.queue.counts(); running == 0 {
			e.advanced() // nothing has stood still yet
		}
		leave, err := e.queue.acquire(ctx, req.Client, claim{on: l, jobs: jobs, room: room, positions: l.run.Need(&job)})
		if err != nil {
			return Result{}, err
		}
		defer leave()
		event.State = "running"
		e.update(func() { self.State = "running" })
		tell()
		return e.runJob(ctx, l, req, text, job, self, emit)
	}()
	if err != nil && context.Cause(ctx) == error(errCancelledByOwner) {
		err = errCancelledByOwner
	}
	if !told {
		return res, err // refused before it meant anything
	}
	event.State, event.Stats = "done", &res.Stats
	if err != nil {
		event.State, event.Error, event.Stats = "failed", err.Error(), nil
	}
	tell()
	return res, err
}

// plan checks a request against the model and turns it into a job.
func (e *Engine) plan(l *loaded, req *Request, ids []int32) (decode.Job, error) {
	window := l.controls.maxContext
	if len(ids) == 0 {
		return decode.Job{}, &Error{Kind: ErrInvalid, Field: "prompt", Message: "the prompt is empty; send at least one token"}
	}
	if len(ids) >= window {
		return decode.Job{}, &Error{Kind: ErrContextLength, Message: fmt.Sprintf("prompt is too long: %d tokens > %d maximum", len(ids), window)}
	}
	live := e.live.Load()
	limit := req.MaxTokens
	if limit <= 0 {
		limit = live.DefaultMaxTokens
	}
	limit = max(1, min(limit, live.MaxTokensCap, window-len(ids)))
	s, d, p := req.Sampling, l.defaults, req.Sampling.Params
	p.Temperature = first(0, s.Temperature, live.Temperature, d.temperature)
	p.TopP = first(1, s.TopP, live.TopP, d.topP)
	p.MinP = first(p.MinP, s.MinP, live.MinP)
	p.TopK = first(p.TopK, s.TopK, live.TopK, d.topK)
	if s.Seed != nil {
		p.Seed = s.Seed
	}
	if p.TopK >= l.info.Vocab {
		if s.TopK != nil && req.Prompt.MLXRules && p.Temperature > 0 { // ends that server's worker
			return decode.Job{}, &Error{Kind: ErrInvalid, Field: "top_k", Message: fmt.Sprintf("top_k must be less than the vocabulary of %d tokens", l.info.Vocab)}
		}
		p.TopK = 0 // keeps everything
	}
	if err := p.Validate(l.info.Vocab); err != nil {
		bad := &Error{Kind: ErrInvalid, Message: err.Error(), Cause: err}
		var pe *sample.ParamError
		if errors.As(err, &pe) {
			bad.Field = pe.Field
		}
		return decode.Job{}, bad
	}
	k := l.controls
	j := decode.Job{Prompt: ids, MaxTokens: limit, End: l.end, Params: p, Logprobs: req.Logprobs, Penalized: req.Prompt.MLXRules, Mode: k.mode, Cap: k.cap, Threshold: k.threshold, Lookup: k.lookup, LongLookup: k.longLookup, Controller: k.controller, Tail: k.tail}
	if lead := l.lead(req.Prompt); lead != "" { // the next turn does not begin with it
		j.Tail += len(l.tok.Encode(lead, false))
	}
	if e.random != nil && p.Seed != nil {
		j.Rand = e.random(*p.Seed)
	}
	if req.IgnoreEnd {
		j.End = nil
	}
	if k.derived {
		j.Cap = l.capAt(len(ids))
	}
	// mlx_lm.server has no copies, and a seed draws other tokens with them: it was not
	// asked for them here.
	seeded := req.Prompt.MLXRules && p.Seed != nil && p.Temperature > 0
	unasked := j.Mode == decode.Lookup && l.request.auto()
	if n := req.MaxDraft; n != nil && *n == 0 || seeded && unasked {
		j.Mode, j.Cap, j.Lookup, j.Controller = decode.Baseline, 0, false, nil
	} else if n != nil && j.Mode == decode.Draft {
		j.Cap, j.Controller = *n, nil // at most what the drafter can do
	}
	if a := req.Arm; a != nil {
		if !slices.Contains(armsOf(l.info.Mode), a.Mode) {
			return decode.Job{}, &Error{Kind: ErrInvalid, Field: "arms", Message: fmt.Sprintf("mode '%s' is not available with the loaded model (have: %s)", clip(a.Mode), strings.Join(armsOf(l.info.Mode), ", "))}
		}
		j.NoStore = true
		if a.Mode != l.info.Mode {
			j.Mode, j.Cap, j.Lookup, j.Controller = decode.Mode(a.Mode), 0, false, nil
		}
		if a.Cap > 0 {
			j.Cap, j.Controller = a.Cap, nil
			if d := l.run.Drafter(); j.Mode == decode.Draft && d != nil {
				j.Cap = min(a.Cap, d.MaxDraft())
			}
		}
		if a.Confidence != nil {
			j.Threshold = *a.Confidence
		}
	}
	if err := l.run.Check(&j); err != nil {
		return decode.Job{}, &Error{Kind: ErrInvalid, Message: err.Error(), Cause: err}
	}
	return j, nil
}

// runJob runs a job on the model's goroutine, beside others, and hands its deltas
// to emit.
func (e *Engine) runJob(ctx context.Context, l *loaded, req Request, prompt string, j decode.Job, self *running, emit func(Delta) error) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	box := newMailbox()
	a := newAnswer(l, req, prompt, box.put)
	began := e.opts.Now()
	var ttft time.Duration
	echo := func(ts []decode.Token) {
		for _, t := range ts {
			a.prompt = append(a.prompt, a.token(t))
		}
	}
	switch {
	case req.EchoPrompt && req.Logprobs >= 0:
		echo([]decode.Token{{ID: j.Prompt[0]}})
		j.NoStore, j.Prompted = true, echo
	case req.EchoPrompt:
		for _, id := range j.Prompt {
			echo([]decode.Token{{ID: id}})
		}
	}
	reading := 0 // tokens of a prompt whose end nobody was told yet
	tell := func(done, total int, over bool) {
		e.bus.Publish("prefill", telemetry.Prefill{Type: "prefill", Req: req.ID, Mode: l.info.Mode, Processed: done, Total: total, Done: over, T: l.log.Since(e.opts.Now())})
	}
	j.Prefill = func(done, total int) {
		e.advanced()
		box.put(Delta{Prefill: &Progress{done, total}})
		if done == total && req.EchoPrompt {
			box.put(Delta{Prompt: a.prompt})
		}
		if reading = total; done == total {
			reading = 0
		}
		tell(done, total, done == total)
	}
	j.Round = func(r decode.Round) {
		e.advanced()
		e.bus.Publish("round", l.log.Record(telemetry.Round{Req: req.ID, Mode: l.info.Mode, I: r.Index, Drafted: len(r.Draft), Accepted: r.Accepted,
			Committed: len(r.Committed), Cap: r.Cap, Source: string(r.Source), MS: float64(r.Time) / float64(time.Millisecond)}, e.opts.Now()))
		e.guardRound(l, false)
	}
	j.Emit = func(ts []decode.Token) bool {
		if ttft == 0 {
			ttft = e.opts.Now().Sub(began)
		}
		e.update(func() { self.Tokens += len(ts) })
		return a.add(ts)
	}
	var out decode.Outcome
	var err error
	cold, swap := l.cold.Load(), e.swapUsed()
	go l.do(func() {
		started := false
		over := func(o decode.Outcome, failed error) {
			out, err = o, failed
			if started {
				l.together.ended(l.run.Active())
			}
			l.cold.Store(false)
			if reading > 0 { // whoever shows progress takes it away now
				tell(reading, reading, true)
			}
			l.measure()
			e.guardRound(l, l.run.Active() == 0)
			box.close()
		}
		var failed error
		if req.Arm != nil && req.Arm.Auto && j.Controller == nil {
			j.Controller, failed = l.newController(ctx)
		}
		if failed == nil {
			if failed = l.run.Start(ctx, j, over); failed == nil {
				started = true
				l.together.began(l.run.Active())
			}
		}
		if failed != nil {
			over(decode.Outcome{}, failed)
		}
	})
	for {
		deltas, open := box.take()
		for _, d := range deltas {
			if emit == nil {
				continue
			}
			if e := emit(d); e != nil {
				cancel(e)
				emit = nil
			}
		}
		if !open {
			break
		}
	}
	if err != nil {
		e.checkFit(l, err)
		return Result{}, generationError(ctx, err)
	}
	res := a.finish()
	for _, d := range box.rest() {
		if emit != nil {
			if e := emit(d); e != nil {
				return Result{}, generationError(ctx, e)
			}
		}
	}
	mode := l.modeOf(&j)
	t := telemetry.Request{Mode: mode, PromptTokens: len(j.Prompt), CachedTokens: out.Cached, CompletionTokens: len(res.Tokens), Rounds: out.Rounds,
		TargetForwards: out.TargetForwards, LookupRounds: out.LookupRounds, Seconds: out.Total.Seconds(), PrefillSeconds: out.Prefill.Seconds(),
		TTFTSeconds: ttft.Seconds(), Decay: l.log.Decay(req.ID), Cold: cold, SwapDeltaBytes: e.swapUsed() - swap}
	if c := e.Roofline(&l.info, t.PromptTokens+t.CompletionTokens).CeilingTPS; c != nil {
		t.CeilingTPS = *c
	}
	if mode != "baseline" {
		c := out.Cap
		if mode == "lookup" && c == 0 {
			c = 6
		}
		t.Cap = &c
	}
	if req.Arm == nil {
		l.totals.Add(&t)
	}
	res.Model, res.PromptTokens, res.Stats, res.Prefill, res.TTFT = l.info.ID, j.Prompt, t.Summary(), out.Prefill, ttft
	return res, nil
}

// modeOf is the name of the way in which a job runs.
func (l *loaded) modeOf(j *decode.Job) string {
	if j.Mode == decode.Draft {
		return l.run.Drafter().Mode()
	}
	return string(j.Mode)
}

func generationError(ctx context.Context, err error) error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case ctx.Err() != nil:
		return &Error{Kind: ErrCancelled, Message: "the generation was cancelled", Cause: err}
	}
	return &Error{Kind: ErrInternal, Message: "generation failed: " + err.Error(), Cause: err}
}

// Arms are the modes in which the loaded model can run; nil without one.
func (e *Engine) Arms() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.model == nil {
		return nil
	}
	return armsOf(e.model.info.Mode)
}

func armsOf(mode string) []string {
	if mode == "baseline" || mode == "lookup" {
		return []string{"baseline", "lookup"}
	}
	return []string{mode, "baseline", "lookup"}
}

// mailbox carries deltas from the model's goroutine to the caller's without
// ever making the former wait.
type mailbox struct {
	mu     sync.Mutex
	items  []Delta
	closed bool
	signal chan struct{}
}

func newMailbox() *mailbox { return &mailbox{signal: make(chan struct{}, 1)} }

func (m *mailbox) put(d Delta) {
	m.mu.Lock()
	m.items = append(m.items, d)
	m.mu.Unlock()
	m.wake()
}

func (m *mailbox) wake() {
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

func (m *mailbox) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.wake()
}

// take waits for deltas; open is false once the mailbox is closed and empty.
func (m *mailbox) take() (items []Delta, open bool) {
	<-m.signal
	m.mu.Lock()
	defer m.mu.Unlock()
	items, m.items = m.items, nil
	return items, !m.closed
}

// rest returns what was put in after the end.
func (m *mailbox) rest() []Delta {
	m.mu.Lock()
	defer m.mu.Unlock()
	items := m.items
	m.items = nil
	return items
}

// callID returns a new id of a tool call.
func callID() string {
	var b [12]byte
	rand.Read(b[:])
	return "call_" + hex.EncodeToString(b[:])
}
