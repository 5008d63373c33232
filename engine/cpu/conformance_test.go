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
		t.Run("level="+level, func(t *testing.T) {
			t.Parallel()
			f(t, level)
		})
	}
}

func TestConformanceExact(t *testing.T) {
	first := ""
	if levels := Levels(); len(levels) > 0 {
		first = levels[0]
	}
	eachLevel(t, func(t *testing.T, level string) {
		for _, threads := range []int{1, 2, 3} {
			if raceEnabled && (threads != 3 || level != first) {
				continue // the judge is slow there, and the C code is not watched
			}
			name := fmt.Sprintf("threads=%d", threads)
			conformance.Run(t, name, open(t, Options{Level: level, Threads: threads, Exact: true}), conformance.Options{})
		}
	})
}

// int8Tolerance is relative to the sum of the magnitudes: half a step of 1/127 of
// the largest of 32 activations each, most of which are smaller; and in groups of
// 16, large weights may meet the smaller ones alone. What int8 means to the last
// digit is TestInt8.
const int8Tolerance = 2e-2

func TestConformanceInt8(t *testing.T) {
	eachLevel(t, func(t *testing.T, level string) {
		if level == "scalar" {
			t.Skip("the scalar level has no int8 kernels: exact is all there is")
		}
		if raceEnabled {
			t.Skip("the plain run does this: the race detector does not watch the C code")
		}
		conformance.Run(t, "threads=3", open(t, Options{Level: level, Threads: 3}), conformance.Options{LinearTol: int8Tolerance})
	})
}
