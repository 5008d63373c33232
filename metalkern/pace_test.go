package metalkern

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"sparkbar/engine/compute"
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
		f, err := b.submit(l, nil, nil)
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
	if _, err := b.submit(list, nil, nil); err == nil {
		t.Error("a refused part is no error")
	}
}

// TestPaceShared: a list on which the CPU works is cut only where it does not, and each
// part keeps its meetings.
func TestPaceShared(t *testing.T) {
	list := &List{}
	var work []compute.Program
	for i := range 400 {
		n := uint32(len(list.Dispatches))
		list.Dispatches = append(list.Dispatches, Dispatch{Pipeline: uint32(i + 1), Groups: [3]uint32{uint32(1 + i%7), 2, 1}, Threads: 32})
		if i%10 >= 3 && i%10 < 9 { // of ten dispatches, the CPU works during six, in two meetings
			continue
		}
		if i%10 == 9 {
			list.Marks = append(list.Marks, Mark{At: n, Wait: 1, Value: uint64(len(work))})
			continue
		}
		if i%10 == 2 {
			work = append(work, compute.Program{Label: fmt.Sprint(len(work))})
			list.Marks = append(list.Marks, Mark{At: n, Value: uint64(len(work))})
		}
	}
	for _, parts := range []float64{0, 3, 20, 60, 1000} {
		p := pace{perWork: parts * period.Seconds() / list.work() / 1.25}
		at, met := uint32(0), 0
		all := p.cut(list, work)
		for _, x := range all {
			for i, m := range x.Marks {
				want := list.Marks[2*met+i]
				if m.At += at; m != want {
					t.Errorf("%v parts: mark %v, wants %v", parts, m, want)
				}
			}
			for i, w := range x.work {
				if w.Label != fmt.Sprint(met+i) {
					t.Errorf("%v parts: work %s, wants %d", parts, w.Label, met+i)
				}
			}
			if len(x.Marks) != 2*len(x.work) {
				t.Errorf("%v parts: %d marks of %d meetings", parts, len(x.Marks), len(x.work))
			}
			for i, d := range x.Dispatches {
				if d != list.Dispatches[int(at)+i] {
					t.Fatalf("%v parts: the parts are not the list", parts)
				}
			}
			at, met = at+uint32(len(x.Dispatches)), met+len(x.work)
		}
		if int(at) != len(list.Dispatches) || met != len(work) {
			t.Errorf("%v parts: %d dispatches and %d meetings are left", parts, at, met)
		}
		if n := len(all); n > 1 != (parts > 0) || parts > 20 && n < 30 {
			t.Errorf("%v parts: %d", parts, n)
		}
	}
}
