//go:build cgo && unix

package cpu

/*
#include "sb.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// lowerer turns a Program into C op structs. All its memory lies outside the Go
// heap and is reused by the next program.
type lowerer struct {
	threads int
	exact   bool
	alloc   func(label string, bytes int) (*compute.Buffer, error)

	n       int       // ops
	list    memory    // sb_op
	args    arena     // their arguments
	scratch int       // bytes of scratch that a thread needs
	quant   memory    // int8 rows of the activations in quantOf
	quantOf C.sb_view // zero: none
	quantAt C.int64_t // bytes of a row of quant
	// The Linears that op joinable, if it is one, may run together with.
	together []rw
	joinable int

	tables  []ropeTable // cos and sin tables that are still valid
	nTables int
	rank    [2]memory // A x of the adapters of a Linear
	experts memory    // pairs grouped by expert
	parts   memory    // partial results of an op
}

// memory is a block that only grows. A block that it has outgrown stays until the next
// program, because ops of the same one may use it.
type memory struct {
	b   *compute.Buffer
	old []*compute.Buffer
}

// grow makes room for n bytes in m and returns where they are.
func (l *lowerer) grow(m *memory, n int) (C.uintptr_t, error) {
	if m.b == nil || n > len(m.b.Bytes) {
		size := max(n, 1<<16)
		if m.b != nil {
			size = max(size, 2*len(m.b.Bytes))
		}
		b, err := l.alloc("work memory", (size+0xffff)&^0xffff)
		if err != nil {
			return 0, fmt.Errorf("cpu: %w", err)
		}
		if m.b != nil {
			m.old = append(m.old, m.b)
		}
		m.b = b
	}
	return m.at(), nil
}

// at is where its bytes are.
func (m *memory) at() C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(&m.b.Bytes[0]))) }

// trim frees outgrown blocks; between programs only.
func (m *memory) trim() {
	for _, b := range m.old {
		b.Close()
	}
	m.old = m.old[:0]
}

func (m *memory) free() {
	m.trim()
	if m.b != nil {
		m.b.Close()
		m.b = nil
	}
}

// arena holds argument structs in blocks that never move.
type arena struct {
	blocks   []*compute.Buffer
	at, used int
}

const arenaBlock = 1 << 18

// argument makes room for an argument struct.
func (l *lowerer) argument(n int) (unsafe.Pointer, error) {
	a := &l.args
	n = (n + 15) &^ 15
	if a.at < len(a.blocks) && a.used+n > arenaBlock {
		a.at, a.used = a.at+1, 0
	}
	if a.at == len(a.blocks) {
		b, err := l.alloc("program", arenaBlock)
		if err != nil {
			return nil, fmt.Errorf("cpu: %w", err)
		}
		a.blocks = append(a.blocks, b)
	}
	p := unsafe.Pointer(&a.blocks[a.at].Bytes[a.used])
	a.used += n
	return p, nil
}

func (l *lowerer) memories() []*memory {
	return []*memory{&l.list, &l.quant, &l.rank[0], &l.rank[1], &l.experts, &l.parts}
}

func (l *lowerer) close() {
	for _, m := range l.memories() {
		m.free()
	}
	for i := range l.tables {
		l.tables[i].mem.free()
	}
	for _, b := range l.args.blocks {
		b.Close()
	}
	l.args = arena{}
}

// ops returns the lowered program.
func (l *lowerer) ops() *C.sb_op {
	if l.n == 0 {
		return nil
	}
	return (*C.sb_op)(unsafe.Pointer(&l.list.b.Bytes[0]))
}

// add appends an op; chunks 0 drops it.
func add[T any](l *lowerer, kind C.int32_t, chunks int, args T) error {
	if chunks <= 0 {
		return nil
	}
	if chunks > 1<<30 {
		return fmt.Errorf("cpu: an op of %d chunks is too large", chunks)
	}
	p, err := l.argument(int(unsafe.Sizeof(args)))
	if err != nil {
		return err
	}
	*(*T)(p) = args
	const size = int(C.sizeof_sb_op)
	old := l.list.b
	if _, err := l.grow(&l.list, (l.n+1)*size); err != nil {
		return err
	}
	if old != nil && old != l.list.b {
		copy(l.list.b.Bytes, old.Bytes)
	}
	op := (*C.sb_op)(unsafe.Pointer(&l.list.b.Bytes[l.n*size]))
	*op = C.sb_op{kind: kind, chunks: C.int32_t(chunks), args: C.uintptr_t(uintptr(p))}
	l.n++
	return nil
}

// reset forgets the last program.
func (l *lowerer) reset() {
	l.n, l.args.at, l.args.used = 0, 0, 0
	l.together, l.joinable = l.together[:0], 0
	l.quantOf, l.nTables = C.sb_view{}, 0
	for _, m := range l.memories() {
		m.trim()
	}
	for i := range l.tables {
		l.tables[i].mem.trim()
	}
}

func (l *lowerer) program(p *compute.Program) error {
	l.reset()
	for i, op := range p.Ops {
		if err := l.op(op); err != nil {
			return fmt.Errorf("op %d %T: %w", i, op, err)
		}
	}
	return nil
}

func (l *lowerer) op(op compute.Op) error {
	switch o := op.(type) {
	case compute.Embed:
		return l.embed(o)
	case compute.Norm:
		return l.norm(o)
	case compute.Linear:
		return l.linear(o)
	case compute.HeadLinear:
		return l.headLinear(o)
	case compute.RoPE:
		return l.rope(o)
	case compute.KVWrite:
		return l.kvWrite(o)
	case compute.Attention:
		return l.attention(o)
	case compute.MoERoute:
		return l.route(o)
	case compute.MoELinear:
		return l.moeLinear(o)
	case compute.MoECombine:
		l.wrote(o.Out)
		return add(l, C.SB_COMBINE, o.Out.Rows, C.sb_combine{x: view(o.X), weights: view(o.Weights), shared: view(o.Shared), gate: view(o.SharedGate),
			res: view(o.Residual), out: view(o.Out), scale: C.float(o.Scale)})
	case compute.ShortConv:
		return l.conv(o, compute.View{})
	case compute.GatedDelta:
		return l.delta(o, compute.View{})
	case compute.SSMScan:
		return l.ssm(o, compute.View{})
	case compute.StateCommit:
		switch {
		case o.Conv != nil:
			return l.conv(*o.Conv, o.Keep)
		case o.Delta != nil:
			return l.delta(*o.Delta, o.Keep)
		case o.SSM != nil:
			return l.ssm(*o.SSM, o.Keep)
		}
		return errors.New("nothing to commit")
	case compute.Binary:
		l.wrote(o.Out)
		cols, per := pieces(o.A.Cols)
		return add(l, C.SB_BINARY, o.A.Rows*per, C.sb_binary{a: view(o.A), b: view(o.B), out: view(o.Out), kind: C.int32_t(o.Kind),
			bgroup: C.int64_t(o.BGroup), scale: C.float(o.Scale), cols: C.int64_t(cols), per: C.int64_t(per)})
	case compute.Unary:
		l.wrote(o.Out)
		cols, per := pieces(o.X.Cols)
		return add(l, C.SB_UNARY, o.X.Rows*per, C.sb_unary{x: view(o.X), out: view(o.Out), kind: C.int32_t(o.Kind), v: C.float(o.V),
			cols: C.int64_t(cols), per: C.int64_t(per)})
	case compute.CopyRows:
		l.wrote(o.Dst)
		return add(l, C.SB_COPY, o.Dst.Rows, C.sb_copy{src: view(o.Src), dst: view(o.Dst), index: view(o.Index)})
	case compute.Argmax:
		l.wrote(o.Out)
		return l.reduce(C.SB_ARGMAX, o.X, o.Out)
	case compute.LogSumExp:
		l.wrote(o.Out)
		return l.reduce(C.SB_LSE, o.X, o.Out)
	case compute.TopK:
		return l.topK(o)
	case compute.MapIDs:
		l.wrote(o.Out)
		return add(l, C.SB_MAPIDS, min(o.IDs.Cols, 1), C.sb_mapids{ids: view(o.IDs), offset: view(o.Offset), out: view(o.Out)})
	case compute.BlockConv:
		l.wrote(o.Out)
		return add(l, C.SB_BLOCKCONV, o.X.Rows, C.sb_blockconv{x: view(o.X), base: view(o.Base), p: view(o.P), out: view(o.Out),
			group: C.int64_t(o.Group), block: C.int64_t(o.Block)})
	case compute.PairSelect:
		return l.pairSelect(o)
	}
	return errors.New("the CPU backend does not know this op")
}

// view returns v for C.
func view(v compute.View) C.sb_view {
	if !v.Given() {
		return C.sb_view{}
	}
	c := C.sb_view{rows: C.int64_t(v.Rows), cols: C.int64_t(v.Cols), stride: C.int64_t(v.Stride)}
	if len(v.Buf.Bytes) > 0 {
		c.p = C.uintptr_t(uintptr(unsafe.Pointer(&v.Buf.Bytes[0])) + uintptr(v.Off))
	} else {
		c.p = 1 // given, and empty: never read
	}
	return c
}

func weight(w *compute.Weight) (C.uintptr_t, error) {
	if w == nil {
		return 0, nil
	}
	h, ok := w.Handle.(*loaded)
	if !ok {
		return 0, fmt.Errorf("weight %s is not loaded in this backend", w.Name)
	}
	return C.uintptr_t(uintptr(unsafe.Pointer(h.c))), nil
}

func (l *lowerer) need(floats int) { l.scratch = max(l.scratch, 4*floats+64) }

// padded is padded of dequant.h.
func padded(cols int) int { return (cols + 31) / 32 * 32 }

// pieces cuts the columns of an elementwise op into chunks.
func pieces(cols int) (each, n int) {
	const most = 8192
	return most, (cols + most - 1) / most
}

// rowsOf cuts the rows of a cheap op into even chunks of some thousand elements.
func rowsOf(x compute.View) (each, n int) {
	const elements = 4096
	each = max(1, elements/max(x.Cols, 1))
	n = max(1, (x.Rows+each-1)/each)
	each = (x.Rows + n - 1) / n
	return max(1, each), min(n, x.Rows)
}

// overlap reports whether two views share memory.
func overlap(a, b C.sb_view) bool {
	end := func(v C.sb_view) C.uintptr_t {
		return v.p + C.uintptr_t(4*((v.rows-1)*v.stride+v.cols))
	}
	return a.rows > 0 && b.rows > 0 && a.p < end(b) && b.p < end(a)
}

// wrote forgets what was derived from v.
func (l *lowerer) wrote(v compute.View) {
	if !v.Given() {
		return
	}
	c := view(v)
	if l.quantOf.p != 0 && overlap(l.quantOf, c) {
		l.quantOf = C.sb_view{}
	}
	for i := 0; i < l.nTables; i++ {
		if t := &l.tables[i]; overlap(t.pos, c) || overlap(t.freq, c) {
			t.pos, t.freq = C.sb_view{}, C.sb_view{}
		}
	}
}

func (l *lowerer) embed(o compute.Embed) error {
	w, err := weight(o.W)
	if err != nil {
		return err
	}
	l.wrote(o.Out)
	l.need(padded(o.W.Cols))
	return add(l, C.SB_EMBED, o.Out.Rows, C.sb_embed{ids: view(o.IDs), out: view(o.Out), w: w, scale: C.float(o.Scale)})
}

func (l *lowerer) norm(o compute.Norm) error {
	l.wrote(o.Out)
	group := o.Group
	if group == 0 {
		group = o.X.Cols
	}
	if group == 0 {
		return nil
	}
	rows, n := rowsOf(o.X)
	return add(l, C.SB_NORM, n, C.sb_norm{x: view(o.X), out: view(o.Out), w: view(o.W), gate: view(o.Gate), kind: C.int32_t(o.Kind), place: C.int32_t(o.Place),
		group: C.int64_t(group), eps: C.float(o.Eps), scale: C.float(o.Scale), offset: C.float(o.Offset), rows: C.int64_t(rows)})
}

// quantRows is what a number of rows is padded to, because tiles of AMX read
// sixteen.
const quantRows = 16

// quantized emits the rounding of x to int8, unless the last one was of the
// same rows and nothing has written to them since. It returns 0 when the
// weights do not want it.
func (l *lowerer) quantized(x compute.View, ws ...*compute.Weight) (C.uintptr_t, C.int64_t, error) {
	for _, w := range ws {
		if w != nil && w.Handle.(*loaded).c.packed == 0 {
			return 0, 0, nil
		}
	}
	if l.exact || x.Rows == 0 {
		return 0, 0, nil
	}
	v := view(x)
	if v != l.quantOf {
		l.quantAt = C.int64_t(x.Cols * 2) // a record of int8.h for each 32
		q, err := l.grow(&l.quant, (x.Rows+quantRows-1)/quantRows*quantRows*int(l.quantAt))
		if err != nil {
			return 0, 0, err
		}
		each, n := rowsOf(x)
		if err := add(l, C.SB_QUANT, n, C.sb_quant{x: v, q: q, q_row: l.quantAt, rows: C.int64_t(each)}); err != nil {
			return 0, 0, err
		}
		l.quantOf = v
	}
	return l.quant.at(), l.quantAt, nil
}

// outputs cuts `out` outputs of `cols` columns into chunks of whole blocks of 16,
// about 64 Ki codes each, but at least four chunks a thread where there are so many.
func (l *lowerer) outputs(out, cols, matrices int) (each, n int) {
	const block, codes = 16, 1 << 16
	each = max(codes/max(cols, 1), block)
	if want := (4*l.threads + matrices - 1) / matrices; want > 0 {
		each = min(each, (out+want-1)/want)
	}
	each = (each + block - 1) / block * block
	return each, (out + each - 1) / each
}

// outBlock is OUT_BLOCK of linear.h.
const outBlock = 16

// join lets a Linear, which is op at, run together with those right before it that
// neither read what it writes nor write what it reads or writes.
func (l *lowerer) join(o compute.Linear, at int) {
	if l.n != at+1 || o.Adapter != nil || o.UpAdapter != nil {
		return
	}
	out, in := view(o.Out), [2]C.sb_view{view(o.X), view(o.Residual)}
	free := l.joinable == at // the op before is a Linear like this one
	for _, b := range l.together {
		free = free && !overlap(out, b.out) && !overlap(out, b.in[0]) && !overlap(out, b.in[1]) && !overlap(in[0], b.out) && !overlap(in[1], b.out)
	}
	if free && len(l.together) > 0 {
		(*C.sb_op)(unsafe.Pointer(&l.list.b.Bytes[at*int(C.sizeof_sb_op)])).joined = 1
	} else {
		l.together = l.together[:0]
	}
	l.together, l.joinable = append(l.together, rw{out, in}), at+1
}

// rw is what a Linear writes and reads.
type rw struct {
	out C.sb_view
	in  [2]C.sb_view
}

// needLinear is the scratch of a Linear: rows of W and Up as float32, and a row of
// an adapter.
func (l *lowerer) needLinear(cols, rank int) { l.need(2*outBlock*padded(cols) + padded(rank)) }

func (l *lowerer) linear(o compute.Linear) error {
	w, err := weight(o.W)
	if err != nil {
		return err
	}
	up, err := weight(o.Up)
	if err != nil {
		return err
	}
	ad, err := l.adapter(o.Adapter, o.X, 0)
	if err != nil {
		return err
	}
	upad, err := l.adapter(o.UpAdapter, o.X, 1)
	if err != nil {
		return err
	}
	q, qRow, err := l.quantized(o.X, o.W, o.Up)
	if err != nil {
		return err
	}
	l.wrote(o.Out)
	rank := 0
	for _, a := range []*compute.Adapter{o.Adapter, o.UpAdapter} {
		if a != nil {
			rank = max(rank, a.B.Cols)
		}
	}
	l.needLinear(o.W.Cols, rank)
	each, n := l.outputs(o.W.Rows, o.W.Cols, 1)
	defer l.join(o, l.n)
	return add(l, C.SB_LINEAR, n*min(o.X.Rows, 1), C.sb_linear{x: view(o.X), out: view(o.Out), res: view(o.Residual), bias: view(o.Bias), upbias: view(o.UpBias),
		w: w, up: up, ad: ad, upad: upad, act: C.int32_t(o.Act), scale: C.float(o.Scale), outs: C.int64_t(each), per: C.int64_t(n), q: q, q_row: qRow})
}

// adapter emits t = A x and returns the rest for the epilogue of the Linear.
func (l *lowerer) adapter(a *compute.Adapter, x compute.View, which int) (C.sb_adapter, error) {
	if a == nil {
		return C.sb_adapter{}, nil
	}
	wa, err := weight(a.A)
	if err != nil {
		return C.sb_adapter{}, err
	}
	wb, err := weight(a.B)
	if err != nil {
		return C.sb_adapter{}, err
	}
	t, err := l.grow(&l.rank[which], x.Rows*a.A.Rows*4)
	if err != nil {
		return C.sb_adapter{}, err
	}
	tv := C.sb_view{p: t, rows: C.int64_t(x.Rows), cols: C.int64_t(a.A.Rows), stride: C.int64_t(a.A.Rows)}
	l.needLinear(x.Cols, 0)
	each, n := l.outputs(a.A.Rows, a.A.Cols, 1)
	err = add(l, C.SB_LINEAR, n*min(x.Rows, 1), C.sb_linear{x: view(x), out: tv, w: wa, scale: 1, outs: C.int64_t(each), per: C.int64_t(n)})
	return C.sb_adapter{b: wb, t: tv, mag: view(a.Mag), scale: C.float(a.Scale)}, err
}

func (l *lowerer) headLinear(o compute.HeadLinear) error {
	w, err := weight(o.W)
	if err != nil {
		return err
	}
	l.wrote(o.Out)
	l.needLinear(o.W.Cols, 0)
	each, n := l.outputs(o.W.Rows, o.W.Cols, o.W.Batch)
	return add(l, C.SB_LINEAR, n*o.W.Batch*min(o.X.Rows, 1), C.sb_linear{x: view(o.X), out: view(o.Out), w: w, scale: 1,
		outs: C.int64_t(each), per: C.int64_t(n), heads: C.int64_t(o.W.Batch)})
}

func (l *lowerer) moeLinear(o compute.MoELinear) error {
	w, err := weight(o.W)
	if err != nil {
		return err
	}
	up, err := weight(o.Up)
	if err != nil {
		return err
	}
	pairs := o.Out.Rows
	if pairs == 0 || o.W.Rows == 0 {
		return nil
	}
	q, qRow, err := l.quantized(o.X, o.W, o.Up)
	if err != nil {
		return err
	}
	l.wrote(o.Out)
	used := min(pairs, o.W.Batch)
	list, err := l.grow(&l.experts, 4*(2*used+2+pairs+o.W.Batch+1))
	if err != nil {
		return err
	}
	err = add(l, C.SB_MOESORT, 1, C.sb_moesort{ids: view(o.IDs), out: view(o.Out), list: list, count: list + C.uintptr_t(4*(2*used+2+pairs)),
		experts: C.int64_t(o.W.Batch), cap: C.int64_t(used)})
	if err != nil {
		return err
	}
	l.needLinear(o.W.Cols, 0)
	each, n := l.outputs(o.W.Rows, o.W.Cols, used)
	return add(l, C.SB_LINEAR, n*used, C.sb_linear{x: view(o.X), out: view(o.Out), bias: view(o.Bias), upbias: view(o.UpBias), w: w, up: up,
		act: C.int32_t(o.Act), scale: 1, outs: C.int64_t(each), per: C.int64_t(n), q: q, q_row: qRow,
		list: list, pairs: C.int64_t(pairs), x_div: C.int64_t(pairs / o.X.Rows)})
}

// ropeTable holds cos and sin of the rows of a step.
type ropeTable struct {
	pos, freq C.sb_view
	mem       memory
}

func (l *lowerer) rope(o compute.RoPE) error {
	pos, freq := view(o.Pos), view(o.Freq)
	l.wrote(o.X)
	if o.X.Rows == 0 {
		return nil
	}
	at := -1
	for i := 0; i < l.nTables; i++ {
		if l.tables[i].pos == pos && l.tables[i].freq == freq {
			at = i
		}
	}
	if at < 0 {
		if l.nTables == len(l.tables) {
			l.tables = append(l.tables, ropeTable{})
		}
		at = l.nTables
		l.nTables++
		t := &l.tables[at]
		t.pos, t.freq = pos, freq
		mem, err := l.grow(&t.mem, o.X.Rows*o.Freq.Cols*8)
		if err != nil {
			return err
		}
		if err := add(l, C.SB_ROPETABLE, o.X.Rows, C.sb_ropetable{pos: pos, freq: freq, table: mem}); err != nil {
			return err
		}
	}
	interleaved := C.int32_t(0)
	if o.Interleaved {
		interleaved = 1
	}
	each, n := rowsOf(o.X)
	return add(l, C.SB_ROPE, n, C.sb_rope{x: view(o.X), pos: pos, table: l.tables[at].mem.at(), half: C.int64_t(o.Freq.Cols), head_dim: C.int64_t(o.HeadDim),
		interleaved: interleaved, mul: C.float(o.Mul), qbeta: C.float(o.QBeta), qorig: C.int64_t(o.QOrig), rows: C.int64_t(each)})
}

func kv(k compute.KV) C.sb_kv {
	kb, vb := k.PageSteps()
	c := C.sb_kv{pages: C.int64_t(k.Pages), heads: C.int64_t(k.Heads), kdim: C.int64_t(k.KDim), vdim: C.int64_t(k.VDim), kpage: C.int64_t(kb), vpage: C.int64_t(vb),
		dtype: dtype(k.Type), bits: C.int32_t(k.Bits), group: C.int32_t(k.Group)}
	c.k = view(k.K.Of(layout.U8, 0, 1, 1)).p
	if !k.VInK {
		c.v = view(k.V.Of(layout.U8, 0, 1, 1)).p
	}
	return c
}

func (l *lowerer) kvWrite(o compute.KVWrite) error {
	sides := o.KV.Heads
	if !o.KV.VInK {
		sides *= 2
	}
	const elements = 4096
	each := min(max(1, elements/max(o.Rows.N*max(o.KV.KDim, o.KV.VDim), 1)), sides)
	return add(l, C.SB_KVWRITE, (sides+each-1)/each*min(o.Rows.N, 1), C.sb_kvwrite{k: view(o.K), v: view(o.V), pos: view(o.Rows.Pos), of: view(o.Rows.Of),
		table: view(o.Pages.Table), kv: kv(o.KV), sides: C.int64_t(each)})
}

func (l *lowerer) attention(o compute.Attention) error {
	l.wrote(o.Out)
	per := o.Heads / o.KV.Heads
	c := C.sb_attention{q: view(o.Q), out: view(o.Out), of: view(o.Rows.Of), table: view(o.Pages.Table), lo: view(o.Pages.Lo), hi: view(o.Pages.Hi), sinks: view(o.Sinks),
		kv: kv(o.KV), heads: C.int64_t(o.Heads), scale: C.float(o.Scale), softcap: C.float(o.SoftCap), per: C.int64_t(per), splits: 1}
	// Rows share the pages, and the decoding of quantized ones: many where there are
	// many, but the scores of all their heads must stay in the cache.
	rows := 4
	if o.Rows.N > rows {
		rows = 8
	}
	if o.Rows.N > C.SB_ATTN_ROWS {
		rows = C.SB_ATTN_ROWS
	}
	// Rows of sequences of their own share nothing: as few as give each thread some
	// chunks. Pages that need no decoding can be read twice, which costs less than
	// partial sums.
	share := max((o.Rows.N+o.Rows.Segments-1)/max(o.Rows.Segments, 1), 1)
	if o.KV.Bits == 0 {
		share = 1
	}
	rows = min(rows, max(share, o.Rows.N*o.KV.Heads/(3*l.threads)))
	rows = max(min(rows, 64/per), 1)
	c.rows = C.int64_t(rows)
	// Each query's sums, addresses, values and scores; a page of K and of V.
	queries := (rows*per + 15) / 16 * 16
	l.need(queries*(15+padded(o.KV.VDim)+compute.PageSize) + compute.PageSize*(padded(o.KV.KDim)+padded(o.KV.VDim)) + 64)
	// Few rows over many pages: cut the pages too.
	const most = 1 << 26
	work, blocks := (o.Rows.N+rows-1)/rows*o.KV.Heads, o.Pages.Table.Cols
	size := padded(o.KV.VDim + 2)
	uneven := work < 2*l.threads || work < 4*l.threads && (o.Rows.N%rows != 0 || work%l.threads != 0)
	if bytes := 4 * o.Rows.N * o.Heads * blocks * size; l.threads > 1 && work > 0 && uneven && blocks >= 8 && bytes <= most {
		part, err := l.grow(&l.parts, bytes)
		if err != nil {
			return err
		}
		splits := min((4*l.threads+work-1)/work, blocks/4)
		c.splits, c.part, c.part_size = C.int64_t(splits), part, C.int64_t(size)
		if err := add(l, C.SB_ATTENTION, work*splits, c); err != nil {
			return err
		}
		return add(l, C.SB_ATTNMERGE, o.Rows.N*o.Heads, c)
	}
	return add(l, C.SB_ATTENTION, work, c)
}

func (l *lowerer) route(o compute.MoERoute) error {
	l.wrote(o.IDs)
	l.wrote(o.Weights)
	l.need(5 * (o.Logits.Cols + 1))
	normalize := C.int32_t(0)
	if o.Normalize {
		normalize = 1
	}
	return add(l, C.SB_ROUTE, o.Logits.Rows, C.sb_route{logits: view(o.Logits), bias: view(o.Bias), per_expert: view(o.PerExpert), ids: view(o.IDs), weights: view(o.Weights),
		kind: C.int32_t(o.Kind), normalize: normalize, topk: C.int64_t(o.TopK), groups: C.int64_t(o.Groups), topgroups: C.int64_t(o.TopGroups),
		eps: C.float(o.NormEps), scale: C.float(o.Scale)})
}

func (l *lowerer) state(s compute.State, r compute.Rows, keep compute.View) C.sb_state {
	l.wrote(s.Log)
	return C.sb_state{mem: view(s.Mem), slots: view(s.Slots), log: view(s.Log), start: view(r.Start), keep: view(keep), n: C.int64_t(r.N), segments: C.int64_t(r.Segments)}
}

// stateRows cuts rows of a head's state into chunks.
func (l *lowerer) stateRows(rows, heads int) (each, n int) {
	want := max(1, (4*l.threads+heads-1)/max(heads, 1))
	each = max((rows+want-1)/want, 8)
	return each, (rows + each - 1) / each
}

func (l *lowerer) conv(o compute.ShortConv, keep compute.View) error {
	if o.W.Cols < 1 {
		return errors.New("a convolution without taps")
	}
	if !keep.Given() {
		l.wrote(o.Out)
	}
	const cols = 256
	per := (o.W.Rows + cols - 1) / cols
	l.need(cols * o.W.Cols)
	return add(l, C.SB_CONV, per*o.Rows.Segments, C.sb_conv{x: view(o.X), w: view(o.W), bias: view(o.Bias), out: view(o.Out), st: l.state(o.State, o.Rows, keep),
		act: C.int32_t(o.Act), cols: cols, per: C.int64_t(per)})
}

func (l *lowerer) delta(o compute.GatedDelta, keep compute.View) error {
	if !keep.Given() {
		l.wrote(o.Out)
	}
	each, per := l.stateRows(o.DimV, o.HeadsV)
	l.need(each * o.DimK)
	return add(l, C.SB_DELTA, per*o.HeadsV*o.Rows.Segments, C.sb_delta{q: view(o.Q), k: view(o.K), v: view(o.V), a: view(o.A), b: view(o.B),
		alog: view(o.ALog), dtbias: view(o.DtBias), out: view(o.Out), st: l.state(o.State, o.Rows, keep),
		hk: C.int64_t(o.HeadsK), hv: C.int64_t(o.HeadsV), dk: C.int64_t(o.DimK), dv: C.int64_t(o.DimV), rows: C.int64_t(each), per: C.int64_t(per)})
}

func (l *lowerer) ssm(o compute.SSMScan, keep compute.View) error {
	if !keep.Given() {
		l.wrote(o.Out)
	}
	each, per := l.stateRows(o.Dim, o.Heads)
	l.need(each * o.StateDim)
	return add(l, C.SB_SSM, per*o.Heads*o.Rows.Segments, C.sb_ssm{x: view(o.X), b: view(o.B), c: view(o.C), dt: view(o.Dt),
		alog: view(o.ALog), d: view(o.D), dtbias: view(o.DtBias), out: view(o.Out), st: l.state(o.State, o.Rows, keep),
		heads: C.int64_t(o.Heads), dim: C.int64_t(o.Dim), groups: C.int64_t(o.Groups), sdim: C.int64_t(o.StateDim),
		dtmin: C.float(o.DtMin), dtmax: C.float(o.DtMax), rows: C.int64_t(each), per: C.int64_t(per)})
}

func (l *lowerer) reduce(kind C.int32_t, x, out compute.View) error {
	per := max(1, (x.Cols+C.SB_PART-1)/C.SB_PART)
	part, err := l.grow(&l.parts, x.Rows*per*C.SB_PART_BYTES)
	if err != nil {
		return err
	}
	return add(l, kind, x.Rows*per, C.sb_reduce{x: view(x), out: view(out), part: part, per: C.int64_t(per)})
}

func (l *lowerer) topK(o compute.TopK) error {
	l.wrote(o.IDs)
	l.wrote(o.Vals)
	k, width := o.IDs.Cols, o.X.Cols
	if 16*k <= C.SB_PART {
		width = C.SB_PART
	}
	per := (o.X.Cols + width - 1) / width
	c := C.sb_reduce{x: view(o.X), out: view(o.IDs), vals: view(o.Vals), per: C.int64_t(per), k: C.int64_t(k), width: C.int64_t(width)}
	if per > 1 {
		part, err := l.grow(&l.parts, o.X.Rows*per*8*k)
		if err != nil {
			return err
		}
		c.part = part
	}
	return add(l, C.SB_TOPK, o.X.Rows*per, c)
}

func (l *lowerer) pairSelect(o compute.PairSelect) error {
	a, err := weight(o.A)
	if err != nil {
		return err
	}
	b, err := weight(o.B)
	if err != nil {
		return err
	}
	l.wrote(o.IDs)
	l.wrote(o.Probs)
	l.need(2*padded(o.H.Cols) + padded(o.Unary.Cols))
	return add(l, C.SB_PAIRSELECT, o.Unary.Rows/o.Slots, C.sb_pairselect{unary: view(o.Unary), cand: view(o.Cand), anchor: view(o.Anchor), h: view(o.H),
		uniform: view(o.Uniform), ids: view(o.IDs), probs: view(o.Probs), a: a, b: b, slots: C.int64_t(o.Slots), temperature: C.float(o.Temperature)})
}
