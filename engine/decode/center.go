package decode

import (
	"math/rand/v2"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// centerRows are read to find the mean of a model's keys.
const centerRows = 256

// Center finds the mean of the keys of each caching layer, on a text of arbitrary
// but always the same tokens, and tells the model: most of what the keys of a head
// have in common does not depend on the text. It is worth it where keys are kept in
// four bits, and must be done before any are.
func Center(b compute.Backend, m *arch.Model) error {
	if m.Centered() {
		return nil
	}
	c, err := cache.New(b, m.Caches, cache.Options{Type: layout.F32, Positions: centerRows, Sequences: 1})
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
	ids := make([]int32, centerRows)
	for i := range ids {
		ids[i] = int32(rng.IntN(m.Vocab))
	}
	if err := t.forward(m, []*share{{seq: q, ids: ids, want: noRows}}, false, nil); err != nil {
		return err
	}
	q.Advance(centerRows)
	means := map[int][]float32{}
	for layer := range m.Caches {
		if mean := q.MeanKeys(layer); mean != nil {
			means[layer] = mean
		}
	}
	return m.CenterKeys(means)
}
