package arch

import (
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/metalkern/metaltest"
)

// backends are those that every golden must pass on.
func backends(t testing.TB) []compute.Backend {
	t.Helper()
	exact, err := cpu.New(cpu.Options{Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exact.Close() })
	return []compute.Backend{compute.NewReference(), exact}
}

// TestGoldensOnMetal runs the goldens on the Metal kernels, emulated.
func TestGoldensOnMetal(t *testing.T) {
	metaltest.Need(t)
	eachCheckpointOn(t, func(t testing.TB) []compute.Backend { return metaltest.Also(t) }, testGolden)
}
