package sample

import "math"

// exp2Table[j] = 2^(j/64).
var exp2Table = func() (t [64]float64) {
	for j := range t {
		t[j] = math.Exp2(float64(j) / 64)
	}
	return t
}()

// expInto sets w[i] = e^(z[i]·scale − shift), correct to float32 rounding, and
// returns the sum. w may be z. Arguments of the exponential are at most 0 up
// to rounding, or −Inf.
//
// The argument is split into k·ln2/64 + r with |r| ≤ ln2/128, so that e^r is a
// short polynomial (error below 4e-11). Several times faster than math.Exp,
// which matters for two passes over a vocabulary per token.
func expInto(w, z []float32, scale, shift float32) float64 {
	sum := 0.0
	for i, x := range z {
		x = x*scale - shift
		var e float32
		if x > -87 {
			v := float64(x)
			k := int(v*(64/math.Ln2) - 0.5)
			r := v - float64(k)*(math.Ln2/64)
			p := exp2Table[k&63] * (1 + r*(1+r*(1.0/2+r*(1.0/6))))
			e = float32(p * math.Float64frombits(uint64(1023+(k>>6))<<52))
		} else { // subnormal or 0
			e = float32(math.Exp(float64(x)))
		}
		w[i] = e
		sum += float64(e)
	}
	return sum
}
