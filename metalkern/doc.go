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
// run linear_rows, whose lanes take the same columns for 1 to 16 rows, and attention,
// which goes page by page and cuts the cache at fixed pages. Prefill rows, however few,
// run on the matrix units (linear_tiles, attention_tiles) and sum in another order, the
// same in every chunk. Activations are float32, half or bfloat (Options.Activations);
// docs/metal.md says what that costs, and which kernels and variants give which bits.
//
// The CPU beside the GPU (split.go): of a prompt's quantized layers the CPU may make
// the last outputs, from the weights where they lie, while the GPU makes the others. A
// list has marks for that, shared events of Metal, at which the one waits for the
// other; it stays one command buffer. The share goes by outputs, never by rows, and is
// the same for every row while a model is loaded: so it changes no chunk's bits.
//
// Choices: some kernels have variants (choice.go). With Options.Trials the backend
// tries each kernel against the CPU before it relies on it (trial.go, twin.go), times
// the variants that agree and keeps what it found in files (book.go). What hangs or
// crashes stays out; where nothing is left the backend says that it is unfit. Long
// lists are cut so that the display gets its turn (pace.go).
//
// What stands, all of it on the emulation: every op and every weight layout, MLX and
// GGUF, read where it lies; the conformance suite in float32, half and bfloat, the
// goldens of all model families and greedy identity of the demo's drafters, with and
// without the CPU's part; drills under a watch of each load and store, and faults put
// into the kernels and into this package. What does not: no GPU has run any of it, the
// bridge has only been linked, and times on the emulation say nothing. The CPU has no
// part in a prompt's experts (MoELinear).
//
// Never here: model families, caching policy, anything that the CPU backend and
// this one share (engine/compute).
//
// Read first: Device and List (device.go), then lower.go.
package metalkern
