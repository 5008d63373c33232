//go:build !(darwin && cgo)

package metalkern

// Open returns the GPU of this machine: there is none.
func Open(archive string) (Device, error) { return nil, ErrNoDevice }
