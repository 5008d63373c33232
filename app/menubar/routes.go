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

// fetchMachine reads what the typed client leaves out, too: the memory guard.
func fetchMachine(ctx context.Context, c *client.Client) (m MachineSeen, err error) {
	var v struct {
		client.Machine
		Guard struct {
			Last *shed `json:"last_shed"`
		} `json:"guard"`
	}
	if err := c.Call(ctx, http.MethodGet, "/machine", nil, &v); err != nil {
		return m, err
	}
	m = MachineSeen{TotalBytes: v.Memory.TotalBytes, SwapBytes: v.Memory.SwapUsedBytes, Pressure: v.Memory.Pressure}
	if v.Roofline != nil {
		m.CeilingTPS = v.Roofline.Last.CeilingTPS
	}
	m.Guard = v.Guard.Last.words()
	return m, nil
}

func modelsOf(v client.Inventory, pinned []string) (out ModelsSeen) {
	for _, r := range v.Installed {
		m := LocalModel{ID: r.ID, Path: r.Path, Bytes: r.Bytes, Kind: r.Kind, Source: r.Source, Complete: r.Complete && r.Reason == "", Pinned: slices.Contains(pinned, r.ID)}
		for _, known := range v.Known {
			if r.RegistryID == known.ID && known.Mode != "" {
				m.Modes = append(m.Modes, known.Mode)
				m.NoDrafter = !known.DrafterInstalled
			}
		}
		if f := r.Fit; f != nil && f.Verdict == "too_big" {
			m.Fit = &Fit{Need: f.Need, Available: f.Available, Context: r.Context, SmallContext: f.MaxContext}
		}
		out = append(out, m)
	}
	return out
}

// pinnedSetting is the key of the models that stay loaded.
const pinnedSetting = "model.pinned"

// settingsOf reads the settings of the menu; what is not set has its default.
func settingsOf(v client.Settings) SettingsSeen {
	s := SettingsSeen(DefaultSettings())
	text := func(key string) (s string) {
		_ = json.Unmarshal(v.Values[key], &s) // absent or of another kind: ""
		return s
	}
	if d := Detail(text("ui.detail")); d == Simple || d == Advanced || d == Developer {
		s.Detail = d
	}
	if t := text("menubar.text"); slices.Contains([]string{"auto", "none", "rate+accept", "memory"}, t) {
		s.Text = t
	}
	if b, ok := v.Values["menubar.ribbon"]; ok {
		s.Ribbon = string(b) == "true"
	}
	if a := text("power.prevent_sleep"); slices.Contains([]string{AwakeRequests, AwakeAlways, AwakeNever}, a) {
		s.Awake = a
	}
	var notices []string
	if b, ok := v.Values["menubar.notices"]; ok && json.Unmarshal(b, &notices) == nil {
		has := func(n string) bool { return slices.Contains(notices, n) }
		s.Notices = Notices{has("download"), has("load"), has("port"), has("server")}
	}
	s.Last = text("model.last")
	return s
}

func pinnedOf(v client.Settings) (list []string) {
	_ = json.Unmarshal(v.Values[pinnedSetting], &list) // absent: none
	return list
}

// pin adds a model to the pinned ones or takes it out.
func (c *Controller) pin(ctx context.Context, id string, on bool) error {
	v, err := c.o.Client.Settings(ctx)
	if client.Absent(err) {
		return errors.New("this server keeps no settings")
	}
	if err != nil {
		return err
	}
	list := slices.DeleteFunc(pinnedOf(v), func(x string) bool { return x == id })
	if on {
		list = append(list, id)
	}
	if v, err = c.o.Client.ChangeSettings(ctx, map[string]any{pinnedSetting: list}); err != nil {
		return err
	}
	models := slices.Clone(c.State().Local)
	for i := range models {
		models[i].Pinned = slices.Contains(pinnedOf(v), models[i].ID)
	}
	c.Apply(ModelsSeen(models))
	return nil
}

// programs are the files that tell whether a client is installed; clients that
// are not listed are no programs of their own.
var programs = map[string]string{"claude-code": "claude", "codex": "codex", "opencode": "opencode", "pi": "pi", "continue": "cn", "zed": "zed", "vscode": "code",
	"cline": "cline", "aider": "aider", "qwen-code": "qwen", "xcode": "Xcode.app", "curl": "curl"}

// clientsOf lists the clients; installed looks for a program.
func clientsOf(list []client.Integration, installed func(program string) bool) (out ClientsSeen) {
	for _, i := range list {
		p := ClientProgram{ID: i.ID, Name: i.Name, Program: programs[i.ID]}
		p.Installed = p.Program != "" && installed(p.Program)
		for _, s := range i.Setup {
			if s.Kind == "command" && p.Command == "" {
				p.Command = s.Command
			}
		}
		out = append(out, p)
	}
	return out
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
	}
	var failure struct {
		Message string `json:"message"`
	}
	err := c.o.Client.Race(ctx, client.RaceRequest{Prompt: racePrompt, MaxTokens: 120}, func(e client.Event) error {
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
	d := Dialog{ID: "race", Title: "Equally valid outputs", Buttons: []Button{{"OK", nothing}}}
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
	c.ask(c.withLab(d, "lab/race"))
	return nil
}

// withLab adds a way to the window, where there is one.
func (c *Controller) withLab(d Dialog, screen string) Dialog {
	if c.State().Host.Window {
		d.Buttons = append(d.Buttons, Button{"Open Lab", Effect{Do: VerbOpen, Arg: screen}})
	}
	return d
}

// check asks the server to look at this machine, lets the kernels be tested
// where that can be done, and tells what was found.
func (c *Controller) check(ctx context.Context) error {
	ok, findings, err := c.o.Client.Doctor(ctx)
	if err != nil {
		return err
	}
	d := Dialog{ID: "check", Title: "This machine is fine", Buttons: []Button{{"OK", nothing}}}
	if !ok {
		d.Title = "This machine needs attention"
	}
	var lines []string
	if c.o.SelfTest != nil {
		done, err := c.o.SelfTest(ctx)
		if err != nil {
			d.Title, done = "This machine needs attention", err.Error()
		}
		lines = append(lines, done)
	}
	for _, f := range findings {
		line := f.Message
		if f.Fix != "" {
			line += "\n    " + f.Fix
		}
		lines = append(lines, line)
	}
	d.Text = strings.Join(lines, "\n")
	c.ask(c.withLab(d, "lab/machine"))
	return nil
}
