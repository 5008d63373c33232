package menubar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sparkbar/httpapi/client"
)

// fakeHost remembers what it was asked.
type fakeHost struct {
	mu     sync.Mutex
	did    []string
	asked  []Dialog
	login  LoginItem
	charge int
	refuse error
}

func (h *fakeHost) note(f string, a ...any) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.did = append(h.did, fmt.Sprintf(f, a...))
	return h.refuse
}

func (h *fakeHost) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.did
	h.did = nil
	return d
}

func (h *fakeHost) Features() HostFeatures {
	return HostFeatures{Window: true, Reveal: true, Login: true, Quit: true}
}
func (h *fakeHost) Copy(text string) error   { return h.note("copy %s", text) }
func (h *fakeHost) Open(screen string) error { return h.note("open %s", screen) }
func (h *fakeHost) Browse(url string) error  { return h.note("browse %s", url) }
func (h *fakeHost) Reveal(path string) error { return h.note("reveal %s", path) }
func (h *fakeHost) Trash(path string) error  { return h.note("trash %s", path) }
func (h *fakeHost) Log() error               { return h.note("log") }
func (h *fakeHost) Edit(path string) error   { return h.note("edit %s", path) }
func (h *fakeHost) Notify(a, b string) error { return h.note("notify %s: %s", a, b) }
func (h *fakeHost) Login() LoginItem         { h.mu.Lock(); defer h.mu.Unlock(); return h.login }
func (h *fakeHost) LoginSettings() error     { return h.note("login settings") }
func (h *fakeHost) Awake(on bool)            { _ = h.note("awake %v", on) }
func (h *fakeHost) Battery() int             { h.mu.Lock(); defer h.mu.Unlock(); return h.charge }
func (h *fakeHost) Quit(now bool)            { _ = h.note("quit %v", now) }
func (h *fakeHost) SetLogin(on bool) error {
	h.mu.Lock()
	h.login = LoginOff
	if on {
		h.login = LoginOn
	}
	h.mu.Unlock()
	return h.note("login %v", on)
}
func (h *fakeHost) Ask(d Dialog) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, d)
}

type fakeServer struct {
	mu sync.Mutex
	s  ServerState
}

func (f *fakeServer) State() ServerState { f.mu.Lock(); defer f.mu.Unlock(); return f.s }
func (f *fakeServer) Start(port int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if port == 0 {
		port = 8080
	}
	f.s = ServerState{Running: true, Port: port}
	return nil
}
func (f *fakeServer) Stop() error { f.mu.Lock(); defer f.mu.Unlock(); f.s = ServerState{}; return nil }
func (f *fakeServer) LAN(on, key bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.s.LAN, f.s.Protected, f.s.Key = "", key, ""
	if on {
		f.s.LAN = "http://10.0.0.2:8080"
	}
	if key {
		f.s.Key = "k"
	}
	return nil
}

// fakeAPI answers the routes of a full server, and remembers the calls.
type fakeAPI struct {
	mu     sync.Mutex
	calls  []string
	events chan string
	routes map[string]string // "GET /x" → body
}

func newAPI() *fakeAPI {
	return &fakeAPI{events: make(chan string, 100), routes: map[string]string{
		"POST /admin/load": `{"ready":true}`, "POST /admin/load/cancel": `{"cancelled":true}`, "POST /admin/unload": `{}`,
		"GET /admin/requests":            `{"requests":[{"id":"r1","state":"running","prompt_tokens":5,"client":"codex"}]}`,
		"POST /admin/requests/r1/cancel": `{}`,
		"GET /machine":                   `{"memory":{"total_bytes":17179869184,"pressure":"warn","swap_used_bytes":1073741824},"roofline":{"at_last_request":{"ceiling_tps":33}},"guard":{"last_shed":{"action":"cleared the prefix cache","freed_bytes":1073741824}}}`,
		"GET /admin/models":              `{"installed":[{"repo":"org/a","path":"/m/a","size_bytes":1073741824,"kind":"model","source":"cache","complete":true,"registry_id":"a"},{"repo":"org/b","kind":"model","source":"lmstudio","complete":false,"fit":{"verdict":"too_big","need_bytes":9,"max_context":1024}}],"models":[{"id":"a","mode":"dspark","drafter_installed":false}]}`,
		"GET /admin/settings":            `{"values":{"ui.detail":"developer","menubar.text":"rate+accept","menubar.ribbon":false,"model.pinned":["org/z"],"menubar.notices":["download","load","server"],"model.last":"org/earlier"}}`,
		"PATCH /admin/settings":          `{}`,
		"GET /admin/integrations":        `{"integrations":[{"id":"codex","name":"Codex","setup":[{"kind":"file"},{"kind":"command","command":"codex --profile sparkbar"}]}]}`,
		"GET /doctor":                    `{"ok":false,"findings":[{"code":"disk","level":"problem","message":"The disk is full.","fix":"remove models"}]}`,
	}}
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	if r.URL.Path != "/admin/events" {
		a.calls = append(a.calls, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(body)))
	}
	answer, ok := a.routes[r.Method+" "+r.URL.Path]
	other := false
	for k := range a.routes {
		other = other || strings.HasSuffix(k, " "+r.URL.Path)
	}
	a.mu.Unlock()
	switch {
	case r.URL.Path == "/admin/events":
		w.WriteHeader(200)
		for {
			select {
			case e, open := <-a.events:
				if !open {
					return
				}
				name, data, _ := strings.Cut(e, " ")
				fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, data)
			case <-r.Context().Done():
				return
			}
		}
	case r.URL.Path == "/admin/race" && r.Method == "POST" && ok, r.URL.Path == "/admin/race" && r.Method == "DELETE" && other:
		if r.Method == "DELETE" {
			w.WriteHeader(405)
			io.WriteString(w, `{"error":{"type":"invalid_request_error","message":"POST"}}`)
			return
		}
		io.WriteString(w, answer)
	case strings.HasPrefix(r.URL.Path, "/admin/requests/") && !ok:
		w.WriteHeader(404)
		io.WriteString(w, `{"error":{"type":"not_found_error","code":"request_not_found","message":"no such request runs or waits"}}`)
	case ok:
		io.WriteString(w, answer)
	case other:
		w.WriteHeader(405)
		io.WriteString(w, `{"error":{"type":"invalid_request_error","message":"other method"}}`)
	default:
		w.WriteHeader(404)
		io.WriteString(w, `{"error":{"type":"not_found","message":"unknown route"}}`)
	}
}

func (a *fakeAPI) took() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.calls
	a.calls = nil
	return c
}

// live runs a Controller in a bubble of simulated time.
func live(t *testing.T, run func(t *testing.T, c *Controller, api *fakeAPI, host *fakeHost, server *fakeServer, changes *atomic.Int32)) {
	synctest.Test(t, func(t *testing.T) {
		api, host, server := newAPI(), &fakeHost{login: LoginOff, charge: -1}, &fakeServer{s: ServerState{Running: true, Port: 8080}}
		var changes atomic.Int32
		c := New(Options{Client: client.InProcess(api, ""), Host: host, Server: server, Changed: func() { changes.Add(1) }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { c.Run(ctx); close(done) }()
		api.events <- "state " + strings.ReplaceAll(okBody, "\n", "")
		synctest.Wait()
		api.took() // of the settings, once
		run(t, c, api, host, server, &changes)
		cancel()
		<-done
	})
}

// TestQuietWhileClosed: with the menu closed and nothing happening, an hour
// causes no call and no change.
func TestQuietWhileClosed(t *testing.T) {
	live(t, func(t *testing.T, c *Controller, api *fakeAPI, host *fakeHost, _ *fakeServer, changes *atomic.Int32) {
		api.took()
		changes.Store(0)
		time.Sleep(time.Hour)
		synctest.Wait()
		if calls := api.took(); len(calls) > 0 || changes.Load() > 0 {
			t.Errorf("%d changes, calls %q", changes.Load(), calls)
		}
		c.Open()
		synctest.Wait()
		first := api.took()
		if !slices.Contains(first, "GET /machine") || !slices.Contains(first, "GET /admin/models") {
			t.Errorf("an opened menu asks %q", first)
		}
		time.Sleep(4900 * time.Millisecond)
		synctest.Wait()
		if calls := api.took(); len(calls) != 9 || slices.Contains(calls, "GET /machine") { // every 500 ms
			t.Errorf("in 4.9 s an open menu asks %q", calls)
		}
		c.Close()
		time.Sleep(time.Minute) // the last request of the list is still there, so it keeps awake
		synctest.Wait()
		api.took()
		api.events <- `request {"id":"r1","state":"done"}`
		time.Sleep(time.Minute)
		synctest.Wait()
		api.took()
		changes.Store(0)
		time.Sleep(time.Hour)
		synctest.Wait()
		if calls := api.took(); len(calls) > 0 || changes.Load() > 0 {
			t.Errorf("after closing: %d changes, calls %q", changes.Load(), calls)
		}
	})
}

// TestCapabilities: the routes of a full server fill the menu, and one that
// lacks them leaves it usable.
func TestCapabilities(t *testing.T) {
	live(t, func(t *testing.T, c *Controller, api *fakeAPI, _ *fakeHost, _ *fakeServer, _ *atomic.Int32) {
		api.routes["POST /admin/race"] = ""
		c.Open()
		synctest.Wait()
		s := c.State()
		if s.Has != (Features{true, true, true, true, true, true, true}) {
			t.Errorf("%+v", s.Has)
		}
		if s.Machine != (Machine{16 * gib, gib, "warn", "cleared the prefix cache, 1.0 GB given back", 33}) {
			t.Errorf("%+v", s.Machine)
		}
		if want := (Settings{Developer, "rate+accept", false, AwakeRequests, Notices{Download: true, Load: true, Server: true}, "org/earlier"}); s.Settings != want {
			t.Errorf("%+v", s.Settings)
		}
		if len(s.Local) != 2 || !s.Local[0].NoDrafter || s.Local[1].Complete || s.Local[1].Fit == nil {
			t.Errorf("%+v", s.Local)
		}
		if len(s.Clients) != 1 || s.Clients[0].Command != "codex --profile sparkbar" || len(s.Requests) != 1 || s.Requests[0].Client != "codex" {
			t.Errorf("%+v %+v", s.Clients, s.Requests)
		}
		c.Close()
		api.mu.Lock()
		clear(api.routes)
		api.mu.Unlock()
		c.Open()
		synctest.Wait()
		if s := c.State(); s.Has != (Features{}) || !s.Loaded() {
			t.Errorf("%+v", s.Has)
		}
	})
}

// TestActions: each click causes exactly the calls that its title promises.
func TestActions(t *testing.T) {
	live(t, func(t *testing.T, c *Controller, api *fakeAPI, host *fakeHost, server *fakeServer, _ *atomic.Int32) {
		delete(api.routes, "POST /admin/requests/r1/cancel") // it has ended meanwhile
		api.routes["POST /admin/race"] = "event: arm_done\ndata: {\"label\":\"dspark\",\"tokens_per_sec\":60}\n\nevent: arm_done\ndata: {\"label\":\"baseline\",\"tokens_per_sec\":20}\n\nevent: verdict\ndata: {\"identical\":true,\"detail\":\"Every arm produced the same tokens.\"}\n\nevent: done\ndata: {}\n\n"
		c.Open()
		synctest.Wait()
		c.Close()
		host.take()
		for _, step := range []struct {
			id, arg string
			answer  int // of the dialog, -1 = there is none
			calls   []string
			host    []string
		}{
			{"request.stop", "r1", -1, []string{"POST /admin/requests/r1/cancel {}"}, nil},
			{"unload", "", 1, []string{"POST /admin/requests/r1/cancel {}", "POST /admin/unload {}"}, nil},
			{"unload", "", 2, nil, nil},
			{"model.load", "org/a", -1, []string{`POST /admin/load {"model":"org/a"}`}, nil},
			{"model.load", "org/b", 0, []string{`POST /admin/load {"model":"org/b","context_window":1024}`}, nil},
			{"model.trash", "org/a", 0, nil, []string{"trash /m/a"}},
			{"model.pin", "org/a", -1, []string{"GET /admin/settings", `PATCH /admin/settings {"model.pinned":["org/z","org/a"]}`}, nil},
			{"decoding.mode", "lookup", -1, []string{`POST /admin/load {"model":"org/tiny-chat-4bit","mode":"lookup"}`}, nil},
			{"decoding.cap", "auto", -1, []string{`POST /admin/load {"model":"org/tiny-chat-4bit","mode":"dspark","max_draft":"auto"}`}, nil},
			{"decoding.thinking", "", -1, []string{`POST /admin/load {"model":"org/tiny-chat-4bit","mode":"dspark","enable_thinking":false}`}, nil},
			{"address", "", -1, nil, []string{"copy http://127.0.0.1:8080"}},
			{"copy.anthropic", "", -1, nil, []string{"copy http://127.0.0.1:8080"}},
			{"race", "", 0, []string{`POST /admin/race {"prompt":"Count from one to thirty in words.","max_tokens":120}`}, nil},
			{"check", "", 1, []string{"GET /doctor"}, []string{"open lab/machine"}},
			{"login", "", -1, []string{`PATCH /admin/settings {"login.enabled":true}`}, []string{"login true"}},
			{"dashboard", "", -1, nil, []string{"open "}},
			{"lan", "", 0, nil, nil},
			{"lan", "", -1, nil, nil},
			{"quit", "", 1, nil, []string{"quit true"}},
		} {
			api.took()
			host.mu.Lock()
			host.asked = nil
			host.mu.Unlock()
			c.Click(step.id, step.arg)
			synctest.Wait()
			host.mu.Lock()
			asked := len(host.asked)
			host.mu.Unlock()
			if (asked == 1) != (step.answer >= 0) {
				t.Fatalf("%s %s asked %d questions", step.id, step.arg, asked)
			}
			if asked == 1 {
				c.Answer(step.answer)
				synctest.Wait()
			}
			if got := api.took(); !slices.Equal(got, step.calls) {
				t.Errorf("%s %s called %q, want %q", step.id, step.arg, got, step.calls)
			}
			if p := c.State().Problem; p != "" {
				t.Errorf("%s %s: %s", step.id, step.arg, p)
			}
			if got := host.take(); !slices.Equal(got, step.host) {
				t.Errorf("%s %s: the host did %q, want %q", step.id, step.arg, got, step.host)
			}
		}
		if st := server.State(); st.LAN != "" {
			t.Errorf("the switch for the network is %+v", st)
		}
		if it, _ := Menu(c.State()).Find("warning", ""); !it.Hidden {
			t.Errorf("a warning after clicks that all worked: %q", it.Title)
		}
	})
}

// TestCheck: the self-test of the kernels is part of what is told about a machine.
func TestCheck(t *testing.T) {
	for _, bad := range []error{nil, errors.New("a kernel is wrong")} {
		synctest.Test(t, func(t *testing.T) {
			api, host := newAPI(), &fakeHost{charge: -1}
			api.routes["GET /doctor"] = `{"ok":true,"findings":[]}`
			c := New(Options{Client: client.InProcess(api, ""), Host: host, SelfTest: func(context.Context) (string, error) { return "12 drills agree", bad }})
			if err := c.Do(t.Context(), Effect{Do: VerbCheck}); err != nil {
				t.Fatal(err)
			}
			d := host.asked[0]
			if bad == nil && (d.Title != "This machine is fine" || d.Text != "12 drills agree") || bad != nil && (d.Title != "This machine needs attention" || d.Text != bad.Error()) {
				t.Errorf("%+v", d)
			}
		})
	}
}

// TestWaitAndThen: the unload comes when the last request is done, not before.
func TestWaitAndThen(t *testing.T) {
	live(t, func(t *testing.T, c *Controller, api *fakeAPI, host *fakeHost, _ *fakeServer, _ *atomic.Int32) {
		api.events <- `request {"id":"r1","state":"running"}`
		synctest.Wait()
		c.Click("unload", "")
		synctest.Wait()
		c.Answer(0)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if calls := api.took(); len(calls) > 0 {
			t.Fatalf("called %q while a request runs", calls)
		}
		api.events <- `request {"id":"r1","state":"done"}`
		time.Sleep(time.Second)
		synctest.Wait()
		if calls := api.took(); !slices.Equal(calls, []string{"POST /admin/unload {}"}) {
			t.Errorf("%q", calls)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := host.take(); !slices.Equal(got, []string{"awake true", "awake false"}) {
			t.Errorf("the host did %q", got)
		}
	})
}

// TestFailures: a click that fails is told in the menu, a load that fails by a
// dialog, and dialogs come one after the other.
func TestFailures(t *testing.T) {
	live(t, func(t *testing.T, c *Controller, api *fakeAPI, host *fakeHost, _ *fakeServer, _ *atomic.Int32) {
		host.refuse = errors.New("the pasteboard is gone")
		c.Click("address", "")
		synctest.Wait()
		if it, _ := Menu(c.State()).Find("warning", ""); it.Title != "⚠︎ the pasteboard is gone" {
			t.Errorf("%q", it.Title)
		}
		host.refuse = nil
		c.Click("address", "")
		synctest.Wait()
		if it, _ := Menu(c.State()).Find("warning", ""); !it.Hidden {
			t.Errorf("%q stays", it.Title)
		}
		delete(api.routes, "POST /admin/load")
		c.Click("decoding.mode", "lookup")
		c.Apply(BadSettings{"c.yaml", 1, "no"})
		synctest.Wait()
		c.Answer(-1)
		synctest.Wait()
		var ids []string
		host.mu.Lock()
		for _, d := range host.asked {
			ids = append(ids, d.ID)
		}
		host.mu.Unlock()
		slices.Sort(ids)
		if !slices.Equal(ids, []string{"D10", "D3"}) {
			t.Errorf("asked %q", ids)
		}
	})
}

// TestLostAndFound: the menu says when the server is gone and when it is back,
// and measures the speed of a download from its progress.
func TestLostAndFound(t *testing.T) {
	live(t, func(t *testing.T, c *Controller, api *fakeAPI, host *fakeHost, _ *fakeServer, _ *atomic.Int32) {
		api.mu.Lock()
		old := api.events
		api.events = make(chan string, 100)
		api.mu.Unlock()
		close(old)
		synctest.Wait()
		if s := c.State(); s.Phase() != Failed || Menu(s)[0].Title != "The server does not answer" {
			t.Errorf("%s %q", s.Phase(), Menu(s)[0].Title)
		}
		api.events <- "state " + strings.ReplaceAll(okBody, "\n", "")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s := c.State(); s.Phase() != Ready {
			t.Errorf("%s after the server came back", s.Phase())
		}
		for i := range 4 {
			b, _ := json.Marshal(map[string]any{"status": "loading", "download": map[string]any{"repo": "org/x", "bytes_done": i * 100e6, "bytes_total": 1000e6, "bytes_per_second": 50e6}})
			api.events <- "state " + string(b)
			synctest.Wait()
			time.Sleep(2 * time.Second)
		}
		if got := host.take(); !slices.Contains(got, "notify Server unreachable: The server does not answer") {
			t.Errorf("the host did %q", got)
		}
		if it, _ := Menu(c.State()).Find("progress", ""); it.Title != "Downloading x: 0.3 of 0.9 GB · 50.0 MB/s · 14 s" {
			t.Errorf("%q", it.Title)
		}
		api.events <- `state {"status":"loading","download":{"repo":"org/x","bytes_done":1000000000,"bytes_total":1000000000}}`
		api.events <- `state {"status":"loading","phase":"loading"}`
		api.events <- `state {"status":"no_model","error":"The file is broken. Fetch it again."}`
		synctest.Wait()
		if got := host.take(); !slices.Contains(got, "notify Download finished: x") || !slices.Contains(got, "notify Model did not load: The file is broken") {
			t.Errorf("the host did %q", got)
		}
	})
}

// TestAwake: the computer is kept awake as the settings say, never on a battery
// that is nearly empty, and the battery is looked at only while that matters.
func TestAwake(t *testing.T) {
	for _, c := range []struct {
		setting string
		charge  int
		want    string // while a request runs, and a minute after it
	}{
		{AwakeRequests, -1, "awake true, awake false"}, {AwakeRequests, 60, "awake true, awake false"}, {AwakeRequests, 19, ""},
		{AwakeNever, -1, ""}, {AwakeAlways, -1, "awake true"}, {AwakeAlways, 19, ""},
	} {
		live(t, func(t *testing.T, ctl *Controller, api *fakeAPI, host *fakeHost, _ *fakeServer, _ *atomic.Int32) {
			api.events <- `request {"id":"r1","state":"done"}` // that of the start
			time.Sleep(time.Minute)
			synctest.Wait()
			host.take()
			host.mu.Lock()
			host.charge = c.charge
			host.mu.Unlock()
			s := DefaultSettings()
			s.Awake = c.setting
			ctl.Apply(SettingsSeen(s))
			api.events <- `request {"id":"r1","state":"running"}`
			time.Sleep(time.Minute)
			api.events <- `request {"id":"r1","state":"done"}`
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := strings.Join(host.take(), ", "); got != c.want {
				t.Errorf("%s at %d %%: the host did %q, want %q", c.setting, c.charge, got, c.want)
			}
		})
	}
	live(t, func(t *testing.T, ctl *Controller, api *fakeAPI, host *fakeHost, _ *fakeServer, _ *atomic.Int32) {
		api.events <- `request {"id":"r1","state":"running"}`
		for _, charge := range []int{50, 10, -1} { // it runs down, then a cable is put in
			host.mu.Lock()
			host.charge = charge
			host.mu.Unlock()
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if got := strings.Join(host.take(), ", "); got != "awake true, awake false, awake true" {
			t.Errorf("the host did %q", got)
		}
	})
}

// TestPulse: while a model loads the icon moves twice a second, also with the
// menu closed, and stands still after it.
func TestPulse(t *testing.T) {
	live(t, func(t *testing.T, c *Controller, api *fakeAPI, _ *fakeHost, _ *fakeServer, changes *atomic.Int32) {
		api.events <- `state {"status":"loading","phase":"loading"}`
		synctest.Wait()
		changes.Store(0)
		seen := map[int]bool{}
		for range 12 {
			time.Sleep(pulse)
			synctest.Wait()
			title, _ := c.View()
			seen[title.Frame] = true
		}
		if len(seen) != PulseFrames || changes.Load() != 12 {
			t.Errorf("%d frames, %d changes in 6 s", len(seen), changes.Load())
		}
		api.events <- "state " + strings.ReplaceAll(okBody, "\n", "")
		time.Sleep(time.Minute) // the room for the text shrinks once
		synctest.Wait()
		changes.Store(0)
		time.Sleep(time.Hour)
		if changes.Load() != 0 {
			t.Errorf("%d changes after the load", changes.Load())
		}
	})
}

// TestNotices: each notification can be switched off.
func TestNotices(t *testing.T) {
	for _, all := range []bool{true, false} {
		live(t, func(t *testing.T, c *Controller, api *fakeAPI, host *fakeHost, server *fakeServer, _ *atomic.Int32) {
			s := DefaultSettings()
			s.Notices = Notices{all, all, all, all}
			c.Apply(SettingsSeen(s))
			api.events <- `state {"status":"loading","download":{"repo":"org/x","bytes_done":10,"bytes_total":10}}`
			api.events <- `state {"status":"loading","phase":"loading"}`
			api.events <- `state {"status":"no_model","error":"Broken."}`
			synctest.Wait()
			c.Apply(ServerSeen{Running: true, Port: 8484, Moved: true})
			c.Apply(Lost{"The server does not answer"})
			got := host.take()
			api.events <- `download {"id":"dl_1","model":"org/y","state":"downloading"}`
			api.events <- `download {"id":"dl_1","model":"org/y","state":"done"}`
			synctest.Wait()
			got = append(got, host.take()...)
			want := []string{}
			if all {
				want = []string{"notify Download finished: x", "notify Model did not load: Broken", "notify Another port: Sparkbar listens on port 8484 now", "notify Server unreachable: The server does not answer", "notify Download finished: y"}
			}
			got = slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "awake") })
			if !slices.Equal(got, want) {
				t.Errorf("switched on %v: the host did %q", all, got)
			}
		})
	}
}

// TestInstalled: clients are looked for among the programs of this machine, and
// a skipped version is remembered.
func TestInstalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, host := newAPI(), &fakeHost{charge: -1}
		api.routes["GET /admin/integrations"] = `{"integrations":[{"id":"aider","name":"Aider"},{"id":"openai-sdk","name":"OpenAI SDK"},{"id":"codex","name":"Codex"}]}`
		skipped := ""
		c := New(Options{Client: client.InProcess(api, ""), Host: host, Where: ServerState{Running: true, Port: 1}, Skip: func(v string) { skipped = v },
			Installed: func(p string) bool { return p == "codex" }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { c.Run(ctx); close(done) }()
		api.events <- "state " + strings.ReplaceAll(okBody, "\n", "")
		c.Open()
		synctest.Wait()
		connect, _ := Menu(c.State()).Find("connect", "")
		var titles []string
		for _, it := range connect.Items {
			if it.ID == "connect.open" {
				titles = append(titles, it.Title)
			}
		}
		if !slices.Equal(titles, []string{"Codex", "OpenAI SDK", "Aider (not installed)"}) {
			t.Errorf("%q", titles)
		}
		c.Apply(UpdateSeen{Version: "9.9", URL: "https://example.org"})
		c.Click("update", "")
		synctest.Wait()
		c.Answer(1)
		synctest.Wait()
		if skipped != "9.9" || c.State().Update != nil {
			t.Errorf("skipped %q, %+v is still offered", skipped, c.State().Update)
		}
		cancel()
		<-done
	})
}

// TestPressure: the title and the menu know of short memory and of what the
// guard did also while the menu is closed.
func TestPressure(t *testing.T) {
	live(t, func(t *testing.T, c *Controller, api *fakeAPI, _ *fakeHost, _ *fakeServer, _ *atomic.Int32) {
		api.events <- `pressure {"enabled":true,"level":"critical","last_shed":{"action":"emptied the prefix cache","freed_bytes":2147483648}}`
		synctest.Wait()
		title, tree := c.View()
		guard, _ := tree.Find("guard", "")
		if title.Text != "!" || guard.Title != "Memory guard: emptied the prefix cache, 2.0 GB given back" {
			t.Errorf("%+v %q", title, guard.Title)
		}
		api.events <- `pressure {"enabled":true,"level":"normal"}`
		synctest.Wait()
		if title, _ := c.View(); title.Text != "" {
			t.Errorf("%+v", title)
		}
	})
}
