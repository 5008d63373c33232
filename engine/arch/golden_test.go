package arch

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// golden is a golden.json of ../testdata/models, written by the reference
// implementation (see the README there).
type golden struct {
	Prompts map[string]struct {
		IDs            []int32 `json:"ids"`
		LogitPositions []int   `json:"logit_positions"`
		ChunkSizes     []int   `json:"chunk_sizes"`
		Greedy         []int32
		GreedyMargin   []float64 `json:"greedy_margin"`
		ArgmaxAll      []int32   `json:"argmax_all"`
	}
	Spec []struct {
		Prompt      string
		Prefix      int
		VerifyWidth int `json:"verify_width"`
		Keep        int
		Continue    []int32
	}
	Floor struct {
		ULP     float64 `json:"ulp"`
		Float64 float64 `json:"float64"`
	} `json:"float32_rounding_max_abs"`
}

// rig is a model with a cache, able to run steps.
type rig struct {
	t      *testing.T
	b      compute.Backend
	m      *Model
	c      *cache.Cache
	params *compute.Params
	s      *compute.Scratch
	taps   []int
	fused  compute.View
}

func newRig(t *testing.T, b compute.Backend, dir string, o cache.Options) *rig {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Load(ck, b)
	if err != nil {
		t.Fatal(err)
	}
	o.Positions, o.Sequences = 1024, 4
	c, err := cache.New(b, m.Caches, o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, b: b, m: m, c: c, params: compute.NewParams(b), s: compute.NewScratch(b)}
	t.Cleanup(func() {
		r.s.Close()
		r.params.Close()
		c.Close()
		m.Close()
		if err := ck.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// step runs ids on a sequence, commits keep rows, and returns all logits.
func (r *rig) step(q *cache.Seq, ids []int32, keep int) [][]float32 {
	r.t.Helper()
	r.s.Reset()
	r.params.Next()
	var p compute.Program
	p.Reset(compute.LabelTarget)
	parts := []cache.Part{{Seq: q, IDs: ids, Verify: keep < len(ids)}}
	st, err := r.c.Plan(&p, r.params, parts)
	if err != nil {
		r.t.Fatal(err)
	}
	f := &Forward{P: &p, S: r.s, Step: st}
	if len(r.taps) > 0 {
		if r.fused, err = r.s.F32(len(ids), len(r.taps)*r.m.Hidden); err != nil {
			r.t.Fatal(err)
		}
		f.Taps, f.Fused = r.taps, r.fused
	}
	r.m.Forward(f)
	r.c.Ran(st, parts)
	if err := compute.Run(r.b, &p, nil); err != nil {
		r.t.Fatal(err)
	}
	q.Advance(keep)
	rows := make([][]float32, len(ids))
	for i := range rows {
		rows[i] = append([]float32(nil), f.Logits.F32(i)...)
	}
	return rows
}

func (r *rig) seq() *cache.Seq {
	r.t.Helper()
	q, err := r.c.NewSeq()
	if err != nil {
		r.t.Fatal(err)
	}
	return q
}

// TestGoldens compares every stored row, hidden state, greedy token and
// rollback of the tiny checkpoints with the reference implementation.
func TestGoldens(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/models/*/*/golden.json")
	if err != nil || len(dirs) < 10 {
		t.Fatalf("found %d goldens, %v", len(dirs), err)
	}
	for _, path := range dirs {
		dir := filepath.Dir(path)
		name := filepath.Base(filepath.Dir(dir)) + "/" + filepath.Base(dir)
		for _, b := range backends(t) {
			t.Run(name+"/"+b.Name(), func(t *testing.T) { testGolden(t, b, dir) })
		}
	}
}

func testGolden(t *testing.T, b compute.Backend, dir string) {
	var g golden
	text, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	data := openGolden(t, dir)
	tol := math.Max(1e-4, 10*math.Max(g.Floor.ULP, g.Floor.Float64))
	r := newRig(t, b, dir, cache.Options{Type: layout.F32})

	for name, p := range g.Prompts {
		want := data.rows(t, name+".logits")
		one := r.seq()
		all := r.step(one, p.IDs, len(p.IDs))
		one.Close()
		for i, pos := range p.LogitPositions {
			near(t, fmt.Sprintf("%s logits at %d", name, pos), all[pos], want[i], tol)
		}
		for i, a := range p.ArgmaxAll {
			if got := argmax(all[i]); got != a && margin(all[i]) > 2*tol {
				t.Errorf("%s argmax at %d is %d, wants %d", name, i, got, a)
			}
		}
		// The same rows in chunks and one by one have the same bits.
		chunked := r.seq()
		at := 0
		for _, n := range p.ChunkSizes {
			for i, row := range r.step(chunked, p.IDs[at:at+n], n) {
				same(t, name+" chunked", row, all[at+i])
			}
			at += n
		}
		if at != len(p.IDs) {
			t.Fatalf("chunks cover %d of %d", at, len(p.IDs))
		}
		single := r.seq()
		var row []float32
		for i, id := range p.IDs {
			row = r.step(single, []int32{id}, 1)[0]
			same(t, name+" token by token", row, all[i])
		}
		for i, id := range p.Greedy {
			got := argmax(row)
			if got != id {
				if p.GreedyMargin[i] > 2*tol {
					t.Errorf("%s greedy token %d is %d, wants %d", name, i, got, id)
				}
				break
			}
			row = r.step(single, []int32{id}, 1)[0]
		}
		chunked.Close()
		single.Close()
	}

	for i, s := range g.Spec {
		want := data.rows(t, fmt.Sprintf("spec.%d.logits", i))
		ids := g.Prompts[s.Prompt].IDs
		for _, first := range []int{1, len(s.Continue)} {
			q := r.seq()
			r.step(q, ids[:s.Prefix], s.Prefix)
			rows := r.step(q, ids[s.Prefix:s.Prefix+s.VerifyWidth], s.Keep)[:s.Keep]
			rows = append(rows, r.step(q, s.Continue[:first], first)...)
			// Stored are the rows of the kept tokens and of the continuation, or the last of them.
			off := s.Keep + len(s.Continue) - len(want)
			for j := range rows {
				if j >= off {
					near(t, fmt.Sprintf("spec %d row %d, continued by %d", i, j, first), rows[j], want[j-off], tol)
				}
			}
			q.Close()
		}
	}

	if data.has("debug.hidden") {
		ids := g.Prompts["debug"].IDs
		r.taps = nil
		for i := range r.m.Layers {
			r.taps = append(r.taps, i)
		}
		q := r.seq()
		r.step(q, ids, len(ids))
		hidden := data.rows(t, "debug.hidden")
		for l := range r.m.Layers {
			for i := range ids {
				got := r.fused.F32(i)[l*r.m.Hidden : (l+1)*r.m.Hidden]
				near(t, fmt.Sprintf("hidden after layer %d row %d", l, i), got, hidden[(l+1)*len(ids)+i], tol)
			}
		}
		r.taps = nil
		q.Close()
	}

	for _, bits := range []int{8, 4} {
		key := fmt.Sprintf(".logits.kv%dg64", bits)
		for name, p := range g.Prompts {
			if !data.has(name + key) {
				continue
			}
			q8 := newRig(t, b, dir, cache.Options{Bits: bits, Group: 64})
			q := q8.seq()
			all := q8.step(q, p.IDs, len(p.IDs))
			for i, row := range data.rows(t, name+key) {
				near(t, fmt.Sprintf("%s with %d-bit cache, row %d", name, bits, i), all[p.LogitPositions[i]], row, 20*tol)
			}
		}
	}
	if used, _ := r.c.Pages(); used != 0 {
		t.Errorf("%d pages are still in use", used)
	}
}

// tensors is an opened golden.safetensors.
type tensors struct{ c *checkpoint.Checkpoint }

func openGolden(t *testing.T, dir string) tensors {
	t.Helper()
	c, err := checkpoint.Open(filepath.Join(dir, "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return tensors{c}
}

func (g tensors) has(name string) bool { return g.c.Has(name) }

// rows returns a tensor as rows of its last axis.
func (g tensors) rows(t *testing.T, name string) [][]float32 {
	t.Helper()
	x, err := g.c.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	v, err := x.Float32()
	if err != nil {
		t.Fatal(err)
	}
	w := x.Shape[len(x.Shape)-1]
	var rows [][]float32
	for ; len(v) >= w; v = v[w:] {
		rows = append(rows, v[:w])
	}
	return rows
}

func near(t *testing.T, what string, got, want []float32, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, wants %d", what, len(got), len(want))
	}
	worst, at := 0.0, 0
	for i := range got {
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= worst) {
			worst, at = d, i
		}
	}
	if !(worst <= tol) {
		t.Errorf("%s: element %d is %v, wants %v (off by %.2g, allowed %.2g)", what, at, got[at], want[at], worst, tol)
	}
}

func same(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Errorf("%s: element %d is %v, wants the same bits as %v", what, i, got[i], want[i])
			return
		}
	}
}

func argmax(row []float32) int32 {
	best := 0
	for i, v := range row {
		if v > row[best] {
			best = i
		}
	}
	return int32(best)
}

func margin(row []float32) float64 {
	a := argmax(row)
	second := math.Inf(-1)
	for i, v := range row {
		if int32(i) != a {
			second = math.Max(second, float64(v))
		}
	}
	return float64(row[a]) - second
}
