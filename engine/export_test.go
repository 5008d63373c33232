package engine

import (
	"sparkbar/engine/machine"
	"sparkbar/engine/sample"
)

// Observe is a reading of the memory pressure, for tests.
func (e *Engine) Observe(l machine.Level) { e.observe(l) }

// StopWatching ends what the engine watches by itself, the memory among it, and
// returns when nothing of it runs any more.
func (e *Engine) StopWatching() { e.stop(); e.own.Wait() }

// SetRandom replaces the random decisions of requests with a seed, for tests that
// plant a fault in them.
func (e *Engine) SetRandom(f func(seed uint64) sample.Source) { e.random = f }
