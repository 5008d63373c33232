package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/httpapi"
)

func TestParseSettings(t *testing.T) {
	values, unknown, err := parseSettings("f", []byte(`# mine
server:
  port: 9000
  allowed_hosts: [a.example, b.example]
model.dirs: ["/x"] # not nested: means nothing
decode: {max_draft: auto, confidence_threshold: 0.5}
generate: {temperature: 1, thinking: false}
models:
  "org/a.b-c": {context_window: 4096, mode: lookup}
other: {deep: 1}
`))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"server.port": 9000, "decode.max_draft": "auto", "decode.confidence_threshold": 0.5, "generate.temperature": 1.0,
		"generate.thinking": false, "models.org/a.b-c.context_window": 4096, "models.org/a.b-c.mode": "lookup"} {
		if values[key] != want {
			t.Errorf("%s is %#v, want %#v", key, values[key], want)
		}
	}
	if !slices.Equal(values["server.allowed_hosts"].([]string), []string{"a.example", "b.example"}) || !slices.Contains(unknown, "other.deep") {
		t.Errorf("%v, unknown %v", values, unknown)
	}
	for _, c := range []struct {
		text, want string
	}{
		{"server:\n  port: 99999\n", "f:2: server.port must be a whole number from 0 to 65535"},
		{"server:\n  port: \"8080\"\n", "f:2: server.port must be"},
		{"\n\nui: {detail: lots}\n", "f:3: ui.detail must be one of simple, advanced, developer"},
		{"a: [1\n", "f:1: "},
		{"- a\n", "f:1: the file must hold keys"},
		{"server: {port: {x: 1}}\n", "f:1: server.port: must be a plain value"},
		{"a: &x 1\nserver: {port: *x}\n", "f:1: a: anchors and aliases"},
		{"models: {m: {mode: fast}}\n", "f:1: models.m.mode must be one of auto"},
		{"model: {dirs: [[1]]}\n", "f:1: model.dirs: lists hold plain values only"},
	} {
		_, _, err := parseSettings("f", []byte(c.text))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte("server: {port: 1}\nmodels: {\"a.b\": {mode: auto}}"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? {a: 1}\n: b"))
	f.Fuzz(func(t *testing.T, text []byte) {
		values, _, err := parseSettings("f", text)
		if err != nil {
			return
		}
		s := &settings{path: filepath.Join(t.TempDir(), "c.yaml")}
		if err := os.WriteFile(s.path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.load(); err != nil || len(*s.values.Load()) != len(values) {
			t.Fatalf("%v, %d values, then %d", err, len(values), len(*s.values.Load()))
		}
		s.flags()
		modelRequest(*s.values.Load(), "a.b")
	})
}

// TestChangeSettings: a change keeps comments and what nobody knows; a bad one
// changes nothing.
func TestChangeSettings(t *testing.T) {
	s := &settings{path: filepath.Join(t.TempDir(), "deep", "config.yaml")}
	if err := s.load(); err != nil {
		t.Fatal(err)
	}
	change := func(text string) error {
		var m map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		return s.Change(m)
	}
	if err := change(`{"server.port":9000,"model.pinned":["org/a"],"models.org/a.b.context_window":8192}`); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	text, _ := os.ReadFile(s.path)
	if err := os.WriteFile(s.path, []byte("# by hand\n"+strings.Replace(string(text), "9000", "9000 # mine", 1)+"strange: {thing: [1]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := change(`{"server.port":9001,"ui.detail":"simple"}`); err != nil {
		t.Fatal(err)
	}
	text, _ = os.ReadFile(s.path)
	for _, want := range []string{"# by hand", "port: 9001 # mine", "strange:", "detail: simple"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is gone:\n%s", want, text)
		}
	}
	if r := modelRequest(*s.values.Load(), "org/a.b"); r.ContextWindow == nil || *r.ContextWindow != 8192 {
		t.Errorf("%+v", r)
	}
	for _, bad := range []string{`{"server.port":"x","ui.detail":"advanced"}`, `{"no.such":1}`, `{"models.a.nothing":1}`, `{"server":1}`} {
		var se *httpapi.SettingError
		if err := change(bad); !errors.As(err, &se) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if now, _ := os.ReadFile(s.path); string(now) != string(text) {
		t.Error("a bad change wrote something")
	}
	if err := change(`{"models.org/a.b.context_window":null,"ui.detail":null}`); err != nil {
		t.Fatal(err)
	}
	if v := s.Values(); v["ui.detail"] != nil || len(v) != 2 {
		t.Errorf("%v", v)
	}
	if err := change(`{"server.api_key":"secret"}`); err != nil || s.Values()["server.api_key"] == "secret" {
		t.Errorf("%v %v", err, s.Values())
	}
	// A file that is broken by hand is not overwritten.
	if err := os.WriteFile(s.path, []byte("server: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := change(`{"ui.detail":"simple"}`); err == nil || !strings.Contains(err.Error(), "correct that first") {
		t.Errorf("%v", err)
	}
}

// TestOrder: flag over environment over file over default.
func TestOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	t.Setenv("SPARKBAR_CONFIG", path)
	text := "server: {port: 1111, queue_limit: 7}\nmodel: {switch: false, idle_unload: 1.5, dirs: [/a, /b]}\ngenerate: {thinking: false, temperature: 0.25}\ndecode: {max_draft: 5}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MLX_DSPARK_PORT", "2222")
	v := configOf(t, "--queue-limit", "9")
	if v.GetInt("port") != 2222 || v.GetInt("queue-limit") != 9 || !v.GetBool("no-model-switch") || v.GetDuration("idle-unload").Seconds() != 90 || v.GetInt("max-tokens-cap") != 32768 {
		t.Errorf("port %d, queue %d, switch off %v, idle %s", v.GetInt("port"), v.GetInt("queue-limit"), v.GetBool("no-model-switch"), v.GetDuration("idle-unload"))
	}
	load, err := loadRequest(v)
	if err != nil || *load.MaxDraft != 5 || *load.EnableThinking || !*load.MemoryGuard {
		t.Errorf("%+v %v", load, err)
	}
	if l := live(v, load); l.Temperature == nil || *l.Temperature != 0.25 || l.TopP != nil {
		t.Errorf("%+v", l)
	}
	if !slices.Equal(v.folders("model-dirs"), []string{"/a", "/b"}) {
		t.Errorf("%q", v.folders("model-dirs"))
	}
	t.Setenv("MLX_DSPARK_MODEL_DIRS", "/c:/d")
	t.Setenv("SPARKBAR_ALLOW_HOST", "x.example,y.example")
	if v, err = bind(serveCommand()); err != nil || !slices.Equal(v.folders("model-dirs"), []string{"/c", "/d"}) || len(v.list("allow-host")) != 2 {
		t.Errorf("%q %q %v", v.folders("model-dirs"), v.list("allow-host"), err)
	}
	if err := os.WriteFile(path, []byte("server: {port: no}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bind(serveCommand()); err == nil || !strings.Contains(err.Error(), "config.yaml:1: server.port must be") {
		t.Errorf("%v", err)
	}
	if after, _ := os.ReadFile(path); string(after) != "server: {port: no}\n" {
		t.Error("the file was written")
	}
}

// TestSchema: every setting that stands for a flag names one that exists.
func TestSchema(t *testing.T) {
	f := serveCommand().Flags()
	for _, s := range schema {
		name := s.flag
		switch name {
		case "model-switch", "thinking":
			name = "no-" + name
		}
		if name != "" && f.Lookup(name) == nil {
			t.Errorf("%s stands for --%s, which does not exist", s.key, name)
		}
	}
}

// TestWatch: an edit is noticed; a bad one leaves the values as they were.
func TestWatch(t *testing.T) {
	s := &settings{path: filepath.Join(t.TempDir(), "config.yaml")}
	if err := s.load(); err != nil {
		t.Fatal(err)
	}
	seen := make(chan error, 8)
	if err := s.watch(t.Context(), func(err error) { seen <- err }); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		text string
		bad  bool
		port any
	}{{"server: {port: 1}", false, 1}, {"server: {port: x}", true, 1}, {"server: {port: 2}", false, 2}} {
		if err := writeWhole(s.path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := <-seen; (err != nil) != c.bad {
			t.Errorf("%d: %v", i, err)
		}
		if got := (*s.values.Load())["server.port"]; got != c.port {
			t.Errorf("%d: port %v", i, got)
		}
	}
}

// TestConfigCommand: set, get, path and unset.
func TestConfigCommand(t *testing.T) {
	t.Setenv("SPARKBAR_CONFIG", filepath.Join(t.TempDir(), "c.yaml"))
	run := func(args ...string) (string, error) {
		var out strings.Builder
		cmd := root()
		cmd.SetArgs(append([]string{"config"}, args...))
		cmd.SetOut(&out)
		err := cmd.ExecuteContext(context.Background())
		return out.String(), err
	}
	for _, c := range []struct{ args, out, bad string }{
		{"path", "c.yaml\n", ""}, {"set server.port 8181", "", ""}, {"get server.port", "8181\n", ""}, {"set decode.max_draft 5", "", ""}, {"get decode.max_draft", "5\n", ""},
		{"set ui.detail simple", "", ""}, {"set model.pinned [\"a\",\"b\"]", "", ""}, {"get model.pinned", "[\"a\",\"b\"]\n", ""}, {"set server.port many", "", "whole number"},
		{"set nothing 1", "", "no setting"}, {"get nothing", "", "no setting"}, {"unset server.port", "", ""}, {"get server.port", "", "default"}, {"get", "ui.detail", ""},
		{"set models.org/x.y.kv_bits 8", "", ""}, {"get models.org/x.y.kv_bits", "8\n", ""}, {"set model.autoload 4", "", ""}, {"get model.autoload", "4\n", ""},
	} {
		out, err := run(strings.Fields(c.args)...)
		if (err != nil) != (c.bad != "") || err != nil && !strings.Contains(err.Error(), c.bad) || !strings.Contains(out, c.out) {
			t.Errorf("%s: %q %v", c.args, out, err)
		}
	}
}

// TestServeFollowsSettings: a change over HTTP is in the file and holds for the
// next request.
func TestServeFollowsSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	t.Setenv("SPARKBAR_CONFIG", path)
	s := startServe(t, "--backend", "reference", "--no-warmup", "--mode", "baseline")
	s.ready()
	if status, v := s.call("PATCH", "/admin/settings", `{"generate.max_tokens":2}`); status != 200 || field(v, "values", "generate.max_tokens") != 2.0 {
		t.Fatal(status, v)
	}
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "max_tokens: 2") {
		t.Errorf("%s %v", text, err)
	}
	for {
		_, v := s.call("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Tell me a story"}]}`)
		if field(v, "usage", "completion_tokens") == 2.0 {
			break
		}
	}
	if status, v := s.call("PATCH", "/admin/settings", `{"generate.max_tokens":"many"}`); status != 400 || !strings.Contains(field(v, "error", "message").(string), "'generate.max_tokens' must be") {
		t.Error(status, v)
	}
	if status, v := s.call("GET", "/doctor", ""); status != 200 || field(v, "findings", 0, "fix") == nil {
		t.Error(status, v)
	}
	if status, v := s.call("GET", "/machine", ""); status != 200 || field(v, "bandwidth", "gb_s") != 10.0 || field(v, "roofline", "at_zero", "ceiling_tps") == nil {
		t.Error(status, v)
	}
}

// TestKeys: a key given once is one key, whatever it holds; repeated flags and the lines
// of a file are several.
func TestKeys(t *testing.T) {
	dir := t.TempDir()
	config, file := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "keys")
	t.Setenv("SPARKBAR_CONFIG", config)
	if err := os.WriteFile(file, []byte("x,1\n\ny\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(want []string, args ...string) {
		t.Helper()
		v := configOf(t, args...)
		got, err := keys(v, func() (string, error) { return "", errors.New("no Keychain here") })
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q %v, want %q", args, got, err, want)
		}
	}
	check(nil)
	check([]string{"a,b"}, "--api-key", "a,b")
	check([]string{`a,"b`, "[c]"}, "--api-key", `a,"b`, "--api-key=[c]")
	check([]string{"a,b", "x,1", "y"}, "--api-key", "a,b", "--api-key-file", file)
	if err := os.WriteFile(config, []byte("server: {api_key: \"s,t\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check([]string{"s,t"})
	t.Setenv("SPARKBAR_API_KEY", "e,f")
	check([]string{"e,f"})
	check([]string{"a"}, "--api-key", "a")
	check([]string{"a"}, "--api-key", " ", "--api-key", "a")
	for value, open := range map[string]bool{"": true, "  ": true, "k": false} { // in the network without a key
		v := configOf(t, "--host", "0.0.0.0", "--api-key", value)
		told := slices.ContainsFunc(findings(v, nil), func(f engine.Finding) bool { return f.Code == "open" })
		if told != open {
			t.Errorf("with the key %q an open door is told: %v", value, told)
		}
	}
}
