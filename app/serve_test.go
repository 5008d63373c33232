package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sparkbar/engine/testhub"
	"sparkbar/engine/testneed"
	"sparkbar/engine/tokenizer"
)

// server is `sparkbar serve` running in this process.
type server struct {
	t    *testing.T
	base string
	logs *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startServe runs serve with the given arguments on a free port and waits
// until it listens.
func startServe(t *testing.T, args ...string) *server {
	t.Helper()
	return startAnyServe(t, append([]string{"--port", "0"}, args...)...)
}

// configOf is what serve goes by with the given arguments.
func configOf(t *testing.T, args ...string) *config {
	t.Helper()
	cmd := serveCommand()
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	v, err := bind(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// startAnyServe is startServe on whatever port arguments and settings say.
func startAnyServe(t *testing.T, args ...string) *server {
	t.Helper()
	v := configOf(t, args...)
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	s := &server{t: t, logs: &lockedBuffer{}}
	done := make(chan error, 1)
	go func() {
		err := serve(ctx, v, in, s.logs)
		in.CloseWithError(io.EOF)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve ended with %v", err)
		}
	})
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("no listening line: %v %v", err, <-done)
	}
	s.base = strings.Fields(strings.TrimPrefix(line, "listening on "))[0]
	go io.Copy(io.Discard, lines)
	return s
}

// call sends a request and decodes the answer.
func (s *server) call(method, path, body string) (int, map[string]any) {
	s.t.Helper()
	req, err := http.NewRequest(method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var v map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, v
}

// ready waits until the model answers; events, not time, decide.
func (s *server) ready() {
	s.t.Helper()
	resp, err := http.Get(s.base + "/admin/events")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if _, h := s.call("GET", "/health", ""); h["status"] == "ok" {
			return
		} else if h["error"] != nil {
			s.t.Fatalf("the load failed: %v", h["error"])
		}
	}
	s.t.Fatal("the event stream ended before the model was ready")
}

func field(v any, path ...any) any {
	for _, p := range path {
		switch k := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[k]
		case int:
			l, _ := v.([]any)
			if k >= len(l) {
				return nil
			}
			v = l[k]
		}
	}
	return v
}

// TestReadmeCurl: the README's curl example, taken from the README, is answered
// by the server with its defaults.
func TestReadmeCurl(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.Index(readme, []byte("    curl http://127.0.0.1:8080/v1/chat/completions"))
	j := bytes.Index(readme[i:], []byte("\n\n"))
	if i < 0 || j < 0 {
		t.Fatal("README.md has no curl example")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		testneed.Missing(t, "curl", "install it")
	}
	s := startServe(t)
	s.ready()
	script := strings.ReplaceAll(string(readme[i:i+j]), "http://127.0.0.1:8080", s.base)
	out, err := exec.Command("sh", "-c", strings.Replace(script, "curl ", "curl -sS ", 1)).Output()
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, _ := field(v, "choices", 0, "message", "content").(string)
	if !strings.Contains(text, "drafter") || field(v, "x_mlx_dspark", "mode") != "dspark" {
		t.Errorf("the answer is %s", out)
	}
	// How deep drafts are is measured at the load: beside other work, one may be best.
	if n, _ := field(v, "x_mlx_dspark", "accept_len").(float64); n < 1 {
		t.Errorf("accept_len %v", n)
	}
}

// TestListensBeforeReading: the server answers "loading" while not a byte of
// the model has been read: the hub that has it takes its time.
func TestListensBeforeReading(t *testing.T) {
	answer := make(chan struct{})
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		testhub.Serve(w, r, "org/another", nil, nil)
	}))
	t.Cleanup(hub.Close)
	t.Setenv("HF_ENDPOINT", hub.URL)
	t.Setenv("HF_HUB_CACHE", filepath.Join(t.TempDir(), "hub"))
	t.Setenv("HF_HUB_OFFLINE", "")
	s := startServe(t, "--model", "org/slow")
	code, h := s.call("GET", "/health", "")
	if code != 200 || h["status"] != "loading" && h["status"] != "no_model" {
		t.Fatalf("%d %v", code, h)
	}
	for h["status"] != "loading" { // the load begins after the listener stands
		_, h = s.call("GET", "/health", "")
	}
	code, e := s.call("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}]}`)
	if code != 503 || !strings.Contains(fmt.Sprint(field(e, "error", "message")), "loading") {
		t.Errorf("%d %v", code, e)
	}
	close(answer)
	for h["status"] == "loading" {
		_, h = s.call("GET", "/health", "")
	}
	if h["status"] != "no_model" || !strings.Contains(fmt.Sprint(h["error"]), "org/slow") {
		t.Errorf("after the load failed: %v", h)
	}
}

// TestBadModels: a model that cannot be loaded is an error that names what is
// wrong and what to do; the server lives and the model before it answers on.
func TestBadModels(t *testing.T) {
	root := t.TempDir()
	tiny := "../engine/testdata/models/llama/smollm2"
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(tiny, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	folder := func(name string, config, weights []byte) string {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for n, b := range map[string][]byte{"config.json": config, "model.safetensors": weights} {
			if b != nil {
				if err := os.WriteFile(filepath.Join(dir, n), b, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		tok, err := os.ReadFile("../engine/testdata/speculation/checkpoints/target_qwen3/tokenizer.json")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), tok, 0o644); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	config, weights := read("config.json"), read("model.safetensors")
	edit := func(key string, value any) []byte {
		var m map[string]any
		if err := json.Unmarshal(config, &m); err != nil {
			t.Fatal(err)
		}
		m[key] = value
		b, _ := json.Marshal(m)
		return b
	}
	s := startServe(t, "--model-root", root)
	s.ready()
	cases := []struct {
		name, model string
		status      int
		want        []string // parts of the message
	}{
		{"no such path", filepath.Join(root, "nothing-here"), 404, []string{"nothing-here", "check the path"}},
		{"cut off", folder("cut", config, weights[:len(weights)/2]), 400, []string{"model.safetensors", "cut off", "download"}},
		{"no config", folder("bare", nil, weights), 400, []string{"config.json", "download"}},
		{"wrong shape", folder("shape", edit("intermediate_size", 999), weights), 400, []string{"mlp.gate_proj.weight", "999", "config.json"}},
		{"missing layer", folder("layers", edit("num_hidden_layers", 4), weights), 400, []string{"model.layers.3."}},
		{"left over", folder("less", edit("num_hidden_layers", 2), weights), 400, []string{"model.layers.2.", "config.json"}},
		{"unknown type", folder("type", edit("model_type", "llamma"), weights), 400, []string{`"llamma"`, `"llama"`}},
		{"no type", folder("notype", edit("model_type", nil), weights), 400, []string{"model_type"}},
		{"bad heads", folder("heads", edit("num_key_value_heads", 3), weights), 400, []string{"heads"}},
		{"huge", folder("huge", edit("num_hidden_layers", 1<<40), weights), 400, []string{"num_hidden_layers"}},
		{"outside", t.TempDir(), 400, []string{"--model-root"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			body, _ := json.Marshal(map[string]any{"model": c.model})
			code, v := s.call("POST", "/admin/load", string(body))
			message := fmt.Sprint(field(v, "error", "message"))
			if code != c.status {
				t.Errorf("status %d, wants %d: %s", code, c.status, message)
			}
			for _, part := range c.want {
				if !strings.Contains(message, part) {
					t.Errorf("message %q does not say %q", message, part)
				}
			}
			code, v = s.call("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":4}`)
			if code != 200 {
				t.Errorf("the demo does not answer any more: %d %v", code, v)
			}
		})
	}
}

// smolCase is a case of the real model's golden.
type smolCase struct {
	Messages  json.RawMessage
	Prompt    string  `json:"prompt_text"`
	PromptIDs []int32 `json:"prompt_ids"`
	Greedy    []int32
	Top5      [][][2]float64 `json:"top5_logprobs"`
}

// sure is how many tokens come before the first near tie: margins below 0.05
// may fall the other way in another arithmetic.
func (c smolCase) sure() int {
	for k, top := range c.Top5 {
		if top[0][1]-top[1][1] < 0.05 {
			return k
		}
	}
	return len(c.Greedy)
}

// TestSmolLM2: a real model, in both of its formats, answers over HTTP with the
// golden's greedy tokens up to the first near tie, and lookup needs fewer
// forwards than tokens on text that repeats itself.
func TestSmolLM2(t *testing.T) {
	dir := testneed.SmolLM2(t)
	text, err := os.ReadFile("../engine/testdata/smollm2/smollm2.json")
	if err != nil {
		t.Fatal(err)
	}
	var g struct{ Cases []smolCase }
	if err := json.Unmarshal(text, &g); err != nil || len(g.Cases) < 10 {
		t.Fatal(len(g.Cases), err)
	}
	if testing.Short() {
		g.Cases = g.Cases[:2]
	}
	tok, err := tokenizer.Load(filepath.Join(dir, "mlx"))
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"mlx", "model.gguf"} {
		t.Run(model, func(t *testing.T) {
			s := startServe(t, "--model", filepath.Join(dir, model), "--exact", "--mode", "baseline")
			s.ready()
			checked := 0
			for i, c := range g.Cases {
				path, body := "/v1/chat/completions", fmt.Sprintf(`{"messages":%s,"max_tokens":%d,"temperature":0,"logprobs":true,"top_logprobs":5}`, c.Messages, len(c.Greedy))
				if c.Messages == nil {
					prompt, _ := json.Marshal(c.Prompt)
					path, body = "/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":%d,"temperature":0,"logprobs":5}`, prompt, len(c.Greedy))
				}
				code, v := s.call("POST", path, body)
				if code != 200 {
					t.Fatalf("case %d: %d %v", i, code, v)
				}
				if n, _ := field(v, "usage", "prompt_tokens").(float64); int(n) != len(c.PromptIDs) {
					t.Errorf("case %d: %v prompt tokens, wants %d", i, n, len(c.PromptIDs))
				}
				got, _ := field(v, "choices", 0, "message", "content").(string)
				if c.Messages == nil {
					got, _ = field(v, "choices", 0, "text").(string)
				}
				sure := c.sure()
				ids := c.Greedy[:sure]
				if sure == len(c.Greedy) && sure > 0 && tok.IsSpecial(ids[sure-1]) {
					ids = ids[:sure-1] // the end token is not part of the text
				}
				want := tok.Decode(ids, false)
				if !strings.HasPrefix(got, want) || sure == len(c.Greedy) && got != want {
					t.Errorf("case %d: %q\nwants %q", i, got, want)
				}
				checked += sure
				compareProbs(t, i, c, v)
			}
			t.Logf("%d tokens of %d cases compared", checked, len(g.Cases))
		})
	}
	t.Run("lookup", func(t *testing.T) {
		s := startServe(t, "--model", filepath.Join(dir, "mlx"), "--exact", "--mode", "lookup")
		s.ready()
		_, v := s.call("POST", "/v1/chat/completions", `{"temperature":0,"max_tokens":60,"messages":[{"role":"user","content":"Repeat this text exactly, nothing else: The quick brown fox jumps over the lazy dog while the old cat watches from the warm window sill."}]}`)
		tokens, _ := field(v, "usage", "completion_tokens").(float64)
		forwards, _ := field(v, "x_mlx_dspark", "target_forwards").(float64)
		if tokens == 0 || forwards >= tokens {
			t.Errorf("%v forwards for %v tokens: %v", forwards, tokens, field(v, "choices", 0, "message", "content"))
		}
		t.Logf("%v target forwards for %v tokens", forwards, tokens)
	})
}

// compareProbs compares log-probabilities up to the first near tie. The golden's
// weights were rounded to float16 when they were dequantized (the scales are
// float16, and so is the result), ours were not: that moves
// log-probabilities by a few hundredths.
func compareProbs(t *testing.T, i int, c smolCase, v any) {
	t.Helper()
	list, _ := field(v, "choices", 0, "logprobs", "content").([]any)
	if c.Messages == nil {
		list, _ = field(v, "choices", 0, "logprobs", "token_logprobs").([]any)
	}
	for k := range c.sure() {
		if k >= len(list) {
			t.Errorf("case %d: %d log-probabilities, wants %d", i, len(list), c.sure())
			return
		}
		got, isNumber := list[k].(float64)
		if !isNumber {
			got, _ = field(list[k], "logprob").(float64)
			top, _ := field(list[k], "top_logprobs").([]any)
			var tops []float64
			for _, x := range top {
				lp, _ := field(x, "logprob").(float64)
				tops = append(tops, lp)
			}
			if len(tops) != 5 || !slices.IsSortedFunc(tops, func(a, b float64) int { return cmp.Compare(b, a) }) {
				t.Errorf("case %d token %d: alternatives %v", i, k, tops)
			}
		}
		if math.Abs(got-c.Top5[k][0][1]) > 0.05 {
			t.Errorf("case %d token %d: log-probability %.4f, golden %.4f", i, k, got, c.Top5[k][0][1])
			return
		}
	}
}

// TestShutdown: a signal ends the server cleanly while an answer is being
// written, and the answer is finished.
func TestShutdown(t *testing.T) {
	v := configOf(t, "--port", "0", "--api-key", "secret")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out, in := io.Pipe()
	logs := &lockedBuffer{}
	done := make(chan error, 1)
	go func() { done <- serve(ctx, v, in, logs) }()
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	base := strings.Fields(strings.TrimPrefix(line, "listening on "))[0]
	for !strings.HasPrefix(line, "loaded") {
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	go io.Copy(io.Discard, lines)
	req, _ := http.NewRequest("POST", base+"/v1/chat/completions", strings.NewReader(`{"stream":true,"messages":[{"role":"user","content":"Tell me a story"}]}`))
	req.Header.Set("Authorization", "Bearer secret")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cancel()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(body, []byte("[DONE]")) {
		t.Errorf("the answer broke off: %v %s", err, body)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the server does not end")
	}
	if strings.Contains(logs.String(), "secret") || strings.Contains(logs.String(), "story") {
		t.Errorf("the log tells secrets: %s", logs)
	}
}

// TestStartWarnings: what is wrong with how a server was started stands in its log, and
// a file without a key does not make one that needs none.
func TestStartWarnings(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	t.Setenv("SPARKBAR_CONFIG", file)
	if err := os.WriteFile(file, []byte("server: {api_keys: secret}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServe(t, "--no-model", "--host", "0.0.0.0", "--prefix-cache-dir", filepath.Join(file, "below"))
	for _, want := range []string{"server.api_keys", "config get", "without a key", "--api-key", "not kept on disk", "--prefix-cache-disk 0"} {
		if !strings.Contains(s.logs.String(), want) {
			t.Errorf("the log does not say %q: %s", want, s.logs)
		}
	}
	if err := os.WriteFile(file, []byte(" \n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := command1(t, "", "serve", "--no-model", "--port", "0", "--api-key-file", file); err == nil || !strings.Contains(err.Error(), "holds no key") {
		t.Errorf("a file without a key: %v", err)
	}
}
