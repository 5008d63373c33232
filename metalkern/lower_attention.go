package metalkern

import (
	"fmt"

	"sparkbar/engine/compute"
)

// cacheArgs is Cache of attention.metal.
type cacheArgs struct{ pages, heads, kdim, vdim, kpage, vpage uint32 }

func cache(kv compute.KV) cacheArgs {
	k, v := kv.PageBytes()
	return cacheArgs{u32(kv.Pages), u32(kv.Heads), u32(kv.KDim), u32(kv.VDim), u32(k), u32(v)}
}

// cacheFormat is the function constants that say how a cache stores elements.
func cacheFormat(kv compute.KV) []uint32 {
	return []uint32{uint32(kv.Type), u32(kv.Bits), u32(max(kv.Group, 1))}
}

// cacheMemory binds all pages of K and V.
func (l *lowerer) cacheMemory(kv compute.KV, writes bool) (k, v bind) {
	kb, vb := kv.PageBytes()
	if kv.Pages == 0 {
		return
	}
	k = l.buffer(kv.K, 0, kb*kv.Pages)
	if !kv.VInK {
		v = l.buffer(kv.V, 0, vb*kv.Pages)
	}
	k.reads, v.reads, k.writes, v.writes = !writes, !writes, writes, writes
	return
}

type writeArgs struct {
	kv                        cacheArgs
	k, v, segs, blocks, table uint32
}

func (l *lowerer) kvWrite(o compute.KVWrite) error {
	sides := 2
	if o.KV.VInK {
		sides = 1
	}
	if o.Rows.N == 0 || o.KV.Pages == 0 {
		return nil
	}
	if sides == 2 && o.V.Type != o.K.Type {
		return fmt.Errorf("%w: keys in %v and values in %v have no kernel", compute.ErrUnfit, o.K.Type, o.V.Type)
	}
	k, v := l.cacheMemory(o.KV, true)
	return add(l, dispatch{kernel: "kv_write", types: types(o.K), constants: cacheFormat(o.KV), groups: [3]int{o.KV.Heads, o.Rows.N, sides}, threads: 32},
		writeArgs{cache(o.KV), u32(o.K.Stride), u32(o.V.Stride), u32(o.Pages.Table.Rows), u32(o.Pages.Table.Cols), u32(o.Pages.Table.Stride)},
		l.in(o.K), l.in(o.V), l.in(o.Rows.Pos), l.in(o.Rows.Of), l.in(o.Pages.Table), k, v)
}

// attentionArgs is AttentionArgs of attention.metal.
type attentionArgs struct {
	kv                                         cacheArgs
	rows, heads, per, headTile, rowTile, tiles uint32
	q, out, table, blocks, segs, splits, split uint32
	scale, softCap                             float32
}

const (
	queries    = 8       // of a threadgroup of attention
	tileOf     = 32      // queries, keys and dimensions of a tile of attention_tiles
	mostParts  = 1 << 25 // bytes of partial results at once
	mostValues = 1024    // dimensions of V
)

// The pages of a split. The pages of a row are cut at the same places whatever runs
// with it, but each length merges in its own order: one for a cache, at all counts
// of rows.
var _ = vary("attention", way{"4 pages", [4]uint32{4}}, way{"2 pages", [4]uint32{2}}, way{"8 pages", [4]uint32{8}}, way{"16 pages", [4]uint32{16}})

// What serves prefill rows: the matrix units, or what serves all others.
var _ = vary("attention_tiles", way{"tiles", [4]uint32{1}}, way{"rows", [4]uint32{0}})

// attention cuts the rows into those of the decode kernel and those of the prefill
// kernel, as linear does.
func (l *lowerer) attention(o compute.Attention) error {
	kv := o.KV
	if kv.VDim > mostValues {
		return fmt.Errorf("%w: values of %d dimensions have no kernel", compute.ErrUnfit, kv.VDim)
	}
	per := o.Heads / kv.Heads
	a := attentionArgs{kv: cache(kv), heads: u32(o.Heads), per: u32(per), q: u32(o.Q.Stride), out: u32(o.Out.Stride), table: u32(o.Pages.Table.Stride), blocks: u32(o.Pages.Table.Cols),
		segs: u32(o.Pages.Table.Rows), scale: o.Scale, softCap: o.SoftCap}
	class := [8]uint32{uint32(kv.Type), u32(kv.Bits), u32(kv.Group), u32(kv.KDim), u32(kv.VDim), u32(per)}
	prefill := min(max(o.Rows.Prefill, 0), o.Rows.N)
	tiles := Key{"attention_tiles", class}
	if prefill < o.Rows.N && (powerFrom(kv.VDim, tileOf) > 16 || l.pick(tiles).Values[0] == 0) {
		prefill = o.Rows.N
	}
	if prefill > 0 {
		k := Key{"attention", class}
		a.split = l.pick(k).Values[0]
		if err := l.attentionRows(o, a, prefill, k); err != nil {
			return err
		}
	}
	return l.attentionTiles(o, a, prefill, tiles)
}

// powerFrom is the least power of two of pieces of n that hold dim.
func powerFrom(dim, n int) int {
	p := 1
	for ; n*p < dim; p *= 2 {
	}
	return p
}

// The flags of attention kernels.
const (
	attSoftCap = 1 << iota
	attSinks
	attParts
	attVInK
)

func attentionFlags(o compute.Attention, splits int) uint32 {
	return flag(o.SoftCap > 0, attSoftCap) | flag(o.Sinks.Given(), attSinks) | flag(splits > 1, attParts) | flag(o.KV.VInK, attVInK)
}

// attentionBinds is the buffers that attention kernels read for rows [lo, hi).
func (l *lowerer) attentionBinds(o compute.Attention, lo, hi int) []bind {
	k, v := l.cacheMemory(o.KV, false)
	return []bind{l.in(o.Q.Slice(lo, hi)), l.in(o.Rows.Of.Columns(lo, hi)), l.in(o.Pages.Table), l.in(o.Pages.Lo.Columns(lo, hi)), l.in(o.Pages.Hi.Columns(lo, hi)), k, v, l.in(o.Sinks)}
}

// attentionRows serves the first n rows.
func (l *lowerer) attentionRows(o compute.Attention, a attentionArgs, n int, k Key) error {
	kv, per := o.KV, int(a.per)
	heads := min(per, queries)
	rows := max(1, min(queries/heads, ceil(n, max(o.Rows.Segments, 1))))
	tiles, splits := ceil(per, heads), max(1, ceil(o.Pages.Table.Cols, int(a.split)))
	a.headTile, a.rowTile, a.tiles, a.splits = u32(heads), u32(rows), u32(tiles), u32(splits)
	flags := attentionFlags(o, splits)
	most := n
	size := 4 * o.Heads * splits * (kv.VDim + 2)
	if splits > 1 {
		most = max(rows, mostParts/size/rows*rows)
	}
	for lo := 0; lo < n; lo += most {
		hi := min(lo+most, n)
		a.rows = u32(hi - lo)
		var part Memory
		var made bind
		out := l.out(o.Out.Slice(lo, hi))
		if splits > 1 {
			var err error
			if part, err = l.parts.get(l.dev, size*(hi-lo)); err != nil {
				return err
			}
			made, out = memory(part, true), bind{}
		}
		err := add(l, dispatch{kernel: "attention", key: k, types: types(o.Q, o.Out), constants: append(cacheFormat(kv), flags, u32(powerFrom(kv.VDim, 64))),
			groups: [3]int{splits, kv.Heads * tiles, ceil(hi-lo, rows)}, threads: 64, shared: 4 * (queries*kv.KDim + queries*compute.PageSize + 3*queries)}, a,
			append(l.attentionBinds(o, lo, hi), out, made)...)
		if err != nil || splits == 1 {
			if err != nil {
				return err
			}
			continue
		}
		err = add(l, dispatch{kernel: "attention_merge", key: k, types: types(o.Q, o.Out), constants: append(cacheFormat(kv), flags), groups: [3]int{o.Heads, hi - lo}, threads: 64}, a,
			memory(part, false), l.in(o.Sinks), l.out(o.Out.Slice(lo, hi)))
		if err != nil {
			return err
		}
	}
	return nil
}

// attentionTiles serves rows from lo on.
func (l *lowerer) attentionTiles(o compute.Attention, a attentionArgs, lo int, k Key) error {
	n := o.Rows.N - lo
	if n == 0 {
		return nil
	}
	heads := min(int(a.per), tileOf)
	rows := tileOf / heads
	tiles := ceil(int(a.per), heads)
	a.rows, a.headTile, a.rowTile, a.tiles, a.splits = u32(n), u32(heads), u32(rows), u32(tiles), 1
	return add(l, dispatch{kernel: "attention_tiles", key: k, types: types(o.Q, o.Out), constants: append(cacheFormat(o.KV), attentionFlags(o, 1), u32(powerFrom(o.KV.VDim, tileOf))),
		groups: [3]int{1, o.KV.Heads * tiles, ceil(n, rows)}, threads: 128, shared: 4 * (3*tileOf*(tileOf+4) + 4*64)}, a,
		append(l.attentionBinds(o, lo, o.Rows.N), l.out(o.Out.Slice(lo, o.Rows.N)))...)
}
