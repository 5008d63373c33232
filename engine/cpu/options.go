package cpu

import (
	"fmt"
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
	// Empty = SPARKBAR_CPU_LEVEL, and without that the best that works here.
	Level string
}

// LevelVariable is the environment variable that forces a level.
const LevelVariable = "SPARKBAR_CPU_LEVEL"

// maxThreads is the largest pool (MAX_THREADS of pool.c).
const maxThreads = 256

func (o Options) threads() (int, error) {
	if o.Threads < 0 || o.Threads > maxThreads {
		return 0, fmt.Errorf("cpu: %d threads; use 1 to %d, or 0 for all cores", o.Threads, maxThreads)
	}
	if o.Threads > 0 {
		return o.Threads, nil
	}
	return min(runtime.GOMAXPROCS(0), maxThreads), nil
}
