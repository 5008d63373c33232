package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/machine"
	"sparkbar/engine/models"
	"sparkbar/httpapi/client"
	"sparkbar/resources"
)

// put writes the demo's target as a model folder.
func put(t *testing.T, dir string) {
	t.Helper()
	target, _ := resources.Demo()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range target {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func command1(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetIn(strings.NewReader(stdin))
	err := cmd.ExecuteContext(context.Background())
	return out.String(), err
}

// TestModelCommands: ls, show and rm over a cache and a folder.
func TestModelCommands(t *testing.T) {
	hub, folder := filepath.Join(t.TempDir(), "hub"), t.TempDir()
	t.Setenv("HF_HUB_CACHE", hub)
	t.Setenv("SPARKBAR_MODEL_DIRS", folder)
	const sha = "0123456789abcdef0123456789abcdef01234567"
	repo := filepath.Join(hub, "models--org--tiny")
	put(t, filepath.Join(repo, "snapshots", sha))
	if err := os.MkdirAll(filepath.Join(repo, "refs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(repo, "refs", "main"), []byte(sha), 0o644); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(folder, "mine"))
	put(t, filepath.Join(folder, "broken"))
	if err := os.Truncate(filepath.Join(folder, "broken", "model.safetensors"), 100); err != nil {
		t.Fatal(err)
	}
	out, err := command1(t, "", "ls")
	if err != nil || !strings.Contains(out, "org/tiny") || !strings.Contains(out, "mine") || !strings.Contains(out, "demo") || strings.Contains(out, "Qwen3-4B") {
		t.Errorf("%s %v", out, err)
	}
	if out, err = command1(t, "", "ls", "--all"); err != nil || !strings.Contains(out, "mlx-community/Qwen3-4B-8bit") {
		t.Errorf("%s %v", out, err)
	}
	out, err = command1(t, "", "ls", "--json")
	var rows []modelRow
	if e := json.Unmarshal([]byte(out), &rows); err != nil || e != nil || len(rows) != 4 {
		t.Fatalf("%s %v %v", out, err, e)
	}
	for _, r := range rows {
		if (r.ID == "broken") != (r.Reason != "") {
			t.Errorf("%+v", r)
		}
	}
	if out, err = command1(t, "", "show", "org/tiny"); err != nil || !strings.Contains(out, sha) || !strings.Contains(out, "tokens") {
		t.Errorf("%s %v", out, err)
	}
	if _, err = command1(t, "", "show", "tinny"); err == nil || !strings.Contains(err.Error(), "sparkbar ls") {
		t.Errorf("%v", err)
	}
	if _, err = command1(t, "", "show", "x/tiny"); err == nil || !strings.Contains(err.Error(), "org/tiny") {
		t.Errorf("no hint: %v", err)
	}
	if out, err = command1(t, "n\n", "rm", "org/tiny"); err != nil || !strings.Contains(out, "nothing was removed") {
		t.Errorf("%s %v", out, err)
	}
	if _, err := os.Stat(repo); err != nil {
		t.Error("removed without consent")
	}
	for _, id := range []string{"mine", "demo"} {
		if _, err := command1(t, "y\n", "rm", id); err == nil {
			t.Errorf("%s was removed", id)
		}
	}
	if out, err = command1(t, "y\n", "rm", "org/tiny"); err != nil || !strings.Contains(out, "removed org/tiny") {
		t.Errorf("%s %v", out, err)
	}
	if _, err := os.Stat(repo); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(folder, "mine")); err != nil {
		t.Error(err)
	}
}

// TestRemoveStaysInside: whatever a path says, only folders of models in the
// cache go.
func TestRemoveStaysInside(t *testing.T) {
	hub := t.TempDir()
	other := filepath.Join(hub, "precious")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{other, "/", filepath.Dir(hub), ""} {
		if err := remove(models.Model{ID: "x", Path: path, Source: models.SourceHub}, models.Places{Hub: hub}, true, strings.NewReader(""), &bytes.Buffer{}); err == nil {
			t.Errorf("%q: removed", path)
		}
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

func TestProgressLine(t *testing.T) {
	line := progressLine(models.Progress{Repo: "org/m", State: models.StateDownloading, BytesDone: 1 << 30, BytesTotal: 4 << 30, BytesPerSecond: 50 << 20, ETA: 61 * time.Second})
	if want := "org/m [======                  ]  25 % of 4.0 GB, 50 MB/s, 1m1s left"; line != want {
		t.Errorf("%q, want %q", line, want)
	}
	if line := progressLine(models.Progress{Repo: "org/m", State: models.StatePlanning}); line != "org/m: planning" {
		t.Errorf("%q", line)
	}
	if line := progressLine(models.Progress{BytesDone: 9, BytesTotal: 3, State: models.StatePaused}); !strings.Contains(line, "100 %") || !strings.Contains(line, "paused") {
		t.Errorf("%q", line)
	}
}

func TestReport(t *testing.T) {
	var out bytes.Buffer
	list := []engine.Finding{{Code: "a", Level: engine.LevelAttention, Message: "m", Fix: "f"}}
	if err := report(&out, list, false); err != nil || !strings.Contains(out.String(), "fix: f") {
		t.Errorf("%v %s", err, out.String())
	}
	list[0].Level = engine.LevelProblem
	if err := report(&out, list, true); err != errProblems {
		t.Errorf("%v", err)
	}
	out.Reset()
	if err := report(&out, nil, true); err != nil || !strings.Contains(out.String(), `"findings": []`) {
		t.Errorf("%v %s", err, out.String())
	}
}

// TestDoctorFindsTheOwnersFaults: what only the command line can know.
func TestDoctorFindsTheOwnersFaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	t.Setenv("SPARKBAR_CONFIG", path)
	if err := os.WriteFile(path, []byte("strange: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HF_ENDPOINT", "ftp://hub.example")
	v := configOf(t, "--host", "0.0.0.0")
	_, _, hubErr := storage(v)
	v.file.fault.Store(&badSetting{"f", 3, "k", "wrong"})
	codes := map[string]bool{}
	for _, f := range findings(v, hubErr) {
		codes[f.Code] = f.Fix != "" && f.Message != ""
	}
	for _, want := range []string{"hub", "settings", "unknown_settings", "open"} {
		if !codes[want] {
			t.Errorf("%s was not found: %v", want, codes)
		}
	}
}

func TestShow(t *testing.T) {
	var out bytes.Buffer
	c := models.NewCatalogue(models.CatalogueOptions{})
	m := models.Model{ID: "mlx-community/Qwen3-4B-8bit", Complete: true, Bytes: 4 << 30, Context: 40960, Geometry: models.Geometry{PerToken: 73728, Hidden: 2560, Inter: 9728, Vocab: 151936}}
	if err := show(&out, c, m, machine.Memory{Total: 8 << 30, Available: 6 << 30}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"dspark_qwen3_4b_block7 (not here", "at 4096 tokens", "too big"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
}

// TestWriteIntegration: new files, shared files and files that must be left
// alone.
func TestWriteIntegration(t *testing.T) {
	home := t.TempDir()
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	pi := client.Integration{ID: "pi", Name: "pi", Setup: []client.SetupStep{{Kind: "file", Path: "~/.pi/agent/models.json",
		Content: `{"providers": {"mlx-dspark": {"baseUrl": "http://x", "models": [{"id": "m"}]}}}` + "\n"}}}
	write := func(x client.Integration, answer string) (string, error) {
		var out bytes.Buffer
		err := writeIntegration(x, home, false, now, strings.NewReader(answer), &out)
		return out.String(), err
	}
	path := filepath.Join(home, ".pi", "agent", "models.json")
	if out, err := write(pi, "n\n"); err != nil || !strings.Contains(out, "nothing was written") {
		t.Errorf("%s %v", out, err)
	}
	if out, err := write(pi, "y\n"); err != nil || !strings.Contains(out, "new file") {
		t.Errorf("%s %v", out, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	// A shared file keeps what others have in it, in its order.
	old := `{"z": 1, "providers": {"other": {"a": [1, 2]}, "mlx-dspark": {"baseUrl": "http://old", "extra": true}}, "a": {"b": null}}`
	if err := os.WriteFile(path, []byte(old), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	out, err := write(pi, "yes\n")
	if err != nil || !strings.Contains(out, "+") || !strings.Contains(out, "http://old") {
		t.Errorf("%s %v", out, err)
	}
	text, _ := os.ReadFile(path)
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		t.Fatal(err)
	}
	if want := `{"z":1,"providers":{"other":{"a":[1,2]},"mlx-dspark":{"baseUrl":"http://x","models":[{"id":"m"}]}},"a":{"b":null}}`; compact.String() != want {
		t.Errorf("%s\nwant %s", compact.String(), want)
	}
	backup := path + ".bak-20260504-030201"
	if kept, err := os.ReadFile(backup); err != nil || string(kept) != old {
		t.Errorf("%s %v", kept, err)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v", info.Mode())
	}
	if out, err := write(pi, ""); err != nil || !strings.Contains(out, "as it should be") {
		t.Errorf("%s %v", out, err)
	}
	for _, odd := range []string{"{ // comment\n}", "[1]", "{\"a\":1,}", `{"a":1,"a":2}`, `{"providers":5}`} {
		if err := os.WriteFile(path, []byte(odd), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := write(pi, "y\n"); err == nil || !strings.Contains(err.Error(), "by hand") {
			t.Errorf("%s: %v", odd, err)
		}
		if now, _ := os.ReadFile(path); string(now) != odd {
			t.Errorf("%s was changed to %s", odd, now)
		}
	}
	if _, err := write(client.Integration{ID: "x", Name: "X"}, "y\n"); err == nil {
		t.Error("a client without a file")
	}
}

func TestDiff(t *testing.T) {
	if got := diff("a\nb\nc\n", "a\nx\nc\nd\n"); got != "-b\n+x\n+d\n" {
		t.Errorf("%q", got)
	}
	if got := diff("a\n", "a\n"); got != "" {
		t.Errorf("%q", got)
	}
}

// TestPullNames: what is no name of the hub is told whole, before the hub is asked.
func TestPullNames(t *testing.T) {
	for name, want := range map[string]string{
		"demo":                       "demo is part of the program",
		"nowhere":                    `"nowhere" is not the name`,
		"./org/it":                   `"./org/it" is not the name`,
		"./it":                       `"./it" is not the name`,
		"org/i t":                    `"org/i t" is not the name`,
		"https://hub.example/org/it": `"https://hub.example/org/it" is not the name`,
	} {
		if _, err := command1(t, "", "pull", "--offline", name); err == nil || exitCode(err) != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
