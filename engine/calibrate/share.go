package calibrate

import (
	"cmp"
	"slices"
)

// shareMargin is what drafts must gain at least when several streams run.
const shareMargin = 1.05

// Stream is a generation in a step of several.
type Stream struct {
	P     float64 // chance that a draft is accepted, given that all before it were
	Least int     // drafts it has in any case
	Most  int     // drafts it can have
	// Copies are drafts that no drafter has to make.
	Copies bool
}

// Sharing divides drafts among the streams of steps, by measured costs. Not safe for
// concurrent use.
type Sharing struct {
	costs *Costs
	curve Curve // of forwards by their rows
	order []offered
}

// offered is a draft that a stream could have.
type offered struct {
	stream   int
	survival float64
	ms       float64 // of the drafter
}

// Sharing divides drafts by these costs.
func (c *Costs) Sharing() *Sharing { return &Sharing{costs: c, curve: c.steps()} }

// Share says how many drafts each stream of a step gets, so that the step is
// expected to commit the most tokens per time: drafts are admitted by their
// chance to be accepted, the highest first, and of all numbers of drafts the one
// with the best rate is taken. Zero for all means that more streams leave no time
// for drafts. Source: the hardware-aware scheduler of the DSpark paper, which
// stops at the first drop because it works on confidences of tokens it has seen;
// P comes from earlier rounds, so the whole order can be searched. Drafts that gain
// next to nothing are left out: rows beyond those of a kernel's tile cost more than
// the curve between two measured widths says.
func (sh *Sharing) Share(streams []Stream) []int {
	c, order := sh.costs, sh.order[:0]
	counts := make([]int, len(streams))
	rows, tokens, ms := 0, 0.0, 0.0
	for i, s := range streams {
		counts[i] = s.Least
		rows += 1 + s.Least
		tokens += Expected(s.Least, s.P)
		before := 0.0
		if !s.Copies && s.Least > 0 {
			before = c.Drafter.At(s.Least) + c.Overhead
			ms += before
		}
		survival := 1.0
		for k := 1; k <= s.Most; k++ {
			survival *= s.P
			if k <= s.Least {
				continue
			}
			d := offered{stream: i, survival: survival}
			if !s.Copies {
				now := c.Drafter.At(k) + c.Overhead
				d.ms, before = now-before, now
			}
			order = append(order, d)
		}
	}
	sh.order = order
	slices.SortStableFunc(order, func(a, b offered) int { return cmp.Compare(b.survival, a.survival) })
	rate := func() float64 {
		t := sh.curve.At(rows) + ms
		if t <= 0 { // far beyond a noisy curve: no prediction
			return 0
		}
		return tokens / t
	}
	best, most := shareMargin*rate(), 0
	for n, d := range order {
		rows, tokens, ms = rows+1, tokens+d.survival, ms+d.ms
		if r := rate(); r > best {
			best, most = r, n+1
		}
	}
	for _, d := range order[:most] {
		counts[d.stream]++
	}
	return counts
}

// steps is the time of a forward by its rows, of however many sequences.
func (c *Costs) steps() Curve {
	points := map[int]float64{}
	for _, p := range c.Verify.points {
		points[p.x] = p.y
	}
	for size, g := range c.Grid {
		for _, p := range g.points {
			if y, known := points[size*p.x]; !known || p.y < y {
				points[size*p.x] = p.y
			}
		}
	}
	return NewCurve(points).Rising()
}
