//go:build !linux && !(darwin && cgo)

package machine

// ReadThermal knows nothing here.
func ReadThermal() Thermal { return Thermal{} }
