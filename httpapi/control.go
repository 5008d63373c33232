package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
)

// controlStatus is the answer of the control routes.
type controlStatus struct {
	Ready   bool    `json:"ready"`
	Loading bool    `json:"loading"`
	Model   *string `json:"model"`
	Error   *string `json:"error"`
	*loadStatus
	Downloads []downloadProgress `json:"downloads,omitempty"` // under way, for loads and on their own
}

// loadStatus is there while a load is under way.
type loadStatus struct {
	Phase    string               `json:"phase"`
	Download *downloadProgress    `json:"download"`
	Progress *engine.LoadProgress `json:"progress"`
}

// downloadProgress is how far the files of a model have come.
type downloadProgress struct {
	Repo       string `json:"repo"` // what is being fetched now
	BytesDone  int64  `json:"bytes_done"`
	BytesTotal *int64 `json:"bytes_total"` // nil while unknown
	// State is planning, waiting (another process fetches the same),
	// downloading, paused, done, failed or cancelled.
	State string `json:"state"`
	// BytesPerSecond is 0 and ETASeconds nil while unknown.
	BytesPerSecond float64  `json:"bytes_per_second"`
	ETASeconds     *float64 `json:"eta_seconds"`
	ID             string   `json:"id"`    // for the routes of /admin/downloads
	Model          string   `json:"model"` // as asked for
	Error          *string  `json:"error"` // of one that failed or was cancelled
}

func downloadOf(d engine.Download) downloadProgress {
	out := downloadProgress{Repo: d.Repo, BytesDone: d.BytesDone, State: d.State, BytesPerSecond: tenths(d.BytesPerSecond), ID: d.ID, Model: d.Model, Error: optional(d.Error)}
	if d.BytesTotal > 0 {
		out.BytesTotal = &d.BytesTotal
	}
	if d.ETA > 0 {
		s := tenths(d.ETA.Seconds())
		out.ETASeconds = &s
	}
	return out
}

// loadDownload is the download that a load waits for, nil = none.
func loadDownload(p *engine.LoadProgress) *downloadProgress {
	if p == nil || p.Download == nil {
		return nil
	}
	d := downloadOf(*p.Download)
	return &d
}

// loadPhase names what a load is doing; false if none is under way.
func loadPhase(st engine.Status) (string, bool) {
	switch st.State {
	case engine.StateWarming:
		return "warming_up", true
	case engine.StateResolving, engine.StateDownloading, engine.StateLoading, engine.StateSwapping:
		return "loading", true
	}
	return "", false
}

func (s *Server) controlStatus(st engine.Status) controlStatus {
	out := controlStatus{Ready: st.Model != nil, Error: optional(st.LastError)}
	if st.Model != nil {
		out.Model = &st.Model.ID
	}
	if phase, ok := loadPhase(st); ok {
		out.Loading, out.loadStatus = true, &loadStatus{Phase: phase, Download: loadDownload(st.Loading), Progress: st.Loading}
	}
	for _, d := range s.engine.Downloads() {
		if d.Error == "" && d.State != "done" {
			out.Downloads = append(out.Downloads, downloadOf(d))
		}
	}
	return out
}

func (s *Server) adminStatus(c *gin.Context) *apiError {
	s.reply(c, http.StatusOK, s.controlStatus(s.engine.Status()))
	return nil
}

func (s *Server) adminLoad(c *gin.Context) *apiError {
	f, err := s.body(c)
	if err != nil {
		return err
	}
	req, wait, err := f.loadRequest()
	if err != nil {
		return err
	}
	status := http.StatusOK
	var st engine.Status
	var lerr error
	if wait {
		st, lerr = s.engine.Load(c.Request.Context(), req)
	} else {
		status = http.StatusAccepted
		st, lerr = s.engine.StartLoad(req)
	}
	if lerr != nil {
		e := fromEngine(lerr, fmt.Sprintf("could not load '%s'", shorten(req.Model)))
		if e.Status == http.StatusInternalServerError {
			e.Type = "api_error"
		}
		return e
	}
	s.reply(c, status, s.controlStatus(st))
	return nil
}

// The answers of /admin/load/cancel.
type (
	cancelReply struct {
		Cancelled bool    `json:"cancelled"`
		Repo      *string `json:"repo"`
		Cleanup   bool    `json:"cleanup"`
	}
	notCancelled struct {
		Cancelled bool   `json:"cancelled"`
		Reason    string `json:"reason"`
	}
)

func (s *Server) adminLoadCancel(c *gin.Context) *apiError {
	f, err := s.body(c)
	if err != nil {
		return err
	}
	cleanup, err := f.switched("cleanup", false)
	if err != nil {
		return err
	}
	loading := s.engine.Status().Loading
	if !s.engine.CancelLoad(cleanup) {
		s.reply(c, http.StatusOK, notCancelled{false, "no download in progress"})
		return nil
	}
	answer := cancelReply{true, nil, cleanup}
	if loading != nil {
		answer.Repo = &loading.Model
		if loading.Download != nil && loading.Download.Repo != "" {
			answer.Repo = &loading.Download.Repo
		}
	}
	s.reply(c, http.StatusOK, answer)
	return nil
}

func (s *Server) adminUnload(c *gin.Context) *apiError {
	if _, err := s.body(c); err != nil {
		return err
	}
	st, err := s.engine.Unload(c.Request.Context())
	if err != nil {
		return fromEngine(err, "could not unload")
	}
	s.reply(c, http.StatusOK, s.controlStatus(st))
	return nil
}

// loadKey is one key of the /admin/load body: how to read it, and the rule
// that a bad value is answered with.
type loadKey struct {
	name string
	read func(v json.RawMessage, r *engine.LoadRequest) bool
	rule string
}

// loadKeys are all keys but "model", "mode" and "wait".
var loadKeys = []loadKey{
	{"drafter", func(v json.RawMessage, r *engine.LoadRequest) bool {
		return v[0] == '"' && json.Unmarshal(v, &r.Drafter) == nil && strings.TrimSpace(r.Drafter) != ""
	}, "'drafter' must be a repo or path (omit it for the pair's own drafter)"},
	{"max_draft", func(v json.RawMessage, r *engine.LoadRequest) bool {
		if string(v) == `"auto"` {
			r.MaxDraft = new(int)
			return true
		}
		return wholeIn(v, 1, 64, &r.MaxDraft)
	}, "'max_draft' must be an integer from 1 to 64 or \"auto\" (omit it to keep the pair's measured default)"},
	{"lookup_drafts", func(v json.RawMessage, r *engine.LoadRequest) bool { return truth(v, &r.LookupDrafts) },
		"'lookup_drafts' must be a boolean (omit it to use the pair's measured default)"},
	{"confidence_threshold", func(v json.RawMessage, r *engine.LoadRequest) bool {
		x, ok := parseNumber(v)
		r.ConfidenceThreshold = &x
		return ok && x >= 0 && x <= 1
	}, "'confidence_threshold' must be a number in [0, 1] (0 disables; omit to keep the server default)"},
	{"context_window", func(v json.RawMessage, r *engine.LoadRequest) bool {
		return wholeIn(v, 0, 0, &r.ContextWindow) || wholeIn(v, 1024, 10_000_000, &r.ContextWindow)
	}, "'context_window' must be an integer token count >= 1024, or 0 to reset to the model's own maximum (omit it to keep the current setting — it is sticky across loads)"},
	{"kv_bits", func(v json.RawMessage, r *engine.LoadRequest) bool {
		return wholeIn(v, 0, 8, &r.KVBits) && slices.Contains([]int{0, 4, 8}, *r.KVBits)
	}, "'kv_bits' must be 0 (full precision), 4, or 8 (omit it to keep the server's setting)"},
	{"drafter_window", func(v json.RawMessage, r *engine.LoadRequest) bool {
		return wholeIn(v, 0, 1<<31-1, &r.DrafterWindow)
	}, "'drafter_window' must be a non-negative integer (context rows the DSpark draft block attends; 0 = the whole context; omit it for the pair default)"},
	{"drafter_bits", func(v json.RawMessage, r *engine.LoadRequest) bool {
		return wholeIn(v, 0, 8, &r.DrafterBits) && slices.Contains([]int{0, 2, 3, 4, 5, 6, 8}, *r.DrafterBits)
	}, "'drafter_bits' must be 0 (keep the file's precision), 2, 3, 4, 5, 6 or 8 (omit it to keep the server's setting)"},
	{"warmup", func(v json.RawMessage, r *engine.LoadRequest) bool { return truth(v, &r.Warmup) },
		"'warmup' must be a boolean (false skips the on-load warmup generation; omit it to use the server's setting)"},
	{"enable_thinking", func(v json.RawMessage, r *engine.LoadRequest) bool { return truth(v, &r.EnableThinking) },
		"'enable_thinking' must be a boolean (false = thinking off by default for API clients; omit it to keep the server's setting)"},
	{"reasoning_effort", func(v json.RawMessage, r *engine.LoadRequest) bool {
		level := strings.ToLower(unquote(v))
		r.ReasoningEffort = &level
		return v[0] == '"' && slices.Contains(engine.Efforts, level)
	}, "'reasoning_effort' must be one of low, medium, high, xhigh"},

	// Switches of the reference's kernels: checked, then reported as unused.
	{"small_m", unused("small_m", isTruth), "'small_m' must be a boolean (false forces the stock verify kernel; omit it to use the server's setting)"},
	{"sdpa_split", unused("sdpa_split", isTruth), "'sdpa_split' must be a boolean (false forces the single wide SDPA call; omit it to use the server's setting)"},
	{"multirow_attn", unused("multirow_attn", isTruth), "'multirow_attn' must be a boolean (false forces mlx's own attention kernels; omit it to use the server's setting)"},
	{"memory_guard", func(v json.RawMessage, r *engine.LoadRequest) bool { return truth(v, &r.MemoryGuard) },
		"'memory_guard' must be a boolean (omit it to use the server's setting)"},
	{"cpu_split", func(v json.RawMessage, r *engine.LoadRequest) bool {
		x, ok := parseNumber(v)
		r.CPUSplit = &x
		return ok && x >= 0 && x < 1
	},
		"'cpu_split' must be a number in [0, 1): 0 forces prefill CPU co-prefill off, a fraction pins the CPU row share; omit it to use the server's calibrated setting"},
}

func isTruth(v json.RawMessage) bool { return string(v) == "true" || string(v) == "false" }

func truth(v json.RawMessage, dst **bool) bool {
	b := string(v) == "true"
	*dst = &b
	return isTruth(v)
}

func wholeIn(v json.RawMessage, lo, hi int64, dst **int) bool {
	n, ok := parseInteger(v)
	if !ok || n < lo || n > hi {
		return false
	}
	i := int(n)
	*dst = &i
	return true
}

func unused(name string, valid func(json.RawMessage) bool) func(json.RawMessage, *engine.LoadRequest) bool {
	return func(v json.RawMessage, r *engine.LoadRequest) bool {
		r.Unused = append(r.Unused, name)
		return valid(v)
	}
}

// loadRequest checks the whole body before anything is touched. wait is false
// if the client does not want to wait for the end of the load.
func (f *fields) loadRequest() (r engine.LoadRequest, wait bool, err *apiError) {
	v, _ := f.get("model")
	if len(v) == 0 || v[0] != '"' || strings.TrimSpace(unquote(v)) == "" {
		return r, false, invalid("model", "load needs a 'model' (repo or path)")
	}
	r.Model = strings.TrimSpace(unquote(v))
	if v, ok := f.get("mode"); ok {
		r.Mode = unquote(v)
		if v[0] != '"' || !slices.Contains(engine.Modes, r.Mode) {
			return r, false, invalid("mode", "mode must be one of ('dspark', 'dflash', 'lookup', 'draft', 'baseline') or 'auto', got %s", quote(v))
		}
	}
	for _, k := range loadKeys {
		if v, ok := f.get(k.name); ok && !k.read(v, &r) {
			return r, false, invalid(k.name, "%s", k.rule)
		}
	}
	wait = true
	if v, ok := f.get("wait"); ok {
		if !isTruth(v) {
			return r, false, invalid("wait", "'wait' must be a boolean (false answers at once; follow the load with GET /admin/status)")
		}
		wait = string(v) == "true"
	}
	return r, wait, nil
}
