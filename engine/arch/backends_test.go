package arch

import (
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
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
