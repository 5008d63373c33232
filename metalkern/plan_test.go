package metalkern_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
	"sparkbar/metalkern"
	"sparkbar/resources"
)

var update = flag.Bool("update", false, "write testdata/plan.txt anew")

// TestPlan records forwards of the demo model as the Metal backend would run
// them: one list a forward, at most 12 dispatches a dense layer, every weight
// read once where it lies. The lists are kept in testdata/plan.txt; -update
// writes them anew.
func TestPlan(t *testing.T) {
	r := metalkern.NewRecorder()
	b := metalkern.New(r, metalkern.Options{})
	defer b.Close()
	target, _ := resources.Demo()
	ck, err := checkpoint.OpenBytes("demo", target)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	m, err := arch.Load(ck, b)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if r.Copied*20 > r.Wrapped { // vectors, such as the weights of norms
		t.Errorf("loading made %d bytes of buffers beside %d bytes of weights: something was copied", r.Copied, r.Wrapped)
	}
	c, err := cache.New(b, m.Caches, cache.Options{Type: layout.F16, Positions: 2048, Sequences: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	params, scratch := compute.NewParams(b), compute.NewScratch(b)
	defer params.Close()
	defer scratch.Close()
	q, err := c.NewSeq()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var out strings.Builder
	fmt.Fprintf(&out, "demo model: %d layers, weights of %d bytes are read where they lie\n", m.Layers, r.Wrapped)
	for _, step := range []struct {
		what    string
		rows    int
		prefill bool
	}{{"prefill of 300 rows", 300, true}, {"decode of 1 row", 1, false}, {"verify of 8 rows", 8, false}} {
		scratch.Reset()
		params.Next()
		before := len(r.Lists)
		var p compute.Program
		p.Reset(compute.LabelTarget)
		ids := make([]int32, step.rows)
		parts := []cache.Part{{Seq: q, IDs: ids, Prefill: step.prefill, Verify: step.rows == 8}}
		st, err := c.Plan(&p, params, parts)
		if err != nil {
			t.Fatal(err)
		}
		m.Forward(&arch.Forward{P: &p, S: scratch, Step: st})
		c.Ran(st, parts)
		if err := compute.Run(b, &p, nil); err != nil {
			t.Fatal(err)
		}
		q.Advance(step.rows)
		if n := len(r.Lists) - before; n != 1 {
			t.Fatalf("%s: %d lists", step.what, n)
		}
		l := r.Lists[before]
		if l.Rows != step.rows {
			t.Errorf("%s: %d rows", step.what, l.Rows)
		}
		fmt.Fprintf(&out, "\n%s\n", step.what)
		for i, d := range l.Dispatches {
			mark := " "
			if d.Barrier {
				mark = "|"
			}
			fmt.Fprintf(&out, "%3d %s %-16s %4d x %3d x %2d threadgroups of %3d, weights %6d\n", i, mark, d.Kernel, d.Groups[0], d.Groups[1], d.Groups[2], d.Threads, d.Weights)
		}
		layers := len(l.Dispatches) - 3 // without the embedding, the last norm and the head
		fmt.Fprintf(&out, "one list, %d dispatches, %d barriers, %.1f dispatches a layer, %d bytes of weights\n", len(l.Dispatches), l.Barriers, float64(layers)/float64(m.Layers), l.Weights)
		if layers > 12*m.Layers {
			t.Errorf("%s: %d dispatches for %d layers", step.what, layers, m.Layers)
		}
		if l.Weights > r.Wrapped {
			t.Errorf("%s: %d bytes of weights are read, there are %d", step.what, l.Weights, r.Wrapped)
		}
	}
	const golden = "testdata/plan.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != out.String() {
		t.Errorf("the lists are no longer those of %s:\n%s", golden, out.String())
	}
}
