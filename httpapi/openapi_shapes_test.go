package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/telemetry"
	"sparkbar/httpapi/internal/enginetest"
)

// freeForm are the objects of the description whose keys are somebody else's,
// by what the description says of them.
var freeForm = []string{
	"A JSON Schema",
	"Arguments of the caller's function",
	"As OpenAPI has it",
	"Nothing in it is read",
	"Settings by dotted key; null takes one out",
	"The operations of a path, as OpenAPI has them",
	"The settings by dotted key",
	"Variables of the model's chat template",
}

// TestOpenAPIClosed: every object of the description says what is in it, but
// for those that are listed, and nothing may be anything.
func TestOpenAPIClosed(t *testing.T) {
	doc := document(t, New(enginetest.New(enginetest.Say("x")), Options{}))
	found := map[string]bool{}
	nodes := 0
	var walk func(path string, node any)
	walk = func(path string, node any) {
		nodes++
		s, _ := node.(map[string]any)
		if len(s) == 0 {
			t.Errorf("%s may be anything", path)
			return
		}
		types, _ := s["type"].([]any)
		properties, _ := s["properties"].(map[string]any)
		extra, hasExtra := s["additionalProperties"]
		open := len(properties) == 0 && (!hasExtra || extra == true)
		if (s["type"] == "object" || slices.Contains(types, any("object"))) && open {
			what, _ := s["description"].(string)
			found[what] = true
			if !slices.Contains(freeForm, what) {
				t.Errorf("%s is an object of anything (%q)", path, what)
			}
		}
		if (s["type"] == "array" || slices.Contains(types, any("array"))) && s["items"] == nil {
			t.Errorf("%s is a list of anything", path)
		}
		for key, p := range properties {
			walk(path+"."+key, p)
		}
		if _, ok := extra.(map[string]any); ok {
			walk(path+"{}", extra)
		}
		for _, key := range []string{"items", "contentSchema"} {
			if s[key] != nil {
				walk(path+"["+key+"]", s[key])
			}
		}
		for _, key := range []string{"anyOf", "oneOf", "allOf"} {
			list, _ := s[key].([]any)
			for i, x := range list {
				walk(fmt.Sprintf("%s|%d", path, i), x)
			}
		}
	}
	for name, s := range doc["components"].(map[string]any)["schemas"].(map[string]any) {
		walk(name, s)
	}
	for path, item := range doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			o := op.(map[string]any)
			where := method + " " + path
			contents := map[string]any{}
			if body, ok := o["requestBody"].(map[string]any); ok {
				contents["request"] = body["content"]
			}
			for status, r := range o["responses"].(map[string]any) {
				contents[status] = r.(map[string]any)["content"]
			}
			for part, content := range contents {
				for kind, media := range content.(map[string]any) {
					walk(where+" "+part+" "+kind, media.(map[string]any)["schema"])
				}
			}
		}
	}
	for _, what := range freeForm {
		if !found[what] {
			t.Errorf("%q is listed and not there", what)
		}
	}
	if nodes < 1000 {
		t.Errorf("only %d schemas were looked at", nodes)
	}
}

// streamFaults checks the events of a stream against its description.
func streamFaults(doc map[string]any, path, method, body string) (faults []string, events int) {
	op := doc["paths"].(map[string]any)[path].(map[string]any)[method].(map[string]any)
	stream := op["responses"].(map[string]any)["200"].(map[string]any)["content"].(map[string]any)["text/event-stream"].(map[string]any)["schema"].(map[string]any)
	data := map[string][]any{} // by event: what its data may be
	for _, kind := range stream["anyOf"].([]any) {
		p := kind.(map[string]any)["properties"].(map[string]any)
		d := p["data"].(map[string]any)
		list, ok := d["anyOf"].([]any)
		if !ok {
			list = []any{d}
		}
		data[p["event"].(map[string]any)["const"].(string)] = list
	}
	for _, e := range parseSSE(body) {
		events++
		if e.name == "" {
			e.name = "message"
		}
		fits := false
		all := []string{fmt.Sprintf("%s event %s %.200s", path, e.name, e.data)}
		for _, d := range data[e.name] {
			s := d.(map[string]any)
			if c, ok := s["const"]; ok {
				fits = fits || c == e.data
				continue
			}
			var v any
			if json.Unmarshal([]byte(e.data), &v) != nil {
				continue
			}
			bad := validate(doc, s["contentSchema"].(map[string]any), v, "")
			fits = fits || len(bad) == 0
			all = append(all, bad...)
		}
		if !fits {
			faults = append(faults, strings.Join(all, "; "))
		}
	}
	return faults, events
}

// TestOpenAPIStreams: every event of every stream is as the description has it.
func TestOpenAPIStreams(t *testing.T) {
	full := replyWithAll()
	broken := enginetest.Script{Steps: append(slices.Clone(full.Steps), enginetest.Step{Err: &engine.Error{Kind: engine.ErrInternal, Message: "gone"}})}
	tools := `"tools":[{"type":"function","function":{"name":"f"}}],`
	for _, script := range []enginetest.Script{full, broken} {
		e := busy()
		e.Answer(func(engine.Request) enginetest.Script { return script })
		s := New(e, Options{})
		doc := document(t, s)
		for path, body := range map[string]string{
			"/v1/chat/completions": `{` + tools + `"stream":true,"logprobs":2,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"x"}]}`,
			"/v1/completions":      `{"prompt":"x","stream":true,"logprobs":2,"stream_options":{"include_usage":true}}`,
			"/v1/messages":         messageStream,
			"/v1/responses":        `{"input":"x","stream":true,"tools":[{"type":"function","name":"f"}],"metadata":{"a":"b"}}`,
			"/admin/race":          `{"prompt":"x"}`,
		} {
			text := call(s, "POST", path, body).Body.String()
			faults, n := streamFaults(doc, path, "post", text)
			for _, f := range faults {
				t.Error(f)
			}
			if n < 2 {
				t.Errorf("%s: %d events", path, n)
			}
			// The check can fail.
			if bad, _ := streamFaults(doc, path, "post", strings.Replace(text, `data: {"`, `data: {"odd":1,"`, 1)); len(bad) != 1 {
				t.Errorf("%s: a wrong event passes: %q", path, bad)
			}
		}
	}
	e := busy()
	s := New(e, Options{})
	doc := document(t, s)
	for _, path := range []string{"/events", "/admin/events"} {
		e.Log.Record(telemetry.Round{Req: "a", Committed: 1}, time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		w := &syncRecorder{ResponseRecorder: httptest.NewRecorder()}
		done := make(chan struct{})
		go func() {
			defer close(done)
			r := httptest.NewRequestWithContext(ctx, "GET", path, nil)
			r.Host = "localhost"
			s.ServeHTTP(w, r)
		}()
		wait(t, func() bool { return strings.Contains(w.text(), "event: ") })
		summary := telemetry.RequestSummary{Mode: "baseline"}
		e.Bus.Publish("prefill", telemetry.Prefill{Type: "prefill", Req: "b", Processed: 1, Total: 2})
		e.Bus.Publish("round", e.Log.Record(telemetry.Round{Req: "b", Committed: 2}, time.Now()))
		e.Bus.Publish("request", engine.RequestEvent{ID: "b", State: "done", Stats: &summary})
		e.Bus.Publish("pressure", e.Status().Guard)
		e.Bus.Publish("download", engine.Download{ID: "dl_1", Repo: "org/m", State: "paused"})
		e.Bus.Publish("models", struct{}{})
		if path == "/admin/events" { // the other ends with its model
			e.SetStatus(engine.Status{State: engine.StateLoading, Loading: &engine.LoadProgress{Model: "m"}})
			wait(t, func() bool { return strings.Contains(w.text(), `"loading"`) })
		}
		wait(t, func() bool { return strings.Contains(w.text(), `"committed":2`) })
		cancel()
		<-done
		faults, n := streamFaults(doc, path, "get", w.text())
		for _, f := range faults {
			t.Error(f)
		}
		if want := map[string]int{"/events": 4, "/admin/events": 8}[path]; n != want {
			t.Errorf("%s: %d events, want %d: %s", path, n, want, w.text())
		}
	}
}

// replyWithAll is a script with a thought, a text, two calls and tokens.
func replyWithAll() enginetest.Script {
	token := engine.Token{ID: 5, Text: "a", Bytes: []byte("a"), Logprob: -1, Top: []engine.TokenProb{{ID: 5, Text: "a", Bytes: []byte("a"), Logprob: -1}}}
	first, second := engine.ToolCall{ID: "call_1", Name: "f"}, engine.ToolCall{Index: 1, ID: "call_2", Name: "f", Arguments: "{}"}
	s := enginetest.Script{Steps: []enginetest.Step{
		delta(engine.Delta{Reasoning: "hm"}), delta(engine.Delta{Text: "Hello", Tokens: []engine.Token{token}}),
		delta(engine.Delta{ToolCall: &first}), delta(engine.Delta{ToolCall: &engine.ToolCall{Arguments: `{"a":1}`}}), delta(engine.Delta{ToolCall: &second}),
	}}
	first.Arguments = `{"a":1}`
	s.Result = engine.Result{Text: "Hello", Reasoning: "hm", Tokens: []engine.Token{token}, ToolCalls: []engine.ToolCall{first, second}, FinishReason: engine.FinishToolCalls,
		BrokenCalls: []string{"odd"}, Stats: telemetry.RequestSummary{Mode: "baseline", PromptTokens: 3, CompletionTokens: 2}}
	return s
}

// syncRecorder can be read while it is written.
type syncRecorder struct {
	*httptest.ResponseRecorder
	mu sync.Mutex
}

func (w *syncRecorder) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ResponseRecorder.Write(b)
}

func (w *syncRecorder) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Body.String()
}
