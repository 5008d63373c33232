//go:build !(linux && amd64 && cgo)

package metaltest

import (
	"errors"

	"sparkbar/metalkern"
)

const emulates = false

// Device is an emulated GPU; there is none here.
type Device struct{ metalkern.Device }

// NewDevice fails here.
func NewDevice([]metalkern.Source, Build, Order) (*Device, error) {
	return nil, errors.New("the Metal emulation runs on Linux on x86-64, with cgo")
}

// Uses is empty here.
func (*Device) Uses() map[string]int { return nil }
