package compute

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"sparkbar/engine/layout"
)

// TestKVQuantizationIsMLX: what KVWrite stores is, to the bit, what mx.quantize
// makes of the same rows (testdata/kv_quant.json, recorded with mlx 0.32.4).
func TestKVQuantizationIsMLX(t *testing.T) {
	data, err := os.ReadFile("testdata/kv_quant.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Bits, Group, Rows, Cols  int
		W, Codes, Scales, Biases string
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) != 6 {
		t.Fatalf("%d cases, want 4 and 8 bits in three groups", len(cases))
	}
	decode := func(s string) []byte {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := NewReference()
	for _, c := range cases {
		w := decode(c.W)
		kv := KV{Pages: 1, Heads: 1, KDim: c.Cols, VDim: c.Cols, VInK: true, Bits: c.Bits, Group: c.Group}
		size, _ := kv.PageBytes()
		kv.K = alloc(t, b, size)
		x := alloc(t, b, len(w))
		copy(x.Bytes, w)
		n := make([]int32, c.Rows)
		for i := range n {
			n[i] = int32(i)
		}
		params := NewParams(b)
		pos, err := params.Ints(1, n)
		if err != nil {
			t.Fatal(err)
		}
		zero, err := params.Ints(1, make([]int32, c.Rows))
		if err != nil {
			t.Fatal(err)
		}
		var p Program
		p.Add(KVWrite{K: x.Of(layout.F32, 0, c.Rows, c.Cols), KV: kv, Rows: Rows{N: c.Rows, Segments: 1, Pos: pos, Of: zero}, Pages: Pages{Table: zero.Columns(0, 1)}})
		if err := Run(b, &p, nil); err != nil {
			t.Fatal(err)
		}
		codes, scales := PageSize*c.Cols*c.Bits/8, PageSize*c.Cols/c.Group*4
		for what, part := range map[string]struct {
			got  []byte
			want string
		}{"codes": {kv.K.Bytes, c.Codes}, "scales": {kv.K.Bytes[codes:], c.Scales}, "biases": {kv.K.Bytes[codes+scales:], c.Biases}} {
			want := decode(part.want)
			if !slices.Equal(part.got[:len(want)], want) {
				t.Errorf("%d bits in groups of %d: %s differ", c.Bits, c.Group, what)
			}
		}
	}
}

// TestHalves: every half float survives, and what lies between two goes to the
// nearer, or to the even one.
func TestHalves(t *testing.T) {
	for _, c := range []struct {
		name   string
		to     func(float32) uint16
		from   func(uint16) float32
		maxVal uint16 // the largest finite number
	}{
		{"F16", f32ToF16, layout.F16ToF32, 0x7bff},
		{"BF16", f32ToBF16, func(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }, 0x7f7f},
	} {
		for h := uint16(0); h <= c.maxVal; h++ {
			v := c.from(h)
			if c.to(v) != h || c.to(-v) != h|0x8000 {
				t.Fatalf("%s %#x is %v, and back %#x", c.name, h, v, c.to(v))
			}
			next := float64(c.from(h + 1))
			if h == c.maxVal {
				next = 2*float64(v) - float64(c.from(h-1))
			}
			middle := (float64(v) + next) / 2
			if f := float32(middle); float64(f) == middle && !math.IsInf(float64(f), 0) {
				if got := c.to(f); got != h+h%2 {
					t.Fatalf("%s: %v lies between %#x and the next and becomes %#x", c.name, f, h, got)
				}
				if below, above := math.Nextafter32(f, 0), math.Nextafter32(f, float32(math.Inf(1))); c.to(below) != h || c.to(above) != h+1 {
					t.Fatalf("%s: around %v: %#x %#x", c.name, f, c.to(below), c.to(above))
				}
			}
		}
		inf := float32(math.Inf(1))
		if v := c.from(c.to(inf)); v != inf || c.from(c.to(-inf)) != -inf {
			t.Errorf("%s: infinity becomes %v", c.name, v)
		}
		if v := c.from(c.to(float32(math.NaN()))); v == v {
			t.Errorf("%s: NaN becomes %v", c.name, v)
		}
	}
}

// TestLargeWeights: rows that are decoded on use give the bits of rows that are
// kept.
func TestLargeWeights(t *testing.T) {
	b := NewReference()
	const rows, cols = 5, 8
	raw := make([]byte, rows*cols*2)
	for i := range rows * cols {
		binary.LittleEndian.PutUint16(raw[2*i:], uint16(0x3c00+i*37))
	}
	m := layout.Matrix{Name: "w", Scheme: layout.Dense, DType: layout.F16, Rows: rows, Cols: cols, Weight: raw, GlobalScale: 1}
	kept, err := b.Load(m)
	if err != nil || kept.Handle == nil {
		t.Fatal(err)
	}
	x, out := alloc(t, b, 4*cols).Of(layout.F32, 0, 1, cols), alloc(t, b, 8*rows).Of(layout.F32, 0, 2, rows)
	for i := range cols {
		x.F32(0)[i] = float32(i) - 2.5
	}
	var p Program
	p.Add(Linear{X: x, W: kept, Scale: 1, Out: out.Slice(0, 1)}, Linear{X: x, W: &Weight{Matrix: m}, Scale: 1, Out: out.Slice(1, 2)})
	if err := Run(b, &p, nil); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(out.F32(0), out.F32(1)) || out.F32(0)[0] == 0 {
		t.Errorf("%v and %v", out.F32(0), out.F32(1))
	}
	b.Unload(kept)
	m.Weight = raw[:10]
	if _, err := b.Load(m); err == nil {
		t.Error("a weight with too few bytes is loaded")
	}
	m.Rows = -1
	if _, err := b.Load(m); err == nil {
		t.Error("a weight of -1 rows is loaded")
	}
}

func TestAllocRefused(t *testing.T) {
	b := NewReference()
	for _, n := range []int{-1, math.MinInt, math.MaxInt} {
		if _, err := b.Alloc("x", n); err == nil {
			t.Errorf("%d bytes are allocated", n)
		}
	}
}
