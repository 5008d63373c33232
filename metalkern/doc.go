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
// goes page by page and cuts the cache at fixed pages. Many prefill rows run on the
// matrix units (linear_tiles, attention_tiles) and sum in another order. Activations
// are float32, half or bfloat: docs/metal.md says what that costs, and which kernels
// and variants give which bits.
//
// What stands: every op and every weight layout, MLX and GGUF, read where it lies;
// proven on the emulation by the conformance suite, the goldens of all model
// families, greedy identity of the demo's drafters, drills under a watch of each
// load and store, and faults put into the kernels and into this package. What does
// not: no GPU has run it. So a backend with Trials (trial.go) tries each kernel
// against the CPU before it relies on it, times the variants that agree and keeps
// the choice in a file (book.go); what hangs or crashes stays out, and where nothing
// is left the backend says that it is unfit. Long lists are cut so that the display
// gets its turn (pace.go). Prefill is not shared with the CPU.
//
// Never here: model families, caching policy, anything that the CPU backend and
// this one share (engine/compute).
//
// Read first: Device and List (device.go), then lower.go.
package metalkern
