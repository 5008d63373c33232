package menubar

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"sparkbar/httpapi/client"
)

// PortTaken is a start that found the user's port in use: the event, and the
// error of Server.Start.
type PortTaken struct {
	Port    int
	Process string // "" = unknown
	PID     int
	Free    int // a port that can be had instead
}

// Error says which port is in use, and by whom.
func (e PortTaken) Error() string {
	text := fmt.Sprintf("Port %d is in use", e.Port)
	if e.Process != "" {
		text += fmt.Sprintf(" by %s (%d)", e.Process, e.PID)
	}
	return text
}

func (e PortTaken) apply(s *State) {
	s.Server.Starting, s.Server.Running, s.Server.Port = false, false, e.Port
	s.Server.Failure = e.Error()
}

// LoadFailed is a load that the user asked for and that did not work.
type LoadFailed struct {
	Model string
	Err   error
}

func (e LoadFailed) apply(s *State) {
	if e.Err != nil && s.Health.Status != "ok" {
		s.LoadError = e.Err.Error()
	}
}

// BadSettings is a settings file that cannot be read.
type BadSettings struct {
	File    string
	Line    int
	Message string
}

func (BadSettings) apply(*State) {}

// Crashed means that the product ended without being asked to.
type Crashed struct {
	Model  string // that was loaded then
	Recent int    // crashes in the last ten minutes
}

func (e Crashed) apply(s *State) {
	if s.LastModel == "" {
		s.LastModel = e.Model
	}
}

// Dialogs returns the question or message that an event calls for, nil for
// most. s is the State after the event.
func Dialogs(e Event, s State) *Dialog {
	switch e := e.(type) {
	case PortTaken:
		text := "Another program is listening there."
		if e.Process != "" {
			text = fmt.Sprintf("%s (pid %d) is listening there.", e.Process, e.PID)
		}
		return &Dialog{ID: "D1", Title: fmt.Sprintf("Port %d is in use", e.Port), Text: text + " Clients that are set to this port would reach that program.",
			Buttons: []Button{{fmt.Sprintf("Use Port %d This Time", e.Free), Effect{Do: VerbStart, Arg: fmt.Sprint(e.Free)}},
				{"Change Port…", Effect{Do: VerbOpen, Arg: "settings/server"}}, {"Try Again", Effect{Do: VerbStart}}, {"Quit", Effect{Do: VerbQuit}}}}
	case LoadFailed:
		return dialogLoad(e, &s)
	case BadSettings:
		return &Dialog{ID: "D10", Title: "The settings file has an error",
			Text:    fmt.Sprintf("%s:%d: %s. The last good settings stay in use.", e.File, e.Line, strings.TrimSuffix(e.Message, ".")),
			Buttons: []Button{{"Open File", Effect{Do: VerbEdit, Arg: e.File}}, {"OK", nothing}}}
	case Crashed:
		load := Button{"Load", Effect{Do: VerbLoad, Arg: e.Model}}
		d := &Dialog{ID: "D12", Title: App + " quit unexpectedly last time", Text: "Load " + name(e.Model) + " now? It was loaded when it happened.",
			Buttons: []Button{load, {"Not Now", nothing}}}
		if e.Recent >= 2 {
			d.Buttons = []Button{{"Not Now", nothing}, load}
		}
		return d
	}
	return nil
}

func dialogLoad(e LoadFailed, s *State) *Dialog {
	if e.Err == nil {
		return nil
	}
	text := e.Err.Error()
	var ce *client.Error
	switch {
	case errors.As(e.Err, &ce) && ce.Type == "cancelled", errors.As(e.Err, &ce) && ce.Status == http.StatusConflict:
		return nil // the user knows
	case errors.As(e.Err, &ce) && ce.Status == http.StatusInsufficientStorage:
		return &Dialog{ID: "D8", Title: "Not enough space", Text: text, Buttons: []Button{
			{"Choose Another Folder…", Effect{Do: VerbOpen, Arg: "settings/models"}}, cancelButton()}}
	case strings.Contains(text, "auto_map") || strings.Contains(text, "model_file"):
		return &Dialog{ID: "D9", Title: middle(e.Model, nameLimit) + " contains its own program code",
			Text: strings.TrimSuffix(text, ".") + ". It is never run.", Buttons: []Button{{"OK", nothing}}}
	}
	if s.Loaded() {
		text = strings.TrimSuffix(text, ".") + ". The previous model was restored."
	}
	return &Dialog{ID: "D3", Title: name(e.Model) + " did not load", Text: text,
		Buttons: []Button{{"OK", nothing}, {"Show Log", Effect{Do: VerbLog}}}}
}

// quoteShell makes one word of text for a POSIX shell.
func quoteShell(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func quoteJSON(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		return `""` // a string always encodes
	}
	return string(b)
}
