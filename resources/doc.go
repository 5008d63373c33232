// Package resources holds what is embedded in the binary: the demo model that
// answers when nothing else is configured.
//
// Never here: code that uses these files.
//
// Read first: Demo.
package resources
