package conformance

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// page is what the suite believes about compute.PageSize.
const page = 64

// cacheType is how a cache stores its elements.
type cacheType struct {
	dtype       layout.DType
	bits, group int
}

func (c cacheType) String() string {
	if c.bits > 0 {
		return fmt.Sprintf("%d bits in groups of %d", c.bits, c.group)
	}
	return c.dtype.String()
}

var plainCaches = []cacheType{{dtype: layout.F32}, {dtype: layout.F16}, {dtype: layout.BF16}}

// affineGroup is MLX's affine quantization of one group in float32.
func affineGroup(x []float32, bits int) (codes []int, scale, bias float32) {
	steps := float32(int(1)<<bits - 1)
	lo, hi := slices.Min(x), slices.Max(x)
	scale = (hi - lo) / steps
	if scale < 1e-7 {
		scale = 1e-7
	}
	edge := hi
	if math.Abs(float64(lo)) > math.Abs(float64(hi)) {
		edge = lo
	} else {
		scale = -scale
	}
	q0 := float32(math.RoundToEven(float64(edge / scale)))
	if q0 != 0 {
		scale, bias = edge/q0, edge
	}
	for _, v := range x {
		q := math.RoundToEven(float64((v - bias) / scale))
		codes = append(codes, int(max(0, min(q, float64(steps)))))
	}
	return codes, scale, bias
}

// pages is one side (K or V) of a cache on the host.
type pages struct {
	cacheType
	heads, dim int
}

func (p pages) pageBytes() int {
	n := p.heads * page * p.dim
	if p.bits > 0 {
		return n*p.bits/8 + n/p.group*8
	}
	return n * p.dtype.Size()
}

// put stores x as position at of a head in the bytes of a page and returns the
// values that a reader must see, and their magnitudes.
func (p pages) put(mem []byte, head, at int, x []float32) (seen, mag []float64) {
	row, rows := head*page+at, p.heads*page
	le := binary.LittleEndian
	for i := 0; i < p.dim; {
		if p.bits == 0 {
			n := p.dtype.Size()
			b, v := put(nil, p.dtype, float64(x[i]))
			copy(mem[(row*p.dim+i)*n:], b)
			seen, mag = append(seen, v), append(mag, math.Abs(v))
			i++
			continue
		}
		codes, scale, bias := affineGroup(x[i:][:p.group], p.bits)
		groups := p.dim / p.group
		scales := rows * p.dim * p.bits / 8
		biases := scales + rows*groups*4
		g := (row*groups + i/p.group) * 4
		le.PutUint32(mem[scales+g:], math.Float32bits(scale))
		le.PutUint32(mem[biases+g:], math.Float32bits(bias))
		for _, c := range codes {
			bit := (row*p.dim + i) * p.bits
			keep := byte(0)
			if p.bits == 4 {
				keep = 0xf0
				if bit%8 != 0 {
					keep = 0x0f
				}
			}
			mem[bit/8] = mem[bit/8]&keep | byte(c<<(bit%8))
			seen = append(seen, float64(scale)*float64(c)+float64(bias))
			mag = append(mag, math.Abs(float64(scale)*float64(c))+math.Abs(float64(bias)))
			i++
		}
	}
	return seen, mag
}

// poison fills memory with what makes NaN of every element.
func poison(mem []byte) {
	for i := range mem {
		mem[i] = 0xff
	}
}

func testKVWrite(s *suite) {
	type write struct {
		t                 cacheType
		heads, kdim, vdim int
		vInK              bool
	}
	var writes []write
	for i, t := range plainCaches {
		writes = append(writes, write{t, 1, 16, 16, false}, write{t, 3, 24, 40, false}, write{t, 2, 80, 64, i == 1}, write{t, 1, 576, 512, true})
	}
	for _, bits := range []int{4, 8} {
		writes = append(writes, write{cacheType{0, bits, 32}, 2, 64, 96, false}, write{cacheType{0, bits, 64}, 3, 128, 64, false},
			write{cacheType{0, bits, 128}, 1, 256, 128, false}, write{cacheType{0, bits, 64}, 1, 192, 100, true}, write{cacheType{0, bits, 32}, 1, 32, 32, false})
	}
	// segments of a step: first position and rows
	segments := [][2]int{{0, 1}, {63, 3}, {5, 0}, {120, 9}, {64, 1}, {190, 8}, {0, 70}}
	const blocks = 4
	for _, c := range writes {
		for _, lay := range []memLayout{memPacked, memSpread} {
			s.cases++
			name := fmt.Sprintf("KVWrite %+v", c)
			r := rng(name)
			kside, vside := pages{c.t, c.heads, c.kdim}, pages{c.t, c.heads, c.vdim}
			nPages := len(segments)*blocks + 2
			m := &memory{b: s.b, layout: lay}
			kv := compute.KV{Pages: nPages, Heads: c.heads, KDim: c.kdim, VDim: c.vdim, VInK: c.vInK, Type: c.t.dtype, Bits: c.t.bits, Group: c.t.group}
			alloc := func(p pages) (*compute.Buffer, []byte) {
				b, err := s.b.Alloc("cache", nPages*p.pageBytes())
				if err != nil {
					m.fail(err)
					return nil, nil
				}
				m.bufs = append(m.bufs, b)
				mem := b.Bytes[:nPages*p.pageBytes()]
				poison(mem)
				return b, slices.Clone(mem)
			}
			var kwant, vwant []byte
			kv.K, kwant = alloc(kside)
			if !c.vInK {
				kv.V, vwant = alloc(vside)
			}
			if m.err != nil {
				s.fail(name, "%v", m.err)
				m.close()
				continue
			}
			order := r.Perm(nPages)
			table := make([]int32, len(segments)*blocks)
			for i := range table {
				table[i] = int32(order[i])
			}
			table[1*blocks+1] = -1            // dropped: skipped
			table[3*blocks+2] = int32(nPages) // no such page: skipped
			table[5*blocks+3] = math.MaxInt32 //
			var pos, of []int32               //
			start := []int32{0}               //
			add := func(seg, p int) { pos, of = append(pos, int32(p)), append(of, int32(seg)) }
			for seg, x := range segments {
				for i := range x[1] {
					add(seg, x[0]+i)
				}
				start = append(start, int32(len(pos)))
			}
			// numbers gone wrong: skipped
			add(6, -1)
			add(6, blocks*page)
			add(6, math.MaxInt32)
			add(6, math.MinInt32)
			add(-1, 3)
			add(len(segments), 3)
			add(math.MaxInt32, 3)
			n := len(pos)
			k, v := normals(r, n*c.heads*c.kdim), normals(r, n*c.heads*c.vdim)
			spice(r, k)
			spice(r, v)
			op := compute.KVWrite{K: m.pick(ascending(n), c.heads*c.kdim, k), KV: kv,
				Rows:  compute.Rows{N: n, Segments: len(segments), Prefill: n, Pos: m.ints(pos...), Of: m.ints(of...), Start: m.ints(start...)},
				Pages: compute.Pages{Table: m.table(len(segments), blocks, table)}}
			if !c.vInK {
				op.V = m.pick(ascending(n), c.heads*c.vdim, v)
			}
			for i, p := range pos {
				seg := int(of[i])
				if p < 0 || p >= blocks*page || seg < 0 || seg >= len(segments) {
					continue
				}
				pg := int(table[seg*blocks+int(p)/page])
				if pg < 0 || pg >= nPages {
					continue
				}
				for h := range c.heads {
					kside.put(kwant[pg*kside.pageBytes():], h, int(p)%page, k[(i*c.heads+h)*c.kdim:][:c.kdim])
					if !c.vInK {
						vside.put(vwant[pg*vside.pageBytes():], h, int(p)%page, v[(i*c.heads+h)*c.vdim:][:c.vdim])
					}
				}
			}
			if err := m.run(op); err != nil {
				s.fail(name, "%v", err)
			} else {
				if at := differ(kv.K.Bytes, kwant); at >= 0 {
					s.fail(name, "byte %d of page %d of K is %#x, want %#x", at%kside.pageBytes(), at/kside.pageBytes(), kv.K.Bytes[at], kwant[at])
				}
				if !c.vInK {
					if at := differ(kv.V.Bytes, vwant); at >= 0 {
						s.fail(name, "byte %d of page %d of V is %#x, want %#x", at%vside.pageBytes(), at/vside.pageBytes(), kv.V.Bytes[at], vwant[at])
					}
				}
			}
			m.close()
		}
	}
}

// differ returns the first byte that differs, -1 if none.
func differ(got, want []byte) int {
	if bytes.Equal(got[:len(want)], want) {
		return -1
	}
	for i := range want {
		if got[i] != want[i] {
			return i
		}
	}
	return -1
}

// spice puts the groups that quantization and half floats find hard into x:
// zeros, constants, one-signed, huge, tiny, and ties of rounding.
func spice(r *rand.Rand, x []float32) {
	for at := 0; at+32 <= len(x); at += 32 {
		g := x[at:][:32]
		switch r.IntN(12) {
		case 0:
			clear(g)
		case 1:
			copy(g, filled(32, float32(r.NormFloat64())))
		case 2:
			for i := range g {
				g[i] = float32(math.Abs(float64(g[i])))
			}
		case 3:
			for i := range g {
				g[i] = -float32(math.Abs(float64(g[i])))
			}
		case 4:
			for i := range g {
				g[i] = 1 + float32(r.IntN(64))/32/1024 // ties of half floats
			}
		case 5:
			for i := range g {
				g[i] = 1 + float32(r.IntN(64))/32/128 // ties of bfloat
			}
		case 6:
			for i := range g {
				g[i] *= 1e-6 // subnormal halves
			}
		case 7:
			for i := range g {
				g[i] *= 4e4 // beyond the halves
			}
		case 8:
			clear(g)
			g[3] = 1e-9
		case 9:
			for i := range g {
				g[i] = float32(i)/8 - 2
			}
		}
	}
}

// attRow is a row of queries: whose it is and what it sees.
type attRow struct{ seg, pos, lo, hi int }

// attention is one configuration of an Attention.
type attention struct {
	name              string
	t                 cacheType
	heads, kvHeads    int
	kdim, vdim        int
	vInK              bool
	softCap           float32
	sinks             bool
	lengths           []int        // positions of each sequence
	rows              []attRow     // in order of segments
	dropped           map[int]bool // sequence*1000 + block
	counts            []int
	badSegments, huge bool
}

// attend builds the cache of a configuration once on the host and judges any
// choice of its rows against it.
func (s *suite) attend(c attention) {
	r := rng(c.name)
	kside, vside := pages{c.t, c.kvHeads, c.kdim}, pages{c.t, c.kvHeads, c.vdim}
	type side struct {
		mem       [][]byte      // pages of the sequence
		seen, mag [][][]float64 // [head][position][element]
	}
	build := func(p pages, length int) side {
		blocks := (length + page - 1) / page
		x := side{seen: make([][][]float64, p.heads), mag: make([][][]float64, p.heads)}
		for range blocks {
			mem := make([]byte, p.pageBytes())
			poison(mem)
			x.mem = append(x.mem, mem)
		}
		for at := range length {
			for h := range p.heads {
				seen, mag := p.put(x.mem[at/page], h, at%page, normals(r, p.dim))
				x.seen[h], x.mag[h] = append(x.seen[h], seen), append(x.mag[h], mag)
			}
		}
		return x
	}
	ks, vs := make([]side, len(c.lengths)), make([]side, len(c.lengths))
	blocks := 1
	for i, n := range c.lengths {
		ks[i] = build(kside, n)
		if c.vInK {
			vs[i] = ks[i]
		} else {
			vs[i] = build(vside, n)
		}
		blocks = max(blocks, len(ks[i].mem))
	}
	q := normals(r, len(c.rows)*c.heads*c.kdim)
	if c.huge {
		for i := range q {
			q[i] *= 300
		}
	}
	sinks := normals(r, c.heads)
	if c.sinks && c.heads > 1 {
		sinks[1] = 20 // a sink that takes nearly all
	}
	scale := float32(1 / math.Sqrt(float64(c.kdim)))

	placing := rng(c.name + " placing")
	record := func(m *memory, rows []int, prefill int) ([]compute.Op, []compute.View) {
		// segments in the order in which the rows meet them, an empty one before each
		var segs []int
		var of, pos, lo, hi, start []int32
		for i, row := range rows {
			a := c.rows[row]
			if len(segs) == 0 || segs[len(segs)-1] != a.seg {
				segs = append(segs, -1, a.seg)
				start = append(start, int32(i), int32(i))
			}
			of, pos = append(of, int32(len(segs)-1)), append(pos, int32(a.pos))
			lo, hi = append(lo, int32(a.lo)), append(hi, int32(a.hi))
		}
		start = append(start, int32(len(rows)))
		nPages := 3
		for _, seg := range segs {
			if seg >= 0 {
				nPages += len(ks[seg].mem)
			}
		}
		kv := compute.KV{Pages: nPages, Heads: c.kvHeads, KDim: c.kdim, VDim: c.vdim, VInK: c.vInK, Type: c.t.dtype, Bits: c.t.bits, Group: c.t.group}
		alloc := func(p pages) *compute.Buffer {
			b, err := s.b.Alloc("cache", nPages*p.pageBytes())
			if err != nil {
				m.fail(err)
				return compute.NewBuffer("cache", make([]byte, nPages*p.pageBytes()), nil, nil)
			}
			m.bufs = append(m.bufs, b)
			poison(b.Bytes)
			return b
		}
		kv.K = alloc(kside)
		if !c.vInK {
			kv.V = alloc(vside)
		}
		// pages anywhere, other places in each run
		order := placing.Perm(nPages)
		table := make([]int32, len(segs)*blocks)
		for i := range table {
			table[i] = -1
		}
		for i, seg := range segs {
			if seg < 0 {
				continue
			}
			for b := range ks[seg].mem {
				pg := order[0]
				order = order[1:]
				copy(kv.K.Bytes[pg*kside.pageBytes():], ks[seg].mem[b])
				if !c.vInK {
					copy(kv.V.Bytes[pg*vside.pageBytes():], vs[seg].mem[b])
				}
				table[i*blocks+b] = int32(pg)
				switch {
				case c.dropped[seg*1000+b] && b%3 == 0:
					table[i*blocks+b] = int32(nPages) // no such page
				case c.dropped[seg*1000+b]:
					table[i*blocks+b] = -1
				}
			}
		}
		if c.badSegments {
			for i := range of {
				of[i] = []int32{-1, int32(len(segs)), math.MaxInt32, math.MinInt32}[i%4]
			}
		}
		op := compute.Attention{Q: m.pick(rows, c.heads*c.kdim, q), KV: kv, Heads: c.heads, Scale: scale, SoftCap: c.softCap,
			Rows:  compute.Rows{N: len(rows), Segments: len(segs), Prefill: prefill, Pos: m.ints(pos...), Of: m.ints(of...), Start: m.ints(start...)},
			Pages: compute.Pages{Table: m.table(len(segs), blocks, table), Lo: m.ints(lo...), Hi: m.ints(hi...)},
			Out:   m.out(len(rows), c.heads*c.vdim)}
		if c.sinks {
			op.Sinks = m.floats(1, c.heads, sinks)
		}
		return []compute.Op{op}, []compute.View{op.Out}
	}
	// the segments in reverse, each with its rows in order
	all := ascending(len(c.rows))
	reversed := slices.Clone(all)
	slices.SortStableFunc(reversed, func(a, b int) int { return c.rows[b].seg - c.rows[a].seg })
	tol := s.opt.Tol
	s.row(rowCase{name: c.name, rows: len(c.rows), counts: c.counts, orders: [][]int{reversed, everyThird(all)},
		record:  func(m *memory, rows []int) ([]compute.Op, []compute.View) { return record(m, rows, len(rows)) },
		prefill: record,
		want: func(row int) []approx {
			a := c.rows[row]
			var want []approx
			for h := range c.heads {
				kh := h / (c.heads / c.kvHeads)
				var scores []approx
				var at []int
				for p := max(a.lo, 0); p < min(a.hi, c.lengths[a.seg]) && !c.badSegments; p++ {
					if c.dropped[a.seg*1000+p/page] {
						continue
					}
					var dot total
					for i := range c.kdim {
						x := float64(q[(row*c.heads+h)*c.kdim+i])
						dot.v += x * ks[a.seg].seen[kh][p][i]
						dot.e += math.Abs(x) * ks[a.seg].mag[kh][p][i]
					}
					score := dot.result().times(float64(scale))
					if c.softCap > 0 {
						limit := float64(c.softCap)
						score = score.apply(func(x float64) float64 { return limit * math.Tanh(x/limit) }, math.Abs(score.v), tol)
					}
					scores, at = append(scores, score), append(at, p)
				}
				if len(scores) == 0 {
					want = append(want, make([]approx, c.vdim)...)
					continue
				}
				if c.sinks {
					scores = append(scores, exactly(float64(sinks[h])))
				}
				probs := softmax(scores)
				for i := range c.vdim {
					var sum total
					for j, p := range at {
						sum.v += probs[j].v * vs[a.seg].seen[kh][p][i]
						sum.e += (probs[j].e + probs[j].v) * vs[a.seg].mag[kh][p][i]
					}
					want = append(want, sum.result())
				}
			}
			return want
		}})
}

// causal returns rows of n positions from pos on, each seeing [lo, itself].
func causal(seg, pos, n int) []attRow {
	var rows []attRow
	for i := range n {
		rows = append(rows, attRow{seg, pos + i, 0, pos + i + 1})
	}
	return rows
}

// windowed is causal with at most w visible positions.
func windowed(seg, pos, n, w int) []attRow {
	rows := causal(seg, pos, n)
	for i := range rows {
		rows[i].lo = max(rows[i].hi-w, 0)
	}
	return rows
}

// block is n rows that see each other and all before them, from lo on.
func blockRows(seg, pos, n, lo int) []attRow {
	var rows []attRow
	for i := range n {
		rows = append(rows, attRow{seg, pos + i, lo, pos + n})
	}
	return rows
}

func testAttention(s *suite) {
	join := func(parts ...[]attRow) []attRow { return slices.Concat(parts...) }
	f32, bf16 := plainCaches[0], plainCaches[2]
	// dropped pages, with and without something left
	gone := map[int]bool{0: true, 1: true, 1003: true, 1004: true, 2000: true, 2001: true, 3001: true}
	s.attend(attention{name: "Attention over dropped pages", t: bf16, heads: 4, kvHeads: 2, kdim: 24, vdim: 24, lengths: []int{300, 300, 100, 190}, dropped: gone,
		rows: join(windowed(0, 250, 9, 128), causal(1, 180, 1), causal(1, 255, 3), causal(2, 90, 8), causal(3, 130, 4)), counts: []int{1, 9, 25}})
	// ragged segments: decode rows, verify rows, prefill chunks, windows, draft blocks
	ragged := join(causal(0, 99, 1), causal(1, 60, 8), windowed(2, 100, 7, 33), blockRows(3, 61, 8, 0), blockRows(4, 120, 7, 90), causal(5, 0, 9), windowed(6, 190, 3, 128))
	for i, t := range []cacheType{f32, bf16, {0, 8, 32}, {0, 4, 32}} {
		c := attention{name: fmt.Sprintf("Attention ragged, %v", t), t: t, heads: 4, kvHeads: 2, kdim: 32, vdim: 32,
			lengths: []int{100, 68, 107, 69, 127, 9, 193}, rows: ragged}
		s.attend(c)
		c.name, c.kdim, c.vdim, c.sinks, c.softCap = c.name+", unlike dims", 64, 32, i%2 == 0, 3
		s.attend(c)
	}
	// latent attention: V lies inside K
	for _, t := range []cacheType{f32, plainCaches[1], {0, 8, 64}, {0, 4, 32}} {
		s.attend(attention{name: fmt.Sprintf("Attention latent, %v", t), t: t, heads: 5, kvHeads: 1, kdim: 192, vdim: 128, vInK: true,
			lengths: []int{70, 130}, rows: join(causal(0, 62, 4), causal(1, 124, 5)), counts: []int{1, 9}})
	}
	// prompts: more rows than any tile, heads of many sizes, latent ones too
	for i, t := range []cacheType{f32, plainCaches[1], bf16, {0, 8, 32}, {0, 4, 32}, {0, 8, 64}, {0, 4, 64}, {0, 8, 128}, {0, 4, 128}} {
		prompt := join(causal(0, 0, 24), windowed(1, 60, 14, 50))
		wide := 64
		if t.group == 128 {
			wide = 128
		}
		for j, sh := range [][4]int{{6, 2, wide, wide}, {3, 3, 72, 40}, {5, 1, 256, 256}, {3, 1, 576, 512}} {
			if t.bits > 0 && (sh[2]%t.group != 0 || sh[3]%t.group != 0 && j < 3) || j >= 2 && i%3 != 0 {
				continue // large ones in float32, 8 and 4 bits
			}
			c := attention{name: fmt.Sprintf("Attention prompts, %v, heads %v", t, sh), t: t, heads: sh[0], kvHeads: sh[1], kdim: sh[2], vdim: sh[3], vInK: j == 3,
				lengths: []int{24, 80}, rows: prompt, counts: []int{38}, sinks: (i+j)%2 == 0}
			if (i+j)%3 == 0 {
				c.softCap = 4
			}
			if j >= 2 {
				c.rows, c.counts = causal(0, 0, 20), []int{20}
			}
			s.attend(c)
		}
	}
	// long
	for _, t := range []cacheType{f32, bf16, {0, 8, 64}, {0, 4, 64}} {
		s.attend(attention{name: fmt.Sprintf("Attention long, %v", t), t: t, heads: 2, kvHeads: 1, kdim: 64, vdim: 64, lengths: []int{1100, 1030},
			rows: join(causal(0, 1095, 3), windowed(0, 1099, 1, 1000), windowed(1, 1020, 3, 512)), counts: []int{1, 7}})
	}
	s.attend(attention{name: "Attention long with sinks and cap", t: f32, heads: 4, kvHeads: 2, kdim: 16, vdim: 24, softCap: 20, sinks: true,
		lengths: []int{2200}, rows: join(causal(0, 2190, 4), windowed(0, 2000, 2, 1024)), counts: []int{1, 6}})
	// sharp scores: the largest far from the rest
	s.attend(attention{name: "Attention sharp", t: f32, heads: 2, kvHeads: 2, kdim: 16, vdim: 16, lengths: []int{200}, rows: causal(0, 180, 20), huge: true, sinks: true})
	// ranges gone wrong: what does not exist is not seen
	odd := []attRow{{0, 5, 5, 5}, {0, 5, 6, 5}, {0, 9, -7, 10}, {0, 9, math.MinInt32, 10}, {0, 9, 3, -1}, {0, 9, math.MaxInt32, math.MaxInt32}, {0, 9, 0, 0}, {0, 191, 0, 192},
		{0, 191, 100, math.MaxInt32}, {0, 191, 180, 200}}
	for _, sinks := range []bool{false, true} {
		s.attend(attention{name: fmt.Sprintf("Attention of odd ranges, sinks %v", sinks), t: f32, heads: 2, kvHeads: 1, kdim: 16, vdim: 16, lengths: []int{192}, rows: odd, sinks: sinks})
	}
	s.attend(attention{name: "Attention of segments that do not exist", t: f32, heads: 2, kvHeads: 1, kdim: 16, vdim: 16, lengths: []int{64}, rows: causal(0, 20, 9), badSegments: true})

	// the borders of pages: lengths and ranges that begin and end around them
	borders := []int{1, 2, 62, 63, 64, 65, 66, 127, 128, 129, 150}
	borderRows := func(segs int) []attRow {
		var rows []attRow
		for i, hi := range borders {
			if seg := i * segs / len(borders); hi <= 150 {
				rows = append(rows, attRow{seg, hi - 1, 0, hi})
				if hi > 60 {
					rows = append(rows, attRow{seg, hi - 1, hi - 60, hi}, attRow{seg, hi - 1, min(63, hi-1), hi}, attRow{seg, hi - 1, hi - 1, hi})
				}
				if hi > 64 {
					rows = append(rows, attRow{seg, hi - 1, 64, hi})
				}
			}
		}
		return rows
	}
	shapes := []struct{ heads, kvHeads, dim int }{{1, 1, 16}, {3, 1, 24}, {4, 4, 64}, {6, 2, 80}, {8, 2, 128}, {4, 1, 256}, {5, 5, 16}, {14, 2, 64}}
	caches := append(slices.Clone(plainCaches), cacheType{0, 8, 32}, cacheType{0, 4, 64}, cacheType{0, 8, 128}, cacheType{0, 4, 32}, cacheType{0, 8, 64}, cacheType{0, 4, 128})
	for i, sh := range shapes {
		for j, t := range caches {
			// every shape with one plain type, with 8 and with 4 bits; small ones with all
			if t.bits > 0 && sh.dim%t.group != 0 || sh.heads*sh.dim > 256 && (i+j)%3 != 0 {
				continue
			}
			c := attention{name: fmt.Sprintf("Attention %d heads over %d of %d, %v, page borders", sh.heads, sh.kvHeads, sh.dim, t), t: t,
				heads: sh.heads, kvHeads: sh.kvHeads, kdim: sh.dim, vdim: sh.dim, lengths: []int{150, 150, 150}, rows: borderRows(3)}
			if (i+j)%3 == 1 {
				c.softCap = 2
			}
			if (i+j)%3 == 2 {
				c.sinks = true
			}
			if i > 0 {
				c.counts = []int{1, 9, 33}
			}
			s.attend(c)
		}
	}
}
