package menubar

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind tells how an item is drawn.
type Kind int

// The kinds of items.
const (
	Command   Kind = iota // can be clicked while it is enabled
	Label                 // text only
	Separator             //
	Ribbon                // the latest rounds as bars
	Submenu               // has Items
)

// Check is the mark before an item.
type Check int

// The marks.
const (
	Unchecked Check = iota
	Checked
	Mixed
)

// Tone is the colour of a label where there is colour. The text says the same.
type Tone int

// The tones.
const (
	Plain  Tone = iota
	Orange      // attention
	Red         // problem
	Grey        // there, but not of use now
)

// Item is a row of the menu. ID and Arg together never change while the row
// lives; rows that have nothing to say stay in the menu with Hidden set.
type Item struct {
	ID, Arg string
	Kind    Kind
	Title   string
	Hidden  bool
	Enabled bool
	Check   Check
	Tone    Tone
	Key     string // with the command key, "" = none
	// Alternate rows take the place of the one above while the option key is held.
	Alternate bool
	Hint      string // why the item is not enabled, or what else it does
	Items     []Item
	Bars      []Bar
}

// Tree is a menu.
type Tree []Item

// Find returns an item anywhere in the tree.
func (t Tree) Find(id, arg string) (Item, bool) {
	for _, it := range t {
		if it.ID == id && it.Arg == arg {
			return it, true
		}
		if found, ok := Tree(it.Items).Find(id, arg); ok {
			return found, true
		}
	}
	return Item{}, false
}

// notHere is the hint of items whose route this server does not have.
const notHere = "Not available in this version of the server"

// Menu returns the menu for a State. The top rows are always the same ones in
// the same order.
func Menu(s State) Tree {
	phase, listening, loaded := s.Phase(), s.Listening(), s.Loaded()
	simple := s.Settings.Detail == Simple
	running, waiting := s.counts()
	speaks := phase == Generating || s.spokeLately() && listening && loaded
	busy := phase == Downloading || phase == Loading || phase == WarmingUp || phase == Cancelling
	control := s.Host.Server

	var t Tree
	add := func(it Item) { t = append(t, it) }
	rule := func() { add(Item{ID: "separator", Arg: strconv.Itoa(len(t)), Kind: Separator}) }

	add(Item{ID: "headline", Kind: Label, Title: s.headline()})
	add(Item{ID: "pair", Kind: Label, Title: s.pair(), Hidden: !loaded})
	add(Item{ID: "speed", Kind: Label, Title: s.speedRow(), Hidden: !speaks})
	add(Item{ID: "ribbon", Kind: Ribbon, Title: "Latest rounds", Hidden: !speaks || !s.Settings.Ribbon, Enabled: s.Host.Window, Bars: slices.Clone(s.Ribbon)})
	add(s.memoryRow(loaded))
	add(Item{ID: "guard", Kind: Label, Title: middle("Memory guard: "+s.Machine.Guard, titleLimit), Hidden: s.Machine.Guard == ""})
	add(Item{ID: "requests", Kind: Submenu, Title: fmt.Sprintf("%d running, %d waiting", running, waiting), Hidden: running+waiting == 0, Enabled: true, Items: s.requestRows()})
	add(s.warningRow())
	rule()
	add(Item{ID: "progress", Kind: Label, Title: s.progressRow(), Hidden: phase != Downloading})
	cancel := Item{ID: "cancel", Title: "Cancel Loading", Hidden: !busy, Enabled: phase != Cancelling}
	if phase == Downloading {
		cancel.Title = "Cancel Download…"
	}
	add(cancel)
	rule()
	add(Item{ID: "models", Kind: Submenu, Title: "Model", Enabled: listening, Items: s.modelRows()})
	add(Item{ID: "unload", Title: "Unload Model (frees " + gigabytes(s.Health.WeightBytes+s.Health.DrafterBytes) + " GB)", Hidden: !loaded, Enabled: phase != Cancelling})
	if h := s.Health; h.WeightBytes+h.DrafterBytes == 0 {
		t[len(t)-1].Title = "Unload Model"
	}
	add(Item{ID: "reload", Title: "Load " + name(s.LastModel) + " Again", Hidden: s.LastModel == "" || phase != NoModel && phase != Asleep, Enabled: true})
	add(Item{ID: "decoding", Kind: Submenu, Title: "Decoding", Hidden: !loaded || simple, Enabled: !busy, Items: s.decodingRows()})
	rule()
	add(s.copied(Item{ID: "address", Title: s.Base(), Hidden: !listening, Enabled: true, Hint: "Copies the address"}))
	add(Item{ID: "copy", Kind: Submenu, Title: "Copy", Hidden: !listening || simple, Enabled: true, Items: s.copyRows()})
	add(Item{ID: "connect", Kind: Submenu, Title: "Connect a Client", Hidden: !listening, Enabled: true, Items: s.clientRows()})
	add(Item{ID: "lan", Title: "Available on Local Network", Hidden: !listening, Enabled: control, Check: check(s.Server.LAN != ""), Hint: hint(control, "Only where the server runs")})
	server := Item{ID: "server", Title: "Stop Server", Enabled: control && phase != Starting, Hint: hint(control, "Only where the server runs")}
	if phase == Stopped || phase == Failed {
		server.Title = "Start Server"
	}
	add(server)
	rule()
	add(Item{ID: "dashboard", Title: "Open Dashboard", Key: "o", Enabled: s.Host.Window, Hint: hint(s.Host.Window, "Open the address in a browser")})
	add(Item{ID: "chat", Title: "New Chat", Key: "n", Enabled: s.Host.Window})
	add(Item{ID: "race", Title: "Race Against Plain Decoding", Hidden: simple, Enabled: loaded && !busy && s.Has.Race, Hint: hint(s.Has.Race, notHere)})
	add(Item{ID: "check", Title: "Check This Machine", Hidden: simple, Enabled: listening && s.Has.Doctor, Hint: hint(s.Has.Doctor, notHere)})
	add(Item{ID: "log", Title: "Show Log", Hidden: s.Settings.Detail != Developer && !s.Option, Enabled: s.Host.Reveal})
	add(Item{ID: "settings", Title: "Settings…", Key: ",", Enabled: s.Host.Window})
	login := Item{ID: "login", Title: "Start at Login", Enabled: s.Login != LoginUnavailable, Hint: hint(s.Login != LoginUnavailable, "Not on this system")}
	switch s.Login {
	case LoginOn:
		login.Check = Checked
	case LoginNeedsApproval:
		login.Check, login.Hint = Mixed, "Allow "+App+" in the Login Items of System Settings"
	}
	add(login)
	update := Item{ID: "update", Title: "Update…", Hidden: s.Update == nil, Enabled: true}
	if s.Update != nil {
		update.Title = "Update to " + middle(s.Update.Version, 24) + "…"
	}
	add(update)
	add(Item{ID: "about", Title: "About " + App, Enabled: true})
	add(Item{ID: "diagnostics", Title: "Copy Diagnostics", Enabled: true, Alternate: true})
	quit := Item{ID: "quit", Title: "Quit " + App, Key: "q", Enabled: true}
	if !s.Host.Quit { // a view of a server that lives on
		quit.Title = "Close"
	}
	add(quit)
	add(Item{ID: "quit_now", Title: "Quit Now", Key: "q", Enabled: true, Alternate: true, Hidden: !s.Host.Quit})

	group := false // anything shown since the last line
	for i := range t {
		if t[i].Kind == Separator {
			t[i].Hidden = !group
			group = false
		} else if !t[i].Hidden {
			group = true
		}
	}
	return t
}

func check(on bool) Check {
	if on {
		return Checked
	}
	return Unchecked
}

// hint is text where ok is false.
func hint(ok bool, text string) string {
	if ok {
		return ""
	}
	return text
}

// copied turns the title of an item that was just clicked into feedback.
func (s *State) copied(it Item) Item {
	if s.Copied != "" && s.Copied == it.ID {
		it.Title = "Copied ✓"
	}
	return it
}

func (s *State) pair() string {
	target := name(s.serving())
	switch h := s.Health; {
	case h.Drafter != "":
		return target + " ← " + middle(name(h.Drafter), titleLimit-3-nameLimit)
	case h.Mode == "lookup":
		return target + " (lookup drafts)"
	case h.Mode == "baseline":
		return target + " (plain)"
	}
	return target
}

func (s *State) speedRow() string {
	text := fmt.Sprintf("%s tok/s · %.1f per round", speed(s.Rate()), s.accept)
	if c := s.Machine.CeilingTPS; c > 0 {
		text += fmt.Sprintf(" · %.1f× plain ceiling", s.Rate()/c)
	}
	return middle(text, titleLimit)
}

func (s *State) memoryRow(loaded bool) Item {
	p := s.pressure()
	it := Item{ID: "memory", Kind: Label, Hidden: !loaded && (p == PressureNormal || p == PressureUnknown)}
	it.Title = "Memory " + gigabytes(s.Health.WeightBytes+s.Health.DrafterBytes)
	if s.Machine.TotalBytes > 0 {
		it.Title += " of " + gigabytes(s.Machine.TotalBytes)
	}
	it.Title += " GB · pressure " + p
	if s.Machine.SwapBytes > 0 {
		it.Title += " · swap " + gigabytes(s.Machine.SwapBytes) + " GB"
	}
	switch p {
	case PressureWarn:
		it.Tone = Orange
	case PressureCritical:
		it.Tone = Red
	}
	return it
}

func (s *State) progressRow() string {
	t := s.Download
	if t == nil {
		return "Downloading"
	}
	text := ": " + gigabytes(t.Done) + " GB"
	if t.Total > 0 {
		text = ": " + gigabytes(t.Done) + " of " + gigabytes(t.Total) + " GB"
	}
	if t.Speed > 0 {
		text += fmt.Sprintf(" · %.1f MB/s", t.Speed/1e6)
	}
	if e := eta(t); e != "" {
		text += " · " + e
	}
	return "Downloading " + middle(name(t.Name), titleLimit-len("Downloading ")-len([]rune(text))) + text
}

func (s *State) requestRows() []Item {
	var rows []Item
	for _, r := range s.Requests {
		who := r.Client
		if who == "" {
			who = r.ID
		}
		title := fmt.Sprintf("%s · %d → %d", middle(who, 24), r.Prompt, r.Out)
		if v := r.rate.value; v > 0 {
			title += " · " + speed(v) + " tok/s"
		}
		rows = append(rows, Item{ID: "request", Arg: r.ID, Kind: Submenu, Title: title, Enabled: true, Items: []Item{
			{ID: "request.stop", Arg: r.ID, Title: "Stop", Enabled: s.Has.Requests, Hint: hint(s.Has.Requests, notHere)},
		}})
	}
	return rows
}

// warning is something that the owner should know.
type warning struct {
	text, action, level string
	place               string // the screen where it is put right
}

// warnings are those of the server and of the menu itself, the latest first.
func (s *State) warnings() (list []warning) {
	if s.Problem != "" {
		list = append(list, warning{s.Problem, "", "attention", ""})
	}
	if s.Server.LAN != "" && !s.Server.Protected {
		list = append(list, warning{"Anyone on your network can use this model", "Turn on a key, or switch off Available on Local Network", "attention", "settings/server"})
	}
	if s.LoadError != "" && s.Phase() != NoModel { // there the headline says it
		list = append(list, warning{"Model did not load: " + sentence(s.LoadError), "", "attention", ""})
	}
	for _, w := range s.Health.Warnings {
		place := "settings"
		switch {
		case strings.HasPrefix(w.Code, "memory_"):
			place = "lab/machine"
		case strings.HasPrefix(w.Code, "load_"):
			place = "models"
		}
		list = append(list, warning{w.Message, w.Action, w.Level, place})
	}
	return list
}

// warningRow shows the warnings.
func (s *State) warningRow() Item {
	list := s.warnings()
	it := Item{ID: "warning", Kind: Submenu, Hidden: len(list) == 0, Enabled: true, Tone: Orange, Title: "⚠︎ Nothing to report"}
	for i, w := range list {
		if i == 0 {
			it.Title = middle("⚠︎ "+w.text, titleLimit)
		}
		if w.level == "problem" {
			it.Tone = Red
		}
		it.Items = append(it.Items, Item{ID: "warning.text", Arg: strconv.Itoa(i), Kind: Label, Title: middle(w.text, titleLimit), Hint: w.text})
		it.Items = append(it.Items, Item{ID: "warning.action", Arg: strconv.Itoa(i), Title: middle(w.action, titleLimit), Hint: w.action, Hidden: w.action == "", Enabled: s.Host.Window})
	}
	return it
}

// order sorts the models: pinned, loaded, lately used, the rest by name.
func (s *State) order() []LocalModel {
	list := slices.Clone(s.Local)
	list = slices.DeleteFunc(list, func(m LocalModel) bool { return m.Kind == "drafter" })
	known := func(id string) bool {
		return slices.ContainsFunc(list, func(m LocalModel) bool { return m.ID == id })
	}
	recent := make([]string, 0, len(s.Recent))
	for _, id := range s.Recent {
		recent = append(recent, s.listed(id))
	}
	loaded := s.inMemory()
	for _, id := range append([]string{loaded}, recent...) {
		if id != "" && !known(id) {
			list = append(list, LocalModel{ID: id, Complete: true, Source: "unknown"})
		}
	}
	rank := func(m LocalModel) int {
		switch i := slices.Index(recent, m.ID); {
		case m.Pinned:
			return -2
		case m.ID == loaded:
			return -1
		case i >= 0:
			return i
		}
		return len(recent)
	}
	slices.SortStableFunc(list, func(a, b LocalModel) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(strings.ToLower(a.ID), strings.ToLower(b.ID))
	})
	return list
}

func (s *State) modelRows() []Item {
	phase, inMemory := s.Phase(), s.inMemory()
	idle := phase != Cancelling
	var rows []Item
	for _, m := range s.order() {
		loaded := m.ID == inMemory
		loading := phase != Ready && s.Health.Progress != nil && m.ID == s.listed(s.Health.Progress.Model)
		mark := "○"
		switch {
		case loaded:
			mark = "●"
		case loading:
			mark = "◐"
		case !m.Complete:
			mark = "⤓"
		}
		title := mark + " " + name(m.ID)
		if m.Bytes > 0 {
			title += "  " + gigabytes(m.Bytes) + " GB"
		}
		switch {
		case m.Fit != nil:
			title += " (needs " + gigabytes(m.Fit.Need) + " GB)"
		case m.NoDrafter:
			title += " · drafter not downloaded"
		}
		files := s.Host.Reveal && m.Path != ""
		rows = append(rows, Item{ID: "model", Arg: m.ID, Kind: Submenu, Title: middle(title, titleLimit), Enabled: true, Items: []Item{
			{ID: "model.load", Arg: m.ID, Title: "Load", Hidden: loaded, Enabled: idle && !loading},
			{ID: "model.unload", Arg: m.ID, Title: "Unload", Hidden: !loaded, Enabled: idle},
			{ID: "model.options", Arg: m.ID, Title: "Load with Options…", Enabled: s.Host.Window},
			{ID: "model.copy", Arg: m.ID, Title: "Copy Name", Enabled: true},
			{ID: "model.pin", Arg: m.ID, Title: "Keep Loaded", Check: check(m.Pinned), Enabled: s.Has.Settings, Hint: hint(s.Has.Settings, notHere)},
			{ID: "model.reveal", Arg: m.ID, Title: "Show in Finder", Hidden: !files, Enabled: true},
			{ID: "model.trash", Arg: m.ID, Title: "Move to Trash…", Hidden: !files || m.Source != "cache", Enabled: !loaded && !loading},
		}})
	}
	return append(rows, Item{ID: "separator", Arg: "models", Kind: Separator},
		Item{ID: "models.browse", Title: "Browse Models…", Enabled: s.Host.Window})
}

var modeTitles = []struct{ mode, title string }{
	{"auto", "Automatic"}, {"dspark", "DSpark"}, {"dflash", "DFlash"}, {"lookup", "Lookup"}, {"baseline", "Plain"},
}

func (s *State) decodingRows() []Item {
	have := s.modes()
	var rows []Item
	for _, m := range modeTitles {
		rows = append(rows, Item{ID: "decoding.mode", Arg: m.mode, Title: m.title, Enabled: have[m.mode],
			Check: check(s.Health.Mode == m.mode), Hint: hint(have[m.mode], "This model has no such drafter")})
	}
	caps := []Item{{ID: "decoding.cap", Arg: "auto", Title: "Auto", Enabled: true, Check: check(s.Health.MaxDraft == "auto")}}
	for n := 1; n <= 8; n++ {
		d := strconv.Itoa(n)
		caps = append(caps, Item{ID: "decoding.cap", Arg: d, Title: d, Enabled: true, Check: check(s.Health.MaxDraft == d)})
	}
	return append(rows, Item{ID: "separator", Arg: "decoding", Kind: Separator},
		Item{ID: "decoding.caps", Kind: Submenu, Title: "Draft Cap", Enabled: s.Health.Mode != "baseline", Items: caps},
		Item{ID: "decoding.thinking", Title: "Thinking", Enabled: true, Check: check(s.Health.ThinkingDefault == "on")})
}

func (s *State) copyRows() []Item {
	model := s.serving() != ""
	rows := []Item{
		{ID: "copy.openai", Title: "OpenAI Base URL", Enabled: true},
		{ID: "copy.anthropic", Title: "Anthropic Base URL", Enabled: true},
		{ID: "copy.model", Title: "Model Name", Enabled: model, Hint: hint(model, "No model is loaded")},
		{ID: "copy.key", Title: "API Key", Enabled: s.Server.Key != "", Hint: hint(s.Server.Key != "", "The server asks for no key")},
		{ID: "copy.curl", Title: "curl Example", Enabled: true},
	}
	for i := range rows {
		rows[i] = s.copied(rows[i])
	}
	return rows
}

func (s *State) clientRows() []Item {
	list := slices.Clone(s.Clients)
	rank := func(c ClientProgram) int {
		switch {
		case c.Installed:
			return 0
		case c.Program == "":
			return 1
		}
		return 2
	}
	slices.SortStableFunc(list, func(a, b ClientProgram) int { return rank(a) - rank(b) })
	var rows []Item
	for _, c := range list {
		title, tone := middle(c.Name, nameLimit), Plain
		if rank(c) == 2 {
			title, tone = title+" (not installed)", Grey
		}
		rows = append(rows, Item{ID: "connect.open", Arg: c.ID, Title: title, Tone: tone, Enabled: s.Host.Window})
		if s.Settings.Detail != Simple {
			rows = append(rows, Item{ID: "connect.copy", Arg: c.ID, Title: middle("Copy Command of "+c.Name, titleLimit), Enabled: c.Command != "", Alternate: true})
		}
	}
	return append(rows, Item{ID: "separator", Arg: "connect", Kind: Separator},
		Item{ID: "connect.all", Title: "All Clients…", Enabled: s.Host.Window})
}
