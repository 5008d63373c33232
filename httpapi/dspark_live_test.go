package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
	"sparkbar/engine/models"
	"sparkbar/engine/testhub"
)

// Recordings of mlx-dspark in which something else goes on during the exchange: a
// generation, a load, a download. Here it is held where it has to be.

// liveExchange is a recording in testdata/dspark-live.
type liveExchange struct {
	realExchange
	Flags []string
}

func liveGolden(t *testing.T, name string) (x liveExchange) {
	t.Helper()
	b, err := os.ReadFile("testdata/dspark-live/" + name + ".json")
	if err == nil {
		err = json.Unmarshal(b, &x)
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// differs reports a difference that no exception excuses.
func differs(t *testing.T, name string) func(field string, got, want any) {
	return func(field string, got, want any) {
		t.Helper()
		if !real.excused(name, field, true) {
			t.Errorf("%s: %s is %v, want %v", name, field, got, want)
		}
	}
}

// answers compares an answer with the recorded one: status, keys and types.
func (x *liveExchange) answers(t *testing.T, name string, w *httptest.ResponseRecorder) {
	t.Helper()
	if right := real.rightStatus(name); right != 0 {
		if w.Code != right {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, right)
		}
		return
	}
	if w.Code != x.Status {
		t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, x.Status)
		return
	}
	realShape(name, "", parseTree(t, x.Answer), parseTree(t, w.Body.Bytes()), differs(t, name))
}

// prompted are the rounds and reports of prefill of the last request in a stream of
// events.
func prompted(t *testing.T, text string) (rounds, prefills []map[string]any) {
	t.Helper()
	var req any
	for _, e := range slices.Backward(parseSSE(text)) {
		if e.name != roundEvent && e.name != prefillEvent {
			continue
		}
		var o map[string]any
		if err := json.Unmarshal([]byte(e.data), &o); err != nil {
			t.Fatal(err)
		}
		if req == nil {
			req = o["req"]
		}
		if o["req"] != req {
			break
		}
		if o["type"] == "prefill" {
			prefills = append(prefills, o)
		} else {
			rounds = append(rounds, o)
		}
	}
	slices.Reverse(rounds)
	slices.Reverse(prefills)
	return rounds, prefills
}

// replayEvents: while /events is read a request is made; its rounds draft,
// accept and commit what the recorded ones did, and its prefill is told as there.
func replayEvents(t *testing.T) {
	for _, name := range []string{"dspark-events", "lookup-events-prefill"} {
		t.Run(name, func(t *testing.T) {
			x := liveGolden(t, name)
			var recorded string
			if err := json.Unmarshal(x.Answer, &recorded); err != nil {
				t.Fatal(err)
			}
			want, wantPrefill := prompted(t, recorded)
			if len(want) == 0 {
				t.Fatal("nothing is recorded")
			}
			s, _ := startReal(t, x.Flags)
			srv := httptest.NewServer(s)
			defer srv.Close()
			events, err := http.Get(srv.URL + "/events")
			if err != nil {
				t.Fatal(err)
			}
			defer events.Body.Close()
			fits := true
			if right := real.rightStatus(name); right != 0 { // the prompt is too long: shown with a third of it
				if w := call(s, "POST", "/v1/chat/completions", string(x.Body)); w.Code != right {
					t.Errorf("%d %s, want %d", w.Code, w.Body, right)
				}
				fits = false
				x.Body = bytes.Replace(x.Body, bytes.Repeat([]byte("Repeat the rhyme. "), 213), nil, 1)
			}
			reply, err := http.Post(srv.URL+"/v1/chat/completions", "application/json", bytes.NewReader(x.Body))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(reply.Body)
			reply.Body.Close()
			var answer struct{ ID string }
			if err != nil || json.Unmarshal(body, &answer) != nil || reply.StatusCode != http.StatusOK {
				t.Fatal(err, reply.Status, string(body))
			}
			var text []byte
			var got, gotPrefill []map[string]any
			for pauses := 0; ; { // until a pause after its rounds
				piece := make([]byte, 4096)
				n, err := events.Body.Read(piece)
				if err != nil {
					t.Fatalf("%v after %s", err, text)
				}
				text = append(text, piece[:n]...)
				if !strings.HasSuffix(string(text), eventComment) {
					continue
				}
				if got, gotPrefill = prompted(t, string(text)); len(got) > 0 && got[0]["req"] == answer.ID {
					break
				}
				if pauses++; pauses > 60 {
					t.Fatalf("the rounds of %s are not told: %s", answer.ID, text)
				}
			}
			differ := differs(t, name)
			same := func(what string, got, want map[string]any) {
				for k, v := range want {
					switch g, ok := got[k]; {
					case !ok:
						differ(what+"."+k, "missing", v)
					case fits && k != "req" && k != "ms" && k != "seq" && k != "t" && g != v:
						differ(fmt.Sprintf("%s.%s", what, k), fmt.Sprint(g, " in ", got), fmt.Sprint(v, " in ", want))
					}
				}
			}
			if fits && len(got) != len(want) || len(gotPrefill) < min(len(wantPrefill), 1) {
				t.Fatalf("%d rounds and %d reports of prefill, want %d and %d: %v %v", len(got), len(gotPrefill), len(want), len(wantPrefill), got, gotPrefill)
			}
			for i := range want {
				same("round", got[min(i, len(got)-1)], want[i])
			}
			if n := len(wantPrefill); n > 0 {
				same("prefill", gotPrefill[len(gotPrefill)-1], wantPrefill[n-1])
				// W35: done when the prompt has been read, under a name of its own
				tail := string(text[strings.LastIndex(string(text), "event: "+prefillEvent+"\n"):])
				if !strings.Contains(tail, `"done":true`) || strings.Count(tail, "event: "+roundEvent+"\n") != len(got) {
					t.Errorf("the end of prefill is not told before the first round: %s", tail)
				}
			}
		})
	}
}

// gated is a backend that tells of its first weight and of its first program.
type gated struct {
	compute.Backend
	loading, running func()
}

func (g *gated) Load(m layout.Matrix) (*compute.Weight, error) {
	g.loading()
	return g.Backend.Load(m)
}

func (g *gated) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	g.running()
	return g.Backend.Submit(p, stop)
}

// replayPhases: what /health and /admin/status say while a model is loaded.
func replayPhases(t *testing.T) {
	x := liveGolden(t, "no-model-load-phases")
	var want []struct {
		Health, Status json.RawMessage
	}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(x.Answer), `"admin_status"`, `"status"`)), &want); err != nil || len(want) != 4 {
		t.Fatal(len(want), err)
	}
	root := realModels(t)
	var s *Server
	look := func(i int) func() {
		return sync.OnceFunc(func() {
			name := fmt.Sprintf("no-model-load-phases-%d", i)
			health := call(s, "GET", "/health", "").Body.Bytes()
			status := call(s, "GET", "/admin/status", "").Body.Bytes()
			realShape(name, "health", parseTree(t, want[i].Health), parseTree(t, health), differs(t, name))
			var got, recorded struct{ Status, Phase string }
			if json.Unmarshal(health, &got) != nil || json.Unmarshal(want[i].Health, &recorded) != nil || got != recorded {
				t.Errorf("%s: health %s, want %s", name, health, want[i].Health)
			}
			if i == 0 { // recorded across the beginning of the load
				return
			}
			realShape(name, "admin_status", parseTree(t, want[i].Status), parseTree(t, status), differs(t, name))
			if json.Unmarshal(status, &got) != nil || json.Unmarshal(want[i].Status, &recorded) != nil || got != recorded {
				t.Errorf("%s: status %s, want %s", name, status, want[i].Status)
			}
		})
	}
	var seen []string
	mark := func(what string, f func()) func() {
		return sync.OnceFunc(func() { seen = append(seen, what); f() })
	}
	b := &gated{compute.NewReference(), mark("loading", look(1)), mark("warming_up", look(2))}
	e := engine.New(engine.Options{Version: "test", ModelRoot: root, Backend: func() (compute.Backend, error) { return b, nil }})
	t.Cleanup(func() { e.Close(context.Background()) })
	s = New(e, Options{})
	look(0)()
	if w := call(s, "POST", "/admin/load", fmt.Sprintf(`{"model":%q,"mode":"baseline"}`, root+"/models/tiny-chat")); w.Code != http.StatusOK {
		t.Fatal(w.Code, w.Body)
	}
	look(3)()
	if got := strings.Join(seen, " "); got != "loading warming_up" {
		t.Errorf("seen: %s", got)
	}
}

// replayDownload: a first load from a hub, cancelled with its files kept and
// then removed, a repository that is not there, and the load that succeeds.
func replayDownload(t *testing.T) {
	root := realModels(t)
	files := map[string][]byte{}
	paths, _ := filepath.Glob(root + "/models/tiny-chat/*")
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(p)] = b
	}
	var mu sync.Mutex
	var hold func(r *http.Request) // at the weights
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		testhub.Serve(w, r, "acme/tiny-chat", files, func(name string) bool {
			mu.Lock()
			wait := hold
			mu.Unlock()
			if wait != nil && strings.HasSuffix(name, ".safetensors") {
				wait(r)
			}
			return true
		})
	}))
	defer hub.Close()
	places := models.Places{Hub: filepath.Join(t.TempDir(), "hub")}
	d, err := models.NewDownloader(models.HubOptions{Cache: places.Hub, Endpoint: hub.URL})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(engine.Options{Version: "test", Backend: func() (compute.Backend, error) { return compute.NewReference(), nil }, Downloader: d, Places: places,
		Catalogue: models.NewCatalogue(models.CatalogueOptions{Places: places})})
	t.Cleanup(func() { e.Close(context.Background()) })
	s := New(e, Options{})
	play := func(name string) {
		t.Helper()
		x := liveGolden(t, name)
		body := string(x.Body)
		if body == "null" {
			body = ""
		}
		x.answers(t, name, call(s, x.Method, x.Path, body))
	}
	cancelled := func(load, cancel string, meanwhile ...string) {
		t.Helper()
		reached := make(chan struct{}, 8)
		mu.Lock()
		hold = func(r *http.Request) { reached <- struct{}{}; <-r.Context().Done() }
		mu.Unlock()
		done := make(chan struct{})
		go func() { defer close(done); play(load) }()
		<-reached
		for _, name := range meanwhile {
			play(name)
		}
		play(cancel)
		<-done
		mu.Lock()
		hold = nil
		mu.Unlock()
	}
	cancelled("download-load-cancelled", "download-cancel", "download-health-downloading", "download-status-downloading", "download-chat-while-downloading")
	play("download-health-after-cancel")
	cancelled("download-load-cancelled-cleanup", "download-cancel-cleanup")
	play("download-load-unknown-repo")
	play("download-load-downloaded")
	play("download-models-after-download")
}
