package decode

import (
	"math/rand/v2"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// sampleRows are read to learn what a model's keys look like.
const sampleRows = 256

// TurnHeads has the model turn its heads by the keys of each caching layer for a
// text of arbitrary but always the same tokens: what the keys of a head have in
// common hardly depends on the text. It is worth it where keys are kept in four
// bits, and must be done before any are.
func TurnHeads(b compute.Backend, m *arch.Model) error {
	if m.TurnsHeads() {
		return nil
	}
	c, err := cache.New(b, m.Caches, cache.Options{Type: layout.F32, Positions: sampleRows, Sequences: 1})
	if err != nil {
		return err
	}
	t := target{b: b, model: m, cache: c, params: compute.NewParams(b), s: compute.NewScratch(b)}
	defer t.close()
	q, err := c.NewSeq()
	if err != nil {
		return err
	}
	defer q.Close()
	rng := rand.New(rand.NewPCG(1, 1))
	ids := make([]int32, sampleRows)
	for i := range ids {
		ids[i] = int32(rng.IntN(m.Vocab))
	}
	if err := t.forward(m, []*share{{seq: q, ids: ids, want: noRows}}, false, nil); err != nil {
		return err
	}
	q.Advance(sampleRows)
	return m.TurnHeads(q.Keys)
}
