package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"sparkbar/app/menubar"
	"sparkbar/engine/machine"
	"sparkbar/httpapi"
)

// How a taken port is met: a relaunch races the process before it, so the port
// is asked for again for a while; then, unless the user chose it, others are.
const (
	portRetry  = 300 * time.Millisecond
	portTries  = 17 // five seconds
	secondPort = 8484
)

// thisMachine are the addresses that only programs of this machine reach;
// localhost means ::1 first on macOS, and a machine without IPv6 does without.
var thisMachine = []address{{host: "127.0.0.1"}, {host: "::1", optional: true}}

// listeners is the app's hold on its network: one for this machine and one for
// other devices, which can be stopped and started while the engine lives on. It
// is a menubar.Server.
type listeners struct {
	handler func(keys []string, hidden string) *httpapi.Server // a new one for each listener, since one that drains is done
	port    int
	chosen  bool // by the user, so that no other port will do
	keys    []string
	token   string                   // one more key for this machine, where there are keys
	secret  func() (string, error)   // the key for other devices, made if there is none
	hosts   func() ([]string, error) // addresses of this machine in the local network
	log     *slog.Logger

	mu    sync.Mutex
	state menubar.ServerState
	local *group
	lan   *group
	bound []string // hosts of lan
	extra string   // key of lan
}

// group is what one switch turns on and off.
type group struct {
	door   *door
	server *httpapi.Server
	stop   func()
	done   sync.WaitGroup
}

// State tells about the listeners.
func (l *listeners) State() menubar.ServerState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Start listens on this machine; port 0 is the configured one.
func (l *listeners) Start(port int) error {
	l.mu.Lock()
	if l.local != nil {
		l.mu.Unlock()
		return nil
	}
	l.state = menubar.ServerState{Starting: true}
	want, only := l.port, l.chosen
	l.mu.Unlock()
	if port != 0 {
		want, only = port, true
	}
	d := newDoor()
	err := findPort(d, want, only)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.state = menubar.ServerState{Failure: err.Error(), Port: want}
		return err
	}
	bound := d.Addr().(*net.TCPAddr).Port
	l.local = l.serve(d, l.keys, l.token)
	l.state = menubar.ServerState{Running: true, Port: bound, Moved: want != 0 && bound != want}
	if len(l.keys) > 0 {
		l.state.Key = l.keys[0]
	}
	l.log.Info("listening", "port", bound)
	return nil
}

// findPort opens a door.
func findPort(d *door, want int, only bool) error {
	var err error
	for i := range portTries {
		if err = d.move(thisMachine, want); err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		if i < portTries-1 {
			time.Sleep(portRetry)
		}
	}
	if !only {
		for _, p := range []int{secondPort, 0} {
			if d.move(thisMachine, p) == nil {
				return nil
			}
		}
	}
	taken := menubar.PortTaken{Port: want}
	taken.Process, taken.PID = machine.PortOwner(want)
	if ln, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		taken.Free = portOf(ln)
		ln.Close()
	}
	return taken
}

func (l *listeners) serve(d *door, keys []string, hidden string) *group {
	ctx, stop := context.WithCancel(context.Background())
	g := &group{door: d, server: l.handler(keys, hidden), stop: stop}
	g.done.Go(func() {
		if err := g.server.Serve(ctx, d); err != nil && !errors.Is(err, http.ErrServerClosed) {
			l.log.Error("a listener ended", "address", d.Addr(), "error", err)
		}
	})
	return g
}

func (g *group) end() {
	if g != nil {
		g.stop()
		g.done.Wait()
	}
}

// Stop closes all listeners; running requests have the server's grace.
func (l *listeners) Stop() error {
	l.mu.Lock()
	local, lan := l.local, l.lan
	l.local, l.lan = nil, nil
	l.state = menubar.ServerState{Port: l.state.Port}
	l.mu.Unlock()
	var both sync.WaitGroup // the grace is for all together
	both.Go(lan.end)
	both.Go(local.end)
	both.Wait()
	return nil
}

// LAN opens the server to the local network beside the listener of this
// machine, which stays as it is, or closes it again.
func (l *listeners) LAN(on, key bool) error {
	l.mu.Lock()
	old := l.lan
	l.lan, l.bound, l.extra = nil, nil, ""
	l.state.LAN, l.state.Protected, l.state.Key = "", false, ""
	if len(l.keys) > 0 {
		l.state.Key = l.keys[0]
	}
	port, running, keys := l.state.Port, l.local != nil, l.keys
	l.mu.Unlock()
	old.end()
	if !on {
		return nil
	}
	if !running {
		return errors.New("the server is stopped; start it first")
	}
	extra := ""
	if key {
		var err error
		if extra, err = l.secret(); err != nil {
			return err
		}
		keys = append([]string{extra}, keys...)
	}
	hosts, err := l.hosts()
	if err != nil {
		return err
	}
	d := newDoor()
	if err := d.move(optional(hosts), port); err != nil {
		return err
	}
	first := d.Addr().(*net.TCPAddr)
	if first.Port == 0 {
		return errors.New("this machine is in no network, or its addresses cannot be used")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lan, l.bound, l.extra = l.serve(d, keys, ""), hosts, extra
	l.state.LAN, l.state.Protected = "http://"+first.String(), len(keys) > 0
	if len(keys) > 0 {
		l.state.Key = keys[0]
	}
	return nil
}

// optional are addresses of which some may not be to be had.
func optional(hosts []string) (list []address) {
	for _, h := range hosts {
		list = append(list, address{host: h, optional: true})
	}
	return list
}

// access replaces keys, names and web origins from the next request on.
func (l *listeners) access(keys, names, origins []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys = keys
	l.state.Key = ""
	if l.local != nil {
		l.local.server.SetAccess(keys, names, origins)
	}
	if l.lan != nil {
		all := keys
		if l.extra != "" {
			all = append([]string{l.extra}, keys...)
		}
		l.lan.server.SetAccess(all, names, origins)
		l.state.Protected = len(all) > 0
		keys = all
	}
	if len(keys) > 0 {
		l.state.Key = keys[0]
	}
}

// move listens on another port (0 = any) before it leaves the old one;
// connections that are open live on. A server that is stopped takes it at its
// next start.
func (l *listeners) move(port int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.local != nil {
		if err := l.local.door.move(thisMachine, port); err != nil {
			return err
		}
		bound := l.local.door.Addr().(*net.TCPAddr).Port
		l.state.Port, l.state.Moved = bound, false
		l.log.Info("listening", "port", bound)
		if l.lan != nil {
			if err := l.lan.door.move(optional(l.bound), bound); err != nil {
				return err
			}
			l.state.LAN = "http://" + l.lan.door.Addr().String()
		}
	}
	l.port, l.chosen = port, port != 0
	return nil
}

// refresh makes sure that the listeners are what they seem to be: one that does
// not answer is opened again on its port, and the network's are where this
// machine is now.
func (l *listeners) refresh(ctx context.Context) error {
	s := l.State()
	if !s.Running {
		return nil
	}
	if !answers(ctx, s.Port) {
		l.log.Warn("the listener does not answer; it is opened again", "port", s.Port)
		if err := l.Stop(); err != nil {
			return err
		}
		if err := l.Start(s.Port); err != nil {
			return err
		}
	} else if s.LAN != "" {
		hosts, err := l.hosts()
		l.mu.Lock()
		same := slices.Equal(hosts, l.bound)
		l.mu.Unlock()
		if err != nil || same {
			return err
		}
	}
	if s.LAN != "" {
		return l.LAN(true, s.Protected)
	}
	return nil
}

// answers asks the listener of this machine for a sign of life.
func answers(ctx context.Context, port int) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, fmt.Sprintf("http://127.0.0.1:%d/health", port), nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// loopback reports whether an address is one that only this machine reaches.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// networkHosts lists this machine's IPv4 addresses that others may reach.
func networkHosts() ([]string, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			out = append(out, n.IP.String())
		}
	}
	return out, nil
}

// newKey makes a key of 32 random bytes.
func newKey() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails, by its documentation
	return base64.RawURLEncoding.EncodeToString(b)
}
