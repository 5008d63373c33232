package metalkern_test

import (
	"testing"

	"sparkbar/engine/compute/conformance"
	"sparkbar/metalkern/metaltest"
)

// options: prefill rows go through the matrix units, which sum in another order.
var options = conformance.Options{RelaxedPrefill: true}

func TestConformance(t *testing.T) {
	b, _ := metaltest.Open(t, metaltest.Build{}, metaltest.Order{})
	conformance.Run(t, "emulated", b, options)
}

// TestConformanceChecked runs everything again where every load and store is
// watched, and what Metal leaves open is shuffled.
func TestConformanceChecked(t *testing.T) {
	b, _ := metaltest.Open(t, metaltest.Build{Checked: true}, metaltest.Order{Kind: metaltest.Shuffled, Seed: 1})
	conformance.Run(t, "checked", b, options)
}
