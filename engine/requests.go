package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sparkbar/engine/telemetry"
)

// RequestEvent tells how a generation stands.
type RequestEvent struct {
	ID     string                    `json:"id"`
	State  string                    `json:"state"` // queued, running, done, failed
	Model  string                    `json:"model"`
	Prompt int                       `json:"prompt_tokens"`
	Client string                    `json:"client,omitempty"`
	Stats  *telemetry.RequestSummary `json:"stats,omitempty"`
	Error  string                    `json:"error,omitempty"`
}

// RequestInfo is a generation under way.
type RequestInfo struct {
	ID           string
	Client       string
	State        string // queued, running
	Model        string // "" while it waits for its model
	PromptTokens int
	Tokens       int // generated so far
	Since        time.Time
}

// running is a generation under way, as the engine knows it.
type running struct {
	RequestInfo
	cancel context.CancelCauseFunc
}

// Requests lists the generations under way, oldest first.
func (e *Engine) Requests() []RequestInfo {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]RequestInfo, 0, len(e.requests))
	for _, r := range e.requests {
		list = append(list, r.RequestInfo)
	}
	return list
}

// CancelRequest ends the generations of that id, running or waiting; false if
// there is none. Its choices, which have ids of their own, are separate.
func (e *Engine) CancelRequest(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	found := false
	for _, r := range e.requests {
		if r.ID == id {
			r.cancel(errCancelledByOwner)
			found = true
		}
	}
	return found
}

var errCancelledByOwner = &Error{Kind: ErrCancelled, Message: "the request was cancelled by the owner of the server"}

// register adds a generation; end takes it out.
func (e *Engine) register(ctx context.Context, req *Request) (_ context.Context, r *running, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	r = &running{RequestInfo{ID: req.ID, Client: req.Client, State: "queued", Since: e.opts.Now()}, cancel}
	e.mu.Lock()
	e.requests = append(e.requests, r)
	e.mu.Unlock()
	return ctx, r, func() {
		cancel(nil)
		e.mu.Lock()
		e.requests = slices.DeleteFunc(e.requests, func(x *running) bool { return x == r })
		e.mu.Unlock()
	}
}

// update changes what is known about a generation.
func (e *Engine) update(change func()) {
	e.mu.Lock()
	change()
	e.mu.Unlock()
}

// advanced notes that a generation has come on.
func (e *Engine) advanced() { e.advance.Store(e.opts.Now().UnixNano()) }

// stallAfter is how long running generations may stand still before that is a
// problem: one step takes a second at most.
const stallAfter = time.Minute

// stalled is the warning that generations run and none comes on.
func stalled(now, last time.Time, running int) []Warning {
	still := now.Sub(last)
	if running == 0 || still < stallAfter {
		return nil
	}
	action := "cancel the request, or restart the server"
	return []Warning{{Code: "stalled", Level: "problem", Message: fmt.Sprintf("%d generations run, and none has come on for %s", running, still.Round(time.Second)), Action: &action}}
}
