package layout

import (
	"encoding/binary"
	"math"
)

// GGUF blocks. Each kind stores 32 or 256 consecutive columns of one row. d and m are float16, codes are packed low
// bits first unless noted; "halves" means that byte j holds column j in its low and column j+16 in its high nibble.
//
//	Q4_0    d, 16 code bytes (halves)                      W = d*(q-8)
//	Q4_1    d, m, 16 code bytes (halves)                   W = d*q + m
//	Q5_0    d, 32 fifth bits, 16 code bytes (halves)       W = d*(q-16)
//	Q5_1    d, m, 32 fifth bits, 16 code bytes (halves)    W = d*q + m
//	Q8_0    d, 32 signed bytes                             W = d*q
//	IQ4_NL  d, 16 code bytes (halves)                      W = d*iq4nl[q]
//	MXFP4   exponent e, 16 code bytes (halves)             W = 2^(e-127) * e2m1[q]
//	Q2_K    16 scale bytes (low nibble s, high nibble m), 64 code bytes, d, dmin: 16 groups of 16
//	        W = (d*s)*q - dmin*m
//	Q3_K    32 bytes of third bits, 64 code bytes, 12 bytes of 6-bit scales, d: 16 groups of 16
//	        W = d*(s-32) * (q-4), the third bit included in q
//	Q4_K    d, dmin, 12 bytes of 6-bit scales s and minima m, 128 code bytes: 8 groups of 32
//	        W = (d*s)*q - dmin*m
//	Q5_K    as Q4_K with 32 bytes of fifth bits before the codes
//	Q6_K    128 bytes of low nibbles, 64 bytes of upper two bits, 16 signed scales, d: 16 groups of 16
//	        W = d*s * (q-32)
//
// The K kinds split 256 columns into chunks of 128 (64 for Q4_K and Q5_K): the code bytes of a chunk serve its first 32
// columns with their lowest bits, the next 32 with the following bits, and so on.

// iq4nl holds the code values of IQ4_NL.
var iq4nl = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// blocks decodes the row w of a GGUF block kind.
func (m Matrix) blocks(dst []float32, w []byte) {
	size, bytes := m.Scheme.BlockSize(), m.Scheme.BlockBytes()
	for len(dst) > 0 {
		decodeBlock(m.Scheme, dst[:size], w[:bytes])
		dst, w = dst[size:], w[bytes:]
	}
}

// decodeBlock decodes one block. Products are rounded to float32 one by one: the conversions keep the compiler from
// fusing them into the following addition.
func decodeBlock(s Scheme, y []float32, b []byte) {
	at := func(i int) float32 { return F16ToF32(binary.LittleEndian.Uint16(b[i:])) }
	nibble := func(q []byte, i int) int { return int(q[i%16] >> (i / 16 * 4) & 15) }
	switch s {
	case Q4_0:
		d := at(0)
		for i := range y {
			y[i] = d * float32(nibble(b[2:], i)-8)
		}
	case Q4_1:
		d, m := at(0), at(2)
		for i := range y {
			y[i] = float32(d*float32(nibble(b[4:], i))) + m
		}
	case Q5_0:
		d, high := at(0), binary.LittleEndian.Uint32(b[2:])
		for i := range y {
			y[i] = d * float32(nibble(b[6:], i)|int(high>>i&1)<<4-16)
		}
	case Q5_1:
		d, m, high := at(0), at(2), binary.LittleEndian.Uint32(b[4:])
		for i := range y {
			y[i] = float32(d*float32(nibble(b[8:], i)|int(high>>i&1)<<4)) + m
		}
	case Q8_0:
		d := at(0)
		for i := range y {
			y[i] = d * float32(int8(b[2+i]))
		}
	case IQ4_NL:
		d := at(0)
		for i := range y {
			y[i] = d * iq4nl[nibble(b[2:], i)]
		}
	case GGUFMXFP4:
		// Half the scale times twice the value, as the format's own code has it: the same numbers, and exact.
		d := halfE8M0(b[0])
		for i := range y {
			y[i] = d * (2 * e2m1[nibble(b[1:], i)])
		}
	case Q2_K:
		d, dmin := at(80), at(82)
		for i := range y {
			sm := b[i/16]
			q := b[16+i/128*32+i%32] >> (i / 32 % 4 * 2) & 3
			y[i] = float32(float32(d*float32(sm&15))*float32(q)) - float32(dmin*float32(sm>>4))
		}
	case Q3_K:
		d := at(108)
		for i := range y {
			g := i / 16
			low := b[96+g%8] >> (g / 8 * 4) & 15
			high := b[104+g%4] >> (g / 4 * 2) & 3
			q := int(b[32+i/128*32+i%32]>>(i/32%4*2)&3) | int(b[i%32]>>(i/32)&1)<<2
			y[i] = float32(d*float32(int(low|high<<4)-32)) * float32(q-4)
		}
	case Q4_K, Q5_K:
		d, dmin := at(0), at(2)
		codes := b[16:]
		if s == Q5_K {
			codes = b[48:]
		}
		for i := range y {
			g := i / 32
			sc, mn := scaleMin(b[4:16], g)
			q := int(codes[i/64*32+i%32] >> (g % 2 * 4) & 15)
			if s == Q5_K {
				q |= int(b[16+i%32]>>g&1) << 4
			}
			y[i] = float32(float32(d*sc)*float32(q)) - float32(dmin*mn)
		}
	case Q6_K:
		d := at(208)
		for i := range y {
			chunk, j := i/128, i%128
			low := b[chunk*64+j%64] >> (j / 64 * 4) & 15
			high := b[128+chunk*32+j%32] >> (j / 32 * 2) & 3
			y[i] = float32(d*float32(int8(b[192+i/16]))) * float32(int(low|high<<4)-32)
		}
	}
}

// scaleMin unpacks 6-bit scale g and minimum g of Q4_K and Q5_K: the first four are whole in bytes 0-3 and 4-7, the
// last four have their low nibbles in bytes 8-11 and their upper two bits above the first ones.
func scaleMin(p []byte, g int) (scale, minimum float32) {
	if g < 4 {
		return float32(p[g] & 63), float32(p[g+4] & 63)
	}
	return float32(p[g+4]&15 | p[g-4]>>6<<4), float32(p[g+4]>>4 | p[g]>>6<<4)
}

// halfE8M0 is 2^(b-128).
func halfE8M0(b byte) float32 {
	if b < 2 {
		return math.Float32frombits(0x00200000 << b)
	}
	return math.Float32frombits(uint32(b-1) << 23)
}
