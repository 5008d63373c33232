package machine

import (
	"encoding/json"
	"os"
	"testing"
	"time"
)

// TestGuardGolden replays recorded runs of the guard of mlx-dspark.
func TestGuardGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/memory_guard.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []struct {
			Steps []struct {
				Op        string
				Level     Level
				Requested bool
				T         float64
				Busy      bool
				Sheds     int
				Last      *Level `json:"last_level"`
				Pending   *Level
			}
		}
	}
	if err := json.Unmarshal(text, &golden); err != nil || len(golden.Cases) < 9 {
		t.Fatal(len(golden.Cases), err)
	}
	value := func(l *Level) Level {
		if l == nil {
			return ""
		}
		return *l
	}
	for i, c := range golden.Cases {
		var g Guard
		var last Level
		sheds := 0
		for k, s := range c.Steps {
			now := time.Unix(0, int64(s.T*1e9))
			var shed Level
			requested := s.Requested
			if s.Op == "observe" {
				shed, requested = g.Observe(s.Level, s.Busy, now)
			} else {
				shed = g.Round(now)
			}
			if shed != "" {
				last, sheds = shed, sheds+1
			}
			if requested != s.Requested || min(sheds, 16) != s.Sheds || last != value(s.Last) || g.Pending() != value(s.Pending) {
				t.Fatalf("case %d, step %d %+v: requested %v, %d sheds, last %q, pending %q", i, k, s, requested, sheds, last, g.Pending())
			}
		}
	}
}

// TestGuardIdle: the end of a generation brings what was put off.
func TestGuardIdle(t *testing.T) {
	var g Guard
	now := time.Unix(100, 0)
	if g.Level() != Unknown {
		t.Error(g.Level())
	}
	if shed, requested := g.Observe(Warn, true, now); shed != "" || !requested {
		t.Errorf("%q %v", shed, requested)
	}
	if shed := g.Round(now.Add(GuardDefer - 1)); shed != "" {
		t.Errorf("too early: %q", shed)
	}
	if shed := g.Idle(now.Add(time.Second)); shed != Warn {
		t.Errorf("%q", shed)
	}
	if shed := g.Idle(now.Add(2 * time.Second)); shed != "" {
		t.Errorf("twice: %q", shed)
	}
}
