package metalkern_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sparkbar/engine/compute/conformance"
	"sparkbar/engine/layout"
	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

// options: prefill rows go through the matrix units, which sum in another order.
var options = conformance.Options{RelaxedPrefill: true}

// The tests of the whole suite run side by side, the longest first: each has a
// library of kernels to itself.

// TestConformanceChecked runs everything where every load and store is watched,
// and what Metal leaves open is shuffled.
func TestConformanceChecked(t *testing.T) {
	everything(t)
	t.Parallel()
	b, _ := metaltest.Open(t, metaltest.Build{Checked: true}, metaltest.Order{Kind: metaltest.Shuffled, Seed: 1})
	conformance.Run(t, "checked", b, options)
}

// TestConformance runs the suite with activations in float32, and with all asked
// for in halves too: there every result may be off by what float32 may be, and by
// one rounding to the half, because kernels work in float32 and round when they
// store (docs/metal.md says what that is for each op).
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("the plain run does this: the race detector does not watch the kernels")
	}
	t.Parallel()
	modes := []layout.DType{layout.F32}
	if os.Getenv("SPARKBAR_REQUIRE") == "all" {
		modes = append(modes, layout.F16, layout.BF16)
	}
	for _, mode := range modes {
		b, dev := metaltest.OpenWith(t, metaltest.Build{}, metaltest.Order{}, metalkern.Options{Activations: mode})
		conformance.Run(t, mode.String(), b, options)
		if !t.Failed() && !strings.Contains(os.Args[len(os.Args)-1], "/") {
			coverage(t, dev, mode)
		}
	}
}

// TestConformanceFused is TestConformance of the ops with sums, where the
// compiler may fuse products and sums as it likes: rows stay equal to the bit.
func TestConformanceFused(t *testing.T) {
	everything(t)
	t.Parallel()
	b, _ := metaltest.Open(t, metaltest.Build{Fuse: true}, metaltest.Order{Kind: metaltest.Reverse})
	conformance.Run(t, "fused", b, options)
}

// everything skips a test that takes minutes unless all is asked for.
func everything(t *testing.T) {
	t.Helper()
	if testing.Short() || os.Getenv("SPARKBAR_REQUIRE") != "all" {
		t.Skip("takes minutes: `make test` runs it; TestDrills is the short form")
	}
}

// variantName takes apart what metaltest.Device.Uses says.
var variantName = regexp.MustCompile(`(\d+)=(\d+)`)

// ids are the kernels that touch no activations.
var ids = []string{"map_ids"}

// coverage lists how often each kernel ran with each type of activations and each
// way in which weights or caches are stored, and wants every one of them to have
// run.
func coverage(t *testing.T, dev *metaltest.Device, mode layout.DType) {
	counts := map[string]int{}
	for use, n := range dev.Uses() {
		kernel, _, _ := strings.Cut(use, " ")
		var c [16]uint64
		for _, m := range variantName.FindAllStringSubmatch(use, -1) {
			i, _ := strconv.Atoi(m[1])
			c[i], _ = strconv.ParseUint(m[2], 10, 32)
		}
		types := layout.F32
		for i := range 16 {
			if k := c[0] >> (2 * i) & 3; k > 0 {
				types = []layout.DType{0, layout.F16, layout.BF16}[k]
			}
		}
		kernel += " " + types.String()
		if slices.Contains(ids, strings.Fields(kernel)[0]) {
			kernel = strings.Fields(kernel)[0] + " (ids only)"
		}
		key := kernel
		switch strings.Fields(kernel)[0] {
		case "linear_rows", "linear_tiles", "embed", "pair_select":
			key += " " + stored(layout.Scheme(c[1]), int(c[2]), int(c[3]), layout.DType(c[4]))
		case "attention", "attention_merge", "attention_tiles", "kv_write":
			if c[2] > 0 {
				c[1] = 0 // the type says nothing
			}
			key += fmt.Sprintf(" %v, %d bits by %d", layout.DType(c[1]), c[2], c[3])
		}
		counts[key] += n
		if strings.HasPrefix(kernel, "linear_rows") {
			counts[fmt.Sprintf("%s with tiles of %d", kernel, c[9])] += n
			counts[fmt.Sprintf("%s in mode %d", kernel, c[5])] += n
		}
	}
	var want []string
	for s := layout.Dense; s <= layout.GGUFMXFP4; s++ {
		for _, d := range []layout.DType{layout.F32, layout.F16, layout.BF16} {
			switch {
			case s == layout.Dense:
				want = append(want, stored(s, 0, 1, d))
			case s == layout.Affine:
				for _, bits := range []int{1, 2, 3, 4, 5, 6, 8} {
					for _, g := range []int{32, 64, 128} {
						want = append(want, stored(s, bits, g, d))
					}
				}
			case d == layout.F32:
				want = append(want, stored(s, s.CodeBits(), max(s.BlockSize(), map[layout.Scheme]int{layout.MXFP4: 32, layout.MXFP8: 32, layout.NVFP4: 16}[s]), 0))
			}
		}
	}
	need := func(key string) {
		if counts[key] == 0 {
			t.Errorf("%s never ran", key)
		}
	}
	for _, w := range want {
		for _, k := range []string{"linear_rows", "linear_tiles", "embed"} {
			need(fmt.Sprintf("%s %v %s", k, mode, w))
		}
	}
	for _, k := range []string{"attention", "attention_tiles", "kv_write"} {
		for d := layout.F32; d <= layout.BF16; d++ {
			need(fmt.Sprintf("%s %v %v, 0 bits by 1", k, mode, d))
		}
		for _, bits := range []int{4, 8} {
			for _, g := range []int{32, 64, 128} {
				need(fmt.Sprintf("%s %v %v, %d bits by %d", k, mode, layout.DType(0), bits, g))
			}
		}
	}
	for _, n := range []int{1, 2, 4, 8, 16} {
		need(fmt.Sprintf("linear_rows %v with tiles of %d", mode, n))
	}
	for m := range 3 {
		need(fmt.Sprintf("linear_rows %v in mode %d", mode, m))
	}
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sources {
		for _, k := range s.Kernels {
			types := mode.String()
			if slices.Contains(ids, k) {
				types = "(ids"
			}
			if !slices.ContainsFunc(keys(counts), func(key string) bool { return strings.HasPrefix(key, k+" "+types) && counts[key] > 0 }) {
				t.Errorf("kernel %s never ran with activations in %v", k, mode)
			}
		}
	}
	var lines []string
	for _, k := range keys(counts) {
		lines = append(lines, fmt.Sprintf("%7d %s", counts[k], k))
	}
	t.Logf("activations in %v: dispatches of each kernel, type and layout:\n%s", mode, strings.Join(lines, "\n"))
}

func stored(s layout.Scheme, bits, group int, d layout.DType) string {
	return fmt.Sprintf("%v %v, %d bits by %d", s, d, bits, group)
}

func keys(m map[string]int) []string {
	var k []string
	for key := range m {
		k = append(k, key)
	}
	slices.Sort(k)
	return k
}
