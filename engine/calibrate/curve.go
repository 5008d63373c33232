package calibrate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Curve is a function of a small integer (a width or a cap), known at a few
// points and linear between them. Its JSON form is an object {"1": 21.5, …};
// a curve that does not depend on its argument is a plain number.
type Curve struct {
	points []point // ascending x, finite y
	scalar bool    // came from, and becomes, a plain number
}

type point struct {
	x int
	y float64
}

// Bounds of what UnmarshalJSON accepts.
const (
	maxPoints = 4096
	maxValue  = 1e9 // ms; nothing real takes eleven days
)

// NewCurve returns the curve through the given points.
func NewCurve(points map[int]float64) Curve {
	var c Curve
	for x, y := range points {
		c.points = append(c.points, point{x, y})
	}
	slices.SortFunc(c.points, func(a, b point) int { return a.x - b.x })
	return c
}

// Constant returns the curve that is y everywhere.
func Constant(y float64) Curve {
	return Curve{points: []point{{0, y}}, scalar: true}
}

// Empty reports whether the curve has no points.
func (c Curve) Empty() bool { return len(c.points) == 0 }

// Rising returns the curve without what only disturbances explain: a value is
// never above that of a larger x, since more work takes no less time and other
// programs only ever add to it.
func (c Curve) Rising() Curve {
	out := Curve{points: slices.Clone(c.points), scalar: c.scalar}
	for i := len(out.points) - 2; i >= 0; i-- {
		out.points[i].y = min(out.points[i].y, out.points[i+1].y)
	}
	return out
}

// Points returns where the curve is known, ascending.
func (c Curve) Points() []int {
	var list []int
	for _, p := range c.points {
		list = append(list, p.x)
	}
	return list
}

// At returns the value at x: interpolated linearly between points, the first
// value below them, continued with the slope of the last segment above them.
// An empty curve is 0.
func (c Curve) At(x int) float64 {
	p := c.points
	switch {
	case len(p) == 0:
		return 0
	case x <= p[0].x || len(p) == 1:
		return p[0].y
	}
	i := 1
	for i < len(p)-1 && p[i].x < x {
		i++
	}
	a, b := p[i-1], p[i]
	return a.y + (b.y-a.y)*float64(x-a.x)/float64(b.x-a.x)
}

// MarshalJSON writes the points in ascending order.
func (c Curve) MarshalJSON() ([]byte, error) {
	if c.scalar {
		return json.Marshal(c.points[0].y)
	}
	b := []byte{'{'}
	for i, p := range c.points {
		if i > 0 {
			b = append(b, ',')
		}
		y, err := json.Marshal(p.y)
		if err != nil {
			return nil, fmt.Errorf("calibrate: value %v at %d: %w", p.y, p.x, err)
		}
		b = append(strconv.AppendQuote(b, strconv.Itoa(p.x)), ':')
		b = append(b, y...)
	}
	return append(b, '}'), nil
}

// UnmarshalJSON reads an object of points or a plain number. Values must be
// plausible times, positions whole numbers of at least 0.
func (c *Curve) UnmarshalJSON(data []byte) error {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' {
		var y *float64
		if err := json.Unmarshal(data, &y); err != nil {
			return fmt.Errorf("calibrate: a curve is an object of numbers or one number: %w", err)
		}
		if y == nil {
			*c = Curve{}
			return nil
		}
		if *y < 0 || *y > maxValue {
			return fmt.Errorf("calibrate: impossible cost %v ms", *y)
		}
		*c = Constant(*y)
		return nil
	}
	var raw map[string]float64
	if err := json.Unmarshal(data, &raw); err != nil {
		return fmt.Errorf("calibrate: a curve is an object of numbers or one number: %w", err)
	}
	if len(raw) > maxPoints {
		return fmt.Errorf("calibrate: a curve of %d points (at most %d)", len(raw), maxPoints)
	}
	points := make(map[int]float64, len(raw))
	for k, y := range raw {
		x, err := strconv.Atoi(k)
		if err != nil || x < 0 || x > math.MaxInt32 || strconv.Itoa(x) != k {
			return fmt.Errorf("calibrate: %q is not a width or cap", k)
		}
		if y < 0 || y > maxValue {
			return fmt.Errorf("calibrate: impossible cost %v ms at %d", y, x)
		}
		points[x] = y
	}
	*c = NewCurve(points)
	return nil
}
