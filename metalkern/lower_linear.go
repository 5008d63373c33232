package metalkern

import (
	"math/bits"
	"slices"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// The function constants of linear kernels.
const (
	modeRows = iota
	modeHeads
	modeExperts
)

const (
	linBias = 1 << iota
	linUpBias
	linResidual
	linAdapt
	linUpAdapt
	linMag
	linUpMag
	linGated
	linUpReady
)

// linearArgs is LinearArgs of linear.metal.
type linearArgs struct {
	rows, cols                     uint32
	out                            [3]uint32
	tiles                          [2]uint32
	x                              uint32
	outStride                      [3]uint32
	res                            uint32
	scale                          float32
	whole                          [3]float32
	xDiv, biasStride, upBiasStride uint32
	rank, aType, upRank, upType    uint32
	aScale, upScale                float32
}

// linearBinds is the buffers of a linear kernel, in order.
type linearBinds struct {
	x   bind
	set [3]struct{ w, s, b, bias, out bind }
	res bind
	low [2]struct{ t, b, mag bind }
	lst bind
}

func (b *linearBinds) list() []bind {
	all := []bind{b.x}
	for _, s := range b.set {
		all = append(all, s.w, s.s, s.b, s.bias, s.out)
	}
	all = append(all, b.res)
	for _, a := range b.low {
		all = append(all, a.t, a.b, a.mag)
	}
	return append(all, b.lst)
}

// The ways of linear_rows: outputs of a SIMD-group, and SIMD-groups of a
// threadgroup. A lane takes the same columns in all of them, and an output is summed
// by one SIMD-group, so that they give the same bits and may differ by rows.
var _ = vary("linear_rows", way{"4 outputs, 2 SIMD-groups", [4]uint32{4, 2}}, way{"2 outputs, 2 SIMD-groups", [4]uint32{2, 2}}, way{"2 outputs, 4 SIMD-groups", [4]uint32{2, 4}},
	way{"1 output, 8 SIMD-groups", [4]uint32{1, 8}}, way{"4 outputs, 4 SIMD-groups", [4]uint32{4, 4}}, way{"8 outputs, 2 SIMD-groups", [4]uint32{8, 2}})

// The tiles of linear_tiles: rows and outputs. Each element sums over the columns in
// order in all of them.
var _ = vary("linear_tiles", way{"32 x 32", [4]uint32{32, 32}}, way{"64 x 32", [4]uint32{64, 32}}, way{"32 x 64", [4]uint32{32, 64}})

// rowsOfTile is the largest tile of linear_rows.
const rowsOfTile = 16

// tile is how a linear kernel cuts its work: ROWS, OUTS and SIMDS of linear.metal.
type tile struct {
	rows, outs, simds int
	key               Key // of the choice; none where there was none
}

// wide is the outputs of a threadgroup.
func (t tile) wide() int { return t.outs * t.simds }

// linearKey is the class of a matrix for a choice of variants.
func linearKey(kernel string, w *compute.Weight, gated bool, rows int) Key {
	f := format(w)
	return Key{kernel, [8]uint32{f[0], f[1], f[2], f[3], u32(bits.Len(uint(w.Rows))), u32(bits.Len(uint(w.Cols))), flag(gated, 1), u32(rows)}}
}

// rowTile is the tile of linear_rows for n rows: what a SIMD-group sums at once, and
// so its registers, is bounded.
func (l *lowerer) rowTile(w *compute.Weight, gated bool, n int) tile {
	rows := 1
	for ; rows < min(n, rowsOfTile); rows *= 2 {
	}
	k := linearKey("linear_rows", w, gated, rows)
	v := l.pick(k)
	most := 32 / rows
	if rows == rowsOfTile && !gated {
		most = 4
	}
	return tile{rows, max(min(int(v.Values[0]), most), min(rows, 2)), int(v.Values[1]), k}
}

// matrixTile is the tile of linear_tiles for n rows.
func (l *lowerer) matrixTile(w *compute.Weight, gated bool, n int) tile {
	if n <= rowsOfTile {
		return tile{rowsOfTile, 64, 1, Key{}}
	}
	k := linearKey("linear_tiles", w, gated, int(flag(w.Batch > 0, 1)))
	v := l.pick(k)
	return tile{int(v.Values[0]), int(v.Values[1]), 1, k}
}

// shared is the threadgroup memory of linear_tiles: a step of x and of each matrix,
// or the results.
func (t tile) shared(matrices int) int {
	const step, pad = 32, 4
	return 4 * max(t.rows*(step+pad)+matrices*step*(t.outs+pad), matrices*t.rows*(t.outs+pad))
}

// linearConstants is the function constants of a linear kernel.
func linearConstants(w *compute.Weight, mode, act, flags uint32, sets int, t tile) []uint32 {
	f := format(w)
	return append(f[:], mode, act, flags, u32(sets), u32(t.rows), u32(t.outs), u32(t.simds))
}

// together returns how many of the first ops are projections of the same input
// that one dispatch can make.
func (l *lowerer) together(ops []compute.Op) int {
	first := ops[0].(compute.Linear)
	plain := func(o compute.Linear) bool {
		return o.Up == nil && o.Adapter == nil && !o.Residual.Given()
	}
	n := 1
	for ; plain(first) && n < len(ops) && n < 3; n++ {
		o, ok := ops[n].(compute.Linear)
		if !ok || !plain(o) || o.X != first.X || format(o.W) != format(first.W) || o.Bias.Given() != first.Bias.Given() || o.Out.Type != first.Out.Type || o.Act != first.Act || o.Scale != first.Scale || o.Prefill != first.Prefill {
			break
		}
		before := slices.ContainsFunc(ops[:n], func(p compute.Op) bool {
			out := p.(compute.Linear).Out
			return out.Buf == o.Out.Buf && overlap(out, o.Out) || out.Buf == o.X.Buf && overlap(out, o.X)
		})
		if before || o.Out.Buf == o.X.Buf && overlap(o.Out, o.X) {
			break
		}
	}
	return n
}

// linear gives prefill rows to linear_tiles, however few they are: how a prompt is cut
// into chunks, and what runs beside it, must not change its bits. All others go to
// linear_rows.
func (l *lowerer) linear(ops []compute.Op) error {
	o := ops[0].(compute.Linear)
	n := o.X.Rows
	if n == 0 || o.W.Rows == 0 {
		return nil
	}
	prefill := min(max(o.Prefill, 0), n)
	prompt, done, err := l.handOver(ops, prefill) // the CPU begins
	if err != nil {
		return err
	}
	relaxed := l.options.Relaxed && 8 < prefill && prefill <= rowsOfTile
	if err := l.linearPart(ops, 0, prefill, relaxed); err != nil {
		return err
	}
	if err := l.linearPart(prompt, prefill, n, true); err != nil {
		return err
	}
	return done()
}

// linearPart serves rows [lo, hi).
func (l *lowerer) linearPart(ops []compute.Op, lo, hi int, tiled bool) error {
	if lo == hi {
		return nil
	}
	o := ops[0].(compute.Linear)
	x := o.X.Slice(lo, hi)
	a := linearArgs{rows: u32(hi - lo), cols: u32(o.W.Cols), x: u32(o.X.Stride), scale: o.Scale, xDiv: 1}
	b := linearBinds{x: l.in(x)}
	flags := flag(o.Bias.Given(), linBias) | flag(o.UpBias.Given(), linUpBias) | flag(o.Residual.Given(), linResidual) | flag(o.Up != nil, linGated)
	gated := o.Up != nil && format(o.Up) == format(o.W)
	cut := l.rowTile
	if tiled {
		cut = l.matrixTile
	}
	t := cut(o.W, gated, hi-lo)
	groups := 0
	for i, op := range ops {
		p := op.(compute.Linear)
		s := &b.set[i]
		s.w, s.s, s.b = l.weight(p.W)
		s.bias, s.out = l.in(p.Bias), l.out(p.Out.Slice(lo, hi))
		a.out[i], a.outStride[i], a.whole[i] = u32(p.W.Rows), u32(p.Out.Stride), p.W.GlobalScale
		if i > 0 {
			a.tiles[i-1] = u32(groups)
		}
		groups += ceil(p.W.Rows, t.wide())
	}
	if o.Residual.Given() {
		res := o.Residual.Slice(lo, hi)
		b.res, a.res = l.in(res), u32(res.Stride)
	}
	if gated {
		s := &b.set[1]
		s.w, s.s, s.b = l.weight(o.Up)
		s.bias, a.whole[1] = l.in(o.UpBias), o.Up.GlobalScale
	} else if o.Up != nil {
		m, err := l.upFirst(o, lo, hi, tiled)
		if err != nil {
			return err
		}
		b.low[1].t = memory(m, false)
		flags = flags&^(linGated|linUpBias) | linUpReady
		o.UpAdapter = nil
	}
	for i, ad := range []*compute.Adapter{o.Adapter, o.UpAdapter} {
		if ad == nil {
			continue
		}
		t, err := l.lowRank(ad, x, i)
		if err != nil {
			return err
		}
		b.low[i].t = memory(t, false)
		b.low[i].b, _, _ = l.weight(ad.B)
		b.low[i].mag = l.in(ad.Mag)
		if i == 0 {
			flags |= linAdapt | flag(ad.Mag.Given(), linMag)
			a.rank, a.aType, a.aScale = u32(ad.B.Cols), uint32(ad.B.DType), ad.Scale
		} else {
			flags |= linUpAdapt | flag(ad.Mag.Given(), linUpMag)
			a.upRank, a.upType, a.upScale = u32(ad.B.Cols), uint32(ad.B.DType), ad.Scale
		}
	}
	d := dispatch{kernel: "linear_rows", key: t.key, types: types(o.X, o.Residual, o.Out), constants: linearConstants(o.W, modeRows, uint32(o.Act), flags, len(ops), t), groups: [3]int{groups, ceil(hi-lo, t.rows)}, threads: 32 * t.simds}
	if tiled {
		d.kernel, d.threads, d.shared = "linear_tiles", 128, t.shared(1+int(flag(gated, 1)))
	}
	return add(l, d, a, b.list()...)
}

// upFirst makes the up values of rows [lo, hi) of a gated Linear in work memory:
// the way when its two matrices are stored in different formats.
func (l *lowerer) upFirst(o compute.Linear, lo, hi int, tiled bool) (Memory, error) {
	m, err := l.ups.get(l.dev, 4*(hi-lo)*o.Up.Rows)
	if err != nil {
		return m, err
	}
	buf := compute.NewBuffer(workMemory, m.Bytes, m, nil)
	up := compute.Linear{X: o.X.Slice(lo, hi), W: o.Up, Bias: o.UpBias, Adapter: o.UpAdapter, Scale: 1, Out: buf.Of(layout.F32, 0, hi-lo, o.Up.Rows)}
	return m, l.linearPart([]compute.Op{up}, 0, hi-lo, tiled)
}

// lowRank makes A x of each row in work memory.
func (l *lowerer) lowRank(ad *compute.Adapter, x compute.View, which int) (Memory, error) {
	t, err := l.ranks[which].get(l.dev, max(4*x.Rows*ad.A.Rows, 16))
	if err != nil || ad.A.Rows == 0 {
		return t, err
	}
	a := linearArgs{rows: u32(x.Rows), cols: u32(ad.A.Cols), out: [3]uint32{u32(ad.A.Rows)}, x: u32(x.Stride), outStride: [3]uint32{u32(ad.A.Rows)}, scale: 1, xDiv: 1}
	b := linearBinds{x: l.in(x)}
	s := &b.set[0]
	s.w, s.s, s.b = l.weight(ad.A)
	s.out = memory(t, true)
	cut := l.rowTile(ad.A, false, x.Rows)
	return t, add(l, dispatch{kernel: "linear_rows", key: cut.key, types: types(x), constants: linearConstants(ad.A, modeRows, 0, 0, 1, cut), groups: [3]int{ceil(ad.A.Rows, cut.wide()), ceil(x.Rows, cut.rows)}, threads: 32 * cut.simds}, a, b.list()...)
}

func (l *lowerer) headLinear(o compute.HeadLinear) error {
	if o.X.Rows == 0 || o.W.Rows == 0 {
		return nil
	}
	a := linearArgs{rows: u32(o.X.Rows), cols: u32(o.W.Cols), out: [3]uint32{u32(o.W.Rows)}, x: u32(o.X.Stride), outStride: [3]uint32{u32(o.Out.Stride)}, scale: 1, whole: [3]float32{o.W.GlobalScale}, xDiv: 1}
	b := linearBinds{x: l.in(o.X)}
	s := &b.set[0]
	s.w, s.s, s.b = l.weight(o.W)
	s.out = l.out(o.Out)
	t := l.rowTile(o.W, false, o.X.Rows)
	return add(l, dispatch{kernel: "linear_rows", key: t.key, types: types(o.X, compute.View{}, o.Out), constants: linearConstants(o.W, modeHeads, 0, 0, 1, t), groups: [3]int{ceil(o.W.Rows, t.wide()), ceil(o.X.Rows, t.rows), o.W.Batch}, threads: 32 * t.simds}, a, b.list()...)
}

type sortArgs struct{ pairs, topK, experts, room, ids, outStride, out uint32 }

// moeLinear gives prefill rows to linear_tiles and all others to linear_rows, as linear
// does.
func (l *lowerer) moeLinear(o compute.MoELinear) error {
	n := o.IDs.Rows
	if o.Out.Rows == 0 || o.W.Rows == 0 {
		return nil
	}
	prefill := min(max(o.Prefill, 0), n)
	part := func(lo, hi int) compute.MoELinear {
		p := o
		each := o.X.Rows / n
		p.X, p.IDs, p.Out = o.X.Slice(lo*each, hi*each), o.IDs.Slice(lo, hi), o.Out.Slice(lo*o.IDs.Cols, hi*o.IDs.Cols)
		return p
	}
	if err := l.moePart(part(0, prefill), false); err != nil {
		return err
	}
	return l.moePart(part(prefill, n), true)
}

// moePart groups the (row, choice) pairs by expert on the device; then each expert in
// use meets all of its rows, so its weights are read once.
func (l *lowerer) moePart(o compute.MoELinear, tiled bool) error {
	pairs := o.Out.Rows
	var ready Memory // the up values, when they are made first
	if pairs == 0 {
		return nil
	}
	if o.Up != nil && format(o.Up) != format(o.W) {
		m, err := l.ups.get(l.dev, 4*pairs*o.Up.Rows)
		if err != nil {
			return err
		}
		buf := compute.NewBuffer(workMemory, m.Bytes, m, nil)
		up := compute.MoELinear{X: o.X, IDs: o.IDs, W: o.Up, Bias: o.UpBias, Out: buf.Of(layout.F32, 0, pairs, o.Up.Rows)}
		if err := l.moePart(up, tiled); err != nil {
			return err
		}
		ready = m
	}
	room := min(pairs, o.W.Batch)
	list, err := l.experts.get(l.dev, 4*(3+2*room+pairs))
	if err != nil {
		return err
	}
	err = add(l, dispatch{kernel: "sort_experts", types: types(o.Out), groups: [3]int{1}, threads: 256, shared: 8 * o.W.Batch},
		sortArgs{u32(pairs), u32(o.IDs.Cols), u32(o.W.Batch), u32(room), u32(o.IDs.Stride), u32(o.Out.Stride), u32(o.W.Rows)}, l.in(o.IDs), memory(list, true), l.out(o.Out))
	if err != nil {
		return err
	}
	a := linearArgs{cols: u32(o.W.Cols), out: [3]uint32{u32(o.W.Rows)}, tiles: [2]uint32{u32(room)}, x: u32(o.X.Stride), outStride: [3]uint32{u32(o.Out.Stride)}, scale: 1,
		whole: [3]float32{o.W.GlobalScale}, xDiv: u32(pairs / o.X.Rows), biasStride: u32(o.Bias.Stride), upBiasStride: u32(o.UpBias.Stride)}
	b := linearBinds{x: l.in(o.X), lst: memory(list, false)}
	s := &b.set[0]
	s.w, s.s, s.b = l.weight(o.W)
	s.bias, s.out = l.in(o.Bias), l.out(o.Out)
	flags := flag(o.Bias.Given(), linBias)
	switch {
	case ready.ID != 0:
		b.low[1].t = memory(ready, false)
		flags |= linUpReady
	case o.Up != nil:
		u := &b.set[1]
		u.w, u.s, u.b = l.weight(o.Up)
		u.bias, a.whole[1] = l.in(o.UpBias), o.Up.GlobalScale
		flags |= linGated | flag(o.UpBias.Given(), linUpBias)
	}
	gated := flags&linGated != 0
	d := dispatch{kernel: "linear_rows"}
	var t tile
	if tiled {
		t = l.matrixTile(o.W, gated, ceil(pairs, room)) // rows of an expert, about
		d.kernel, d.threads, d.shared = "linear_tiles", 128, t.shared(1+int(flag(gated, 1)))
	} else {
		t = l.rowTile(o.W, gated, o.IDs.Rows)
		d.threads = 32 * t.simds
	}
	d.key, d.types, d.constants, d.groups = t.key, types(o.X, compute.View{}, o.Out), linearConstants(o.W, modeExperts, uint32(o.Act), flags, 1, t), [3]int{ceil(o.W.Rows, t.wide()), 1, room}
	return add(l, d, a, b.list()...)
}
