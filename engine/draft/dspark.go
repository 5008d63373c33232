package draft

import (
	"errors"
	"fmt"
	"math"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
	"sparkbar/engine/sample"
)

// DSpark is a semi-autoregressive drafter: a few transformer layers predict a
// whole block of masked slots from the target's hidden states, and a low-rank
// Markov head makes each slot depend on the token before it. Source: the DSpark
// paper and its DeepSpec reference code.
type DSpark struct {
	c      dsparkConfig
	host   Host
	load   *arch.Loader
	params *compute.Params
	s      *compute.Scratch
	cache  *cache.Cache

	embed      *compute.Weight
	embedScale float32
	head       *compute.Weight
	fc         arch.Linear
	ctxNorm    compute.View
	norm       compute.View
	rope       arch.Rope
	layers     []dsparkLayer
	w1, w2     *compute.Weight // Markov head
	conf       arch.Linear
	d2t        compute.View // I32 offsets of a reduced vocabulary
	d2tIDs     []int32      // target id of each draft id
	slots      compute.View // log-SNR addend of each slot
}

type dsparkLayer struct {
	attnNorm, mlpNorm compute.View
	qNorm, kNorm      compute.View
	q, k, v, o        arch.Linear
	gate, up, down    arch.Linear
	sinks             compute.View
}

// OpenDSpark loads a DSpark head for the host's model. Loading is strict: a
// missing or unknown tensor is an error, since a partly loaded head would run
// with almost no acceptance.
func OpenDSpark(ck *checkpoint.Checkpoint, host Host) (*DSpark, error) {
	c, err := readDSpark(ck.Config())
	if err != nil {
		return nil, fmt.Errorf("drafter %s: %w", ck.Path(), err)
	}
	d := &DSpark{c: c, host: host, load: arch.NewLoader(ck, host.Backend)}
	if err := d.build(ck); err != nil {
		d.Close()
		return nil, fmt.Errorf("drafter %s: %w", ck.Path(), err)
	}
	return d, nil
}

func (d *DSpark) build(ck *checkpoint.Checkpoint) error {
	c, l, m := d.c, d.load, d.host.Model
	for _, t := range c.taps {
		if t < 0 || t >= m.Tappable {
			return fmt.Errorf("it reads layer %d of the target, which has %d; it was made for another model", t, m.Tappable)
		}
	}
	if c.hidden != m.Hidden {
		return fmt.Errorf("its hidden size is %d, the target's %d; it was made for another model", c.hidden, m.Hidden)
	}
	norm := func(name string, n int) compute.View {
		v := l.Vector(name, n)
		if c.offsetNorm && v.Given() {
			for i := range v.F32(0) {
				v.F32(0)[i]++
			}
		}
		return v
	}
	d.embed, d.embedScale = m.Embedding, m.EmbedScale
	if l.Has("embed_tokens.weight") {
		d.embed, d.embedScale = l.Weight("embed_tokens", c.vocab, c.hidden), 1
	} else if c.vocab > m.Vocab {
		return fmt.Errorf("it has no embedding and its vocabulary is %d, the target's %d; it was made for another model", c.vocab, m.Vocab)
	}
	d.head = m.Head
	if l.Has("lm_head.weight") {
		d.head = l.Weight("lm_head", c.draftVocab, c.hidden)
	} else if c.draftVocab != c.vocab {
		return errors.New("it has a reduced vocabulary but no lm_head")
	}
	d.fc = l.Linear("fc", c.hidden, len(c.taps)*c.hidden, false)
	d.ctxNorm = norm("hidden_norm.weight", c.hidden)
	d.norm = norm("norm.weight", c.hidden)
	dims := c.ropeDims
	if dims == 0 {
		dims = c.dim
	}
	rope := ck.Config()
	if !c.yarn {
		rope = checkpoint.Config{}
	}
	d.rope = l.Rope(rope, dims, c.theta, c.interleaved)
	qRows := c.heads * c.dim
	if c.gated {
		qRows *= 2
	}
	spec := compute.CacheSpec{Kind: compute.CacheFull, Heads: c.kvHeads, KDim: c.dim, VDim: c.dim}
	if c.window > 0 {
		spec.Kind, spec.Window = compute.CacheWindow, c.window
	}
	var specs []compute.CacheSpec
	for i := 0; i < c.layers && l.Err() == nil; i++ {
		p := fmt.Sprintf("layers.%d.", i)
		w := dsparkLayer{
			attnNorm: norm(p+"input_layernorm.weight", c.hidden),
			mlpNorm:  norm(p+"post_attention_layernorm.weight", c.hidden),
			qNorm:    norm(p+"self_attn.q_norm.weight", c.dim),
			kNorm:    norm(p+"self_attn.k_norm.weight", c.dim),
			q:        l.Linear(p+"self_attn.q_proj", qRows, c.hidden, c.attnBias),
			k:        l.Linear(p+"self_attn.k_proj", c.kvHeads*c.dim, c.hidden, c.attnBias),
			v:        l.Linear(p+"self_attn.v_proj", c.kvHeads*c.dim, c.hidden, c.attnBias),
			o:        l.Linear(p+"self_attn.o_proj", c.hidden, c.heads*c.dim, c.attnBias),
			gate:     l.Linear(p+"mlp.gate_proj", c.inter, c.hidden, false),
			up:       l.Linear(p+"mlp.up_proj", c.inter, c.hidden, false),
			down:     l.Linear(p+"mlp.down_proj", c.hidden, c.inter, false),
		}
		if c.sink {
			w.sinks = l.Vector(p+"self_attn.attention_sink_bias", c.heads)
		}
		d.layers = append(d.layers, w)
		specs = append(specs, spec)
	}
	if c.markov > 0 {
		d.w1 = l.Weight("markov_head.markov_w1", c.vocab, c.markov)
		d.w2 = l.Weight("markov_head.markov_w2", c.draftVocab, c.markov)
	}
	if c.confidence {
		in := c.hidden
		if c.confidenceMarkov {
			in += c.markov
		}
		d.conf = l.Linear("confidence_head.proj", 1, in, true)
	}
	if err := d.reducedVocabulary(ck); err != nil {
		return err
	}
	var fc1, fc2 arch.Linear
	if c.logSNR {
		fc1 = l.Linear("log_snr_embed.fc1", c.hidden, snrFeatures, true)
		fc2 = l.Linear("log_snr_embed.fc2", c.hidden, c.hidden, true)
	}
	l.Finish()
	if err := l.Err(); err != nil {
		return err
	}
	var err error
	d.params, d.s = compute.NewParams(d.host.Backend), compute.NewScratch(d.host.Backend)
	if c.logSNR {
		if err := d.conditionSlots(fc1, fc2); err != nil {
			return err
		}
	}
	d.cache, err = cache.New(d.host.Backend, specs, cache.Options{Type: layout.F32, Positions: d.host.Positions, Sequences: d.host.Sequences})
	return err
}

// reducedVocabulary reads d2t: target id = draft id + d2t[draft id]. t2d is the
// inverse as a mask and not needed.
func (d *DSpark) reducedVocabulary(ck *checkpoint.Checkpoint) error {
	reduced := d.c.draftVocab != d.c.vocab
	if ck.Has("d2t") != reduced {
		return fmt.Errorf("draft_vocab_size is %d of %d, but tensor d2t is %s", d.c.draftVocab, d.c.vocab, map[bool]string{true: "there", false: "missing"}[ck.Has("d2t")])
	}
	d.load.Drop(func(n string) bool { return n == "d2t" || n == "t2d" })
	if !reduced {
		return nil
	}
	t, err := ck.Tensor("d2t")
	if err != nil {
		return err
	}
	off, err := t.Int64()
	if err != nil {
		return err
	}
	if len(off) != d.c.draftVocab {
		return fmt.Errorf("tensor d2t has %d entries for a draft vocabulary of %d", len(off), d.c.draftVocab)
	}
	v := d.load.Constant("d2t", make([]float32, len(off))) // four bytes an entry
	if err := d.load.Err(); err != nil {
		return err
	}
	v.Type = layout.I32
	d.d2t = v
	for i, o := range off {
		id := int64(i) + o
		if id < 0 || id >= int64(d.c.vocab) {
			return fmt.Errorf("tensor d2t sends draft token %d to %d, outside the vocabulary of %d", i, id, d.c.vocab)
		}
		v.I32(0)[i] = int32(o)
		d.d2tIDs = append(d.d2tIDs, int32(id))
	}
	return nil
}

// snrFeatures is the width of the log-SNR embedding: 64 sines, 64 cosines.
const snrFeatures = 128

// conditionSlots computes the addend of each slot: slot 0 is known (max log
// SNR), the others are masked (min).
func (d *DSpark) conditionSlots(fc1, fc2 arch.Linear) error {
	features := func(snr float64) []float32 {
		t := (snr - d.c.minSNR) / (d.c.maxSNR - d.c.minSNR) * 1000
		v := make([]float32, snrFeatures)
		for i := range snrFeatures / 2 {
			a := t * math.Exp(-math.Log(10000)*float64(i)/(snrFeatures/2))
			v[i], v[i+snrFeatures/2] = float32(math.Sin(a)), float32(math.Cos(a))
		}
		return v
	}
	var all []float32
	for j := range d.c.block {
		if j == 0 {
			all = append(all, features(d.c.maxSNR)...)
		} else {
			all = append(all, features(d.c.minSNR)...)
		}
	}
	x := d.load.Constant("log-SNR features", all).Reshape(d.c.block, snrFeatures)
	d.slots = d.load.Constant("log-SNR slots", make([]float32, d.c.block*d.c.hidden)).Reshape(d.c.block, d.c.hidden)
	if err := d.load.Err(); err != nil {
		return err
	}
	h, err := d.s.F32(d.c.block, d.c.hidden)
	if err != nil {
		return err
	}
	var p compute.Program
	p.Reset("drafter set-up")
	p.Add(compute.Linear{X: x, W: fc1.W, Bias: fc1.Bias, Act: compute.ActSiLU, Scale: 1, Out: h},
		compute.Linear{X: h, W: fc2.W, Bias: fc2.Bias, Scale: 1, Out: d.slots})
	return compute.Run(d.host.Backend, &p, nil)
}

// Mode implements Drafter.
func (d *DSpark) Mode() string { return "dspark" }

// Taps implements Drafter.
func (d *DSpark) Taps() []int { return d.c.taps }

// MaxDraft implements Drafter.
func (d *DSpark) MaxDraft() int { return d.c.block - d.c.start }

// HasConfidence reports whether the head can tell how sure it is.
func (d *DSpark) HasConfidence() bool { return d.c.confidence }

// Cache implements Drafter.
func (d *DSpark) Cache() *cache.Cache { return d.cache }

// WeightBytes implements Drafter.
func (d *DSpark) WeightBytes() int64 { return d.load.Bytes() }

// Close implements Drafter.
func (d *DSpark) Close() {
	if d.cache != nil {
		d.cache.Close()
	}
	if d.params != nil {
		d.params.Close()
		d.s.Close()
	}
	d.load.Close()
}

// NewContext implements Drafter.
func (d *DSpark) NewContext(from *cache.Seq) (Context, error) {
	if from == nil {
		var err error
		if from, err = d.cache.NewSeq(); err != nil {
			return nil, err
		}
	}
	return &dsparkContext{d: d, seq: from}, nil
}

// dsparkContext holds, per layer, keys and values of every committed position.
type dsparkContext struct {
	d     *DSpark
	seq   *cache.Seq
	fused compute.View // observed, not yet read
	dists []sample.Dist
}

func (x *dsparkContext) Seq() *cache.Seq { return x.seq }
func (x *dsparkContext) Close()          { x.seq.Close() }

func (x *dsparkContext) Observe(fused compute.View, stop *compute.Stop) error {
	if err := x.Flush(stop); err != nil {
		return err
	}
	x.fused = fused
	return nil
}

func (x *dsparkContext) Flush(stop *compute.Stop) error {
	if !x.fused.Given() {
		return nil
	}
	d := x.d
	var p compute.Program
	d.begin(&p)
	if err := x.inject(&p); err != nil {
		return err
	}
	return compute.Run(d.host.Backend, &p, stop)
}

func (d *DSpark) begin(p *compute.Program) {
	p.Reset(compute.LabelDraft)
	d.params.Next()
	d.s.Reset()
}

// inject records the observed rows into the context: one projection, then each
// layer's keys and values. No attention, no MLP.
func (x *dsparkContext) inject(p *compute.Program) error {
	if !x.fused.Given() || x.fused.Rows == 0 {
		x.fused = compute.View{}
		return nil
	}
	d, c := x.d, x.d.c
	parts := []cache.Part{{Seq: x.seq, N: x.fused.Rows}}
	st, err := d.cache.Plan(p, d.params, parts)
	if err != nil {
		return err
	}
	f := &arch.Forward{P: p, S: d.s, Step: st}
	h := f.Norm(f.Linear(x.fused, d.fc), d.ctxNorm, c.eps)
	for i, w := range d.layers {
		mark := d.s.Mark()
		k, v := f.Linear(h, w.k), f.Linear(h, w.v)
		f.HeadNorm(k, w.kNorm, c.eps, c.dim)
		f.Rotate(k, d.rope, c.dim)
		lc := st.Layers[i]
		p.Add(compute.KVWrite{K: k, V: v, KV: lc.KV, Rows: st.Rows, Pages: lc.Pages})
		d.s.Release(mark)
	}
	x.seq.Advance(x.fused.Rows)
	x.fused = compute.View{}
	return nil
}

// Propose implements Context.
func (x *dsparkContext) Propose(r Request) (Proposal, error) {
	d, c := x.d, x.d.c
	n := min(r.Cap, d.MaxDraft())
	if n < 1 {
		return Proposal{}, x.Flush(r.Stop)
	}
	var p compute.Program
	d.begin(&p)
	if err := x.inject(&p); err != nil {
		return Proposal{}, err
	}
	width := c.block
	if c.causal {
		width = min(c.block, c.start+n)
	}
	ids := make([]int32, width)
	for i := range ids {
		ids[i] = c.mask
	}
	ids[0] = r.Pending
	part := cache.Part{Seq: x.seq, IDs: ids, Block: !c.causal}
	if !c.causal && c.window == 0 {
		part.Context = d.host.Window
	}
	parts := []cache.Part{part}
	st, err := d.cache.Plan(&p, d.params, parts)
	if err != nil {
		return Proposal{}, err
	}
	f := &arch.Forward{P: &p, S: d.s, Step: st}
	h := d.backbone(f).Slice(c.start, c.start+n)
	z := f.New(n, d.head.Rows)
	p.Add(compute.Linear{X: h, W: d.head, Scale: 1, Out: z, Prefill: n})
	if c.softcap > 0 {
		p.Add(compute.Unary{Kind: compute.UnSoftcap, X: z, Out: z, V: float32(c.softcap)})
	}
	if r.Sampler.Greedy() {
		return x.greedy(&p, f, h, z, r)
	}
	return x.sampled(&p, f, h, z, r)
}

// backbone is the block's forward pass: [pending, mask, ...] attending over the
// context and itself.
func (d *DSpark) backbone(f *arch.Forward) compute.View {
	c := d.c
	x := f.Embed(d.embed, d.embedScale)
	if d.slots.Given() {
		f.P.Add(compute.Binary{Kind: compute.BinAdd, A: x, B: d.slots.Slice(0, x.Rows), Out: x, Scale: 1})
	}
	scale := float32(1 / math.Sqrt(float64(c.dim)))
	for i, w := range d.layers {
		mark := d.s.Mark()
		h := f.Norm(x, w.attnNorm, c.eps)
		q, k, v := f.Linear(h, w.q), f.Linear(h, w.k), f.Linear(h, w.v)
		var gate compute.View
		if c.gated { // per head [query | gate]
			both := q.Reshape(x.Rows*c.heads, 2*c.dim)
			q = f.New(x.Rows, c.heads*c.dim)
			f.P.Add(compute.CopyRows{Src: both.Columns(0, c.dim), Dst: q.Reshape(x.Rows*c.heads, c.dim)})
			gate = both.Columns(c.dim, 2*c.dim)
		}
		f.HeadNorm(q, w.qNorm, c.eps, c.dim)
		f.HeadNorm(k, w.kNorm, c.eps, c.dim)
		f.Rotate(q, d.rope, c.dim)
		f.Rotate(k, d.rope, c.dim)
		a := f.AttendSinks(q, k, v, i, c.heads, scale, w.sinks)
		if gate.Given() {
			heads := a.Reshape(x.Rows*c.heads, c.dim)
			f.P.Add(compute.Binary{Kind: compute.BinSigmoidMul, A: heads, B: gate, Out: heads, Scale: 1})
		}
		f.LinearAdd(a, w.o, x)
		h = f.Norm(x, w.mlpNorm, c.eps)
		f.LinearAdd(f.Gated(h, w.gate, w.up, compute.ActSwiGLU), w.down, x)
		d.s.Release(mark)
	}
	return f.Norm(x, d.norm, c.eps)
}

// greedy finishes the block on the device: token ids never leave it before the
// end of the program.
func (x *dsparkContext) greedy(p *compute.Program, f *arch.Forward, h, z compute.View, r Request) (Proposal, error) {
	d, c, n := x.d, x.d.c, z.Rows
	// chain[0] is the pending token, chain[i+1] the draft of slot i.
	chain, err := d.params.Ints(1, append([]int32{r.Pending}, make([]int32, n)...))
	if err != nil {
		return Proposal{}, err
	}
	for i := range n {
		zi, out := z.Slice(i, i+1), chain.Columns(i+1, i+2)
		d.markov(f, chain.Columns(i, i+1), zi)
		p.Add(compute.Argmax{X: zi, Out: out})
		if d.d2t.Given() {
			p.Add(compute.MapIDs{IDs: out, Offset: d.d2t, Out: out})
		}
	}
	var conf compute.View
	if r.Threshold > 0 && c.confidence {
		conf = d.confident(f, h, chain.Columns(0, n))
	}
	if err := compute.Run(d.host.Backend, p, r.Stop); err != nil {
		return Proposal{}, err
	}
	tokens := append([]int32(nil), chain.I32(0)[1:]...)
	return cut(Proposal{Drafted: tokens, Confidence: column(conf)}, r.Threshold), nil
}

// sampled draws slot by slot on the host, since each draw feeds the next.
func (x *dsparkContext) sampled(p *compute.Program, f *arch.Forward, h, z compute.View, r Request) (Proposal, error) {
	d, c, n := x.d, x.d.c, z.Rows
	for len(x.dists) < n {
		x.dists = append(x.dists, sample.Dist{})
	}
	chain := []int32{r.Pending}
	for i := range n {
		prev, err := d.params.Ints(1, chain[i:])
		if err != nil {
			return Proposal{}, err
		}
		d.markov(f, prev, z.Slice(i, i+1))
		if err := compute.Run(d.host.Backend, p, r.Stop); err != nil {
			return Proposal{}, err
		}
		p.Reset(compute.LabelDraft)
		q := &x.dists[i]
		if err := r.Sampler.Dist(q, z.F32(i), r.Rand); err != nil {
			return Proposal{}, err
		}
		if d.d2tIDs != nil {
			if err := q.MapIDs(d.d2tIDs); err != nil {
				return Proposal{}, err
			}
		}
		chain = append(chain, r.Rand.Draw(q))
	}
	var conf compute.View
	if r.Threshold > 0 && c.confidence {
		prev, err := d.params.Ints(1, chain[:n])
		if err != nil {
			return Proposal{}, err
		}
		conf = d.confident(f, h, prev)
		if err := compute.Run(d.host.Backend, p, r.Stop); err != nil {
			return Proposal{}, err
		}
	}
	out := cut(Proposal{Drafted: chain[1:], Confidence: column(conf)}, r.Threshold)
	out.Dists = x.dists[:len(out.Tokens)]
	return out, nil
}

// markov adds W2 W1[prev] to the logits of one slot.
func (d *DSpark) markov(f *arch.Forward, prev, z compute.View) {
	if d.w1 == nil {
		return
	}
	e := f.New(1, d.c.markov)
	f.P.Add(compute.Embed{IDs: prev, W: d.w1, Scale: 1, Out: e},
		compute.Linear{X: e, W: d.w2, Scale: 1, Residual: z, Out: z, Prefill: 1})
}

// confident records sigmoid(w [h ; W1[prev]] + b) for every slot.
func (d *DSpark) confident(f *arch.Forward, h, prev compute.View) compute.View {
	in := h
	if d.c.confidenceMarkov {
		in = f.New(h.Rows, d.c.hidden+d.c.markov)
		f.P.Add(compute.CopyRows{Src: h, Dst: in.Columns(0, d.c.hidden)},
			compute.Embed{IDs: prev, W: d.w1, Scale: 1, Out: in.Columns(d.c.hidden, in.Cols)})
	}
	out := f.New(h.Rows, 1)
	f.P.Add(compute.Linear{X: in, W: d.conf.W, Bias: d.conf.Bias, Act: compute.ActSigmoid, Scale: 1, Out: out, Prefill: h.Rows})
	return out
}

func column(v compute.View) []float64 {
	if !v.Given() {
		return nil
	}
	out := make([]float64, v.Rows)
	for i := range out {
		out[i] = float64(v.F32(i)[0])
	}
	return out
}

// cut applies the confidence threshold: the longest prefix whose product of
// confidences stays at or above it, at least one token.
func cut(p Proposal, threshold float64) Proposal {
	p.Tokens = p.Drafted
	survival := 1.0
	for i, c := range p.Confidence {
		if survival *= c; survival < threshold {
			p.Tokens = p.Drafted[:max(i, 1)]
			break
		}
	}
	return p
}
