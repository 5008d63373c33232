package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/layout"
)

// Every block kind against the values of the format's own Python package, bit for bit.
func TestBlockKinds(t *testing.T) {
	c := must(Open("testdata/gguf/blocks.gguf"))(t)
	defer c.Close()
	want := must(Open("testdata/gguf/blocks.safetensors"))(t)
	defer want.Close()
	seen := map[layout.Scheme]bool{}
	for _, name := range want.Names() {
		m := must(c.Matrix(name))(t)
		seen[m.Scheme] = true
		values := must(must(want.Tensor(name))(t).Float32())(t)
		if max(m.Batch, 1)*m.Rows*m.Cols != len(values) {
			t.Fatalf("%s is %s, want %d values", name, m, len(values))
		}
		for r, row := range rows(t, m) {
			for i, got := range row {
				if w := values[r*m.Cols+i]; math.Float32bits(got) != math.Float32bits(w) && !(got == 0 && w == 0) {
					t.Errorf("%s [%d, %d]: %v, want %v", name, r, i, got, w)
				}
			}
		}
		if name == "experts" && (m.Batch != 2 || m.Rows != 3) {
			t.Errorf("stacked experts are %s", m)
		}
		if m.Scheme.IsBlock() {
			if _, err := c.Tensor(name + ".weight"); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("Tensor of a block kind: %v", err)
			}
		}
	}
	for s := layout.Q4_0; s <= layout.GGUFMXFP4; s++ {
		if !seen[s] {
			t.Errorf("%s is not covered", s)
		}
	}
}

// A llama GGUF and its affine MLX twin hold the same numbers under the same names, q and k rows included.
func TestGGUFTwin(t *testing.T) {
	c := must(Open("testdata/gguf/tiny-llama.gguf"))(t)
	defer c.Close()
	twin := must(Open("testdata/gguf/tiny-llama.safetensors"))(t)
	defer twin.Close()
	compared := 0
	for _, name := range twin.Names() {
		prefix, isWeight := strings.CutSuffix(name, ".weight")
		if !isWeight {
			continue
		}
		if !twin.Has(prefix + ".scales") {
			got, want := must(must(c.Tensor(name))(t).Float32())(t), must(must(twin.Tensor(name))(t).Float32())(t)
			for i := range want { // the twin stores norms as float16
				if math.Abs(float64(got[i]-want[i])) > 1e-3 {
					t.Errorf("%s[%d]: %v, want %v", name, i, got[i], want[i])
				}
			}
			continue
		}
		a := must(c.Matrix(prefix))(t)
		b := must(twin.MatrixCols(prefix, a.Cols))(t)
		if a.Rows != b.Rows || a.Bits != b.Bits || a.Group != b.Group {
			t.Fatalf("%s is %s, the twin %s", prefix, a, b)
		}
		x, y := rows(t, a), rows(t, b)
		for r := range x {
			if !slices.Equal(x[r], y[r]) {
				t.Fatalf("%s row %d: %v, want %v", prefix, r, x[r], y[r])
			}
		}
		compared++
	}
	if compared != 15 {
		t.Errorf("compared %d matrices", compared)
	}
	if got, want := c.Names(), twin.Names(); len(got) != 20 || !slices.Equal(got, slices.DeleteFunc(want, func(s string) bool {
		return strings.HasSuffix(s, ".scales") || strings.HasSuffix(s, ".biases")
	})) {
		t.Errorf("names %v", got)
	}

	cfg := c.Config()
	for key, want := range map[string]int{"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
		"head_dim": 16, "vocab_size": 40, "max_position_embeddings": 256, "bos_token_id": 1, "pad_token_id": 2} {
		if got := cfg.Int(key); got != want {
			t.Errorf("%s is %d, want %d", key, got, want)
		}
	}
	if cfg.String("model_type") != "llama" || cfg.Float("rope_theta") != 100000 || !cfg.Bool("tie_word_embeddings") || cfg.Bool("attention_bias") ||
		float32(cfg.Float("rms_norm_eps")) != 1e-5 || !slices.Equal(cfg.Ints("eos_token_id"), []int{2}) || cfg.Has("rope_scaling") {
		t.Errorf("config %s", c.RawConfig())
	}
	if err := cfg.Err(); err != nil {
		t.Error(err)
	}
	parsed := must(ParseConfig("raw", c.RawConfig()))(t)
	if fmt.Sprint(parsed.obj.values) != fmt.Sprint(c.config.values) {
		t.Errorf("the raw config reads as %v, want %v", parsed.obj.values, c.config.values)
	}

	m := c.GGUF()
	tokens, _ := m.Strings("tokenizer.ggml.tokens")
	types, _ := m.Ints("tokenizer.ggml.token_type")
	template, _ := m.String("tokenizer.chat_template")
	if len(tokens) != 40 || tokens[39] != "t39" || len(types) != 40 || types[0] != 3 || template != "{{ messages }}" {
		t.Errorf("metadata: %d tokens, %d types, template %q", len(tokens), len(types), template)
	}
	if _, ok := m.Int("tokenizer.chat_template"); ok {
		t.Error("a string was read as a number")
	}
	if _, ok := m.Strings("absent"); ok || m.Has("absent") || len(m.Keys()) < 15 {
		t.Errorf("keys %v", m.Keys())
	}
	if twin.GGUF().Has("x") || twin.GGUF().Keys() != nil {
		t.Error("a safetensors file has GGUF metadata")
	}
}

// The GGUF drafter has the tensors and the config of its conversion.
func TestDSparkGGUF(t *testing.T) {
	var golden struct {
		Config  map[string]any
		Tensors map[string]struct {
			Shape []int
			Sum   float64
			First []float32
		}
	}
	if err := json.Unmarshal(must(os.ReadFile("testdata/gguf/gguf_convert.json"))(t), &golden); err != nil {
		t.Fatal(err)
	}
	c := must(Open("testdata/gguf/tiny-dspark-bf16.gguf"))(t)
	defer c.Close()
	var config map[string]any
	if err := json.Unmarshal(c.RawConfig(), &config); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(config), fmt.Sprint(golden.Config); got != want {
		t.Errorf("config\n%s, want\n%s", got, want)
	}
	if len(golden.Tensors) == 0 || len(c.Names()) != len(golden.Tensors) {
		t.Errorf("%d tensors, want %d", len(c.Names()), len(golden.Tensors))
	}
	for name, want := range golden.Tensors {
		tensor := must(c.Tensor(name))(t)
		if !slices.Equal(tensor.Shape, want.Shape) {
			t.Errorf("%s has shape %v, want %v", name, tensor.Shape, want.Shape)
			continue
		}
		sum := 0.0
		for i, v := range must(tensor.Float32())(t) { // the conversion stores everything as bfloat16
			v = bfloat16(v)
			if i < len(want.First) && math.Abs(float64(v-want.First[i])) > 1e-8+math.Abs(float64(v))*1e-7 {
				t.Errorf("%s[%d] is %v, want %v", name, i, v, want.First[i])
			}
			sum += float64(v)
		}
		if math.Abs(sum-want.Sum) > 1e-4*max(1, math.Abs(want.Sum)) {
			t.Errorf("%s sums to %v, want %v", name, sum, want.Sum)
		}
	}
}

// ggufWriter builds GGUF files for tests, valid unless told otherwise.
type ggufWriter struct {
	version        uint32
	keys, tensors  []byte
	nKeys, nTensor uint64
	data           []byte
}

func newGGUF(arch string) *ggufWriter {
	return (&ggufWriter{version: 3}).key("general.architecture", arch)
}

func (w *ggufWriter) str(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

func (w *ggufWriter) key(key string, value any) *ggufWriter {
	le := binary.LittleEndian
	w.nKeys++
	b := w.str(w.keys, key)
	switch v := value.(type) {
	case string:
		b = w.str(le.AppendUint32(b, ggufString), v)
	case int:
		b = le.AppendUint32(le.AppendUint32(b, ggufU32), uint32(v))
	case float64:
		b = le.AppendUint32(le.AppendUint32(b, ggufF32), math.Float32bits(float32(v)))
	case bool:
		b = append(le.AppendUint32(b, ggufBool), map[bool]byte{true: 1}[v])
	case []int:
		b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, ggufArray), ggufI32), uint64(len(v)))
		for _, n := range v {
			b = le.AppendUint32(b, uint32(n))
		}
	case []byte: // as is: type and value
		b = append(b, v...)
	default:
		panic(fmt.Sprintf("metadata of type %T", v))
	}
	w.keys = b
	return w
}

// describe adds a tensor description alone; dims are in file order, innermost first.
func (w *ggufWriter) describe(name string, kind uint32, offset uint64, dims ...uint64) *ggufWriter {
	le := binary.LittleEndian
	w.nTensor++
	b := le.AppendUint32(w.str(w.tensors, name), uint32(len(dims)))
	for _, d := range dims {
		b = le.AppendUint64(b, d)
	}
	w.tensors = le.AppendUint64(le.AppendUint32(b, kind), offset)
	return w
}

// f32 adds a tensor whose elements count up from first. Shape is outermost first.
func (w *ggufWriter) f32(name string, first float32, shape ...int) *ggufWriter {
	n, dims := 1, []uint64{}
	for _, d := range shape {
		n *= d
		dims = append([]uint64{uint64(d)}, dims...)
	}
	w.describe(name, 0, uint64(len(w.data)), dims...)
	for i := range n {
		w.data = binary.LittleEndian.AppendUint32(w.data, math.Float32bits(first+float32(i)))
	}
	for len(w.data)%32 != 0 {
		w.data = append(w.data, 0)
	}
	return w
}

func (w *ggufWriter) bytes() []byte {
	le := binary.LittleEndian
	b := le.AppendUint32([]byte("GGUF"), w.version)
	b = le.AppendUint64(le.AppendUint64(b, w.nTensor), w.nKeys)
	b = append(append(b, w.keys...), w.tensors...)
	for len(b)%32 != 0 {
		b = append(b, 0)
	}
	return append(b, w.data...)
}

func (w *ggufWriter) write(t testing.TB, path string) string {
	if err := os.WriteFile(path, w.bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// base has the metadata every family needs.
func base(arch string) *ggufWriter {
	k := func(s string) string { return arch + "." + s }
	return newGGUF(arch).key(k("embedding_length"), 8).key(k("block_count"), 1).key(k("attention.head_count"), 2).
		key(k("feed_forward_length"), 16).key(k("context_length"), 128).key(k("attention.layer_norm_rms_epsilon"), 1e-6).
		f32("token_embd.weight", 0, 5, 8)
}

// Names and config keys of each family.
func TestGGUFFamilies(t *testing.T) {
	dense := []string{"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"}
	hf := []string{"input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
	zip := func(from, to []string) map[string]string {
		m := map[string]string{}
		for i, f := range from {
			m["blk.0."+f+".weight"] = "model.layers.0." + to[i] + ".weight"
		}
		return m
	}
	with := func(m map[string]string, more ...string) map[string]string {
		out := map[string]string{}
		for k, v := range m {
			out[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			if out[more[i]] = more[i+1]; more[i+1] == "" {
				delete(out, more[i])
			}
		}
		return out
	}
	llama := with(zip(dense, hf), "output_norm.weight", "model.norm.weight", "token_embd.weight", "model.embed_tokens.weight")
	b, l := "blk.0.", "model.layers.0."
	moe := func(m map[string]string, at, router, experts string) map[string]string {
		return with(m, b+"ffn_gate.weight", "", b+"ffn_up.weight", "", b+"ffn_down.weight", "", b+"ffn_gate_inp.weight", l+router+".weight",
			b+"ffn_gate_exps.weight", l+experts+".gate_proj.weight", b+"ffn_up_exps.weight", l+experts+".up_proj.weight", b+"ffn_down_exps.weight", l+experts+".down_proj.weight")
	}
	norms := with(llama, b+"attn_q_norm.weight", l+"self_attn.q_norm.weight", b+"attn_k_norm.weight", l+"self_attn.k_norm.weight")
	cases := []struct {
		arch   string
		more   func(w *ggufWriter, k func(string) string)
		names  map[string]string
		config string
	}{
		{"llama", nil, with(llama, "output.weight", "lm_head.weight"), `"model_type": "llama"; "tie_word_embeddings": false; "head_dim": 4; "rope_theta": 10000.0`},
		{"llama", func(w *ggufWriter, k func(string) string) {
			w.key(k("expert_count"), 4).key(k("expert_used_count"), 2)
		}, moe(llama, "", "block_sparse_moe.gate", "block_sparse_moe.switch_mlp"), `"model_type": "mixtral"; "num_local_experts": 4; "num_experts_per_tok": 2`},
		{"qwen2", nil, with(llama, b+"attn_q.bias", l+"self_attn.q_proj.bias"), `"model_type": "qwen2"; "attention_bias": true; "tie_word_embeddings": true`},
		{"qwen3", func(w *ggufWriter, k func(string) string) {
			w.key(k("attention.key_length"), 16).key(k("rope.freq_base"), 1e6).key(k("rope.scaling.type"), "yarn").key(k("rope.scaling.factor"), 4.0).key(k("rope.scaling.original_context_length"), 32)
		}, norms, `"model_type": "qwen3"; "head_dim": 16; "factor": 4.0; "original_max_position_embeddings": 32; "type": "yarn"; "rope_theta": 1e+06`},
		{"qwen3moe", func(w *ggufWriter, k func(string) string) {
			w.key(k("expert_count"), 4).key(k("expert_used_count"), 2).key(k("expert_feed_forward_length"), 12)
		}, moe(norms, "", "mlp.gate", "mlp.switch_mlp"), `"model_type": "qwen3_moe"; "num_experts": 4; "num_experts_per_tok": 2; "moe_intermediate_size": 12; "norm_topk_prob": true; "decoder_sparse_step": 1; "mlp_only_layers": []`},
		{"gemma3", func(w *ggufWriter, k func(string) string) {
			w.key(k("attention.sliding_window"), 512).key(k("rope.scaling.type"), "linear").key(k("rope.scaling.factor"), 8.0)
		}, with(norms, b+"post_attention_norm.weight", l+"post_attention_layernorm.weight", b+"ffn_norm.weight", l+"pre_feedforward_layernorm.weight", b+"post_ffw_norm.weight", l+"post_feedforward_layernorm.weight"),
			`"model_type": "gemma3_text"; "sliding_window": 512; "sliding_window_pattern": 6; "query_pre_attn_scalar": 4; "rope_local_base_freq": 10000.0; "factor": 8.0; "type": "linear"`},
		{"phi3", func(w *ggufWriter, k func(string) string) {
			w.key(k("rope.dimension_count"), 3).key(k("rope.scaling.original_context_length"), 64).f32("rope_factors_long.weight", 1, 2).f32("rope_factors_short.weight", 5, 2)
		}, map[string]string{b + "attn_qkv.weight": l + "self_attn.qkv_proj.weight", b + "ffn_up.weight": l + "mlp.gate_up_proj.weight", b + "ffn_down.weight": l + "mlp.down_proj.weight", "output.weight": "lm_head.weight"},
			`"model_type": "phi3"; "partial_rotary_factor": 0.75; "original_max_position_embeddings": 64; "type": "longrope"; "long_factor": [1.0, 2.0]; "short_factor": [5.0, 6.0]`},
		{"gpt-oss", func(w *ggufWriter, k func(string) string) {
			w.key(k("expert_count"), 4).key(k("expert_used_count"), 2).key(k("attention.sliding_window"), 128).key(k("expert_feed_forward_length"), 24)
		}, moe(with(llama, b+"post_attention_norm.weight", l+"post_attention_layernorm.weight", b+"ffn_norm.weight", "", b+"attn_sinks.weight", l+"self_attn.sinks", b+"ffn_gate_inp.bias", l+"mlp.router.bias", b+"ffn_up_exps.bias", l+"mlp.experts.up_proj.bias"), "", "mlp.router", "mlp.experts"),
			`"model_type": "gpt_oss"; "num_local_experts": 4; "layer_types": ["sliding_attention"]; "sliding_window": 128; "intermediate_size": 24`},
		{"lfm2", func(w *ggufWriter, k func(string) string) {
			w.key(k("attention.head_count_kv"), []int{0}).key(k("shortconv.l_cache"), 3)
		}, map[string]string{b + "attn_norm.weight": l + "operator_norm.weight", b + "ffn_norm.weight": l + "ffn_norm.weight", b + "attn_output.weight": l + "self_attn.out_proj.weight", b + "attn_q_norm.weight": l + "self_attn.q_layernorm.weight",
			b + "ffn_gate.weight": l + "feed_forward.w1.weight", b + "ffn_up.weight": l + "feed_forward.w3.weight", b + "ffn_down.weight": l + "feed_forward.w2.weight",
			b + "shortconv.in_proj.weight": l + "conv.in_proj.weight", b + "shortconv.out_proj.weight": l + "conv.out_proj.weight", b + "shortconv.conv.weight": l + "conv.conv.weight", "token_embd_norm.weight": "model.embedding_norm.weight"},
			`"model_type": "lfm2"; "layer_types": ["conv"]; "conv_L_cache": 3; "block_ff_dim": 16; "block_auto_adjust_ff_dim": false; "full_attn_idxs": []`},
		{"llama", func(w *ggufWriter, k func(string) string) {
			w.f32("rope_freqs.weight", 1, 2).key(k("attention.head_count_kv"), 1)
		}, llama, `"type": "longrope"; "long_factor": [1.0, 2.0]; "original_max_position_embeddings": 128; "num_key_value_heads": 1`},
		{"someday", nil, map[string]string{b + "attn_q.weight": b + "attn_q.weight"}, `"model_type": "someday"; "hidden_size": 8`},
	}
	for i, tc := range cases {
		t.Run(fmt.Sprintf("%s-%d", tc.arch, i), func(t *testing.T) {
			w := base(tc.arch)
			if tc.more != nil {
				tc.more(w, func(s string) string { return tc.arch + "." + s })
			}
			for _, from := range slices.Sorted(func(yield func(string) bool) {
				for k := range tc.names {
					if k != "token_embd.weight" && !yield(k) {
						return
					}
				}
			}) {
				shape := []int{8, 8}
				if strings.Contains(from, "norm") {
					shape = []int{8}
				}
				w.f32(from, 0, shape...)
			}
			c := must(Open(w.write(t, filepath.Join(t.TempDir(), "m.gguf"))))(t)
			defer c.Close()
			for from, to := range tc.names {
				if !c.Has(to) {
					t.Errorf("%s is not called %s; there are %v", from, to, c.Names())
				}
			}
			if got, want := len(c.Names()), len(tc.names); got != want && got != want+1 {
				t.Errorf("%d names %v, want %d", got, c.Names(), want)
			}
			for _, part := range strings.Split(tc.config, "; ") {
				if !strings.Contains(string(c.RawConfig()), part) {
					t.Errorf("the config lacks %s: %s", part, c.RawConfig())
				}
			}
		})
	}
}

func TestGGUFConventions(t *testing.T) {
	// gemma norms lose the one that GGUF adds; other tensors do not.
	w := base("gemma3").f32("blk.0.attn_norm.weight", 1, 8).f32("blk.0.attn_q.weight", 1, 8, 8)
	c := must(Open(w.write(t, filepath.Join(t.TempDir(), "m.gguf"))))(t)
	defer c.Close()
	if got := must(must(c.Tensor("model.layers.0.input_layernorm.weight"))(t).Float32())(t); got[0] != 0 || got[7] != 7 {
		t.Errorf("the norm reads %v", got)
	}
	if got := rows(t, must(c.Matrix("model.layers.0.self_attn.q_proj"))(t)); got[0][0] != 1 {
		t.Errorf("the projection reads %v", got[0])
	}
	// llama q rows and biases change from (head, pair, half) to (head, half, pair); the short conv gets its last axis.
	w = base("llama").f32("blk.0.attn_q.weight", 0, 8, 1).f32("blk.0.attn_q.bias", 0, 8).f32("blk.0.attn_v.bias", 0, 8)
	c2 := must(Open(w.write(t, filepath.Join(t.TempDir(), "m.gguf"))))(t)
	defer c2.Close()
	want := []float32{0, 2, 1, 3, 4, 6, 5, 7}
	if got := must(must(c2.Tensor("model.layers.0.self_attn.q_proj.bias"))(t).Float32())(t); !slices.Equal(got, want) {
		t.Errorf("the bias reads %v", got)
	}
	for r, row := range rows(t, must(c2.Matrix("model.layers.0.self_attn.q_proj"))(t)) {
		if row[0] != want[r] {
			t.Errorf("row %d reads %v, want %v", r, row[0], want[r])
		}
	}
	if got := must(must(c2.Tensor("model.layers.0.self_attn.v_proj.bias"))(t).Float32())(t); got[1] != 1 {
		t.Errorf("the v bias reads %v", got)
	}
	w = base("lfm2").key("lfm2.attention.head_count_kv", []int{0}).key("lfm2.shortconv.l_cache", 3).f32("blk.0.shortconv.conv.weight", 0, 8, 3)
	c3 := must(Open(w.write(t, filepath.Join(t.TempDir(), "m.gguf"))))(t)
	defer c3.Close()
	if got := must(c3.Tensor("model.layers.0.conv.conv.weight"))(t); !slices.Equal(got.Shape, []int{8, 3, 1}) {
		t.Errorf("the short conv has shape %v", got.Shape)
	}
}

func TestGGUFShards(t *testing.T) {
	dir := t.TempDir()
	name := func(i int) string { return filepath.Join(dir, fmt.Sprintf("m-%05d-of-00002.gguf", i)) }
	base("llama").key("split.no", 0).key("split.count", 2).key("split.tensors.count", 2).write(t, name(1))
	if _, err := Open(name(1)); err == nil || !strings.Contains(err.Error(), "m-00002-of-00002.gguf is missing") {
		t.Errorf("a missing shard: %v", err)
	}
	newGGUF("llama").key("split.no", 1).key("split.count", 2).f32("output.weight", 7, 5, 8).write(t, name(2))
	for _, path := range []string{name(1), name(2), dir} {
		c := must(Open(path))(t)
		if got := rows(t, must(c.Matrix("lm_head"))(t)); got[0][0] != 7 || !c.Has("model.embed_tokens.weight") || c.Bytes() != 2*5*8*4 {
			t.Errorf("%s: lm_head reads %v, %d bytes", path, got[0], c.Bytes())
		}
		c.Close()
	}
	newGGUF("llama").key("split.no", 1).f32("token_embd.weight", 7, 5, 8).write(t, name(2))
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), `"token_embd.weight" is also in`) {
		t.Errorf("a tensor in two shards: %v", err)
	}
	newGGUF("llama").key("split.no", 1).write(t, name(2))
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "hold 1 tensors, the first one promises 2") {
		t.Errorf("a tensor in no shard: %v", err)
	}
	newGGUF("llama").key("split.no", 0).write(t, name(2))
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "part 1 of the model, its name says part 2") {
		t.Errorf("a renamed shard: %v", err)
	}
	base("llama").write(t, filepath.Join(dir, "other.gguf"))
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "name one of the files") {
		t.Errorf("two models in a folder: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "holds no weights") {
		t.Errorf("an empty folder: %v", err)
	}
}

// Each planted fault is refused with an error that names it.
func TestGGUFFaults(t *testing.T) {
	le := binary.LittleEndian
	valid := base("llama").bytes()
	patch := func(at int, b []byte) []byte {
		out := slices.Clone(valid)
		copy(out[at:], b)
		return out
	}
	u64 := func(n uint64) []byte { return le.AppendUint64(nil, n) }
	array := func(kind uint32, n uint64) []byte {
		return le.AppendUint64(le.AppendUint32(le.AppendUint32(nil, ggufArray), kind), n)
	}
	one := func(kind uint32, offset uint64, dims ...uint64) []byte {
		w := newGGUF("llama").describe("bad.weight", kind, offset, dims...)
		w.data = make([]byte, 64)
		return w.bytes()
	}
	for _, tc := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "is empty"},
		{"another magic", []byte("GGML\x03\x00\x00\x00 and more bytes"), "not a GGUF file"},
		{"only the magic", []byte("GGUF"), "cut off"},
		{"version 1", patch(4, []byte{1}), "version 1"},
		{"version 4", patch(4, []byte{4}), "version 4"},
		{"big endian", patch(4, []byte{0, 0, 0, 3}), "big-endian"},
		{"2^60 tensors", patch(8, u64(1<<60)), "claims 1152921504606846976 tensors"},
		{"more tensors than bytes", patch(8, u64(1000)), "claims 1000 tensors"},
		{"2^60 keys", patch(16, u64(1<<60)), "metadata entries"},
		{"2^62-byte key", patch(24, u64(1<<62)), "claims 4611686018427387904 bytes"},
		{"2^62-byte string", newGGUF("llama").key("k", append(le.AppendUint32(nil, ggufString), u64(1<<62)...)).bytes(), `metadata "k" at byte`},
		{"2^62 array elements", newGGUF("llama").key("k", array(ggufF64, 1<<62)).bytes(), `metadata "k" claims`},
		{"array past the end", newGGUF("llama").key("k", append(array(ggufF64, 10), make([]byte, 32)...)).bytes(), `metadata "k" at byte`},
		{"array of arrays", newGGUF("llama").key("k", array(ggufArray, 1)).bytes(), "unknown type 9"},
		{"unknown value type", newGGUF("llama").key("k", le.AppendUint32(nil, 77)).bytes(), "unknown type 77"},
		{"a key twice", newGGUF("llama").key("k", 1).key("k", 1).bytes(), `metadata "k" is there twice`},
		{"alignment 3", newGGUF("llama").key("general.alignment", 3).bytes(), "general.alignment is 3"},
		{"alignment 0", newGGUF("llama").key("general.alignment", 0).bytes(), "general.alignment is 0"},
		{"no architecture", (&ggufWriter{version: 3}).bytes(), "general.architecture"},
		{"no block count", newGGUF("llama").key("llama.embedding_length", 8).key("llama.attention.head_count", 2).bytes(), `"llama.block_count" is missing`},
		{"hidden size as text", newGGUF("llama").key("llama.embedding_length", "8").bytes(), `"llama.embedding_length" is not a whole number`},
		{"tensor past the end", one(0, 0, 32), `"bad.weight" needs data bytes 0 to 128, but the data ends at 64`},
		{"tensor far past the end", one(0, 1<<62, 4), `tensor "bad.weight" needs data bytes`},
		{"offset near 2^64", one(0, 1<<64-32, 4), `tensor "bad.weight" has shape`},
		{"tensor too large", one(0, 0, 1<<40, 1<<40), `tensor "bad.weight" has shape`},
		{"dimension of 2^63", one(0, 0, 1<<63), `tensor "bad.weight" has a dimension of`},
		{"dimension of 0", one(0, 0, 0), `tensor "bad.weight" has a dimension of 0`},
		{"no dimensions", one(0, 0), `tensor "bad.weight" has 0 dimensions`},
		{"five dimensions", one(0, 0, 1, 1, 1, 1, 1), `tensor "bad.weight" has 5 dimensions`},
		{"misaligned", one(0, 8, 4), "not a multiple of 32"},
		{"gap", one(0, 32, 4), `gap of 32 bytes before tensor "bad.weight"`},
		{"part of a block", one(12, 0, 128), `"bad.weight" has rows of 128, which are not whole Q4_K blocks of 256`},
		{"unread type", one(23, 0, 256), `"bad.weight" is of type IQ4_XS`},
		{"unknown type", one(200, 0, 256), `"bad.weight" is of type number 200`},
		{"overlap", func() []byte {
			w := newGGUF("llama").describe("a", 0, 0, 16).describe("b", 0, 32, 8)
			w.data = make([]byte, 64)
			return w.bytes()
		}(), `tensor "b" overlaps tensor "a"`},
		{"a tensor twice", newGGUF("llama").f32("a", 0, 8).f32("a", 0, 8).bytes(), `tensor "a" is there twice`},
		{"a name of two tensors", base("lfm2").key("lfm2.attention.head_count_kv", []int{0}).f32("output_norm.weight", 0, 8).f32("token_embd_norm.weight", 0, 8).bytes(), "are both"},
		{"q rows that are no heads", base("llama").f32("blk.0.attn_q.weight", 0, 6, 8).bytes(), `"blk.0.attn_q.weight" has 6 rows`},
		{"quantized drafter", append(newGGUF("dspark").key("dspark.embedding_length", 8).key("dspark.block_count", 1).key("dspark.attention.head_count", 2).
			key("dspark.dspark.block_size", 7).key("dspark.dspark.mask_token_id", 1).key("dspark.dspark.target_layers", []int{1}).
			describe("dspark.fc.weight", 8, 0, 32).bytes(), make([]byte, 64)...), `"dspark.fc.weight" is stored as Q8_0`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			if err := os.WriteFile(path, tc.file, 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := Open(path)
			if err == nil || c != nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	// Cut anywhere, the file is refused or its tensors are whole; nothing panics.
	twin := must(os.ReadFile("testdata/gguf/tiny-llama.gguf"))(t)
	for n := 0; n < len(twin); n += 97 {
		if _, _, err := parseGGUF(twin[:n]); err == nil {
			t.Fatalf("cut to %d of %d bytes and accepted", n, len(twin))
		}
	}
}

// Small files that claim huge things must not make the reader allocate.
func TestHugeCounts(t *testing.T) {
	file := base("llama").bytes()
	for _, at := range []int{8, 16, 24} {
		bad := slices.Clone(file)
		binary.LittleEndian.PutUint64(bad[at:], 1<<60)
		checkAllocation(t, len(bad), func() {
			if _, _, err := parseGGUF(bad); err == nil {
				t.Error("accepted")
			}
		})
	}
	header := []byte(`{"a":{"dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,4611686018427387904]}}`)
	bad := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	checkAllocation(t, len(bad), func() {
		if _, _, err := parseSafetensors(bad); err == nil {
			t.Error("accepted")
		}
	})
}

// checkAllocation fails when f allocates out of proportion to its input.
func checkAllocation(t testing.TB, input int, f func()) {
	t.Helper()
	if got, limit := allocated(f), uint64(64*input+1<<20); got > limit {
		t.Errorf("%d bytes of input made %d bytes of allocations, more than %d", input, got, limit)
	}
}
