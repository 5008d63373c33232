package arch

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// TestIdentity checks that a row's bits depend on the row and its history only:
// not on what was verified and rolled back before, nor on the other sequences of
// the step.
func TestIdentity(t *testing.T) {
	eachCheckpoint(t, func(t *testing.T, b compute.Backend, dir string) {
		if underRace && !kindsOfCache[filepath.Base(filepath.Dir(dir))+"/"+filepath.Base(dir)] {
			t.Skip("one of each kind of cache is enough under the race detector")
		}
		r := newRig(t, b, dir, cache.Options{Type: layout.F32})
		r.rollback(randomIDs(compute.PageSize+12, r.m.Vocab))
		r.ragged()
	})
}

// TestIdentityOfCacheTypes does the same for every way to keep keys and values.
func TestIdentityOfCacheTypes(t *testing.T) {
	for _, b := range backends(t) {
		for _, o := range []cache.Options{{Type: layout.BF16}, {Type: layout.F16}, {Bits: 8, Group: 64}, {Bits: 4, Group: 32}} {
			if underRace && o.Bits != 4 {
				continue
			}
			t.Run(fmt.Sprintf("%v %d bits/%s", o.Type, o.Bits, b.Name()), func(t *testing.T) {
				r := newRig(t, b, "../testdata/models/qwen3/kvquant", o)
				r.rollback(randomIDs(compute.PageSize+12, r.m.Vocab))
				r.ragged()
			})
		}
	}
}

func randomIDs(n, vocab int) []int32 {
	rng := rand.New(rand.NewPCG(uint64(n), 3))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(rng.IntN(vocab))
	}
	return ids
}

// rollback verifies blocks that end before, at and behind the border of a page,
// keeps some of their rows, goes on with one or several tokens, and compares
// logits and states with a run of only what was kept.
func (r *rig) rollback(ids []int32) {
	r.t.Helper()
	whole := r.seq()
	want := r.step(whole, ids, len(ids))
	whole.Close()
	const width = 6
	for _, try := range []struct{ prefix, keep, next int }{
		{compute.PageSize - 3, 1, 1},         // the block crosses the border, what is kept does not
		{compute.PageSize - 3, 3, 3},         // what is kept ends at the border
		{compute.PageSize - 3, width - 1, 1}, // what is kept crosses it
		{compute.PageSize - width, 4, 3},     // the block ends at the border
		{compute.PageSize, 1, 1},             // the block begins at the border, on a page of its own
		{20, width, 2},                       // nothing to undo
	} {
		name := fmt.Sprintf("%d of %d rows kept at %d, then %d", try.keep, width, try.prefix, try.next)
		q := r.seq()
		r.step(q, ids[:try.prefix], try.prefix)
		end := try.prefix + try.keep
		block := append(append([]int32(nil), ids[try.prefix:end]...), randomIDs(width-try.keep, r.m.Vocab)...)
		sameRows(r.t, name+": verified", r.step(q, block, try.keep)[:try.keep], want[try.prefix:end])
		if q.Len() != end {
			r.t.Errorf("%s: %d positions", name, q.Len())
		}
		sameRows(r.t, name+": continued", r.step(q, ids[end:end+try.next], try.next), want[end:end+try.next])
		states := r.states()
		q.Close()

		q = r.seq()
		r.step(q, ids[:end+try.next], end+try.next)
		sameRows(r.t, name+": states", states, r.states())
		q.Close()
	}
}

// ragged runs sequences of different lengths together: a decode row, a verify
// block with rows to undo, an empty part, a prefill chunk, and then all of them
// again; and compares with each sequence alone.
func (r *rig) ragged() {
	r.t.Helper()
	lengths := []int{compute.PageSize + 1, 9, 30, 3}
	texts := make([][]int32, len(lengths))
	alone := make([][][]float32, len(lengths))
	var seqs []*cache.Seq
	for i, n := range lengths {
		texts[i] = randomIDs(n+20, r.m.Vocab)
		q := r.seq()
		alone[i] = r.step(q, texts[i], len(texts[i]))
		q.Close()
		q = r.seq()
		r.step(q, texts[i][:n], n)
		seqs = append(seqs, q)
	}
	bad := randomIDs(3, r.m.Vocab)
	next := func(i, n int) []int32 { return texts[i][seqs[i].Len():][:n] }
	for round := range 3 {
		var shares []share
		for i := range seqs {
			s := share{q: seqs[i]}
			switch (i + round) % 4 {
			case 0:
				s.ids, s.keep = next(i, 1), 1
			case 1:
				s.ids, s.keep = append(append([]int32(nil), next(i, 2)...), bad...), 2
			case 2:
				s.ids = []int32{}
			case 3:
				s.ids, s.keep = next(i, 5), 5
			}
			shares = append(shares, s)
		}
		for i := range shares { // prefill rows come last
			if len(shares[i].ids) == 5 && shares[i].keep == 5 {
				shares[i].prefill = true
				shares = append(append(shares[:i:i], shares[i+1:]...), shares[i])
				break
			}
		}
		before := map[*cache.Seq]int{}
		for _, q := range seqs {
			before[q] = q.Len()
		}
		all := r.run(shares...)
		for j, s := range shares {
			for i, q := range seqs {
				if q == s.q {
					sameRows(r.t, fmt.Sprintf("round %d, sequence %d beside others", round, i), all[j][:s.keep], alone[i][before[q]:][:s.keep])
				}
			}
		}
	}
	for _, q := range seqs {
		q.Close()
	}
}
