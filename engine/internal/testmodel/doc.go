// Package testmodel writes model folders for tests: changed copies of stored
// ones, and tiny models and drafters with random weights.
//
// Edit changes the configuration or the tensors of a stored model, which is how
// tests make damaged ones; Target, DSpark and DFlash make models whose output is
// no text but reaches every branch of sampling and speculation. All of it goes
// into the test's own temporary folder.
//
// Never here: anything that a program needs.
//
// Read first: Write.
package testmodel
