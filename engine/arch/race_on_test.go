//go:build race

package arch

// underRace leaves out much of the goldens: the race detector makes the
// reference backend many times slower, and its one goroutine has no races.
const underRace = true
