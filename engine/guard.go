package engine

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"sparkbar/engine/machine"
)

// Shed is one time that memory was given back.
type Shed struct {
	Level        machine.Level `json:"level"`
	At           int64         `json:"at"` // Unix seconds
	FreedBytes   int64         `json:"freed_bytes"`
	Before       int64         `json:"allocator_before"` // resident bytes of the process
	After        int64         `json:"allocator_after"`
	Action       string        `json:"action"`
	PrefixBytes  int64         `json:"prefix_bytes_freed"`
	SlotsDropped int           `json:"slots_dropped"`
	RungsDropped int           `json:"rungs_dropped"`       // snapshots below the end of a past
	CPUSplit     string        `json:"cpu_split,omitempty"` // "suspended" where the CPU's part in prompts has ended with it
}

// GuardStatus is the memory guard. Where it is off only Enabled means anything.
type GuardStatus struct {
	Enabled bool
	Level   machine.Level
	Pending machine.Level // "" = nothing
	Last    *Shed
	Sheds   int // that are remembered, at most 16
}

// guardState is the guard's part of the engine.
type guardState struct {
	machine.Guard
	sheds []Shed
}

const (
	shedsKept    = 16
	rungsKept    = 2
	shedWarnFor  = 600 * time.Second
	pageRows     = 64 // positions of a page of the cache
	pressureText = "memory is short (%s): close other programs, or load a smaller model or a shorter context"
)

// loaded forgets what was decided for another model; the level stays.
func (g *guardState) loaded() {
	level := g.Level()
	*g = guardState{}
	if level != machine.Unknown {
		g.Observe(machine.Normal, true, time.Time{})
	}
}

func (g *guardState) status(on bool) GuardStatus {
	s := GuardStatus{Enabled: on, Level: g.Level(), Pending: g.Pending(), Sheds: len(g.sheds)}
	if n := len(g.sheds); n > 0 {
		last := g.sheds[n-1]
		s.Last = &last
	}
	return s
}

func (g *guardState) warnings(now time.Time) []Warning {
	var list []Warning
	switch l := g.Level(); l {
	case machine.Warn:
		list = append(list, Warning{Code: "memory_pressure", Level: "attention", Message: fmt.Sprintf(pressureText, l)})
	case machine.Critical:
		list = append(list, Warning{Code: "memory_pressure", Level: "problem", Message: fmt.Sprintf(pressureText, l)})
	}
	if n := len(g.sheds); n > 0 {
		if s := g.sheds[n-1]; now.Sub(time.Unix(s.At, 0)) < shedWarnFor {
			list = append(list, Warning{Code: "memory_guard", Level: "attention", Message: "memory was short, so the server gave some back: " + s.Action})
		}
	}
	return list
}

// guardOn reports whether the loaded model is guarded. mu is locked.
func (e *Engine) guardOn() bool {
	return e.opts.Memory != nil && e.model != nil && value(e.model.request.MemoryGuard, true)
}

// watchMemory observes the memory until ctx ends.
func (e *Engine) watchMemory(ctx context.Context) {
	tick := time.NewTicker(machine.GuardPoll)
	defer tick.Stop()
	for {
		e.observe(e.opts.Memory().Pressure)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// observe takes a reading of the memory pressure.
func (e *Engine) observe(level machine.Level) {
	e.mu.Lock()
	before := e.guard.Level()
	var l *loaded
	var shed machine.Level
	if e.guardOn() {
		running, _ := e.queue.counts()
		shed, _ = e.guard.Observe(level, running > 0, e.opts.Now())
		if l = e.model; shed != "" {
			l.users.Add(1)
		}
	} else {
		e.guard.loaded()
		e.guard.Observe(level, true, e.opts.Now()) // the level is shown, nothing is there to shed
	}
	status := e.guard.status(e.guardOn())
	e.mu.Unlock()
	if status.Level != before {
		e.bus.Publish("pressure", status)
	}
	if shed != "" {
		l.do(func() { e.shed(l, shed) })
		l.users.Done()
	}
}

// guardRound gives memory back after a round or a generation, if that is due.
// It runs on the model's goroutine.
func (e *Engine) guardRound(l *loaded, ended bool) {
	e.mu.Lock()
	var shed machine.Level
	if e.guardOn() && e.model == l {
		if shed = e.guard.Round(e.opts.Now()); ended && shed == "" {
			shed = e.guard.Idle(e.opts.Now())
		}
	}
	e.mu.Unlock()
	if shed != "" {
		e.shed(l, shed)
	}
}

// shed gives memory back: what the program holds in reserve, and when it is
// critical the kept conversations. Weights stay. It runs on the model's
// goroutine.
func (e *Engine) shed(l *loaded, level machine.Level) {
	s := Shed{Level: level, At: e.opts.Now().Unix(), Before: machine.Resident(), Action: "returned unused memory to the system"}
	store, c := l.run.Store(), l.run.Cache()
	used, _ := c.Pages()
	if level == machine.Critical {
		kept := len(store.Stats().Tokens)
		store.Clear()
		s.SlotsDropped = kept - len(store.Stats().Tokens)
		s.Action = "emptied the prefix cache and returned unused memory to the system"
	} else if s.RungsDropped = store.Thin(rungsKept); s.RungsDropped > 0 {
		s.Action = "thinned out the prefix cache and returned unused memory to the system"
	}
	if l.endSplit() {
		s.CPUSplit = "suspended"
	}
	now, _ := c.Pages()
	s.PrefixBytes = int64(used-now) * pageRows * c.PositionBytes()
	l.measure()
	debug.FreeOSMemory()
	s.After = machine.Resident()
	s.FreedBytes = max(s.Before-s.After, 0) + s.PrefixBytes
	e.mu.Lock()
	e.guard.sheds = append(e.guard.sheds, s)
	e.guard.sheds = e.guard.sheds[max(0, len(e.guard.sheds)-shedsKept):]
	status := e.guard.status(e.guardOn())
	e.mu.Unlock()
	e.bus.Publish("pressure", status)
}

// GuardRearm is how long the guard waits before it sheds again at the same
// level, GuardDefer how long a warning lets a generation go on.
const (
	GuardRearm = machine.GuardRearm
	GuardDefer = machine.GuardDefer
)
