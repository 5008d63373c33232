package main

import (
	"fmt"
	"os"
	"path/filepath"

	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/machine"
	"sparkbar/metalkern"
)

// openGPU opens the GPU of this machine; tests put an emulated one in its place.
var openGPU = metalkern.Open

// metalOn opens the Metal backend. No developer of this program has run it on a
// GPU: each kernel is tried with the sizes of the model before it is relied on,
// once for each machine, system build and version.
func metalOn(v *config, o metalkern.Trials) func() (compute.Backend, error) {
	o.Judge = func() (compute.Backend, error) {
		return cpu.New(cpu.Options{Threads: v.GetInt("threads"), Exact: true})
	}
	chip := machine.ReadChip()
	o.Machine = fmt.Sprintf("%s, %s %s (%s), sparkbar %s", chip.Name, chip.OS, chip.OSVersion, chip.OSBuild, version)
	archive := ""
	if dir, err := os.UserCacheDir(); err == nil {
		o.Dir = filepath.Join(dir, "sparkbar", "metal")
		if os.MkdirAll(o.Dir, 0o755) == nil {
			archive, _ = metalkern.ArchiveIn(o.Dir, o.Machine) // "" = kernels are compiled at each start
		}
	}
	return func() (compute.Backend, error) {
		d, err := openGPU(archive)
		if err != nil {
			return nil, err
		}
		o := o
		o.Machine = d.Name() + ", " + o.Machine
		return metalkern.New(d, metalkern.Options{Trials: &o}), nil
	}
}

// hasGPU reports whether there is a GPU that the Metal backend can open.
func hasGPU() error {
	d, err := openGPU("")
	if err != nil {
		return err
	}
	return d.Close()
}

// drilled opens a backend like the one that models run on, for the drills: they
// know nothing of the rounding of activations, and need no trials.
func drilled(v *config) (compute.Backend, error) {
	open, _, err := backendOf(v)
	if err != nil {
		return nil, err
	}
	b, err := open()
	if err != nil || b.Name() == "reference" {
		return b, err
	}
	metal := b.Name() == "metal"
	if err := b.Close(); err != nil {
		return nil, err
	}
	if !metal {
		return cpu.New(cpu.Options{Threads: v.GetInt("threads"), Exact: true})
	}
	d, err := openGPU("")
	if err != nil {
		return nil, err
	}
	return metalkern.New(d, metalkern.Options{}), nil
}
