package sample

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	"math/bits"
)

// RNG is MLX's random stream: a Threefry-2x32 key that is split before every
// use. The same seed gives the same numbers as mx.random.seed followed by the
// same calls.
type RNG struct {
	key [2]uint32
}

// Source is where a request's random decisions come from: its RNG, or a replay
// of recorded ones.
type Source interface {
	// Uniform draws one number in [0, 1), Uniforms fills u with such numbers.
	Uniform() float32
	Uniforms(u []float32)
	// Draw draws a token of d.
	Draw(d *Dist) int32
}

// Draw draws a token by the inverse CDF, with one uniform number.
func (r *RNG) Draw(d *Dist) int32 { return d.Sample(r.Uniform()) }

// NewRNG returns the stream that mx.random.seed(seed) starts.
func NewRNG(seed uint64) *RNG {
	return &RNG{key: [2]uint32{uint32(seed >> 32), uint32(seed)}}
}

// RandomSeed returns a seed for a request that did not name one.
func RandomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime aborts instead
	return binary.LittleEndian.Uint64(b[:])
}

// Uniform draws one number in [0, 1).
func (r *RNG) Uniform() float32 {
	a, _ := threefry(r.next(), 0, 0)
	return uniform(a)
}

// Uniforms fills u with numbers in [0, 1) in one call, as
// mx.random.uniform(shape=(len(u),)) does: one step of the stream, whatever
// the length.
func (r *RNG) Uniforms(u []float32) {
	key := r.next()
	n := uint32(len(u))
	half, odd := n/2, n%2
	for i := range half {
		a, b := threefry(key, i, i+half+odd)
		u[i], u[i+half+odd] = uniform(a), uniform(b)
	}
	if odd == 1 {
		a, _ := threefry(key, half, 0)
		u[half] = uniform(a)
	}
}

// next splits the key: the first half is the new state, the second is used.
func (r *RNG) next() [2]uint32 {
	k := r.key
	a0, a2 := threefry(k, 0, 2)
	a1, a3 := threefry(k, 1, 3)
	r.key = [2]uint32{a0, a1}
	return [2]uint32{a2, a3}
}

// uniform maps 32 random bits to [0, 1).
func uniform(b uint32) float32 {
	return min(float32(b)/float32(math.MaxUint32), math.Nextafter32(1, 0))
}

// threefry is Threefry-2x32 with 20 rounds (Salmon et al., SC11).
func threefry(key [2]uint32, x, y uint32) (uint32, uint32) {
	ks := [3]uint32{key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA}
	rot := [2][4]int{{13, 15, 26, 6}, {17, 29, 16, 24}}
	x, y = x+ks[0], y+ks[1]
	for i := range 5 {
		for _, r := range rot[i%2] {
			x += y
			y = bits.RotateLeft32(y, r) ^ x
		}
		x += ks[(i+1)%3]
		y += ks[(i+2)%3] + uint32(i) + 1
	}
	return x, y
}
