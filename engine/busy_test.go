package engine

import (
	"context"
	"testing"
	"time"
)

// TestBusyWhileSomethingIsUnderWay: whoever sees that a load is over may ask for the
// next, though the one before has not let go yet; a load that runs refuses others.
func TestBusyWhileSomethingIsUnderWay(t *testing.T) {
	e := New(Options{})
	defer e.Close(context.Background())
	e.loads.Lock()
	e.update(func() { e.loading = &LoadProgress{} })
	if e.takeLoads() {
		t.Fatal("two loads at once")
	}
	e.update(func() { e.loading, e.state = nil, StateUnloading })
	if e.takeLoads() {
		t.Fatal("a load while another model is unloaded")
	}
	e.update(func() { e.state = StateIdle })
	time.AfterFunc(20*time.Millisecond, e.loads.Unlock)
	if !e.takeLoads() {
		t.Fatal("refused though nothing was under way")
	}
	e.loads.Unlock()
}
