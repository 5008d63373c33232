package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"sparkbar/app/menubar"
	"sparkbar/engine"
	"sparkbar/httpapi"
	"sparkbar/httpapi/client"
	"sparkbar/metalkern"
	"sparkbar/resources"
)

// keychainKey stands in the settings for a key that the Keychain holds: other
// devices must present it, programs of this machine need none.
const keychainKey = "keychain:"

// allHosts is the setting of server.host that opens the server to the network.
const allHosts = "0.0.0.0"

// defaultGrace is what running answers get when the app quits.
const defaultGrace = 10 * time.Second

// desktop is the app behind the menu bar: engine, listeners, settings and what
// is remembered, and how they begin, sleep, wake and end. What is drawn and where
// is the Host's business, so all of it runs in tests without a screen. It is the
// menubar.Server.
type desktop struct {
	*listeners
	v    *config
	log  *slog.Logger
	tail *logTail
	lvl  slog.LevelVar
	eng  *engine.Engine
	load engine.LoadRequest
	book *journal
	own  *httpapi.Server // it never stops, whatever the listeners do
	api  *client.Client  // of own
	key  bool            // of the Keychain, for other devices
	host menubar.Host
	ctl  *menubar.Controller

	mu     sync.Mutex
	paused []string // downloads that wait for the computer to wake
	login  sync.Mutex
}

// newDesktop makes the app with the folder dir for what it remembers; its log
// goes to out, and secret is the key of the Keychain, made if there is none.
func newDesktop(v *config, dir string, out io.Writer, secret func() (string, error)) (*desktop, error) {
	load, err := loadRequest(v)
	if err != nil {
		return nil, err
	}
	d := &desktop{v: v, tail: &logTail{}, load: load, book: openJournal(dir)}
	if err := setLevel(&d.lvl, v); err != nil {
		return nil, err
	}
	log := slog.New(d.tail.handler(slog.NewTextHandler(out, &slog.HandlerOptions{Level: &d.lvl})))
	d.log = log
	keyList, err := keys(v, d.keychain)
	if err != nil {
		return nil, err
	}
	profile, err := profileOf(v)
	if err != nil {
		return nil, err
	}
	if d.eng, err = newEngine(v, load); err != nil {
		return nil, err
	}
	options := httpapi.Options{AllowedHosts: v.list("allow-host"), CORSOrigins: v.list("cors-origin"), Profile: profile, Settings: v, Web: resources.Web(), Owner: owner{d.eng, d.tail}}
	d.listeners = &listeners{port: v.GetInt("port"), chosen: v.IsSet("port"), keys: keyList, token: newKey(), secret: secret, hosts: func() ([]string, error) { return lanHosts(d.v.now()) }, log: log,
		handler: func(keys []string, hidden string) *httpapi.Server {
			o := options
			o.Keys, o.HiddenKey, o.Log, o.DrainTimeout = keys, hidden, log, max(d.grace(), time.Millisecond)
			return httpapi.New(d.eng, o)
		}}
	options.Keys, options.HiddenKey = keyList, d.token
	if d.lvl.Level() <= slog.LevelDebug { // at other levels nobody wants to know of it
		options.Log = log.With("by", "menu")
	}
	d.own = httpapi.New(d.eng, options)
	d.api = client.InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Host = fmt.Sprintf("127.0.0.1:%d", d.State().Port) // snippets show the address of the caller
		d.own.ServeHTTP(w, r)
	}), d.token)
	v.apply = d.apply
	return d, nil
}

// keychain stands for the key of the Keychain among the keys: this machine needs
// none, and the network's listener gets it by itself.
func (d *desktop) keychain() (string, error) {
	d.key = true
	return "", nil
}

// apply takes over an edit of the settings: keys, names, port, network and log.
func (d *desktop) apply(now *config) error {
	d.key = false
	list, err := keys(now, d.keychain)
	if err != nil {
		return err
	}
	before := d.v.now()
	if p := now.GetInt("port"); p != before.GetInt("port") {
		if err := d.move(p); err != nil {
			return err
		}
	}
	names, origins := now.list("allow-host"), now.list("cors-origin")
	d.access(list, names, origins)
	d.own.SetAccess(list, names, origins)
	if s := d.State(); s.Running && network(now) != (s.LAN != "") { // else it is what the switch has done
		if err := d.listeners.LAN(network(now), d.key); err != nil {
			return err
		}
	}
	return setLevel(&d.lvl, now)
}

// network reports whether the settings open the server to other devices.
func network(v *config) bool {
	return slices.ContainsFunc(hosts(v), func(a address) bool { return !loopback(a.host) })
}

// lanHosts are the addresses for other devices: all that this machine has, or
// those that the settings name.
func lanHosts(v *config) ([]string, error) {
	var list []string
	for _, a := range hosts(v) {
		if ip := net.ParseIP(a.host); ip != nil && ip.IsUnspecified() {
			return networkHosts()
		}
		if !loopback(a.host) {
			list = append(list, a.host)
		}
	}
	if len(list) == 0 { // the switch of the menu comes before the setting
		return networkHosts()
	}
	return list, nil
}

// grace is how long running answers may take when the app quits.
func (d *desktop) grace() time.Duration {
	if s, ok := d.v.file.get("quit.grace").(float64); ok {
		return time.Duration(s * float64(time.Second))
	}
	return defaultGrace
}

// menu makes the Controller for the place where the app is shown.
func (d *desktop) menu(host menubar.Host, changed func()) *menubar.Controller {
	d.host = host
	d.ctl = menubar.New(menubar.Options{Client: d.api, Host: host, Server: d, Installed: installed, SelfTest: d.selfTest,
		Skip: func(v string) { d.note(func(e *journalEntries) { e.Skipped = v }) },
		Changed: func() {
			s := d.ctl.State()
			if err := d.book.model(s.Resident()); err != nil {
				d.log.Warn("what is loaded could not be noted", "error", err)
			}
			changed()
		}})
	return d.ctl
}

// selfTest runs the kernel drills on a backend of its own, the one that models
// run on; answers go on meanwhile.
func (d *desktop) selfTest(ctx context.Context) (string, error) {
	b, err := drilled(d.v)
	if err != nil {
		return "", err
	}
	defer b.Close()
	name := b.Name()
	for _, x := range metalkern.Drills {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err := x.Check(b); err != nil {
			return "", fmt.Errorf("a kernel of the %s backend computes something else than it should, so answers may be wrong: %w", name, err)
		}
	}
	return fmt.Sprintf("All %d kernel drills of the %s backend agree with the reference.", len(metalkern.Drills), name), nil
}

// note changes the journal; a disk that is full keeps nobody from working.
func (d *desktop) note(f func(*journalEntries)) {
	if err := d.book.change(f); err != nil {
		d.log.Warn("the journal could not be written", "error", err)
	}
}

// run lives until ctx ends: it begins with the server, the model and, on the
// first run, the welcome.
func (d *desktop) run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { d.ctl.Run(ctx) })
	defer all.Wait()
	crash, first, err := d.book.begin(time.Now())
	if err != nil {
		d.log.Warn("the journal could not be written", "error", err)
	}
	if err := d.v.follow(ctx, d.eng, d.log, func(err error) { d.edited(ctx, err) }); err != nil {
		d.log.Warn("changes of the settings file will not be noticed", "error", err)
	}
	if bad := d.v.file.fault.Load(); bad != nil {
		d.ctl.Apply(menubar.BadSettings{File: bad.file, Line: bad.line, Message: bad.message})
	}
	serves := d.v.file.get("server.autostart") != false
	if serves {
		if err := d.Start(0); err != nil {
			d.log.Error("the server could not start", "error", err)
			var taken menubar.PortTaken
			if errors.As(err, &taken) {
				d.ctl.Apply(taken)
			}
		} else if network(d.v) {
			if err := d.listeners.LAN(true, d.key); err != nil {
				d.log.Error("the server is not open to the network", "error", err)
				d.ctl.Apply(menubar.Refused{Text: err.Error()})
			}
		}
	}
	d.ctl.Apply(menubar.ServerSeen(d.State()))
	if first && d.State().Running {
		if err := d.host.Open("welcome"); err == nil {
			d.note(func(e *journalEntries) { e.Welcomed = true })
		}
	}
	d.applyLogin()
	all.Go(func() { d.updates(ctx) })
	switch {
	case d.v.GetBool("no-model"), !serves:
	case crash != nil:
		d.ctl.Apply(*crash) // asks
	default:
		if _, err := d.eng.LoadFrom(ctx, d.v.loadedLast(d.eng, d.load, d.log)); err != nil && ctx.Err() == nil {
			d.log.Error("the model could not be loaded", "model", d.load.Model, "error", err)
		}
	}
}

// edited is what the app does after an edit of the settings file.
func (d *desktop) edited(ctx context.Context, err error) {
	var bad *badSetting
	switch {
	case errors.As(err, &bad):
		d.ctl.Apply(menubar.BadSettings{File: bad.file, Line: bad.line, Message: bad.message})
	case err != nil:
		d.ctl.Apply(menubar.BadSettings{File: d.v.file.path, Message: err.Error()})
	default:
		d.applyLogin()
		d.ctl.Reload(ctx)
	}
}

// applyLogin carries out login.enabled, once for each time that it changes: what
// the user has switched off in the system's own settings since then stays off.
func (d *desktop) applyLogin() {
	d.login.Lock()
	defer d.login.Unlock()
	want, set := d.v.file.get("login.enabled").(bool)
	if done := d.book.entries().Login; !set || done != nil && *done == want {
		return
	}
	d.note(func(e *journalEntries) { e.Login = &want })
	now := d.host.Login()
	if now == menubar.LoginUnavailable || (now != menubar.LoginOff) == want {
		return
	}
	if err := d.host.SetLogin(want); err != nil {
		d.log.Error("the login item could not be changed", "error", err)
		d.ctl.Apply(menubar.Refused{Text: err.Error()})
	}
	d.ctl.Apply(menubar.LoginSeen(d.host.Login()))
}

// LAN implements menubar.Server; the choice outlives the app.
func (d *desktop) LAN(on, key bool) error {
	if err := d.listeners.LAN(on, key); err != nil {
		return err
	}
	change := map[string]any{"server.host": nil}
	if on {
		change["server.host"] = allHosts
	}
	switch in := d.v.file.get("server.api_key"); {
	case on && key && in == nil:
		change["server.api_key"] = keychainKey
	case !(on && key) && in == keychainKey:
		change["server.api_key"] = nil
	}
	return d.v.file.write(change)
}

// dashboard is the address of a screen of the window. What stands behind the #
// never leaves it: a key where the server asks for one, and that the menu bar
// item is hidden.
func (d *desktop) dashboard(screen string, hidden bool) string {
	q := url.Values{}
	if len(d.keys) > 0 {
		q.Set("key", d.token)
	}
	if hidden {
		q.Set("menubar", "hidden")
	}
	address := fmt.Sprintf("http://127.0.0.1:%d/", d.State().Port)
	if screen != "" || len(q) > 0 {
		address += "#/" + screen
	}
	if len(q) > 0 {
		address += "?" + q.Encode()
	}
	return address
}

// sleeps stops what a sleep would break off.
func (d *desktop) sleeps() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	list, err := d.api.Downloads(ctx)
	if err != nil {
		d.log.Warn("downloads were not paused", "error", err)
	}
	for _, x := range list {
		if !slices.Contains([]string{"planning", "waiting", "downloading"}, x.State) {
			continue
		}
		if _, err := d.api.PauseDownload(ctx, x.ID); err == nil {
			d.mu.Lock()
			d.paused = append(d.paused, x.ID)
			d.mu.Unlock()
		}
	}
}

// woke makes good what a sleep has changed: the listener, the addresses in the
// network, the downloads, and what is known of this machine.
func (d *desktop) woke() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.refresh(ctx); err != nil {
		d.log.Error("the server after the sleep", "error", err)
		d.ctl.Apply(menubar.Refused{Text: err.Error()})
	}
	d.mu.Lock()
	paused := d.paused
	d.paused = nil
	d.mu.Unlock()
	for _, id := range paused {
		if _, err := d.api.ResumeDownload(ctx, id); err != nil {
			d.log.Warn("a download does not go on", "download", id, "error", err)
		}
	}
	d.ctl.Apply(menubar.ServerSeen(d.State()))
	d.ctl.Reload(ctx)
}

// quit ends the server: nobody is let in any more, running answers may go on for
// the grace, or not at all, and then the engine gives its memory back.
func (d *desktop) quit(now bool) {
	grace := d.grace()
	if now {
		grace = 0
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := d.Stop(); err != nil {
			d.log.Error("stopping", "error", err)
		}
	}()
	for wait := time.After(grace); ; wait = time.After(100 * time.Millisecond) {
		select {
		case <-wait:
			d.cancelAll()
			continue
		case <-ended:
		}
		break
	}
	end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := d.eng.Close(end); err != nil {
		d.log.Error("the engine did not end well", "error", err)
	}
	if err := d.book.end(); err != nil {
		d.log.Warn("the journal could not be written", "error", err)
	}
}

// cancelAll ends every generation within a round.
func (d *desktop) cancelAll() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	list, err := d.api.Requests(ctx)
	if err != nil {
		return // the listeners cut what is left
	}
	for _, r := range list {
		_ = d.api.CancelRequest(ctx, r.ID) // it may have ended
	}
}

// updates looks for a new version once a day while the user wants that. It fails
// silently.
func (d *desktop) updates(ctx context.Context) {
	for releases != "" {
		seen := d.book.entries()
		if d.v.file.get("update.check") == true && time.Since(seen.Checked) >= updatePeriod {
			u, err := latest(ctx, http.DefaultClient, releases, version)
			d.note(func(e *journalEntries) { e.Checked = time.Now() })
			switch {
			case err != nil:
				d.log.Debug("no look for updates", "error", err)
			case u != nil && u.Version != seen.Skipped:
				u.Command = brewCommand()
				d.ctl.Apply(menubar.UpdateSeen(*u))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Hour):
		}
	}
}
