package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
)

// maxParallel bounds the generations that one HTTP request keeps in flight.
const maxParallel = 8

// frames writes a generation as the events of one dialect. Methods return the
// write error of the stream.
type frames interface {
	begin(out *eventStream) error
	delta(out *eventStream, index int, d engine.Delta) error
	keepAlive(out *eventStream, p engine.Progress) error
	end(out *eventStream, results []engine.Result) error
	fail(out *eventStream, e *apiError) error
}

// ready returns the engine's state, or why nothing can answer.
func (s *Server) ready() (engine.Status, *apiError) {
	st := s.engine.Status()
	if st.Model != nil {
		return st, nil
	}
	if _, ok := loadPhase(st); ok {
		return st, loading()
	}
	return st, noModel()
}

// open reads the body of a generation route and checks that the model it names
// can answer, perhaps after a load.
func (s *Server) open(c *gin.Context) (f *fields, m asked, err *apiError) {
	if f, err = s.body(c); err != nil {
		return
	}
	if name := f.text("model"); name != nil {
		m.id = *name
	}
	if f.err != nil {
		return // other fields may come before it in the profile's order
	}
	if e := s.engine.Check(m.id); e != nil {
		err = fromEngine(e, "could not use the model")
		return
	}
	m.shown, m.engine = cmp.Or(m.id, s.profile.NoModelName), s.engine
	return
}

// asked is the model that a request is about. It may still have to be loaded, so
// what an answer says of it is found out when the answer begins, and kept.
type asked struct {
	id, shown, print string
	engine           Engine
}

// name is what the answer has as "model": the name in the request, or the id of the
// model that answers.
func (m *asked) name() string {
	if m.shown != "" {
		return m.shown
	}
	st := m.engine.Status()
	switch {
	case st.Model != nil:
		m.shown = st.Model.ID
	case st.Loading != nil: // a stream begins before its model is there
		m.shown = st.Loading.Model
	}
	return m.shown
}

// fingerprint names what decides the bits of an answer; it is the same for all of it.
func (m *asked) fingerprint() string {
	if m.print == "" {
		st := m.engine.Status()
		m.print = "sparkbar-" + st.Version
		if st.Model != nil {
			m.print += "-" + st.Model.Backend
		}
	}
	return m.print
}

func shorten(s string) string {
	if len(s) > 200 {
		return strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// maxTokens reads the first limit that is set.
func (s *Server) maxTokens(f *fields, keys ...string) int {
	for _, key := range keys {
		if n := f.integer(key, s.profile.MinMaxTokens, math.MaxInt32); n != nil && *n > 0 {
			return *n
		}
	}
	return s.profile.MaxTokens
}

// sampling reads the fields that all OpenAI-shaped routes share; Anthropic
// requests use a part of them.
func (s *Server) sampling(f *fields) engine.Sampling {
	p := &s.profile
	v := engine.Sampling{
		Temperature: f.number("temperature", 0, math.MaxFloat32),
		TopP:        f.number("top_p", 0, 1),
		MinP:        f.number("min_p", 0, 1),
		TopK:        f.integer("top_k", p.MinTopK, math.MaxInt32),
		Seed:        f.seed(),
	}
	if v.Temperature == nil {
		v.Temperature = p.Temperature
	}
	if v.TopK != nil && *v.TopK < 0 {
		*v.TopK = 0 // off
	}
	set := func(dst *float64, key string, lo, hi float64) {
		if x := f.number(key, lo, hi); x != nil {
			*dst = *x
		}
	}
	q := &v.Params
	set(&q.XTCProbability, "xtc_probability", 0, 1)
	set(&q.XTCThreshold, "xtc_threshold", 0, 0.5)
	set(&q.RepetitionPenalty, "repetition_penalty", 0, math.MaxFloat32)
	set(&q.PresencePenalty, "presence_penalty", -math.MaxFloat32, math.MaxFloat32)
	set(&q.FrequencyPenalty, "frequency_penalty", -math.MaxFloat32, math.MaxFloat32)
	window := func(key string) *int {
		if n := f.integer(key, 0, math.MaxInt32); n != nil {
			return n
		}
		return p.PenaltyWindow
	}
	q.RepetitionContextSize = window("repetition_context_size")
	q.PresenceContextSize = window("presence_context_size")
	q.FrequencyContextSize = window("frequency_context_size")
	q.LogitBias = f.logitBias()
	return v
}

// seed accepts any 64-bit integer; a negative one is taken as its bits.
func (f *fields) seed() *uint64 {
	v, ok := f.get("seed")
	if !ok {
		return nil
	}
	if u, err := strconv.ParseUint(string(v), 10, 64); err == nil {
		return &u
	}
	n, ok := f.whole(v)
	if !ok {
		f.badType("seed", "integer")
		return nil
	}
	u := uint64(n)
	return &u
}

// logitBias reads {"<token id>": bias}; biases may be written as strings.
func (f *fields) logitBias() map[int32]float64 {
	o := f.object("logit_bias")
	if o == nil {
		return nil
	}
	bias := make(map[int32]float64, len(o.raw))
	for key, v := range o.raw {
		id, err := strconv.ParseInt(key, 10, 32)
		x, ok := parseNumber([]byte(strings.Trim(string(f.counted(v)), `"`)))
		if err != nil || id < 0 || !ok {
			f.badValue("logit_bias", "must be a dict of int to float")
			return nil
		}
		bias[int32(id)] = x
	}
	return bias
}

// derivedSeed gives each choice of a request its own stream of random numbers;
// the first keeps the seed as it is.
func derivedSeed(seed *uint64, choice int) *uint64 {
	if seed == nil || choice == 0 {
		return seed
	}
	z := *seed + uint64(choice)*0x9e3779b97f4a7c15 // SplitMix64
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return &z
}

// choices makes n requests of one: own ids, own seeds.
func choices(req engine.Request, n int) []engine.Request {
	all := make([]engine.Request, n)
	for i := range all {
		all[i] = req
		all[i].Sampling.Seed = derivedSeed(req.Sampling.Seed, i)
		if i > 0 {
			all[i].ID = req.ID + "-" + strconv.Itoa(i)
		}
	}
	return all
}

// run generates all requests, up to maxParallel at once. emit may be called for
// several of them at the same time. The first error ends all.
func (s *Server) run(ctx context.Context, reqs []engine.Request, emit func(int, engine.Delta) error) ([]engine.Result, error) {
	results := make([]engine.Result, len(reqs))
	if len(reqs) == 1 {
		var err error
		results[0], err = s.generate(ctx, reqs[0], func(d engine.Delta) error { return emit(0, d) })
		return results, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxParallel)
	for i := range reqs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			var err error
			if results[i], err = s.generate(ctx, reqs[i], func(d engine.Delta) error { return emit(i, d) }); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return results, context.Cause(ctx)
}

// generate calls the engine and turns a panic into an error of this request.
func (s *Server) generate(ctx context.Context, req engine.Request, emit func(engine.Delta) error) (res engine.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.options.Log.Error("panic", "request", req.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = &engine.Error{Kind: engine.ErrInternal, Message: "internal error, see the log for request " + req.ID}
		}
	}()
	if s.options.LogPrompts {
		s.options.Log.Info("prompt", "request", req.ID, "prompt", promptText(&req.Prompt))
		defer func() {
			if err == nil {
				s.options.Log.Info("answer", "request", req.ID, "reason", res.FinishReason, "reasoning", res.Reasoning, "text", res.Text, "calls", res.ToolCalls)
			}
		}()
	}
	if res, err = s.engine.Generate(ctx, req, emit); err == nil && req.Arm == nil {
		s.latest.Store(&res.Stats)
	}
	return res, err
}

// failure turns the error of a generation into an answer.
func (s *Server) failure(err error) *apiError {
	e := fromEngine(err, "generation failed")
	if s.isStopping() && (e.Status == http.StatusConflict || errors.Is(err, context.Canceled)) {
		e = &apiError{Status: http.StatusServiceUnavailable, Type: "service_unavailable", Message: "the server is stopping"}
	}
	e.Status = s.profile.EngineStatus(e)
	return e
}

func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// collect runs requests whose answer is sent at the end. emit may be nil.
func (s *Server) collect(c *gin.Context, reqs []engine.Request, emit func(int, engine.Delta) error) ([]engine.Result, *apiError) {
	if emit == nil {
		emit = func(int, engine.Delta) error { return nil }
	}
	results, err := s.run(c.Request.Context(), reqs, emit)
	if err != nil {
		return nil, s.failure(err)
	}
	return results, nil
}

// stream runs requests and writes their deltas as they come. Headers and the
// first frame are held back until the engine has accepted the request, so that
// a bad prompt gets its status, but not longer than the first keep-alive.
func (s *Server) stream(c *gin.Context, reqs []engine.Request, f frames) *apiError {
	ctx, cancel := context.WithCancel(c.Request.Context())
	type indexed struct {
		choice int
		engine.Delta
	}
	type outcome struct {
		results []engine.Result
		err     error
	}
	for i := range reqs {
		reqs[i].StreamCalls = true
	}
	deltas, ended := make(chan indexed), make(chan outcome, 1)
	go func() {
		results, err := s.run(ctx, reqs, func(choice int, d engine.Delta) error {
			select {
			case deltas <- indexed{choice, d}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		ended <- outcome{results, err}
		close(ended)
	}()
	defer func() {
		cancel()
		for range ended { // the generation ends before its request does
		}
	}()

	out := newEventStream(c.Writer)
	timer := time.NewTimer(firstKeepAlive)
	defer timer.Stop()
	var progress engine.Progress
	begin := func() error {
		if out.begun {
			return nil
		}
		return f.begin(out)
	}
	for {
		var err error
		select {
		case d := <-deltas:
			if d.Prefill != nil {
				progress = *d.Prefill
				continue
			}
			before := out.frames
			if err = begin(); err == nil {
				err = f.delta(out, d.choice, d.Delta)
			}
			if out.frames > before { // not all deltas show: the client waits since the last frame
				timer.Reset(keepAlivePeriod)
			}
		case <-timer.C:
			if err = begin(); err == nil {
				err = f.keepAlive(out, progress)
			}
			timer.Reset(keepAlivePeriod)
		case o := <-ended:
			switch {
			case o.err == nil:
				if err = begin(); err == nil {
					err = f.end(out, o.results)
				}
			case !out.begun:
				return s.failure(o.err)
			default:
				err = f.fail(out, s.failure(o.err))
			}
			if err != nil {
				s.options.Log.Debug("client gone", "request", requestID(c), "error", err)
			}
			return nil
		}
		if err != nil {
			s.options.Log.Debug("client gone", "request", requestID(c), "error", err)
			return nil
		}
	}
}

// thinking reads how much a model shall think, in the words of all dialects:
// enable_thinking; thinking, as Anthropic has it or a boolean; reasoning_effort,
// or the effort that a dialect keeps elsewhere. off is true if the client has
// switched thinking off.
func (f *fields) thinking(kwargs map[string]any, elsewhere *string) (off bool) {
	enable := f.boolean("enable_thinking")
	if on := f.thinks(); enable == nil {
		enable = on
	}
	if enable != nil {
		kwargs["enable_thinking"] = *enable
		off = !*enable
	}
	effort := f.text("reasoning_effort")
	if elsewhere != nil {
		effort = elsewhere
	}
	if effort != nil && !setEffort(kwargs, *effort) {
		f.fail(invalid("reasoning_effort", "reasoning_effort must be one of low, medium, high, xhigh, got '%s'", shorten(*effort)))
	}
	return off
}

// setEffort is false for a level that nobody knows.
func setEffort(kwargs map[string]any, effort string) bool {
	switch level := strings.ToLower(effort); {
	case slices.Contains(engine.Efforts, level):
		kwargs["reasoning_effort"] = level
	case level == "minimal":
		kwargs["reasoning_effort"] = "low"
	case level == "none":
		if _, given := kwargs["enable_thinking"]; !given {
			kwargs["enable_thinking"] = false
		}
	default:
		return false
	}
	return true
}

// thinks reads the field thinking; nil = it leaves the choice to the server.
func (f *fields) thinks() *bool {
	v, ok := f.get("thinking")
	if !ok {
		return nil
	}
	on := string(v) == "true"
	if isTruth(v) {
		return &on
	}
	o := f.nested("thinking", v)
	if o == nil {
		f.badType("thinking", "an object with a type, or a boolean")
		return nil
	}
	kind := o.text("type")
	if o.err != nil {
		f.fail(o.err)
	}
	if kind == nil || *kind != "enabled" && *kind != "disabled" {
		return nil
	}
	on = *kind == "enabled"
	return &on
}

// promptText is a prompt as the log shows it.
func promptText(p *engine.Prompt) string {
	switch {
	case p.Text != nil:
		return *p.Text
	case p.Tokens != nil:
		return fmt.Sprint(p.Tokens)
	}
	return string(p.Messages)
}
