package arch

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"sparkbar/engine/cache"
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
		Greedy8        []int32   `json:"greedy_kv8g64"`
		Greedy4        []int32   `json:"greedy_kv4g64"`
	}
	Cache []struct {
		Kind   string
		Arrays int
		Window int `json:"max_size"`
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

func readGolden(t *testing.T, dir string) golden {
	t.Helper()
	var g golden
	if err := json.Unmarshal(readFile(t, filepath.Join(dir, "golden.json")), &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g golden) tolerance() float64 {
	return math.Max(1e-4, 10*math.Max(g.Floor.ULP, g.Floor.Float64))
}

// TestGoldens compares every stored row, hidden state, recurrent state, greedy
// token and rollback of the tiny checkpoints with the reference implementation.
func TestGoldens(t *testing.T) { eachCheckpoint(t, testGolden) }

func testGolden(t *testing.T, b compute.Backend, dir string) {
	g := readGolden(t, dir)
	data := openTensors(t, filepath.Join(dir, "golden.safetensors"))
	tol := g.tolerance()
	r := newRig(t, b, dir, cache.Options{Type: layout.F32})
	checkCaches(t, r.m, g)

	for name, p := range g.Prompts {
		if underRace && name == "long" {
			continue
		}
		want := data.rows(t, name+".logits")
		one := r.seq()
		all := r.step(one, p.IDs, len(p.IDs))
		one.Close()
		if len(want) != len(p.LogitPositions) {
			t.Fatalf("%d rows of logits for %d positions", len(want), len(p.LogitPositions))
		}
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
			sameRows(t, name+" chunked", r.step(chunked, p.IDs[at:at+n], n), all[at:at+n])
			at += n
		}
		chunked.Close()
		if at != len(p.IDs) {
			t.Fatalf("chunks cover %d of %d", at, len(p.IDs))
		}
		single := r.seq()
		for i, id := range p.IDs {
			same(t, name+" token by token", r.step(single, []int32{id}, 1)[0], all[i])
		}
		r.greedy(name, single, all[len(all)-1], p.Greedy, p.GreedyMargin, 2*tol)
		single.Close()
	}

	for i, s := range g.Spec {
		want := data.rows(t, fmt.Sprintf("spec.%d.logits", i))
		ids := g.Prompts[s.Prompt].IDs
		for _, first := range []int{1, len(s.Continue)} {
			q := r.seq()
			r.step(q, ids[:s.Prefix], s.Prefix)
			r.step(q, ids[s.Prefix:s.Prefix+s.VerifyWidth], s.Keep)
			for j, row := range r.step(q, s.Continue[:first], first) {
				near(t, fmt.Sprintf("spec %d row %d, continued by %d", i, j, first), row, want[j], tol)
			}
			q.Close()
		}
	}

	if data.has("debug.hidden") {
		checkHidden(t, r, g.Prompts["debug"].IDs, data, dir, tol)
	}

	for _, bits := range []int{8, 4} {
		key := fmt.Sprintf(".logits.kv%dg64", bits)
		for name, p := range g.Prompts {
			if !data.has(name + key) {
				continue
			}
			kv := newRig(t, b, dir, cache.Options{Bits: bits, Group: 64})
			q := kv.seq()
			all := kv.step(q, p.IDs, len(p.IDs))
			for i, row := range data.rows(t, name+key) {
				near(t, fmt.Sprintf("%s with %d-bit cache, row %d", name, bits, i), all[p.LogitPositions[i]], row, 20*tol)
			}
			want := p.Greedy8
			if bits == 4 {
				want = p.Greedy4
			}
			kv.greedy(fmt.Sprintf("%s with %d-bit cache,", name, bits), q, all[len(all)-1], want, nil, 40*tol)
			q.Close()
		}
	}
}

// greedy continues from a row of logits and compares the tokens, up to the
// first one that rounding may decide: where the recorded margin, or without one
// our own, is at most doubt.
func (r *rig) greedy(name string, q *cache.Seq, row []float32, want []int32, margins []float64, doubt float64) {
	r.t.Helper()
	if len(want) == 0 {
		r.t.Errorf("%s greedy tokens are not recorded", name)
	}
	for i, id := range want {
		if got := argmax(row); got != id {
			m := margin(row)
			if margins != nil {
				m = margins[i]
			}
			if m > doubt {
				r.t.Errorf("%s greedy token %d is %d, wants %d", name, i, got, id)
			}
			return
		}
		row = r.step(q, []int32{id}, 1)[0]
	}
}

// checkCaches compares what the layers keep with the reference's cache list.
func checkCaches(t *testing.T, m *Model, g golden) {
	t.Helper()
	var got []string
	for i := 0; i < len(m.Caches); i++ {
		switch s := m.Caches[i]; s.Kind {
		case compute.CacheFull:
			got = append(got, "KVCache")
		case compute.CacheWindow:
			got = append(got, fmt.Sprintf("RotatingKVCache %d", s.Window))
		case compute.CacheState:
			n := 1
			if i+1 < len(m.Caches) && m.Caches[i+1].Kind == compute.CacheState && m.Caches[i+1].Log != s.Log {
				n, i = 2, i+1
			}
			got = append(got, fmt.Sprintf("ArraysCache %d", n))
		}
	}
	var want []string
	for _, c := range g.Cache {
		switch c.Kind {
		case "RotatingKVCache":
			c.Kind = fmt.Sprintf("%s %d", c.Kind, c.Window)
		case "ArraysCache":
			c.Kind = fmt.Sprintf("%s %d", c.Kind, c.Arrays)
		}
		want = append(want, c.Kind)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("caches are %v, wants %v", got, want)
	}
}

// checkHidden compares the output of every layer and the state that recurrent
// layers keep after the prompt.
func checkHidden(t *testing.T, r *rig, ids []int32, data tensors, dir string, tol float64) {
	t.Helper()
	hidden := data.rows(t, "debug.hidden")
	if len(hidden) != (r.m.Layers+1)*len(ids) {
		t.Fatalf("%d rows of hidden states for %d layers", len(hidden), r.m.Layers)
	}
	if filepath.Base(dir) == "looped" {
		// Stored is what the first loop gives before the norm between loops, a tap gives it after.
		model := openTensors(t, filepath.Join(dir, "model.safetensors"))
		w := model.flat(t, "model.norm.weight")
		for _, row := range hidden[r.m.Layers/2*len(ids):][:len(ids)] {
			var sum float64
			for _, v := range row {
				sum += float64(v) * float64(v)
			}
			for i := range row {
				row[i] *= w[i] * float32(1/math.Sqrt(sum/float64(len(row))+1e-5))
			}
		}
	}
	for l := range r.m.Layers {
		r.taps = append(r.taps, l)
	}
	defer func() { r.taps = nil }()
	q := r.seq()
	defer q.Close()
	r.step(q, ids, len(ids))
	for l := range r.m.Layers {
		for i := range ids {
			got := r.fused.F32(i)[l*r.m.Hidden : (l+1)*r.m.Hidden]
			near(t, fmt.Sprintf("hidden after layer %d row %d", l, i), got, hidden[(l+1)*len(ids)+i], tol)
		}
	}
	states := r.states()
	for i, at := 0, 0; at < len(states); i++ {
		for j := 0; data.has(fmt.Sprintf("debug.state.%d.%d", i, j)); j++ {
			near(t, fmt.Sprintf("state %d.%d", i, j), states[at], data.flat(t, fmt.Sprintf("debug.state.%d.%d", i, j)), tol)
			at++
		}
		if i > len(r.m.Caches) {
			t.Fatalf("%d states are not recorded", len(states)-at)
		}
	}
}
