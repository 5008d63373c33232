package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sparkbar/app/menubar"
	"sparkbar/engine/testhub"
	"sparkbar/resources"
)

// screen is a Host without one: it remembers what it was asked.
type screen struct {
	mu    sync.Mutex
	did   []string
	board string
	asked []menubar.Dialog
	login menubar.LoginItem
}

func (h *screen) note(f string, a ...any) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.did = append(h.did, fmt.Sprintf(f, a...))
	return nil
}

// has reports whether it was asked for something since the last call.
func (h *screen) has(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.Index(h.did, what)
	if i >= 0 {
		h.did = slices.Delete(h.did, i, i+1)
	}
	return i >= 0
}

func (h *screen) clipboard() string { h.mu.Lock(); defer h.mu.Unlock(); return h.board }

func (h *screen) Features() menubar.HostFeatures {
	return menubar.HostFeatures{Window: true, Reveal: true, Login: true, Quit: true}
}
func (h *screen) Copy(text string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.board = text
	return nil
}
func (h *screen) Open(s string) error      { return h.note("open %s", s) }
func (h *screen) Browse(url string) error  { return h.note("browse %s", url) }
func (h *screen) Reveal(path string) error { return h.note("reveal %s", path) }
func (h *screen) Trash(path string) error {
	_ = h.note("trash %s", path)
	return os.Rename(path, filepath.Join(filepath.Dir(filepath.Dir(path)), "trash"))
}
func (h *screen) Log() error               { return h.note("log") }
func (h *screen) Edit(path string) error   { return h.note("edit %s", path) }
func (h *screen) Notify(a, b string) error { return h.note("notify %s: %s", a, b) }
func (h *screen) LoginSettings() error     { return h.note("login settings") }
func (h *screen) Awake(on bool)            { _ = h.note("awake %v", on) }
func (h *screen) Battery() int             { return -1 }
func (h *screen) Quit(now bool)            { _ = h.note("quit %v", now) }
func (h *screen) Login() menubar.LoginItem { h.mu.Lock(); defer h.mu.Unlock(); return h.login }
func (h *screen) SetLogin(on bool) error {
	h.mu.Lock()
	h.login = menubar.LoginOff
	if on {
		h.login = menubar.LoginOn
	}
	h.mu.Unlock()
	return h.note("login %v", on)
}
func (h *screen) Ask(d menubar.Dialog) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, d)
}

// deskApp is the app with the real engine and server, without a screen.
type deskApp struct {
	*desktop
	t    testing.TB
	host *screen
	logs *lockedBuffer
	dir  string // settings, journal
	hub  string // cache of models
}

// startDesk runs the app; prepare may write into its folders before.
func startDesk(t testing.TB, args []string, prepare func(dir, hub string)) *deskApp {
	t.Helper()
	x := &deskApp{t: t, host: &screen{login: menubar.LoginOff}, logs: &lockedBuffer{}, dir: t.TempDir(), hub: t.TempDir()}
	t.Setenv("SPARKBAR_CONFIG", filepath.Join(x.dir, "config.yaml"))
	t.Setenv("HF_HUB_CACHE", x.hub)
	t.Setenv("HOME", t.TempDir())
	if prepare != nil {
		prepare(x.dir, x.hub)
	}
	cmd := serveCommand()
	if err := cmd.ParseFlags(append([]string{"--port", "0", "--log-level", "debug"}, args...)); err != nil {
		t.Fatal(err)
	}
	v, err := bind(cmd)
	if err != nil && v == nil {
		t.Fatal(err)
	}
	x.desktop, err = newDesktop(v, x.dir, x.logs, func() (string, error) { return "key-of-the-keychain", nil })
	if err != nil {
		t.Fatal(err)
	}
	x.hosts = func() ([]string, error) { return []string{"127.0.0.2"}, nil }
	ctl := x.menu(x.host, func() {})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { x.run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		x.quit(true)
		<-done
	})
	ctl.Open()
	return x
}

// until waits; what is limited is a test that hangs, not speed.
func (x *deskApp) until(what string, ok func() bool) {
	x.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s := x.ctl.State()
			x.host.mu.Lock()
			defer x.host.mu.Unlock()
			x.t.Fatalf("never: %s\n%s, problem %q, the host did %q and was asked %+v\n%s", what, s.Phase(), s.Problem, x.host.did, x.host.asked, x.log())
		}
	}
}

// log is the log without what the menu asks all the time.
func (x *deskApp) log() string {
	var b strings.Builder
	for line := range strings.Lines(x.logs.String()) {
		if !strings.Contains(line, "by=menu") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func (x *deskApp) phase(p menubar.Phase) {
	x.t.Helper()
	x.until(string(p), func() bool { s := x.ctl.State(); return s.Phase() == p })
}

func (x *deskApp) item(id, arg string) menubar.Item {
	_, tree := x.ctl.View()
	it, ok := tree.Find(id, arg)
	if !ok {
		return menubar.Item{Hidden: true}
	}
	return it
}

// click clicks an item as soon as it can be.
func (x *deskApp) click(id, arg string) {
	x.t.Helper()
	x.until(id+" "+arg+" can be clicked", func() bool { it := x.item(id, arg); return !it.Hidden && it.Enabled })
	x.ctl.Click(id, arg)
}

// dialog waits for a dialog, and answers it with the button of a title.
func (x *deskApp) dialog(title, button string) menubar.Dialog {
	x.t.Helper()
	var d menubar.Dialog
	x.until("the dialog "+title, func() bool {
		x.host.mu.Lock()
		defer x.host.mu.Unlock()
		i := slices.IndexFunc(x.host.asked, func(d menubar.Dialog) bool { return strings.Contains(d.Title, title) })
		if i >= 0 {
			d = x.host.asked[i]
			x.host.asked = slices.Delete(x.host.asked, i, i+1)
		}
		return i >= 0
	})
	i := slices.IndexFunc(d.Buttons, func(b menubar.Button) bool { return b.Title == button })
	if i < 0 && button != "" {
		x.t.Fatalf("%q has no button %q: %+v", title, button, d.Buttons)
	}
	x.ctl.Answer(i)
	return d
}

// calls are the requests that the menu itself made and that change something,
// since the last call.
func (x *deskApp) calls() []string {
	x.logs.mu.Lock()
	text := x.logs.b.String()
	x.logs.b.Reset()
	x.logs.mu.Unlock()
	return menuCalls(text)
}

func menuCalls(log string) (list []string) {
	for line := range strings.Lines(log) {
		f := map[string]string{}
		for _, kv := range strings.Fields(line) {
			k, v, _ := strings.Cut(kv, "=")
			f[k] = v
		}
		if f["by"] == "menu" && f["msg"] == "request" && (f["method"] == "POST" || f["method"] == "PATCH" || f["path"] == "/doctor" && f["method"] == "GET") {
			list = append(list, f["method"]+" "+f["path"])
		}
	}
	return list
}

func (x *deskApp) address() string { return localURL(x.State().Port) }

func (x *deskApp) config() string {
	b, _ := os.ReadFile(filepath.Join(x.dir, "config.yaml")) // missing: nothing is set
	return string(b)
}

// putModel writes the demo under another name into a hub cache.
func putModel(t *testing.T, hub, repo string) string {
	t.Helper()
	target, _ := resources.Demo()
	dir := filepath.Join(hub, "models--"+strings.ReplaceAll(repo, "/", "--"))
	rev := "0123456789abcdef0123456789abcdef01234567"
	for name, b := range target {
		p := filepath.Join(dir, "snapshots", rev, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "refs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "refs", "main"), []byte(rev), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestFirstRun: the first run shows the welcome and loads the demo; the second
// does not welcome anybody, and loads without asking, since the first ended well.
func TestFirstRun(t *testing.T) {
	x := startDesk(t, nil, nil)
	x.phase(menubar.Ready)
	x.until("the welcome", func() bool { return x.host.has("open welcome") })
	if x.ctl.State().Health.Model != demoID {
		t.Errorf("loaded is %s", x.ctl.State().Health.Model)
	}
	x.until("the journal knows the model", func() bool { e := x.book.entries(); return e.Running && e.Welcomed && e.Model == demoID })
	x.quit(false)
	if e := x.book.entries(); e.Running || e.Model != "" {
		t.Errorf("after a clean end: %+v", e)
	}
	y := startDesk(t, nil, func(dir, _ string) {
		b, err := os.ReadFile(filepath.Join(x.dir, "journal.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "journal.json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	y.phase(menubar.Ready)
	if y.host.has("open welcome") || len(y.host.asked) > 0 {
		t.Errorf("the second run: %q %+v", y.host.did, y.host.asked)
	}
}

// TestAfterCrash: after an unexpected end the model that was loaded is asked
// about and not loaded; after two crashes in a row "not now" is the default.
func TestAfterCrash(t *testing.T) {
	for crashes, first := range map[int]string{0: "Load", 1: "Not Now"} {
		x := startDesk(t, nil, func(dir, _ string) {
			e := journalEntries{Running: true, Model: "demo", Welcomed: true}
			for range crashes {
				e.Crashes = append(e.Crashes, time.Now().Add(-time.Minute))
			}
			b, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "journal.json"), b, 0o600); err != nil {
				t.Fatal(err)
			}
		})
		x.phase(menubar.NoModel)
		d := x.dialog("quit unexpectedly last time", "Load")
		if d.ID != "D12" || d.Buttons[0].Title != first || !strings.Contains(d.Text, "Load demo now?") {
			t.Errorf("%d crashes before: %+v", crashes, d)
		}
		x.phase(menubar.Ready)
	}
}

// TestJournal: crashes count for ten minutes; a damaged journal is an empty one
// and no first run.
func TestJournal(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	j := openJournal(dir)
	if crash, first, err := j.begin(now); crash != nil || !first || err != nil {
		t.Fatalf("%v %v %v", crash, first, err)
	}
	for i, c := range []struct {
		after time.Duration
		model string
		want  *menubar.Crashed
	}{{time.Minute, "a", &menubar.Crashed{Model: "a", Recent: 1}}, {time.Minute, "b", &menubar.Crashed{Model: "b", Recent: 2}}, {time.Hour, "c", &menubar.Crashed{Model: "c", Recent: 1}}, {time.Minute, "", nil}} {
		if err := j.model(c.model); err != nil {
			t.Fatal(err)
		}
		now = now.Add(c.after)
		j = openJournal(dir)
		crash, first, err := j.begin(now)
		if err != nil || first || (crash == nil) != (c.want == nil) || crash != nil && *crash != *c.want {
			t.Errorf("life %d: %+v %v %v, want %+v", i, crash, first, err, c.want)
		}
	}
	if err := os.WriteFile(j.path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if crash, first, err := openJournal(dir).begin(now); crash != nil || first || err != nil {
		t.Errorf("damaged: %+v %v %v", crash, first, err)
	}
}

// TestSettingsLive: edits of the settings file reach the menu and the login item
// within moments; one with an error is asked about with its line and changes
// nothing; what the user has switched off in the system stays off.
func TestSettingsLive(t *testing.T) {
	x := startDesk(t, []string{"--no-model"}, nil)
	x.phase(menubar.NoModel)
	write := func(text string) {
		if err := writeWhole(filepath.Join(x.dir, "config.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("menubar: {text: memory, notices: [load]}\npower: {prevent_sleep: never}\nquit: {grace: 3}\nlogin: {enabled: true}\n")
	x.until("the settings", func() bool {
		s := x.ctl.State().Settings
		return s.Text == "memory" && s.Awake == menubar.AwakeNever && s.Notices == menubar.Notices{Load: true}
	})
	if x.grace() != 3*time.Second {
		t.Errorf("the grace is %s", x.grace())
	}
	x.until("the login item", func() bool { return x.host.has("login true") && x.item("login", "").Check == menubar.Checked })
	x.host.mu.Lock()
	x.host.login = menubar.LoginOff // in the system's own settings
	x.host.mu.Unlock()
	write("menubar: {text: none}\nlogin: {enabled: true}\n")
	x.until("the settings", func() bool { return x.ctl.State().Settings.Text == "none" })
	if x.host.has("login true") {
		t.Error("the login item was switched on again")
	}
	write("menubar:\n  text: shout\n")
	d := x.dialog("The settings file has an error", "Open File")
	if d.ID != "D10" || !strings.Contains(d.Text, "config.yaml:2: menubar.text must be one of") {
		t.Errorf("%+v", d)
	}
	x.until("the file is opened", func() bool { return x.host.has("edit " + filepath.Join(x.dir, "config.yaml")) })
	if s := x.ctl.State().Settings; s.Text != "none" {
		t.Errorf("an error changed the settings: %+v", s)
	}
}

// TestAutostartAndNetwork: a server that is not to start with the app does not,
// and loads nothing; one that is open to the network in the settings is open
// again, with the key that it had, and closing it takes both out of the file.
func TestAutostartAndNetwork(t *testing.T) {
	if ln, err := net.Listen("tcp", "127.0.0.2:0"); err != nil {
		t.Skip("this system has no second loopback address")
	} else {
		ln.Close()
	}
	put := func(text string) func(dir, _ string) {
		return func(dir, _ string) {
			if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	x := startDesk(t, nil, put("server: {autostart: false}\n"))
	x.phase(menubar.Stopped)
	x.click("server", "")
	x.phase(menubar.NoModel)

	y := startDesk(t, []string{"--no-model"}, put("server: {host: 0.0.0.0, api_key: 'keychain:'}\n"))
	y.until("the network", func() bool { return y.ctl.State().Server.LAN != "" })
	s := y.ctl.State().Server
	if !s.Protected || answerOf(s.LAN+"/v1/models", "") != 401 || answerOf(s.LAN+"/v1/models", "key-of-the-keychain") != 200 || answerOf(y.address()+"/v1/models", "") != 200 {
		t.Errorf("%+v", s)
	}
	y.click("lan", "")
	y.until("the network is off", func() bool { return y.ctl.State().Server.LAN == "" })
	y.until("the file", func() bool { return !strings.Contains(y.config(), "host") && !strings.Contains(y.config(), "keychain") })
}

// TestSleep: downloads pause before a sleep and go on after it; a listener that
// is gone is opened again on its port.
func TestSleep(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	hub := slowHub(t, "me/big", release)
	t.Setenv("HF_ENDPOINT", hub)
	x := startDesk(t, []string{"--no-model"}, nil)
	x.phase(menubar.NoModel)
	state := func() string {
		list, err := x.api.Downloads(t.Context())
		if err != nil || len(list) == 0 {
			return fmt.Sprint(err)
		}
		return list[0].State
	}
	if _, err := x.api.StartDownload(t.Context(), "me/big", false); err != nil {
		t.Fatal(err)
	}
	x.until("the download", func() bool { return state() == "downloading" })
	x.until("no sleep meanwhile", func() bool { return x.host.has("awake true") })
	x.sleeps()
	x.until("a pause", func() bool { return state() == "paused" })
	port := x.State().Port
	x.listeners.mu.Lock()
	group := x.local
	x.listeners.mu.Unlock()
	group.end() // as when the system has taken the socket
	if answerOf(x.address()+"/health", "") != 0 {
		t.Fatal("the listener is still there")
	}
	x.woke()
	if x.State().Port != port || answerOf(x.address()+"/health", "") != 200 {
		t.Errorf("after the sleep: %+v", x.State())
	}
	x.until("the download goes on", func() bool { return state() == "downloading" })
}

// slowHub is a hub with one repository, whose weights stop after the first part
// until release is closed.
func slowHub(t *testing.T, repo string, release <-chan struct{}) string {
	t.Helper()
	target, _ := resources.Demo()
	files := map[string][]byte{}
	for name, b := range target {
		files[name] = b
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		testhub.Serve(w, r, repo, files, func(name string) bool {
			if !strings.HasSuffix(name, ".safetensors") {
				return true
			}
			b := files[name]
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			w.Write(b[:len(b)/4])
			w.(http.Flusher).Flush()
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return false
		})
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestDashboardAddress: the window's address holds a key where the server asks
// for one, and only there; the server takes it.
func TestDashboardAddress(t *testing.T) {
	x := startDesk(t, []string{"--no-model", "--api-key", "secret"}, nil)
	x.phase(menubar.NoModel)
	if got := x.dashboard("lab/race", false); !strings.HasPrefix(got, x.address()+"/#/lab/race?key=") || strings.Contains(got, "secret") || answerOf(x.address()+"/v1/models", strings.TrimPrefix(got, x.address()+"/#/lab/race?key=")) != 200 {
		t.Errorf("%s", got)
	}
	if answerOf(x.address()+"/v1/models", "") != 401 || answerOf(x.address()+"/v1/models", "secret") != 200 {
		t.Error("the server does not ask for its key")
	}
	x.keys = nil
	for want, got := range map[string]string{"/": x.dashboard("", false), "/#/chat": x.dashboard("chat", false), "/#/?menubar=hidden": x.dashboard("", true)} {
		if got != x.address()+want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestGrace: a quit lets a running answer go on for the grace and no longer.
func TestGrace(t *testing.T) {
	x := startDesk(t, nil, func(dir, _ string) {
		if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte("quit: {grace: 0}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	x.phase(menubar.Ready)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for { // until one is broken off; the demo is quick
			resp, err := http.Post(x.address()+"/v1/chat/completions", "application/json", strings.NewReader(endless))
			if err != nil {
				return
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return
			}
		}
	}()
	x.phase(menubar.Generating)
	x.quit(false)
	<-ended
	if answerOf(x.address()+"/health", "") != 0 {
		t.Error("the server lives")
	}
}

// endless is a request that goes on until the context is full.
const endless = `{"messages":[{"role":"user","content":"Count."}],"max_tokens":1500,"logit_bias":{"0":-100,"2":-100}}`

func TestLogFile(t *testing.T) {
	dir := t.TempDir()
	l, err := openLog(dir, 100)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		if _, err := fmt.Fprintf(l, "line %02d 0123456789\n", i); err != nil { // 19 bytes
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, name := range []string{"sparkbar.log.2", "sparkbar.log.1", "sparkbar.log"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || len(b) == 0 || len(b) > 100 || !bytes.HasPrefix(b, []byte("line ")) || !bytes.HasSuffix(b, []byte("\n")) {
			t.Errorf("%s: %v %q", name, err, b)
		}
		all = append(all, b...)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != logFiles || !bytes.HasSuffix(all, []byte("line 39 0123456789\n")) || bytes.Count(all, []byte("\n")) != 15 {
		t.Errorf("%q %q", names, all)
	}
	if l, err = openLog(dir, 100); err != nil || l.size != 95 {
		t.Errorf("opened again: %v %+v", err, l)
	}
	l.Close()
}

func TestUpdate(t *testing.T) {
	answer, code := "", 200
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(code)
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(s.Close)
	answer = `[{"tag_name":"v1.10.0","body":"faster","html_url":"https://example.org/r"},{"tag_name":"v1.9.0"},{"tag_name":"v2.0.0","draft":true},
	 {"tag_name":"v3.0.0","prerelease":true},{"tag_name":"v4.0.0-rc1"},{"tag_name":"nightly"}]`
	for have, want := range map[string]string{"1.9.1": "1.10.0", "v1.2": "1.10.0", "1.10.0": "", "1.10": "", "2.0.0": "", "0.1.0-dev+abc": "1.10.0"} {
		u, err := latest(t.Context(), s.Client(), s.URL, have)
		if err != nil || (u == nil) != (want == "") || u != nil && (u.Version != want || u.URL != "https://example.org/r" || u.Notes != "faster") {
			t.Errorf("with %s: %+v %v", have, u, err)
		}
	}
	answer = `{"message":"limit"}`
	if u, err := latest(t.Context(), s.Client(), s.URL, "1"); err == nil {
		t.Errorf("%+v", u)
	}
	if code = 500; true {
		if u, err := latest(t.Context(), s.Client(), s.URL, "1"); err == nil {
			t.Errorf("%+v", u)
		}
	}
}

// TestUpdateIsOff: nobody is asked unless the user wants it, then once a day,
// and a skipped version is not offered again.
func TestUpdateIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		old, transport := releases, http.DefaultClient.Transport
		defer func() { releases, http.DefaultClient.Transport = old, transport }()
		releases = "https://updates.example/list"
		http.DefaultClient.Transport = answering(func(*http.Request) string {
			asked.Add(1)
			return `[{"tag_name":"v9.9.9","html_url":"https://example.org"}]`
		})
		dir := t.TempDir()
		t.Setenv("SPARKBAR_CONFIG", filepath.Join(dir, "config.yaml"))
		file, err := openSettings()
		if err != nil {
			t.Fatal(err)
		}
		host := &screen{}
		d := &desktop{v: &config{file: file}, log: slog.New(slog.DiscardHandler), book: openJournal(dir), host: host}
		d.ctl = menubar.New(menubar.Options{Host: host})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { d.updates(ctx); close(done) }()
		time.Sleep(72 * time.Hour)
		if asked.Load() != 0 {
			t.Errorf("asked %d times", asked.Load())
		}
		if err := file.write(map[string]any{"update.check": true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(72 * time.Hour)
		if n := asked.Load(); n < 3 || n > 4 || d.ctl.State().Update == nil || d.ctl.State().Update.Version != "9.9.9" {
			t.Errorf("asked %d times in three days, offered %+v", n, d.ctl.State().Update)
		}
		synctest.Wait() // a look may be under way at this very time
		d.ctl.Apply(menubar.UpdateSeen{})
		d.note(func(e *journalEntries) { e.Skipped = "9.9.9" })
		time.Sleep(48 * time.Hour)
		if d.ctl.State().Update != nil {
			t.Error("a skipped version is offered again")
		}
		cancel()
		<-done
	})
}

type answering func(*http.Request) string

func (f answering) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	fmt.Fprint(w, f(r))
	return w.Result(), nil
}

func TestInstalledPrograms(t *testing.T) {
	home, bin := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+"relative")
	for path, mode := range map[string]os.FileMode{filepath.Join(bin, "here"): 0o755, filepath.Join(bin, "plain"): 0o644, filepath.Join(home, ".local/bin/there"): 0o755, filepath.Join(home, "Applications/Some.app/x"): 0o644} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(bin, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"here": true, "there": true, "plain": false, "folder": false, "none-such": false, "Some.app": true, "Other.app": false} {
		if got := installed(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
