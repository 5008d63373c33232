package menubar

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"sparkbar/httpapi/client"
)

// App is the product's name as users read it.
const App = "Sparkbar"

// DefaultPort is where the server listens unless told otherwise.
const DefaultPort = 8080

// Phase is where the product stands, one word of twelve.
type Phase string

// The phases.
const (
	Starting    Phase = "starting"    // no listener yet, or nothing heard from the server
	NoModel     Phase = "no_model"    // listening, nothing loaded
	Downloading Phase = "downloading" // weights are being fetched
	Loading     Phase = "loading"     // reading weights
	WarmingUp   Phase = "warming_up"  // warm-up generation, calibration
	Ready       Phase = "ready"       // a model is loaded and nothing runs
	Prefill     Phase = "prefill"     // reading a prompt
	Generating  Phase = "generating"  // producing tokens
	Cancelling  Phase = "cancelling"  // a load is being undone
	Asleep      Phase = "asleep"      // the idle timer took the model out; the next request brings it back
	Stopped     Phase = "stopped"     // the user stopped the server
	Failed      Phase = "failed"      // the port cannot be bound, or the engine is lost
)

// Phases lists all, in the order of a life.
func Phases() []Phase {
	return []Phase{Starting, NoModel, Downloading, Loading, WarmingUp, Ready, Prefill, Generating, Cancelling, Asleep, Stopped, Failed}
}

// Pressure of memory, in the words of the server.
const (
	PressureNormal   = "normal"
	PressureWarn     = "warn"
	PressureCritical = "critical"
	PressureUnknown  = "unknown"
)

// Detail is how much the menu shows.
type Detail string

// The levels of detail.
const (
	Simple    Detail = "simple"
	Advanced  Detail = "advanced" // the default
	Developer Detail = "developer"
)

// ServerState is what the process knows about its listeners.
type ServerState struct {
	Running  bool
	Starting bool
	Failure  string // why there is no listener, or that the engine is lost; "" = fine
	Port     int    // the one that is bound
	Moved    bool   // Port is not the one that was asked for
	LAN      string // base URL for other devices; "" = this machine only
	// Protected means that callers from the network must present a key.
	Protected bool
	Key       string // the key that snippets hold, "" = none
}

// Transfer is a download.
type Transfer struct {
	Name        string
	Done, Total int64   // bytes; a total of 0 is unknown
	Speed       float64 // bytes per second, 0 = not known yet
}

// LocalModel is a model on this machine.
type LocalModel struct {
	ID       string
	Path     string // "" = part of the program
	Bytes    int64  // 0 = unknown
	Kind     string // "model" or "drafter"
	Source   string // cache, lmstudio, model_dirs, builtin
	Complete bool
	Fit      *Fit // nil = it fits, or nobody knows
	Pinned   bool
	// Modes that the model has a drafter for, beside lookup and baseline.
	Modes []string
	// NoDrafter means that its drafter is known and not on disk.
	NoDrafter bool
}

// folder is all that the hub cache keeps of a model: Path is one revision in it,
// which is only links.
func (m LocalModel) folder() string {
	for dir := m.Path; path.Dir(dir) != dir; dir = path.Dir(dir) {
		if strings.HasPrefix(path.Base(dir), "models--") {
			return dir
		}
	}
	return m.Path
}

// Fit tells why a model may be too large for this machine.
type Fit struct {
	Need, Available int64 // bytes
	Context         int   // tokens that Need holds room for
	SmallContext    int   // tokens that would fit, 0 = none
	SmallNeed       int64 // 0 = unknown
}

// Request is a generation that the server is busy with.
type Request struct {
	ID      string
	Client  string // "" = the server does not say
	Running bool   // false = waiting
	Prompt  int    // tokens
	Read    int    // prompt tokens read so far, with those taken from the cache
	Out     int    // tokens produced
	rate    rate
}

// Rate is the request's speed in tokens per second.
func (r Request) Rate() float64 { return r.rate.shown }

// Machine is the memory of this computer.
type Machine struct {
	TotalBytes int64
	SwapBytes  int64
	Pressure   string
	Guard      string  // what the memory guard did last, "" = nothing
	CeilingTPS float64 // tokens per second that plain decoding cannot exceed, 0 = unknown
}

// LoginItem says whether the product starts at login.
type LoginItem int

// The states of the login item.
const (
	LoginUnavailable LoginItem = iota // this system has none
	LoginOff
	LoginOn
	LoginNeedsApproval // the user must allow it in the system's settings
)

// ClientProgram is something that can use the server.
type ClientProgram struct {
	ID, Name  string
	Program   string // file that is looked for, "" = it is no program of its own
	Installed bool
	Command   string // that starts it against this server, "" = unknown
}

// Update is a newer version.
type Update struct {
	Version, Notes, URL, Command string
}

// Features of the server that not every version has. A feature that is not
// known yet counts as absent.
type Features struct {
	Machine, Models, Requests, Race, Doctor, Settings, Integrations bool
}

// Settings are the user's choices about the menu.
type Settings struct {
	Detail  Detail
	Text    string // auto, none, rate+accept, memory
	Ribbon  bool
	Awake   string // when the computer may not fall asleep: requests, always, never
	Notices Notices
	Last    string // the model that was loaded in an earlier life, "" = none
}

// Notices are the notifications that the user wants.
type Notices struct{ Download, Load, Port, Server bool }

// DefaultSettings are those of a user who has chosen nothing.
func DefaultSettings() Settings {
	return Settings{Detail: Advanced, Text: "auto", Ribbon: true, Awake: AwakeRequests, Notices: Notices{true, true, true, true}}
}

// When the computer may not fall asleep.
const (
	AwakeRequests = "requests" // while one runs or a model is fetched
	AwakeAlways   = "always"
	AwakeNever    = "never"
)

// Bar is one round in the ribbon.
type Bar struct {
	Committed int
	Source    string // drafter, lookup, plain
}

// ribbonLength is how many rounds the ribbon shows.
const ribbonLength = 60

// State is everything that the menu depends on. The zero value is a product
// that has just begun to start. Use it as a value: Apply returns a new one and
// leaves the old one as it was.
type State struct {
	Now    time.Time // of the last event
	Server ServerState
	Host   HostFeatures
	Has    Features

	Heard      bool // anything was heard from the server
	Health     client.Health
	Download   *Transfer
	cancelling bool
	LastModel  string // loaded last, for loading it again
	LoadError  string // of the last failed load

	Fetching []string // ids of downloads under way, for a load or without one
	Fetched  string   // the model whose download has just ended well

	Local    []LocalModel
	Recent   []string // ids, latest first
	Requests []Request
	Machine  Machine
	Login    LoginItem
	Clients  []ClientProgram
	Update   *Update
	Settings Settings
	Problem  string // what a click could not do, shown as a warning until the next one works

	Ribbon   []Bar
	rate     rate
	accept   float64 // committed per round, smoothed
	spoke    time.Time
	Copied   string // id of the item whose text was just copied
	copiedAt time.Time
	Option   bool // the option key is held
	widest   []width
}

type width struct {
	at time.Time
	n  int
}

// HostFeatures are the things that the place where the menu runs can do.
type HostFeatures struct {
	Window bool // show the dashboard
	Reveal bool // show a file, and move it to the trash
	Login  bool
	Server bool // start and stop listeners
	Quit   bool // ends the server too
}

// Phase tells where the product stands.
func (s *State) Phase() Phase {
	switch {
	case s.Server.Failure != "":
		return Failed
	case s.Server.Starting || s.Server.Running && !s.Heard:
		return Starting
	case !s.Server.Running:
		if !s.Heard {
			return Starting
		}
		return Stopped
	}
	switch s.Health.Status {
	case "loading":
		switch {
		case s.cancelling:
			return Cancelling
		case s.Download != nil:
			return Downloading
		case s.Health.Phase == "warming_up":
			return WarmingUp
		}
		return Loading
	case "ok":
		phase := Ready
		for _, r := range s.Requests {
			if r.Running && r.Out > 0 {
				return Generating
			}
			if r.Running {
				phase = Prefill
			}
		}
		return phase
	}
	if s.Health.State == "asleep" {
		return Asleep
	}
	return NoModel
}

// Loaded reports whether a model can answer now.
func (s *State) Loaded() bool { return s.serving() != "" }

// serving is the model that answers, "" = none. While another one loads it may
// still be the old one.
func (s *State) serving() string {
	switch s.Health.Status {
	case "ok":
		return s.Health.Model
	case "loading":
		return s.Health.Serving
	}
	return ""
}

// Resident is the model that is in memory or on its way there, "" = none.
func (s *State) Resident() string {
	switch {
	case s.Health.Status == "loading" && s.Download == nil && s.Health.Progress != nil:
		return s.Health.Progress.Model
	case s.Health.Status == "ok" && s.Health.Target != "":
		return s.Health.Target
	}
	return s.serving()
}

// arriving is the model that is being loaded.
func (s *State) arriving() string {
	switch {
	case s.Download != nil && s.Download.Name != "":
		return s.Download.Name
	case s.Health.Progress != nil && s.Health.Progress.Model != "":
		return s.Health.Progress.Model
	}
	return "the model"
}

// Listening reports whether clients can reach the server.
func (s *State) Listening() bool {
	switch s.Phase() {
	case Starting, Stopped, Failed:
		return false
	}
	return true
}

// Base is the address that clients use, without a slash at the end.
func (s *State) Base() string {
	if s.Server.LAN != "" {
		return s.Server.LAN
	}
	return localBase(s.Server.Port)
}

// Rate is the speed of all requests together in tokens per second.
func (s *State) Rate() float64 { return s.rate.shown }

// Accept is the mean number of tokens that a round brings lately.
func (s *State) Accept() float64 { return s.accept }

// counts returns how many requests run and wait.
func (s *State) counts() (running, waiting int) {
	for _, r := range s.Requests {
		if r.Running {
			running++
		} else {
			waiting++
		}
	}
	return
}

// spokeLately reports whether the speed is still worth showing.
func (s *State) spokeLately() bool {
	return !s.spoke.IsZero() && s.Now.Sub(s.spoke) < speedStays
}

// listed is the id under which the list of models has one that the server calls
// name: that is the id, its last part, or the folder.
func (s *State) listed(name string) string {
	for _, same := range []func(LocalModel) bool{
		func(m LocalModel) bool { return m.ID == name },
		func(m LocalModel) bool { return m.Path != "" && m.Path == name },
		func(m LocalModel) bool { return m.Kind != "drafter" && path.Base(m.ID) == name },
	} {
		if i := slices.IndexFunc(s.Local, same); i >= 0 && name != "" {
			return s.Local[i].ID
		}
	}
	return name
}

// inMemory is the id of the model that answers, as the list has it.
func (s *State) inMemory() string {
	if s.Health.Status == "ok" && s.Health.Target != "" {
		if id := s.listed(s.Health.Target); id != s.Health.Target || s.Health.Model == "" {
			return id
		} else if _, ok := s.local(id); ok {
			return id
		}
	}
	return s.listed(s.serving())
}

func (s *State) local(id string) (LocalModel, bool) {
	i := slices.IndexFunc(s.Local, func(m LocalModel) bool { return m.ID == id })
	if i < 0 {
		return LocalModel{}, false
	}
	return s.Local[i], true
}

// pressure is normal where nobody knows better.
func (s *State) pressure() string {
	if s.Machine.Pressure == "" {
		return PressureUnknown
	}
	return s.Machine.Pressure
}

// clone copies what Apply changes in place.
func (s State) clone() State {
	s.Requests = slices.Clone(s.Requests)
	s.Ribbon = slices.Clone(s.Ribbon)
	s.Recent = slices.Clone(s.Recent)
	s.Fetching = slices.Clone(s.Fetching)
	s.widest = slices.Clone(s.widest)
	return s
}

// remember puts id at the front of the recent models.
func (s *State) remember(id string) {
	s.Recent = slices.DeleteFunc(s.Recent, func(x string) bool { return x == id })
	s.Recent = slices.Insert(s.Recent, 0, id)
	s.Recent = s.Recent[:min(len(s.Recent), 8)]
}

// modes that can be asked for with the loaded model.
func (s *State) modes() map[string]bool {
	m := map[string]bool{"auto": true, "lookup": true, "baseline": true}
	have := map[string]bool{s.Health.Mode: true}
	if l, ok := s.local(s.inMemory()); ok {
		for _, mode := range l.Modes {
			have[mode] = true
		}
	}
	maps.Copy(m, have)
	return m
}
