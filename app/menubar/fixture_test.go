package menubar

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"sparkbar/httpapi/client"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	fixtureModel = "tiny-chat-4bit"
	fixtureNext  = "big-model-8bit"
)

// play applies events, each a millisecond after the other.
func play(s State, events ...Event) State {
	now := s.Now
	if now.IsZero() {
		now = t0
	}
	for _, e := range events {
		now = now.Add(time.Millisecond)
		s = s.Apply(e, now)
	}
	return s
}

// health reads a HealthSeen as it comes over the wire.
func health(t testing.TB, body string) Event {
	t.Helper()
	e, err := Decode(client.Event{Name: "state", Data: json.RawMessage(body)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

const okBody = `{"status":"ok","state":"ready","model":"tiny-chat-4bit","mode":"dspark","target":"org/tiny-chat-4bit","drafter":"org/drafter-dspark","max_draft":"auto",
 "lookup_drafts":true,"thinking_default":"on","weight_bytes":3221225472,"drafter_bytes":1073741824,"version":"1.3.0","backend":"cpu","context_window":4096}`

// base is a product that has once loaded a model and stands idle.
func base(t testing.TB) State {
	return play(State{},
		HostSeen{Window: true, Reveal: true, Login: true, Server: true, Quit: true},
		SettingsSeen(DefaultSettings()),
		LoginSeen(LoginOff),
		FeaturesSeen{true, true, true, true, true, true, true},
		MachineSeen{TotalBytes: 16 * gib, Pressure: PressureNormal, CeilingTPS: 20},
		ServerSeen{Running: true, Port: 8080},
		health(t, okBody),
		ModelsSeen{{ID: fixtureModel, Path: "/m/tiny", Bytes: 3 * gib, Kind: "model", Source: "cache", Complete: true, Modes: []string{"dspark"}},
			{ID: fixtureNext, Path: "/m/big", Bytes: 8 * gib, Kind: "model", Source: "lmstudio", Complete: false},
			{ID: "drafter-dspark", Kind: "drafter", Complete: true}},
		ClientsSeen{{ID: "codex", Name: "Codex", Program: "codex", Command: "codex --profile sparkbar"}, {ID: "openai-sdk", Name: "OpenAI SDK"}, {ID: "claude-code", Name: "Claude Code", Program: "claude", Installed: true, Command: "sparkbar claude"}},
	)
}

// inPhase brings the product into a phase by events alone.
func inPhase(t testing.TB, p Phase) State {
	t.Helper()
	s := base(t)
	rounds := func() []Event {
		var l []Event
		l = append(l, RequestSeen{ID: "r1", State: "running", Prompt: 100, Client: "codex"})
		for i := range 3 {
			l = append(l, RoundSeen{Req: "r1", I: i + 1, Committed: 4, Source: "drafter", MS: 100})
		}
		return l
	}
	loading := func(state, phase, more string) Event {
		return health(t, fmt.Sprintf(`{"status":"loading","state":%q,"phase":%q,"version":"1.3.0","progress":{"model":"org/%s","bytes_done":2147483648,"bytes_total":8589934592}%s}`, state, phase, fixtureNext, more))
	}
	switch p {
	case Starting:
		s = play(s, ServerSeen{Starting: true})
	case NoModel:
		s = play(s, health(t, `{"status":"no_model","state":"idle"}`))
	case Asleep:
		s = play(s, health(t, `{"status":"no_model","state":"asleep"}`))
	case Downloading:
		s = play(s, loading("downloading", "loading", `,"download":{"repo":"org/`+fixtureNext+`","bytes_done":2147483648,"bytes_total":8589934592,"bytes_per_second":53687091.2}`))
	case Loading:
		s = play(s, loading("loading", "loading", ""))
	case WarmingUp:
		s = play(s, loading("warming", "warming_up", ""))
	case Ready:
	case Prefill:
		s = play(s, RequestSeen{ID: "r1", State: "running", Prompt: 4096, Client: "codex"}, PrefillSeen{Req: "r1", Processed: 1024, Total: 4096})
	case Generating:
		s = play(s, rounds()...)
	case Cancelling:
		s = play(s, loading("loading", "loading", ""), CancelAsked{})
	case Stopped:
		s = play(s, ServerSeen{Port: 8080})
	case Failed:
		s = play(s, ServerSeen{}, PortTaken{Port: 8080, Process: "nginx", PID: 77, Free: 8484})
	}
	if got := s.Phase(); got != p {
		t.Fatalf("the fixture of %s is in %s", p, got)
	}
	return s
}

var overlays = []string{"none", "warn", "critical", "lan", "unprotected", "update", "queued", "port_moved", "last_load_error"}

// overlay puts a condition over a phase.
func overlay(t testing.TB, s State, name string) State {
	t.Helper()
	server := s.Server
	switch name {
	case "none":
	case "warn", "critical":
		m := s.Machine
		m.Pressure = name
		if name == "critical" {
			m.SwapBytes, m.Guard = 3*gib/2, "emptied the prefix cache"
		}
		s = play(s, MachineSeen(m))
	case "lan":
		server.LAN, server.Protected, server.Key = "http://192.168.1.5:8080", true, "sekret"
		s = play(s, ServerSeen(server))
	case "unprotected":
		server.LAN = "http://192.168.1.5:8080"
		s = play(s, ServerSeen(server))
	case "update":
		s = play(s, UpdateSeen{Version: "1.4.0", Notes: "faster", URL: "https://example.org/r", Command: "brew upgrade sparkbar"})
	case "queued":
		s = play(s, RequestSeen{ID: "q1", State: "queued", Prompt: 10}, RequestSeen{ID: "q2", State: "queued", Prompt: 20})
	case "port_moved":
		server.Port, server.Moved = 8484, true
		s = play(s, ServerSeen(server))
	case "last_load_error":
		s = play(s, LoadFailed{"org/x", fmt.Errorf("The file config.json is missing. Choose another folder.")})
	default:
		t.Fatalf("no overlay %q", name)
	}
	return s
}
