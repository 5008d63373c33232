// Package layout says how numbers lie in memory: element types (DType), weight formats (Scheme) and a weight as it is
// stored in a checkpoint (Matrix), with its views and copies. It is the one vocabulary that the checkpoint readers, the
// op set and every backend share, so that a weight travels from a mapped file to a kernel without being copied or
// described twice.
//
// Matrix.Row is the exact float32 meaning of each format: the definition that kernels are judged by, not a fast path.
// Matrix.Quantize is the way back, into MLX's affine format. blocks.go documents the GGUF blocks byte by byte, float.go
// the narrow float types.
//
// Never here: file parsing and the memory that weights lie in (engine/checkpoint hands its allocator over as
// Matrix.Alloc), fast kernels (engine/cpu, metalkern), or anything that allocates device memory (engine/compute). The
// package imports nothing else of Sparkbar.
//
// Read first: Matrix, in matrix.go.
package layout
