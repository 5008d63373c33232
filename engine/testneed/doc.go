// Package testneed decides what a test does when something it needs is not
// there: plain `go test` skips with one line that says why; with
// SPARKBAR_REQUIRE=all the test fails.
//
// Every test that can do without something (a downloaded model, a compiler, a
// client program) asks here, so that `make test` cannot pass by skipping.
//
// Never here: anything that is not about tests.
//
// Read first: Missing.
package testneed
