package arch

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestTurnFor: the matrix is orthogonal and makes what its keys have in common the
// same number in every channel.
func TestTurnFor(t *testing.T) {
	const n, rows = 32, 40
	rng := rand.New(rand.NewPCG(1, 1))
	common, keys := make([]float64, n), make([][]float32, rows)
	for i := range common {
		common[i] = rng.NormFloat64()
	}
	for r := range keys {
		keys[r] = make([]float32, 2*n)
		factor := 5 + rng.Float64()
		for i := range n {
			keys[r][n+i] = float32(factor*common[i] + 0.01*rng.NormFloat64())
		}
	}
	if u := direction(keys, 0, n); u[0] != 0 {
		t.Errorf("keys of zeros have the direction %v", u)
	}
	for _, u := range [][]float64{direction(keys, n, n), make([]float64, n)} {
		m := turnFor(u)
		for i := range n {
			for j := range n {
				dot, want := 0.0, 0.0
				for k := range n {
					dot += m[i*n+k] * m[j*n+k]
				}
				if i == j {
					want = 1
				}
				if math.Abs(dot-want) > 1e-9 {
					t.Fatalf("rows %d and %d: %v", i, j, dot)
				}
			}
		}
	}
	m := turnFor(direction(keys, n, n))
	for _, key := range keys {
		least, most, length := math.Inf(1), math.Inf(-1), 0.0
		for i := range n {
			x := 0.0
			for j := range n {
				x += m[i*n+j] * float64(key[n+j])
			}
			least, most, length = min(least, x), max(most, x), length+x*x
		}
		if most-least > 0.1*math.Sqrt(length/n) {
			t.Fatalf("a turned key lies between %v and %v", least, most)
		}
	}
}
