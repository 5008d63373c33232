package draft

import (
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
	"sparkbar/engine/sample"
)

const specDir = "../testdata/speculation"

// tolerance of forward goldens (float32 throughout).
const tolerance = 2e-4

// recording is a forward_*.safetensors: one drafter forward of the reference
// with its intermediate results.
type recording struct {
	t  *testing.T
	ck *checkpoint.Checkpoint
}

func record(t *testing.T, file string) recording {
	t.Helper()
	ck, err := checkpoint.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	return recording{t, ck}
}

// meta decodes one entry of the metadata.
func (r recording) meta(key string, v any) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.ck.FileMetadata()[key]), v); err != nil {
		r.t.Fatalf("metadata %s: %v", key, err)
	}
}

func (r recording) has(name string) bool { return r.ck.Has(name) }

// rows returns a tensor as rows of its last dimension.
func (r recording) rows(name string) [][]float32 {
	r.t.Helper()
	w, err := r.ck.Tensor(name)
	if err != nil {
		r.t.Fatal(err)
	}
	v, err := w.Float32()
	if err != nil {
		r.t.Fatal(err)
	}
	n := w.Shape[len(w.Shape)-1]
	var out [][]float32
	for i := 0; i < len(v); i += n {
		out = append(out, v[i:i+n])
	}
	return out
}

// compare checks got against a tensor of the recording.
func (r recording) compare(name string, got [][]float32) {
	r.t.Helper()
	want := r.rows(name)
	if len(got) != len(want) {
		r.t.Fatalf("%s has %d rows, wants %d", name, len(got), len(want))
	}
	worst, at := 0.0, 0
	for i := range want {
		if len(got[i]) != len(want[i]) {
			r.t.Fatalf("%s row %d has %d columns, wants %d", name, i, len(got[i]), len(want[i]))
		}
		for j := range want[i] {
			if d := math.Abs(float64(got[i][j] - want[i][j])); d > worst || d != d {
				worst, at = d, i
			}
		}
	}
	if !(worst <= tolerance) {
		r.t.Errorf("%s differs by %v in row %d", name, worst, at)
	}
}

func rowsOf(v compute.View) [][]float32 {
	out := make([][]float32, v.Rows)
	for i := range out {
		out[i] = slices.Clone(v.F32(i))
	}
	return out
}

// openHost loads a target.
func openHost(t testing.TB, b compute.Backend, name string) Host {
	t.Helper()
	ck, err := checkpoint.Open(specDir + "/checkpoints/" + name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := arch.Load(ck, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); ck.Close() })
	return Host{Model: m, Backend: b, Positions: 1024, Sequences: 4}
}

func openDrafter(t testing.TB, host Host, name string) Drafter {
	t.Helper()
	ck, err := checkpoint.Open(specDir + "/checkpoints/" + name)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(ck, host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(); ck.Close() })
	return d
}

// targetForward runs a prompt through the target and returns the last row's
// logits and the taps.
func targetForward(t *testing.T, host Host, ids []int32, taps []int) (logits []float32, fused [][]float32) {
	t.Helper()
	c, err := cache.New(host.Backend, host.Model.Caches, cache.Options{Type: layout.F32, Positions: 1024, Sequences: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	params, s := compute.NewParams(host.Backend), compute.NewScratch(host.Backend)
	defer params.Close()
	defer s.Close()
	q, err := c.NewSeq()
	if err != nil {
		t.Fatal(err)
	}
	var p compute.Program
	parts := []cache.Part{{Seq: q, IDs: ids}}
	st, err := c.Plan(&p, params, parts)
	if err != nil {
		t.Fatal(err)
	}
	f := &arch.Forward{P: &p, S: s, Step: st, Taps: taps}
	f.Fused = f.New(len(ids), len(taps)*host.Model.Hidden)
	host.Model.Forward(f)
	if err := compute.Run(host.Backend, &p, nil); err != nil {
		t.Fatal(err)
	}
	return slices.Clone(f.Logits.F32(len(ids) - 1)), rowsOf(f.Fused)
}

// device puts rows into memory of the backend.
func device(t *testing.T, b compute.Backend, rows [][]float32) compute.View {
	t.Helper()
	buf, err := b.Alloc("rows", len(rows)*len(rows[0])*4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(buf.Close)
	v := buf.Of(layout.F32, 0, len(rows), len(rows[0]))
	for i, r := range rows {
		copy(v.F32(i), r)
	}
	return v
}

// contextRows reads keys and values of positions [lo, hi) of one layer, head by
// head.
func contextRows(t *testing.T, h *head, q *cache.Seq, l, lo, hi int) (k, v [][]float32) {
	t.Helper()
	var p compute.Program
	st, err := h.cache.Plan(&p, h.params, []cache.Part{{Seq: q, N: 1}})
	if err != nil {
		t.Fatal(err)
	}
	lc := st.Layers[l]
	table := lc.Pages.Table.I32(0)
	kv := lc.KV
	side := func(buf *compute.Buffer, bytes, dim int) (out [][]float32) {
		for head := range kv.Heads {
			for at := lo; at < hi; at++ {
				page := buf.Of(layout.F32, int(table[at/compute.PageSize])*bytes, kv.Heads*compute.PageSize, dim)
				out = append(out, slices.Clone(page.F32(head*compute.PageSize+at%compute.PageSize)))
			}
		}
		return out
	}
	kb, vb := kv.PageBytes()
	return side(kv.K, kb, kv.KDim), side(kv.V, vb, kv.VDim)
}

func TestForwardGoldens(t *testing.T) {
	files, err := filepath.Glob(specDir + "/forward_*.safetensors")
	if err != nil || len(files) != 10 {
		t.Fatal(len(files), "recordings", err)
	}
	for _, b := range backends(t) {
		for _, file := range files {
			name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "forward_"), ".safetensors")
			t.Run(name+"/"+b.Name(), func(t *testing.T) {
				r := record(t, file)
				var target string
				r.meta("target", &target)
				host := openHost(t, b, target)
				switch d := openDrafter(t, host, name).(type) {
				case *DSpark:
					forwardDSpark(t, r, d)
				case *DFlash:
					forwardDFlash(t, r, d)
				default:
					t.Fatalf("opened as %T", d)
				}
			})
		}
	}
}

func forwardDSpark(t *testing.T, r recording, d *DSpark) {
	var prompt, block, drafts []int32
	var pending int32
	var n, start int
	r.meta("prompt_ids", &prompt)
	r.meta("block", &block)
	r.meta("draft", &drafts)
	r.meta("pending", &pending)
	r.meta("cap", &n)
	r.meta("logits_start", &start)
	if d.MaxDraft() != n || d.c.start != start {
		t.Fatalf("drafts %d from slot %d, wants %d and %d", d.MaxDraft(), d.c.start, n, start)
	}
	logits, taps := targetForward(t, d.host, prompt, d.Taps())
	r.compare("target_last_logits", [][]float32{logits})
	r.compare("taps", taps)

	ctx, err := d.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	x := ctx.(*dsparkContext)
	fused := device(t, d.host.Backend, r.rows("taps"))
	for _, part := range []compute.View{fused.Slice(0, 20), fused.Slice(20, fused.Rows)} {
		if err := x.Observe(nil, part, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Flush(nil); err != nil {
		t.Fatal(err)
	}
	for i := range d.layers {
		// A window drops whole pages only, so that all rows are still there.
		k, v := contextRows(t, d.head, x.seq, i, 0, len(prompt))
		r.compare("ctx_k."+string(rune('0'+i)), k)
		r.compare("ctx_v."+string(rune('0'+i)), v)
	}
	if d.slots.Given() || r.has("snr_addend") {
		r.compare("snr_addend", rowsOf(d.slots))
	}

	// The forward pass of a block, step by step.
	pass := func(ids []int32, window int) (f *arch.Forward, embedded, hidden compute.View) {
		var p compute.Program
		d.begin(&p)
		f, err := x.plan(&p, ids, d.c.causal, window)
		if err != nil {
			t.Fatal(err)
		}
		embedded = f.New(len(ids), d.c.hidden)
		rows := d.slotRows(f)
		p.Add(compute.CopyRows{Src: rows, Dst: embedded})
		return f, embedded, d.run(f, rows)
	}
	run := func(f *arch.Forward) {
		t.Helper()
		if err := compute.Run(d.host.Backend, f.P, nil); err != nil {
			t.Fatal(err)
		}
	}
	f, embedded, hidden := pass(block, 0)
	context := d.project(f, fused)
	slots := hidden.Slice(start, start+n)
	base := d.logits(f, slots, d.out, d.c.softcap)
	prev, err := d.params.Ints(1, append([]int32{pending}, drafts[:n-1]...))
	if err != nil {
		t.Fatal(err)
	}
	conf := d.confident(f, slots, prev, Request{Threshold: 1})
	run(f)
	r.compare("context_rows", rowsOf(context))
	r.compare("block_embeddings", rowsOf(embedded))
	r.compare("block_hidden", rowsOf(hidden))
	r.compare("base_logits", rowsOf(base))
	if r.has("confidence_logits") != conf.Given() {
		t.Fatal("confidence")
	}
	if conf.Given() {
		for i, z := range r.rows("confidence_logits")[0] {
			if got, want := float64(conf.F32(i)[0]), 1/(1+math.Exp(-float64(z))); math.Abs(got-want) > tolerance {
				t.Errorf("confidence %d is %v, wants %v", i, got, want)
			}
		}
	}
	if r.has("step_logits") {
		f.P.Reset(compute.LabelDraft)
		for i := range n {
			d.markov(f, vocabulary{d.c.draftVocab, d.out, d.w2}, prev.Columns(i, i+1), base.Slice(i, i+1))
		}
		run(f)
		r.compare("step_logits", rowsOf(base))
	}
	if r.has("block_hidden_window8") {
		f, _, hidden := pass(block, 8)
		run(f)
		r.compare("block_hidden_window8", rowsOf(hidden))
	}
	if r.has("block_hidden_width3") {
		f, _, hidden := pass(block[:3], 0)
		run(f)
		r.compare("block_hidden_width3", rowsOf(hidden))
	}

	// All of it at once, for every cap: a shorter block is a prefix.
	for c := 1; c <= n; c++ {
		p, err := x.Propose(Request{Pending: pending, Cap: c, Sampler: sample.NewSampler(sample.Params{})})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(p.Tokens, drafts[:c]) {
			t.Errorf("cap %d drafts %v, wants %v", c, p.Tokens, drafts[:c])
		}
	}
}

func forwardDFlash(t *testing.T, r recording, d *DFlash) {
	var prompt, block, path []int32
	var pending int32
	r.meta("prompt_ids", &prompt)
	r.meta("block", &block)
	r.meta("greedy_path", &path)
	r.meta("pending", &pending)
	_, taps := targetForward(t, d.host, prompt, d.Taps())
	r.compare("taps", taps)

	ctx, err := d.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	x := ctx.(*dflashContext)
	fused := device(t, d.host.Backend, r.rows("taps"))
	if err := x.Observe(nil, fused, nil); err != nil {
		t.Fatal(err)
	}
	if err := x.Flush(nil); err != nil {
		t.Fatal(err)
	}
	n := len(prompt)
	for i, sliding := range d.c.sliding {
		lo := 0
		if sliding {
			lo = n - (d.c.window - 1)
		}
		k, v := contextRows(t, d.head, x.seq, i, lo, n)
		for side, got := range map[string][][]float32{"ctx_k.": k, "ctx_v.": v} {
			name := side + string(rune('0'+i))
			want := r.rows(name)
			if rows := len(want) / d.c.kvHeads; rows > n-lo { // memory that the reference set aside
				var used [][]float32
				for h := range d.c.kvHeads {
					used = append(used, want[h*rows:][:n-lo]...)
				}
				want = used
			}
			for j := range want {
				for c := range want[j] {
					if diff := math.Abs(float64(want[j][c] - got[j][c])); !(diff <= tolerance) {
						t.Fatalf("%s row %d differs by %v", name, j, diff)
					}
				}
			}
		}
	}
	var p compute.Program
	d.begin(&p)
	if !slices.Equal(d.c.masked(pending, d.c.block), block) {
		t.Fatal("block")
	}
	f, err := x.plan(&p, block, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	hidden := d.run(f, f.Embed(d.host.Model.Embedding, d.host.Model.EmbedScale)).Slice(1, len(block))
	logits := d.logits(f, hidden, d.host.Model.Head, 0)
	context := d.project(f, fused)
	run := func() {
		t.Helper()
		if err := compute.Run(d.host.Backend, &p, nil); err != nil {
			t.Fatal(err)
		}
		p.Reset(compute.LabelDraft)
	}
	run()
	r.compare("context_rows", rowsOf(context))
	r.compare("block_hidden", rowsOf(hidden))
	r.compare("raw_logits", rowsOf(logits))

	greedy := sample.NewSampler(sample.Params{})
	for c := 1; c <= d.MaxDraft(); c++ {
		out, err := x.Propose(Request{Pending: pending, Cap: c, Sampler: greedy})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(out.Tokens, path[:c]) {
			t.Errorf("cap %d drafts %v, wants %v", c, out.Tokens, path[:c])
		}
	}
	if d.c.rank > 0 {
		walks(t, r, d, pending)
	}
}

// walks replays the selector on the recorded candidates, in their order.
func walks(t *testing.T, r recording, d *DFlash, pending int32) {
	hidden := device(t, d.host.Backend, r.rows("block_hidden"))
	unary := device(t, d.host.Backend, r.rows("unary"))
	n, k := unary.Rows, unary.Cols
	ct, err := r.ck.Tensor("candidate_ids")
	if err != nil {
		t.Fatal(err)
	}
	list, err := ct.Int64()
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int32, len(list))
	for i, v := range list {
		ids[i] = int32(v)
	}
	type walk struct {
		Temperature float64
		Uniforms    []float32
		Path        []int32
		Q           [][]float32 `json:"q_rows"`
	}
	var all []walk
	r.meta("walks", &all)
	if len(all) == 0 {
		t.Fatal("no walks")
	}
	var path []int32
	r.meta("greedy_path", &path)
	lattice := r.rows("lattice") // [slot, predecessor] rows
	for _, w := range append(all, walk{Path: path}) {
		var p compute.Program
		d.begin(&p)
		f := &arch.Forward{P: &p, S: d.s, Step: &compute.Step{}}
		cand, err := d.params.Ints(n, ids)
		if err != nil {
			t.Fatal(err)
		}
		anchor, err := d.params.Ints(1, []int32{pending})
		if err != nil {
			t.Fatal(err)
		}
		out, err := d.s.I32(1, n)
		if err != nil {
			t.Fatal(err)
		}
		op := compute.PairSelect{Unary: unary, Cand: cand, Anchor: anchor, A: d.before, B: d.after, H: f.Linear(hidden, d.slot), Slots: n, IDs: out, Probs: f.New(n, k)}
		if w.Temperature > 0 {
			if op.Uniform, err = d.params.Floats(w.Uniforms); err != nil {
				t.Fatal(err)
			}
			op.Temperature = float32(w.Temperature)
		}
		p.Add(op)
		if err := compute.Run(d.host.Backend, &p, nil); err != nil {
			t.Fatal(err)
		}
		if got := out.I32(0); !slices.Equal(got, w.Path) {
			t.Errorf("walk at temperature %v goes %v, wants %v", w.Temperature, got, w.Path)
		}
		for s := range n {
			want := w.Q
			if w.Temperature == 0 { // the scores of the realised row
				row := 0
				if s > 0 {
					row = slices.Index(ids[(s-1)*k:s*k], w.Path[s-1])
				}
				want = slices.Repeat(lattice[s*k+row:][:1], n)
			}
			for c := range k {
				if diff := math.Abs(float64(op.Probs.F32(s)[c] - want[s][c])); !(diff <= tolerance) {
					t.Fatalf("walk at temperature %v, slot %d: candidate %d differs by %v", w.Temperature, s, c, diff)
				}
			}
		}
	}
}
