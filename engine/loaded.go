package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sparkbar/engine/arch"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/chat"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/decode"
	"sparkbar/engine/draft"
	"sparkbar/engine/layout"
	"sparkbar/engine/models"
	"sparkbar/engine/telemetry"
	"sparkbar/engine/tokenizer"
)

// loaded is a model that answers: its files, its weights on a backend of its
// own, and the goroutine that owns that backend.
type loaded struct {
	info     ModelInfo
	tok      *tokenizer.Tokenizer
	format   *chat.Format
	end      map[int32]bool
	defaults generationDefaults
	kwargs   map[string]any // template defaults
	controls controls

	backend compute.Backend
	model   *arch.Model
	run     *decode.Runner
	files   []*checkpoint.Checkpoint

	log    *telemetry.Log
	totals telemetry.Totals

	jobs  chan func()
	users sync.WaitGroup // generations that hold the model
	cold  atomic.Bool    // no request has run yet, and there was no warm-up
}

// controls is how rounds are run for this model.
type controls struct {
	mode       decode.Mode
	cap        int
	threshold  float64
	lookup     bool
	maxContext int
	controller *calibrate.Controller // nil = cap is fixed; used on the model's goroutine only
}

// generationDefaults are the sampling values of generation_config.json.
type generationDefaults struct {
	temperature, topP *float64
	topK              *int
}

// source says where the files of a model or drafter are.
type source struct {
	id      string // as asked for
	path    string // folder or file; "" = built in
	builtin map[string][]byte
}

func (o *Options) locate(id, field string) (source, error) {
	if b, ok := o.Builtins[id]; ok {
		return source{id: id, builtin: b.Target}, nil
	}
	if _, err := os.Stat(id); err == nil {
		return source{id: id, path: id}, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return source{}, &Error{Kind: ErrInvalid, Field: field, Message: fmt.Sprintf("cannot read %s: %v", id, err), Cause: err}
	}
	return source{}, &Error{Kind: ErrModelNotFound, Field: field,
		Message: fmt.Sprintf("%s %q is neither a built-in model (%s) nor an existing folder or GGUF file; check the path", field, id, strings.Join(o.builtinNames(), ", "))}
}

func (o *Options) builtinNames() []string {
	var n []string
	for k := range o.Builtins {
		n = append(n, k)
	}
	return n
}

func (s source) open() (*checkpoint.Checkpoint, error) {
	if s.path == "" {
		return checkpoint.OpenBytes(s.id, s.builtin)
	}
	return checkpoint.Open(s.path)
}

func (s source) tokenizer(c *checkpoint.Checkpoint) (*tokenizer.Tokenizer, error) {
	if s.path == "" {
		return tokenizer.New(s.builtin["tokenizer.json"], s.builtin["tokenizer_config.json"])
	}
	if c.GGUF() != nil {
		return tokenizer.FromGGUF(ggufVocabulary(c.GGUF()))
	}
	return tokenizer.Load(openTokenizerDir(s.path))
}

// build loads a model from start to end. report is told about progress; a
// cancelled context ends it between two tensors. Nothing of a failed build
// remains.
func (e *Engine) build(ctx context.Context, r LoadRequest, report func(State, LoadProgress)) (_ *loaded, err error) {
	target, err := e.opts.locate(r.Model, "model")
	if err != nil {
		return nil, err
	}
	l := &loaded{jobs: make(chan func()), log: telemetry.NewLog(e.opts.Now()), kwargs: map[string]any{}}
	l.cold.Store(true)
	served := false
	defer func() {
		if err != nil && !served { // else its goroutine frees it
			l.free()
		}
	}()
	c, err := target.open()
	if err != nil {
		return nil, loadError(err)
	}
	l.files = append(l.files, c)
	if l.tok, err = target.tokenizer(c); err != nil {
		return nil, loadError(fmt.Errorf("%s: tokenizer: %w", r.Model, err))
	}
	if l.format, err = newFormat(l.tok); err != nil {
		return nil, loadError(fmt.Errorf("%s: %w", r.Model, err))
	}
	drafter, mode, err := e.opts.pair(r)
	if err != nil {
		return nil, err
	}
	progress := LoadProgress{Model: r.Model, BytesTotal: c.Bytes()}
	var dc *checkpoint.Checkpoint
	if drafter != nil {
		if dc, err = drafter.open(); err != nil {
			return nil, loadError(err)
		}
		l.files = append(l.files, dc)
		progress.BytesTotal += dc.Bytes()
	}
	report(StateLoading, progress)
	if l.backend, err = e.opts.Backend(); err != nil {
		return nil, &Error{Kind: ErrInternal, Message: err.Error(), Cause: err}
	}
	watched := &watchedBackend{Backend: l.backend, ctx: ctx, progress: progress, report: func(p LoadProgress) { report(StateLoading, p) }}
	if l.model, err = arch.Load(c, watched); err != nil {
		return nil, loadError(err)
	}
	if l.tok.VocabSize() > l.model.Vocab {
		return nil, loadError(fmt.Errorf("%s: the tokenizer has %d tokens, the model only %d; the folder mixes files of different models", r.Model, l.tok.VocabSize(), l.model.Vocab))
	}
	window := value(r.ContextWindow, 0)
	if window == 0 {
		window = l.model.Context
	}
	if window == 0 {
		window = 8192
	}
	cacheTokens := e.opts.CacheTokens
	if cacheTokens == 0 {
		cacheTokens = min(2*window, max(window, 256<<10))
	}
	cacheTokens = max(cacheTokens, window)
	var d draft.Drafter
	if dc != nil {
		bits := 4 // as mlx-dspark quantizes heads at load
		if drafter.path == "" {
			bits = 0 // the demo's is small already
		}
		d, err = draft.Open(dc, draft.Host{Model: l.model, Backend: watched, Positions: cacheTokens + 64, Sequences: max(e.opts.Slots, 0) + 2,
			Window: models.Window(r.DrafterWindow), Bits: value(r.DrafterBits, bits), Tokens: l.tok.VocabSize()})
		if err != nil {
			return nil, loadError(err)
		}
		if mode == "" {
			mode = d.Mode()
		}
		if mode != d.Mode() {
			d.Close()
			return nil, &Error{Kind: ErrInvalid, Field: "mode", Message: fmt.Sprintf("drafter %s is of kind %s, but mode %s was asked for; leave the mode out or choose another drafter", drafter.id, d.Mode(), mode)}
		}
	}
	l.run, err = decode.New(l.backend, l.model, d, decode.Options{Positions: cacheTokens + 64, Stored: max(e.opts.Slots, 0), KVType: layout.F32, KVBits: value(r.KVBits, 0)})
	if err != nil {
		if d != nil {
			d.Close()
		}
		return nil, loadError(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, loadError(err)
	}
	l.describe(r, c, d, mode, window)
	if drafter != nil {
		l.info.Drafter = drafter.id
	}
	served = true
	go l.serve()
	if d != nil && r.MaxDraft != nil && *r.MaxDraft == 0 {
		if err := l.control(ctx, mode); err != nil {
			close(l.jobs)
			return nil, loadError(err)
		}
	}
	if value(r.Warmup, true) {
		report(StateWarming, watched.progress)
		if err := l.warmUp(ctx); err != nil {
			close(l.jobs)
			return nil, loadError(err)
		}
		l.cold.Store(false)
	}
	return l, nil
}

// pair resolves the mode and the drafter of a request. An empty mode means
// what the drafter turns out to be. A drafter that only the table of published
// pairs names is used when it is on this machine; auto does without it.
func (o *Options) pair(r LoadRequest) (*source, string, error) {
	auto := r.Mode == "" || r.Mode == "auto"
	if b, ok := o.Builtins[r.Model]; ok && b.Drafter != nil && r.Drafter == "" && (auto || r.Mode == "dspark") {
		return &source{id: r.Model + "-drafter", builtin: b.Drafter}, "dspark", nil
	}
	choice, err := models.Resolve(r.Model, r.Mode, r.Drafter)
	if err != nil {
		return nil, "", &Error{Kind: ErrInvalid, Field: "drafter", Message: err.Error(), Cause: err}
	}
	if choice.Drafter == "" {
		return nil, choice.Mode, nil
	}
	s, err := o.locate(choice.Drafter, "drafter")
	switch {
	case err != nil && r.Drafter == "" && auto:
		return nil, "lookup", nil
	case err != nil:
		return nil, "", err
	case auto:
		return &s, "", nil
	}
	return &s, choice.Mode, nil
}

// control sets up the controller of the draft cap on curves measured now.
func (l *loaded) control(ctx context.Context, mode string) (err error) {
	l.do(func() {
		costs, e := l.run.Measure(ctx)
		if e == nil {
			e = costs.Validate()
		}
		if err = e; err == nil {
			l.controls.controller = calibrate.NewController(costs, calibrate.ControllerConfig{MaxCap: l.run.Drafter().MaxDraft(), Park: mode == "dspark"})
		}
	})
	return err
}

func (l *loaded) describe(r LoadRequest, c *checkpoint.Checkpoint, d draft.Drafter, mode string, window int) {
	l.end = map[int32]bool{}
	for _, id := range l.tok.StopIDs() {
		l.end[id] = true
	}
	gen := c.GenerationConfig()
	for _, cfg := range []checkpoint.Config{gen, c.Config()} {
		if ids := tokenIDs(cfg, "eos_token_id"); len(ids) > 0 {
			for _, id := range ids {
				l.end[id] = true
			}
			break
		}
	}
	if gen.BoolOr("do_sample", true) && gen.Has("temperature") {
		t := gen.FloatOr("temperature", 0)
		l.defaults.temperature = &t
		if gen.Has("top_p") {
			p := gen.FloatOr("top_p", 1)
			l.defaults.topP = &p
		}
		if gen.Has("top_k") {
			k := gen.IntOr("top_k", 0)
			l.defaults.topK = &k
		}
	}
	if v := r.EnableThinking; v != nil {
		l.kwargs["enable_thinking"] = *v
	}
	if v := r.ReasoningEffort; v != nil && *v != "" {
		l.kwargs["reasoning_effort"] = *v
	}
	k := &l.controls
	k.threshold, k.lookup, k.maxContext = value(r.ConfidenceThreshold, 0), value(r.LookupDrafts, d != nil && mode == "dspark" && models.LookupDrafts(r.Model)), window
	k.cap = value(r.MaxDraft, 0)
	switch mode {
	case "baseline":
		k.mode = decode.Baseline
	case "lookup":
		k.mode = decode.Lookup
	default:
		k.mode = decode.Draft
		if k.cap == 0 || k.cap > d.MaxDraft() {
			k.cap = d.MaxDraft()
		}
		if r.MaxDraft != nil && *r.MaxDraft == 0 {
			k.cap = 0
		}
	}
	l.info = ModelInfo{ID: modelID(r.Model), Target: r.Model, Mode: mode, Architecture: l.model.Type, ContextWindow: window,
		MaxDraft: k.cap, LookupDrafts: k.lookup, Confidence: k.threshold, KVBits: value(r.KVBits, 0), Warmup: value(r.Warmup, true),
		Vocab: l.model.Vocab, WeightBytes: l.model.WeightBytes, LoadedAt: time.Now(), Backend: l.backend.Name(),
		SupportsEffort: l.format.Uses("reasoning_effort"), ThinkingDefault: value(r.EnableThinking, true), ReasoningEffort: value(r.ReasoningEffort, ""),
		SupportsReasoning: l.format.Thinks(), SupportsTools: l.format.ToolParser() != ""}
	if d != nil {
		l.info.DrafterBytes = d.WeightBytes()
		l.info.DrafterWindow = models.Window(r.DrafterWindow)
	}
}

// modelID is the last path component of what was asked for.
func modelID(target string) string {
	id := filepath.Base(filepath.Clean(target))
	return strings.TrimSuffix(id, ".gguf")
}

// tokenIDs reads a token id or a list of them; null and absence are none.
func tokenIDs(cfg checkpoint.Config, key string) []int32 {
	switch v := cfg.Value(key).(type) {
	case nil:
		return nil
	case []any:
		var out []int32
		for _, id := range cfg.Ints(key) {
			out = append(out, int32(id))
		}
		return out
	default:
		_ = v
		return []int32{int32(cfg.IntOr(key, -1))}
	}
}

// serve runs jobs one after another on one thread: it alone uses the backend.
func (l *loaded) serve() {
	runtime.LockOSThread()
	for job := range l.jobs {
		job()
	}
	l.free()
}

// do runs a job on the model's goroutine and waits for it.
func (l *loaded) do(job func()) {
	done := make(chan struct{})
	l.jobs <- func() { defer close(done); job() }
	<-done
}

// retire ends the model once nobody uses it any more.
func (l *loaded) retire() {
	l.users.Wait()
	close(l.jobs)
}

func (l *loaded) free() {
	if l.run != nil {
		l.run.Close()
	}
	if l.model != nil {
		l.model.Close()
	}
	if l.backend != nil {
		l.backend.Close()
	}
	for _, f := range l.files {
		f.Close()
	}
}

// warmUp runs a short throw-away generation, so that the first request finds
// everything touched.
func (l *loaded) warmUp(ctx context.Context) (err error) {
	ids := l.tok.Encode("Hello, how are you?", true)
	if len(ids) == 0 {
		return nil
	}
	l.do(func() {
		_, err = l.run.Generate(ctx, decode.Job{Prompt: ids, MaxTokens: min(12, max(1, l.controls.maxContext-len(ids))), End: l.end, Logprobs: -1,
			Mode: l.controls.mode, Cap: l.controls.cap, NoStore: true})
	})
	return err
}

// watchedBackend counts the bytes of weights as they load and lets a load be
// cancelled between two of them.
type watchedBackend struct {
	compute.Backend
	ctx      context.Context
	progress LoadProgress
	report   func(LoadProgress)
}

func (w *watchedBackend) Load(m layout.Matrix) (*compute.Weight, error) {
	if err := w.ctx.Err(); err != nil {
		return nil, err
	}
	out, err := w.Backend.Load(m)
	if err == nil {
		w.progress.BytesDone += m.Bytes()
		w.report(w.progress)
	}
	return out, err
}

// loadError classifies the failure of a load.
func loadError(err error) error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &Error{Kind: ErrCancelled, Message: "the load was cancelled", Cause: err}
	}
	return &Error{Kind: ErrLoadFailed, Message: err.Error(), Cause: err}
}
