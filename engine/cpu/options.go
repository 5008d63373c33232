package cpu

import (
	"fmt"
	"os"
	"runtime"
)

// Options chooses how a backend computes. The zero Options is the fast default.
type Options struct {
	// Threads is how many threads run kernels, the caller's among them; 0 = as
	// many as this process may use (affinity and CPU quota respected).
	Threads int
	// Exact keeps activations in float32 everywhere: slower, and what goldens
	// are compared with.
	Exact bool
	// Level forces an instruction set: one of Levels.
	// Empty = DefaultLevel.
	Level string
}

// LevelVariable is the environment variable that forces a level.
const LevelVariable = "SPARKBAR_CPU_LEVEL"

// DefaultLevel is the level of a backend whose Options name none: that of
// LevelVariable, and without that the best that works here; "" where this build has
// no kernels.
func DefaultLevel() string {
	if name := os.Getenv(LevelVariable); name != "" {
		return name
	}
	if have := Levels(); len(have) > 0 {
		return have[0]
	}
	return ""
}

// MaxThreads is the largest pool (MAX_THREADS of pool.c).
const MaxThreads = 256

func (o Options) threads() (int, error) {
	if o.Threads < 0 || o.Threads > MaxThreads {
		return 0, fmt.Errorf("cpu: %d threads; use 1 to %d, or 0 for all cores", o.Threads, MaxThreads)
	}
	if o.Threads > 0 {
		return o.Threads, nil
	}
	return min(runtime.GOMAXPROCS(0), MaxThreads), nil
}
