package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine"
)

// examine runs `sparkbar doctor` and returns its findings by code.
func examine(t *testing.T, args ...string) map[string]engine.Finding {
	t.Helper()
	out, err := command1(t, "", append([]string{"doctor", "--json"}, args...)...)
	var report struct {
		OK       bool
		Findings []engine.Finding
	}
	if jerr := json.Unmarshal([]byte(out), &report); jerr != nil {
		t.Fatalf("%v %v %s", err, jerr, out)
	}
	found := map[string]engine.Finding{}
	for _, f := range report.Findings {
		found[f.Code] = f
	}
	if bad := slices.ContainsFunc(report.Findings, func(f engine.Finding) bool { return f.Level == engine.LevelProblem }); bad == report.OK || bad != (err != nil) {
		t.Errorf("ok %v, exit %v, findings %+v", report.OK, err, report.Findings)
	}
	return found
}

// TestDoctor plants faults one at a time on this very machine, and doctor names
// each, with what is wrong and what to do, and only where it is planted.
func TestDoctor(t *testing.T) {
	const sha = "0123456789abcdef0123456789abcdef01234567"
	port := freePort(t)
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	go func() { // a program that is no server of ours
		for {
			c, err := held.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "SSH-2.0-none\r\n")
			c.Close()
		}
	}()
	taken := held.Addr().(*net.TCPAddr).Port
	setting := func(t *testing.T, text string) { settingsFile(t, fmt.Sprintf("server: {port: %d}\n%s", port, text)) }
	// sound is a machine with a model and nothing wrong in its set-up.
	sound := func(t *testing.T) (hub, folder string) {
		hub, folder = filepath.Join(t.TempDir(), "hub"), t.TempDir()
		put(t, filepath.Join(folder, "mine"))
		setting(t, "")
		for key, value := range map[string]string{"HF_HUB_CACHE": hub, "SPARKBAR_MODEL_DIRS": folder, "HF_ENDPOINT": "", "SSL_CERT_FILE": ""} {
			t.Setenv(key, value)
		}
		return hub, folder
	}
	usual := map[string]engine.Finding{}
	moment := []string{"memory_pressure", "swap", "thermal", "disk"} // what else the machine does just now
	t.Run("sound", func(t *testing.T) {
		sound(t)
		usual = examine(t)
		for _, code := range []string{"settings", "unknown_settings", "hub", "open", "cache_read_only", "missing_folder", "incomplete_model", "no_models", "port_taken", "load_failed", "prefix_disk"} {
			if f, ok := usual[code]; ok {
				t.Errorf("found where nothing is planted: %+v", f)
			}
		}
	})
	for _, c := range []struct {
		name, code string
		plant      func(t *testing.T, hub, folder string)
		say, fix   string // that the finding has to name
	}{
		{"a settings file that cannot be read", "settings", func(t *testing.T, _, _ string) { settingsFile(t, "server:\n  port: many\n") }, "config.yaml:2: server.port must be", "config set"},
		{"a setting that does not exist", "unknown_settings", func(t *testing.T, _, _ string) { setting(t, "modle: {dirs: []}\n") }, "modle", "config get"},
		{"a hub that is none", "hub", func(t *testing.T, _, _ string) { t.Setenv("HF_ENDPOINT", "ftp://hub.example") }, "ftp://hub.example", "HF_ENDPOINT"},
		{"certificates that are not there", "hub", func(t *testing.T, _, _ string) { setting(t, "hub: {ca_file: /nowhere/ca.pem}\n") }, "/nowhere/ca.pem", "--hub-ca"},
		{"an open door", "open", func(t *testing.T, _, _ string) {
			settingsFile(t, fmt.Sprintf("server: {port: %d, host: 0.0.0.0}\n", port))
		}, "0.0.0.0", "--api-key"},
		{"a cache that cannot be written", "cache_read_only", func(t *testing.T, hub, _ string) {
			if err := os.WriteFile(hub, nil, 0o600); err != nil { // a file where the folder is to be
				t.Fatal(err)
			}
		}, "hub", "HF_HUB_CACHE"},
		{"a folder that has gone", "missing_folder", func(t *testing.T, _, folder string) {
			t.Setenv("SPARKBAR_MODEL_DIRS", folder+string(os.PathListSeparator)+"/nowhere/models")
		}, "/nowhere/models", "model_dirs"},
		{"half a model", "incomplete_model", func(t *testing.T, hub, _ string) {
			put(t, filepath.Join(hub, "models--org--half", "snapshots", sha))
			if err := os.Truncate(filepath.Join(hub, "models--org--half", "snapshots", sha, "model.safetensors"), 1000); err != nil {
				t.Fatal(err)
			}
		}, "org/half", "sparkbar pull org/half"},
		{"no model at all", "no_models", func(t *testing.T, _, folder string) {
			if err := os.RemoveAll(filepath.Join(folder, "mine")); err != nil {
				t.Fatal(err)
			}
		}, "no model", "sparkbar pull"},
		{"a port that another program holds", "port_taken", func(t *testing.T, _, _ string) { settingsFile(t, fmt.Sprintf("server: {port: %d}\n", taken)) },
			fmt.Sprintf("(process %d) listens on port %d", os.Getpid(), taken), "config set server.port"},
		{"stored prompts without a place", "prefix_disk", func(t *testing.T, _, folder string) {
			t.Setenv("SPARKBAR_PREFIX_CACHE_DIR", filepath.Join(folder, "mine", "config.json", "below"))
		}, "config.json", "--prefix-cache-dir"},
	} {
		t.Run(c.name, func(t *testing.T) {
			hub, folder := sound(t)
			c.plant(t, hub, folder)
			found := examine(t)
			f, ok := found[c.code]
			if !ok || !strings.Contains(f.Message, c.say) || !strings.Contains(f.Fix, c.fix) {
				t.Errorf("%s: %+v in %+v, want %q and %q", c.code, f, found, c.say, c.fix)
			}
			for code, f := range found {
				if _, known := usual[code]; !known && code != c.code && !slices.Contains(moment, code) {
					t.Errorf("found besides: %+v", f)
				}
			}
		})
	}
	// What only a running server knows, asked through it.
	t.Run("a load that failed", func(t *testing.T) {
		_, folder := sound(t)
		if err := os.WriteFile(filepath.Join(folder, "mine", "config.json"), []byte(`{"model_type":"qwen3"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		s := startServe(t, "--backend", "reference", "--no-warmup", "--no-model", "--model-root", folder)
		if status, v := s.call("POST", "/admin/load", fmt.Sprintf(`{"model":%q}`, filepath.Join(folder, "mine"))); status == 200 {
			t.Fatal(status, v)
		}
		f, ok := examine(t, "--url", s.base)["load_failed"]
		if !ok || !strings.Contains(f.Message, "config.json") || f.Fix == "" {
			t.Errorf("%+v", f)
		}
	})
}
