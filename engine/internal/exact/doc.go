// Package exact has what tests of sampled output need: the distribution that a
// model's tokens must have, enumerated, and how well counts agree with it.
//
// Never here: anything that a program needs.
//
// Read first: Joint.
package exact
