// Package enginetest is a scripted engine for tests of the HTTP routes: it
// replays deltas, waits, errors and panics, and remembers what it was asked.
//
// A Script is what one generation does; New gives every generation the same one.
// It holds no model.
//
// Never here: anything that a program needs; only tests may import it.
//
// Read first: Engine.
package enginetest
