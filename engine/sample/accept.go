package sample

// AcceptGreedy returns how many drafts agree with the target: the length of
// the longest prefix with draft[i] == argmax[i]. argmax holds the target's
// choice after the pending token and after each draft, so it is one longer
// than draft, and argmax[n] is the next token.
func AcceptGreedy(draft, argmax []int32) int {
	n := 0
	for n < len(draft) && draft[n] == argmax[n] {
		n++
	}
	return n
}

// Accept is one round of exact speculative sampling (Leviathan et al. 2023,
// Chen et al. 2023): the returned tokens are distributed exactly as if they
// had been drawn from the target distributions p one by one, whatever the
// drafter proposed.
//
// draft[i] was drawn from q[i]; q nil means it was chosen with certainty (a
// lookup draft). p has one distribution more than draft. Draft i is accepted
// with probability min(1, p_i/q_i). next is the token after the n accepted
// ones: drawn from the normalised positive part of p_n − q_n after a
// rejection, from the last p when everything was accepted.
//
// rng is read once for all acceptance decisions, then once for next. scratch
// holds the residual; its content is overwritten.
func Accept(draft []int32, q, p []Dist, rng Source, scratch *Scratch) (n int, next int32) {
	scratch.u = grow(scratch.u, len(draft))
	if len(draft) > 0 {
		rng.Uniforms(scratch.u)
	}
	n = accepted(draft, q, p, scratch.u)
	last := &p[n]
	if n < len(draft) {
		if q == nil {
			scratch.q.SetPoint(draft[n])
			scratch.r.setResidual(&p[n], &scratch.q)
		} else {
			scratch.r.setResidual(&p[n], &q[n])
		}
		last = &scratch.r
	}
	return n, rng.Draw(last)
}

// Scratch is the reusable memory of [Accept]. The zero value is ready.
type Scratch struct {
	u    []float32
	r, q Dist
}

// accepted returns the number of accepted drafts for given uniforms. The test
// u < p/q is written without the division, so q = 0 needs no special case.
func accepted(draft []int32, q, p []Dist, u []float32) int {
	for i, t := range draft {
		qt := 1.0
		if q != nil {
			qt = q[i].Prob(t)
		}
		if !(float64(u[i])*qt < p[i].Prob(t)) {
			return i
		}
	}
	return len(draft)
}

// setResidual makes d the normalised positive part of p − q. When nothing is
// left (p and q equal up to rounding), d is p.
func (d *Dist) setResidual(p, q *Dist) {
	d.reset(len(p.w))
	n, j := 0, 0
	d.sum = 0
	for i, w := range p.w {
		id := p.id(i)
		r := float64(w) / p.sum
		if q.dense {
			r -= q.Prob(id)
		} else {
			for j < len(q.ids) && q.ids[j] < id {
				j++
			}
			if j < len(q.ids) && q.ids[j] == id {
				r -= float64(q.w[j]) / q.sum
			}
		}
		if r32 := float32(r); r32 > 0 {
			d.ids[n], d.w[n] = id, r32
			d.sum += float64(r32)
			n++
		}
	}
	d.ids, d.w = d.ids[:n], d.w[:n]
	if n == 0 {
		d.reset(len(p.w))
		for i := range p.w {
			d.ids[i], d.w[i] = p.id(i), p.w[i]
		}
		d.sum = p.sum
	}
}
