// Package cpu is the CPU backend: every op of engine/compute as C kernels with
// SIMD, chosen at run time by what the machine can do, on a pool of threads.
//
// A Program is lowered (lower.go) to a flat array of C op structs and run by one
// cgo call (pool.c). Each op is cut into chunks of outputs that any thread may
// take; no sum is ever cut. The kernels are written once over vectors of W
// floats (vec.h) and compiled once per level: "scalar" (plain C); "avx2" (AVX2,
// FMA, F16C), "avxvnni", "avx512" (F, DQ, BW, VL, VNNI), "amx"; "neon", "dotprod",
// "i8mm".
//
// Identity: the bits of a row depend on that row, its history and the level,
// never on the other rows, the slot or the number of threads. Levels may differ
// from each other.
//
// Weights are read where they lie, in the checkpoint's layout. Unless Exact is
// asked for, quantized ones (but MXFP8) are also packed once (packed.h) and meet
// activations rounded to int8 per row and 32 columns (int8.h; not on the scalar
// level).
//
// Where the time goes (SmolLM2-135M with 4-bit weights at 512 positions, one thread,
// AVX2): a token 74 % packed weights, near what one core reads; attention 17 %. A
// prefill of 512: packed weights 72 %, attention 19 %, norms and rounding 4 %. The
// products of 32 columns, 8 outputs and a row are 20 vector instructions for three
// ports, at best 6.7 cycles, and 16 more to unpack once for up to eight rows.
//
// Without cgo, or where this package has no kernels, New returns the pure-Go
// reference backend.
//
// Never here: the meaning of ops (engine/compute), model families, caching.
//
// Read first: Options and New, then linear.h.
package cpu
