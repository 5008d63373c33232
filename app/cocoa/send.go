//go:build darwin || double

package cocoa

import "github.com/progrium/darwinkit/objc"

// send sends a message. Selectors are written out at each call, so that a test
// can hold them against darwinkit's declarations of the frameworks.
func send[T any](o objc.Handle, selector string, args ...any) T {
	return objc.Call[T](o, objc.Sel(selector), args...)
}

func class(name string) objc.Class { return objc.GetClass(name) }
