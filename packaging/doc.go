// Package packaging builds what users install: the macOS bundle, its signature
// and disk image, and the cross-build from Linux.
//
// What stands today is this page; `make cross` and `make app` say so.
//
// Never here: code that runs in the product.
//
// Read first: the Makefile.
package packaging
