// Package compute defines what a model can ask of a machine: about thirty
// fused ops, the Program that records them, the memory they work on (Buffer,
// View, Weight, KV, State) and the Backend that runs a whole Program in one
// call. It also holds the reference backend: pure Go, float32, one plain loop
// per op; it is the executable meaning of each op.
//
// A forward pass records a Program anew each step and submits it once. Rows are
// ragged: one step carries rows of several sequences. Linear ops see one matrix
// of all rows; attention and state ops see segments (Rows). Per-step numbers
// (ids, positions, visible ranges, page tables, kept rows) come from Params.
//
// Identity: the bits of a row depend on that row and its history only, never on
// how many rows run together, in which slot, or on how many threads.
//
// Never here: model families (engine/arch), policies of caching or sampling
// (engine/cache, engine/decode), SIMD or GPU code (engine/cpu, metalkern).
//
// Read first: Program, then Backend.
package compute
