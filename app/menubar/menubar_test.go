package menubar

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"sparkbar/httpapi/client"
)

// TestDialogs holds every dialog of the reference: title, text, buttons and
// what they do.
func TestDialogs(t *testing.T) {
	click := func(s State, id, arg string) *Dialog {
		e, d := Click(s, id, arg)
		if d == nil {
			t.Fatalf("%s asks nothing, it does %+v", id, e)
		}
		return d
	}
	busy := overlay(t, inPhase(t, Generating), "queued")
	fit := inPhase(t, NoModel)
	fit = play(fit, ModelsSeen{{ID: "org/huge", Complete: true, Fit: &Fit{Need: 40 * gib, Available: 12 * gib, Context: 32768, SmallContext: 4096, SmallNeed: 11 * gib}}})
	failed := LoadFailed{"org/x", errors.New("config.json is missing.")}
	full := LoadFailed{"org/x", &client.Error{Status: http.StatusInsufficientStorage, Message: "8.0 GB needed, 1.0 GB free on Macintosh HD."}}
	code := LoadFailed{"org/x", errors.New("the config names auto_map, which is Python code")}
	updated := overlay(t, base(t), "update")
	for _, c := range []struct {
		d                      *Dialog
		id, title, text, wants string // wants: button=verb/arg, ...
	}{
		{Dialogs(PortTaken{8080, "nginx", 77, 8484}, base(t)), "D1", "Port 8080 is in use", "nginx (pid 77) is listening there. Clients that are set to this port would reach that program.",
			"Use Port 8484 This Time=start/8484, Change Port…=open/settings/server, Try Again=start/, Quit=quit/"},
		{Dialogs(failed, inPhase(t, NoModel)), "D3", "x did not load", "config.json is missing.", "OK=nothing/, Show Log=log/"},
		{Dialogs(failed, base(t)), "D3", "x did not load", "config.json is missing. The previous model was restored.", "OK=nothing/, Show Log=log/"},
		{click(inPhase(t, Downloading), "cancel", ""), "D4", "Cancel the download?", "2.0 of 8.0 GB are on disk.", "Keep What Is Downloaded=cancel/, Delete It=cancel/delete, Continue=nothing/"},
		{click(busy, "unload", ""), "D5", "3 requests are running", "codex\nq1\nq2", "Wait and Then Unload=wait unload/, Unload Now=stop unload/, Cancel=nothing/"},
		{click(busy, "server", ""), "D5", "3 requests are running", "codex\nq1\nq2", "Wait and Then Stop=wait halt/, Stop Now=stop halt/, Cancel=nothing/"},
		{click(inPhase(t, Generating), "quit", ""), "D5", "1 request is running", "codex", "Wait and Then Quit=wait quit/, Quit Now=quit/now, Cancel=nothing/"},
		{click(fit, "model.load", "org/huge"), "D6", "huge may not fit", "It needs about 40.0 GB for 32768 tokens of context; 12.0 GB are available. With 4096 tokens it needs 11.0 GB.",
			"Load with 4096 Tokens=load/org/huge@4096, Load Anyway=load/org/huge, Cancel=nothing/"},
		{click(base(t), "lan", ""), "D7", "Let other devices use this model?", "Anyone on your network could use it without a key.", "Turn On with a Key=lan/key, Turn On Without=lan/open, Cancel=nothing/"},
		{Dialogs(full, base(t)), "D8", "Not enough space", "8.0 GB needed, 1.0 GB free on Macintosh HD.", "Choose Another Folder…=open/settings/models, Cancel=nothing/"},
		{Dialogs(code, base(t)), "D9", "org/x contains its own program code", "the config names auto_map, which is Python code. It is never run.", "OK=nothing/"},
		{Dialogs(BadSettings{"config.yaml", 7, "port must be a number."}, base(t)), "D10", "The settings file has an error", "config.yaml:7: port must be a number. The last good settings stay in use.", "Open File=edit/config.yaml, OK=nothing/"},
		{click(updated, "update", ""), "D11", "Version 1.4.0 is available", "faster", "Open Release Page=browse/https://example.org/r, Copy brew Command=copy/update, Skip This Version=skip/1.4.0, Later=nothing/"},
		{Dialogs(Crashed{"org/tiny", 1}, base(t)), "D12", "Sparkbar quit unexpectedly last time", "Load tiny now? It was loaded when it happened.", "Load=load/org/tiny, Not Now=nothing/"},
		{Dialogs(Crashed{"org/tiny", 2}, base(t)), "D12", "Sparkbar quit unexpectedly last time", "Load tiny now? It was loaded when it happened.", "Not Now=nothing/, Load=load/org/tiny"},
	} {
		if c.d == nil {
			t.Errorf("no dialog %s", c.id)
			continue
		}
		var got []string
		for _, b := range c.d.Buttons {
			v := ""
			if b.Effect.Wait {
				v += "wait "
			}
			if b.Effect.Stop {
				v += "stop "
			}
			v += string(b.Effect.Do) + "/" + b.Effect.Arg
			if n := b.Effect.Load.Context; n > 0 {
				v += fmt.Sprintf("@%d", n)
			}
			got = append(got, b.Title+"="+v)
		}
		if c.d.ID != c.id || c.d.Title != c.title || c.d.Text != c.text || strings.Join(got, ", ") != c.wants {
			t.Errorf("%s: %q %q\n%s\nwant %q %q\n%s", c.d.ID, c.d.Title, c.d.Text, strings.Join(got, ", "), c.title, c.text, c.wants)
		}
	}
	// No dialog where the reference has none.
	for _, e := range []Event{LoadFailed{"x", &client.Error{Status: 409, Type: "cancelled", Message: "the load was cancelled"}}, Tick{}, Lost{"gone"}} {
		if d := Dialogs(e, base(t)); d != nil {
			t.Errorf("%T asks %+v", e, d)
		}
	}
	for _, id := range []string{"unload", "server", "quit", "cancel"} { // nothing runs, or there is nothing to ask
		if _, d := Click(inPhase(t, Ready), id, ""); d != nil {
			t.Errorf("%s asks %+v though nothing runs", id, d)
		}
	}
}

// TestClicks: what each item does.
func TestClicks(t *testing.T) {
	s := overlay(t, base(t), "lan")
	off := false
	for _, c := range []struct {
		s       State
		id, arg string
		want    Effect
	}{
		{s, "unload", "", Effect{Do: VerbUnload}},
		{s, "model.load", fixtureNext, Effect{Do: VerbLoad, Arg: fixtureNext}},
		{s, "model.unload", fixtureModel, Effect{Do: VerbUnload}},
		{s, "model.copy", fixtureModel, Effect{Do: VerbCopy, Arg: "model.copy", Text: fixtureModel}},
		{s, "model.pin", fixtureModel, Effect{Do: VerbPin, Arg: fixtureModel}},
		{s, "model.reveal", fixtureModel, Effect{Do: VerbReveal, Arg: "/m/tiny"}},
		{play(s, ModelsSeen{{ID: "org/x", Path: "/hub/models--org--x/snapshots/0123", Source: "cache", Complete: true}}), "model.reveal", "org/x", Effect{Do: VerbReveal, Arg: "/hub/models--org--x/snapshots/0123"}},
		{s, "model.options", fixtureNext, Effect{Do: VerbOpen, Arg: "models/" + fixtureNext}},
		{s, "models.browse", "", Effect{Do: VerbOpen, Arg: "models"}},
		{s, "decoding.mode", "baseline", Effect{Do: VerbLoad, Arg: "org/" + fixtureModel, Load: LoadOptions{Mode: "baseline"}}},
		{s, "decoding.mode", "dflash", nothing}, // the pair has none
		{s, "decoding.cap", "3", Effect{Do: VerbLoad, Arg: "org/" + fixtureModel, Load: LoadOptions{Mode: "dspark", MaxDraft: 3}}},
		{s, "decoding.cap", "auto", Effect{Do: VerbLoad, Arg: "org/" + fixtureModel, Load: LoadOptions{Mode: "dspark", MaxDraft: -1}}},
		{s, "decoding.thinking", "", Effect{Do: VerbLoad, Arg: "org/" + fixtureModel, Load: LoadOptions{Mode: "dspark", Thinking: &off}}},
		{s, "address", "", Effect{Do: VerbCopy, Arg: "address", Text: "http://192.168.1.5:8080"}},
		{s, "copy.openai", "", Effect{Do: VerbCopy, Arg: "copy.openai", Text: "http://192.168.1.5:8080/v1"}},
		{s, "copy.key", "", Effect{Do: VerbCopy, Arg: "copy.key", Text: "sekret"}},
		{base(t), "copy.key", "", nothing},
		{s, "connect.open", "codex", Effect{Do: VerbOpen, Arg: "agents/codex"}},
		{s, "connect.copy", "codex", Effect{Do: VerbCopy, Arg: "connect.copy", Text: "codex --profile sparkbar"}},
		{s, "lan", "", Effect{Do: VerbLAN, Arg: "off"}},
		{s, "server", "", Effect{Do: VerbHalt}},
		{inPhase(t, Stopped), "server", "", Effect{Do: VerbStart}},
		{inPhase(t, Starting), "server", "", nothing},
		{s, "chat", "", Effect{Do: VerbOpen, Arg: "chat"}},
		{inPhase(t, NoModel), "chat", "", Effect{Do: VerbOpen, Arg: "models"}},
		{inPhase(t, NoModel), "reload", "", Effect{Do: VerbLoad, Arg: "org/" + fixtureModel}},
		{inPhase(t, Ready), "reload", "", nothing},
		{inPhase(t, Loading), "cancel", "", Effect{Do: VerbCancel}},
		{inPhase(t, Cancelling), "cancel", "", nothing},
		{inPhase(t, Generating), "request.stop", "r1", Effect{Do: VerbStop, Arg: "r1"}},
		{s, "race", "", Effect{Do: VerbRace}},
		{s, "check", "", Effect{Do: VerbCheck}},
		{s, "log", "", nothing}, // not at this level of detail
		{play(s, OptionKey(true)), "log", "", Effect{Do: VerbLog}},
		{s, "login", "", Effect{Do: VerbLogin, Arg: "on"}},
		{play(s, LoginSeen(LoginOn)), "login", "", Effect{Do: VerbLogin, Arg: "off"}},
		{play(s, LoginSeen(LoginNeedsApproval)), "login", "", Effect{Do: VerbLogin, Arg: "settings"}},
		{play(s, LoginSeen(LoginUnavailable)), "login", "", nothing},
		{s, "quit", "", Effect{Do: VerbQuit}},
		{inPhase(t, Generating), "quit_now", "", Effect{Do: VerbQuit, Arg: "now"}},
		{play(s, FeaturesSeen{}), "race", "", nothing},
		{s, "no such item", "", nothing},
	} {
		got, d := Click(c.s, c.id, c.arg)
		if d != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s %s: %+v %+v, want %+v", c.id, c.arg, got, d, c.want)
		}
	}
}

// TestAbsentRoutes: items whose route the server lacks say so.
func TestAbsentRoutes(t *testing.T) {
	s := play(inPhase(t, Generating), FeaturesSeen{})
	for _, id := range []struct{ id, arg string }{{"race", ""}, {"check", ""}, {"request.stop", "r1"}, {"model.pin", fixtureModel}} {
		it, ok := Menu(s).Find(id.id, id.arg)
		if !ok || it.Enabled || it.Hint != notHere {
			t.Errorf("%s: %+v", id.id, it)
		}
	}
}

func TestSimpleDetail(t *testing.T) {
	s := play(base(t), SettingsSeen{Detail: Simple, Text: "auto", Ribbon: true})
	for _, id := range []string{"decoding", "copy", "race", "check", "log"} {
		if it, _ := Menu(s).Find(id, ""); !it.Hidden {
			t.Errorf("%s is shown at the simple level", id)
		}
	}
}

// TestRate follows the peer's formula on a clock of the test.
func TestRate(t *testing.T) {
	s := base(t)
	at := func(ms int, e Event) { s = s.Apply(e, t0.Add(time.Duration(ms)*time.Millisecond)) }
	at(1000, RequestSeen{ID: "a", State: "running", Prompt: 9})
	at(1100, RoundSeen{Req: "a", I: 1, Committed: 4, MS: 100}) // 40 tok/s, taken as it is
	if s.Rate() != 40 {
		t.Fatalf("rate %v", s.Rate())
	}
	at(1200, RoundSeen{Req: "a", I: 2, Committed: 2, MS: 100}) // 0.8*40 + 0.2*20 = 36, not yet published
	if s.Rate() != 40 {
		t.Fatalf("published after 100 ms: %v", s.Rate())
	}
	at(1600, RoundSeen{Req: "a", I: 3, Committed: 2, MS: 100}) // 0.8*36 + 0.2*20 = 32.8
	if r := s.Rate(); r < 32.799 || r > 32.801 {
		t.Fatalf("rate %v", r)
	}
	at(2200, RequestSeen{ID: "b", State: "running", Prompt: 9})
	at(2300, RoundSeen{Req: "b", I: 1, Committed: 1, MS: 100}) // the second one's 10 is added
	if r := s.Rate(); r < 42.799 || r > 42.801 {
		t.Fatalf("two requests: %v", r)
	}
	at(2400, RequestSeen{ID: "a", State: "done"})
	var done RequestSeen
	if err := json.Unmarshal([]byte(`{"id":"b","state":"done","stats":{"decode_tokens_per_sec":12.5}}`), &done); err != nil {
		t.Fatal(err)
	}
	at(2500, done)
	if s.Rate() != 12.5 {
		t.Fatalf("after the end: %v", s.Rate())
	}
	at(6400, Tick{})
	if s.Rate() != 12.5 {
		t.Fatalf("before 4 s: %v", s.Rate())
	}
	at(6500, Tick{})
	if s.Rate() != 0 {
		t.Fatalf("after 4 s: %v", s.Rate())
	}
	if !s.spokeLately() {
		t.Error("the speed row goes before a minute is over")
	}
	at(62500, Tick{})
	if s.spokeLately() {
		t.Error("the speed row stays after a minute")
	}
}

func TestTitleWidthAndTexts(t *testing.T) {
	s := inPhase(t, Generating)
	if got := Title(s); got.Text != "40" || got.Glyph != GlyphFilled || got.Label != "Sparkbar: generating, 40 tokens per second" {
		t.Errorf("%+v", got)
	}
	wide := play(s, SettingsSeen{Detail: Advanced, Text: "rate+accept"})
	if got := Title(wide); got.Text != "40 ·4.0" || got.Width != 7 {
		t.Errorf("%+v", got)
	}
	narrow := play(wide, SettingsSeen{Detail: Advanced, Text: "auto"})
	if got := Title(narrow); got.Text != "40" || got.Width != 7 {
		t.Errorf("the width jumps: %+v", got)
	}
	later := narrow.Apply(Tick{}, narrow.Now.Add(11*time.Second))
	if got := Title(later); got.Width != len([]rune(got.Text)) {
		t.Errorf("the width stays for ever: %+v", got)
	}
	for _, c := range []struct {
		s    State
		want string
	}{
		{inPhase(t, Downloading), "25%"}, {inPhase(t, Loading), "…"}, {inPhase(t, Prefill), "▸25%"}, {inPhase(t, Ready), ""},
		{overlay(t, inPhase(t, Ready), "critical"), "!"}, {play(base(t), SettingsSeen{Text: "memory"}), "4.0G"},
		{play(inPhase(t, Generating), SettingsSeen{Text: "none"}), ""},
	} {
		if got := Title(c.s).Text; got != c.want {
			t.Errorf("%s: %q, want %q", c.s.Phase(), got, c.want)
		}
	}
}

// TestCopied: the title answers for 1.2 seconds.
func TestCopied(t *testing.T) {
	s := play(base(t), CopyDone{"address"})
	if it, _ := Menu(s).Find("address", ""); it.Title != "Copied ✓" {
		t.Errorf("%q", it.Title)
	}
	s = s.Apply(Tick{}, s.Now.Add(copiedStays))
	if it, _ := Menu(s).Find("address", ""); it.Title != "http://127.0.0.1:8080" {
		t.Errorf("%q", it.Title)
	}
}

// TestCurlSnippet: a shell reads the snippet as it was meant, whatever the
// names hold.
func TestCurlSnippet(t *testing.T) {
	s := overlay(t, base(t), "lan")
	s.Health.Model, s.Server.Key = `o'brien "$HOME" \x`, `k'e"y $1`
	out, err := exec.Command("sh", "-c", `curl() { for a; do printf '%s\n' "$a"; done; }; `+s.Snippet("copy.curl")).Output()
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Split(strings.TrimSpace(string(out)), "\n")
	var body struct{ Model string }
	if err := json.Unmarshal([]byte(args[len(args)-1]), &body); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if body.Model != s.Health.Model || !slices.Contains(args, "Authorization: Bearer "+s.Server.Key) {
		t.Errorf("%s", out)
	}
}

// anyEvent draws an event, sensible or not.
func anyEvent(r *rand.Rand) Event {
	id := func() string { return []string{"a", "b", "c", ""}[r.IntN(4)] }
	n := func() int { return []int{-5, 0, 1, 7, 4096, 1 << 40}[r.IntN(6)] }
	text := func() string {
		return []string{"", "x", "org/model", "/a/b/", "two\nlines. More.", strings.Repeat("long-name-", 30), "日本語のモデル名" + strings.Repeat("長", 80), "\x00\x1b[31m", "..", "⚠︎"}[r.IntN(10)]
	}
	switch r.IntN(23) {
	case 0, 1, 2:
		h := HealthSeen{}
		h.Status = []string{"ok", "loading", "no_model", "", "new"}[r.IntN(5)]
		h.State = []string{"ready", "asleep", "downloading", "swapping", ""}[r.IntN(5)]
		h.Phase, h.Model, h.Serving, h.Target, h.Drafter = []string{"", "loading", "warming_up"}[r.IntN(3)], text(), text(), text(), text()
		h.Mode, h.Error, h.MaxDraft = []string{"dspark", "lookup", "baseline", "draft", ""}[r.IntN(5)], text(), "auto"
		h.WeightBytes = int64(n())
		if r.IntN(2) == 0 {
			h.Progress = &client.Progress{Model: text(), BytesDone: int64(n()), BytesTotal: int64(n())}
		}
		for range r.IntN(3) {
			h.Warnings = append(h.Warnings, client.Warning{Level: "problem", Message: text(), Action: text()})
		}
		if r.IntN(3) == 0 {
			h.Download = &client.Download{Repo: text(), BytesDone: int64(n()), BytesTotal: int64(n()), BytesPerSecond: float64(n())}
		}
		return h
	case 3, 4, 5:
		return RoundSeen{Req: id(), I: n(), Committed: n(), MS: []float64{-1, 0, 1e-9, 50, 1e12}[r.IntN(5)], Source: "lookup"}
	case 6, 7:
		return PrefillSeen{Req: id(), Processed: n(), Total: n(), Done: r.IntN(2) == 0}
	case 8, 9:
		return RequestSeen{ID: id(), State: []string{"queued", "running", "done", "failed", "odd"}[r.IntN(5)], Prompt: n(), Client: text()}
	case 10:
		return RequestsSeen{{ID: id(), State: "running", Tokens: n()}, {ID: id(), State: "queued"}}
	case 11:
		return Tick{}
	case 12:
		return ServerSeen{Running: r.IntN(3) > 0, Starting: r.IntN(4) == 0, Port: n(), Moved: r.IntN(2) == 0, LAN: []string{"", "http://10.0.0.2:1"}[r.IntN(2)], Protected: r.IntN(2) == 0, Key: text()}
	case 13:
		return PortTaken{Port: n(), Process: text(), PID: n()}
	case 14:
		return ModelsSeen{{ID: text(), Bytes: int64(n()), Kind: "model", Pinned: r.IntN(2) == 0}, {ID: text(), NoDrafter: true, Fit: &Fit{Need: int64(n())}}}
	case 15:
		return MachineSeen{TotalBytes: int64(n()), SwapBytes: int64(n()), Pressure: []string{"", "normal", "warn", "critical", "odd"}[r.IntN(5)], Guard: text(), CeilingTPS: float64(n())}
	case 16:
		return LoadFailed{text(), errors.New(text())}
	case 17:
		return ClientsSeen{{ID: id(), Name: text()}, {ID: id(), Name: text(), Installed: true, Command: text()}}
	case 18:
		return []Event{Lost{"gone"}, Found{}, CancelAsked{}, CopyDone{"address"}, Refused{text()}, OptionKey(true)}[r.IntN(6)]
	case 19:
		return UpdateSeen{Version: text(), Notes: text()}
	case 21:
		return []Event{PressureSeen{Level: []string{"", "warn", "odd"}[r.IntN(3)], Last: &shed{text(), int64(n())}}, DownloadSeen{client.Download{ID: id(), Model: text(), State: []string{"downloading", "paused", "done", "odd"}[r.IntN(4)]}}}[r.IntN(2)]
	case 20:
		return SettingsSeen{Detail: []Detail{Simple, Advanced, Developer, ""}[r.IntN(4)], Text: []string{"auto", "none", "rate+accept", "memory"}[r.IntN(4)], Ribbon: r.IntN(2) == 0}
	}
	return FeaturesSeen{r.IntN(2) == 0, true, r.IntN(2) == 0, true, true, r.IntN(2) == 0, true}
}

// consistent checks what must hold in every menu.
func consistent(t *testing.T, s State, clicks bool) {
	t.Helper()
	seen := map[string]bool{}
	var walk func(items []Item, depth int)
	walk = func(items []Item, depth int) {
		for i, it := range items {
			key := it.ID + "\x00" + it.Arg
			if depth > 0 && it.Arg != "" && seen[key] && it.ID != "model" && !strings.HasPrefix(it.ID, "model.") && !strings.HasPrefix(it.ID, "connect.") {
				t.Fatalf("two items %q", key)
			}
			if depth == 0 && seen[key] {
				t.Fatalf("two items %q", key)
			}
			seen[key] = true
			if n := utf8.RuneCountInString(it.Title); n > titleLimit || n == 0 && it.Kind != Separator && !it.Hidden && it.ID != "warning.text" && it.ID != "headline" && it.ID != "connect.open" {
				t.Fatalf("%s: the title has %d characters: %q", it.ID, n, it.Title)
			}
			if strings.ContainsAny(it.Title, "\n\r\x00\x1b") || !utf8.ValidString(it.Title) {
				t.Fatalf("%s: the title %q cannot be shown", it.ID, it.Title)
			}
			if it.Kind == Label && (it.Enabled || len(it.Items) > 0) {
				t.Fatalf("the label %s can be clicked", it.ID)
			}
			if it.Kind != Submenu && len(it.Items) > 0 {
				t.Fatalf("%s has a menu and is none", it.ID)
			}
			if it.Alternate && (i == 0 || items[i-1].Kind != Command) {
				t.Fatalf("the alternate %s has nothing to stand for", it.ID)
			}
			if clicks && !it.Hidden && it.Enabled && it.Kind == Command {
				e, d := Click(s, it.ID, it.Arg)
				if d == nil && e.Do == VerbNothing {
					t.Fatalf("%s %q is enabled and does nothing", it.ID, it.Arg)
				}
				if d != nil && (len(d.Buttons) == 0 || d.Title == "") {
					t.Fatalf("%s asks an empty question", it.ID)
				}
			}
			walk(it.Items, depth+1)
		}
	}
	walk(Menu(s), 0)
	if title := Title(s); title.Glyph == "" || title.Width < utf8.RuneCountInString(title.Text) || utf8.RuneCountInString(title.Text) > 24 || title.Label == "" {
		t.Fatalf("%+v", title)
	}
	if !slices.Contains(Phases(), s.Phase()) {
		t.Fatalf("phase %q", s.Phase())
	}
	if len(s.Ribbon) > ribbonLength || len(s.Requests) > requestLimit || len(s.Recent) > 8 || len(s.widest) > 64 {
		t.Fatal("the state grows")
	}
}

// TestAnyEvents: after any sequence of events the menu is consistent, the top
// rows are in the same order, and the State before an event is as it was.
func TestAnyEvents(t *testing.T) {
	var order []string
	for seed := range 60 {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		s := State{}
		if seed%2 == 0 {
			s = base(t)
		}
		now := t0
		for step := range 50 {
			now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			before := render(s)
			next := s.Apply(anyEvent(r), now)
			if render(s) != before {
				t.Fatal("Apply changed the State that it was given")
			}
			s = next
			consistent(t, s, step%10 == 9)
			var ids []string
			for _, it := range Menu(s) {
				ids = append(ids, it.ID)
			}
			if order == nil {
				order = ids
			}
			if !slices.Equal(order, ids) {
				t.Fatalf("the order changed: %v", ids)
			}
		}
	}
}

// FuzzDecode: no event of a server can break the menu.
func FuzzDecode(f *testing.F) {
	f.Add("state", []byte(okBody))
	f.Add("round", []byte(`{"req":"a","committed":3,"ms":10,"i":1,"source":"drafter"}`))
	f.Add("prefill", []byte(`{"req":"a","processed":3,"total":9}`))
	f.Add("request", []byte(`{"id":"a","state":"running","stats":null}`))
	f.Add("pressure", []byte(`{"enabled":true,"level":"critical","last_shed":{"action":"x","freed_bytes":-3}}`))
	f.Add("download", []byte(`{"id":"dl_1","model":"org/x","state":"done"}`))
	f.Add("state", []byte(`{"status":"loading","download":{"repo":"x","bytes_done":-1,"bytes_total":0},"warnings":[{}]}`))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		e, err := Decode(client.Event{Name: name, Data: data})
		if err != nil || e == nil {
			return
		}
		consistent(t, play(base(t), e), true)
	})
}

// TestTrash: what goes to the Trash is all that the cache keeps of a model, and
// nothing above it.
func TestTrash(t *testing.T) {
	for path, want := range map[string]string{"/hub/models--org--x/snapshots/0123": "/hub/models--org--x", "/m/tiny": "/m/tiny", "/models--a--b": "/models--a--b", "": ""} {
		s := play(base(t), ModelsSeen{{ID: "org/x", Path: path, Source: "cache", Complete: true}})
		_, d := Click(s, "model.trash", "org/x")
		if path == "" { // part of the program
			if d != nil {
				t.Errorf("asks %+v", d)
			}
			continue
		}
		if d == nil || d.Buttons[0].Effect.Do != VerbTrash || d.Buttons[0].Effect.Arg != want {
			t.Errorf("%s: %+v", path, d)
		}
	}
}

// TestLoadedInTheList: the loaded model is found in the list whatever the server
// calls it, so that it is marked and not listed twice.
func TestLoadedInTheList(t *testing.T) {
	for _, c := range []struct{ health, local, path string }{
		{`{"status":"ok","model":"other","target":"me/other"}`, "me/other", "/hub/models--me--other/snapshots/1"},
		{`{"status":"ok","model":"mlx","target":"/m/mlx"}`, "mine", "/m/mlx"},
		{`{"status":"ok","model":"demo","target":"demo"}`, "demo", ""},
		{`{"status":"ok","model":"other"}`, "me/other", "/x"},
		{`{"status":"loading","serving":"other","progress":{"model":"org/next"}}`, "me/other", "/x"},
	} {
		s := play(base(t), ModelsSeen{{ID: c.local, Path: c.path, Complete: true, Kind: "model"}, {ID: "org/next", Complete: true, Kind: "model"}}, health(t, c.health))
		s.Recent = s.Recent[:1]
		models, _ := Menu(s).Find("models", "")
		var titles []string
		for _, it := range models.Items {
			if it.ID == "model" {
				titles = append(titles, it.Title)
			}
		}
		if len(titles) < 2 || !strings.HasPrefix(titles[0], "● ") || strings.Count(strings.Join(titles, " "), "●") != 1 || strings.Contains(c.health, "loading") && !slices.Contains(titles, "◐ next") {
			t.Errorf("%s: %q", c.health, titles)
		}
		if it, _ := Menu(s).Find("model.unload", c.local); it.Hidden || !it.Enabled {
			t.Errorf("%s: %+v", c.health, it)
		}
	}
}
