package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkbar/httpapi"
)

func TestLogTail(t *testing.T) {
	var out bytes.Buffer
	tail := &logTail{}
	log := slog.New(tail.handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})))
	log.Debug("not shown")
	log.With("a", 1).WithGroup("g").Warn("first", "b", "two words")
	for range linesKept + 5 {
		log.Info("again")
	}
	all := tail.after(0)
	if len(all) != linesKept || all[len(all)-1].Number != linesKept+6 || tail.after(linesKept+6) != nil {
		t.Errorf("%d lines, the last is %d", len(all), all[len(all)-1].Number)
	}
	if got := tail.after(linesKept + 5); len(got) != 1 || got[0].Text != "again" || got[0].Level != "INFO" {
		t.Errorf("%v", got)
	}
	if text, _, _ := strings.Cut(out.String(), "\n"); !strings.Contains(text, `msg=first a=1 g.b="two words"`) {
		t.Error("the log itself changed: ", text)
	}
	tail = &logTail{}
	slog.New(tail.handler(slog.DiscardHandler)).Error("unheard")
	slog.New(tail.handler(slog.NewTextHandler(&out, nil))).With("a", 1).WithGroup("g").Warn("first", "b", 2)
	if got := tail.after(0); len(got) != 1 || got[0].Text != "first a=1 g.b=2" || got[0].Level != "WARN" {
		t.Errorf("%v", got)
	}
}

// TestWriteClientFile: a change is shown first; a shared file keeps what is not
// ours, and its old self; a project's file is refused.
func TestWriteClientFile(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	o := owner{log: &logTail{}}
	path := filepath.Join(home, "shared.json")
	if err := os.WriteFile(path, []byte(`{"theirs": 1}`), 0o640); err != nil {
		t.Fatal(err)
	}
	shown, err := o.WriteClientFile("~/shared.json", `{"ours": 2}`, false)
	if err != nil || shown.Written || !strings.Contains(shown.Diff, `"ours"`) {
		t.Fatalf("%+v %v", shown, err)
	}
	if text, _ := os.ReadFile(path); string(text) != `{"theirs": 1}` {
		t.Errorf("showing has written: %s", text)
	}
	done, err := o.WriteClientFile("~/shared.json", `{"ours": 2}`, true)
	if err != nil || !done.Written || done.Created {
		t.Fatalf("%+v %v", done, err)
	}
	text, _ := os.ReadFile(path)
	old, _ := os.ReadFile(done.Backup)
	if !strings.Contains(string(text), `"theirs"`) || !strings.Contains(string(text), `"ours"`) || string(old) != `{"theirs": 1}` {
		t.Errorf("%s, kept %s", text, old)
	}
	if again, err := o.WriteClientFile("~/shared.json", `{"ours": 2}`, true); err != nil || again.Diff != "" || again.Written {
		t.Errorf("%+v %v", again, err)
	}
	if err := os.WriteFile(path, []byte("// not JSON"), 0o640); err != nil {
		t.Fatal(err)
	}
	var no *httpapi.Refusal
	for _, p := range []string{"~/shared.json", "opencode.json", "/etc/passwd"} {
		if _, err := o.WriteClientFile(p, `{}`, true); !errors.As(err, &no) {
			t.Errorf("%s: %v", p, err)
		}
	}
}
