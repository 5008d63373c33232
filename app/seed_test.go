package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sparkbar/engine/testhub"
	"sparkbar/engine/testneed"
	"sparkbar/resources"
)

// hubDouble serves the files of one repository in the way of the hub.
func hubDouble(t *testing.T, repo string, files map[string][]byte) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { testhub.Serve(w, r, repo, files, nil) }))
	t.Cleanup(s.Close)
	return s.URL
}

// curlCommands takes the curl commands out of a document.
func curlCommands(t *testing.T, path string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var now []string
	quotes := 0
	for line := range strings.Lines(string(text)) {
		if now == nil && !strings.HasPrefix(line, "curl ") {
			continue
		}
		now = append(now, line)
		quotes += strings.Count(line, "'")
		if quotes%2 == 0 && !strings.HasSuffix(strings.TrimRight(line, "\n"), `\`) {
			list, now, quotes = append(list, strings.Join(now, "")), nil, 0
		}
	}
	if len(list) == 0 || now != nil {
		t.Fatalf("%s: %q, %q left", path, list, now)
	}
	return list
}

// TestSeedCurl runs the curl examples of the two documents that this program is
// made to, through a shell, with nothing but the port changed.
func TestSeedCurl(t *testing.T) {
	for _, program := range []string{"sh", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			testneed.Missing(t, "the program "+program, "install it")
		}
	}
	target, _ := resources.Demo()
	t.Setenv("HF_ENDPOINT", hubDouble(t, "mlx-community/Qwen3.8-27B-4bit", target))
	t.Setenv("HF_HUB_CACHE", filepath.Join(t.TempDir(), "hub"))
	t.Setenv("HF_HUB_OFFLINE", "")
	settingsFile(t, "")
	s := startServe(t, "--backend", "reference", "--no-warmup", "--mode", "baseline", "--default-max-tokens", "8")
	s.ready()
	port := s.base[strings.LastIndexByte(s.base, ':'):]
	run := func(command string) map[string]any {
		t.Helper()
		changed := strings.Replace(command, ":8080/", port+"/", 1)
		if changed == command {
			t.Fatalf("no port in %s", command)
		}
		out, err := exec.Command("sh", "-c", changed).Output() // progress goes to stderr
		var v map[string]any
		if jerr := json.Unmarshal(out, &v); err != nil || jerr != nil {
			t.Fatalf("%s\n%v %v %s", changed, err, jerr, out)
		}
		return v
	}

	commands := append(curlCommands(t, "testdata/seed/admin-load.txt"), curlCommands(t, "testdata/seed/mlx-lm-server.md")...)
	if len(commands) != 3 {
		t.Fatalf("%q", commands)
	}
	// The model arrives from the hub, without its drafter, which that has not.
	load := run(commands[0])
	if load["ready"] != true || load["model"] != "Qwen3.8-27B-4bit" || load["error"] != nil {
		t.Errorf("%s answers %v", commands[0], load)
	}
	_, health := s.call("GET", "/health", "")
	if health["context_window"] != 65536.0 || health["thinking_default"] != "off" || health["target"] != "mlx-community/Qwen3.8-27B-4bit" {
		t.Errorf("%v", health)
	}
	chat := run(commands[1])
	if field(chat, "object") != "chat.completion" || field(chat, "choices", 0, "message", "content") == "" || field(chat, "choices", 0, "finish_reason") == nil || field(chat, "usage", "total_tokens") == nil {
		t.Errorf("%s answers %v", commands[1], chat)
	}
	list := run(commands[2])
	if field(list, "object") != "list" || field(list, "data", 0, "id") != "Qwen3.8-27B-4bit" || field(list, "data", 0, "created") == nil {
		t.Errorf("%s answers %v", commands[2], list)
	}
}
