package draft

import (
	"fmt"
	"math"
	"slices"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
	"sparkbar/engine/sample"
)

// shape is what the configurations of DSpark and DFlash heads have in common.
type shape struct {
	hidden, layers, inter int
	heads, kvHeads, dim   int
	vocab                 int
	block                 int // K: slots of a block
	mask                  int32
	taps                  []int
	eps                   float32
	attnBias              bool
}

func (c shape) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("config.json of the drafter: "+format, args...)
	}
	const most = 1 << 24 // far above every published size, far below overflow
	for _, n := range []int{c.hidden, c.layers, c.inter, c.heads, c.kvHeads, c.dim, c.vocab} {
		if n <= 0 || n > most {
			return bad("a size is %d, outside 1 to %d", n, most)
		}
	}
	switch {
	case c.heads%c.kvHeads != 0:
		return bad("%d attention heads do not divide into %d key/value heads", c.heads, c.kvHeads)
	case c.block < 1 || c.block > 1024:
		return bad("block_size %d is outside 1 to 1024", c.block)
	case len(c.taps) == 0 || len(c.taps) > 1024:
		return bad("target_layer_ids names %d layers", len(c.taps))
	case int(c.mask) < 0 || int(c.mask) >= c.vocab:
		return bad("mask_token_id %d is outside the vocabulary of %d", c.mask, c.vocab)
	case !(c.eps > 0):
		return bad("rms_norm_eps is %v", c.eps)
	}
	return nil
}

// head is what DSpark and DFlash share: a few transformer layers that attend
// over keys and values made from the target's hidden states, and over a block of
// slots.
type head struct {
	mode   string
	shape  shape
	host   Host
	load   *arch.Loader
	params *compute.Params
	s      *compute.Scratch
	cache  *cache.Cache

	fc            arch.Linear
	ctxNorm, norm compute.View
	rope          arch.Rope
	layers        []layer
	scale         float32 // of attention scores
	act           compute.Act
	group         int // channels of a convolution group
}

// layer is one layer of a head. The first lines are everywhere, the others
// belong to some families.
type layer struct {
	attnNorm, mlpNorm compute.View
	qNorm, kNorm      compute.View
	q, k, v, o        arch.Linear // no v: values are the raw keys, normed
	gate, up, down    arch.Linear

	vNorm               bool         // values are normed per head, without a weight
	gated               bool         // q makes [query | gate] per head
	sinks               compute.View // one logit per head
	attnAfter, mlpAfter compute.View // norms of the sublayers' outputs
	scalar              float32      // factor on the layer's result, 0 = none
	attnConv, mlpConv   *conv        // DFlash 2
	bidirectional       bool         // in a drafter whose other layers are causal
}

// conv is DFlash 2's pair of dynamic convolutions around a sublayer.
type conv struct {
	base compute.View // [2*taps, hidden]: of the input, then of the output
	proj arch.Linear
}

// openHead starts the loader of a head. skip names matrices that keep their
// stored precision.
func openHead(mode string, ck *checkpoint.Checkpoint, host Host, skip func(name string) bool) *head {
	h := &head{mode: mode, host: host, load: arch.NewLoader(ck, host.Backend), act: compute.ActSwiGLU}
	if host.Bits != 0 {
		h.load.Convert = quantizer(max(host.Bits, 2), skip)
	}
	return h
}

// quantizeGroup is the group of columns that shares a scale.
const quantizeGroup = 64

// quantizer quantizes the matrices whose rows are whole groups.
func quantizer(bits int, skip func(name string) bool) func(layout.Matrix) (layout.Matrix, error) {
	return func(m layout.Matrix) (layout.Matrix, error) {
		if m.Scheme != layout.Dense || m.Cols%quantizeGroup != 0 || skip(m.Name) {
			return m, nil
		}
		return m.Quantize(bits, quantizeGroup)
	}
}

// fits checks the head against its target.
func (h *head) fits(c shape) error {
	h.shape = c
	h.scale = float32(1 / math.Sqrt(float64(c.dim)))
	m := h.host.Model
	for _, t := range c.taps {
		if t < 0 || t >= m.Tappable {
			return fmt.Errorf("it reads layer %d of the target, which has %d; it was made for another model", t, m.Tappable)
		}
	}
	if c.hidden != m.Hidden {
		return fmt.Errorf("its hidden size is %d, the target's %d; it was made for another model", c.hidden, m.Hidden)
	}
	return nil
}

// ready finishes loading: every tensor must have been asked for.
func (h *head) ready(specs []compute.CacheSpec) error {
	h.load.Finish()
	if err := h.load.Err(); err != nil {
		return err
	}
	h.params, h.s = compute.NewParams(h.host.Backend), compute.NewScratch(h.host.Backend)
	var err error
	h.cache, err = cache.New(h.host.Backend, specs, cache.Options{Type: layout.F32, Positions: h.host.Positions + h.shape.block, Sequences: h.host.Sequences})
	return err
}

// Mode implements Drafter.
func (h *head) Mode() string { return h.mode }

// Taps implements Drafter.
func (h *head) Taps() []int { return h.shape.taps }

// Cache implements Drafter.
func (h *head) Cache() *cache.Cache { return h.cache }

// WeightBytes implements Drafter.
func (h *head) WeightBytes() int64 { return h.load.Bytes() }

// Close implements Drafter.
func (h *head) Close() {
	if h.cache != nil {
		h.cache.Close()
	}
	if h.params != nil {
		h.params.Close()
		h.s.Close()
	}
	h.load.Close()
}

func (h *head) begin(p *compute.Program) {
	p.Reset(compute.LabelDraft)
	h.params.Next()
	h.s.Reset()
}

// headContext holds, per layer, keys and values of every committed position.
type headContext struct {
	h     *head
	seq   *cache.Seq
	fused compute.View // observed, not yet read
	dists []sample.Dist
}

func (h *head) newContext(from *cache.Seq) (headContext, error) {
	if from == nil {
		var err error
		if from, err = h.cache.NewSeq(); err != nil {
			return headContext{}, err
		}
	}
	return headContext{h: h, seq: from}, nil
}

// Observe implements Context.
func (x *headContext) Observe(_ []int32, fused compute.View, stop *compute.Stop) error {
	if err := x.Flush(stop); err != nil {
		return err
	}
	x.fused = fused
	return nil
}

// Flush implements Context.
func (x *headContext) Flush(stop *compute.Stop) error {
	if !x.fused.Given() {
		return nil
	}
	var p compute.Program
	x.h.begin(&p)
	if err := x.inject(&p); err != nil {
		return err
	}
	return compute.Run(x.h.host.Backend, &p, stop)
}

// Finish implements Context.
func (x *headContext) Finish(stop *compute.Stop) (*cache.Seq, error) {
	if err := x.Flush(stop); err != nil {
		x.Close()
		return nil, err
	}
	s := x.seq
	x.seq = nil
	return s, nil
}

// Close implements Context.
func (x *headContext) Close() { x.seq.Close() }

// open begins the program of a proposal with the observed rows and returns how
// many of at most most slots are wanted. With none it reads the rows at once.
func (x *headContext) open(p *compute.Program, r Request, most int) (int, error) {
	n := min(r.Cap, most)
	if n < 1 {
		return 0, x.Flush(r.Stop)
	}
	x.h.begin(p)
	return n, x.inject(p)
}

// grow makes room for n distributions.
func (x *headContext) grow(n int) {
	for len(x.dists) < n {
		x.dists = append(x.dists, sample.Dist{})
	}
}

// inject records the observed rows into the context: one projection, then each
// layer's keys and values. No attention, no MLP.
func (x *headContext) inject(p *compute.Program) error {
	rows := x.fused.Rows
	fused := x.fused
	x.fused = compute.View{}
	if rows == 0 {
		return nil
	}
	h := x.h
	st, err := h.cache.Plan(p, h.params, []cache.Part{{Seq: x.seq, N: rows}})
	if err != nil {
		return err
	}
	f := &arch.Forward{P: p, S: h.s, Step: st}
	c := h.project(f, fused)
	for i, w := range h.layers {
		mark := h.s.Mark()
		k, v := h.keysValues(f, c, w)
		lc := st.Layers[i]
		p.Add(compute.KVWrite{K: k, V: v, KV: lc.KV, Rows: st.Rows, Pages: lc.Pages})
		h.s.Release(mark)
	}
	x.seq.Advance(rows)
	return nil
}

// project turns fused rows into context rows.
func (h *head) project(f *arch.Forward, fused compute.View) compute.View {
	return f.Norm(f.Linear(fused, h.fc), h.ctxNorm, h.shape.eps)
}

// keysValues makes keys (normed and rotated) and values of rows x.
func (h *head) keysValues(f *arch.Forward, x compute.View, w layer) (k, v compute.View) {
	c := h.shape
	k = f.Linear(x, w.k)
	if w.v.W != nil {
		v = f.Linear(x, w.v)
		if w.vNorm {
			f.HeadNorm(v, compute.View{}, c.eps, c.dim)
		}
	} else {
		v = f.New(k.Rows, k.Cols)
		f.P.Add(compute.Norm{X: k, Out: v, Eps: c.eps, Scale: 1, Group: c.dim})
	}
	f.HeadNorm(k, w.kNorm, c.eps, c.dim)
	f.Rotate(k, h.rope, c.dim)
	return k, v
}

// run is the forward pass of a block x of slots: [pending, mask, ...] attending
// over the context and itself. The result is normed.
func (h *head) run(f *arch.Forward, x compute.View) compute.View {
	c := h.shape
	for i, w := range h.layers {
		mark := h.s.Mark()
		y, after := h.convolve(f, f.Norm(x, w.attnNorm, c.eps), w.attnConv)
		q := f.Linear(y, w.q)
		k, v := h.keysValues(f, y, w)
		var gate compute.View
		if w.gated { // per head [query | gate]
			both := q.Reshape(x.Rows*c.heads, 2*c.dim)
			q = f.New(x.Rows, c.heads*c.dim)
			f.P.Add(compute.CopyRows{Src: both.Columns(0, c.dim), Dst: q.Reshape(x.Rows*c.heads, c.dim)})
			gate = both.Columns(c.dim, 2*c.dim)
		}
		f.HeadNorm(q, w.qNorm, c.eps, c.dim)
		f.Rotate(q, h.rope, c.dim)
		a := f.AttendSinks(q, k, v, i, c.heads, h.scale, w.sinks)
		if gate.Given() {
			heads := a.Reshape(x.Rows*c.heads, c.dim)
			f.P.Add(compute.Binary{Kind: compute.BinSigmoidMul, A: heads, B: gate, Out: heads, Scale: 1})
		}
		h.add(f, x, a, w.o, after, w.attnAfter)

		y, after = h.convolve(f, f.Norm(x, w.mlpNorm, c.eps), w.mlpConv)
		h.add(f, x, f.Gated(y, w.gate, w.up, h.act), w.down, after, w.mlpAfter)
		if w.scalar != 0 {
			f.P.Add(compute.Unary{Kind: compute.UnScale, X: x, Out: x, V: w.scalar})
		}
		h.s.Release(mark)
	}
	return f.Norm(x, h.norm, c.eps)
}

// convolve applies the convolution of a sublayer's input and returns the one of
// its output, whose coefficients come from the same rows.
func (h *head) convolve(f *arch.Forward, x compute.View, w *conv) (compute.View, func(compute.View) compute.View) {
	if w == nil {
		return x, nil
	}
	p := f.Linear(x, w.proj)
	side := func(y compute.View, i int) compute.View {
		out, taps, cols := f.New(y.Rows, y.Cols), w.base.Rows/2, p.Cols/2
		f.P.Add(compute.BlockConv{X: y, Base: w.base.Slice(i*taps, (i+1)*taps), P: p.Columns(i*cols, (i+1)*cols), Group: h.group, Block: h.shape.block, Out: out})
		return out
	}
	return side(x, 0), func(y compute.View) compute.View { return side(y, 1) }
}

// add ends a sublayer: x += norm(conv(y W^T)).
func (h *head) add(f *arch.Forward, x, y compute.View, w arch.Linear, conv func(compute.View) compute.View, norm compute.View) {
	if conv == nil && !norm.Given() {
		f.LinearAdd(y, w, x)
		return
	}
	y = f.Linear(y, w)
	if conv != nil {
		y = conv(y)
	}
	if norm.Given() {
		y = f.Norm(y, norm, h.shape.eps)
	}
	f.P.Add(compute.Binary{Kind: compute.BinAdd, A: x, B: y, Out: x, Scale: 1})
}

// plan lays out the ids of a block after the context. Rows are causal or see the
// whole block; bidirectional layers of a causal head see it all the same.
func (x *headContext) plan(p *compute.Program, ids []int32, causal bool, window int) (*arch.Forward, error) {
	h := x.h
	st, err := h.cache.Plan(p, h.params, []cache.Part{{Seq: x.seq, IDs: ids, Block: !causal, Context: window}})
	if err != nil {
		return nil, err
	}
	if causal && slices.ContainsFunc(h.layers, func(l layer) bool { return l.bidirectional }) {
		hi, err := h.params.Ints(1, slices.Repeat([]int32{int32(x.seq.Len() + len(ids))}, len(ids)))
		if err != nil {
			return nil, err
		}
		for i, l := range h.layers {
			if l.bidirectional {
				st.Layers[i].Pages.Hi = hi
			}
		}
	}
	return &arch.Forward{P: p, S: h.s, Step: st}, nil
}

// masked returns a block: the pending token and n-1 masks.
func (c shape) masked(pending int32, n int) []int32 {
	ids := slices.Repeat([]int32{c.mask}, n)
	ids[0] = pending
	return ids
}

// logits records the head's logits of rows x, softly capped.
func (h *head) logits(f *arch.Forward, x compute.View, w *compute.Weight, softcap float64) compute.View {
	z := f.Result(x.Rows, w.Rows)
	f.P.Add(compute.Linear{X: x, W: w, Scale: 1, Out: z, Prefill: x.Rows})
	if softcap > 0 {
		f.P.Add(compute.Unary{Kind: compute.UnSoftcap, X: z, Out: z, V: float32(softcap)})
	}
	return z
}
