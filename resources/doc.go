// Package resources holds what is embedded in the binary.
//
// The demo model (demo/) answers when nothing else is configured: a tiny chat
// model with a DSpark and a DFlash drafter; demo/README.md says how it was made.
//
// The dashboard is written in web/src and built into web/dist by web/build.mjs
// (`make web`); web/dist is what is embedded, and a test of app holds the two
// together.
//
// Never here: code that uses these files.
//
// Read first: Demo.
package resources
