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
	"strconv"
	"sync"
	"syscall"
	"time"

	"sparkbar/app/menubar"
	"sparkbar/httpapi"
)

// How a taken port is met: a relaunch races the process before it, so the port
// is asked for again for a while; then, unless the user chose it, others are.
const (
	portRetry  = 300 * time.Millisecond
	portTries  = 17 // five seconds
	secondPort = 8484
)

// listeners is the app's hold on its network: listeners that can be stopped and
// started while the engine lives on. It is a menubar.Server.
type listeners struct {
	handler func(keys []string) *httpapi.Server // a new one for each listener, since one that drains is done
	port    int
	chosen  bool // by the user, so that no other port will do
	keys    []string
	secret  func() (string, error)   // the key for other devices, made if there is none
	hosts   func() ([]string, error) // addresses of this machine in the local network
	log     *slog.Logger

	mu    sync.Mutex
	state menubar.ServerState
	local *group
	lan   *group
}

// group is what one switch turns on and off.
type group struct {
	stop func()
	done sync.WaitGroup
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
	l.mu.Unlock()
	want, only := l.port, l.chosen
	if port != 0 {
		want, only = port, true
	}
	ln, err := l.bind(want, only)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.state = menubar.ServerState{Failure: err.Error(), Port: want}
		return err
	}
	bound := ln.Addr().(*net.TCPAddr).Port
	all := []net.Listener{ln}
	// localhost means ::1 first on macOS; a machine without IPv6 does without.
	if six, err := net.Listen("tcp", net.JoinHostPort("::1", strconv.Itoa(bound))); err == nil {
		all = append(all, six)
	}
	l.local = l.serve(all, l.keys)
	l.state = menubar.ServerState{Running: true, Port: bound, Moved: want != 0 && bound != want}
	if len(l.keys) > 0 {
		l.state.Key = l.keys[0]
	}
	l.log.Info("listening", "port", bound)
	return nil
}

// bind finds a port.
func (l *listeners) bind(want int, only bool) (net.Listener, error) {
	listen := func(port int) (net.Listener, error) {
		return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	var err error
	for i := range portTries {
		var ln net.Listener
		if ln, err = listen(want); err == nil {
			return ln, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("cannot listen on port %d: %w", want, err)
		}
		if i < portTries-1 {
			time.Sleep(portRetry)
		}
	}
	if !only {
		for _, p := range []int{secondPort, 0} {
			if ln, err := listen(p); err == nil {
				return ln, nil
			}
		}
	}
	taken := menubar.PortTaken{Port: want}
	if ln, err := listen(0); err == nil {
		taken.Free = ln.Addr().(*net.TCPAddr).Port
		ln.Close()
	}
	return nil, taken
}

func (l *listeners) serve(all []net.Listener, keys []string) *group {
	ctx, stop := context.WithCancel(context.Background())
	g := &group{stop: stop}
	for _, ln := range all {
		s := l.handler(keys)
		g.done.Go(func() {
			if err := s.Serve(ctx, ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
				l.log.Error("a listener ended", "address", ln.Addr(), "error", err)
			}
		})
	}
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
	lan.end()
	local.end()
	return nil
}

// LAN opens the server to the local network beside the listener of this
// machine, which stays as it is, or closes it again.
func (l *listeners) LAN(on, key bool) error {
	l.mu.Lock()
	old := l.lan
	l.lan = nil
	l.state.LAN, l.state.Protected, l.state.Key = "", false, ""
	if len(l.keys) > 0 {
		l.state.Key = l.keys[0]
	}
	port, running := l.state.Port, l.local != nil
	l.mu.Unlock()
	old.end()
	if !on {
		return nil
	}
	if !running {
		return errors.New("the server is stopped; start it first")
	}
	keys := l.keys
	if key {
		k, err := l.secret()
		if err != nil {
			return err
		}
		keys = append([]string{k}, keys...)
	}
	hosts, err := l.hosts()
	if err != nil {
		return err
	}
	var all []net.Listener
	var first string
	for _, h := range hosts {
		ln, err := net.Listen("tcp", net.JoinHostPort(h, strconv.Itoa(port)))
		if err != nil {
			l.log.Warn("an address of the network cannot be used", "address", h, "error", err)
			continue
		}
		if first == "" {
			first = "http://" + ln.Addr().String()
		}
		all = append(all, ln)
	}
	if first == "" {
		return errors.New("this machine is in no network, or its addresses cannot be used")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lan = l.serve(all, keys)
	l.state.LAN, l.state.Protected = first, len(keys) > 0
	if len(keys) > 0 {
		l.state.Key = keys[0]
	}
	return nil
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
