// Command mac builds Sparkbar for macOS.
//
//	mac build ARCH    cross-compile and link for arm64 or amd64, on Linux
//	mac check ARCH    prove that what was linked can start on a Mac
//	mac bundle ARCH   the bundle, its signature and the disk image
//	mac cask URL      the brew recipe for the disk images in dist/, to lie below URL
//	mac patch         the patched copy of darwinkit, for builds on a Mac
//	mac prepare APP   the unsigned bundle around dist/sparkbar, on a Mac
//
// Results lie below dist/, caches below build/darwin.
//
// Never here: anything that packaging has no test for; this command only strings
// its parts together.
//
// Read first: run.
package main
