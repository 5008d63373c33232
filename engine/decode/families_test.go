package decode

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/draft"
	"sparkbar/engine/internal/testmodel"
	"sparkbar/engine/layout"
)

// The greedy text of every family, with its layers' memory kept in every type, is
// the same with copies, with the model as its own draft model and with drafts
// that are always wrong; long enough for windows to give up pages on the way.
func TestIdentityOfFamiliesAndCaches(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../testdata/models/*/*/golden.json")
	if err != nil || len(files) < 57 {
		t.Fatal(len(files), err)
	}
	exact, err := cpu.New(cpu.Options{Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exact.Close() })
	const limit = 26
	rolledBack, crossed, quantized8 := 0, 0, 0
	seen := map[string]bool{}
	for i, file := range files {
		dir := filepath.Dir(file)
		family := filepath.Base(filepath.Dir(dir))
		quantized := strings.Contains(filepath.Base(dir), "-")
		if quantized && seen[family] || testmodel.Race && i%9 != 0 || testing.Short() && seen[family] {
			continue // TestIdentityOfFamilies has these, too
		}
		seen[family] = true
		kinds := []Options{{KVType: layout.F32}, {KVType: layout.BF16}, {KVBits: 8, KVGroup: 32}, {KVBits: 4, KVGroup: 32}}
		if testing.Short() || testmodel.Race {
			kinds = []Options{kinds[i%len(kinds)]}
		}
		for _, o := range kinds {
			name := fmt.Sprintf("%s/%s, cache %v %d bits", family, filepath.Base(dir), o.KVType, o.KVBits)
			var text []int32
			wrong := &scripted{}
			runner := func(drafter string, wrap func(draft.Drafter) draft.Drafter) *rig {
				g := open(t, exact, dir, drafter, 0, wrap)
				if o.KVBits > 0 && slices.ContainsFunc(g.model.Caches, func(s compute.CacheSpec) bool {
					return s.Kind != compute.CacheState && (s.KDim%o.KVGroup != 0 || s.VDim%o.KVGroup != 0)
				}) {
					return nil // its tiny heads are not whole groups
				}
				r, err := New(exact, g.model, g.run.drafter, Options{Positions: 512, KVType: o.KVType, KVBits: o.KVBits, KVGroup: o.KVGroup})
				if err != nil {
					t.Fatal(name, err)
				}
				g.run.t.close() // the new runner has the drafter
				g.run = r
				return g
			}
			plain := runner("", func(draft.Drafter) draft.Drafter { return wrong })
			if plain == nil {
				continue
			}
			quantized8 += o.KVBits / 8
			self := runner(dir, nil)
			window := 0
			for _, s := range plain.model.Caches {
				if s.Kind == compute.CacheWindow {
					window = max(window, s.Window)
				}
			}
			// The page border of the window falls into the answer.
			prompt := span(i, compute.PageSize+window-limit/2)
			for k := range prompt {
				prompt[k] = prompt[k%23] // there is something to copy
			}
			if window > 0 {
				crossed++
			}
			j := Job{Prompt: prompt, MaxTokens: limit, Logprobs: -1, NoStore: true, Mode: Baseline}
			want := plain.generate(t, j).Tokens
			text = append(slices.Clone(prompt), want...)
			wrong.next = func(soFar []int32, n int) []int32 {
				d := make([]int32, 0, n)
				for k := range n {
					id := int32(1)
					if at := len(soFar) + k; at < len(text) {
						id = (text[at] + 1 + int32(k)) % int32(plain.model.Vocab)
					}
					d = append(d, id)
				}
				return d
			}
			check := func(how string, g *rig, mode Mode, cap int) Outcome {
				j.Mode, j.Cap, j.LongLookup = mode, cap, 8
				out := g.generate(t, j)
				if !slices.Equal(out.Tokens, want) {
					t.Errorf("%s, %s:\n got %v\nwant %v", name, how, out.Tokens, want)
				}
				rolledBack += out.RolledBack
				return out
			}
			check("copies", plain, Lookup, 0)
			j.Round = func(r Round) {
				if r.Accepted > 0 {
					t.Errorf("%s: a wrong draft was accepted: %+v", name, r)
				}
			}
			check("always wrong", plain, Draft, 5)
			j.Round = nil
			check("its own draft model", self, Draft, 4)
		}
	}
	t.Logf("%d rows rolled back, %d runs across the border of a window, %d with an 8-bit cache", rolledBack, crossed, quantized8)
	if !testmodel.Race && !testing.Short() && (rolledBack < 1000 || crossed < 5 || quantized8 < 2) {
		t.Errorf("%d rows rolled back, %d runs across the border of a window: too few to mean anything", rolledBack, crossed)
	}
}
