package draft

import (
	"testing"

	"sparkbar/engine/compute"
)

// backends are those that every golden must pass on.
func backends(t testing.TB) []compute.Backend {
	t.Helper()
	return []compute.Backend{compute.NewReference()}
}
