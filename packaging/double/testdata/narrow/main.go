// Command narrow calls a method with a one-byte result many times and counts
// the Go objects around the result that were overwritten.
package main

import (
	"fmt"
	"runtime"

	"github.com/progrium/darwinkit/objc"
)

func main() {
	objc.WithAutoreleasePool(func() {
		o, isProxy := objc.NewObject(), objc.Sel("isProxy")
		objc.Call[bool](o, isProxy)
		var keep []*[16]byte
		for i := range 100_000 {
			p := new([16]byte)
			for j := range p {
				p[j] = 0xAA
			}
			if i%2 == 0 {
				keep = append(keep, p)
			}
		}
		runtime.GC()
		runtime.GC()
		for range 150_000 {
			objc.Call[bool](o, isProxy)
		}
		bad := 0
		for _, p := range keep {
			for _, b := range p {
				if b != 0xAA {
					bad++
					break
				}
			}
		}
		fmt.Println(bad)
	})
}
