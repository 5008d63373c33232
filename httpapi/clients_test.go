package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/telemetry"
	"sparkbar/engine/testneed"
	"sparkbar/httpapi"
	"sparkbar/httpapi/internal/enginetest"
	"sparkbar/resources"
)

const clientKey = "sk-local-test"

// libraries are the public client libraries, by the script that drives them.
var libraries = []struct{ script, dialect string }{
	{"openai_sdk.py", "openai"}, {"openai_sdk.mjs", "openai"}, {"anthropic_sdk.py", "anthropic"}, {"anthropic_sdk.mjs", "anthropic"},
}

// onlyIn are checks of what only one language's library has.
var onlyIn = map[string]string{"chat_run_tools": "openai_sdk.mjs"}

// wanted reads what every library must make of the answers, whatever its
// language. The values of "demo", which asks a real engine, are comparisons
// between two ways to ask the same.
func wanted(t *testing.T, dialect string, check func(name string) bool) map[string]any {
	t.Helper()
	b, err := os.ReadFile("testdata/clients/sdk/want.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]map[string]any
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	want := all[dialect]
	maps.DeleteFunc(want, func(name string, _ any) bool { return !check(name) })
	if len(want) == 0 {
		t.Fatalf("want.json has nothing about %s", dialect)
	}
	return want
}

func isDemo(name string) bool { return name == "demo" }

func isScripted(name string) bool { return !isDemo(name) }

// TestClientLibraries points real client libraries at the server, with an
// engine that replays scripts.
func TestClientLibraries(t *testing.T) {
	folder := clientFolder(t)
	for _, lib := range libraries {
		t.Run(lib.script, func(t *testing.T) {
			t.Parallel()
			e := enginetest.New(enginetest.Script{})
			blocked := make(chan struct{}, 8)
			e.Answer(scripts(blocked))
			mux := http.NewServeMux()
			mux.Handle("/", httpapi.New(e, httpapi.Options{Keys: []string{clientKey}}))
			mux.HandleFunc("GET /blocked", func(_ http.ResponseWriter, r *http.Request) { // returns once a generation hangs
				select {
				case <-blocked:
				case <-r.Context().Done():
				}
			})
			var gone atomic.Int32
			mux.HandleFunc("GET /cancelled", func(_ http.ResponseWriter, r *http.Request) { // returns once another generation was cancelled
				for n := int(gone.Add(1)); e.Cancelled() < n && r.Context().Err() == nil; {
					time.Sleep(5 * time.Millisecond)
				}
			})
			want := wanted(t, lib.dialect, isScripted)
			runClient(t, folder, lib.script, listen(t, mux), "scripted", want)
			aborts := 0
			for name := range want {
				if strings.HasPrefix(name, "abort_") {
					aborts++
				}
			}
			if aborts < 2 || e.Cancelled() != aborts {
				t.Errorf("%d generations were cancelled, in %d checks a client went away", e.Cancelled(), aborts)
			}
		})
	}
}

// TestClientLibrariesDemo does so with the demo model.
func TestClientLibrariesDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	folder := clientFolder(t)
	target, drafter := resources.Demo()
	e := engine.New(engine.Options{Version: "test", Builtins: map[string]engine.Builtin{"demo": {Target: target, Drafter: drafter}},
		Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }})
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if _, err := e.LoadFrom(t.Context(), engine.LoadRequest{Model: "demo"}); err != nil {
		t.Fatal(err)
	}
	base := listen(t, httpapi.New(e, httpapi.Options{Keys: []string{clientKey}}))
	for _, lib := range libraries {
		t.Run(lib.script, func(t *testing.T) { runClient(t, folder, lib.script, base, "demo", wanted(t, lib.dialect, isDemo)) })
	}
	end := time.Now().Add(time.Minute)
	for st := e.Status(); st.InFlight+st.Queued > 0; st = e.Status() { // what clients gave up has to end
		if time.Now().After(end) {
			t.Fatalf("%d generations go on without their clients", st.InFlight+st.Queued)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// clientFolder is where `make setup` installed the libraries.
func clientFolder(t *testing.T) string {
	t.Helper()
	folder, err := filepath.Abs("../build/clients")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(folder, "done")); err != nil {
		testneed.Missing(t, "the client libraries", "run `make setup`")
	}
	return folder
}

// listen serves h on loopback.
func listen(t *testing.T, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

// runClient runs one script and compares what it found with want.
func runClient(t *testing.T, folder, script, base, part string, want map[string]any) {
	t.Helper()
	program := "node"
	if filepath.Ext(script) == ".py" {
		program = filepath.Join(folder, "python", "bin", "python")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // a hanging client ends with its output shown
	defer cancel()
	cmd := exec.CommandContext(ctx, program, filepath.Join("testdata", "clients", "sdk", script), base, clientKey, part, folder)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "DO_NOT_TRACK=1", "DISABLE_TELEMETRY=1", "OTEL_SDK_DISABLED=true", "PYTHONDONTWRITEBYTECODE=1", "NO_PROXY=*"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%s", script, err, stderr.String())
	}
	got := map[string]any{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var line struct {
			Check  string
			Result any
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%s printed %q", script, lines.Bytes())
		}
		got[line.Check] = line.Result
		if expected, ok := want[line.Check]; !ok {
			t.Errorf("%s: want.json lacks %s", script, lines.Bytes())
		} else if !reflect.DeepEqual(line.Result, expected) {
			t.Errorf("%s %s:\ngot  %s\nwant %s", script, line.Check, mustJSON(t, line.Result), mustJSON(t, expected))
		}
	}
	for name := range want {
		if _, ok := got[name]; !ok && (onlyIn[name] == "" || onlyIn[name] == script) {
			t.Errorf("%s did not run %s", script, name)
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// replay is the script that streams deltas; its result holds what they add up to.
func replay(finish engine.FinishReason, deltas ...engine.Delta) enginetest.Script {
	var s enginetest.Script
	r := &s.Result
	for _, d := range deltas {
		s.Steps = append(s.Steps, enginetest.Step{Delta: &d})
		r.Text += d.Text
		r.Reasoning += d.Reasoning
		r.Tokens = append(r.Tokens, d.Tokens...)
		if c := d.ToolCall; c != nil {
			if c.Index == len(r.ToolCalls) {
				r.ToolCalls = append(r.ToolCalls, engine.ToolCall{Index: c.Index, ID: c.ID, Name: c.Name})
			}
			r.ToolCalls[c.Index].Arguments += c.Arguments
		}
	}
	r.FinishReason = finish
	r.Stats = telemetry.RequestSummary{Mode: "baseline", PromptTokens: 7, CompletionTokens: len(deltas), ContextTokens: 7 + len(deltas)}
	return s
}

// thought has its token, so that thoughts can be counted.
func thought(s string) engine.Delta {
	return engine.Delta{Reasoning: strings.TrimRight(s, "\n"), Tokens: []engine.Token{{Text: s, Bytes: []byte(s)}}}
}

func text(s string) engine.Delta { return engine.Delta{Text: s} }

func call(index int, id, name, arguments string) engine.Delta {
	return engine.Delta{ToolCall: &engine.ToolCall{Index: index, ID: id, Name: name, Arguments: arguments}}
}

// scripts answers a request by the last words of its user, or with the
// results of its tools if those come last. It tells blocked of each "hang".
func scripts(blocked chan<- struct{}) func(engine.Request) enginetest.Script {
	var busy atomic.Bool
	return func(req engine.Request) enginetest.Script {
		fail := func(kind engine.ErrorKind, text string) enginetest.Script {
			return enginetest.Script{Steps: []enginetest.Step{{Err: &engine.Error{Kind: kind, Message: text}}}}
		}
		words, results, err := lastTurn(req.Prompt)
		if err != nil {
			return fail(engine.ErrInvalid, err.Error())
		}
		switch {
		case results != "":
			return replay(engine.FinishStop, text("The tools say: "), text(results))
		case words == "plain":
			return replay(engine.FinishStop, text("Hello"), text(", "), text("wörld "), text("🌍"))
		case words == "think":
			return replay(engine.FinishStop, thought("Let me "), thought("think."), thought("\n"), text("Done"), text("."))
		case words == "tools":
			return replay(engine.FinishToolCalls, text("I look it up."), call(0, "call_1", "get_weather", `{"city":`), call(0, "", "", ` "Paris"}`), call(1, "call_2", "get_time", `{}`))
		case words == "logprobs":
			step := func(id int32, s string, p float64, other string) engine.Delta {
				return engine.Delta{Text: s, Tokens: []engine.Token{{ID: id, Text: s, Bytes: []byte(s), Logprob: p,
					Top: []engine.TokenProb{{ID: id, Text: s, Bytes: []byte(s), Logprob: p}, {ID: id + 1, Text: other, Bytes: []byte(other), Logprob: -3}}[:max(0, req.Logprobs)]}}}
			}
			return replay(engine.FinishStop, step(5, "Ja", -0.25, "Nein"), step(9, "é!", -0.5, "?"))
		case words == "params":
			b, err := json.Marshal(map[string]any{"seed": req.Sampling.Seed, "stop": req.Stop, "max": req.MaxTokens, "temperature": req.Sampling.Temperature, "top_p": req.Sampling.TopP, "top_k": req.Sampling.TopK,
				"presence": req.Sampling.Params.PresencePenalty, "frequency": req.Sampling.Params.FrequencyPenalty, "bias": req.Sampling.Params.LogitBias, "effort": req.Prompt.Kwargs["reasoning_effort"]})
			if err != nil {
				return fail(engine.ErrInternal, err.Error())
			}
			return replay(engine.FinishStop, text(string(b)))
		case words == "length":
			return replay(engine.FinishLength, text("too long to"))
		case words == "stopped":
			s := replay(engine.FinishStop, text("before "))
			s.Result.StopString = "END"
			return s
		case words == "slow": // longer than it takes until the stream is kept alive
			s := replay(engine.FinishStop, text("late"))
			s.Steps = append([]enginetest.Step{{Delta: &engine.Delta{Prefill: &engine.Progress{Done: 1, Total: 2}}}, {Wait: 1200 * time.Millisecond}}, s.Steps...)
			return s
		case words == "block", words == "hang":
			if words == "hang" {
				blocked <- struct{}{}
			}
			s := replay(engine.FinishStop, text("first"))
			s.Steps = append(s.Steps, enginetest.Step{Block: true})
			return s
		case words == "busy", words == "busy once" && busy.CompareAndSwap(false, true):
			return fail(engine.ErrBusy, "64 requests are waiting already; try again later")
		case words == "busy once":
			return replay(engine.FinishStop, text("free again"))
		case words == "loading":
			return fail(engine.ErrLoading, "")
		case words == "long":
			return fail(engine.ErrContextLength, "the prompt has 5000 tokens, but the window of this model is 2048; shorten it")
		case words == "crash":
			return enginetest.Script{Steps: []enginetest.Step{{Panic: "a planted fault"}}}
		case words == "broken":
			s := replay(engine.FinishStop, text("half"))
			s.Steps = append(s.Steps, enginetest.Step{Err: errors.New("the planted end")})
			return s
		}
		return fail(engine.ErrInvalid, "no script for "+words)
	}
}

// lastTurn returns what the user said last, or the results of tools behind it.
// Every result must belong to a call of the assistant's turn before.
func lastTurn(p engine.Prompt) (words, results string, err error) {
	switch {
	case p.Text != nil:
		return *p.Text, "", nil
	case p.Tokens != nil:
		return "plain", "", nil
	}
	var list []struct {
		Role, Content string
		ID            string `json:"tool_call_id"`
		Calls         []struct {
			ID       string
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	if err := json.Unmarshal(p.Messages, &list); err != nil {
		return "", "", err
	}
	open := map[string]bool{}
	for _, m := range list {
		switch m.Role {
		case "user":
			words, results = m.Content, ""
		case "assistant":
			for _, c := range m.Calls {
				if open[c.ID] = true; c.Function.Name == "" || !json.Valid([]byte(c.Function.Arguments)) {
					return "", "", errors.New("a call came back broken: " + string(p.Messages))
				}
			}
		case "tool":
			if !open[m.ID] {
				return "", "", errors.New("a result without its call: " + string(p.Messages))
			}
			delete(open, m.ID)
			results += m.Content + "; "
		}
	}
	if results != "" && len(open) > 0 {
		return "", "", errors.New("calls without results: " + string(p.Messages))
	}
	return words, results, nil
}
