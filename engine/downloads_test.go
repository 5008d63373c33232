package engine_test

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/telemetry"
	"sparkbar/resources"
)

// gate holds the content of a hub's weights back.
type gate struct {
	release chan struct{}
	reached chan struct{} // one for each request that is held
}

func newGate(h *hub) *gate {
	g := &gate{release: make(chan struct{}), reached: make(chan struct{}, 1000)}
	h.hold = func(path string, r *http.Request) {
		if strings.HasSuffix(path, ".safetensors") {
			g.reached <- struct{}{}
			select {
			case <-g.release:
			case <-r.Context().Done():
			}
		}
	}
	return g
}

// untilDownload reads events until one of a download suits.
func untilDownload(t *testing.T, sub *telemetry.Subscription, suits func(engine.Download) bool) engine.Download {
	t.Helper()
	for {
		ev, err := sub.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := ev.Data.(engine.Download); ok && suits(d) {
			return d
		}
	}
}

// untilFetching waits until the load under way has told of its download.
func untilFetching(t *testing.T, e *engine.Engine, sub *telemetry.Subscription) engine.Status {
	t.Helper()
	for {
		s := e.Status()
		if s.Loading == nil {
			t.Fatalf("no load is under way: %+v", s)
		}
		if s.Loading.Download != nil {
			return s
		}
		if _, err := sub.Next(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDownloads: a model is fetched beside one that answers; it can be paused,
// resumed and cancelled, and a load of the same joins it.
func TestDownloads(t *testing.T) {
	target, drafter := resources.Demo()
	h := newHub(t, map[string]map[string][]byte{"me/qwen3-4b-demo": target, "deepseek-ai/dspark_qwen3_4b_block7": drafter, "org/one": target})
	e := fetching(t, h, false)
	ctx := context.Background()
	sub := e.Events().Subscribe(4096)
	defer sub.Close()
	if _, err := e.Load(ctx, engine.LoadRequest{Model: "org/one", Mode: "baseline"}); err != nil {
		t.Fatal(err)
	}
	untilDownload(t, sub, func(d engine.Download) bool { return d.State == "done" })

	g := newGate(h)
	d, err := e.StartDownload("me/qwen3-4b-demo", true)
	if err != nil || d.ID == "" || d.Model != "me/qwen3-4b-demo" {
		t.Fatalf("%+v %v", d, err)
	}
	if again, err := e.StartDownload("me/qwen3-4b-demo", true); err != nil || again.ID != d.ID {
		t.Errorf("the same again: %+v %v", again, err)
	}
	<-g.reached
	if got, ok := e.PauseDownload(d.ID); !ok || got.State != "paused" || got.BytesPerSecond != 0 {
		t.Errorf("paused: %+v", got)
	}
	answer(t, e, short("org/one", "hi"))
	if list := e.Downloads(); len(list) != 2 || list[slices.IndexFunc(list, func(x engine.Download) bool { return x.ID == d.ID })].State != "paused" {
		t.Errorf("%+v", list)
	}
	asked := h.count("")
	answer(t, e, short("", "hello"))
	if now := h.count(""); now != asked {
		t.Errorf("%d requests while it is paused", now-asked)
	}
	if got, ok := e.ResumeDownload(d.ID); !ok || got.State == "paused" {
		t.Errorf("resumed: %+v", got)
	}
	<-g.reached
	if _, ok := e.PauseDownload(d.ID); !ok {
		t.Error("it cannot be paused again")
	}
	untilDownload(t, sub, func(x engine.Download) bool { return x.ID == d.ID && x.State == "paused" })
	// A load wants it: that resumes it. The load may be given up, the download
	// goes on.
	if _, err := e.StartLoad(engine.LoadRequest{Model: "me/qwen3-4b-demo"}); err != nil {
		t.Fatal(err)
	}
	<-g.reached
	if st := untilFetching(t, e, sub); st.Loading.Download.ID != d.ID || st.Model.ID != "one" {
		t.Errorf("%+v", st)
	}
	if !e.CancelLoad(true) {
		t.Error("no load to cancel")
	}
	for e.Status().Loading != nil {
		if _, err := sub.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if st := e.Status(); !strings.Contains(st.LastError, "goes on") || st.Model.ID != "one" {
		t.Errorf("%+v", st)
	}
	close(g.release)
	end := untilDownload(t, sub, func(x engine.Download) bool { return x.ID == d.ID && x.State == "done" })
	if end.Error != "" || end.BytesDone != end.BytesTotal || end.BytesTotal == 0 {
		t.Errorf("%+v", end)
	}
	if _, ok := e.PauseDownload(d.ID); ok {
		t.Error("a finished download was paused")
	}
	before := h.count("")
	st, err := e.Load(ctx, engine.LoadRequest{Model: "me/qwen3-4b-demo"})
	if err != nil || st.Model.Mode != "dspark" || h.count("") != before {
		t.Errorf("%v %+v, %d requests", err, st.Model, h.count("")-before)
	}
}

// TestDownloadsEnd: a cancelled download says what became of its files, one
// that cannot be had says why, and the end of the engine ends all.
func TestDownloadsEnd(t *testing.T) {
	target, _ := resources.Demo()
	h := newHub(t, map[string]map[string][]byte{"org/one": target, "org/two": target})
	e := fetching(t, h, false)
	g := newGate(h)
	sub := e.Events().Subscribe(4096)
	defer sub.Close()
	for _, cleanup := range []bool{false, true} {
		d, err := e.StartDownload("org/one", true)
		if err != nil {
			t.Fatal(err)
		}
		<-g.reached
		if !cleanup {
			e.PauseDownload(d.ID) // a paused one is cancelled, too
		}
		if _, ok := e.CancelDownload(d.ID, cleanup); !ok {
			t.Fatal("nothing to cancel")
		}
		end := untilDownload(t, sub, func(x engine.Download) bool { return x.ID == d.ID && x.Error != "" })
		want := map[bool]string{false: "partial files kept", true: "partial files removed"}[cleanup]
		if end.State != "cancelled" || !strings.Contains(end.Error, want) {
			t.Errorf("%+v, want %q", end, want)
		}
		blobs, _ := filepath.Glob(filepath.Join(e.Places().Hub, "models--org--one", "blobs", "*"))
		if (len(blobs) == 0) != cleanup {
			t.Errorf("cleanup %v left %q", cleanup, blobs)
		}
		if list := e.Models(); cleanup != (len(list) == 0) || len(list) > 0 && list[0].Loadable() {
			t.Errorf("the list is %+v", list)
		}
	}
	d, err := e.StartDownload("org/none", true)
	if err != nil {
		t.Fatal(err)
	}
	if end := untilDownload(t, sub, func(x engine.Download) bool { return x.ID == d.ID && x.State == "failed" && x.Error != "" }); !strings.Contains(end.Error, "org/none") {
		t.Errorf("%+v", end)
	}
	for name, kind := range map[string]engine.ErrorKind{"nowhere": engine.ErrModelNotFound, "../x": engine.ErrModelNotFound, "/etc/passwd": engine.ErrModelNotFound} {
		if _, err := e.StartDownload(name, true); err == nil || kindOf(err) != kind && kindOf(err) != engine.ErrInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 12 {
		x, err := e.StartDownload("org/none", false)
		if err != nil {
			t.Fatal(err)
		}
		untilDownload(t, sub, func(y engine.Download) bool { return y.ID == x.ID && y.Error != "" })
	}
	if n := len(e.Downloads()); n != 8 {
		t.Errorf("%d ended downloads are listed", n)
	}
	if _, err := e.StartDownload("org/two", true); err != nil {
		t.Fatal(err)
	}
	<-g.reached
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.StartDownload("org/two", true); kindOf(err) != engine.ErrShuttingDown {
		t.Errorf("after the end: %v", err)
	}
	if _, err := local(t, nil, "org/one").StartDownload("org/two", true); kindOf(err) != engine.ErrDownload {
		t.Errorf("without a hub: %v", err)
	}
}
