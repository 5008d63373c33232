package draft

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/internal/testmodel"
	"sparkbar/engine/layout"
	"sparkbar/engine/sample"
)

func openPath(t testing.TB, host Host, path string) (Drafter, error) {
	t.Helper()
	ck, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	d, err := Open(ck, host)
	if err == nil {
		t.Cleanup(d.Close)
	}
	return d, err
}

// drafts proposes one block after a recorded prompt.
func drafts(t testing.TB, d Drafter, taps [][]float32, b compute.Backend, pending int32) []int32 {
	t.Helper()
	x, err := d.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := x.Observe(nil, device(t.(*testing.T), b, taps), nil); err != nil {
		t.Fatal(err)
	}
	p, err := x.Propose(Request{Pending: pending, Cap: d.MaxDraft(), Sampler: sample.NewSampler(sample.Params{})})
	if err != nil {
		t.Fatal(err)
	}
	return p.Tokens
}

// A GGUF drafter drafts what the same head drafts from safetensors.
func TestGGUFDrafter(t *testing.T) {
	for _, b := range backends(t) {
		host := openHost(t, b, "target_qwen3")
		r := record(t, specDir+"/forward_dspark_bonsai.safetensors")
		var want []int32
		var pending int32
		r.meta("draft", &want)
		r.meta("pending", &pending)
		d, err := openPath(t, host, specDir+"/tiny-dspark-bf16.gguf")
		if err != nil {
			t.Fatal(err)
		}
		if d.Mode() != "dspark" || d.MaxDraft() != 7 || !slices.Equal(d.Taps(), []int{0, 1, 2}) || !d.(*DSpark).slots.Given() {
			t.Errorf("%s, %d drafts, taps %v", d.Mode(), d.MaxDraft(), d.Taps())
		}
		if got := drafts(t, d, r.rows("taps"), b, pending); !slices.Equal(got, want) {
			t.Errorf("%s drafts %v, wants %v", b.Name(), got, want)
		}
	}
}

// A modelopt NVFP4 drafter equals one that stores the decoded values. Its
// config's words about the confidence head are not believed.
func TestNVFP4Drafter(t *testing.T) {
	e2m1 := []float32{0, .5, 1, 1.5, 2, 3, 4, 6}
	config, plain := testmodel.Read(t, specDir+"/checkpoints/dspark_sink")
	packed := map[string]testmodel.Tensor{}
	for name, s := range plain {
		if !strings.HasSuffix(name, "_proj.weight") {
			packed[name] = s
			continue
		}
		rows, cols := s.Shape[0], s.Shape[1]
		w := make([]float32, rows*cols)
		top := float32(0)
		for i := range w {
			w[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(s.Data[2*i:])) << 16)
			top = max(top, float32(math.Abs(float64(w[i]))))
		}
		scale := top / 6
		codes := make([]byte, rows*cols/2)
		for i, v := range w {
			best := 0
			for c, m := range e2m1 {
				if math.Abs(float64(abs(v)/scale-m)) < math.Abs(float64(abs(v)/scale-e2m1[best])) {
					best = c
				}
			}
			w[i] = e2m1[best] * scale
			if v < 0 {
				w[i], best = -w[i], best|8
			}
			codes[i/2] |= byte(best) << (i % 2 * 4)
		}
		base := strings.TrimSuffix(name, ".weight")
		packed[name] = testmodel.Tensor{DType: "U8", Shape: []int{rows, cols / 2}, Data: codes}
		packed[base+".weight_scale"] = testmodel.Tensor{DType: "F8_E4M3", Shape: []int{rows, cols / 16}, Data: bytes.Repeat([]byte{0x38}, rows*cols/16)} // ones
		packed[base+".weight_scale_2"] = testmodel.F32([]int{1}, scale)
		plain[name] = testmodel.F32(s.Shape, w...)
	}
	dense := testmodel.Write(t, config, plain)
	config["quantization_config"] = map[string]any{"quant_method": "modelopt", "quant_algo": "NVFP4"}
	config["enable_confidence_head"] = true
	nvfp4 := testmodel.Write(t, config, packed)
	r := record(t, specDir+"/forward_dspark_sink.safetensors")
	for _, b := range backends(t) {
		host := openHost(t, b, "target_qwen3")
		var got [2][]int32
		for i, dir := range []string{dense, nvfp4} {
			d, err := openPath(t, host, dir)
			if err != nil {
				t.Fatal(err)
			}
			if d.(*DSpark).HasConfidence() {
				t.Error("a confidence head from nothing")
			}
			got[i] = drafts(t, d, r.rows("taps"), b, 108)
		}
		if !slices.Equal(got[0], got[1]) {
			t.Errorf("%s: NVFP4 drafts %v, decoded values %v", b.Name(), got[1], got[0])
		}
	}
}

func abs(v float32) float32 { return float32(math.Abs(float64(v))) }

// Matrices are quantized while loading, by the rules of each kind.
func TestDrafterBits(t *testing.T) {
	b := compute.NewReference()
	host := openHost(t, b, "target_qwen3")
	stored := openDrafter(t, host, "dspark_bonsai").(*DSpark)
	host.Bits = 4
	d := openDrafter(t, host, "dspark_bonsai").(*DSpark)
	if stored.fc.W.Scheme != layout.Dense || stored.WeightBytes() <= d.WeightBytes() {
		t.Errorf("stored as %v with %d bytes, quantized %d bytes", stored.fc.W.Scheme, stored.WeightBytes(), d.WeightBytes())
	}
	q4 := func(what string, w *compute.Weight, want bool) {
		t.Helper()
		if got := w.Scheme == layout.Affine && w.Bits == 4 && w.Group == 64; got != want {
			t.Errorf("%s is %v, %d bits in groups of %d", what, w.Scheme, w.Bits, w.Group)
		}
	}
	q4("fc", d.fc.W, true)
	q4("embedding", d.embed, true)
	q4("head", d.out, true)
	q4("query", d.layers[0].q.W, true)
	q4("down projection of 96 columns", d.layers[0].down.W, false)
	q4("Markov table of 16 columns", d.w1, false)
	for i, v := range stored.slots.F32(3) { // log_snr_embed keeps its precision
		if v != d.slots.F32(3)[i] {
			t.Fatal("the log-SNR embedding was quantized")
		}
	}
	exact, err := stored.fc.W.Matrix.Quantize(4, 64)
	if err != nil || !bytes.Equal(exact.Weight, d.fc.W.Matrix.Weight) || !bytes.Equal(exact.Scales, d.fc.W.Matrix.Scales) {
		t.Error("codes differ", err)
	}
	flash := openDrafter(t, host, "dflash2").(*DFlash)
	q4("DFlash query", flash.layers[0].q.W, true)
	q4("kernel projection", flash.layers[0].attnConv.proj.W, false)
	q4("selector projection", flash.slot.W, false)
	q4("codebook", flash.before, false)
	host.Bits = 1
	if w := openDrafter(t, host, "dspark_deepspec").(*DSpark).fc.W; w.Bits != 2 {
		t.Errorf("1 bit became %d", w.Bits)
	}
	host.Bits = 7
	if _, err := openPath(t, host, specDir+"/checkpoints/dspark_deepspec"); err == nil || !strings.Contains(err.Error(), "7 bits") {
		t.Error(err)
	}
}

// Files that cannot serve this target are refused with the reason.
func TestOpenRefuses(t *testing.T) {
	host := openHost(t, compute.NewReference(), "target_qwen3")
	for _, c := range []struct {
		drafter string
		edit    func(config map[string]any, tensors map[string]testmodel.Tensor)
		want    string
	}{
		{"dspark_deepspec", func(c map[string]any, _ map[string]testmodel.Tensor) { c["target_layer_ids"] = []int{0, 9} }, "reads layer 9"},
		{"dspark_deepspec", func(c map[string]any, _ map[string]testmodel.Tensor) { c["hidden_size"] = 32 }, "hidden size is 32"},
		{"dspark_deepspec", func(_ map[string]any, w map[string]testmodel.Tensor) { delete(w, "fc.weight") }, "fc.weight"},
		{"dspark_deepspec", func(_ map[string]any, w map[string]testmodel.Tensor) {
			w["gate.weight"] = testmodel.F32([]int{1, 1}, 1)
		}, "gate.weight"},
		{"dspark_deepspec", func(c map[string]any, _ map[string]testmodel.Tensor) { c["markov_head_type"] = "gated" }, "gated"},
		{"dspark_deepspec", func(c map[string]any, _ map[string]testmodel.Tensor) { c["model_type"] = "mamba" }, "mamba"},
		{"dspark_reduced", func(_ map[string]any, w map[string]testmodel.Tensor) { delete(w, "d2t") }, "d2t"},
		{"dspark_reduced", func(c map[string]any, _ map[string]testmodel.Tensor) { delete(c, "draft_vocab_size") }, "d2t is there"},
		{"dspark_redhat", func(c map[string]any, _ map[string]testmodel.Tensor) {
			c["speculators_config"] = map[string]any{"algorithm": "eagle3"}
		}, "eagle3"},
		{"dspark_redhat", func(c map[string]any, w map[string]testmodel.Tensor) {
			c["transformer_layer_config"].(map[string]any)["vocab_size"] = 999
		}, "999"},
		{"dflash1", func(c map[string]any, _ map[string]testmodel.Tensor) { c["vocab_size"] = 999 }, "999"},
		{"dflash2", func(_ map[string]any, w map[string]testmodel.Tensor) {
			delete(w, "candidate_selector.hidden_projection.weight")
		}, "hidden_projection"},
		{"dflash1", func(c map[string]any, _ map[string]testmodel.Tensor) { c["markov_rank"] = 8 }, "Markov"},
		{"target_qwen3", func(c map[string]any, _ map[string]testmodel.Tensor) {
			c["architectures"], c["model_type"] = []string{"X"}, "nothing"
		}, "lookup"},
	} {
		config, tensors := testmodel.Read(t, specDir+"/checkpoints/"+c.drafter)
		c.edit(config, tensors)
		_, err := openPath(t, host, testmodel.Write(t, config, tensors))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, wants %q", c.drafter, err, c.want)
		}
	}
}

// A draft model must know the target's tokens; padding may differ when the
// caller vouches for the tokenizer.
func TestClassicVocabulary(t *testing.T) {
	config, tensors := testmodel.Read(t, specDir+"/checkpoints/target_qwen3")
	config["vocab_size"] = 288
	for _, name := range []string{"model.embed_tokens.weight", "lm_head.weight"} {
		s := tensors[name]
		s.Data = append(s.Data, make([]byte, 16*64*2)...)
		s.Shape = []int{288, 64}
		tensors[name] = s
	}
	dir := testmodel.Write(t, config, tensors)
	host := openHost(t, compute.NewReference(), "target_qwen3")
	if _, err := openPath(t, host, dir); err == nil || !strings.Contains(err.Error(), "288") || !strings.Contains(err.Error(), "272") {
		t.Error(err)
	}
	host.Tokens = 260
	d, err := openPath(t, host, dir)
	if err != nil {
		t.Fatal(err)
	}
	if d.Mode() != "draft" || d.Taps() != nil {
		t.Error(d.Mode(), d.Taps())
	}
	host.Tokens = 280
	if _, err := openPath(t, host, dir); err == nil {
		t.Error("a target that lacks tokens of its tokenizer")
	}
}

// A draft model's block is what it would generate alone, however the context
// was fed, and leaves no trace.
func TestClassicChain(t *testing.T) {
	for _, b := range backends(t) {
		host := openHost(t, b, "target_qwen3")
		d := openDrafter(t, host, "target_qwen3").(*Classic)
		greedy := sample.NewSampler(sample.Params{})
		prompt := []int32{84, 104, 101, 32, 113, 117, 105, 99, 107, 32}
		// Alone: one token after another, from scratch each time.
		var want []int32
		for i := range 9 {
			logits, _ := targetForward(t, host, append(slices.Clone(prompt), want...), nil)
			_ = i
			want = append(want, sample.Greedy(logits))
		}
		x, err := d.NewContext(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		propose := func(pending int32, n int) []int32 {
			t.Helper()
			p, err := x.Propose(Request{Pending: pending, Cap: n, Sampler: greedy})
			if err != nil {
				t.Fatal(err)
			}
			return p.Tokens
		}
		observe := func(ids ...int32) {
			t.Helper()
			if err := x.Observe(ids, compute.View{}, nil); err != nil {
				t.Fatal(err)
			}
		}
		observe(prompt[:4]...)
		observe(prompt[4:]...)
		before := b.Submits(compute.LabelDraft)
		if got := propose(want[0], 5); !slices.Equal(got, want[1:6]) {
			t.Errorf("%s drafts %v, wants %v", b.Name(), got, want[1:6])
		}
		if n := b.Submits(compute.LabelDraft) - before; n != 1 {
			t.Errorf("%d submits for a block", n)
		}
		observe(want[:3]...) // the pending token and two drafts
		if got := propose(want[3], 4); !slices.Equal(got, want[4:8]) {
			t.Errorf("%s drafts %v, wants %v", b.Name(), got, want[4:8])
		}
		observe(want[3:8]...)
		s, err := x.Finish(nil)
		if err != nil || s.Len() != len(prompt)+8 {
			t.Fatal(s.Len(), err)
		}
		s.Close()
		if used, _ := d.Cache().Pages(); used != 0 {
			t.Errorf("%d pages leaked", used)
		}
	}
}

// recordedHead is the recorded prompt and the token after it, a host and a head for it, and
// the prompt's rows for the head.
func recordedHead(t *testing.T, b compute.Backend) (prompt []int32, pending int32, host Host, head *DSpark, fused compute.View) {
	t.Helper()
	r := record(t, specDir+"/forward_dspark_deepspec.safetensors")
	var target string
	r.meta("target", &target)
	r.meta("prompt_ids", &prompt)
	r.meta("pending", &pending)
	host = openHost(t, b, target)
	head = openDrafter(t, host, "dspark_deepspec").(*DSpark)
	_, taps := targetForward(t, host, prompt, head.Taps())
	return prompt, pending, host, head, device(t, b, taps)
}

// TestFrequent: with Host.Frequent a head drafts what it drafts otherwise wherever
// that is a frequent id, goes back to all ids for a text of others, and to all at
// once where it is told to.
func TestFrequent(t *testing.T) {
	for _, b := range backends(t) {
		t.Run(b.Name(), func(t *testing.T) {
			_, pending, host, whole, fused := recordedHead(t, b)
			propose := func(d *DSpark, tokens []int32, r Request) []int32 {
				x, err := d.NewContext(nil)
				if err != nil {
					t.Fatal(err)
				}
				defer x.Close()
				if err := x.Observe(tokens, fused, nil); err != nil {
					t.Fatal(err)
				}
				r.Pending, r.Cap, r.Rand = pending, d.MaxDraft(), sample.NewRNG(3)
				p, err := x.Propose(r)
				if err != nil {
					t.Fatal(err)
				}
				return p.Tokens
			}
			greedy, warm := sample.NewSampler(sample.Params{}), sample.NewSampler(sample.Params{Temperature: 1})
			common, rare := make([]int32, fused.Rows), slices.Repeat([]int32{int32(whole.c.vocab) - 1}, fused.Rows)
			all := propose(whole, common, Request{Sampler: greedy})
			for _, n := range []int{int(all[0]) + 1, int(all[0])} {
				host.Frequent = n
				d := openDrafter(t, host, "dspark_deepspec").(*DSpark)
				some := propose(d, common, Request{Sampler: greedy})
				i := 0
				for i < len(all) && int(all[i]) < n {
					i++
				}
				if !slices.Equal(some[:i], all[:i]) {
					t.Errorf("%d ids: drafts %v, of all ids %v", n, some, all)
				}
				for _, s := range []*sample.Sampler{greedy, warm} {
					for _, id := range propose(d, common, Request{Sampler: s}) {
						if int(id) >= n {
							t.Errorf("%d ids: drafts %d", n, id)
						}
					}
					want := propose(whole, common, Request{Sampler: s})
					if got := propose(d, rare, Request{Sampler: s}); !slices.Equal(got, want) {
						t.Errorf("%d ids, a text of others: drafts %v, wants %v", n, got, want)
					}
					if got := propose(d, common, Request{Sampler: s, Whole: true}); !slices.Equal(got, want) {
						t.Errorf("%d ids, the whole vocabulary asked for: drafts %v, wants %v", n, got, want)
					}
				}
			}
		})
	}
}

// embedded notes how many rows the last program embedded from the target's table.
type embedded struct {
	compute.Backend
	rows int
}

func (e *embedded) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	if i := slices.IndexFunc(p.Ops, func(op compute.Op) bool { _, ok := op.(compute.Embed); return ok }); i >= 0 {
		e.rows = p.Ops[i].(compute.Embed).Out.Rows
	}
	return e.Backend.Submit(p, stop)
}

// TestSpare: with Host.Spare a block has so many slots more than drafts are asked for,
// and all where the whole one is, or as many as there are.
func TestSpare(t *testing.T) {
	for _, b := range backends(t) {
		watch := &embedded{Backend: b}
		prompt, pending, host, whole, fused := recordedHead(t, watch)
		host.Spare = 2
		d := openDrafter(t, host, "dspark_deepspec").(*DSpark)
		propose := func(d *DSpark, n int, all bool) ([]int32, int) {
			x, err := d.NewContext(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			if err := x.Observe(prompt, fused, nil); err != nil {
				t.Fatal(err)
			}
			p, err := x.Propose(Request{Pending: pending, Cap: n, Whole: all, Sampler: sample.NewSampler(sample.Params{})})
			if err != nil {
				t.Fatal(err)
			}
			return p.Tokens, watch.rows
		}
		most, block := whole.MaxDraft(), whole.c.block
		for n := 1; n <= most; n++ {
			want, rows := propose(whole, n, false)
			if rows != block {
				t.Errorf("%d drafts without Spare: %d slots of %d", n, rows, block)
			}
			if got, rows := propose(d, n, true); rows != block || !slices.Equal(got, want) {
				t.Errorf("%d drafts of the whole block: %v of %d slots, wants %v of %d", n, got, rows, want, block)
			}
			got, rows := propose(d, n, false)
			if slots := min(block, whole.c.start+n+2); rows != slots || len(got) != n {
				t.Errorf("%d drafts: %d of %d slots, wants %d", n, len(got), rows, slots)
			}
			if n+2 >= most && !slices.Equal(got, want) {
				t.Errorf("%d drafts: %v, wants %v", n, got, want)
			}
		}
	}
}
