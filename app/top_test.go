package main

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"
)

// terminal is `sparkbar top` on a screen in memory.
type terminal struct {
	tcell.SimulationScreen
	t     *testing.T
	drawn chan struct{} // a drawing has been shown
	done  chan struct{} // closed when the page is

	mu   sync.Mutex
	seen string
}

// Show is called by the page, which alone may look at the cells.
func (x *terminal) Show() {
	x.SimulationScreen.Show()
	cells, w, h := x.GetContents()
	var b strings.Builder
	for y := range h {
		for _, c := range cells[y*w : (y+1)*w] {
			b.WriteString(string(c.Runes))
		}
		b.WriteByte('\n')
	}
	x.mu.Lock()
	x.seen = b.String()
	x.mu.Unlock()
	select {
	case x.drawn <- struct{}{}:
	default:
	}
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen
}

func startTop(t *testing.T, base string) *terminal {
	t.Helper()
	term := &terminal{SimulationScreen: tcell.NewSimulationScreen("UTF-8"), t: t, drawn: make(chan struct{}, 1), done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(term.done)
		if err := top(ctx, term, base, ""); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-term.done
	})
	<-term.drawn
	term.SetSize(100, 80)
	return term
}

// until waits until the screen shows every text, and none that begins with "!".
func (x *terminal) until(texts ...string) {
	x.t.Helper()
	deadline := time.After(time.Minute) // not a measure of speed: only against a test that hangs
	for {
		all := true
		now := x.text()
		for _, s := range texts {
			not, no := strings.CutPrefix(s, "!")
			all = all && strings.Contains(now, not) != no
		}
		if all {
			return
		}
		select {
		case <-x.drawn:
		case <-deadline:
			x.t.Fatalf("the screen never shows %q:\n%s", texts, now)
		}
	}
}

func (x *terminal) press(keys string) {
	for _, r := range keys {
		switch r {
		case '\n':
			x.InjectKey(tcell.KeyEnter, 0, 0)
		case '↓':
			x.InjectKey(tcell.KeyDown, 0, 0)
		case '↑':
			x.InjectKey(tcell.KeyUp, 0, 0)
		case '←':
			x.InjectKey(tcell.KeyLeft, 0, 0)
		default:
			x.InjectKey(tcell.KeyRune, r, 0)
		}
	}
}

// TestTop drives the page by keys against the real server: watch the demo load,
// copy, change the mode, unload, load again.
func TestTop(t *testing.T) {
	s := startServe(t)
	s.ready()
	x := startTop(t, s.base)
	x.until("demo · ready", "demo ←", "Unload Model", s.base)
	for shown := false; !shown; { // it is shown for a moment only
		x.press("a")
		for end := time.Now().Add(time.Second); !shown && time.Now().Before(end); time.Sleep(time.Millisecond) {
			shown = strings.Contains(x.text(), "Copied ✓")
		}
	}
	if got := string(x.GetClipboardData()); got != s.base {
		t.Errorf("the pasteboard holds %q", got)
	}
	x.press("d")
	x.until("Automatic", "✓ DSpark", "DFlash  (This model has no such drafter)", "Draft Cap ▸")
	x.press("↓↓↓\n") // Automatic, DSpark, (DFlash is skipped) Lookup
	x.until("✓ Lookup", "(lookup drafts)")
	if _, h := s.call("GET", "/health", ""); h["mode"] != "lookup" {
		t.Errorf("the server runs %v", h["mode"])
	}
	x.press("d")
	x.until("!Automatic")
	x.press("u")
	x.until("No model loaded", "Load demo Again")
	for { // the memory is given back before the next load may begin
		if _, h := s.call("GET", "/health", ""); h["state"] == "idle" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	x.press("l")
	x.until("demo · ready", "!No model loaded")
	x.press("v")
	x.until("lossless speculative decoding", "1  OK")
	x.press("\n")
	x.until("!1  OK")

	// While an answer is written, the page shows its speed.
	go http.Post(s.base+"/v1/chat/completions", "application/json", strings.NewReader(`{"messages":[{"role":"user","content":"What is speculative decoding?"}],"max_tokens":400}`))
	x.until("per round")
}

// TestTopRefuses: an address that is none is a usage error, and a server that
// does not answer is said so on the page.
func TestTopRefuses(t *testing.T) {
	if err := top(t.Context(), tcell.NewSimulationScreen("UTF-8"), "ftp://x", ""); err == nil || !strings.Contains(err.Error(), "ftp://x") {
		t.Errorf("%v", err)
	}
	x := startTop(t, "http://127.0.0.1:1")
	x.until("The server does not answer", "Close")
	x.press("uq") // the first is not to be had now, the second closes the page
	<-x.done
}
