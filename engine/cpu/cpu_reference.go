//go:build !cgo || !unix

package cpu

import (
	"fmt"

	"sparkbar/engine/compute"
)

// New returns the reference backend: this build has no C kernels. Threads and
// Exact mean nothing to it; a forced level is an error.
func New(o Options) (compute.Backend, error) {
	if _, err := o.threads(); err != nil {
		return nil, err
	}
	if o.Level != "" {
		return nil, fmt.Errorf("cpu: level %q is not in this build; build with cgo", o.Level)
	}
	return compute.NewReference(), nil
}

// Levels returns nothing: this build has no kernels.
func Levels() []string { return nil }
