package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
	"sparkbar/engine/telemetry"
)

// notReady is GET /health while no model is loaded or one is loading. Keys
// from Version on are additions to the reference.
type notReady struct {
	Status   string               `json:"status"`
	Model    *string              `json:"model"`
	Loading  bool                 `json:"loading"`
	Phase    *string              `json:"phase"`
	Download *downloadProgress    `json:"download"`
	Warnings []engine.Warning     `json:"warnings"`
	Error    *string              `json:"error"`
	Progress *engine.LoadProgress `json:"progress"`
	Serving  *string              `json:"serving,omitempty"` // the model that answers meanwhile
	liveness
}

// ready is GET /health with a model. Switches of kernels that this engine does
// not have read as off.
type ready struct {
	Status              string           `json:"status"`
	Model               string           `json:"model"`
	Mode                string           `json:"mode"`
	Target              string           `json:"target"`
	Drafter             *string          `json:"drafter"`
	MaxDraft            string           `json:"max_draft"`
	LookupDrafts        bool             `json:"lookup_drafts"`
	ConfidenceThreshold float64          `json:"confidence_threshold"`
	RaceArmConfidence   bool             `json:"race_arm_confidence"`
	SmallM              bool             `json:"small_m"`
	SDPASplit           bool             `json:"sdpa_split"`
	MultirowAttn        bool             `json:"multirow_attn"`
	DrafterWindow       *int             `json:"drafter_window"`
	CPUSplit            *cpuSplit        `json:"cpu_split"`
	CPUSplitSuspended   *cpuSplit        `json:"cpu_split_suspended"`
	Warmup              bool             `json:"warmup"`
	ContextWindow       *int             `json:"context_window"`
	KVBits              int              `json:"kv_bits"`
	Warnings            []engine.Warning `json:"warnings"`
	MemoryGuard         guardInfo        `json:"memory_guard"`
	MaxOutputTokens     int              `json:"max_output_tokens"`
	SupportsEffort      bool             `json:"supports_reasoning_effort"`
	ThinkingDefault     string           `json:"thinking_default"`
	ReasoningEffort     *string          `json:"reasoning_effort"`
	Backend             string           `json:"backend"`
	Architecture        string           `json:"architecture"`
	WeightBytes         int64            `json:"weight_bytes"`
	DrafterBytes        int64            `json:"drafter_bytes"`
	liveness
}

// cpuSplit is the CPU's part in prompts beside a GPU: its fraction of the layers of a
// width. Rows of a prompt are shared however few they are, so MinRows is 1.
type cpuSplit struct {
	MinRows int                `json:"min_rows"`
	Fracs   map[string]float64 `json:"fracs"`
}

func splitOf(m map[int]float64) *cpuSplit {
	if len(m) == 0 {
		return nil
	}
	s := &cpuSplit{1, map[string]float64{}}
	for width, f := range m {
		s.Fracs[strconv.Itoa(width)] = f
	}
	return s
}

// liveness tells a busy server from a stuck one.
type liveness struct {
	State         engine.State `json:"state"`
	Version       string       `json:"version"`
	UptimeSeconds float64      `json:"uptime_seconds"`
	InFlight      int          `json:"in_flight"`
	Queued        int          `json:"queued"`
	LastRoundAge  *float64     `json:"last_round_age_seconds"` // nil before the first round
}

func (s *Server) health(c *gin.Context) *apiError {
	s.reply(c, http.StatusOK, s.healthOf(s.engine.Status()))
	return nil
}

func (s *Server) livenessOf(st engine.Status) liveness {
	now := time.Now()
	l := liveness{State: st.State, Version: st.Version, UptimeSeconds: tenths(now.Sub(st.StartedAt).Seconds()), InFlight: st.InFlight, Queued: st.Queued}
	log := s.engine.Rounds()
	if last := log.Rounds(1); len(last) == 1 {
		age := tenths((log.Since(now) - last[0].T) / 1000)
		l.LastRoundAge = &age
	}
	return l
}

func tenths(x float64) float64 { return float64(int64(x*10)) / 10 }

func (s *Server) healthOf(st engine.Status) any {
	warnings := st.Warnings
	if warnings == nil {
		warnings = []engine.Warning{}
	}
	phase, loading := loadPhase(st)
	m := st.Model
	if m == nil || loading {
		h := notReady{Status: "no_model", Loading: loading, Warnings: warnings, Error: optional(st.LastError),
			Download: loadDownload(st.Loading), Progress: st.Loading, liveness: s.livenessOf(st)}
		if loading {
			h.Status, h.Phase = "loading", &phase
		}
		if m != nil {
			h.Model, h.Serving = &m.ID, &m.ID
		}
		return h
	}
	h := ready{Status: "ok", Model: m.ID, Mode: m.Mode, Target: m.Target, Drafter: optional(m.Drafter), MaxDraft: "auto",
		LookupDrafts: m.LookupDrafts, RaceArmConfidence: true, MemoryGuard: guardOf(st.Guard), ConfidenceThreshold: m.Confidence, Warmup: m.Warmup, KVBits: m.KVBits, Warnings: warnings,
		MaxOutputTokens: st.MaxTokensCap, SupportsEffort: m.SupportsEffort, ThinkingDefault: "off", ReasoningEffort: optional(m.ReasoningEffort),
		Backend: m.Backend, Architecture: m.Architecture, WeightBytes: m.WeightBytes, DrafterBytes: m.DrafterBytes,
		DrafterWindow: positive(m.DrafterWindow), ContextWindow: positive(m.ContextWindow), CPUSplit: splitOf(st.CPUSplit), CPUSplitSuspended: splitOf(st.CPUSplitEnded), liveness: s.livenessOf(st)}
	if m.MaxDraft > 0 {
		h.MaxDraft = strconv.Itoa(m.MaxDraft)
	}
	if m.ThinkingDefault {
		h.ThinkingDefault = "on"
	}
	return h
}

func positive(n int) *int {
	if n <= 0 {
		return nil
	}
	return &n
}

type roundsReply struct {
	Rounds []telemetry.Round `json:"rounds"`
	Stats  telemetry.Stats   `json:"stats"`
}

func (s *Server) rounds(c *gin.Context) *apiError {
	if _, err := s.ready(); err != nil {
		return err
	}
	limit, err := strconv.Atoi(c.Query("limit"))
	if err != nil {
		limit = 128
	}
	log := s.engine.Rounds()
	s.reply(c, http.StatusOK, roundsReply{log.Rounds(limit), log.Stats()})
	return nil
}

// metricsReply is GET /metrics. Facts that nobody has measured are null.
type metricsReply struct {
	Model string `json:"model"`
	Mode  string `json:"mode"`
	telemetry.TotalsReport
	PrefixCache prefixCache        `json:"prefix_cache"`
	AutoCap     any                `json:"auto_cap"`
	Rounds      telemetry.Stats    `json:"rounds"`
	Batching    *engine.Batching   `json:"batching,omitempty"` // nil: generations run one at a time
	Memory      allocator          `json:"memory"`
	System      systemMemory       `json:"system"`
	Verdict     *telemetry.Verdict `json:"verdict"`
	MemoryGuard guardInfo          `json:"memory_guard"`
	liveness
}

// prefixCache is what is kept of finished conversations. Off, Enabled stands
// alone.
type prefixCache struct {
	Enabled bool `json:"enabled"`
	*prefixDetail
}

type prefixDetail struct {
	Mode         string       `json:"mode"`          // trim: cut anywhere; checkpoint: used whole
	CachedTokens int          `json:"cached_tokens"` // of the newest
	Slots        []prefixSlot `json:"slots"`
	Hits         int          `json:"hits"`
	PartialHits  int          `json:"partial_hits"`
	ReusedTokens int          `json:"reused_tokens"`
	L2           bool         `json:"l2"` // a tier on disk
}

type prefixSlot struct {
	Tokens  int    `json:"tokens"`
	Spilled bool   `json:"spilled"`
	Kind    string `json:"kind"`
	Rungs   []int  `json:"rungs,omitempty"` // lengths at which it can be cut, of a checkpoint
}

func (s *Server) prefixCache(g *engine.Gauges) prefixCache {
	if !s.engine.PrefixCache() {
		return prefixCache{}
	}
	d := &prefixDetail{Mode: "trim", Slots: []prefixSlot{}}
	if g != nil {
		if !g.Trimmable {
			d.Mode = "checkpoint"
		}
		for i, n := range g.Store.Tokens {
			slot := prefixSlot{Tokens: n, Kind: d.Mode}
			if i < len(g.Store.Rungs) {
				slot.Rungs = g.Store.Rungs[i]
			}
			d.Slots = append(d.Slots, slot)
		}
		if len(g.Store.Tokens) > 0 {
			d.CachedTokens = g.Store.Tokens[0]
		}
		d.L2 = g.Store.Disk != nil
		d.Hits, d.PartialHits, d.ReusedTokens = g.Store.Hits, g.Store.PartialHits, g.Store.ReusedTokens
	}
	return prefixCache{true, d}
}

func (s *Server) metrics(c *gin.Context) *apiError {
	st := s.engine.Status()
	if wantsPrometheus(c) {
		_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(writeTimeout))
		c.Data(http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", []byte(s.prometheus(st)))
		return nil
	}
	st, err := s.ready()
	if err != nil {
		return err
	}
	m := metricsReply{Model: st.Model.ID, Mode: st.Model.Mode, TotalsReport: s.engine.Totals(),
		Rounds: s.engine.Rounds().Stats(), liveness: s.livenessOf(st), MemoryGuard: guardOf(st.Guard)}
	g, info := s.engine.Gauges(), s.engine.Machine()
	m.PrefixCache, m.Memory, m.System = s.prefixCache(g), allocatorOf(info, st.Model, g), systemMemoryOf(info)
	if g != nil {
		m.Batching = g.Batching
		if g.Controller != nil {
			m.AutoCap = g.Controller
		}
	}
	if last := s.latest.Load(); last != nil && m.Requests > 0 {
		v := s.verdict(last, st.Model, info)
		m.Verdict = &v
	}
	s.reply(c, http.StatusOK, m)
	return nil
}

func wantsPrometheus(c *gin.Context) bool {
	switch c.Query("format") {
	case "prometheus":
		return true
	case "json":
		return false
	}
	accept := c.GetHeader("Accept")
	return strings.Contains(accept, "text/plain") || strings.Contains(accept, "openmetrics-text")
}

// prometheus is the text exposition format. Counters start anew with each load.
func (s *Server) prometheus(st engine.Status) string {
	var b strings.Builder
	metric := func(name, kind, help string, v float64, labels string) {
		fmt.Fprintf(&b, "# HELP sparkbar_%s %s\n# TYPE sparkbar_%s %s\nsparkbar_%s%s %s\n", name, help, name, kind, name, labels,
			strconv.FormatFloat(v, 'g', -1, 64))
	}
	live := s.livenessOf(st)
	metric("info", "gauge", "Version of the server.", 1, promLabels("version", st.Version))
	metric("uptime_seconds", "gauge", "Seconds since the start.", live.UptimeSeconds, "")
	metric("requests_in_flight", "gauge", "Generations running.", float64(st.InFlight), "")
	metric("requests_queued", "gauge", "Generations waiting.", float64(st.Queued), "")
	loaded := 0.0
	if st.Model != nil {
		loaded = 1
	}
	metric("model_loaded", "gauge", "1 while a model can answer.", loaded, "")
	if st.Model == nil {
		return b.String()
	}
	m := st.Model
	info := s.engine.Machine()
	metric("resident_bytes", "gauge", "Memory of the process.", float64(info.Resident), "")
	metric("memory_pressure_level", "gauge", "1 normal, 2 warn, 4 critical, 0 unknown.", float64(info.Memory.PressureLevel), "")
	metric("model_info", "gauge", "The loaded model.", 1, promLabels("model", m.ID, "mode", m.Mode, "backend", m.Backend))
	metric("model_weight_bytes", "gauge", "Bytes of weights.", float64(m.WeightBytes+m.DrafterBytes), "")
	t, r := s.engine.Totals(), s.engine.Rounds().Stats()
	metric("requests_total", "counter", "Finished generations since the load.", float64(t.Requests), "")
	metric("prompt_tokens_total", "counter", "Prompt tokens of finished generations.", float64(t.PromptTokens), "")
	metric("completion_tokens_total", "counter", "Tokens of finished generations.", float64(t.CompletionTokens), "")
	metric("rounds_total", "counter", "Decoding rounds.", float64(r.Rounds), "")
	metric("committed_tokens_total", "counter", "Tokens that rounds committed.", float64(r.CommittedTokens), "")
	metric("lookup_rounds_total", "counter", "Rounds whose draft came from lookup.", float64(r.LookupRounds), "")
	metric("accept_length", "gauge", "Mean tokens per round.", r.MeanAcceptLen, "")
	metric("draft_acceptance_ratio", "gauge", "Accepted drafts over offered drafts.", r.DraftAcceptance, "")
	metric("decode_tokens_per_second", "gauge", "Mean decode rate.", t.MeanDecodeTokensPerSec, "")
	if g := s.engine.Gauges(); g != nil {
		metric("prefix_cache_hits_total", "counter", "Prompts whose beginning was kept.", float64(g.Store.Hits), "")
		metric("prefix_cache_reused_tokens_total", "counter", "Prompt tokens that were not read again.", float64(g.Store.ReusedTokens), "")
		if disk := g.Store.Disk; disk != nil {
			metric("prefix_disk_hits_total", "counter", "Prompts whose beginning came from disk.", float64(g.Store.DiskHits), "")
			metric("prefix_disk_bytes", "gauge", "Bytes of the folder of stored prefixes.", float64(disk.Bytes), "")
			metric("prefix_disk_limit_bytes", "gauge", "Bytes that it may hold.", float64(disk.Limit), "")
		}
		metric("kv_pages_used", "gauge", "Pages of the cache in use.", float64(g.PagesUsed), "")
		metric("kv_pages", "gauge", "Pages of the cache.", float64(g.Pages), "")
	}
	if live.LastRoundAge != nil {
		metric("last_round_age_seconds", "gauge", "Seconds since the latest round.", *live.LastRoundAge, "")
	}
	return b.String()
}

// promLabels writes label pairs; values are escaped as the format asks.
func promLabels(pairs ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		fmt.Fprintf(&b, `%s%s="%s"`, sep, pairs[i], escape.Replace(pairs[i+1]))
	}
	return b.String() + "}"
}

// The rhythm of the event streams.
const (
	eventBuffer   = 256
	eventReplay   = 32 // rounds shown to a new subscriber
	eventIdle     = time.Second
	idleForStats  = 15
	adminIdle     = 5 * time.Second
	adminBuffer   = 1024
	roundEvent    = "round"
	prefillEvent  = "prefill"
	statsEvent    = "stats"
	stateEvent    = "state"
	eventComment  = ": keepalive\n\n"
	errNotEncoded = "event could not be encoded"
)

// untilStop ends with the request or when the server begins to stop.
func (s *Server) untilStop(c *gin.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(c.Request.Context())
	go func() {
		select {
		case <-s.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// next waits for an event, but not longer than idle; ok is false when idle.
func next(ctx context.Context, sub *telemetry.Subscription, idle time.Duration) (e telemetry.Event, ok bool, err error) {
	wait, cancel := context.WithTimeout(ctx, idle)
	defer cancel()
	e, err = sub.Next(wait)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return e, false, nil
	}
	return e, err == nil, err
}

// events streams rounds and prefill progress of the loaded model; it ends when
// that model is swapped or unloaded.
func (s *Server) events(c *gin.Context) *apiError {
	st, err := s.ready()
	if err != nil {
		return err
	}
	same := func() bool {
		now := s.engine.Status().Model
		return now != nil && now.LoadedAt.Equal(st.Model.LoadedAt) && now.Target == st.Model.Target
	}
	ctx, cancel := s.untilStop(c)
	defer cancel()
	sub := s.engine.Events().Subscribe(eventBuffer) // before the replay, so that nothing falls between
	defer sub.Close()
	log := s.engine.Rounds()
	out := newEventStream(c.Writer)
	shown := 0
	for _, r := range log.Rounds(eventReplay) {
		if out.event(roundEvent, r) != nil {
			return nil
		}
		shown = r.Seq
	}
	if out.event(statsEvent, log.Stats()) != nil {
		return nil
	}
	for idle := 0; ; {
		e, ok, err := next(ctx, sub, eventIdle)
		if err != nil {
			return nil
		}
		if !ok {
			if !same() || out.write(eventComment) != nil {
				return nil
			}
			if idle++; idle == idleForStats {
				idle = 0
				if out.event(statsEvent, log.Stats()) != nil {
					return nil
				}
			}
			continue
		}
		switch data := e.Data.(type) {
		case telemetry.Round:
			idle = 0
			if data.Seq > shown && out.event(roundEvent, data) != nil {
				return nil
			}
		case telemetry.Prefill:
			idle = 0
			if out.event(prefillEvent, data) != nil {
				return nil
			}
		case engine.Status:
			if !same() {
				return nil
			}
		}
	}
}

// adminEvents streams everything, across loads and swaps. A state event has
// the shape of GET /health, a download event that of GET /admin/downloads.
func (s *Server) adminEvents(c *gin.Context) *apiError {
	ctx, cancel := s.untilStop(c)
	defer cancel()
	sub := s.engine.Events().Subscribe(adminBuffer)
	defer sub.Close()
	out := newEventStream(c.Writer)
	if out.event(stateEvent, s.healthOf(s.engine.Status())) != nil {
		return nil
	}
	for {
		e, ok, err := next(ctx, sub, adminIdle)
		switch {
		case err != nil:
			return nil
		case !ok:
			err = out.write(eventComment)
		default:
			switch data := e.Data.(type) {
			case engine.Status:
				e.Data = s.healthOf(data)
			case engine.Download:
				e.Data = downloadOf(data)
			case engine.GuardStatus:
				e.Data = guardOf(data)
			}
			if _, bad := json.Marshal(e.Data); bad != nil {
				s.options.Log.Error(errNotEncoded, "event", e.Name, "error", bad)
				continue
			}
			err = out.event(e.Name, e.Data)
		}
		if err != nil {
			return nil
		}
	}
}
