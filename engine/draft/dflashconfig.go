package draft

import (
	"fmt"
	"math"
	"slices"

	"sparkbar/engine/checkpoint"
)

// dflashConfig is the normalised configuration of a DFlash head.
type dflashConfig struct {
	shape
	theta   float64
	sliding []bool // per layer: causal in the block, with a window
	window  int
	softcap float64

	// DFlash 2, when rank > 0:
	rank, topK int     // of the selector
	convTaps   int     // length of a convolution
	convGroup  int     // channels that share a dynamic coefficient
	multiplier float64 // of the candidates' logits
}

func readDFlash(cfg checkpoint.Config) (dflashConfig, error) {
	inner := cfg.Sub("dflash_config")
	either := func(key string) checkpoint.Config { // dflash_config first, then the top level
		if inner.Has(key) {
			return inner
		}
		return cfg
	}
	c := dflashConfig{
		shape: shape{
			hidden:   cfg.Int("hidden_size"),
			layers:   cfg.Int("num_hidden_layers"),
			inter:    cfg.Int("intermediate_size"),
			heads:    cfg.Int("num_attention_heads"),
			vocab:    cfg.Int("vocab_size"),
			block:    either("block_size").Int("block_size"),
			taps:     either("target_layer_ids").Ints("target_layer_ids"),
			eps:      float32(cfg.FloatOr("rms_norm_eps", 1e-6)),
			attnBias: cfg.BoolOr("attention_bias", false),
		},
		theta:      cfg.Sub("rope_parameters").FloatOr("rope_theta", cfg.FloatOr("rope_theta", 1e6)),
		window:     cfg.IntOr("sliding_window", 0),
		softcap:    either("final_logit_softcapping").FloatOr("final_logit_softcapping", 0),
		rank:       inner.IntOr("selector_rank", 0),
		topK:       inner.IntOr("selector_top_k", 0),
		convTaps:   inner.IntOr("conv_kernel_size", 0),
		convGroup:  inner.IntOr("conv_group_size", 16),
		multiplier: inner.FloatOr("output_multiplier", 1),
	}
	if m := either("mask_token_id"); m.Has("mask_token_id") {
		c.mask = token(m, "mask_token_id")
	}
	c.kvHeads = cfg.IntOr("num_key_value_heads", c.heads)
	if c.heads > 0 {
		c.dim = cfg.IntOr("head_dim", c.hidden/c.heads)
	}
	kinds := cfg.Strings("layer_types")
	second := slices.Contains(cfg.Strings("architectures"), "DFlash2DraftModel")
	if err := cfg.Err(); err != nil {
		return c, err
	}
	if err := c.check(); err != nil {
		return c, err
	}
	bad := func(format string, args ...any) (dflashConfig, error) {
		return c, fmt.Errorf("config.json of the drafter: "+format, args...)
	}
	if len(kinds) > 0 && len(kinds) < c.layers {
		return bad("layer_types has %d entries for %d layers", len(kinds), c.layers)
	}
	for _, kind := range kinds[:min(c.layers, len(kinds))] {
		if kind != "full_attention" && kind != "sliding_attention" {
			return bad("layer type %q is not supported in a DFlash head", kind)
		}
		c.sliding = append(c.sliding, kind == "sliding_attention")
	}
	if len(kinds) == 0 {
		c.sliding = make([]bool, min(c.layers, 1024))
	}
	switch {
	case c.layers > 1024:
		return bad("it has %d layers", c.layers)
	case cfg.Has("markov_rank") || inner.Has("markov_rank"):
		return bad("a DFlash head with a Markov head is not supported; use a DSpark or plain DFlash head")
	case second && (c.rank < 1 || c.topK < 1):
		return bad("a DFlash2DraftModel needs selector_rank and selector_top_k in dflash_config; download its config.json again")
	case c.block < 2:
		return bad("block_size %d leaves nothing to draft", c.block)
	case slices.Contains(c.sliding, true) && c.window < 1:
		return bad("sliding layers need sliding_window, it is %d", c.window)
	case !(c.theta > 0) || math.IsInf(c.theta, 0):
		return bad("rope_theta is %v", c.theta)
	case c.dim%2 != 0:
		return bad("head_dim %d is odd", c.dim)
	case c.rank != 0 && (c.rank < 1 || c.rank > c.hidden || c.topK < 1 || c.topK > c.vocab):
		return bad("selector_rank %d or selector_top_k %d is impossible", c.rank, c.topK)
	case c.rank > 0 && (c.convTaps < 1 || c.convTaps > c.block || c.convGroup < 1 || c.hidden%c.convGroup != 0):
		return bad("convolutions of %d taps in groups of %d channels do not fit %d channels", c.convTaps, c.convGroup, c.hidden)
	}
	return c, nil
}
