//go:build !race

package testmodel

// Race reports whether the race detector is on, which makes everything several
// times slower.
const Race = false
