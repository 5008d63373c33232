package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/telemetry"
	"sparkbar/httpapi/internal/enginetest"
)

// call sends one request to a server.
func call(s http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost:8080"
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

const (
	chatBody      = `{"messages":[{"role":"user","content":"Hello"}]}`
	chatStream    = `{"messages":[{"role":"user","content":"Hello"}],"stream":true}`
	messageBody   = `{"max_tokens":9,"messages":[{"role":"user","content":"Hello"}]}`
	messageStream = `{"max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Hello"}]}`
)

func delta(d engine.Delta) enginetest.Step { return enginetest.Step{Delta: &d} }

// TestBadRequests: bad input is a 400 in the caller's dialect that names the field.
func TestBadRequests(t *testing.T) {
	chat := func(fields string) string { return `{"messages":[{"role":"user","content":"x"}],` + fields + `}` }
	for _, c := range []struct{ path, body, want string }{
		{"/v1/chat/completions", ``, "'messages' must be a non-empty list"},
		{"/v1/chat/completions", `{"messages":{}}`, "'messages' must be a non-empty list"},
		{"/v1/chat/completions", `{"messages":`, "invalid JSON body: unexpected end of JSON input"},
		{"/v1/chat/completions", `{} {}`, "invalid JSON body"},
		{"/v1/chat/completions", `[]`, "must be an object"},
		{"/v1/chat/completions", `null`, "must be an object"},
		{"/v1/chat/completions", chat(`"temperature":"0.5"`), "'temperature' must be a number"},
		{"/v1/chat/completions", chat(`"temperature":-1`), "'temperature' must be at least 0"},
		{"/v1/chat/completions", chat(`"temperature":true`), "'temperature'"},
		{"/v1/chat/completions", chat(`"temperature":1e999`), "'temperature'"},
		{"/v1/chat/completions", chat(`"n":"2"`), "'n' must be an integer"},
		{"/v1/chat/completions", chat(`"n":0`), "'n' must be at least 1"},
		{"/v1/chat/completions", chat(`"n":9`), "'n' must be at most 8"},
		{"/v1/chat/completions", chat(`"n":2,"stream":true`), "'n' > 1 is not supported with stream=true"},
		{"/v1/chat/completions", chat(`"seed":"x"`), "'seed' must be an integer"},
		{"/v1/chat/completions", chat(`"seed":1.5`), "'seed'"},
		{"/v1/chat/completions", chat(`"top_p":1.5`), "'top_p' must be at most 1"},
		{"/v1/chat/completions", chat(`"top_k":1.5`), "'top_k' must be an integer"},
		{"/v1/chat/completions", chat(`"min_p":-0.1`), "'min_p'"},
		{"/v1/chat/completions", chat(`"max_tokens":"lots"`), "'max_tokens' must be an integer"},
		{"/v1/chat/completions", chat(`"max_completion_tokens":-5`), "'max_completion_tokens' must be at least 0"},
		{"/v1/chat/completions", chat(`"stop":5`), "'stop' must be a string or a list of strings"},
		{"/v1/chat/completions", chat(`"stop":["a",null]`), "'stop' must be"},
		{"/v1/chat/completions", chat(`"stream":"yes"`), "'stream' must be a boolean"},
		{"/v1/chat/completions", chat(`"stream_options":"x"`), "'stream_options' must be an object"},
		{"/v1/chat/completions", chat(`"stream_options":{"include_usage":1}`), "'stream_options.include_usage' must be a boolean"},
		{"/v1/chat/completions", chat(`"logprobs":11`), "'logprobs' must be at most 10"},
		{"/v1/chat/completions", chat(`"logprobs":true,"top_logprobs":21`), "'top_logprobs' must be at most 20"},
		{"/v1/chat/completions", chat(`"logit_bias":{"a":1}`), "'logit_bias'"},
		{"/v1/chat/completions", chat(`"logit_bias":{"1":null}`), "'logit_bias'"},
		{"/v1/chat/completions", chat(`"xtc_threshold":0.6`), "'xtc_threshold' must be at most 0.5"},
		{"/v1/chat/completions", chat(`"repetition_penalty":-1`), "'repetition_penalty'"},
		{"/v1/chat/completions", chat(`"presence_context_size":-1`), "'presence_context_size'"},
		{"/v1/chat/completions", chat(`"response_format":{"type":"json_schema"}`), "'response_format' supports the type 'text' only"},
		{"/v1/chat/completions", chat(`"reasoning_effort":"max"`), "reasoning_effort must be one of low, medium, high, xhigh, got 'max'"},
		{"/v1/chat/completions", chat(`"enable_thinking":"no"`), "'enable_thinking' must be a boolean"},
		{"/v1/chat/completions", chat(`"chat_template_kwargs":[]`), "'chat_template_kwargs' must be an object"},
		{"/v1/chat/completions", chat(`"tools":{}`), "'tools' must be a list"},
		{"/v1/chat/completions", chat(`"tools":["x"]`), "'tools[0]' must be an object"},
		{"/v1/chat/completions", chat(`"tools":[{"type":"function","function":{}}]`), "'tools[0].function.name' must be a string"},
		{"/v1/chat/completions", chat(`"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}}`), "'tool_choice' names the function 'g'"},
		{"/v1/chat/completions", chat(`"tool_choice":"maybe"`), "'tool_choice' must be"},
		{"/v1/chat/completions", chat(`"model":7`), "'model' must be a string"},
		{"/v1/chat/completions", chat(`"adapters":7`), "'adapters' must be a string"},
		{"/v1/chat/completions", chat(`"draft_model":5`), "'draft_model' must be a string"},
		{"/v1/chat/completions", chat(`"num_draft_tokens":-1`), "'num_draft_tokens' must be at least 0"},
		{"/v1/chat/completions", "{\"messages\":\"\xff\"}", "not valid UTF-8"},

		{"/completions", `{}`, "'prompt' must be a string"},
		{"/completions", `{"prompt":5}`, "'prompt' must be a string"},
		{"/completions", `{"prompt":""}`, "'prompt' must not be empty"},
		{"/completions", `{"prompt":[]}`, "'prompt' must not be empty"},
		{"/completions", `{"prompt":["a",""]}`, "'prompt' must not be empty"},
		{"/completions", `{"prompt":["a",null]}`, "entry 1"},
		{"/completions", `{"prompt":[1,-2]}`, "entry 0"},
		{"/completions", `{"prompt":[[1],[]]}`, "entry 1"},
		{"/completions", `{"prompt":"a","logprobs":21}`, "'logprobs' must be at most 20"},
		{"/completions", `{"prompt":"a","n":3,"best_of":2}`, "'best_of' must be at least 'n', which is 3"},
		{"/completions", `{"prompt":"a","best_of":21}`, "'best_of' must be at most 20"},
		{"/completions", `{"prompt":"a","best_of":2,"stream":true}`, "'best_of' > 1 is not supported with stream=true"},
		{"/completions", `{"prompt":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"],"n":8}`, "asks for 136 answers"},

		{"/v1/messages", `{}`, "'messages': must be a non-empty array"},
		{"/v1/messages", `{"messages":[7]}`, "'messages[0]' must be an object"},
		{"/v1/messages", `{"messages":[{"role":"critic","content":"x"}]}`, "'messages[0].role' must be user, assistant or system"},
		{"/v1/messages", `{"messages":[{"role":"user","content":5}]}`, "'messages[0].content'"},
		{"/v1/messages", `{"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}`, "'messages[0].content[0]' has the type 'image'"},
		{"/v1/messages", `{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","input":{}}]}]}`, "'messages[0].content[0].name' must be a non-empty string"},
		{"/v1/responses", `{"input":[{"type":"function_call","call_id":"c","arguments":"{}"}]}`, "'input[0].name' must be a non-empty string"},
		{"/v1/messages", `{"system":[{"type":"image"}],"messages":[{"role":"user","content":"x"}]}`, "'system[0]' has the type 'image'"},
		{"/v1/messages", `{"system":5,"messages":[{"role":"user","content":"x"}]}`, "'system' must be"},
		{"/v1/messages", `{"temperature":"hot","messages":[{"role":"user","content":"x"}]}`, "'temperature'"},
		{"/v1/messages", `{"thinking":"on","messages":[{"role":"user","content":"x"}]}`, "'thinking' must be an object"},
		{"/v1/messages/count_tokens", `{"messages":[]}`, "'messages': must be a non-empty array"},
		{"/v1/messages/count_tokens", `[`, "invalid JSON body"},

		{"/v1/responses", `{}`, "'input' is required"},
		{"/v1/responses", `{"input":""}`, "'input' must be a non-empty string or list"},
		{"/v1/responses", `{"input":[7]}`, "'input[0]' is not an input item"},
		{"/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`, "'input[0].content[0]' has the type 'input_image'"},
		{"/v1/responses", `{"input":"x","reasoning":{"effort":"huge"}}`, "reasoning_effort must be one of"},
		{"/v1/responses", `{"input":"x","text":{"format":{"type":"json_object"}}}`, "'text.format' supports"},
		{"/v1/responses", `{"input":"x","max_output_tokens":"many"}`, "'max_output_tokens'"},
	} {
		e := enginetest.New(enginetest.Say("x"))
		w := call(New(e, Options{}), "POST", c.path, c.body)
		if w.Code != 400 || !strings.Contains(message(t, c.path, w.Body.Bytes()), c.want) {
			t.Errorf("%s %s: %d %s, want 400 %s", c.path, c.body, w.Code, w.Body, c.want)
		}
		if len(e.Asked()) > 0 {
			t.Errorf("%s %s reached the engine", c.path, c.body)
		}
	}
}

// message checks the envelope of a path's dialect and returns its text.
func message(t *testing.T, path string, body []byte) string {
	t.Helper()
	var e struct {
		Type  *string
		Error struct {
			Message, Type string
			Code, Param   any
		}
	}
	if err := json.Unmarshal(body, &e); err != nil {
		t.Errorf("%s: %s", path, body)
	}
	path, _, _ = strings.Cut(path, "?")
	if (e.Type != nil) != (dialectOf(path) == dialectAnthropic) || e.Error.Type == "" {
		t.Errorf("%s: not the envelope of its dialect: %s", path, body)
	}
	return e.Error.Message
}

// TestEngineErrors: what the engine reports before it says anything gets its
// status, streaming or not, in all dialects.
func TestEngineErrors(t *testing.T) {
	long := "prompt is too long: 50000 tokens > 40960 maximum"
	for _, c := range []struct {
		err    error
		status int
		want   string
	}{
		{&engine.Error{Kind: engine.ErrNoModel}, 503, msgNoModel},
		{&engine.Error{Kind: engine.ErrLoading}, 503, msgLoading},
		{&engine.Error{Kind: engine.ErrBusy, Message: "the queue is full"}, 429, "the queue is full"},
		{&engine.Error{Kind: engine.ErrInvalid, Field: "top_k", Message: "top_k is too large"}, 400, "top_k is too large"},
		{&engine.Error{Kind: engine.ErrContextLength, Message: long}, 400, long},
		{&engine.Error{Kind: engine.ErrModelNotFound, Message: "no such model"}, 404, "no such model"},
		{&engine.Error{Kind: engine.ErrInternal, Message: "kernel fault"}, 500, "generation failed: kernel fault"},
		{&engine.Error{Kind: engine.ErrShuttingDown, Message: "the server is stopping"}, 503, "the server is stopping"},
		{errors.New("odd"), 500, "generation failed: odd"},
		{nil, 500, "generation failed: internal error"}, // a panic
	} {
		for path, body := range map[string]string{"/v1/chat/completions": `{"messages":[{}]`, "/completions": `{"prompt":"x"`,
			"/v1/messages": `{"messages":[{"role":"user","content":"x"}]`, "/v1/responses": `{"input":"x"`} {
			for _, tail := range []string{"}", `,"stream":true}`} {
				step := enginetest.Step{Err: c.err}
				if c.err == nil {
					step = enginetest.Step{Panic: "boom"}
				}
				e := enginetest.New(enginetest.Script{Steps: []enginetest.Step{step}})
				w := call(New(e, Options{}), "POST", path, body+tail)
				if w.Code != c.status || !strings.HasPrefix(message(t, path, w.Body.Bytes()), c.want) {
					t.Errorf("%s %s, %v: %d %s", path, tail, c.err, w.Code, w.Body)
				}
				if (w.Code == 503 || w.Code == 429) != (w.Header().Get("Retry-After") != "") {
					t.Errorf("%s %v: Retry-After %q", path, c.err, w.Header().Get("Retry-After"))
				}
				if c.want == long && dialectOf(path) != dialectAnthropic && !strings.Contains(w.Body.String(), `"code":"context_length_exceeded"`) {
					t.Errorf("%s: no code: %s", path, w.Body)
				}
			}
		}
	}
}

// TestErrorInStream: an error behind the first frame is a frame of the dialect.
func TestErrorInStream(t *testing.T) {
	for path, c := range map[string]struct{ body, want string }{
		"/v1/chat/completions": {chatStream, `data: {"error":{"message":"generation failed: gone","type":"server_error","code":500}}` + "\n\n"},
		"/completions":         {`{"prompt":"x","stream":true}`, `data: {"error":{"message":"generation failed: gone","type":"server_error","code":500}}` + "\n\n"},
		"/messages":            {messageStream, "event: error\ndata: " + `{"type":"error","error":{"type":"api_error","message":"generation failed: gone"}}` + "\n\n"},
		"/responses":           {`{"input":"x","stream":true}`, `"message":"generation failed: gone"}`},
	} {
		e := enginetest.New(enginetest.Script{Steps: []enginetest.Step{delta(engine.Delta{Text: "Hi"}), {Err: errors.New("gone")}}})
		w := call(New(e, Options{}), "POST", path, c.body)
		body := w.Body.String()
		if w.Code != 200 || !strings.Contains(body, "Hi") || !strings.Contains(body, c.want) || strings.Contains(body, "HTTP/1.1") || strings.Contains(body, "[DONE]") {
			t.Errorf("%s: %d %s", path, w.Code, body)
		}
		if path == "/responses" {
			events := parseSSE(body)
			if last := events[len(events)-1]; last.name != "response.failed" {
				t.Errorf("the stream ends with %v", last)
			}
		}
	}
}

func TestRouting(t *testing.T) {
	s := New(enginetest.New(enginetest.Say("ok")), Options{})
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/chat/completions", chatBody, 200, `"chat.completion"`},
		{"POST", "/v1/v1/chat/completions", chatBody, 200, `"chat.completion"`},
		{"POST", "/v1/chat/completions/", chatBody, 200, `"chat.completion"`},
		{"POST", "/v1/messages?beta=true", messageBody, 200, `"message"`},
		{"POST", "/messages/count_tokens?beta=true", messageBody, 200, `{"input_tokens":7}`},
		{"POST", "/responses", `{"input":"x"}`, 200, `"response"`},
		{"GET", "/models?limit=1000", "", 200, `"tiny-chat"`},
		{"GET", "/v1/models?", "", 200, `"tiny-chat"`},
		{"GET", "/v1/models/tiny-chat", "", 200, `"id":"tiny-chat"`},
		{"GET", "/v1/models/models/tiny-chat", "", 200, `"id":"tiny-chat"`},
		{"GET", "/v1/models/other", "", 404, `"code":"model_not_found"`},
		{"GET", "/nope?x=1", "", 404, "unknown route /nope?x=1"},
		{"GET", "/V1/models", "", 404, "unknown route"},
		{"GET", "/", "", 404, "unknown route /"},
		{"POST", "/v1/embeddings", "{}", 404, `"type":"not_found"`},
		{"POST", "/admin/settings", "", 405, "use GET, PATCH"},
		{"GET", "/admin/requests/x/cancel", "", 405, "use POST"},
		{"GET", "/admin/requests//cancel", "", 404, "unknown route"},
		{"GET", "/v1/chat/completions", "", 405, "use POST"},
		{"DELETE", "/v1/models", "", 405, "use GET"},
		{"DELETE", "/v1/models/x", "", 405, "use GET"},
		{"PUT", "/v1/messages", "{}", 405, `{"type":"error","error":{"type":"invalid_request_error"`},
		{"PATCH", "/v1/responses", "{}", 405, `"param":null`},
		{"HEAD", "/api/hello", "", 200, ""},
		{"HEAD", "/v1/chat/completions", "", 200, ""},
		{"OPTIONS", "/v1/messages", "", 204, ""},
	} {
		w := call(s, c.method, c.path, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
		if w.Code == 405 && w.Header().Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", c.method, c.path)
		}
		if w.Header().Get("X-Request-Id") == "" {
			t.Errorf("%s %s: no request id", c.method, c.path)
		}
	}
}

// TestAnthropicModels: the routes that both dialects share follow the header.
func TestAnthropicModels(t *testing.T) {
	s := New(enginetest.New(enginetest.Say("ok")), Options{})
	for path, want := range map[string]string{
		"/v1/models":           `"first_id":"tiny-chat","last_id":"tiny-chat","has_more":false}`,
		"/v1/models/tiny-chat": `"type":"model","created_at":"2023-11-14T22:13:20Z","lifecycle":"active"}`,
		"/v1/models/other":     `{"type":"error","error":{"type":"not_found_error","message":`,
	} {
		if w := call(s, "GET", path, "", "Anthropic-Version", "2023-06-01"); !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		if w := call(s, "GET", path, ""); strings.Contains(w.Body.String(), want) {
			t.Errorf("%s without the header: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestReasoningTokens counts the tokens up to the end of the thoughts.
func TestReasoningTokens(t *testing.T) {
	tokens := func(pieces ...string) (list []engine.Token) {
		for _, p := range pieces {
			list = append(list, engine.Token{Text: p, Bytes: []byte(p)})
		}
		return list
	}
	for _, c := range []struct {
		thought string
		tokens  []engine.Token
		want    int
	}{
		{"", tokens("a", "b"), 0},
		{"ab", tokens("<think>", "a", "b", "</think>", "c"), 3},
		{"ab", tokens("\n", "a", "b\n", "c"), 3},
		{"ab", tokens("a", "x", "b", "c"), 2}, // two thoughts: at least as many as hold that much
		{"ab", tokens("a"), 1},
	} {
		if n := reasoningTokens(engine.Result{Reasoning: c.thought, Tokens: c.tokens}); n != c.want {
			t.Errorf("%q in %v: %d, want %d", c.thought, c.tokens, n, c.want)
		}
	}
}

// TestPromptRules: each route and profile tells the engine how to read the
// conversation.
func TestPromptRules(t *testing.T) {
	for _, c := range []struct {
		path, body string
		profile    Profile
		fold, mlx  bool
		roles      string
	}{
		{"/v1/chat/completions", `{"role_mapping":{"user":"Q: "},"messages":[{"role":"user","content":"x"}]}`, SparkbarProfile(), false, false, `{"user":"Q: "}`},
		{"/v1/chat/completions", chatBody, MLXLMProfile(), false, true, ""},
		{"/v1/completions", `{"prompt":"x"}`, MLXLMProfile(), false, true, ""},
		{"/v1/completions", `{"prompt":"x"}`, SparkbarProfile(), false, false, ""},
		{"/v1/messages", messageBody, SparkbarProfile(), true, false, ""},
		{"/v1/responses", `{"input":"x"}`, SparkbarProfile(), true, false, ""},
	} {
		e := enginetest.New(enginetest.Say("ok"))
		w := call(New(e, Options{Profile: c.profile}), "POST", c.path, c.body)
		if w.Code != 200 || len(e.Asked()) != 1 {
			t.Fatalf("%s: %d %s", c.path, w.Code, w.Body)
		}
		if p := e.Asked()[0].Prompt; p.FoldSystem != c.fold || p.MLXRules != c.mlx || string(p.RoleMapping) != c.roles {
			t.Errorf("%s, %s: %+v", c.path, c.profile.Name, p)
		}
	}
	for _, bad := range []string{`[]`, `{"user":5}`, `"x"`} {
		w := call(New(enginetest.New(enginetest.Say("ok")), Options{}), "POST", "/v1/chat/completions", `{"role_mapping":`+bad+`,"messages":[{"role":"user","content":"x"}]}`)
		if w.Code != 400 || !strings.Contains(w.Body.String(), "'role_mapping") {
			t.Errorf("%s: %d %s", bad, w.Code, w.Body)
		}
	}
}

func TestModelNames(t *testing.T) {
	s := New(enginetest.New(enginetest.Say("ok")), Options{})
	for name, want := range map[string]int{"": 200, "tiny-chat": 200, "/models/tiny-chat": 200, "models/tiny-chat": 200, "default_model": 200,
		"claude-opus": 200, "gpt-4o": 200, "org/other": 404} {
		w := call(s, "POST", "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"x"}]}`, name))
		if w.Code != want {
			t.Errorf("model %q: %d %s", name, w.Code, w.Body)
		}
		if want == 404 && !strings.Contains(w.Body.String(), "/admin/load") {
			t.Errorf("model %q: %s", name, w.Body)
		}
	}
}

func TestAuth(t *testing.T) {
	s := New(enginetest.New(enginetest.Say("ok")), Options{Keys: []string{"first", "second", ""}})
	for _, c := range []struct {
		method, path, header, value string
		want                        int
	}{
		{"GET", "/v1/models", "Authorization", "Bearer first", 200},
		{"GET", "/v1/models", "Authorization", "bearer second", 200},
		{"GET", "/v1/models", "Authorization", "BEARER  first ", 200},
		{"GET", "/v1/models", "X-Api-Key", "second", 200},
		{"GET", "/v1/models", "X-Api-Key", "", 401},
		{"GET", "/v1/models", "Authorization", "Bearer ", 401},
		{"GET", "/v1/models", "Authorization", "Bearer firs", 401},
		{"GET", "/v1/models", "Authorization", "Basic first", 401},
		{"GET", "/v1/models", "Authorization", "first", 401},
		{"GET", "/nope", "X", "", 401},
		{"GET", "/metrics", "X", "", 401},
		{"POST", "/admin/unload", "X", "", 401},
		{"POST", "/v1/messages", "X", "", 401},
		{"GET", "/health", "X", "", 200},
		{"HEAD", "/v1/models", "X", "", 200},
		{"OPTIONS", "/v1/models", "X", "", 204},
	} {
		w := call(s, c.method, c.path, "{", c.header, c.value)
		if w.Code != c.want {
			t.Errorf("%s %s %s %q: %d, want %d", c.method, c.path, c.header, c.value, w.Code, c.want)
		}
		if w.Code == 401 && message(t, c.path, w.Body.Bytes()) != "invalid api key" {
			t.Errorf("%s: %s", c.path, w.Body)
		}
	}
	w := call(s, "GET", "/v1/models", "", "Authorization", "Bearer wrong", "X-Api-Key", "first")
	if w.Code != 200 {
		t.Errorf("a good x-api-key beside a wrong bearer: %d", w.Code)
	}
}

func TestHostAndOrigin(t *testing.T) {
	s := New(enginetest.New(enginetest.Say("ok")), Options{AllowedHosts: []string{"spark.example"}, CORSOrigins: []string{"https://app.example"}})
	for host, want := range map[string]int{"localhost": 200, "localhost:8080": 200, "LOCALHOST.": 200, "127.0.0.1:1": 200, "[::1]:8080": 200, "::1": 200,
		"192.168.1.7:8080": 200, "mymac.local": 200, "host.docker.internal:8080": 200, "spark.example:8080": 200, "a.localhost": 200,
		"attacker.example": 403, "localhost.attacker.example": 403, "spark.example.evil": 403, "local": 403, "127.0.0.1.nip.io": 403} {
		for _, path := range []string{"/health", "/admin/status", "/v1/models"} {
			w := call(s, "GET", path, "", "Host", host)
			if w.Code != want {
				t.Errorf("host %s %s: %d, want %d", host, path, w.Code, want)
			}
			if want == 403 && !strings.Contains(w.Body.String(), "--allow-host") {
				t.Errorf("host %s: %s", host, w.Body)
			}
		}
	}
	for _, c := range []struct {
		origin, path string
		want         int
		cors         string
	}{
		{"https://attacker.example", "/v1/models", 403, ""},
		{"https://attacker.example", "/admin/status", 403, ""},
		{"null", "/v1/models", 403, ""},
		{"http://localhost:8080", "/v1/models", 200, ""},
		{"http://localhost:8080", "/admin/status", 200, ""},
		{"http://localhost:3000", "/v1/models", 403, ""},
		{"https://app.example", "/v1/models", 200, "https://app.example"},
		{"https://app.example", "/admin/status", 403, ""},
	} {
		for _, method := range []string{"GET", "OPTIONS"} {
			w := call(s, method, c.path, "", "Origin", c.origin, "Access-Control-Request-Private-Network", "true")
			if (w.Code == 403) != (c.want == 403) || w.Header().Get("Access-Control-Allow-Origin") != c.cors {
				t.Errorf("%s %s from %s: %d, %v", method, c.path, c.origin, w.Code, w.Header())
			}
			if allowed := w.Header().Get("Access-Control-Allow-Headers"); method == "OPTIONS" && c.cors != "" && !strings.Contains(allowed, "X-Api-Key") {
				t.Errorf("preflight allows %q", allowed)
			}
		}
	}
	open := New(enginetest.New(enginetest.Say("ok")), Options{AllowedHosts: []string{"*"}, CORSOrigins: []string{"*"}})
	if w := call(open, "GET", "/v1/models", "", "Host", "any.example", "Origin", "https://any.example"); w.Code != 200 {
		t.Errorf("wildcards: %d", w.Code)
	}
	if w := call(open, "POST", "/admin/unload", "", "Origin", "https://any.example"); w.Code != 403 || w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("wildcard on /admin: %d %v", w.Code, w.Header())
	}
}

func TestBodyLimit(t *testing.T) {
	s := New(enginetest.New(enginetest.Say("ok")), Options{MaxBody: 1000})
	big := `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 2000) + `"}]}`
	for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses", "/admin/load"} {
		w := call(s, "POST", path, big)
		if w.Code != 413 || !strings.Contains(message(t, path, w.Body.Bytes()), "1000 bytes") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		r := httptest.NewRequest("POST", path, io.MultiReader(strings.NewReader(big))) // length unknown: chunked
		r.Host = "localhost"
		if r.ContentLength != -1 {
			t.Fatal("the body has a length")
		}
		w = httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != 413 {
			t.Errorf("%s chunked: %d %s", path, w.Code, w.Body)
		}
	}
	if w := call(s, "POST", "/v1/chat/completions", chatBody, "Content-Encoding", "gzip"); w.Code != 415 {
		t.Errorf("gzip: %d", w.Code)
	}
}

// TestRequestFields: what the fields of a chat request become.
func TestRequestFields(t *testing.T) {
	e := enginetest.New(enginetest.Say("ok"))
	w := call(New(e, Options{}), "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"n":3,"seed":-1,"temperature":0.5,
		"top_p":0.9,"top_k":-1,"min_p":0.1,"xtc_probability":0.5,"xtc_threshold":0.2,"repetition_penalty":1.1,"presence_penalty":-1,"frequency_penalty":0.5,
		"repetition_context_size":20,"logit_bias":{"7":"-2.5","8":3},"stop":["a","","b"],"max_tokens":0,"max_completion_tokens":5.0,"enable_thinking":false,
		"reasoning_effort":"HIGH","chat_template_kwargs":{"x":1,"enable_thinking":true},"logprobs":3,"user":"u","unknown":{"a":[1]},
		"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}},{"type":"web_search"}],
		"tool_choice":{"type":"function","function":{"name":"g"}}}`, "Authorization", "Bearer k")
	if w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	reqs := e.Asked()
	if len(reqs) != 3 {
		t.Fatalf("%d generations", len(reqs))
	}
	seeds := map[uint64]bool{}
	for _, r := range reqs {
		seeds[*r.Sampling.Seed] = true
		p := r.Sampling.Params
		if *r.Sampling.Temperature != 0.5 || *r.Sampling.TopP != 0.9 || *r.Sampling.TopK != 0 || *r.Sampling.MinP != 0.1 || p.XTCProbability != 0.5 ||
			p.XTCThreshold != 0.2 || p.RepetitionPenalty != 1.1 || p.PresencePenalty != -1 || p.FrequencyPenalty != 0.5 || *p.RepetitionContextSize != 20 ||
			p.PresenceContextSize != nil || p.LogitBias[7] != -2.5 || p.LogitBias[8] != 3 {
			t.Errorf("sampling: %+v", r.Sampling)
		}
		if r.MaxTokens != 5 || !slices.Equal(r.Stop, []string{"a", "b"}) || r.Logprobs != 3 || !r.Reasoning || !r.Tools {
			t.Errorf("request: %+v", r)
		}
		if r.Prompt.Kwargs["enable_thinking"] != false || r.Prompt.Kwargs["reasoning_effort"] != "high" || r.Prompt.Kwargs["x"] != 1.0 {
			t.Errorf("kwargs: %v", r.Prompt.Kwargs)
		}
		if string(r.Prompt.Tools) != `[{"type":"function","function":{"name":"g"}}]` {
			t.Errorf("tools: %s", r.Prompt.Tools)
		}
		if r.Client == "" || strings.Contains(r.Client, "k") && r.Client == "k" {
			t.Errorf("client %q", r.Client)
		}
	}
	if len(seeds) != 3 || !seeds[1<<64-1] {
		t.Errorf("seeds %v: each choice needs its own, the first the given one", seeds)
	}
	e = enginetest.New(enginetest.Say("ok"))
	call(New(e, Options{}), "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none","reasoning_effort":"none"}`)
	if r := e.Asked()[0]; r.Tools || r.Prompt.Tools != nil || r.Prompt.Kwargs["enable_thinking"] != false || r.Logprobs != -1 || r.MaxTokens != 0 || r.Sampling.Temperature != nil {
		t.Errorf("request: %+v", r)
	}
}

func TestChatLogprobs(t *testing.T) {
	token := func(id int32, b []byte, top ...engine.TokenProb) engine.Token {
		return engine.Token{ID: id, Text: "raw", Bytes: b, Logprob: -0.25, Top: top}
	}
	first, second := token(5, []byte{0xe3, 0x81}, engine.TokenProb{ID: 6, Bytes: []byte("x"), Logprob: -0.1}), token(7, []byte{0x93})
	script := enginetest.Script{Steps: []enginetest.Step{delta(engine.Delta{Tokens: []engine.Token{first}}), delta(engine.Delta{Text: "こ", Tokens: []engine.Token{second}})},
		Result: engine.Result{Text: "こ", Tokens: []engine.Token{first, second}, FinishReason: engine.FinishLength}}
	s := New(enginetest.New(script), Options{})
	w := call(s, "POST", "/v1/chat/completions", `{"messages":[{}],"logprobs":true,"top_logprobs":1}`)
	want := `"logprobs":{"content":[{"token":"�","logprob":-0.25,"bytes":[227,129],"top_logprobs":[{"token":"x","logprob":-0.1,"bytes":[120]}]},{"token":"�","logprob":-0.25,"bytes":[147],"top_logprobs":[]}]}`
	if !strings.Contains(w.Body.String(), want) {
		t.Errorf("whole: %s", w.Body)
	}
	w = call(s, "POST", "/v1/chat/completions", `{"messages":[{}],"logprobs":1}`)
	if want := `"token_logprobs":[-0.25,-0.25],"tokens":[5,7],"top_logprobs":[[[6,-0.1]],null]`; !strings.Contains(w.Body.String(), want) {
		t.Errorf("integer form: %s", w.Body)
	}
	w = call(s, "POST", "/v1/chat/completions", `{"messages":[{}],"logprobs":true,"stream":true}`)
	if n := strings.Count(w.Body.String(), `"logprobs":{"content":[{"token":"�"`); n != 2 {
		t.Errorf("streamed: %s", w.Body)
	}
}

// TestBrokenToolCall: markup that is no call is left out and reported.
func TestBrokenToolCall(t *testing.T) {
	script := enginetest.Say("Well")
	script.Result.BrokenCalls = []string{"the arguments end early"}
	for _, body := range []string{chatBody, chatStream} {
		w := call(New(enginetest.New(script), Options{}), "POST", "/v1/chat/completions", body)
		if !strings.Contains(w.Body.String(), `"broken_tool_calls":["the arguments end early"]}`) || !strings.Contains(w.Body.String(), `"finish_reason":"stop"`) {
			t.Errorf("%s", w.Body)
		}
	}
}

func TestCompletionBatch(t *testing.T) {
	e := enginetest.New(enginetest.Script{})
	e.Answer(func(r engine.Request) enginetest.Script {
		s := enginetest.Say("<" + *r.Prompt.Text + ">")
		s.Result.Stats.PromptTokens, s.Result.Stats.CompletionTokens = 10, 3
		return s
	})
	s := New(e, Options{})
	var answer struct {
		Choices []struct {
			Index int
			Text  string
		}
		Usage struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		}
	}
	w := call(s, "POST", "/v1/completions", `{"prompt":["a","b"],"n":2,"echo":true}`)
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || len(answer.Choices) != 4 {
		t.Fatal(w.Body)
	}
	for i, c := range answer.Choices {
		p := []string{"a", "a", "b", "b"}[i]
		if c.Index != i || c.Text != p+"<"+p+">" {
			t.Errorf("choice %d: %+v", i, c)
		}
	}
	if answer.Usage.Prompt != 20 || answer.Usage.Completion != 12 {
		t.Errorf("usage %+v", answer.Usage)
	}
	texts := map[int]string{}
	w = call(s, "POST", "/v1/completions", `{"prompt":["a","b"],"echo":true,"stream":true,"stream_options":{"include_usage":true}}`)
	finished := 0
	for _, ev := range parseSSE(w.Body.String()) {
		var c struct {
			Choices []struct {
				Index  int
				Text   string
				Finish *string `json:"finish_reason"`
			}
		}
		if ev.data != "[DONE]" && json.Unmarshal([]byte(ev.data), &c) == nil {
			for _, x := range c.Choices {
				texts[x.Index] += x.Text
				if x.Finish != nil {
					finished++
				}
			}
		}
	}
	if texts[0] != "a<a>" || texts[1] != "b<b>" || finished != 2 {
		t.Errorf("streamed %v, %d ends: %s", texts, finished, w.Body)
	}
}

func TestAnthropicPrompt(t *testing.T) {
	e := enginetest.New(enginetest.Say("ok"))
	w := call(New(e, Options{}), "POST", "/v1/messages", `{"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1.0; cch=aaaaa;"},{"type":"text","text":"Be careful.","cache_control":{"type":"ephemeral"}}],
	 "messages":[
	  {"role":"system","content":"Early."},
	  {"role":"user","content":[{"type":"text","text":"Hi"},{"type":"text","text":"there","cache_control":{}}]},
	  {"role":"system","content":[{"type":"text","text":"Late."}]},
	  {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"Look"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"a":1}}]},
	  {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","is_error":true,"content":[{"type":"text","text":"bad"},{"type":"image","source":{}},{"type":"tool_reference"}]},{"type":"text","text":"And?"}]},
	  {"role":"assistant","content":"So"},
	  {"role":"system","content":"Last."}],
	 "thinking":{"type":"disabled"},"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}},{"name":"later","defer_loading":true},{"type":"x"},{"name":"bare"}],
	 "stop_sequences":["END"],"seed":4,"max_tokens":12,"output_config":{"effort":"high"}}`)
	if w.Code != 200 {
		t.Fatal(w.Body)
	}
	r := e.Asked()[0]
	want := `[{"role":"system","content":"Be careful.\n\nEarly."},` +
		`{"role":"user","content":"Hi\nthere\n\n<system-reminder>\nLate.\n</system-reminder>"},` +
		`{"role":"assistant","content":"Look","reasoning_content":"hm","tool_calls":[{"id":"toolu_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},` +
		`{"role":"tool","tool_call_id":"toolu_1","content":"Error: bad\n[image left out: this model reads text only]"},` +
		`{"role":"user","content":"And?"},{"role":"assistant","content":"So"},` +
		`{"role":"user","content":"<system-reminder>\nLast.\n</system-reminder>"}]`
	if got := string(r.Prompt.Messages); got != want {
		t.Errorf("messages\n%s\nwant\n%s", got, want)
	}
	if want := `[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}},{"type":"function","function":{"name":"bare","parameters":{"type":"object","properties":{}}}}]`; string(r.Prompt.Tools) != want {
		t.Errorf("tools %s", r.Prompt.Tools)
	}
	if len(r.Prompt.Kwargs) != 1 || r.Prompt.Kwargs["enable_thinking"] != false || !slices.Equal(r.Stop, []string{"END"}) || *r.Sampling.Seed != 4 || r.MaxTokens != 12 {
		t.Errorf("request %+v", r)
	}
}

func TestAnthropicStream(t *testing.T) {
	call0 := engine.ToolCall{Index: 0, ID: "call_ab", Name: "f"}
	script := enginetest.Script{Steps: []enginetest.Step{
		delta(engine.Delta{Reasoning: "hm"}), delta(engine.Delta{Text: "\n"}), delta(engine.Delta{Text: " Look "}), delta(engine.Delta{Text: "\n"}), delta(engine.Delta{Text: "here\n\n"}),
		delta(engine.Delta{ToolCall: &call0}), delta(engine.Delta{ToolCall: &engine.ToolCall{Arguments: `{"a":`}}), delta(engine.Delta{ToolCall: &engine.ToolCall{Arguments: `1}`}}),
		delta(engine.Delta{ToolCall: &engine.ToolCall{Index: 1, ID: "call_cd", Name: "g", Arguments: "{}"}})},
		Result: engine.Result{FinishReason: engine.FinishToolCalls, Stats: telemetry.RequestSummary{PromptTokens: 9, CachedTokens: 4, CompletionTokens: 5}}}
	s := New(enginetest.New(script), Options{})
	w := call(s, "POST", "/v1/messages", messageStream)
	var names []string
	for _, e := range parseSSE(w.Body.String()) {
		names = append(names, e.name)
	}
	want := strings.Fields(`message_start ping content_block_start content_block_delta content_block_delta content_block_stop
		content_block_start content_block_delta content_block_delta content_block_stop
		content_block_start content_block_delta content_block_delta content_block_stop content_block_start content_block_delta content_block_stop message_delta message_stop`)
	if !slices.Equal(names, want) {
		t.Errorf("events %v", names)
	}
	for _, part := range []string{`"text":"Look"`, `"text":" \nhere"`, `{"type":"tool_use","id":"toolu_ab","name":"f","input":{}}`, `"partial_json":"{\"a\":"`,
		`"stop_reason":"tool_use"`, `"usage":{"input_tokens":5,"output_tokens":5,"cache_read_input_tokens":4}`, `"usage":{"input_tokens":7,"output_tokens":0}`, `{"type":"message_stop","x_mlx_dspark":{`} {
		if !strings.Contains(w.Body.String(), part) {
			t.Errorf("%s is missing in %s", part, w.Body)
		}
	}
	w = call(s, "POST", "/v1/messages", messageBody)
	if want := `"content":[{"type":"thinking","thinking":"hm","signature":"sparkbar"},{"type":"text","text":"Look \nhere"},{"type":"tool_use","id":"toolu_ab","name":"f","input":{"a":1}},{"type":"tool_use","id":"toolu_cd","name":"g","input":{}}]`; !strings.Contains(w.Body.String(), want) {
		t.Errorf("whole: %s", w.Body)
	}
	stop := enginetest.Say("a")
	stop.Result.StopString = "END"
	w = call(New(enginetest.New(stop), Options{}), "POST", "/v1/messages", messageBody)
	if !strings.Contains(w.Body.String(), `"stop_reason":"stop_sequence","stop_sequence":"END"`) {
		t.Errorf("stop sequence: %s", w.Body)
	}
}

// TestResponsesStream: numbers, order, and the same output as a whole answer.
func TestResponsesStream(t *testing.T) {
	script := enginetest.Script{Steps: []enginetest.Step{
		delta(engine.Delta{Reasoning: "h"}), delta(engine.Delta{Reasoning: "m"}), delta(engine.Delta{Text: "\n"}), delta(engine.Delta{Text: "fox "}), delta(engine.Delta{Text: "jumps "}),
		delta(engine.Delta{ToolCall: &engine.ToolCall{ID: "call_1", Name: "f"}}), delta(engine.Delta{ToolCall: &engine.ToolCall{Arguments: `{}`}})},
		Result: engine.Result{FinishReason: engine.FinishToolCalls, Stats: telemetry.RequestSummary{PromptTokens: 9, CachedTokens: 4, CompletionTokens: 5}}}
	s := New(enginetest.New(script), Options{})
	type body struct {
		Status string
		Output []map[string]any
		Usage  struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"input_tokens_details"`
		}
		Stats *telemetry.RequestSummary `json:"x_mlx_dspark"`
	}
	var whole, streamed body
	w := call(s, "POST", "/v1/responses", `{"input":"x","tools":[{"type":"function","name":"f"}]}`)
	if err := json.Unmarshal(w.Body.Bytes(), &whole); err != nil {
		t.Fatal(err)
	}
	w = call(s, "POST", "/v1/responses", `{"input":"x","stream":true,"tools":[{"type":"function","name":"f"}]}`)
	var names []string
	for i, ev := range parseSSE(w.Body.String()) {
		var o struct {
			Type     string
			Seq      int `json:"sequence_number"`
			Response body
		}
		if err := json.Unmarshal([]byte(ev.data), &o); err != nil || o.Type != ev.name || o.Seq != i+1 {
			t.Errorf("event %d: %v %v", i, ev, err)
		}
		names = append(names, strings.TrimPrefix(ev.name, "response."))
		streamed = o.Response
	}
	want := strings.Fields(`created in_progress output_item.added reasoning_summary_part.added reasoning_summary_text.delta reasoning_summary_text.delta
		reasoning_summary_text.done reasoning_summary_part.done output_item.done
		output_item.added content_part.added output_text.delta output_text.delta output_text.done content_part.done output_item.done
		output_item.added function_call_arguments.delta function_call_arguments.done output_item.done completed`)
	if !slices.Equal(names, want) {
		t.Errorf("events\n%v\nwant\n%v", names, want)
	}
	for _, b := range []*body{&whole, &streamed} {
		for _, item := range b.Output {
			delete(item, "id")
		}
		if b.Status != "completed" || b.Usage.Details.Cached != 4 || b.Stats == nil {
			t.Errorf("%+v", b)
		}
	}
	if a, b := string(encode(whole.Output)), string(encode(streamed.Output)); a != b || !strings.Contains(a, `"\nfox jumps "`) {
		t.Errorf("whole\n%s\nstreamed\n%s", a, b)
	}
}

func TestResponsesInput(t *testing.T) {
	e := enginetest.New(enginetest.Say("ok"))
	w := call(New(e, Options{}), "POST", "/v1/responses", `{"instructions":"Be brief.","input":[
		{"type":"message","role":"developer","content":[{"type":"input_text","text":"Rules"}]},{"role":"user","content":"Hi"},
		{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Look"}]},
		{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\":1}"},{"type":"function_call","id":"c2","name":"g","arguments":{"b":2}},
		{"type":"function_call_output","call_id":"c1","output":"one"},{"type":"function_call_output","call_id":"c2","output":{"x":1}},
		{"type":"item_reference","id":"x"}],
		"tools":[{"type":"function","name":"f","parameters":{}},{"type":"function","function":{"name":"g"}},{"type":"web_search"},{"type":"namespace","tools":[]}],
		"tool_choice":"auto","reasoning":{"effort":"minimal"},"stop":"END"}`)
	if w.Code != 200 {
		t.Fatal(w.Body)
	}
	r := e.Asked()[0]
	want := `[{"role":"system","content":"Be brief."},{"role":"system","content":"Rules"},{"role":"user","content":"Hi"},` +
		`{"role":"assistant","content":"Look","reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},{"id":"c2","type":"function","function":{"name":"g","arguments":"{\"b\":2}"}}]},` +
		`{"role":"tool","tool_call_id":"c1","content":"one"},{"role":"tool","tool_call_id":"c2","content":"{\"x\":1}"}]`
	if string(r.Prompt.Messages) != want {
		t.Errorf("messages\n%s\nwant\n%s", r.Prompt.Messages, want)
	}
	if string(r.Prompt.Tools) != `[{"type":"function","function":{"name":"f","parameters":{}}},{"type":"function","function":{"name":"g"}}]` {
		t.Errorf("tools %s", r.Prompt.Tools)
	}
	if r.Prompt.Kwargs["reasoning_effort"] != "low" || r.Stop[0] != "END" {
		t.Errorf("%+v", r)
	}
}

func TestControl(t *testing.T) {
	e := enginetest.Empty()
	s := New(e, Options{})
	w := call(s, "POST", "/admin/load", `{"model":" org/m ","drafter":"d","mode":"draft","max_draft":"auto","lookup_drafts":false,"confidence_threshold":0.5,
		"context_window":2048,"kv_bits":4,"drafter_window":0,"drafter_bits":8,"warmup":false,"enable_thinking":true,"reasoning_effort":"low",
		"small_m":true,"cpu_split":0.5,"sdpa_split":false,"multirow_attn":true,"memory_guard":false,"unknown":1}`)
	if w.Code != 200 || w.Body.String() != `{"ready":true,"loading":false,"model":"tiny-chat","error":null}` {
		t.Fatal(w.Code, w.Body)
	}
	r := e.Loads()[0]
	if r.Model != "org/m" || r.Drafter != "d" || r.Mode != "draft" || *r.MaxDraft != 0 || *r.LookupDrafts || *r.ConfidenceThreshold != 0.5 || *r.ContextWindow != 2048 ||
		*r.KVBits != 4 || *r.DrafterWindow != 0 || *r.DrafterBits != 8 || *r.Warmup || !*r.EnableThinking || *r.ReasoningEffort != "low" ||
		strings.Join(r.Unused, " ") != "small_m sdpa_split multirow_attn" || *r.CPUSplit != 0.5 || *r.MemoryGuard {
		t.Errorf("%+v", r)
	}
	for _, bad := range []string{`"max_draft":0`, `"max_draft":"lots"`, `"max_draft":65`, `"drafter":""`, `"drafter":5`, `"confidence_threshold":true`, `"context_window":1023`,
		`"kv_bits":5`, `"drafter_bits":7`, `"wait":1`, `"mode":5`, `"mode":""`, `"reasoning_effort":"max"`, `"cpu_split":1`, `"warmup":"yes"`} {
		key := strings.Trim(strings.SplitN(bad, ":", 2)[0], `"`)
		w := call(s, "POST", "/admin/load", `{"model":"m",`+bad+`}`)
		if w.Code != 400 || !strings.Contains(w.Body.String(), key) {
			t.Errorf("%s: %d %s", bad, w.Code, w.Body)
		}
	}
	if len(e.Loads()) != 1 {
		t.Error("a bad request reached the engine")
	}
	if w := call(s, "POST", "/admin/load", `{"model":"m","wait":false}`); w.Code != 202 ||
		w.Body.String() != `{"ready":false,"loading":true,"model":null,"error":null,"phase":"loading","download":null,"progress":{"model":"m","bytes_done":0,"bytes_total":0}}` {
		t.Errorf("asynchronous: %d %s", w.Code, w.Body)
	}
	for _, c := range []struct {
		kind   engine.ErrorKind
		status int
		want   string
	}{
		{engine.ErrLoadFailed, 400, `"message":"why","type":"invalid_request_error"`},
		{engine.ErrInternal, 500, `"message":"could not load 'm': why","type":"api_error"`},
		{engine.ErrBusy, 429, "why"},
		{engine.ErrCancelled, 409, "why"},
	} {
		e.FailLoads(&engine.Error{Kind: c.kind, Message: "why"})
		if w := call(s, "POST", "/admin/load", `{"model":"m"}`); w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s", c.kind, w.Code, w.Body)
		}
	}
	if w := call(s, "POST", "/admin/unload", ""); w.Body.String() != `{"ready":false,"loading":false,"model":null,"error":null}` {
		t.Errorf("unload: %s", w.Body)
	}
}

func TestHealthDuringSwap(t *testing.T) {
	e := enginetest.New(enginetest.Say("ok"))
	st := e.Status()
	st.State, st.Loading, st.InFlight, st.Queued = engine.StateSwapping, &engine.LoadProgress{Model: "next", BytesDone: 1, BytesTotal: 2}, 1, 2
	e.SetStatus(st)
	e.Log.Record(telemetry.Round{Committed: 1}, time.Now())
	s := New(e, Options{Keys: []string{"k"}})
	body := call(s, "GET", "/health", "").Body.String()
	for _, part := range []string{`"status":"loading"`, `"phase":"loading"`, `"serving":"tiny-chat"`, `"progress":{"model":"next","bytes_done":1,"bytes_total":2}`,
		`"in_flight":1,"queued":2,"last_round_age_seconds":`, `"version":"1.2.3"`} {
		if !strings.Contains(body, part) {
			t.Errorf("%s is missing in %s", part, body)
		}
	}
	if strings.Contains(body, `"last_round_age_seconds":null`) {
		t.Errorf("there was a round: %s", body)
	}
	if w := call(s, "POST", "/v1/chat/completions", chatBody, "X-Api-Key", "k"); w.Code != 200 {
		t.Errorf("the old model must answer during a swap: %d %s", w.Code, w.Body)
	}
}

func TestVerdict(t *testing.T) {
	ratio := 0.9
	script := enginetest.Say("ok")
	script.Result.Stats.RooflineRatio, script.Result.Stats.ContextTokens = &ratio, 2000
	e := enginetest.New(script)
	s := New(e, Options{})
	if w := call(s, "GET", "/metrics", ""); !strings.Contains(w.Body.String(), `"verdict":null`) {
		t.Errorf("before traffic: %s", w.Body)
	}
	call(s, "POST", "/v1/chat/completions", chatBody)
	e.Total.Requests = 1
	w := call(s, "GET", "/metrics", "")
	if body := w.Body.String(); !strings.Contains(body, `"verdict":{"level":"healthy"`) || !strings.Contains(body, "2000") {
		t.Errorf("%s", body)
	}
}

func TestPrometheus(t *testing.T) {
	e := enginetest.New(enginetest.Say("ok"))
	st := e.Status()
	st.Model.ID = "odd\"name\\\n"
	e.SetStatus(st)
	e.Total = telemetry.TotalsReport{Requests: 3, CompletionTokens: 40}
	s := New(e, Options{})
	for _, w := range []*httptest.ResponseRecorder{call(s, "GET", "/metrics?format=prometheus", ""), call(s, "GET", "/metrics", "", "Accept", "application/openmetrics-text;q=0.5,text/plain")} {
		body := w.Body.String()
		for _, part := range []string{"sparkbar_requests_total 3\n", "# TYPE sparkbar_completion_tokens_total counter\n", `model="odd\"name\\\n"`} {
			if !strings.Contains(body, part) {
				t.Errorf("%q is missing in %s", part, body)
			}
		}
	}
	if w := call(s, "GET", "/metrics", "", "Accept", "*/*"); !strings.HasPrefix(w.Body.String(), `{"model"`) {
		t.Errorf("%s", w.Body)
	}
	e.SetStatus(engine.Status{State: engine.StateIdle})
	if w := call(s, "GET", "/metrics?format=prometheus", ""); w.Code != 200 || !strings.Contains(w.Body.String(), "sparkbar_model_loaded 0\n") {
		t.Errorf("without a model: %d %s", w.Code, w.Body)
	}
}

// TestMLXLMProfile: the points that this profile changes.
func TestMLXLMProfile(t *testing.T) {
	script := enginetest.Say()
	script.Steps = []enginetest.Step{delta(engine.Delta{Reasoning: "hm"})}
	script.Result.Reasoning = "hm"
	e := enginetest.New(script)
	s := New(e, Options{Profile: MLXLMProfile()})
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{`{`, 400, `{"error":"Invalid JSON in request body: unexpected end of JSON input (at byte 1)"}`},
		{`[]`, 400, `{"error":"Request should be a JSON dictionary"}`},
		{`{}`, 400, `{"error":"Request did not contain messages"}`},
		{`{"messages":[{}],"stream":1}`, 400, `{"error":"stream must be of type bool"}`},
		{`{"messages":[{}],"max_tokens":0}`, 400, `{"error":"max_tokens must be at least 1"}`},
		{`{"messages":[{}],"temperature":"x"}`, 400, `{"error":"temperature must be of type ('float', 'int')"}`},
		{`{"messages":[{}],"top_p":2}`, 400, `{"error":"top_p must be at most 1"}`},
		{`{"messages":[{}],"top_logprobs":12}`, 400, `{"error":"top_logprobs must be at most 11"}`},
		{`{"messages":[{}],"logprobs":3}`, 400, `{"error":"logprobs must be of type bool"}`},
		{`{"messages":[{}],"xtc_threshold":null}`, 400, `{"error":"xtc_threshold must be of type float"}`},
		{`{"messages":[{}],"xtc_threshold":"0.1"}`, 400, `{"error":"xtc_threshold must be of type float"}`},
		{`{"tools":{},"seed":"x","top_k":[],"temperature":-1,"stream":1}`, 400, `{"error":"stream must be of type bool"}`},
		{`{"tools":{},"seed":"x","top_k":[]}`, 400, `{"error":"top_k must be of type int"}`},
	} {
		if w := call(s, "POST", "/v1/chat/completions", c.body); w.Code != c.status || w.Body.String() != c.want {
			t.Errorf("%s: %d %s, want %s", c.body, w.Code, w.Body, c.want)
		}
	}
	w := call(s, "POST", "/v1/chat/completions", `{"messages":[{}]}`)
	if body := w.Body.String(); !strings.Contains(body, `"message":{"role":"assistant","content":null,"reasoning":"hm"}`) || strings.Contains(body, "x_mlx_dspark") {
		t.Errorf("%s", body)
	}
	r := e.Asked()[0]
	if r.MaxTokens != 512 || *r.Sampling.Temperature != 0 || *r.Sampling.Params.FrequencyContextSize != 20 {
		t.Errorf("%+v", r)
	}
	w = call(s, "POST", "/v1/chat/completions", `{"messages":[{}],"stream":true,"stream_options":{"include_usage":true}}`)
	events := parseSSE(w.Body.String())
	if len(events) != 4 || !strings.Contains(events[0].data, `"delta":{"role":"assistant","reasoning":"hm"}`) || !strings.Contains(events[2].data, `"object":"chat.completion",`) {
		t.Errorf("%s", w.Body)
	}
	if w := call(s, "POST", "/v1/messages", `{}`); !strings.Contains(w.Body.String(), `{"type":"error"`) {
		t.Errorf("a route of another dialect: %s", w.Body)
	}
	if w := call(s, "GET", "/v1/models", ""); w.Body.String() != `{"object":"list","data":[{"id":"/models/tiny-chat","object":"model","created":1700000000}]}` {
		t.Errorf("%s", w.Body)
	}
	e.Answer(func(engine.Request) enginetest.Script {
		return enginetest.Script{Steps: []enginetest.Step{{Err: &engine.Error{Kind: engine.ErrInvalid, Field: "messages", Message: "template says no"}}}}
	})
	if w := call(s, "POST", "/v1/chat/completions", `{"messages":[{}],"stream":true}`); w.Code != 404 || w.Body.String() != `{"error":"template says no"}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestDisconnect: a client that goes away ends its generation, streaming or
// not, while the engine is silent and while it talks.
func TestDisconnect(t *testing.T) {
	silent := enginetest.Script{Steps: []enginetest.Step{{Block: true}}}
	talking := enginetest.Script{Steps: []enginetest.Step{delta(engine.Delta{Text: "Hi"}), {Block: true}}}
	for name, c := range map[string]struct {
		script enginetest.Script
		body   string
	}{"silent stream": {silent, chatStream}, "talking stream": {talking, chatStream}, "silent": {silent, chatBody}, "talking": {talking, chatBody}} {
		t.Run(name, func(t *testing.T) {
			e := enginetest.New(c.script)
			srv := httptest.NewServer(New(e, Options{}))
			defer srv.Close()
			ctx, cancel := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, "POST", srv.URL+"/v1/chat/completions", strings.NewReader(c.body))
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if resp, err := http.DefaultClient.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body) // until the cancel
					resp.Body.Close()
				}
			}()
			wait(t, func() bool { return len(e.Asked()) == 1 })
			cancel()
			<-gone
			wait(t, func() bool { return e.Cancelled() == 1 })
		})
	}
}

// wait polls for a state that other goroutines bring about.
func wait(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("it never happened")
}

// TestServeDrains: a running answer is finished after the stop, event streams
// end at once, and what does not finish in time ends with an error frame.
func TestServeDrains(t *testing.T) {
	e := enginetest.New(enginetest.Script{Steps: []enginetest.Step{delta(engine.Delta{Text: "Hi"}), {Block: true}}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	s := New(e, Options{DrainTimeout: 50 * time.Millisecond})
	s.abandoned = time.Minute // whoever is late gets the frame, too
	go func() { ended <- s.Serve(ctx, l) }()
	base := "http://" + l.Addr().String()
	events, err := http.Get(base + "/admin/events")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	resp, err := http.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(chatStream))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for line := ""; !strings.Contains(line, "Hi"); {
		if line, err = r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if _, err := io.ReadAll(events.Body); err != nil {
		t.Errorf("event stream: %v", err)
	}
	rest, err := io.ReadAll(r)
	if err != nil || !bytes.Contains(rest, []byte(`{"error":{"message":"the server is stopping"`)) {
		t.Errorf("%v, %s", err, rest)
	}
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := http.Get(base + "/health"); err == nil {
		t.Error("the server still listens")
	}
}

// TestChunkedBody: a body without a length is read, over a real connection.
func TestChunkedBody(t *testing.T) {
	srv := httptest.NewServer(New(enginetest.New(enginetest.Say("ok")), Options{}))
	defer srv.Close()
	resp, err := http.Post(srv.URL+"/v1/chat/completions", "", io.MultiReader(strings.NewReader(chatBody)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || !bytes.Contains(b, []byte(`"content":"ok"`)) {
		t.Errorf("%d %s", resp.StatusCode, b)
	}
}
