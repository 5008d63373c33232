package cocoa

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"slices"

	"sparkbar/app/menubar"
)

// glyphPixels is the size of a glyph: 18 points at two pixels a point.
const glyphPixels = 36

type spot struct{ x, y float64 }

var boltShape = []spot{{0.60, 0.04}, {0.20, 0.56}, {0.46, 0.56}, {0.38, 0.96}, {0.80, 0.40}, {0.53, 0.40}}

// distance is how far p lies inside (positive) or outside the bolt, roughly.
func distance(p spot) float64 {
	in, best := false, 10.0
	for i, j := 0, len(boltShape)-1; i < len(boltShape); j, i = i, i+1 {
		a, b := boltShape[i], boltShape[j]
		if (a.y > p.y) != (b.y > p.y) && p.x < (b.x-a.x)*(p.y-a.y)/(b.y-a.y)+a.x {
			in = !in
		}
		dx, dy := b.x-a.x, b.y-a.y
		t := min(max(((p.x-a.x)*dx+(p.y-a.y)*dy)/(dx*dx+dy*dy), 0), 1)
		x, y := a.x+t*dx-p.x, a.y+t*dy-p.y
		best = min(best, x*x+y*y)
	}
	if in {
		return best
	}
	return -best
}

// glyph draws a template image: black, and only its alpha counts. frame moves
// the pulse.
func glyph(g menubar.Glyph, frame int) []byte {
	const grid = 4
	im := image.NewNRGBA(image.Rect(0, 0, glyphPixels, glyphPixels))
	for y := range glyphPixels {
		for x := range glyphPixels {
			n := 0
			for i := range grid * grid {
				p := spot{(float64(x) + (float64(i%grid)+0.5)/grid) / glyphPixels, (float64(y) + (float64(i/grid)+0.5)/grid) / glyphPixels}
				if ink(g, frame, p) {
					n++
				}
			}
			im.SetNRGBA(x, y, color.NRGBA{0, 0, 0, uint8(255 * n / (grid * grid))})
		}
	}
	return encode(im)
}

// encode writes a PNG that says it has two pixels a point: 144 dots an inch, in
// dots a metre. Without that AppKit would draw it twice as large.
func encode(im image.Image) []byte {
	const dots = 5669
	var b bytes.Buffer
	if err := png.Encode(&b, im); err != nil {
		panic(err) // a Buffer takes everything
	}
	const head = 8 + 25 // the signature and the first chunk, IHDR
	size := []byte{0, 0, 0, 9, 'p', 'H', 'Y', 's', 0, 0, 0, 0, 0, 0, 0, 0, 1}
	binary.BigEndian.PutUint32(size[8:], dots)
	binary.BigEndian.PutUint32(size[12:], dots)
	size = binary.BigEndian.AppendUint32(size, crc32.ChecksumIEEE(size[4:]))
	return slices.Insert(b.Bytes(), head, size...)
}

// ink reports whether a glyph covers p.
func ink(g menubar.Glyph, frame int, p spot) bool {
	d := distance(p)
	outline := d > 0 && d < 0.045*0.045
	switch g {
	case menubar.GlyphFilled:
		return d > 0
	case menubar.GlyphPulse: // filled from below, in three steps
		return outline || d > 0 && p.y > 0.9-0.3*float64(frame%menubar.PulseFrames+1)
	case menubar.GlyphDownload:
		stem := p.x > 0.80 && p.x < 0.88 && p.y > 0.55 && p.y < 0.90
		head := p.y > 0.74 && p.y < 0.96 && abs(p.x-0.84) < 0.96-p.y && abs(p.x-0.84) < 0.16
		return outline && p.x < 0.74 || stem || head
	case menubar.GlyphSlashed:
		line := abs(p.x-p.y) < 0.05
		gap := abs(p.x-p.y) < 0.11
		return line || outline && !gap
	}
	return outline
}

// The ribbon at two pixels a point: bars of a pair of points, a point apart.
const (
	ribbonHeight = 32
	barStep      = 6
	barWidth     = 4
	tallest      = 8 // tokens of a round that fill the height
)

// ribbon draws rounds as a template image: the height of a bar is what the
// round committed, its shade where the tokens came from.
func ribbon(bars []menubar.Bar) []byte {
	im := image.NewNRGBA(image.Rect(0, 0, max(len(bars), 1)*barStep, ribbonHeight))
	for i, b := range bars {
		shade := uint8(0xff)
		switch b.Source {
		case "lookup":
			shade = 0xa0
		case "plain":
			shade = 0x50
		}
		top := ribbonHeight - ribbonHeight*min(max(b.Committed, 1), tallest)/tallest
		for y := top; y < ribbonHeight; y++ {
			for x := range barWidth {
				im.SetNRGBA(i*barStep+x, y, color.NRGBA{0, 0, 0, shade})
			}
		}
	}
	return encode(im)
}

func abs(x float64) float64 { return max(x, -x) }
