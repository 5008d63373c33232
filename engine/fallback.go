package engine

import (
	"context"
	"errors"
	"fmt"

	"sparkbar/engine/compute"
)

// buildSomewhere builds a model on Options.Backend, or, where that turns out to be
// unfit for this machine, on Options.Fallback with a note that says so.
func (e *Engine) buildSomewhere(ctx context.Context, p *plan, report func(State, LoadProgress)) (*loaded, error) {
	if e.opts.Fallback == nil {
		return e.build(ctx, p, e.opts.Backend, report)
	}
	var why error
	if known := e.unfit.Load(); known != nil {
		why = *known
	} else {
		l, err := e.build(ctx, p, e.opts.Backend, report)
		if !errors.Is(err, compute.ErrUnfit) {
			return l, err
		}
		why = err
		if p, err = e.prepare(ctx, p.request, false, report); err != nil { // the failed build has closed the files
			return nil, err
		}
	}
	action := "answers are right but slower than they could be; run `sparkbar doctor --kernels` for a report, and update macOS or Sparkbar"
	p.notes = append(p.notes, Warning{Code: "backend_unfit", Level: LevelAttention, Message: fmt.Sprintf("%s runs on the CPU: %v", p.request.Model, why), Action: &action})
	return e.build(ctx, p, e.opts.Fallback, report)
}

// checkFit begins to load the model again, on Options.Fallback, when a generation
// has shown that its backend does not work on this machine. While another load is
// under way nothing begins: it replaces the model, or the next request that fails
// asks again.
func (e *Engine) checkFit(l *loaded, err error) {
	if e.opts.Fallback == nil || !errors.Is(err, compute.ErrUnfit) {
		return
	}
	e.unfit.CompareAndSwap(nil, &err)
	e.mu.Lock()
	here := e.model == l
	e.mu.Unlock()
	if here {
		_, _ = e.start(l.request, true) // busy or closing: see above
	}
}
