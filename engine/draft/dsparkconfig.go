package draft

import (
	"fmt"
	"math"
	"strings"

	"sparkbar/engine/checkpoint"
)

// dsparkConfig is the normalised configuration of a DSpark head. Every
// packaging is translated into it.
type dsparkConfig struct {
	hidden, layers, inter int
	heads, kvHeads, dim   int
	vocab, draftVocab     int
	block                 int // K: slots of a block
	start                 int // s: the slot that holds the first prediction
	mask                  int32
	taps                  []int
	eps                   float32
	theta                 float64
	ropeDims              int // 0 = the whole head
	interleaved           bool
	yarn                  bool
	attnBias              bool
	causal, sink, gated   bool
	window                int // trained sliding window, 0 = none
	offsetNorm            bool
	markov                int // rank, 0 = no head
	confidence            bool
	confidenceMarkov      bool
	logSNR                bool
	minSNR, maxSNR        float64
	softcap               float64
}

// readDSpark reads the DeepSpec layout and the traits that other packagings
// share with it.
func readDSpark(cfg checkpoint.Config) (dsparkConfig, error) {
	c := dsparkConfig{
		hidden:  cfg.Int("hidden_size"),
		layers:  cfg.Int("num_hidden_layers"),
		inter:   cfg.Int("intermediate_size"),
		heads:   cfg.Int("num_attention_heads"),
		kvHeads: cfg.IntOr("num_key_value_heads", 8),
		vocab:   cfg.Int("vocab_size"),
		block:   cfg.Int("block_size"),
		mask:    int32(cfg.Int("mask_token_id")),
		taps:    cfg.Ints("target_layer_ids"),
		eps:     float32(cfg.FloatOr("rms_norm_eps", 1e-6)),
		theta:   cfg.Sub("rope_parameters").FloatOr("rope_theta", cfg.FloatOr("rope_theta", 1e6)),

		interleaved: cfg.Has("rope_is_neox_style") && !cfg.BoolOr("rope_is_neox_style", true),
		attnBias:    cfg.BoolOr("attention_bias", false),
		markov:      cfg.IntOr("markov_rank", 256),
		confidence:  cfg.BoolOr("enable_confidence_head", true),
		logSNR:      cfg.BoolOr("log_snr_conditioning", false),
		softcap:     cfg.FloatOr("final_logit_softcapping", 0),
	}
	if err := cfg.Err(); err != nil {
		return c, err
	}
	kind := cfg.StringOr("model_type", "")
	c.confidenceMarkov = c.markov > 0 && cfg.BoolOr("confidence_head_with_markov", true)
	if c.heads > 0 {
		c.dim = cfg.IntOr("head_dim", c.hidden/c.heads)
	}
	c.draftVocab = cfg.IntOr("draft_vocab_size", c.vocab)
	c.gated = cfg.BoolOr("enable_qwen35_gated_q_proj", false)
	c.offsetNorm = kind == "qwen3_5"
	if c.gated || c.offsetNorm {
		f := cfg.Sub("rope_parameters").FloatOr("partial_rotary_factor", cfg.FloatOr("partial_rotary_factor", 1))
		c.ropeDims = int(float64(c.dim) * f)
	}

	nested := cfg.Sub("dflash_config")
	c.causal = cfg.BoolOr("dflash_query_causal", nested.BoolOr("causal", false))
	c.sink = cfg.BoolOr("attention_sink_bias", false)
	if c.causal || c.sink || !nested.Empty() {
		c.window = cfg.IntOr("sliding_window", 0)
		if c.window == 0 && nested.BoolOr("use_swa", false) {
			c.window = nested.IntOr("swa_window_size", 0)
		}
	}
	switch {
	case cfg.Has("logits_start"):
		c.start = cfg.Int("logits_start")
	case cfg.Has("sample_from_anchor") && !cfg.BoolOr("sample_from_anchor", true):
		c.start = 1
	}
	if c.logSNR {
		c.minSNR, c.maxSNR = cfg.Float("min_log_snr"), cfg.Float("max_log_snr")
		if cfg.Err() == nil && !(c.maxSNR > c.minSNR) {
			return c, fmt.Errorf("config.json: max_log_snr %v must exceed min_log_snr %v", c.maxSNR, c.minSNR)
		}
	}
	if err := cfg.Err(); err != nil {
		return c, err
	}
	if strings.Contains(kind, "gemma") {
		return c, fmt.Errorf("config.json: drafters of model_type %q are not supported yet", kind)
	}
	return c, c.check()
}

func (c dsparkConfig) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("config.json of the drafter: "+format, args...)
	}
	switch {
	case c.hidden <= 0 || c.layers <= 0 || c.inter <= 0 || c.heads <= 0 || c.kvHeads <= 0 || c.dim <= 0 || c.vocab <= 0:
		return bad("a size is not positive")
	case c.heads%c.kvHeads != 0:
		return bad("%d attention heads do not divide into %d key/value heads", c.heads, c.kvHeads)
	case c.block < 1 || c.block > 1024:
		return bad("block_size %d is outside 1 to 1024", c.block)
	case c.start < 0 || c.start >= c.block:
		return bad("logits_start %d is outside the block of %d", c.start, c.block)
	case len(c.taps) == 0:
		return bad("target_layer_ids is empty")
	case c.markov < 0 || c.draftVocab < 1 || c.draftVocab > c.vocab:
		return bad("markov_rank %d or draft_vocab_size %d is impossible", c.markov, c.draftVocab)
	case int(c.mask) < 0 || int(c.mask) >= c.vocab:
		return bad("mask_token_id %d is outside the vocabulary of %d", c.mask, c.vocab)
	case c.theta <= 0 || math.IsNaN(c.theta):
		return bad("rope_theta %v", c.theta)
	}
	return nil
}
