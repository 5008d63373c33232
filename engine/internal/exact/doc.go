// Package exact has what tests of sampled output need: the distribution that a
// model's tokens must have, enumerated, and how well counts agree with it.
//
// Joint walks every continuation of a few tokens through the reference backend,
// without any of the code under test but the model and its sampler; ChiSquare
// compares it with what many runs have drawn.
//
// Never here: anything that a program needs.
//
// Read first: Joint.
package exact
