package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// line drives a queue: whoever waits is told apart by name.
type line struct {
	t       *testing.T
	q       queue
	ran     chan string
	release map[string]func()
	cancel  map[string]context.CancelFunc
	failed  chan error
}

func newLine(t *testing.T, limit int) *line {
	return &line{t: t, q: queue{limit: limit}, ran: make(chan string, 100), failed: make(chan error, 100), release: map[string]func(){}, cancel: map[string]context.CancelFunc{}}
}

// join lets a generation queue up, and returns once it does or runs.
func (l *line) join(client, name string, c claim) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel[name] = cancel
	running, waiting := l.q.counts()
	go func() {
		release, err := l.q.acquire(ctx, client, c)
		if err != nil {
			l.failed <- err
			return
		}
		l.q.mu.Lock()
		l.release[name] = release
		l.q.mu.Unlock()
		l.ran <- name
	}()
	for {
		if r, w := l.q.counts(); r != running || w != waiting {
			return
		}
	}
}

// expect takes the names of those that come to run now, in any order.
func (l *line) expect(names ...string) {
	l.t.Helper()
	var got []string
	for range names {
		got = append(got, <-l.ran)
	}
	slices.Sort(got)
	if !slices.Equal(got, names) {
		l.t.Fatalf("%v run, wants %v", got, names)
	}
	select {
	case more := <-l.ran:
		l.t.Fatalf("%s runs, too", more)
	default:
	}
}

func (l *line) end(name string) {
	l.q.mu.Lock()
	release := l.release[name]
	l.q.mu.Unlock()
	release()
}

// TestQueue: as many run as may and fit, clients take turns, nobody overtakes the
// one whose turn it is, and models do not mix.
func TestQueue(t *testing.T) {
	l := newLine(t, 5)
	a := claim{on: "a", jobs: 3, room: 100, positions: 20}
	big := a
	big.positions = 90
	l.join("x", "x1", a)
	l.join("x", "x2", a)
	l.join("x", "x3", a)
	l.expect("x1", "x2", "x3")
	l.join("x", "x4", a)
	l.join("x", "x5", a)
	l.join("y", "y1", big)
	l.join("z", "z1", a)
	if running, waiting := l.q.counts(); running != 3 || waiting != 4 {
		t.Fatalf("%d run, %d wait", running, waiting)
	}
	l.end("x1")
	l.expect("x4") // y is next, and large
	l.end("x2")
	l.end("x3")
	if running, waiting := l.q.counts(); running != 1 || waiting != 3 {
		t.Fatalf("%d run, %d wait: somebody overtook", running, waiting)
	}
	l.end("x4")
	l.expect("y1")
	l.join("z", "z2", claim{on: "b", jobs: 3, room: 100, positions: 1}) // of another model
	l.cancel["z1"]()
	if err := <-l.failed; kind(err) != ErrCancelled {
		t.Fatal(err)
	}
	l.end("y1")
	l.expect("z2") // after y it was z's turn, then x's
	l.join("w", "w1", a)
	l.end("z2")
	l.expect("w1", "x5")

	l = newLine(t, 2)
	for i := range 5 {
		l.join("x", fmt.Sprint(i), a)
	}
	l.expect("0", "1", "2")
	if _, err := l.q.acquire(context.Background(), "y", a); kind(err) != ErrBusy {
		t.Fatalf("a third that waits: %v", err)
	}
	// A huge one leaves: those behind it fit.
	l = newLine(t, 5)
	l.join("x", "x1", a)
	l.expect("x1")
	l.join("x", "x2", big)
	l.join("y", "y1", a)
	l.cancel["x2"]()
	l.expect("y1")
	l.q.close()
	if _, err := l.q.acquire(context.Background(), "y", a); kind(err) != ErrShuttingDown {
		t.Fatal(err)
	}
}

func kind(err error) ErrorKind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}
