package arch

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/layout"
	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

// counted is the CPU's backend of a split; it counts its programs.
type counted struct {
	compute.Backend
	programs atomic.Int64
}

func (c *counted) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	c.programs.Add(1)
	return c.Backend.Submit(p, stop)
}

// TestGoldensOnMetalWithCPU reads the prompts of the goldens on the Metal kernels,
// emulated, while the CPU makes 40 % of each quantized layer: logits, tokens and the
// answer's tokens are those recorded, and chunks of any size give the same bits.
func TestGoldensOnMetalWithCPU(t *testing.T) {
	metaltest.Need(t)
	if testing.Short() || underRace {
		t.Skip("the plain run does this: the race detector does not watch the kernels")
	}
	c := &counted{}
	split := &metalkern.Split{Tile: 8, Open: func() (_ compute.Backend, err error) {
		c.Backend, err = cpu.New(cpu.Options{Threads: 2, Exact: true})
		return c, err
	}}
	b, _ := metaltest.OpenWith(t, metaltest.Build{}, metaltest.Order{Kind: metaltest.Reverse}, metalkern.Options{Split: split})
	part := 0.4
	b.(interface{ SetPromptSplit(*float64) }).SetPromptSplit(&part)
	models, shared, tokens := 0, 0, 0
	eachCheckpointOn(t, func(testing.TB) []compute.Backend { return []compute.Backend{b} }, func(t *testing.T, b compute.Backend, dir string) {
		before := c.programs.Load()
		g := readGolden(t, dir)
		data := openTensors(t, filepath.Join(dir, "golden.safetensors"))
		r := newRig(t, b, dir, cache.Options{Type: layout.F32})
		tol := g.tolerance()
		for name, p := range g.Prompts {
			read := func(q *cache.Seq, ids []int32) [][]float32 {
				return r.run(share{q: q, ids: ids, keep: len(ids), prefill: true})[0]
			}
			whole := r.seq()
			all := read(whole, p.IDs)
			for i, row := range data.rows(t, name+".logits") {
				near(t, fmt.Sprintf("%s, logits at %d", name, p.LogitPositions[i]), all[p.LogitPositions[i]], row, tol)
			}
			for i, a := range p.ArgmaxAll {
				if got := argmax(all[i]); got != a && margin(all[i]) > 2*tol {
					t.Errorf("%s argmax at %d is %d, wants %d", name, i, got, a)
				}
			}
			tokens += len(p.ArgmaxAll)
			r.greedy(name, whole, all[len(all)-1], p.Greedy, p.GreedyMargin, 2*tol)
			whole.Close()
			chunked := r.seq()
			at := 0
			for _, n := range p.ChunkSizes {
				sameRows(t, name+" chunked", read(chunked, p.IDs[at:at+n]), all[at:at+n])
				at += n
			}
			chunked.Close()
		}
		if models++; c.programs.Load() > before {
			shared++
		}
	})
	t.Logf("%d models, %d of them quantized; the CPU had %d parts; %d tokens", models, shared, c.programs.Load(), tokens)
	if shared == 0 {
		t.Error("nothing was shared")
	}
}
