package engine

import "sparkbar/engine/machine"

// Observe is a reading of the memory pressure, for tests.
func (e *Engine) Observe(l machine.Level) { e.observe(l) }
