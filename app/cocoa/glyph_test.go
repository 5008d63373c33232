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

// TestRibbon: a bar for each round, as high as what it committed, in the shade
// of where that came from; and two pixels a point.
func TestRibbon(t *testing.T) {
	b := ribbon([]menubar.Bar{{Committed: 1, Source: "plain"}, {Committed: 4, Source: "lookup"}, {Committed: 99, Source: "drafter"}})
	im, err := png.Decode(bytes.NewReader(b))
	if err != nil || im.Bounds().Dx() != 3*barStep || im.Bounds().Dy() != ribbonHeight {
		t.Fatalf("%v %v", im.Bounds(), err)
	}
	for i, want := range []struct{ height, shade int }{{4, 0x50}, {16, 0xa0}, {32, 0xff}} {
		height, shade := 0, 0
		for y := range ribbonHeight {
			if _, _, _, a := im.At(i*barStep+1, y).RGBA(); a > 0 {
				height, shade = height+1, int(a>>8)
			}
		}
		if height != want.height || shade != want.shade {
			t.Errorf("bar %d is %d high in %#x, want %+v", i, height, shade, want)
		}
		if _, _, _, a := im.At(i*barStep+barWidth, ribbonHeight-1).RGBA(); a != 0 {
			t.Errorf("bar %d has no gap", i)
		}
	}
	if _, err := png.Decode(bytes.NewReader(ribbon(nil))); err != nil {
		t.Error(err)
	}
	// pHYs: 5669 dots a metre both ways.
	if !bytes.Contains(b, []byte{'p', 'H', 'Y', 's', 0, 0, 0x16, 0x25, 0, 0, 0x16, 0x25, 1}) {
		t.Error("the picture does not say how large it is")
	}
}
