package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/machine"
	"sparkbar/engine/models"
	"sparkbar/resources"
)

// writeModel writes the demo's target as a model folder.
func writeModel(t testing.TB, dir string) {
	t.Helper()
	target, _ := resources.Demo()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range target {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// local is an engine whose catalogue holds the given models and an incomplete
// one.
func local(t testing.TB, change func(*engine.Options), ids ...string) *engine.Engine {
	t.Helper()
	root := t.TempDir()
	for _, id := range ids {
		writeModel(t, filepath.Join(root, id))
	}
	writeModel(t, filepath.Join(root, "org", "partial"))
	if err := os.Truncate(filepath.Join(root, "org", "partial", "model.safetensors"), 1000); err != nil {
		t.Fatal(err)
	}
	o := engine.Options{Version: "test", ModelRoot: root, Backend: func() (compute.Backend, error) { return compute.NewReference(), nil },
		Catalogue: models.NewCatalogue(models.CatalogueOptions{Places: models.Places{Folders: []string{root}}}),
		Live:      engine.Live{Base: engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)}}}
	if change != nil {
		change(&o)
	}
	e := engine.New(o)
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

func short(model, text string) engine.Request {
	return engine.Request{Model: model, ID: text, Prompt: message(text), MaxTokens: 3, Logprobs: -1}
}

// TestModelSwitch: a request gets the model that it names, if that is here.
func TestModelSwitch(t *testing.T) {
	e := local(t, nil, "org/one", "org/two", "three")
	ctx := context.Background()
	try := func(name, want string, kind engine.ErrorKind) {
		t.Helper()
		if got := kindOf(e.Check(name)); got != kind {
			t.Errorf("checking %q: %q, want %q", name, got, kind)
		}
		res, err := e.Generate(ctx, short(name, "hi"), nil)
		if res.Model != want || kindOf(err) != kind {
			t.Errorf("%q: answered by %q, %v; want %q, %q", name, res.Model, err, want, kind)
		}
	}
	try("", "", engine.ErrNoModel)
	try("claude-x", "", engine.ErrNoModel)
	try("org/absent", "", engine.ErrModelNotFound)
	try("org/two", "two", "") // nothing loaded: load it
	try("", "two", "")
	try("default_model", "two", "")
	try("claude-x", "two", "") // an alias of whatever is loaded
	try("two", "two", "")
	try("three", "three", "")
	try("org/partial", "", engine.ErrModelNotFound)
	try("org/ONE", "", engine.ErrModelNotFound) // exact ids only
	try("org/one", "one", "")
	if err := e.Check("org/absent"); !strings.Contains(err.Error(), "/admin/load") || !strings.Contains(err.Error(), "'one'") {
		t.Error(err)
	}
	if n, err := e.CountTokens(ctx, "three", message("hi")); err != nil || n < 2 || e.Status().Model.ID != "one" {
		t.Errorf("counting for another model: %d %v, loaded %s", n, err, e.Status().Model.ID)
	}
	outside := filepath.Join(t.TempDir(), "m")
	writeModel(t, outside)
	try(outside, "", engine.ErrInvalid)
	if _, err := e.LoadFrom(ctx, engine.LoadRequest{Model: outside}); err != nil {
		t.Fatal(err)
	}
	try("org/two", "two", "")
	try("m", "m", "") // what the owner loaded can come back

	fixed := local(t, func(o *engine.Options) { o.NoModelSwitch = true }, "org/one", "org/two")
	if _, err := fixed.Load(ctx, engine.LoadRequest{Model: "org/one"}); err != nil {
		t.Fatal(err)
	}
	if res, err := fixed.Generate(ctx, short("one", "hi"), nil); err != nil || res.Model != "one" {
		t.Errorf("%q %v", res.Model, err)
	}
	if _, err := fixed.Generate(ctx, short("org/two", "hi"), nil); kindOf(err) != engine.ErrModelNotFound {
		t.Errorf("switching is off: %v", err)
	}
}

// TestSwitchBatches: requests that wait for the same model are answered
// together, so that few swaps serve many requests.
func TestSwitchBatches(t *testing.T) {
	var made int
	var mu sync.Mutex
	gate := make(chan struct{})
	e := local(t, func(o *engine.Options) {
		o.Backend = func() (compute.Backend, error) {
			mu.Lock()
			made++
			n := made
			mu.Unlock()
			if n == 2 {
				<-gate // the first swap waits until all requests are there
			}
			return compute.NewReference(), nil
		}
	}, "org/one", "org/two", "org/six")
	ctx := context.Background()
	if _, err := e.Load(ctx, engine.LoadRequest{Model: "org/one"}); err != nil {
		t.Fatal(err)
	}
	sub := e.Events().Subscribe(1024)
	defer sub.Close()
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for i := range 12 {
		name := []string{"org/two", "org/six"}[i%2]
		wg.Go(func() {
			res, err := e.Generate(ctx, short(name, fmt.Sprint("request ", i)), nil)
			if err == nil && "org/"+res.Model != name {
				err = fmt.Errorf("%s was answered by %s", name, res.Model)
			}
			errs <- err
		})
	}
	for queued := 0; queued < 12; { // each has told that it waits for its model
		ev, err := sub.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := ev.Data.(engine.RequestEvent); ok && r.State == "queued" {
			queued++
		}
	}
	// One that names nothing is answered meanwhile, by the model that is there.
	if res, err := e.Generate(ctx, short("", "now"), nil); err != nil || res.Model != "one" {
		t.Errorf("%q %v", res.Model, err)
	}
	close(gate)
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if made != 3 {
		t.Errorf("%d loads for 12 requests of two models, want 3 with the first", made)
	}
	if len(e.Requests()) != 0 {
		t.Errorf("left over: %+v", e.Requests())
	}
}

// TestSwitchAbandoned: when all who wait for a model are gone its load is
// cancelled, and the old model stays.
func TestSwitchAbandoned(t *testing.T) {
	reached, gate := make(chan struct{}), make(chan struct{})
	made := 0
	e := local(t, func(o *engine.Options) {
		o.Backend = func() (compute.Backend, error) {
			if made++; made == 2 {
				close(reached)
				<-gate
			}
			return compute.NewReference(), nil
		}
	}, "org/one", "org/two")
	if _, err := e.Load(context.Background(), engine.LoadRequest{Model: "org/one"}); err != nil {
		t.Fatal(err)
	}
	sub := e.Events().Subscribe(256)
	defer sub.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { _, err := e.Generate(ctx, short("org/two", "hi"), nil); done <- err }()
	<-reached
	cancel()
	if err := <-done; kindOf(err) != engine.ErrCancelled {
		t.Errorf("%v", err)
	}
	close(gate)
	for {
		ev, err := sub.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := ev.Data.(engine.Status); ok && s.Loading == nil && s.State == engine.StateReady {
			if s.Model.ID != "one" || !strings.Contains(s.LastError, "cancelled") {
				t.Errorf("%+v", s)
			}
			break
		}
	}
	answer(t, e, short("org/one", "hi"))
}

// TestIdleUnload: an idle model goes to sleep, and the next request wakes it.
func TestIdleUnload(t *testing.T) {
	e := local(t, func(o *engine.Options) { o.IdleUnload = time.Millisecond }, "org/one")
	sub := e.Events().Subscribe(1024)
	defer sub.Close()
	until := func(want engine.State) {
		t.Helper()
		for {
			ev, err := sub.Next(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if s, ok := ev.Data.(engine.Status); ok && s.State == want {
				return
			}
		}
	}
	if _, err := e.Load(context.Background(), engine.LoadRequest{Model: "org/one", ContextWindow: ptr(512)}); err != nil {
		t.Fatal(err)
	}
	until(engine.StateAsleep)
	if s := e.Status(); s.Model != nil {
		t.Errorf("%+v", s)
	}
	if n, err := e.CountTokens(context.Background(), "", message("hi")); err != nil || n < 2 {
		t.Errorf("counting asleep: %d %v", n, err)
	}
	// All hold the model until it has said that it is awake.
	var wg, begun sync.WaitGroup
	begun.Add(3)
	awake := make(chan struct{})
	for i := range 3 {
		wg.Go(func() {
			var once sync.Once
			res, err := e.Generate(context.Background(), short("", fmt.Sprint(i)), func(engine.Delta) error {
				once.Do(begun.Done)
				<-awake
				return nil
			})
			if err != nil || res.Model != "one" {
				t.Errorf("woken: %q %v", res.Model, err)
			}
		})
	}
	until(engine.StateReady)
	begun.Wait()
	close(awake)
	wg.Wait()
	until(engine.StateAsleep)
	if _, err := e.Unload(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := e.Check(""); kindOf(err) != engine.ErrNoModel {
		t.Errorf("an unload is for good: %v", err)
	}
}

// TestCancelRequest: the owner ends a request that runs and one that waits.
func TestCancelRequest(t *testing.T) {
	var b brake
	e, _ := demoEngine(t, b.on(reference), engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)})
	t.Cleanup(b.letGo)
	b.put(3, time.Minute)
	started, hold := make(chan struct{}), make(chan struct{})
	var once sync.Once
	type end struct {
		id  string
		err error
	}
	ends := make(chan end, 2)
	go func() {
		_, err := e.Generate(context.Background(), engine.Request{ID: "a", Client: "c", Prompt: message("Tell me a story"), MaxTokens: 80, IgnoreEnd: true, Logprobs: -1}, func(engine.Delta) error {
			once.Do(func() { close(started); <-hold })
			return nil
		})
		ends <- end{"a", err}
	}()
	<-started
	go func() {
		_, err := e.Generate(context.Background(), engine.Request{ID: "b", Prompt: message("hi"), Logprobs: -1}, nil)
		ends <- end{"b", err}
	}()
	for len(e.Requests()) < 2 {
		time.Sleep(time.Millisecond)
	}
	if e.CancelRequest("x") {
		t.Error("cancelled a request that is not there")
	}
	if !e.CancelRequest("b") || !e.CancelRequest("a") {
		t.Error("not found")
	}
	b.letGo()
	close(hold)
	for range 2 {
		if x := <-ends; kindOf(x.err) != engine.ErrCancelled || !strings.Contains(x.err.Error(), "owner") {
			t.Errorf("%s: %v", x.id, x.err)
		}
	}
	answer(t, e, short("", "hi"))
}

// fakeMemory is a machine's memory that a test changes.
type fakeMemory struct{ atomic.Pointer[machine.Memory] }

func (f *fakeMemory) set(m machine.Memory) { f.Store(&m) }

func (f *fakeMemory) read() machine.Memory { return *f.Load() }

// TestMemoryGuard: critical pressure empties the prefix cache, a warning keeps
// it; weights stay, and the status tells.
func TestMemoryGuard(t *testing.T) {
	var memory fakeMemory
	memory.set(machine.Memory{Total: 64 << 30, Available: 32 << 30, Pressure: machine.Normal})
	e := local(t, func(o *engine.Options) { o.Memory = memory.read }, "org/one")
	e.StopWatching() // only what the test observes counts
	observe := func(l machine.Level) {
		memory.set(machine.Memory{Total: 64 << 30, Available: 32 << 30, Pressure: l})
		e.Observe(l)
	}
	if _, err := e.Load(context.Background(), engine.LoadRequest{Model: "org/one"}); err != nil {
		t.Fatal(err)
	}
	long := engine.Request{Prompt: message(strings.Repeat("What is speculative decoding? ", 8)), MaxTokens: 20, Logprobs: -1}
	want := answer(t, e, long).Text
	if n := answer(t, e, long).Stats.CachedTokens; n == 0 {
		t.Fatal("nothing was cached")
	}
	codes := func() (list []string) {
		for _, w := range e.Status().Warnings {
			list = append(list, w.Code+" "+w.Level)
		}
		return list
	}
	observe(machine.Normal)
	observe(machine.Warn)
	if g := e.Status().Guard; g.Sheds != 1 || g.Last.Level != machine.Warn || g.Last.SlotsDropped != 0 || !g.Enabled {
		t.Errorf("%+v", g)
	}
	if got := codes(); !slices.Equal(got, []string{"memory_pressure attention", "memory_guard attention"}) {
		t.Errorf("%q", got)
	}
	if n := answer(t, e, long).Stats.CachedTokens; n == 0 {
		t.Error("a warning emptied the cache")
	}
	observe(machine.Critical)
	g := e.Status().Guard
	if g.Sheds != 2 || g.Last.SlotsDropped == 0 || g.Last.PrefixBytes <= 0 || g.Level != machine.Critical {
		t.Errorf("%+v", g)
	}
	res := answer(t, e, long)
	if res.Stats.CachedTokens != 0 || res.Text != want {
		t.Errorf("%d cached, %q, want %q", res.Stats.CachedTokens, res.Text, want)
	}
	observe(machine.Normal)
	if got := codes(); !slices.Equal(got, []string{"memory_guard attention"}) {
		t.Errorf("%q", got)
	}
	if _, err := e.Load(context.Background(), engine.LoadRequest{Model: "org/one", MemoryGuard: ptr(false)}); err != nil {
		t.Fatal(err)
	}
	observe(machine.Critical)
	if g := e.Status().Guard; g.Enabled || g.Sheds != 0 {
		t.Errorf("it is off: %+v", g)
	}
}

// TestFit: what is too big is refused with the numbers before a weight is read;
// a context that nobody asked for is shortened.
func TestFit(t *testing.T) {
	var memory fakeMemory
	memory.set(machine.Memory{})
	backends := 0
	e := local(t, func(o *engine.Options) {
		o.Memory = memory.read
		o.Backend = func() (compute.Backend, error) { backends++; return compute.NewReference(), nil }
	}, "org/one")
	load := func(r engine.LoadRequest) (engine.Status, error) {
		r.Model = "org/one"
		return e.Load(context.Background(), r)
	}
	memory.set(machine.Memory{Total: 2 << 20, Available: 2 << 20})
	if _, err := load(engine.LoadRequest{}); kindOf(err) != engine.ErrLoadFailed || !strings.Contains(err.Error(), "too big") || !strings.Contains(err.Error(), "weights") || backends != 0 {
		t.Errorf("%v, %d backends", err, backends)
	}
	memory.set(machine.Memory{Total: 64 << 30, Available: 60 << 30})
	st, err := load(engine.LoadRequest{})
	if err != nil || len(st.Warnings) != 0 {
		t.Fatalf("%v %+v", err, st.Warnings)
	}
	full := st.Model.ContextWindow
	weights := st.Model.WeightBytes
	if full < 2048 {
		t.Skipf("the demo's context of %d is too small to shorten", full)
	}
	for total := uint64(weights); ; total += 1 << 20 { // find a machine on which half of it fits
		memory.set(machine.Memory{Total: total * 5 / 4, Available: total * 5 / 4})
		st, err = load(engine.LoadRequest{})
		if err == nil && st.Model.ContextWindow < full {
			break
		}
		if total > 1<<30 {
			t.Fatal("no machine shortens the context")
		}
	}
	if len(st.Warnings) != 1 || st.Warnings[0].Code != "load_note" || !strings.Contains(st.Warnings[0].Message, fmt.Sprint(st.Model.ContextWindow)) {
		t.Errorf("%+v", st.Warnings)
	}
	if _, err := load(engine.LoadRequest{ContextWindow: &full}); kindOf(err) != engine.ErrLoadFailed || !strings.Contains(err.Error(), "fits") {
		t.Errorf("asked for: %v", err)
	}
	if st := e.Status(); st.State != engine.StateReady || st.Model == nil {
		t.Errorf("a refusal left %+v", st)
	}
}

// TestRollBack: where memory does not hold both, the old model goes first and
// comes back when the new one fails.
func TestRollBack(t *testing.T) {
	var fail bool
	var memory fakeMemory
	memory.set(machine.Memory{Total: 64 << 30, Available: 60 << 30})
	e := local(t, func(o *engine.Options) {
		o.Memory = memory.read
		o.Backend = func() (compute.Backend, error) {
			if fail {
				fail = false
				return nil, fmt.Errorf("the device is gone")
			}
			return compute.NewReference(), nil
		}
	}, "org/one", "org/two")
	if _, err := e.Load(context.Background(), engine.LoadRequest{Model: "org/one", ContextWindow: ptr(512)}); err != nil {
		t.Fatal(err)
	}
	want := answer(t, e, short("", "hi")).Text
	memory.set(machine.Memory{Total: 64 << 30, Available: 1 << 20})
	fail = true
	st, err := e.Load(context.Background(), engine.LoadRequest{Model: "org/two"})
	if err == nil || st.State != engine.StateReady || st.Model == nil || st.Model.ID != "one" || st.Model.ContextWindow != 512 || !strings.Contains(st.LastError, "device is gone") {
		t.Errorf("%v %+v", err, st)
	}
	if got := answer(t, e, short("", "hi")).Text; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestRoofline: with a bandwidth there is a ceiling, which longer contexts lower.
func TestRoofline(t *testing.T) {
	calls := 0
	e := local(t, func(o *engine.Options) {
		o.Bandwidth = func() machine.Bandwidth { calls++; return machine.Bandwidth{GBs: 10} }
	}, "org/one", "org/two")
	for _, id := range []string{"org/one", "org/two"} {
		if _, err := e.Load(context.Background(), engine.LoadRequest{Model: id}); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 1 {
		t.Errorf("measured %d times", calls)
	}
	m := e.Status().Model
	if m.Weights.ActiveBytes <= 0 || m.Weights.ActiveBytes > m.Weights.TotalBytes || m.KVBytesPerToken <= 0 {
		t.Errorf("%+v", m)
	}
	res := answer(t, e, short("", strings.Repeat("What is speculative decoding? ", 8)))
	want := 10e9 / float64(m.Weights.ActiveBytes+m.KVBytesPerToken*int64(res.Stats.ContextTokens))
	if got := res.Stats.CeilingTokensPerSec; got < want-1 || got > want+1 || res.Stats.RooflineRatio == nil {
		t.Errorf("%v, want %v", got, want)
	}
	if g := e.Gauges(); g == nil || g.Pages == 0 || len(g.Store.Tokens) != 1 {
		b, _ := json.Marshal(g)
		t.Errorf("%s", b)
	}
}

// TestConfigure: changed settings hold for the next request and load, and those
// of one model for its loads.
func TestConfigure(t *testing.T) {
	e := local(t, nil, "org/one", "org/two")
	base := engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)}
	e.Configure(engine.Live{Base: base, DefaultMaxTokens: 2, ForModel: func(id string) engine.LoadRequest {
		if id == "org/two" {
			return engine.LoadRequest{ContextWindow: ptr(300)}
		}
		return engine.LoadRequest{}
	}})
	for name, window := range map[string]int{"org/one": 0, "org/two": 300} {
		r := short(name, "What is speculative decoding?")
		r.MaxTokens = 0
		if res := answer(t, e, r); len(res.Tokens) != 2 {
			t.Errorf("%d tokens", len(res.Tokens))
		}
		if got := e.Status().Model.ContextWindow; window > 0 && got != window || window == 0 && got == 300 {
			t.Errorf("%s: window %d, want %d", name, got, window)
		}
	}
	e.Configure(engine.Live{Base: base, NoModelSwitch: true})
	if err := e.Check("org/one"); e.Status().Model.ID == "two" && kindOf(err) != engine.ErrModelNotFound {
		t.Errorf("%v", err)
	}
	if st := e.Status(); st.MaxTokensDefault != 2048 {
		t.Errorf("%+v", st)
	}
}
