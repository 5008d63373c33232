package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/layout"
	"sparkbar/engine/machine"
	"sparkbar/metalkern"
)

// openGPU opens the GPU of this machine; tests put an emulated one in its place.
var openGPU = metalkern.Open

// metalOptions reads the flags that are for the Metal backend alone, and returns those
// that ask for something else than what it does by itself.
func metalOptions(v *config) (o metalkern.Options, flags string, err error) {
	var given []string
	switch s := v.GetString("activations"); s {
	case "", "f32": // a command may not have the flag
	case "f16":
		o.Activations = layout.F16
	case "bf16":
		o.Activations = layout.BF16
	default:
		return o, "", fmt.Errorf("--activations must be f32, f16 or bf16, got '%s'", s)
	}
	if o.Activations != 0 {
		given = append(given, "--activations "+v.GetString("activations"))
	}
	switch s := v.GetString("identity"); s {
	case "", "strict":
	case "relaxed":
		o.Relaxed = true
		given = append(given, "--identity relaxed")
	default:
		return o, "", fmt.Errorf("--identity must be strict or relaxed, got '%s'", s)
	}
	return o, strings.Join(given, " "), nil
}

// metalOn opens the Metal backend; where that fails, models run on the CPU. No
// developer of this program has run it on a GPU: each kernel is tried with the sizes of
// the model before it is relied on, once for each machine, system build and version.
func metalOn(v *config, o metalkern.Options, t metalkern.Trials) func() (compute.Backend, error) {
	t.Judge = func() (compute.Backend, error) {
		return cpu.New(cpu.Options{Threads: threads(v), Exact: true})
	}
	chip := machine.ReadChip()
	t.Machine = fmt.Sprintf("%s, %s %s (%s)", chip.Name, chip.OS, chip.OSVersion, chip.OSBuild)
	t.Version = "sparkbar " + version
	archive := ""
	if dir, err := os.UserCacheDir(); err == nil {
		t.Dir = filepath.Join(dir, "sparkbar", "metal")
		if os.MkdirAll(t.Dir, 0o755) == nil {
			archive, _ = metalkern.ArchiveIn(t.Dir, t.Machine+", "+t.Version) // "" = kernels are compiled at each start
		}
	}
	return func() (compute.Backend, error) {
		d, err := openGPU(archive)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", compute.ErrUnfit, err)
		}
		t := t
		t.Machine = d.Name() + ", " + t.Machine
		o := o
		o.Trials = &t
		o.Split = &metalkern.Split{Open: t.Judge, Threads: v.GetInt("threads")}
		return metalkern.New(d, o), nil
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
	c, err := backendOf(v)
	switch {
	case err != nil:
		return nil, err
	case c.name == "cpu":
		return cpu.New(cpu.Options{Threads: threads(v), Exact: true})
	case c.name != "metal":
		return c.open()
	}
	d, err := openGPU("")
	if err != nil {
		return nil, err
	}
	return metalkern.New(d, metalkern.Options{}), nil
}
