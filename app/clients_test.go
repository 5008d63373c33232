package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"sparkbar/engine/testneed"
)

// TestLaunchEnvironment: opencode and pi learn of the server from their
// environment alone.
func TestLaunchEnvironment(t *testing.T) {
	settingsFile(t, "")
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache)
	s := startServe(t, "--backend", "reference", "--no-warmup", "--mode", "baseline", "--model", "demo", "--api-key", "sec'ret")
	s.up()
	text, err := command1(t, "", "opencode", "--url", s.base, "--api-key", "sec'ret", "--print-env", "--", "run", "hi there")
	if err != nil || !strings.HasSuffix(text, "\nopencode 'run' 'hi there'\n") {
		t.Errorf("%v %s", err, text)
	}
	out, err := exec.Command("sh", "-c", strings.Split(text, "\nopencode")[0]+"\nprintf %s \"$OPENCODE_CONFIG_CONTENT\"").Output()
	var config map[string]any
	if jerr := json.Unmarshal(out, &config); err != nil || jerr != nil || config["model"] != "mlx-dspark/demo" || field(config, "provider", "mlx-dspark", "options", "apiKey") != "sec'ret" ||
		field(config, "provider", "mlx-dspark", "options", "baseURL") != s.base+"/v1" || field(config, "provider", "mlx-dspark", "models", "demo", "limit", "context") != 2048.0 {
		t.Errorf("%v %v %s", err, jerr, out)
	}
	text, err = command1(t, "", "pi", "--url", s.base, "--api-key", "sec'ret", "--print-env", "--", "-p", "hi")
	if err != nil || !strings.Contains(text, "export SPARKBAR_PI='") || !strings.Contains(text, "'--provider' 'mlx-dspark' '--model' 'demo' '-p' 'hi'\n") {
		t.Errorf("%v %s", err, text)
	}
	if found, _ := filepath.Glob(filepath.Join(cache, "*", "sparkbar", "pi-provider.js")); len(found) != 1 && runtime.GOOS != "linux" {
		t.Errorf("%q", found)
	}
	if err := filepath.WalkDir(cache, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), "sec'ret") {
				t.Errorf("%s holds the key", path)
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if text, err = command1(t, "", "claude", "--url", s.base, "--api-key", "sec'ret", "--print-env"); err != nil || strings.Contains(text, "\nclaude") {
		t.Errorf("%v %s", err, text)
	}
}

// scripted answers generations with a word and passes everything else on to a
// real server: the demo model is too small for what agents send.
func scripted(t *testing.T, to string) (base string, asked func() []string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var list []string
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u); r.Out.Host = r.In.Host }}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := ""
		switch r.URL.Path {
		case "/v1/chat/completions":
			for _, chunk := range []string{`{"role":"assistant","content":"launched well"}`, `{}`} {
				finish := "null"
				if chunk == "{}" {
					finish = `"stop"`
				}
				body += fmt.Sprintf("data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"demo\",\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%s}]}\n\n", chunk, finish)
			}
			body += "data: [DONE]\n\n"
		case "/v1/messages":
			for _, event := range []string{`{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"demo","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}`,
				`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"launched well"}}`,
				`{"type":"content_block_stop","index":0}`, `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":2}}`, `{"type":"message_stop"}`} {
				var e struct{ Type string }
				if err := json.Unmarshal([]byte(event), &e); err != nil {
					t.Error(err)
				}
				body += "event: " + e.Type + "\ndata: " + event + "\n\n"
			}
		default:
			proxy.ServeHTTP(w, r)
			return
		}
		text, _ := io.ReadAll(r.Body)
		mu.Lock()
		list = append(list, r.URL.Path+" "+r.Header.Get("Authorization")+r.Header.Get("X-Api-Key")+" "+string(text))
		mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string { mu.Lock(); defer mu.Unlock(); return list }
}

// TestLaunchedClients starts the real programs with nothing but what the
// launchers print; they ask this server, with its key and model, and show its
// answer.
func TestLaunchedClients(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	settingsFile(t, "")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	s := startServe(t, "--backend", "reference", "--no-warmup", "--mode", "baseline", "--model", "demo", "--api-key", "secret", "--context-window", "65536") // agents compact without end in less
	s.up()
	base, asked := scripted(t, s.base)
	for _, c := range []struct {
		name, path, only string
		args             []string
		env              []string
		route            string
	}{
		{"opencode", "opencode-linux-x64-baseline/bin/opencode", "linux/amd64", []string{"run", "greet me"},
			[]string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1"}, "/v1/chat/completions"},
		{"pi", ".bin/pi", "", []string{"--no-session", "-p", "greet me"}, []string{"PI_OFFLINE=1", "PI_TELEMETRY=0", "PI_SKIP_VERSION_CHECK=1"}, "/v1/messages"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.only != "" && c.only != runtime.GOOS+"/"+runtime.GOARCH {
				t.Skipf("%s is tested on %s", c.name, c.only)
			}
			program, err := filepath.Abs(filepath.Join("..", "build", "clients", "node_modules", c.path))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(program); err != nil {
				testneed.Missing(t, c.name, "run `make setup`")
			}
			text, err := command1(t, "", append([]string{c.name, "--url", base, "--api-key", "secret", "--print-env", "--"}, c.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			home := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", text)
			cmd.WaitDelay = time.Minute
			cmd.Dir = home
			bin := filepath.Join(home, "bin")
			if err := os.Mkdir(bin, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(program, filepath.Join(bin, c.name)); err != nil {
				t.Fatal(err)
			}
			cmd.Env = append([]string{"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + home, "SHELL=/bin/sh", "TERM=dumb", "DO_NOT_TRACK=1", "NO_PROXY=127.0.0.1,localhost",
				"no_proxy=127.0.0.1,localhost", "HTTP_PROXY=http://127.0.0.1:9", "HTTPS_PROXY=http://127.0.0.1:9"}, c.env...)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "launched well") {
				t.Errorf("%v, asked %q\n%s", err, asked(), out)
			}
			ok := false
			for _, a := range asked() {
				ok = ok || strings.HasPrefix(a, c.route+" ") && strings.Contains(strings.SplitN(a, "{", 2)[0], "secret") && strings.Contains(a, `"model":"demo"`)
			}
			if !ok {
				t.Errorf("asked %q", asked())
			}
		})
	}
}

// TestCompletion: the shells get a script, and words where words are known.
func TestCompletion(t *testing.T) {
	folder := t.TempDir()
	put(t, filepath.Join(folder, "mine"))
	t.Setenv("SPARKBAR_MODEL_DIRS", folder)
	settingsFile(t, "")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, err := command1(t, "", "completion", shell); err != nil || !strings.Contains(out, "sparkbar") {
			t.Errorf("%s: %v", shell, err)
		}
	}
	for line, want := range map[string][]string{
		"show ":                      {"mine\t", "demo"},
		"rm ":                        {},
		"pull ":                      {"mlx-community/Qwen3-4B-8bit\t~8 GB"},
		"integrations ":              {"codex", "opencode", "continue"},
		"serve --mode ":              {"dspark", "lookup"},
		"serve --model ":             {"mine", "demo"},
		"serve --compat ":            {"mlx-lm"},
		"serve --activations ":       {"f32", "f16", "bf16"},
		"serve --identity ":          {"strict", "relaxed"},
		"config set ":                {"server.port\tport to listen on"},
		"config set ui.detail ":      {"simple", "developer"},
		"config set memory.guard ":   {"true", "false"},
		"config set server.host ":    {},
		"config get model.idle_un":   {"model.idle_unload"},
		"":                           {"opencode", "pi", "claude", "codex", "completion"},
		"serve --reasoning-effort x": {"high"},
	} {
		words := append([]string{"__complete"}, strings.Split(line, " ")...)
		out, err := command1(t, "", words...)
		for _, w := range want {
			if err != nil || !strings.Contains(out, w) {
				t.Errorf("%q: %q is missing in %q %v", line, w, out, err)
			}
		}
		if len(want) == 0 && !strings.HasPrefix(out, ":") {
			t.Errorf("%q offers %q", line, out)
		}
	}
}
