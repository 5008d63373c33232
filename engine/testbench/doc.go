// Package testbench is what tests that measure have in common: they run only where
// `make bench` asks for it, and each writes a chapter of docs/performance.md as one
// JSON file, {"title", "about", "figures": [{"name", "value", "unit", "want",
// "note"}]}. Command engine/internal/bench makes the page of them.
//
// Never here: what is measured, and the layout of the page.
//
// Read first: Write.
package testbench
