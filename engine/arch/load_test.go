package arch

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// loadError loads a folder and returns the error text, or "".
func loadError(t *testing.T, dir string) string {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	m, err := Load(ck, compute.NewReference())
	if err != nil {
		return err.Error()
	}
	m.Close()
	return ""
}

// TestLoadErrors: what cannot run is refused when loading, by an error that names
// the key or the tensor.
func TestLoadErrors(t *testing.T) {
	replace := func(pairs ...string) func(file, *string) {
		return func(_ file, c *string) { *c = strings.NewReplacer(pairs...).Replace(*c) }
	}
	tests := []struct {
		from   string
		change func(f file, config *string)
		want   string
	}{
		{"llama/smollm2", replace(`"model_type": "llama"`, `"model_type": "lama"`), `closest known type is "llama"`},
		{"llama/smollm2", replace(`"model_type": "llama"`, `"x": 1`), "no model_type"},
		{"llama/smollm2", replace(`"hidden_size": 32,`, ``), `"hidden_size" is missing`},
		{"llama/smollm2", replace(`"hidden_size": 32`, `"hidden_size": "x"`), `"hidden_size" must be a whole number`},
		{"llama/smollm2", replace(`"hidden_size": 32`, `"hidden_size": 64`), "model.embed_tokens"},
		{"llama/smollm2", replace(`"hidden_size": 32`, `"hidden_size": -1`), "hidden_size must be positive"},
		{"llama/smollm2", replace(`"num_attention_heads": 4`, `"num_attention_heads": 0`), "num_attention_heads must be positive"},
		{"llama/smollm2", replace(`"num_key_value_heads": 2`, `"num_key_value_heads": 3`), "do not divide into 3 key/value heads"},
		{"llama/smollm2", replace(`"num_hidden_layers": 3`, `"num_hidden_layers": 2`), "model.layers.2."},
		{"llama/smollm2", replace(`"num_hidden_layers": 3`, `"num_hidden_layers": 4000000`), "model.layers.3."},
		{"llama/smollm2", replace(`"head_dim": 16`, `"head_dim": 4611686018427387904`), "head_dim"},
		{"llama/smollm2", replace(`"rope_theta": 100000.0`, `"rope_theta": -1`), "rope_theta must be a positive number"},
		{"llama/smollm2", replace(`"rope_theta"`, `"rope_scaling": {"type": "spiral"}, "rope_theta"`), `rope type "spiral" is not supported`},
		{"llama/smollm2", replace(`"rope_theta"`, `"rope_scaling": {"type": "linear", "factor": 0}, "rope_theta"`), "rope factor must be positive"},
		{"llama/smollm2", replace(`"rope_theta"`, `"rope_scaling": {"type": "longrope", "long_factor": [1, 2]}, "rope_theta"`), "long_factor has 2 entries for 8 pairs"},
		{"llama/smollm2", func(f file, _ *string) { f.junk("model.layers.0.self_attn.q_proj.lora_a") }, "do not belong to this model type (model.layers.0.self_attn.q_proj.lora_a"},
		{"llama/smollm2", func(f file, _ *string) { delete(f, "model.norm.weight") }, `"model.norm.weight" is missing`},
		{"llama/sliding", replace(`"sliding_window": 8`, `"sliding_window": 0`), "sliding_window must be positive"},
		{"llama/sliding", replace(`"sliding_window": 8`, `"sliding_window": 8, "layer_types": ["full_attention"]`), "layer_types has 1 entries for 4 layers"},
		{"nanbeige/looped", replace(`"num_loops": 2`, `"num_loops": 2, "enable_double_loop_split": true`), "enable_double_loop_split is not supported"},
		{"nanbeige/looped", replace(`"num_loops": 2`, `"num_loops": 2, "loop_share_kv": true`), "loop_share_kv is not supported"},
		{"nanbeige/looped", replace(`"num_loops": 2`, `"num_loops": 2, "enable_depth_attention": true`), "enable_depth_attention is not supported"},
		{"nanbeige/looped", replace(`"num_loops": 2`, `"num_loops": 1000000000`), "num_loops must be from 1"},
		{"mistral3/ministral3", replace(`"ministral3"`, `"mistral4"`), `text_config.model_type "mistral4" is not supported`},
		{"mistral3/ministral3", replace(`"llama_4_scaling_beta"`, `"beta"`), `"llama_4_scaling_beta" is missing`},
		{"phi3/longrope", replace(`"partial_rotary_factor": 0.75`, `"partial_rotary_factor": 1.5`), "partial_rotary_factor 1.5"},
		{"phi3/longrope", replace(`"partial_rotary_factor": 0.75`, `"partial_rotary_factor": 0.2`), "partial_rotary_factor 0.2"},
		{"smollm3/nope", replace(`"no_rope_layer_interval": 4`, `"no_rope_layers": [1, 0]`), "no_rope_layers has 2 entries for 4 layers"},
		{"granite/dense", replace(`"logits_scaling": 0.5`, `"logits_scaling": 0`), "logits_scaling must not be zero"},
		{"mixtral/moe", replace(`"num_experts_per_tok": 2`, `"num_experts_per_tok": 5`), "5 of 4 experts"},
		{"qwen3_moe/moe", replace(`"num_experts": 4`, `"num_experts": 8`), "mlp.gate"},
		{"deepseek_v3/mla", replace(`"n_group": 4`, `"n_group": 3`), "n_group, topk_group"},
		{"gemma4/ple", replace(`"num_kv_shared_layers": 3`, `"num_kv_shared_layers": 6`), "num_kv_shared_layers must be from 0 to below 6"},
		{"gemma4/ple", replace(`"num_kv_shared_layers": 3`, `"num_kv_shared_layers": 5`), "shares keys and values, but no full_attention layer before it"},
		{"lfm2/dense", replace(`"layer_types"`, `"kinds"`), "neither full_attn_idxs nor layer_types"},
		{"nemotron_h/hybrid", replace(`"ME*-M"`, `"ME*xM"`), `a block of unknown kind "ME*xM"`},
		{"nemotron_h/hybrid", replace(`"hybrid_override_pattern"`, `"pattern"`), "none of hybrid_override_pattern"},
		{"nemotron_h/hybrid", replace(`"n_groups": 2`, `"n_groups": 3`), "mamba_num_heads (8) is not a multiple of n_groups (3)"},
		{"qwen3_5/hybrid", replace(`"linear_num_value_heads": 4`, `"linear_num_value_heads": 3`), "linear_num_value_heads (3)"},
	}
	for _, test := range tests {
		f, config := readTensors(t, "../testdata/models/"+test.from+"/model.safetensors"), string(readFile(t, "../testdata/models/"+test.from+"/config.json"))
		before := config
		test.change(f, &config)
		if test.from != "llama/smollm2" && config == before {
			t.Errorf("%s: nothing was changed for %q", test.from, test.want)
		}
		if got := loadError(t, f.write(t, config)); !strings.Contains(got, test.want) {
			t.Errorf("%s: error %q, wants one with %q", test.from, got, test.want)
		}
	}
}

// TestActiveBytes: a token reads all of a dense model but the unused rows of the
// embedding, and only the chosen experts of a mixture.
func TestActiveBytes(t *testing.T) {
	for _, c := range []struct {
		dir  string
		want func(f file) int
	}{
		{"llama/smollm2", func(f file) int { return f.bytes("") }},
		{"llama/llama3rope", func(f file) int { return f.bytes("") - f.bytes("embed_tokens") }},
		{"mixtral/moe", func(f file) int { return f.bytes("") - f.bytes("embed_tokens") - f.bytes("switch_mlp")/2 }},
		{"gemma4/ple", func(f file) int { return f.bytes("") - f.bytes("embed_tokens_per_layer") }},
		{"nanbeige/looped", func(f file) int { return f.bytes("") - f.bytes("embed_tokens") + f.bytes("layers.") }},
	} {
		dir := "../testdata/models/" + c.dir
		ck, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Load(ck, compute.NewReference())
		if err != nil {
			t.Fatal(err)
		}
		f := readTensors(t, dir+"/model.safetensors")
		if want := int64(f.bytes("")); m.WeightBytes != want {
			t.Errorf("%s: %d bytes, wants %d", c.dir, m.WeightBytes, want)
		}
		if want := int64(c.want(f)); m.ActiveBytes != want {
			t.Errorf("%s: a token reads %d bytes, wants %d", c.dir, m.ActiveBytes, want)
		}
		m.Close()
		ck.Close()
	}
}

// bytes counts what the device holds of the tensors with a part in their name:
// vectors are float32 there.
func (f file) bytes(part string) int {
	n := 0
	for name, s := range f {
		switch {
		case !strings.Contains(name, part) || strings.HasSuffix(name, "layer_scalar"):
		case len(s.Shape) == 1:
			n += 4 * s.Shape[0]
		default:
			n += len(s.data)
		}
	}
	return n
}

// TestUnloadGivesBack: what a model took from the backend goes back, after an
// error too.
func TestUnloadGivesBack(t *testing.T) {
	b := &counting{Reference: compute.NewReference()}
	for _, dir := range []string{"deepseek_v3/mla", "qwen3_next/hybrid", "gemma4/moe"} {
		ck, err := checkpoint.Open("../testdata/models/" + dir)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Load(ck, b)
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
		ck.Close()
	}
	f := readTensors(t, "../testdata/models/llama/smollm2/model.safetensors")
	delete(f, "model.layers.2.mlp.down_proj.weight")
	dir := f.write(t, string(readFile(t, "../testdata/models/llama/smollm2/config.json")))
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Load(ck, b); err == nil {
		t.Error("loaded without a tensor")
	}
	ck.Close()
	if b.loaded == 0 || b.loaded != b.unloaded || b.allocated == 0 || b.allocated != b.freed {
		t.Errorf("%d weights loaded, %d unloaded; %d buffers allocated, %d freed", b.loaded, b.unloaded, b.allocated, b.freed)
	}
}

// counting counts what is taken and given back.
type counting struct {
	*compute.Reference
	loaded, unloaded, allocated, freed int
}

func (c *counting) Load(m layout.Matrix) (*compute.Weight, error) {
	c.loaded++
	return c.Reference.Load(m)
}

func (c *counting) Unload(w *compute.Weight) {
	c.unloaded++
	c.Reference.Unload(w)
}

func (c *counting) Alloc(label string, n int) (*compute.Buffer, error) {
	c.allocated++
	buf, err := c.Reference.Alloc(label, n)
	if err != nil {
		return nil, err
	}
	return compute.NewBuffer(label, buf.Bytes, nil, func() { c.freed++ }), nil
}

// TestTypes: every tiny checkpoint has a family, and so has every alias.
func TestTypes(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/models/*/*/config.json")
	if err != nil || len(dirs) < 57 {
		t.Fatalf("%d checkpoints, %v", len(dirs), err)
	}
	want := []string{"iquestcoder", "xverse", "gemma3", "gemma4", "kimi_k2", "joyai_llm_flash", "llava", "qwen3_5_text", "qwen3_5_moe_text"}
	for _, d := range dirs {
		c, err := checkpoint.ParseConfig(d, readFile(t, d))
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, c.String("model_type"))
	}
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(Types(), want) {
		t.Errorf("the types are %v, wants %v", Types(), want)
	}
}
