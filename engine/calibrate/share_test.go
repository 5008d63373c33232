package calibrate

import (
	"math"
	"slices"
	"testing"
)

func TestShare(t *testing.T) {
	// A machine that reads weights: rows are free up to 8, then cost their share.
	flat := &Costs{Verify: NewCurve(map[int]float64{1: 100, 8: 101}), Grid: map[int]Curve{8: NewCurve(map[int]float64{1: 101, 2: 200, 8: 800})}, Drafter: Constant(2)}
	// A machine that computes: every row costs.
	steep := &Costs{Verify: NewCurve(map[int]float64{1: 10, 2: 19, 8: 73, 64: 577}), Drafter: Constant(1)}
	for i, c := range []struct {
		costs   *Costs
		streams []Stream
		want    []int
	}{
		{flat, []Stream{{P: 0.7, Most: 7}}, []int{7}},
		{flat, []Stream{{P: 0.7, Most: 3}, {P: 0.7, Most: 3}}, []int{3, 3}},   // eight rows
		{flat, []Stream{{P: 0.9, Most: 7}, {P: 0.3, Most: 7}}, []int{6, 0}},   // the free rows go where they are worth most
		{flat, slices.Repeat([]Stream{{P: 0.7, Most: 7}}, 8), make([]int, 8)}, // streams fill the free rows
		{steep, []Stream{{P: 0.7, Most: 7}, {P: 0.7, Most: 7}}, []int{0, 0}},
		{steep, []Stream{{P: 0.99, Most: 7, Copies: true}, {P: 0.5, Most: 7}}, []int{0, 0}},                                                                // three would gain 2 %
		{&Costs{Verify: flat.Verify, Grid: flat.Grid, Drafter: Constant(1000)}, []Stream{{P: 0.9, Most: 7, Copies: true}, {P: 0.3, Most: 7}}, []int{6, 0}}, // copies need no drafter
		{steep, []Stream{{P: 0.5, Least: 2, Most: 2}, {P: 0.5, Most: 4}}, []int{2, 0}},                                                                     // what is pinned stays
	} {
		if got := c.costs.Sharing().Share(c.streams); !slices.Equal(got, c.want) {
			t.Errorf("case %d: %v, wants %v", i, got, c.want)
		}
	}
}

// No other division of drafts has a better rate, among those that admit by
// survival.
func TestShareIsBest(t *testing.T) {
	c := &Costs{Verify: NewCurve(map[int]float64{1: 10, 4: 12, 6: 30, 12: 40}), Drafter: NewCurve(map[int]float64{1: 1, 4: 2}), Overhead: 0.5}
	rate := func(ps []float64, caps []int) float64 {
		rows, tokens, ms := 0, 0.0, 0.0
		for i, n := range caps {
			rows += 1 + n
			tokens += Expected(n, ps[i])
			if n > 0 {
				ms += c.Drafter.At(n) + c.Overhead
			}
		}
		return tokens / (c.Verify.At(rows) + ms)
	}
	for _, ps := range [][]float64{{0.9, 0.9}, {0.8, 0.2}, {0.99, 0.95}, {0.1, 0.1}, {0.6, 0.7}} {
		got := c.Sharing().Share([]Stream{{P: ps[0], Most: 4}, {P: ps[1], Most: 4}})
		for a := range 5 {
			for b := range 5 {
				least := 1.0 // an admitted draft must survive as likely as any refused one
				for i, n := range []int{a, b} {
					if n > 0 {
						least = min(least, math.Pow(ps[i], float64(n)))
					}
				}
				ordered := true
				for i, n := range []int{a, b} {
					ordered = ordered && (n == 4 || math.Pow(ps[i], float64(n+1)) <= least)
				}
				if r := rate(ps, []int{a, b}); ordered && r > rate(ps, got)+1e-12 {
					t.Errorf("acceptance %v: %v at %v, but %v at %v", ps, got, rate(ps, got), []int{a, b}, r)
				}
			}
		}
	}
}
