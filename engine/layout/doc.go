// Package layout names the ways in which numbers lie in memory: element types
// (DType), weight formats (Scheme) and a weight as it is stored in a checkpoint
// (Matrix). It is the one vocabulary that the checkpoint readers, the op set
// and every backend share, so that a weight travels from a mapped file to a
// kernel without being copied or described twice.
//
// Matrix.Row is the exact float32 meaning of each format: the definition that
// kernels are judged by, not a fast path.
//
// Never here: file parsing (engine/checkpoint), kernels (engine/cpu,
// metalkern), or anything that allocates device memory (engine/compute).
//
// Read first: Matrix.
package layout
