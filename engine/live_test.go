package engine_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"sparkbar/engine"
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
