//go:build cgo && unix

package cpu

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"sparkbar/engine/compute"
)

// TestExpertsAreReadOnce: each expert that rows of a step chose is one entry of
// the list that MoELinear works through, with all its rows, so its weights are
// read once; others are not read.
func TestExpertsAreReadOnce(t *testing.T) {
	needKernels(t)
	const experts, out, in, rows, top = 9, 32, 64, 21, 2
	for _, exact := range []bool{false, true} {
		b := open(t, Options{Threads: 2, Exact: exact})
		m := affine4("experts", experts*out, in)
		m.Batch, m.Rows = experts, out
		w, err := b.Load(m)
		if err != nil {
			t.Fatal(err)
		}
		s, params := compute.NewScratch(b), compute.NewParams(b)
		x, _ := s.F32(rows, in)
		y, _ := s.F32(rows*top, out)
		r := rand.New(rand.NewPCG(1, 1))
		ids, chosen := make([]int32, rows*top), map[int32]int{}
		for i := range ids {
			ids[i] = r.Int32N(experts - 3) // the last three are never chosen
			chosen[ids[i]]++
		}
		v, err := params.Ints(rows, ids)
		if err != nil {
			t.Fatal(err)
		}
		var p compute.Program
		p.Add(compute.MoELinear{X: x, IDs: v, W: w, Out: y})
		if err := compute.Run(b, &p, nil); err != nil {
			t.Fatal(err)
		}
		list := unsafe.Slice((*int32)(unsafe.Pointer(&b.(*backend).lower.experts.b.Bytes[0])), 1+2*experts+1)
		used, starts := list[1:1+experts], list[1+experts:]
		if int(list[0]) != len(chosen) {
			t.Errorf("exact %v: %d experts are read, %d were chosen", exact, list[0], len(chosen))
		}
		for i := range int(list[0]) {
			if n := int(starts[i+1] - starts[i]); n != chosen[used[i]] {
				t.Errorf("exact %v: expert %d is read for %d rows, wants %d", exact, used[i], n, chosen[used[i]])
			}
			delete(chosen, used[i])
		}
		if len(chosen) > 0 {
			t.Errorf("exact %v: not read: %v", exact, chosen)
		}
		params.Close()
		s.Close()
		b.Unload(w)
	}
}
