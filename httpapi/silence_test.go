package httpapi

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sparkbar/engine"
	"sparkbar/httpapi/internal/enginetest"
)

// TestKeepAliveWhileNothingShows: what an answer is made of may not show (thoughts
// that were switched off, spaces that may be the last, tokens of a held-back text):
// the client still hears something every few seconds.
func TestKeepAliveWhileNothingShows(t *testing.T) {
	var script enginetest.Script
	for range 10 {
		script.Steps = append(script.Steps, enginetest.Step{Wait: time.Second}, delta(engine.Delta{Reasoning: "hm"}), delta(engine.Delta{Tokens: []engine.Token{{}}}))
	}
	script.Result.FinishReason = engine.FinishStop
	for path, body := range map[string]string{
		"/v1/messages":    `{"max_tokens":9,"stream":true,"thinking":{"type":"disabled"},"messages":[{"role":"user","content":"x"}]}`,
		"/v1/completions": `{"prompt":"x","stream":true}`,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := serveTimed(t.Context(), New(enginetest.New(script), Options{}), "POST", path, body)
			last := time.Duration(0)
			for _, f := range w.frames() {
				at, _, _ := strings.Cut(f, " ")
				d, err := time.ParseDuration(at)
				if err != nil {
					t.Fatal(err)
				}
				if d-last > keepAlivePeriod {
					t.Errorf("%s: silence from %s to %s", path, last, d)
				}
				last = d
			}
			if last < 10*time.Second {
				t.Errorf("%s ended after %s", path, last)
			}
		})
	}
}

// TestUnsentBody: who announces a body and does not send it gets the answer that
// does not need it, and its connection is not kept for ever.
func TestUnsentBody(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the rest of a body: left out by -short")
	}
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: New(enginetest.New(enginetest.Say("x")), Options{Keys: []string{"key"}})}
	t.Cleanup(func() { srv.Close() })
	go func() { _ = srv.Serve(l) }()
	for _, c := range []struct{ request, want string }{
		{"POST /v1/chat/completions", "401"}, {"POST /nope", "401"}, {"PUT /health", "405"}, {"GET /health", "200"},
	} {
		t.Run(c.request, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", c.request)
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			got, err := io.ReadAll(conn) // to the end of the connection
			if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 "+c.want) {
				t.Errorf("%v %s", err, got)
			}
		})
	}
}

// TestLoadingIsSaid: while a model is on its way, routes that need one say so.
func TestLoadingIsSaid(t *testing.T) {
	for state, want := range map[engine.State]string{engine.StateIdle: msgNoModel, engine.StateAsleep: msgNoModel, engine.StateResolving: msgLoading, engine.StateDownloading: msgLoading,
		engine.StateLoading: msgLoading, engine.StateWarming: msgLoading, engine.StateSwapping: msgLoading} {
		e := enginetest.Empty()
		e.SetStatus(engine.Status{State: state, Loading: &engine.LoadProgress{Model: "m"}})
		s := New(e, Options{})
		for _, path := range []string{"/metrics", "/rounds", "/calibration", "/admin/integrations", "/v1/models", "/v1/models/m", "/events"} {
			w := call(s, "GET", path, "")
			if w.Code != 503 || message(t, path, w.Body.Bytes()) != want || w.Header().Get("Retry-After") == "" {
				t.Errorf("%s while %s: %d %s", path, state, w.Code, w.Body)
			}
		}
	}
}
