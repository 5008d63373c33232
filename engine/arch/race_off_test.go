//go:build !race

package arch

const underRace = false
