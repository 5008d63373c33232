package draft

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/checkpoint"
)

// Every published packaging becomes the recorded values, or is refused.
func TestDrafterConfigGoldens(t *testing.T) {
	var doc struct {
		Cases []struct {
			Name   string
			Config json.RawMessage
			Out    json.RawMessage
		}
	}
	text, err := os.ReadFile(specDir + "/drafter_config.json")
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err != nil || len(doc.Cases) < 20 {
		t.Fatal(len(doc.Cases), err)
	}
	refused := 0
	for _, k := range doc.Cases {
		t.Run(k.Name, func(t *testing.T) {
			cfg, err := checkpoint.ParseConfig("config.json", k.Config)
			if err != nil {
				t.Fatal(err)
			}
			c, err := readDSpark(cfg)
			if string(k.Out) == `"error"` {
				refused++
				if err == nil {
					t.Fatalf("accepted as %+v", c)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if kind, err := KindOf(cfg); kind != KindDSpark {
				t.Errorf("kind %q, %v", kind, err)
			}
			var w struct {
				Family               string
				Hidden               int      `json:"hidden_size"`
				Vocab                int      `json:"vocab_size"`
				OutVocab             int      `json:"out_vocab_size"`
				Layers               int      `json:"num_hidden_layers"`
				Inter                int      `json:"intermediate_size"`
				Eps                  float64  `json:"rms_norm_eps"`
				Heads                int      `json:"num_attention_heads"`
				KVHeads              int      `json:"n_kv_heads"`
				Dim                  int      `json:"attn_head_dim"`
				KEqV                 bool     `json:"attention_k_eq_v"`
				Bias                 bool     `json:"attention_bias"`
				Theta                float64  `json:"rope_theta"`
				Partial              float64  `json:"partial_rotary_factor"`
				RopeDims             *int     `json:"rope_dims"`
				Traditional          bool     `json:"rope_traditional"`
				Yarn                 any      `json:"rope_yarn"`
				Gated                bool     `json:"gated_q_proj"`
				Offset               bool     `json:"offset_rms_norm"`
				Causal               bool     `json:"causal_block"`
				Window               *int     `json:"sliding_window"`
				Sink                 bool     `json:"attention_sink"`
				Block                int      `json:"block_size"`
				Mask                 int32    `json:"mask_token_id"`
				Start                int      `json:"logits_start"`
				Taps                 []int    `json:"target_layer_ids"`
				Markov               int      `json:"markov_rank"`
				Confidence           bool     `json:"enable_confidence_head"`
				ConfidenceWithMarkov bool     `json:"confidence_head_with_markov"`
				SNR                  bool     `json:"log_snr_conditioning"`
				MinSNR               float64  `json:"min_log_snr"`
				MaxSNR               float64  `json:"max_log_snr"`
				Softcap              *float64 `json:"final_logit_softcapping"`
				VNorm                bool     `json:"use_v_norm"`
			}
			if err := json.Unmarshal(k.Out, &w); err != nil {
				t.Fatal(err)
			}
			or := func(p *int) int {
				if p == nil {
					return 0
				}
				return *p
			}
			want := dsparkConfig{
				shape: shape{hidden: w.Hidden, layers: w.Layers, inter: w.Inter, heads: w.Heads, kvHeads: w.KVHeads, dim: w.Dim, vocab: w.Vocab,
					block: w.Block, mask: w.Mask, eps: float32(w.Eps), attnBias: w.Bias},
				draftVocab: w.OutVocab, start: w.Start, gemma: w.Family == "gemma4", noValues: w.KEqV && w.Family == "gemma4",
				causal: w.Causal, sink: w.Sink, gated: w.Gated, window: or(w.Window), offsetNorm: w.Offset, markov: w.Markov,
				confidence: w.Confidence, confidenceMarkov: w.ConfidenceWithMarkov, logSNR: w.SNR,
				rope: ropeConfig{theta: w.Theta, dims: or(w.RopeDims), interleaved: w.Traditional},
			}
			if w.SNR {
				want.minSNR, want.maxSNR = w.MinSNR, w.MaxSNR
			}
			if w.Softcap != nil {
				want.softcap = *w.Softcap
			}
			if want.gemma {
				want.rope.partial = w.Partial
			}
			if w.Yarn != nil || w.VNorm != want.gemma {
				t.Fatal("yarn or value norm")
			}
			if !slices.Equal(c.taps, w.Taps) {
				t.Errorf("taps %v, wants %v", c.taps, w.Taps)
			}
			got, exp := flat(c), flat(want)
			if got != exp {
				t.Errorf("\n got %s\nwant %s", got, exp)
			}
		})
	}
	if refused < 5 {
		t.Errorf("only %d refusals", refused)
	}
}

func flat(c dsparkConfig) string {
	c.taps = nil
	return fmt.Sprintf("%+v", c)
}

// What the configurations of the tiny heads say beyond the recorded list.
func TestDFlashConfig(t *testing.T) {
	parse := func(edit map[string]any) (dflashConfig, error) {
		base := map[string]any{"architectures": []any{"DFlash2DraftModel"}, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
			"head_dim": 16, "intermediate_size": 96, "vocab_size": 272, "layer_types": []any{"sliding_attention", "full_attention"}, "sliding_window": 24, "block_size": 5, "mask_token_id": 1,
			"dflash_config": map[string]any{"block_size": 8, "target_layer_ids": []any{0, 1}, "mask_token_id": 259, "selector_rank": 12, "selector_top_k": 8, "conv_kernel_size": 2}}
		for k, v := range edit {
			if v == nil {
				delete(base, k)
			} else {
				base[k] = v
			}
		}
		text, err := json.Marshal(base)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := checkpoint.ParseConfig("config.json", text)
		if err != nil {
			t.Fatal(err)
		}
		return readDFlash(cfg)
	}
	c, err := parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.block != 8 || c.mask != 259 || c.theta != 1e6 || c.convGroup != 16 || c.multiplier != 1 || !slices.Equal(c.sliding, []bool{true, false}) || c.rank != 12 || c.topK != 8 {
		t.Errorf("%+v", c)
	}
	if c, err = parse(map[string]any{"architectures": []any{"DFlashDraftModel"}, "layer_types": nil, "dflash_config": map[string]any{"target_layer_ids": []any{0, 1}}}); err != nil || c.block != 5 || c.mask != 1 || c.sliding[0] || c.rank != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	for want, edit := range map[string]map[string]any{
		"selector_rank":    {"dflash_config": map[string]any{"block_size": 8, "target_layer_ids": []any{0}}},
		"Markov":           {"markov_rank": 256},
		"block_size":       {"dflash_config": map[string]any{"block_size": 1, "target_layer_ids": []any{0}, "selector_rank": 12, "selector_top_k": 8, "conv_kernel_size": 1}},
		"target_layer_ids": {"dflash_config": map[string]any{"block_size": 8}},
		"hidden_size":      {"hidden_size": nil},
		"sliding_window":   {"sliding_window": nil},
		"layer type":       {"layer_types": []any{"conv", "conv"}},
		"2 layers":         {"layer_types": []any{"full_attention"}},
		"size is":          {"num_key_value_heads": 0},
		"mask_token_id":    {"dflash_config": map[string]any{"block_size": 8, "target_layer_ids": []any{0}, "mask_token_id": 300}},
		"groups of":        {"dflash_config": map[string]any{"block_size": 8, "target_layer_ids": []any{0}, "selector_rank": 12, "selector_top_k": 8, "conv_kernel_size": 2, "conv_group_size": 7}},
	} {
		if c, err := parse(edit); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %q, wants %q (%+v)", edit, err, want, c)
		}
	}
}

func TestKindOf(t *testing.T) {
	for text, want := range map[string]string{
		`{"architectures":["Qwen3DSparkModel"],"model_type":"qwen3"}`:                            "dspark",
		`{"architectures":["DFlashDraftModel"],"model_type":"qwen3","dflash_config":{}}`:         "dflash",
		`{"model_type":"qwen3","dflash_config":{"target_layer_ids":[1]}}`:                        "dflash",
		`{"model_type":"qwen3","dflash_config":{"projector_type":"dspark"}}`:                     "dspark",
		`{"architectures":["Qwen3DSparkModel"],"dflash_config":{"causal":true},"markov_rank":3}`: "dspark",
		`{"model_type":"qwen3","block_size":7,"target_layer_ids":[1]}`:                           "dspark",
		`{"speculators_config":{"algorithm":"eagle3"}}`:                                          "dspark", // and refused there, by name
		`{"model_type":"qwen3","architectures":["Qwen3ForCausalLM"]}`:                            "draft",
		`{"model_type":"llama","architectures":["LlamaForCausalLMEagle3"]}`:                      "not supported",
		`{"model_type":"wav2vec2"}`:                                                              "neither",
		`{"architectures":3}`:                                                                    "architectures",
		`{"model_type":"qwen3","dflash_config":{"projector_type":"mlp"}}`:                        `projector_type "mlp"`,
	} {
		cfg, err := checkpoint.ParseConfig("config.json", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		kind, err := KindOf(cfg)
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, wants %q", text, err, want)
			}
		} else if string(kind) != want {
			t.Errorf("%s is %s, wants %s", text, kind, want)
		}
	}
}

// A config from anywhere is refused or gives sizes that cannot do harm.
func FuzzDrafterConfig(f *testing.F) {
	files, err := os.ReadDir(specDir + "/checkpoints")
	if err != nil {
		f.Fatal(err)
	}
	for _, d := range files {
		text, err := os.ReadFile(specDir + "/checkpoints/" + d.Name() + "/config.json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		cfg, err := checkpoint.ParseConfig("config.json", text)
		if err != nil {
			return
		}
		KindOf(cfg)
		bounded := func(c shape, dims int) {
			for _, n := range []int{c.hidden, c.layers, c.inter, c.heads, c.kvHeads, c.dim, c.vocab, c.block, dims} {
				if n <= 0 || n > 1<<24 {
					t.Fatalf("%+v", c)
				}
			}
			if int(c.mask) >= c.vocab || c.mask < 0 || len(c.taps) == 0 {
				t.Fatalf("%+v", c)
			}
		}
		if c, err := readDSpark(cfg); err == nil {
			bounded(c.shape, max(c.rope.dims, 1))
			if c.start < 0 || c.start >= c.block || math.IsNaN(c.rope.theta) || c.rope.dims > c.dim {
				t.Fatalf("%+v", c)
			}
			c.rope.config()
		}
		if c, err := readDFlash(cfg); err == nil {
			bounded(c.shape, 1)
			if len(c.sliding) != c.layers {
				t.Fatalf("%+v", c)
			}
		}
	})
}
