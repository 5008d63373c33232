// Package models knows the published pairs of target and drafter, and decides
// from a model's name, a mode and perhaps a drafter what is to be loaded.
//
// It is a table and pure functions over it. A row matches by the last component
// of a model's path or repository name, so local copies, other quantizations and
// conversions by other people find their drafter too.
//
// Never here: files, downloads or the network; what a drafter file really is
// (engine/draft reads that from the file itself, and the file wins).
//
// Read first: Resolve, then pairs.go.
package models
