package arch

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/layout"
	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

// backends are those that every golden must pass on.
func backends(t testing.TB) []compute.Backend {
	t.Helper()
	exact, err := cpu.New(cpu.Options{Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exact.Close() })
	return []compute.Backend{compute.NewReference(), exact}
}

// TestGoldensOnMetal runs the goldens on the Metal kernels, emulated.
func TestGoldensOnMetal(t *testing.T) {
	metaltest.Need(t)
	eachCheckpointOn(t, func(t testing.TB) []compute.Backend { return metaltest.Also(t) }, func(t *testing.T, b compute.Backend, dir string) {
		testGolden(t, b, dir)
		prefillGolden(t, b, dir)
	})
}

// prefillGolden reads the prompts as prompts, by the kernels of prefill rows.
func prefillGolden(t *testing.T, b compute.Backend, dir string) {
	g := readGolden(t, dir)
	data := openTensors(t, filepath.Join(dir, "golden.safetensors"))
	r := newRig(t, b, dir, cache.Options{Type: layout.F32})
	for name, p := range g.Prompts {
		q := r.seq()
		all := r.run(share{q: q, ids: p.IDs, keep: len(p.IDs), prefill: true})[0]
		q.Close()
		for i, row := range data.rows(t, name+".logits") {
			near(t, fmt.Sprintf("%s as prefill, logits at %d", name, p.LogitPositions[i]), all[p.LogitPositions[i]], row, g.tolerance())
		}
	}
}

// TestGoldensOnMetalInHalves runs the goldens with activations and caches in half
// and in bfloat. Each op then rounds its results once (the conformance suite holds
// it to that), and what adds up over the layers of a model is allowed to be: 8
// units of rounding of the largest logit, as the root mean square over the rows;
// 24 for models with experts, where a router's near tie in bfloat sends a token
// elsewhere. A token may differ from the recorded one where that decides it.
// Between one another chunks of any size give the same bits, as in float32.
func TestGoldensOnMetalInHalves(t *testing.T) {
	metaltest.Need(t)
	if testing.Short() || underRace {
		t.Skip("the plain run does this: the race detector does not watch the kernels")
	}
	for _, mode := range []struct {
		t    layout.DType
		unit float64
	}{{layout.F16, 0x1p-11}, {layout.BF16, 0x1p-8}} {
		b, _ := metaltest.OpenWith(t, metaltest.Build{}, metaltest.Order{}, metalkern.Options{Activations: mode.t})
		rows, ties, worst, worstIn := 0, 0, 0.0, ""
		eachCheckpointOn(t, func(testing.TB) []compute.Backend { return []compute.Backend{b} }, func(t *testing.T, b compute.Backend, dir string) {
			name := filepath.Base(filepath.Dir(dir)) + "/" + filepath.Base(dir)
			if os.Getenv("SPARKBAR_REQUIRE") != "all" && !kindsOfCache[name] {
				t.Skip("one model of each kind of cache stands for all: `make test` runs all")
			}
			allowed := 8 * mode.unit
			if slices.ContainsFunc([]string{"moe", "mla", "mixtral", "nemotron_h", "qwen3_next"}, func(s string) bool { return strings.Contains(name, s) }) {
				allowed *= 3
			}
			g := readGolden(t, dir)
			data := openTensors(t, filepath.Join(dir, "golden.safetensors"))
			r := newRig(t, b, dir, cache.Options{Type: mode.t})
			for name, p := range g.Prompts {
				if name == "long" {
					continue
				}
				want := data.rows(t, name+".logits")
				one := r.seq()
				all := r.step(one, p.IDs, len(p.IDs))
				one.Close()
				sum, n, largest := 0.0, 0, 0.0
				for i, pos := range p.LogitPositions {
					for j, w := range want[i] {
						d := float64(all[pos][j]) - float64(w)
						sum, n, largest = sum+d*d, n+1, max(largest, math.Abs(float64(w)))
					}
				}
				off := math.Sqrt(sum/float64(n)) / largest
				if !(off <= allowed) {
					t.Errorf("%s: logits are off by %.3g of the largest, allowed is %.3g", name, off, allowed)
				}
				if off > worst {
					worst, worstIn = off, dir
				}
				rows += len(p.ArgmaxAll)
				for i, a := range p.ArgmaxAll {
					if got := argmax(all[i]); got != a {
						ties++
						if margin(all[i]) > 4*allowed*largest {
							t.Errorf("%s: token %d is %d, wants %d", name, i, got, a)
						}
					}
				}
				chunked := r.seq()
				at := 0
				for _, n := range p.ChunkSizes {
					sameRows(t, name+" chunked", r.step(chunked, p.IDs[at:at+n], n), all[at:at+n])
					at += n
				}
				r.greedy(name, chunked, all[len(all)-1], p.Greedy, p.GreedyMargin, 4*allowed*largest)
				chunked.Close()
				single := r.seq()
				for i, id := range p.IDs {
					same(t, name+" token by token", r.step(single, []int32{id}, 1)[0], all[i])
				}
				single.Close()
			}
		})
		t.Logf("%v: %d of %d tokens differ from the recorded ones; logits are off by %.3g of the largest at most, in %s", mode.t, ties, rows, worst, worstIn)
	}
}
