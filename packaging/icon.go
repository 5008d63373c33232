package packaging

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
)

// point is a place in the unit square, y downwards.
type point struct{ x, y float64 }

// bolt is the product's mark: a lightning bolt.
var bolt = []point{{0.58, 0.06}, {0.20, 0.56}, {0.46, 0.56}, {0.38, 0.94}, {0.80, 0.40}, {0.53, 0.40}}

// inside reports whether p lies in the polygon.
func inside(poly []point, p point) bool {
	in := false
	for i, j := 0, len(poly)-1; i < len(poly); j, i = i, i+1 {
		a, b := poly[i], poly[j]
		if (a.y > p.y) != (b.y > p.y) && p.x < (b.x-a.x)*(p.y-a.y)/(b.y-a.y)+a.x {
			in = !in
		}
	}
	return in
}

// rounded reports whether p lies in the rounded square between m and 1-m.
func rounded(p point, m, r float64) bool {
	x, y := math.Max(math.Abs(p.x-0.5)-(0.5-m-r), 0), math.Max(math.Abs(p.y-0.5)-(0.5-m-r), 0)
	return x*x+y*y <= r*r && math.Abs(p.x-0.5) <= 0.5-m && math.Abs(p.y-0.5) <= 0.5-m
}

// Icon draws the app's icon with the given number of pixels a side.
func Icon(size int) image.Image {
	const grid = 4 // samples a side of a pixel
	im := image.NewNRGBA(image.Rect(0, 0, size, size))
	for y := range size {
		for x := range size {
			var r, g, b, n float64
			for i := range grid * grid {
				p := point{(float64(x) + (float64(i%grid)+0.5)/grid) / float64(size), (float64(y) + (float64(i/grid)+0.5)/grid) / float64(size)}
				if !rounded(p, 0.09, 0.185) {
					continue
				}
				n++
				c := [3]float64{float64(0x6b) - 30*p.y, float64(0x84) - 30*p.y, 0xff} // around the brand's blue
				if q := (point{0.5 + (p.x-0.5)/0.66, 0.5 + (p.y-0.5)/0.66}); inside(bolt, q) {
					c = [3]float64{255, 255, 255}
				}
				r, g, b = r+c[0], g+c[1], b+c[2]
			}
			if n > 0 {
				im.SetNRGBA(x, y, color.NRGBA{uint8(r / n), uint8(g / n), uint8(b / n), uint8(255 * n / (grid * grid))})
			}
		}
	}
	return im
}

// icnsKinds are the images of an icon file: type and pixels a side.
var icnsKinds = []struct {
	kind string
	size int
}{{"icp4", 16}, {"icp5", 32}, {"ic11", 32}, {"ic12", 64}, {"ic07", 128}, {"ic13", 256}, {"ic08", 256}, {"ic14", 512}, {"ic09", 512}, {"ic10", 1024}}

// ICNS is the app's icon in all sizes that macOS asks for.
func ICNS() ([]byte, error) {
	drawn := map[int][]byte{}
	var body bytes.Buffer
	for _, k := range icnsKinds {
		if drawn[k.size] == nil {
			var b bytes.Buffer
			if err := png.Encode(&b, Icon(k.size)); err != nil {
				return nil, err
			}
			drawn[k.size] = b.Bytes()
		}
		body.WriteString(k.kind)
		body.Write(be32(uint32(8 + len(drawn[k.size]))))
		body.Write(drawn[k.size])
	}
	return append(append([]byte("icns"), be32(uint32(8+body.Len()))...), body.Bytes()...), nil
}

// checkICNS reads an icon file again.
func checkICNS(b []byte) error {
	if len(b) < 8 || string(b[:4]) != "icns" || int(binary.BigEndian.Uint32(b[4:])) != len(b) {
		return errors.New("not an icon file")
	}
	at := 8
	for _, k := range icnsKinds {
		if at+8 > len(b) {
			return fmt.Errorf("no image %s", k.kind)
		}
		n := int(binary.BigEndian.Uint32(b[at+4:]))
		if string(b[at:at+4]) != k.kind || n < 8 || at+n > len(b) {
			return fmt.Errorf("the image %s is missing or cut off", k.kind)
		}
		c, err := png.DecodeConfig(bytes.NewReader(b[at+8 : at+n]))
		if err != nil {
			return fmt.Errorf("%s: %w", k.kind, err)
		}
		if c.Width != k.size || c.Height != k.size {
			return fmt.Errorf("%s has %dx%d pixels", k.kind, c.Width, c.Height)
		}
		at += n
	}
	if at != len(b) {
		return errors.New("there is something behind the images")
	}
	return nil
}
