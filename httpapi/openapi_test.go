package httpapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/models"
	"sparkbar/httpapi/internal/enginetest"
)

// validate checks a JSON value against a schema of the description.
func validate(doc map[string]any, s map[string]any, v any, path string) []string {
	if ref, ok := s["$ref"].(string); ok {
		parts := strings.Split(strings.TrimPrefix(ref, "#/"), "/")
		var at any = doc
		for _, p := range parts {
			m, _ := at.(map[string]any)
			at = m[p]
		}
		target, ok := at.(map[string]any)
		if !ok {
			return []string{path + ": " + ref + " leads nowhere"}
		}
		return validate(doc, target, v, path)
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if list, ok := s[key].([]any); ok {
			fits := 0
			var all []string
			for _, x := range list {
				bad := validate(doc, x.(map[string]any), v, path)
				if len(bad) == 0 {
					fits++
				}
				all = append(all, bad...)
			}
			if fits == 0 || key == "oneOf" && fits != 1 {
				return append(all, fmt.Sprintf("%s: fits %d of %s", path, fits, key))
			}
			return nil
		}
	}
	if c, ok := s["const"]; ok && !reflect.DeepEqual(c, v) {
		return []string{fmt.Sprintf("%s: %v is not %v", path, v, c)}
	}
	if e, ok := s["enum"].([]any); ok && !slices.ContainsFunc(e, func(x any) bool { return reflect.DeepEqual(x, v) }) {
		return []string{fmt.Sprintf("%s: %v is not one of %v", path, v, e)}
	}
	var types []any
	switch t := s["type"].(type) {
	case string:
		types = []any{t}
	case []any:
		types = t
	default:
		return nil
	}
	is := "null"
	switch x := v.(type) {
	case bool:
		is = "boolean"
	case string:
		is = "string"
	case float64:
		is = "number"
		if x == float64(int64(x)) && slices.Contains(types, any("integer")) {
			is = "integer"
		}
	case []any:
		is = "array"
	case map[string]any:
		is = "object"
	}
	if !slices.Contains(types, any(is)) {
		return []string{fmt.Sprintf("%s is %s, want %v", path, is, types)}
	}
	var bad []string
	switch x := v.(type) {
	case []any:
		if items, ok := s["items"].(map[string]any); ok {
			for i, e := range x {
				bad = append(bad, validate(doc, items, e, fmt.Sprintf("%s[%d]", path, i))...)
			}
		}
	case map[string]any:
		properties, _ := s["properties"].(map[string]any)
		required, _ := s["required"].([]any)
		for _, r := range required {
			if _, ok := x[r.(string)]; !ok {
				bad = append(bad, path+"."+r.(string)+" is missing")
			}
		}
		for key, e := range x {
			p, known := properties[key].(map[string]any)
			extra, isSchema := s["additionalProperties"].(map[string]any)
			switch {
			case known:
				bad = append(bad, validate(doc, p, e, path+"."+key)...)
			case s["additionalProperties"] == false:
				bad = append(bad, path+"."+key+" is not described")
			case isSchema:
				bad = append(bad, validate(doc, extra, e, path+"."+key)...)
			}
		}
	}
	return bad
}

func document(t *testing.T, s *Server) map[string]any {
	t.Helper()
	var doc map[string]any
	get(t, s, "/openapi.json", &doc)
	return doc
}

// TestOpenAPIRoutes: the description has every route, and none that is not
// there; nothing in it is unknown, and references lead somewhere.
func TestOpenAPIRoutes(t *testing.T) {
	s := New(enginetest.New(enginetest.Say("x")), Options{})
	_, unknown := s.describe()
	if len(unknown) > 0 {
		t.Errorf("no schema for %q", unknown)
	}
	want := map[string]bool{}
	for route, methods := range s.methods {
		if strings.HasPrefix(route, "/v1/v1") || !strings.HasPrefix(route, "/v1/") && s.methods["/v1"+route] != "" {
			continue // other names of the same
		}
		route = strings.NewReplacer("*id", "{id}", ":id", "{id}").Replace(route)
		for m := range strings.SplitSeq(methods, ", ") {
			want[m+" "+route] = true
		}
	}
	got := map[string]bool{}
	for _, op := range s.operations() {
		got[op.method+" "+op.path] = true
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("described %v\nthere are %v", got, want)
	}
	text := string(encode(document(t, s)))
	for _, part := range strings.Split(text, `"$ref":"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if !strings.Contains(text, `"`+name+`":{"`) {
			t.Errorf("%s is referred to and not there", name)
		}
	}
	for key := range custom {
		field := key[strings.LastIndexByte(key, '.')+1:]
		if !strings.Contains(text, `"`+field+`"`) && key != "httpapi.orderedObject" && key != "httpapi.outputText.logprobs" {
			t.Errorf("the schema of %s is never used", key)
		}
	}
}

// TestOpenAPIAnswers validates real answers, errors too.
func TestOpenAPIAnswers(t *testing.T) {
	e := busy()
	e.Local = []models.Model{{ID: "org/m", Complete: true, Bytes: 1 << 30, Context: 4096}, {ID: "org/half", Reason: "half"}}
	e.Findings = []engine.Finding{{Code: "x", Level: "problem", Message: "m", Fix: "f"}}
	e.Running = []engine.RequestInfo{{ID: "a", State: "running"}}
	e.Fetching = []engine.Download{{ID: "b", Repo: "org/x", State: "downloading", BytesTotal: 5, ETA: time.Second}}
	e.Answer(func(r engine.Request) enginetest.Script {
		script := enginetest.Say("Hello", " you")
		script.Steps = append([]enginetest.Step{delta(engine.Delta{Reasoning: "hm"})}, script.Steps...)
		script.Result.Reasoning = "hm"
		script.Result.Tokens = []engine.Token{{ID: 5, Text: "a", Bytes: []byte("a"), Logprob: -1, Top: []engine.TokenProb{{ID: 5, Text: "a", Bytes: []byte("a"), Logprob: -1}}}}
		if r.Tools {
			call := engine.ToolCall{ID: "call_1", Name: "f", Arguments: `{"a":1}`}
			script.Steps = append(script.Steps, delta(engine.Delta{ToolCall: &call}))
			script.Result.ToolCalls, script.Result.FinishReason, script.Result.BrokenCalls = []engine.ToolCall{call}, engine.FinishToolCalls, []string{"odd"}
		}
		return script
	})
	s := New(e, Options{Settings: memorySettings{"ui.detail": "simple"}})
	doc := document(t, s)
	tools := `"tools":[{"type":"function","function":{"name":"f"}}],`
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/chat/completions", chatBody},
		{"POST", "/v1/chat/completions", `{` + tools + `"logprobs":2,"messages":[{"role":"user","content":"x"}]}`},
		{"POST", "/v1/chat/completions", `{"messages":5}`},
		{"POST", "/v1/completions", `{"prompt":"x","logprobs":2}`},
		{"POST", "/v1/messages", messageBody},
		{"POST", "/v1/messages", `{"max_tokens":5,"tools":[{"name":"f","input_schema":{"type":"object"}}],"messages":[{"role":"user","content":"x"}]}`},
		{"POST", "/v1/messages", `{}`},
		{"POST", "/v1/messages/count_tokens", messageBody},
		{"POST", "/v1/responses", `{"input":"x"}`},
		{"POST", "/v1/responses", `{"input":"x","tools":[{"type":"function","name":"f"}],"metadata":{"a":"b"},"tool_choice":"auto"}`},
		{"POST", "/v1/responses", `{}`},
		{"GET", "/v1/models", ""}, {"GET", "/v1/models/tiny-chat", ""}, {"GET", "/v1/models/nobody", ""},
		{"GET", "/health", ""}, {"GET", "/metrics", ""}, {"GET", "/rounds", ""}, {"GET", "/machine", ""}, {"GET", "/calibration", ""}, {"GET", "/doctor", ""},
		{"GET", "/admin/status", ""}, {"GET", "/admin/models", ""}, {"GET", "/admin/requests", ""}, {"GET", "/admin/integrations", ""}, {"GET", "/admin/settings", ""},
		{"GET", "/admin/downloads", ""}, {"POST", "/admin/downloads", `{"model":"org/y"}`}, {"POST", "/admin/downloads", `{}`}, {"POST", "/admin/downloads/b/pause", ""},
		{"POST", "/admin/downloads/b/resume", ""}, {"POST", "/admin/downloads/b/cancel", `{"cleanup":true}`}, {"POST", "/admin/downloads/b/cancel", ""},
		{"POST", "/admin/load/cancel", "{}"}, {"POST", "/admin/load", `{"model":5}`}, {"POST", "/admin/requests/a/cancel", ""}, {"PATCH", "/admin/settings", `{"a":1}`},
		{"GET", "/openapi.json", ""},
		{"POST", "/admin/unload", ""}, {"GET", "/health", ""}, {"GET", "/machine", ""}, {"POST", "/admin/load", `{"model":"m"}`},
	} {
		w := call(s, c.method, c.path, c.body)
		var v any
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			t.Fatalf("%s %s: %v %s", c.method, c.path, err, w.Body)
		}
		path := c.path
		for _, p := range []struct{ prefix, pattern string }{{"/v1/models/", "/v1/models/{id}"}, {"/admin/requests/", "/admin/requests/{id}/cancel"},
			{"/admin/downloads/b/pause", "/admin/downloads/{id}/pause"}, {"/admin/downloads/b/resume", "/admin/downloads/{id}/resume"}, {"/admin/downloads/b/cancel", "/admin/downloads/{id}/cancel"}} {
			if strings.HasPrefix(path, p.prefix) {
				path = p.pattern
			}
		}
		responses, _ := doc["paths"].(map[string]any)[path].(map[string]any)[strings.ToLower(c.method)].(map[string]any)["responses"].(map[string]any)
		r, ok := responses[fmt.Sprint(w.Code)].(map[string]any)
		if !ok {
			r = responses["default"].(map[string]any)
		}
		sch := r["content"].(map[string]any)["application/json"].(map[string]any)["schema"].(map[string]any)
		for _, bad := range validate(doc, sch, v, "") {
			t.Errorf("%s %s (%d): %s\n%s", c.method, c.path, w.Code, bad, w.Body)
		}
	}
	// Chunks have the shape of the whole object.
	for path, body := range map[string]string{"/v1/chat/completions": `{` + tools + `"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"x"}]}`, "/v1/completions": `{"prompt":"x","stream":true}`} {
		sch := doc["components"].(map[string]any)["schemas"].(map[string]any)["chatCompletion"].(map[string]any)
		if path == "/v1/completions" {
			sch = doc["components"].(map[string]any)["schemas"].(map[string]any)["textCompletion"].(map[string]any)
		}
		for _, ev := range parseSSE(call(s, "POST", path, body).Body.String()) {
			var v any
			if json.Unmarshal([]byte(ev.data), &v) != nil {
				continue // [DONE]
			}
			for _, bad := range validate(doc, sch, v, "") {
				t.Errorf("%s: %s in %s", path, bad, ev.data)
			}
		}
	}
	// The check can fail.
	if bad := validate(doc, map[string]any{"$ref": "#/components/schemas/usage"}, map[string]any{"prompt_tokens": "7", "odd": 1.0}, ""); len(bad) < 4 {
		t.Errorf("a wrong answer passes: %q", bad)
	}
}

// TestOpenAPIRequests sends each described field with a value of a wrong type:
// it must be refused by name.
func TestOpenAPIRequests(t *testing.T) {
	base := map[string]map[string]any{
		"/v1/chat/completions": {"messages": []any{map[string]any{"role": "user", "content": "x"}}}, "/v1/completions": {"prompt": "x"},
		"/v1/messages": {"max_tokens": 5, "messages": []any{map[string]any{"role": "user", "content": "x"}}}, "/v1/messages/count_tokens": {"messages": []any{map[string]any{"role": "user", "content": "x"}}},
		"/v1/responses": {"input": "x"}, "/admin/load": {"model": "m"}, "/admin/load/cancel": {}, "/admin/downloads": {"model": "m"}, "/admin/downloads/{id}/cancel": {}, "/admin/race": {"prompt": "x"},
	}
	ignored := map[string]string{"/v1/responses metadata": "echoed as it is"}
	s := New(enginetest.New(enginetest.Say("x")), Options{})
	checked := 0
	for _, op := range s.operations() {
		if base[op.path] == nil {
			continue
		}
		for field := range op.request {
			name := op.path + " " + field
			// Counting reads the prompt only.
			if ignored[name] != "" || op.path == "/v1/messages/count_tokens" && !slices.Contains([]string{"messages", "system", "tools", "model"}, field) {
				continue
			}
			body := map[string]any{}
			for k, v := range base[op.path] {
				body[k] = v
			}
			refused := false
			for _, wrong := range []any{map[string]any{"no": map[string]any{}}, "?", -1.5, true, []any{-1.5}} {
				body[field] = wrong
				b, _ := json.Marshal(body)
				w := call(s, op.method, op.path, string(b))
				if w.Code >= 500 {
					t.Errorf("%s = %v: %d %s", name, wrong, w.Code, w.Body)
				}
				refused = refused || w.Code == 400 && strings.Contains(w.Body.String(), field)
			}
			if !refused {
				t.Errorf("%s takes anything", name)
			}
			checked++
		}
	}
	if checked < 100 {
		t.Errorf("only %d fields were checked", checked)
	}
}
