package arch

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// stored is one tensor of a file that a test takes apart and writes anew.
type stored struct {
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	Range [2]int `json:"data_offsets"`
	data  []byte
}

// file is the content of a model.safetensors.
type file map[string]stored

func readTensors(t *testing.T, path string) file {
	t.Helper()
	text := readFile(t, path)
	n := binary.LittleEndian.Uint64(text)
	var header map[string]json.RawMessage
	if err := json.Unmarshal(text[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	f := file{}
	for name, raw := range header {
		var s stored
		if name == "__metadata__" {
			continue
		}
		if err := json.Unmarshal(raw, &s); err != nil {
			t.Fatal(err)
		}
		s.data = text[8+n:][s.Range[0]:s.Range[1]]
		f[name] = s
	}
	return f
}

// write makes a model folder of config and tensors.
func (f file) write(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	var names []string
	for n := range f {
		names = append(names, n)
	}
	sort.Strings(names)
	header := map[string]stored{}
	var data []byte
	for _, n := range names {
		s := f[n]
		s.Range = [2]int{len(data), len(data) + len(s.data)}
		data = append(data, s.data...)
		header[n] = s
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	all := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	for name, content := range map[string][]byte{"model.safetensors": append(all, data...), "config.json": []byte(config)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// rename moves each tensor to the name that the replacer gives.
func (f file) rename(pairs ...string) {
	r := strings.NewReplacer(pairs...)
	for n, s := range maps.Clone(f) {
		if to := r.Replace(n); to != n {
			delete(f, n)
			f[to] = s
		}
	}
}

// each runs do for the tensors whose name has the suffix.
func (f file) each(suffix string, do func(prefix string, s stored)) {
	for n, s := range maps.Clone(f) {
		if strings.HasSuffix(n, suffix) {
			do(strings.TrimSuffix(n, suffix), s)
		}
	}
}

// junk adds a small tensor that must be ignored.
func (f file) junk(names ...string) {
	for _, n := range names {
		f[n] = stored{DType: "F32", Shape: []int{2}, data: make([]byte, 8)}
	}
}

// unstack replaces stacked experts below folder+"switch_mlp.from." by single
// ones below folder+"experts.<e>.to.".
func (f file) unstack(folder, from, to string) {
	f.each(folder+"switch_mlp."+from+".weight", func(p string, s stored) {
		delete(f, p+folder+"switch_mlp."+from+".weight")
		n := len(s.data) / s.Shape[0]
		for e := range s.Shape[0] {
			f[fmt.Sprintf("%s%sexperts.%d.%s.weight", p, folder, e, to)] = stored{DType: s.DType, Shape: s.Shape[1:], data: s.data[e*n:][:n]}
		}
	})
}

// fuse joins stacked gate_proj and up_proj of p into gate_up_proj below to, row
// blocks one after the other.
func (f file) fuse(p, to string) {
	gate, up := f[p+"gate_proj.weight"], f[p+"up_proj.weight"]
	both := stored{DType: gate.DType, Shape: []int{gate.Shape[0], 2 * gate.Shape[1], gate.Shape[2]}}
	n := len(gate.data) / gate.Shape[0]
	for e := range gate.Shape[0] {
		both.data = append(append(both.data, gate.data[e*n:][:n]...), up.data[e*n:][:n]...)
	}
	f[to+"gate_up_proj"], f[to+"down_proj"] = both, f[p+"down_proj.weight"]
	for _, name := range []string{"gate_proj", "up_proj", "down_proj"} {
		delete(f, p+name+".weight")
	}
}

// convolutions puts the kernel axis last, as Hugging Face has it.
func (f file) convolutions() {
	for n, s := range f {
		if len(s.Shape) == 3 && s.Shape[2] == 1 && strings.Contains(n, "conv") {
			s.Shape = []int{s.Shape[0], 1, s.Shape[1]}
			f[n] = s
		}
	}
}

func (s stored) floats() []float32 {
	v, err := checkpoint.Tensor{DType: map[string]layout.DType{"F32": layout.F32, "BF16": layout.BF16}[s.DType], Shape: s.Shape, Data: s.data}.Float32()
	if err != nil {
		panic(err)
	}
	return slices.Clone(v)
}

func floats(v []float32, shape ...int) stored {
	s := stored{DType: "F32", Shape: shape}
	for _, x := range v {
		s.data = binary.LittleEndian.AppendUint32(s.data, math.Float32bits(x))
	}
	return s
}

// centre stores norm weights less one.
func (f file) centre(suffixes ...string) {
	for n, s := range f {
		if slices.ContainsFunc(suffixes, func(x string) bool { return strings.HasSuffix(n, x) }) {
			v := s.floats()
			for i := range v {
				v[i]--
			}
			f[n] = floats(v, s.Shape...)
		}
	}
}

var hybridNorms = []string{"input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight"}

// interleave joins rows of a (even) and b (odd), per expert.
func interleave(a, b stored) stored {
	both := stored{DType: a.DType, Shape: slices.Clone(a.Shape)}
	both.Shape[1] *= 2
	row := len(a.data) / a.Shape[0] / a.Shape[1]
	for at := 0; at < len(a.data); at += row {
		both.data = append(append(both.data, a.data[at:][:row]...), b.data[at:][:row]...)
	}
	return both
}

// layouts are those in which Hugging Face and others publish the families, made
// of tiny checkpoints.
var layouts = []struct {
	name, from string
	change     func(f file, config *string)
}{
	{"llama with old tables", "llama/smollm2", func(f file, _ *string) {
		f.junk("model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight")
	}},
	{"qwen2 with a tied head", "qwen2/dense", func(f file, _ *string) { f.junk("lm_head.weight") }},
	{"mixtral", "mixtral/moe", func(f file, _ *string) {
		f.unstack("block_sparse_moe.", "gate_proj", "w1")
		f.unstack("block_sparse_moe.", "down_proj", "w2")
		f.unstack("block_sparse_moe.", "up_proj", "w3")
	}},
	{"qwen3_moe", "qwen3_moe/moe", unstackMLP},
	{"qwen2_moe", "qwen2_moe/moe", unstackMLP},
	{"lfm2", "lfm2/dense", func(f file, _ *string) { f.convolutions() }},
	{"lfm2_moe", "lfm2_moe/moe", func(f file, _ *string) {
		f.convolutions()
		f.unstack("feed_forward.", "gate_proj", "w1")
		f.unstack("feed_forward.", "down_proj", "w2")
		f.unstack("feed_forward.", "up_proj", "w3")
		f.rename("feed_forward.gate_proj.", "feed_forward.w1.", "feed_forward.down_proj.", "feed_forward.w2.", "feed_forward.up_proj.", "feed_forward.w3.")
	}},
	{"nemotron_h", "nemotron_h/hybrid", func(f file, _ *string) {
		f.convolutions()
		f.unstack("mixer.", "fc1", "up_proj")
		f.unstack("mixer.", "fc2", "down_proj")
		f.junk("mtp.layers.0.norm.weight")
	}},
	{"nemotron_h with named blocks", "nemotron_h/hybrid", func(_ file, config *string) {
		*config = strings.Replace(*config, `"hybrid_override_pattern": "ME*-M"`, `"layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba"]`, 1)
	}},
	{"qwen3_5", "qwen3_5/hybrid", func(f file, _ *string) {
		f.centre(hybridNorms...)
		f.convolutions()
		f.rename("language_model.model.", "model.language_model.", "language_model.lm_head", "lm_head")
		f.junk("mtp.norm.weight", "model.visual.merger.norm.bias", "vision_tower.x")
	}},
	{"qwen3_5 without prefix", "qwen3_5/hybrid", func(f file, _ *string) { f.rename("language_model.", "") }},
	{"qwen3_5_moe", "qwen3_5_moe/moe", func(f file, _ *string) {
		f.centre(hybridNorms...)
		f.convolutions()
		f.rename("language_model.model.", "model.language_model.", "language_model.lm_head", "lm_head")
		for i := range 2 {
			p := fmt.Sprintf("model.language_model.layers.%d.mlp.", i)
			f.fuse(p+"switch_mlp.", p+"experts.")
		}
	}},
	{"qwen3_next", "qwen3_next/hybrid", func(f file, config *string) {
		f.centre(hybridNorms...)
		f.convolutions()
		unstackMLP(f, config)
		f.junk("mtp.fc.weight")
	}},
	{"gpt_oss", "gpt_oss/moe-mxfp4", func(f file, _ *string) {
		for i := range 2 {
			p := fmt.Sprintf("model.layers.%d.mlp.experts.", i)
			for _, part := range []string{"weight", "scales"} {
				f[p+"gate_up_proj."+part] = interleave(f[p+"gate_proj."+part], f[p+"up_proj."+part])
			}
			bias := func(name string) stored { s := f[p+name+".bias"]; s.Shape = append(slices.Clone(s.Shape), 1); return s }
			b := interleave(bias("gate_proj"), bias("up_proj"))
			b.Shape = b.Shape[:2]
			f[p+"gate_up_proj_bias"], f[p+"down_proj_bias"] = b, f[p+"down_proj.bias"]
			for _, name := range []string{"gate_up_proj", "down_proj"} {
				w := f[p+name+".weight"]
				groups := w.Shape[2] * 8 / 32
				f[p+name+"_blocks"] = stored{DType: "U8", Shape: []int{w.Shape[0], w.Shape[1], groups, 16}, data: w.data}
				f[p+name+"_scales"] = f[p+name+".scales"]
			}
			for n := range f {
				if strings.HasPrefix(n, p) && !strings.HasSuffix(n, "_blocks") && !strings.HasSuffix(n, "_scales") && !strings.HasSuffix(n, "_bias") {
					delete(f, n)
				}
			}
		}
	}},
	{"gemma3 wrapped", "gemma3/text", func(f file, config *string) {
		f.rename("model.", "language_model.model.")
		f.junk("vision_tower.x", "multi_modal_projector.x")
		*config = `{"model_type": "gemma3", "vocab_size": 160, "text_config": ` + *config + `}`
	}},
	{"gemma3 with nested rope", "gemma3/text", func(_ file, config *string) {
		*config = strings.NewReplacer(
			`"rope_local_base_freq": 10000.0,`, `"rope_parameters": {"sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}, "full_attention": {"rope_theta": 1000000.0, "rope_type": "linear", "factor": 8.0}},`,
			`"rope_theta": 1000000.0,`, ``, "sliding_window_pattern", "_sliding_window_pattern").Replace(*config)
	}},
	{"gemma4 wrapped", "gemma4/dense", func(f file, _ *string) {
		f.rename("language_model.model.", "model.language_model.")
		f.junk("model.vision_tower.x", "model.audio_tower.x", "model.embed_vision.x", "model.embed_audio.x", "model.language_model.layers.0.mlp.up_proj.input_max")
	}},
	{"gemma4 with fused experts", "gemma4/moe", func(f file, _ *string) {
		for i := range 2 {
			p := fmt.Sprintf("model.layers.%d.experts.", i)
			f.fuse(p+"switch_glu.", p)
		}
	}},
	{"gemma4 with keys of sharing layers", "gemma4/ple", func(f file, _ *string) {
		f.junk("model.layers.5.self_attn.k_proj.weight", "model.layers.5.self_attn.v_proj.weight", "model.layers.5.self_attn.k_norm.weight")
	}},
	{"muse_glimmer wrapped", "muse_glimmer/dense", func(f file, _ *string) {
		f.rename("model.", "model.language_model.")
		f.junk("vision_tower.x", "model.vision_adapter.x", "vision_projection.x")
	}},
	{"mistral3 unwrapped names", "mistral3/ministral3", func(f file, _ *string) {
		f.rename("language_model.model.", "model.language_model.", "language_model.lm_head", "lm_head")
		f.junk("model.vision_tower.x", "model.multi_modal_projector.x")
	}},
	{"deepseek_v3", "deepseek_v3/mla", func(f file, config *string) {
		const heads, nope, value, rank = 4, 16, 16, 32
		unstackMLP(f, config)
		for i := range 3 {
			a := fmt.Sprintf("model.layers.%d.self_attn.", i)
			q, v := f[a+"embed_q.weight"].floats(), f[a+"unembed_out.weight"].floats()
			var kv []float32
			for h := range heads {
				for n := range nope {
					for c := range rank {
						kv = append(kv, q[(h*rank+c)*nope+n])
					}
				}
				kv = append(kv, v[h*value*rank:][:value*rank]...)
			}
			f[a+"kv_b_proj.weight"] = floats(kv, heads*(nope+value), rank)
			delete(f, a+"embed_q.weight")
			delete(f, a+"unembed_out.weight")
		}
		f.junk("model.layers.3.eh_proj.weight", "model.layers.61.embed_tokens.weight", "model.layers.0.self_attn.rotary_emb.inv_freq")
	}},
}

// TestLayouts wants the same bits from all of them.
func TestLayouts(t *testing.T) {
	for _, test := range layouts {
		for _, b := range backends(t) {
			t.Run(test.name+"/"+b.Name(), func(t *testing.T) {
				dir := "../testdata/models/" + test.from
				f, config := readTensors(t, dir+"/model.safetensors"), string(readFile(t, dir+"/config.json"))
				before := len(f)
				test.change(f, &config)
				if len(f) == before && config == string(readFile(t, dir+"/config.json")) && !strings.HasPrefix(test.name, "lfm2") && !strings.Contains(test.name, "names") && !strings.Contains(test.name, "prefix") {
					t.Fatal("nothing was changed")
				}
				ids := readGolden(t, dir).Prompts["mid"].IDs
				want := newRig(t, b, dir, cache.Options{Type: layout.F32})
				got := newRig(t, b, f.write(t, config), cache.Options{Type: layout.F32})
				q, p := want.seq(), got.seq()
				sameRows(t, "logits", got.step(p, ids, len(ids)), want.step(q, ids, len(ids)))
				q.Close()
				p.Close()
			})
		}
	}
}

func unstackMLP(f file, _ *string) {
	for _, name := range []string{"gate_proj", "up_proj", "down_proj"} {
		f.unstack("mlp.", name, name)
	}
}

// TestGGUF: a GGUF file gives what its conversion to MLX's layout gives, up to
// the rounding of the conversion's biases to half precision.
func TestGGUF(t *testing.T) {
	const path = "../checkpoint/testdata/gguf/tiny-llama."
	ck, err := checkpoint.Open(path + "gguf")
	if err != nil {
		t.Fatal(err)
	}
	config := string(ck.RawConfig())
	if err := ck.Close(); err != nil {
		t.Fatal(err)
	}
	twin := readTensors(t, path+"safetensors").write(t, config)
	for _, b := range backends(t) {
		want, got := newRig(t, b, twin, cache.Options{Type: layout.F32}), newRig(t, b, path+"gguf", cache.Options{Type: layout.F32})
		ids := randomIDs(40, want.m.Vocab)
		p, q := want.seq(), got.seq()
		rows := want.step(p, ids, len(ids))
		for i, row := range got.step(q, ids, len(ids)) {
			near(t, fmt.Sprintf("row %d", i), row, rows[i], 5e-3)
		}
		p.Close()
		q.Close()
	}
}

// TestQwenHybridBias: attention_bias gives the projections of the attending layers a
// bias, which counts.
func TestQwenHybridBias(t *testing.T) {
	dir := "../testdata/models/qwen3_next/hybrid"
	ids := randomIDs(20, 160)
	rows := func(value float32) [][]float32 {
		f := readTensors(t, filepath.Join(dir, "model.safetensors"))
		for p, n := range map[string]int{"q_proj": 128, "k_proj": 32, "v_proj": 32, "o_proj": 64} {
			s := stored{DType: "F32", Shape: []int{n}}
			for range n {
				s.data = binary.LittleEndian.AppendUint32(s.data, math.Float32bits(value))
			}
			f["model.layers.1.self_attn."+p+".bias"] = s
		}
		config := strings.Replace(string(readFile(t, filepath.Join(dir, "config.json"))), "{", `{"attention_bias": true,`, 1)
		return newRig(t, compute.NewReference(), f.write(t, config), cache.Options{Type: layout.F32}).prompt(ids)
	}
	sameRows(t, "biases of zero", rows(0), newRig(t, compute.NewReference(), dir, cache.Options{Type: layout.F32}).prompt(ids))
	if slices.Equal(rows(0)[19], rows(0.5)[19]) {
		t.Error("biases change nothing")
	}
}
