package httpapi

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"sparkbar/engine"
	"sparkbar/httpapi/internal/enginetest"
)

// fuzzRoute: no body makes a route panic or answer 500, and every answer is
// JSON or an event stream.
func fuzzRoute(f *testing.F, path string, seeds ...string) {
	files, _ := filepath.Glob("testdata/dspark/*.json")
	clients, _ := filepath.Glob("testdata/clients/*.json")
	for _, file := range append(files, clients...) {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		var g golden
		if json.Unmarshal(b, &g) == nil && dialectOf(g.Request.Path) == dialectOf(path) && len(g.Request.Body) > 0 {
			f.Add([]byte(g.Request.Body))
		}
		var rec struct {
			Requests []struct {
				Path string
				Body json.RawMessage
			}
		}
		if json.Unmarshal(b, &rec) == nil {
			for _, q := range rec.Requests {
				if len(q.Body) > 0 && len(q.Body) < 4000 && q.Path == path {
					f.Add([]byte(q.Body))
				}
			}
		}
	}
	for _, s := range append(seeds, `{`, `[]`, `{"stream":true}`, "\xff") {
		f.Add([]byte(s))
	}
	script := enginetest.Say("a")
	script.Result.ToolCalls = []engine.ToolCall{{ID: "call_1", Name: "f", Arguments: "{}"}}
	s := New(enginetest.New(script), Options{MaxBody: 1 << 20})
	f.Fuzz(func(t *testing.T, body []byte) {
		w := call(s, "POST", path, string(body))
		if w.Code >= 500 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w.Header().Get("Content-Type") == "application/json" && !json.Valid(w.Body.Bytes()) {
			t.Errorf("not JSON: %s", w.Body)
		}
	})
}

func FuzzChat(f *testing.F) { fuzzRoute(f, "/v1/chat/completions", chatBody, chatStream) }
func FuzzCompletions(f *testing.F) {
	fuzzRoute(f, "/v1/completions", `{"prompt":["a",[1]],"echo":true}`)
}
func FuzzMessages(f *testing.F)    { fuzzRoute(f, "/v1/messages", messageBody, messageStream) }
func FuzzCountTokens(f *testing.F) { fuzzRoute(f, "/v1/messages/count_tokens", messageBody) }
func FuzzResponses(f *testing.F) {
	fuzzRoute(f, "/v1/responses", `{"input":[{"type":"function_call_output","output":[{"type":"input_text","text":"x"}]}]}`)
}
func FuzzLoad(f *testing.F) {
	fuzzRoute(f, "/admin/load", `{"model":"m","max_draft":"auto","cpu_split":0.5}`)
}
func FuzzLoadCancel(f *testing.F) { fuzzRoute(f, "/admin/load/cancel", `{"cleanup":true}`) }
