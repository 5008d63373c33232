package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
)

// TestUnicodeFormSlow compares the slow algorithm with x/text where that is right: on texts without long
// runs of marks.
func TestUnicodeFormSlow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pools := [][2]rune{{0x20, 0x24f}, {0x300, 0x36f}, {0x400, 0x52f}, {0x900, 0xdff}, {0x1100, 0x11ff}, {0x1e00, 0x1fff}, {0x3040, 0x30ff},
		{0xac00, 0xd7a3}, {0xf900, 0xffef}, {0x1d100, 0x1d1ff}, {0x11000, 0x11fff}, {0x2f800, 0x2fa1d}}
	for range 3000 {
		var b strings.Builder
		for range 1 + r.IntN(12) {
			p := pools[r.IntN(len(pools))]
			b.WriteRune(p[0] + rune(r.IntN(int(p[1]-p[0]+1))))
		}
		s := b.String()
		for _, c := range []struct {
			form                   norm.Form
			compatibility, compose bool
		}{{norm.NFC, false, true}, {norm.NFD, false, false}, {norm.NFKC, true, true}, {norm.NFKD, true, false}} {
			if got, want := unicodeFormSlow(s, c.compatibility, c.compose), c.form.String(s); got != want {
				t.Fatalf("%+v of %+q = %+q, want %+q", c, s, got, want)
			}
		}
	}
	every := func(r rune) {
		s := string(r)
		if got, want := unicodeFormSlow(norm.NFD.String(s), false, true), norm.NFC.String(s); got != want {
			t.Errorf("NFC of %+q = %+q, want %+q", s, got, want)
		}
	}
	for r := rune(0xa0); r < 0x30000; r++ {
		if r < 0xd800 || r > 0xdfff {
			every(r)
		}
	}
}

// TestUnicodeFormLongRun: a text must not grow characters it never had.
func TestUnicodeFormLongRun(t *testing.T) {
	marks := strings.Repeat("\u0323\u0301", 50)
	want := "\u1eb9" + strings.Repeat("\u0323", 49) + strings.Repeat("\u0301", 50)
	if got := unicodeForm("e"+marks, false, true); got != want {
		t.Errorf("got %+q", got)
	}
	if longMarkRun(strings.Repeat("é", 100)) || longMarkRun(strings.Repeat("e\u0301", 100)) || !longMarkRun(marks) {
		t.Error("longMarkRun is wrong")
	}
}
