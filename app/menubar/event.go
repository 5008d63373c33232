package menubar

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"sparkbar/httpapi/client"
)

// Event is something that changes the State.
type Event interface{ apply(s *State) }

// Apply returns the State after e, which happened at now.
func (s State) Apply(e Event, now time.Time) State {
	s = s.clone()
	if now.After(s.Now) {
		s.Now = now
	}
	e.apply(&s)
	s.settle()
	return s
}

// settle lets time do its work, and keeps the parts consistent.
func (s *State) settle() {
	if !s.rate.last.IsZero() && s.Now.Sub(s.rate.last) >= rateIdle {
		s.rate = rate{}
		for i := range s.Requests {
			s.Requests[i].rate = rate{}
		}
	}
	if s.Copied != "" && s.Now.Sub(s.copiedAt) >= copiedStays {
		s.Copied = ""
	}
	if s.Health.Status != "loading" {
		s.Download, s.cancelling = nil, false
	}
	if !s.Server.Running {
		s.Requests = nil
	}
	if m := s.serving(); m != "" && s.Health.Status == "ok" {
		s.LoadError = ""
		if len(s.Recent) == 0 || s.Recent[0] != m {
			s.remember(m)
		}
		s.LastModel = m
		if t := s.Health.Target; t != "" {
			s.LastModel = t
		}
	}
	n := len([]rune(s.titleText()))
	s.widest = slices.DeleteFunc(s.widest, func(w width) bool { return w.n <= n || s.Now.Sub(w.at) >= widthWindow })
	if n > 0 {
		s.widest = append(s.widest, width{s.Now, n})
	}
}

// HealthSeen is an answer of GET /health or a state event.
type HealthSeen struct{ client.Health }

func (e HealthSeen) apply(s *State) {
	before := s.serving()
	s.Heard, s.Health = true, e.Health
	if e.Health.Error != "" {
		s.LoadError = e.Health.Error
	}
	s.Download = nil
	if d := e.Health.Download; d != nil {
		s.Download = &Transfer{Name: d.Repo, Done: max(d.BytesDone, 0), Total: max(d.BytesTotal, 0), Speed: max(d.BytesPerSecond, 0)}
	}
	if s.serving() != before { // the rounds of another model say nothing about this one
		s.Ribbon, s.accept, s.rate = nil, 0, rate{}
		s.spoke = time.Time{}
	}
}

// RoundSeen is a round event.
type RoundSeen struct {
	Req       string  `json:"req"`
	Committed int     `json:"committed"`
	Source    string  `json:"source"`
	MS        float64 `json:"ms"`
	I         int     `json:"i"`
}

func (e RoundSeen) apply(s *State) {
	r := s.request(e.Req)
	r.Running = true
	r.Out += max(e.Committed, 0)
	if e.I > 0 || e.MS > 0 && r.Prompt == 0 { // round 0 includes the reading of the prompt
		r.rate.add(e.Committed, e.MS, s.Now)
	}
	var sum float64
	for _, x := range s.Requests {
		if x.Running {
			sum += x.rate.value
		}
	}
	if sum > 0 {
		s.rate.value, s.rate.last = sum, s.Now
		s.rate.publish(s.Now)
	}
	s.spoke = s.Now
	n := float64(min(max(e.Committed, 0), 1000))
	if s.accept == 0 {
		s.accept = n
	} else {
		s.accept = rateKeep*s.accept + (1-rateKeep)*n
	}
	s.Ribbon = append(s.Ribbon, Bar{int(n), e.Source})
	s.Ribbon = s.Ribbon[max(0, len(s.Ribbon)-ribbonLength):]
}

// request finds a request or adds it.
func (s *State) request(id string) *Request {
	if i := slices.IndexFunc(s.Requests, func(r Request) bool { return r.ID == id }); i >= 0 {
		return &s.Requests[i]
	}
	if len(s.Requests) >= requestLimit {
		s.Requests = s.Requests[1:]
	}
	s.Requests = append(s.Requests, Request{ID: id})
	return &s.Requests[len(s.Requests)-1]
}

// PrefillSeen is a prefill event.
type PrefillSeen struct {
	Req       string `json:"req"`
	Processed int    `json:"processed"`
	Total     int    `json:"total"`
	Done      bool   `json:"done"`
}

func (e PrefillSeen) apply(s *State) {
	i := slices.IndexFunc(s.Requests, func(r Request) bool { return r.ID == e.Req })
	if i < 0 && e.Done { // the last word about a request that is gone
		return
	}
	r := s.request(e.Req)
	r.Running, r.Read, r.Prompt = true, e.Processed, e.Total
}

// RequestSeen is a request event.
type RequestSeen struct {
	ID     string `json:"id"`
	State  string `json:"state"` // queued, running, done, failed
	Prompt int    `json:"prompt_tokens"`
	Client string `json:"client"`
	Stats  *struct {
		Decode float64 `json:"decode_tokens_per_sec"`
	} `json:"stats"`
}

func (e RequestSeen) apply(s *State) {
	switch e.State {
	case "queued", "running":
		r := s.request(e.ID)
		r.Running, r.Prompt = e.State == "running", e.Prompt
		if e.Client != "" {
			r.Client = e.Client
		}
	default:
		s.Requests = slices.DeleteFunc(s.Requests, func(r Request) bool { return r.ID == e.ID })
		if e.Stats != nil && len(s.Requests) == 0 {
			v := min(max(e.Stats.Decode, 0), rateLimit)
			s.rate = rate{value: v, shown: v, published: s.Now, last: s.Now}
			s.spoke = s.Now
		}
	}
}

// RequestsSeen is the list of all requests, from GET /admin/requests.
type RequestsSeen []client.Request

func (e RequestsSeen) apply(s *State) {
	s.Requests = slices.DeleteFunc(s.Requests, func(r Request) bool {
		return !slices.ContainsFunc(e, func(x client.Request) bool { return x.ID == r.ID })
	})
	for _, r := range e {
		RequestSeen{ID: r.ID, State: r.State, Prompt: r.PromptTokens, Client: r.Client}.apply(s)
		if i := slices.IndexFunc(s.Requests, func(x Request) bool { return x.ID == r.ID }); i >= 0 {
			s.Requests[i].Out = max(s.Requests[i].Out, r.Tokens)
		}
	}
}

// shed is what the memory guard did, as the server tells it.
type shed struct {
	Action string `json:"action"`
	Freed  int64  `json:"freed_bytes"`
}

// words for a row of the menu; nothing for a guard that has done nothing.
func (x *shed) words() string {
	if x == nil {
		return ""
	}
	text := x.Action
	if text == "" {
		text = "freed memory"
	}
	if x.Freed > 0 {
		text += ", " + gigabytes(x.Freed) + " GB given back"
	}
	return text
}

// PressureSeen is a pressure event: the memory guard sees another level, or has
// done something.
type PressureSeen struct {
	Level string `json:"level"` // "" = the guard is off
	Last  *shed  `json:"last_shed"`
}

func (e PressureSeen) apply(s *State) {
	if e.Level != "" {
		s.Machine.Pressure = e.Level
	}
	if e.Last != nil {
		s.Machine.Guard = e.Last.words()
	}
}

// DownloadSeen is a download event: files of a model are fetched, for a load or
// without one.
type DownloadSeen struct{ client.Download }

func (e DownloadSeen) apply(s *State) {
	s.Fetching = slices.DeleteFunc(s.Fetching, func(id string) bool { return id == e.ID })
	s.Fetched = ""
	switch e.State {
	case "planning", "waiting", "downloading":
		s.Fetching = append(s.Fetching, e.ID)
		s.Fetching = s.Fetching[max(0, len(s.Fetching)-requestLimit):]
	case "done":
		s.Fetched = e.Model
	}
}

// Decode reads an event of the server; nil for those that change nothing here.
func Decode(e client.Event) (Event, error) {
	switch e.Name {
	case "state":
		return decode[HealthSeen](e)
	case "round":
		return decode[RoundSeen](e)
	case "prefill":
		return decode[PrefillSeen](e)
	case "request":
		return decode[RequestSeen](e)
	case "pressure":
		return decode[PressureSeen](e)
	case "download":
		return decode[DownloadSeen](e)
	}
	return nil, nil
}

func decode[T Event](e client.Event) (Event, error) {
	var v T
	if err := json.Unmarshal(e.Data, &v); err != nil {
		return nil, fmt.Errorf("the server's %s event is not what was expected: %w", e.Name, err)
	}
	return v, nil
}

// Tick lets time pass.
type Tick struct{}

func (Tick) apply(*State) {}

// Lost means that the server has stopped talking.
type Lost struct{ Reason string }

func (e Lost) apply(s *State) {
	s.Requests, s.rate, s.Download, s.Fetching = nil, rate{}, nil, nil
	s.Server.Failure = e.Reason
}

// Found means that the server talks again.
type Found struct{}

func (Found) apply(s *State) {
	s.Server.Failure, s.Requests = "", nil
}

// The rest of the events replace one part of the State.
type (
	ServerSeen   ServerState
	HostSeen     HostFeatures
	FeaturesSeen Features
	ModelsSeen   []LocalModel
	MachineSeen  Machine
	LoginSeen    LoginItem
	ClientsSeen  []ClientProgram
	UpdateSeen   Update
	SettingsSeen Settings
	OptionKey    bool
)

func (e ServerSeen) apply(s *State)   { s.Server = ServerState(e) }
func (e HostSeen) apply(s *State)     { s.Host = HostFeatures(e) }
func (e FeaturesSeen) apply(s *State) { s.Has = Features(e) }
func (e ModelsSeen) apply(s *State)   { s.Local = slices.Clone(e) }
func (e MachineSeen) apply(s *State)  { s.Machine = Machine(e) }
func (e LoginSeen) apply(s *State)    { s.Login = LoginItem(e) }
func (e ClientsSeen) apply(s *State)  { s.Clients = slices.Clone(e) }
func (e OptionKey) apply(s *State)    { s.Option = bool(e) }
func (e SettingsSeen) apply(s *State) {
	s.Settings = Settings(e)
	if s.LastModel == "" {
		s.LastModel = e.Last
	}
}
func (e UpdateSeen) apply(s *State) {
	if u := Update(e); u.Version != "" {
		s.Update = &u
	} else {
		s.Update = nil
	}
}

// CopyDone means that the text of an item is on the pasteboard.
type CopyDone struct{ ID string }

func (e CopyDone) apply(s *State) { s.Copied, s.copiedAt = e.ID, s.Now }

// CancelAsked means that the load under way is being undone.
type CancelAsked struct{}

func (CancelAsked) apply(s *State) { s.cancelling = s.Health.Status == "loading" }

// Refused is a click that failed; an empty text takes the last one back.
type Refused struct{ Text string }

func (e Refused) apply(s *State) { s.Problem = e.Text }
