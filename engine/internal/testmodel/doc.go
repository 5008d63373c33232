// Package testmodel writes model folders for tests: changed copies of stored
// ones, and tiny models and drafters with random weights.
//
// Never here: anything that a program needs.
//
// Read first: Write.
package testmodel
