package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"sparkbar/engine"
)

// TestModelThatSleeps: a request that wakes a model is answered in its name, though
// nothing was loaded when it came.
func TestModelThatSleeps(t *testing.T) {
	e, h := demo(t, engine.LoadRequest{}, func(o *engine.Options) { o.IdleUnload = time.Millisecond })
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"max_tokens":2,"messages":[{"role":"user","content":"Hi"}]}`,
		"/v1/completions":      `{"max_tokens":2,"prompt":"Hi"}`,
		"/v1/messages":         `{"max_tokens":2,"messages":[{"role":"user","content":"Hi"}]}`,
		"/v1/responses":        `{"max_output_tokens":2,"input":"Hi"}`,
	} {
		for _, stream := range []bool{false, true} {
			for end := time.Now().Add(time.Minute); e.Status().State != engine.StateAsleep; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%+v", e.Status())
				}
			}
			if stream {
				body = `{"stream":true,` + body[1:]
			}
			w := send(h, path, body)
			if w.Code != http.StatusOK {
				t.Fatalf("%s: %d %s", path, w.Code, w.Body)
			}
			found := false
			for _, line := range strings.Split(w.Body.String(), "\n") {
				var a struct {
					Object            string
					Type              string
					Model             *string
					Fingerprint       *string `json:"system_fingerprint"`
					Message, Response *struct{ Model string }
				}
				if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &a) != nil {
					continue
				}
				for _, nested := range []*struct{ Model string }{a.Message, a.Response} {
					if nested != nil {
						a.Model = &nested.Model
					}
				}
				if a.Model != nil {
					found = true
					if *a.Model != "demo" {
						t.Errorf("%s, stream %v: %s", path, stream, line)
					}
				}
				if a.Fingerprint != nil && *a.Fingerprint != "sparkbar-test-cpu" {
					t.Errorf("%s, stream %v: %s", path, stream, line)
				}
			}
			if !found {
				t.Errorf("%s, stream %v: no model in %s", path, stream, w.Body)
			}
		}
	}
}
