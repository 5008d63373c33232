package enginetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/models"
	"sparkbar/engine/telemetry"
)

// Step is one thing a scripted generation does: exactly one field is set.
type Step struct {
	Delta *engine.Delta
	Wait  time.Duration
	Err   error
	Panic any
	Block bool // until the generation is cancelled
}

// Script is a generation: its steps, then its result.
type Script struct {
	Steps  []Step
	Result engine.Result
}

// Say is a script that answers with pieces of text.
func Say(pieces ...string) Script {
	var s Script
	for _, p := range pieces {
		s.Steps = append(s.Steps, Step{Delta: &engine.Delta{Text: p}})
		s.Result.Text += p
	}
	s.Result.FinishReason = engine.FinishStop
	s.Result.Stats = telemetry.RequestSummary{Mode: "baseline", PromptTokens: 7, CompletionTokens: len(pieces), ContextTokens: 7 + len(pieces)}
	return s
}

// Engine replays scripts. The zero value has no model.
type Engine struct {
	mu        sync.Mutex
	status    engine.Status
	next      func(engine.Request) Script
	requests  []engine.Request
	prompts   []engine.Prompt
	loads     []engine.LoadRequest
	cancelled int
	loadErr   error
	loadBlock chan struct{}

	Count    int   // what CountTokens answers
	CountErr error // or its error
	Bus      telemetry.Bus
	Log      *telemetry.Log
	Total    telemetry.TotalsReport

	Local    []models.Model // of this machine
	Costs    engine.Calibration
	Gauge    *engine.Gauges
	Info     engine.MachineInfo
	Findings []engine.Finding
	Running  []engine.RequestInfo
	Fetching []engine.Download
}

// Model is a loaded model for tests.
func Model() *engine.ModelInfo {
	return &engine.ModelInfo{ID: "tiny-chat", Target: "/models/tiny-chat", Mode: "baseline", Architecture: "qwen3", ContextWindow: 2048,
		LookupDrafts: true, Warmup: true, ThinkingDefault: true, Vocab: 512, Backend: "reference", LoadedAt: time.Unix(1_700_000_000, 0)}
}

// New returns an engine with a model that answers every request with script.
func New(script Script) *Engine {
	e := Empty()
	e.SetStatus(engine.Status{State: engine.StateReady, Model: Model(), Version: "1.2.3", MaxTokensDefault: 2048, MaxTokensCap: 32768})
	e.Answer(func(engine.Request) Script { return script })
	return e
}

// Empty returns an engine without a model.
func Empty() *Engine {
	return &Engine{status: engine.Status{State: engine.StateIdle, Version: "1.2.3", MaxTokensDefault: 2048, MaxTokensCap: 32768},
		Log: telemetry.NewLog(time.Now()), Count: 7}
}

// Answer chooses the script of each request.
func (e *Engine) Answer(f func(engine.Request) Script) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next = f
}

// SetStatus changes what Status answers and publishes it.
func (e *Engine) SetStatus(st engine.Status) {
	e.mu.Lock()
	e.status = st
	e.mu.Unlock()
	e.Bus.Publish("state", st)
}

// Asked returns what Generate was asked.
func (e *Engine) Asked() []engine.Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]engine.Request(nil), e.requests...)
}

// Prompts returns what CountTokens was asked.
func (e *Engine) Prompts() []engine.Prompt {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]engine.Prompt(nil), e.prompts...)
}

// Loads returns what Load and StartLoad were asked.
func (e *Engine) Loads() []engine.LoadRequest {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]engine.LoadRequest(nil), e.loads...)
}

// Cancelled returns how many generations ended because they were cancelled.
func (e *Engine) Cancelled() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cancelled
}

// FailLoads makes loads end with err.
func (e *Engine) FailLoads(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loadErr = err
}

// HoldLoads makes Load wait until CancelLoad.
func (e *Engine) HoldLoads() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loadBlock = make(chan struct{})
}

// Generate replays the request's script.
func (e *Engine) Generate(ctx context.Context, req engine.Request, emit func(engine.Delta) error) (engine.Result, error) {
	e.mu.Lock()
	e.requests = append(e.requests, req)
	next := e.next
	e.mu.Unlock()
	s := next(req)
	cancelled := func() (engine.Result, error) {
		e.mu.Lock()
		e.cancelled++
		e.mu.Unlock()
		return engine.Result{}, &engine.Error{Kind: engine.ErrCancelled, Message: "the generation was cancelled"}
	}
	for _, step := range s.Steps {
		switch {
		case step.Block:
			<-ctx.Done()
			return cancelled()
		case step.Wait > 0:
			select {
			case <-time.After(step.Wait):
			case <-ctx.Done():
				return cancelled()
			}
		case step.Err != nil:
			return engine.Result{}, step.Err
		case step.Panic != nil:
			panic(step.Panic)
		default:
			if emit(*step.Delta) != nil || ctx.Err() != nil {
				return cancelled()
			}
		}
	}
	return s.Result, nil
}

// CountTokens answers Count or CountErr.
func (e *Engine) CountTokens(_ context.Context, _ string, p engine.Prompt) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.prompts = append(e.prompts, p)
	return e.Count, e.CountErr
}

// Check knows the loaded model and names without a slash.
func (e *Engine) Check(name string) error {
	st := e.Status()
	switch {
	case slices.ContainsFunc(e.Local, func(m models.Model) bool { return m.ID == name && m.Loadable() && !m.Drafter }):
		return nil
	case st.Model == nil && st.Loading == nil:
		return &engine.Error{Kind: engine.ErrNoModel}
	case st.Model == nil:
		return &engine.Error{Kind: engine.ErrLoading}
	case strings.Contains(name, "/") && name != st.Model.Target && !strings.HasSuffix(st.Model.Target, "/"+name):
		return &engine.Error{Kind: engine.ErrModelNotFound, Message: "model '" + name + "' is not loaded here; load it with POST /admin/load"}
	}
	return nil
}

// Status answers what SetStatus set.
func (e *Engine) Status() engine.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.status
	if st.Model != nil {
		m := *st.Model
		st.Model = &m
	}
	return st
}

// Load pretends to load the model that is asked for.
func (e *Engine) Load(ctx context.Context, r engine.LoadRequest) (engine.Status, error) {
	e.mu.Lock()
	e.loads = append(e.loads, r)
	err, hold := e.loadErr, e.loadBlock
	e.mu.Unlock()
	if hold != nil {
		e.SetStatus(engine.Status{State: engine.StateLoading, Loading: &engine.LoadProgress{Model: r.Model, BytesDone: 5, BytesTotal: 10}, Version: "1.2.3"})
		select {
		case <-hold:
			err = &engine.Error{Kind: engine.ErrCancelled, Message: "the load of " + r.Model + " was cancelled"}
		case <-ctx.Done():
			err = &engine.Error{Kind: engine.ErrCancelled, Message: "stopped waiting", Cause: ctx.Err()}
		}
	}
	if err != nil {
		return e.Status(), err
	}
	m := Model()
	m.Target, m.LoadedAt = r.Model, m.LoadedAt.Add(time.Second)
	e.SetStatus(engine.Status{State: engine.StateReady, Model: m, Version: "1.2.3", MaxTokensDefault: 2048, MaxTokensCap: 32768})
	return e.Status(), nil
}

// StartLoad pretends to begin a load.
func (e *Engine) StartLoad(r engine.LoadRequest) (engine.Status, error) {
	e.mu.Lock()
	e.loads = append(e.loads, r)
	err := e.loadErr
	e.mu.Unlock()
	if err == nil {
		e.SetStatus(engine.Status{State: engine.StateResolving, Loading: &engine.LoadProgress{Model: r.Model}, Version: "1.2.3"})
	}
	return e.Status(), err
}

// CancelLoad ends a held load.
func (e *Engine) CancelLoad(bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.loadBlock == nil {
		return false
	}
	close(e.loadBlock)
	e.loadBlock = nil
	return true
}

// Unload drops the model.
func (e *Engine) Unload(context.Context) (engine.Status, error) {
	e.SetStatus(engine.Status{State: engine.StateIdle, Version: "1.2.3"})
	return e.Status(), nil
}

// Downloads returns Fetching.
func (e *Engine) Downloads() []engine.Download {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.Fetching)
}

// StartDownload pretends to begin a download, or fails as loads do.
func (e *Engine) StartDownload(model string, _ bool) (engine.Download, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.loadErr != nil {
		return engine.Download{}, e.loadErr
	}
	d := engine.Download{ID: "dl_" + strings.ReplaceAll(model, "/", "_"), Model: model, Repo: model, State: "planning"}
	e.Fetching = append(e.Fetching, d)
	return d, nil
}

// PauseDownload marks one of Fetching.
func (e *Engine) PauseDownload(id string) (engine.Download, bool) { return e.mark(id, "paused", "") }

// ResumeDownload marks one of Fetching.
func (e *Engine) ResumeDownload(id string) (engine.Download, bool) {
	return e.mark(id, "downloading", "")
}

// CancelDownload marks one of Fetching.
func (e *Engine) CancelDownload(id string, cleanup bool) (engine.Download, bool) {
	return e.mark(id, "cancelled", "cancelled, cleanup "+fmt.Sprint(cleanup))
}

func (e *Engine) mark(id, state, failure string) (engine.Download, bool) {
	e.mu.Lock()
	i := slices.IndexFunc(e.Fetching, func(d engine.Download) bool { return d.ID == id && d.Error == "" })
	if i < 0 {
		e.mu.Unlock()
		return engine.Download{}, false
	}
	e.Fetching[i].State, e.Fetching[i].Error = state, failure
	d := e.Fetching[i]
	e.mu.Unlock()
	e.Bus.Publish("download", d)
	return d, true
}

// Events returns Bus.
func (e *Engine) Events() *telemetry.Bus { return &e.Bus }

// Rounds returns Log.
func (e *Engine) Rounds() *telemetry.Log { return e.Log }

// Totals returns Total.
func (e *Engine) Totals() telemetry.TotalsReport { return e.Total }

// Gauges returns Gauge.
func (e *Engine) Gauges() *engine.Gauges { return e.Gauge }

// Calibration returns Costs.
func (e *Engine) Calibration() engine.Calibration { return e.Costs }

// Machine returns Info.
func (e *Engine) Machine() engine.MachineInfo { return e.Info }

// Roofline uses the bandwidth of Info.
func (e *Engine) Roofline(m *engine.ModelInfo, context int) telemetry.RooflinePoint {
	return telemetry.Roofline(e.Info.Bandwidth.GBs, m.Weights.ActiveBytes, m.KVBytesPerToken, context)
}

// PrefixCache is on.
func (e *Engine) PrefixCache() bool { return true }

// Models returns Local.
func (e *Engine) Models() []models.Model { return e.Local }

// Places are none.
func (e *Engine) Places() models.Places { return models.Places{} }

// Fit computes with the memory of Info.
func (e *Engine) Fit(m models.Model, context int) models.Fit {
	return models.Need{Weights: m.Bytes, Target: m.Geometry, Context: context, MaxContext: m.Context}.Fit(models.Memory{Total: e.Info.Memory.Total, Free: e.Info.Memory.Available})
}

// Arms follow from the model's mode.
func (e *Engine) Arms() []string {
	st := e.Status()
	switch {
	case st.Model == nil:
		return nil
	case st.Model.Mode == "baseline" || st.Model.Mode == "lookup":
		return []string{"baseline", "lookup"}
	}
	return []string{st.Model.Mode, "baseline", "lookup"}
}

// Requests returns Running.
func (e *Engine) Requests() []engine.RequestInfo {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.Running)
}

// CancelRequest takes a request out of Running.
func (e *Engine) CancelRequest(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.Running)
	e.Running = slices.DeleteFunc(e.Running, func(r engine.RequestInfo) bool { return r.ID == id })
	return len(e.Running) < n
}

// Doctor returns Findings.
func (e *Engine) Doctor() []engine.Finding { return e.Findings }
