package checkpoint

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"sparkbar/engine/layout"
)

// ggufFamily says how the tensors of one general.architecture are called in the Hugging Face world.
type ggufFamily struct {
	model    string            // model_type
	top      map[string]string // whole-model tensors, without .weight
	block    map[string]string // tensors of blk.N
	layers   string            // what blk.N becomes
	permuted bool              // q and k rows are interleaved rope pairs
	norms    bool              // norm weights are stored with one added
	extra    func(g *ggufConfig)
}

var ggufTop = map[string]string{"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

// ggufBlock is the dense llama block; with adds to it or overrides it.
func ggufBlock(with map[string]string) map[string]string {
	m := map[string]string{
		"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
		"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
		"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
		"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
	}
	for k, v := range with {
		m[k] = v
	}
	return m
}

// ggufFamilies are the architectures whose GGUF files are translated. Mistral files call themselves llama; a llama
// file with experts is a mixtral.
var ggufFamilies = map[string]ggufFamily{
	"llama": {model: "llama", top: ggufTop, layers: "model.layers.", permuted: true, block: ggufBlock(nil)},
	"mixtral": {model: "mixtral", top: ggufTop, layers: "model.layers.", permuted: true, extra: (*ggufConfig).experts, block: ggufBlock(map[string]string{
		"ffn_gate_inp": "block_sparse_moe.gate", "ffn_gate_exps": "block_sparse_moe.switch_mlp.gate_proj",
		"ffn_up_exps": "block_sparse_moe.switch_mlp.up_proj", "ffn_down_exps": "block_sparse_moe.switch_mlp.down_proj",
	})},
	"qwen2": {model: "qwen2", top: ggufTop, layers: "model.layers.", block: ggufBlock(nil)},
	"qwen3": {model: "qwen3", top: ggufTop, layers: "model.layers.", block: ggufBlock(nil)},
	"qwen3moe": {model: "qwen3_moe", top: ggufTop, layers: "model.layers.", extra: (*ggufConfig).qwen3moe, block: ggufBlock(map[string]string{
		"ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.switch_mlp.gate_proj", "ffn_up_exps": "mlp.switch_mlp.up_proj", "ffn_down_exps": "mlp.switch_mlp.down_proj",
	})},
	"gemma3": {model: "gemma3_text", top: ggufTop, layers: "model.layers.", norms: true, extra: (*ggufConfig).gemma3, block: ggufBlock(map[string]string{
		"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
	})},
	"phi3": {model: "phi3", top: ggufTop, layers: "model.layers.", extra: (*ggufConfig).phi3, block: ggufBlock(map[string]string{
		"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj",
	})},
	"gpt-oss": {model: "gpt_oss", top: ggufTop, layers: "model.layers.", extra: (*ggufConfig).gptoss, block: ggufBlock(map[string]string{
		"post_attention_norm": "post_attention_layernorm", "attn_sinks": "self_attn.sinks", "ffn_gate_inp": "mlp.router",
		"ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj", "ffn_down_exps": "mlp.experts.down_proj",
	})},
	"lfm2": {model: "lfm2", layers: "model.layers.", extra: (*ggufConfig).lfm2,
		top: map[string]string{"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output_norm": "model.embedding_norm"},
		block: ggufBlock(map[string]string{
			"attn_norm": "operator_norm", "ffn_norm": "ffn_norm", "attn_output": "self_attn.out_proj", "attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm",
			"ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2",
			"shortconv.in_proj": "conv.in_proj", "shortconv.out_proj": "conv.out_proj", "shortconv.conv": "conv.conv",
		})},
	"dspark": {model: "qwen3", layers: "layers.", extra: (*ggufConfig).dspark, block: ggufBlock(nil), top: map[string]string{
		"token_embd": "embed_tokens", "output": "lm_head", "output_norm": "norm", "dspark.fc": "fc", "dspark.hidden_norm": "hidden_norm",
		"dspark.markov_head_a": "markov_head.markov_w1", "dspark.markov_head_b": "markov_head.markov_w2", "dspark.confidence_head": "confidence_head.proj",
		"dspark.log_snr_fc1": "log_snr_embed.fc1", "dspark.log_snr_fc2": "log_snr_embed.fc2",
	}},
}

// adoptGGUF renames the tensors and writes the config. An architecture that is not in the table keeps its names and
// gets a config with the common keys, so that the error about an unknown model_type comes from one place.
func (c *Checkpoint) adoptGGUF(list []*entry) error {
	arch, ok := c.gguf.String("general.architecture")
	if !ok {
		return fmt.Errorf("metadata \"general.architecture\" is missing; this is no model")
	}
	g := &ggufConfig{c: c, prefix: arch + ".", out: map[string]any{}, raw: map[string]*entry{}}
	for _, e := range list {
		g.raw[e.name] = e
	}
	if n := g.int("expert_count", 0); arch == "llama" && n > 0 {
		arch = "mixtral"
	}
	family, known := ggufFamilies[arch]
	if !known {
		family.model = arch
	}
	heads, kv := g.common(family.model)
	for _, e := range list {
		name, suffix := e.name, ""
		if i := strings.LastIndexByte(name, '.'); i >= 0 {
			name, suffix = name[:i], name[i:]
		}
		to := e.name
		if known {
			if strings.HasPrefix(name, "rope_f") {
				continue // folded into the config
			}
			if n, part, ok := ggufLayer(name); ok && family.block[part] != "" {
				to = family.layers + n + "." + family.block[part] + suffix
				if part == "attn_sinks" {
					to = strings.TrimSuffix(to, suffix)
				}
				if family.permuted && (part == "attn_q" || part == "attn_k") {
					e.heads = heads
					if part == "attn_k" {
						e.heads = kv
					}
					if e.heads == 0 || e.shape[0]%(2*e.heads) != 0 {
						return fmt.Errorf("tensor %q has %d rows, which are not %d heads; the file is damaged", e.name, e.shape[0], e.heads)
					}
				}
				if part == "shortconv.conv" && len(e.shape) == 2 {
					e.shape = append(e.shape, 1) // [channels, kernel] is MLX's [channels, kernel, 1]
				}
			} else if family.top[name] != "" {
				to = family.top[name] + suffix
			}
			if family.norms && strings.HasSuffix(e.name, "norm.weight") {
				if e.dtype != layout.F32 {
					return fmt.Errorf("tensor %q is not F32, as norms are; the file is damaged", e.name)
				}
				e.shift = -1
			}
		}
		if other := c.tensors[to]; other != nil {
			return fmt.Errorf("tensors %q and %q are both %q", other.name, e.name, to)
		}
		c.tensors[to] = e
	}
	if family.extra != nil {
		family.extra(g)
	}
	if known && g.err != nil {
		return g.err
	}
	c.config = object{c.files[0].path, g.out}
	c.raw = appendJSON(nil, g.out)
	return nil
}

// ggufLayer splits "blk.12.attn_q" into "12" and "attn_q".
func ggufLayer(name string) (n, part string, ok bool) {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return "", "", false
	}
	n, part, ok = strings.Cut(rest, ".")
	if _, err := strconv.ParseUint(n, 10, 16); err != nil {
		return "", "", false
	}
	return n, part, ok
}

// ggufConfig writes a Hugging Face config from metadata. Missing or bad keys are recorded in err.
type ggufConfig struct {
	c      *Checkpoint
	prefix string
	raw    map[string]*entry // by stored name
	out    map[string]any
	err    error
}

func (g *ggufConfig) fail(key, what string) {
	if g.err == nil {
		g.err = fmt.Errorf("metadata %q %s; the file is damaged or not made for this architecture", g.prefix+key, what)
	}
}

// int is a whole number, or def when key is absent (an error if def is negative). Of a list per layer it is the
// largest.
func (g *ggufConfig) int(key string, def int64) int64 {
	list, ok := g.c.gguf.Ints(g.prefix + key)
	if !ok || len(list) == 0 {
		if g.c.gguf.Has(g.prefix+key) && len(list) == 0 {
			g.fail(key, "is not a whole number")
		} else if def < 0 {
			g.fail(key, "is missing")
		}
		return max(def, 0)
	}
	n := slices.Max(list)
	if n < 0 || n > math.MaxInt32 {
		g.fail(key, fmt.Sprintf("is %d", n))
		return 0
	}
	return n
}

func (g *ggufConfig) float(key string, def float64) float64 {
	f, ok := g.c.gguf.Float(g.prefix + key)
	if !ok {
		if g.c.gguf.Has(g.prefix + key) {
			g.fail(key, "is not a number")
		}
		return def
	}
	return f
}

// common writes the keys every family shares and returns the head counts.
func (g *ggufConfig) common(model string) (heads, kv int) {
	hidden, h := g.int("embedding_length", -1), g.int("attention.head_count", -1)
	k := g.int("attention.head_count_kv", h)
	headDim := g.int("attention.key_length", hidden/max(h, 1))
	o := g.out
	o["model_type"], o["hidden_size"], o["num_hidden_layers"] = model, hidden, g.int("block_count", -1)
	o["num_attention_heads"], o["num_key_value_heads"], o["head_dim"] = h, k, headDim
	o["intermediate_size"] = g.int("feed_forward_length", 0)
	o["rms_norm_eps"] = g.float("attention.layer_norm_rms_epsilon", 1e-5)
	o["max_position_embeddings"] = g.int("context_length", 0)
	o["rope_theta"] = g.float("rope.freq_base", 10000)
	if d := g.int("rope.dimension_count", headDim); d > 0 && d < headDim {
		o["partial_rotary_factor"] = float64(d) / float64(headDim)
	}
	if embed := g.raw["token_embd.weight"]; embed != nil {
		o["vocab_size"] = int64(embed.shape[0])
	}
	o["tie_word_embeddings"] = g.raw["output.weight"] == nil
	o["attention_bias"] = g.raw["blk.0.attn_q.bias"] != nil
	if w := g.int("attention.sliding_window", 0); w > 0 {
		o["sliding_window"] = w
	}
	g.rope()
	o["eos_token_id"] = g.ends()
	for key, name := range map[string]string{"bos_token_id": "bos_token_id", "pad_token_id": "padding_token_id"} {
		if id, ok := g.c.gguf.Int("tokenizer.ggml." + name); ok {
			o[key] = id
		}
	}
	return int(h), int(k)
}

// ends lists the tokens that end a reply.
func (g *ggufConfig) ends() []any {
	ids := []any{}
	for _, key := range []string{"eos", "eot", "eom"} {
		if id, ok := g.c.gguf.Int("tokenizer.ggml." + key + "_token_id"); ok && !slices.Contains(ids, any(id)) {
			ids = append(ids, id)
		}
	}
	return ids
}

// rope writes rope_scaling. Per-dimension factors come as a tensor: llama 3 files carry theirs already computed in
// rope_freqs, which is longrope with factors and no extra multiplier.
func (g *ggufConfig) rope() {
	kind, _ := g.c.gguf.String(g.prefix + "rope.scaling.type")
	scaling := map[string]any{}
	original := g.int("rope.scaling.original_context_length", 0)
	factor := g.float("rope.scaling.factor", g.float("rope.scale_linear", 0))
	if long := g.factors("rope_factors_long.weight"); long != nil {
		kind = "longrope"
		scaling["long_factor"], scaling["short_factor"] = long, long
		if short := g.factors("rope_factors_short.weight"); short != nil {
			scaling["short_factor"] = short
		}
	} else if freqs := g.factors("rope_freqs.weight"); freqs != nil {
		kind, original = "longrope", g.out["max_position_embeddings"].(int64)
		scaling["long_factor"], scaling["short_factor"] = freqs, freqs
	} else if kind == "" && factor > 0 && factor != 1 {
		kind = "linear"
	}
	if kind == "" || kind == "none" {
		return
	}
	scaling["type"], scaling["rope_type"] = kind, kind
	if factor > 0 {
		scaling["factor"] = factor
	}
	if original > 0 {
		scaling["original_max_position_embeddings"] = original
		g.out["original_max_position_embeddings"] = original
	}
	for to, key := range map[string]string{"beta_fast": "rope.scaling.yarn_beta_fast", "beta_slow": "rope.scaling.yarn_beta_slow"} {
		if f := g.float(key, 0); f > 0 {
			scaling[to] = f
		}
	}
	g.out["rope_scaling"] = scaling
}

// factors is a vector of numbers as a config list, nil when the tensor is absent.
func (g *ggufConfig) factors(name string) []any {
	e := g.raw[name]
	if e == nil || e.block != 0 || !e.dtype.IsFloat() || len(e.data) > 1<<16 {
		return nil
	}
	values, err := Tensor{Name: name, DType: e.dtype, Data: e.data}.Float32()
	if err != nil {
		return nil
	}
	list := make([]any, len(values))
	for i, v := range values {
		list[i] = float64(v)
	}
	return list
}

func (g *ggufConfig) experts() {
	g.out["num_local_experts"], g.out["num_experts_per_tok"] = g.int("expert_count", -1), g.int("expert_used_count", -1)
	if n := g.int("expert_feed_forward_length", 0); n > 0 {
		g.out["intermediate_size"] = n
	}
}

func (g *ggufConfig) qwen3moe() {
	g.out["num_experts"], g.out["num_experts_per_tok"] = g.int("expert_count", -1), g.int("expert_used_count", -1)
	g.out["moe_intermediate_size"] = g.int("expert_feed_forward_length", -1)
	g.out["norm_topk_prob"], g.out["decoder_sparse_step"], g.out["mlp_only_layers"] = true, int64(1), []any{}
}

func (g *ggufConfig) gptoss() {
	g.experts()
	types := make([]any, 0, 64)
	for i := range min(g.int("block_count", -1), 1<<12) {
		types = append(types, []string{"sliding_attention", "full_attention"}[i%2])
	}
	g.out["layer_types"] = types
}

func (g *ggufConfig) gemma3() {
	g.out["sliding_window_pattern"] = int64(6)
	g.out["rope_local_base_freq"] = g.float("rope.freq_base_swa", 10000)
	g.out["query_pre_attn_scalar"] = g.out["head_dim"]
	if g.out["num_hidden_layers"] == int64(62) { // 27B alone scales by hidden/heads, which no metadata key says
		g.out["query_pre_attn_scalar"] = g.out["hidden_size"].(int64) / max(g.out["num_attention_heads"].(int64), 1)
	}
	if g.c.gguf.Has(g.prefix + "final_logit_softcapping") {
		g.out["final_logit_softcapping"] = g.float("final_logit_softcapping", 0)
	}
}

func (g *ggufConfig) phi3() {
	if g.out["original_max_position_embeddings"] == nil {
		g.out["original_max_position_embeddings"] = g.int("rope.scaling.original_context_length", g.out["max_position_embeddings"].(int64))
	}
}

func (g *ggufConfig) lfm2() {
	layers := g.int("block_count", -1)
	kv, _ := g.c.gguf.Ints(g.prefix + "attention.head_count_kv")
	if int64(len(kv)) != layers || layers > 1<<12 {
		g.fail("attention.head_count_kv", fmt.Sprintf("has %d entries for %d layers", len(kv), layers))
		return
	}
	types, full := []any{}, []any{}
	for i, n := range kv {
		if n > 0 {
			types, full = append(types, "full_attention"), append(full, int64(i))
		} else {
			types = append(types, "conv")
		}
	}
	o := g.out
	o["layer_types"], o["full_attn_idxs"] = types, full
	o["norm_eps"], o["conv_bias"], o["conv_L_cache"] = o["rms_norm_eps"], g.raw["blk.0.shortconv.conv.bias"] != nil, g.int("shortconv.l_cache", -1)
	o["block_dim"], o["block_ff_dim"], o["block_auto_adjust_ff_dim"] = o["hidden_size"], o["intermediate_size"], false
	o["block_multiple_of"], o["block_ffn_dim_multiplier"] = int64(1), 1.0
	o["tie_word_embeddings"], o["tie_embedding"] = true, true
}

// dspark rewrites the config as the converted drafter's: only the keys of that packaging.
func (g *ggufConfig) dspark() {
	o, keep := map[string]any{}, g.out
	for _, k := range []string{"model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "vocab_size"} {
		o[k] = keep[k]
	}
	o["architectures"] = []any{"Qwen3DSparkModel"}
	o["rope_parameters"] = map[string]any{"rope_type": "default", "rope_theta": keep["rope_theta"]}
	o["block_size"], o["mask_token_id"] = g.int("dspark.block_size", -1), g.int("dspark.mask_token_id", -1)
	o["markov_rank"] = g.int("dspark.markov_rank", 0)
	o["tie_word_embeddings"], o["torch_dtype"] = false, "bfloat16"
	if name, ok := g.c.gguf.String("general.name"); ok {
		o["converted_from"] = name
	}
	taps, ok := g.c.gguf.Ints(g.prefix + "dspark.target_layers")
	if !ok || len(taps) == 0 || len(taps) > 1<<12 {
		g.fail("dspark.target_layers", "is not a list of layers")
		return
	}
	ids := make([]any, len(taps))
	for i, n := range taps {
		ids[i] = n
	}
	o["target_layer_ids"] = ids
	for to, key := range map[string]string{"enable_confidence_head": "confidence_head", "confidence_head_with_markov": "confidence_head_with_markov", "log_snr_conditioning": "log_snr_conditioning"} {
		if b, ok := g.c.gguf.Bool(g.prefix + "dspark." + key); ok {
			o[to] = b
		}
	}
	for _, key := range []string{"min_log_snr", "max_log_snr"} {
		if g.c.gguf.Has(g.prefix + "dspark." + key) {
			o[key] = g.float("dspark."+key, 0)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.raw)) {
		if e := g.raw[name]; e.block != 0 && g.err == nil {
			g.err = fmt.Errorf("tensor %q is stored as %s; a dspark drafter file has F32, F16 or BF16 tensors only", name, e.block)
		}
	}
	g.out = o
}

// appendJSON writes a decoded value as JSON with sorted keys and bare Infinity and NaN.
func appendJSON(b []byte, v any) []byte {
	switch v := v.(type) {
	case map[string]any:
		b = append(b, '{')
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for i, k := range keys {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = append(appendString(b, k), ": "...)
			b = appendJSON(b, v[k])
		}
		return append(b, '}')
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = appendJSON(b, e)
		}
		return append(b, ']')
	case string:
		return appendString(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case bool:
		return strconv.AppendBool(b, v)
	case float64:
		switch {
		case math.IsNaN(v):
			return append(b, "NaN"...)
		case math.IsInf(v, 1):
			return append(b, "Infinity"...)
		case math.IsInf(v, -1):
			return append(b, "-Infinity"...)
		}
		text := strconv.AppendFloat(nil, v, 'g', -1, 64)
		if !bytes.ContainsAny(text, ".e") {
			text = append(text, ".0"...)
		}
		return append(b, text...)
	}
	return append(b, "null"...)
}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			b = fmt.Appendf(b, "\\u%04x", r)
		default:
			b = append(b, string(r)...)
		}
	}
	return append(b, '"')
}
