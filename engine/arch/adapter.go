package arch

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/wholefile"
)

// Adapter is what a fine-tune, as mlx-lm's trainer saves it, makes of a loaded
// model: a low-rank addition to its weights, LoRA (Hu et al. 2021) or DoRA (Liu et
// al. 2024), or other tensors in the place of some of its own (full). The model's
// own weights are neither copied nor changed.
type Adapter struct {
	base    *Loader                   // of the model
	own     *Loader                   // of what the adapter itself holds
	forward func(*Forward)            // full: with the replaced tensors; nil = the model's own
	files   [2]*checkpoint.Checkpoint // full: the model's with the adapter's over it, the adapter's
	linears map[*compute.Weight]*compute.Adapter
	tables  map[*compute.Weight]*tableAdapter
	experts map[*compute.Weight]*expertAdapter
	print   string             // see Fingerprint
	pair    [2]*compute.Weight // rows that pick one column of two, see activate
}

// tableAdapter adds Scale * B A[id] to the row of a token in an embedding; with
// mag (DoRA) the sum is then multiplied by mag[id].
type tableAdapter struct {
	a, b  *compute.Weight // [vocabulary, rank], [columns, rank]
	mag   *compute.Weight // [vocabulary, 1], optional
	scale float32
}

// expertAdapter is a low-rank addition to each matrix of a stacked weight.
type expertAdapter struct {
	a, b  *compute.Weight // [experts, rank, in], [experts, out, rank]
	scale float32
}

// adapterConfig is what matters of an adapter_config.json.
type adapterConfig struct {
	Type       string `json:"fine_tune_type"`
	Parameters struct {
		Rank  *int
		Scale *float64
		Alpha *float64
	} `json:"lora_parameters"`
}

// LoadAdapter loads the adapter in a folder, adapter_config.json and
// adapters.safetensors, for a loaded model: low-rank additions to linear maps,
// embeddings and stacked experts, or tensors of the model that it replaces. Errors
// name the folder, and every tensor that does not fit the model.
func LoadAdapter(m *Model, dir string) (*Adapter, error) {
	fail := func(err error) (*Adapter, error) { return nil, fmt.Errorf("adapter %s: %w", dir, err) }
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("the adapter folder does not exist: %s", dir)
	}
	c, err := readAdapterConfig(filepath.Join(dir, "adapter_config.json"))
	if err != nil {
		return fail(err)
	}
	ck, err := checkpoint.OpenCopy(filepath.Join(dir, "adapters.safetensors"))
	if err != nil {
		return fail(err)
	}
	if c.Type == "full" {
		a, err := loadFull(m, ck)
		if err != nil {
			return fail(err)
		}
		return a, nil
	}
	defer ck.Close()
	a := &Adapter{
		base: m.load, own: NewLoader(ck, m.load.b), print: fmt.Sprint(ck.Fingerprint(), " ", c.Type, *c.Parameters.Rank, " ", *c.Parameters.Scale),
		linears: map[*compute.Weight]*compute.Adapter{},
		tables:  map[*compute.Weight]*tableAdapter{},
		experts: map[*compute.Weight]*expertAdapter{},
	}
	names := map[string][]string{} // the tensors of each module
	var wrong []string
	for _, n := range ck.Names() {
		i := strings.LastIndexByte(n, '.')
		if i < 0 || !slices.Contains([]string{"lora_a", "lora_b", "m"}, n[i+1:]) {
			wrong = append(wrong, n+": not an adapter parameter in the model")
			continue
		}
		names[n[:i]] = append(names[n[:i]], n[i+1:])
	}
	for name := range names {
		wrong = append(wrong, a.add(m, c, name)...)
	}
	if len(wrong) > 0 {
		a.Close()
		return fail(incompatible(wrong))
	}
	if len(a.experts) > 0 {
		a.pair = [2]*compute.Weight{a.matrix("first of two", 0, 1, 2, func(_, _, c int) float32 { return float32(1 - c) }),
			a.matrix("second of two", 0, 1, 2, func(_, _, c int) float32 { return float32(c) })}
	}
	if a.own.err != nil {
		a.Close()
		return fail(a.own.err)
	}
	return a, nil
}

// incompatible is the error about tensors that do not fit the model.
func incompatible(wrong []string) error {
	slices.Sort(wrong)
	more := ""
	if n := len(wrong) - 12; n > 0 {
		wrong, more = wrong[:12], fmt.Sprintf("\n  and %d more", n)
	}
	return errors.New("contains incompatible tensors, so it was trained on another model:\n  " + strings.Join(wrong, "\n  ") + more)
}

// loadFull builds the model once more with the adapter's tensors in the place of
// its own; what they do not touch stays where it is. ck is closed with the adapter.
func loadFull(m *Model, ck *checkpoint.Checkpoint) (_ *Adapter, err error) {
	a := &Adapter{base: m.load, print: ck.Fingerprint() + " full", files: [2]*checkpoint.Checkpoint{nil, ck}}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	replaced := map[string]bool{}
	var wrong []string
	for _, stored := range ck.Names() {
		name, keep := m.load.renamed(stored)
		want, wantType := m.load.c.Form(name)
		shape, t := ck.Form(stored)
		switch {
		case !keep || want == nil || m.load.dropped[name]:
			wrong = append(wrong, stored+": not a parameter of the model")
		case !slices.Equal(withoutOnes(shape), withoutOnes(want)):
			wrong = append(wrong, fmt.Sprintf("%s: adapter shape %v does not match model parameter shape %v", stored, shape, want))
		case t != wantType && !(t.IsFloat() && t.Size() > 1 && (wantType == 0 || wantType.IsFloat() && wantType.Size() > 1)):
			wrong = append(wrong, fmt.Sprintf("%s: adapter type %s does not match model parameter type %s", stored, t, wantType))
		}
		replaced[name] = true
	}
	if wrong != nil {
		return nil, incompatible(wrong)
	}
	for _, f := range m.load.renames {
		if err := ck.Rename(f); err != nil {
			return nil, err
		}
	}
	a.files[0] = m.load.c.Overlay(ck)
	a.own = NewLoader(a.files[0], m.load.b)
	a.own.base, a.own.replaced, a.own.kept = m.load, replaced, map[string]bool{}
	cfg := a.files[0].Config()
	a.forward = families[m.Type](cfg, a.own).forward
	if err := cfg.Err(); err != nil {
		return nil, err
	}
	a.own.Finish()
	return a, a.own.err
}

// withoutOnes is a shape without the dimensions of one: MLX and Hugging Face have
// them in different places.
func withoutOnes(shape []int) []int {
	return slices.DeleteFunc(slices.Clone(shape), func(n int) bool { return n == 1 })
}

// renamed is the name that a tensor has got by Rename; false if it was dropped.
func (l *Loader) renamed(name string) (string, bool) {
	for _, f := range l.renames {
		var keep bool
		if name, keep = f(name); !keep {
			return name, false
		}
	}
	return name, true
}

// maxAdapterConfig is far more than a trainer writes.
const maxAdapterConfig = 1 << 20

func readAdapterConfig(path string) (adapterConfig, error) {
	c := adapterConfig{Type: "lora"}
	text, err := wholefile.Read(path, maxAdapterConfig)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("adapter_config.json: %w", err)
	}
	p := c.Parameters
	switch {
	case c.Type == "full":
		return c, nil
	case c.Type != "lora" && c.Type != "dora":
		return c, fmt.Errorf("fine_tune_type %q is not known (lora, dora, full)", c.Type)
	case p.Scale == nil && p.Alpha != nil:
		return c, errors.New("LoRA config is missing required key 'scale'. Found 'alpha' instead: mlx-lm's LoRA config uses 'scale', not 'alpha' (unlike some other LoRA frameworks); set scale to alpha divided by rank")
	case p.Scale == nil:
		return c, errors.New("LoRA config is missing required key 'scale'")
	case p.Rank == nil || *p.Rank < 1:
		return c, errors.New("LoRA config has no positive 'rank'")
	}
	return c, nil
}

// add takes in the tensors of one module and returns what is wrong with them.
func (a *Adapter) add(m *Model, c adapterConfig, name string) (wrong []string) {
	ck, rank, scale := a.own.c, *c.Parameters.Rank, float32(*c.Parameters.Scale)
	full, keep := m.load.renamed(name + ".weight")
	mod := m.load.modules[strings.TrimSuffix(full, ".weight")]
	dora := ck.Has(name + ".m")
	if !keep || mod == nil || len(mod.parts) == 0 || dora && (mod.batch > 0 || c.Type != "dora") {
		for _, t := range []string{".lora_a", ".lora_b", ".m"} {
			if ck.Has(name+t) && (keep && mod != nil && len(mod.parts) > 0) == (t == ".m") {
				wrong = append(wrong, name+t+": not an adapter parameter in the model")
			}
		}
		return wrong
	}
	read := func(t string, shape ...int) []float32 {
		x, err := ck.Tensor(name + t)
		var v []float32
		if err == nil && !slices.Equal(x.Shape, shape) {
			err = fmt.Errorf("adapter shape %v does not match model parameter shape %v", x.Shape, shape)
		}
		if err == nil {
			v, err = x.Float32()
		}
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s%s: %v", name, t, err))
		}
		return v
	}
	var mag []float32
	if mod.batch > 0 {
		la, lb := read(".lora_a", mod.batch, rank, mod.cols), read(".lora_b", mod.batch, mod.rows, rank)
		if wrong == nil {
			a.addExperts(mod, name, rank, scale, la, lb)
		}
		return wrong
	}
	if dora {
		mag = read(".m", mod.rows)
	}
	if mod.table {
		la, lb := read(".lora_a", mod.rows, rank), read(".lora_b", rank, mod.cols)
		if wrong == nil {
			a.addTable(mod, name, rank, scale, la, lb, c.Type == "dora", mag)
		}
		return wrong
	}
	la, lb := read(".lora_a", mod.cols, rank), read(".lora_b", rank, mod.rows)
	if wrong == nil {
		a.addLinear(mod, name, rank, scale, la, lb, c.Type == "dora", mag)
	}
	return wrong
}

// addLinear: la is [in, rank], lb [rank, out].
func (a *Adapter) addLinear(mod *module, name string, rank int, scale float32, la, lb []float32, dora bool, mag []float32) {
	wa := a.matrix(name+".lora_a", 0, rank, mod.cols, func(_, r, c int) float32 { return la[c*rank+r] })
	for _, p := range mod.parts {
		x := &compute.Adapter{A: wa, Scale: scale}
		x.B = a.matrix(name+".lora_b", 0, p.w.Rows, rank, func(_, r, c int) float32 { return lb[c*mod.rows+p.row(r)] })
		if dora {
			f := a.magnitudes(p, mag, func(sum []float32, row int) {
				for k := range rank {
					b := scale * lb[k*mod.rows+row]
					for c := range sum {
						sum[c] += b * la[c*rank+k]
					}
				}
			})
			x.Mag = a.own.Constant(name+".m", f)
		}
		a.linears[p.w] = x
	}
}

// addTable: la is [vocabulary, rank], lb [rank, columns]. As an output projection
// the table has the low-rank part alone.
func (a *Adapter) addTable(mod *module, name string, rank int, scale float32, la, lb []float32, dora bool, mag []float32) {
	wa := a.matrix(name+".lora_a", 0, mod.rows, rank, func(_, r, c int) float32 { return la[r*rank+c] })
	wb := a.matrix(name+".lora_b", 0, mod.cols, rank, func(_, r, c int) float32 { return lb[c*mod.cols+r] })
	head := a.matrix(name+".lora_b", 0, rank, mod.cols, func(_, r, c int) float32 { return lb[r*mod.cols+c] })
	for _, p := range mod.parts {
		x := &tableAdapter{a: wa, b: wb, scale: scale}
		if dora {
			f := a.magnitudes(p, mag, func(sum []float32, row int) {
				for k := range rank {
					s := scale * la[row*rank+k]
					for c := range sum {
						sum[c] += s * lb[k*mod.cols+c]
					}
				}
			})
			x.mag = a.matrix(name+".m", 0, mod.rows, 1, func(_, r, _ int) float32 { return f[r] })
		}
		a.tables[p.w] = x
		a.linears[p.w] = &compute.Adapter{A: head, B: wa, Scale: scale}
	}
}

// addExperts: la is [experts, rank, in], lb [experts, out, rank].
func (a *Adapter) addExperts(mod *module, name string, rank int, scale float32, la, lb []float32) {
	x := &expertAdapter{scale: scale}
	x.a = a.matrix(name+".lora_a", mod.batch, rank, mod.cols, func(e, r, c int) float32 { return la[(e*rank+r)*mod.cols+c] })
	x.b = a.matrix(name+".lora_b", mod.batch, mod.rows, rank, func(e, r, c int) float32 { return lb[(e*mod.rows+r)*rank+c] })
	for _, p := range mod.parts {
		if p.rows != nil || p.w.Rows != mod.rows {
			a.own.Fail("%s: experts that are stored with others in one matrix cannot be adapted", name)
			return
		}
		a.experts[p.w] = x
	}
}

// magnitudes are, for each row of a part, the learned length (without one: the
// length of the row itself) over the length of the row with the low-rank part
// that add puts on it.
func (a *Adapter) magnitudes(p part, mag []float32, add func(sum []float32, row int)) []float32 {
	out := make([]float32, p.w.Rows)
	length := func(x []float32) float64 {
		var sum float64
		for _, v := range x {
			sum += float64(v) * float64(v)
		}
		return math.Sqrt(sum)
	}
	var wg sync.WaitGroup
	n := runtime.GOMAXPROCS(0)
	errs := make([]error, n)
	for t := range n {
		wg.Go(func() {
			row := make([]float32, p.w.Cols)
			for i := t; i < len(out) && errs[t] == nil; i += n {
				errs[t] = p.w.Row(row, 0, i)
				at := p.row(i)
				m := length(row)
				if mag != nil {
					m = float64(mag[at])
				}
				add(row, at)
				out[i] = float32(m / length(row))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		a.own.Fail("%w", err)
	}
	return out
}

// matrix puts a dense float32 matrix on the device.
func (a *Adapter) matrix(name string, batch, rows, cols int, at func(e, r, c int) float32) *compute.Weight {
	m := a.own.dense(name, max(batch, 1), rows, cols)
	m.Batch = batch
	if a.own.err != nil {
		return &compute.Weight{Matrix: m}
	}
	i := 0
	for e := range max(batch, 1) {
		for r := range rows {
			for c := range cols {
				binary.LittleEndian.PutUint32(m.Weight[i:], math.Float32bits(at(e, r, c)))
				i += 4
			}
		}
	}
	return a.own.load(m)
}

// Fingerprint names the adapter's content, as Checkpoint.Fingerprint does.
func (a *Adapter) Fingerprint() string { return a.print }

// Of reports whether the adapter was loaded for the model.
func (a *Adapter) Of(m *Model) bool { return a.base == m.load }

// Bytes returns the storage of the adapter.
func (a *Adapter) Bytes() int64 { return a.own.bytes }

// Close gives the adapter's memory back. No program that uses it may be in
// flight.
func (a *Adapter) Close() {
	if a.own != nil {
		a.own.Close()
	}
	for _, c := range a.files {
		if c != nil {
			c.Close()
		}
	}
}

// WithAdapter returns the model with an adapter on its weights, which both share;
// nil returns the model itself. The adapter must be Of the model. The result
// needs no Close.
func (m *Model) WithAdapter(a *Adapter) *Model {
	if a == nil {
		return m
	}
	if !a.Of(m) {
		panic("arch: the adapter was loaded for another model")
	}
	c := *m
	c.adapter = a
	if a.forward != nil {
		c.forward = a.forward
	}
	return &c
}

// linear is the adapter of a weight, nil without one.
func (a *Adapter) linear(w *compute.Weight) *compute.Adapter {
	if a == nil {
		return nil
	}
	return a.linears[w]
}

// adapts reports whether one of the stacked weights has an adapter.
func (a *Adapter) adapts(ws ...*compute.Weight) bool {
	return a != nil && slices.ContainsFunc(ws, func(w *compute.Weight) bool { return a.experts[w] != nil })
}

// adaptEmbedding adds what the adapter has for the rows x that were looked up in
// a table and multiplied by scale.
func (f *Forward) adaptEmbedding(w *compute.Weight, scale float32, x compute.View) {
	if f.adapter == nil || f.adapter.tables[w] == nil {
		return
	}
	t := f.adapter.tables[w]
	low := f.New(x.Rows, t.a.Cols)
	f.P.Add(compute.Embed{IDs: f.Step.Rows.IDs, W: t.a, Scale: 1, Out: low},
		compute.Linear{X: low, W: t.b, Scale: t.scale * scale, Residual: x, Out: x, Prefill: f.Step.Rows.Prefill})
	if t.mag != nil {
		mag := f.New(x.Rows, 1)
		f.P.Add(compute.Embed{IDs: f.Step.Rows.IDs, W: t.mag, Scale: 1, Out: mag},
			compute.Binary{Kind: compute.BinMul, A: x, B: mag, BGroup: x.Cols, Out: x, Scale: 1})
	}
}

// expertLinear is the chosen experts' linear map, with its adapter: x has a row
// for each row of ids or for each of its entries.
func (f *Forward) expertLinear(x, ids compute.View, w *compute.Weight, bias compute.View) compute.View {
	out := f.New(ids.Rows*ids.Cols, w.Rows)
	f.P.Add(compute.MoELinear{X: x, IDs: ids, W: w, Bias: bias, Out: out, Prefill: f.Step.Rows.Prefill})
	if f.adapter.adapts(w) {
		e := f.adapter.experts[w]
		low, more := f.New(out.Rows, e.a.Rows), f.New(out.Rows, out.Cols)
		f.P.Add(compute.MoELinear{X: x, IDs: ids, W: e.a, Out: low, Prefill: f.Step.Rows.Prefill}, compute.MoELinear{X: low, IDs: ids, W: e.b, Out: more, Prefill: f.Step.Rows.Prefill},
			compute.Unary{Kind: compute.UnScale, X: more, Out: more, V: e.scale})
		f.Add(out, more)
	}
	return out
}

// adaptedExperts is the first half of Experts where gate or up have an adapter:
// the activation comes after the low-rank parts, so it is an op of its own.
func (f *Forward) adaptedExperts(x, ids compute.View, e Experts) compute.View {
	up := f.expertLinear(x, ids, e.Up, e.UpBias)
	if !e.Act.Gated() {
		return f.activate(up, compute.View{}, e.Act)
	}
	return f.activate(f.expertLinear(x, ids, e.Gate, e.GateBias), up, e.Act)
}

// activate is act(z, u) of each element, as a Linear over pairs of elements
// whose matrices pick the one and the other.
func (f *Forward) activate(z, u compute.View, act compute.Act) compute.View {
	n := z.Rows * z.Cols
	both, out := f.New(n, 2), f.New(z.Rows, z.Cols)
	f.P.Add(compute.CopyRows{Src: z.Reshape(n, 1), Dst: both.Columns(0, 1)})
	op := compute.Linear{X: both, W: f.adapter.pair[0], Act: act, Scale: 1, Out: out.Reshape(n, 1), Prefill: n}
	second := z
	if act.Gated() {
		op.Up, second = f.adapter.pair[1], u
	}
	f.P.Add(compute.CopyRows{Src: second.Reshape(n, 1), Dst: both.Columns(1, 2)}, op)
	return out
}
