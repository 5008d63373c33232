package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"sparkbar/engine/machine"
)

// door is a listener whose addresses can change while the server behind it runs:
// new ones are opened before old ones are closed, and connections that came
// through an old one live on.
type door struct {
	mu     sync.Mutex
	open   []net.Listener
	closed bool

	conns chan net.Conn
	done  chan struct{} // closed by Close
}

func newDoor() *door {
	return &door{conns: make(chan net.Conn), done: make(chan struct{})}
}

// address is a host to listen on; one that is optional may be missing.
type address struct {
	host     string
	optional bool
}

// move listens on the given hosts and a port (0 = any free one) instead of
// whatever the door listened on; addresses that stay are left alone. When it
// fails the door is as it was.
func (d *door) move(hosts []address, port int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return net.ErrClosed
	}
	next, err := d.listen(hosts, port)
	if errors.Is(err, syscall.EADDRINUSE) && slices.ContainsFunc(d.open, func(l net.Listener) bool { return portOf(l) == port }) {
		// All addresses of a port and one of them cannot be open together: the
		// old ones have to go first, and come back if that does not help.
		var old []address
		for _, l := range d.open {
			old = append(old, address{host: l.Addr().(*net.TCPAddr).IP.String()})
			l.Close()
		}
		d.open = nil
		if next, err = d.listen(hosts, port); err != nil {
			back, berr := d.listen(old, port)
			d.take(back)
			return errors.Join(err, berr)
		}
	}
	if err == nil {
		d.take(next)
	}
	return err
}

// listen opens what is not open yet; all or nothing.
func (d *door) listen(hosts []address, port int) (next []net.Listener, err error) {
	for _, h := range hosts {
		if i := slices.IndexFunc(d.open, func(l net.Listener) bool { return covers(l, h.host, port) }); i >= 0 {
			next = append(next, d.open[i])
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(h.host, strconv.Itoa(port)))
		if err != nil {
			if h.optional {
				continue
			}
			for _, l := range next {
				if !slices.Contains(d.open, l) {
					l.Close()
				}
			}
			return nil, portError(h.host, port, err)
		}
		if port == 0 { // the others take the same
			port = portOf(l)
		}
		next = append(next, l)
	}
	return next, nil
}

// take lets in through these listeners, and no others.
func (d *door) take(next []net.Listener) {
	old := d.open
	d.open = next
	for _, l := range next {
		if !slices.Contains(old, l) {
			go d.accept(l)
		}
	}
	for _, l := range old {
		if !slices.Contains(next, l) {
			l.Close()
		}
	}
}

func portOf(l net.Listener) int {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// covers reports whether a listener stands for a host and port.
func covers(l net.Listener, host string, port int) bool {
	t, ok := l.Addr().(*net.TCPAddr)
	if !ok || t.Port != port {
		return false
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip := net.ParseIP(host)
	return host == "" && t.IP.IsUnspecified() || ip != nil && ip.Equal(t.IP)
}

// portError says what keeps a port, as far as that can be told.
func portError(host string, port int, err error) error {
	address := net.JoinHostPort(host, strconv.Itoa(port))
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	return fmt.Errorf("cannot listen on %s: %s uses the port; stop it, or choose another port with --port or the setting server.port: %w", address, portHolder(port), err)
}

// portHolder names the program that listens on a port.
func portHolder(port int) string {
	if name, pid := machine.PortOwner(port); name != "" {
		return fmt.Sprintf("%s (process %d)", name, pid)
	}
	return "another program"
}

func (d *door) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			select {
			case d.conns <- c:
			case <-d.done:
				c.Close()
				return
			}
		case errors.Is(err, net.ErrClosed):
			return
		default: // too many open files, say: it passes
			select {
			case <-time.After(50 * time.Millisecond):
			case <-d.done:
				return
			}
		}
	}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case <-d.done:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (d *door) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	close(d.done)
	for _, l := range d.open {
		l.Close()
	}
	return nil
}

// Addr implements net.Listener: the first address.
func (d *door) Addr() net.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.open) == 0 {
		return &net.TCPAddr{}
	}
	return d.open[0].Addr()
}

// hosts are the addresses to listen on: those of --host, separated by commas. A
// server of this machine answers on both of its loopback addresses, since
// localhost means either.
func hosts(v *config) []address {
	var list []address
	for _, h := range strings.Split(v.GetString("host"), ",") {
		if h = strings.Trim(strings.TrimSpace(h), "[]"); h != "" && !slices.Contains(list, address{host: h}) {
			list = append(list, address{host: h})
		}
	}
	if len(list) == 0 {
		list = []address{{host: "127.0.0.1"}}
	}
	if h := list[0].host; len(list) == 1 && (h == "127.0.0.1" || h == "localhost") {
		list = []address{{host: "127.0.0.1"}, {host: "::1", optional: true}}
	}
	return list
}
