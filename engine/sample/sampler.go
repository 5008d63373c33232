package sample

import (
	"math"
	"slices"
)

// Sampler turns rows of logits into distributions and tokens by one fixed
// rule. The filters work on untempered log-probabilities, in mlx-lm's order:
// top_p, min_p, XTC, top_k; temperature scales last. Each filter sees what
// the previous one left; nothing is renormalised in between. Log-probabilities
// differ from logits by a constant per row, so everything here is computed on
// logit − maximum.
type Sampler struct {
	p    Params
	d    Dist      // of Next
	z    []float32 // logit − maximum, per vocabulary entry
	w    []float32 // exp(z)
	sel  selector
	invT float32
}

// NewSampler returns a sampler for validated parameters.
func NewSampler(p Params) *Sampler {
	s := &Sampler{p: p}
	if p.Temperature > 0 {
		s.invT = float32(1 / p.Temperature)
	}
	return s
}

// Greedy reports whether every distribution of the sampler is one certain
// token: temperature 0, or too small for float32.
func (s *Sampler) Greedy() bool { return s.invT == 0 || math.IsInf(float64(s.invT), 0) }

// Next draws the next token from a row of logits (after penalties). The
// stream is read once for XTC when that is on, then once for the draw; greedy
// decoding does not touch it.
func (s *Sampler) Next(row []float32, rng Source) (int32, error) {
	if err := s.Dist(&s.d, row, rng); err != nil {
		return 0, err
	}
	if s.Greedy() {
		return s.d.id(0), nil
	}
	return rng.Draw(&s.d), nil
}

// Dist computes the distribution the next token of row is drawn from. The
// row is not changed. rng decides whether XTC applies and is otherwise not
// read. The error is [ErrLogits].
func (s *Sampler) Dist(d *Dist, row []float32, rng Source) error {
	maxLogit := float32(math.Inf(-1))
	for _, x := range row {
		if x > maxLogit {
			maxLogit = x
		} else if x != x {
			return ErrLogits
		}
	}
	if math.IsInf(float64(maxLogit), 0) {
		return ErrLogits
	}
	if s.Greedy() {
		d.SetPoint(Greedy(row))
		return nil
	}

	p := &s.p
	topP, xtc := p.TopP > 0 && p.TopP < 1, p.XTCProbability > 0
	if !topP && p.MinP == 0 && !xtc && (p.TopK <= 0 || p.TopK >= len(row)) {
		d.dense = true
		d.w = grow(d.w, len(row))
		for i, x := range row {
			d.w[i] = x - maxLogit
		}
		d.temper(s.invT)
		return nil
	}

	s.z = grow(s.z, len(row))
	for i, x := range row {
		s.z[i] = x - maxLogit
	}
	lo := float32(math.Inf(-1))
	if topP {
		s.w = grow(s.w, len(row))
		total := expInto(s.w, s.z, 1, 0)
		lo = s.sel.smallestKept(s.z, s.w, p.TopP*total)
	}
	d.keepAtLeast(s.z, max(lo, float32(math.Log(p.MinP)))) // log 0 = −Inf: off
	if p.MinP > 0 && d.Len() < p.MinTokensToKeep {
		d.keepAtLeast(s.z, lo)
		s.keepTop(d, p.MinTokensToKeep)
	}
	if xtc && !(float64(rng.Uniform()) > p.XTCProbability) {
		s.xtc(d)
	}
	if p.TopK > 0 {
		s.keepTop(d, p.TopK)
	}
	d.temper(s.invT)
	return nil
}

// keepAtLeast makes d the entries of z from lo on. −Inf is never among them.
func (d *Dist) keepAtLeast(z []float32, lo float32) {
	lo = max(lo, -math.MaxFloat32)
	d.reset(len(z))
	n := 0
	for i, v := range z {
		if v >= lo {
			d.ids[n], d.w[n] = int32(i), v
			n++
		}
	}
	d.ids, d.w = d.ids[:n], d.w[:n]
}

// keepTop keeps the k largest entries of d; of equals at the edge, the lowest
// ids.
func (s *Sampler) keepTop(d *Dist, k int) {
	if k >= len(d.w) {
		return
	}
	lo := s.sel.smallestKept(d.w, nil, float64(k))
	ties := k
	for _, z := range d.w {
		if z > lo {
			ties--
		}
	}
	d.filter(func(id int32, z float32) bool {
		if z == lo {
			ties--
			return ties >= 0
		}
		return z > lo
	})
}

// xtc ("exclude top choices") removes every token that is more likely than
// the least likely token above the threshold, except the special ones.
func (s *Sampler) xtc(d *Dist) {
	s.w = grow(s.w, len(d.w))
	total := expInto(s.w, d.w, 1, 0)
	bound := float32(s.p.XTCThreshold * total)
	edge := float32(math.Inf(1))
	for i, w := range s.w {
		if w > bound && d.w[i] < edge {
			edge = d.w[i]
		}
	}
	d.filter(func(id int32, z float32) bool {
		return z <= edge || slices.Contains(s.p.XTCSpecialTokens, id)
	})
}

// filter keeps the entries that keep accepts, in order.
func (d *Dist) filter(keep func(id int32, z float32) bool) {
	n := 0
	for i, z := range d.w {
		if id := d.ids[i]; keep(id, z) {
			d.ids[n], d.w[n] = id, z
			n++
		}
	}
	d.ids, d.w = d.ids[:n], d.w[:n]
}

// temper turns log-weights in d.w into weights exp(z/T), scaled so that the
// largest is 1.
func (d *Dist) temper(invT float32) {
	top := float32(math.Inf(-1))
	for _, z := range d.w {
		top = max(top, z)
	}
	d.sum = expInto(d.w, d.w, invT, top*invT)
}

// Greedy returns the index of the largest value, the lowest of equals. NaN
// never wins; a row without any number gives 0.
func Greedy(row []float32) int32 {
	best, at := float32(math.Inf(-1)), 0
	for i, x := range row {
		if x > best {
			best, at = x, i
		}
	}
	return int32(at)
}

// selector finds thresholds in a row of non-positive values without sorting
// it: one pass puts the mass into buckets by value, then only the bucket in
// which the limit is reached is searched.
type selector struct {
	mass [buckets]float64
	z, w []float32 // the searched bucket
}

const (
	bucketsPerUnit = 32
	bucketedRange  = 63 // smaller values share the last bucket
	buckets        = bucketsPerUnit*bucketedRange + 1
)

func bucketOf(z float32) int {
	if z > -bucketedRange {
		return int(-z * bucketsPerUnit)
	}
	return buckets - 1
}

// smallestKept walks the values from large to small and returns the last one
// whose predecessors weigh less than limit: values at or above it are kept.
// w nil gives every value the weight 1. limit must be positive, values at
// most 0; −Inf is allowed.
func (s *selector) smallestKept(z, w []float32, limit float64) float32 {
	clear(s.mass[:])
	if w != nil {
		for i, v := range z {
			s.mass[bucketOf(v)] += float64(w[i])
		}
	} else {
		for _, v := range z {
			s.mass[bucketOf(v)]++
		}
	}
	before, b := 0.0, 0
	for b < buckets-1 && before+s.mass[b] < limit {
		before += s.mass[b]
		b++
	}
	s.z, s.w = s.z[:0], s.w[:0]
	for i, v := range z {
		if bucketOf(v) == b {
			s.z = append(s.z, v)
			if w != nil {
				s.w = append(s.w, w[i])
			}
		}
	}
	if len(s.z) == 0 { // rounding: the limit is never reached
		return slices.Min(z)
	}
	if w == nil {
		s.w = grow(s.w, len(s.z))
		for i := range s.w {
			s.w[i] = 1
		}
	}
	return quickselect(s.z, s.w, limit-before)
}

// quickselect is smallestKept on a small set, by three-way partition around a
// median of three. It reorders both slices, which are not empty.
func quickselect(z, w []float32, limit float64) float32 {
	for {
		a, b, c := z[0], z[len(z)/2], z[len(z)-1]
		pivot := max(min(a, b), min(max(a, b), c))
		// [0,gt) larger, [gt,i) equal, [lt,n) smaller
		gt, i, lt := 0, 0, len(z)
		larger, equal := 0.0, 0.0
		for i < lt {
			switch {
			case z[i] > pivot:
				larger += float64(w[i])
				z[i], z[gt] = z[gt], z[i]
				w[i], w[gt] = w[gt], w[i]
				gt++
				i++
			case z[i] < pivot:
				lt--
				z[i], z[lt] = z[lt], z[i]
				w[i], w[lt] = w[lt], w[i]
			default:
				equal += float64(w[i])
				i++
			}
		}
		switch {
		case gt > 0 && larger >= limit:
			z, w = z[:gt], w[:gt]
		case larger+equal >= limit || lt == len(z):
			return pivot
		default:
			limit -= larger + equal
			z, w = z[lt:], w[lt:]
		}
	}
}
