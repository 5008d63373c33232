package arch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// Linear is a weight with its optional bias.
type Linear struct {
	W    *compute.Weight
	Bias compute.View
}

// Loader hands tensors of a checkpoint to a backend. The first error sticks;
// calls after it return empty values, so a family (or a drafter) reads without
// error checks and asks for Err at the end.
type Loader struct {
	// Convert, when set, sees every weight before the backend does and may
	// replace it, by a quantized copy for instance.
	Convert func(layout.Matrix) (layout.Matrix, error)

	c       *checkpoint.Checkpoint
	b       compute.Backend
	err     error
	used    map[string]bool
	dropped map[string]bool // tensors that nobody reads, see Drop
	weights []*compute.Weight
	buffers []*compute.Buffer
	bytes   int64
	idle    int64 // bytes that a token does not read: experts that were not chosen, rows of tables

	// What adapters are matched by: how stored names became ours, and where the
	// rows of each matrix went.
	renames []func(string) (string, bool)
	modules map[string]*module
	derived map[string]derivation // by the name of a matrix made of some rows of a module

	// A loader that builds a model once more with some of its tensors replaced
	// takes the weights that stay from the loader of that model.
	base     *Loader         // nil = no such loader
	replaced map[string]bool // names of tensors
	kept     map[string]bool // names of matrices that are as in base, so that they have no data here
}

// module is a matrix of the checkpoint by its name, and the weights that its rows
// became.
type module struct {
	batch, rows, cols int
	table             bool // an embedding
	parts             []part
}

// part is a weight that holds rows [lo, lo+n) of a module, or the listed ones.
type part struct {
	w    *compute.Weight
	lo   int
	rows []int
}

type derivation struct {
	module string
	lo     int
	rows   []int
}

// row is the module's row that row i of the weight is.
func (p part) row(i int) int {
	if p.rows != nil {
		return p.rows[i]
	}
	return p.lo + i
}

// NewLoader returns a loader for an opened checkpoint.
func NewLoader(c *checkpoint.Checkpoint, b compute.Backend) *Loader {
	return &Loader{c: c, b: b, used: map[string]bool{}, dropped: map[string]bool{}, modules: map[string]*module{}, derived: map[string]derivation{}}
}

// Err returns the first error.
func (l *Loader) Err() error { return l.err }

// Bytes returns the storage of everything loaded so far.
func (l *Loader) Bytes() int64 { return l.bytes }

// Fail remembers an error, unless there is one already.
func (l *Loader) Fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf(format, args...)
	}
}

// Has reports whether the checkpoint has a tensor.
func (l *Loader) Has(name string) bool { return l.c.Has(name) }

// Rename gives every tensor the name that f returns and drops those for which
// keep is false. Families call it first, to bring other layouts of their
// checkpoints to one set of names.
func (l *Loader) Rename(f func(name string) (newName string, keep bool)) {
	if l.base != nil {
		return // they have their names already
	}
	if err := l.c.Rename(f); err != nil && l.err == nil {
		l.err = err
	}
	l.renames = append(l.renames, f)
}

// Weight loads the matrix name+".weight" (dense or quantized), or the tensor
// called name itself, of the given logical shape.
func (l *Loader) Weight(name string, rows, cols int) *compute.Weight {
	return l.load(l.matrix(name, 0, rows, cols))
}

// Experts loads n stacked matrices of the given shape, of which a token uses
// active.
func (l *Loader) Experts(name string, n, active, rows, cols int) *compute.Weight {
	return l.stacked(l.matrix(name, n, rows, cols), active)
}

// matrix finds the matrix name+".weight", or the tensor called name, without
// handing it to the backend; batch 0 is a plain one. Together with load it is
// for families that rearrange rows.
func (l *Loader) matrix(name string, batch, rows, cols int) layout.Matrix {
	keep := l.base != nil
	for _, part := range []string{"", ".weight", ".scales", ".biases", ".global_scale", ".weight_scale", ".weight_scale_2", ".weight_scale_inv"} {
		l.used[name+part] = true
		keep = keep && !l.replaced[name+part]
	}
	if keep {
		return l.keep(layout.Matrix{Name: name, Batch: batch, Rows: rows, Cols: cols})
	}
	return l.stored(name, batch, rows, cols)
}

// keep notes that a matrix is what it is in base.
func (l *Loader) keep(m layout.Matrix) layout.Matrix {
	l.kept[m.Name] = true
	return m
}

// stored is matrix with the data, whether it is as in base or not.
func (l *Loader) stored(name string, batch, rows, cols int) layout.Matrix {
	none := layout.Matrix{Name: name, Batch: batch, Rows: rows, Cols: cols}
	if l.err != nil {
		return none
	}
	m, err := l.c.MatrixCols(name, cols)
	if err != nil {
		l.err = err
		return none
	}
	if m.Batch != batch || m.Rows != rows || m.Cols != cols {
		l.Fail("tensor %s.weight is %s, but the configuration asks for %s; the folder mixes files of different models or config.json was edited",
			name, shapeOf(m.Batch, m.Rows, m.Cols), shapeOf(batch, rows, cols))
		return none
	}
	if l.modules[name] == nil {
		l.modules[name] = &module{batch: batch, rows: rows, cols: cols}
	}
	return m
}

// load hands a matrix to the backend.
func (l *Loader) load(m layout.Matrix) *compute.Weight {
	if l.err != nil {
		return &compute.Weight{Matrix: m}
	}
	if l.kept[m.Name] {
		i := slices.IndexFunc(l.base.weights, func(w *compute.Weight) bool { return w.Name == m.Name })
		if i < 0 {
			l.Fail("tensor %s.weight is not among the weights of the model", m.Name)
			return &compute.Weight{Matrix: m}
		}
		return l.base.weights[i]
	}
	if l.Convert != nil {
		c, err := l.Convert(m)
		if err != nil {
			l.err = err
			return &compute.Weight{Matrix: m}
		}
		m = c
	}
	w, err := l.b.Load(m)
	if err != nil {
		l.Fail("tensor %s.weight: %w", m.Name, err)
		return &compute.Weight{Matrix: m}
	}
	if w.Repacked {
		l.evict(m)
	}
	l.weights = append(l.weights, w)
	l.bytes += m.Bytes()
	from, ok := l.derived[m.Name]
	if !ok {
		from.module = m.Name
	}
	if mod := l.modules[from.module]; mod != nil {
		mod.parts = append(mod.parts, part{w, from.lo, from.rows})
	}
	return w
}

// evict gives the memory of stored bytes back that will be read seldom: there is
// a copy.
func (l *Loader) evict(ms ...layout.Matrix) {
	for _, m := range ms {
		for _, b := range [][]byte{m.Weight, m.Scales, m.Biases} {
			l.c.Evict(b)
		}
	}
}

// Table loads an embedding, as Weight does.
func (l *Loader) Table(name string, rows, cols int) *compute.Weight {
	w := l.Weight(name, rows, cols)
	if m := l.modules[name]; m != nil {
		m.table = true
	}
	return w
}

// alias says that a weight, which came to be in another way, is what the module
// of the given name holds in MLX's layout.
func (l *Loader) alias(name string, w *compute.Weight) {
	l.modules[name] = &module{batch: w.Batch, rows: w.Rows, cols: w.Cols, parts: []part{{w: w}}}
}

// stacked is load for experts, of which a token reads active.
func (l *Loader) stacked(m layout.Matrix, active int) *compute.Weight {
	l.idle += m.Bytes() / int64(max(m.Batch, 1)) * int64(max(m.Batch-active, 0))
	return l.load(m)
}

// rows is rows [lo, hi) of a matrix, of every expert of a stacked one.
func (l *Loader) rows(m layout.Matrix, lo, hi int) layout.Matrix {
	if l.err != nil {
		m.Rows = hi - lo
		return m
	}
	if l.kept[m.Name] {
		m.Rows = hi - lo
		return l.keep(l.derive(m, m.Name, lo, nil))
	}
	part := m.RowRange(lo, hi)
	if m.Batch > 0 {
		l.evict(m)
	}
	return l.derive(part, m.Name, lo, nil)
}

// derive notes that m is rows of a module.
func (l *Loader) derive(m layout.Matrix, module string, lo int, rows []int) layout.Matrix {
	m.Name = fmt.Sprintf("%s (part %d)", module, len(l.derived))
	l.derived[m.Name] = derivation{module, lo, rows}
	return m
}

// pick is the given rows of a matrix, in that order.
func (l *Loader) pick(m layout.Matrix, rows []int) layout.Matrix {
	if l.err != nil {
		m.Rows = len(rows)
		return m
	}
	if l.kept[m.Name] {
		m.Rows = len(rows)
		return l.keep(l.derive(m, m.Name, 0, rows))
	}
	part := m.PickRows(rows)
	l.evict(m)
	return l.derive(part, m.Name, 0, rows)
}

// Fused loads a matrix that holds several linear maps one below the other, of
// the given output widths, and its bias if asked for.
func (l *Loader) Fused(name string, in int, bias bool, widths ...int) []Linear {
	total := 0
	for _, w := range widths {
		total += w
	}
	m := l.matrix(name, 0, total, in)
	var b compute.View
	if bias {
		b = l.Vector(name+".bias", total)
	}
	var parts []Linear
	at := 0
	for _, w := range widths {
		p := Linear{W: l.load(l.rows(m, at, at+w))}
		if bias {
			p.Bias = b.Columns(at, at+w)
		}
		parts, at = append(parts, p), at+w
	}
	return parts
}

func shapeOf(batch, rows, cols int) string {
	if batch > 0 {
		return fmt.Sprintf("%dx%dx%d", batch, rows, cols)
	}
	return fmt.Sprintf("%dx%d", rows, cols)
}

// Linear loads a weight and, when asked for, name+".bias".
func (l *Loader) Linear(name string, out, in int, bias bool) Linear {
	lin := Linear{W: l.Weight(name, out, in)}
	if bias {
		lin.Bias = l.Vector(name+".bias", out)
	}
	return lin
}

// Vector loads a tensor of n elements as float32.
func (l *Loader) Vector(name string, n int) compute.View { return l.shifted(name, n, 0) }

// Centred loads the weight of a norm that multiplies by 1+weight.
func (l *Loader) Centred(name string, n int) compute.View { return l.shifted(name, n, 1) }

// shifted loads a tensor of n elements and adds shift to each.
func (l *Loader) shifted(name string, n int, shift float32) compute.View {
	v := l.numbers(name, n)
	if l.err != nil {
		return compute.View{}
	}
	l.bytes += int64(len(v)) * 4
	if shift != 0 {
		v = append([]float32(nil), v...)
		for i := range v {
			v[i] += shift
		}
	}
	return l.Constant(name, v)
}

// numbers reads a tensor of n elements.
func (l *Loader) numbers(name string, n int) []float32 {
	l.used[name] = true
	if l.err != nil {
		return nil
	}
	t, err := l.c.Tensor(name)
	if err == nil && t.Len() != n {
		err = fmt.Errorf("tensor %s has %d elements, but the configuration asks for %d", name, t.Len(), n)
	}
	var v []float32
	if err == nil {
		v, err = t.Float32()
	}
	if err != nil {
		l.Fail("%w", err)
	}
	return v
}

// Conv loads the taps of a depthwise convolution as [channels, kernel]. Files
// keep them as [channels, kernel, 1] or, from Hugging Face, [channels, 1,
// kernel]: the same numbers in the same order.
func (l *Loader) Conv(name string, channels, kernel int) compute.View {
	return l.Vector(name, channels*kernel).Reshape(channels, kernel)
}

// uncentred is Vector for a weight that some files hold less shift. What is in the
// place of a file's own tensor is not so: it is of MLX's layout.
func (l *Loader) uncentred(name string, n int, shift float32) compute.View {
	if l.replaced[name] {
		shift = 0
	}
	return l.shifted(name, n, shift)
}

// Constant puts numbers that come from the configuration on the device.
func (l *Loader) Constant(name string, v []float32) compute.View {
	if l.err != nil {
		return compute.View{}
	}
	buf, err := l.b.Alloc(name, max(len(v), 1)*4)
	if err != nil {
		l.Fail("%s: %w", name, err)
		return compute.View{}
	}
	l.buffers = append(l.buffers, buf)
	w := buf.Of(layout.F32, 0, 1, len(v))
	copy(w.F32(0), v)
	return w
}

// inverseFrequencies are tables that old checkpoints carry and nobody reads.
func inverseFrequencies(name string) bool { return strings.HasSuffix(name, "rotary_emb.inv_freq") }

// Tables loads the embedding and the head under their usual names; a tied model
// uses the embedding for both.
func (l *Loader) Tables(m *Model, tied bool) {
	m.Embedding = l.Table("model.embed_tokens", m.Vocab, m.Hidden)
	m.Head = m.Embedding
	if !tied {
		m.Head = l.Weight("lm_head", m.Vocab, m.Hidden)
	}
	l.Drop(func(n string) bool { return inverseFrequencies(n) || tied && strings.HasPrefix(n, "lm_head.") })
}

// TextTower brings the names of a multimodal checkpoint to those of its
// language model (model.layers..., lm_head...) and drops all else that lies
// under one of the given prefixes.
func (l *Loader) TextTower(drop ...string) {
	l.Rename(func(n string) (string, bool) {
		for _, from := range []string{"language_model.model.", "model.language_model.", "language_model."} {
			if rest, ok := strings.CutPrefix(n, from); ok {
				if from != "language_model." {
					rest = "model." + rest
				}
				return rest, true
			}
		}
		for _, d := range drop {
			if strings.HasPrefix(n, d) || strings.HasPrefix(n, "model."+d) {
				return n, false
			}
		}
		return n, true
	})
}

// textConfig is the part of a configuration that describes the language model.
func textConfig(cfg checkpoint.Config) checkpoint.Config {
	if text := cfg.Sub("text_config"); !text.Empty() {
		return text
	}
	return cfg
}

// Attention is the four projections of an attention layer.
type Attention struct{ Q, K, V, O Linear }

// Attention loads q_proj, k_proj, v_proj and o_proj below p.
func (l *Loader) Attention(p string, hidden, heads, kvHeads, dim int, bias, outBias bool) Attention {
	return Attention{
		Q: l.Linear(p+"q_proj", heads*dim, hidden, bias),
		K: l.Linear(p+"k_proj", kvHeads*dim, hidden, bias),
		V: l.Linear(p+"v_proj", kvHeads*dim, hidden, bias),
		O: l.Linear(p+"o_proj", hidden, heads*dim, outBias),
	}
}

// MLP is the three projections of a gated feed-forward block.
type MLP struct{ Gate, Up, Down Linear }

// MLP loads gate_proj, up_proj and down_proj below p.
func (l *Loader) MLP(p string, hidden, inter int, bias bool) MLP {
	return MLP{
		Gate: l.Linear(p+"gate_proj", inter, hidden, bias),
		Up:   l.Linear(p+"up_proj", inter, hidden, bias),
		Down: l.Linear(p+"down_proj", hidden, inter, bias),
	}
}

// Drop marks tensors that the family does not read.
func (l *Loader) Drop(match func(name string) bool) {
	for _, n := range l.c.Names() {
		if match(n) {
			l.dropped[n] = true
		}
	}
}

// Finish reports tensors that nobody asked for: a sign of a checkpoint that
// would run wrongly rather than not at all.
func (l *Loader) Finish() {
	if l.err != nil {
		return
	}
	var left []string
	for _, n := range l.c.Names() {
		if !l.used[n] && !l.dropped[n] {
			left = append(left, n)
		}
	}
	if len(left) == 0 {
		return
	}
	slices.Sort(left)
	shown := left
	if len(shown) > 4 {
		shown = shown[:4]
	}
	l.err = fmt.Errorf("%d tensors do not belong to this model type (%s, ...); check that config.json and the weights are of the same model", len(left), strings.Join(shown, ", "))
}

// Close gives everything back to the backend.
func (l *Loader) Close() {
	for _, w := range l.weights {
		l.b.Unload(w)
	}
	for _, b := range l.buffers {
		b.Close()
	}
	l.weights, l.buffers = nil, nil
}

var errConfig = errors.New("config.json")

// maxSize bounds every size of a configuration, far above any real one.
const maxSize = 1 << 24

// Positive checks sizes that everything else is computed from.
func (l *Loader) Positive(what string, n int) {
	if n <= 0 || n > maxSize {
		l.Fail("%w: %s must be positive and at most %d, is %d", errConfig, what, maxSize, n)
	}
}

// AllPositive is Positive for several sizes by their names.
func (l *Loader) AllPositive(sizes map[string]int) {
	for _, what := range slices.Sorted(maps.Keys(sizes)) {
		l.Positive(what, sizes[what])
	}
}
