package double

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sparkbar/engine/testneed"
	"sparkbar/packaging"
)

// tools returns what is needed to build against the double: its folder and the
// environment. It skips where Debian's packages are missing.
func tools(t *testing.T) (dir string, env []string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the double is for Linux")
	}
	for _, f := range []string{"/usr/include/GNUstep/Foundation/Foundation.h", "/usr/include/Block.h"} {
		if _, err := os.Stat(f); err != nil {
			testneed.Missing(t, f, "run `make setup-cross`")
		}
	}
	if _, err := exec.LookPath("clang-19"); err != nil {
		testneed.Missing(t, "clang-19", "run `make setup-cross`")
	}
	// A fixed place, since Go's build cache keys on paths in flags.
	dir, err := filepath.Abs("../../build/darwin/double")
	if err != nil {
		t.Fatal(err)
	}
	cc, err := filepath.Abs("testdata/cc")
	if err != nil {
		t.Fatal(err)
	}
	libs, err := packaging.Libraries(goroot(t))
	if err != nil {
		t.Fatal(err)
	}
	sdk := filepath.Join(t.TempDir(), "sdk")
	if err := packaging.WriteSDK(sdk, libs); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "include")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"AppKit", "WebKit", "Security", "ServiceManagement", "UserNotifications", "CoreFoundation", "IOKit"} {
		if err := os.CopyFS(filepath.Join(dir, "include", d), os.DirFS(filepath.Join(sdk, "usr/include", d))); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"Foundation", "objc", "ffi"} {
		if err := os.CopyFS(filepath.Join(dir, "include", d), os.DirFS(filepath.Join("testdata/include", d))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	env = append(os.Environ(), "DOUBLE="+dir, "CC="+cc, "CGO_ENABLED=1", "GOFLAGS=-buildvcs=false")
	run(t, env, "", cc, "-x", "objective-c", "-O1", "-c", "testdata/double.m", "-o", filepath.Join(dir, "lib", "double.o"))
	return dir, env
}

func run(t *testing.T, env []string, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Dir = env, dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, out.String(), errs.String())
	}
	return strings.TrimSpace(out.String())
}

// patched makes the repaired copy of darwinkit and a go.mod that uses it.
func patched(t *testing.T, dir string) (src, modfile string) {
	t.Helper()
	src = run(t, os.Environ(), "../..", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/progrium/darwinkit")
	if src == "" {
		testneed.Missing(t, "darwinkit", "run `make setup`")
	}
	dst := filepath.Join(dir, "darwinkit")
	if err := os.RemoveAll(dst); err != nil {
		t.Fatal(err)
	}
	if err := packaging.PatchDarwinkit(src, dst); err != nil {
		t.Fatal(err)
	}
	modfile = filepath.Join(dir, "go.mod")
	if err := packaging.Modfile("../../go.mod", dst, modfile); err != nil {
		t.Fatal(err)
	}
	return src, modfile
}

// TestNarrowResults: a call with a one-byte result damages the Go heap with
// darwinkit as it is, which shows that the test can see it, and not with the
// repaired copy.
func TestNarrowResults(t *testing.T) {
	dir, env := tools(t)
	src, _ := patched(t, dir)
	for name, kit := range map[string]string{"as it is": src, "repaired": filepath.Join(dir, "darwinkit")} {
		work := t.TempDir()
		b, err := os.ReadFile("testdata/narrow/main.go")
		if err != nil {
			t.Fatal(err)
		}
		mod := fmt.Sprintf("module narrow\n\ngo 1.26\n\nrequire github.com/progrium/darwinkit v0.5.0\n\nreplace github.com/progrium/darwinkit => %s\n", kit)
		for f, text := range map[string]string{"main.go": string(b), "go.mod": mod} {
			if err := os.WriteFile(filepath.Join(work, f), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		run(t, env, work, "go", "build", "-o", "narrow", ".")
		damaged := run(t, env, work, "./narrow")
		t.Logf("%s: %s damaged objects", name, damaged)
		if (damaged == "0") != (name == "repaired") {
			t.Errorf("%s: %s objects were overwritten", name, damaged)
		}
	}
}

// TestUnpatchedDoesNotCompile: app/cocoa refuses darwinkit as it is.
func TestUnpatchedDoesNotCompile(t *testing.T) {
	_, env := tools(t)
	cmd := exec.Command("go", "build", "-tags", "double", "./app/cocoa")
	cmd.Env, cmd.Dir = env, "../.."
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "SparkbarPatched") {
		t.Errorf("%v: %s", err, out)
	}
}

// app is the product running against the double.
type app struct {
	t    *testing.T
	in   io.Writer
	out  *bufio.Reader
	cmd  *exec.Cmd
	errs *bytes.Buffer
}

func start(t *testing.T, exe, home string, more ...string) *app {
	t.Helper()
	cmd := exec.Command(exe)
	cmd.Env = append(append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "SPARKBAR_PORT=0"), more...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	a := &app{t, in, bufio.NewReader(out), cmd, &bytes.Buffer{}}
	cmd.Stderr = a.errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	return a
}

// read takes a line of JSON.
func (a *app) read(v any) {
	a.t.Helper()
	line, err := a.out.ReadString('\n')
	if err != nil {
		a.t.Fatalf("the app has ended: %v\n%s", err, a.errs)
	}
	if v != nil {
		if err := json.Unmarshal([]byte(line), v); err != nil {
			a.t.Fatalf("%v: %s", err, line)
		}
	}
}

func (a *app) say(command string, v any) {
	a.t.Helper()
	if _, err := fmt.Fprintln(a.in, command); err != nil {
		a.t.Fatalf("the app has ended: %v\n%s", err, a.errs)
	}
	a.read(v)
}

type item struct {
	ID, Title       string
	State           int
	Enabled, Hidden bool
	Items           []item
}

type shown struct {
	Items        int
	Title, Label string
	Template     bool
	Changes      int
	Menu         []item
}

type state struct {
	Pasteboard, URL, Secret *string
	Opened, Notes           []string
	Awake, Login, Policy    int
}

func (a *app) state() (s state) { a.t.Helper(); a.say("state", &s); return s }
func (a *app) dump() (s shown)  { a.t.Helper(); a.say("dump", &s); return s }
func (a *app) find(id string) item {
	var walk func([]item) *item
	walk = func(l []item) *item {
		for i := range l {
			if l[i].ID == id {
				return &l[i]
			}
			if f := walk(l[i].Items); f != nil {
				return f
			}
		}
		return nil
	}
	if f := walk(a.dump().Menu); f != nil {
		return *f
	}
	return item{Hidden: true}
}

func (a *app) click(id string) {
	a.t.Helper()
	var answer struct{ Clicked, Error string }
	a.say("click "+id, &answer)
	if answer.Error != "" {
		a.t.Fatalf("%s: %s", id, answer.Error)
	}
}

// until waits for a condition; what is limited is a test that hangs, not speed.
func (a *app) until(what string, ok func() bool) {
	a.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			b, _ := json.MarshalIndent(a.dump(), "", " ")
			a.t.Fatalf("never: %s\n%s", what, b)
		}
	}
}

func (a *app) untilTitle(id, part string) {
	a.t.Helper()
	a.until(id+" says "+part, func() bool { it := a.find(id); return !it.Hidden && strings.Contains(it.Title, part) })
}

// dialog waits for a dialog and answers it.
func (a *app) dialog(title string, button int) {
	a.t.Helper()
	a.until("the dialog "+title, func() bool {
		var d struct{ Title string }
		a.say("dialog", &d)
		return strings.Contains(d.Title, title)
	})
	a.say(fmt.Sprintf("answer %d", button), nil)
}

func get(t *testing.T, url, key string) int {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestSession plays a user's first hour with the real app and the real engine:
// every click goes through app/cocoa, darwinkit and the double.
func TestSession(t *testing.T) {
	dir, env := tools(t)
	_, modfile := patched(t, dir)
	exe := filepath.Join(dir, "sparkbar")
	run(t, env, "../..", "go", "build", "-trimpath", "-tags", "double", "-modfile", modfile, "-o", exe, "./app")
	home := t.TempDir()
	a := start(t, exe, home)
	a.read(nil) // ready

	a.untilTitle("headline", "demo · ready")
	if d := a.dump(); d.Items != 1 || !d.Template || !strings.HasPrefix(d.Label, "Sparkbar: ready") {
		t.Errorf("%+v", d)
	}
	a.say("open", nil)
	a.untilTitle("pair", "demo ← ")

	// Copied texts reach the server.
	a.click("address")
	a.until("the address is copied", func() bool { return a.state().Pasteboard != nil })
	base := *a.state().Pasteboard
	if code := get(t, base+"/health", ""); code != 200 {
		t.Fatalf("%s answers %d", base, code)
	}
	a.untilTitle("address", "Copied ✓")
	a.untilTitle("address", base)
	for id, want := range map[string]string{"copy.openai": base + "/v1", "copy.anthropic": base, "copy.model": "demo"} {
		a.click(id)
		a.until(id, func() bool { return *a.state().Pasteboard == want })
	}
	a.click("copy.curl")
	a.until("the example is copied", func() bool { return strings.HasPrefix(*a.state().Pasteboard, "curl ") })
	if _, err := exec.LookPath("curl"); err == nil {
		if out := run(t, os.Environ(), "", "sh", "-c", *a.state().Pasteboard); !strings.Contains(out, `"choices"`) {
			t.Errorf("the example answers %s", out)
		}
	}

	// Rounds as they happen.
	go http.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(`{"messages":[{"role":"user","content":"What is speculative decoding?"}],"max_tokens":300}`))
	a.untilTitle("speed", "per round")
	a.untilTitle("headline", "demo · ready")

	// Another mode, in place: the list of items stays.
	before := a.dump().Changes
	a.click("decoding.mode lookup")
	a.untilTitle("pair", "(lookup drafts)")
	if now := a.dump().Changes; now != before {
		t.Errorf("the open menu was filled anew (%d, before %d)", now, before)
	}
	if it := a.find("decoding.mode lookup"); it.State != 1 {
		t.Errorf("%+v", it)
	}

	// The network, with a key from the Keychain.
	a.click("lan")
	a.dialog("Let other devices use this model?", 0)
	a.until("the switch is on or refused", func() bool { return a.find("lan").State == 1 || !a.find("warning").Hidden })
	if a.find("lan").State == 1 {
		key, lan := a.state().Secret, a.find("address").Title
		if key == nil || len(*key) != 43 {
			t.Fatalf("the Keychain holds %v", key)
		}
		if get(t, lan+"/v1/models", "") != 401 || get(t, lan+"/v1/models", *key) != 200 || get(t, base+"/v1/models", "") != 200 {
			t.Errorf("%s and %s: the key does not do what it should", lan, base)
		}
		a.click("copy.key")
		a.until("the key is copied", func() bool { return *a.state().Pasteboard == *key })
		a.click("lan")
		a.until("the switch is off", func() bool { return a.find("lan").State == 0 })
		if get(t, lan+"/health", "") != 0 {
			t.Error("the network still reaches the server")
		}
	} else {
		t.Log("this machine is in no network")
	}

	a.click("about")
	a.dialog("Sparkbar", 0)
	a.click("login")
	a.until("the login item is on", func() bool { return a.state().Login == 1 && a.find("login").State == 1 })
	a.say("login 2", nil)
	a.until("the login item waits for approval", func() bool { return a.find("login").State == -1 })
	a.click("login")
	a.until("the settings are shown", func() bool { return len(a.state().Opened) == 1 })

	// The window, and the Dock icon that comes and goes with it.
	a.click("dashboard")
	a.until("the window is shown", func() bool {
		s := a.state()
		return s.URL != nil && strings.HasPrefix(*s.URL, base+"/") && s.Policy == 0
	})
	a.say("shut", nil)
	if p := a.state().Policy; p != 1 {
		t.Errorf("the Dock icon stays: %d", p)
	}

	// A second start shows the first one and ends.
	second := start(t, exe, home)
	if err := second.cmd.Wait(); err != nil {
		t.Errorf("a second start ends with %v: %s", err, second.errs)
	}
	a.until("the first one shows itself", func() bool { return a.state().Policy == 0 })

	// A hidden item comes back.
	a.say("hide", nil)
	a.say("wake", nil)
	a.until("the item is made anew", func() bool { return a.dump().Items == 1 })
	a.untilTitle("headline", "demo · ready")

	// Stop and start the server; the engine keeps its model.
	a.click("server")
	a.untilTitle("headline", "Server stopped")
	if get(t, base+"/health", "") != 0 {
		t.Error("the stopped server answers")
	}
	a.click("server")
	a.untilTitle("headline", "demo · ready")

	a.say("open", nil)
	a.until("the server has a race", func() bool { return a.find("race").Enabled })
	a.click("race")
	a.dialog("Identical output", 0)
	a.click("check")
	a.dialog("This machine", 0)
	a.click("model.pin demo")
	a.until("the model is pinned", func() bool { return a.find("model.pin demo").State == 1 })

	a.click("unload")
	a.untilTitle("headline", "No model loaded")
	a.click("reload")
	a.untilTitle("headline", "demo · ready")

	// With requests running, quitting asks first, and each can be stopped. Two
	// clients ask on and on, since the demo is quick.
	base = a.find("address").Title
	var stopped atomic.Int32
	ask, enough := context.WithCancel(t.Context())
	defer enough()
	for range 2 {
		go func() {
			for ask.Err() == nil {
				resp, err := http.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(`{"messages":[{"role":"user","content":"Count."}],"max_tokens":1500,"logit_bias":{"0":-100,"2":-100}}`))
				if err != nil {
					return
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					stopped.Add(1)
				}
			}
		}()
	}
	a.untilTitle("requests", "running")
	a.click("quit")
	a.dialog("running", 2) // not now
	a.until("a request was stopped", func() bool {
		for _, r := range a.find("requests").Items {
			var ended struct{ Clicked, Error string } // it may have ended by itself
			if len(r.Items) == 1 {
				a.say("click "+r.Items[0].ID, &ended)
			}
		}
		return stopped.Load() > 0
	})
	enough()
	a.untilTitle("headline", "demo · ready")
	a.say("close", nil)
	a.click("quit_now")
	var end struct{ Terminated bool }
	if a.read(&end); !end.Terminated {
		t.Error("the app did not end")
	}
	if err := a.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	for _, bad := range []string{"without pool", "exception", "panic", "fault"} {
		if strings.Contains(a.errs.String(), bad) {
			t.Errorf("it complained: %s", a.errs)
			break
		}
	}
	if b, err := os.ReadFile(filepath.Join(home, "sparkbar", "sparkbar.log")); err != nil || strings.Contains(string(b), "fault") {
		t.Errorf("%v %s", err, b)
	}
}

func goroot(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
