package arch

import (
	"math"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// Rope is a rotary table on the device.
type Rope struct {
	Freq        compute.View // F32 [1, pairs] radians per position
	Mul         float32      // factor on the rotated dimensions
	Interleaved bool
}

// Rope builds the table for dim rotated dimensions. The kind is read from
// rope_parameters or rope_scaling, key type or rope_type (see ropeFrequencies).
func (l *Loader) Rope(cfg checkpoint.Config, dim int, theta float64, interleaved bool) Rope {
	scaling := cfg.Sub("rope_parameters")
	if scaling.Empty() {
		scaling = cfg.Sub("rope_scaling")
	}
	freq, mul := ropeFrequencies(l, scaling, dim, theta, cfg.IntOr("max_position_embeddings", 0))
	return Rope{Freq: l.Constant("rope frequencies", freq), Mul: mul, Interleaved: interleaved}
}

// ropeTheta reads the base: rope_parameters.rope_theta, else rope_theta, else def.
func ropeTheta(cfg checkpoint.Config, def float64) float64 {
	return cfg.Sub("rope_parameters").FloatOr("rope_theta", cfg.FloatOr("rope_theta", def))
}

// ropeFrequencies returns the angle per position of each pair and the factor on
// the rotated dimensions, for the scaling kinds of Hugging Face configurations:
// default, linear, llama3 (Llama 3.1 model card), yarn (Peng et al. 2023),
// longrope (Ding et al. 2024), proportional.
func ropeFrequencies(l *Loader, s checkpoint.Config, dim int, theta float64, maxPosition int) ([]float32, float32) {
	kind := s.StringOr("type", s.StringOr("rope_type", "default"))
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
	case "default", "mrope":
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
		orig := s.FloatOr("original_max_position_embeddings", float64(maxPosition))
		if f := float64(maxPosition) / orig; f > 1 {
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
		l.Fail("%w: rope type %q is not supported (known: default, linear, llama3, yarn, longrope, proportional)", errConfig, kind)
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
