package ngram

// Gate decides whether long drafts are worth trying. Two long drafts in a row
// with fewer than half of their tokens accepted close it; after ProbeEvery
// rounds of ordinary drafts it lets one long draft through as a probe.
type Gate struct {
	ProbeEvery int // 0 means 8

	fails int // long drafts in a row that failed
	since int // ordinary lookup rounds since the last long draft
}

const (
	failsToClose      = 2
	defaultProbeEvery = 8
)

// Allowed reports whether the next draft may be long.
func (g *Gate) Allowed() bool {
	every := g.ProbeEvery
	if every <= 0 {
		every = defaultProbeEvery
	}
	return g.fails < failsToClose || g.since >= every
}

// Update records a lookup round: how many tokens were drafted and accepted,
// and the ordinary draft length base, above which a draft counts as long.
func (g *Gate) Update(drafted, accepted, base int) {
	if drafted <= base {
		g.since++
		return
	}
	g.since = 0
	if 2*accepted < drafted {
		g.fails++
	} else {
		g.fails = 0
	}
}
