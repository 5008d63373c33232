// Package testhub answers as a model hub does, for tests of downloads from outside
// the package that makes them: the listing of a repository with the hashes of its
// files, and the files themselves, with ranges.
//
// Faults of a network belong to the double in engine/models, which knows many.
//
// Never here: anything that a program needs.
//
// Read first: Serve.
package testhub
