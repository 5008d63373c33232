package models

import (
	"strings"
)

// Pair is what is known about the drafters of a target.
type Pair struct {
	// ID is a part of the lower-case model name. The longest one that matches
	// wins.
	ID string
	// DSpark and DFlash name the drafters, "" = there is none.
	DSpark, DFlash string
	// Mode is what auto means, where it is not the first drafter there is.
	Mode string
	// NoLookup says that copies from the context do not pay beside the drafter.
	NoLookup bool
}

// pairs are the published pairs, as measured and listed by mlx-dspark 0.20.
var pairs = []Pair{
	{ID: "gemma-4-12b", DSpark: "deepseek-ai/dspark_gemma4_12b_block7", DFlash: "z-lab/gemma4-12B-it-DFlash"},
	{ID: "qwen3-4b", DSpark: "deepseek-ai/dspark_qwen3_4b_block7", DFlash: "z-lab/Qwen3-4B-DFlash-b16"},
	{ID: "qwen3-8b", DSpark: "deepseek-ai/dspark_qwen3_8b_block7", DFlash: "z-lab/Qwen3-8B-DFlash-b16"},
	{ID: "qwen3-14b", DSpark: "deepseek-ai/dspark_qwen3_14b_block7"},
	{ID: "qwen3.6-27b", DSpark: "satgeze/Qwen3.6-27B-DSpark"},
	{ID: "qwen3.6-35b-a3b", DSpark: "Koopah/Qwen3.6-35B-A3B-NVFP4-DSPARK", NoLookup: true},
	{ID: "qwen3.8-27b", DSpark: "RedHatAI/Qwen3.8-27B-speculator.dspark", DFlash: "incoai/Qwen3.8-27B-DFlash2", Mode: "dflash", NoLookup: true},
	{ID: "minicpm5-2b", DSpark: "openbmb/MiniCPM5-2B-DSpark"},
	{ID: "lfm2.5-1.2b", DSpark: "LiquidAI/LFM2.5-1.2B-Instruct-DSpark"},
	{ID: "lfm2.5-2.6b", DSpark: "LiquidAI/LFM2.5-2.6B-DSpark"},
	{ID: "lfm2.5-8b-a1b", DSpark: "LiquidAI/LFM2.5-8B-A1B-DSpark", NoLookup: true},
	{ID: "nanbeige4.2-3b", DSpark: "Nanbeige/Nanbeige4.2-3B-DSpark"},
	{ID: "ornith-1.0-9b", DSpark: "stanleyphoong/Ornith-1.0-9B-DSpark"},
	{ID: "muse-glimmer-30b", DSpark: "DaoCloud/Muse-Glimmer-30B-DSpark", NoLookup: true},
	{ID: "nemotron-3.5-lightning-30b-a3b", DSpark: "mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-DSpark-bf16", NoLookup: true},
	{ID: "ternary-bonsai-27b", DSpark: "Rahim/Ternary-Bonsai-27B-dspark"},
}

// Find returns the pair of a model, given by repository name or path.
func Find(model string) (Pair, bool) {
	model = strings.TrimRight(model, `/\`)
	name := strings.ToLower(model[strings.LastIndexAny(model, `/\`)+1:])
	bare := strings.ReplaceAll(name, "-", "")
	var best Pair
	for _, p := range pairs {
		if len(p.ID) > len(best.ID) && (strings.Contains(name, p.ID) || strings.Contains(bare, strings.ReplaceAll(p.ID, "-", ""))) {
			best = p
		}
	}
	return best, best.ID != ""
}

// LookupDrafts reports whether copies from the context shall stand in for the
// model's drafter by default.
func LookupDrafts(model string) bool {
	p, _ := Find(expand(model))
	return !p.NoLookup
}

// DrafterWindow is how many rows of context a DSpark drafter attends to by
// default: what heads are trained for.
const DrafterWindow = 4096

// Window is the drafter's window for an explicit setting, nil for none; 0 means
// the whole context.
func Window(explicit *int) int {
	if explicit == nil {
		return DrafterWindow
	}
	return max(*explicit, 0)
}
