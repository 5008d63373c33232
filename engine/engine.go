package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sparkbar/engine/machine"
	"sparkbar/engine/sample"
	"sparkbar/engine/telemetry"
)

// Engine loads models and generates with them. Safe for concurrent use.
type Engine struct {
	opts    Options
	bus     telemetry.Bus
	started time.Time
	random  func(seed uint64) sample.Source // of a request with a seed; nil = sample.NewRNG
	stop    context.CancelFunc              // ends the engine's own goroutines
	ending  <-chan struct{}                 // closed by it
	own     sync.WaitGroup                  // those

	live    atomic.Pointer[Live]
	unfit   atomic.Pointer[error] // why Options.Backend is used no more
	advance atomic.Int64          // when a generation last came on, in Unix nanoseconds
	loads   sync.Mutex            // one load or unload at a time

	bandwidthOnce sync.Once
	bandwidth     machine.Bandwidth

	mu        sync.Mutex // guards everything below
	state     State
	model     *loaded
	loading   *LoadProgress
	cancel    context.CancelFunc // of the load under way
	cleanup   bool               // a cancelled download leaves nothing behind
	lastError string
	warnings  []Warning
	sticky    LoadRequest   // context window, thinking and effort of earlier loads
	known     []LoadRequest // of models that were loaded, latest last
	asleep    *LoadRequest  // of the model that an idle unload freed
	idle      *time.Timer   // until the idle unload
	using     int           // requests that hold the model
	groups    []*group      // requests that wait for another model
	switching bool          // somebody serves the groups
	queue     queue
	requests  []*running
	guard     guardState
	voice     *voice // of the model whose tokens were counted last
	voiceID   string
	emptyLog  *telemetry.Log
	closed    bool

	downloads     []*download // under way, and the latest that have ended
	downloadsMade int
}

// New returns an engine with nothing loaded. It watches Options.Catalogue and
// the memory until Close.
func New(o Options) *Engine {
	o.defaults()
	e := &Engine{opts: o, state: StateIdle, started: o.Now(), emptyLog: telemetry.NewLog(o.Now())}
	e.queue.limit = o.QueueLimit
	e.live.Store(&e.opts.Live)
	var ctx context.Context
	ctx, e.stop = context.WithCancel(context.Background())
	e.ending = ctx.Done()
	if o.Catalogue != nil {
		e.own.Go(func() { o.Catalogue.Watch(ctx, func() { e.bus.Publish("models", struct{}{}) }) })
	}
	if o.Memory != nil {
		e.own.Go(func() { e.watchMemory(ctx) })
	}
	return e
}

// Events is the stream of everything that happens: "state" with a Status,
// "round" with a telemetry.Round, "prefill" with a telemetry.Prefill, "request"
// with a RequestEvent, "pressure" with a GuardStatus, "models" when the list of
// models on this machine has changed.
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
		MaxTokensDefault: e.live.Load().DefaultMaxTokens, MaxTokensCap: e.live.Load().MaxTokensCap}
	s.InFlight, s.Queued = e.queue.counts()
	if e.model != nil {
		info := e.model.info
		s.Model = &info
		s.CPUSplit, s.CPUSplitEnded = e.model.split()
	}
	if e.loading != nil {
		p := *e.loading
		s.Loading = &p
	}
	s.Warnings = append(append(s.Warnings, e.warnings...), e.guard.warnings(e.opts.Now())...)
	s.Warnings = append(s.Warnings, stalled(e.opts.Now(), time.Unix(0, e.advance.Load()), s.InFlight)...)
	s.Guard = e.guard.status(e.guardOn())
	return s
}

// tell tells everybody how the engine stands.
func (e *Engine) tell() { e.set(func() {}) }

// set changes the state and tells everybody.
func (e *Engine) set(change func()) {
	e.mu.Lock()
	change()
	s := e.statusLocked()
	e.mu.Unlock()
	e.bus.Publish("state", s)
}

// Load loads a model that a client asks for and waits for the end. Paths must
// lie below Options.ModelRoot or in the catalogue. What is not on this machine
// is downloaded. When ctx ends, only the waiting ends.
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

// complete lays a request over the settings that it leaves open.
func (e *Engine) complete(r LoadRequest) LoadRequest {
	base := e.live.Load().settings(r.Model)
	e.mu.Lock()
	over(&base.ContextWindow, e.sticky.ContextWindow)
	over(&base.EnableThinking, e.sticky.EnableThinking)
	over(&base.ReasoningEffort, e.sticky.ReasoningEffort)
	e.mu.Unlock()
	return merge(base, r)
}

// start validates and begins a load; the channel gets its result.
func (e *Engine) start(r LoadRequest, trusted bool) (<-chan error, error) {
	if e.isClosed() {
		return nil, errStopping()
	}
	full := e.complete(r)
	if err := e.opts.validate(full, trusted); err != nil {
		return nil, err
	}
	if !e.takeLoads() {
		return nil, &Error{Kind: ErrBusy, Message: "another load or unload is under way; wait for it or cancel it with POST /admin/load/cancel"}
	}
	ctx := e.begin(full, func() {
		if trusted {
			return // the owner's settings are those that every load starts from
		}
		over(&e.sticky.ContextWindow, r.ContextWindow)
		over(&e.sticky.EnableThinking, r.EnableThinking)
		over(&e.sticky.ReasoningEffort, r.ReasoningEffort)
	})
	done := make(chan error, 1)
	go func() {
		err := e.swap(ctx, full, e.opts.Downloader != nil)
		e.loads.Unlock() // before anybody hears of the end and asks for the next load
		e.tell()
		if err == nil && !trusted && e.opts.Loaded != nil {
			e.opts.Loaded(r.Model)
		}
		done <- err
	}()
	return done, nil
}

// takeLoads locks loads, unless a load or unload is under way. One that Status calls
// over has only not let go yet, and is waited for.
func (e *Engine) takeLoads() bool {
	for !e.loads.TryLock() {
		e.mu.Lock()
		busy := e.loading != nil || e.state == StateUnloading || e.closed
		e.mu.Unlock()
		if busy {
			return false
		}
		time.Sleep(100 * time.Microsecond)
	}
	return true
}

// begin makes a load known; swap must follow. loads is locked.
func (e *Engine) begin(r LoadRequest, also func()) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	e.set(func() {
		e.cancel, e.cleanup, e.lastError, e.warnings = cancel, false, "", unusedWarning(r.Unused)
		e.state, e.loading, e.asleep = StateResolving, &LoadProgress{Model: r.Model}, nil
		if e.model != nil {
			e.state = StateSwapping
		}
		if e.closed {
			cancel()
		}
		also()
	})
	return ctx
}

// swap builds the new model beside the old one, which answers meanwhile, and
// puts it in its place. Where memory does not hold both, which is decided from
// the sizes of the files, the old one goes first, and comes back if the new one
// fails. A failure leaves the old model as it was, if it is still there. The
// caller tells the end once loads is unlocked.
func (e *Engine) swap(ctx context.Context, r LoadRequest, download bool) error {
	e.bandwidthOnce.Do(func() {
		if e.opts.Bandwidth != nil {
			b := e.opts.Bandwidth()
			e.mu.Lock()
			e.bandwidth = b
			e.mu.Unlock()
		}
	})
	report := func(s State, p LoadProgress) {
		e.set(func() {
			e.loading = &p
			if e.model == nil {
				e.state = s
			}
		})
	}
	var evicted *LoadRequest
	p, err := e.prepare(ctx, r, download, report)
	var l *loaded
	if err == nil {
		if !e.fitsBeside(p) {
			e.mu.Lock()
			old := e.model
			e.model = nil
			e.mu.Unlock()
			if old != nil {
				evicted = &old.request
				old.retire()
			}
		}
		l, err = e.buildSomewhere(ctx, p, report)
	}
	if err != nil && evicted != nil && !e.isClosed() {
		back, berr := e.prepare(context.Background(), *evicted, false, report)
		if berr == nil {
			l, berr = e.buildSomewhere(context.Background(), back, report)
		}
		if berr != nil {
			err = &Error{Kind: ErrLoadFailed, Message: fmt.Sprintf("%v; and %s, which was unloaded for it, could not be loaded again: %v", err, evicted.Model, berr), Cause: err}
		}
	}
	var old *loaded
	e.update(func() {
		e.loading = nil
		e.cancel()
		e.cancel = nil
		if l != nil {
			old, e.model = e.model, l
			e.warnings = append(e.warnings, l.notes...)
			e.remember(l.request)
			e.guard.loaded()
		}
		if err != nil {
			e.lastError = err.Error()
		}
		e.state = StateReady
		if e.model == nil {
			e.state = StateIdle
		}
		e.restIdle()
	})
	if old != nil {
		go old.retire() // ends when its last answer has
	}
	return err
}

// remember keeps what a model was loaded with, so that it can come back.
func (e *Engine) remember(r LoadRequest) {
	e.known = append(slices.DeleteFunc(e.known, func(k LoadRequest) bool { return k.Model == r.Model }), r)
}

// fitsBeside reports whether memory holds the new model beside the present one.
func (e *Engine) fitsBeside(p *plan) bool {
	e.mu.Lock()
	none := e.model == nil
	e.mu.Unlock()
	if none || e.opts.Memory == nil {
		return true
	}
	m := e.opts.Memory()
	return m.Available == 0 || p.need.Needed+p.need.Needed/10 < int64(m.Available)
}

func (e *Engine) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// CancelLoad stops the load under way; false if there is none. What was
// downloaded for it stays, for the next try, unless cleanup is set.
func (e *Engine) CancelLoad(cleanup bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cancel == nil {
		return false
	}
	e.cleanup = cleanup
	e.cancel()
	return true
}

// Unload lets running answers finish and frees the model. When ctx ends first,
// the waiting ends, not the unloading.
func (e *Engine) Unload(ctx context.Context) (Status, error) {
	if !e.takeLoads() {
		return e.Status(), &Error{Kind: ErrBusy, Message: "a load or unload is under way; wait for it or cancel it with POST /admin/load/cancel"}
	}
	var old *loaded
	e.set(func() {
		old, e.model, e.lastError, e.warnings, e.asleep = e.model, nil, "", nil, nil
		if old != nil {
			e.state = StateUnloading
		}
	})
	done := make(chan struct{})
	go func() {
		if old != nil {
			old.retire()
		}
		e.update(func() { e.state = StateIdle })
		e.loads.Unlock()
		e.tell()
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
	e.restIdle()
	e.mu.Unlock()
	e.stop()
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
		e.own.Wait()
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
