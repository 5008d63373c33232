package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/models"
	"sparkbar/httpapi"
)

// linesKept is how many lines of the log the dashboard can look back.
const linesKept = 1000

// owner gives the dashboard what lies in the owner's files.
type owner struct {
	engine *engine.Engine
	log    *logTail
}

// RemoveModel implements httpapi.Owner. The list of models follows by itself.
func (o owner) RemoveModel(id string) error {
	all := o.engine.Models()
	i := slices.IndexFunc(all, func(m models.Model) bool { return m.ID == id })
	if i < 0 {
		return &httpapi.Refusal{Message: "there is no model '" + id + "' on this machine"}
	}
	dir, err := removable(all[i], o.engine.Places())
	if err != nil {
		return &httpapi.Refusal{Message: err.Error()}
	}
	return removeModel(dir, o.engine.Places())
}

// WriteClientFile implements httpapi.Owner.
func (o owner) WriteClientFile(path, content string, apply bool) (httpapi.FileChange, error) {
	if filepath.IsAbs(path) || !strings.HasPrefix(path, "~/") {
		return httpapi.FileChange{}, &httpapi.Refusal{Message: path + " belongs to a project; copy the text into the project's own file"}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return httpapi.FileChange{}, err
	}
	e, err := planEdit(path, content, home)
	if err != nil {
		return httpapi.FileChange{}, &httpapi.Refusal{Message: err.Error()}
	}
	change := httpapi.FileChange{Path: e.path, Diff: e.diff(), Created: !e.exists}
	if !apply || change.Diff == "" {
		return change, nil
	}
	change.Backup, err = e.write(time.Now())
	change.Written = err == nil
	return change, err
}

// Log implements httpapi.Owner.
func (o owner) Log(after int64) []httpapi.LogLine { return o.log.after(after) }

// edit is a change of a client program's file.
type edit struct {
	path     string
	exists   bool
	old, new []byte
}

// planEdit says what a client's file, new or this product's own, or this
// product's part of a shared one, should become. A shared file that is not plain
// JSON is left alone: an error.
func planEdit(path, content, home string) (edit, error) {
	e := edit{path: path, new: []byte(content)}
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		e.path = filepath.Join(home, rest)
	}
	old, err := os.ReadFile(e.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return edit{}, err
	}
	e.old, e.exists = old, err == nil
	if e.exists && !bytes.Equal(e.old, e.new) && !strings.Contains(filepath.Base(e.path), product) {
		if e.new, err = mergeJSON(old, e.new); err != nil {
			return edit{}, fmt.Errorf("%s is left alone: %w; add this by hand:\n%s", e.path, err, content)
		}
	}
	return e, nil
}

// diff shows the change, "" if there is none.
func (e edit) diff() string {
	switch {
	case e.exists && bytes.Equal(e.old, e.new):
		return ""
	case e.exists:
		return fmt.Sprintf("--- %s\n+++ %s\n%s", e.path, e.path, diff(string(e.old), string(e.new)))
	}
	return fmt.Sprintf("new file %s:\n%s", e.path, e.new)
}

// write makes the change and returns where the old file is kept.
func (e edit) write(now time.Time) (backup string, err error) {
	mode := fs.FileMode(0o600) // it holds the key
	if e.exists {
		if info, err := os.Stat(e.path); err == nil {
			mode = info.Mode().Perm()
		}
		backup = e.path + ".bak-" + now.Format("20060102-150405")
		if err := writeWhole(backup, e.old, mode); err != nil {
			return "", fmt.Errorf("no copy could be kept, so nothing was written: %w", err)
		}
	}
	return backup, writeWhole(e.path, e.new, mode)
}

// logTail keeps the latest lines of a log and hands every record on. Safe for
// concurrent use.
type logTail struct {
	mu    sync.Mutex
	lines []httpapi.LogLine
	last  int64
}

// handler returns a handler that keeps what it hands on to next.
func (t *logTail) handler(next slog.Handler) slog.Handler { return tailHandler{t, next, "", ""} }

func (t *logTail) after(n int64) []httpapi.LogLine {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.lines, func(l httpapi.LogLine) bool { return l.Number > n })
	if i < 0 {
		return nil
	}
	return slices.Clone(t.lines[i:])
}

func (t *logTail) add(l httpapi.LogLine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	l.Number = t.last
	if len(t.lines) >= linesKept {
		t.lines = append(t.lines[:0], t.lines[len(t.lines)-linesKept+1:]...)
	}
	t.lines = append(t.lines, l)
}

type tailHandler struct {
	tail  *logTail
	next  slog.Handler
	attrs string // of With, written out
	group string
}

func (h tailHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

func (h tailHandler) Handle(ctx context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message + h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s%s=%v", h.group, a.Key, a.Value.Resolve())
		return true
	})
	h.tail.add(httpapi.LogLine{Time: r.Time, Level: r.Level.String(), Text: b.String()})
	return h.next.Handle(ctx, r)
}

func (h tailHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.attrs += fmt.Sprintf(" %s%s=%v", h.group, a.Key, a.Value.Resolve())
	}
	h.next = h.next.WithAttrs(attrs)
	return h
}

func (h tailHandler) WithGroup(name string) slog.Handler {
	if name != "" {
		h.group += name + "."
	}
	h.next = h.next.WithGroup(name)
	return h
}
