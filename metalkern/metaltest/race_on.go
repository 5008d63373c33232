//go:build race

package metaltest

const raceEnabled = true
