package menubar

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"time"

	"sparkbar/httpapi/client"
)

// Host is the place where the menu runs: a desktop or a terminal. Its methods
// are called from any goroutine and must not block on the user.
type Host interface {
	Features() HostFeatures
	Copy(text string) error
	Open(screen string) error // the dashboard at a screen, "" = where it was
	Browse(url string) error
	Reveal(path string) error
	Trash(path string) error
	Log() error
	Edit(path string) error
	Notify(title, text string) error
	Login() LoginItem
	SetLogin(on bool) error
	LoginSettings() error
	// Awake keeps the computer from falling asleep, or lets it.
	Awake(on bool)
	// Battery is its charge in percent while the computer runs on it, and -1
	// while it does not.
	Battery() int
	// Ask shows a dialog and returns at once; the number of the chosen button
	// goes to Controller.Answer.
	Ask(Dialog)
	// Quit ends the program, which may take as long as the grace for running
	// requests unless now is set.
	Quit(now bool)
}

// Server is the process's hold on its listeners; nil in a view of a server
// that runs elsewhere.
type Server interface {
	State() ServerState
	Start(port int) error // 0 = as configured
	Stop() error
	// LAN opens or closes the listener for other devices. With key set, callers
	// from there must present it.
	LAN(on, key bool) error
}

// Options of a Controller. Client and Host are required.
type Options struct {
	Client *client.Client
	Host   Host
	Server Server
	// Where is the state of a server that runs elsewhere, if Server is nil.
	Where ServerState
	// Settings until the server tells its own; the zero value = DefaultSettings.
	Settings Settings
	// Installed looks for a program on this machine, nil = nothing is known.
	Installed func(program string) bool
	// SelfTest runs the kernels of this machine against the definition of what
	// they compute and says which did; nil = it is not for this process to do.
	SelfTest func(context.Context) (string, error)
	// Skip remembers a version that the user does not want, nil = nobody does.
	Skip func(version string)
	// Changed is called when what the user sees has changed: the title always,
	// the menu only while it is open. It runs on the caller's goroutine of an
	// event and must return quickly.
	Changed func()
	// Now and After are the clock; nil = the real one.
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
}

// The rhythm of the Controller.
const (
	refresh     = 500 * time.Millisecond // of an open menu
	reconnect   = time.Second
	slowRefresh = 5 * time.Second // of what changes slowly, in an open menu
	callTimeout = 10 * time.Second
	awakeStays  = 5 * time.Second // after the last request
	batteryLook = 30 * time.Second
	batteryLow  = 20 // percent, below which the computer may always fall asleep
)

// Controller keeps a State up to date and carries out clicks. Safe for
// concurrent use.
type Controller struct {
	o    Options
	wake chan struct{} // the rhythm may have changed
	jobs sync.WaitGroup

	mu     sync.Mutex
	ctx    context.Context
	state  State
	open   bool
	seen   StatusTitle // what was last shown
	tree   Tree
	dialog *Dialog
	queue  []Dialog // to be asked after it
	awake  bool
	idleAt time.Time // since when nothing runs
	charge int       // of the battery, as Host.Battery tells it
	lookAt time.Time // when that was read
	slowAt time.Time // of the last slow refresh
	gone   bool      // the event stream is broken
}

// New returns a Controller. Run makes it live.
func New(o Options) *Controller {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.After == nil {
		o.After = time.After
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Settings == (Settings{}) {
		o.Settings = DefaultSettings()
	}
	if o.Installed == nil {
		o.Installed = func(string) bool { return false }
	}
	if o.Skip == nil {
		o.Skip = func(string) {}
	}
	c := &Controller{o: o, wake: make(chan struct{}, 1), ctx: context.Background()}
	c.state = State{Server: o.Where, Settings: o.Settings, Host: o.Host.Features(), Login: o.Host.Login(), Now: o.Now()}
	if o.Server != nil {
		c.state.Server = o.Server.State()
	}
	c.state.Host.Server = o.Server != nil
	c.seen = Title(c.state)
	return c
}

// State returns the present State.
func (c *Controller) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.clone()
}

// Run follows the server until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	c.mu.Lock()
	c.ctx = ctx
	c.mu.Unlock()
	c.jobs.Go(func() { c.follow(ctx) })
	c.jobs.Go(func() { c.Reload(ctx) })
	for ctx.Err() == nil {
		c.mu.Lock()
		wait, timed := c.rhythm()
		c.mu.Unlock()
		var after <-chan time.Time
		if timed {
			after = c.o.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-after:
			c.tick(ctx)
		}
	}
	c.jobs.Wait()
}

// rhythm is when time itself must be looked at: not at all while the menu is
// closed and nothing moves.
func (c *Controller) rhythm() (time.Duration, bool) {
	switch {
	case c.open:
		return refresh, true
	case c.seen.Glyph == GlyphPulse:
		return pulse, true
	case c.state.Rate() > 0 || c.awake && !c.idleAt.IsZero() || c.state.Copied != "" || c.seen.Width > len([]rune(c.seen.Text)):
		return RateCheck, true
	case c.awake || c.wantsAwake():
		return batteryLook, true
	}
	return 0, false
}

func (c *Controller) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// follow reads the event stream, again and again.
func (c *Controller) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.o.Client.Events(ctx, func(e client.Event) error {
			c.mu.Lock()
			gone := c.gone
			c.gone = false
			c.mu.Unlock()
			if gone {
				c.Apply(Found{})
			}
			v, err := Decode(e)
			if err == nil && v != nil {
				c.Apply(v)
			}
			return err
		})
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		c.gone = true
		c.mu.Unlock()
		c.Apply(Lost{lostText(err)})
		select {
		case <-ctx.Done():
		case <-c.o.After(reconnect):
		}
	}
}

func lostText(err error) string {
	var e *client.Error
	if errors.As(err, &e) && e.Status == http.StatusUnauthorized {
		return "The server asks for a key"
	}
	return "The server does not answer"
}

// Apply takes in an event and shows what has changed.
func (c *Controller) Apply(e Event) {
	c.mu.Lock()
	now := c.o.Now()
	before := c.state
	c.state = c.state.Apply(e, now)
	title, text := notice(&before, &c.state)
	ask := Dialogs(e, c.state)
	c.keepAwake(now)
	changed := c.changedLocked()
	c.mu.Unlock()
	if changed {
		c.o.Changed()
	}
	if title != "" {
		_ = c.o.Host.Notify(title, text) // the menu says it too
	}
	if ask != nil {
		c.ask(*ask)
	}
	c.poke()
}

// notice is what is worth a notification; an empty title means nothing.
func notice(before, after *State) (title, text string) {
	switch b, a := before.Download, after.Download; {
	case after.Fetched != "" && before.Fetched == "" && after.Settings.Notices.Download:
		return "Download finished", name(after.Fetched)
	case b != nil && len(before.Fetching) == 0 && a == nil && after.Heard && b.Total > 0 && b.Done >= b.Total && !before.cancelling && after.Server.Failure == "" && after.Settings.Notices.Download:
		return "Download finished", name(b.Name)
	case after.LoadError != "" && before.LoadError == "" && after.Settings.Notices.Load:
		return "Model did not load", sentence(after.LoadError)
	case after.Server.Moved && !before.Server.Moved && after.Server.Running && after.Settings.Notices.Port:
		return "Another port", fmt.Sprintf("%s listens on port %d now", App, after.Server.Port)
	case after.Server.Failure != "" && before.Server.Failure == "" && before.Heard && after.Settings.Notices.Server:
		return "Server unreachable", after.Server.Failure
	}
	return "", ""
}

// wantsAwake reports whether the computer should not fall asleep now, were it
// not for its battery.
func (c *Controller) wantsAwake() bool {
	switch c.state.Settings.Awake {
	case AwakeAlways:
		return true
	case AwakeNever:
		return false
	}
	return len(c.state.Requests) > 0 || c.state.Download != nil || len(c.state.Fetching) > 0
}

// keepAwake holds the computer awake while it works, and a little longer; on a
// battery that is nearly empty it does not.
func (c *Controller) keepAwake(now time.Time) {
	busy := c.wantsAwake()
	if (busy || c.awake) && (c.lookAt.IsZero() || now.Sub(c.lookAt) >= batteryLook) {
		c.charge, c.lookAt = c.o.Host.Battery(), now
	}
	low := c.charge >= 0 && c.charge < batteryLow
	switch {
	case c.awake && low:
		c.awake, c.idleAt = false, time.Time{}
		c.o.Host.Awake(false)
	case low:
	case busy:
		c.idleAt = time.Time{}
		if !c.awake {
			c.awake = true
			c.o.Host.Awake(true)
		}
	case !c.awake:
	case c.idleAt.IsZero():
		c.idleAt = now
	case now.Sub(c.idleAt) >= awakeStays:
		c.awake, c.idleAt = false, time.Time{}
		c.o.Host.Awake(false)
	}
}

// changedLocked compares what is shown with what should be.
func (c *Controller) changedLocked() bool {
	t := Title(c.state)
	changed := t != c.seen
	c.seen = t
	if c.open {
		tree := Menu(c.state)
		changed = changed || !reflect.DeepEqual(tree, c.tree)
		c.tree = tree
	}
	return changed
}

// View returns what is to be shown now.
func (c *Controller) View() (StatusTitle, Tree) {
	s := c.State()
	return Title(s), Menu(s)
}

// Open tells that the menu is being looked at.
func (c *Controller) Open() {
	c.mu.Lock()
	c.open, c.slowAt = true, time.Time{}
	ctx := c.ctx
	c.mu.Unlock()
	c.jobs.Go(func() { c.tick(ctx) })
	c.poke()
}

// Close tells that the menu is no longer looked at.
func (c *Controller) Close() {
	c.mu.Lock()
	c.open, c.tree = false, nil
	c.mu.Unlock()
}

// tick lets time pass; an open menu also asks the server.
func (c *Controller) tick(ctx context.Context) {
	c.mu.Lock()
	open := c.open
	slow := open && (c.slowAt.IsZero() || c.o.Now().Sub(c.slowAt) >= slowRefresh)
	if slow {
		c.slowAt = c.o.Now()
	}
	c.mu.Unlock()
	if c.o.Server != nil {
		c.Apply(ServerSeen(c.o.Server.State()))
	} else {
		c.Apply(Tick{})
	}
	if !open {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.refresh(ctx, slow)
}

// Reload asks the server for everything that no event tells, as opening the
// menu does: after settings have changed, or the computer has slept.
func (c *Controller) Reload(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.refresh(ctx, true)
}

// refresh asks the server for what no event tells. A route that the server
// lacks leaves what is known and marks the feature as absent.
func (c *Controller) refresh(ctx context.Context, slow bool) {
	s, api := c.State(), c.o.Client
	has := s.Has
	found := func(feature *bool, err error) bool {
		if err == nil || client.Absent(err) {
			*feature = err == nil
		}
		return err == nil
	}
	if slow || has.Requests {
		if list, err := api.Requests(ctx); found(&has.Requests, err) {
			c.Apply(RequestsSeen(list))
		}
	}
	if slow {
		if m, err := fetchMachine(ctx, api); found(&has.Machine, err) {
			c.Apply(m)
		}
		pinned := []string{}
		if v, err := api.Settings(ctx); found(&has.Settings, err) {
			c.Apply(settingsOf(v))
			pinned = pinnedOf(v)
		}
		if v, err := api.Inventory(ctx); found(&has.Models, err) {
			c.Apply(modelsOf(v, pinned))
		}
		if v, err := api.Integrations(ctx); found(&has.Integrations, err) {
			c.Apply(clientsOf(v, c.o.Installed))
		}
		if ok, err := hasRoute(ctx, api, "/admin/race"); err == nil {
			has.Race = ok
		}
		if ok, err := hasRoute(ctx, api, "/doctor"); err == nil {
			has.Doctor = ok
		}
		c.Apply(LoginSeen(c.o.Host.Login()))
	}
	if has != s.Has {
		c.Apply(FeaturesSeen(has))
	}
}

// Click carries out a click on an item.
func (c *Controller) Click(id, arg string) {
	e, ask := Click(c.State(), id, arg)
	if ask != nil {
		c.ask(*ask)
		return
	}
	c.start(e)
}

// ask shows a dialog, after the ones that are waiting for their answer.
func (c *Controller) ask(d Dialog) {
	c.mu.Lock()
	if c.dialog != nil {
		if c.dialog.ID != d.ID && len(c.queue) < 8 {
			c.queue = append(c.queue, d)
		}
		c.mu.Unlock()
		return
	}
	c.dialog = &d
	c.mu.Unlock()
	c.o.Host.Ask(d)
}

// Answer carries out the choice of a button of the dialog that was last asked.
// A number that no button has closes it.
func (c *Controller) Answer(button int) {
	c.mu.Lock()
	d := c.dialog
	c.dialog = nil
	var next *Dialog
	if len(c.queue) > 0 {
		next = &c.queue[0]
		c.queue = c.queue[1:]
	}
	c.mu.Unlock()
	if d != nil && button >= 0 && button < len(d.Buttons) {
		c.start(d.Buttons[button].Effect)
	}
	if next != nil {
		c.ask(*next)
	}
}

// start runs an effect beside the caller, so that the menu never waits.
func (c *Controller) start(e Effect) {
	if e.Do == VerbNothing {
		return
	}
	c.mu.Lock()
	ctx := c.ctx
	c.mu.Unlock()
	c.jobs.Go(func() {
		err := c.Do(ctx, e)
		var taken PortTaken
		switch {
		case ctx.Err() != nil:
		case errors.As(err, &taken):
			c.Apply(taken)
		case err == nil:
			if c.State().Problem != "" {
				c.Apply(Refused{})
			}
		case e.Do == VerbLoad:
			c.Apply(LoadFailed{e.Arg, err})
		default:
			c.Apply(Refused{err.Error()})
		}
	})
}

// Do carries out an effect and waits for its end.
func (c *Controller) Do(ctx context.Context, e Effect) error {
	if e.Wait {
		if err := c.quiet(ctx); err != nil {
			return err
		}
	}
	if e.Stop {
		if err := c.stopRequests(ctx); err != nil && !client.Absent(err) {
			return err
		}
	}
	h, api := c.o.Host, c.o.Client
	switch e.Do {
	case VerbNothing:
		return nil
	case VerbLoad:
		r := client.LoadRequest{Model: e.Arg, Mode: e.Load.Mode, MaxDraft: client.MaxDraft(e.Load.MaxDraft), EnableThinking: e.Load.Thinking}
		if e.Load.Context > 0 {
			r.ContextWindow = &e.Load.Context
		}
		_, err := api.Load(ctx, r)
		return err
	case VerbUnload:
		_, err := api.Unload(ctx)
		return err
	case VerbCancel:
		c.Apply(CancelAsked{})
		_, err := api.LoadCancel(ctx, e.Arg == "delete")
		return err
	case VerbStop:
		if e.Arg == "" {
			return c.stopRequests(ctx)
		}
		return c.stopRequest(ctx, e.Arg)
	case VerbPin, VerbUnpin:
		return c.pin(ctx, e.Arg, e.Do == VerbPin)
	case VerbRace:
		return c.race(ctx)
	case VerbCheck:
		return c.check(ctx)
	case VerbCopy:
		if err := h.Copy(e.Text); err != nil {
			return err
		}
		c.Apply(CopyDone{e.Arg})
		return nil
	case VerbOpen:
		return h.Open(e.Arg)
	case VerbBrowse:
		return h.Browse(e.Arg)
	case VerbReveal:
		return h.Reveal(e.Arg)
	case VerbTrash:
		return h.Trash(e.Arg)
	case VerbLog:
		return h.Log()
	case VerbEdit:
		return h.Edit(e.Arg)
	case VerbAbout:
		s := c.State()
		c.ask(Dialog{ID: "about", Title: App + " " + s.Health.Version, Text: "A private LLM endpoint with lossless speculative decoding.", Buttons: []Button{{"OK", nothing}}})
		return nil
	case VerbLogin:
		if e.Arg == "settings" {
			return h.LoginSettings()
		}
		err := h.SetLogin(e.Arg == "on")
		c.Apply(LoginSeen(h.Login()))
		if err != nil {
			return err
		}
		return c.keep(ctx, map[string]any{"login.enabled": e.Arg == "on"})
	case VerbSkip:
		c.o.Skip(e.Arg)
		c.Apply(UpdateSeen{})
		return nil
	case VerbQuit:
		h.Quit(e.Arg == "now")
		return nil
	}
	return c.control(e)
}

// keep writes settings, where the server keeps any.
func (c *Controller) keep(ctx context.Context, change map[string]any) error {
	if _, err := c.o.Client.ChangeSettings(ctx, change); err != nil && !client.Absent(err) {
		return err
	}
	return nil
}

// control carries out what concerns the listeners.
func (c *Controller) control(e Effect) error {
	if c.o.Server == nil {
		return errors.New("this is a view of a server that runs elsewhere; start and stop it there")
	}
	var err error
	switch e.Do {
	case VerbStart:
		port := 0
		if e.Arg != "" {
			if _, err := fmt.Sscan(e.Arg, &port); err != nil {
				return fmt.Errorf("%q is no port", e.Arg)
			}
		}
		err = c.o.Server.Start(port)
	case VerbHalt:
		err = c.o.Server.Stop()
	case VerbLAN:
		err = c.o.Server.LAN(e.Arg != "off", e.Arg == "key")
	default:
		return fmt.Errorf("nobody knows how to %q", e.Do)
	}
	c.Apply(ServerSeen(c.o.Server.State()))
	return err
}

// quiet waits until no request runs or waits.
func (c *Controller) quiet(ctx context.Context) error {
	for {
		s := c.State()
		if len(s.Requests) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.o.After(refresh):
		}
	}
}

// stopRequests cancels every request.
func (c *Controller) stopRequests(ctx context.Context) error {
	for _, r := range c.State().Requests {
		if err := c.stopRequest(ctx, r.ID); err != nil {
			return err
		}
	}
	return nil
}

// stopRequest cancels a request. One that has ended meanwhile is no problem.
func (c *Controller) stopRequest(ctx context.Context, id string) error {
	err := c.o.Client.CancelRequest(ctx, id)
	var e *client.Error
	if errors.As(err, &e) && e.Status == http.StatusNotFound && !client.Absent(err) {
		return nil
	}
	return err
}
