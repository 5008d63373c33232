package calibrate

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func loadJSON(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// goldenCurve is how the records write costs.
type goldenCurve struct {
	Verify  Curve         `json:"verify_ms"`
	Drafter Curve         `json:"drafter_ms"`
	MaxCap  int           `json:"max_cap"`
	Note    string        `json:"note"`
	Slope   *Curve        `json:"depth_slope"`
	Depth0  int           `json:"depth0"`
	Grid    map[int]Curve `json:"verify_grid"`
}

func (g goldenCurve) costs(t *testing.T) *Costs {
	t.Helper()
	c := &Costs{Verify: g.Verify, Drafter: g.Drafter, Grid: g.Grid}
	if g.Slope != nil {
		c.Depth = &DepthCosts{From: g.Depth0, To: 16384, Slope: *g.Slope}
	}
	if err := c.Validate(); err != nil {
		t.Fatalf("%s: %v", g.Note, err)
	}
	return c
}

func near(a, b, tol float64) bool { return math.Abs(a-b) <= tol*max(1e-9, math.Abs(b)) }

func TestCostModelGoldens(t *testing.T) {
	var f struct {
		Cases []struct {
			Curve             goldenCurve
			StaticBest        map[string]int             `json:"static_best"`
			Knee              int                        `json:"knee_width"`
			Recommendation    Report                     `json:"recommendation"`
			Rate              map[int]float64            `json:"rate_at_p0.7"`
			InterpVerify      map[int]float64            `json:"interp_verify"`
			Expected          map[int]float64            `json:"expected_committed_p0.7"`
			DepthAdjusted     map[int]map[int]int        `json:"depth_adjusted_cap"`
			StaticBestAtDepth map[int]int                `json:"static_best_at_depth"`
			CapForBatch       map[int]int                `json:"cap_for_batch"`
			Info              map[string]json.RawMessage `json:"info"`
		}
	}
	loadJSON(t, "cap_model.json", &f)
	for _, e := range f.Cases {
		c, max, name := e.Curve.costs(t), e.Curve.MaxCap, e.Curve.Note
		for k, want := range e.StaticBest {
			p, err := strconv.ParseFloat(k, 64)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.BestCap(p, 0, max); got != want {
				t.Errorf("%s: best cap at p %v is %d, want %d", name, p, got, want)
			}
		}
		if got := c.Report(); got != e.Recommendation || got.Knee != e.Knee {
			t.Errorf("%s: report %+v, want %+v", name, got, e.Recommendation)
		}
		for cap, want := range e.Rate {
			if got := c.Rate(cap, 0.7, 0); !near(got, want, 1e-8) {
				t.Errorf("%s: rate(%d) = %v, want %v", name, cap, got, want)
			}
		}
		for x, want := range e.InterpVerify {
			if got := c.Verify.At(x); !near(got, want, 1e-8) {
				t.Errorf("%s: verify(%d) = %v, want %v", name, x, got, want)
			}
		}
		for cap, want := range e.Expected {
			if got := Expected(cap, 0.7); !near(got, want, 1e-8) {
				t.Errorf("%s: expected(%d) = %v, want %v", name, cap, got, want)
			}
		}
		for depth, caps := range e.DepthAdjusted {
			for cap, want := range caps {
				if got := c.CapAtDepth(cap, 0.7, depth, max); got != want {
					t.Errorf("%s: cap %d at depth %d becomes %d, want %d", name, cap, depth, got, want)
				}
			}
		}
		for depth, want := range e.StaticBestAtDepth {
			if got := c.BestCap(DerivedAcceptance, depth, max); got != want {
				t.Errorf("%s: best cap at depth %d is %d, want %d", name, depth, got, want)
			}
		}
		ctl := NewController(c, ControllerConfig{MaxCap: max, PriorP: 0.7})
		for rows, want := range e.CapForBatch {
			if got := ctl.CapForBatch(rows); got != want {
				t.Errorf("%s: cap for %d rows is %d, want %d", name, rows, got, want)
			}
		}
		got, err := json.Marshal(ctl.Info())
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := json.Marshal(e.Info); !sameJSON(t, got, want) {
			t.Errorf("%s: info %s, want %s", name, got, want)
		}
	}
	t.Logf("%d cases", len(f.Cases))
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal(a, &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &y); err != nil {
		t.Fatal(err)
	}
	ax, _ := json.Marshal(x)
	by, _ := json.Marshal(y)
	return string(ax) == string(by)
}

func TestControllerGoldens(t *testing.T) {
	var f struct {
		Cases []struct {
			Curve      goldenCurve
			AllowZero  bool    `json:"allow_zero"`
			PriorP     float64 `json:"prior_p"`
			Overhead   float64 `json:"overhead_ms"`
			ProbeEvery int     `json:"probe_every"`
			DepthStart int     `json:"depth_start"`
			DepthStep  int     `json:"depth_step"`
			Columns    []string
			Rounds     [][]*float64
		}
	}
	loadJSON(t, "cap_controller.json", &f)
	rounds, parked := 0, 0
	for i, e := range f.Cases {
		if got := strings.Join(e.Columns, " "); got != "cap_used accepted round_ms cap_next p corr best" {
			t.Fatalf("case %d: columns %s", i, got)
		}
		costs := e.Curve.costs(t)
		costs.Overhead = e.Overhead
		c := NewController(costs, ControllerConfig{MaxCap: e.Curve.MaxCap, Park: e.AllowZero, PriorP: e.PriorP, ProbeEvery: e.ProbeEvery})
		for j, r := range e.Rounds {
			c.SetDepth(e.DepthStart + j*e.DepthStep)
			cap, accepted := int(*r[0]), int(*r[1])
			if c.Cap() != cap {
				t.Fatalf("case %d (%s) round %d: cap %d, want %d", i, e.Curve.Note, j, c.Cap(), cap)
			}
			ms, committed := 0.0, 0
			if r[2] != nil {
				ms, committed = *r[2], accepted+1
			}
			c.Update(cap, accepted, committed, ms)
			if c.Cap() != int(*r[3]) || !near(c.p, *r[4], 1e-8) || !near(c.corr, *r[5], 1e-8) || c.best != int(*r[6]) {
				t.Fatalf("case %d (%s) round %d: cap %d p %v corr %v best %d, want %v %v %v %v", i, e.Curve.Note, j, c.Cap(), c.p, c.corr, c.best, *r[3], *r[4], *r[5], *r[6])
			}
			rounds++
			if c.best == 0 {
				parked++
			}
		}
	}
	if parked == 0 {
		t.Error("no recorded round is parked")
	}
	t.Logf("%d cases, %d rounds, %d parked", len(f.Cases), rounds, parked)
}

func TestCurveJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"10": 3.5, "2": 1}`: `{"2":1,"10":3.5}`,
		` 14.0 `:              `14`,
		`{}`:                  `{}`,
		`null`:                `{}`,
	} {
		var c Curve
		if err := json.Unmarshal([]byte(in), &c); err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, err := json.Marshal(c); err != nil || string(got) != want {
			t.Errorf("%s becomes %s (%v), want %s", in, got, err, want)
		}
	}
	for _, in := range []string{`[1]`, `"x"`, `{"a": 1}`, `{"1": "x"}`, `{"-1": 1}`, `{"01": 1}`, `{"1": -2}`, `-1`, `{"99999999999": 1}`} {
		var c Curve
		if err := json.Unmarshal([]byte(in), &c); err == nil {
			t.Errorf("%s is accepted as %+v", in, c)
		}
	}
	many := map[int]float64{}
	for i := range maxPoints + 1 {
		many[i] = 1
	}
	b, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	if json.Unmarshal(b, new(Curve)) == nil {
		t.Error("a huge curve is accepted")
	}
	if (Curve{}).At(3) != 0 || Constant(4).At(-7) != 4 || NewCurve(map[int]float64{5: 2}).At(9) != 2 {
		t.Error("degenerate curves")
	}
}

func TestRising(t *testing.T) {
	c := NewCurve(map[int]float64{1: 5, 2: 9, 3: 7, 4: 7, 8: 12, 16: 11}).Rising()
	for x, want := range map[int]float64{1: 5, 2: 7, 3: 7, 4: 7, 8: 11, 16: 11} {
		if got := c.At(x); got != want {
			t.Errorf("%v at %d, want %v", got, x, want)
		}
	}
	if !(Curve{}).Rising().Empty() || Constant(3).Rising().At(7) != 3 {
		t.Error("degenerate curves")
	}
}

func TestCostsJSON(t *testing.T) {
	in := `{"verify":{"1":5,"4":8},"drafter":14,"overhead":1.5,"verify_depth":{"d0":512,"d1":16384,"slope":{"1":0.001}},"verify_grid":{"2":{"1":9,"2":11}}}`
	var c Costs
	if err := json.Unmarshal([]byte(in), &c); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if got, err := json.Marshal(c); err != nil || string(got) != in {
		t.Errorf("round trip gives %s (%v)", got, err)
	}
	for name, bad := range map[string]Costs{
		"no times":  {},
		"zero time": {Verify: NewCurve(map[int]float64{1: 0})},
		"overhead":  {Verify: Constant(1), Overhead: math.NaN()},
		"grid":      {Verify: Constant(1), Grid: map[int]Curve{2: {}}},
	} {
		if bad.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	// A falling curve continued far beyond its points predicts nothing.
	falling := Costs{Verify: NewCurve(map[int]float64{1: 10, 2: 5}), Drafter: Constant(1)}
	if r := falling.Rate(8, 0.9, 0); r != 0 {
		t.Errorf("rate %v from a negative time", r)
	}
}

// TestControllerFollowsTheText plays a text whose drafts fail, then succeed:
// the controller parks, keeps probing, and comes back.
func TestControllerFollowsTheText(t *testing.T) {
	costs := &Costs{Verify: NewCurve(map[int]float64{1: 40, 2: 56, 8: 152}), Drafter: NewCurve(map[int]float64{1: 9, 7: 11})}
	c := NewController(costs, ControllerConfig{MaxCap: 7, Park: true})
	play := func(rounds int, all bool) (caps map[int]int) {
		caps = map[int]int{}
		for range rounds {
			cap := c.Cap()
			caps[cap]++
			accepted := 0
			if all {
				accepted = cap
			}
			c.Update(cap, accepted, accepted+1, 1/costs.Rate(cap, 0, 0))
		}
		return caps
	}
	play(60, false)
	if caps := play(80, false); caps[0] != 70 || caps[1] != 10 {
		t.Errorf("while nothing is accepted, caps are %v; want 70 plain rounds and 10 probes", caps)
	}
	play(400, true)
	if caps := play(80, true); caps[7] != 80 {
		t.Errorf("while everything is accepted, caps are %v", caps)
	}
	never := NewController(costs, ControllerConfig{MaxCap: 7})
	for range 100 {
		never.Update(never.Cap(), 0, 1, 0)
		if never.Cap() == 0 {
			t.Fatal("parked without permission")
		}
	}
}

// TestPatientController: while nothing is accepted the probes become rare, and
// speculation comes back all the same once drafts are good again.
func TestPatientController(t *testing.T) {
	costs := &Costs{Verify: NewCurve(map[int]float64{1: 40, 2: 56, 8: 152}), Drafter: NewCurve(map[int]float64{1: 9, 7: 11})}
	c := NewController(costs, ControllerConfig{MaxCap: 7, Park: true, Patient: true}).Begin(0)
	play := func(rounds int, all bool) (drafted int, lost float64) {
		spent, tokens := 0.0, 0
		for range rounds {
			cap, accepted := c.Cap(), 0
			if cap > 0 {
				drafted++
			}
			if all {
				accepted = cap
			}
			ms := 1 / costs.Rate(cap, 0, 0)
			c.Update(cap, accepted, accepted+1, ms)
			spent, tokens = spent+ms, tokens+accepted+1
		}
		return drafted, spent/float64(tokens)/costs.Verify.At(1) - 1
	}
	play(60, false)
	if drafted, lost := play(640, false); drafted < 8 || drafted > 16 || lost > 0.03 {
		t.Errorf("%d probes in 640 rounds, %.1f %% lost", drafted, 100*lost)
	}
	play(1600, true)
	if drafted, _ := play(80, true); drafted != 80 {
		t.Errorf("%d of 80 rounds draft although everything is accepted", drafted)
	}
}

// TestRequestBegins: a request drafts from its first round on where earlier ones say
// that it is worth it, else it tries one draft a little later.
func TestRequestBegins(t *testing.T) {
	costs := &Costs{Verify: NewCurve(map[int]float64{1: 40, 2: 44, 8: 80}), Drafter: NewCurve(map[int]float64{1: 8, 7: 8})}
	for _, accepts := range []bool{true, false} {
		all := NewController(costs, ControllerConfig{MaxCap: 7, Park: true, Patient: true})
		for range 8 { // requests that say so
			c := all.Begin(0)
			for range 40 {
				cap, accepted := c.Cap(), 0
				if accepts {
					accepted = cap
				}
				c.Update(cap, accepted, accepted+1, costs.round(cap, 0))
			}
		}
		c := all.Begin(0)
		var caps []int
		for range firstTry + 1 {
			caps = append(caps, c.Cap())
			c.Update(c.Cap(), 0, 1, costs.round(c.Cap(), 0))
		}
		if want := []int{0, 0, 1}; accepts && caps[0] < 4 || !accepts && !slices.Equal(caps, want) {
			t.Errorf("accepted before: %v; the next request drafts %v", accepts, caps)
		}
	}
}

// TestCopiesTimed: copies that take longer than was measured are tried less.
func TestCopiesTimed(t *testing.T) {
	costs := &Costs{Verify: NewCurve(map[int]float64{1: 40, 2: 41, 8: 48}), Drafter: Constant(8)}
	for _, factor := range []float64{1, 3} {
		c := NewController(costs, ControllerConfig{MaxCap: 7, Park: true, Patient: true}).Begin(0)
		for range 2 * enoughTimings {
			c.Update(0, 0, 1, 40)
			c.Copied(6, 6, 6, 2, factor*costs.Verify.At(7))
		}
		if n := c.Copies(6, 6); (n > 1) != (factor == 1) {
			t.Errorf("copies that take %v times as long as measured: %d of 6 are tried", factor, n)
		}
	}
}

// TestOnlyCopies: where there is no drafter copies are expected to hold, as many as a
// long match offers; of those that fail fewer are tried, and then next to none.
func TestOnlyCopies(t *testing.T) {
	costs := &Costs{Verify: NewCurve(map[int]float64{1: 40, 2: 60, 7: 80}), Grid: map[int]Curve{8: NewCurve(map[int]float64{1: 90, 4: 260})}}
	begin := func(most int) *Controller {
		return NewController(costs, ControllerConfig{MaxCap: most, Park: true, Patient: true}).Begin(100)
	}
	c := begin(0)
	if n, beside := c.Copies(32, 6), begin(7).Copies(32, 6); n < 16 || beside > firstCopies {
		t.Errorf("of 32 copies %d are tried, beside a drafter %d", n, beside)
	}
	if c.Cap() != 0 {
		t.Errorf("%d drafts without a drafter", c.Cap())
	}
	before := c.Copies(32, 6)
	tried := 0
	for i := range 40 {
		n := c.Copies(32, 6)
		if n > before {
			t.Fatalf("after %d failures %d copies are tried, before %d", i, n, before)
		}
		if n > 0 {
			before = n
			tried++
			c.Copied(32, 6, n, 0, 0)
		} else {
			c.Update(0, 0, 1, 40)
		}
	}
	if before > 2 || tried > 30 {
		t.Errorf("%d of 40 offers are still taken, of %d copies at last", tried, before)
	}
	if n := c.Copies(6, 6); n < 3 {
		t.Errorf("after a short match %d copies are tried", n)
	}
	for range 20 {
		c.Copied(32, 6, 8, 8, 0)
	}
	if n := c.Copies(32, 6); n < 16 {
		t.Errorf("once they hold again %d copies are tried", n)
	}
}

// TestSlowMachine: drafts that a machine rejects are given up, and those that it
// accepts are made, whether it was slow while rounds without drafts were timed, or
// while those with drafts were.
func TestSlowMachine(t *testing.T) {
	costs := &Costs{Verify: NewCurve(map[int]float64{1: 40, 2: 44, 8: 80}), Drafter: NewCurve(map[int]float64{1: 8, 7: 8})}
	for _, slow := range [][2]float64{{1, 1}, {2.5, 1}, {1, 2.5}, {2.5, 2.5}} {
		all := NewController(costs, ControllerConfig{MaxCap: 7, Park: true, Patient: true})
		play := func(rounds int, factor float64, accepts bool) (drafted int) {
			c := all.Begin(0)
			for range rounds {
				cap, accepted := c.Cap(), 0
				if accepts {
					accepted = cap
				}
				if cap > 0 {
					drafted++
				}
				c.Update(cap, accepted, accepted+1, factor*costs.round(cap, 0))
			}
			return drafted
		}
		play(60, slow[0], false)
		play(60, slow[1], true)
		if n := play(60, slow[0], false); n > 8 {
			t.Errorf("slow %v: %d of 60 rounds draft although nothing is accepted", slow, n)
		}
		if n := play(60, slow[1], true); n < 40 {
			t.Errorf("slow %v: %d of 60 rounds draft although all is accepted", slow, n)
		}
		if n := play(60, slow[1], false); n > 8 {
			t.Errorf("slow %v: %d of 60 rounds draft although nothing is accepted any more", slow, n)
		}
	}
}

// TestUntimed: rounds that were not timed, since others ran beside them, say nothing
// about times.
func TestUntimed(t *testing.T) {
	costs := &Costs{Verify: NewCurve(map[int]float64{1: 40, 8: 80}), Drafter: Constant(8)}
	all := NewController(costs, ControllerConfig{MaxCap: 7, Park: true, Patient: true})
	c := all.Begin(0)
	for range enoughTimings {
		c.Update(0, 0, 1, 40)
	}
	for range enoughTimings {
		c.Update(2, 2, 3, 0)
		c.Copied(4, 4, 4, 4, 0)
	}
	if len(all.times) > 0 || all.copying.rounds > 0 || all.corr != 1 {
		t.Errorf("times %v, of copies %v, of all %v", all.times, all.copying, all.corr)
	}
}

// TestControllerMemory pins the two counters that the records do not reach:
// when a time is forgotten and when parking becomes possible.
func TestControllerMemory(t *testing.T) {
	slow := &Costs{Verify: NewCurve(map[int]float64{1: 1, 2: 50, 8: 400}), Drafter: Constant(50)}
	c := NewController(slow, ControllerConfig{MaxCap: 7, Park: true})
	for i := 1; i <= 30; i++ { // one observation a round: the first draft fails
		c.Update(1, 0, 0, 0)
		if parked := c.best == 0; parked != (i >= 24) {
			t.Fatalf("after %d observations parked is %v", i, parked)
		}
	}
	c = NewController(slow, ControllerConfig{MaxCap: 7})
	c.Update(2, 0, 1, 10)
	for range 32 {
		c.Update(1, 0, 0, 0)
	}
	if _, kept := c.timings[2]; !kept {
		t.Error("a time is forgotten after 32 rounds")
	}
	c.Update(1, 0, 0, 0)
	if _, kept := c.timings[2]; kept {
		t.Error("a time is kept after 33 rounds")
	}
}

func TestConfidenceRules(t *testing.T) {
	conf := []float32{0.9, 0.8, 0.5, 0.95}
	for _, c := range []struct {
		rule      ConfidenceRule
		threshold float64
		conf      []float32
		want      int
	}{
		{Survival, 0, conf, 4}, {Survival, 0.7, conf, 2}, {Survival, 0.3, conf, 4}, {Survival, 0.35, conf, 3}, {Survival, 0.99, conf, 1}, {Survival, 0.5, nil, 0},
		{PerPosition, 0, conf, 4}, {PerPosition, 0.7, conf, 2}, {PerPosition, 0.45, conf, 4}, {PerPosition, 0.99, conf, 0},
		{PerPosition, 0.1, []float32{0.9, float32(math.NaN()), 0.9}, 1},
	} {
		if got := c.rule.Keep(c.conf, c.threshold); got != c.want {
			t.Errorf("rule %d, threshold %v of %v keeps %d, want %d", c.rule, c.threshold, c.conf, got, c.want)
		}
	}
}

func FuzzCosts(f *testing.F) {
	f.Add([]byte(`{"verify":{"1":5,"4":8},"drafter":{"1":2},"overhead":1.5,"verify_depth":{"d0":512,"d1":16384,"slope":{"1":0.001}},"verify_grid":{"2":{"1":9}}}`))
	f.Add([]byte(`{"verify":3,"drafter":1e308,"overhead":0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var c Costs
		if json.Unmarshal(data, &c) != nil || c.Validate() != nil {
			return
		}
		if best := c.BestCap(0.7, 9000, 7); best < 1 || best > 7 {
			t.Errorf("best cap %d", best)
		}
		c.Report()
		ctl := NewController(&c, ControllerConfig{MaxCap: 7, Park: true})
		for range 40 {
			ctl.Update(ctl.Cap(), 0, 1, 5)
		}
		if cap := ctl.CapForBatch(3); cap < 0 || cap > 7 {
			t.Errorf("cap %d", cap)
		}
		if _, err := json.Marshal(ctl.Info()); err != nil {
			t.Error(err)
		}
	})
}
