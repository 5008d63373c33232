package metalkern_test

import (
	"strings"
	"testing"

	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

// TestDrills runs every kernel where each load and store is watched, in every
// order of lanes, threadgroups and unordered dispatches.
func TestDrills(t *testing.T) {
	ran := map[string]bool{}
	for _, o := range []metaltest.Order{{}, {Kind: metaltest.Reverse}, {Kind: metaltest.Shuffled, Seed: 3}} {
		b, dev := metaltest.Open(t, metaltest.Build{Checked: true}, o)
		for _, x := range metalkern.Drills {
			if err := x.Check(b); err != nil {
				t.Errorf("order %v: %v", o, err)
			}
		}
		for use, n := range dev.Uses() {
			if n > 0 {
				kernel, _, _ := strings.Cut(use, " ")
				ran[kernel] = true
			}
		}
	}
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sources {
		for _, k := range s.Kernels {
			if !ran[k] {
				t.Errorf("no drill runs kernel %s", k)
			}
		}
	}
}

// uses counts the dispatches of a kernel.
func uses(dev *metaltest.Device, kernel string) (n int) {
	for use, m := range dev.Uses() {
		if name, _, _ := strings.Cut(use, " "); name == kernel {
			n += m
		}
	}
	return n
}
