package arch

import (
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// Rope is a rotary table on the device.
type Rope struct {
	Freq        compute.View // F32 [1, pairs] radians per position
	Mul         float32      // factor on the rotated dimensions
	Interleaved bool
	// QBeta > 0: whole heads are then multiplied by 1+QBeta*ln(1+floor(pos/QOrig)).
	QBeta float32
	QOrig int

	far *dynamicRope
}

// Rope builds the table for dim rotated dimensions. The kind is read from
// rope_scaling, which is also what people add to a config by hand for longer texts, else
// from rope_parameters; key type or rope_type (see ropeFrequencies).
func (l *Loader) Rope(cfg checkpoint.Config, dim int, theta float64, interleaved bool) Rope {
	scaling := cfg.Sub("rope_scaling")
	if scaling.Empty() {
		scaling = cfg.Sub("rope_parameters")
	}
	return l.RopeScaled(cfg, scaling, dim, theta, interleaved)
}

// PlainRope is a table without scaling.
func (l *Loader) PlainRope(dim int, theta float64, interleaved bool) Rope {
	return l.RopeScaled(checkpoint.Config{}, checkpoint.Config{}, dim, theta, interleaved)
}

// RopeScaled is Rope with the scaling entry given.
func (l *Loader) RopeScaled(cfg, scaling checkpoint.Config, dim int, theta float64, interleaved bool) Rope {
	freq, mul := ropeFrequencies(l, cfg, scaling, dim, theta)
	r := Rope{Freq: l.Constant("rope frequencies", freq), Mul: mul, Interleaved: interleaved}
	if ropeKind(scaling) == "dynamic" && l.err == nil {
		limit := cfg.IntOr("max_position_embeddings", 0)
		l.Positive("max_position_embeddings", limit)
		r.far = &dynamicRope{l: l, dim: dim, theta: theta, factor: scaling.FloatOr("factor", 1), limit: limit}
	}
	return r
}

// ropeKind reads the kind of a scaling entry.
func ropeKind(s checkpoint.Config) string {
	return s.StringOr("type", s.StringOr("rope_type", "default"))
}

// ropeTheta reads the base: rope_parameters.rope_theta, else rope_theta, else def.
func ropeTheta(cfg checkpoint.Config, def float64) float64 {
	return cfg.Sub("rope_parameters").FloatOr("rope_theta", cfg.FloatOr("rope_theta", def))
}

// rotaryDims is how many dimensions of each head turn: an even number at most
// dim, from partial_rotary_factor.
func (l *Loader) rotaryDims(cfg checkpoint.Config, dim int, def float64) int {
	part := cfg.Sub("rope_parameters").FloatOr("partial_rotary_factor", cfg.FloatOr("partial_rotary_factor", def))
	n := int(float64(dim) * part)
	if l.err == nil && (!(part > 0 && part <= 1) || n < 2 || n%2 != 0) {
		l.Fail("%w: partial_rotary_factor %v of heads of %d does not give an even number of rotated dimensions", errConfig, part, dim)
	}
	return n
}

// ropeFrequencies returns the angle per position of each pair and the factor on
// the rotated dimensions, for the scaling kinds of Hugging Face configurations:
// default, linear, llama3 (Llama 3.1 model card), yarn (Peng et al. 2023),
// longrope (Ding et al. 2024), proportional; dynamic: the table up to
// max_position_embeddings (see dynamicRope).
func ropeFrequencies(l *Loader, cfg, s checkpoint.Config, dim int, theta float64) ([]float32, float32) {
	kind := ropeKind(s)
	maxPosition := cfg.FloatOr("max_position_embeddings", 0)
	l.Positive("rotary dimensions", dim/2)
	if l.err != nil {
		return nil, 1
	}
	if theta <= 0 || math.IsInf(theta, 0) || math.IsNaN(theta) {
		l.Fail("%w: rope_theta must be a positive number, is %v", errConfig, theta)
		return nil, 1
	}
	wave := make([]float64, dim/2) // positions per radian
	for i := range wave {
		wave[i] = math.Pow(theta, 2*float64(i)/float64(dim))
	}
	mul := 1.0
	factor := s.FloatOr("factor", 1)
	if factor <= 0 {
		l.Fail("%w: rope factor must be positive, is %v", errConfig, factor)
		return nil, 1
	}
	switch kind {
	case "default", "mrope", "dynamic":
	case "linear":
		for i := range wave {
			wave[i] *= factor
		}
	case "llama3":
		low, high := s.FloatOr("low_freq_factor", 1), s.FloatOr("high_freq_factor", 4)
		orig := s.FloatOr("original_max_position_embeddings", 8192)
		for i, f := range wave {
			w := 2 * math.Pi * f
			switch {
			case w > orig/low:
				wave[i] = f * factor
			case w >= orig/high:
				t := (orig/w - low) / (high - low)
				wave[i] = f / ((1-t)/factor + t)
			}
		}
	case "yarn", "deepseek_yarn", "telechat3-yarn":
		orig := s.FloatOr("original_max_position_embeddings", 4096)
		wave = yarn(wave, theta, factor, orig, s.FloatOr("beta_fast", 32), s.FloatOr("beta_slow", 1))
		mul = yarnScale(factor, s.FloatOr("mscale", 1)) / yarnScale(factor, s.FloatOr("mscale_all_dim", 0))
	case "longrope", "su":
		long := s.Floats("long_factor")
		if len(long) != len(wave) {
			l.Fail("%w: rope long_factor has %d entries for %d pairs", errConfig, len(long), len(wave))
			return nil, 1
		}
		for i := range wave {
			wave[i] *= long[i]
		}
		orig := s.FloatOr("original_max_position_embeddings", cfg.FloatOr("original_max_position_embeddings", maxPosition))
		if f := maxPosition / orig; f > 1 {
			mul = math.Sqrt(1 + math.Log(f)/math.Log(orig))
		}
	case "proportional":
		turn := int(float64(dim)*s.FloatOr("partial_rotary_factor", 1)) / 2
		for i := range wave {
			if wave[i] *= factor; i >= turn {
				wave[i] = math.Inf(1)
			}
		}
	default:
		l.Fail("%w: rope type %q is not supported (known: default, linear, dynamic, llama3, yarn, longrope, proportional)", errConfig, kind)
	}
	freq := make([]float32, len(wave))
	for i, w := range wave {
		freq[i] = float32(1 / w)
	}
	return freq, float32(mul)
}

// yarn blends stretched and plain wavelengths between the two correction
// dimensions (Peng et al. 2023, section 3.2).
func yarn(wave []float64, theta, factor, orig, fast, slow float64) []float64 {
	dim := float64(2 * len(wave))
	correction := func(rotations float64) float64 {
		return dim * math.Log(orig/(2*math.Pi*rotations)) / (2 * math.Log(theta))
	}
	lo, hi := math.Max(math.Floor(correction(fast)), 0), math.Min(math.Ceil(correction(slow)), dim-1)
	if lo == hi {
		hi += 0.001
	}
	out := make([]float64, len(wave))
	for i, e := range wave {
		r := math.Min(math.Max((float64(i)-lo)/(hi-lo), 0), 1)
		n, m := factor*e, 1-r
		out[i] = n * e / (n*m + e*(1-m))
	}
	return out
}

// yarnScale is the attention temperature of yarn for one mscale.
func yarnScale(factor, mscale float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*mscale*math.Log(factor) + 1
}

// dynamicRope holds the tables of positions at or past limit under dynamic NTK
// scaling: there the base grows with the length of the text. The length that
// counts is that of the text up to the row itself, so that a row's bits do not
// depend on how many rows run together. Tables are made when first needed and
// never change.
type dynamicRope struct {
	l             *Loader
	dim, limit    int
	theta, factor float64
	tables        map[int32]compute.View // of farTables positions each
}

const farTables = 256

// near reports whether a position uses the plain table.
func (d *dynamicRope) near(pos int32) bool { return int(pos) < d.limit }

// at returns the table of a position.
func (d *dynamicRope) at(pos int32) (compute.View, error) {
	t, ok := d.tables[pos/farTables]
	if !ok {
		buf, err := d.l.b.Alloc("rope frequencies", farTables*d.dim/2*4)
		if err != nil {
			return compute.View{}, err
		}
		d.l.buffers = append(d.l.buffers, buf)
		t = buf.Of(layout.F32, 0, farTables, d.dim/2)
		for i := range farTables {
			length := math.Max(float64(int(pos)/farTables*farTables+i+1), float64(d.limit))
			grow := d.factor*length/float64(d.limit) - (d.factor - 1)
			base := d.theta * math.Pow(grow, float64(d.dim)/float64(d.dim-2))
			for j := range t.Cols {
				t.F32(i)[j] = float32(1 / math.Pow(base, 2*float64(j)/float64(d.dim)))
			}
		}
		if d.tables == nil {
			d.tables = map[int32]compute.View{}
		}
		d.tables[pos/farTables] = t
	}
	return t.Slice(int(pos)%farTables, int(pos)%farTables+1), nil
}
