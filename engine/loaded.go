package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	"sparkbar/engine/machine"
	"sparkbar/engine/models"
	"sparkbar/engine/telemetry"
	"sparkbar/engine/tokenizer"
)

// loaded is a model that answers: its files, its weights on a backend of its
// own, and the goroutine that owns that backend.
type loaded struct {
	*voice
	request  LoadRequest // what it was loaded with
	info     ModelInfo
	end      map[int32]bool
	defaults generationDefaults
	controls controls
	notes    []Warning // about the load

	backend compute.Backend
	model   *arch.Model
	run     *decode.Runner
	files   []*checkpoint.Checkpoint
	// print and drafterPrint name the weights, see checkpoint.Fingerprint.
	print, drafterPrint string

	adapters adapters
	memory   func() machine.Memory // nil = not known
	together together

	log    *telemetry.Log
	totals telemetry.Totals

	costs atomic.Pointer[calibrate.Costs] // of its rounds, nil = not measured
	// costFile keeps them under costKey; "" = nothing does.
	costFile, costKey string
	gauge             atomic.Pointer[Gauges] // as of the latest generation

	jobs  chan func()
	users sync.WaitGroup // generations that hold the model
	freed chan struct{}  // closed once its goroutine has freed everything
	// splitEnded: memory got short, so the CPU has no part in prompts any more.
	splitEnded atomic.Bool
	cold       atomic.Bool // no request has run yet, and there was no warm-up
}

// controls is how rounds are run for this model.
type controls struct {
	mode       decode.Mode
	cap        int
	derived    bool // cap comes from measured costs
	threshold  float64
	lookup     bool
	longLookup int // longest copy, 0 = the default
	maxContext int
	tail       int                   // see unstableTail
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

// find looks a model up in the catalogue.
func (o *Options) find(id string) (models.Model, bool) {
	if o.Catalogue == nil {
		return models.Model{}, false
	}
	return o.Catalogue.Find(id)
}

// locate finds the files that a name means: a built-in model, a path, or a
// model of the catalogue. field is the one that names it.
func (o *Options) locate(id, field string) (source, error) {
	if b, ok := o.Builtins[id]; ok {
		return source{id: id, builtin: b.Target}, nil
	}
	if _, err := os.Stat(id); err == nil {
		return source{id: id, path: id}, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return source{}, &Error{Kind: ErrInvalid, Field: field, Message: fmt.Sprintf("cannot read %s: %v", id, err), Cause: err}
	}
	message := fmt.Sprintf("%s %q is neither a built-in model (%s), a model on this machine nor an existing folder or GGUF file; check the path, or name a model of the hub as org/name", field, clip(id), strings.Join(o.builtinNames(), ", "))
	switch m, ok := o.find(id); {
	case ok && m.Loadable() && m.Path != "" && (field == "drafter" || !m.Drafter):
		return source{id: id, path: m.Path}, nil
	case ok && m.Reason != "":
		message = fmt.Sprintf("%s %q cannot be loaded: %s", field, id, m.Reason)
	}
	return source{}, &Error{Kind: ErrModelNotFound, Field: field, Message: message}
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

// voice is how a model reads and writes: its tokens and its templates.
type voice struct {
	tok    *tokenizer.Tokenizer
	format *chat.Format
	kwargs map[string]any // template defaults
}

// tokenizer reads the tokenizer that comes with a checkpoint.
func (s source) tokenizer(c *checkpoint.Checkpoint) (t *tokenizer.Tokenizer, err error) {
	switch {
	case s.path == "":
		t, err = tokenizer.New(s.builtin["tokenizer.json"], s.builtin["tokenizer_config.json"])
	case c.GGUF() != nil:
		t, err = tokenizer.FromGGUF(ggufVocabulary(c.GGUF()))
	default:
		t, err = tokenizer.Load(openTokenizerDir(s.path))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: tokenizer: %w", s.id, err)
	}
	return t, nil
}

// otherTokens compares the tokens of a draft model with those of its target. A
// draft model that means other tokens by the same ids is of no use, though it
// cannot do harm; the warning says so, in mlx-lm's words. nil = they agree.
func otherTokens(target *tokenizer.Tokenizer, drafter source, c *checkpoint.Checkpoint) *Warning {
	const what = "Draft model tokenizer does not match model tokenizer"
	warn := func(format string, args ...any) *Warning {
		return &Warning{Code: "load_note", Level: "attention", Message: fmt.Sprintf(format, args...) + "; answers stay right, but drafts may be of no use: choose a draft model of the target's own family"}
	}
	own, err := drafter.tokenizer(c)
	if err != nil {
		return warn("whether the draft model %s has the tokens of its target is not known: %v", drafter.id, err)
	}
	n, differ, at := min(target.VocabSize(), own.VocabSize()), 0, int32(-1)
	for id := range int32(n) {
		if target.Token(id) != own.Token(id) {
			if differ++; at < 0 {
				at = id
			}
		}
	}
	switch {
	case differ > 0:
		return warn("%s (%s): %d of %d tokens differ, first %d, which is %q there and %q here", what, drafter.id, differ, n, at, own.Token(at), target.Token(at))
	case own.VocabSize() != target.VocabSize():
		return warn("%s (%s): it has %d tokens, the target %d", what, drafter.id, own.VocabSize(), target.VocabSize())
	}
	return nil
}

func (s source) voice(c *checkpoint.Checkpoint, r LoadRequest) (v *voice, err error) {
	v = &voice{kwargs: map[string]any{}}
	if v.tok, err = s.tokenizer(c); err != nil {
		return nil, err
	}
	if v.format, err = newFormat(v.tok, r.ChatTemplate); err != nil {
		return nil, fmt.Errorf("%s: %w", s.id, err)
	}
	maps.Copy(v.kwargs, r.TemplateArgs)
	if on := r.EnableThinking; on != nil {
		v.kwargs["enable_thinking"] = *on
	}
	if effort := value(r.ReasoningEffort, ""); effort != "" {
		v.kwargs["reasoning_effort"] = effort
	}
	return v, nil
}

// footprint adds up the weights of a checkpoint as they are stored.
func footprint(c *checkpoint.Checkpoint) telemetry.Footprint {
	var list []telemetry.Weight
	for _, name := range c.Names() {
		list = append(list, telemetry.Weight{Name: name, Bytes: c.Size(name)})
	}
	cfg := c.Config()
	if text := cfg.Sub("text_config"); !text.Empty() {
		cfg = text
	}
	experts := 0
	for _, key := range []string{"num_experts", "n_routed_experts", "num_local_experts"} {
		experts = max(experts, cfg.IntOr(key, 0))
	}
	return telemetry.WeightFootprint(list, experts, cfg.IntOr("num_experts_per_tok", 0))
}

// plan is a load whose files are known and checked, before any weight is read.
type plan struct {
	request      LoadRequest
	target       source
	files        *checkpoint.Checkpoint
	drafter      *source // nil = none
	drafterFiles *checkpoint.Checkpoint
	mode         string // "" = what the drafter is
	window       int    // 0 = the model's own
	cacheTokens  int    // 0 = by the window
	need         models.Fit
	notes        []Warning
}

func (p *plan) close() {
	for _, c := range []*checkpoint.Checkpoint{p.files, p.drafterFiles} {
		if c != nil {
			c.Close()
		}
	}
}

// prepare finds the files of a load, downloads them if that is allowed, and
// decides whether they fit.
func (e *Engine) prepare(ctx context.Context, r LoadRequest, download bool, report func(State, LoadProgress)) (_ *plan, err error) {
	report(StateResolving, LoadProgress{Model: r.Model})
	p := &plan{request: r}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if err := e.resolve(ctx, p, download, report); err != nil {
		return nil, err
	}
	if p.files, err = p.target.open(); err != nil {
		return nil, loadError(err)
	}
	if p.drafter != nil {
		if p.drafterFiles, err = p.drafter.open(); err != nil {
			return nil, loadError(err)
		}
	}
	return p, e.fit(p)
}

// build loads a model from start to end. report is told about progress; a
// cancelled context ends it between two tensors. Nothing of a failed build
// remains.
func (e *Engine) build(ctx context.Context, p *plan, backend func() (compute.Backend, error), report func(State, LoadProgress)) (_ *loaded, err error) {
	r, c, dc, drafter, mode, window := p.request, p.files, p.drafterFiles, p.drafter, p.mode, p.window
	l := &loaded{request: r, jobs: make(chan func()), freed: make(chan struct{}), memory: e.opts.Memory, log: telemetry.NewLog(e.opts.Now()), notes: p.notes, files: []*checkpoint.Checkpoint{c}}
	if dc != nil {
		l.files = append(l.files, dc)
	}
	l.cold.Store(true)
	served := false
	defer func() {
		if err != nil && !served { // else its goroutine frees it
			l.free()
		}
	}()
	if l.voice, err = p.target.voice(c, r); err != nil {
		return nil, loadError(err)
	}
	l.print = c.Fingerprint()
	if dc != nil {
		l.drafterPrint = fmt.Sprint(dc.Fingerprint(), " ", value(r.DrafterBits, -1), " ", value(r.DrafterWindow, -1))
	}
	progress := LoadProgress{Model: r.Model, BytesTotal: c.Bytes()}
	if dc != nil {
		progress.BytesTotal += dc.Bytes()
	}
	report(StateLoading, progress)
	if l.backend, err = backend(); err != nil {
		return nil, &Error{Kind: ErrInternal, Message: err.Error(), Cause: err}
	}
	l.splitPrompts()
	watched := &watchedBackend{Backend: l.backend, ctx: ctx, progress: progress, report: func(p LoadProgress) { report(StateLoading, p) }}
	if l.model, err = arch.Load(c, watched); err != nil {
		return nil, loadError(err)
	}
	if l.tok.VocabSize() > l.model.Vocab {
		return nil, loadError(fmt.Errorf("%s: the tokenizer has %d tokens, the model only %d; the folder mixes files of different models", r.Model, l.tok.VocabSize(), l.model.Vocab))
	}
	if window == 0 {
		window = l.model.Context
	}
	if window == 0 {
		window = 8192
	}
	cacheTokens := e.opts.CacheTokens
	if cacheTokens == 0 {
		cacheTokens = p.cacheTokens
	}
	if cacheTokens == 0 {
		cacheTokens = e.opts.cacheTokens(window)
	}
	cacheTokens = max(cacheTokens, window)
	var d draft.Drafter
	if dc != nil {
		bits := 4 // as mlx-dspark quantizes heads at load
		if drafter.path == "" {
			bits = 0 // the demo's is small already
		}
		d, err = draft.Open(dc, draft.Host{Model: l.model, Backend: watched, Positions: cacheTokens + 64, Sequences: max(e.opts.Slots, 0) + 2*e.opts.MaxBatch + 2, // a block may reach into one more page
			Window: models.Window(r.DrafterWindow), Bits: value(r.DrafterBits, bits), Tokens: l.tok.VocabSize(), Frequent: draft.Frequent(l.model.Vocab), Spare: draft.Spare})
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
	if d != nil && d.Mode() == "draft" {
		if w := otherTokens(l.tok, *drafter, dc); w != nil {
			l.notes = append(l.notes, *w)
		}
	}
	l.run, err = decode.New(l.backend, l.model, d, decode.Options{Positions: cacheTokens + 64, Stored: max(e.opts.Slots, 0), Running: e.opts.MaxBatch, KVType: layout.F32, KVBits: value(r.KVBits, 0), KVGroup: value(r.KVGroup, groupFor(l.model.Caches)), Chunk: e.opts.Chunk, Rungs: e.opts.Rungs})
	if err != nil {
		if d != nil {
			d.Close()
		}
		return nil, loadError(err)
	}
	if e.opts.Disk != nil && e.opts.Slots > 0 {
		e.keepOnDisk(l)
	}
	if err := ctx.Err(); err != nil {
		return nil, loadError(err)
	}
	l.describe(r, c, dc, d, mode, window)
	if drafter != nil {
		l.info.Drafter = drafter.id
	}
	if p.target.path == p.target.id && p.target.path != "" {
		l.info.Path, _ = filepath.Abs(p.target.path) // "" if the working folder is gone
	}
	watched.over()
	l.together.MaxBatch = e.opts.MaxBatch
	l.measure() // nobody else uses it yet
	served = true
	go func() {
		defer close(l.freed)
		l.serve()
	}()
	l.costKey, l.costFile = e.costKey(l), e.opts.Calibrations
	if l.costFile != "" && d != nil && value(r.MaxDraft, 0) == 0 {
		l.do(func() {
			if err = l.calibrate(ctx); err == nil && r.MaxDraft == nil && mode != "draft" {
				l.derive()
			}
		})
		if err != nil {
			close(l.jobs)
			return nil, loadError(err)
		}
	}
	if d != nil && r.MaxDraft != nil && *r.MaxDraft == 0 {
		l.do(func() { l.controls.controller, err = l.newController(ctx) })
		if err != nil {
			close(l.jobs)
			return nil, loadError(err)
		}
	}
	if r.Adapter != "" {
		_, release, err := l.adapter(ctx, r.Adapter)
		if err != nil {
			close(l.jobs)
			return nil, loadError(err)
		}
		release()
	}
	if value(r.Warmup, true) {
		report(StateWarming, watched.progress)
		if err := l.warmUp(ctx); err != nil {
			close(l.jobs)
			return nil, loadError(err)
		}
		l.cold.Store(false)
		if l.sharesDrafts() {
			l.do(func() {
				if err = l.calibrate(ctx); err == nil {
					l.run.SetCosts(l.costs.Load())
				}
			})
			if err != nil {
				close(l.jobs)
				return nil, loadError(err)
			}
		}
	}
	return l, nil
}

// groupFor is how many values of a quantized cache share a scale where nobody has
// said it: 64, or 32 where heads are too narrow or odd for that.
func groupFor(caches []compute.CacheSpec) int {
	for _, c := range caches {
		if c.Kind != compute.CacheState && (c.KDim%64 != 0 || !c.VInK && c.VDim%64 != 0) {
			return 32
		}
	}
	return 64
}

// sharesDrafts reports whether drafts are shared out among generations that run
// together: where they are several and nobody has pinned the number of drafts.
func (l *loaded) sharesDrafts() bool {
	jobs, _ := l.run.Room()
	return jobs > 1 && value(l.request.MaxDraft, 0) == 0 && l.controls.mode != decode.Baseline
}

// newController makes a controller of the draft cap on measured curves. It runs on
// the model's goroutine.
func (l *loaded) newController(ctx context.Context) (*calibrate.Controller, error) {
	if err := l.calibrate(ctx); err != nil {
		return nil, err
	}
	return calibrate.NewController(l.costs.Load(), calibrate.ControllerConfig{MaxCap: l.run.Drafter().MaxDraft(), Park: true, Patient: true}), nil
}

func (l *loaded) describe(r LoadRequest, c, dc *checkpoint.Checkpoint, d draft.Drafter, mode string, window int) {
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
	k := &l.controls
	k.threshold, k.lookup, k.maxContext = value(r.ConfidenceThreshold, 0), value(r.LookupDrafts, d != nil && mode == "dspark" && models.LookupDrafts(r.Model)), window
	k.cap, k.longLookup = value(r.MaxDraft, 0), value(r.LookupLongDraft, 0)
	switch mode {
	case "baseline":
		k.mode = decode.Baseline
	case "lookup":
		k.mode = decode.Lookup
	default:
		k.mode = decode.Draft
		if k.cap == 0 && mode == "draft" {
			k.cap = draftModelCap
		}
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
	k.tail = l.unstableTail()
	l.info.Weights, l.info.KVBytesPerToken = footprint(c), l.run.Cache().PositionBytes()
	if d != nil {
		if dc != nil {
			f := footprint(dc)
			l.info.DrafterWeights = &f
		}
		l.info.DrafterBytes = d.WeightBytes()
		l.info.DrafterWindow = models.Window(r.DrafterWindow)
	}
}

// draftModelCap is how many tokens a draft model proposes by default, as in
// mlx-lm (num_draft_tokens).
const draftModelCap = 3

// unstableTail is how many tokens at the end of a prompt the next turn's prompt
// does not begin with, by this model's template: it may write the head of an
// answer that is still to come differently from one that has come.
func (l *loaded) unstableTail() int {
	open, _, err1 := l.encode(Prompt{Messages: json.RawMessage(`[{"role":"user","content":"a"}]`)})
	next, _, err2 := l.encode(Prompt{Messages: json.RawMessage(`[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]`)})
	if err1 != nil || err2 != nil {
		return 1 // a template with rules of its own: only the last token is known to be open
	}
	n := 0
	for n < len(open) && n < len(next) && open[n] == next[n] {
		n++
	}
	return max(1, len(open)-n)
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

// serve runs what do is given, and between that the generations, step by step, on
// one thread: it alone uses the backend.
func (l *loaded) serve() {
	runtime.LockOSThread()
	defer l.free()
	for {
		if l.run.Active() == 0 {
			job, open := <-l.jobs
			if !open {
				return
			}
			job()
			continue
		}
		select {
		case job := <-l.jobs: // not closed while a generation holds the model
			job()
		default:
			l.run.Step()
		}
	}
}

// do runs a job on the model's goroutine, between two steps, and waits for it.
func (l *loaded) do(job func()) {
	done := make(chan struct{})
	l.jobs <- func() { defer close(done); job() }
	<-done
}

// measure notes what reports show and only the model's goroutine may read. It
// runs there.
func (l *loaded) measure() {
	g := &Gauges{Store: l.run.Store().Stats(), Trimmable: l.run.Cache().Trimmable(), PositionBytes: l.run.Cache().PositionBytes()}
	g.PagesUsed, g.Pages = l.run.Cache().Pages()
	if c := l.controls.controller; c != nil {
		info := c.Info()
		g.Controller = &info
	}
	if l.together.MaxBatch > 1 {
		b := l.together.Batching
		g.Batching = &b
	}
	l.gauge.Store(g)
}

// retire ends the model once nobody uses it any more, and returns when all of it
// is freed and its pasts are on disk.
func (l *loaded) retire() {
	l.users.Wait()
	close(l.jobs)
	<-l.freed
}

func (l *loaded) free() {
	l.dropAdapters(0)
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

// warmRows is how many rows of a prompt a GPU is warmed up with.
const warmRows = 96

// warmUp runs a short throw-away generation, so that the first request finds
// everything touched.
func (l *loaded) warmUp(ctx context.Context) (err error) {
	ids := l.tok.Encode("Hello, how are you?", true)
	if len(ids) == 0 {
		return nil
	}
	for greeting := ids; l.backend.Name() == "metal" && len(ids) < min(warmRows, l.controls.maxContext/2); { // many rows run on other kernels than one
		ids = append(ids, greeting...)
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

// over ends the watch: what comes later (adapters) is no part of the load.
func (w *watchedBackend) over() { w.ctx, w.report = context.Background(), func(LoadProgress) {} }

// StridedPages is that of the backend: see compute.StridedPages.
func (w *watchedBackend) StridedPages() bool { return compute.StridedPages(w.Backend) }

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
