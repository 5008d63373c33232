package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// group is requests that wait for the same model. Groups are served in the
// order of their first request: the model is loaded, all requests of the group
// are answered, then it is the next group's turn.
type group struct {
	load    LoadRequest
	drafter string        // that the requests insist on; "" = none
	waits   int           // requests in it
	loading bool          // its load is under way
	ready   chan struct{} // closed when model or err is set
	model   *loaded
	err     error
	users   sync.WaitGroup // requests that the model was handed to
}

// Check says whether a request that names a model would be answered: nil, or
// the error that Generate would return before it does anything.
func (e *Engine) Check(model string) error {
	want, err := e.wanted(model)
	if err != nil || want != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.model != nil || e.comingLocked() != nil || e.heldLocked() {
		return nil
	}
	return e.noneLocked()
}

// comingLocked is the model that answers whoever names none while nothing is
// loaded: the one that sleeps, or that another request waits for; nil = none.
func (e *Engine) comingLocked() *LoadRequest {
	switch {
	case e.asleep != nil && !e.live.Load().NoWake:
		return e.asleep
	case len(e.groups) > 0:
		return &e.groups[0].load
	}
	return nil
}

// heldLocked reports whether requests wait for the load under way.
func (e *Engine) heldLocked() bool {
	return e.loading != nil && !e.closed && e.live.Load().HoldDuringLoad > 0
}

// noneLocked is why nothing can answer.
func (e *Engine) noneLocked() error {
	switch {
	case e.closed:
		return errStopping()
	case e.loading != nil:
		return &Error{Kind: ErrLoading, Message: "a model is loading — try again in a moment"}
	}
	return &Error{Kind: ErrNoModel, Message: "no model is loaded — load one with POST /admin/load"}
}

// answersTo reports whether a name means this model: as it was asked for, its
// last part, or a path that ends in it.
func answersTo(target, name string) bool {
	return name == target || name == modelID(target) || strings.HasSuffix(target, "/"+name)
}

// wanted finds out which model a name means: nil = whichever is loaded. Names
// without a slash that nothing here has (claude-*, gpt-*) are aliases that
// clients insist on.
func (e *Engine) wanted(name string) (*LoadRequest, error) {
	if name == "" || name == "default_model" {
		return nil, nil
	}
	live := e.live.Load()
	if id, ok := live.Aliases[name]; ok {
		name = id
	}
	e.mu.Lock()
	var same *LoadRequest
	present := e.model
	pinned := present != nil && live.pinned(present.info.Target)
	fixed := live.NoModelSwitch || pinned
	for _, k := range slices.Backward(e.known) {
		if same == nil && answersTo(k.Model, name) && !fixed {
			same = &k
		}
	}
	if present != nil && answersTo(present.info.Target, name) {
		same = &present.request
	}
	arriving := present == nil && e.loading != nil && answersTo(e.loading.Model, name)
	e.mu.Unlock()
	if same != nil {
		return same, nil
	}
	if !fixed {
		if _, ok := e.opts.Builtins[name]; ok {
			return &LoadRequest{Model: name}, nil
		}
		if m, ok := e.opts.find(name); ok && m.ID == name && !m.Drafter && m.Loadable() {
			return &LoadRequest{Model: m.ID}, nil
		}
		if _, err := os.Stat(name); err == nil && strings.ContainsAny(name, `/\`) {
			return &LoadRequest{Model: name}, e.opts.inside("model", name)
		}
	}
	switch {
	case arriving:
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.heldLocked() {
			return nil, nil
		}
		return nil, e.noneLocked()
	case strings.Contains(name, "/"):
		message := fmt.Sprintf("model '%s' is not loaded here; load it with POST /admin/load", clip(name))
		if present != nil {
			message += fmt.Sprintf(", or name '%s'", present.info.ID)
			if pinned {
				message += ", which is pinned and stays loaded until then"
			}
		}
		return nil, &Error{Kind: ErrModelNotFound, Field: "model", Message: message}
	}
	return nil, nil
}

func clip(s string) string {
	if len(s) > 200 {
		return strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// withDrafter is the request that loads a model with the drafter that a request
// names; nil = both are loaded. want is the model, nil = whichever is loaded.
func (e *Engine) withDrafter(want *LoadRequest, drafter string) (*LoadRequest, error) {
	e.mu.Lock()
	present := e.model
	if want == nil && present != nil {
		want = &present.request
	}
	if want == nil {
		want = e.comingLocked()
	}
	if want == nil {
		defer e.mu.Unlock()
		return nil, e.noneLocked()
	}
	e.mu.Unlock()
	if present != nil && present.info.Target == want.Model && present.info.Drafter != "" && answersTo(present.info.Drafter, drafter) {
		return nil, nil
	}
	if e.live.Load().NoModelSwitch {
		return nil, &Error{Kind: ErrInvalid, Field: "draft_model", Message: "the drafter cannot be chosen per request here: the server runs with --no-model-switch; load the model with it"}
	}
	if err := e.opts.inside("draft_model", drafter); err != nil {
		return nil, err
	}
	if _, err := e.opts.locate(drafter, "drafter"); err != nil {
		return nil, &Error{Kind: ErrModelNotFound, Field: "draft_model", Message: err.Error(), Cause: err}
	}
	r := *want
	r.Drafter, r.Mode = drafter, "auto"
	return &r, nil
}

// take hands out the model that a request names, with the drafter that it names
// (if it does), once both are loaded; done must be called at the end. wait is
// told if that takes a while.
func (e *Engine) take(ctx context.Context, name, drafter string, wait func()) (l *loaded, done func(), err error) {
	want, err := e.wanted(name)
	if err != nil {
		return nil, nil, err
	}
	if drafter != "" {
		r, err := e.withDrafter(want, drafter)
		if err != nil {
			return nil, nil, err
		}
		if r == nil {
			drafter = "" // it is the one that is loaded
		} else {
			want = r
		}
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, nil, errStopping()
	}
	if m := e.model; m != nil && (want == nil || drafter == "" && m.info.Target == want.Model && len(e.groups) == 0) {
		m.users.Add(1)
		e.useLocked(1)
		e.mu.Unlock()
		return m, func() { e.release(m) }, nil
	}
	if want == nil {
		want = e.comingLocked()
	}
	if want == nil && e.heldLocked() {
		e.mu.Unlock()
		wait()
		if err := e.hold(ctx); err != nil {
			return nil, nil, err
		}
		return e.take(ctx, name, drafter, wait)
	}
	if want == nil {
		defer e.mu.Unlock()
		return nil, nil, e.noneLocked()
	}
	g := e.joinLocked(*want, drafter)
	e.mu.Unlock()
	wait()
	select {
	case <-g.ready:
	case <-ctx.Done():
		if e.leave(g) {
			return nil, nil, &Error{Kind: ErrCancelled, Message: "the request was cancelled while it waited for its model", Cause: context.Cause(ctx)}
		}
	}
	if g.err != nil {
		return nil, nil, g.err
	}
	return g.model, func() { e.release(g.model); g.users.Done() }, nil
}

// hold waits for the end of the load under way, but not longer than a request
// may be held.
func (e *Engine) hold(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.live.Load().HoldDuringLoad)
	defer cancel()
	sub := e.bus.Subscribe(64)
	defer sub.Close()
	for {
		e.mu.Lock()
		over := !e.heldLocked()
		e.mu.Unlock()
		if over {
			return nil
		}
		if _, err := sub.Next(ctx); err != nil {
			e.mu.Lock()
			defer e.mu.Unlock()
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return e.noneLocked()
			}
			return &Error{Kind: ErrCancelled, Message: "the request was cancelled while it waited for a model", Cause: context.Cause(ctx)}
		}
	}
}

// release ends what take began.
func (e *Engine) release(l *loaded) {
	e.mu.Lock()
	e.useLocked(-1)
	e.mu.Unlock()
	l.users.Done()
}

// useLocked counts the requests that hold a model, for the idle unload.
func (e *Engine) useLocked(n int) {
	e.using += n
	e.restIdle()
}

// joinLocked puts a request into the group that waits for its model and drafter.
func (e *Engine) joinLocked(r LoadRequest, drafter string) *group {
	for _, g := range e.groups {
		if g.load.Model == r.Model && (drafter == "" || g.drafter == drafter) {
			g.waits++
			return g
		}
	}
	g := &group{load: r, drafter: drafter, waits: 1, ready: make(chan struct{})}
	e.groups = append(e.groups, g)
	if !e.switching {
		e.switching = true
		go e.serveGroups()
	}
	return g
}

// leave takes a request out of a group; false if the group was served already.
func (e *Engine) leave(g *group) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-g.ready:
		return false
	default:
	}
	g.waits--
	if g.waits == 0 {
		e.groups = slices.DeleteFunc(e.groups, func(x *group) bool { return x == g })
		if g.loading && e.cancel != nil {
			e.cancel()
		}
	}
	return true
}

// serveGroups loads the models of the groups one after another.
func (e *Engine) serveGroups() {
	for {
		e.mu.Lock()
		if len(e.groups) == 0 { // nothing to load: nobody is kept from it
			e.switching = false
			e.mu.Unlock()
			return
		}
		e.mu.Unlock()
		e.loads.Lock() // a load or unload that somebody asked for ends first
		e.mu.Lock()
		if len(e.groups) == 0 { // all have gone meanwhile
			e.mu.Unlock()
			e.loads.Unlock()
			continue
		}
		g := e.groups[0]
		var err error
		switch {
		case e.closed:
			err = errStopping()
		case e.model != nil && e.model.info.Target == g.load.Model && (g.drafter == "" || e.model.info.Drafter == g.drafter):
		default:
			g.loading = true
			known := slices.Clone(e.known)
			e.mu.Unlock()
			full := e.complete(g.load)
			err = e.swap(e.begin(full, func() {}), full, false)
			e.mu.Lock()
			if g.drafter != "" && slices.ContainsFunc(known, func(k LoadRequest) bool { return k.Model == full.Model }) {
				e.known = known // the drafter was for these requests, not for good
			}
			g.loading = false
		}
		if g.waits > 0 {
			e.groups = e.groups[1:]
			if g.err = err; err == nil {
				g.model = e.model
				g.model.users.Add(g.waits)
				g.users.Add(g.waits)
				e.useLocked(g.waits)
			}
			close(g.ready)
		}
		e.mu.Unlock()
		e.loads.Unlock()
		e.tell()
		g.users.Wait()
	}
}

// restIdle starts the time until the idle unload anew, or stops it. mu is
// locked.
func (e *Engine) restIdle() {
	if e.idle != nil {
		e.idle.Stop()
		e.idle = nil
	}
	l := e.model
	if l == nil || e.using > 0 || e.closed {
		return
	}
	if d := e.live.Load().idle(l.info.Target); d > 0 {
		e.idle = time.AfterFunc(d, func() { e.sleep(l) })
	}
}

// sleep frees a model that nobody used for a while.
func (e *Engine) sleep(l *loaded) {
	if !e.loads.TryLock() {
		e.update(e.restIdle) // a load is about to end, or has just begun
		return
	}
	e.mu.Lock()
	slept := e.model == l && e.using == 0 && !e.closed
	if slept {
		e.model, e.asleep, e.state = nil, &l.request, StateAsleep
	}
	e.mu.Unlock()
	if slept {
		l.retire()
	}
	e.loads.Unlock() // before anybody hears of it
	if slept {
		e.tell()
	}
}
