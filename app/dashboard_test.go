package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sparkbar/engine/testhub"
	"sparkbar/engine/testneed"
	"sparkbar/resources"
)

// web is where the dashboard's sources and its tests are.
const web = "../resources/web"

// webTools returns the folder that resources/web/setup.sh has filled.
func webTools(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../build/web")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		testneed.Missing(t, "what builds and tests the dashboard", "run `make setup`")
	}
	return dir
}

// TestDashboardIsBuilt: the files that are embedded are those that the sources
// make, which have no type errors, and they are small.
func TestDashboardIsBuilt(t *testing.T) {
	tools, dir := webTools(t), t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "src"), os.DirFS(filepath.Join(web, "src"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"build.mjs", "package.json", "tsconfig.json"} {
		text, err := os.ReadFile(filepath.Join(web, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(tools, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{filepath.Join("node_modules", ".bin", "tsc"), "--noEmit"}, {"node", "build.mjs", "dist"}} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	built, err := os.ReadDir(filepath.Join(dir, "dist"))
	if err != nil {
		t.Fatal(err)
	}
	stored, err := os.ReadDir(filepath.Join(web, "dist"))
	if err != nil || len(stored) != len(built) {
		t.Errorf("%d files are stored, %d are built, %v; run `make web`", len(stored), len(built), err)
	}
	packed := 0
	for _, e := range built {
		want, err := os.ReadFile(filepath.Join(dir, "dist", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(web, "dist", e.Name()))
		if err != nil || !bytes.Equal(want, got) {
			t.Errorf("%s differs from what the sources make, %v; run `make web`", e.Name(), err)
		}
		packed += len(gzipped(t, got))
	}
	t.Logf("%d kB with gzip", packed>>10)
	if packed > 300<<10 {
		t.Errorf("the dashboard has %d kB with gzip, more than 300", packed>>10)
	}
}

// standIn is a hub of small models. The content of org/slow trickles.
type standIn struct{ files map[string][]byte }

func (h standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const slow = "org/slow"
	if !strings.Contains(r.URL.Path, "/"+slow) {
		testhub.Serve(w, r, "org/small", h.files, nil)
		return
	}
	testhub.Serve(w, r, slow, h.files, func(name string) bool {
		http.ServeContent(w, r, "", time.Time{}, &trickle{bytes.NewReader(h.files[name]), r.Context()})
		return false
	})
}

// trickle reads slowly until its request ends.
type trickle struct {
	io.ReadSeeker
	ctx context.Context
}

func (t *trickle) Read(p []byte) (int, error) {
	select {
	case <-time.After(20 * time.Millisecond):
	case <-t.ctx.Done():
		return 0, t.ctx.Err()
	}
	return t.ReadSeeker.Read(p[:min(len(p), 512)])
}

// program is the built binary at work.
type program struct {
	base string
	home string
	cmd  *exec.Cmd
}

// startProgram runs `sparkbar serve` in a home of its own.
func startProgram(t *testing.T, binary, hub string, args ...string) *program {
	t.Helper()
	home := t.TempDir()
	p := &program{home: home, cmd: exec.Command(binary, append([]string{"serve", "--port", "0"}, args...)...)}
	p.cmd.Dir = home
	p.cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+filepath.Join(home, "config"), "XDG_CACHE_HOME="+filepath.Join(home, "cache"), "XDG_STATE_HOME="+filepath.Join(home, "state"),
		"HF_HOME="+filepath.Join(home, "hf"), "HF_ENDPOINT="+hub, "HF_HUB_CACHE=", "HF_TOKEN=",
		"SPARKBAR_CONFIG="+filepath.Join(home, "config.yaml"), "SPARKBAR_PREFIX_CACHE_DIR="+filepath.Join(home, "prefixes"), "SPARKBAR_CALIBRATIONS="+filepath.Join(home, "calibration.json"))
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p.cmd.Stderr = &log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.end()
		if t.Failed() {
			t.Logf("the log of %v:\n%.4000s", args, log.String())
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
			p.base, _, _ = strings.Cut(rest, " ")
			break
		}
	}
	if p.base == "" {
		t.Fatalf("the program does not listen: %s", log.String())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return p
}

func (p *program) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
}

// TestDashboard drives the dashboard of the built binary in a browser: every
// screen and every action, with the demo model, SmolLM2 and a stand-in of the
// hub; what pages of other origins may not do; accessibility; long lists.
func TestDashboard(t *testing.T) {
	if testing.Short() {
		t.Skip("the program runs outside the race detector: the other run drives it")
	}
	tools := webTools(t)
	smollm2 := testneed.SmolLM2(t)
	if _, err := os.Stat("/usr/bin/chromium"); err != nil {
		testneed.Missing(t, "Chromium", "run `make setup`")
	}
	binary := filepath.Join(t.TempDir(), "sparkbar")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	target, _ := resources.Demo()
	hub := httptest.NewServer(standIn{target})
	t.Cleanup(hub.Close)
	many := t.TempDir()
	for i := range 500 {
		dir := filepath.Join(many, "org", fmt.Sprintf("number-%03d", i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json"} {
			if err := os.WriteFile(filepath.Join(dir, name), target[name], 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Link(firstWeights(t, many, target), filepath.Join(dir, "model.safetensors")); err != nil {
			t.Fatal(err)
		}
	}
	shots, err := filepath.Abs("../build/screenshots")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(shots, 0o755); err != nil {
		t.Fatal(err)
	}
	const key = "a-key-for-the-dashboard"
	base := startProgram(t, binary, hub.URL, "--model-dirs", smollm2)
	stopped := startProgram(t, binary, hub.URL)
	setup, err := json.Marshal(map[string]any{"base": base.base, "keyed": startProgram(t, binary, hub.URL, "--api-key", key).base, "empty": startProgram(t, binary, hub.URL, "--no-model").base,
		"many": startProgram(t, binary, hub.URL, "--model-dirs", many).base, "stopped": stopped.base, "key": key, "shots": shots, "home": base.home, "modules": tools, "smollm2": "mlx",
		"parts": []string{"chat", "download", "race", "agents", "machine", "settings", "logs", "look", "foreign", "key", "offline", "long", "stop"}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", filepath.Join(web, "test", "dashboard.mjs"), string(setup))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	passed := 0
	var once sync.Once
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		switch {
		case line == "stop":
			once.Do(stopped.end)
		case strings.HasPrefix(line, "ok "):
			passed++
		case strings.HasPrefix(line, "not ok "):
			t.Error(line)
		default:
			t.Log(line)
		}
	}
	if err := cmd.Wait(); err != nil || passed != 13 {
		t.Errorf("%d of 13 parts passed: %v", passed, err)
	}
}

// firstWeights writes the weights once; the folders share them.
func firstWeights(t *testing.T, dir string, files map[string][]byte) string {
	t.Helper()
	path := filepath.Join(dir, "weights")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.WriteFile(path, files["model.safetensors"], 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func gzipped(t *testing.T, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
