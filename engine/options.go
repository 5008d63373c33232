package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/machine"
	"sparkbar/engine/models"
)

// Options configure an Engine. The zero value of a field means its default.
type Options struct {
	Version string
	// Backend makes the backend that a model is loaded on; each loaded model has
	// its own.
	Backend func() (compute.Backend, error)
	// Fallback makes the backend for models on which Backend says that it is unfit
	// for this machine (compute.ErrUnfit); nil = they are not loaded.
	Fallback func() (compute.Backend, error)
	// Builtins are models that are part of the program, by id.
	Builtins map[string]Builtin
	// ModelRoot limits which folders a LoadRequest of a client may name; see
	// Engine.LoadFrom.
	ModelRoot string

	// Catalogue lists the models on this machine; nil = only built-in ones and
	// paths are known. The engine watches it.
	Catalogue *models.Catalogue
	Places    models.Places // that it looks into, for reports
	// Downloader fetches what an explicit load names and this machine does not
	// have; nil = nothing is fetched.
	Downloader *models.Downloader
	// Live are the settings that may change while the engine runs.
	Live

	// Loaded is told of each model that a client has loaded by asking for it;
	// nil = nobody is.
	Loaded func(model string)

	// Memory reads the machine's memory; nil = no fit check, no guard.
	Memory func() machine.Memory
	// Thermal reads how hot the machine is; nil = that is not known.
	Thermal func() machine.Thermal
	// Bandwidth tells how fast memory is read; called once, at the first load.
	// nil = no ceilings are reported.
	Bandwidth func() machine.Bandwidth
	Chip      machine.Chip

	QueueLimit int // waiting generations; 64
	// MaxBatch is how many generations may run together; 8. Further ones wait, as
	// do those for whose prompt and answer the cache has no room yet.
	MaxBatch int
	// CacheTokens is how many tokens of context all conversations together may
	// hold; 0 = twice the context window, at most 256k, or more where the window
	// is short.
	CacheTokens int
	// Slots is how many finished conversations are kept for reuse; 2. Negative
	// = none.
	Slots int

	// Chunk is how many tokens of a prompt are read at once, Rungs how many lie
	// between the places of a prompt that are remembered where a past cannot be
	// cut; 0 = as decode.Options has it.
	Chunk, Rungs int
	// Disk keeps the beginnings of conversations for later processes; nil = memory
	// only. Who made it closes it after the engine.
	Disk *cache.Disk
	// Arithmetic names what makes two runs of one version round differently: the
	// backend's flags and kernels. What is kept on disk holds for one of them.
	Arithmetic string

	// Calibrations is the file that keeps what rounds cost on this machine. With it
	// the number of drafts per round follows from the costs where nobody has said
	// one; "" = it is the drafter's most, and costs are measured for each load that
	// asks for them.
	Calibrations string
	// Threads of the backend, 0 = all cores; costs hold for one number of them.
	Threads int

	// Findings are conditions that only the owner of the process can know, for
	// Engine.Doctor; nil = none.
	Findings func() []Finding

	Now func() time.Time
}

// Builtin is a model that is part of the program: the files of a target folder
// and, where it has them, of its DSpark and its DFlash drafter's folders.
type Builtin struct {
	Target  map[string][]byte
	Drafter map[string][]byte
	DFlash  map[string][]byte
}

// drafter returns the files of the drafter for a mode, nil if there is none.
func (b Builtin) drafter(mode string) (files map[string][]byte, kind string) {
	switch mode {
	case "", "auto", "dspark":
		return b.Drafter, "dspark"
	case "dflash":
		return b.DFlash, "dflash"
	}
	return nil, mode
}

func (o *Options) defaults() {
	o.Live.defaults()
	if o.QueueLimit <= 0 {
		o.QueueLimit = 64
	}
	if o.Slots == 0 {
		o.Slots = 2
	}
	if o.MaxBatch <= 0 {
		o.MaxBatch = 8
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// cacheTokens is how many tokens of context a model of that context window keeps
// by default: two whole windows, or one for each of the generations that may run
// together where that is little.
func (o *Options) cacheTokens(window int) int {
	return min(max(2*window, min(o.MaxBatch*window, 32<<10)), max(window, 256<<10))
}

// merge lays the given fields of r over base.
func merge(base, r LoadRequest) LoadRequest {
	out := base
	out.Model, out.Unused = r.Model, r.Unused
	// The start-up drafter and adapter belong to the start-up model only.
	out.Drafter = r.Drafter
	if r.Drafter == "" && (r.Model == base.Model || r.Model == "") {
		out.Drafter = base.Drafter
	}
	out.Adapter = r.Adapter
	if r.Adapter == "" && (r.Model == base.Model || r.Model == "") {
		out.Adapter = base.Adapter
	}
	if out.Model == "" {
		out.Model = base.Model
	}
	if r.Mode != "" {
		out.Mode = r.Mode
	}
	over(&out.MaxDraft, r.MaxDraft)
	over(&out.LookupDrafts, r.LookupDrafts)
	over(&out.ConfidenceThreshold, r.ConfidenceThreshold)
	over(&out.ContextWindow, r.ContextWindow)
	over(&out.KVBits, r.KVBits)
	over(&out.KVGroup, r.KVGroup)
	over(&out.LookupLongDraft, r.LookupLongDraft)
	if r.ChatTemplate != "" {
		out.ChatTemplate = r.ChatTemplate
	}
	if r.TemplateArgs != nil {
		out.TemplateArgs = r.TemplateArgs
	}
	over(&out.DrafterWindow, r.DrafterWindow)
	over(&out.DrafterBits, r.DrafterBits)
	over(&out.Warmup, r.Warmup)
	over(&out.EnableThinking, r.EnableThinking)
	over(&out.ReasoningEffort, r.ReasoningEffort)
	over(&out.MemoryGuard, r.MemoryGuard)
	over(&out.CPUSplit, r.CPUSplit)
	return out
}

func over[T any](dst **T, v *T) {
	if v != nil {
		*dst = v
	}
}

func value[T any](p *T, def T) T { return first(def, p) }

// first is the first value that is given, else def.
func first[T any](def T, values ...*T) T {
	for _, v := range values {
		if v != nil {
			return *v
		}
	}
	return def
}

// validate checks a load request before anything is touched.
func (o *Options) validate(r LoadRequest, trusted bool) error {
	bad := func(field, format string, args ...any) error {
		return &Error{Kind: ErrInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
	}
	if r.Model == "" {
		return bad("model", "load needs a 'model' (repo or path)")
	}
	if r.Mode != "" && !slices.Contains(Modes, r.Mode) {
		return bad("mode", "mode must be one of %s, got %q", strings.Join(Modes, ", "), r.Mode)
	}
	if n := value(r.MaxDraft, 0); n < 0 || n > 64 {
		return bad("max_draft", "'max_draft' must be a number of tokens from 1 to 64, or 0 for automatic, got %d", n)
	}
	if c := value(r.ConfidenceThreshold, 0); !(c >= 0 && c <= 1) {
		return bad("confidence_threshold", "'confidence_threshold' must be a number in [0, 1], got %v", c)
	}
	if w := value(r.ContextWindow, 0); w != 0 && (w < 16 || w > 10_000_000) {
		return bad("context_window", "'context_window' must be from 16 to 10000000 tokens, or 0 for the model's own maximum, got %d", w)
	}
	if b := value(r.KVBits, 0); b != 0 && b != 4 && b != 8 {
		return bad("kv_bits", "'kv_bits' must be 0 (full precision), 4 or 8, got %d", b)
	}
	if g := value(r.KVGroup, 64); g != 32 && g != 64 && g != 128 {
		return bad("kv_group_size", "'kv_group_size' must be 32, 64 or 128, got %d", g)
	}
	if n := value(r.LookupLongDraft, 32); n < 1 || n > 64 {
		return bad("lookup_long_draft", "'lookup_long_draft' must be from 1 to 64 tokens, got %d", n)
	}
	if w := value(r.DrafterWindow, 0); w < 0 {
		return bad("drafter_window", "'drafter_window' must not be negative, got %d", w)
	}
	if !trusted {
		for _, f := range []struct{ field, path string }{{"model", r.Model}, {"drafter", r.Drafter}} {
			if err := o.inside(f.field, f.path); err != nil {
				return err
			}
		}
	}
	return nil
}

// inside refuses paths outside the model root that a client names.
func (o *Options) inside(field, path string) error {
	if _, ok := o.Builtins[path]; ok || path == "" {
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return nil // not a path: resolved, or refused, by name
	}
	if o.Catalogue != nil {
		for _, m := range o.Catalogue.List() {
			if m.Path != "" && filepath.Clean(path) == m.Path {
				return nil
			}
		}
	}
	full, err := realPath(path)
	for _, root := range append([]string{o.ModelRoot}, o.Places.Folders...) {
		if root == "" || err != nil {
			continue
		}
		root, rerr := realPath(root)
		if rerr != nil {
			continue
		}
		if rel, rerr := filepath.Rel(root, full); rerr == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
			return nil
		}
	}
	return &Error{Kind: ErrInvalid, Field: field, Message: fmt.Sprintf("%s %q lies outside the folder that models may be loaded from; start the server with --model-root to allow it", field, path)}
}

// realPath is an absolute path without symbolic links.
func realPath(path string) (string, error) {
	full, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return filepath.Abs(full)
}
