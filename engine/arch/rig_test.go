package arch

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

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
	last   *compute.Step
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
	o.Positions, o.Sequences = 2048, 6
	c, err := cache.New(b, m.Caches, o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, b: b, m: m, c: c, params: compute.NewParams(b), s: compute.NewScratch(b)}
	t.Cleanup(func() {
		if used, _ := c.Pages(); used != 0 || c.Slots() != 0 {
			t.Errorf("%d pages and %d slots are still in use", used, c.Slots())
		}
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

// share is one sequence's part of a step: its rows, how many of them stay, and
// whether prefill kernels may run them.
type share struct {
	q       *cache.Seq
	ids     []int32
	keep    int
	prefill bool
}

// run runs one step and returns the logits of each share's rows.
func (r *rig) run(shares ...share) [][][]float32 {
	r.t.Helper()
	r.s.Reset()
	r.params.Next()
	var p compute.Program
	p.Reset(compute.LabelTarget)
	var parts []cache.Part
	n := 0
	for _, s := range shares {
		parts = append(parts, cache.Part{Seq: s.q, IDs: s.ids, Verify: s.keep < len(s.ids), Prefill: s.prefill})
		n += len(s.ids)
	}
	st, err := r.c.Plan(&p, r.params, parts)
	if err != nil {
		r.t.Fatal(err)
	}
	f := &Forward{P: &p, S: r.s, Step: st}
	if len(r.taps) > 0 {
		if r.fused, err = r.s.F32(n, len(r.taps)*r.m.Hidden); err != nil {
			r.t.Fatal(err)
		}
		f.Taps, f.Fused = r.taps, r.fused
	}
	r.m.Forward(f)
	r.c.Ran(st, parts)
	r.last = st
	if err := compute.Run(r.b, &p, nil); err != nil {
		r.t.Fatal(err)
	}
	var all [][][]float32
	at := 0
	for _, s := range shares {
		s.q.Advance(s.keep)
		rows := make([][]float32, len(s.ids))
		for i := range rows {
			rows[i] = append([]float32(nil), f.Logits.F32(at)...)
			at++
		}
		all = append(all, rows)
	}
	return all
}

// step runs ids on a sequence, commits keep rows, and returns all logits.
func (r *rig) step(q *cache.Seq, ids []int32, keep int) [][]float32 {
	r.t.Helper()
	return r.run(share{q: q, ids: ids, keep: keep})[0]
}

// prompt returns the logits of all rows of a prompt of its own.
func (r *rig) prompt(ids []int32) [][]float32 {
	q := r.seq()
	defer q.Close()
	return r.step(q, ids, len(ids))
}

func (r *rig) seq() *cache.Seq {
	r.t.Helper()
	q, err := r.c.NewSeq()
	if err != nil {
		r.t.Fatal(err)
	}
	return q
}

// states returns what the recurrent layers keep of the sequence that the last
// step ran alone, in the order of the model's caches.
func (r *rig) states() [][]float32 {
	r.t.Helper()
	if err := r.c.Settle(); err != nil {
		r.t.Fatal(err)
	}
	var all [][]float32
	for _, l := range r.last.Layers {
		if l.State.Mem.Given() {
			all = append(all, append([]float32(nil), l.State.Mem.F32(int(l.State.Slots.I32(0)[0]))...))
		}
	}
	return all
}

// kindsOfCache are checkpoints that have every kind of cache between them.
var kindsOfCache = map[string]bool{
	"llama/sliding": true, "gemma4/ple": true, "deepseek_v3/mla": true, "lfm2/dense": true, "qwen3_5/hybrid": true, "nemotron_h/hybrid": true,
}

// eachCheckpoint runs f for every tiny checkpoint on every backend.
func eachCheckpoint(t *testing.T, f func(t *testing.T, b compute.Backend, dir string)) {
	eachCheckpointOn(t, backends, f)
}

func eachCheckpointOn(t *testing.T, backends func(testing.TB) []compute.Backend, f func(t *testing.T, b compute.Backend, dir string)) {
	paths, err := filepath.Glob("../testdata/models/*/*/golden.json")
	if err != nil || len(paths) < 57 {
		t.Fatalf("found %d goldens, %v", len(paths), err)
	}
	seen := map[string]bool{}
	for _, path := range paths {
		dir := filepath.Dir(path)
		family := filepath.Base(filepath.Dir(dir))
		name := family + "/" + filepath.Base(dir)
		if underRace && (strings.Contains(name, "-") || seen[family]) && !kindsOfCache[name] {
			continue
		}
		seen[family] = true
		for _, b := range backends(t) {
			t.Run(name+"/"+b.Name(), func(t *testing.T) { f(t, b, dir) })
		}
	}
}

// tensors is an opened file of tensors.
type tensors struct{ c *checkpoint.Checkpoint }

func openTensors(t *testing.T, path string) tensors {
	t.Helper()
	c, err := checkpoint.Open(path)
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

// flat returns a tensor as one row.
func (g tensors) flat(t *testing.T, name string) []float32 {
	t.Helper()
	var all []float32
	for _, row := range g.rows(t, name) {
		all = append(all, row...)
	}
	return all
}

// ids returns the tensor of token ids.
func (g tensors) ids(t *testing.T) []int32 {
	t.Helper()
	var ids []int32
	for _, x := range g.flat(t, "ids") {
		ids = append(ids, int32(x))
	}
	return ids
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
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
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, wants %d", what, len(got), len(want))
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Errorf("%s: element %d is %v, wants the same bits as %v", what, i, got[i], want[i])
			return
		}
	}
}

func sameRows(t *testing.T, what string, got, want [][]float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d rows, wants %d", what, len(got), len(want))
	}
	for i := range got {
		same(t, what, got[i], want[i])
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
