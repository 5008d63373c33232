package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sparkbar/engine/models"
)

// resolve finds the target, the mode and the drafter of a plan. A drafter that
// only the table of published pairs names is used when it is on this machine or
// can be fetched; mode auto does without it.
func (e *Engine) resolve(ctx context.Context, p *plan, download bool, report func(State, LoadProgress)) error {
	o, r := &e.opts, p.request
	auto := r.auto()
	choice := models.Choice{Target: r.Model, Drafter: r.Drafter}
	if files, kind := o.Builtins[r.Model].drafter(r.Mode); files != nil && r.Drafter == "" {
		p.drafter, p.mode = &source{id: r.Model + "-" + kind, builtin: files}, kind
	} else {
		var err error
		if choice, err = models.Resolve(r.Model, r.Mode, r.Drafter); err != nil {
			return &Error{Kind: ErrInvalid, Field: "drafter", Message: err.Error(), Cause: err}
		}
		if p.mode = choice.Mode; auto && choice.Drafter != "" {
			p.mode = ""
		}
	}
	var missing []models.Request // the target first
	target, terr := o.locate(choice.Target, "model")
	if terr != nil {
		if !download || !absent(terr) || !models.OnHub(choice.Target) {
			return terr
		}
		missing = append(missing, models.Named(choice.Target))
	}
	p.target = target
	if choice.Drafter != "" && p.drafter == nil {
		s, err := o.locate(choice.Drafter, "drafter")
		switch {
		case err == nil:
			p.drafter = &s
		case download && absent(err) && models.OnHub(choice.Drafter):
			q := models.Named(choice.Drafter)
			q.Drafter = r.Mode != "draft"
			missing = append(missing, q)
		case auto && r.Drafter == "":
			p.mode = "lookup"
		default:
			return err
		}
	}
	if len(missing) == 0 {
		return nil
	}
	got, err := e.fetch(ctx, r.Model, missing, report)
	if err != nil && terr == nil && auto && r.Drafter == "" && ctx.Err() == nil {
		// The target is here and only its drafter is not: go on without it.
		p.mode = "lookup"
		p.notes = append(p.notes, Warning{Code: "load_note", Level: "attention", Message: fmt.Sprintf("the drafter %s could not be fetched, so the model runs with lookup drafts: %v", choice.Drafter, err)})
		return nil
	}
	if err != nil {
		return err
	}
	if terr != nil {
		p.target, got = source{id: choice.Target, path: got[0].Path}, got[1:]
	}
	if len(got) > 0 {
		p.drafter = &source{id: choice.Drafter, path: got[0].Path}
	}
	return nil
}

// absent reports that a name was well-formed but is not here.
func absent(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == ErrModelNotFound
}

// fetch downloads and tells how far it is. A download of the same that is under
// way is waited for; it goes on when this load is cancelled.
func (e *Engine) fetch(ctx context.Context, model string, what []models.Request, report func(State, LoadProgress)) ([]models.Snapshot, error) {
	d, started, err := e.startDownload(model, what)
	if err != nil {
		return nil, err
	}
	if !started {
		e.ResumeDownload(d.id)
	}
	tell := func() {
		now := d.info()
		report(StateDownloading, LoadProgress{Model: model, BytesDone: now.BytesDone, BytesTotal: now.BytesTotal, Download: &now})
	}
	tell()
	tick := time.NewTicker(progressPeriod)
	defer tick.Stop()
	for gone := ctx.Done(); !isClosed(d.done); {
		select {
		case <-d.done:
		case <-gone:
			if !started {
				return nil, &Error{Kind: ErrCancelled, Message: fmt.Sprintf("the load was cancelled; the download of %s, which was under way before, goes on", d.info().Repo)}
			}
			gone = nil
			e.mu.Lock()
			cleanup := e.cleanup
			e.mu.Unlock()
			e.CancelDownload(d.id, cleanup)
		case <-tick.C:
			tell()
		}
	}
	return d.result, d.err
}

// fit decides from the sizes of the files and the wanted context whether memory
// holds a model, and shortens a context that nobody asked for.
func (e *Engine) fit(p *plan) error {
	r := p.request
	p.window = value(r.ContextWindow, 0)
	cfg := p.files.Config()
	body := cfg
	if text := cfg.Sub("text_config"); !text.Empty() {
		body = text
	}
	n := models.Need{Weights: p.files.Bytes(), Target: models.GeometryOf(p.files.Config()), Context: p.window, MaxContext: body.IntOr("max_position_embeddings", 0),
		ValueBytes: map[int]float64{0: 4, 8: 1.125, 4: 0.625}[value(r.KVBits, 0)]}
	if p.drafterFiles != nil {
		n.Drafter, n.DrafterContext = p.drafterFiles.Bytes(), models.GeometryOf(p.drafterFiles.Config())
	}
	m := e.memoryNow()
	p.need = n.Fit(m)
	f := p.need
	if m.Total == 0 {
		return nil
	}
	if window := n.MaxContext; f.Context > 0 && window > 0 {
		if p.window > 0 {
			window = p.window
		}
		p.cacheTokens = min(e.opts.cacheTokens(window), max(window, f.Context))
	}
	note := func(text string) {
		p.notes = append(p.notes, Warning{Code: "load_note", Level: "attention", Message: r.Model + " " + text})
	}
	switch {
	case f.Verdict == models.TooBig && (p.window > 0 || f.Context == 0):
		return &Error{Kind: ErrLoadFailed, Field: "context_window", Message: fmt.Sprintf("%s is too big for this machine: it %s", r.Model, f.Reason)}
	case p.window == 0 && f.Context > 0 && n.MaxContext > f.Context:
		p.window, p.cacheTokens = f.Context, f.Context
		note(fmt.Sprintf("runs with a context of %d tokens: at its own maximum it %s", f.Context, f.Reason))
		n.Context = f.Context
		p.need = n.Fit(m)
	case f.Verdict == models.Tight:
		note(f.Reason)
	}
	return nil
}
