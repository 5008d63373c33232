package engine_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
	"sparkbar/engine/machine"
	"sparkbar/engine/models"
)

// TestPinned: a pinned model stays, whatever requests name and however long it
// idles; a load that somebody asks for takes its place.
func TestPinned(t *testing.T) {
	e := local(t, nil, "org/one", "org/two")
	ctx := context.Background()
	base := engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)}
	e.Configure(engine.Live{Base: base, Pinned: []string{"org/one"}, Aliases: map[string]string{"fast": "org/two"}, IdleUnload: time.Nanosecond})
	if _, err := e.Load(ctx, engine.LoadRequest{Model: "org/one"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"org/two", "fast"} {
		if _, err := e.Generate(ctx, short(name, "hi"), nil); kindOf(err) != engine.ErrModelNotFound || !strings.Contains(err.Error(), "pinned") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if res := answer(t, e, short("org/one", "hi")); res.Model != "one" {
		t.Error(res.Model)
	}
	time.Sleep(5 * time.Millisecond) // an idle unload would have come by now
	if st := e.Status(); st.State != engine.StateReady || st.Model == nil {
		t.Errorf("%+v", st)
	}
	e.Configure(engine.Live{Base: base, Aliases: map[string]string{"fast": "org/two"}})
	if res := answer(t, e, short("fast", "hi")); res.Model != "two" {
		t.Errorf("by its other name: %s", res.Model)
	}
	e.Configure(engine.Live{Base: base, Pinned: []string{"two"}})
	if _, err := e.Load(ctx, engine.LoadRequest{Model: "org/one"}); err != nil {
		t.Errorf("an explicit load: %v", err)
	}
	// Its own time counts before the general one.
	sub := e.Events().Subscribe(64)
	defer sub.Close()
	e.Configure(engine.Live{Base: base, IdleUnload: time.Hour, IdleUnloads: map[string]time.Duration{"org/one": time.Millisecond}})
	for e.Status().State != engine.StateAsleep {
		if _, err := sub.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestConfigureReloads: a changed setting of the model is a load to ask for, of
// other settings not; models that come back have it, too.
func TestConfigureReloads(t *testing.T) {
	last := ""
	e := local(t, func(o *engine.Options) { o.Loaded = func(m string) { last += m + " " } }, "org/one", "org/two")
	ctx := context.Background()
	for _, id := range []string{"org/two", "org/one"} {
		if _, err := e.Load(ctx, engine.LoadRequest{Model: id, ContextWindow: ptr(600)}); err != nil {
			t.Fatal(err)
		}
	}
	if last != "org/two org/one " {
		t.Errorf("loaded last: %q", last)
	}
	base := engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)}
	if r := e.Configure(engine.Live{Base: base, DefaultMaxTokens: 7}); r != nil {
		t.Errorf("%+v", r)
	}
	base.MemoryGuard = ptr(false)
	if r := e.Configure(engine.Live{Base: base}); r != nil || e.Status().Guard.Enabled {
		t.Errorf("the guard: %+v", r)
	}
	base.Mode = "lookup"
	r := e.Configure(engine.Live{Base: base, ForModel: func(id string) engine.LoadRequest {
		return map[string]engine.LoadRequest{"org/one": {MaxDraft: ptr(3)}}[id]
	}})
	if r == nil || r.Model != "org/one" || r.Mode != "lookup" || *r.MaxDraft != 3 || *r.ContextWindow != 600 {
		t.Fatalf("%+v", r)
	}
	st, err := e.LoadFrom(ctx, *r)
	if err != nil || st.Model.Mode != "lookup" || st.Model.MaxDraft != 3 || st.Model.ContextWindow != 600 {
		t.Errorf("%v %+v", err, st.Model)
	}
	if last != "org/two org/one " {
		t.Errorf("a reload counts as a load: %q", last)
	}
	if answer(t, e, short("org/two", "hi")); e.Status().Model.Mode != "lookup" {
		t.Errorf("%+v", e.Status().Model)
	}
}

// TestSetPlaces: other folders are looked into at once.
func TestSetPlaces(t *testing.T) {
	e := local(t, nil, "org/one")
	sub := e.Events().Subscribe(64)
	defer sub.Close()
	e.Models()
	root := t.TempDir()
	writeModel(t, root+"/org/three")
	e.SetPlaces(models.Places{Folders: []string{root}})
	if list := e.Models(); len(list) != 1 || list[0].ID != "org/three" || e.Places().Folders[0] != root {
		t.Errorf("%+v", list)
	}
	for {
		ev, err := sub.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if ev.Name == "models" {
			return
		}
	}
}

// TestHoldDuringLoad: requests wait for a load if that is wanted, and not for
// ever; a sleeping model stays asleep if it is not to be woken.
func TestHoldDuringLoad(t *testing.T) {
	reached, gate := make(chan struct{}, 8), make(chan struct{})
	e := local(t, func(o *engine.Options) {
		o.Backend = func() (compute.Backend, error) {
			reached <- struct{}{}
			<-gate
			return compute.NewReference(), nil
		}
	}, "org/one")
	ctx := context.Background()
	base := engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)}
	if _, err := e.StartLoad(engine.LoadRequest{Model: "org/one"}); err != nil {
		t.Fatal(err)
	}
	<-reached
	for _, name := range []string{"", "claude-x"} {
		if _, err := e.Generate(ctx, short(name, "hi"), nil); kindOf(err) != engine.ErrLoading || kindOf(e.Check(name)) != engine.ErrLoading {
			t.Errorf("%q by default: %v", name, err)
		}
	}
	e.Configure(engine.Live{Base: base, HoldDuringLoad: time.Millisecond})
	if _, err := e.Generate(ctx, short("", "hi"), nil); kindOf(err) != engine.ErrLoading {
		t.Errorf("after its time: %v", err)
	}
	e.Configure(engine.Live{Base: base, HoldDuringLoad: time.Hour})
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := e.Generate(gone, short("", "hi"), nil); kindOf(err) != engine.ErrCancelled {
		t.Errorf("cancelled: %v", err)
	}
	ends := make(chan error, 3)
	for _, name := range []string{"", "claude-x", "org/one"} {
		if err := e.Check(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		go func() {
			res, err := e.Generate(ctx, short(name, name), nil)
			if err == nil && res.Model != "one" {
				err = errors.New(res.Model)
			}
			ends <- err
		}()
	}
	for len(e.Requests()) < 3 {
		time.Sleep(time.Millisecond)
	}
	close(gate)
	for range 3 {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	sub := e.Events().Subscribe(64)
	defer sub.Close()
	e.Configure(engine.Live{Base: base, NoWake: true, IdleUnload: time.Nanosecond})
	for e.Status().State != engine.StateAsleep {
		if _, err := sub.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Generate(ctx, short("", "hi"), nil); kindOf(err) != engine.ErrNoModel {
		t.Errorf("not to be woken: %v", err)
	}
	if res := answer(t, e, short("org/one", "hi")); res.Model != "one" { // by its name it can be had
		t.Error(res.Model)
	}
}

// phased is a backend that stops at the first program, or at a weight.
type phased struct {
	compute.Backend
	weights *atomic.Int32 // to be loaded until it stops; it never does below 0
	arrived func()
}

func (b phased) Load(m layout.Matrix) (*compute.Weight, error) {
	if b.weights.Add(-1) == 0 {
		b.arrived()
	}
	return b.Backend.Load(m)
}

func (b phased) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	b.arrived()
	return b.Backend.Submit(p, stop)
}

// TestCancelInEveryPhase: a load can be cancelled while it reads weights, warms
// up and calibrates; the old model stays, and nothing of the new one.
func TestCancelInEveryPhase(t *testing.T) {
	var stopAt atomic.Int32
	var cancel atomic.Pointer[func()]
	e := local(t, func(o *engine.Options) {
		o.Builtins = demoBuiltins()
		o.Backend = func() (compute.Backend, error) {
			n := &atomic.Int32{}
			n.Store(stopAt.Load())
			return phased{compute.NewReference(), n, func() {
				if f := cancel.Swap(nil); f != nil {
					(*f)()
				}
			}}, nil
		}
	}, "org/one")
	if _, err := e.Load(t.Context(), engine.LoadRequest{Model: "org/one"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		phase  string
		load   engine.LoadRequest
		stopAt int32
		state  engine.State
	}{
		{"loading", engine.LoadRequest{Model: "demo"}, 5, engine.StateLoading},
		{"warming", engine.LoadRequest{Model: "demo", Warmup: ptr(true)}, -1, engine.StateWarming},
		{"calibrating", engine.LoadRequest{Model: "demo", Mode: "dspark", MaxDraft: ptr(0)}, -1, engine.StateLoading},
	} {
		stopAt.Store(c.stopAt)
		was := engine.Status{}
		f := func() {
			was = e.Status()
			if !e.CancelLoad(false) {
				t.Errorf("%s: nothing to cancel", c.phase)
			}
		}
		cancel.Store(&f)
		_, err := e.Load(t.Context(), c.load)
		if kindOf(err) != engine.ErrCancelled || was.Loading == nil || was.Model == nil || was.Model.ID != "one" {
			t.Errorf("%s: %v, then it stood at %+v", c.phase, err, was)
		}
		cancel.Store(nil)
		if st := e.Status(); st.State != engine.StateReady || st.Model.ID != "one" || st.Loading != nil || !strings.Contains(st.LastError, "cancelled") {
			t.Errorf("%s left %+v", c.phase, st)
		}
		answer(t, e, short("org/one", "hi"))
	}
}

// TestRollBackFails: where memory holds one model only, and neither the new one
// nor the old one can be had, nothing is loaded, and the status says both.
func TestRollBackFails(t *testing.T) {
	var fail atomic.Bool
	var memory fakeMemory
	memory.set(machine.Memory{Total: 64 << 30, Available: 60 << 30})
	e := local(t, func(o *engine.Options) {
		o.Memory = memory.read
		o.Backend = func() (compute.Backend, error) {
			if fail.Load() {
				return nil, errors.New("the device is gone")
			}
			return compute.NewReference(), nil
		}
	}, "org/one", "org/two")
	if _, err := e.Load(t.Context(), engine.LoadRequest{Model: "org/one"}); err != nil {
		t.Fatal(err)
	}
	memory.set(machine.Memory{Total: 64 << 30, Available: 1 << 20})
	fail.Store(true)
	st, err := e.Load(t.Context(), engine.LoadRequest{Model: "org/two"})
	if kindOf(err) != engine.ErrLoadFailed || !strings.Contains(err.Error(), "org/one, which was unloaded for it, could not be loaded again") {
		t.Errorf("%q %v", kindOf(err), err)
	}
	if st.State != engine.StateIdle || st.Model != nil || st.LastError != err.Error() {
		t.Errorf("%+v", st)
	}
	if _, err := e.Generate(t.Context(), short("", "hi"), nil); kindOf(err) != engine.ErrNoModel {
		t.Errorf("%v", err)
	}
	fail.Store(false)
	if res := answer(t, e, short("org/two", "hi")); res.Model != "two" {
		t.Error(res.Model)
	}
}
