// Command bench turns what `make bench` measured into docs/performance.md: one
// JSON file a chapter (engine/testbench says its form), and notes.md, which is
// written by hand.
//
// What lives here: layout of the page. What must never live here: measuring.
//
// Usage: bench FOLDER PAGE
//
// Read write first.
package main
