package cpu

import (
	"fmt"
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/compute/conformance"
)

// open returns a backend that the test closes.
func open(t testing.TB, o Options) compute.Backend {
	t.Helper()
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// eachLevel runs f for every level that this machine has. Without kernels (no
// cgo) it runs once, on the reference backend.
func eachLevel(t *testing.T, f func(t *testing.T, level string)) {
	levels := Levels()
	if len(levels) == 0 {
		levels = []string{""}
	}
	for _, level := range levels {
		t.Run("level="+level, func(t *testing.T) { f(t, level) })
	}
}

// threadCounts is all of the given counts, or the last under the race detector.
func threadCounts(all ...int) []int {
	if raceEnabled {
		return all[len(all)-1:]
	}
	return all
}

func TestConformanceExact(t *testing.T) {
	eachLevel(t, func(t *testing.T, level string) {
		for _, threads := range threadCounts(1, 2, 3) {
			name := fmt.Sprintf("threads=%d", threads)
			conformance.Run(t, name, open(t, Options{Level: level, Threads: threads, Exact: true}), conformance.Options{})
		}
	})
}

// int8Tolerance is relative to the sum of the magnitudes: half a step of 1/127 of
// the largest of 32 activations each, most of which are smaller. What int8 means
// to the last digit is TestInt8.
const int8Tolerance = 1e-2

func TestConformanceInt8(t *testing.T) {
	eachLevel(t, func(t *testing.T, level string) {
		if level == "scalar" {
			t.Skip("the scalar level has no int8 kernels: exact is all there is")
		}
		for _, threads := range threadCounts(3) {
			name := fmt.Sprintf("threads=%d", threads)
			conformance.Run(t, name, open(t, Options{Level: level, Threads: threads}), conformance.Options{LinearTol: int8Tolerance})
		}
	})
}
