// Package metalkern is the Metal backend of Apple silicon. It implements
// compute.Backend.
//
// A Program is lowered (lower*.go) to a List: dispatches of kernels with function
// constants, buffers with offsets, and barriers only where one dispatch touches
// what another wrote. A Device encodes the list into one command buffer in one
// call. There are two devices: the GPU behind a thin Objective-C bridge
// (bridge_darwin.m), and the emulation that tests use (package metaltest). The
// kernels lie in kernels/; common.h says by which rules they are written.
//
// Identity: a row's bits depend on the row and its history. Decode and verify rows
// run linear_rows, whose lanes take the same columns for 1 to 16 rows; attention
// goes page by page and cuts the cache at fixed pages. Prefill rows of Linear run
// on the matrix units (linear_tiles) and sum in another order.
//
// What stands: every op and every weight layout, MLX and GGUF, read where it lies;
// proven on the emulation by the conformance suite, the goldens of all model
// families, greedy identity of the demo's drafters, drills under a watch of each
// load and store, and faults put into the sources. What does not: no GPU has run
// it, so the CPU stays the default and --backend metal begins with SelfTest;
// attention has one kernel for decode and prefill; kernels have one variant each,
// so nothing is timed or chosen; compiled kernels are not cached between starts;
// there is no split of prefill with the CPU.
//
// Never here: model families, caching policy, anything that the CPU backend and
// this one share (engine/compute).
//
// Read first: Device and List (device.go), then lower.go.
package metalkern
