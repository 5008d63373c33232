package exact

import (
	"math"
	"testing"
)

func TestChiSquare(t *testing.T) {
	// Q for known arguments (tables of the chi-square distribution).
	for _, c := range []struct{ dof, x, p float64 }{{1, 3.841, 0.05}, {10, 18.307, 0.05}, {10, 3.940, 0.95}, {100, 149.449, 0.001}} {
		if got := upperGamma(c.dof/2, c.x/2); math.Abs(got-c.p) > 1e-4 {
			t.Errorf("%v degrees, %v: %v, wants %v", c.dof, c.x, got, c.p)
		}
	}
}
