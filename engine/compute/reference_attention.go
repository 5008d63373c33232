package compute

import (
	"encoding/binary"
	"math"

	"sparkbar/engine/layout"
)

func refRoPE(o RoPE) {
	half := o.Freq.Cols
	for r := range o.X.Rows {
		x, pos := o.X.F32(r), o.Pos.I32(0)[r]
		scale := float32(1)
		if o.QBeta != 0 {
			scale += o.QBeta * float32(math.Log1p(math.Floor(float64(pos)/float64(o.QOrig))))
		}
		for h := 0; h < len(x); h += o.HeadDim {
			for i, f := range o.Freq.F32(0) {
				a, b := h+i, h+i+half
				if o.Interleaved {
					a, b = h+2*i, h+2*i+1
				}
				sin, cos := math.Sincos(float64(float32(pos) * f))
				u, v := x[a]*o.Mul, x[b]*o.Mul
				x[a] = float32(u*float32(cos)) - float32(v*float32(sin))
				x[b] = float32(v*float32(cos)) + float32(u*float32(sin))
			}
			if o.QBeta != 0 {
				for i := range o.HeadDim {
					x[h+i] *= scale
				}
			}
		}
	}
}

// kvSide is K or V of a cache: where rows of dim elements lie in pages.
type kvSide struct {
	kv   KV
	mem  []byte
	step int // bytes from a page to the next
	page int // bytes of a page
	dim  int
}

func (kv KV) sides() (k, v kvSide) {
	kb, vb := kv.PageBytes()
	kstep, vstep := kv.PageSteps()
	k = kvSide{kv, kv.K.Bytes, kstep, kb, kv.KDim}
	if kv.VInK {
		return k, k
	}
	return k, kvSide{kv, kv.V.Bytes, vstep, vb, kv.VDim}
}

// where returns the bytes of the elements (or codes) of one row, and with
// quantization of its scales and biases.
func (s kvSide) where(page, head, at int) (codes, scales, biases []byte) {
	mem := s.mem[page*s.step:][:s.page]
	i, rows := head*PageSize+at, s.kv.Heads*PageSize
	if s.kv.Bits == 0 {
		n := s.dim * s.kv.Type.Size()
		return mem[i*n:][:n], nil, nil
	}
	n, g := s.dim*s.kv.Bits/8, s.dim/s.kv.Group*4
	rest := mem[rows*n:]
	return mem[i*n:][:n], rest[i*g:][:g], rest[rows*g+i*g:][:g]
}

// write stores one row.
func (s kvSide) write(page, head, at int, x []float32) {
	codes, scales, biases := s.where(page, head, at)
	le := binary.LittleEndian
	if s.kv.Bits > 0 {
		clear(codes)
		for g := 0; g < s.dim; g += s.kv.Group {
			scale, bias := quantizeGroup(codes, g, x[g:][:s.kv.Group], s.kv.Bits)
			le.PutUint32(scales[g/s.kv.Group*4:], math.Float32bits(scale))
			le.PutUint32(biases[g/s.kv.Group*4:], math.Float32bits(bias))
		}
		return
	}
	for i, v := range x {
		switch s.kv.Type {
		case layout.F32:
			le.PutUint32(codes[4*i:], math.Float32bits(v))
		case layout.F16:
			le.PutUint16(codes[2*i:], f32ToF16(v))
		case layout.BF16:
			le.PutUint16(codes[2*i:], f32ToBF16(v))
		}
	}
}

// read loads the first len(x) elements of one row.
func (s kvSide) read(page, head, at int, x []float32) {
	codes, scales, biases := s.where(page, head, at)
	le := binary.LittleEndian
	bits, group, mask := s.kv.Bits, s.kv.Group, 1<<s.kv.Bits-1
	switch {
	case bits > 0:
		for g := 0; g < len(x); g += group {
			scale := math.Float32frombits(le.Uint32(scales[g/group*4:]))
			bias := math.Float32frombits(le.Uint32(biases[g/group*4:]))
			for i := g; i < min(g+group, len(x)); i++ {
				code := int(codes[i*bits/8]) >> (i * bits % 8) & mask
				x[i] = float32(scale*float32(code)) + bias
			}
		}
	case s.kv.Type == layout.F32:
		for i := range x {
			x[i] = math.Float32frombits(le.Uint32(codes[4*i:]))
		}
	case s.kv.Type == layout.F16:
		for i := range x {
			x[i] = layout.F16ToF32(le.Uint16(codes[2*i:]))
		}
	case s.kv.Type == layout.BF16:
		for i := range x {
			x[i] = math.Float32frombits(uint32(le.Uint16(codes[2*i:])) << 16)
		}
	}
}

// quantizeGroup is MLX's affine quantization of one group: the scale's sign and
// size are such that the end of the range with the larger magnitude and zero are
// exact. It stores the codes from element g on (4 or 8 bits, low bits first)
// into zeroed codes and returns scale and bias.
func quantizeGroup(codes []byte, g int, x []float32, bits int) (scale, bias float32) {
	lo, hi := x[0], x[0]
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
	}
	top := float32(int(1)<<bits - 1)
	scale = max((hi-lo)/top, 1e-7)
	edge := lo
	if !(abs32(lo) > abs32(hi)) {
		scale, edge = -scale, hi
	}
	if q := rint(edge / scale); q != 0 {
		scale, bias = edge/q, edge
	}
	for i, v := range x {
		q := rint((v - bias) / scale)
		if !(q > 0) {
			q = 0
		}
		bit := (g + i) * bits
		codes[bit/8] |= byte(min(q, top)) << (bit % 8)
	}
	return scale, bias
}

func abs32(x float32) float32 { return float32(math.Abs(float64(x))) }
func rint(x float32) float32  { return float32(math.RoundToEven(float64(x))) }

// f32ToBF16 rounds to nearest even; NaN stays NaN.
func f32ToBF16(f float32) uint16 {
	u := math.Float32bits(f)
	if f != f {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// f32ToF16 rounds to nearest even; too large becomes infinite, NaN stays NaN.
func f32ToF16(f float32) uint16 {
	sign := uint16(math.Float32bits(f) >> 16 & 0x8000)
	a := math.Abs(float64(f))
	switch {
	case f != f:
		return sign | 0x7e00
	case a >= 65520:
		return sign | 0x7c00
	case a < 1.0/(1<<14): // subnormal: multiples of 2^-24; 1024 of them are the smallest normal
		return sign | uint16(math.RoundToEven(a*(1<<24)))
	}
	frac, exp := math.Frexp(a) // a = frac * 2^exp, frac in [1/2, 1)
	m := int(math.RoundToEven(frac * 2048))
	return sign | uint16((exp+13)<<10+m) // m = 1024..2048 carries into the exponent: (exp+14)<<10 + (m-1024)
}

// pageOf returns the page of a block of a segment; false if it is dropped or
// anything is out of range.
func (p Pages) pageOf(kv KV, segment int32, block int) (int, bool) {
	if segment < 0 || int(segment) >= p.Table.Rows || block < 0 || block >= p.Table.Cols {
		return 0, false
	}
	page := int(p.Table.I32(int(segment))[block])
	return page, page >= 0 && page < kv.Pages
}

func refKVWrite(o KVWrite) {
	k, v := o.KV.sides()
	for r := range o.Rows.N {
		pos := int(o.Rows.Pos.I32(0)[r])
		if pos < 0 {
			continue
		}
		page, ok := o.Pages.pageOf(o.KV, o.Rows.Of.I32(0)[r], pos/PageSize)
		if !ok {
			continue
		}
		for h := range o.KV.Heads {
			k.write(page, h, pos%PageSize, o.K.F32(r)[h*k.dim:][:k.dim])
			if !o.KV.VInK {
				v.write(page, h, pos%PageSize, o.V.F32(r)[h*v.dim:][:v.dim])
			}
		}
	}
}

// softmaxSum is a softmax-weighted sum in progress: the largest score, the sum
// of exp(score - max), and the sum of exp(score - max) * value.
type softmaxSum struct {
	max, sum float32
	acc      []float32
}

// merge adds b, whose scores come after those of a.
func (a *softmaxSum) merge(b softmaxSum) {
	m := max(a.max, b.max)
	ea, eb := exp32(a.max-m), exp32(b.max-m)
	a.max, a.sum = m, float32(a.sum*ea)+float32(b.sum*eb)
	for i := range a.acc {
		a.acc[i] = float32(a.acc[i]*ea) + float32(b.acc[i]*eb)
	}
}

func refAttention(o Attention) {
	k, v := o.KV.sides()
	krow, vrow := make([]float32, o.KV.KDim), make([]float32, o.KV.VDim)
	scores := make([]float32, PageSize)
	for r := range o.Rows.N {
		segment := o.Rows.Of.I32(0)[r]
		lo, hi := clamp(o.Pages.Lo.I32(0)[r], o.Pages.Hi.I32(0)[r], o.Pages.Table.Cols*PageSize)
		for h := range o.Heads {
			q, out := o.Q.F32(r)[h*o.KV.KDim:][:o.KV.KDim], o.Out.F32(r)[h*o.KV.VDim:][:o.KV.VDim]
			kvHead := h * o.KV.Heads / o.Heads
			whole := softmaxSum{max: float32(math.Inf(-1)), acc: out}
			clear(out)
			if o.Sinks.Given() {
				whole.max, whole.sum = o.Sinks.F32(0)[h], 1
			}
			for block := lo / PageSize; lo < hi && block*PageSize < hi; block++ {
				page, ok := o.Pages.pageOf(o.KV, segment, block)
				if !ok {
					continue
				}
				from, to := max(lo-block*PageSize, 0), min(hi-block*PageSize, PageSize)
				part := softmaxSum{max: float32(math.Inf(-1)), acc: make([]float32, o.KV.VDim)}
				for at := from; at < to; at++ {
					k.read(page, kvHead, at, krow)
					s := o.Scale * dot(q, krow)
					if o.SoftCap > 0 {
						s = o.SoftCap * tanh32(s/o.SoftCap)
					}
					scores[at] = s
					part.max = max(part.max, s)
				}
				for at := from; at < to; at++ {
					e := exp32(scores[at] - part.max)
					part.sum += e
					v.read(page, kvHead, at, vrow)
					for i, x := range vrow {
						part.acc[i] += float32(e * x)
					}
				}
				whole.merge(part)
			}
			if whole.sum > 0 {
				for i := range out {
					out[i] /= whole.sum
				}
			}
		}
	}
}
