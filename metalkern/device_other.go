//go:build !(darwin && cgo)

package metalkern

// Open returns the GPU of this machine: there is none.
func Open() (Device, error) { return nil, ErrNoDevice }
