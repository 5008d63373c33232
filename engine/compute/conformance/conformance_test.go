package conformance

import (
	"testing"

	"sparkbar/engine/compute"
)

func TestReference(t *testing.T) {
	Run(t, "reference", compute.NewReference(), Options{})
}
