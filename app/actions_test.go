package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"sparkbar/app/menubar"
	"sparkbar/engine/testneed"
)

// actionIDs are the items that do something, read from the code that says what
// a click means.
func actionIDs(t *testing.T) (ids []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "menubar/click.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != "Click" {
			continue
		}
		for _, s := range f.Body.List {
			sw, ok := s.(*ast.SwitchStmt)
			if !ok {
				continue
			}
			for _, c := range sw.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					id, err := strconv.Unquote(e.(*ast.BasicLit).Value)
					if err != nil {
						t.Fatal(err)
					}
					ids = append(ids, id)
				}
			}
		}
	}
	if len(ids) < 30 {
		t.Fatalf("only %q were found in click.go", ids)
	}
	return ids
}

// TestEveryAction clicks every item that does something, with the real engine
// behind the real server, and looks at what has come of it: at the server, its
// listeners, the settings file, or what the desktop was asked. An action of
// click.go without a check here is a failure.
func TestEveryAction(t *testing.T) {
	if ln, err := net.Listen("tcp", "127.0.0.2:0"); err != nil {
		t.Skip("this system has no second loopback address")
	} else {
		ln.Close()
	}
	const other = "me/other"
	release := make(chan struct{})
	defer close(release)
	t.Setenv("HF_ENDPOINT", slowHub(t, "me/big", release))
	var folder string
	x := startDesk(t, nil, func(_, hub string) { folder = putModel(t, hub, other) })
	x.phase(menubar.Ready)
	x.until("the list of models", func() bool { return !x.item("model.load", other).Hidden })

	health := func() (h struct{ Model, Mode, Cap, Thinking string }) {
		s := x.ctl.State().Health
		if s.Status != "ok" {
			return h
		}
		h.Model, h.Mode, h.Cap, h.Thinking = s.Target, s.Mode, s.MaxDraft, s.ThinkingDefault
		return h
	}
	made := func(want ...string) { // by the menu, since the last look
		t.Helper()
		x.until(fmt.Sprint("the calls ", want), func() bool {
			log := x.logs.String()
			return len(menuCalls(log)) >= len(want)
		})
		if got := x.calls(); !slices.Equal(got, want) {
			t.Errorf("it called %q, want %q", got, want)
		}
	}
	opens := func(screen string) func() {
		return func() {
			t.Helper()
			x.until("the window at "+screen, func() bool { return x.host.has("open " + screen) })
		}
	}
	copies := func(want string) {
		t.Helper()
		x.until("copied "+want, func() bool { return x.host.clipboard() == want })
	}
	ask := func() (code int, text string) {
		resp, err := http.Post(x.address()+"/v1/chat/completions", "application/json", strings.NewReader(endless))
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body) // what came is for a message
		return resp.StatusCode, string(b)
	}
	// busy keeps two requests running until one of them is broken off.
	busy := func() (broken *atomic.Bool) {
		broken = &atomic.Bool{}
		for range 2 {
			go func() {
				for !broken.Load() {
					if code, _ := ask(); code != http.StatusOK {
						broken.Store(true)
					}
				}
			}()
		}
		x.until("requests run", func() bool { return len(x.item("requests", "").Items) > 0 })
		return broken
	}
	load := func(model string) {
		x.click("model.load", model)
		x.until(model+" is loaded", func() bool { return health().Model == model && !x.item("model.unload", model).Hidden })
		made("POST /admin/load")
	}

	steps := []struct {
		id    string
		check func()
	}{
		{"model.load", func() { load(other) }},
		{"model.unload", func() { x.click("model.unload", other); x.phase(menubar.NoModel); made("POST /admin/unload") }},
		{"reload", func() {
			x.click("reload", "")
			x.phase(menubar.Ready)
			made("POST /admin/load")
			if health().Model != other {
				t.Errorf("%s is loaded", health().Model)
			}
			load(demoID)
		}},
		{"decoding.mode", func() {
			x.click("decoding.mode", "lookup")
			x.until("lookup", func() bool { return health().Mode == "lookup" })
			made("POST /admin/load")
			x.click("decoding.mode", "auto")
			x.until("the drafter", func() bool { return health().Mode == "dspark" })
			made("POST /admin/load")
		}},
		{"decoding.cap", func() {
			x.click("decoding.cap", "3")
			x.until("a cap of 3", func() bool { return health().Cap == "3" })
			made("POST /admin/load")
			x.click("decoding.cap", "auto")
			x.until("a cap that is chosen", func() bool { return health().Cap == "auto" })
			made("POST /admin/load")
		}},
		{"decoding.thinking", func() {
			before := health().Thinking
			x.click("decoding.thinking", "")
			x.until("the other way of thinking", func() bool { h := health().Thinking; return h != before && h != "" })
			made("POST /admin/load")
		}},
		{"model.pin", func() {
			x.click("model.pin", other)
			x.until("the file names it", func() bool {
				return strings.Contains(x.config(), other) && x.item("model.pin", other).Check == menubar.Checked
			})
			made("PATCH /admin/settings")
			x.click("model.pin", other)
			x.until("the file does not", func() bool { return x.item("model.pin", other).Check == menubar.Unchecked })
			made("PATCH /admin/settings")
		}},
		{"model.options", func() { x.click("model.options", other); opens("models/" + other)() }},
		{"model.copy", func() { x.click("model.copy", other); copies(other) }},
		{"model.reveal", func() {
			x.click("model.reveal", other)
			x.until("a folder is shown", func() bool {
				x.host.mu.Lock()
				defer x.host.mu.Unlock()
				i := slices.IndexFunc(x.host.did, func(s string) bool { return strings.HasPrefix(s, "reveal "+folder) })
				return i >= 0
			})
		}},
		{"model.trash", func() {
			x.click("model.trash", other)
			x.dialog("Move other to the Trash?", "Move to Trash")
			x.until("it is thrown away, and nothing beside it", func() bool { return x.host.has("trash " + folder) })
			x.until("the list is without it", func() bool { return x.item("model.load", other).Hidden })
		}},
		{"models.browse", func() { x.click("models.browse", ""); opens("models")() }},
		{"cancel", func() {
			go func() {
				_, _ = http.Post(x.address()+"/admin/load", "application/json", strings.NewReader(`{"model":"me/big"}`))
			}()
			x.phase(menubar.Downloading)
			x.until("something of it is here", func() bool {
				parts, _ := filepath.Glob(filepath.Join(x.hub, "models--me--big", "blobs", "*"))
				return len(parts) > 0
			})
			x.click("cancel", "")
			x.dialog("Cancel the download?", "Keep What Is Downloaded")
			x.phase(menubar.Ready)
			made("POST /admin/load/cancel")
			parts, err := filepath.Glob(filepath.Join(x.hub, "models--me--big", "blobs", "*"))
			if err != nil || len(parts) == 0 {
				t.Errorf("nothing of the download is kept: %v", err)
			}
		}},
		{"request.stop", func() {
			broken := busy()
			x.until("one is broken off", func() bool {
				for _, r := range x.item("requests", "").Items {
					x.ctl.Click("request.stop", r.Arg)
				}
				return broken.Load()
			})
			x.phase(menubar.Ready)
			x.calls()
		}},
		{"ribbon", func() {
			resp, err := http.Post(x.address()+"/v1/chat/completions", "application/json", strings.NewReader(`{"messages":[{"role":"user","content":"What is speculative decoding?"}],"max_tokens":60}`))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			x.until("rounds are shown", func() bool { it := x.item("ribbon", ""); return !it.Hidden && len(it.Bars) > 0 })
			x.ctl.Click("ribbon", "")
			opens("lab/live")()
		}},
		{"address", func() {
			x.click("address", "")
			copies(x.address())
			if answerOf(x.host.clipboard()+"/health", "") != 200 {
				t.Error("the address does not answer")
			}
		}},
		{"copy.openai", func() {
			x.click("copy.openai", "")
			copies(x.address() + "/v1")
			if answerOf(x.host.clipboard()+"/models", "") != 200 {
				t.Error("the address does not answer")
			}
		}},
		{"copy.anthropic", func() {
			x.click("copy.anthropic", "")
			copies(x.address())
			resp, err := http.Post(x.host.clipboard()+"/v1/messages/count_tokens", "application/json", strings.NewReader(`{"model":"demo","messages":[{"role":"user","content":"hi"}]}`))
			if err != nil || resp.StatusCode != 200 {
				t.Errorf("%v %v", resp, err)
			}
		}},
		{"copy.model", func() {
			x.click("copy.model", "")
			copies(demoID)
		}},
		{"copy.curl", func() {
			if _, err := exec.LookPath("curl"); err != nil {
				testneed.Missing(t, "curl", "install it")
			}
			x.click("copy.curl", "")
			x.until("copied", func() bool { return strings.HasPrefix(x.host.clipboard(), "curl ") })
			out, err := exec.Command("sh", "-c", x.host.clipboard()).Output()
			if err != nil || !strings.Contains(string(out), `"choices"`) {
				t.Errorf("%v %s", err, out)
			}
		}},
		{"connect.open", func() { x.click("connect.open", "codex"); opens("agents/codex")() }},
		{"connect.copy", func() {
			x.click("connect.copy", "claude-code")
			copies("sparkbar claude --url " + x.address())
		}},
		{"connect.all", func() { x.click("connect.all", ""); opens("agents")() }},
		{"copy.key", func() {
			x.click("lan", "")
			x.dialog("Let other devices use this model?", "Turn On with a Key")
			x.click("copy.key", "")
			copies("key-of-the-keychain")
			lan := x.ctl.State().Server.LAN
			if answerOf(lan+"/v1/models", "") != 401 || answerOf(lan+"/v1/models", x.host.clipboard()) != 200 {
				t.Errorf("%s does not take its key", lan)
			}
			x.until("the choice is kept", func() bool {
				return strings.Contains(x.config(), "0.0.0.0") && strings.Contains(x.config(), "keychain:")
			})
		}},
		{"lan", func() {
			lan := x.ctl.State().Server.LAN
			x.click("lan", "")
			x.until("the network is off", func() bool { return x.ctl.State().Server.LAN == "" })
			x.until("the network's listener is closed", func() bool { return answerOf(lan+"/health", "") == 0 })
			if answerOf(x.address()+"/health", "") != 200 {
				t.Error("the wrong listener was closed")
			}
			x.until("the choice is kept", func() bool { return !strings.Contains(x.config(), "0.0.0.0") })
		}},
		{"warning.action", func() {
			x.click("lan", "")
			x.dialog("Let other devices use this model?", "Turn On Without")
			x.until("a warning", func() bool { return strings.Contains(x.item("warning", "").Title, "Anyone on your network") })
			x.click("warning.action", "0")
			opens("settings/server")()
			x.click("lan", "")
			x.until("no warning", func() bool { return x.item("warning", "").Hidden })
		}},
		{"server", func() {
			address := x.address()
			x.click("server", "")
			x.phase(menubar.Stopped)
			x.until("a stopped server does not answer", func() bool { return answerOf(address+"/health", "") == 0 })
			x.click("server", "")
			x.phase(menubar.Ready)
			if answerOf(x.address()+"/health", "") != 200 {
				t.Error("a started server does not answer")
			}
			x.calls()
		}},
		{"dashboard", func() { x.click("dashboard", ""); opens("")() }},
		{"chat", func() { x.click("chat", ""); opens("chat")() }},
		{"race", func() {
			x.click("race", "")
			d := x.dialog("Identical output", "OK")
			made("POST /admin/race")
			if !strings.Contains(d.Text, "tok/s") {
				t.Errorf("%+v", d)
			}
		}},
		{"check", func() {
			x.click("check", "")
			if d := x.dialog("This machine", "OK"); !strings.Contains(d.Text, "kernel drills of the cpu backend agree") {
				t.Errorf("%+v", d)
			}
			made("GET /doctor")
		}},
		{"log", func() {
			x.ctl.Apply(menubar.OptionKey(true))
			x.click("log", "")
			x.until("the log", func() bool { return x.host.has("log") })
			x.ctl.Apply(menubar.OptionKey(false))
		}},
		{"settings", func() { x.click("settings", ""); opens("settings")() }},
		{"login", func() {
			x.click("login", "")
			x.until("it is on, and kept", func() bool {
				return x.host.Login() == menubar.LoginOn && strings.Contains(x.config(), "enabled: true") && x.item("login", "").Check == menubar.Checked
			})
			made("PATCH /admin/settings")
		}},
		{"update", func() {
			x.ctl.Apply(menubar.UpdateSeen{Version: "9.9.9", URL: "https://example.org/r"})
			x.click("update", "")
			x.dialog("Version 9.9.9 is available", "Open Release Page")
			x.until("the page", func() bool { return x.host.has("browse https://example.org/r") })
			x.click("update", "")
			x.dialog("Version 9.9.9 is available", "Skip This Version")
			x.until("it is skipped", func() bool { return x.book.entries().Skipped == "9.9.9" && x.item("update", "").Hidden })
		}},
		{"about", func() {
			x.click("about", "")
			if d := x.dialog(menubar.App, "OK"); !strings.Contains(d.Title, version) {
				t.Errorf("%+v", d)
			}
		}},
		{"diagnostics", func() {
			x.click("diagnostics", "")
			x.until("a report", func() bool {
				return strings.Contains(x.host.clipboard(), "model: demo") && !strings.Contains(x.host.clipboard(), "key-of")
			})
		}},
		{"unload", func() { x.click("unload", ""); x.phase(menubar.NoModel); made("POST /admin/unload") }},
		{"quit", func() { x.click("quit", ""); x.until("the end", func() bool { return x.host.has("quit false") }) }},
		{"quit_now", func() { x.click("quit_now", ""); x.until("the end", func() bool { return x.host.has("quit true") }) }},
	}
	checked := map[string]bool{}
	x.calls()
	for _, s := range steps {
		checked[s.id] = true
		s.check()
		if p := x.ctl.State().Problem; p != "" {
			t.Errorf("%s: %s", s.id, p)
		}
		if t.Failed() {
			t.Fatalf("at %s\n%s", s.id, x.log())
		}
	}
	for _, id := range actionIDs(t) {
		if !checked[id] {
			t.Errorf("nobody checks what %s does", id)
		}
		delete(checked, id)
	}
	for id := range checked {
		t.Errorf("%s is checked and is no action", id)
	}
}
