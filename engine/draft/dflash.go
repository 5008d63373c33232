package draft

import (
	"fmt"
	"slices"
	"strings"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// DFlash is a block-diffusion drafter: a few transformer layers fill all masked
// slots of a block at once from the target's hidden states. In DFlash 1 each
// slot is chosen on its own. In DFlash 2 a selector walks through the slots and
// scores the best candidates of each by the token chosen before it, and the
// layers mix neighbouring slots by dynamic convolutions. Source: the DFlash
// papers and their published code.
type DFlash struct {
	*head
	c dflashConfig
	// The selector of DFlash 2: codebooks of the token before and of the
	// candidate, and the projection of a slot's hidden state.
	before, after *compute.Weight
	slot          arch.Linear
}

// OpenDFlash loads a DFlash head, which borrows embedding and output projection
// of the host's model. Loading is strict, as for OpenDSpark.
func OpenDFlash(ck *checkpoint.Checkpoint, host Host) (*DFlash, error) {
	c, err := readDFlash(ck.Config())
	if err != nil {
		return nil, fmt.Errorf("drafter %s: %w", ck.Path(), err)
	}
	d := &DFlash{c: c, head: openHead("dflash", ck, host, func(name string) bool {
		return strings.HasSuffix(name, ".kernel_projection") || strings.HasPrefix(name, "candidate_selector.")
	})}
	if err := d.build(ck); err != nil {
		d.Close()
		return nil, fmt.Errorf("drafter %s: %w", ck.Path(), err)
	}
	return d, nil
}

func (d *DFlash) build(ck *checkpoint.Checkpoint) error {
	c, l, m := d.c, d.load, d.host.Model
	if err := d.fits(c.shape); err != nil {
		return err
	}
	if c.vocab > m.Head.Rows || int(c.mask) >= m.Embedding.Rows {
		return fmt.Errorf("its vocabulary is %d, the target's %d; it was made for another model", c.vocab, m.Vocab)
	}
	d.group = c.convGroup
	d.fc = l.Linear("fc", c.hidden, len(c.taps)*c.hidden, false)
	d.ctxNorm = l.Vector("hidden_norm.weight", c.hidden)
	d.norm = l.Vector("norm.weight", c.hidden)
	d.rope = l.Rope(ck.Config(), c.dim, c.theta, false)
	var specs []compute.CacheSpec
	for i := 0; i < c.layers && l.Err() == nil; i++ {
		p := fmt.Sprintf("layers.%d.", i)
		w := layer{
			attnNorm:      l.Vector(p+"input_layernorm.weight", c.hidden),
			mlpNorm:       l.Vector(p+"post_attention_layernorm.weight", c.hidden),
			qNorm:         l.Vector(p+"self_attn.q_norm.weight", c.dim),
			kNorm:         l.Vector(p+"self_attn.k_norm.weight", c.dim),
			q:             l.Linear(p+"self_attn.q_proj", c.heads*c.dim, c.hidden, c.attnBias),
			k:             l.Linear(p+"self_attn.k_proj", c.kvHeads*c.dim, c.hidden, c.attnBias),
			v:             l.Linear(p+"self_attn.v_proj", c.kvHeads*c.dim, c.hidden, c.attnBias),
			o:             l.Linear(p+"self_attn.o_proj", c.hidden, c.heads*c.dim, c.attnBias),
			gate:          l.Linear(p+"mlp.gate_proj", c.inter, c.hidden, false),
			up:            l.Linear(p+"mlp.up_proj", c.inter, c.hidden, false),
			down:          l.Linear(p+"mlp.down_proj", c.hidden, c.inter, false),
			bidirectional: !c.sliding[i],
		}
		spec := compute.CacheSpec{Kind: compute.CacheFull, Heads: c.kvHeads, KDim: c.dim, VDim: c.dim}
		if c.sliding[i] {
			spec.Kind, spec.Window = compute.CacheWindow, c.window
		}
		if c.rank > 0 {
			w.attnConv, w.mlpConv = d.conv(p+"attention_conv"), d.conv(p+"mlp_conv")
		}
		d.layers = append(d.layers, w)
		specs = append(specs, spec)
	}
	if c.rank > 0 {
		d.before = l.Weight("candidate_selector.predecessor_codebook", c.vocab, c.rank)
		d.after = l.Weight("candidate_selector.successor_codebook", c.vocab, c.rank)
		d.slot = l.Linear("candidate_selector.hidden_projection", c.rank, c.hidden, false)
	}
	return d.ready(specs)
}

func (d *DFlash) conv(p string) *conv {
	c := d.c
	return &conv{
		base: d.load.Vector(p+".base_kernel", 2*c.convTaps*c.hidden).Reshape(2*c.convTaps, c.hidden),
		proj: d.load.Linear(p+".kernel_projection", 2*c.convTaps*c.hidden/c.convGroup, c.hidden, false),
	}
}

// MaxDraft implements Drafter.
func (d *DFlash) MaxDraft() int { return d.c.block - 1 }

// NewContext implements Drafter.
func (d *DFlash) NewContext(from *cache.Seq) (Context, error) {
	x, err := d.newContext(from)
	if err != nil {
		return nil, err
	}
	return &dflashContext{x, d}, nil
}

type dflashContext struct {
	headContext
	d *DFlash
}

// Propose implements Context.
func (x *dflashContext) Propose(r Request) (Proposal, error) {
	d, c := x.d, x.d.c
	var p compute.Program
	n, err := x.open(&p, r, d.MaxDraft())
	if n == 0 || err != nil {
		return Proposal{}, err
	}
	f, err := x.plan(&p, c.masked(r.Pending, c.block), true, 0)
	if err != nil {
		return Proposal{}, err
	}
	h := d.run(f, f.Embed(d.host.Model.Embedding, d.host.Model.EmbedScale)).Slice(1, n+1)
	if c.rank > 0 {
		return x.selected(f, h, r)
	}
	z := d.logits(f, h, d.host.Model.Head, c.softcap).Columns(0, c.vocab)
	if r.Sampler.Greedy() {
		best, err := d.s.I32(1, n)
		if err != nil {
			return Proposal{}, err
		}
		p.Add(compute.Argmax{X: z, Out: best})
		if err := compute.Run(d.host.Backend, &p, r.Stop); err != nil {
			return Proposal{}, err
		}
		tokens := slices.Clone(best.I32(0))
		return Proposal{Tokens: tokens, Drafted: tokens}, nil
	}
	if err := compute.Run(d.host.Backend, &p, r.Stop); err != nil {
		return Proposal{}, err
	}
	x.grow(n)
	tokens := make([]int32, n)
	for i := range n {
		if err := r.Sampler.Dist(&x.dists[i], z.F32(i), r.Rand); err != nil {
			return Proposal{}, err
		}
		tokens[i] = r.Rand.Draw(&x.dists[i])
	}
	return Proposal{Tokens: tokens, Drafted: tokens, Dists: x.dists[:n]}, nil
}

// selected lets the selector walk through slots h.
func (x *dflashContext) selected(f *arch.Forward, h compute.View, r Request) (Proposal, error) {
	d, n := x.d, h.Rows
	w, err := d.walk(f, h, r)
	if err != nil {
		return Proposal{}, err
	}
	if err := compute.Run(d.host.Backend, f.P, r.Stop); err != nil {
		return Proposal{}, err
	}
	out := Proposal{Drafted: slices.Clone(w.IDs.I32(0))}
	out.Tokens = out.Drafted
	if !w.Probs.Given() {
		return out, nil
	}
	x.grow(n)
	for i := range n {
		if err := x.dists[i].SetWeights(w.Cand.I32(i), w.Probs.F32(i)); err != nil {
			return Proposal{}, err
		}
	}
	out.Dists = x.dists[:n]
	return out, nil
}

// walk records the selection of candidates for slots h. A sampled walk draws one
// uniform number per slot and keeps the rows that it drew from.
func (d *DFlash) walk(f *arch.Forward, h compute.View, r Request) (compute.PairSelect, error) {
	c, n := d.c, h.Rows
	z := d.logits(f, h, d.host.Model.Head, 0).Columns(0, c.vocab)
	w := compute.PairSelect{Unary: f.Result(n, c.topK), A: d.before, B: d.after, H: f.Linear(h, d.slot), Slots: n}
	var err error
	if w.Cand, err = d.s.I32(n, c.topK); err != nil {
		return w, err
	}
	if w.IDs, err = d.s.I32(1, n); err != nil {
		return w, err
	}
	if w.Anchor, err = d.params.Ints(1, []int32{r.Pending}); err != nil {
		return w, err
	}
	if !r.Sampler.Greedy() {
		u := make([]float32, n)
		r.Rand.Uniforms(u)
		if w.Uniform, err = d.params.Floats(u); err != nil {
			return w, err
		}
		w.Temperature, w.Probs = float32(r.Temperature), f.Result(n, c.topK)
	}
	f.P.Add(compute.TopK{X: z, IDs: w.Cand, Vals: w.Unary},
		compute.Unary{Kind: compute.UnScale, X: w.Unary, Out: w.Unary, V: float32(c.multiplier)})
	if c.softcap > 0 {
		f.P.Add(compute.Unary{Kind: compute.UnSoftcap, X: w.Unary, Out: w.Unary, V: float32(c.softcap)})
	}
	f.P.Add(w)
	return w, nil
}
