package double

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sparkbar/engine/testhub"
	"sparkbar/engine/testneed"
	"sparkbar/packaging"
)

var (
	turn     sync.Once
	turnFile *os.File // open, and so locked, until this process ends
	turnErr  error
)

// alone waits until no other run of these tests uses the folder, which then is this
// run's.
func alone(dir string) error {
	turn.Do(func() {
		if turnErr = os.MkdirAll(dir, 0o755); turnErr != nil {
			return
		}
		if turnFile, turnErr = os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644); turnErr == nil {
			turnErr = syscall.Flock(int(turnFile.Fd()), syscall.LOCK_EX)
		}
	})
	return turnErr
}

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
	if err := alone(dir); err != nil {
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
	log  string // file
	seen int    // bytes of it that were looked at
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
	a := &app{t: t, in: in, out: bufio.NewReader(out), cmd: cmd, errs: &bytes.Buffer{}}
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
	ID, Title, Colour string
	State             int
	Enabled, Hidden   bool
	Image             bool
	Items             []item
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
	a.until(id+" can be clicked", func() bool {
		answer.Error = ""
		a.say("click "+id, &answer)
		return answer.Error == ""
	})
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

// made waits until the menu has made these requests since the last look, and no
// others; what it only reads does not count.
func (a *app) made(want ...string) {
	a.t.Helper()
	var got []string
	read := func() {
		b, err := os.ReadFile(a.log)
		if err != nil {
			a.t.Fatal(err)
		}
		end := bytes.LastIndexByte(b, '\n') + 1
		for line := range strings.Lines(string(b[a.seen:end])) {
			f := map[string]string{}
			for _, kv := range strings.Fields(line) {
				k, v, _ := strings.Cut(kv, "=")
				f[k] = v
			}
			if f["by"] == "menu" && (f["method"] == "POST" || f["method"] == "PATCH" || f["method"] == "GET" && f["path"] == "/doctor") {
				got = append(got, f["method"]+" "+f["path"])
			}
		}
		a.seen = end
	}
	a.until(fmt.Sprint("the requests ", want), func() bool { read(); return len(got) >= len(want) })
	if !slices.Equal(got, want) {
		a.t.Errorf("the menu asked for %q, want %q", got, want)
	}
}

// slowHub is a model hub with one repository, me/big, whose weights stop after
// the first bytes until release is closed.
func slowHub(t *testing.T, release <-chan struct{}) string {
	t.Helper()
	files := map[string][]byte{"config.json": []byte(`{"model_type":"qwen3"}`), "tokenizer.json": []byte("{}"), "model.safetensors": bytes.Repeat([]byte("w"), 1<<20)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		testhub.Serve(w, r, "me/big", files, func(name string) bool {
			if !strings.HasSuffix(name, ".safetensors") {
				return true
			}
			b := files[name]
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			w.Write(b[:len(b)/4])
			w.(http.Flusher).Flush()
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return false
		})
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// snippets copies what each client needs and runs it: what it sends must reach
// the server.
func snippets(t *testing.T, a *app, base, exe, home string) {
	// The SDKs read the addresses from the environment.
	python, err := filepath.Abs("../../build/clients/python/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	copied := func(id string) string {
		t.Helper()
		before := *a.state().Pasteboard
		a.click(id)
		a.until(id+" is copied", func() bool { return *a.state().Pasteboard != before })
		return *a.state().Pasteboard
	}
	for id, script := range map[string]string{
		"copy.openai":    "import openai; print(openai.OpenAI(max_retries=0).chat.completions.create(model='demo', max_tokens=8, messages=[{'role':'user','content':'hi'}]).model)",
		"copy.anthropic": "import anthropic; print(anthropic.Anthropic(max_retries=0).messages.create(model='demo', max_tokens=8, messages=[{'role':'user','content':'hi'}]).model)",
	} {
		t.Run(id, func(t *testing.T) {
			if _, err := os.Stat(python); err != nil {
				testneed.Missing(t, "Python with the clients", "run `make setup`")
			}
			address := copied(id)
			cmd := exec.Command(python, "-c", script)
			cmd.Env = append(os.Environ(), "OPENAI_BASE_URL="+address, "OPENAI_API_KEY=none", "ANTHROPIC_BASE_URL="+address, "ANTHROPIC_API_KEY=none")
			if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "demo" {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	a.say("open", nil)
	a.until("the clients", func() bool { return !a.find("connect.copy claude-code").Hidden })
	modules := filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(python))), "node_modules")
	bin := t.TempDir() // the launcher in .bin is for a package that an installer would have completed
	if found, err := filepath.Glob(filepath.Join(modules, "@anthropic-ai", "claude-code-*", "claude")); err == nil && len(found) > 0 {
		if err := os.Symlink(found[0], filepath.Join(bin, "claude")); err != nil {
			t.Fatal(err)
		}
	}
	path := strings.Join([]string{filepath.Dir(exe), bin, filepath.Join(modules, ".bin"), os.Getenv("PATH")}, ":")
	// What makes a program ask one question and end, and where it asks it.
	known := map[string]struct{ program, more, reaches string }{
		"claude-code": {"claude", " -- -p hi", "/v1/messages"},
		"codex":       {"codex", " exec --skip-git-repo-check hi", "/v1/responses"},
		"pi":          {"pi", " --no-session -p hi", "/v1/messages"},
		"curl":        {"curl", "", "/v1/chat/completions"},
	}
	for _, it := range a.find("connect").Items {
		id, isCopy := strings.CutPrefix(it.ID, "connect.copy ")
		if !isCopy || !it.Enabled {
			continue
		}
		t.Run("connect "+id, func(t *testing.T) {
			command := copied(it.ID)
			k, ok := known[id]
			if !ok { // no such program here: it must at least say what holds now
				if strings.Contains(command, "http") && !strings.Contains(command, base) || strings.Contains(command, "http://localhost") {
					t.Errorf("%s names another server", command)
				}
				return
			}
			if !slices.ContainsFunc(strings.Split(path, ":"), func(dir string) bool {
				_, err := exec.LookPath(filepath.Join(dir, k.program))
				return err == nil
			}) {
				testneed.Missing(t, k.program, "run `make setup`")
			}
			env := append(os.Environ(), "HOME="+home, "PATH="+path, "CLAUDE_CODE_MAX_RETRIES=0", "DISABLE_AUTOUPDATER=1", "PI_OFFLINE=1", "PI_TELEMETRY=0", "PI_SKIP_VERSION_CHECK=1")
			if id == "codex" || id == "pi" { // their file comes first
				run(t, env, home, exe, "integrations", id, "--url", base, "--write", "--yes")
			}
			before, err := os.ReadFile(a.log)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // they try again and again; reaching is what counts
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", command+k.more)
			cmd.Env, cmd.Dir, cmd.WaitDelay = env, t.TempDir(), time.Second
			out := &bytes.Buffer{}
			cmd.Stdout, cmd.Stderr = out, out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			reached := func() bool {
				b, err := os.ReadFile(a.log)
				return err == nil && strings.Contains(string(b[len(before):]), "method=POST path="+k.reaches+" ")
			}
			for !reached() {
				select {
				case err := <-done:
					if id == "claude-code" && strings.Contains(out.String(), "Prompt is too long") {
						return // it looks at the model's window before it asks: the demo's is too small for its prompt
					}
					if !reached() {
						t.Fatalf("%s%s ended without a request to %s: %v\n%s", command, k.more, k.reaches, err, out)
					}
				case <-time.After(50 * time.Millisecond):
				}
			}
			cancel()
		})
	}
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
	home, hub := t.TempDir(), t.TempDir()
	release := make(chan struct{})
	defer close(release)
	folders := ""
	if smol, err := filepath.Abs("../../build/smollm2"); err == nil {
		folders = smol
	}
	a := start(t, exe, home, "SPARKBAR_LOG_LEVEL=debug", "HF_HUB_CACHE="+hub, "HF_ENDPOINT="+slowHub(t, release), "SPARKBAR_MODEL_DIRS="+folders)
	a.log = filepath.Join(home, "sparkbar", "sparkbar.log")
	a.read(nil) // ready

	// The first run: the item is there at once, the window says welcome, and the
	// demo is loaded meanwhile.
	a.until("the welcome", func() bool {
		s := a.state()
		return s.URL != nil && strings.HasSuffix(*s.URL, "/#/welcome") && s.Policy == 0
	})
	a.say("shut", nil)
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
	a.until("the address says that it is copied", func() bool { // for a moment only
		a.click("address")
		return strings.Contains(a.find("address").Title, "Copied ✓")
	})
	a.untilTitle("address", base)
	for id, want := range map[string]string{"copy.openai": base + "/v1", "copy.anthropic": base, "copy.model": "demo"} {
		a.click(id)
		a.until(id, func() bool { return *a.state().Pasteboard == want })
	}
	a.click("copy.curl")
	a.until("the example is copied", func() bool { return strings.HasPrefix(*a.state().Pasteboard, "curl ") })
	if _, err := exec.LookPath("curl"); err != nil {
		testneed.Missing(t, "curl", "install it")
	}
	if out := run(t, os.Environ(), "", "sh", "-c", *a.state().Pasteboard); !strings.Contains(out, `"choices"`) {
		t.Errorf("the example answers %s", out)
	}
	a.made() // copying asks the server nothing
	snippets(t, a, base, exe, home)

	// Rounds as they happen.
	go http.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(`{"messages":[{"role":"user","content":"What is speculative decoding?"}],"max_tokens":300}`))
	a.untilTitle("speed", "per round")
	a.until("the ribbon is drawn", func() bool { it := a.find("ribbon"); return !it.Hidden && it.Image })
	a.untilTitle("headline", "demo · ready")
	a.made()

	// A real model, with its progress, and back.
	if _, err := os.Stat(filepath.Join(folders, "done")); err != nil {
		t.Log("SmolLM2 is missing, so nothing is swapped: run `make setup`")
		if os.Getenv("SPARKBAR_REQUIRE") == "all" {
			t.Error("and SPARKBAR_REQUIRE=all asks for it")
		}
	} else {
		a.until("SmolLM2 is listed", func() bool { return !a.find("model.load mlx").Hidden })
		a.click("model.load mlx")
		a.untilTitle("headline", "mlx · ready")
		a.made("POST /admin/load")
		var titles []string
		a.say("titles headline", &titles)
		if !slices.ContainsFunc(titles, func(s string) bool { return strings.HasPrefix(s, "Loading mlx…") && strings.HasSuffix(s, "%") }) {
			t.Errorf("no progress was shown: %q", titles)
		}
		if it := a.find("model mlx"); !strings.HasPrefix(it.Title, "● mlx") {
			t.Errorf("%+v", it)
		}
		a.click("model.load demo")
		a.untilTitle("headline", "demo · ready")
		a.made("POST /admin/load")
	}

	// A download, begun by somebody else, and cancelled here; what has come stays.
	go http.Post(base+"/admin/load", "application/json", strings.NewReader(`{"model":"me/big"}`))
	a.untilTitle("progress", "Downloading big: ")
	if d := a.dump(); !strings.HasSuffix(strings.TrimRight(d.Title, "\u2007"), "%") && !strings.Contains(d.Title, "GB") {
		t.Errorf("beside the icon stands %q", d.Title)
	}
	a.click("cancel")
	a.dialog("Cancel the download?", 0)
	a.untilTitle("headline", "demo · ready")
	a.made("POST /admin/load/cancel")
	if kept, err := filepath.Glob(filepath.Join(hub, "models--me--big", "blobs", "*")); err != nil || len(kept) == 0 {
		t.Errorf("nothing of the download is kept: %v", err)
	}

	// Another mode, in place: the list of items stays.
	before := a.dump().Changes
	a.click("decoding.mode lookup")
	a.untilTitle("pair", "(lookup drafts)")
	a.made("POST /admin/load")
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
		a.until("the network does not reach the server", func() bool { return get(t, lan+"/health", "") == 0 })
	} else {
		t.Log("this machine is in no network")
	}

	a.click("about")
	a.dialog("Sparkbar", 0)

	// The option key shows the log while it is held; without it, nothing.
	a.say("keys 0x80000", nil)
	a.say("open", nil)
	a.until("the log can be shown", func() bool { return !a.find("log").Hidden })
	a.say("keys 0", nil)
	a.say("open", nil)
	a.until("the log cannot be shown", func() bool { return a.find("log").Hidden })
	a.click("login")
	a.until("the login item is on", func() bool { return a.state().Login == 1 && a.find("login").State == 1 })
	a.say("login 2", nil)
	a.until("the login item waits for approval", func() bool { return a.find("login").State == -1 })
	a.click("login")
	a.until("the settings are shown", func() bool { return len(a.state().Opened) == 1 })
	a.made("PATCH /admin/settings")

	// The window, and the Dock icon that comes and goes with it.
	a.click("dashboard")
	a.until("the window is shown", func() bool {
		s := a.state()
		return s.URL != nil && strings.HasPrefix(*s.URL, base+"/") && s.Policy == 0
	})
	// Its own pages stay in it, other links go to the browser; its menus work.
	var link struct{ Policy int }
	if a.say("follow "+base+"/#/models", &link); link.Policy != 1 {
		t.Errorf("its own page is not shown: %d", link.Policy)
	}
	if a.say("follow https://example.org/notes", &link); link.Policy != 0 || !slices.Contains(a.state().Opened, "https://example.org/notes") {
		t.Errorf("another page: %d %q", link.Policy, a.state().Opened)
	}
	var menus []item
	a.say("mainmenu", &menus)
	if len(menus) != 5 || menus[2].Title != "Edit" || len(menus[2].Items) != 7 {
		t.Errorf("%+v", menus)
	}
	a.say("choose Settings…", nil)
	a.until("the settings", func() bool { return strings.HasSuffix(*a.state().URL, "/#/settings") })
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
	a.until("the stopped server does not answer", func() bool { return get(t, base+"/health", "") == 0 })
	a.click("server")
	a.untilTitle("headline", "demo · ready")

	a.say("open", nil)
	a.until("the server has a race", func() bool { return a.find("race").Enabled })
	a.made()
	a.click("race")
	a.dialog("Identical output", 0)
	a.made("POST /admin/race")
	a.click("check")
	a.dialog("This machine", 0)
	a.made("GET /doctor")
	a.click("model.pin demo")
	a.until("the model is pinned", func() bool { return a.find("model.pin demo").State == 1 })
	a.made("PATCH /admin/settings")

	a.click("unload")
	a.untilTitle("headline", "No model loaded")
	a.made("POST /admin/unload")
	a.click("reload")
	a.untilTitle("headline", "demo · ready")
	a.made("POST /admin/load")

	// The computer is kept awake while it works, not on a battery that is nearly
	// empty; a sleep passes without harm.
	a.say("sleep", nil)
	a.say("wake", nil)
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
	a.until("the computer is kept awake", func() bool { return a.state().Awake == 1 })
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
