package httpapi

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
	"sparkbar/engine/models"
	"sparkbar/engine/telemetry"
)

type modelList struct {
	Object string       `json:"object"`
	Data   []modelEntry `json:"data"`
}

// modelEntry is a model in the words of OpenAI; display_name is what pickers
// of Anthropic clients show.
type modelEntry struct {
	ID          string      `json:"id"`
	Object      string      `json:"object"`
	Created     int64       `json:"created"` // when it came to this machine
	OwnedBy     string      `json:"owned_by,omitempty"`
	DisplayName string      `json:"display_name,omitempty"`
	Extra       *modelExtra `json:"x_mlx_dspark,omitempty"` // of the loaded one

	target string // as it was asked for, or would be
	local  bool   // loaded from a path
}

type modelExtra struct {
	Mode    string  `json:"mode"`
	Target  string  `json:"target"`
	Drafter *string `json:"drafter"`
}

// anthropicModel adds what Anthropic's libraries require of a model.
type anthropicModel struct {
	modelEntry
	Type      string `json:"type"`
	CreatedAt string `json:"created_at"` // RFC 3339
	Lifecycle string `json:"lifecycle"`
}

type anthropicModelList struct {
	Data    []anthropicModel `json:"data"`
	FirstID *string          `json:"first_id"`
	LastID  *string          `json:"last_id"`
	HasMore bool             `json:"has_more"`
}

func newAnthropicModel(e modelEntry) anthropicModel {
	if e.DisplayName == "" {
		e.DisplayName = e.ID
	}
	return anthropicModel{e, "model", time.Unix(e.Created, 0).UTC().Format(time.RFC3339), "active"}
}

func newAnthropicModelList(list []modelEntry) anthropicModelList {
	l := anthropicModelList{Data: []anthropicModel{}}
	for _, e := range list {
		l.Data = append(l.Data, newAnthropicModel(e))
	}
	if n := len(list); n > 0 {
		l.FirstID, l.LastID = &list[0].ID, &list[n-1].ID
	}
	return l
}

// served lists what a request can name: the loaded model, then the others of
// this machine that a request may switch to.
func (s *Server) served() []modelEntry {
	st, local := s.engine.Status(), s.engine.Models()
	var list []modelEntry
	if m := st.Model; m != nil {
		e := modelEntry{ID: m.ID, Object: "model", Created: m.LoadedAt.Unix(), target: m.Target}
		if s.profile.PlainModels {
			e.ID, e.local = cmp.Or(m.Path, m.Target), m.Path != ""
		}
		if i := slices.IndexFunc(local, func(x models.Model) bool { return same(x, m.Target) }); i >= 0 && !local[i].Snapshot.IsZero() {
			e.Created = local[i].Snapshot.Unix()
		}
		if s.profile.Extras {
			e.OwnedBy = "sparkbar"
			e.DisplayName = fmt.Sprintf("%s (Sparkbar %s)", m.ID, m.Mode)
			e.Extra = &modelExtra{m.Mode, m.Target, optional(m.Drafter)}
		}
		list = append(list, e)
	}
	for _, x := range local {
		if x.Drafter || !x.Loadable() || st.Model != nil && same(x, st.Model.Target) || s.engine.Check(x.ID) != nil {
			continue
		}
		e := modelEntry{ID: x.ID, Object: "model", Created: max(x.Snapshot.Unix(), 0), target: x.ID}
		if s.profile.Extras {
			e.OwnedBy, e.DisplayName = "sparkbar", x.ID
		}
		list = append(list, e)
	}
	return list
}

// same reports whether a local model is the one that was loaded as target.
func same(m models.Model, target string) bool {
	return m.ID == target || m.Path != "" && m.Path == strings.TrimRight(target, "/")
}

func (s *Server) models(c *gin.Context) *apiError {
	list := s.served()
	if len(list) == 0 && !s.profile.PlainModels {
		_, err := s.ready()
		return err
	}
	if dialectOfRequest(c.Request) == dialectAnthropic && !s.profile.PlainModels {
		s.reply(c, http.StatusOK, newAnthropicModelList(list))
		return nil
	}
	s.reply(c, http.StatusOK, modelList{"list", nonNil(list)})
	return nil
}

func (s *Server) model(c *gin.Context) *apiError {
	list := s.served()
	id := strings.TrimPrefix(c.Param("id"), "/")
	named := func(e modelEntry) bool { return e.ID == id || strings.TrimPrefix(e.target, "/") == id }
	if s.profile.PlainModels { // a list, in which a model loaded from a path always is
		list = slices.DeleteFunc(list, func(e modelEntry) bool { return !named(e) && !e.local })
		s.reply(c, http.StatusOK, modelList{"list", nonNil(list)})
		return nil
	}
	i := slices.IndexFunc(list, named)
	switch {
	case len(list) == 0:
		_, err := s.ready()
		return err
	case i < 0:
		return &apiError{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "model_not_found", Field: "model",
			Message: fmt.Sprintf("there is no model '%s' here; GET /v1/models lists what is", shorten(id))}
	case dialectOfRequest(c.Request) == dialectAnthropic:
		s.reply(c, http.StatusOK, newAnthropicModel(list[i]))
	default:
		s.reply(c, http.StatusOK, list[i])
	}
	return nil
}

// inventory is GET /admin/models.
type inventory struct {
	Models    []registryRow      `json:"models"`
	Installed []installedRow     `json:"installed"`
	Disk      diskUse            `json:"disk"`
	Loaded    *string            `json:"loaded"`
	ModelDirs []string           `json:"model_dirs"`
	Bandwidth inventoryBandwidth `json:"bandwidth"`
}

// registryRow is a published pair and what there is of it.
type registryRow struct {
	WeightBytes      *int64   `json:"weight_bytes"`
	CeilingTPS       *float64 `json:"ceiling_tps"`
	ID               string   `json:"id"`
	Target           string   `json:"target"`
	Mode             string   `json:"mode"`
	DSpark           *string  `json:"dspark_drafter"`
	DFlash           *string  `json:"dflash_drafter"`
	RAM              string   `json:"ram"`
	Speedup          string   `json:"speedup"`
	Lookup           bool     `json:"lookup_drafts"`
	RAMGB            float64  `json:"ram_gb"`
	Fits             *bool    `json:"fits"` // nil = how much memory there is is not known
	TargetInstalled  bool     `json:"target_installed"`
	DrafterInstalled bool     `json:"drafter_installed"`
	Ready            bool     `json:"ready"`
}

// installedRow is a model on this machine, or what there is of it.
type installedRow struct {
	Repo         string   `json:"repo"`
	Path         string   `json:"path"`
	Bytes        int64    `json:"size_bytes"`
	Size         string   `json:"size"`
	Kind         string   `json:"kind"` // model, drafter
	RegistryID   *string  `json:"registry_id"`
	Source       string   `json:"source"`
	Complete     bool     `json:"complete"`
	Reason       *string  `json:"reason"` // why it cannot be loaded
	Architecture *string  `json:"architecture"`
	Quantization *string  `json:"quantization"`
	Context      *int     `json:"context"`
	Fit          *fitInfo `json:"fit"`
}

// fitInfo says whether a model fits at a context.
type fitInfo struct {
	Verdict    string `json:"verdict"` // fits, tight, too_big, unknown
	Need       int64  `json:"need_bytes"`
	Available  int64  `json:"available_bytes"`
	Context    int    `json:"context"`
	MaxContext int    `json:"max_context"` // that fits; 0 = none
	MaxNeed    int64  `json:"max_context_need_bytes"`
	Reason     string `json:"reason"`
}

// fitOf asks whether a model fits at a context, 0 = its own maximum.
func (s *Server) fitOf(m models.Model, context int) *fitInfo {
	f := s.engine.Fit(m, context)
	if context == 0 {
		context = m.Context
	}
	out := &fitInfo{Verdict: string(f.Verdict), Need: f.Needed, Available: f.Limit, Context: context, MaxContext: f.Context, Reason: f.Reason}
	if f.Context > 0 {
		out.MaxNeed = s.engine.Fit(m, f.Context).Needed
	}
	return out
}

type diskUse struct {
	Bytes int64  `json:"total_bytes"`
	Total string `json:"total"`
}

type inventoryBandwidth struct {
	Measured    *float64 `json:"measured_gb_s"`
	Theoretical *float64 `json:"theoretical_gb_s"`
	GBs         *float64 `json:"gb_s"`
	Source      string   `json:"source"`
	Reference   float64  `json:"reference_gb_s"`
	Scale       float64  `json:"scale"`
}

// ramShare is how much of the memory a model may take.
const ramShare = 0.8

func (s *Server) registry() []registryRow {
	local, info := map[string]models.Model{}, s.engine.Machine()
	for _, m := range s.engine.Models() {
		if m.Loadable() {
			local[m.ID] = m
		}
	}
	bandwidth := bandwidthOf(info)
	rows := []registryRow{}
	for _, r := range engine.Registry() {
		row := registryRow{ID: r.ID, Target: r.Target, Mode: r.Mode, DSpark: optional(r.DSpark), DFlash: optional(r.DFlash), RAM: r.RAM, RAMGB: r.RAMGB,
			Speedup: r.Speedup, Lookup: r.Lookup}
		if total := info.Memory.Total; total > 0 {
			fits := r.RAMGB <= ramShare*float64(total)/(1<<30)
			row.Fits = &fits
		}
		if m, ok := local[r.Target]; ok {
			row.TargetInstalled, row.WeightBytes = true, &m.Bytes
			if bandwidth.GBs != nil && m.Bytes > 0 {
				tps := tenths(*bandwidth.GBs * 1e9 / float64(m.Bytes))
				row.CeilingTPS = &tps
			}
		}
		drafter := r.DSpark
		if r.Mode == "dflash" {
			drafter = r.DFlash
		}
		_, row.DrafterInstalled = local[drafter]
		row.Ready = row.TargetInstalled && row.DrafterInstalled
		rows = append(rows, row)
	}
	return rows
}

func (s *Server) adminModels(c *gin.Context) *apiError {
	info, places := s.engine.Machine(), s.engine.Places()
	inv := inventory{Models: s.registry(), Installed: []installedRow{}, ModelDirs: nonNil(places.Folders)}
	if m := s.engine.Status().Model; m != nil {
		inv.Loaded = &m.Target
	}
	for _, m := range s.engine.Models() {
		row := installedRow{Repo: m.ID, Path: m.Path, Bytes: m.Bytes, Size: sizeText(m.Bytes), Kind: "model", Source: string(m.Source), Complete: m.Complete,
			Reason: optional(m.Reason), Architecture: optional(m.Type), Quantization: optional(m.Quantization), Context: positive(m.Context)}
		if m.Drafter {
			row.Kind = "drafter"
		}
		if r := engine.RowOf(m); r != nil {
			row.RegistryID = &r.ID
		}
		if m.Loadable() && !m.Drafter {
			row.Fit = s.fitOf(m, 0)
		}
		if m.Source == models.SourceHub {
			inv.Disk.Bytes += m.Bytes
		}
		inv.Installed = append(inv.Installed, row)
	}
	slices.SortStableFunc(inv.Installed, func(a, b installedRow) int {
		if a.Kind != b.Kind {
			return strings.Compare(b.Kind, a.Kind) // models before drafters
		}
		return int(max(min(b.Bytes-a.Bytes, 1), -1))
	})
	inv.Disk.Total = sizeText(inv.Disk.Bytes)
	b := bandwidthOf(info)
	inv.Bandwidth = inventoryBandwidth{GBs: b.GBs, Source: b.Source, Reference: b.Reference, Theoretical: telemetry.LookupChip(info.Chip.Name, 0).BandwidthGBs}
	measured, theoretical := info.Bandwidth.GBs, 0.0
	if measured > 0 {
		inv.Bandwidth.Measured = &measured
	}
	if t := inv.Bandwidth.Theoretical; t != nil {
		theoretical = *t
	}
	inv.Bandwidth.Scale = float64(int(telemetry.BandwidthScale(theoretical, measured)*1000+0.5)) / 1000
	s.reply(c, http.StatusOK, inv)
	return nil
}

// sizeText is a size in the words of the reference.
func sizeText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%d MB", n>>20)
	}
	return fmt.Sprintf("%d B", n)
}
