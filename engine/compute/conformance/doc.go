// Package conformance is the one test suite that every compute backend passes:
// each op in each layout, over every weight scheme and cache type, with the row
// counts and lengths at which kernels break (0, 1, 2, 7, 8, 9, 33 rows; pages'
// borders; empty segments; odd sizes).
//
// A result is judged in two ways. Against an independent float64 computation
// kept in this package, with a tolerance relative to the magnitude of the terms
// that were summed (type approx). And against itself, to the bit: the same row
// run alone, among others, in another order, in memory laid out in another way,
// or again, gives the same bits.
//
// All memory handed to a backend lies between guard values that must survive;
// what an op must not read (other pages, other slots, positions out of range)
// is NaN.
//
// The suite's own test plants faults in the reference backend and wants each of
// them found.
//
// Never here: code of a backend, or of the reference (the judge must not share
// its mistakes).
//
// Read first: Run, then rowCase.
package conformance
