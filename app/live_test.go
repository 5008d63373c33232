package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/resources"
)

// freePort is a port that nobody listens on now, nor soon: it is none of those
// that systems give to whoever asks for any.
func freePort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := 10_000 + rand.IntN(20_000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// settingsFile makes a settings file of its own for a test and returns what
// replaces its text.
func settingsFile(t *testing.T, text string) (edit func(text string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	t.Setenv("SPARKBAR_CONFIG", path)
	edit = func(text string) {
		t.Helper()
		if err := writeWhole(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit(text)
	return edit
}

// up waits until the model answers; it needs no key.
func (s *server) up() {
	s.t.Helper()
	for {
		switch _, h := s.call("GET", "/health", ""); {
		case h["status"] == "ok":
			return
		case h["error"] != nil:
			s.t.Fatalf("the load failed: %v", h["error"])
		}
		time.Sleep(time.Millisecond)
	}
}

// until waits for something that an edit of the settings brings about; an edit
// that is refused meanwhile ends the test.
func (s *server) until(done func() bool) {
	s.t.Helper()
	const refusal = "the settings are not taken over"
	before := strings.Count(s.logs.String(), refusal)
	for !done() {
		if log := s.logs.String(); strings.Count(log, refusal) > before {
			s.t.Fatal(log)
		}
		time.Sleep(time.Millisecond)
	}
}

// logged waits until the log has a text.
func (s *server) logged(text string) {
	s.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !strings.Contains(s.logs.String(), text); { // only against a test that hangs
		if time.Now().After(end) {
			s.t.Fatalf("%q is not in the log:\n%s", text, s.logs.String())
		}
		time.Sleep(time.Millisecond)
	}
}

// asked asks a server for its models with a key; 0 = nobody answers there.
func asked(t *testing.T, host string, port int, key string) int {
	t.Helper()
	req, err := http.NewRequest("GET", "http://"+net.JoinHostPort(host, fmt.Sprint(port))+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", key)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil { // nobody listens, or just stopped to
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestRebind: a running server takes over address, port and keys from the
// settings file; a stream that runs is not disturbed, and an edit that cannot be
// carried out changes nothing.
func TestRebind(t *testing.T) {
	first, second := freePort(t), freePort(t)
	edit := settingsFile(t, fmt.Sprintf("server: {port: %d, api_key: one}\n", first))
	s := startAnyServe(t, "--backend", "reference", "--no-warmup", "--mode", "baseline", "--model", "demo")
	s.up()
	if got := asked(t, "127.0.0.1", first, "one"); got != 200 {
		t.Fatal(got)
	}
	req, err := http.NewRequest("POST", fmt.Sprintf("http://127.0.0.1:%d/v1/chat/completions", first), strings.NewReader(`{"stream":true,"max_tokens":400,"logit_bias":{"0":-100},"messages":[{"role":"user","content":"Tell me a story"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "one")
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(err, resp)
	}
	defer resp.Body.Close()
	stream := bufio.NewReader(resp.Body)
	if line, err := stream.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
		t.Fatal(line, err)
	}

	edit(fmt.Sprintf("server: {port: %d, api_key: two}\n", second))
	s.until(func() bool { return asked(t, "127.0.0.1", second, "two") == 200 })
	if got := asked(t, "127.0.0.1", second, "one"); got != 401 {
		t.Errorf("the old key: %d", got)
	}
	s.until(func() bool { return asked(t, "127.0.0.1", first, "two") == 0 }) // nobody is at the old port
	rest, err := io.ReadAll(stream)
	if text := string(rest); err != nil || !strings.HasSuffix(text, "data: [DONE]\n\n") || !strings.Contains(text, `"finish_reason":"`) {
		t.Errorf("the stream ended with %v: …%s", err, text[max(0, len(text)-300):])
	}

	// What cannot be carried out leaves everything as it is.
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	taken := held.Addr().(*net.TCPAddr).Port
	edit(fmt.Sprintf("server: {port: %d, api_key: three}\n", taken))
	s.logged(fmt.Sprintf("cannot listen on 127.0.0.1:%d", taken))
	if log := s.logs.String(); !strings.Contains(log, fmt.Sprintf("(process %d) uses the port", os.Getpid())) {
		t.Errorf("who holds the port is not told: %s", log)
	}
	edit("server:\n  api_key: four\n  port: many\n")
	s.logged("config.yaml:3: server.port must be a whole number")
	if got := []int{asked(t, "127.0.0.1", second, "two"), asked(t, "127.0.0.1", second, "three"), asked(t, "127.0.0.1", second, "four")}; fmt.Sprint(got) != "[200 401 401]" {
		t.Errorf("after bad edits: %v", got)
	}

	// All addresses, then a list, on the same port.
	for _, host := range []string{`"0.0.0.0"`, `[127.0.0.1, 127.0.0.2]`, `"127.0.0.1"`} {
		key := fmt.Sprintf("key-%d", len(host))
		edit(fmt.Sprintf("server: {host: %s, port: %d, api_key: %s}\n", host, second, key))
		s.until(func() bool { return asked(t, "127.0.0.1", second, key) == 200 })
		s.until(func() bool { return (asked(t, "127.0.0.2", second, key) == 200) == (host != `"127.0.0.1"`) })
	}
}

// TestDoor: a move that fails leaves the door open where it was, also when it
// had to close first.
func TestDoor(t *testing.T) {
	d := newDoor()
	defer d.Close()
	if err := d.move([]address{{host: "127.0.0.1"}}, 0); err != nil {
		t.Fatal(err)
	}
	port := d.Addr().(*net.TCPAddr).Port
	knock := func(host string) bool {
		c, err := net.Dial("tcp", net.JoinHostPort(host, fmt.Sprint(port)))
		if err != nil {
			return false
		}
		defer c.Close()
		in, err := d.Accept()
		if err != nil {
			t.Fatal(err)
		}
		in.Close()
		return true
	}
	other, err := net.Listen("tcp", net.JoinHostPort("127.0.0.3", fmt.Sprint(port)))
	if err != nil {
		t.Skipf("a second loopback address cannot be used here: %v", err)
	}
	if err := d.move([]address{{host: "0.0.0.0"}}, port); err == nil || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("over another listener: %v", err)
	}
	if err := d.move([]address{{host: "127.0.0.1"}, {host: "127.0.0.3"}}, port); err == nil {
		t.Error("an address that is taken")
	}
	if !knock("127.0.0.1") {
		t.Error("a failed move closed the door")
	}
	other.Close()
	if err := d.move([]address{{host: "127.0.0.1"}, {host: "127.0.0.3"}, {host: "192.0.2.1", optional: true}}, port); err != nil || !knock("127.0.0.1") || !knock("127.0.0.3") {
		t.Errorf("two addresses: %v", err)
	}
	if err := d.move([]address{{host: "192.0.2.1"}}, port); err == nil || !knock("127.0.0.3") {
		t.Errorf("an address of another machine: %v", err)
	}
	d.Close()
	if _, err := d.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := d.move([]address{{host: "127.0.0.1"}}, 0); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestSettingsReload: a setting of the model loads it again; one that a flag
// decides does not, and a name and a pin hold at once.
func TestSettingsReload(t *testing.T) {
	edit := settingsFile(t, "decode: {mode: baseline}\n")
	s := startServe(t, "--backend", "reference", "--no-warmup", "--context-window", "512", "--model", "demo")
	s.ready()
	health := func(key string) any { _, h := s.call("GET", "/health", ""); return h[key] }
	if got := fmt.Sprintln(health("mode"), health("context_window")); got != "baseline 512\n" {
		t.Fatal(got)
	}
	edit("decode: {mode: lookup}\nmodel: {context_window: 256, pinned: [demo]}\nmodels: {demo: {alias: small}}\n")
	s.logged("loaded again")
	if got := fmt.Sprintln(health("mode"), health("context_window")); got != "lookup 512\n" {
		t.Error(got)
	}
	if status, v := s.call("POST", "/v1/chat/completions", `{"model":"small","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`); status != 200 {
		t.Error(status, v)
	}
	edit("decode: {mode: lookup}\nmodels: {demo: {alias: small, mode: baseline}}\nserver: {compat: mlx-lm}\n")
	s.until(func() bool { return health("mode") == "baseline" })
	s.logged("later=server.compat") // at the next start
}

// TestModelLast: what was loaded last starts the next time, unless the settings
// say otherwise or it has gone.
func TestModelLast(t *testing.T) {
	edit := settingsFile(t, "")
	root := t.TempDir()
	target, _ := resources.Demo()
	dir := filepath.Join(root, "mine")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range target {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"--backend", "reference", "--no-warmup", "--mode", "baseline", "--model-dirs", root, "--model-root", root}
	loaded := func(args ...string) string {
		t.Helper()
		s := startServe(t, args...)
		s.ready()
		_, h := s.call("GET", "/health", "")
		return fmt.Sprint(h["target"])
	}
	t.Run("load", func(t *testing.T) {
		s := startServe(t, args...)
		s.ready()
		if status, v := s.call("POST", "/admin/load", `{"model":"mine"}`); status != 200 {
			t.Fatal(status, v)
		}
		for {
			_, v := s.call("GET", "/admin/settings", "")
			if field(v, "values", "model.last") == "mine" {
				break
			}
		}
	})
	if got := loaded(args...); got != "mine" {
		t.Errorf("the next start loads %s", got)
	}
	if got := loaded(append(args, "--model", "demo")...); got != "demo" {
		t.Errorf("a flag: %s", got)
	}
	edit("model: {last: mine, autoload: demo}\n")
	if got := loaded(args...); got != "demo" {
		t.Errorf("autoload demo: %s", got)
	}
	edit("model: {last: mine, autoload: last}\n")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if got := loaded(args...); got != "demo" {
		t.Errorf("the last one has gone: %s", got)
	}
}

// TestFlagsOverModelSettings: what a flag says holds for every model.
func TestFlagsOverModelSettings(t *testing.T) {
	settingsFile(t, "models: {a: {context_window: 100, kv_bits: 8, mode: lookup, max_draft: 3, thinking: false, idle_unload: 5}}\n")
	t.Setenv("MLX_DSPARK_MAX_DRAFT", "2")
	v := configOf(t, "--context-window", "200", "--mode", "baseline")
	r := v.modelRequests()("a")
	if got, _ := json.Marshal(r); r.ContextWindow != nil || r.Mode != "" || r.MaxDraft != nil || *r.KVBits != 8 || *r.EnableThinking {
		t.Errorf("%s", got)
	}
	locked := map[string]string{"model.context_window": "--context-window", "decode.mode": "--mode", "decode.max_draft": "MLX_DSPARK_MAX_DRAFT"}
	got := v.Locked()
	maps.DeleteFunc(got, func(_, by string) bool { return strings.HasPrefix(by, "SPARKBAR_") }) // of the tests' own environment
	if !maps.Equal(got, locked) {
		t.Errorf("locked are %v, want %v", got, locked)
	}
	if l := live(v, engine.LoadRequest{}); l.IdleUnloads["a"] != 5*time.Minute {
		t.Errorf("%+v", l)
	}
}
