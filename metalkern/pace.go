package metalkern

import (
	"errors"
	"time"
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

// cut returns the list in parts of about the same work, each of which should end
// within the period.
func (p *pace) cut(l *List) []List {
	sum := l.work()
	parts := int(sum*p.perWork/period.Seconds()*1.25) + 1 // a quarter to spare
	if parts == 1 {
		return []List{*l}
	}
	var all []List
	first, done := 0, 0.0
	for i, d := range l.Dispatches {
		if done += d.work(); i == len(l.Dispatches)-1 || done >= sum*float64(len(all)+1)/float64(parts) {
			part := *l
			part.Dispatches = l.Dispatches[first : i+1]
			all, first = append(all, part), i+1
		}
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

// submit starts a list, in parts if it is long.
func (b *backend) submit(l *List) (Fence, error) {
	f := &fences{pace: &b.pace, work: l.work()}
	for _, part := range b.pace.cut(l) {
		x, err := b.dev.Submit(&part)
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
		took, err = took+t, errors.Join(err, e)
		if errors.Is(e, ErrHung) {
			return took, err
		}
	}
	if err == nil {
		f.pace.ended(f.work, took)
	}
	return took, err
}
