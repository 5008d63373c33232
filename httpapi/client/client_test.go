package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/models"
	"sparkbar/engine/telemetry"
	"sparkbar/httpapi"
	"sparkbar/httpapi/internal/enginetest"
)

func step(d engine.Delta) enginetest.Step { return enginetest.Step{Delta: &d} }

// both runs a test over TCP and in-process. It must see the same from both.
func both(t *testing.T, e *enginetest.Engine, run func(t *testing.T, c *Client) any) {
	t.Helper()
	s := httpapi.New(e, httpapi.Options{Keys: []string{"k"}})
	srv := httptest.NewServer(s)
	defer srv.Close()
	tcp, err := New(srv.URL+"/v1/", "k")
	if err != nil {
		t.Fatal(err)
	}
	var seen []any
	for name, c := range map[string]*Client{"tcp": tcp, "in-process": InProcess(s, "k")} {
		t.Run(name, func(t *testing.T) { seen = append(seen, run(t, c)) })
	}
	if len(seen) == 2 && !reflect.DeepEqual(seen[0], seen[1]) {
		t.Errorf("the two clients differ:\n%+v\n%+v", seen[0], seen[1])
	}
}

func TestRoutes(t *testing.T) {
	e := enginetest.New(enginetest.Say("ok"))
	e.Log.Record(telemetry.Round{Req: "a", Committed: 3}, time.Now())
	both(t, e, func(t *testing.T, c *Client) any {
		ctx := t.Context()
		h, err := c.Health(ctx)
		if err != nil || h.Status != "ok" || h.Model != "tiny-chat" || h.ContextWindow != 2048 || h.Version != "1.2.3" || h.LastRoundAge == nil || h.MaxDraft != "auto" {
			t.Errorf("%+v %v", h, err)
		}
		st, err := c.Status(ctx)
		if err != nil || !st.Ready || st.Model != "tiny-chat" {
			t.Errorf("%+v %v", st, err)
		}
		models, err := c.Models(ctx)
		if err != nil || len(models) != 1 || models[0].ID != "tiny-chat" || models[0].Extra.Target != "/models/tiny-chat" {
			t.Errorf("%+v %v", models, err)
		}
		rounds, stats, err := c.Rounds(ctx, 5)
		if err != nil || len(rounds) != 1 || stats.CommittedTokens != 3 {
			t.Errorf("%+v %+v %v", rounds, stats, err)
		}
		cancelled, err := c.LoadCancel(ctx, true)
		if err != nil || cancelled {
			t.Errorf("%v %v", cancelled, err)
		}
		return []any{st, models, rounds, stats}
	})
}

func TestLoad(t *testing.T) {
	e := enginetest.Empty()
	both(t, e, func(t *testing.T, c *Client) any {
		window, off := 4096, false
		st, err := c.Load(t.Context(), LoadRequest{Model: "m", Mode: "lookup", MaxDraft: AutoDraft, ContextWindow: &window})
		loads := e.Loads()
		r := loads[len(loads)-1]
		if err != nil || !st.Ready || r.Model != "m" || *r.MaxDraft != 0 || *r.ContextWindow != 4096 || r.KVBits != nil {
			t.Errorf("%+v %v %+v", st, err, r)
		}
		if _, err := c.Unload(t.Context()); err != nil {
			t.Error(err)
		}
		later, err := c.Load(t.Context(), LoadRequest{Model: "m", MaxDraft: 3, Wait: &off})
		if err != nil || later.Ready || !later.Loading || later.Phase != "loading" || later.Progress.Model != "m" {
			t.Errorf("%+v %v", later, err)
		}
		return []any{st, later}
	})
	e.HoldLoads()
	c := InProcess(httpapi.New(e, httpapi.Options{}), "")
	failed := make(chan error, 1)
	go func() {
		_, err := c.Load(t.Context(), LoadRequest{Model: "m"})
		failed <- err
	}()
	for len(e.Loads()) < 5 {
		time.Sleep(time.Millisecond)
	}
	for {
		if ok, err := c.LoadCancel(t.Context(), false); err != nil {
			t.Fatal(err)
		} else if ok {
			break
		}
	}
	var he *Error
	if err := <-failed; !errors.As(err, &he) || he.Status != http.StatusConflict {
		t.Errorf("a cancelled load: %v", err)
	}
}

func TestErrors(t *testing.T) {
	e := enginetest.Empty()
	both(t, e, func(t *testing.T, c *Client) any {
		var he *Error
		_, err := c.Chat(t.Context(), ChatRequest{Messages: []Message{{"user", "x"}}}, nil)
		if !errors.As(err, &he) || he.Status != 503 || he.Type != "service_unavailable" || !strings.HasPrefix(he.Message, "no model is loaded") {
			t.Errorf("%v", err)
		}
		_, err = c.Load(t.Context(), LoadRequest{})
		if !errors.As(err, &he) || he.Status != 400 || he.Type != "invalid_request_error" {
			t.Errorf("%v", err)
		}
		return *he
	})
	bad := InProcess(httpapi.New(e, httpapi.Options{Keys: []string{"k"}}), "wrong")
	var he *Error
	if _, err := bad.Status(t.Context()); !errors.As(err, &he) || he.Status != 401 || he.Message != "invalid api key" {
		t.Errorf("%v", err)
	}
	plain := InProcess(httpapi.New(e, httpapi.Options{Profile: httpapi.MLXLMProfile()}), "")
	if _, err := plain.Chat(t.Context(), ChatRequest{}, nil); !errors.As(err, &he) || he.Status != 503 || !strings.HasPrefix(he.Message, "no model") {
		t.Errorf("the plain form of errors: %v", err)
	}
	for _, address := range []string{"", "localhost:8080", "ftp://x", "http://", "http://a b"} {
		if _, err := New(address, ""); err == nil {
			t.Errorf("address %q was accepted", address)
		}
	}
}

func TestChat(t *testing.T) {
	script := enginetest.Say("Hi ", "there")
	script.Result.Stats.Mode = "dspark"
	script.Steps = append([]enginetest.Step{step(engine.Delta{Reasoning: "hm"})}, script.Steps...)
	e := enginetest.New(script)
	both(t, e, func(t *testing.T, c *Client) any {
		var deltas []ChatDelta
		off := false
		r, err := c.Chat(t.Context(), ChatRequest{Messages: []Message{{"user", "x"}}, MaxTokens: 9, EnableThinking: &off}, func(d ChatDelta) error {
			deltas = append(deltas, d)
			return nil
		})
		if err != nil || r.Text != "Hi there" || r.Reasoning != "hm" || r.FinishReason != "stop" || r.Stats.Mode != "dspark" || !strings.HasPrefix(r.ID, "chatcmpl-") {
			t.Errorf("%+v %v", r, err)
		}
		if want := []ChatDelta{{Reasoning: "hm"}, {Text: "Hi "}, {Text: "there"}}; !reflect.DeepEqual(deltas, want) {
			t.Errorf("%+v", deltas)
		}
		stop := errors.New("enough")
		if _, err := c.Chat(t.Context(), ChatRequest{Messages: []Message{{"user", "x"}}}, func(ChatDelta) error { return stop }); err != stop {
			t.Errorf("%v", err)
		}
		r.ID = ""
		return r
	})
}

// TestChatStops: leaving a stream ends the generation; a stream that breaks is
// an error.
func TestChatStops(t *testing.T) {
	e := enginetest.New(enginetest.Script{Steps: []enginetest.Step{step(engine.Delta{Text: "Hi"}), {Block: true}}})
	before := 0
	both(t, e, func(t *testing.T, c *Client) any {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := c.Chat(ctx, ChatRequest{Messages: []Message{{"user", "x"}}}, func(ChatDelta) error { cancel(); return nil })
		if !errors.Is(err, context.Canceled) || r.Text != "Hi" {
			t.Errorf("%+v %v", r, err)
		}
		for e.Cancelled() == before {
			time.Sleep(time.Millisecond)
		}
		before = e.Cancelled()
		return nil
	})
	e.Answer(func(engine.Request) enginetest.Script {
		return enginetest.Script{Steps: []enginetest.Step{step(engine.Delta{Text: "Hi"}), {Err: errors.New("gone")}}}
	})
	both(t, e, func(t *testing.T, c *Client) any {
		var he *Error
		_, err := c.Chat(t.Context(), ChatRequest{Messages: []Message{{"user", "x"}}}, nil)
		if !errors.As(err, &he) || he.Message != "generation failed: gone" {
			t.Errorf("%v", err)
		}
		return *he
	})
	cut := InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, ": keepalive 3/9\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n")
		panic(http.ErrAbortHandler)
	}), "")
	var seen []ChatDelta
	if _, err := cut.Chat(t.Context(), ChatRequest{}, func(d ChatDelta) error { seen = append(seen, d); return nil }); err == nil {
		t.Error("a broken stream passed as an answer")
	}
	if want := []ChatDelta{{Done: 3, Total: 9}, {Text: "Hi"}}; !reflect.DeepEqual(seen, want) {
		t.Errorf("%+v", seen)
	}
}

func TestEvents(t *testing.T) {
	e := enginetest.Empty()
	both(t, e, func(t *testing.T, c *Client) any {
		e.SetStatus(engine.Status{State: engine.StateIdle})
		var names []string
		stop := errors.New("enough")
		err := c.Events(t.Context(), func(ev Event) error {
			names = append(names, ev.Name)
			switch len(names) {
			case 1:
				var h Health
				if err := json.Unmarshal(ev.Data, &h); err != nil || h.Status != "no_model" {
					t.Errorf("%s %v", ev.Data, err)
				}
				e.SetStatus(engine.Status{State: engine.StateReady, Model: enginetest.Model()})
			case 2:
				e.Bus.Publish("round", telemetry.Round{Req: "a", Committed: 2})
			case 3:
				var r telemetry.Round
				if err := json.Unmarshal(ev.Data, &r); err != nil || r.Committed != 2 {
					t.Errorf("%s %v", ev.Data, err)
				}
				return stop
			}
			return nil
		})
		if err != stop {
			t.Errorf("%v", err)
		}
		return names
	})
	ctx, cancel := context.WithCancel(t.Context())
	err := InProcess(httpapi.New(e, httpapi.Options{}), "").Events(ctx, func(Event) error { cancel(); return nil })
	if err != context.Canceled {
		t.Errorf("%v", err)
	}
	for e.Bus.Subscribers() > 0 { // every stream has been left
		time.Sleep(time.Millisecond)
	}
}

func FuzzEventReader(f *testing.F) {
	f.Add("event: a\ndata: {}\n\n: c\n\ndata:x\ndata: y\r\n\r\n")
	f.Add(":\n\n")
	f.Fuzz(func(t *testing.T, s string) {
		r := newEventReader(strings.NewReader(s))
		for range len(s) + 2 {
			if _, err := r.next(); err != nil {
				return
			}
		}
		t.Error("the reader never ends")
	})
}

func TestControl(t *testing.T) {
	e := enginetest.New(enginetest.Say("ok"))
	e.Local = []models.Model{{ID: "org/m", Complete: true, Bytes: 3 << 30, Context: 4096}, {ID: "org/half", Reason: "half of it is missing"}}
	e.Findings = []engine.Finding{{Code: "x", Level: engine.LevelProblem, Message: "m", Fix: "f"}}
	e.Info.Memory.Total, e.Info.Memory.Available = 32<<30, 16<<30
	both(t, e, func(t *testing.T, c *Client) any {
		ctx := t.Context()
		e.Running = []engine.RequestInfo{{ID: "a b/c", State: "queued"}}
		inv, err := c.Inventory(ctx)
		if err != nil || len(inv.Installed) != 2 || inv.Installed[0].ID != "org/m" || inv.Installed[0].Fit.Verdict != "fits" || inv.Installed[1].Reason == "" || len(inv.Known) < 10 || inv.Loaded != "/models/tiny-chat" {
			t.Errorf("%+v %v", inv, err)
		}
		ok, findings, err := c.Doctor(ctx)
		if ok || err != nil || len(findings) != 1 || findings[0].Fix != "f" {
			t.Errorf("%v %+v %v", ok, findings, err)
		}
		m, err := c.Machine(ctx)
		if err != nil || m.Memory.TotalBytes != 32<<30 || m.Memory.FreePercent != 50 || m.Roofline == nil || m.Verdict == nil {
			t.Errorf("%+v %v", m, err)
		}
		list, err := c.Integrations(ctx)
		if err != nil || len(list) < 5 || list[0].Setup[0].Command == "" {
			t.Errorf("%+v %v", list, err)
		}
		running, err := c.Requests(ctx)
		if err != nil || len(running) != 1 || running[0].State != "queued" {
			t.Errorf("%+v %v", running, err)
		}
		var he *Error
		if err := c.CancelRequest(ctx, "nobody"); !errors.As(err, &he) || he.Status != 404 || Absent(err) {
			t.Errorf("%v", err)
		}
		e.Fetching = nil
		started, err := c.StartDownload(ctx, "org/m", true)
		if err != nil || started.ID == "" || started.Model != "org/m" {
			t.Errorf("%+v %v", started, err)
		}
		if d, err := c.PauseDownload(ctx, started.ID); err != nil || d.State != "paused" {
			t.Errorf("%+v %v", d, err)
		}
		if d, err := c.ResumeDownload(ctx, started.ID); err != nil || d.State != "downloading" {
			t.Errorf("%+v %v", d, err)
		}
		if st, err := c.Status(ctx); err != nil || len(st.Downloads) != 1 || st.Downloads[0].ID != started.ID {
			t.Errorf("%+v %v", st, err)
		}
		if d, err := c.CancelDownload(ctx, started.ID, true); err != nil || d.State != "cancelled" || !strings.Contains(d.Error, "cleanup true") {
			t.Errorf("%+v %v", d, err)
		}
		if list, err := c.Downloads(ctx); err != nil || len(list) != 1 || list[0].State != "cancelled" {
			t.Errorf("%+v %v", list, err)
		}
		if _, err := c.PauseDownload(ctx, "no such one"); !errors.As(err, &he) || he.Status != 404 || Absent(err) {
			t.Errorf("%v", err)
		}
		if _, err := c.Settings(ctx); !Absent(err) {
			t.Errorf("a server without settings: %v", err)
		}
		var names []string
		err = c.Race(ctx, RaceRequest{Prompt: "x", Arms: []RaceArm{{Mode: "lookup", Cap: 3}, {Mode: "baseline"}}, MaxTokens: 5}, func(ev Event) error { names = append(names, ev.Name); return nil })
		if got := strings.Join(names, " "); err != nil || got != "start arm_start token arm_done arm_start token arm_done verdict done" {
			t.Errorf("%s %v", got, err)
		}
		return []any{inv, findings, m.Memory, names}
	})
}
