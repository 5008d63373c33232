package telemetry

import (
	"math"
	"strconv"
	"sync"
	"time"
)

// Where a round's drafts came from.
const (
	SourceDrafter = "drafter"
	SourceLookup  = "lookup"
	SourcePlain   = "plain" // no drafts: a plain decoding step
)

// Round is the record of one decoding round.
type Round struct {
	Req       string  `json:"req"`
	Mode      string  `json:"mode"`
	I         int     `json:"i"` // index within the request, from 0
	Drafted   int     `json:"drafted"`
	Accepted  int     `json:"accepted"`
	Committed int     `json:"committed"`
	Cap       int     `json:"cap"`
	Source    string  `json:"source"`
	MS        float64 `json:"ms"`  // since the previous round; round 0 includes prefill
	Seq       int     `json:"seq"` // from 1, per log; set by Record
	T         float64 `json:"t"`   // ms since the log's start; set by Record
}

// Prefill is the progress of a prompt, in tokens. Positions are absolute:
// they start at the cached length.
type Prefill struct {
	Type      string  `json:"type"` // always "prefill"
	Req       string  `json:"req"`
	Mode      string  `json:"mode"`
	Processed int     `json:"processed"`
	Total     int     `json:"total"`
	Done      bool    `json:"done,omitempty"`
	T         float64 `json:"t"` // ms since the log's start
}

// LogCapacity is how many rounds a [Log] keeps.
const LogCapacity = 512

// maxPositions bounds the per-position statistics of a log.
const maxPositions = 256

// Log keeps the latest rounds of a loaded model and statistics over all of
// them. Safe for concurrent use.
type Log struct {
	start time.Time

	mu       sync.Mutex
	ring     []Round // at most capacity; the oldest at next once full
	capacity int
	next     int

	rounds, committed, drafted, accepted, lookup int
	offered, hit                                 []int       // by draft position
	histogram                                    map[int]int // rounds by committed tokens
}

// NewLog returns an empty log that starts at now.
func NewLog(now time.Time) *Log { return newLog(now, LogCapacity) }

func newLog(now time.Time, capacity int) *Log {
	return &Log{start: now, capacity: capacity, histogram: map[int]int{}}
}

// Since returns now in milliseconds of the log's time, one decimal, for
// events beside the rounds.
func (l *Log) Since(now time.Time) float64 {
	return roundTo(float64(now.Sub(l.start))/float64(time.Millisecond), 1)
}

// Record stores a round and returns it as stored, with Seq and T set and MS
// rounded.
func (l *Log) Record(r Round, now time.Time) Round {
	r.T = l.Since(now)
	r.MS = roundTo(r.MS, 2)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rounds++
	r.Seq = l.rounds
	if len(l.ring) < l.capacity {
		l.ring = append(l.ring, r)
	} else {
		l.ring[l.next] = r
		l.next = (l.next + 1) % l.capacity
	}
	l.committed += r.Committed
	l.drafted += r.Drafted
	l.accepted += r.Accepted
	if r.Source == SourceLookup {
		l.lookup++
	}
	for i := range min(r.Drafted, maxPositions) {
		if i == len(l.offered) {
			l.offered, l.hit = append(l.offered, 0), append(l.hit, 0)
		}
		l.offered[i]++
		if i < r.Accepted {
			l.hit[i]++
		}
	}
	l.histogram[r.Committed]++
	return r
}

// at returns the i-th kept round, oldest first. The lock is held.
func (l *Log) at(i int) *Round { return &l.ring[(l.next+i)%len(l.ring)] }

// Rounds returns the latest limit rounds, oldest first; 0 means all kept ones,
// and a negative limit drops that many of the oldest.
func (l *Log) Rounds(limit int) []Round {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.ring)
	first := 0
	switch {
	case limit > 0:
		first = max(0, n-limit)
	case limit < 0:
		first = n
		if limit > -n {
			first = -limit
		}
	}
	out := make([]Round, 0, n-first)
	for i := first; i < n; i++ {
		out = append(out, *l.at(i))
	}
	return out
}

// Stats are statistics over every round since the log's start.
type Stats struct {
	Rounds             int         `json:"rounds"`
	CommittedTokens    int         `json:"committed_tokens"`
	MeanAcceptLen      float64     `json:"mean_accept_len"`  // committed per round, 3 decimals
	DraftAcceptance    float64     `json:"draft_acceptance"` // accepted per drafted, 4 decimals
	LookupRounds       int         `json:"lookup_rounds"`
	PositionAcceptance []float64   `json:"position_acceptance"` // accepted per offered, 4 decimals
	PositionOffered    []int       `json:"position_offered"`
	AcceptHistogram    map[int]int `json:"accept_histogram"` // rounds by committed tokens
}

// Stats returns the statistics so far.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{
		Rounds: l.rounds, CommittedTokens: l.committed, LookupRounds: l.lookup,
		MeanAcceptLen:      roundTo(ratio(l.committed, l.rounds), 3),
		DraftAcceptance:    roundTo(ratio(l.accepted, l.drafted), 4),
		PositionAcceptance: make([]float64, len(l.offered)),
		PositionOffered:    append([]int{}, l.offered...),
		AcceptHistogram:    make(map[int]int, len(l.histogram)),
	}
	for i, n := range l.offered {
		s.PositionAcceptance[i] = roundTo(ratio(l.hit[i], n), 4)
	}
	for k, v := range l.histogram {
		s.AcceptHistogram[k] = v
	}
	return s
}

// decayWindow is the number of rounds at either end of a request that the
// decay ratio compares.
const decayWindow = 16

// Decay returns how much slower a request became: the token rate of its last
// 16 rounds over that of its first 16, four decimals. Round 0 does not count
// (it includes prefill). nil with fewer than 32 kept rounds.
func (l *Log) Decay(req string) *float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var of []*Round
	for i := range l.ring {
		if r := l.at(i); r.Req == req && r.I > 0 {
			of = append(of, r)
		}
	}
	if len(of) < 2*decayWindow {
		return nil
	}
	first, last := rate(of[:decayWindow]), rate(of[len(of)-decayWindow:])
	if first == 0 || math.IsInf(first, 0) || math.IsInf(last, 0) {
		return nil
	}
	d := roundTo(last/first, 4)
	return &d
}

// rate is committed tokens per millisecond.
func rate(rounds []*Round) float64 {
	tokens, ms := 0, 0.0
	for _, r := range rounds {
		tokens += r.Committed
		ms += r.MS
	}
	if ms <= 0 {
		return math.Inf(1)
	}
	return float64(tokens) / ms
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// roundTo rounds to a number of decimals, exact halves of the binary value to
// even, as the reference's language does.
func roundTo(v float64, decimals int) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'f', decimals, 64), 64)
	if err != nil { // not finite
		return v
	}
	return r
}
