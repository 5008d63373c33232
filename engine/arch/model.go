package arch

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// Model is a loaded target: its weights on a backend and its forward pass.
type Model struct {
	Type    string // model_type of the configuration
	Hidden  int
	Vocab   int
	Layers  int
	Context int // positions the model was made for; 0 = not stated
	// Caches says what each caching layer keeps, in the order of Step.Layers.
	Caches []compute.CacheSpec
	// Tappable lists the layers whose output a drafter may read; tap i is the
	// residual stream right after layer i.
	Tappable int

	// Embedding and Head are what drafters borrow: the raw table with its
	// factor, and the raw output projection (the table when they are tied).
	Embedding  *compute.Weight
	EmbedScale float32
	Head       *compute.Weight
	// HeadSoftCap is the soft cap that a drafter must put on logits of the
	// borrowed head; 0 = none.
	HeadSoftCap float32

	// WeightBytes is the storage of all weights; ActiveBytes what one token
	// reads of them.
	WeightBytes int64
	ActiveBytes int64

	forward func(*Forward)
	load    *Loader
	adapter *Adapter

	turns    map[int]*compute.Weight // by size, see Forward.turnValues
	turnings map[int]turning         // by caching layer, see TurnHeads
	turned   []*compute.Weight       // all of both
	queries  map[int]int             // heads of queries, by caching layer, that a forward pass had
}

// family builds a model from an opened checkpoint: its own configuration, its
// weights through l, and the forward pass.
type family func(cfg checkpoint.Config, l *Loader) *Model

// families maps a model_type, or a name that is an alias of one, to its file.
var families = map[string]family{
	"llama": llama, "mistral": llama, "iquestcoder": llama, "xverse": llama,
	"qwen2":    qwen2,
	"qwen3":    qwen3,
	"mistral3": mistral3, "llava": mistral3,
	"gemma2": gemma2,
	"gemma3": gemma3, "gemma3_text": gemma3,
	"phi3":         phi3,
	"smollm3":      smollm3,
	"olmo2":        olmo2,
	"granite":      granite,
	"glm4":         glm4,
	"nanbeige":     nanbeige,
	"muse_glimmer": museGlimmer,
	"qwen3_moe":    qwen3MoE,
	"qwen2_moe":    qwen2MoE,
	"mixtral":      mixtral,
	"gpt_oss":      gptOSS,
	"gemma4":       gemma4, "gemma4_unified": gemma4, "gemma4_text": gemma4,
	"lfm2": lfm2, "lfm2_moe": lfm2,
	"qwen3_5": qwen35, "qwen3_5_moe": qwen35, "qwen3_5_text": qwen35, "qwen3_5_moe_text": qwen35,
	"qwen3_next":  qwen3Next,
	"nemotron_h":  nemotronH,
	"deepseek_v3": deepseekV3, "kimi_k2": deepseekV3, "joyai_llm_flash": deepseekV3,
}

// Types returns the known values of model_type, sorted.
func Types() []string {
	var t []string
	for k := range families {
		t = append(t, k)
	}
	sort.Strings(t)
	return t
}

// Load builds the model of an opened checkpoint on a backend. The checkpoint
// must stay open until Close. Errors name the key or tensor at fault.
func Load(c *checkpoint.Checkpoint, b compute.Backend) (*Model, error) {
	cfg := c.Config()
	kind := cfg.StringOr("model_type", "")
	build := families[kind]
	if build == nil {
		return nil, unknownType(c.Path(), kind)
	}
	l := NewLoader(c, b)
	m := build(cfg, l)
	if err := cfg.Err(); err != nil {
		l.err = err // what went wrong later may follow from it
	}
	l.Finish()
	if l.err != nil {
		l.Close()
		return nil, fmt.Errorf("%s: %w", c.Path(), l.err)
	}
	m.Type, m.load, m.queries = kind, l, map[int]int{}
	m.WeightBytes = l.bytes
	m.ActiveBytes += l.bytes - l.idle
	if m.Head != m.Embedding {
		m.ActiveBytes -= m.Embedding.Bytes()
	}
	if m.Tappable == 0 {
		m.Tappable = m.Layers
	}
	return m, nil
}

func unknownType(path, kind string) error {
	known := Types()
	if kind == "" {
		return fmt.Errorf("%s: config.json has no model_type, so this is not a model Sparkbar can run (known types: %s)", path, strings.Join(known, ", "))
	}
	closest := slices.MinFunc(known, func(a, b string) int { return distance(kind, a) - distance(kind, b) })
	return fmt.Errorf("%s: model_type %q is not supported; the closest known type is %q (all: %s). Choose another model or add the family in engine/arch",
		path, kind, closest, strings.Join(known, ", "))
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diag, row[j+1] = row[j+1], min(diag+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Forward records one step into f; the results are f.Logits and f.Fused.
func (m *Model) Forward(f *Forward) {
	f.hidden, f.adapter, f.turns, f.turnings, f.queries = m.Hidden, m.adapter, m.turns, m.turnings, m.queries
	m.forward(f)
}

// Close gives the weights back to the backend; those of a model that WithAdapter
// returned belong to the one it came from and stay.
func (m *Model) Close() {
	if m.adapter == nil {
		for _, w := range m.turned {
			m.load.b.Unload(w)
		}
		m.load.Close()
	}
}
