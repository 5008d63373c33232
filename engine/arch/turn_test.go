package arch

import (
	"math"
	"testing"
	"unsafe"
)

// TestHadamard: the matrix is symmetric and its own inverse, so scores stay and
// values come back.
func TestHadamard(t *testing.T) {
	for _, n := range []int{16, 64, 128} {
		b := hadamard(n)
		m := unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), n*n)
		for i := range n {
			for j := range n {
				sum := 0.0
				for k := range n {
					sum += float64(m[i*n+k]) * float64(m[k*n+j])
				}
				want := 0.0
				if i == j {
					want = 1
				}
				if math.Abs(sum-want) > 1e-6 || m[i*n+j] != m[j*n+i] {
					t.Fatalf("size %d: %v at %d, %d", n, sum, i, j)
				}
			}
		}
	}
	for dim, want := range map[int]int{64: 64, 128: 128, 96: 32, 192: 64, 80: 16, 72: 0, 8: 0} {
		if got := turnSize(dim); got != want {
			t.Errorf("heads of %d are turned in %d, want %d", dim, got, want)
		}
	}
}
