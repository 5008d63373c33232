package calibrate

import "math"

// Controller chooses the cap from round to round (--max-draft auto). It lives
// as long as its model is loaded, across requests. Not safe for concurrent
// use.
type Controller struct {
	costs  *Costs
	maxCap int
	park   bool
	probe  int
	// Only of a patient controller: see request.go. gap is the number of rounds
	// between two probes while parked, next the round of the coming one.
	patient     bool
	gap, next   int
	shared      *Controller // that began it
	request     *request
	plain       ratio // of rounds without drafts, the last at round plainAt
	plainAt     int
	times       map[int]ratio // by cap, over plain
	copying     ratio         // of rounds with copies, over plain
	curve       Curve         // of forwards by their rows
	timedRounds int

	p       float64 // acceptance of one draft
	obs     int     // observations behind p
	depth   int
	best    int
	rounds  int     // updates so far
	corr    float64 // measured rate over predicted rate, slowly averaged; if patient, time over that without drafts
	timings map[int]timing
}

// timing is the measured time of one cap.
type timing struct {
	msPerToken float64
	rounds     int
	last       int // round number of the latest use
}

// ControllerConfig sets up a [Controller]. Zero values mean the defaults.
type ControllerConfig struct {
	MaxCap     int     // largest cap; 0 = 1, or if Patient no drafter at all, only copies
	Park       bool    // cap 0 (plain decoding) is allowed
	PriorP     float64 // acceptance before any observation; default 0.65
	ProbeEvery int     // while parked, every n-th round drafts; default 8
	// Patient makes a controller whose requests (see Begin) each go by their own
	// drafts, and probe ever more rarely while parked, down to every 64th round: a
	// text that cannot be drafted then costs next to nothing.
	Patient bool
}

const (
	hysteresis     = 1.03 // a new cap must be this much better
	repickEvery    = 4    // updates between choices
	slowAcceptance = 0.02 // weight of a new observation, once there are many
	slowTiming     = 0.1  // weight of a new time
	slowCorrection = 0.05
	enoughTimings  = 4  // rounds after which a cap's own time counts
	forgetAfter    = 32 // rounds after which an unused cap's time is stale
	enoughToPark   = 24 // observations before speculation may be parked
	defaultPriorP  = 0.65
	defaultProbe   = 8
	mostGap        = 64 // rounds between probes of a patient controller
)

// NewController returns a controller over validated costs.
func NewController(costs *Costs, cfg ControllerConfig) *Controller {
	c := &Controller{costs: costs, maxCap: max(0, cfg.MaxCap), park: cfg.Park, probe: cfg.ProbeEvery, patient: cfg.Patient, p: cfg.PriorP, corr: 1, timings: map[int]timing{}, times: map[int]ratio{}, curve: costs.steps()}
	if c.p == 0 {
		c.p = defaultPriorP
	}
	if c.probe <= 0 {
		c.probe = defaultProbe
	}
	if !c.patient {
		c.maxCap = max(1, c.maxCap)
	}
	c.best = min(DefaultCap, c.maxCap)
	return c
}

// SetDepth tells the context depth of the coming round.
func (c *Controller) SetDepth(depth int) { c.depth = depth }

// Cap returns the cap for the next round: 0 means a plain step.
func (c *Controller) Cap() int {
	due := c.rounds%c.probe == 0
	if c.request != nil {
		due = c.rounds >= c.next
	}
	if c.best == 0 && due {
		return min(1, c.maxCap)
	}
	return c.best
}

// CapForBatch returns the cap for a round of several rows.
func (c *Controller) CapForBatch(rows int) int {
	if rows > 1 {
		if cap, ok := c.costs.BatchCap(rows, c.p, c.maxCap); ok {
			return cap
		}
	}
	return c.Cap()
}

// Update records a finished round of the drafter (not a lookup round): the
// cap that was used, the accepted drafts, the committed tokens and the
// round's time in milliseconds. Zero time or tokens: not timed.
func (c *Controller) Update(cap, accepted, committed int, ms float64) {
	c.rounds++
	if c.request != nil {
		c.saw(cap, accepted, ms)
		return
	}
	for range accepted {
		c.observe(1)
	}
	if accepted < cap {
		c.observe(0)
	}
	if ms > 0 && committed > 0 {
		c.time(cap, ms/float64(committed))
	}
	for k, t := range c.timings {
		if c.rounds-t.last > forgetAfter {
			delete(c.timings, k)
		}
	}
	if c.rounds%repickEvery == 0 {
		c.repick()
	}
}

// observe moves p towards one outcome: a running mean at first, then a slow
// average.
func (c *Controller) observe(x float64) {
	c.obs++
	c.p += max(slowAcceptance, 1/float64(c.obs)) * (x - c.p)
}

func (c *Controller) time(cap int, msPerToken float64) {
	t := c.timings[cap]
	if t.rounds == 0 {
		t.msPerToken = msPerToken
	} else {
		t.msPerToken += slowTiming * (msPerToken - t.msPerToken)
	}
	t.rounds++
	t.last = c.rounds
	c.timings[cap] = t
	if cap >= 1 {
		c.corr += slowCorrection * (1/msPerToken/c.costs.Rate(cap, c.p, c.depth) - c.corr)
	}
}

// rate is the measured rate of a cap with enough timings, else the predicted
// one, corrected.
func (c *Controller) rate(cap int) float64 {
	if t := c.timings[cap]; t.rounds >= enoughTimings {
		return 1 / t.msPerToken
	}
	r := c.costs.Rate(cap, c.p, c.depth)
	if cap >= 1 {
		r *= c.corr
	}
	return r
}

func (c *Controller) repick() {
	best, bestRate := -1, math.Inf(-1)
	for cap := range c.maxCap + 1 {
		if cap == 0 && (!c.park || c.obs < enoughToPark) {
			continue
		}
		if r := c.rate(cap); r > bestRate {
			best, bestRate = cap, r
		}
	}
	if bestRate > hysteresis*c.rate(c.best) {
		c.best = best
	}
}

// ControllerInfo is the controller's state as reports show it.
type ControllerInfo struct {
	Cap       int         `json:"cap"`
	P         float64     `json:"p"` // 3 decimals
	Rounds    int         `json:"rounds"`
	Knee      int         `json:"knee_width"`
	Rates     Curve       `json:"predicted_rates"` // tokens/s by cap, 1 decimal
	BatchCaps map[int]int `json:"batch_caps,omitempty"`
}

// Info returns the controller's state.
func (c *Controller) Info() ControllerInfo {
	info := ControllerInfo{Cap: c.Cap(), P: math.Round(c.p*1000) / 1000, Rounds: c.rounds, Knee: c.costs.Knee()}
	rates := map[int]float64{}
	for cap := range c.maxCap + 1 {
		if cap > 0 || c.park {
			rates[cap] = math.Round(c.costs.Rate(cap, c.p, c.depth)*10000) / 10
		}
	}
	info.Rates = NewCurve(rates)
	for rows := range c.costs.Grid {
		if info.BatchCaps == nil {
			info.BatchCaps = map[int]int{}
		}
		info.BatchCaps[rows], _ = c.costs.BatchCap(rows, c.p, c.maxCap)
	}
	return info
}
