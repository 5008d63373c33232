package metalkern

import (
	"errors"
	"slices"
	"time"

	"sparkbar/engine/compute"
)

// period is how long one command buffer may keep the GPU: the display and other
// programs get their turn between two of them.
const period = 250 * time.Millisecond

// pace learns how long lists take, and cuts those that would take longer than
// period into several command buffers. What they compute stays the same.
type pace struct {
	perWork float64 // seconds of a unit of work; 0 = no long list was met yet
}

// work measures a dispatch: its threads.
func (d Dispatch) work() float64 {
	return float64(d.Groups[0]) * float64(d.Groups[1]) * float64(d.Groups[2]) * float64(d.Threads)
}

func (l *List) work() (sum float64) {
	for _, d := range l.Dispatches {
		sum += d.work()
	}
	return sum
}

// part is a stretch of a list, and what the CPU does in it.
type part struct {
	List
	work []compute.Program
}

// cut returns the list in parts of about the same work, each of which should end
// within the period. It is not cut where the CPU works on it.
func (p *pace) cut(l *List, work []compute.Program) []part {
	sum := l.work()
	parts := int(sum*p.perWork/period.Seconds()*1.25) + 1 // a quarter to spare
	if parts == 1 {
		return []part{{*l, work}}
	}
	var all []part
	first, met, done := 0, 0, 0.0 // dispatches and meetings of the parts so far
	for i, d := range l.Dispatches {
		done += d.work()
		last := i == len(l.Dispatches)-1
		if !last && done < sum*float64(len(all)+1)/float64(parts) {
			continue
		}
		n := met // meetings before the cut
		for ; n < len(work) && (last || int(l.Marks[2*n+1].At) <= i+1); n++ {
		}
		if n < len(work) && !last && int(l.Marks[2*n].At) <= i {
			continue
		}
		x := part{*l, work[met:n]}
		x.Dispatches, x.Marks = l.Dispatches[first:i+1], slices.Clone(l.Marks[2*met:2*n])
		for m := range x.Marks {
			x.Marks[m].At -= uint32(first)
		}
		all, first, met = append(all, x), i+1, n
	}
	return all
}

// ended takes note of how long a list took. Short ones say little: starting them
// is a part of their time.
func (p *pace) ended(work float64, took time.Duration) {
	if took < period/10 || work == 0 {
		return
	}
	now := took.Seconds() / work
	if p.perWork == 0 {
		p.perWork = now
	}
	p.perWork += (now - p.perWork) / 4
}

// fences are the parts of a list in flight.
type fences struct {
	pace  *pace
	work  float64
	parts []Fence
}

// submit starts a list and the CPU's work of it, in parts if it is long.
func (b *backend) submit(l *List, work []compute.Program, stop *compute.Stop) (Fence, error) {
	f := &fences{pace: &b.pace, work: l.work()}
	for _, part := range b.pace.cut(l, work) {
		x, err := b.launch(&part.List, part.work, stop)
		if err != nil {
			_, werr := f.Wait(patience) // what was started must end before its memory goes
			return nil, errors.Join(err, werr)
		}
		f.parts = append(f.parts, x)
	}
	return f, nil
}

// Wait waits for all parts.
func (f *fences) Wait(limit time.Duration) (took time.Duration, err error) {
	for _, x := range f.parts {
		t, e := x.Wait(limit)
		if took += t; err == nil || !errors.Is(e, compute.ErrStopped) {
			err = errors.Join(err, e)
		}
		if errors.Is(e, ErrHung) {
			return took, err
		}
	}
	if err == nil {
		f.pace.ended(f.work, took)
	}
	return took, err
}
