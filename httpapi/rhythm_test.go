package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/telemetry"
	"sparkbar/httpapi/internal/enginetest"
)

// These tests run on a fake clock: the times below are exact.

// timedWriter notes when each frame was written.
type timedWriter struct {
	*httptest.ResponseRecorder
	start time.Time
	mu    sync.Mutex
	log   []string
}

func (w *timedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, time.Since(w.start).String()+" "+string(b))
	return w.ResponseRecorder.Write(b)
}

func (w *timedWriter) frames() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.log...)
}

func serveTimed(ctx context.Context, s http.Handler, method, path, body string) *timedWriter {
	w := &timedWriter{ResponseRecorder: httptest.NewRecorder(), start: time.Now()}
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	r.Host = "localhost"
	s.ServeHTTP(w, r)
	return w
}

// match checks that frames begin with the given times and hold the texts.
func match(t *testing.T, got, want []string) {
	t.Helper()
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		at, text, _ := strings.Cut(want[i], " ")
		ok = ok && strings.HasPrefix(got[i], at+" ") && strings.Contains(got[i], text)
	}
	if !ok {
		t.Errorf("frames\n%q\nwant\n%q", got, want)
	}
}

func TestKeepAlive(t *testing.T) {
	progress := engine.Delta{Prefill: &engine.Progress{Done: 2048, Total: 9000}}
	script := enginetest.Say("Hi")
	script.Steps = append([]enginetest.Step{{Wait: 2 * time.Second}, {Delta: &progress}, {Wait: 5 * time.Second}}, append(script.Steps, enginetest.Step{Wait: 5 * time.Second})...)
	for path, c := range map[string]struct {
		body string
		want []string
	}{
		"/v1/chat/completions": {chatStream, []string{`900ms "role":"assistant"`, "900ms : keepalive 0/0\n\n", "4.9s : keepalive 2048/9000\n\n",
			`7s "content":"Hi"`, "11s : keepalive 2048/9000\n\n", `12s "finish_reason":"stop"`, "12s [DONE]"}},
		"/completions": {`{"prompt":"x","stream":true}`, []string{"900ms : keepalive 0/0\n\n", "4.9s : keepalive 2048/9000\n\n",
			`7s "text":"Hi"`, "11s : keepalive 2048/9000\n\n", `12s "finish_reason":"stop"`, "12s [DONE]"}},
		"/messages": {messageStream, []string{"900ms message_start", "900ms ping", "900ms ping", "4.9s ping", "7s content_block_start", "7s text_delta", "11s ping",
			"12s content_block_stop", "12s message_delta", "12s message_stop"}},
		"/responses": {`{"input":"x","stream":true}`, []string{"900ms response.created", "900ms response.in_progress", "900ms : keepalive 0/0", "4.9s : keepalive 2048/9000",
			"7s output_item.added", "7s content_part.added", "7s output_text.delta", "11s : keepalive 2048/9000", "12s output_text.done", "12s content_part.done",
			"12s output_item.done", "12s response.completed"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := serveTimed(t.Context(), New(enginetest.New(script), Options{}), "POST", path, c.body)
			match(t, w.frames(), c.want)
		})
	}
}

// TestLateError: an error after the first keep-alive cannot have a status any more.
func TestLateError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := enginetest.New(enginetest.Script{Steps: []enginetest.Step{{Wait: time.Second}, {Err: &engine.Error{Kind: engine.ErrInvalid, Message: "no"}}}})
		w := serveTimed(t.Context(), New(e, Options{}), "POST", "/v1/chat/completions", chatStream)
		match(t, w.frames(), []string{`900ms "role"`, "900ms : keepalive", `1s {"error":{"message":"no"`})
	})
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := enginetest.New(enginetest.Say("ok"))
		e.Log = telemetry.NewLog(time.Now())
		for i := range 40 {
			e.Log.Record(telemetry.Round{Req: "a", I: i, Committed: 1}, time.Now())
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan *timedWriter)
		s := New(e, Options{})
		go func() { done <- serveTimed(ctx, s, "GET", "/events", "") }()
		synctest.Wait()
		time.Sleep(500 * time.Millisecond)
		e.Bus.Publish("prefill", telemetry.Prefill{Type: "prefill", Req: "b", Processed: 1, Total: 2})
		e.Bus.Publish("round", e.Log.Record(telemetry.Round{Req: "b", Committed: 2}, time.Now()))
		e.Bus.Publish("request", map[string]string{"id": "b"})
		time.Sleep(16 * time.Second)
		st := e.Status()
		st.Model.LoadedAt = st.Model.LoadedAt.Add(time.Minute) // another load of the same model
		e.SetStatus(st)
		w := <-done
		got := w.frames()
		if len(got) < 40 || !strings.Contains(got[0], `"i":8,`) || !strings.HasPrefix(got[31], "0s event: round\n") || !strings.HasPrefix(got[32], "0s event: stats\n") {
			t.Fatalf("replay: %q", got)
		}
		want := []string{"500ms event: prefill\ndata: {\"type\":\"prefill\"", "500ms event: round\ndata: {\"req\":\"b\""}
		for i := range 15 {
			want = append(want, (500*time.Millisecond+time.Duration(i+1)*time.Second).String()+" : keepalive\n\n")
		}
		want = append(want, "15.5s event: stats")
		match(t, got[33:33+len(want)], want)
	})
}

func TestAdminEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := enginetest.Empty()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan *timedWriter)
		s := New(e, Options{})
		go func() { done <- serveTimed(ctx, s, "GET", "/admin/events", "") }()
		synctest.Wait()
		e.SetStatus(engine.Status{State: engine.StateLoading, Loading: &engine.LoadProgress{Model: "m", BytesDone: 3, BytesTotal: 9}})
		e.SetStatus(engine.Status{State: engine.StateReady, Model: enginetest.Model()})
		e.Bus.Publish("round", telemetry.Round{Req: "a"})
		e.Bus.Publish("download", engine.Download{ID: "dl_1", Repo: "org/m", State: "paused"})
		e.Bus.Publish("odd", func() {}) // cannot be written: left out
		time.Sleep(6 * time.Second)
		cancel()
		match(t, (<-done).frames(), []string{`0s event: state` + "\n" + `data: {"status":"no_model"`, `0s "progress":{"model":"m","bytes_done":3,"bytes_total":9}`,
			`0s data: {"status":"ok","model":"tiny-chat"`, `0s event: round`,
			"0s event: download\ndata: " + `{"repo":"org/m","bytes_done":0,"bytes_total":null,"state":"paused"`, "5s : keepalive\n\n"})
	})
}

// TestStuckClient: a generation ends when its frames cannot be written.
func TestStuckClient(t *testing.T) {
	e := enginetest.New(enginetest.Script{Steps: []enginetest.Step{delta(engine.Delta{Text: "a"}), {Block: true}}})
	w := brokenWriter{httptest.NewRecorder()}
	r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(chatStream))
	r.Host = "localhost"
	New(e, Options{}).ServeHTTP(w, r)
	if e.Cancelled() != 1 {
		t.Error("the generation went on")
	}
}

type brokenWriter struct{ *httptest.ResponseRecorder }

func (brokenWriter) Write([]byte) (int, error) { return 0, http.ErrHandlerTimeout }
