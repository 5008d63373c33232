// Command bench turns what `make bench` measured into docs/performance.md: one
// JSON file a chapter, written by the measuring tests of engine (bench_test.go
// says their form), and notes.md, which is written by hand.
//
// What lives here: layout of the page. What must never live here: measuring.
//
// Usage: bench FOLDER PAGE
//
// A chapter is {"title", "about", "figures": [{"name", "value", "unit", "want",
// "note"}]}; want has the form ">= 2.5". Read write first.
package main
