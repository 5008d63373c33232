// Package packaging builds what users install: the macOS bundle, its signature
// and disk image, and the cross-build of it on Linux.
//
// The parts, each with its own file: the stub SDK to compile and link against
// ([WriteSDK]: own headers and export lists below sdk/, no file of Apple's);
// the patched copy of darwinkit ([PatchDarwinkit]); reading a Mach-O file and
// proving that each symbol it imports exists ([ReadMachO], [MachO.Unresolved]);
// the bundle ([Bundle]) with icons drawn by this package ([Icon]); the ad-hoc
// signature ([Sign], [Verify]); the disk image ([DiskImage]). The command
// packaging/mac strings them together for the Makefile; packaging/double runs
// app/cocoa on Linux.
//
// Never here: code that runs in the product.
//
// Read first: packaging/mac/main.go.
package packaging
