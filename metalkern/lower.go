package metalkern

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// lowerer turns a Program into a List. Its memory is reused by the next program.
type lowerer struct {
	dev     Device
	pipes   *pipelines
	options Options
	choices *choices // nil: the default variants
	list    List
	used    []*compute.Buffer // that the list touches
	seen    map[*compute.Buffer]bool

	split   *splitter         // nil: the CPU takes part in nothing
	share   bool              // the CPU takes part in this program
	work    []compute.Program // of the CPU: the n-th between marks 2n and 2n+1 of the list
	meeting *meeting          // the last one, until the mark that ends it

	fixed         []bool  // by bind: a weight
	keys          []Key   // by dispatch: the choice that made it; none: there was none
	groups        []group // of ops, and what they became
	reads, writes []span  // since the last barrier
	parts         scratch
	ranks         [2]scratch // A x of the adapters of a Linear
	ups           scratch    // up values of a gated Linear whose matrices differ
	experts       scratch    // rows grouped by expert
	floats        scratch    // what the CPU reads and writes as float32
	err           error
}

func (l *lowerer) memories() []*scratch {
	return []*scratch{&l.parts, &l.ranks[0], &l.ranks[1], &l.ups, &l.experts, &l.floats}
}

func (l *lowerer) close() {
	for _, s := range l.memories() {
		s.trim(l.dev)
		if s.mem.ID != 0 {
			l.dev.Free(s.mem)
		}
		*s = scratch{}
	}
}

// program lowers p. Neighbours that one dispatch can do together become one:
// projections of the same input, and the norms and rotations of queries and keys.
func (l *lowerer) program(p *compute.Program) error {
	l.list.Dispatches, l.list.Binds, l.list.Args = l.list.Dispatches[:0], l.list.Binds[:0], l.list.Args[:0]
	l.used, l.reads, l.writes, l.err = l.used[:0], l.reads[:0], l.writes[:0], nil
	if l.seen == nil {
		l.seen = map[*compute.Buffer]bool{}
	}
	clear(l.seen)
	l.fixed, l.keys, l.groups = l.fixed[:0], l.keys[:0], l.groups[:0]
	l.list.Marks, l.work, l.meeting = l.list.Marks[:0], l.work[:0], nil
	l.share = l.split.shares(p)
	for _, s := range l.memories() {
		s.trim(l.dev)
	}
	for i := 0; i < len(p.Ops); {
		first, work := len(l.list.Dispatches), len(l.work)
		n, err := l.op(p.Ops[i:])
		if err = errors.Join(err, l.err); err != nil {
			return fmt.Errorf("op %d %T: %w", i, p.Ops[i], err)
		}
		l.groups = append(l.groups, group{i, n, first, len(l.list.Dispatches), len(l.work) > work})
		i += n
	}
	l.meet()
	return nil
}

// op lowers the first op, or several, and returns how many.
func (l *lowerer) op(ops []compute.Op) (int, error) {
	switch o := ops[0].(type) {
	case compute.Linear:
		n := l.together(ops)
		return n, l.linear(ops[:n])
	case compute.Norm, compute.RoPE:
		if r, n := rotations(ops); n > 0 {
			return n, l.rope(r)
		}
	case compute.StateCommit:
		switch {
		case o.Conv != nil:
			return 1, l.conv(*o.Conv, o.Keep)
		case o.Delta != nil:
			return 1, l.delta(*o.Delta, o.Keep)
		case o.SSM != nil:
			return 1, l.ssm(*o.SSM, o.Keep)
		}
		return 1, errors.New("nothing to commit")
	}
	return 1, l.single(ops[0])
}

func (l *lowerer) single(op compute.Op) error {
	switch o := op.(type) {
	case compute.Embed:
		return l.embed(o)
	case compute.Norm:
		return l.norm(o)
	case compute.HeadLinear:
		return l.headLinear(o)
	case compute.KVWrite:
		return l.kvWrite(o)
	case compute.Attention:
		return l.attention(o)
	case compute.MoERoute:
		return l.route(o)
	case compute.MoELinear:
		return l.moeLinear(o)
	case compute.MoECombine:
		return l.combine(o)
	case compute.ShortConv:
		return l.conv(o, compute.View{})
	case compute.GatedDelta:
		return l.delta(o, compute.View{})
	case compute.SSMScan:
		return l.ssm(o, compute.View{})
	case compute.Binary:
		return l.binary(o)
	case compute.Unary:
		return l.unary(o)
	case compute.CopyRows:
		return l.copyRows(o)
	case compute.Argmax:
		step := u32(o.Out.Stride)
		if o.Out.Rows == 1 {
			step = 1
		}
		return l.choose(o.X, o.Out, compute.View{}, step, 1)
	case compute.TopK:
		return l.choose(o.X, o.IDs, o.Vals, u32(o.IDs.Stride), u32(o.IDs.Cols))
	case compute.LogSumExp:
		return add(l, dispatch{kernel: "log_sum_exp", types: types(o.X, o.Out), groups: [3]int{o.X.Rows}, threads: 256, shared: 64}, chooseArgs{cols: u32(o.X.Cols), x: u32(o.X.Stride), out: u32(o.Out.Stride)},
			l.in(o.X), l.out(o.Out))
	case compute.MapIDs:
		return add(l, dispatch{kernel: "map_ids", groups: [3]int{blocks(o.IDs.Cols)}, threads: 256}, mapArgs{u32(o.IDs.Cols), u32(o.Offset.Cols)}, l.in(o.IDs), l.in(o.Offset), l.out(o.Out))
	case compute.BlockConv:
		return l.blockConv(o)
	case compute.PairSelect:
		return l.pairSelect(o)
	}
	return errors.New("the Metal backend does not know this op")
}

// bind is a buffer argument and what the kernel does with it.
type bind struct {
	Bind
	reads, writes bool
}

// types is TYPES of common.h: what each activation of a kernel is, in its order.
func types(activations ...compute.View) (all uint32) {
	for i, v := range activations {
		switch v.Type {
		case layout.F16:
			all |= 1 << (2 * i)
		case layout.BF16:
			all |= 2 << (2 * i)
		}
	}
	return all
}

// dispatch is a kernel with its function constants, in order, and its grid.
type dispatch struct {
	kernel    string
	key       Key    // of the choice of variants that it comes from, if any
	types     uint32 // of its activations, see types
	constants []uint32
	groups    [3]int // 0 = 1, but the first
	threads   int
	shared    int // bytes of threadgroup memory
}

// add appends a dispatch, behind a barrier if it needs one; an empty grid is
// dropped. args is a struct of 32-bit fields.
func add[T any](l *lowerer, d dispatch, args T, binds ...bind) error {
	if l.err != nil {
		return l.err
	}
	x := Dispatch{Threads: uint32(d.threads), Binds: uint32(len(binds)), Bind: uint32(len(l.list.Binds)), Shared: uint32(d.shared+15) &^ 15}
	for i, n := range d.groups {
		if n == 0 && i > 0 {
			n = 1
		}
		if n <= 0 {
			return nil
		}
		x.Groups[i] = uint32(n)
	}
	if d.shared > maxShared {
		return fmt.Errorf("%w: kernel %s needs %d bytes of threadgroup memory, there are %d", compute.ErrUnfit, d.kernel, d.shared, maxShared)
	}
	v := variant{kernel: d.kernel, n: 1 + len(d.constants)}
	v.constants[0] = d.types
	copy(v.constants[1:], d.constants)
	var err error
	if x.Pipeline, err = l.pipes.get(v); err != nil {
		return err
	}
	if l.meeting.concerns(binds) {
		l.meet()
	}
	for _, b := range binds {
		l.list.Binds = append(l.list.Binds, b.Bind)
		l.fixed = append(l.fixed, b.Len > 0 && !b.reads && !b.writes)
		if s := (span{b.Buffer, b.Off, b.Off + b.Len}); overlaps(l.writes, s) && b.Len > 0 || b.writes && overlaps(l.reads, s) {
			x.Barrier = 1
		}
	}
	if x.Barrier == 1 {
		l.reads, l.writes = l.reads[:0], l.writes[:0]
	}
	for _, b := range binds {
		s := span{b.Buffer, b.Off, b.Off + b.Len}
		if b.reads {
			l.reads = append(l.reads, s)
		}
		if b.writes {
			l.writes = append(l.writes, s)
		}
	}
	for len(l.list.Args)%16 != 0 {
		l.list.Args = append(l.list.Args, 0)
	}
	x.Args, x.ArgBytes = uint32(len(l.list.Args)), uint32(unsafe.Sizeof(args))
	l.list.Args = append(l.list.Args, unsafe.Slice((*byte)(unsafe.Pointer(&args)), unsafe.Sizeof(args))...)
	l.list.Dispatches, l.keys = append(l.list.Dispatches, x), append(l.keys, d.key)
	return nil
}

// workMemory labels work memory that is seen as a buffer: the lowerer owns it.
const workMemory = "work memory"

// maxShared is the threadgroup memory of every Apple GPU.
const maxShared = 32768

func u32(n int) uint32 { return uint32(n) }

func flag(on bool, bit uint32) uint32 {
	if on {
		return bit
	}
	return 0
}

func ceil(n, d int) int { return (n + d - 1) / d }

// blocks is how many threadgroups of 256 threads n elements take.
func blocks(n int) int { return ceil(n, 256) }

// view binds what v covers.
func (l *lowerer) view(v compute.View) bind {
	if !v.Given() || v.Rows == 0 || v.Cols == 0 {
		return bind{}
	}
	return l.buffer(v.Buf, v.Off, ((v.Rows-1)*v.Stride+v.Cols)*v.Type.Size())
}

func (l *lowerer) buffer(buf *compute.Buffer, off, n int) bind {
	m, ok := buf.Handle.(Memory)
	if !ok {
		if l.err == nil {
			l.err = fmt.Errorf("buffer %s does not belong to this backend", buf.Label)
		}
		return bind{}
	}
	if !l.seen[buf] && buf.Label != workMemory {
		l.seen[buf] = true
		l.used = append(l.used, buf)
	}
	return bind{Bind: Bind{Buffer: m.ID, Off: m.Off + uint64(off), Len: uint64(n)}}
}

func (l *lowerer) in(v compute.View) bind {
	b := l.view(v)
	b.reads = b.Buffer != 0
	return b
}

func (l *lowerer) out(v compute.View) bind {
	b := l.view(v)
	b.writes = b.Buffer != 0
	return b
}

func (l *lowerer) inout(v compute.View) bind {
	b := l.in(v)
	b.writes = b.reads
	return b
}

// memory binds scratch.
func memory(m Memory, writes bool) bind {
	return bind{Bind{Buffer: m.ID, Off: m.Off, Len: uint64(len(m.Bytes))}, !writes, writes}
}

// weight binds codes, scales and biases. Weights never change, so no barrier is
// ever due to them.
func (l *lowerer) weight(w *compute.Weight) (weight, scales, biases bind) {
	if w == nil {
		return
	}
	h, ok := w.Handle.(*loaded)
	if !ok {
		l.err = fmt.Errorf("weight %s does not belong to this backend", w.Name)
		return
	}
	at := func(m Memory) bind { return bind{Bind: Bind{Buffer: m.ID, Off: m.Off, Len: uint64(len(m.Bytes))}} }
	return at(h.weight), at(h.scales), at(h.biases)
}

// format is the function constants that say how weights are stored.
func format(w *compute.Weight) [4]uint32 {
	return [4]uint32{uint32(w.Scheme), u32(w.Bits), u32(max(w.Group, 1)), uint32(w.DType)}
}

type embedArgs struct {
	rows, cols, table, out uint32
	scale, whole           float32
}

func (l *lowerer) embed(o compute.Embed) error {
	if o.Out.Rows == 0 {
		return nil
	}
	w, s, b := l.weight(o.W)
	f := format(o.W)
	return add(l, dispatch{kernel: "embed", types: types(o.Out), constants: f[:], groups: [3]int{ceil(o.W.Cols, 256), o.Out.Rows}, threads: 32},
		embedArgs{u32(o.Out.Rows), u32(o.W.Cols), u32(o.W.Rows), u32(o.Out.Stride), o.Scale, o.W.GlobalScale}, l.in(o.IDs), w, s, b, l.out(o.Out))
}

// How many SIMD-groups share a long row of a Norm: it decides how the row is summed,
// so it may depend on the length alone.
var _ = vary("norm", way{Name: "8 SIMD-groups", Values: [4]uint32{8}}, way{Name: "4 SIMD-groups", Values: [4]uint32{4}}, way{Name: "16 SIMD-groups", Values: [4]uint32{16}})

type normArgs struct {
	group, x, out, gate, simds uint32
	eps, scale, offset         float32
}

func (l *lowerer) norm(o compute.Norm) error {
	group := o.Group
	if group == 0 {
		group = o.X.Cols
	}
	if group == 0 || o.X.Rows == 0 {
		return nil
	}
	simds, key := 1, Key{}
	if group > 256 {
		key = Key{Kernel: "norm", Class: [8]uint32{u32(bits.Len(uint(group)))}}
		simds = int(l.pick(key).Values[0])
	}
	const l2, weight, whole, before, after = 1, 2, 4, 8, 16
	flags := flag(o.Kind == compute.L2, l2) | flag(o.W.Given(), weight) | flag(o.W.Given() && o.W.Cols != group, whole) |
		flag(o.Place == compute.GateBefore, before) | flag(o.Place == compute.GateAfter, after)
	return add(l, dispatch{kernel: "norm", key: key, types: types(o.X, o.Gate, o.Out), constants: []uint32{flags}, groups: [3]int{o.X.Cols / group, o.X.Rows}, threads: 32 * simds, shared: 4 * simds},
		normArgs{u32(group), u32(o.X.Stride), u32(o.Out.Stride), u32(o.Gate.Stride), u32(simds), o.Eps, o.Scale, o.Offset}, l.in(o.X), l.in(o.W), l.in(o.Gate), l.out(o.Out))
}

// rotation is a RoPE, and the norm of the heads that comes before it.
type rotation struct {
	rope compute.RoPE
	norm *compute.Norm
}

// rotations returns the rotations that the first ops are, one or two, and how
// many ops that takes; 0 if they are none. Two go together when they turn
// different matrices of the same rows by the same angles.
func rotations(ops []compute.Op) ([]rotation, int) {
	var norms []compute.Norm
	n := 0
	for ; n < len(ops) && n < 2; n++ {
		o, ok := ops[n].(compute.Norm)
		if !ok || o.X != o.Out || o.Kind != compute.RMS || o.Place != compute.GateNone || o.Group == 0 || o.W.Given() && o.W.Cols != o.Group {
			break
		}
		norms = append(norms, o)
	}
	var r []rotation
	for ; n < len(ops) && len(r) < 2; n++ {
		o, ok := ops[n].(compute.RoPE)
		if !ok {
			break
		}
		x := rotation{rope: o}
		for i := range norms {
			if norms[i].X == o.X && norms[i].Group == o.HeadDim {
				x.norm = &norms[i]
			}
		}
		if len(r) == 1 && (o.X.Buf == r[0].rope.X.Buf && overlap(o.X, r[0].rope.X) || o.X.Rows != r[0].rope.X.Rows || o.X.Type != r[0].rope.X.Type || o.Pos != r[0].rope.Pos || o.Freq != r[0].rope.Freq ||
			o.HeadDim != r[0].rope.HeadDim || o.Interleaved != r[0].rope.Interleaved || (x.norm == nil) != (r[0].norm == nil) ||
			x.norm != nil && x.norm.W.Given() != r[0].norm.W.Given()) {
			break
		}
		r = append(r, x)
	}
	for i := range norms { // every norm must have found its rotation
		found := false
		for _, x := range r {
			found = found || x.norm == &norms[i]
		}
		if !found {
			return nil, 0
		}
	}
	if len(r) == 0 {
		return nil, 0
	}
	return r, n
}

func overlap(a, b compute.View) bool {
	size := func(v compute.View) int { return ((v.Rows-1)*v.Stride + v.Cols) * v.Type.Size() }
	return a.Off < b.Off+size(b) && b.Off < a.Off+size(a)
}

type ropeArgs struct {
	heads, stride          [2]uint32
	dim, half, interleaved uint32
	mul, beta              [2]float32
	orig                   [2]int32
	eps, scale, offset     [2]float32
}

func (l *lowerer) rope(r []rotation) error {
	o := r[0].rope
	a := ropeArgs{dim: u32(o.HeadDim), half: u32(o.Freq.Cols), interleaved: flag(o.Interleaved, 1)}
	const norm, weight = 1, 2
	var flags uint32
	var x, w [2]bind
	heads := 0
	for i, r := range r {
		h := r.rope.X.Cols / o.HeadDim
		heads += h
		a.heads[i], a.stride[i], a.mul[i], a.beta[i], a.orig[i] = u32(h), u32(r.rope.X.Stride), r.rope.Mul, r.rope.QBeta, int32(r.rope.QOrig)
		x[i] = l.inout(r.rope.X)
		if r.norm != nil {
			flags |= norm | flag(r.norm.W.Given(), weight)
			a.eps[i], a.scale[i], a.offset[i] = r.norm.Eps, r.norm.Scale, r.norm.Offset
			w[i] = l.in(r.norm.W)
		}
	}
	if o.X.Rows == 0 {
		return nil
	}
	return add(l, dispatch{kernel: "rope", types: types(o.X), constants: []uint32{flags}, groups: [3]int{heads, o.X.Rows}, threads: 32}, a,
		x[0], x[1], l.in(o.Pos), l.in(o.Freq), w[0], w[1])
}

type binaryArgs struct {
	cols, a, b, out, group uint32
	scale                  float32
}

func (l *lowerer) binary(o compute.Binary) error {
	b := o.B.Stride
	if o.B.Rows == 1 {
		b = 0
	}
	if o.A.Rows == 0 {
		return nil
	}
	return add(l, dispatch{kernel: "binary", types: types(o.A, o.B, o.Out), constants: []uint32{0, uint32(o.Kind)}, groups: [3]int{blocks(o.A.Cols), o.A.Rows}, threads: 256},
		binaryArgs{u32(o.A.Cols), u32(o.A.Stride), u32(b), u32(o.Out.Stride), u32(o.BGroup), o.Scale}, l.in(o.A), l.in(o.B), l.out(o.Out))
}

type unaryArgs struct {
	cols, x, out uint32
	v            float32
}

func (l *lowerer) unary(o compute.Unary) error {
	if o.X.Rows == 0 {
		return nil
	}
	return add(l, dispatch{kernel: "unary", types: types(o.X, o.Out), constants: []uint32{0, uint32(o.Kind)}, groups: [3]int{blocks(o.X.Cols), o.X.Rows}, threads: 256},
		unaryArgs{u32(o.X.Cols), u32(o.X.Stride), u32(o.Out.Stride), o.V}, l.in(o.X), l.out(o.Out))
}

type copyArgs struct{ cols, rows, src, dst uint32 }

func (l *lowerer) copyRows(o compute.CopyRows) error {
	if o.Dst.Rows == 0 {
		return nil
	}
	return add(l, dispatch{kernel: "copy_rows", types: types(o.Src, o.Dst), constants: []uint32{flag(o.Index.Given(), 1)}, groups: [3]int{blocks(o.Dst.Cols), o.Dst.Rows}, threads: 256},
		copyArgs{u32(o.Dst.Cols), u32(o.Src.Rows), u32(o.Src.Stride), u32(o.Dst.Stride)}, l.in(o.Src), l.in(o.Index), l.out(o.Dst))
}

type chooseArgs struct{ cols, x, out, vals, k uint32 }

func (l *lowerer) choose(x, ids, vals compute.View, step, k uint32) error {
	return add(l, dispatch{kernel: "choose", types: types(x, vals), constants: []uint32{flag(vals.Given(), 1)}, groups: [3]int{x.Rows}, threads: 256, shared: 64},
		chooseArgs{u32(x.Cols), u32(x.Stride), step, u32(vals.Stride), k}, l.in(x), l.out(ids), l.out(vals))
}

type mapArgs struct{ n, table uint32 }

type blockConvArgs struct{ cols, taps, group, block, x, base, p, out uint32 }

func (l *lowerer) blockConv(o compute.BlockConv) error {
	if o.X.Rows == 0 {
		return nil
	}
	return add(l, dispatch{kernel: "block_conv", types: types(o.X, o.P, o.Out), groups: [3]int{blocks(o.X.Cols), o.X.Rows}, threads: 256},
		blockConvArgs{u32(o.X.Cols), u32(o.Base.Rows), u32(o.Group), u32(o.Block), u32(o.X.Stride), u32(o.Base.Stride), u32(o.P.Stride), u32(o.Out.Stride)},
		l.in(o.X), l.in(o.Base), l.in(o.P), l.out(o.Out))
}

type pairArgs struct {
	slots, k, rank, aRows, bRows, unary, cand, h, probs uint32
	temperature, aWhole, bWhole                         float32
}

func (l *lowerer) pairSelect(o compute.PairSelect) error {
	f := format(o.A)
	if f != format(o.B) {
		return fmt.Errorf("%w: tables of different formats (%v and %v) have no kernel", compute.ErrUnfit, o.A.Matrix, o.B.Matrix)
	}
	aw, as, ab := l.weight(o.A)
	bw, bs, bb := l.weight(o.B)
	const sampled, probs = 1, 2
	c := append(f[:], flag(o.Uniform.Given(), sampled)|flag(o.Probs.Given(), probs))
	return add(l, dispatch{kernel: "pair_select", types: types(o.Unary, o.H, o.Probs), constants: c, groups: [3]int{o.Unary.Rows / o.Slots}, threads: 32, shared: 4 * (o.H.Cols + o.Unary.Cols)},
		pairArgs{u32(o.Slots), u32(o.Unary.Cols), u32(o.H.Cols), u32(o.A.Rows), u32(o.B.Rows), u32(o.Unary.Stride), u32(o.Cand.Stride), u32(o.H.Stride), u32(o.Probs.Stride),
			o.Temperature, o.A.GlobalScale, o.B.GlobalScale},
		l.in(o.Unary), l.in(o.Cand), l.in(o.Anchor), aw, as, ab, bw, bs, bb, l.in(o.H), l.in(o.Uniform), l.out(o.IDs), l.out(o.Probs))
}
