package menubar

import "time"

// RateCheck is how often a Tick should come while a speed is shown.
const RateCheck = 1500 * time.Millisecond

// The rhythm of what is displayed.
const (
	rateKeep     = 0.8 // share of the old value in the smoothed one
	ratePublish  = 500 * time.Millisecond
	rateIdle     = 4 * time.Second // without a round the speed is 0
	speedStays   = time.Minute     // the speed row outlives a request
	copiedStays  = 1200 * time.Millisecond
	pulse        = 500 * time.Millisecond // for a frame of GlyphPulse
	widthWindow  = 10 * time.Second       // the title keeps its widest value of this time
	longPrompt   = 2048                   // new tokens from which reading is shown
	rateLimit    = 1e5                    // tokens per second that nobody believes
	requestLimit = 256                    // requests kept, against a server that never ends one
)

// rate is a smoothed speed in tokens per second.
type rate struct {
	value     float64
	shown     float64   // what is displayed: value, at most every ratePublish
	published time.Time // when shown changed
	last      time.Time // of the last round
}

// add takes in a round of n tokens in ms milliseconds.
func (r *rate) add(n int, ms float64, now time.Time) {
	if ms <= 0 || n < 0 {
		return
	}
	x := min(float64(n)/(ms/1000), rateLimit)
	if !r.last.IsZero() {
		x = rateKeep*r.value + (1-rateKeep)*x
	}
	r.value, r.last = x, now
	r.publish(now)
}

func (r *rate) publish(now time.Time) {
	if r.published.IsZero() || now.Sub(r.published) >= ratePublish {
		r.shown, r.published = r.value, now
	}
}
