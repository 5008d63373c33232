package engine

import (
	"reflect"
	"slices"
	"time"

	"sparkbar/engine/models"
)

// Live are settings that Engine.Configure changes. The zero value of a field
// means its default.
type Live struct {
	// NoModelSwitch keeps requests from loading another model by naming it.
	NoModelSwitch bool
	// IdleUnload frees the model after that long without a request; the next
	// request loads it again. 0 = never. IdleUnloads are the times of models that
	// have one of their own, by id.
	IdleUnload  time.Duration
	IdleUnloads map[string]time.Duration
	// NoWake answers requests with an error while the model sleeps, instead of
	// loading it again.
	NoWake bool
	// HoldDuringLoad lets requests wait that long for a load that is under way
	// while nothing else can answer them; 0 = they are refused.
	HoldDuringLoad time.Duration
	// Pinned are models that stay loaded: neither a time without requests nor a
	// request that names another model takes them out, only a load or an unload
	// that somebody asks for.
	Pinned []string
	// Aliases are names that requests may use for models of this machine.
	Aliases map[string]string

	DefaultMaxTokens int // 2048
	MaxTokensCap     int // 32768
	// Temperature, TopP and TopK are the server's defaults; nil = the model's.
	// MinP has none of the model's.
	Temperature, TopP, MinP *float64
	TopK                    *int

	// Base holds the settings that every load starts from. ForModel, if set,
	// gives those of one model, which are laid over it.
	Base     LoadRequest
	ForModel func(model string) LoadRequest
}

func (l *Live) defaults() {
	if l.DefaultMaxTokens <= 0 {
		l.DefaultMaxTokens = 2048
	}
	if l.MaxTokensCap <= 0 {
		l.MaxTokensCap = 32768
	}
}

// pinned reports whether a model stays loaded.
func (l *Live) pinned(target string) bool {
	return slices.ContainsFunc(l.Pinned, func(id string) bool { return answersTo(target, id) })
}

// idle is how long a model may go without a request, 0 = for ever.
func (l *Live) idle(target string) time.Duration {
	if l.pinned(target) {
		return 0
	}
	if d, ok := l.IdleUnloads[target]; ok {
		return d
	}
	return l.IdleUnload
}

// settings are those that a load of a model starts from.
func (l *Live) settings(model string) LoadRequest {
	if l.ForModel == nil {
		return l.Base
	}
	m := l.ForModel(model)
	m.Model = model
	return merge(l.Base, m)
}

// Configure changes what may change while the engine runs. Requests and loads
// that have begun keep what they began with. reload is what LoadFrom has to be
// asked for so that the loaded model, too, runs with settings that have changed;
// nil = there is no need.
func (e *Engine) Configure(l Live) (reload *LoadRequest) {
	l.defaults()
	old := e.live.Swap(&l)
	e.update(func() {
		e.restIdle()
		for i := range e.known { // they come back with what they were loaded with
			k := &e.known[i]
			adopt(k, old.settings(k.Model), l.settings(k.Model))
		}
		if e.asleep != nil {
			r := *e.asleep
			adopt(&r, old.settings(r.Model), l.settings(r.Model))
			e.asleep = &r
		}
		if e.model == nil {
			return
		}
		r := e.model.request
		before, after := old.settings(r.Model), l.settings(r.Model)
		if !same(before.MemoryGuard, after.MemoryGuard) {
			e.model.request.MemoryGuard = after.MemoryGuard
			before.MemoryGuard, r.MemoryGuard = after.MemoryGuard, after.MemoryGuard
		}
		before.Warmup = after.Warmup // of loads to come
		if adopt(&r, before, after) {
			reload = &r
		}
	})
	return reload
}

// adopt changes in r the settings that differ, and reports whether any did.
func adopt(r *LoadRequest, before, after LoadRequest) bool {
	changed := false
	to, was, is := reflect.ValueOf(r).Elem(), reflect.ValueOf(before), reflect.ValueOf(after)
	for i := range to.NumField() {
		if name := to.Type().Field(i).Name; name != "Model" && name != "Unused" && !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			to.Field(i).Set(is.Field(i))
			changed = true
		}
	}
	return changed
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// Places are the folders in which models are looked for.
func (e *Engine) Places() models.Places {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.opts.Places
}

// SetPlaces changes them; the list of models follows at once.
func (e *Engine) SetPlaces(p models.Places) {
	e.mu.Lock()
	e.opts.Places = p
	e.mu.Unlock()
	if e.opts.Catalogue != nil && e.opts.Catalogue.SetPlaces(p) {
		e.bus.Publish("models", struct{}{})
	}
}
