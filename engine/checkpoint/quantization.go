package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"sparkbar/engine/layout"
)

// quantization is what config.json says about quantized weights.
type quantization struct {
	name   string             // config.json, for errors
	all    *packing           // for paths that are not named
	paths  map[string]packing // named paths
	off    map[string]bool    // paths named false
	method string             // a foreign quant_method, such as "gptq"
}

// packing is one {mode, bits, group_size}. mode "" stands for whatever the stored scales say.
type packing struct {
	mode        string
	bits, group int
}

func (l packing) String() string {
	mode := l.mode
	if mode == "" {
		mode = "affine"
	}
	return fmt.Sprintf("%s, %d bits, group %d", mode, l.bits, l.group)
}

var modes = map[string]struct {
	layout.Scheme
	packing
}{
	"affine": {layout.Affine, packing{"affine", 4, 64}},
	"mxfp4":  {layout.MXFP4, packing{"mxfp4", 4, 32}},
	"mxfp8":  {layout.MXFP8, packing{"mxfp8", 8, 32}},
	"nvfp4":  {layout.NVFP4, packing{"nvfp4", 4, 16}},
}

// check refuses combinations that do not exist.
func (l packing) check() error {
	if l.mode == "" && l.bits == 4 && l.group == 16 { // nvfp4 without its mode
		return nil
	}
	scheme := layout.Affine
	if l.mode != "" {
		m, ok := modes[l.mode]
		if !ok {
			return fmt.Errorf("quantization mode %q is unknown; the choices are affine, mxfp4, mxfp8 and nvfp4", l.mode)
		}
		scheme = m.Scheme
	}
	return scheme.Check(l.bits, l.group)
}

// readQuantization decodes the quantization (or quantization_config) entry of a config, or of its text_config.
func readQuantization(config object) (quantization, error) {
	q := quantization{name: config.name, paths: map[string]packing{}, off: map[string]bool{}}
	root := newConfig(config)
	for _, c := range []Config{root, root.Sub("text_config")} {
		for _, key := range []string{"quantization", "quantization_config"} {
			sub := c.Sub(key)
			if sub.Empty() {
				continue
			}
			return q, q.read(sub)
		}
	}
	return q, root.Err()
}

func (q *quantization) read(c Config) error {
	if method := c.StringOr("quant_method", ""); method == "mxfp4" {
		l := modes["mxfp4"].packing
		q.all = &l
		return c.Err()
	} else if method != "" && method != "mlx" {
		q.method = method
		return c.Err()
	}
	if c.Has("bits") || c.Has("group_size") || c.Has("mode") {
		l, err := readPacking(c)
		if err != nil {
			return err
		}
		q.all = &l
	}
	for _, key := range c.Keys() {
		switch v := c.Value(key).(type) {
		case map[string]any:
			sub := c.Sub(key)
			if !sub.Has("bits") && !sub.Has("group_size") && !sub.Has("mode") {
				continue // not a layer entry
			}
			l, err := readPacking(sub)
			if err != nil {
				return err
			}
			q.paths[key] = l
		case bool:
			if !v && strings.Contains(key, ".") {
				q.off[key] = true
			}
		}
	}
	return c.Err()
}

func readPacking(c Config) (packing, error) {
	l := packing{mode: c.StringOr("mode", "")}
	def := modes["affine"].packing
	if m, ok := modes[l.mode]; ok {
		def = m.packing
	}
	l.bits, l.group = c.IntOr("bits", def.bits), c.IntOr("group_size", def.group)
	if err := c.Err(); err != nil {
		return l, err
	}
	if err := l.check(); err != nil {
		return l, fmt.Errorf("%s: %w", c.obj.name, err)
	}
	return l, nil
}

// find is the entry for the first of the given paths that is named, else the one for all.
func (q quantization) find(paths ...string) (l packing, given, off bool) {
	for _, p := range paths {
		if q.off[p] {
			return l, false, true
		}
		if l, ok := q.paths[p]; ok {
			return l, true, false
		}
	}
	if q.all != nil {
		return *q.all, true, false
	}
	return l, false, false
}

// Matrix finds the weight of a linear or embedding layer: the tensor prefix.weight, with prefix.scales and
// prefix.biases when it is quantized. A tensor called prefix itself is taken too. Three-dimensional weights are
// stacked experts.
//
// Bits and group size follow from the stored shapes and from config.json, which must agree: a path named there with
// other numbers, named as quantized and stored dense, or named false and stored quantized, is an error that names the
// tensor. Shapes alone leave a few affine layouts undecided (4 bits in groups of 64 look like 8 bits in groups of 32);
// when config.json is silent about such a tensor use MatrixCols.
//
// NVFP4 weights as modelopt writes them (weight_scale, weight_scale_2) are found the same way. Two kinds are copied on
// each call instead of viewed: q and k projections of llama GGUF files, whose rows are put in Hugging Face order, and
// scaled 8-bit float weights of Hugging Face files, which become bfloat16.
func (c *Checkpoint) Matrix(prefix string) (layout.Matrix, error) { return c.MatrixCols(prefix, 0) }

// MatrixCols is Matrix for a caller that knows the input width, which decides bits and group size without config.json.
// A stored matrix of another width is an error.
func (c *Checkpoint) MatrixCols(prefix string, cols int) (layout.Matrix, error) {
	w, err := c.find(prefix + ".weight")
	if err != nil && c.tensors[prefix] != nil {
		w, err = c.tensors[prefix], nil
	}
	if err != nil {
		for _, packed := range []string{".qweight", ".weight_packed"} {
			if c.Has(prefix + packed) {
				return layout.Matrix{}, fmt.Errorf("%s: tensor %q is in a packing that cannot be read (%s); use an MLX or GGUF conversion of the model", c.path, prefix+packed, c.quant.foreign())
			}
		}
		return layout.Matrix{}, err
	}
	m, err := c.matrix(prefix, w, cols)
	if err == nil {
		err = m.Check()
	}
	if err != nil {
		return layout.Matrix{}, fmt.Errorf("%s: tensor %q: %w", c.files[w.file].path, w.name, err)
	}
	return m, nil
}

func (q quantization) foreign() string {
	if q.method != "" {
		return "quant_method " + q.method
	}
	return "unknown quantization"
}

func (c *Checkpoint) matrix(prefix string, w *entry, cols int) (layout.Matrix, error) {
	m := layout.Matrix{Name: prefix, GlobalScale: 1, Alloc: c.alloc}
	scales, biases := c.tensors[prefix+".scales"], c.tensors[prefix+".biases"]
	stored := strings.TrimSuffix(w.name, ".weight")
	want, given, off := c.quant.find(stored, prefix)

	if w.block != 0 || scales == nil && w.dtype.IsFloat() && w.dtype.Size() > 1 {
		if _, named := c.quant.paths[stored]; named {
			return m, fmt.Errorf("%s says it is quantized (%s), but it is stored as plain %s; the files are of different conversions, download the model again", c.quant.name, want, w.dtype)
		}
		m.Scheme, m.DType = layout.Dense, w.dtype
		if w.block != 0 {
			m.Scheme, m.Bits, m.Group = w.block, w.block.CodeBits(), w.block.BlockSize()
		}
		if err := setShape(&m, w.shape, 1, 1); err != nil {
			return m, err
		}
		if cols != 0 && cols != m.Cols {
			return m, fmt.Errorf("has %d columns where the model needs %d", m.Cols, cols)
		}
		m.Weight = w.data
		return c.unpermute(m, w), nil
	}
	if scales == nil && (w.dtype == layout.F8E4M3 || w.dtype == layout.F8E5M2) {
		return c.fp8(m, prefix, w, cols)
	}
	if scales == nil {
		return c.modelopt(m, prefix, w, cols)
	}

	ws, ss := w.shape, scales.shape
	if w.dtype == layout.U8 && len(ws) == len(ss)+1 { // Hugging Face gpt_oss: [..., groups, bytes of a group]
		ws = slices.Concat(ws[:len(ws)-2], []int{ws[len(ws)-2] * ws[len(ws)-1]})
	}
	n := len(ws)
	switch {
	case w.dtype != layout.U32 && w.dtype != layout.U8:
		return m, fmt.Errorf("is %s next to scales; packed weights are U32", w.dtype)
	case n < 2 || n > 3 || !slices.Equal(ws[:n-1], ss[:max(len(ss)-1, 0)]) || ws[n-1] == 0 || ss[n-1] == 0:
		return m, fmt.Errorf("packed shape %v does not fit the shape %v of %q", ws, ss, scales.name)
	case off:
		return m, fmt.Errorf("%s says it is not quantized, but it has scales; the files are of different conversions, download the model again", c.quant.name)
	}
	packedBits := ws[n-1] * w.dtype.Size() * 8 // of one row: columns * bits
	perScale := packedBits / ss[n-1]           // group * bits
	if packedBits%ss[n-1] != 0 {
		return m, fmt.Errorf("packed shape %v does not fit the shape %v of %q", ws, ss, scales.name)
	}

	var got packing
	switch scales.dtype {
	case layout.U8, layout.E8M0, layout.F8E4M3:
		for _, mode := range []string{"nvfp4", "mxfp4", "mxfp8"} {
			if l := modes[mode].packing; l.bits*l.group == perScale && (scales.dtype == layout.U8 || (scales.dtype == layout.F8E4M3) == (mode == "nvfp4")) {
				got = l
			}
		}
		if got.mode == "" {
			return m, fmt.Errorf("packed shape %v with byte scales %v is none of nvfp4, mxfp4 and mxfp8", ws, ss)
		}
		if biases != nil {
			return m, fmt.Errorf("%s weights have no biases, but %q exists", got.mode, biases.name)
		}
	case layout.F32, layout.F16, layout.BF16:
		got.mode = "affine"
		switch {
		case cols != 0:
			got.bits, got.group = packedBits/cols, cols/ss[n-1]
		case given:
			got.bits, got.group = want.bits, want.group
		default:
			return m, fmt.Errorf("it is quantized, but config.json has no \"quantization\" entry that says with how many bits; download the model's config.json again")
		}
		if got.bits*got.group != perScale || got.check() != nil {
			if given {
				return m, fmt.Errorf("%s says %s, but the stored shapes (weight %v, scales %v) mean %d bits for each scale; the files are of different conversions, download the model again", c.quant.name, want, ws, ss, perScale)
			}
			return m, fmt.Errorf("the stored shapes (weight %v, scales %v) do not make rows of %d columns", ws, ss, cols)
		}
		if biases == nil || biases.dtype != scales.dtype || !slices.Equal(biases.shape, ss) {
			return m, fmt.Errorf("it needs biases like its scales (%s %v)", scales.dtype, ss)
		}
		m.DType, m.Biases = scales.dtype, biases.data
	default:
		return m, fmt.Errorf("its scales are %s; affine scales are F32, F16 or BF16, others U8", scales.dtype)
	}
	if given && (want.bits != got.bits || want.group != got.group || want.mode != "" && want.mode != got.mode) {
		return m, fmt.Errorf("%s says %s, but it is stored as %s; the files are of different conversions, download the model again", c.quant.name, want, got)
	}
	m.Scheme, m.Bits, m.Group = modes[got.mode].Scheme, got.bits, got.group
	if err := setShape(&m, ws, w.dtype.Size()*8, got.bits); err != nil {
		return m, err
	}
	if cols != 0 && cols != m.Cols {
		return m, fmt.Errorf("has %d columns where the model needs %d", m.Cols, cols)
	}
	m.Weight, m.Scales = w.data, scales.data
	if global := c.tensors[prefix+".global_scale"]; global != nil && m.Scheme == layout.NVFP4 {
		g, err := scalar(global)
		if err != nil {
			return m, err
		}
		m.GlobalScale = g / (448 * 6) // MLX stores the largest magnitude: the largest scale times the largest code
	}
	return m, nil
}

// setShape sets Batch, Rows and Cols from a stored shape whose last dimension counts words of unit bits, bits a code.
func setShape(m *layout.Matrix, s []int, unit, bits int) error {
	if len(s) < 2 || len(s) > 3 {
		return fmt.Errorf("has shape %v; a matrix has two dimensions, stacked experts three", s)
	}
	m.Rows, m.Cols = s[len(s)-2], s[len(s)-1]*unit/bits
	if len(s) == 3 {
		m.Batch = s[0]
	}
	if s[0] == 0 || m.Rows == 0 || m.Cols == 0 {
		return fmt.Errorf("has the empty shape %v", s)
	}
	return nil
}

// modelopt reads NVFP4 as NVIDIA's modelopt writes it: weight U8 [out, in/2], weight_scale E4M3 [out, in/16],
// weight_scale_2 one F32. The bytes are the ones MLX's nvfp4 packs into words.
func (c *Checkpoint) modelopt(m layout.Matrix, prefix string, w *entry, cols int) (layout.Matrix, error) {
	scale := c.tensors[prefix+".weight_scale"]
	if scale == nil || w.dtype != layout.U8 || scale.dtype != layout.U8 && scale.dtype != layout.F8E4M3 {
		return m, fmt.Errorf("is %s without scales that can be read (%s); use an MLX or GGUF conversion of the model", w.dtype, c.quant.foreign())
	}
	m.Scheme, m.Bits, m.Group = layout.NVFP4, 4, 16
	if err := setShape(&m, w.shape, 8, 4); err != nil {
		return m, err
	}
	n := len(w.shape)
	if len(scale.shape) != n || !slices.Equal(scale.shape[:n-1], w.shape[:n-1]) || scale.shape[n-1]*8 != w.shape[n-1] {
		return m, fmt.Errorf("packed shape %v does not fit the shape %v of %q", w.shape, scale.shape, scale.name)
	}
	if cols != 0 && cols != m.Cols {
		return m, fmt.Errorf("has %d columns where the model needs %d", m.Cols, cols)
	}
	m.Weight, m.Scales = w.data, scale.data
	if global := c.tensors[prefix+".weight_scale_2"]; global != nil {
		g, err := scalar(global)
		if err != nil {
			return m, err
		}
		m.GlobalScale = g
	}
	return m, nil
}

// fp8 decodes an 8-bit float weight that has a scale for the tensor, for each row, or for each block of 128 x 128, as
// Hugging Face files have it: weight * weight_scale_inv (or weight_scale), rounded to bfloat16. The result is a dense
// copy of twice the stored size.
func (c *Checkpoint) fp8(m layout.Matrix, prefix string, w *entry, cols int) (layout.Matrix, error) {
	const block = 128
	s := c.tensors[prefix+".weight_scale_inv"]
	if s == nil {
		s = c.tensors[prefix+".weight_scale"]
	}
	if s == nil || s.dtype != layout.F32 && s.dtype != layout.F16 && s.dtype != layout.BF16 {
		return m, fmt.Errorf("is %s without scales that can be read (%s); use an MLX or GGUF conversion of the model", w.dtype, c.quant.foreign())
	}
	if err := setShape(&m, w.shape, 1, 1); err != nil {
		return m, err
	}
	if cols != 0 && cols != m.Cols {
		return m, fmt.Errorf("has %d columns where the model needs %d", m.Cols, cols)
	}
	scales, err := Tensor{Name: s.name, DType: s.dtype, Data: s.data}.Float32()
	if err != nil {
		return m, err
	}
	n, across := max(m.Batch, 1)*m.Rows, (m.Cols+block-1)/block
	rowSize, perRow := 1, 1 // rows and scales of one row of scales
	switch {
	case len(scales) == 1:
		rowSize = n
	case m.Batch == 0 && slices.Equal(s.shape, []int{(m.Rows + block - 1) / block, across}):
		rowSize, perRow = block, across
	case len(scales) == n:
	default:
		return m, fmt.Errorf("shape %v does not fit the shape %v of %q", w.shape, s.shape, s.name)
	}
	m.Scheme, m.DType = layout.Dense, layout.BF16
	m.Weight = c.alloc(2 * n * m.Cols)
	row := make([]float32, m.Cols)
	for r := range n {
		layout.Widen(row, w.data[r*m.Cols:], w.dtype)
		of := scales[r/rowSize*perRow:][:perRow]
		for i, v := range row {
			v *= of[min(i/block, perRow-1)]
			binary.LittleEndian.PutUint16(m.Weight[2*(r*m.Cols+i):], layout.F32ToBF16(v))
		}
	}
	return m, nil
}

// scalar reads a tensor of one float32.
func scalar(e *entry) (float32, error) {
	if e.dtype != layout.F32 || len(e.data) != 4 {
		return 0, fmt.Errorf("its scale %q is %s %v, want one F32", e.name, e.dtype, e.shape)
	}
	f := math.Float32frombits(binary.LittleEndian.Uint32(e.data))
	if f != f || math.IsInf(float64(f), 0) {
		return 0, fmt.Errorf("its scale %q is %v", e.name, f)
	}
	return f, nil
}
