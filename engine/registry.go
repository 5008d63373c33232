package engine

import (
	"sparkbar/engine/machine"
	"sparkbar/engine/models"
)

// Row is a published pair of target and drafter that is worth downloading.
type Row struct {
	ID      string // short name
	Target  string // repository
	RAM     string // what it takes at chat length, such as "~8 GB"
	RAMGB   float64
	Speedup string // over plain decoding, as published

	// What models.Find and models.Resolve know about the target.
	Mode           string
	DSpark, DFlash string // drafters, "" = none
	Lookup         bool
}

// Registry lists the published pairs, as mlx-dspark 0.20 does.
func Registry() []Row {
	rows := []Row{
		{ID: "qwen3-4b", Target: "mlx-community/Qwen3-4B-8bit", RAM: "~8 GB", RAMGB: 8, Speedup: "~2.0×"},
		{ID: "qwen3-8b", Target: "mlx-community/Qwen3-8B-8bit", RAM: "~11 GB", RAMGB: 11, Speedup: "~2.2×"},
		{ID: "qwen3-14b", Target: "mlx-community/Qwen3-14B-8bit", RAM: "~19 GB", RAMGB: 19, Speedup: "~2.0×"},
		{ID: "gemma-4-12b", Target: "mlx-community/gemma-4-12B-it-8bit", RAM: "~15 GB", RAMGB: 15, Speedup: "~3.2×"},
		{ID: "ternary-bonsai-27b", Target: "prism-ml/Ternary-Bonsai-27B-mlx-2bit", RAM: "~12 GB", RAMGB: 12, Speedup: "~1.15× code"},
		{ID: "qwen3.6-27b", Target: "mlx-community/Qwen3.6-27B-8bit", RAM: "~32 GB", RAMGB: 32, Speedup: "~2.3×"},
		{ID: "ornith-1.0-9b", Target: "mlx-community/Ornith-1.0-9B-8bit", RAM: "~13 GB", RAMGB: 13, Speedup: "~2.4×"},
		{ID: "qwen3.6-35b-a3b", Target: "mlx-community/Qwen3.6-35B-A3B-4bit", RAM: "~23 GB", RAMGB: 23, Speedup: "~1.3×"},
		{ID: "qwen3.8-27b", Target: "mlx-community/Qwen3.8-27B-4bit", RAM: "~18 GB", RAMGB: 18, Speedup: "~2.7×"},
		{ID: "qwen3.8-27b-8bit", Target: "mlx-community/Qwen3.8-27B-8bit", RAM: "~29 GB", RAMGB: 29, Speedup: "~3.7×"},
		{ID: "nemotron-3.5-lightning-30b-a3b", Target: "mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-4bit", RAM: "~20 GB", RAMGB: 20, Speedup: "~1.25× code"},
		{ID: "muse-glimmer-30b", Target: "mlx-community/Muse-Glimmer-30B-4bit", RAM: "~26 GB (4-bit) / ~40 GB (8-bit)", RAMGB: 26, Speedup: "~1.7× (8-bit: ~2.5×)"},
		{ID: "lfm2.5-2.6b", Target: "LiquidAI/LFM2.5-2.6B-MLX-bf16", RAM: "~7 GB", RAMGB: 7, Speedup: "~2.8×"},
		{ID: "lfm2.5-1.2b", Target: "LiquidAI/LFM2.5-1.2B-Instruct-MLX-bf16", RAM: "~4 GB", RAMGB: 4, Speedup: "~3.4× (3.8× code)"},
		{ID: "lfm2.5-8b-a1b", Target: "LiquidAI/LFM2.5-8B-A1B-MLX-bf16", RAM: "~19 GB", RAMGB: 19, Speedup: "~1.2× (MoE, bf16)"},
		{ID: "nanbeige4.2-3b", Target: "MercuriusDream/Nanbeige4.2-3B-mlx-bf16", RAM: "~10 GB", RAMGB: 10, Speedup: "~2.9× (4.3× math)"},
		{ID: "minicpm5-2b", Target: "mlx-community/MiniCPM5-2B-bf16", RAM: "~6 GB", RAMGB: 6, Speedup: "~3.2× (4.2× math)"},
	}
	for i := range rows {
		r := &rows[i]
		p, _ := models.Find(r.Target)
		r.DSpark, r.DFlash, r.Lookup = p.DSpark, p.DFlash, models.LookupDrafts(r.Target)
		if c, err := models.Resolve(r.Target, "auto", ""); err == nil {
			r.Mode = c.Mode
		}
	}
	return rows
}

// RowOf is the published pair that a local model belongs to; nil = none. A
// drafter belongs to the first target that it is for.
func RowOf(m models.Model) *Row {
	p, ok := models.Find(m.ID)
	var best *Row
	for _, r := range Registry() {
		switch {
		case m.Drafter && (m.ID == r.DSpark || m.ID == r.DFlash), m.ID == r.Target:
			return &r
		case !m.Drafter && ok && best == nil && r.ID == p.ID:
			best = &r
		}
	}
	return best
}

// Models lists the models on this machine, those that can be loaded first.
func (e *Engine) Models() []models.Model {
	if e.opts.Catalogue == nil {
		return nil
	}
	return e.opts.Catalogue.List()
}

// Fit says whether a model would fit into this machine's memory, with its own
// drafter if that is here, at a context (0 = its own maximum).
func (e *Engine) Fit(m models.Model, context int) models.Fit {
	n := models.Need{Weights: m.Bytes, Target: m.Geometry, Context: context, MaxContext: m.Context}
	if c, err := models.Resolve(m.ID, "auto", ""); err == nil && c.Drafter != "" {
		if d, ok := e.opts.find(c.Drafter); ok && d.Loadable() {
			n.Drafter, n.DrafterContext = d.Bytes, d.Geometry
		}
	}
	return n.Fit(e.memoryNow())
}

// memoryNow is the memory for another model than the loaded one, which makes
// room for it.
func (e *Engine) memoryNow() models.Memory {
	if e.opts.Memory == nil {
		return models.Memory{}
	}
	now := e.opts.Memory()
	m := models.Memory{Total: now.Total, Free: now.Available, WorkingSet: workingSet(e.opts.Chip, now)}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.model != nil && m.Free > 0 {
		m.Free += uint64(e.model.info.WeightBytes + e.model.info.DrafterBytes)
	}
	return m
}

// workingSet is the part of the memory that the GPU of an Apple chip may use: the
// limit that its owner has set, else what macOS recommends by itself, which is
// two thirds, or three quarters of more than 32 GB. 0 = there is no such limit.
func workingSet(c machine.Chip, m machine.Memory) uint64 {
	switch {
	case !c.AppleSilicon():
		return 0
	case m.WiredLimitMB > 0:
		return uint64(m.WiredLimitMB) << 20
	case m.Total > 32*gib:
		return m.Total / 4 * 3
	}
	return m.Total / 3 * 2
}
