package metaltest

// Order is how an emulated device arranges what Metal leaves open: lanes,
// SIMD-groups, threadgroups and the dispatches between two barriers.
type Order struct {
	Kind int // Forward, Reverse or Shuffled
	Seed uint64
}

// The kinds of order.
const (
	Forward = iota
	Reverse
	Shuffled
)
