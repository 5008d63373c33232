package metalkern

import (
	"slices"

	"sparkbar/engine/compute"
)

// Prefer makes the variant of that name the default of a kernel, until restore.
func Prefer(kernel, name string) (restore func()) {
	old := variants[kernel]
	i := slices.IndexFunc(old, func(v way) bool { return v.Name == name })
	variants[kernel] = append([]way{old[i]}, slices.Delete(slices.Clone(old), i, i+1)...)
	return func() { variants[kernel] = old }
}

// Variants lists the names of a kernel's variants, the default first.
func Variants(kernel string) (names []string) {
	for _, v := range variants[kernel] {
		names = append(names, v.Name)
	}
	return names
}

// VariedKernels lists the kernels that have variants.
func VariedKernels() (kernels []string) {
	for k := range variants {
		kernels = append(kernels, k)
	}
	slices.Sort(kernels)
	return kernels
}

// Slow makes a backend take its device for so slow that every program is cut into
// several lists.
func Slow(b compute.Backend) { b.(*backend).pace.perWork = 1 }
