// Package resources holds what is embedded in the binary: the demo model that
// answers when nothing else is configured, and the dashboard, which is written
// in web/src and built into web/dist by web/build.mjs.
//
// Never here: code that uses these files.
//
// Read first: Demo.
package resources
