package engine

import (
	"testing"
	"time"
)

// TestStalled: generations that run without coming on are told as a problem.
func TestStalled(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for _, c := range []struct {
		still   time.Duration
		running int
		want    bool
	}{{stallAfter, 1, true}, {time.Hour, 3, true}, {stallAfter - time.Second, 1, false}, {time.Hour, 0, false}, {0, 2, false}} {
		w := stalled(now, now.Add(-c.still), c.running)
		if (len(w) == 1) != c.want || len(w) == 1 && (w[0].Code != "stalled" || w[0].Level != "problem" || w[0].Action == nil) {
			t.Errorf("%v, %d running: %v", c.still, c.running, w)
		}
	}
}

// TestAdvance: generations note that they come on.
func TestAdvance(t *testing.T) {
	at := time.Unix(5, 0)
	e := New(Options{Now: func() time.Time { return at }})
	defer e.Close(t.Context())
	e.advanced()
	if got := e.advance.Load(); got != at.UnixNano() {
		t.Error(got)
	}
}

// TestBatchingCounts: who ran beside others, and who alone.
func TestBatchingCounts(t *testing.T) {
	var c together
	for _, n := range []int{1, -1, 1, 2, 3, -3, -2, -1, 1, -1} { // how many run after one began, or (below 0) before one ended
		if n > 0 {
			c.began(n)
		} else {
			c.ended(-n - 1)
		}
	}
	if want := (Batching{Requests: 3, Batches: 1, Most: 3, Serial: 2}); c.Batching != want {
		t.Errorf("%+v, want %+v", c.Batching, want)
	}
}
