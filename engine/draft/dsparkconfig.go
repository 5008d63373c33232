package draft

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"sparkbar/engine/checkpoint"
)

// dsparkConfig is the normalised configuration of a DSpark head. Every
// packaging is translated into it.
type dsparkConfig struct {
	shape
	draftVocab       int // below vocab: a reduced vocabulary
	start            int // s: the slot that holds the first prediction
	rope             ropeConfig
	gemma            bool
	noValues         bool // values are the keys (gemma)
	causal, sink     bool
	gated            bool
	window           int // trained sliding window, 0 = none
	offsetNorm       bool
	markov           int // rank, 0 = no head
	confidence       bool
	confidenceMarkov bool
	logSNR           bool
	minSNR, maxSNR   float64
	softcap          float64
}

// ropeConfig is the rotary embedding of a head.
type ropeConfig struct {
	theta       float64
	dims        int // rotated dimensions; 0 = the whole head
	interleaved bool
	partial     float64 // proportional rope: the part of the pairs that turn; 0 = plain
	yarn        *yarnConfig
}

type yarnConfig struct{ factor, fast, slow, original float64 }

// config is the rope in the words of a model's config.json.
func (r ropeConfig) config() checkpoint.Config {
	text := "{}"
	switch {
	case r.yarn != nil:
		y := r.yarn
		text = fmt.Sprintf(`{"rope_parameters":{"rope_type":"yarn","factor":%v,"beta_fast":%v,"beta_slow":%v,"original_max_position_embeddings":%v}}`, y.factor, y.fast, y.slow, y.original)
	case r.partial != 0:
		text = fmt.Sprintf(`{"rope_parameters":{"rope_type":"proportional","partial_rotary_factor":%v}}`, r.partial)
	}
	cfg, _ := checkpoint.ParseConfig("rope of the drafter", []byte(text)) // numbers only: always valid
	return cfg
}

// packaging is how a DSpark head was published.
type packaging int

const (
	deepSpec   packaging = iota // ids at the top level (deepseek-ai, Nemotron, GGUF)
	speculator                  // vLLM "speculators" (Red Hat, makora)
	nested                      // ids inside dflash_config (SpecForge, LiquidAI)
)

func packagingOf(cfg checkpoint.Config) packaging {
	inner := cfg.Sub("dflash_config")
	switch {
	case isSpeculator(cfg):
		return speculator
	case inner.Has("projector_type"), inner.Has("target_layer_ids") && !cfg.Has("target_layer_ids"):
		return nested
	}
	return deepSpec
}

// isSpeculator reports whether a config is in vLLM's "speculators" packaging.
func isSpeculator(cfg checkpoint.Config) bool {
	return cfg.Has("speculators_config") || cfg.Has("speculators_model_type")
}

// isEmbedded reports whether a config is that of a full model with a drafter
// inside.
func isEmbedded(cfg checkpoint.Config) bool {
	return !cfg.Has("block_size") && slices.ContainsFunc(cfg.Keys(), func(k string) bool { return strings.HasPrefix(k, "dspark_") })
}

// readDSpark translates a DSpark config of any packaging.
func readDSpark(cfg checkpoint.Config) (dsparkConfig, error) {
	kind := packagingOf(cfg)
	inner := cfg.Sub("dflash_config")
	body, ids := cfg, cfg // where sizes and where ids lie
	tapKey, kvHeads := "target_layer_ids", 8
	switch {
	case isEmbedded(cfg):
		return dsparkConfig{}, errors.New("this is a full model with a drafter inside, which cannot be used alone; choose a standalone DSpark drafter, or run without one")
	case kind == speculator:
		if a := cfg.Sub("speculators_config").StringOr("algorithm", cfg.StringOr("speculators_model_type", "")); a != "dspark" {
			return dsparkConfig{}, fmt.Errorf("speculators of algorithm %q are not supported; use a dspark speculator, a DFlash head or a small draft model", a)
		}
		body, tapKey = cfg.Sub("transformer_layer_config"), "aux_hidden_state_layer_ids"
		kvHeads = body.IntOr("num_attention_heads", 0)
	case kind == nested && inner.Has("target_layer_ids"):
		ids = inner
	}
	family := body.StringOr("model_type", "qwen3")
	if kind == deepSpec && !strings.Contains(family, "qwen3") && !strings.Contains(family, "gemma") {
		return dsparkConfig{}, fmt.Errorf("config.json: a DSpark head of model_type %q is not supported; known are qwen3 and gemma heads", family)
	}

	c := dsparkConfig{
		shape: shape{
			hidden:   body.Int("hidden_size"),
			layers:   body.Int("num_hidden_layers"),
			inter:    body.Int("intermediate_size"),
			heads:    body.Int("num_attention_heads"),
			kvHeads:  body.IntOr("num_key_value_heads", kvHeads),
			vocab:    body.Int("vocab_size"),
			block:    cfg.Int("block_size"),
			mask:     token(ids, "mask_token_id"),
			taps:     ids.Ints(tapKey),
			eps:      float32(body.FloatOr("rms_norm_eps", 1e-6)),
			attnBias: body.BoolOr("attention_bias", false),
		},
		rope: ropeConfig{
			theta:       body.Sub("rope_parameters").FloatOr("rope_theta", body.FloatOr("rope_theta", 1e6)),
			interleaved: cfg.Has("rope_is_neox_style") && !cfg.BoolOr("rope_is_neox_style", true),
		},
		markov:     cfg.IntOr("markov_rank", 256),
		confidence: cfg.BoolOr("enable_confidence_head", true),
		logSNR:     cfg.BoolOr("log_snr_conditioning", false),
		softcap:    body.FloatOr("final_logit_softcapping", 0),
		offsetNorm: family == "qwen3_5",
		gated:      cfg.BoolOr("enable_qwen35_gated_q_proj", false),
	}
	if len(c.taps) == 0 {
		return c, fmt.Errorf("config.json: %q is missing: which layers of the target the drafter reads", tapKey)
	}
	c.confidenceMarkov = c.markov > 0 && cfg.BoolOr("confidence_head_with_markov", true)
	c.draftVocab = cfg.IntOr("draft_vocab_size", c.vocab)
	if c.heads > 0 {
		c.dim = body.IntOr("head_dim", c.hidden/c.heads)
	}
	switch {
	case strings.Contains(family, "gemma"):
		full := body.Sub("rope_parameters", "full_attention")
		c.gemma = true
		c.dim = body.IntOr("global_head_dim", 512)
		if c.noValues = body.BoolOr("attention_k_eq_v", false); c.noValues {
			c.kvHeads = body.IntOr("num_global_key_value_heads", 1)
		}
		c.rope.theta, c.rope.partial = full.FloatOr("rope_theta", 1e6), full.FloatOr("partial_rotary_factor", 0.25)
		c.softcap = body.FloatOr("final_logit_softcapping", 30)
	case c.gated || c.offsetNorm: // elsewhere the factor is copied from the target and means nothing
		f := body.Sub("rope_parameters").FloatOr("partial_rotary_factor", body.FloatOr("partial_rotary_factor", 0.25))
		if c.rope.dims = int(float64(c.dim) * f); !(f > 0 && f <= 1) || c.rope.dims < 2 {
			return c, fmt.Errorf("config.json: partial_rotary_factor %v of a head of %d leaves nothing to turn", f, c.dim)
		}
	}

	switch kind {
	case speculator:
		readSpeculator(cfg, body, &c)
	case nested: // blocks of these are bidirectional and start at the anchor
		r := body.Sub("rope_parameters")
		if inner.Has("projector_type") && r.StringOr("rope_type", r.StringOr("type", "")) == "yarn" && r.Has("factor") {
			c.rope.yarn = &yarnConfig{r.Float("factor"), r.FloatOr("beta_fast", 32), r.FloatOr("beta_slow", 1), r.FloatOr("original_max_position_embeddings", 4096)}
		}
	case deepSpec:
		c.causal = cfg.BoolOr("dflash_query_causal", inner.BoolOr("causal", false))
		c.sink = cfg.BoolOr("attention_sink_bias", false)
		if c.causal || c.sink || !inner.Empty() { // elsewhere the window is the target's
			c.window = cfg.IntOr("sliding_window", 0)
			if c.window == 0 && inner.BoolOr("use_swa", false) {
				c.window = inner.IntOr("swa_window_size", 0)
			}
		}
		switch {
		case cfg.Has("logits_start"):
			c.start = cfg.Int("logits_start")
		case !cfg.BoolOr("sample_from_anchor", true):
			c.start = 1
		}
	}
	if c.logSNR {
		c.minSNR, c.maxSNR = cfg.Float("min_log_snr"), cfg.Float("max_log_snr")
		if cfg.Err() == nil && !(c.maxSNR > c.minSNR) {
			return c, fmt.Errorf("config.json: max_log_snr %v must exceed min_log_snr %v", c.maxSNR, c.minSNR)
		}
	}
	if h := cfg.StringOr("markov_head_type", "vanilla"); c.markov > 0 && h != "vanilla" {
		return c, fmt.Errorf("config.json: a Markov head of type %q is not supported, only vanilla ones are", h)
	}
	if err := cfg.Err(); err != nil {
		return c, err
	}
	return c, c.check()
}

// token reads a token id.
func token(cfg checkpoint.Config, key string) int32 {
	n := cfg.Int(key)
	if n < 0 || n > math.MaxInt32 {
		return -1 // outside every vocabulary
	}
	return int32(n)
}

// readSpeculator reads what vLLM's packaging says in its own way.
func readSpeculator(cfg, body checkpoint.Config, c *dsparkConfig) {
	if slices.Contains(body.Strings("layer_types"), "sliding_attention") && body.BoolOr("use_sliding_window", false) &&
		!cfg.BoolOr("sliding_window_non_causal", false) {
		if c.window = body.IntOr("sliding_window", 0); c.window > 0 {
			c.causal = true
		}
	}
	c.start = 1
	if cfg.BoolOr("sample_from_anchor", false) {
		c.start = 0
	}
	methods, _ := cfg.Sub("speculators_config").Value("proposal_methods").([]any)
	if len(methods) == 0 {
		return
	}
	if first, ok := methods[0].(map[string]any); ok {
		if n, ok := first["speculative_tokens"].(int64); ok {
			if s := c.block - int(n); s >= 0 && s < c.block {
				c.start = s
			}
		}
	}
}

func (c dsparkConfig) check() error {
	if err := c.shape.check(); err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("config.json of the drafter: "+format, args...)
	}
	switch {
	case c.start < 0 || c.start >= c.block:
		return bad("logits_start %d is outside the block of %d", c.start, c.block)
	case c.markov < 0 || c.markov > c.vocab || c.draftVocab < 1 || c.draftVocab > c.vocab:
		return bad("markov_rank %d or draft_vocab_size %d is impossible", c.markov, c.draftVocab)
	case c.window < 0:
		return bad("sliding_window is %d", c.window)
	case !(c.rope.theta > 0) || math.IsInf(c.rope.theta, 0):
		return bad("rope_theta is %v", c.rope.theta)
	case c.dim%2 != 0 || c.rope.dims%2 != 0:
		return bad("rotary dimensions must be even, are %d of %d", c.rope.dims, c.dim)
	case c.gated && c.gemma:
		return bad("gemma heads have no gated queries")
	}
	if y := c.rope.yarn; y != nil {
		for _, v := range []float64{y.factor, y.fast, y.slow, y.original} {
			if !(v > 0) || math.IsInf(v, 0) {
				return bad("a yarn parameter is %v", v)
			}
		}
	}
	if p := c.rope.partial; !(p >= 0 && p <= 1) {
		return bad("partial_rotary_factor is %v", p)
	}
	return nil
}
