package arch

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/layout"
)

func exactCPU(t *testing.T) compute.Backend {
	t.Helper()
	b, err := cpu.New(cpu.Options{Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// TestIdentityOfEveryCache checks rollback and ragged batches for every kind of
// cache that a layer can have, kept in every type.
func TestIdentityOfEveryCache(t *testing.T) {
	for name := range kindsOfCache {
		for _, o := range []cache.Options{{Type: layout.BF16}, {Type: layout.F16}, {Bits: 8, Group: 32}, {Bits: 4, Group: 32}} {
			if (underRace || testing.Short()) && o.Type != layout.BF16 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v %d bits", name, o.Type, o.Bits), func(t *testing.T) {
				if o.Bits > 0 && !wholeGroups(t, name, o.Group) {
					return // its tiny heads are not whole groups; TestIdentityOfCacheTypes has one that is
				}
				r := newRig(t, exactCPU(t), "../testdata/models/"+name, o)
				r.rollback(randomIDs(compute.PageSize+12, r.m.Vocab))
				r.ragged()
			})
		}
	}
}

func wholeGroups(t *testing.T, name string, group int) bool {
	r := newRig(t, exactCPU(t), "../testdata/models/"+name, cache.Options{Type: layout.F32})
	return !slices.ContainsFunc(r.m.Caches, func(s compute.CacheSpec) bool {
		return s.Kind != compute.CacheState && (s.KDim%group != 0 || s.VDim%group != 0)
	})
}

// TestWindowsCrossedInARound verifies blocks within which a window gives up its
// first page: what is rejected must not have cost a row that the next one sees.
func TestWindowsCrossedInARound(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/models/*/*/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	b := exactCPU(t)
	windows := 0
	for _, file := range dirs {
		dir := filepath.Dir(file)
		if underRace && windows > 1 {
			break
		}
		t.Run(filepath.Base(filepath.Dir(dir))+"/"+filepath.Base(dir), func(t *testing.T) {
			r := newRig(t, b, dir, cache.Options{Type: layout.F32})
			w := 0
			for _, s := range r.m.Caches {
				if s.Kind == compute.CacheWindow {
					w = s.Window
				}
			}
			if w == 0 {
				return
			}
			windows++
			const width = 7
			border := compute.PageSize + w - 1 // the length at which the first page goes
			ids := randomIDs(border+2*width, r.m.Vocab)
			whole := r.seq()
			want := r.step(whole, ids, len(ids))
			whole.Close()
			for _, prefix := range []int{border - width, border - width + 1, border - 3, border - 1, border} {
				for _, keep := range []int{1, 3, width - 1} {
					for _, next := range []int{1, 4} {
						what := fmt.Sprintf("window %d, %d of %d rows kept at %d, then %d", w, keep, width, prefix, next)
						q := r.seq()
						r.step(q, ids[:prefix], prefix)
						end := prefix + keep
						block := append(append([]int32(nil), ids[prefix:end]...), randomIDs(width-keep, r.m.Vocab)...)
						sameRows(t, what, r.step(q, block, keep)[:keep], want[prefix:end])
						sameRows(t, what+", continued", r.step(q, ids[end:end+next], next), want[end:end+next])
						q.Close()
					}
				}
			}
		})
	}
	if !underRace && windows < 8 {
		t.Errorf("only %d models with windows", windows)
	}
}
