// Package metalkern is the Metal backend of Apple silicon: .metal kernels, a
// thin Objective-C bridge, and the emulation by which both are tested on
// machines without a GPU. It implements compute.Backend.
//
// What stands today is this page: until the kernels are here, every machine runs
// engine/cpu.
//
// Never here: model families, caching policy, anything that the CPU backend and
// this one share (engine/compute).
//
// Read first: engine/compute.Backend, the contract to fulfil.
package metalkern
