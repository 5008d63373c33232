package engine

import (
	"fmt"
	"os"
	"path/filepath"

	"sparkbar/engine/machine"
	"sparkbar/engine/models"
)

// Finding is something about this machine or its set-up that the owner should
// know, with what to do about it.
type Finding struct {
	Code    string `json:"code"`
	Level   string `json:"level"` // attention: works, but; problem: something does not work
	Message string `json:"message"`
	Fix     string `json:"fix"`
}

// The levels of a Finding.
const (
	LevelAttention = "attention"
	LevelProblem   = "problem"
)

// facts are what the examination looks at.
type facts struct {
	chip     machine.Chip
	memory   machine.Memory
	thermal  machine.Thermal
	places   models.Places
	list     []models.Model
	model    *ModelInfo
	lastErr  string
	diskFree int64 // of the hub cache; 0 = unknown
	writable bool  // the hub cache
	exists   func(folder string) bool
}

const (
	gib        = 1 << 30
	smallRAM   = 15 * gib
	lowDisk    = 8 * gib // less than the smallest published pair takes
	muchSwap   = 4       // a quarter of the memory
	wiredShare = 4       // three quarters of the memory
)

// Doctor examines the machine and the set-up.
func (e *Engine) Doctor() []Finding {
	f := facts{chip: e.opts.Chip, places: e.Places(), list: e.Models(), exists: func(dir string) bool {
		info, err := os.Stat(dir)
		return err == nil && info.IsDir()
	}}
	if e.opts.Memory != nil {
		f.memory = e.opts.Memory()
	}
	if e.opts.Thermal != nil {
		f.thermal = e.opts.Thermal()
	}
	if hub := f.places.Hub; hub != "" {
		f.diskFree, f.writable = machine.DiskFree(hub), machine.Writable(hub)
	}
	st := e.Status()
	f.model, f.lastErr = st.Model, st.LastError
	list := f.examine()
	if e.opts.Findings != nil {
		list = append(list, e.opts.Findings()...)
	}
	return list
}

// examine asks nothing of the machine.
func (f *facts) examine() []Finding {
	list := []Finding{}
	add := func(level, code, fix, format string, args ...any) {
		list = append(list, Finding{Code: code, Level: level, Message: fmt.Sprintf(format, args...), Fix: fix})
	}
	if f.chip.OS != "" && !f.chip.SIMD {
		add(LevelProblem, "no_simd", "use a machine with AVX2 and FMA, or expect a few tokens per second", "this processor (%s) lacks the vector instructions that the engine is written for", f.chip.Name)
	}
	m := f.memory
	if m.Total > 0 && m.Total < smallRAM {
		add(LevelAttention, "small_memory", "choose models of 4B parameters or fewer, in 4 or 8 bits", "this machine has %.1f GB of memory, which models of 12B and more exceed", float64(m.Total)/gib)
	}
	switch m.Pressure {
	case machine.Warn, machine.Critical:
		level := LevelAttention
		if m.Pressure == machine.Critical {
			level = LevelProblem
		}
		add(level, "memory_pressure", "close other programs, or load a smaller model or a shorter context (--context-window)", "memory is short (%s): %.1f GB of %.1f GB are available", m.Pressure, float64(m.Available)/gib, float64(m.Total)/gib)
	}
	if m.Total > 0 && m.SwapUsed > m.Total/muchSwap {
		add(LevelAttention, "swap", "close other programs; a model that is swapped out answers very slowly", "%.1f GB of swap space are in use", float64(m.SwapUsed)/gib)
	}
	if t := f.thermal; t.Heat == machine.Serious || t.Heat == machine.Scorched {
		hot := ""
		if t.Celsius > 0 {
			hot = fmt.Sprintf(", %.0f °C", t.Celsius)
		}
		add(LevelAttention, "thermal", "let air to it, take heavy programs away, or on a laptop plug it in", "the machine is so hot (%s%s) that it runs slower than it could", t.Heat, hot)
	}
	if f.chip.AppleSilicon() && m.Total >= 16*gib && m.WiredLimitMB == 0 {
		add(LevelAttention, "wired_limit", fmt.Sprintf("sudo sysctl iogpu.wired_limit_mb=%d", (m.Total>>20)/wiredShare*3), "the GPU may use the system's default share of memory only")
	}
	if f.places.Hub != "" {
		if !f.writable {
			add(LevelProblem, "cache_read_only", "make it writable for you, or set HF_HUB_CACHE to a folder that is", "models cannot be downloaded: the folder %s cannot be written", f.places.Hub)
		}
		if f.diskFree > 0 && f.diskFree < lowDisk {
			add(LevelAttention, "disk", "remove models with `sparkbar rm`, or set HF_HUB_CACHE to a folder on a larger disk", "the disk of %s has %.1f GB left, too little for most models", f.places.Hub, float64(f.diskFree)/gib)
		}
	}
	for i, dir := range f.places.Folders {
		if i < len(f.places.Folders)-1 && !f.exists(dir) { // the last one is a default of another program
			add(LevelAttention, "missing_folder", "mount or make it, or take it out of the setting model_dirs", "the model folder %s does not exist", dir)
		}
	}
	usable := false
	for _, x := range f.list {
		switch {
		case x.Loadable():
			usable = usable || !x.Drafter && x.Source != models.SourceBuiltin
		case !x.Complete:
			fix := "copy its files again"
			if x.Source == models.SourceHub {
				fix = "sparkbar pull " + x.ID
			}
			add(LevelAttention, "incomplete_model", fix, "%s cannot be loaded: %s", x.ID, x.Reason)
		}
	}
	if !usable {
		add(LevelAttention, "no_models", "sparkbar pull mlx-community/Qwen3-4B-8bit, or another of `sparkbar ls --all`", "there is no model on this machine yet beside the built-in demo")
	}
	if x := f.model; x != nil && x.Drafter == "" && x.Mode == "lookup" {
		if p, ok := models.Find(x.Target); ok {
			drafter := p.DSpark
			if drafter == "" {
				drafter = p.DFlash
			}
			add(LevelAttention, "missing_drafter", "sparkbar pull "+drafter, "%s runs without its drafter %s, so it answers slower than it could", x.ID, filepath.Base(drafter))
		}
	}
	if f.lastErr != "" {
		add(LevelProblem, "load_failed", "follow what the message says, then load again with POST /admin/load", "the last load failed: %s", f.lastErr)
	}
	return list
}
