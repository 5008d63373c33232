// Package metaltest runs the Metal kernels on Linux, for tests only: nothing of
// the product imports it.
//
// The .metal sources are compiled by clang as C++ against a small version of
// Metal's standard library (emu/metal_stdlib) and run on an emulated device
// (emu/device.cpp) behind metalkern.Device, so the same host code drives the
// emulation and the GPU. There are two builds. Plain runs fast, in any order of
// lanes, threadgroups and unordered dispatches. Checked sees every load and store
// and refuses what is outside a bound view, threadgroup memory that nobody wrote,
// and threads that meet without a barrier.
//
// It is not a Metal compiler and no GPU: speed, registers and the last bits of
// exp and sin are not Apple's. See emu/metal_stdlib for what the library has.
//
// Never here: anything that the product needs.
//
// Read first: Open.
package metaltest
