package sample

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrLogits reports a row that defines no distribution: it is empty, has no
// finite value, or holds NaN or +Inf.
var ErrLogits = errors.New("sample: logits row has no usable maximum (NaN, +Inf, or nothing finite)")

// Dist is a distribution over token ids: the tokens that survived truncation,
// in ascending id order, with unnormalised weights. Reuse one value; its
// memory grows to the largest row and stays.
type Dist struct {
	ids   []int32 // ascending; unused while dense
	w     []float32
	dense bool // w is indexed by token id
	sum   float64
}

// Len returns the number of tokens that can have probability.
func (d *Dist) Len() int { return len(d.w) }

// Prob returns the probability of a token, 0 when it was cut.
func (d *Dist) Prob(id int32) float64 {
	if d.dense {
		if uint(id) < uint(len(d.w)) {
			return float64(d.w[id]) / d.sum
		}
		return 0
	}
	if i, ok := slices.BinarySearch(d.ids, id); ok {
		return float64(d.w[i]) / d.sum
	}
	return 0
}

// All calls f with every token and its probability, ascending by id, until f
// returns false. (It is an iterator: for id, p := range d.All.)
func (d *Dist) All(f func(id int32, p float64) bool) {
	for i := range d.w {
		if !f(d.id(i), float64(d.w[i])/d.sum) {
			return
		}
	}
}

func (d *Dist) id(i int) int32 {
	if d.dense {
		return int32(i)
	}
	return d.ids[i]
}

// Sample returns the token at u in [0, 1) of the cumulative distribution in
// id order (the inverse CDF). A token of weight 0 is never returned.
func (d *Dist) Sample(u float32) int32 {
	target := float64(u) * d.sum
	cum, last := 0.0, 0
	for i, w := range d.w {
		if w > 0 {
			cum += float64(w)
			last = i
			if cum > target {
				break
			}
		}
	}
	return d.id(last)
}

// SetPoint makes d the certain distribution of one token.
func (d *Dist) SetPoint(id int32) {
	d.reset(1)
	d.ids[0], d.w[0], d.sum = id, 1, 1
}

// SetWeights makes d proportional to weights over ids, which may come in any
// order but must be distinct. It is for drafters whose proposals are not a
// row of logits (a candidate selector, for instance).
func (d *Dist) SetWeights(ids []int32, weights []float32) error {
	if len(ids) != len(weights) || len(ids) == 0 {
		return fmt.Errorf("sample: %d token ids with %d weights", len(ids), len(weights))
	}
	d.reset(len(ids))
	copy(d.ids, ids)
	copy(d.w, weights)
	if err := d.sort(); err != nil {
		return err
	}
	d.sum = 0
	for i, w := range d.w {
		if !(w >= 0) || math.IsInf(float64(w), 0) {
			return fmt.Errorf("sample: weight %v of token %d is not a finite number of at least 0", w, d.ids[i])
		}
		d.sum += float64(w)
	}
	if d.sum == 0 {
		return errors.New("sample: all weights are 0")
	}
	return nil
}

// MapIDs replaces every token id by table[id]: from the ids of a reduced
// draft vocabulary to those of the target. The mapped ids must be distinct.
func (d *Dist) MapIDs(table []int32) error {
	if d.dense {
		d.ids = grow(d.ids, len(d.w))
		for i := range d.ids {
			d.ids[i] = int32(i)
		}
		d.dense = false
	}
	for i, id := range d.ids {
		if uint(id) >= uint(len(table)) {
			return fmt.Errorf("sample: draft token %d is outside the id map of %d entries", id, len(table))
		}
		d.ids[i] = table[id]
	}
	return d.sort()
}

// reset makes d sparse with room for n tokens.
func (d *Dist) reset(n int) {
	d.dense = false
	d.ids, d.w = grow(d.ids, n), grow(d.w, n)
}

// sort restores the id order and refuses duplicates.
func (d *Dist) sort() error {
	if !slices.IsSorted(d.ids) {
		order := make([]int, len(d.ids))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int { return int(d.ids[a]) - int(d.ids[b]) })
		ids, w := slices.Clone(d.ids), slices.Clone(d.w)
		for i, o := range order {
			d.ids[i], d.w[i] = ids[o], w[o]
		}
	}
	for i := 1; i < len(d.ids); i++ {
		if d.ids[i] == d.ids[i-1] {
			return fmt.Errorf("sample: token %d appears twice", d.ids[i])
		}
	}
	return nil
}

// grow returns a slice of length n, reusing s when it is large enough.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
