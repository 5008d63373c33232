//go:build !race

package metaltest

const raceEnabled = false
