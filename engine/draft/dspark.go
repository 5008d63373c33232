package draft

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// DSpark is a semi-autoregressive drafter: a few transformer layers predict a
// whole block of masked slots from the target's hidden states, and a low-rank
// Markov head makes each slot depend on the token before it. Source: the DSpark
// paper and its DeepSpec reference code.
type DSpark struct {
	*head
	c dsparkConfig

	embed      *compute.Weight
	embedScale float32
	out        *compute.Weight
	w1, w2     *compute.Weight // Markov head
	frequent   vocabulary      // of Host.Frequent ids; none without
	conf       arch.Linear
	d2t        compute.View // I32 offsets of a reduced vocabulary
	d2tIDs     []int32      // target id of each draft id
	slots      compute.View // log-SNR addend of each slot
}

// vocabulary is what makes logits of draft ids: the head, and the Markov head's
// addend.
type vocabulary struct {
	ids     int
	out, w2 *compute.Weight
}

// rareTokens is the share of a text's tokens outside the frequent ones from which
// on all are drafted from, rareMemory how many tokens it is an average of.
const (
	rareTokens = 0.5
	rareMemory = 32
)

// OpenDSpark loads a DSpark head for the host's model. Loading is strict: a
// missing or unknown tensor is an error, since a partly loaded head would run
// with almost no acceptance.
func OpenDSpark(ck *checkpoint.Checkpoint, host Host) (*DSpark, error) {
	c, err := readDSpark(ck.Config())
	if err != nil {
		return nil, fmt.Errorf("drafter %s: %w", ck.Path(), err)
	}
	if slices.ContainsFunc(ck.Names(), func(n string) bool { return strings.HasSuffix(n, ".weight_scale") }) {
		c.confidence = ck.Has("confidence_head.proj.weight") // the config of NVFP4 files does not know
	}
	d := &DSpark{c: c, head: openHead("dspark", ck, host, func(name string) bool { return strings.HasPrefix(name, "log_snr_embed.") })}
	if err := d.build(ck); err != nil {
		d.Close()
		return nil, fmt.Errorf("drafter %s: %w", ck.Path(), err)
	}
	return d, nil
}

func (d *DSpark) build(ck *checkpoint.Checkpoint) error {
	c, l, m := d.c, d.load, d.host.Model
	if err := d.fits(c.shape); err != nil {
		return err
	}
	norm := l.Vector
	if c.offsetNorm {
		norm = l.Centred
	}
	d.embed, d.embedScale = m.Embedding, m.EmbedScale
	if l.Has("embed_tokens.weight") {
		d.embed, d.embedScale = l.Weight("embed_tokens", c.vocab, c.hidden), 1
		if c.gemma {
			d.embedScale = float32(math.Sqrt(float64(c.hidden)))
		}
	} else if c.vocab > m.Vocab {
		return fmt.Errorf("it has no embedding and its vocabulary is %d, the target's %d; it was made for another model", c.vocab, m.Vocab)
	}
	switch {
	case l.Has("lm_head.weight"):
		d.out = l.Weight("lm_head", c.draftVocab, c.hidden)
	case c.draftVocab != c.vocab:
		return errors.New("it has a reduced vocabulary but no lm_head")
	case c.vocab > m.Head.Rows:
		return fmt.Errorf("it has no lm_head and its vocabulary is %d, the target's %d; it was made for another model", c.vocab, m.Head.Rows)
	default:
		d.out = m.Head
	}
	d.fc = l.Linear("fc", c.hidden, len(c.taps)*c.hidden, false)
	d.ctxNorm = norm("hidden_norm.weight", c.hidden)
	d.norm = norm("norm.weight", c.hidden)
	dims := c.rope.dims
	if dims == 0 {
		dims = c.dim
	}
	d.rope = l.Rope(c.rope.config(), dims, c.rope.theta, c.rope.interleaved)
	if c.gemma {
		d.scale, d.act = 1, compute.ActGeGLU
	}
	spec := compute.CacheSpec{Kind: compute.CacheFull, Heads: c.kvHeads, KDim: c.dim, VDim: c.dim}
	if c.window > 0 {
		spec.Kind, spec.Window = compute.CacheWindow, c.window
	}
	var specs []compute.CacheSpec
	for i := 0; i < c.layers && l.Err() == nil; i++ {
		d.layers = append(d.layers, d.layer(fmt.Sprintf("layers.%d.", i), norm))
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
	if err := d.ready(specs); err != nil {
		return err
	}
	if n := d.host.Frequent; n > 0 && n < c.draftVocab && c.draftVocab == c.vocab {
		if err := d.shorten(n); err != nil {
			return err
		}
	}
	if !c.logSNR {
		return nil
	}
	return d.conditionSlots(fc1, fc2)
}

// shorten loads the heads of the first n ids once more, by themselves.
func (d *DSpark) shorten(n int) (err error) {
	v := &d.frequent
	b := d.host.Backend
	if v.out, err = b.Load(d.out.RowRange(0, n)); err == nil && d.w2 != nil {
		v.w2, err = b.Load(d.w2.RowRange(0, n))
	}
	v.ids = n
	return err
}

// WeightBytes implements Drafter.
func (d *DSpark) WeightBytes() int64 {
	n := d.head.WeightBytes()
	for _, w := range []*compute.Weight{d.frequent.out, d.frequent.w2} {
		if w != nil && w.Repacked {
			n += w.Bytes()
		}
	}
	return n
}

// Close implements Drafter.
func (d *DSpark) Close() {
	for _, w := range []*compute.Weight{d.frequent.out, d.frequent.w2} {
		if w != nil {
			d.host.Backend.Unload(w)
		}
	}
	d.frequent = vocabulary{}
	d.head.Close()
}

func (d *DSpark) layer(p string, norm func(string, int) compute.View) layer {
	c, l := d.c, d.load
	qRows := c.heads * c.dim
	if c.gated {
		qRows *= 2
	}
	w := layer{
		attnNorm: norm(p+"input_layernorm.weight", c.hidden),
		qNorm:    norm(p+"self_attn.q_norm.weight", c.dim),
		kNorm:    norm(p+"self_attn.k_norm.weight", c.dim),
		q:        l.Linear(p+"self_attn.q_proj", qRows, c.hidden, c.attnBias),
		k:        l.Linear(p+"self_attn.k_proj", c.kvHeads*c.dim, c.hidden, c.attnBias),
		o:        l.Linear(p+"self_attn.o_proj", c.hidden, c.heads*c.dim, c.attnBias),
		gate:     l.Linear(p+"mlp.gate_proj", c.inter, c.hidden, false),
		up:       l.Linear(p+"mlp.up_proj", c.inter, c.hidden, false),
		down:     l.Linear(p+"mlp.down_proj", c.hidden, c.inter, false),
		gated:    c.gated,
	}
	if !c.noValues {
		w.v = l.Linear(p+"self_attn.v_proj", c.kvHeads*c.dim, c.hidden, c.attnBias)
		w.vNorm = c.gemma
	}
	if c.sink {
		w.sinks = l.Vector(p+"self_attn.attention_sink_bias", c.heads)
	}
	after := norm(p+"post_attention_layernorm.weight", c.hidden)
	if !c.gemma {
		w.mlpNorm = after
		return w
	}
	w.attnAfter = after
	w.mlpNorm = norm(p+"pre_feedforward_layernorm.weight", c.hidden)
	w.mlpAfter = norm(p+"post_feedforward_layernorm.weight", c.hidden)
	if s := l.Vector(p+"layer_scalar", 1); s.Given() {
		w.scalar = s.F32(0)[0]
	}
	return w
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
	seen := make(map[int64]bool, len(off))
	for i, o := range off {
		id := int64(i) + o
		if id < 0 || id >= int64(d.c.vocab) || seen[id] {
			return fmt.Errorf("tensor d2t sends draft token %d to %d, which is outside the vocabulary of %d or already taken", i, id, d.c.vocab)
		}
		seen[id] = true
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
	all := features(d.c.maxSNR)
	for range d.c.block - 1 {
		all = append(all, features(d.c.minSNR)...)
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

// MaxDraft implements Drafter.
func (d *DSpark) MaxDraft() int { return d.c.block - d.c.start }

// HasConfidence reports whether the head can tell how sure it is.
func (d *DSpark) HasConfidence() bool { return d.c.confidence }

// NewContext implements Drafter.
func (d *DSpark) NewContext(from *cache.Seq) (Context, error) {
	x, err := d.newContext(from)
	if err != nil {
		return nil, err
	}
	return &dsparkContext{headContext: x, d: d}, nil
}

type dsparkContext struct {
	headContext
	d    *DSpark
	rare float64 // share of tokens outside d.frequent
}

// Observe implements Context.
func (x *dsparkContext) Observe(tokens []int32, fused compute.View, stop *compute.Stop) error {
	for _, id := range tokens {
		rare := 0.0
		if int(id) >= x.d.frequent.ids {
			rare = 1
		}
		x.rare += (rare - x.rare) / rareMemory
	}
	return x.headContext.Observe(tokens, fused, stop)
}

// vocabulary is what the coming block is drafted from.
func (x *dsparkContext) vocabulary(whole bool) vocabulary {
	if d := x.d; whole || d.frequent.ids == 0 || x.rare >= rareTokens {
		return vocabulary{d.c.draftVocab, d.out, d.w2}
	}
	return x.d.frequent
}

// Propose implements Context.
func (x *dsparkContext) Propose(r Request) (Proposal, error) {
	d, c := x.d, x.d.c
	var p compute.Program
	n, err := x.open(&p, r, d.MaxDraft())
	if n == 0 || err != nil {
		return Proposal{}, err
	}
	width, window := c.block, 0
	if c.causal {
		width = min(width, c.start+n)
	} else {
		if d.host.Spare > 0 && !r.Whole {
			width = min(width, c.start+n+d.host.Spare)
		}
		if c.window == 0 {
			window = d.host.Window
		}
	}
	f, err := x.plan(&p, c.masked(r.Pending, width), c.causal, window)
	if err != nil {
		return Proposal{}, err
	}
	h := d.run(f, d.slotRows(f)).Slice(c.start, c.start+n)
	v := x.vocabulary(r.Whole)
	z := d.logits(f, h, v.out, c.softcap).Columns(0, v.ids) // a borrowed head may be padded
	if r.Sampler.Greedy() {
		return x.greedy(f, h, z, v, r)
	}
	return x.sampled(f, h, z, v, r)
}

// slotRows embeds the block.
func (d *DSpark) slotRows(f *arch.Forward) compute.View {
	x := f.Embed(d.embed, d.embedScale)
	if d.slots.Given() {
		f.P.Add(compute.Binary{Kind: compute.BinAdd, A: x, B: d.slots.Slice(0, x.Rows), Out: x, Scale: 1})
	}
	return x
}

// greedy finishes the block on the device: token ids never leave it before the
// end of the program.
func (x *dsparkContext) greedy(f *arch.Forward, h, z compute.View, v vocabulary, r Request) (Proposal, error) {
	d, n := x.d, z.Rows
	// chain[0] is the pending token, chain[i+1] the draft of slot i.
	chain, err := d.params.Ints(1, append([]int32{r.Pending}, make([]int32, n)...))
	if err != nil {
		return Proposal{}, err
	}
	for i := range n {
		zi, out := z.Slice(i, i+1), chain.Columns(i+1, i+2)
		d.markov(f, v, chain.Columns(i, i+1), zi)
		f.P.Add(compute.Argmax{X: zi, Out: out})
		if d.d2t.Given() {
			f.P.Add(compute.MapIDs{IDs: out, Offset: d.d2t, Out: out})
		}
	}
	conf := d.confident(f, h, chain.Columns(0, n), r)
	if err := compute.Run(d.host.Backend, f.P, r.Stop); err != nil {
		return Proposal{}, err
	}
	return cut(Proposal{Drafted: slices.Clone(chain.I32(0)[1:]), Confidence: column(conf)}, r.Threshold), nil
}

// sampled draws slot by slot on the host, since each draw feeds the next.
func (x *dsparkContext) sampled(f *arch.Forward, h, z compute.View, v vocabulary, r Request) (Proposal, error) {
	d, n := x.d, z.Rows
	x.grow(n)
	chain := []int32{r.Pending}
	for i := range n {
		prev, err := d.params.Ints(1, chain[i:])
		if err != nil {
			return Proposal{}, err
		}
		d.markov(f, v, prev, z.Slice(i, i+1))
		if err := compute.Run(d.host.Backend, f.P, r.Stop); err != nil {
			return Proposal{}, err
		}
		f.P.Reset(compute.LabelDraft)
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
	prev, err := d.params.Ints(1, chain[:n])
	if err != nil {
		return Proposal{}, err
	}
	conf := d.confident(f, h, prev, r)
	if conf.Given() {
		if err := compute.Run(d.host.Backend, f.P, r.Stop); err != nil {
			return Proposal{}, err
		}
	}
	out := cut(Proposal{Drafted: chain[1:], Confidence: column(conf)}, r.Threshold)
	out.Dists = x.dists[:len(out.Tokens)]
	return out, nil
}

// markov adds W2 W1[prev] to the logits of one slot.
func (d *DSpark) markov(f *arch.Forward, v vocabulary, prev, z compute.View) {
	if d.w1 == nil {
		return
	}
	e := f.New(1, d.c.markov)
	f.P.Add(compute.Embed{IDs: prev, W: d.w1, Scale: 1, Out: e},
		compute.Linear{X: e, W: v.w2, Scale: 1, Residual: z, Out: z, Prefill: 1})
}

// confident records sigmoid(w [h ; W1[prev]] + b) for every slot, if the request
// needs it.
func (d *DSpark) confident(f *arch.Forward, h, prev compute.View, r Request) compute.View {
	if r.Threshold <= 0 || !d.c.confidence {
		return compute.View{}
	}
	in := h
	if d.c.confidenceMarkov {
		in = f.New(h.Rows, d.c.hidden+d.c.markov)
		f.P.Add(compute.CopyRows{Src: h, Dst: in.Columns(0, d.c.hidden)},
			compute.Embed{IDs: prev, W: d.w1, Scale: 1, Out: in.Columns(d.c.hidden, in.Cols)})
	}
	out := f.Result(h.Rows, 1)
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
