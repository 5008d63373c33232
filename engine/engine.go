package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sparkbar/engine/machine"
	"sparkbar/engine/telemetry"
)

// Engine loads models and generates with them. Safe for concurrent use.
type Engine struct {
	opts    Options
	bus     telemetry.Bus
	started time.Time

	loads sync.Mutex // one load or unload at a time

	mu        sync.Mutex // guards everything below
	state     State
	model     *loaded
	loading   *LoadProgress
	cancel    context.CancelFunc // of the load under way
	lastError string
	warnings  []Warning
	sticky    LoadRequest // context window, thinking and effort of earlier loads
	queue     queue
	emptyLog  *telemetry.Log
	closed    bool
}

// New returns an engine with nothing loaded.
func New(o Options) *Engine {
	o.defaults()
	e := &Engine{opts: o, state: StateIdle, started: o.Now(), emptyLog: telemetry.NewLog(o.Now())}
	e.queue.limit = o.QueueLimit
	return e
}

// Events is the stream of everything that happens: "state" with a Status,
// "round" with a telemetry.Round, "prefill" with a telemetry.Prefill, "request"
// with a RequestEvent.
func (e *Engine) Events() *telemetry.Bus { return &e.bus }

// Rounds returns the round log of the loaded model, an empty one without.
func (e *Engine) Rounds() *telemetry.Log {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.model == nil {
		return e.emptyLog
	}
	return e.model.log
}

// Totals returns what the loaded model has done since its load.
func (e *Engine) Totals() telemetry.TotalsReport {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.model == nil {
		return telemetry.TotalsReport{}
	}
	return e.model.totals.Report()
}

// Status returns a snapshot.
func (e *Engine) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.statusLocked()
}

func (e *Engine) statusLocked() Status {
	s := Status{State: e.state, LastError: e.lastError, Version: e.opts.Version, StartedAt: e.started,
		MaxTokensDefault: e.opts.DefaultMaxTokens, MaxTokensCap: e.opts.MaxTokensCap}
	s.InFlight, s.Queued = e.queue.counts()
	if e.model != nil {
		info := e.model.info
		s.Model = &info
	}
	if e.loading != nil {
		p := *e.loading
		s.Loading = &p
	}
	s.Warnings = append(s.Warnings, e.warnings...)
	return s
}

// set changes the state and tells everybody.
func (e *Engine) set(change func()) {
	e.mu.Lock()
	change()
	s := e.statusLocked()
	e.mu.Unlock()
	e.bus.Publish("state", s)
}

// Load loads a model that a client asks for and waits for the end. Paths must
// lie below Options.ModelRoot. When ctx ends, only the waiting ends.
func (e *Engine) Load(ctx context.Context, r LoadRequest) (Status, error) {
	return e.await(ctx, r, false)
}

// LoadFrom is Load for the owner of the process (the command line): any path.
func (e *Engine) LoadFrom(ctx context.Context, r LoadRequest) (Status, error) {
	return e.await(ctx, r, true)
}

// StartLoad checks a request, starts the load and returns at once.
func (e *Engine) StartLoad(r LoadRequest) (Status, error) {
	if _, err := e.start(r, false); err != nil {
		return e.Status(), err
	}
	return e.Status(), nil
}

func (e *Engine) await(ctx context.Context, r LoadRequest, trusted bool) (Status, error) {
	done, err := e.start(r, trusted)
	if err != nil {
		return e.Status(), err
	}
	select {
	case err = <-done:
		return e.Status(), err
	case <-ctx.Done():
		return e.Status(), &Error{Kind: ErrCancelled, Message: "stopped waiting for the load; it goes on", Cause: ctx.Err()}
	}
}

// start validates and begins a load; the channel gets its result.
func (e *Engine) start(r LoadRequest, trusted bool) (<-chan error, error) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, errStopping()
	}
	base := e.opts.Base
	over(&base.ContextWindow, e.sticky.ContextWindow)
	over(&base.EnableThinking, e.sticky.EnableThinking)
	over(&base.ReasoningEffort, e.sticky.ReasoningEffort)
	e.mu.Unlock()
	full := merge(base, r)
	if err := e.opts.validate(full, trusted); err != nil {
		return nil, err
	}
	if !e.loads.TryLock() {
		return nil, &Error{Kind: ErrBusy, Message: "another load or unload is under way; wait for it or cancel it with POST /admin/load/cancel"}
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.set(func() {
		e.cancel, e.lastError, e.warnings = cancel, "", unusedWarning(full.Unused)
		e.state, e.loading = StateResolving, &LoadProgress{Model: full.Model}
		if e.model != nil {
			e.state = StateSwapping
		}
		over(&e.sticky.ContextWindow, r.ContextWindow)
		over(&e.sticky.EnableThinking, r.EnableThinking)
		over(&e.sticky.ReasoningEffort, r.ReasoningEffort)
	})
	done := make(chan error, 1)
	go func() {
		err := e.swap(ctx, full)
		cancel()
		e.loads.Unlock() // before anybody hears of the end and asks for the next load
		done <- err
	}()
	return done, nil
}

// swap builds the new model beside the old one, which answers meanwhile, and
// puts it in its place. Where memory does not hold both, the old one goes
// first. A failure leaves the old model as it was, if it is still there.
func (e *Engine) swap(ctx context.Context, r LoadRequest) error {
	if !e.fitsBeside(r) {
		e.mu.Lock()
		old := e.model
		e.model = nil
		e.mu.Unlock()
		if old != nil {
			old.retire()
		}
	}
	l, err := e.build(ctx, r, func(s State, p LoadProgress) {
		e.set(func() {
			e.loading = &p
			if e.model == nil {
				e.state = s
			}
		})
	})
	var old *loaded
	e.set(func() {
		e.loading, e.cancel = nil, nil
		if err == nil {
			old, e.model = e.model, l
		} else {
			e.lastError = err.Error()
		}
		e.state = StateReady
		if e.model == nil {
			e.state = StateIdle
		}
	})
	if old != nil {
		go old.retire() // ends when its last answer has
	}
	return err
}

// fitsBeside reports whether memory holds the new model beside the present one.
func (e *Engine) fitsBeside(r LoadRequest) bool {
	e.mu.Lock()
	none := e.model == nil
	e.mu.Unlock()
	if none {
		return true
	}
	src, err := e.opts.locate(r.Model, "model")
	if err != nil || src.path == "" {
		return true // fails before it takes memory, or is tiny
	}
	need := folderBytes(src.path)
	m := machine.ReadMemory()
	return m.Available == 0 || need+need/5 < int64(m.Available)
}

// CancelLoad stops the load under way; false if there is none.
func (e *Engine) CancelLoad() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cancel == nil {
		return false
	}
	e.cancel()
	return true
}

// Unload lets running answers finish and frees the model. When ctx ends first,
// the waiting ends, not the unloading.
func (e *Engine) Unload(ctx context.Context) (Status, error) {
	if !e.loads.TryLock() {
		return e.Status(), &Error{Kind: ErrBusy, Message: "a load or unload is under way; wait for it or cancel it with POST /admin/load/cancel"}
	}
	var old *loaded
	e.set(func() {
		old, e.model, e.lastError, e.warnings = e.model, nil, "", nil
		if old != nil {
			e.state = StateUnloading
		}
	})
	done := make(chan struct{})
	go func() {
		if old != nil {
			old.retire()
		}
		e.set(func() { e.state = StateIdle })
		e.loads.Unlock()
		close(done)
	}()
	select {
	case <-done:
		return e.Status(), nil
	case <-ctx.Done():
		return e.Status(), &Error{Kind: ErrCancelled, Message: "stopped waiting for the unload; it goes on", Cause: ctx.Err()}
	}
}

// Close refuses new work, cancels a load, waits for running answers until ctx
// ends, and frees everything.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	if e.cancel != nil {
		e.cancel()
	}
	e.mu.Unlock()
	e.queue.close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.loads.Lock() // a load under way ends first
		defer e.loads.Unlock()
		e.mu.Lock()
		old := e.model
		e.model, e.state = nil, StateIdle
		e.mu.Unlock()
		if old != nil {
			old.retire()
		}
		e.bus.Close()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the engine did not stop in time: %w", ctx.Err())
	}
}

func errStopping() error {
	return &Error{Kind: ErrShuttingDown, Message: "the server is stopping; try again when it is back"}
}

func unusedWarning(keys []string) []Warning {
	if len(keys) == 0 {
		return nil
	}
	return []Warning{{Code: "load_note", Level: "attention", Message: fmt.Sprintf("this backend has no use for %v; accepted and ignored", keys)}}
}

// take hands out the model for one generation; release must follow.
func (e *Engine) take() (*loaded, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return nil, errStopping()
	case e.model != nil:
		e.model.users.Add(1)
		return e.model, nil
	case e.loading != nil:
		return nil, &Error{Kind: ErrLoading, Message: "a model is loading — try again in a moment"}
	}
	return nil, &Error{Kind: ErrNoModel, Message: "no model is loaded — load one with POST /admin/load"}
}
