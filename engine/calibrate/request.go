package calibrate

import "math"

// A patient controller chooses the caps of one request by what that request's own
// drafts came to: texts differ more in how well they can be drafted than anything
// else. What requests have in common, the true times of rounds and the acceptance
// to begin with, they share through the controller that began them.

const (
	priorWeight  = 2    // observations that the acceptance of earlier requests counts for
	recency      = 0.93 // weight of an observation against that of the one after it
	sharedWeight = 0.02 // of an observation in what requests share
	leastPrior   = 0.45 // a request's first drafts are worth a try
	surely       = 1.3  // gain from which on a request drafts from its first round on;
	firstTry     = 2    // below, from this one, in the hope that it is not a short answer,
	firstCap     = 1    // at most so many, as long as it has not tried
	enoughTries  = 4    // so many drafts
	fasterWeight = 0.2  // of a round's time in the estimate for its cap, if it took less,
	slowerWeight = 0.05 // and if it took longer: what disturbs only ever adds
	disturbed    = 4    // times the expected time: something else held the round up
	freshPlain   = 32   // rounds for which the time of those without drafts is of now
	leastOver    = 0.9  // rounds with drafts over those without, as far as it is credible
	parkMargin   = 1.05 // what drafts must gain at least
	firstGap     = 32   // rounds between tries, doubled by each that fails up to mostGap,
	parkedGap    = 24   // and from the end of drafts that paid to the first
	firstCopies  = 3    // so many of a request's first ones of a kind at most, beside a drafter
	firstSkip    = 4    // copies that are turned down before one is tried again
)

// prior is an acceptance before any observation, and how many it counts for.
type prior struct{ p, weight float64 }

// Acceptance of copies after a short and after a long match: beside a drafter, which
// is there for any text, and where nothing else proposes, for texts that repeat much.
var (
	besideDrafter = [2]prior{{0.5, 2}, {0.9, 2}}
	onlyCopies    = [2]prior{{0.65, 2}, {0.98, 10}}
)

// request is the state of a patient controller's request.
type request struct {
	drafts trials
	copies [2]trials // after a short match, after a long one
	sure   bool      // earlier requests say that drafts are worth it
}

// trials count how many drafts were accepted, given that all before them were.
type trials struct {
	hits, tries float64
	skipped     int // offers that were turned down since the last try
	gap         int // of which there may be so many
}

func (t *trials) see(drafts, accepted int) {
	for range accepted {
		t.hits, t.tries = recency*t.hits+1, recency*t.tries+1
	}
	if accepted < drafts {
		t.hits, t.tries = recency*t.hits, recency*t.tries+1
	}
}

// p is the chance of the next draft.
func (t *trials) p(from prior) float64 {
	return (from.weight*from.p + t.hits) / (from.weight + t.tries)
}

// Begin returns the controller of one request, whose prompt has depth tokens. One
// that is not patient goes on as before.
func (c *Controller) Begin(depth int) *Controller {
	c.depth = depth
	if !c.patient {
		return c
	}
	r := &Controller{costs: c.costs, maxCap: c.maxCap, park: c.park, probe: c.probe, patient: true, shared: c, gap: firstGap, depth: c.depth, request: &request{}}
	r.p = r.acceptance()
	if c.maxCap == 0 {
		return r
	}
	if r.request.sure = !c.park || r.gain(firstCap) >= surely; r.request.sure {
		r.best = r.choose()
	} else {
		r.next = firstTry
	}
	return r
}

// gain is the rate at a cap over that without drafts, as the request sees it.
func (c *Controller) gain(cap int) float64 {
	if plain := c.rateOf(0); plain > 0 {
		return c.rateOf(cap) / plain
	}
	return 0
}

// rateOf is the rate at a cap, as the request sees it, on a machine that makes rounds
// without drafts as fast as was measured.
func (c *Controller) rateOf(cap int) float64 {
	s, ratio := c.shared, 1.0
	if cap > 0 {
		if ratio = s.corr; s.times[cap].rounds >= enoughTimings {
			ratio = s.times[cap].ratio
		}
	}
	if ms := ratio * s.costs.round(cap, c.depth); ms > 0 {
		return Expected(cap, c.acceptance()) / ms
	}
	return 0
}

// acceptance is the chance of a draft in this request.
func (c *Controller) acceptance() float64 {
	return c.request.drafts.p(prior{max(c.shared.p, leastPrior), priorWeight})
}

// saw takes in a round of the request.
func (c *Controller) saw(cap, accepted int, ms float64) {
	s := c.shared
	s.rounds++
	c.request.drafts.see(cap, accepted)
	see := func(x float64) {
		s.obs++
		s.p += max(sharedWeight, 1/float64(s.obs+priorWeight)) * (x - s.p)
	}
	for range accepted {
		see(1)
	}
	if accepted < cap {
		see(0)
	}
	c.p = c.acceptance()
	s.timed(cap, c.depth, ms)
	if c.best == 0 && cap == 0 {
		return // only drafts tell something new about drafts
	}
	switch best := c.choose(); {
	case best > 0:
		c.best, c.gap, c.next = best, parkedGap, 0
	case c.best > 0: // parked
		c.best, c.next = 0, c.rounds+c.gap
	case accepted > 0: // a probe that another one is worth
		c.gap, c.next = parkedGap, c.rounds+1
	case cap > 0: // a probe that changed nothing
		c.gap = min(2*c.gap, mostGap)
		c.next = c.rounds + c.gap
	}
	s.best = c.best
}

// timed corrects the expected time of rounds at a cap, all requests together. Machines
// are slower at times than when they were measured, so rounds with drafts are compared
// with those without around them: else times of two such states would be compared.
func (c *Controller) timed(cap, depth int, ms float64) {
	x := ms / c.costs.round(cap, depth)
	if cap == 0 {
		if c.plain.follow(x, 1) {
			c.plainAt = c.rounds
		}
		return
	}
	x = c.overPlain(x)
	known := c.times[cap]
	if !known.follow(x, c.corr) {
		return
	}
	c.times[cap] = known
	all := ratio{c.corr, c.timedRounds} // for caps that were not timed yet
	all.follow(x, c.corr)
	c.corr, c.timedRounds = all.ratio, all.rounds
}

// overPlain divides a round's measured over expected time by that of rounds without
// drafts; 0 if there were none of late, or x is 0: not timed. No draft makes a round
// much easier than expected: if it seems so the machine became faster.
func (c *Controller) overPlain(x float64) float64 {
	if x <= 0 || c.plain.rounds < enoughTimings || c.rounds-c.plainAt > freshPlain {
		return 0
	}
	over := x / c.plain.ratio
	if over < leastOver {
		c.plain.follow(x, 1)
	}
	return max(over, leastOver)
}

// choose returns the cap with the best rate for the request, 0 if drafts do not
// pay.
func (c *Controller) choose() int {
	best, most, largest := 1, 0.0, c.maxCap
	if !c.request.sure && c.request.drafts.tries < enoughTries {
		largest = min(largest, firstCap)
	}
	for cap := 1; cap <= largest; cap++ {
		r := c.rateOf(cap)
		if cap == c.best {
			r *= hysteresis
		}
		if r > most {
			best, most = cap, r
		}
	}
	if c.park && c.gain(best) < parkMargin {
		return 0
	}
	return best
}

// Copies returns how many of n tokens that stand in the context the coming round
// should try: as with drafts, but no drafter has to make them. Those of a long match
// hold more often; base is how many there are of a short one at most.
func (c *Controller) Copies(n, base int) int {
	if c.request == nil || n == 0 {
		return n
	}
	t, from := c.trialsOf(n, base)
	p := t.p(from)
	rate := func(k int) float64 {
		ms := c.withCopies(k)
		if k > 0 && c.shared.copying.rounds >= enoughTimings {
			ms *= c.shared.copying.ratio
		}
		if ms > 0 {
			return Expected(k, p) / ms
		}
		return 0
	}
	best := 0
	if t.tries == 0 && c.maxCap > 0 {
		n = min(n, firstCopies)
	}
	for k := 1; k <= n; k++ {
		if rate(k) > rate(best) {
			best = k
		}
	}
	if c.park && best > 0 && rate(best) < parkMargin*rate(0) {
		best = 0
	}
	if best == 0 {
		if t.skipped++; t.skipped > t.gap {
			return 1
		}
	}
	return best
}

// withCopies is the expected time of a round with k copies.
func (c *Controller) withCopies(k int) float64 {
	return c.shared.curve.At(k+1) + c.costs.deeper(k+1, c.depth)
}

// Copied takes in a round that tried copies, and its time in milliseconds; 0 = not
// timed.
func (c *Controller) Copied(n, base, tried, accepted int, ms float64) {
	if c.request == nil {
		return
	}
	s := c.shared
	s.copying.follow(s.overPlain(ms/c.withCopies(tried)), 1)
	t, _ := c.trialsOf(n, base)
	t.see(tried, accepted)
	switch t.skipped = 0; {
	case accepted > 0:
		t.gap = firstSkip
	default:
		t.gap = min(max(2*t.gap, firstSkip), mostGap)
	}
}

// trialsOf returns what the request knows of such copies, and what holds before that.
func (c *Controller) trialsOf(n, base int) (*trials, prior) {
	priors, i := &onlyCopies, 0
	if c.maxCap > 0 {
		priors = &besideDrafter
	}
	if n > base {
		i = 1
	}
	return &c.request.copies[i], priors[i]
}

// ratio is measured over expected time.
type ratio struct {
	ratio  float64
	rounds int
}

// follow takes in that a round took x times the expected time, where usual is what
// others take, and reports whether it counts.
func (r *ratio) follow(x, usual float64) bool {
	if x <= 0 || math.IsInf(x, 0) || math.IsNaN(x) || x > disturbed*max(r.ratio, usual) {
		return false
	}
	switch {
	case r.rounds == 0:
		r.ratio = x
	case x < r.ratio:
		r.ratio += fasterWeight * (x - r.ratio)
	default:
		r.ratio += slowerWeight * (x - r.ratio)
	}
	r.rounds++
	return true
}
