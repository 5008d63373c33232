package models

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"sparkbar/engine/checkpoint"
)

// Geometry is what a model keeps and moves beside its weights, in numbers (not
// bytes).
type Geometry struct {
	PerToken int64         // kept for every position: keys and values of full attention
	Windows  []CacheWindow // kept for the last positions only
	State    int64         // kept once for a sequence: recurrences and convolutions
	// Hidden, Inter and Vocab are the widths of rows of activations.
	Hidden, Inter, Vocab int
}

// CacheWindow is the part of the cache that forgets.
type CacheWindow struct {
	Tokens   int
	PerToken int64
}

// GeometryOf reads the geometry from a config.json, of a target or a drafter.
// It is a zero Geometry where the config does not say enough.
func GeometryOf(cfg checkpoint.Config) Geometry {
	text := cfg
	for _, key := range []string{"text_config", "transformer_layer_config"} {
		if part := cfg.Sub(key); !part.Empty() {
			text = part
		}
	}
	kind := cfg.StringOr("model_type", text.StringOr("model_type", ""))
	number := func(key string, def int) int64 {
		return int64(min(max(text.IntOr(key, def), 0), 1<<28))
	}
	count := func(def int) int64 { return min(number("num_hidden_layers", def), 1<<12) }
	var (
		layers  = count(0)
		heads   = number("num_attention_heads", 0)
		hidden  = number("hidden_size", 0)
		kvHeads = number("num_key_value_heads", int(heads))
		dim     = number("head_dim", int(hidden/max(heads, 1)))
		types   = text.Strings("layer_types")
	)
	g := Geometry{Hidden: int(hidden), Inter: int(number("intermediate_size", 0)), Vocab: int(max(number("vocab_size", 0), int64(min(max(cfg.IntOr("vocab_size", 0), 0), 1<<28))))}
	full := func() { g.PerToken += 2 * kvHeads * dim }
	window := func(def int) {
		w := int(number("sliding_window", def))
		i := slices.IndexFunc(g.Windows, func(x CacheWindow) bool { return x.Tokens == w })
		if i < 0 {
			i = len(g.Windows)
			g.Windows = append(g.Windows, CacheWindow{Tokens: w})
		}
		g.Windows[i].PerToken += 2 * kvHeads * dim
	}
	// pattern adds the layers, every so many of them with full attention where
	// the config does not list them.
	pattern := func(every int64, def int) {
		for i := range layers {
			local := (i+1)%max(every, 1) != 0
			if int(i) < len(types) {
				local = types[i] == "sliding_attention"
			}
			if local {
				window(def)
			} else {
				full()
			}
		}
	}
	family := func(names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return kind == n || strings.HasPrefix(kind, n+"_") })
	}
	switch {
	case isDrafterConfig(cfg):
		for range layers {
			full()
		}
	case family("gemma4"):
		layers, kvHeads, dim = count(35), number("num_key_value_heads", 1), number("head_dim", 256)
		own := layers - number("num_kv_shared_layers", 20)
		every := max(number("sliding_window_pattern", 5), 1)
		for i := range own {
			isFull := (i+1)%every == 0
			if int(i) < len(types) {
				isFull = types[i] == "full_attention"
			}
			if !isFull {
				window(512)
				continue
			}
			n := kvHeads
			if text.BoolOr("attention_k_eq_v", false) {
				n = number("num_global_key_value_heads", int(kvHeads))
			}
			g.PerToken += 2 * n * number("global_head_dim", 512)
		}
	case family("gemma3"):
		dim = number("head_dim", 256)
		layers = count(26)
		pattern(number("sliding_window_pattern", int(number("_sliding_window_pattern", 6))), 512)
	case family("gpt_oss"):
		dim, kvHeads = number("head_dim", 64), number("num_key_value_heads", 8)
		layers = count(36)
		pattern(2, 128)
	case family("muse_glimmer"):
		dim, kvHeads = number("head_dim", 128), number("num_key_value_heads", 2)
		layers = count(52)
		pattern(4, 2048)
	case family("deepseek_v3", "kimi_k2", "joyai_llm_flash"):
		// One compressed row stands for the keys and values of all heads.
		g.PerToken = layers * (number("kv_lora_rank", 512) + number("qk_rope_head_dim", 64))
	case family("qwen3_5", "qwen3_next"):
		kvHeads = number("num_key_value_heads", 8)
		kHeads, vHeads := number("linear_num_key_heads", 16), number("linear_num_value_heads", 64)
		kDim, vDim := number("linear_key_head_dim", 192), number("linear_value_head_dim", 128)
		kernel := max(number("linear_conv_kernel_dim", 4), 1)
		every := max(number("full_attention_interval", 4), 1)
		for i := range layers {
			if (i+1)%every == 0 {
				full()
			} else {
				g.State += vHeads*vDim*kDim + (kernel-1)*(2*kHeads*kDim+vHeads*vDim)
			}
		}
	case family("lfm2"):
		if heads > 0 {
			dim = hidden / heads
		}
		attends := text.Ints("full_attn_idxs")
		for i := range layers {
			yes := slices.Contains(attends, int(i))
			if int(i) < len(types) {
				yes = types[i] == "full_attention"
			}
			if yes {
				full()
			} else {
				g.State += (max(number("conv_L_cache", 3), 1) - 1) * hidden
			}
		}
	case family("nemotron_h"):
		width, state := number("mamba_num_heads", 1)*number("mamba_head_dim", 1), number("ssm_state_size", 1)
		channels := width + 2*number("n_groups", 1)*state
		blocks := types
		for _, key := range []string{"layers_block_type", "hybrid_override_pattern"} {
			if list := text.Strings(key); len(list) > 0 {
				blocks = list
			}
		}
		if len(blocks) == 1 {
			blocks = strings.Split(blocks[0], "")
		}
		for _, b := range blocks {
			switch b {
			case "*", "attention", "full_attention":
				full()
			case "M", "mamba", "linear_attention", "conv":
				g.State += width*state + (max(number("conv_kernel", 4), 1)-1)*channels
			}
		}
	default:
		loops := int64(1)
		if kind == "nanbeige" {
			def := 1
			if n := len(text.Floats("loop_loss_weights")); n > 0 {
				def = n + 1
			}
			loops = min(max(number("num_loops", def), 1), 64)
		}
		for i := range layers {
			if int(i) < len(types) && types[i] == "sliding_attention" && slidingFamilies[kind] {
				window(0)
			} else {
				for range loops {
					full()
				}
			}
		}
	}
	return g
}

// slidingFamilies read layer_types.
var slidingFamilies = map[string]bool{"llama": true, "mistral": true, "mistral3": true, "llava": true, "smollm3": true, "iquestcoder": true, "xverse": true}

// prefillRows is how many rows of a prompt are on the way at once.
const prefillRows = 512

// activations estimates the scratch memory of a forward pass, in bytes: a few
// rows of each width, and logits for the rows of a verify step.
func (g Geometry) activations() int64 {
	return 4 * (prefillRows*(6*int64(g.Hidden)+3*int64(g.Inter)) + 16*int64(g.Vocab))
}

// cache is the memory of one conversation of n tokens, in bytes.
func (g Geometry) cache(n int, width float64) int64 {
	numbers := float64(g.PerToken) * float64(n)
	for _, w := range g.Windows {
		numbers += float64(w.PerToken) * float64(min(n, w.Tokens))
	}
	return int64(math.Ceil(min(numbers*width+4*float64(g.State), 1<<62)))
}

// Need is what a model would take.
type Need struct {
	Weights        int64 // bytes, as on disk
	Drafter        int64 // bytes
	Target         Geometry
	DrafterContext Geometry
	// Context is the wanted window in tokens, MaxContext the model's own.
	Context, MaxContext int
	// ValueBytes is the size of one number of the KV cache: 4 (float32), 2, or
	// with 8 and 4 bits in groups of 64 1.125 and 0.625 (float32 scale and bias); 0 = 4.
	ValueBytes float64
}

// Memory is what there is, in bytes; 0 = not known.
type Memory struct {
	Total      uint64 // of the machine
	Free       uint64 // not in use now
	WorkingSet uint64 // that the GPU may use
}

// Verdict is the answer to whether a model fits.
type Verdict string

// The verdicts.
const (
	Fits    Verdict = "fits"
	Tight   Verdict = "tight"   // it may run, but pushes other programs out
	TooBig  Verdict = "too_big" // it would not run, or only from disk
	Unknown Verdict = "unknown" // the machine does not say how much memory it has
)

// Fit is whether a model fits, with the numbers.
type Fit struct {
	Verdict Verdict
	Needed  int64 // bytes at the wanted context
	Limit   int64 // bytes that a model may take on this machine
	// Context is the largest context that fits with room to spare, in tokens; 0
	// = not even the smallest.
	Context                           int
	Weights, Cache, Drafter, Activity int64 // the parts of Needed
	Reason                            string
}

const (
	comfortable = 0.9  // share of the limit beyond which it is tight
	ramShare    = 0.8  // of the memory, where no working set is known
	minContext  = 1024 // below, a model is of little use
)

// Fit computes whether a model fits. It asks nothing of the machine.
func (n Need) Fit(m Memory) Fit {
	width := n.ValueBytes
	if width <= 0 {
		width = 4
	}
	limit := float64(m.WorkingSet)
	if most := ramShare * float64(m.Total); m.Total > 0 && (limit == 0 || limit > float64(m.Total)) {
		limit = most
	}
	f := Fit{Verdict: Unknown, Weights: n.Weights, Limit: int64(limit), Activity: n.Target.activations()}
	need := func(context int) int64 {
		f.Cache = n.Target.cache(context, width)
		f.Drafter = n.Drafter
		if n.Drafter > 0 {
			f.Drafter += n.DrafterContext.cache(context, width)
		}
		return f.Weights + f.Cache + f.Drafter + f.Activity
	}
	top := n.MaxContext
	if top <= 0 {
		top = max(n.Context, 8192)
	}
	context := n.Context
	if context <= 0 {
		context = top
	}
	if limit == 0 {
		f.Needed = need(context)
		f.Reason = fmt.Sprintf("needs %s; how much memory there is could not be found out", byteText(f.Needed))
		return f
	}
	room := int64(comfortable * limit)
	if m.Free > 0 {
		room = min(room, int64(m.Free))
	}
	if need(top) <= room {
		f.Context = top
	} else {
		lo, hi := 0, top // the cache grows with the context
		for hi-lo > 1 {
			if mid := lo + (hi-lo)/2; need(mid) <= room {
				lo = mid
			} else {
				hi = mid
			}
		}
		f.Context = roundContext(lo)
	}
	f.Needed = need(context)
	parts := fmt.Sprintf("%s at %d tokens (weights %s, cache %s, drafter %s, activations %s)", byteText(f.Needed), context, byteText(f.Weights), byteText(f.Cache), byteText(f.Drafter), byteText(f.Activity))
	advice := "; no useful context fits, choose a smaller model or quantization"
	if f.Context > 0 {
		advice = fmt.Sprintf("; a context of %d tokens fits", f.Context)
	}
	switch {
	case f.Needed > int64(limit):
		f.Verdict, f.Reason = TooBig, fmt.Sprintf("needs %s of %s%s", parts, byteText(f.Limit), advice)
	case m.Free > 0 && f.Needed > int64(m.Free):
		f.Verdict, f.Reason = Tight, fmt.Sprintf("needs %s; %s are free now, so other programs would be pushed out%s", parts, byteText(int64(m.Free)), advice)
	case f.Needed > room:
		f.Verdict, f.Reason = Tight, fmt.Sprintf("needs %s of %s, which leaves little%s", parts, byteText(f.Limit), advice)
	default:
		f.Verdict, f.Reason = Fits, fmt.Sprintf("needs %s of %s", parts, byteText(f.Limit))
	}
	return f
}

// roundContext makes a window of it that people would choose.
func roundContext(n int) int {
	switch {
	case n >= 8192:
		return n / 8192 * 8192
	case n >= minContext:
		return n / minContext * minContext
	}
	return 0
}
