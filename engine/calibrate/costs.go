package calibrate

import (
	"errors"
	"fmt"
	"math"
)

const (
	// DerivedAcceptance is the per-draft acceptance that a cap is derived for
	// before anything is known about the text.
	DerivedAcceptance = 0.70

	// DefaultCap is the cap where nothing was measured.
	DefaultCap = 2

	// BaseDepth is the context depth at which curves are to be measured.
	BaseDepth = 512
)

// Costs are the measured times of one target and drafter on one device, in
// milliseconds, in the form the calibration file stores them.
type Costs struct {
	// Verify is the target's forward by width, at BaseDepth.
	Verify Curve `json:"verify"`
	// Drafter is the drafter's time by cap; a constant for a drafter that
	// always computes its whole block.
	Drafter Curve `json:"drafter"`
	// Overhead is what a round costs beyond the two forwards.
	Overhead float64 `json:"overhead"`
	// Depth says how much longer verification takes at greater depth. nil:
	// not measured.
	Depth *DepthCosts `json:"verify_depth,omitempty"`
	// Grid is the batched verify time, by number of rows, then by width.
	Grid map[int]Curve `json:"verify_grid,omitempty"`
}

// DepthCosts are milliseconds per token of context, by verify width, measured
// between two depths.
type DepthCosts struct {
	From  int   `json:"d0"`
	To    int   `json:"d1"`
	Slope Curve `json:"slope"`
}

// minVerify is the shortest credible verify time, in ms.
const minVerify = 1e-6

// Validate reports costs that no cap can be derived from.
func (c *Costs) Validate() error {
	if c.Verify.Empty() {
		return errors.New("calibrate: no verify times; measure again")
	}
	for _, p := range c.Verify.points {
		if !(p.y > minVerify) {
			return fmt.Errorf("calibrate: verify time %v at width %d; measure again", p.y, p.x)
		}
	}
	if c.Overhead < 0 || math.IsNaN(c.Overhead) || math.IsInf(c.Overhead, 0) {
		return fmt.Errorf("calibrate: round overhead %v; measure again", c.Overhead)
	}
	for rows, g := range c.Grid {
		if rows < 1 || g.Empty() {
			return fmt.Errorf("calibrate: empty batch times for %d rows; measure again", rows)
		}
	}
	return nil
}

// Expected returns the expected number of tokens a round commits at cap C:
// 1 + p + p² + … + p^C.
func Expected(cap int, p float64) float64 {
	sum, term := 1.0, 1.0
	for range cap {
		term *= p
		sum += term
	}
	return sum
}

// Rate returns the predicted tokens per millisecond of rounds at the given
// cap. Cap 0 is plain decoding.
func (c *Costs) Rate(cap int, p float64, depth int) float64 {
	ms := c.round(cap, depth)
	if ms <= 0 { // far beyond a noisy curve: no prediction
		return 0
	}
	return Expected(cap, p) / ms
}

// round is the predicted time of a round.
func (c *Costs) round(cap, depth int) float64 {
	ms := c.verify(cap+1, depth)
	if cap > 0 {
		ms += c.Drafter.At(cap) + c.Overhead
	}
	return ms
}

// verify is the verify time at a depth.
func (c *Costs) verify(width, depth int) float64 {
	return c.Verify.At(width) + c.deeper(width, depth)
}

// deeper is what depth adds to a verify.
func (c *Costs) deeper(width, depth int) float64 {
	if c.Depth == nil || depth <= c.Depth.From {
		return 0
	}
	return c.Depth.Slope.At(width) * float64(depth-c.Depth.From)
}

// BestCap returns the cap in 1…maxCap with the highest rate, the smallest of
// equals.
func (c *Costs) BestCap(p float64, depth, maxCap int) int {
	best := 1
	for cap := 2; cap <= maxCap; cap++ {
		if c.Rate(cap, p, depth) > c.Rate(best, p, depth) {
			best = cap
		}
	}
	return best
}

// CapAtDepth shrinks a derived cap for a context of the given depth. It leaves
// the cap alone when depth costs were not measured or are below 15 % of the
// verify time, and it never raises it.
func (c *Costs) CapAtDepth(cap int, p float64, depth, maxCap int) int {
	if c.deeper(cap+1, depth) < 0.15*c.Verify.At(cap+1) {
		return cap
	}
	return min(cap, c.BestCap(p, depth, maxCap))
}

// BatchCap returns the cap in 1…maxCap with the highest rate for a batch of
// rows, from the times of the next measured batch size (the largest when
// there is no larger one). ok is false when no batch times were measured.
func (c *Costs) BatchCap(rows int, p float64, maxCap int) (cap int, ok bool) {
	size, largest := 0, 0
	for b := range c.Grid {
		largest = max(largest, b)
		if b >= rows && (size == 0 || b < size) {
			size = b
		}
	}
	if size == 0 {
		size = largest
	}
	if size == 0 {
		return 0, false
	}
	batched := Costs{Verify: c.Grid[size], Drafter: c.Drafter, Overhead: c.Overhead}
	return batched.BestCap(p, 0, maxCap), true
}

// Report is what the verify curve says about block drafting.
type Report struct {
	Knee      int    `json:"knee_width"`
	FullBlock bool   `json:"dflash_full_block_viable"`
	Recommend string `json:"recommend"` // "dspark" or "dflash-on-structured"
}

// fullBlock is the verify width a whole diffusion block needs.
const fullBlock = 16

// Report finds the knee of the verify curve.
func (c *Costs) Report() Report {
	r := Report{Knee: c.Knee(), Recommend: "dspark"}
	if r.Knee >= fullBlock {
		r.FullBlock, r.Recommend = true, "dflash-on-structured"
	}
	return r
}

// Knee returns the width at which the verify time first jumps: by more than
// 15 % of the smallest width's time and by more than 1.8 times the mean of the
// other jumps (for the first jump the later ones, otherwise the earlier ones).
// Without a jump it is the largest measured width.
func (c *Costs) Knee() int {
	p := c.Verify.points
	if len(p) == 0 {
		return 0
	}
	floor := 0.15 * p[0].y
	jump := func(i int) float64 { return p[i].y - p[i-1].y }
	mean := func(from, to int) float64 { // over jumps from … to-1
		if from >= to {
			return 0
		}
		return (p[to-1].y - p[from-1].y) / float64(to-from)
	}
	for i := 1; i < len(p); i++ {
		others := mean(1, i)
		if i == 1 {
			others = mean(2, len(p))
		}
		if jump(i) > max(1.8*others, floor) {
			return p[i].x
		}
	}
	return p[len(p)-1].x
}
