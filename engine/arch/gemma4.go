package arch

import (
	"fmt"
	"math"
	"strings"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// gemma4Layer is one layer of Gemma 4 (2026): sliding and full layers differ in
// head size, key/value heads and rope; the norms multiply by the plain weight.
type gemma4Layer struct {
	dim, kvHeads int
	rope         Rope
	cache        int  // whose keys and values it reads: its own, or an earlier layer's
	shares       bool // it writes none
	valueIsKey   bool // values are the raw keys, normed

	attnNorm, postAttnNorm compute.View
	attn                   Attention
	qNorm, kNorm           compute.View
	mlpNorm, postMLPNorm   compute.View
	mlp                    MLP

	experts                       *Experts // beside mlp, with norms of its own
	routerNorm, expertNorm        compute.View
	mlpBranchNorm, expertPostNorm compute.View
	inputGate, inputProj          Linear // per-layer input
	inputNorm                     compute.View
	scalar                        float32
}

// gemma4 is gemma4_text, and the language model of gemma4 and gemma4_unified.
func gemma4(cfg checkpoint.Config, l *Loader) *Model {
	l.TextTower("vision_tower", "multi_modal_projector", "audio_tower", "embed_audio", "embed_vision", "vision_embedder")
	text := textConfig(cfg)
	var (
		hidden   = text.IntOr("hidden_size", 1536)
		n        = text.IntOr("num_hidden_layers", 35)
		inter    = text.IntOr("intermediate_size", 6144)
		heads    = text.IntOr("num_attention_heads", 8)
		kvHeads  = text.IntOr("num_key_value_heads", 1)
		fullKV   = text.IntOr("num_global_key_value_heads", kvHeads)
		dim      = text.IntOr("head_dim", 256)
		fullDim  = text.IntOr("global_head_dim", 512)
		vocab    = text.IntOr("vocab_size", cfg.IntOr("vocab_size", 262144))
		eps      = float32(text.FloatOr("rms_norm_eps", 1e-6))
		window   = text.IntOr("sliding_window", 512)
		pattern  = text.IntOr("sliding_window_pattern", 5)
		types    = text.Strings("layer_types")
		sharing  = text.IntOr("num_kv_shared_layers", 20)
		keyIsVal = text.BoolOr("attention_k_eq_v", false)
		wide     = text.BoolOr("use_double_wide_mlp", true)
		inputs   = text.IntOr("hidden_size_per_layer_input", 256)
		softcap  = float32(text.FloatOr("final_logit_softcapping", 30))
		moe      = text.BoolOr("enable_moe_block", false)
	)
	l.Positive("hidden_size", hidden)
	l.Positive("num_hidden_layers", n)
	l.Positive("vocab_size", vocab)
	l.Positive("sliding_window_pattern", pattern)
	l.heads(heads, kvHeads, dim)
	l.heads(heads, fullKV, fullDim)
	l.perLayer("layer_types", len(types), n)
	if sharing < 0 || sharing >= n {
		l.Fail("%w: num_kv_shared_layers must be from 0 to below %d, is %d", errConfig, n, sharing)
	}
	embed := float32(math.Sqrt(float64(hidden)))
	root := float32(1 / math.Sqrt(float64(hidden)))
	m := &Model{Hidden: hidden, Vocab: vocab, Layers: n, Context: text.IntOr("max_position_embeddings", 0), EmbedScale: embed, HeadSoftCap: softcap}

	l.Drop(func(n string) bool {
		return strings.Contains(n, "rotary_emb") || strings.HasSuffix(n, "input_max") || strings.HasSuffix(n, "input_min") ||
			strings.HasSuffix(n, "output_max") || strings.HasSuffix(n, "output_min")
	})
	l.Tables(m, text.BoolOr("tie_word_embeddings", true))
	norm := l.Vector("model.norm.weight", hidden)
	ropes := map[string]Rope{
		"sliding_attention": l.gemma4Rope(text, "sliding_attention", dim, 1e4, "default"),
		"full_attention":    l.gemma4Rope(text, "full_attention", fullDim, 1e6, "proportional"),
	}
	var inputTable *compute.Weight
	var inputProj Linear
	var inputNorm compute.View
	if inputs > 0 {
		inputTable = l.Table("model.embed_tokens_per_layer", text.IntOr("vocab_size_per_layer_input", vocab), n*inputs)
		l.idle += inputTable.Bytes()
		inputProj = l.Linear("model.per_layer_model_projection", n*inputs, hidden, false)
		inputNorm = l.Vector("model.per_layer_projection_norm.weight", inputs)
	}
	var layers []gemma4Layer
	last := map[string]int{} // layer of each kind whose keys and values are shared
	for i := 0; i < n && l.err == nil; i++ {
		kind := "sliding_attention"
		if len(types) > 0 {
			kind = types[i]
		} else if (i+1)%pattern == 0 {
			kind = "full_attention"
		}
		full := kind == "full_attention"
		w := gemma4Layer{dim: dim, kvHeads: kvHeads, rope: ropes[kind], cache: i, shares: i >= n-sharing, valueIsKey: keyIsVal && full}
		if full {
			w.dim = fullDim
		}
		if w.valueIsKey {
			w.kvHeads = fullKV
		}
		p := fmt.Sprintf("model.layers.%d.", i)
		a := p + "self_attn."
		w.attnNorm = l.Vector(p+"input_layernorm.weight", hidden)
		w.attn.Q, w.attn.O = l.Linear(a+"q_proj", heads*w.dim, hidden, false), l.Linear(a+"o_proj", hidden, heads*w.dim, false)
		w.qNorm = l.Vector(a+"q_norm.weight", w.dim)
		if w.shares {
			owner, ok := last[kind]
			if !ok {
				l.Fail("%w: layer %d shares keys and values, but no %s layer before it has any", errConfig, i, kind)
			}
			w.cache = owner
			l.Drop(func(n string) bool {
				return strings.HasPrefix(n, a+"k_proj.") || strings.HasPrefix(n, a+"v_proj.") || strings.HasPrefix(n, a+"k_norm.")
			})
		} else {
			last[kind] = i
			w.attn.K = l.Linear(a+"k_proj", w.kvHeads*w.dim, hidden, false)
			w.kNorm = l.Vector(a+"k_norm.weight", w.dim)
			if !w.valueIsKey {
				w.attn.V = l.Linear(a+"v_proj", w.kvHeads*w.dim, hidden, false)
			}
			m.Caches = append(m.Caches, l.attentionCache(kind, w.kvHeads, w.dim, window))
		}
		w.postAttnNorm = l.Vector(p+"post_attention_layernorm.weight", hidden)
		width := inter
		if w.shares && wide {
			width = 2 * inter
		}
		w.mlpNorm = l.Vector(p+"pre_feedforward_layernorm.weight", hidden)
		w.mlp = l.MLP(p+"mlp.", hidden, width, false)
		w.postMLPNorm = l.Vector(p+"post_feedforward_layernorm.weight", hidden)
		if moe {
			experts := text.Int("num_experts")
			w.experts = &Experts{Act: compute.ActGeGLU, Router: l.Linear(p+"router.proj", experts, hidden, false)}
			w.experts.Rule = compute.MoERoute{
				Kind: compute.SoftmaxTop, TopK: text.Int("top_k_experts"), Scale: 1,
				PerExpert: l.Vector(p+"router.per_expert_scale", experts),
			}
			l.experts(experts, w.experts.Rule.TopK)
			l.GatedExperts(w.experts, p+"experts.switch_glu.", p+"experts.", experts, hidden, text.Int("moe_intermediate_size"))
			w.routerNorm = l.Vector(p+"router.scale", hidden)
			w.mlpBranchNorm = l.Vector(p+"post_feedforward_layernorm_1.weight", hidden)
			w.expertNorm = l.Vector(p+"pre_feedforward_layernorm_2.weight", hidden)
			w.expertPostNorm = l.Vector(p+"post_feedforward_layernorm_2.weight", hidden)
		}
		if inputs > 0 {
			w.inputGate = l.Linear(p+"per_layer_input_gate", inputs, hidden, false)
			w.inputProj = l.Linear(p+"per_layer_projection", hidden, inputs, false)
			w.inputNorm = l.Vector(p+"post_per_layer_input_norm.weight", hidden)
		}
		if s := l.numbers(p+"layer_scalar", 1); l.err == nil {
			w.scalar = s[0]
		}
		layers = append(layers, w)
	}

	m.forward = func(f *Forward) {
		x := f.Embed(m.Embedding, embed)
		var input compute.View // of each layer, from the token and from its embedding
		if inputs > 0 {
			input = f.Embed(inputTable, float32(math.Sqrt(float64(inputs))))
			fromX := f.New(x.Rows, n*inputs)
			f.P.Add(
				compute.Linear{X: x, W: inputProj.W, Adapter: f.adapter.linear(inputProj.W), Scale: root, Out: fromX, Prefill: f.Step.Rows.Prefill},
				compute.Norm{X: fromX, Out: fromX, W: inputNorm, Eps: eps, Scale: 1, Group: inputs},
				compute.Binary{Kind: compute.BinAdd, A: input, B: fromX, Out: input, Scale: float32(1 / math.Sqrt2)})
		}
		for i, w := range layers {
			mark := f.S.Mark()

			h := f.Norm(x, w.attnNorm, eps)
			q := f.Linear(h, w.attn.Q)
			f.HeadNorm(q, w.qNorm, eps, w.dim)
			f.Rotate(q, w.rope, w.dim)
			if !w.shares {
				k := f.Linear(h, w.attn.K)
				v := f.New(k.Rows, k.Cols)
				raw := k
				if !w.valueIsKey {
					raw = f.Linear(h, w.attn.V)
				}
				f.P.Add(compute.Norm{X: raw, Out: v, Eps: eps, Scale: 1, Group: w.dim})
				f.HeadNorm(k, w.kNorm, eps, w.dim)
				f.Rotate(k, w.rope, w.dim)
				f.Remember(k, v, w.cache)
			}
			a := f.Recall(q, w.cache, compute.Attention{Heads: heads, Scale: 1})
			f.AddNorm(x, f.Linear(a, w.attn.O), w.postAttnNorm, eps)

			y := f.MLP(f.Norm(x, w.mlpNorm, eps), w.mlp, compute.ActGeGLU)
			if w.experts != nil {
				r := f.New(x.Rows, x.Cols)
				f.P.Add(compute.Norm{X: x, Out: r, W: w.routerNorm, Eps: eps, Scale: root})
				ids, weights := f.Route(r, w.experts.Router, w.experts.Rule)
				e := f.New(x.Rows, x.Cols)
				f.P.Add(compute.MoECombine{X: f.Experts(f.Norm(x, w.expertNorm, eps), ids, *w.experts), Weights: weights, Scale: 1, Out: e})
				y = f.Norm(y, w.mlpBranchNorm, eps)
				f.AddNorm(y, e, w.expertPostNorm, eps)
			}
			f.AddNorm(x, y, w.postMLPNorm, eps)

			if inputs > 0 {
				g := f.Activated(x, w.inputGate, compute.ActGELU)
				f.P.Add(compute.Binary{Kind: compute.BinMul, A: g, B: input.Columns(i*inputs, (i+1)*inputs), Out: g, Scale: 1})
				f.AddNorm(x, f.Linear(g, w.inputProj), w.inputNorm, eps)
			}
			f.P.Add(compute.Unary{Kind: compute.UnScale, X: x, Out: x, V: w.scalar})

			f.Tap(i, x)
			f.S.Release(mark)
		}
		f.HeadCapped(x, norm, eps, m.Head, 1, softcap)
	}
	return m
}

// gemma4Rope is the rope of one kind of layer, from rope_parameters[kind].
func (l *Loader) gemma4Rope(text checkpoint.Config, kind string, dim int, theta float64, scaling string) Rope {
	params := text.Sub("rope_parameters", kind)
	if params.Empty() {
		params, _ = checkpoint.ParseConfig("rope_parameters", fmt.Appendf(nil, `{"rope_type": %q, "partial_rotary_factor": 0.25}`, scaling))
	}
	return l.RopeScaled(text, params, dim, params.FloatOr("rope_theta", theta), text.BoolOr("rope_traditional", false))
}
