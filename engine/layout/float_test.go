package layout

import (
	"math"
	"testing"
)

// same compares bits, all NaNs being one.
func same(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b }

func TestFloatTables(t *testing.T) {
	g := readGoldens(t)
	for name, f := range map[string]func(int) float32{
		"lut.fp8_e4m3":   func(i int) float32 { return e4m3[i] },
		"lut.fp4_e2m1":   func(i int) float32 { return e2m1[i] },
		"lut.e8m0_scale": func(i int) float32 { return e8m0(byte(i)) },
		"lut.e4m3_scale": func(i int) float32 { return e4m3[i] },
	} {
		for i, want := range g.floats(t, name) {
			if got := f(i); got != want && !(got != got && want != want) {
				t.Errorf("%s[%d]: %v, want %v", name, i, got, want)
			}
		}
	}
}

// Every float16 and every bfloat16 against the definition, and back.
func TestHalves(t *testing.T) {
	for i := range 1 << 16 {
		exp, man := i>>10&31, float64(i&1023)
		want := math.Ldexp(1+man/1024, exp-15)
		switch {
		case exp == 0:
			want = math.Ldexp(man, -24)
		case exp == 31 && man == 0:
			want = math.Inf(1)
		case exp == 31:
			want = math.NaN()
		}
		if i&0x8000 != 0 {
			want = -want
		}
		h := uint16(i)
		got := F16ToF32(h)
		if !same(got, float32(want)) {
			t.Fatalf("float16 %#04x: %v, want %v", i, got, want)
		}
		b := math.Float32frombits(uint32(i) << 16)
		if got != got {
			if back := roundF16(got); F16ToF32(back) == F16ToF32(back) {
				t.Fatalf("the NaN %#04x became %#04x", i, back)
			}
		} else if back := roundF16(got); back != h {
			t.Fatalf("float16 %#04x became %#04x", i, back)
		}
		if b != b {
			if F32ToBF16(b) != 0x7fc0 {
				t.Fatalf("the NaN %#04x became %#04x", i, F32ToBF16(b))
			}
		} else if back := F32ToBF16(b); back != h {
			t.Fatalf("bfloat16 %#04x became %#04x", i, back)
		}
		// Halfway to the next magnitude the even one wins; a little more and the next one does.
		if exp == 31 || i&0x7fff == 0x7bff || i&0x7fff >= 0x7f7f {
			continue
		}
		even := h + h&1
		middle := (got + F16ToF32(h+1)) / 2
		beyond := math.Float32frombits(math.Float32bits(middle) + 1)
		if roundF16(middle) != even || roundF16(beyond) != h+1 {
			t.Fatalf("between float16 %#04x and the next: %#04x and %#04x", i, roundF16(middle), roundF16(beyond))
		}
		middle = math.Float32frombits(uint32(i)<<16 | 0x8000)
		beyond = math.Float32frombits(uint32(i)<<16 | 0x8001)
		if F32ToBF16(middle) != even || F32ToBF16(beyond) != h+1 {
			t.Fatalf("between bfloat16 %#04x and the next: %#04x and %#04x", i, F32ToBF16(middle), F32ToBF16(beyond))
		}
	}
	for f, want := range map[float32]uint16{65519: 0x7bff, 65520: 0x7c00, -1e30: 0xfc00, 1e-10: 0, float32(math.Inf(-1)): 0xfc00} {
		if got := roundF16(f); got != want {
			t.Errorf("%v became float16 %#04x, want %#04x", f, got, want)
		}
	}
}

func TestDTypes(t *testing.T) {
	for d := F32; d <= E8M0; d++ {
		if back, ok := ParseDType(d.String()); !ok || back != d || d.Size() == 0 {
			t.Errorf("%s of %d bytes parses as %s, %v", d, d.Size(), back, ok)
		}
		func() {
			defer func() {
				if panicked := recover() != nil; panicked == d.IsFloat() {
					t.Errorf("%s: a float type: %v, Widen panicked: %v", d, d.IsFloat(), panicked)
				}
			}()
			Widen(make([]float32, 1), make([]byte, 8), d)
		}()
	}
	for _, s := range []string{"", "f32", "DType(0)"} {
		if d, ok := ParseDType(s); ok {
			t.Errorf("%q parses as %s", s, d)
		}
	}
	if d := DType(0); d.Size() != 0 || d.IsFloat() || DType(200).Size() != 0 || DType(200).String() != "DType(200)" {
		t.Errorf("the zero DType is %s of %d bytes", d, d.Size())
	}
}
