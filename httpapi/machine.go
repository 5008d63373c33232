package httpapi

import (
	"net/http"
	"runtime"
	"time"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
	"sparkbar/engine/telemetry"
)

// systemMemory is the memory of the machine. Keys that the system does not tell
// are null.
type systemMemory struct {
	TotalBytes     *int64 `json:"total_bytes"`
	Pressure       string `json:"pressure"` // normal, warn, critical, unknown
	PressureLevel  *int   `json:"pressure_level"`
	FreePercent    *int   `json:"free_percent"`
	SwapUsedBytes  int64  `json:"swap_used_bytes"`
	SwapTotalBytes int64  `json:"swap_total_bytes"`
	WiredLimitMB   *int   `json:"wired_limit_mb"`
}

func systemMemoryOf(m engine.MachineInfo) systemMemory {
	out := systemMemory{Pressure: string(m.Memory.Pressure), PressureLevel: positive(m.Memory.PressureLevel), WiredLimitMB: positive(m.Memory.WiredLimitMB),
		SwapUsedBytes: int64(m.Memory.SwapUsed), SwapTotalBytes: int64(m.Memory.SwapTotal)}
	if out.Pressure == "" {
		out.Pressure = "unknown"
	}
	if m.Memory.Total > 0 {
		total := int64(m.Memory.Total)
		out.TotalBytes = &total
	}
	if p, ok := m.Memory.FreePercent(); ok {
		out.FreePercent = &p
	}
	return out
}

// allocator is the memory of this process.
type allocator struct {
	Available bool  `json:"available"`
	Active    int64 `json:"active_bytes"` // weights, and the cache in use
	Peak      int64 `json:"peak_bytes"`   // most the process ever had
	Cache     int64 `json:"cache_bytes"`  // set aside for conversations
}

func allocatorOf(m engine.MachineInfo, model *engine.ModelInfo, g *engine.Gauges) allocator {
	a := allocator{Available: m.Peak > 0, Active: m.Resident, Peak: m.Peak}
	if model != nil && g != nil {
		page := 64 * g.PositionBytes
		a.Available, a.Active, a.Cache = true, model.WeightBytes+model.DrafterBytes+int64(g.PagesUsed)*page, int64(g.Pages)*page
	}
	return a
}

// guardInfo is the memory guard. Where it is off, Enabled stands alone.
type guardInfo struct {
	Enabled bool `json:"enabled"`
	*guardDetail
}

type guardDetail struct {
	Level    string       `json:"level"`
	Pending  *string      `json:"pending"`
	LastShed *engine.Shed `json:"last_shed"`
	Sheds    int          `json:"sheds"`
	Rearm    float64      `json:"rearm_s"`
	Defer    float64      `json:"defer_s"`
}

func guardOf(g engine.GuardStatus) guardInfo {
	if !g.Enabled {
		return guardInfo{}
	}
	return guardInfo{true, &guardDetail{string(g.Level), optional(string(g.Pending)), g.Last, g.Sheds, engine.GuardRearm.Seconds(), engine.GuardDefer.Seconds()}}
}

// bandwidthInfo is how fast memory is read.
type bandwidthInfo struct {
	GBs        *float64 `json:"gb_s"` // nil = not measured yet
	MeasuredAt *float64 `json:"measured_at"`
	Method     *string  `json:"method"`
	Source     string   `json:"source"` // measured, theoretical, unknown
	Reference  float64  `json:"reference_gb_s"`
}

func bandwidthOf(m engine.MachineInfo) bandwidthInfo {
	b := bandwidthInfo{Source: "unknown", Reference: telemetry.ReferenceGBs}
	if m.Bandwidth.GBs > 0 {
		at := float64(m.Bandwidth.MeasuredAt.UnixMilli()) / 1000
		b.GBs, b.MeasuredAt, b.Method, b.Source = &m.Bandwidth.GBs, &at, optional(m.Bandwidth.Method), "measured"
	} else if c := telemetry.LookupChip(m.Chip.Name, 0); c.BandwidthGBs != nil {
		b.GBs, b.Source = c.BandwidthGBs, "theoretical"
	}
	return b
}

// thermalInfo is how hot the machine is; null = the system does not tell.
type thermalInfo struct {
	State   *string  `json:"state"`   // nominal, fair, serious, critical
	Celsius *float64 `json:"celsius"` // of the hottest part
}

func thermalOf(m engine.MachineInfo) thermalInfo {
	t := thermalInfo{State: optional(string(m.Thermal.Heat))}
	if c := tenths(m.Thermal.Celsius); c > 0 {
		t.Celsius = &c
	}
	return t
}

// machineReply is GET /machine. Everything about a model is null without one.
type machineReply struct {
	Chip      telemetry.Chip      `json:"chip"`
	Bandwidth bandwidthInfo       `json:"bandwidth"`
	Memory    machineMemory       `json:"memory"`
	Model     *machineModel       `json:"model"`
	Roofline  *rooflineReply      `json:"roofline"`
	Baseline  *telemetry.Baseline `json:"baseline"`
	Verdict   *telemetry.Verdict  `json:"verdict"`
	Guard     guardInfo           `json:"guard"`
	Thermal   thermalInfo         `json:"thermal"`
	Cores     int                 `json:"cores"`
	OS        string              `json:"os"`
	Arch      string              `json:"arch"`
}

type machineMemory struct {
	systemMemory
	Allocator allocator `json:"allocator"`
}

type machineModel struct {
	Target          string              `json:"target"`
	Drafter         *string             `json:"drafter"`
	Mode            string              `json:"mode"`
	TargetWeights   telemetry.Footprint `json:"target_weights"`
	DrafterWeights  *drafterWeights     `json:"drafter_weights"`
	KVBytesPerToken int64               `json:"kv_bytes_per_token"`
	ContextWindow   int                 `json:"context_window"`
}

type drafterWeights struct {
	telemetry.Footprint
	MayIncludeBound bool `json:"may_include_bound_target_tensors"`
}

type rooflineReply struct {
	Zero   telemetry.RooflinePoint  `json:"at_zero"`
	Last   telemetry.RooflinePoint  `json:"at_last_request"`
	Window *telemetry.RooflinePoint `json:"at_context_window,omitempty"`
}

func (s *Server) machine(c *gin.Context) *apiError {
	st, info := s.engine.Status(), s.engine.Machine()
	r := machineReply{Chip: telemetry.LookupChip(info.Chip.Name, 0), Bandwidth: bandwidthOf(info),
		Memory: machineMemory{systemMemoryOf(info), allocatorOf(info, st.Model, s.engine.Gauges())}, Guard: guardOf(st.Guard), Thermal: thermalOf(info),
		Cores: info.Chip.Cores, OS: info.Chip.OS, Arch: info.Chip.Arch}
	if m := st.Model; m != nil {
		r.Model = &machineModel{Target: m.Target, Drafter: optional(m.Drafter), Mode: m.Mode, TargetWeights: m.Weights,
			KVBytesPerToken: m.KVBytesPerToken, ContextWindow: m.ContextWindow}
		if m.DrafterWeights != nil {
			r.Model.DrafterWeights = &drafterWeights{*m.DrafterWeights, true}
		}
		last := s.latest.Load()
		context := 0
		if last != nil {
			context = last.ContextTokens
		}
		r.Roofline = &rooflineReply{Zero: s.engine.Roofline(m, 0), Last: s.engine.Roofline(m, context)}
		if m.ContextWindow > 0 {
			w := s.engine.Roofline(m, m.ContextWindow)
			r.Roofline.Window = &w
		}
		r.Baseline = s.baseline(m)
		v := s.verdict(last, m, info)
		r.Verdict = &v
	}
	s.reply(c, http.StatusOK, r)
	return nil
}

// calibrationDepth is the context at which rounds are timed.
const calibrationDepth = 512

// baseline is the health of a plain step, nil where none was timed.
func (s *Server) baseline(m *engine.ModelInfo) *telemetry.Baseline {
	cal := s.engine.Calibration()
	if cal.Costs == nil {
		return nil
	}
	p := s.engine.Roofline(m, calibrationDepth)
	bandwidth := 0.0
	if p.CeilingTPS != nil {
		bandwidth = *p.CeilingTPS * float64(p.BytesPerToken) / 1e9
	}
	return telemetry.BaselineMBU(cal.Verify.At(1), p.BytesPerToken, bandwidth)
}

// verdict weighs the latest generation. Plain decoding reads all weights per
// token, so its share of the roofline is the share of the memory bandwidth.
func (s *Server) verdict(last *telemetry.RequestSummary, m *engine.ModelInfo, info engine.MachineInfo) telemetry.Verdict {
	in := telemetry.VerdictInput{Mode: m.Mode, Pressure: string(info.Memory.Pressure), ContextWindow: m.ContextWindow, MoEEstimate: m.Weights.Estimate}
	if b := s.baseline(m); b != nil {
		in.MBU = b.MBU
	}
	if last != nil {
		in.DecodeTPS, in.RatioToCeiling, in.Mode, in.AcceptLen = last.DecodeTokensPerSec, last.RooflineRatio, last.Mode, last.AcceptLen
		in.SwapDeltaBytes, in.DecayRatio, in.Cold, in.ContextTokens = last.SwapDeltaBytes, last.DecayRatio, last.Cold, last.ContextTokens
		if in.MBU == nil && last.Mode == "baseline" {
			in.MBU = last.RooflineRatio
		}
	}
	return in.Verdict()
}

// calibrationReply is GET /calibration.
type calibrationReply struct {
	Available bool   `json:"available"`
	Reason    string `json:"reason,omitempty"`
	Key       string `json:"key,omitempty"`
	*calibrationCosts
}

type calibrationCosts struct {
	Mode           string  `json:"mode"`
	Target         string  `json:"target"`
	Drafter        *string `json:"drafter"`
	Verify         any     `json:"verify_ms"`
	DrafterMS      any     `json:"drafter_ms"`
	Overhead       float64 `json:"round_overhead_ms"`
	Recommendation any     `json:"recommendation"`
	Grid           any     `json:"verify_grid,omitempty"`
	Controller     any     `json:"controller,omitempty"`
}

func (s *Server) calibration(c *gin.Context) *apiError {
	st, err := s.ready()
	if err != nil {
		return err
	}
	m, cal := st.Model, s.engine.Calibration()
	switch {
	case m.Mode != "dspark" && m.Mode != "dflash" && m.Mode != "draft":
		s.reply(c, http.StatusOK, calibrationReply{Reason: "calibration applies to dspark/dflash, not '" + m.Mode + "'"})
		return nil
	case cal.Costs == nil:
		s.reply(c, http.StatusOK, calibrationReply{Key: cal.Key, Reason: "not calibrated yet on this machine — loading the pair with --max-draft auto measures the curves automatically"})
		return nil
	}
	r := calibrationReply{Available: true, Key: cal.Key, calibrationCosts: &calibrationCosts{Mode: m.Mode, Target: m.Target, Drafter: optional(m.Drafter),
		Verify: cal.Verify, DrafterMS: cal.Drafter, Overhead: cal.Overhead, Recommendation: cal.Report()}}
	if len(cal.Grid) > 0 {
		r.Grid = cal.Grid
	}
	if g := s.engine.Gauges(); g != nil && g.Controller != nil {
		r.Controller = g.Controller
	}
	s.reply(c, http.StatusOK, r)
	return nil
}

// doctorReply is GET /doctor. Problems are findings that keep something from
// working, in the words of the reference; Findings are all, each with its fix.
type doctorReply struct {
	OK          bool              `json:"ok"`
	Problems    []string          `json:"problems"`
	Findings    []engine.Finding  `json:"findings"`
	Environment doctorEnvironment `json:"environment"`
	Models      []registryRow     `json:"models"`
	ModelDirs   modelDirs         `json:"model_dirs"`
}

type doctorEnvironment struct {
	Version      string        `json:"version"`
	Platform     string        `json:"platform"`
	Machine      string        `json:"machine"`
	OSVersion    *string       `json:"os_version"`
	Go           string        `json:"go"`
	Python       *string       `json:"python"` // there is none; the key is the reference's, as are the next nulls
	AppleSilicon bool          `json:"apple_silicon"`
	MetalOK      *bool         `json:"metal_ok"` // whether the loaded model runs on it
	Backend      *string       `json:"backend"`  // of the loaded model
	Device       string        `json:"device"`
	MetalError   *string       `json:"metal_error"` // findings say it
	RAMGB        *float64      `json:"ram_gb"`
	WiredLimitMB *int          `json:"iogpu_wired_limit_mb"`
	WiredHint    *string       `json:"wired_limit_hint"`
	Packages     *string       `json:"packages"` // there are none
	Chip         doctorChip    `json:"chip"`
	Bandwidth    bandwidthInfo `json:"bandwidth"`
	Memory       systemMemory  `json:"memory"`
}

type doctorChip struct {
	telemetry.Chip
	Measured *float64 `json:"bandwidth_measured_gb_s"`
}

type modelDirs struct {
	Cache    string   `json:"cache"` // of models that mlx-dspark converted
	Hub      string   `json:"hub"`
	LMStudio []string `json:"lmstudio"`
	Ollama   string   `json:"ollama"`
	Extra    []string `json:"extra"`
}

func (s *Server) doctor(c *gin.Context) *apiError {
	st, info, places := s.engine.Status(), s.engine.Machine(), s.engine.Places()
	memory := systemMemoryOf(info)
	r := doctorReply{OK: true, Problems: []string{}, Findings: s.engine.Doctor(), Models: s.registry(),
		ModelDirs: modelDirs{Hub: places.Hub, LMStudio: nonNil(places.LMStudio), Ollama: places.Ollama, Extra: nonNil(places.Folders)},
		Environment: doctorEnvironment{Version: st.Version, Platform: info.Chip.OS, Machine: info.Chip.Arch, OSVersion: optional(info.Chip.OSVersion),
			Go: runtime.Version(), AppleSilicon: info.Chip.AppleSilicon(), Device: info.Chip.Name, WiredLimitMB: memory.WiredLimitMB,
			Chip: doctorChip{Chip: telemetry.LookupChip(info.Chip.Name, 0)}, Bandwidth: bandwidthOf(info), Memory: memory}}
	if info.Bandwidth.GBs > 0 {
		r.Environment.Chip.Measured = &info.Bandwidth.GBs
	}
	if n := len(places.Folders); n > 0 { // the last one, see models.DefaultPlaces
		r.ModelDirs.Cache, r.ModelDirs.Extra = places.Folders[n-1], places.Folders[:n-1]
	}
	if st.Model != nil {
		metal := st.Model.Backend == "metal"
		r.Environment.Backend, r.Environment.MetalOK = &st.Model.Backend, &metal
	}
	if memory.TotalBytes != nil {
		gb := tenths(float64(*memory.TotalBytes) / (1 << 30))
		r.Environment.RAMGB = &gb
	}
	if r.Findings == nil {
		r.Findings = []engine.Finding{}
	}
	for _, f := range r.Findings {
		if f.Code == "wired_limit" {
			r.Environment.WiredHint = optional(f.Fix)
		}
		if f.Level == engine.LevelProblem {
			r.OK, r.Problems = false, append(r.Problems, f.Message+" — "+f.Fix)
		}
	}
	s.reply(c, http.StatusOK, r)
	return nil
}

func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// requestRow is a generation under way.
type requestRow struct {
	ID           string  `json:"id"`
	State        string  `json:"state"` // queued, running
	Model        *string `json:"model"` // nil while it waits for its model
	Client       string  `json:"client"`
	PromptTokens int     `json:"prompt_tokens"`
	Tokens       int     `json:"tokens"` // generated so far
	Seconds      float64 `json:"seconds"`
}

type requestList struct {
	Requests []requestRow `json:"requests"`
}

type requestCancelled struct {
	Cancelled bool   `json:"cancelled"`
	ID        string `json:"id"`
}

func (s *Server) adminRequests(c *gin.Context) *apiError {
	rows := []requestRow{}
	for _, r := range s.engine.Requests() {
		rows = append(rows, requestRow{r.ID, r.State, optional(r.Model), r.Client, r.PromptTokens, r.Tokens, tenths(time.Since(r.Since).Seconds())})
	}
	s.reply(c, http.StatusOK, requestList{rows})
	return nil
}

func (s *Server) adminCancelRequest(c *gin.Context) *apiError {
	if _, err := s.body(c); err != nil {
		return err
	}
	id := c.Param("id")
	if !s.engine.CancelRequest(id) {
		return &apiError{Status: http.StatusNotFound, Type: "not_found_error", Code: "request_not_found", Field: "id",
			Message: "no request '" + shorten(id) + "' runs or waits; GET /admin/requests lists those that do"}
	}
	s.reply(c, http.StatusOK, requestCancelled{true, id})
	return nil
}
