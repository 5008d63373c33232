//go:build race

package cpu

// raceEnabled: the race detector sees the Go code only and makes the judge of
// the conformance suite slow.
const raceEnabled = true
