package httpapi_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/telemetry"
)

// TestFollowUpsAreCached: the request that brings the result of a tool back reuses
// nearly all of the one before, in the words of each client.
func TestFollowUpsAreCached(t *testing.T) {
	files, err := filepath.Glob("testdata/clients/*-tool.json")
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	const page = 64
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var recording struct {
				Requests []struct {
					Method, Path string
					Body         map[string]json.RawMessage
				}
			}
			if err := json.Unmarshal(text, &recording); err != nil {
				t.Fatal(err)
			}
			n := len(recording.Requests)
			if n < 2 {
				t.Fatalf("%d requests", n)
			}
			window := 32768
			_, h := demo(t, engine.LoadRequest{ContextWindow: &window}, nil)
			var stats [2]telemetry.RequestSummary
			for i, r := range recording.Requests[n-2:] {
				r.Body["max_tokens"] = json.RawMessage("4")
				body, err := json.Marshal(r.Body)
				if err != nil {
					t.Fatal(err)
				}
				req := httptest.NewRequest(r.Method, r.Path, bytes.NewReader(body))
				req.Host = "localhost"
				w := httptest.NewRecorder()
				h.ServeHTTP(w, req)
				found := false
				for _, line := range strings.Split(w.Body.String(), "\n") {
					var end struct {
						Stats *telemetry.RequestSummary `json:"x_mlx_dspark"`
					}
					if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &end) == nil && end.Stats != nil {
						stats[i], found = *end.Stats, true
					}
				}
				if w.Code != http.StatusOK || !found {
					t.Fatalf("request %d: %d %s", i, w.Code, w.Body)
				}
			}
			first, second := stats[0], stats[1]
			t.Logf("%d tokens, then %d of %d reused", first.PromptTokens, second.CachedTokens, second.PromptTokens)
			if first.PromptTokens < 500 || second.PromptTokens <= first.PromptTokens || second.CachedTokens < first.PromptTokens-page {
				t.Errorf("%d tokens, then only %d of %d reused", first.PromptTokens, second.CachedTokens, second.PromptTokens)
			}
		})
	}
}
