package conformance

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"sparkbar/engine/layout"
)

// packed is a weight with what its bytes mean, decoded by this package: values
// and, for the tolerance, the magnitude of the terms that make each value up.
type packed struct {
	layout.Matrix
	val, mag []float64 // Batch*Rows*Cols
}

// row returns row i of matrix b.
func (p packed) row(b, i int) (val, mag []float64) {
	at := (b*p.Rows + i) * p.Cols
	return p.val[at:][:p.Cols], p.mag[at:][:p.Cols]
}

// exact reports whether a backend has no reason to quantize activations.
func (p packed) exact() bool { return p.Scheme == layout.Dense }

// dot returns x . row i of matrix b.
func (p packed) dot(b, i int, x []float32) approx {
	var t total
	val, mag := p.row(b, i)
	for k, v := range val {
		t.v += v * float64(x[k])
		t.e += mag[k] * math.Abs(float64(x[k]))
	}
	return t.result()
}

// format is a weight scheme with its parameters.
type format struct {
	scheme      layout.Scheme
	bits, group int
	dtype       layout.DType
}

func (f format) String() string {
	switch f.scheme {
	case layout.Dense:
		return "dense " + f.dtype.String()
	case layout.Affine:
		return fmt.Sprintf("affine %d bits, groups of %d, %v scales", f.bits, f.group, f.dtype)
	}
	return f.scheme.String()
}

// formats is every weight format.
var formats = func() []format {
	all := []format{{scheme: layout.Dense, dtype: layout.F32}, {scheme: layout.Dense, dtype: layout.F16}, {scheme: layout.Dense, dtype: layout.BF16}}
	all = append(all, format{layout.MXFP4, 4, 32, 0}, format{layout.MXFP8, 8, 32, 0}, format{layout.NVFP4, 4, 16, 0})
	for _, b := range blocks {
		all = append(all, format{b.scheme, b.bits, b.size, 0})
	}
	for _, bits := range []int{1, 2, 3, 4, 5, 6, 8} {
		for _, group := range []int{32, 64, 128} {
			for _, t := range []layout.DType{layout.F32, layout.F16, layout.BF16} {
				all = append(all, format{layout.Affine, bits, group, t})
			}
		}
	}
	return all
}()

// fewFormats is one of each family, for ops that share the code of Linear.
var fewFormats = []format{
	{scheme: layout.Dense, dtype: layout.F32}, {scheme: layout.Dense, dtype: layout.BF16},
	{layout.Affine, 4, 64, layout.BF16}, {layout.Affine, 3, 32, layout.F16}, {layout.Affine, 8, 128, layout.F32},
	{layout.MXFP4, 4, 32, 0}, {layout.MXFP8, 8, 32, 0}, {layout.NVFP4, 4, 16, 0},
	{layout.Q4_0, 4, 32, 0}, {layout.Q8_0, 8, 32, 0}, {layout.Q4_K, 4, 256, 0}, {layout.Q6_K, 6, 256, 0},
}

// unit is what the columns of a format are a multiple of: whole groups, and 32.
func (f format) unit() int {
	if f.scheme == layout.Dense {
		return 1
	}
	return max(f.group, 32)
}

// pack makes a random weight of the format.
func (f format) pack(r *rand.Rand, batch, rows, cols int) packed {
	n := max(batch, 1) * rows
	p := packed{Matrix: layout.Matrix{Name: f.String(), Scheme: f.scheme, Batch: batch, Rows: rows, Cols: cols, Bits: f.bits, Group: f.group, DType: f.dtype, GlobalScale: 1},
		val: make([]float64, n*cols), mag: make([]float64, n*cols)}
	switch f.scheme {
	case layout.Dense:
		p.packDense(r)
	case layout.Affine:
		p.packAffine(r)
	case layout.MXFP4, layout.MXFP8, layout.NVFP4:
		p.packFloats(r)
	default:
		for _, b := range blocks {
			if b.scheme == f.scheme {
				p.packBlocks(r, b)
			}
		}
	}
	return p
}

// put appends a number of type t and returns its exact value.
func put(dst []byte, t layout.DType, x float64) ([]byte, float64) {
	switch t {
	case layout.F32:
		f := float32(x)
		return binary.LittleEndian.AppendUint32(dst, math.Float32bits(f)), float64(f)
	case layout.BF16:
		h := toBF16(float32(x))
		return binary.LittleEndian.AppendUint16(dst, h), fromBF16(h)
	case layout.F16:
		h := toF16(float32(x))
		return binary.LittleEndian.AppendUint16(dst, h), fromF16(h)
	}
	panic("conformance: no number of type " + t.String())
}

func (p *packed) packDense(r *rand.Rand) {
	for i := range p.val {
		p.Weight, p.val[i] = put(p.Weight, p.DType, r.NormFloat64())
		p.mag[i] = math.Abs(p.val[i])
	}
}

// packAffine: a row is one stream of codes, low bits first; value = scale*code + bias.
func (p *packed) packAffine(r *rand.Rand) {
	p.Weight = make([]byte, len(p.val)*p.Bits/8)
	var scale, bias float64
	levels := float64(int(1) << p.Bits)
	for i := range p.val {
		if i%p.Group == 0 {
			p.Scales, scale = put(p.Scales, p.DType, (0.5+r.Float64())*2/levels*sign(r))
			p.Biases, bias = put(p.Biases, p.DType, r.NormFloat64())
		}
		code := r.IntN(1 << p.Bits)
		for b := range p.Bits {
			bit := i*p.Bits + b
			p.Weight[bit/8] |= byte(code>>b&1) << (bit % 8)
		}
		p.val[i] = scale*float64(code) + bias
		p.mag[i] = math.Abs(scale*float64(code)) + math.Abs(bias)
	}
}

func sign(r *rand.Rand) float64 { return float64(r.IntN(2)*2 - 1) }

// e2m1 are the values of the 4-bit float; bit 3 is the sign.
var e2m1 = [8]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}

func fromE2M1(c int) float64 {
	if c&8 != 0 {
		return -e2m1[c&7]
	}
	return e2m1[c]
}

// fromE4M3 is the 8-bit float with 4 exponent bits (bias 7), without infinities.
func fromE4M3(c int) float64 {
	exp, frac, s := c>>3&15, float64(c&7)/8, 1.0
	if c&128 != 0 {
		s = -1
	}
	switch {
	case c&127 == 127:
		return math.NaN()
	case exp == 0:
		return s * math.Ldexp(frac, -6)
	}
	return s * math.Ldexp(1+frac, exp-7)
}

// packFloats: the microscaling kinds and NVFP4.
func (p *packed) packFloats(r *rand.Rand) {
	if p.Scheme == layout.NVFP4 {
		p.GlobalScale = 0.375
	}
	var scale float64
	for i := range p.val {
		if i%p.Group == 0 {
			if p.Scheme == layout.NVFP4 {
				c := r.IntN(100)
				p.Scales, scale = append(p.Scales, byte(c)), fromE4M3(c)*0.375
			} else {
				c := 120 + r.IntN(10)
				p.Scales, scale = append(p.Scales, byte(c)), math.Ldexp(1, c-127)
			}
		}
		var v float64
		if p.Bits == 8 {
			c := r.IntN(255)
			if c == 127 {
				c = 255 ^ 129
			}
			p.Weight, v = append(p.Weight, byte(c)), fromE4M3(c)
		} else {
			c := r.IntN(16)
			if i%2 == 0 {
				p.Weight = append(p.Weight, byte(c))
			} else {
				p.Weight[len(p.Weight)-1] |= byte(c << 4)
			}
			v = fromE2M1(c)
		}
		p.val[i] = v * scale
		p.mag[i] = math.Abs(p.val[i])
	}
}

// block is a GGUF block kind: how many elements, in how many bytes, where its
// half floats are, and what it means. The other bytes are random.
type block struct {
	scheme            layout.Scheme
	bits, size, bytes int
	halves            []int // offsets of f16 scales
	decode            func(b []byte, val, mag []float64)
}

func half(b []byte, at int) float64 { return fromF16(binary.LittleEndian.Uint16(b[at:])) }

// low and high nibbles of 16 bytes are elements 0-15 and 16-31.
func nibble(q []byte, i int) int {
	if i < 16 {
		return int(q[i] & 15)
	}
	return int(q[i-16] >> 4)
}

// scaled stores d*(q - zero) + m.
func scaled(val, mag []float64, i int, d float64, q, zero int, m float64) {
	val[i] = d*float64(q-zero) + m
	mag[i] = math.Abs(d)*(math.Abs(float64(q))+math.Abs(float64(zero))) + math.Abs(m)
}

// scaleMin returns the 6-bit scale and minimum j of the 12 bytes of Q4_K and Q5_K.
func scaleMin(s []byte, j int) (scale, minimum float64) {
	if j < 4 {
		return float64(s[j] & 63), float64(s[j+4] & 63)
	}
	return float64(s[j+4]&15 | s[j-4]>>6<<4), float64(s[j+4]>>4 | s[j]>>6<<4)
}

// iq4nl are the levels of IQ4_NL.
var iq4nl = [16]int{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

var blocks = []block{
	{layout.Q4_0, 4, 32, 18, []int{0}, func(b []byte, val, mag []float64) {
		for i := range val {
			scaled(val, mag, i, half(b, 0), nibble(b[2:], i), 8, 0)
		}
	}},
	{layout.Q4_1, 4, 32, 20, []int{0, 2}, func(b []byte, val, mag []float64) {
		for i := range val {
			scaled(val, mag, i, half(b, 0), nibble(b[4:], i), 0, half(b, 2))
		}
	}},
	{layout.Q5_0, 5, 32, 22, []int{0}, func(b []byte, val, mag []float64) {
		for i := range val {
			scaled(val, mag, i, half(b, 0), nibble(b[6:], i)|int(b[2+i/8]>>(i%8)&1)<<4, 16, 0)
		}
	}},
	{layout.Q5_1, 5, 32, 24, []int{0, 2}, func(b []byte, val, mag []float64) {
		for i := range val {
			scaled(val, mag, i, half(b, 0), nibble(b[8:], i)|int(b[4+i/8]>>(i%8)&1)<<4, 0, half(b, 2))
		}
	}},
	{layout.Q8_0, 8, 32, 34, []int{0}, func(b []byte, val, mag []float64) {
		for i := range val {
			scaled(val, mag, i, half(b, 0), int(int8(b[2+i])), 0, 0)
		}
	}},
	{layout.Q2_K, 2, 256, 84, []int{80, 82}, func(b []byte, val, mag []float64) {
		for i := range val { // two halves of 128, each four layers of 32 in bit pairs of the same 32 bytes
			s := b[i/16]
			q := b[16+i/128*32+i%32] >> (2 * (i / 32 % 4)) & 3
			scaled(val, mag, i, half(b, 80)*float64(s&15), int(q), 0, -half(b, 82)*float64(s>>4))
		}
	}},
	{layout.Q3_K, 3, 256, 110, []int{108}, func(b []byte, val, mag []float64) {
		for i := range val {
			j := i / 16
			s := int(b[96+j%8] >> (j / 8 * 4) & 15)
			s |= int(b[104+j%4]>>(j/4*2)&3) << 4
			q := int(b[32+i/128*32+i%32] >> (2 * (i / 32 % 4)) & 3)
			q |= int(b[i%32]>>(i/32)&1) << 2
			scaled(val, mag, i, half(b, 108)*float64(s-32), q, 4, 0)
		}
	}},
	{layout.Q4_K, 4, 256, 144, []int{0, 2}, func(b []byte, val, mag []float64) {
		for i := range val {
			s, m := scaleMin(b[4:], i/32)
			q := b[16+i/64*32+i%32] >> (i / 32 % 2 * 4) & 15
			scaled(val, mag, i, half(b, 0)*s, int(q), 0, -half(b, 2)*m)
		}
	}},
	{layout.Q5_K, 5, 256, 176, []int{0, 2}, func(b []byte, val, mag []float64) {
		for i := range val {
			s, m := scaleMin(b[4:], i/32)
			q := int(b[48+i/64*32+i%32]>>(i/32%2*4)&15) | int(b[16+i%32]>>(i/32)&1)<<4
			scaled(val, mag, i, half(b, 0)*s, q, 0, -half(b, 2)*m)
		}
	}},
	{layout.Q6_K, 6, 256, 210, []int{208}, func(b []byte, val, mag []float64) {
		for i := range val {
			h, l, quarter := i/128, i%32, i/32%4
			q := int(b[h*64+quarter%2*32+l] >> (quarter / 2 * 4) & 15)
			q |= int(b[128+h*32+l]>>(2*quarter)&3) << 4
			scaled(val, mag, i, half(b, 208)*float64(int8(b[192+i/16])), q, 32, 0)
		}
	}},
	{layout.IQ4_NL, 4, 32, 18, []int{0}, func(b []byte, val, mag []float64) {
		for i := range val {
			scaled(val, mag, i, half(b, 0), iq4nl[nibble(b[2:], i)], 0, 0)
		}
	}},
	{layout.GGUFMXFP4, 4, 32, 17, nil, func(b []byte, val, mag []float64) {
		for i := range val {
			val[i] = fromE2M1(nibble(b[1:], i)) * math.Ldexp(1, int(b[0])-127)
			mag[i] = math.Abs(val[i])
		}
	}},
}

func (p *packed) packBlocks(r *rand.Rand, k block) {
	n := len(p.val) / k.size
	p.Weight = make([]byte, n*k.bytes)
	for i := range p.Weight {
		p.Weight[i] = byte(r.Uint32())
	}
	for i := range n {
		b := p.Weight[i*k.bytes:][:k.bytes]
		for _, at := range k.halves {
			binary.LittleEndian.PutUint16(b[at:], toF16(float32(0.01*(1+r.Float64())*sign(r))))
		}
		if k.halves == nil {
			b[0] = byte(120 + r.IntN(10))
		}
		k.decode(b, p.val[i*k.size:][:k.size], p.mag[i*k.size:][:k.size])
	}
}

// Half floats, by search rather than by bits: slow and hard to get wrong.

func fromBF16(h uint16) float64 { return float64(math.Float32frombits(uint32(h) << 16)) }

func fromF16(h uint16) float64 { return f16Values[h] }

// f16Values are the values of all half floats.
var f16Values = func() *[1 << 16]float64 {
	var all [1 << 16]float64
	for h := range all {
		s, exp, frac := 1.0, h>>10&31, float64(h&1023)/1024
		if h&0x8000 != 0 {
			s = -1
		}
		switch {
		case exp == 31 && frac == 0:
			all[h] = math.Inf(int(s))
		case exp == 31:
			all[h] = math.NaN()
		case exp == 0:
			all[h] = s * math.Ldexp(frac, -14)
		default:
			all[h] = s * math.Ldexp(1+frac, exp-15)
		}
	}
	return &all
}()

func toBF16(x float32) uint16 { return nearest(x, 0x7f80, fromBF16) }
func toF16(x float32) uint16  { return nearest(x, 0x7c00, fromF16) }

// nearest finds the code whose value is nearest to x; of two as near, the even
// one. inf is the code of infinity, which stands where the next number would be.
func nearest(x float32, inf uint16, value func(uint16) float64) uint16 {
	a := math.Abs(float64(x))
	var s uint16
	if math.Signbit(float64(x)) {
		s = 0x8000
	}
	if math.IsInf(a, 0) {
		return s | inf
	}
	lo, hi := uint16(0), inf // value(lo) <= a < value(hi)
	for hi-lo > 1 {
		if mid := lo + (hi-lo)/2; value(mid) <= a {
			lo = mid
		} else {
			hi = mid
		}
	}
	up := value(hi)
	if hi == inf { // as if the exponents went on
		up = 2*value(hi-1) - value(hi-2)
	}
	switch d, u := a-value(lo), up-a; {
	case d < u || d == u && lo%2 == 0:
		return s | lo
	}
	return s | hi
}
