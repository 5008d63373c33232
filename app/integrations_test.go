package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkbar/httpapi/client"
)

// TestWriteEveryIntegration writes the file of each client of a real server:
// into nothing, beside what others have in it, and again after the server has
// moved, when only its own part changes.
func TestWriteEveryIntegration(t *testing.T) {
	settingsFile(t, "")
	list := func(args ...string) map[string]client.Integration {
		s := startServe(t, append([]string{"--backend", "reference", "--no-warmup", "--mode", "baseline", "--model", "demo"}, args...)...)
		s.up()
		c, err := client.New(s.base, strings.TrimPrefix(strings.Join(args, " "), "--api-key "))
		if err != nil {
			t.Fatal(err)
		}
		all, err := c.Integrations(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]client.Integration{}
		for _, x := range all {
			out[x.ID] = x
		}
		return out
	}
	before, after := list("--api-key", "first"), list("--api-key", "second")
	vscode := ".config/Code/User/chatLanguageModels.json"
	if runtime.GOOS == "darwin" {
		vscode = "Library/Application Support/Code/User/chatLanguageModels.json"
	}
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	var seen []string
	for _, c := range []struct {
		id, path string
		others   string // what stands in the file already, "" = it is the product's own
		kept     []string
	}{
		{"codex", ".codex/mlx-dspark.config.toml", "", nil},
		{"opencode", "opencode.json", `{"theme": "dark", "provider": {"other": {"npm": "x"}}}`, []string{`"theme":"dark"`, `"other":{"npm":"x"}`}},
		{"pi", ".pi/agent/models.json", `{"providers": {"other": {"baseUrl": "http://o"}}}`, []string{`"other":{"baseUrl":"http://o"}`}},
		{"continue", ".continue/config.yaml", "", nil},
		{"zed", ".config/zed/settings.json", `{"vim_mode": true, "language_models": {"ollama": {"api_url": "http://o"}}}`, []string{`"vim_mode":true`, `"ollama":{"api_url":"http://o"}`}},
		{"vscode", vscode, `[{"name": "other", "vendor": "x"}]`, []string{`{"name":"other","vendor":"x"}`}},
		{"aider", ".aider.model.metadata.json", `{"other/model": {"max_input_tokens": 5}}`, []string{`"other/model":{"max_input_tokens":5}`}},
	} {
		seen = append(seen, c.id)
		t.Run(c.id, func(t *testing.T) {
			home := t.TempDir()
			t.Chdir(home) // a project's files lie in its folder
			path := filepath.Join(home, c.path)
			write := func(x client.Integration) string {
				t.Helper()
				var out bytes.Buffer
				if err := writeIntegration(x, home, false, now, strings.NewReader("y\n"), &out); err != nil {
					t.Fatal(err)
				}
				return out.String()
			}
			if out := write(before[c.id]); !strings.Contains(out, "new file") {
				t.Errorf("%s", out)
			}
			fresh, err := os.ReadFile(path)
			if err != nil || !bytes.Contains(fresh, []byte("demo")) {
				t.Fatalf("%s %v", fresh, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v %v", info.Mode(), err)
			}
			if out := write(before[c.id]); !strings.Contains(out, "as it should be") {
				t.Errorf("again: %s", out)
			}
			if c.id == "continue" { // YAML of others is not touched
				var out bytes.Buffer
				err := writeIntegration(after[c.id], home, true, now, strings.NewReader(""), &out)
				if text, _ := os.ReadFile(path); err == nil || !strings.Contains(err.Error(), "by hand") || !bytes.Equal(text, fresh) {
					t.Errorf("%v %s", err, text)
				}
				return
			}
			if c.others != "" {
				if err := os.WriteFile(path, []byte(c.others), 0o600); err != nil {
					t.Fatal(err)
				}
				write(before[c.id])
			}
			old, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			out := write(after[c.id])
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var compact bytes.Buffer
			if json.Compact(&compact, text) != nil {
				compact.Write(text) // TOML
			}
			for _, want := range c.kept {
				if !strings.Contains(compact.String(), want) {
					t.Errorf("%s is lost in %s", want, text)
				}
			}
			if backup, err := os.ReadFile(path + ".bak-20260504-030201"); err != nil || c.others == "" && !bytes.Equal(backup, old) {
				t.Errorf("%v %s", err, backup)
			}
			moved := c.id != "aider" // whose file has neither address nor key
			if lines := strings.Split(out, "\n"); moved != (slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "+") && strings.Contains(l, "127.0.0.1") })) {
				t.Errorf("the diff: %s", out)
			}
			if bytes.Contains(text, []byte("first")) || strings.Count(compact.String(), "127.0.0.1") > 1 {
				t.Errorf("an old part is left in %s", text)
			}
		})
	}
	for id, x := range before {
		hasFile := slices.ContainsFunc(x.Setup, func(s client.SetupStep) bool { return s.Kind == "file" })
		if hasFile != slices.Contains(seen, id) {
			t.Errorf("%s is not tested, or has no file", id)
		}
	}
}
