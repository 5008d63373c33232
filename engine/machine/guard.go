package machine

import "time"

// Level is how short memory is.
type Level string

// The levels. Unknown counts as normal.
const (
	Normal   Level = "normal"
	Warn     Level = "warn"
	Critical Level = "critical"
	Unknown  Level = "unknown"
)

func (l Level) rank() int {
	switch l {
	case Warn:
		return 1
	case Critical:
		return 2
	}
	return 0
}

// The guard's patience.
const (
	GuardPoll  = 3 * time.Second   // how often to observe
	GuardRearm = 120 * time.Second // until it sheds again at the same or a lower level
	GuardDefer = 60 * time.Second  // how long a warning lets a generation go on
)

// Guard decides when to give memory back. It holds no clock and frees nothing:
// whoever is told to shed does it. The zero value is ready. Not safe for
// concurrent use.
type Guard struct {
	level   Level     // at the latest observation
	armed   bool      // a rise was held back by GuardRearm and the pressure lasts
	pending Level     // requested, not shed yet; "" = nothing
	since   time.Time // of the request
	shed    Level     // of the latest shed, at
	at      time.Time
}

// Observe takes a reading. requested says that it asked for a shed. The level
// to shed now is returned where nothing runs (busy is false), else "".
func (g *Guard) Observe(level Level, busy bool, now time.Time) (shed Level, requested bool) {
	if level.rank() < g.level.rank() {
		g.armed = false
	}
	rise := level.rank() > g.level.rank() || g.armed
	g.level = level
	if level.rank() == 0 || !rise {
		return "", false
	}
	if g.shed != "" && level.rank() <= g.shed.rank() && now.Sub(g.at) < GuardRearm {
		g.armed = true
		return "", false
	}
	g.armed = false
	if level.rank() > g.pending.rank() {
		g.pending, g.since = level, now
		if !busy {
			return g.take(now), true
		}
	}
	return "", true
}

// Round is asked after each round of a generation: a critical request is due
// at once, a warning after GuardDefer.
func (g *Guard) Round(now time.Time) (shed Level) {
	if g.pending == Critical || g.pending == Warn && now.Sub(g.since) >= GuardDefer {
		return g.take(now)
	}
	return ""
}

// Idle is asked when a generation has ended: whatever is pending is due.
func (g *Guard) Idle(now time.Time) (shed Level) {
	if g.pending == "" {
		return ""
	}
	return g.take(now)
}

func (g *Guard) take(now time.Time) Level {
	l := g.pending
	g.pending, g.shed, g.at = "", l, now
	return l
}

// Level is the latest reading, Unknown before the first.
func (g *Guard) Level() Level {
	if g.level == "" {
		return Unknown
	}
	return g.level
}

// Pending is what was requested and not shed yet, "" = nothing.
func (g *Guard) Pending() Level { return g.pending }
