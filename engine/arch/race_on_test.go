//go:build race

package arch

// underRace leaves the quantized variants of the goldens out: they run the same
// Go code as the plain ones, many times slower.
const underRace = true
