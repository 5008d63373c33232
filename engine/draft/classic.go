package draft

import (
	"fmt"
	"slices"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
	"sparkbar/engine/sample"
)

// Classic drafts with a small model of any family that shares the target's
// vocabulary (Leviathan et al. 2023). It reads the committed tokens alone.
type Classic struct {
	m      *arch.Model
	host   Host
	vocab  int // ids that both models know
	cache  *cache.Cache
	params *compute.Params
	s      *compute.Scratch
}

const (
	// maxClassicDraft bounds the block of a draft model: nothing in the model does.
	maxClassicDraft = 16
	// classicChunk is how many tokens a draft model reads at once.
	classicChunk = 512
)

// OpenClassic loads a draft model. It must know exactly the target's tokens.
func OpenClassic(ck *checkpoint.Checkpoint, host Host) (*Classic, error) {
	m, err := arch.Load(ck, host.Backend)
	if err != nil {
		return nil, fmt.Errorf("draft model: %w", err)
	}
	d := &Classic{m: m, host: host, vocab: min(m.Vocab, host.Model.Vocab), params: compute.NewParams(host.Backend), s: compute.NewScratch(host.Backend)}
	if padded := host.Tokens > 0 && d.vocab >= host.Tokens; m.Vocab != host.Model.Vocab && !padded {
		d.Close()
		return nil, fmt.Errorf("draft model %s has a vocabulary of %d tokens, the target one of %d; choose a draft model of the target's own family, or the mode lookup, which needs none", ck.Path(), m.Vocab, host.Model.Vocab)
	}
	// A block may leave a second sequence behind for a while (see Propose).
	d.cache, err = cache.New(host.Backend, m.Caches, cache.Options{Type: layout.F32, Positions: host.Positions + maxClassicDraft, Sequences: host.Sequences + 1})
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("draft model %s: %w", ck.Path(), err)
	}
	return d, nil
}

// Mode implements Drafter.
func (d *Classic) Mode() string { return "draft" }

// Taps implements Drafter.
func (d *Classic) Taps() []int { return nil }

// MaxDraft implements Drafter.
func (d *Classic) MaxDraft() int { return maxClassicDraft }

// Cache implements Drafter.
func (d *Classic) Cache() *cache.Cache { return d.cache }

// WeightBytes implements Drafter.
func (d *Classic) WeightBytes() int64 { return d.m.WeightBytes }

// Close implements Drafter.
func (d *Classic) Close() {
	if d.cache != nil {
		d.cache.Close()
	}
	d.s.Close()
	d.params.Close()
	d.m.Close()
}

// NewContext implements Drafter.
func (d *Classic) NewContext(from *cache.Seq) (Context, error) {
	if from == nil {
		var err error
		if from, err = d.cache.NewSeq(); err != nil {
			return nil, err
		}
	}
	return &classicContext{d: d, seq: from}, nil
}

// classicContext is the draft model's own past. The tokens in todo are committed
// but not yet in seq; a pending token that was drafted from is in seq already.
type classicContext struct {
	d     *Classic
	seq   *cache.Seq
	todo  []int32
	ahead bool // seq ends with the pending token, which Observe is still to name
	dists []sample.Dist
}

// Observe implements Context.
func (x *classicContext) Observe(tokens []int32, _ compute.View, stop *compute.Stop) error {
	if x.ahead && len(tokens) > 0 {
		tokens, x.ahead = tokens[1:], false
	}
	x.todo = append(x.todo, tokens...)
	if len(x.todo) < classicChunk {
		return nil
	}
	return x.read(stop)
}

// Flush implements Context: tokens are copied, so there is nothing to hurry.
func (x *classicContext) Flush(*compute.Stop) error { return nil }

// read takes in what was observed.
func (x *classicContext) read(stop *compute.Stop) error {
	for len(x.todo) > 0 {
		n := min(len(x.todo), classicChunk)
		var p compute.Program
		x.d.begin(&p)
		if _, err := x.d.step(&p, x.seq, x.todo[:n], compute.View{}, true); err != nil {
			return err
		}
		if err := compute.Run(x.d.host.Backend, &p, stop); err != nil {
			return err
		}
		x.todo = x.todo[n:]
	}
	x.todo = x.todo[:0]
	return nil
}

// Finish implements Context.
func (x *classicContext) Finish(stop *compute.Stop) (*cache.Seq, error) {
	if err := x.read(stop); err != nil {
		x.Close()
		return nil, err
	}
	s := x.seq
	x.seq = nil
	return s, nil
}

// Close implements Context.
func (x *classicContext) Close() { x.seq.Close() }

func (d *Classic) begin(p *compute.Program) {
	p.Reset(compute.LabelDraft)
	d.params.Next()
	d.s.Reset()
}

// step records a forward of ids, or of one row whose id lies on the device, and
// counts the rows. Its logits are those of the last row, for the tokens that both
// models know.
func (d *Classic) step(p *compute.Program, q *cache.Seq, ids []int32, id compute.View, noLogits bool) (*arch.Forward, error) {
	parts := []cache.Part{{Seq: q, IDs: ids, N: 1, Prefill: noLogits}}
	st, err := d.cache.Plan(p, d.params, parts)
	if err != nil {
		return nil, err
	}
	if id.Given() {
		p.Add(compute.CopyRows{Src: id, Dst: st.Rows.IDs})
	}
	f := &arch.Forward{P: p, S: d.s, Step: st, NoLogits: noLogits}
	if st.Rows.N > 1 && !noLogits {
		if f.Outputs, err = d.params.Ints(1, []int32{int32(st.Rows.N - 1)}); err != nil {
			return nil, err
		}
	}
	d.m.Forward(f)
	d.cache.Ran(st, parts)
	if !noLogits {
		f.Logits = f.Logits.Columns(0, d.vocab)
	}
	q.Advance(st.Rows.N)
	return f, nil
}

// Propose implements Context. The pending token is committed, so it goes into
// the past for good; the drafts after it are taken back: by cutting, or, where
// the model cannot forget (windows, recurrent state), by drafting on a fork.
func (x *classicContext) Propose(r Request) (_ Proposal, err error) {
	d := x.d
	n := min(r.Cap, d.MaxDraft())
	if n < 1 {
		return Proposal{}, nil
	}
	if len(x.todo) >= classicChunk {
		if err := x.read(r.Stop); err != nil {
			return Proposal{}, err
		}
	}
	var p compute.Program
	d.begin(&p)
	ids := append(x.todo, r.Pending)
	f, err := d.step(&p, x.seq, ids, compute.View{}, false)
	if err != nil {
		return Proposal{}, err
	}
	x.todo, x.ahead = x.todo[:0], true

	q := x.seq
	if d.cache.Trimmable() {
		base := q.Len()
		defer func() {
			if e := q.Truncate(base); err == nil {
				err = e
			}
		}()
	} else if n > 1 {
		if err := compute.Run(d.host.Backend, &p, r.Stop); err != nil {
			return Proposal{}, err
		}
		p.Reset(compute.LabelDraft)
		if q, err = x.seq.Fork(); err != nil {
			return Proposal{}, err
		}
		defer q.Close()
	}
	if r.Sampler.Greedy() {
		return x.greedy(&p, f, q, n, r.Stop)
	}
	return x.sampled(&p, f, q, n, r)
}

// greedy runs the whole chain on the device.
func (x *classicContext) greedy(p *compute.Program, f *arch.Forward, q *cache.Seq, n int, stop *compute.Stop) (Proposal, error) {
	d := x.d
	out, err := d.s.I32(n, 1)
	if err != nil {
		return Proposal{}, err
	}
	for i := range n {
		p.Add(compute.Argmax{X: f.Logits, Out: out.Slice(i, i+1)})
		if i+1 == n {
			break
		}
		if f, err = d.step(p, q, nil, out.Slice(i, i+1), false); err != nil {
			return Proposal{}, err
		}
	}
	if err := compute.Run(d.host.Backend, p, stop); err != nil {
		return Proposal{}, err
	}
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = out.I32(i)[0]
	}
	return Proposal{Tokens: tokens, Drafted: tokens}, nil
}

// sampled draws token by token on the host.
func (x *classicContext) sampled(p *compute.Program, f *arch.Forward, q *cache.Seq, n int, r Request) (Proposal, error) {
	d := x.d
	for len(x.dists) < n {
		x.dists = append(x.dists, sample.Dist{})
	}
	var tokens []int32
	for i := range n {
		if len(p.Ops) > 0 {
			if err := compute.Run(d.host.Backend, p, r.Stop); err != nil {
				return Proposal{}, err
			}
		}
		if err := r.Sampler.Dist(&x.dists[i], f.Logits.F32(0), r.Rand); err != nil {
			return Proposal{}, err
		}
		tokens = append(tokens, r.Rand.Draw(&x.dists[i]))
		if i+1 == n {
			break
		}
		d.begin(p)
		var err error
		if f, err = d.step(p, q, tokens[i:], compute.View{}, false); err != nil {
			return Proposal{}, err
		}
	}
	return Proposal{Tokens: tokens, Drafted: slices.Clone(tokens), Dists: x.dists[:n]}, nil
}
