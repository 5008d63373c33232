package arch

import (
	"slices"
	"strings"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// qwen3Next is the hybrid of qwen3_5.go with the projections of a gated-delta
// layer fused by key head, and experts that single layers may lack (Qwen3-Next,
// 2025).
func qwen3Next(cfg checkpoint.Config, l *Loader) *Model {
	l.Drop(func(n string) bool { return strings.HasPrefix(n, "mtp.") })
	step, only := cfg.IntOr("decoder_sparse_step", 1), cfg.Ints("mlp_only_layers")
	l.Positive("decoder_sparse_step", step)
	c := qwenHybridConfig{
		hidden:     cfg.Int("hidden_size"),
		layers:     cfg.Int("num_hidden_layers"),
		inter:      cfg.Int("intermediate_size"),
		vocab:      cfg.Int("vocab_size"),
		context:    cfg.IntOr("max_position_embeddings", 0),
		eps:        float32(cfg.Float("rms_norm_eps")),
		tied:       cfg.BoolOr("tie_word_embeddings", false),
		interval:   cfg.IntOr("full_attention_interval", 4),
		heads:      cfg.Int("num_attention_heads"),
		kvHeads:    cfg.Int("num_key_value_heads"),
		theta:      ropeTheta(cfg, 10000),
		kHeads:     cfg.Int("linear_num_key_heads"),
		vHeads:     cfg.Int("linear_num_value_heads"),
		kDim:       cfg.Int("linear_key_head_dim"),
		vDim:       cfg.Int("linear_value_head_dim"),
		kernel:     cfg.Int("linear_conv_kernel_dim"),
		experts:    cfg.Int("num_experts"),
		expertSize: cfg.IntOr("moe_intermediate_size", 0),
		sharedSize: cfg.IntOr("shared_expert_intermediate_size", 0),
		rule: compute.MoERoute{
			Kind: compute.SoftmaxAll, TopK: cfg.IntOr("num_experts_per_tok", 1), Scale: 1,
			Normalize: cfg.BoolOr("norm_topk_prob", false),
		},
		dense: func(i int) bool { return slices.Contains(only, i) || (i+1)%step != 0 },
		fused: true,
	}
	l.Positive("num_attention_heads", c.heads)
	if l.err != nil {
		return &Model{}
	}
	c.dim = cfg.IntOr("head_dim", c.hidden/c.heads)
	// Hugging Face files hold centred norm weights; they are known by their
	// experts, one by one.
	if l.hasFirst(".mlp.experts.0.up_proj.weight", func([]int) bool { return true }) {
		c.shift = 1
	}
	return qwenHybrid(cfg, c, l)
}

// splitByKeyHead takes the fused projections of a gated-delta layer apart. For
// each key head, in_proj_qkvz holds rows of q, k, and of its value heads' v and
// z; in_proj_ba those of b and a.
func (l *Loader) splitByKeyHead(p string, c qwenHybridConfig) (qkv, z, b, a Linear) {
	qkvz := l.matrix(p+"in_proj_qkvz", 0, 2*c.kHeads*c.kDim+2*c.vHeads*c.vDim, c.hidden)
	ba := l.matrix(p+"in_proj_ba", 0, 2*c.vHeads, c.hidden)
	if l.err != nil {
		return qkv, z, b, a
	}
	per := c.vHeads / c.kHeads // value heads of a key head
	var q, k, v, zs, bs, as []int
	for h := range c.kHeads {
		at := h * (2*c.kDim + 2*per*c.vDim)
		next := func(n int) (rows []int) {
			for range n {
				rows, at = append(rows, at), at+1
			}
			return rows
		}
		q, k = append(q, next(c.kDim)...), append(k, next(c.kDim)...)
		v, zs = append(v, next(per*c.vDim)...), append(zs, next(per*c.vDim)...)
		at = h * 2 * per
		bs, as = append(bs, next(per)...), append(as, next(per)...)
	}
	pick := func(m layout.Matrix, rows []int) Linear { return Linear{W: l.load(l.pick(m, rows))} }
	return pick(qkvz, slices.Concat(q, k, v)), pick(qkvz, zs), pick(ba, bs), pick(ba, as)
}
