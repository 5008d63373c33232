package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/models"
	"sparkbar/engine/testhub"
	"sparkbar/resources"
)

// hub is the part of a model hub's API that downloads need.
type hub struct {
	*httptest.Server
	repos map[string]map[string][]byte

	mu       sync.Mutex
	requests []string
	hold     func(path string, r *http.Request) // called before content is sent
}

func newHub(t *testing.T, repos map[string]map[string][]byte) *hub {
	h := &hub{repos: repos}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.requests = append(h.requests, r.URL.Path)
	hold := h.hold
	h.mu.Unlock()
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/models"), "/"), "/")
	repo := strings.Join(parts[:min(2, len(parts))], "/")
	if h.repos[repo] == nil {
		repo = "no/such" // which the path does not name
	}
	testhub.Serve(w, r, repo, h.repos[repo], func(name string) bool {
		if hold != nil {
			hold(name, r)
		}
		return true
	})
}

func (h *hub) count(part string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.requests {
		if strings.Contains(r, part) {
			n++
		}
	}
	return n
}

// fetching is an engine with an empty cache and a hub.
func fetching(t *testing.T, h *hub, offline bool) *engine.Engine {
	t.Helper()
	places := models.Places{Hub: filepath.Join(t.TempDir(), "hub")}
	d, err := models.NewDownloader(models.HubOptions{Cache: places.Hub, Endpoint: h.URL, Offline: offline, Workers: 1}) // one request at a time: what is held is all there is
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(engine.Options{Version: "test", Backend: func() (compute.Backend, error) { return compute.NewReference(), nil }, Downloader: d, Places: places,
		Catalogue: models.NewCatalogue(models.CatalogueOptions{Places: places}), Live: engine.Live{Base: engine.LoadRequest{Warmup: ptr(false)}}})
	t.Cleanup(func() { e.Close(context.Background()) })
	return e
}

// TestDownload: a load fetches the target and its drafter, tells how far it is,
// and the model answers; a request never fetches anything.
func TestDownload(t *testing.T) {
	target, drafter := resources.Demo()
	h := newHub(t, map[string]map[string][]byte{"me/qwen3-4b-demo": target, "deepseek-ai/dspark_qwen3_4b_block7": drafter})
	e := fetching(t, h, false)
	ctx := context.Background()
	if _, err := e.Generate(ctx, short("me/qwen3-4b-demo", "hi"), nil); kindOf(err) != engine.ErrModelNotFound || h.count("") != 0 {
		t.Errorf("a request: %v, %d requests to the hub", err, h.count(""))
	}
	sub := e.Events().Subscribe(4096)
	defer sub.Close()
	st, err := e.Load(ctx, engine.LoadRequest{Model: "me/qwen3-4b-demo"})
	if err != nil || st.Model.Mode != "dspark" || st.Model.Drafter != "deepseek-ai/dspark_qwen3_4b_block7" {
		t.Fatalf("%v %+v", err, st.Model)
	}
	var seen []engine.State
	var last engine.Download
	for {
		ev, err := sub.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		s, ok := ev.Data.(engine.Status)
		if !ok {
			continue
		}
		if len(seen) == 0 || seen[len(seen)-1] != s.State {
			seen = append(seen, s.State)
		}
		if s.Loading != nil && s.Loading.Download != nil {
			last = *s.Loading.Download
		}
		if s.State == engine.StateReady {
			break
		}
	}
	if got := fmt.Sprint(seen); got != "[resolving downloading loading ready]" {
		t.Errorf("states %s", got)
	}
	if last.BytesDone > last.BytesTotal {
		t.Errorf("%+v", last)
	}
	answer(t, e, short("", "hi"))
	before := h.count("")
	if _, err := e.Load(ctx, engine.LoadRequest{Model: "me/qwen3-4b-demo"}); err != nil || h.count("") != before {
		t.Errorf("what is here is not fetched again: %v, %d requests", err, h.count("")-before)
	}
	if list := e.Models(); len(list) != 2 || !list[0].Loadable() || !list[1].Loadable() {
		t.Errorf("%+v", list)
	}
}

// TestDownloadCancel: a cancelled download keeps what is there, and the next
// load goes on; the old model stays.
func TestDownloadCancel(t *testing.T) {
	target, _ := resources.Demo()
	h := newHub(t, map[string]map[string][]byte{"org/one": target})
	e := fetching(t, h, false)
	reached := make(chan struct{})
	var once sync.Once
	h.hold = func(path string, r *http.Request) {
		if strings.HasSuffix(path, ".safetensors") {
			once.Do(func() { close(reached) })
			<-r.Context().Done()
		}
	}
	if _, err := e.StartLoad(engine.LoadRequest{Model: "org/one", Mode: "baseline"}); err != nil {
		t.Fatal(err)
	}
	sub := e.Events().Subscribe(4096)
	defer sub.Close()
	<-reached
	if s := untilFetching(t, e, sub); s.State != engine.StateDownloading {
		t.Errorf("%+v", s)
	}
	if _, err := e.Generate(context.Background(), short("org/one", "hi"), nil); kindOf(err) != engine.ErrLoading {
		t.Errorf("meanwhile: %v", err)
	}
	if !e.CancelLoad(false) {
		t.Error("nothing to cancel")
	}
	for {
		ev, err := sub.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := ev.Data.(engine.Status); ok && s.Loading == nil {
			if s.State != engine.StateIdle || !strings.Contains(s.LastError, "partial files kept") {
				t.Errorf("%+v", s)
			}
			break
		}
	}
	h.mu.Lock()
	h.hold, h.requests = nil, nil
	h.mu.Unlock()
	if _, err := e.Load(context.Background(), engine.LoadRequest{Model: "org/one", Mode: "baseline"}); err != nil {
		t.Fatal(err)
	}
	answer(t, e, short("org/one", "hi"))
}

// TestDownloadFails: what cannot be had is named, and the old model stays; a
// drafter that cannot be had costs only speed.
func TestDownloadFails(t *testing.T) {
	target, _ := resources.Demo()
	h := newHub(t, map[string]map[string][]byte{"me/qwen3-4b-demo": target, "org/odd": {"readme.md": []byte("x")}})
	e := fetching(t, h, false)
	ctx := context.Background()
	for model, kind := range map[string]engine.ErrorKind{"org/none": engine.ErrModelNotFound, "nowhere": engine.ErrModelNotFound, "org/odd": engine.ErrInvalid, "a/b/c": engine.ErrModelNotFound, "../x": engine.ErrModelNotFound, "a/b--c": engine.ErrModelNotFound} {
		if _, err := e.Load(ctx, engine.LoadRequest{Model: model}); kindOf(err) != kind {
			t.Errorf("%s: %q %v", model, kindOf(err), err)
		}
	}
	// What is no name of the hub is told by the whole name, and the field that held it.
	for field, r := range map[string]engine.LoadRequest{"model": {Model: "https://hub.example/org/name"}, "drafter": {Model: "me/qwen3-4b-demo", Drafter: "nowhere:x"}} {
		name := r.Model
		if field == "drafter" {
			name = r.Drafter
		}
		var e2 *engine.Error
		if _, err := e.Load(ctx, r); !errors.As(err, &e2) || e2.Kind != engine.ErrModelNotFound || e2.Field != field || !strings.HasPrefix(e2.Message, fmt.Sprintf("%s %q is neither", field, name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The target is there after this, its drafter is not.
	if _, err := e.Load(ctx, engine.LoadRequest{Model: "me/qwen3-4b-demo", Mode: "baseline"}); err != nil {
		t.Fatal(err)
	}
	st, err := e.Load(ctx, engine.LoadRequest{Model: "me/qwen3-4b-demo"})
	if err != nil || st.Model.Mode != "lookup" || len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0].Message, "dspark_qwen3_4b_block7") {
		t.Errorf("%v %+v", err, st)
	}
	if _, err := e.Load(ctx, engine.LoadRequest{Model: "me/qwen3-4b-demo", Mode: "dspark"}); err == nil || e.Status().Model == nil {
		t.Errorf("asked for the drafter: %v", err)
	}
	answer(t, e, short("", "hi"))
	if _, err := fetching(t, h, true).Load(ctx, engine.LoadRequest{Model: "me/qwen3-4b-demo"}); kindOf(err) != engine.ErrDownload {
		t.Errorf("offline: %q %v", kindOf(err), err)
	}
}

// TestArms: the arms of a race give the same tokens, without the prefix cache
// and without counting as traffic.
func TestArms(t *testing.T) {
	e, _ := demoEngine(t, reference, engine.LoadRequest{Warmup: ptr(false)})
	if got := fmt.Sprint(e.Arms()); got != "[dspark baseline lookup]" {
		t.Errorf("%s", got)
	}
	var texts []string
	for _, a := range []engine.Arm{{Mode: "baseline"}, {Mode: "dspark"}, {Mode: "dspark", Cap: 2}, {Mode: "dspark", Auto: true}, {Mode: "dspark", Confidence: ptr(0.5)}, {Mode: "lookup"}} {
		res := answer(t, e, engine.Request{Prompt: message("What is speculative decoding?"), MaxTokens: 30, Logprobs: -1, Arm: &a})
		texts = append(texts, res.Text)
		if res.Text != texts[0] || res.Stats.Mode != a.Mode || res.Stats.CachedTokens != 0 {
			t.Errorf("%+v: %q, %+v, plain %q", a, res.Text, res.Stats, texts[0])
		}
		if a.Cap > 0 && *res.Stats.Cap != a.Cap {
			t.Errorf("%+v ran with cap %d", a, *res.Stats.Cap)
		}
	}
	if n := e.Totals().Requests; n != 0 {
		t.Errorf("%d requests counted", n)
	}
	if _, err := e.Generate(context.Background(), engine.Request{Prompt: message("x"), Logprobs: -1, Arm: &engine.Arm{Mode: "dflash"}}, nil); kindOf(err) != engine.ErrInvalid {
		t.Errorf("%v", err)
	}
	if e.Calibration().Costs == nil {
		t.Error("the auto arm measured nothing")
	}
}
