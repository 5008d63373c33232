package menubar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"sparkbar/httpapi/client"
)

// fetch reads a route that not every server has; false if this one has it not.
func fetch[T any](ctx context.Context, c *client.Client, path string) (v T, ok bool, err error) {
	err = c.Call(ctx, http.MethodGet, path, nil, &v)
	if client.Absent(err) {
		return v, false, nil
	}
	return v, err == nil, err
}

// hasRoute asks for a route with a method that none has, so that nothing is
// set off: a route that exists answers 405.
func hasRoute(ctx context.Context, c *client.Client, path string) (bool, error) {
	err := c.Call(ctx, http.MethodDelete, path, nil, nil)
	var e *client.Error
	switch {
	case errors.As(err, &e) && e.Status == http.StatusMethodNotAllowed:
		return true, nil
	case client.Absent(err):
		return false, nil
	}
	return false, err
}

func fetchRequests(ctx context.Context, c *client.Client) (RequestsSeen, bool, error) {
	v, ok, err := fetch[struct {
		Requests RequestsSeen `json:"requests"`
	}](ctx, c, "/admin/requests")
	return v.Requests, ok, err
}

func fetchMachine(ctx context.Context, c *client.Client) (MachineSeen, bool, error) {
	v, ok, err := fetch[struct {
		Memory struct {
			Total    int64  `json:"total_bytes"`
			Pressure string `json:"pressure"`
			Swap     int64  `json:"swap_used_bytes"`
		} `json:"memory"`
		Roofline *struct {
			Last *struct {
				Ceiling float64 `json:"ceiling_tps"`
			} `json:"at_last_request"`
			Zero *struct {
				Ceiling float64 `json:"ceiling_tps"`
			} `json:"at_zero"`
		} `json:"roofline"`
		Guard *struct {
			Last *struct {
				Action string `json:"action"`
				Level  string `json:"level"`
				Freed  int64  `json:"freed_bytes"`
			} `json:"last_shed"`
		} `json:"guard"`
	}](ctx, c, "/machine")
	m := MachineSeen{TotalBytes: v.Memory.Total, SwapBytes: v.Memory.Swap, Pressure: v.Memory.Pressure}
	if r := v.Roofline; r != nil {
		switch {
		case r.Last != nil && r.Last.Ceiling > 0:
			m.CeilingTPS = r.Last.Ceiling
		case r.Zero != nil:
			m.CeilingTPS = r.Zero.Ceiling
		}
	}
	if g := v.Guard; g != nil && g.Last != nil {
		m.Guard = g.Last.Action
		if m.Guard == "" {
			m.Guard = "freed memory"
		}
		if g.Last.Freed > 0 {
			m.Guard += ", " + gigabytes(g.Last.Freed) + " GB given back"
		}
	}
	return m, ok, err
}

func fetchModels(ctx context.Context, c *client.Client) (ModelsSeen, bool, error) {
	v, ok, err := fetch[struct {
		Installed []struct {
			Repo     string `json:"repo"`
			Path     string `json:"path"`
			Bytes    int64  `json:"size_bytes"`
			Kind     string `json:"kind"`
			Source   string `json:"source"`
			Row      string `json:"registry_id"`
			Complete *bool  `json:"complete"`
			Pinned   bool   `json:"pinned"`
			Fit      *struct {
				Verdict      string `json:"verdict"`
				Need         int64  `json:"need_bytes"`
				Available    int64  `json:"available_bytes"`
				Context      int    `json:"context"`
				SmallContext int    `json:"max_context"`
				SmallNeed    int64  `json:"max_context_need_bytes"`
			} `json:"fit"`
		} `json:"installed"`
		Models []struct {
			ID               string `json:"id"`
			DSpark           string `json:"dspark_drafter"`
			DFlash           string `json:"dflash_drafter"`
			DrafterInstalled bool   `json:"drafter_installed"`
		} `json:"models"`
	}](ctx, c, "/admin/models")
	var out ModelsSeen
	for _, r := range v.Installed {
		m := LocalModel{ID: r.Repo, Path: r.Path, Bytes: r.Bytes, Kind: r.Kind, Source: r.Source, Pinned: r.Pinned, Complete: r.Complete == nil || *r.Complete}
		for _, row := range v.Models {
			if r.Row == "" || row.ID != r.Row {
				continue
			}
			if row.DSpark != "" {
				m.Modes = append(m.Modes, "dspark")
			}
			if row.DFlash != "" {
				m.Modes = append(m.Modes, "dflash")
			}
			m.NoDrafter = len(m.Modes) > 0 && !row.DrafterInstalled
		}
		if f := r.Fit; f != nil && f.Verdict == "too_big" {
			m.Fit = &Fit{Need: f.Need, Available: f.Available, Context: f.Context, SmallContext: f.SmallContext, SmallNeed: f.SmallNeed}
		}
		out = append(out, m)
	}
	return out, ok, err
}

func fetchSettings(ctx context.Context, c *client.Client, old Settings) (SettingsSeen, bool, error) {
	v, ok, err := fetch[settingsReply](ctx, c, "/admin/settings")
	s := SettingsSeen(old)
	if d := Detail(v.text("ui.detail")); d == Simple || d == Advanced || d == Developer {
		s.Detail = d
	}
	if t := v.text("menubar.text"); slices.Contains([]string{"auto", "none", "rate+accept", "memory"}, t) {
		s.Text = t
	}
	if b, ok := v.Values["menubar.ribbon"]; ok {
		s.Ribbon = string(b) == "true"
	}
	return s, ok, err
}

// settingsReply is GET /admin/settings: values by dotted key.
type settingsReply struct {
	Values map[string]json.RawMessage `json:"values"`
}

func (r settingsReply) text(key string) string {
	var s string
	if json.Unmarshal(r.Values[key], &s) != nil {
		return ""
	}
	return s
}

// pin adds a model to the pinned ones or takes it out.
func (c *Controller) pin(ctx context.Context, id string, on bool) error {
	v, ok, err := fetch[settingsReply](ctx, c.o.Client, "/admin/settings")
	if err != nil {
		return err
	}
	if !ok {
		return errors.New("this version of the server keeps no settings")
	}
	var list []string
	if raw := v.Values["model.pinned"]; raw != nil {
		if err := json.Unmarshal(raw, &list); err != nil {
			return fmt.Errorf("the setting model.pinned is not a list of names: %w", err)
		}
	}
	list = slices.DeleteFunc(list, func(x string) bool { return x == id })
	if on {
		list = append(list, id)
	}
	return c.o.Client.Call(ctx, http.MethodPatch, "/admin/settings", map[string]any{"model.pinned": list}, nil)
}

func fetchClients(ctx context.Context, c *client.Client, known []ClientProgram) (ClientsSeen, bool, error) {
	v, ok, err := fetch[struct {
		Integrations []struct {
			ID        string `json:"id"`
			Name      string `json:"name"`
			Installed *bool  `json:"installed"`
			Setup     []struct {
				Kind    string `json:"kind"`
				Command string `json:"command"`
			} `json:"setup"`
		} `json:"integrations"`
	}](ctx, c, "/admin/integrations")
	var out ClientsSeen
	for _, i := range v.Integrations {
		p := ClientProgram{ID: i.ID, Name: i.Name}
		if j := slices.IndexFunc(known, func(k ClientProgram) bool { return k.ID == i.ID }); j >= 0 {
			p.Installed = known[j].Installed
		}
		if i.Installed != nil {
			p.Installed = *i.Installed
		}
		for _, s := range i.Setup {
			if s.Kind == "command" && p.Command == "" {
				p.Command = s.Command
			}
		}
		out = append(out, p)
	}
	return out, ok, err
}

// racePrompt is what the race of the menu lets the model write.
const racePrompt = "Count from one to thirty in words."

// race runs the loaded model against itself without speculation and tells the
// outcome.
func (c *Controller) race(ctx context.Context) error {
	type arm struct {
		Label string  `json:"label"`
		TPS   float64 `json:"tokens_per_sec"`
	}
	var arms []arm
	var verdict struct {
		Identical *bool  `json:"identical"`
		Detail    string `json:"detail"`
		Reason    string `json:"reason"`
	}
	var failure struct {
		Message string `json:"message"`
	}
	err := c.o.Client.Stream(ctx, "/admin/race", map[string]any{"prompt": racePrompt, "max_tokens": 120}, func(e client.Event) error {
		switch e.Name {
		case "arm_done":
			var a arm
			if err := json.Unmarshal(e.Data, &a); err != nil {
				return err
			}
			arms = append(arms, a)
		case "verdict":
			return json.Unmarshal(e.Data, &verdict)
		case "error":
			return json.Unmarshal(e.Data, &failure)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if failure.Message != "" {
		return errors.New("the race stopped: " + failure.Message)
	}
	if len(arms) == 0 {
		return errors.New("the race ended without a result")
	}
	d := Dialog{ID: "race", Title: "Equally valid outputs", Buttons: []Button{{"OK", nothing}, {"Open Lab", Effect{Do: VerbOpen, Arg: "lab/race"}}}}
	if verdict.Identical != nil && *verdict.Identical {
		d.Title = "Identical output"
	}
	if plain := arms[len(arms)-1]; len(arms) > 1 && plain.TPS > 0 {
		d.Title += fmt.Sprintf(", %.1f times as fast", arms[0].TPS/plain.TPS)
	}
	var lines []string
	for _, a := range arms {
		lines = append(lines, fmt.Sprintf("%s: %s tok/s", a.Label, speed(a.TPS)))
	}
	if verdict.Detail != "" {
		lines = append(lines, verdict.Detail)
	}
	d.Text = strings.Join(lines, "\n")
	c.ask(d)
	return nil
}

// check asks the server to look at this machine and tells what it found.
func (c *Controller) check(ctx context.Context) error {
	v, ok, err := fetch[struct {
		OK       bool     `json:"ok"`
		Problems []string `json:"problems"`
		SelfTest *struct {
			OK      bool   `json:"ok"`
			Kernels int    `json:"kernels"`
			Detail  string `json:"detail"`
		} `json:"self_test"`
	}](ctx, c.o.Client, "/doctor")
	if err != nil {
		return err
	}
	if !ok {
		return errors.New("this version of the server has no check")
	}
	d := Dialog{ID: "check", Title: "This machine is fine", Buttons: []Button{{"OK", nothing}, {"Open Lab", Effect{Do: VerbOpen, Arg: "lab/machine"}}}}
	lines := slices.Clone(v.Problems)
	if t := v.SelfTest; t != nil {
		switch {
		case !t.OK:
			lines = append(lines, "Kernel self-test: "+t.Detail)
		case t.Kernels > 0:
			lines = append(lines, fmt.Sprintf("Kernel self-test: %d kernels agree with the reference.", t.Kernels))
		}
	}
	if !v.OK || v.SelfTest != nil && !v.SelfTest.OK {
		d.Title = "This machine needs attention"
	}
	d.Text = strings.Join(lines, "\n")
	c.ask(d)
	return nil
}
