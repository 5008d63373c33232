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
		return fmt.Errorf("keys in %v and values in %v have no kernel", o.K.Type, o.V.Type)
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
	queries    = 8       // query rows of a threadgroup of attention
	splitPages = 4       // pages of a split
	mostParts  = 1 << 25 // bytes of partial results at once
)

func (l *lowerer) attention(o compute.Attention) error {
	kv := o.KV
	if o.Rows.N == 0 {
		return nil
	}
	dims := 1
	for ; 64*dims < kv.VDim; dims *= 2 {
	}
	if dims > 16 {
		return fmt.Errorf("values of %d dimensions have no kernel", kv.VDim)
	}
	per := o.Heads / kv.Heads
	a := attentionArgs{kv: cache(kv), heads: u32(o.Heads), per: u32(per), q: u32(o.Q.Stride), out: u32(o.Out.Stride), table: u32(o.Pages.Table.Stride), blocks: u32(o.Pages.Table.Cols),
		segs: u32(o.Pages.Table.Rows), split: splitPages, scale: o.Scale, softCap: o.SoftCap}
	heads := min(per, queries)
	rows := max(1, min(queries/heads, ceil(o.Rows.N, max(o.Rows.Segments, 1))))
	tiles, splits := ceil(per, heads), max(1, ceil(o.Pages.Table.Cols, splitPages))
	a.headTile, a.rowTile, a.tiles, a.splits = u32(heads), u32(rows), u32(tiles), u32(splits)
	const softCap, sinks, parts, vInK = 1, 2, 4, 8
	flags := flag(o.SoftCap > 0, softCap) | flag(o.Sinks.Given(), sinks) | flag(splits > 1, parts) | flag(kv.VInK, vInK)
	k, v := l.cacheMemory(kv, false)
	most := o.Rows.N
	size := 4 * o.Heads * splits * (kv.VDim + 2)
	if splits > 1 {
		most = max(rows, mostParts/size/rows*rows)
	}
	for lo := 0; lo < o.Rows.N; lo += most {
		hi := min(lo+most, o.Rows.N)
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
		err := add(l, dispatch{kernel: "attention", types: types(o.Q, o.Out), constants: append(cacheFormat(kv), flags, u32(dims)), groups: [3]int{splits, kv.Heads * tiles, ceil(hi-lo, rows)}, threads: 64,
			shared: 4 * (queries*kv.KDim + queries*compute.PageSize + 3*queries)}, a,
			l.in(o.Q.Slice(lo, hi)), l.in(o.Rows.Of.Columns(lo, hi)), l.in(o.Pages.Table), l.in(o.Pages.Lo.Columns(lo, hi)), l.in(o.Pages.Hi.Columns(lo, hi)), k, v, l.in(o.Sinks), out, made)
		if err != nil || splits == 1 {
			if err != nil {
				return err
			}
			continue
		}
		err = add(l, dispatch{kernel: "attention_merge", types: types(o.Q, o.Out), constants: append(cacheFormat(kv), flags), groups: [3]int{o.Heads, hi - lo}, threads: 64}, a,
			memory(part, false), l.in(o.Sinks), l.out(o.Out.Slice(lo, hi)))
		if err != nil {
			return err
		}
	}
	return nil
}
