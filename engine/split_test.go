package engine_test

import (
	"context"
	"maps"
	"strings"
	"sync/atomic"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/layout"
	"sparkbar/engine/machine"
)

// sharing is a backend that lets the CPU take part in prompts, or says so.
type sharing struct {
	compute.Backend
	t         *testing.T
	set       int // how often, before any weight
	loaded    bool
	fraction  *float64
	suspended atomic.Bool
}

func (s *sharing) Load(m layout.Matrix) (*compute.Weight, error) {
	s.loaded = true
	return s.Backend.Load(m)
}

func (s *sharing) SetPromptSplit(f *float64) {
	if s.loaded {
		s.t.Error("the share is told after weights were loaded")
	}
	s.set, s.fraction = s.set+1, f
}

func (s *sharing) PromptSplit() map[int]float64 {
	if s.fraction != nil && *s.fraction == 0 {
		return nil
	}
	return map[int]float64{512: 0.2}
}

func (s *sharing) SuspendPromptSplit() { s.suspended.Store(true) }

// TestCPUSplit: the share that a load asks for reaches the backend, the status tells
// it, the first time that memory is short ends it until the next load, and a backend
// without a GPU takes it with a note.
func TestCPUSplit(t *testing.T) {
	var memory fakeMemory
	memory.set(machine.Memory{Total: 64 << 30, Available: 32 << 30, Pressure: machine.Normal})
	var last *sharing
	alone := false
	e := local(t, func(o *engine.Options) {
		o.Memory = memory.read
		o.Backend = func() (compute.Backend, error) {
			b, err := cpu.New(cpu.Options{Exact: true})
			if last = (&sharing{Backend: b, t: t}); alone {
				return b, err
			}
			return last, err
		}
	}, "org/one")
	e.StopWatching() // only what the test observes counts
	load := func(f *float64) engine.Status {
		t.Helper()
		st, err := e.Load(context.Background(), engine.LoadRequest{Model: "org/one", CPUSplit: f})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	want := map[int]float64{512: 0.2}
	for _, f := range []*float64{nil, ptr(0.3)} {
		st := load(f)
		if last.set != 1 || (last.fraction == nil) != (f == nil) || f != nil && *last.fraction != *f {
			t.Errorf("%v reaches the backend as %v, %d times", f, last.fraction, last.set)
		}
		if !maps.Equal(st.CPUSplit, want) || st.CPUSplitEnded != nil || len(st.Warnings) != 0 {
			t.Errorf("%v, ended %v, warnings %v", st.CPUSplit, st.CPUSplitEnded, st.Warnings)
		}
	}
	for _, level := range []machine.Level{machine.Normal, machine.Warn, machine.Critical} {
		e.Observe(level)
	}
	st := e.Status()
	if st.CPUSplit != nil || !maps.Equal(st.CPUSplitEnded, want) || !last.suspended.Load() || st.Guard.Sheds != 2 || st.Guard.Last.CPUSplit != "" {
		t.Errorf("memory is short: %v, ended %v, told %v, %+v", st.CPUSplit, st.CPUSplitEnded, last.suspended.Load(), st.Guard.Last)
	}
	if st = load(nil); !maps.Equal(st.CPUSplit, want) || st.CPUSplitEnded != nil || last.suspended.Load() {
		t.Errorf("loaded again: %v, ended %v", st.CPUSplit, st.CPUSplitEnded)
	}
	e.Observe(machine.Normal)
	e.Observe(machine.Warn)
	if g := e.Status().Guard; g.Last == nil || g.Last.CPUSplit != "suspended" {
		t.Errorf("the first time that memory is short: %+v", g.Last)
	}
	if st = load(ptr(0.0)); st.CPUSplit != nil || st.CPUSplitEnded != nil {
		t.Errorf("a share of 0: %v, ended %v", st.CPUSplit, st.CPUSplitEnded)
	}
	alone = true
	if st = load(ptr(0.0)); len(st.Warnings) > 1 {
		t.Errorf("a share of 0 on a CPU: %v", st.Warnings)
	}
	st = load(ptr(0.5))
	said := 0
	for _, w := range st.Warnings {
		if w.Code == "load_note" && strings.Contains(w.Message, "cpu_split") {
			said++
		}
	}
	if st.CPUSplit != nil || said != 1 {
		t.Errorf("a share on a CPU: %v, %v", st.CPUSplit, st.Warnings)
	}
}
