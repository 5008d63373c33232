package menubar

import (
	"fmt"
	"strconv"
	"strings"
)

// Verb is what an Effect does.
type Verb string

// The verbs. Those from VerbCopy on are carried out by the Host, those from
// VerbStart on by the process that runs the server, all others by the server.
const (
	VerbLoad    Verb = "load"    // Arg = model; Load has the options
	VerbUnload  Verb = "unload"  //
	VerbCancel  Verb = "cancel"  // the load under way; Arg "delete" also removes its files
	VerbStop    Verb = "stop"    // the request Arg; "" = all
	VerbPin     Verb = "pin"     // Arg = model
	VerbUnpin   Verb = "unpin"   // Arg = model
	VerbRace    Verb = "race"    //
	VerbCheck   Verb = "check"   //
	VerbCopy    Verb = "copy"    // Text, feedback at Arg
	VerbOpen    Verb = "open"    // the dashboard at Arg
	VerbBrowse  Verb = "browse"  // the web page Arg
	VerbReveal  Verb = "reveal"  // the file or folder Arg
	VerbTrash   Verb = "trash"   // the folder Arg
	VerbLog     Verb = "log"     //
	VerbLogin   Verb = "login"   // Arg on, off or settings
	VerbAbout   Verb = "about"   //
	VerbSkip    Verb = "skip"    // the update Arg
	VerbEdit    Verb = "edit"    // the settings file
	VerbStart   Verb = "start"   // the server; Arg = port, "" = as configured
	VerbHalt    Verb = "halt"    // the server
	VerbLAN     Verb = "lan"     // Arg key, open or off
	VerbQuit    Verb = "quit"    // Arg "now" = without waiting for requests
	VerbNothing Verb = "nothing" // close the dialog
)

// LoadOptions are what a load asks for beside the model.
type LoadOptions struct {
	Mode     string
	MaxDraft int // 0 = not said, -1 = auto
	Thinking *bool
	Context  int
}

// Effect is what a click sets off.
type Effect struct {
	Do   Verb
	Arg  string
	Text string
	Load LoadOptions
	Wait bool // until no request runs
	Stop bool // all running requests first
}

// Button is an answer to a Dialog.
type Button struct {
	Title  string
	Effect Effect
}

// Dialog is a question. The first button is the default; one with VerbNothing,
// if there is any, is what the escape key means.
type Dialog struct {
	ID, Title, Text string
	Buttons         []Button
}

var nothing = Effect{Do: VerbNothing}

func cancelButton() Button { return Button{"Cancel", nothing} }

// Click tells what a click on an item means: an effect, or a dialog to ask
// first. Items that are hidden or not enabled mean nothing.
func Click(s State, id, arg string) (Effect, *Dialog) {
	it, ok := Menu(s).Find(id, arg)
	if !ok || it.Hidden || !it.Enabled {
		return nothing, nil
	}
	m, _ := s.local(arg)
	switch id {
	case "ribbon":
		return Effect{Do: VerbOpen, Arg: "lab/live"}, nil
	case "request.stop":
		return Effect{Do: VerbStop, Arg: arg}, nil
	case "warning.action":
		i, _ := strconv.Atoi(arg) // the item is there, so it is an index
		return Effect{Do: VerbOpen, Arg: s.warnings()[i].place}, nil
	case "cancel":
		if s.Phase() == Downloading {
			return nothing, dialogCancel(&s)
		}
		return Effect{Do: VerbCancel}, nil
	case "unload", "model.unload":
		return s.ifBusy("Unload", Effect{Do: VerbUnload})
	case "reload":
		return s.load(s.LastModel, LoadOptions{})
	case "model.load":
		return s.load(arg, LoadOptions{})
	case "model.options":
		return Effect{Do: VerbOpen, Arg: "models/" + arg}, nil
	case "model.copy":
		return Effect{Do: VerbCopy, Arg: id, Text: arg}, nil
	case "model.pin":
		if m.Pinned {
			return Effect{Do: VerbUnpin, Arg: arg}, nil
		}
		return Effect{Do: VerbPin, Arg: arg}, nil
	case "model.reveal":
		return Effect{Do: VerbReveal, Arg: m.Path}, nil
	case "model.trash":
		return nothing, &Dialog{ID: "trash", Title: "Move " + name(arg) + " to the Trash?",
			Text:    "It takes " + gigabytes(m.Bytes) + " GB. You can put it back from the Trash, or download it again.",
			Buttons: []Button{{"Move to Trash", Effect{Do: VerbTrash, Arg: m.folder()}}, cancelButton()}}
	case "models.browse":
		return Effect{Do: VerbOpen, Arg: "models"}, nil
	case "decoding.mode":
		return s.again(LoadOptions{Mode: arg})
	case "decoding.cap":
		if arg == "auto" {
			return s.again(LoadOptions{Mode: s.Health.Mode, MaxDraft: -1})
		}
		n, _ := strconv.Atoi(arg) // one of 1 to 8, see decodingRows
		return s.again(LoadOptions{Mode: s.Health.Mode, MaxDraft: n})
	case "decoding.thinking":
		on := it.Check != Checked
		return s.again(LoadOptions{Mode: s.Health.Mode, Thinking: &on})
	case "address":
		return Effect{Do: VerbCopy, Arg: id, Text: s.Base()}, nil
	case "copy.openai", "copy.anthropic", "copy.model", "copy.key", "copy.curl":
		return Effect{Do: VerbCopy, Arg: id, Text: s.Snippet(id)}, nil
	case "connect.open":
		return Effect{Do: VerbOpen, Arg: "agents/" + arg}, nil
	case "connect.copy":
		for _, c := range s.Clients {
			if c.ID == arg {
				return Effect{Do: VerbCopy, Arg: id, Text: c.Command}, nil
			}
		}
	case "connect.all":
		return Effect{Do: VerbOpen, Arg: "agents"}, nil
	case "lan":
		if s.Server.LAN != "" {
			return Effect{Do: VerbLAN, Arg: "off"}, nil
		}
		return nothing, &Dialog{ID: "D7", Title: "Let other devices use this model?", Text: "Anyone on your network could use it without a key.",
			Buttons: []Button{{"Turn On with a Key", Effect{Do: VerbLAN, Arg: "key"}}, {"Turn On Without", Effect{Do: VerbLAN, Arg: "open"}}, cancelButton()}}
	case "server":
		if it.Title == "Start Server" {
			return Effect{Do: VerbStart}, nil
		}
		return s.ifBusy("Stop", Effect{Do: VerbHalt})
	case "dashboard":
		return Effect{Do: VerbOpen}, nil
	case "chat":
		if !s.Loaded() {
			return Effect{Do: VerbOpen, Arg: "models"}, nil
		}
		return Effect{Do: VerbOpen, Arg: "chat"}, nil
	case "race":
		return Effect{Do: VerbRace}, nil
	case "check":
		return Effect{Do: VerbCheck}, nil
	case "log":
		return Effect{Do: VerbLog}, nil
	case "settings":
		return Effect{Do: VerbOpen, Arg: "settings"}, nil
	case "login":
		switch s.Login {
		case LoginOn:
			return Effect{Do: VerbLogin, Arg: "off"}, nil
		case LoginNeedsApproval:
			return Effect{Do: VerbLogin, Arg: "settings"}, nil
		}
		return Effect{Do: VerbLogin, Arg: "on"}, nil
	case "update":
		return nothing, dialogUpdate(*s.Update)
	case "about":
		return Effect{Do: VerbAbout}, nil
	case "diagnostics":
		return Effect{Do: VerbCopy, Arg: id, Text: s.Diagnostics()}, nil
	case "quit":
		return s.ifBusy("Quit", Effect{Do: VerbQuit})
	case "quit_now":
		return Effect{Do: VerbQuit, Arg: "now"}, nil
	}
	return nothing, nil
}

// load asks first if the model may be too large.
func (s *State) load(id string, o LoadOptions) (Effect, *Dialog) {
	e := Effect{Do: VerbLoad, Arg: id, Load: o}
	if m, ok := s.local(id); ok && m.Fit != nil {
		return nothing, dialogFit(e, m)
	}
	return e, nil
}

// again loads the loaded model with other options.
func (s *State) again(o LoadOptions) (Effect, *Dialog) {
	model := s.Health.Target
	if model == "" {
		model = s.Health.Model
	}
	return Effect{Do: VerbLoad, Arg: model, Load: o}, nil
}

// ifBusy asks first if requests run or wait. Quitting only a view of the server
// disturbs nobody.
func (s *State) ifBusy(verb string, e Effect) (Effect, *Dialog) {
	n := len(s.Requests)
	if n == 0 || verb == "Quit" && !s.Host.Quit {
		return e, nil
	}
	var who []string
	for i, r := range s.Requests {
		if i == 5 {
			who = append(who, fmt.Sprintf("and %d more", n-5))
			break
		}
		c := r.Client
		if c == "" {
			c = r.ID
		}
		who = append(who, middle(c, nameLimit))
	}
	wait, now := e, e
	wait.Wait = true
	now.Stop = true
	if e.Do == VerbQuit {
		now.Stop, now.Arg = false, "now"
	}
	return nothing, &Dialog{ID: "D5", Title: plural(n, "request is running", "requests are running"), Text: strings.Join(who, "\n"),
		Buttons: []Button{{"Wait and Then " + verb, wait}, {verb + " Now", now}, cancelButton()}}
}

func dialogCancel(s *State) *Dialog {
	text := gigabytes(s.Download.Done) + " GB are on disk."
	if s.Download.Total > 0 {
		text = gigabytes(s.Download.Done) + " of " + gigabytes(s.Download.Total) + " GB are on disk."
	}
	return &Dialog{ID: "D4", Title: "Cancel the download?", Text: text, Buttons: []Button{
		{"Keep What Is Downloaded", Effect{Do: VerbCancel}}, {"Delete It", Effect{Do: VerbCancel, Arg: "delete"}}, {"Continue", nothing}}}
}

func dialogFit(e Effect, m LocalModel) *Dialog {
	f := m.Fit
	d := &Dialog{ID: "D6", Title: name(m.ID) + " may not fit",
		Text: fmt.Sprintf("It needs about %s GB for %d tokens of context; %s GB are available.", gigabytes(f.Need), f.Context, gigabytes(f.Available))}
	if f.SmallContext > 0 {
		small := e
		small.Load.Context = f.SmallContext
		d.Text += fmt.Sprintf(" With %d tokens it fits.", f.SmallContext)
		if f.SmallNeed > 0 {
			d.Text = strings.TrimSuffix(d.Text, "fits.") + "needs " + gigabytes(f.SmallNeed) + " GB."
		}
		d.Buttons = append(d.Buttons, Button{fmt.Sprintf("Load with %d Tokens", f.SmallContext), small})
	}
	d.Buttons = append(d.Buttons, Button{"Load Anyway", e}, cancelButton())
	return d
}

func dialogUpdate(u Update) *Dialog {
	lines := strings.SplitN(u.Notes, "\n", 11)
	d := &Dialog{ID: "D11", Title: "Version " + u.Version + " is available", Text: strings.Join(lines[:min(len(lines), 10)], "\n")}
	if u.URL != "" {
		d.Buttons = append(d.Buttons, Button{"Open Release Page", Effect{Do: VerbBrowse, Arg: u.URL}})
	}
	if u.Command != "" {
		d.Buttons = append(d.Buttons, Button{"Copy brew Command", Effect{Do: VerbCopy, Arg: "update", Text: u.Command}})
	}
	d.Buttons = append(d.Buttons, Button{"Skip This Version", Effect{Do: VerbSkip, Arg: u.Version}}, Button{"Later", nothing})
	return d
}

// Snippet is the text that an item of the Copy menu copies.
func (s *State) Snippet(id string) string {
	switch id {
	case "copy.openai":
		return s.Base() + "/v1"
	case "copy.anthropic":
		return s.Base()
	case "copy.model":
		return s.serving()
	case "copy.key":
		return s.Server.Key
	case "copy.curl":
		model := s.serving()
		if model == "" {
			model = "local"
		}
		auth := ""
		if s.Server.Key != "" {
			auth = " -H " + quoteShell("Authorization: Bearer "+s.Server.Key)
		}
		body := fmt.Sprintf(`{"model":%s,"messages":[{"role":"user","content":"Say ready"}],"max_tokens":16}`, quoteJSON(model))
		return "curl " + s.Base() + "/v1/chat/completions" + auth + " -H 'Content-Type: application/json' \\\n  -d " + quoteShell(body)
	}
	return ""
}

// Diagnostics is a short report about the product for a bug report. It holds
// no key, no prompt, and no path.
func (s *State) Diagnostics() string {
	var b strings.Builder
	line := func(k string, v any) { fmt.Fprintf(&b, "%s: %v\n", k, v) }
	line("version", s.Health.Version)
	line("state", s.Phase())
	line("headline", s.headline())
	line("model", name(s.serving()))
	line("mode", s.Health.Mode)
	line("backend", s.Health.Backend)
	line("context", s.Health.ContextWindow)
	running, waiting := s.counts()
	line("requests", fmt.Sprintf("%d running, %d waiting", running, waiting))
	line("memory", gigabytes(s.Machine.TotalBytes)+" GB, pressure "+s.pressure())
	for _, w := range s.Health.Warnings {
		line("warning", w.Code)
	}
	return b.String()
}
