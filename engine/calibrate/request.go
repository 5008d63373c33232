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
	firstCap     = 3    // of a request, at most
	timeWeight   = 0.15 // of a round's time in the estimate for its cap
	disturbed    = 4    // times the expected time: something else held the round up
	parkMargin   = 1.02 // what drafts must gain at least
	firstGap     = 10   // rounds to the first probe
)

// request is the state of a patient controller's request.
type request struct {
	hits, tries float64
}

// Begin returns the controller of one request. One that is not patient goes on as
// before.
func (c *Controller) Begin() *Controller {
	if !c.patient {
		return c
	}
	r := &Controller{costs: c.costs, maxCap: c.maxCap, park: c.park, probe: c.probe, patient: true, shared: c, gap: firstGap, depth: c.depth, request: &request{}}
	r.best = min(r.choose(), firstCap)
	r.p = r.acceptance()
	return r
}

// acceptance is the chance of a draft in this request.
func (c *Controller) acceptance() float64 {
	r := c.request
	prior := max(c.shared.p, leastPrior)
	return (priorWeight*prior + r.hits) / (priorWeight + r.tries)
}

// saw takes in a round of the request.
func (c *Controller) saw(cap, accepted int, ms float64) {
	r, s := c.request, c.shared
	s.rounds++
	see := func(x float64) {
		r.hits, r.tries = recency*r.hits+x, recency*r.tries+1
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
	switch best := c.choose(); {
	case best > 0:
		c.best, c.gap, c.next = best, firstGap, 0
	case c.best > 0: // parked
		c.best, c.next = 0, c.rounds+c.gap
	case accepted > 0: // a probe that another one is worth
		c.gap, c.next = firstGap, c.rounds+1
	case cap > 0: // a probe that changed nothing
		c.gap = min(2*c.gap, mostGap)
		c.next = c.rounds + c.gap
	}
	s.best = c.best
}

// timed corrects the expected time of rounds at a cap, all requests together.
func (c *Controller) timed(cap, depth int, ms float64) {
	if ms <= 0 {
		return
	}
	x := ms / c.costs.round(cap, depth)
	known := c.times[cap]
	if math.IsInf(x, 0) || math.IsNaN(x) || x > disturbed*max(known.ratio, c.corr) {
		return
	}
	known.rounds++
	known.ratio += max(timeWeight, 1/float64(known.rounds)) * (x - known.ratio)
	c.times[cap] = known
	c.timedRounds++
	c.corr += max(timeWeight/3, 1/float64(c.timedRounds)) * (x - c.corr)
}

// choose returns the cap with the best rate for the request, 0 if drafts do not
// pay.
func (c *Controller) choose() int {
	p, s := c.acceptance(), c.shared
	rate := func(cap int) float64 {
		ratio := s.corr
		if t := s.times[cap]; t.rounds >= enoughTimings {
			ratio = t.ratio
		}
		if ms := ratio * s.costs.round(cap, c.depth); ms > 0 {
			return Expected(cap, p) / ms
		}
		return 0
	}
	best, most := 1, 0.0
	for cap := 1; cap <= c.maxCap; cap++ {
		r := rate(cap)
		if cap == c.best {
			r *= hysteresis
		}
		if r > most {
			best, most = cap, r
		}
	}
	if c.park && rate(best) < parkMargin*rate(0) {
		return 0
	}
	return best
}

// ratio is measured over expected time.
type ratio struct {
	ratio  float64
	rounds int
}
