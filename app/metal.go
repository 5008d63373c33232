package main

import (
	"fmt"

	"sparkbar/engine/compute"
	"sparkbar/metalkern"
)

// openMetal opens the Metal backend, which runs only when --backend names it: no
// GPU has run these kernels yet, so each start makes them agree with the
// reference backend first.
func openMetal() (compute.Backend, error) {
	d, err := metalkern.Open()
	if err != nil {
		return nil, fmt.Errorf("--backend metal: %w; use --backend cpu", err)
	}
	b := metalkern.New(d, metalkern.Options{})
	if err := metalkern.SelfTest(b); err != nil {
		b.Close()
		return nil, fmt.Errorf("--backend metal: %w; use --backend cpu", err)
	}
	return b, nil
}
