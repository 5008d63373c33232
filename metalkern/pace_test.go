package metalkern

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// clock is a device whose lists take a time that follows from their threads.
type clock struct {
	Device
	perThread time.Duration
	lists     [][]Dispatch
	fail      int // the list that is refused, from 1 on
}

type clockFence time.Duration

func (f clockFence) Wait(time.Duration) (time.Duration, error) { return time.Duration(f), nil }

func (c *clock) Submit(l *List) (Fence, error) {
	c.lists = append(c.lists, l.Dispatches)
	if len(c.lists) == c.fail {
		return nil, errors.New("refused")
	}
	return clockFence(time.Duration(l.work()) * c.perThread), nil
}

// TestPace: once the device's speed is known, a list that would hold the GPU longer
// than the period is cut, in the same order, and no part takes longer.
func TestPace(t *testing.T) {
	c := &clock{perThread: 10 * time.Microsecond}
	b := &backend{dev: c}
	list := &List{}
	for i := range 400 {
		list.Dispatches = append(list.Dispatches, Dispatch{Pipeline: uint32(i + 1), Groups: [3]uint32{uint32(1 + i%7), 2, 1}, Threads: 32})
	}
	run := func(l *List) (parts int) {
		t.Helper()
		c.lists = nil
		f, err := b.submit(l)
		if err != nil {
			t.Fatal(err)
		}
		took, err := f.Wait(time.Minute)
		if err != nil || took != time.Duration(l.work())*c.perThread {
			t.Errorf("took %v, %v", took, err)
		}
		if !slices.Equal(slices.Concat(c.lists...), l.Dispatches) {
			t.Error("the parts are not the list")
		}
		return len(c.lists)
	}
	if n := run(list); n != 1 {
		t.Errorf("a list of unknown length comes in %d parts", n)
	}
	whole := time.Duration(list.work()) * c.perThread // about 1 s
	n := run(list)
	if least := int(whole / period); n <= least || n > 2*least+2 {
		t.Errorf("%v in %d parts", whole, n)
	}
	for _, part := range c.lists {
		if took := time.Duration((&List{Dispatches: part}).work()) * c.perThread; took > period {
			t.Errorf("a part takes %v", took)
		}
	}
	short := &List{Dispatches: list.Dispatches[:20]}
	if n := run(short); n != 1 {
		t.Errorf("a short list comes in %d parts", n)
	}
	c.perThread *= 3 // the GPU is busy, or hot
	for range 12 {
		n = run(list)
	}
	if n < 3*int(whole/period) {
		t.Errorf("three times slower, %d parts", n)
	}
	c.lists, c.fail = nil, 2
	if _, err := b.submit(list); err == nil {
		t.Error("a refused part is no error")
	}
}
