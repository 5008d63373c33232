package cocoa

import (
	"bytes"
	"image/png"
	"testing"

	"sparkbar/app/menubar"
)

// TestGlyphs: template images of the right size, all different, neither empty
// nor full; the pulse moves and comes back after three frames.
func TestGlyphs(t *testing.T) {
	seen := map[string]menubar.Glyph{}
	for _, g := range []menubar.Glyph{menubar.GlyphBolt, menubar.GlyphFilled, menubar.GlyphDownload, menubar.GlyphPulse, menubar.GlyphSlashed} {
		b := glyph(g, 0)
		im, err := png.Decode(bytes.NewReader(b))
		if err != nil || im.Bounds().Dx() != glyphPixels || im.Bounds().Dy() != glyphPixels {
			t.Fatalf("%s: %v", g, err)
		}
		covered := 0
		for y := range glyphPixels {
			for x := range glyphPixels {
				r, gr, bl, a := im.At(x, y).RGBA()
				if r|gr|bl != 0 {
					t.Fatalf("%s is not black at %d,%d", g, x, y)
				}
				if a > 0x7fff {
					covered++
				}
			}
		}
		if covered < 60 || covered > glyphPixels*glyphPixels/2 {
			t.Errorf("%s covers %d pixels", g, covered)
		}
		if other, twice := seen[string(b)]; twice {
			t.Errorf("%s looks like %s", g, other)
		}
		seen[string(b)] = g
	}
	if f := func(n int) string { return string(glyph(menubar.GlyphPulse, n)) }; f(0) == f(1) || f(1) == f(2) || f(0) != f(3) {
		t.Error("the pulse does not move in three steps")
	}
}
