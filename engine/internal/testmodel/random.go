package testmodel

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// The sizes of random models: a vocabulary of 16 tokens, two layers.
const (
	Vocab  = 16
	hidden = 16
	layers = 2
	heads  = 2
	dim    = 8
	inter  = 16
	block  = 5
)

// random draws tensors.
type random struct {
	r *rand.Rand
	m map[string]Tensor
}

func (w random) normal(name string, scale float64, shape ...int) {
	n := 1
	for _, s := range shape {
		n *= s
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(w.r.NormFloat64() * scale)
	}
	w.m[name] = F32(shape, v...)
}

func (w random) ones(name string, n int) {
	v := make([]float32, n)
	for i := range v {
		v[i] = 1
	}
	w.m[name] = F32([]int{n}, v...)
}

// transformer draws the layers that a Qwen3 model and the drafter heads share.
func (w random) transformer(prefix string) {
	for i := range layers {
		p := fmt.Sprintf("%slayers.%d.", prefix, i)
		w.ones(p+"input_layernorm.weight", hidden)
		w.ones(p+"post_attention_layernorm.weight", hidden)
		w.ones(p+"self_attn.q_norm.weight", dim)
		w.ones(p+"self_attn.k_norm.weight", dim)
		for _, n := range []string{"q", "k", "v"} {
			w.normal(p+"self_attn."+n+"_proj.weight", 0.4, heads*dim, hidden)
		}
		w.normal(p+"self_attn.o_proj.weight", 0.4, hidden, heads*dim)
		w.normal(p+"mlp.gate_proj.weight", 0.4, inter, hidden)
		w.normal(p+"mlp.up_proj.weight", 0.4, inter, hidden)
		w.normal(p+"mlp.down_proj.weight", 0.4, hidden, inter)
	}
	w.ones(prefix+"norm.weight", hidden)
}

func sizes(more map[string]any) map[string]any {
	c := map[string]any{"model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inter, "num_attention_heads": heads,
		"num_key_value_heads": heads, "head_dim": dim, "rms_norm_eps": 1e-6, "vocab_size": Vocab, "max_position_embeddings": 512, "rope_theta": 10000.0}
	for k, v := range more {
		c[k] = v
	}
	return c
}

func newRandom(seed uint64) random {
	return random{rand.New(rand.NewPCG(seed, 0)), map[string]Tensor{}}
}

// Target writes a Qwen3 model with random weights.
func Target(t testing.TB, seed uint64) string {
	w := newRandom(seed)
	w.normal("model.embed_tokens.weight", 1, Vocab, hidden)
	w.transformer("model.")
	w.normal("lm_head.weight", 0.4, Vocab, hidden)
	return Write(t, sizes(map[string]any{"architectures": []string{"Qwen3ForCausalLM"}, "tie_word_embeddings": false}), w.m)
}

// DSpark writes a DSpark head with random weights for any Target.
func DSpark(t testing.TB, seed uint64) string {
	w := newRandom(seed)
	w.normal("embed_tokens.weight", 1, Vocab, hidden)
	w.normal("lm_head.weight", 0.4, Vocab, hidden)
	w.normal("fc.weight", 0.4, hidden, hidden)
	w.ones("hidden_norm.weight", hidden)
	w.transformer("")
	w.normal("markov_head.markov_w1.weight", 0.7, Vocab, 4)
	w.normal("markov_head.markov_w2.weight", 0.7, Vocab, 4)
	w.normal("confidence_head.proj.weight", 0.4, 1, hidden+4)
	w.normal("confidence_head.proj.bias", 0.4, 1)
	return Write(t, sizes(map[string]any{"architectures": []string{"Qwen3DSparkModel"}, "block_size": block, "mask_token_id": 0, "target_layer_ids": []int{0}, "markov_rank": 4}), w.m)
}

// DFlash writes a DFlash head with random weights for any Target; the second
// version has a selector and convolutions.
func DFlash(t testing.TB, seed uint64, second bool) string {
	w := newRandom(seed)
	w.normal("fc.weight", 0.4, hidden, hidden)
	w.ones("hidden_norm.weight", hidden)
	w.transformer("")
	inner := map[string]any{"target_layer_ids": []int{0}, "mask_token_id": 0, "block_size": block}
	name := "DFlashDraftModel"
	if second {
		name = "DFlash2DraftModel"
		inner["selector_rank"], inner["selector_top_k"] = 4, 6
		inner["conv_kernel_size"], inner["conv_group_size"] = 2, 8
		for i := range layers {
			for _, n := range []string{"attention_conv", "mlp_conv"} {
				p := fmt.Sprintf("layers.%d.%s.", i, n)
				w.normal(p+"base_kernel", 0.7, 2, 2, hidden)
				w.normal(p+"kernel_projection.weight", 0.2, 2*2*hidden/8, hidden)
			}
		}
		w.normal("candidate_selector.predecessor_codebook", 0.7, Vocab, 4)
		w.normal("candidate_selector.successor_codebook", 0.7, Vocab, 4)
		w.normal("candidate_selector.hidden_projection.weight", 0.4, 4, hidden)
	}
	return Write(t, sizes(map[string]any{"architectures": []string{name}, "layer_types": []string{"sliding_attention", "full_attention"}, "sliding_window": 12, "dflash_config": inner}), w.m)
}
