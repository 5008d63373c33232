package main

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sparkbar/app/menubar"
	"sparkbar/engine"
	"sparkbar/httpapi"
)

func testListeners(t *testing.T, port int, chosen bool) *listeners {
	t.Helper()
	eng := engine.New(engine.Options{})
	l := &listeners{handler: func(keys []string, hidden string) *httpapi.Server {
		return httpapi.New(eng, httpapi.Options{Keys: keys, HiddenKey: hidden})
	}, port: port, chosen: chosen,
		secret: func() (string, error) { return newKey(), nil }, hosts: func() ([]string, error) { return []string{"127.0.0.2"}, nil }, log: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func answerOf(url, key string) int {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return -1
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestListeners: start, stop and start again; the switch for the network opens
// and closes beside the local listener, with a key that only the network needs.
func TestListeners(t *testing.T) {
	if ln, err := net.Listen("tcp", "127.0.0.2:0"); err != nil {
		t.Skip("this system has no second loopback address")
	} else {
		ln.Close()
	}
	l := testListeners(t, 0, false)
	for range 2 {
		if err := l.Start(0); err != nil {
			t.Fatal(err)
		}
		s := l.State()
		local := localURL(s.Port)
		if !s.Running || s.Moved || answerOf(local+"/health", "") != 200 {
			t.Fatalf("%+v", s)
		}
		if err := l.LAN(true, true); err != nil {
			t.Fatal(err)
		}
		s = l.State()
		if !s.Protected || len(s.Key) != 43 || answerOf(s.LAN+"/admin/status", "") != 401 || answerOf(s.LAN+"/admin/status", s.Key) != 200 || answerOf(local+"/admin/status", "") != 200 {
			t.Fatalf("%+v", s)
		}
		lan := s.LAN
		if err := l.LAN(true, false); err != nil {
			t.Fatal(err)
		}
		if s = l.State(); s.Protected || s.Key != "" || answerOf(lan+"/admin/status", "") != 200 {
			t.Fatalf("%+v", s)
		}
		if err := l.LAN(false, false); err != nil {
			t.Fatal(err)
		}
		if answerOf(lan+"/health", "") != 0 || answerOf(local+"/health", "") != 200 {
			t.Fatal("the switch closed the wrong listener, or none")
		}
		if err := l.Stop(); err != nil {
			t.Fatal(err)
		}
		if s = l.State(); s.Running || answerOf(local+"/health", "") != 0 {
			t.Fatalf("%+v", s)
		}
		if err := l.LAN(true, true); err == nil || !strings.Contains(err.Error(), "start it first") {
			t.Fatalf("the network without a server: %v", err)
		}
	}
}

func localURL(port int) string { return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// TestPortTaken: a port that the user chose is not exchanged for another one,
// and the refusal offers a free one; the default port is.
func TestPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() }) // after the parallel parts
	port := taken.Addr().(*net.TCPAddr).Port
	t.Run("chosen", func(t *testing.T) {
		t.Parallel()
		l := testListeners(t, port, true)
		var e menubar.PortTaken
		if err := l.Start(0); !errors.As(err, &e) || e.Port != port || e.Free == 0 || l.State().Failure == "" {
			t.Fatalf("%v %+v", err, l.State())
		}
		if err := l.Start(e.Free); err != nil || l.State().Port != e.Free {
			t.Errorf("%v %+v", err, l.State())
		}
	})
	t.Run("default", func(t *testing.T) {
		t.Parallel()
		l := testListeners(t, port, false)
		if err := l.Start(0); err != nil {
			t.Fatal(err)
		}
		if s := l.State(); !s.Moved || s.Port == port || answerOf(localURL(s.Port)+"/health", "") != 200 {
			t.Errorf("%+v", s)
		}
	})
}

// TestSingle: of two processes in a folder the second shows the first; when the
// first is gone, even without a farewell, the next one is first.
func TestSingle(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var shown atomic.Int32
	woken := make(chan struct{}, 1)
	first, end, err := single(dir, func() { shown.Add(1); woken <- struct{}{} })
	if err != nil || !first {
		t.Fatalf("%v %v", first, err)
	}
	info, err := os.Stat(filepath.Join(dir, "socket"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v %v", info, err)
	}
	if c, err := net.Dial("unix", filepath.Join(dir, "socket")); err != nil {
		t.Error(err)
	} else {
		c.Write([]byte("nonsense"))
		c.Close()
	}
	second, _, err := single(dir, nil)
	if err != nil || second {
		t.Fatalf("%v %v", second, err)
	}
	select {
	case <-woken:
	case <-time.After(time.Minute):
		t.Fatal("the first one was not told")
	}
	if n := shown.Load(); n != 1 {
		t.Errorf("shown %d times", n)
	}
	end()
	if err := os.WriteFile(filepath.Join(dir, "socket"), nil, 0o600); err != nil { // as after a crash
		t.Fatal(err)
	}
	third, end, err := single(dir, nil)
	if err != nil || !third {
		t.Fatalf("%v %v", third, err)
	}
	end()
}

func TestNetworkHosts(t *testing.T) {
	hosts, err := networkHosts()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip == nil || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			t.Errorf("%q is no address for others", h)
		}
	}
}
