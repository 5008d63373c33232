package arch

import (
	"fmt"
	"math"
	"strings"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// qwenHybridConfig describes qwen3_5, qwen3_5_moe and qwen3_next: layers of the
// gated delta rule (Yang et al. 2024), and every so often full attention with a
// sigmoid gate.
type qwenHybridConfig struct {
	hidden, layers, inter, vocab int
	context                      int
	eps                          float32
	tied                         bool
	interval                     int // every interval-th layer attends

	heads, kvHeads, dim int
	rotary              int
	theta               float64

	kHeads, vHeads, kDim, vDim, kernel int // gated delta

	experts, expertSize, sharedSize int
	rule                            compute.MoERoute
	dense                           func(layer int) bool // no experts here

	// shift is what the file's norms lack: 1 where it holds centred weights.
	shift float32
	// fused: the projections of a gated-delta layer come in two, by key head.
	fused bool
}

type qwenHybridLayer struct {
	attnNorm, mlpNorm compute.View
	attends           bool
	cache             int // its first cache

	attn         Attention // Q gives, for each head, the query and then the gate
	qNorm, kNorm compute.View

	qkv, z, a, b, out Linear
	taps              compute.View
	aLog, dtBias      compute.View
	outNorm           compute.View

	mlp     MLP
	experts *Experts
}

// qwen35 is qwen3_5 and qwen3_5_moe (Qwen3.5, 2026). Prediction heads for
// further tokens (mtp) are not used.
func qwen35(cfg checkpoint.Config, l *Loader) *Model {
	l.TextTower("vision_tower", "visual")
	l.Drop(func(n string) bool { return strings.Contains(n, "mtp.") })
	text := textConfig(cfg)
	c := qwenHybridConfig{
		hidden:   text.IntOr("hidden_size", 4096),
		layers:   text.IntOr("num_hidden_layers", 32),
		inter:    text.IntOr("intermediate_size", 14336),
		vocab:    text.IntOr("vocab_size", cfg.IntOr("vocab_size", 151936)),
		context:  text.IntOr("max_position_embeddings", 0),
		eps:      float32(text.FloatOr("rms_norm_eps", 1e-6)),
		tied:     text.BoolOr("tie_word_embeddings", cfg.BoolOr("tie_word_embeddings", false)),
		interval: text.IntOr("full_attention_interval", 4),
		heads:    text.IntOr("num_attention_heads", 32),
		kvHeads:  text.IntOr("num_key_value_heads", 8),
		theta:    ropeTheta(text, 1e5),
		kHeads:   text.IntOr("linear_num_key_heads", 16),
		vHeads:   text.IntOr("linear_num_value_heads", 64),
		kDim:     text.IntOr("linear_key_head_dim", 192),
		vDim:     text.IntOr("linear_value_head_dim", 128),
		kernel:   text.IntOr("linear_conv_kernel_dim", 4),
		experts:  text.IntOr("num_experts", 0),
		dense:    func(int) bool { return false },
	}
	l.Positive("num_attention_heads", c.heads)
	if l.err != nil {
		return &Model{}
	}
	c.dim = text.IntOr("head_dim", c.hidden/c.heads)
	if c.experts > 0 {
		c.expertSize, c.sharedSize = text.Int("moe_intermediate_size"), text.Int("shared_expert_intermediate_size")
		c.rule = compute.MoERoute{Kind: compute.SoftmaxAll, TopK: text.Int("num_experts_per_tok"), Normalize: text.BoolOr("norm_topk_prob", true), Scale: 1}
	}
	// Hugging Face files hold centred norm weights; the layout of the
	// convolutions is the only mark of such a file.
	if l.hasFirst("linear_attn.conv1d.weight", func(shape []int) bool { return len(shape) == 3 && shape[1] == 1 && shape[2] != 1 }) {
		c.shift = 1
	}
	return qwenHybrid(text, c, l)
}

// hasFirst reports whether the first tensor with the suffix has a shape that
// passes.
func (l *Loader) hasFirst(suffix string, pass func(shape []int) bool) bool {
	c := l.c
	if l.base != nil {
		c = l.base.c // what is replaced is no mark
	}
	for _, n := range c.Names() {
		if strings.HasSuffix(n, suffix) {
			shape, _ := c.Form(n)
			return pass(shape)
		}
	}
	return false
}

func qwenHybrid(cfg checkpoint.Config, c qwenHybridConfig, l *Loader) *Model {
	l.AllPositive(map[string]int{"hidden_size": c.hidden, "num_hidden_layers": c.layers, "vocab_size": c.vocab, "full_attention_interval": c.interval,
		"linear_num_key_heads": c.kHeads, "linear_num_value_heads": c.vHeads, "linear_key_head_dim": c.kDim, "linear_value_head_dim": c.vDim, "linear_conv_kernel_dim": c.kernel})
	l.heads(c.heads, c.kvHeads, c.dim)
	if l.err == nil && c.vHeads%c.kHeads != 0 {
		l.Fail("%w: linear_num_value_heads (%d) is not a multiple of linear_num_key_heads (%d)", errConfig, c.vHeads, c.kHeads)
	}
	if c.experts > 0 {
		l.experts(c.experts, c.rule.TopK)
	}
	c.rotary = l.rotaryDims(cfg, c.dim, 0.25)
	keys, values := c.kHeads*c.kDim, c.vHeads*c.vDim
	m := &Model{Hidden: c.hidden, Vocab: c.vocab, Layers: c.layers, Context: c.context, EmbedScale: 1}

	l.Tables(m, c.tied)
	norm := l.uncentred("model.norm.weight", c.hidden, c.shift)
	rope := l.Rope(cfg, c.rotary, c.theta, false)
	bias := cfg.BoolOr("attention_bias", false)
	var layers []qwenHybridLayer
	for i := 0; i < c.layers && l.err == nil; i++ {
		p := fmt.Sprintf("model.layers.%d.", i)
		w := qwenHybridLayer{
			attnNorm: l.uncentred(p+"input_layernorm.weight", c.hidden, c.shift),
			mlpNorm:  l.uncentred(p+"post_attention_layernorm.weight", c.hidden, c.shift),
			attends:  (i+1)%c.interval == 0,
			cache:    len(m.Caches),
		}
		if w.attends {
			a := p + "self_attn."
			w.attn = Attention{
				Q: l.Linear(a+"q_proj", c.heads*2*c.dim, c.hidden, bias),
				K: l.Linear(a+"k_proj", c.kvHeads*c.dim, c.hidden, bias),
				V: l.Linear(a+"v_proj", c.kvHeads*c.dim, c.hidden, bias),
				O: l.Linear(a+"o_proj", c.hidden, c.heads*c.dim, bias),
			}
			w.qNorm, w.kNorm = l.uncentred(a+"q_norm.weight", c.dim, c.shift), l.uncentred(a+"k_norm.weight", c.dim, c.shift)
			m.Caches = append(m.Caches, l.attentionCache("full_attention", c.kvHeads, c.dim, 0))
		} else {
			a := p + "linear_attn."
			if c.fused {
				w.qkv, w.z, w.b, w.a = l.splitByKeyHead(a, c)
			} else {
				w.qkv, w.z = l.Linear(a+"in_proj_qkv", 2*keys+values, c.hidden, false), l.Linear(a+"in_proj_z", values, c.hidden, false)
				w.b, w.a = l.Linear(a+"in_proj_b", c.vHeads, c.hidden, false), l.Linear(a+"in_proj_a", c.vHeads, c.hidden, false)
			}
			w.taps = l.Conv(a+"conv1d.weight", 2*keys+values, c.kernel)
			w.aLog, w.dtBias = l.Vector(a+"A_log", c.vHeads), l.Vector(a+"dt_bias", c.vHeads)
			w.outNorm = l.Vector(a+"norm.weight", c.vDim)
			w.out = l.Linear(a+"out_proj", c.hidden, values, false)
			m.Caches = append(m.Caches, convCache(2*keys+values, c.kernel),
				compute.CacheSpec{Kind: compute.CacheState, Size: values * c.kDim, Log: keys + values + 2*c.vHeads})
		}
		if c.experts > 0 && !c.dense(i) {
			e := l.qwenExperts(p+"mlp.", c.rule, c.experts, c.hidden, c.expertSize, c.sharedSize)
			w.experts = &e
		} else {
			w.mlp = l.MLP(p+"mlp.", c.hidden, c.inter, false)
		}
		layers = append(layers, w)
	}

	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, 1)
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.attnNorm, c.eps)
			if w.attends {
				f.LinearAdd(w.attention(f, h, c, rope), w.attn.O, x)
			} else {
				f.LinearAdd(w.gatedDelta(f, h, c), w.out, x)
			}

			h = f.Norm(x, w.mlpNorm, c.eps)
			if w.experts != nil {
				f.MixtureAdd(h, *w.experts, x)
			} else {
				f.MLPAdd(h, w.mlp, compute.ActSwiGLU, x)
			}

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.Head(x, norm, c.eps, m.Head)
	}
	return m
}

// attention is full attention; a gate from the same projection as the query
// scales its result.
func (w qwenHybridLayer) attention(f *Forward, h compute.View, c qwenHybridConfig, rope Rope) compute.View {
	both, k, v := f.QKV(h, w.attn)
	both = both.Reshape(h.Rows*c.heads, 2*c.dim)
	q := f.New(h.Rows, c.heads*c.dim)
	f.P.Add(compute.Norm{X: both.Columns(0, c.dim), Out: q.Reshape(both.Rows, c.dim), W: w.qNorm, Eps: c.eps, Scale: 1})
	f.HeadNorm(k, w.kNorm, c.eps, c.dim)
	f.Rotate(q, rope, c.dim)
	f.Rotate(k, rope, c.dim)
	a := f.Attend(q, k, v, w.cache, c.heads, float32(1/math.Sqrt(float64(c.dim))))
	byHead := a.Reshape(both.Rows, c.dim)
	f.P.Add(compute.Binary{Kind: compute.BinSigmoidMul, A: byHead, B: both.Columns(c.dim, 2*c.dim), Out: byHead, Scale: 1})
	return a
}

// gatedDelta is the gated delta rule over convolved q, k and v.
func (w qwenHybridLayer) gatedDelta(f *Forward, h compute.View, c qwenHybridConfig) compute.View {
	const l2Eps = 1e-6
	keys := c.kHeads * c.kDim
	qkv := f.Convolve(f.Linear(h, w.qkv), w.taps, compute.View{}, compute.ActSiLU, w.cache)
	q, k, v := qkv.Columns(0, keys), qkv.Columns(keys, 2*keys), qkv.Columns(2*keys, qkv.Cols)
	f.P.Add(
		compute.Norm{X: q, Out: q, Kind: compute.L2, Eps: l2Eps, Scale: float32(1 / math.Sqrt(float64(c.kDim))), Group: c.kDim},
		compute.Norm{X: k, Out: k, Kind: compute.L2, Eps: l2Eps, Scale: 1, Group: c.kDim})
	y := f.GatedDelta(compute.GatedDelta{
		Q: q, K: k, V: v, A: f.Linear(h, w.a), B: f.Linear(h, w.b), ALog: w.aLog, DtBias: w.dtBias,
		HeadsK: c.kHeads, HeadsV: c.vHeads, DimK: c.kDim, DimV: c.vDim,
	}, w.cache+1)
	f.P.Add(compute.Norm{X: y, Out: y, W: w.outNorm, Eps: c.eps, Scale: 1, Group: c.vDim, Gate: f.Linear(h, w.z), Place: compute.GateAfter})
	return y
}
