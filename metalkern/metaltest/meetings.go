//go:build linux && amd64 && cgo

package metaltest

import (
	"sync"
	"time"

	"sparkbar/metalkern"
)

// meetings are the marks of lists, as the shared events of Metal keep them: how far
// the device has asked, and how far the CPU has answered.
//
// When the CPU works is open. Forward: it is fast, and ends before the device goes on.
// Reverse: it is slow, and begins when the device waits for it, or when the list
// has ended. Shuffled: both work at the same time.
type meetings struct {
	kind            int
	mu              sync.Mutex
	changed         chan struct{} // closed at each change
	asked, answered uint64
	held            uint64 // asked, and not told yet
}

func newMeetings(o Order) *meetings { return &meetings{kind: o.Kind, changed: make(chan struct{})} }

// set changes the state and wakes those who wait.
func (m *meetings) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	close(m.changed)
	m.changed = make(chan struct{})
}

// until waits for a state, but no longer than limit.
func (m *meetings) until(limit time.Duration, is func() bool) bool {
	end := time.NewTimer(limit)
	defer end.Stop()
	for {
		m.mu.Lock()
		ok, changed := is(), m.changed
		m.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-end.C:
			return false
		}
	}
}

// Await waits until the device has asked.
func (m *meetings) Await(value uint64, limit time.Duration) bool {
	return m.until(limit, func() bool { return m.asked >= value })
}

// Answer lets the device go on.
func (m *meetings) Answer(value uint64) {
	m.set(func() { m.answered = max(m.answered, value) })
}

// patience is how long the device waits for the CPU before it counts as hanging.
const patience = time.Minute

func (m *meetings) isAnswered(value uint64) bool {
	return m.until(patience, func() bool { return m.answered >= value })
}

// meet is what the device does at a mark; false: it waits for an answer that nobody
// will ever give.
func (m *meetings) meet(x metalkern.Mark) bool {
	if x.Wait == 1 {
		m.ended()
		m.mu.Lock()
		hopeless := m.asked < x.Value && m.answered < x.Value
		m.mu.Unlock()
		return !hopeless && m.isAnswered(x.Value)
	}
	if m.kind == Reverse {
		m.held = x.Value
		return true
	}
	m.set(func() { m.asked = x.Value })
	return m.kind != Forward || m.isAnswered(x.Value)
}

// ended tells what was asked and held back.
func (m *meetings) ended() {
	if m.held > 0 {
		m.set(func() { m.asked, m.held = m.held, 0 })
	}
}
