package models

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sparkbar/engine/checkpoint"
)

const repo = "tiny/Qwen3-1M-4bit"

func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

// redial is a dialer that finds some addresses elsewhere.
func redial(to map[string]string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if real, ok := to[addr]; ok {
			addr = real
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
}

func kindOf(err error) ErrorKind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ErrorKind(fmt.Sprintf("none of ours: %v", err))
}

func wantError(t *testing.T, err error, kind ErrorKind, parts ...string) {
	t.Helper()
	if kindOf(err) != kind {
		t.Errorf("kind %v, wants %v: %v", kindOf(err), kind, err)
	}
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("the error lacks %q: %v", p, err)
		}
	}
}

func TestDownload(t *testing.T) {
	h := newHubDouble(t)
	files := modelFiles(t)
	r := h.add(repo, files)
	o := h.options(t)
	got, err := download(t, o, Request{Repo: repo})
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(o.Cache, "models--tiny--Qwen3-1M-4bit")
	want := Snapshot{repo, r.commit, filepath.Join(folder, "snapshots", r.commit)}
	if len(got) != 1 || got[0] != want {
		t.Fatalf("%+v, wants %+v", got, want)
	}
	check(t, want.Path, wanted(files))
	if ref := string(read(t, filepath.Join(folder, "refs", "main"))); ref != r.commit {
		t.Error("ref", ref)
	}
	if target, err := os.Readlink(filepath.Join(want.Path, "model.safetensors")); err != nil || target != "../../blobs/"+r.files["model.safetensors"].etag() {
		t.Error(target, err)
	}
	if target, err := os.Readlink(filepath.Join(want.Path, "additional_chat_templates", "tools.jinja")); err != nil || target != "../../../blobs/"+r.files["additional_chat_templates/tools.jinja"].etag() {
		t.Error(target, err)
	}
	if l := leftovers(o.Cache); len(l) != 0 {
		t.Error("left over:", l)
	}
	c, err := checkpoint.Open(want.Path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	m, ok := NewCatalogue(CatalogueOptions{Places: Places{Hub: o.Cache}}).Find(repo)
	if !ok || !m.Loadable() || m.Path != want.Path || m.Type != "qwen3" || m.Source != SourceHub || m.Revision != r.commit {
		t.Errorf("%+v", m)
	}

	// Again: one question, no bytes.
	before := h.total()
	if _, err := download(t, o, Request{Repo: repo}); err != nil || h.total() != before {
		t.Error(err, h.total()-before)
	}
	// A commit as revision makes no ref; offline needs no hub.
	if _, err := download(t, o, Request{Repo: repo, Revision: r.commit}); err != nil {
		t.Error(err)
	}
	o.Offline = true
	asked := h.count("")
	if got, err := download(t, o, Request{Repo: repo}); err != nil || got[0] != want || h.count("") != asked {
		t.Error(got, err)
	}
	_, err = download(t, o, Request{Repo: "other/model"})
	wantError(t, err, ErrOffline, "other/model", "HF_HUB_OFFLINE")
}

func TestDownloadWithDrafter(t *testing.T) {
	h := newHubDouble(t)
	files := modelFiles(t)
	h.add(repo, files)
	dir := "../testdata/speculation/checkpoints/dspark_deepspec/"
	drafter := map[string][]byte{"config.json": read(t, dir+"config.json"), "model.safetensors": read(t, dir+"model.safetensors")}
	h.add("tiny/drafter", map[string][]byte{"config.json": drafter["config.json"], "model.safetensors": drafter["model.safetensors"], "train.py": []byte("x")})
	o := h.options(t)
	d, err := NewDownloader(o)
	if err != nil {
		t.Fatal(err)
	}
	j := d.Start(Request{Repo: repo}, Request{Repo: "tiny/drafter", Drafter: true})
	got, err := j.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check(t, got[0].Path, wanted(files))
	check(t, got[1].Path, drafter)
	total := int64(0)
	for _, f := range []map[string][]byte{wanted(files), drafter} {
		for _, data := range f {
			total += int64(len(data))
		}
	}
	if p := j.Progress(); p.State != StateDone || p.BytesDone != total || p.BytesTotal != total {
		t.Errorf("%+v, wants %d bytes", p, total)
	}
	list := NewCatalogue(CatalogueOptions{Places: Places{Hub: o.Cache}}).List()
	if len(list) != 2 || list[0].Drafter || !list[1].Drafter || !list[1].Loadable() {
		t.Errorf("%+v", list)
	}
}

// faults are answers of a hub that is not well. Each is either overcome, or
// explained; never does a wrong byte get a name.
func TestFaults(t *testing.T) {
	once := func(do func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool) func(http.ResponseWriter, *http.Request, *fileDouble) bool {
		var n atomic.Int64
		return func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
			return f.path == "model.safetensors" && n.Add(1) == 1 && do(w, r, f)
		}
	}
	always := func(do func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool) func(http.ResponseWriter, *http.Request, *fileDouble) bool {
		return func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
			return f.path == "model.safetensors" && do(w, r, f)
		}
	}
	status := func(code int, header ...string) func(http.ResponseWriter, *http.Request, *fileDouble) bool {
		return func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			return true
		}
	}
	whole := func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
		w.Write(f.data)
		return true
	}
	// cut sends at most n bytes of what is asked for and breaks the connection.
	cut := func(n int) func(http.ResponseWriter, *http.Request, *fileDouble) bool {
		return func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
			var lo, hi int
			fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &lo, &hi)
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", lo, hi, len(f.data)))
			w.Header().Set("Content-Length", fmt.Sprint(hi+1-lo))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(f.data[lo:min(lo+n, hi+1)])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	corrupt := func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
		var lo, hi int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &lo, &hi)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", lo, hi, len(f.data)))
		w.WriteHeader(http.StatusPartialContent)
		b := append([]byte{}, f.data[lo:hi+1]...)
		b[len(b)/2] ^= 1
		w.Write(b)
		return true
	}
	otherRange := func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-99/%d", len(f.data)))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(f.data[:100])
		return true
	}
	silent := func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
		w.Header().Set("Content-Range", strings.Replace(r.Header.Get("Range"), "=", " ", 1)+fmt.Sprintf("/%d", len(f.data)))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(make([]byte, 0))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}
	trickle := func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
		var lo, hi int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &lo, &hi)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", lo, hi, len(f.data)))
		w.WriteHeader(http.StatusPartialContent)
		for ; lo <= hi; lo += 777 {
			w.Write(f.data[lo:min(lo+777, hi+1)])
			w.(http.Flusher).Flush()
		}
		return true
	}
	longer := func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
		w.Header().Set("Content-Length", fmt.Sprint(len(f.data)+1))
		w.Write(append(f.data[:len(f.data):len(f.data)], 0))
		return true
	}
	for _, k := range []struct {
		name  string
		fault fault
		kind  ErrorKind // "" = overcome
		text  string
	}{
		{"ranges refused", always(whole), "", ""},
		{"slow", always(trickle), "", ""},
		{"cut once", once(cut(5000)), "", ""},
		{"cut always, with progress", always(cut(5000)), "", ""},
		{"cut always, without progress", always(cut(0)), ErrNetwork, "is kept"},
		{"corrupt once", once(corrupt), "", ""},
		{"corrupt always", always(corrupt), ErrCorrupt, "promised"},
		{"another range", always(otherRange), ErrNetwork, "bytes 0-99"},
		{"longer", always(longer), ErrCorrupt, "promised"},
		{"silent once", once(silent), "", ""},
		{"503 once", once(status(503)), "", ""},
		{"500 always", always(status(500)), ErrNetwork, "500"},
		{"429 with a wait", once(status(429, "Retry-After", "7")), "", ""},
		{"429 until a date", once(status(429, "Retry-After", "Sun, 09 Sep 2001 01:48:00 GMT")), "", ""},
		{"429 for a day", always(status(429, "Retry-After", "86400")), ErrNetwork, "HF_TOKEN"},
		{"signature expired", once(status(403)), "", ""},
		{"gone", always(status(404)), ErrNetwork, "404"},
		{"416", always(status(416)), ErrNetwork, "416"},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			h := newHubDouble(t)
			files := modelFiles(t)
			h.add(repo, files)
			h.setFault(k.fault)
			o := h.options(t)
			o.stall = 30 * time.Second
			if k.name == "silent once" {
				o.stall = 500 * time.Millisecond
			}
			got, err := download(t, o, Request{Repo: repo})
			c := NewCatalogue(CatalogueOptions{Places: Places{Hub: o.Cache}})
			if k.kind == "" {
				if err != nil {
					t.Fatal(err)
				}
				check(t, got[0].Path, wanted(files))
				if k.name == "429 with a wait" && o.clock.(*quickClock).now.Load() < int64(7*time.Second) {
					t.Error("did not wait as asked")
				}
				return
			}
			wantError(t, err, k.kind, repo, k.text)
			if m, ok := c.Find(repo); !ok || m.Loadable() || !strings.Contains(m.Reason, "not finished") {
				t.Errorf("%+v", m)
			}
			// The hub is well again.
			h.setFault(nil)
			if got, err = download(t, o, Request{Repo: repo}); err != nil {
				t.Fatal(err)
			}
			check(t, got[0].Path, wanted(files))
			c.Rescan()
			if m, _ := c.Find(repo); !m.Loadable() {
				t.Errorf("%+v", m)
			}
		})
	}
}

func TestHubAnswers(t *testing.T) {
	h := newHubDouble(t)
	h.add(repo, modelFiles(t))
	h.add("org/gated", modelFiles(t)).gated = true
	h.repos["org/gated"].token = "good"
	h.add("org/private", modelFiles(t)).token = "good"
	h.add("org/torch", map[string][]byte{"config.json": []byte(`{"model_type":"qwen3"}`), "pytorch_model.bin": noise(1, 100)})
	h.add("org/bert", map[string][]byte{"config.json": []byte(`{"model_type":"bert"}`), "model.safetensors": noise(1, 50000), "tokenizer.json": []byte("{}")})
	h.add("org/notok", map[string][]byte{"config.json": []byte(`{"model_type":"qwen3"}`), "model.safetensors": noise(1, 100)})
	h.add("org/empty", map[string][]byte{"README.md": []byte("x")})
	ggufs := map[string][]byte{}
	for i, n := range []string{"m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf", "mmproj-F16.gguf", "sub/m-Q2_K.gguf", "sub/m-Q2_K_L.gguf"} {
		ggufs[n] = noise(uint64(i), 1000)
	}
	h.add("org/ggufs", ggufs)
	for _, k := range []struct {
		req   Request
		token string
		kind  ErrorKind
		text  string
	}{
		{Request{Repo: "org/nothing"}, "", ErrNotFound, "no such model, or it is private"},
		{Request{Repo: "org/nothing"}, "good", ErrNotFound, "no such model, or the account"},
		{Request{Repo: "org/private"}, "", ErrNotFound, "set HF_TOKEN"},
		{Request{Repo: "org/private"}, "good", "", ""},
		{Request{Repo: "org/gated"}, "", ErrDenied, "gated: ask for access at " + h.URL + "/org/gated"},
		{Request{Repo: "org/gated"}, "other", ErrDenied, "has no access yet"},
		{Request{Repo: "org/gated"}, "good", "", ""},
		{Request{Repo: repo}, "bad", ErrDenied, "does not accept the HF_TOKEN"},
		{Request{Repo: repo, Revision: "v2"}, "", ErrNotFound, `no revision "v2"`},
		{Request{Repo: repo, Revision: "refs/pr/1"}, "", "", ""},
		{Request{Repo: repo, Revision: "../main"}, "", ErrInvalid, "not a revision"},
		{Request{Repo: "../etc"}, "", ErrInvalid, "not the name of a model"},
		{Request{Repo: "a/b/c"}, "", ErrInvalid, "not the name of a model"},
		{Request{Repo: "org/torch"}, "", ErrUnusable, "PyTorch"},
		{Request{Repo: "org/bert"}, "", ErrUnusable, `"bert"`},
		{Request{Repo: "org/notok"}, "", ErrUnusable, "tokenizer.json"},
		{Request{Repo: "org/empty"}, "", ErrUnusable, "no weights"},
		{Request{Repo: "org/ggufs"}, "", "", "m-Q4_K_M.gguf"},
		{Request{Repo: "org/ggufs", File: "q8_0"}, "", "", "m-Q8_0.gguf"},
		{Request{Repo: "org/ggufs", File: "F16"}, "", "", "m-F16-00001-of-00002.gguf"},
		{Request{Repo: "org/ggufs", File: "sub/m-Q2_K.gguf"}, "", "", "sub/m-Q2_K.gguf"},
		{Request{Repo: "org/ggufs", File: "Q2_K"}, "", ErrInvalid, "sub/m-Q2_K_L.gguf"},
		{Request{Repo: "org/ggufs", File: "Q5"}, "", ErrNotFound, "m-Q8_0.gguf"},
		{Request{Repo: "org/torch", File: "Q4"}, "", ErrNotFound, "no GGUF"},
	} {
		o := h.options(t)
		o.Token = k.token
		got, err := download(t, o, k.req)
		if k.kind != "" {
			wantError(t, err, k.kind, k.text)
			if _, err := os.Stat(filepath.Join(o.Cache, repoFolder(k.req.Repo))); k.kind == ErrUnusable && err == nil {
				t.Error(k.req.Repo, "leaves something behind")
			}
			continue
		}
		if err != nil || !strings.HasSuffix(got[0].Path, k.text) {
			t.Error(k.req, got, err)
		}
	}
	if h.total() == 0 || h.count("pytorch_model.bin") > 0 {
		t.Error("fetched what nobody reads")
	}
	for _, f := range []string{"org/bert", "org/gated"} {
		if n := h.count(f + "/resolve"); f == "org/bert" && n != 1 {
			t.Error(f, n, "files asked for, only config.json is needed")
		}
	}
}

func TestMalformedListing(t *testing.T) {
	const sha = "0123456789abcdef0123456789abcdef01234567"
	for _, body := range []string{
		"", "<html>Log in to Airport WiFi</html>", "{", "[]", `{"sha":"main"}`, `{"sha":"` + sha + `","siblings":{}}`,
		`{"sha":"` + sha + `","siblings":[{"rfilename":"config.json"}]}`,
		`{"sha":"` + sha + `","siblings":[{"rfilename":"config.json","size":-1,"blobId":"` + sha + `"}]}`,
		`{"sha":"` + sha + `","siblings":[{"rfilename":"config.json","size":5,"blobId":"../../../../etc/passwd"}]}`,
		`{"sha":"` + sha + `","siblings":[{"rfilename":"config.json","size":1e30,"blobId":"` + sha + `"}]}`,
	} {
		s := newHubDouble(t)
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, body) })
		o := s.options(t)
		_, err := download(t, o, Request{Repo: repo})
		wantError(t, err, ErrNetwork, "does not answer as a model hub does", "HF_ENDPOINT")
	}
	// A file whose name leads out of the folder is none that a load needs.
	l, err := parseListing([]byte(`{"sha":"` + sha + `","siblings":[{"rfilename":"../config.json","size":5,"blobId":"` + sha + `"},{"rfilename":"a/../../b.gguf","size":5,"blobId":"` + sha + `"},{"rfilename":"/b.gguf","size":5,"blobId":"` + sha + `"}]}`))
	if err != nil || len(l.files) != 0 {
		t.Error(l, err)
	}
}

func TestRedirects(t *testing.T) {
	public := netip.MustParseAddr("93.184.216.34")
	for _, k := range []struct {
		name, host string
		addr       string
		hosts      []string
		text       string // of the refusal; "" = followed
	}{
		{"the hub's CDN", "cdn-lfs.hf.co", "", nil, ""},
		{"another of it", "cas-bridge.xethub.hf.co", "", nil, ""},
		{"an allowed host", "cdn.example.com", "", []string{"cdn.example.com"}, ""},
		{"below an allowed host", "eu.cdn.example.com", "", []string{"*.example.com"}, ""},
		{"an unknown host", "cdn.example.com", "", nil, "--hub-hosts"},
		{"a look-alike", "huggingface.co.example.com", "", nil, "--hub-hosts"},
		{"another look-alike", "evilhf.co", "", nil, "--hub-hosts"},
		{"a star is no end", "evilexample.com", "", []string{"*.example.com"}, "--hub-hosts"},
		{"loopback", "cdn-lfs.hf.co", "127.0.0.1", nil, "private network"},
		{"loopback of IPv6", "cdn-lfs.hf.co", "::1", nil, "private network"},
		{"the metadata service", "cdn-lfs.hf.co", "169.254.169.254", nil, "private network"},
		{"mapped", "cdn-lfs.hf.co", "::ffff:10.0.0.1", nil, "private network"},
		{"translated", "cdn-lfs.hf.co", "64:ff9b::a00:1", nil, "private network"},
		{"unique local", "cdn-lfs.hf.co", "fd00::1", nil, "private network"},
		{"carrier", "cdn-lfs.hf.co", "100.64.0.1", nil, "private network"},
		{"nowhere", "cdn-lfs.hf.co", "0.0.0.0", nil, "private network"},
		{"an allowed private host", "cdn.corp", "10.1.2.3", []string{"cdn.corp"}, "private network"},
	} {
		t.Run(k.name, func(t *testing.T) {
			h := newHubDouble(t)
			files := modelFiles(t)
			h.add(repo, files)
			o := h.options(t)
			o.Token, o.Hosts = "secret", k.hosts
			cdnDouble(t, h, k.host)(&o)
			o.resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
				if k.addr != "" && host == k.host {
					return []netip.Addr{public, netip.MustParseAddr(k.addr)}, nil // one bad is enough
				}
				return []netip.Addr{public}, nil
			}
			got, err := download(t, o, Request{Repo: repo})
			if h.auth.Load() {
				t.Error("the token went to another host")
			}
			if k.text != "" {
				wantError(t, err, ErrNetwork, k.text)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			check(t, got[0].Path, wanted(files))
			if h.count("GET /cdn/") == 0 {
				t.Error("nothing came from the CDN")
			}
		})
	}
	// Redirects that are refused by their form.
	for location, text := range map[string]string{
		"http://cdn-lfs.hf.co/x":                   "only https",
		"http://127.0.0.1:1/x":                     "only https",
		"http://169.254.169.254/latest/meta-data/": "only https",
		"https://169.254.169.254/x":                "--hub-hosts",
		"https://[::1]/x":                          "--hub-hosts",
		"ftp://huggingface.co/x":                   "only https",
		"file:///etc/passwd":                       "only https",
		"":                                         "nowhere",
	} {
		h := newHubDouble(t)
		h.add(repo, modelFiles(t))
		h.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/resolve/") {
				w.Header().Set("Location", location)
				w.WriteHeader(302)
				return
			}
			h.ServeHTTP(w, r)
		})
		_, err := download(t, h.options(t), Request{Repo: repo})
		wantError(t, err, ErrNetwork, text)
	}
	// In circles.
	h := newHubDouble(t)
	h.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
	})
	_, err := download(t, h.options(t), Request{Repo: repo})
	wantError(t, err, ErrNetwork, "circles")
}

func TestProxy(t *testing.T) {
	h := newHubDouble(t)
	files := modelFiles(t)
	h.add(repo, files)
	var mu sync.Mutex
	tunnels := map[string]int{}
	o := h.options(t)
	cdnDouble(t, h, "cdn-lfs.hf.co")(&o)
	real := o.dial
	o.dial = nil
	o.resolve = func(context.Context, string) ([]netip.Addr, error) {
		return nil, errors.New("names are known to the proxy only")
	}
	proxy := newHubDouble(t)
	proxy.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		tunnels[r.Method+" "+r.Host]++
		mu.Unlock()
		up, err := real(r.Context(), "tcp", "93.184.216.34:443")
		if err != nil {
			t.Error(err)
			return
		}
		w.WriteHeader(200)
		down, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		go func() { pipe(up, down) }()
		pipe(down, up)
	})
	address, _ := url.Parse(proxy.URL)
	o.Proxy = func(r *http.Request) (*url.URL, error) {
		if r.URL.Hostname() == "127.0.0.1" {
			return nil, nil
		}
		return address, nil
	}
	got, err := download(t, o, Request{Repo: repo})
	if err != nil {
		t.Fatal(err)
	}
	check(t, got[0].Path, wanted(files))
	if tunnels["CONNECT cdn-lfs.hf.co:443"] == 0 {
		t.Error(tunnels)
	}
	// What is known to be private is not asked of the proxy.
	o.Cache = t.TempDir()
	o.resolve = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("192.168.1.1")}, nil
	}
	_, err = download(t, o, Request{Repo: repo})
	wantError(t, err, ErrNetwork, "private network")
}

func pipe(to, from net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	to.Close()
}

func TestEndpoint(t *testing.T) {
	for endpoint, ok := range map[string]bool{
		"": true, "https://hub.corp/mirror/": true, "http://localhost:8000": true, "http://127.0.0.1:8000": true, "http://[::1]:8000": true,
		"http://hub.corp": false, "http://10.0.0.1": false, "ftp://hub.corp": false, "hub.corp": false, "https://user:pass@hub.corp": false, "https://": false, "http://127.0.0.1.example.com": false,
	} {
		if _, err := NewDownloader(HubOptions{Endpoint: endpoint}); (err == nil) != ok {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
	_, err := NewDownloader(HubOptions{CAFile: "download_test.go"})
	wantError(t, err, ErrInvalid, "no PEM certificate")

	dir := t.TempDir()
	for k, v := range map[string]string{"HF_HOME": dir, "HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "HF_ENDPOINT": "http://localhost:1", "HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "",
		"HF_TOKEN_PATH": "", "HF_HUB_OFFLINE": "yes", "SSL_CERT_FILE": "/ca"} {
		t.Setenv(k, v)
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("hf_abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := DefaultHub()
	if o.Cache != filepath.Join(dir, "hub") || o.Token != "hf_abc" || !o.Offline || o.CAFile != "/ca" || o.Endpoint != "http://localhost:1" {
		t.Errorf("%+v", o)
	}
	t.Setenv("HF_HUB_CACHE", "$HF_HOME/elsewhere")
	if got := hubCache(); got != filepath.Join(dir, "elsewhere") {
		t.Error(got)
	}
}

// TestPauseResumeCancel drives a job by hand.
func TestPauseResumeCancel(t *testing.T) {
	h := newHubDouble(t)
	files := modelFiles(t)
	h.add(repo, files)
	o := h.options(t)
	o.Workers = 1
	gate := make(chan struct{})
	arrived := make(chan struct{}, 100)
	h.setFault(func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
		if f.path == "model.safetensors" {
			arrived <- struct{}{}
			select {
			case <-gate:
			case <-r.Context().Done():
				return true
			}
		}
		return false
	})
	d, err := NewDownloader(o)
	if err != nil {
		t.Fatal(err)
	}
	until := func(j *Job, s State) Progress {
		t.Helper()
		for {
			if p := j.Progress(); p.State == s {
				return p
			}
			select {
			case <-j.Done():
				t.Fatal("ended: ", j.err)
			case <-time.After(time.Millisecond):
			}
		}
	}
	j := d.Start(Request{Repo: repo})
	<-arrived
	gate <- struct{}{} // one chunk passes
	<-arrived
	j.Pause()
	until(j, StatePaused)
	served := h.total()
	if m, _ := NewCatalogue(CatalogueOptions{Places: Places{Hub: o.Cache}}).Find(repo); m.Complete || !strings.Contains(m.Reason, "of") {
		t.Errorf("%+v", m)
	}
	j.Resume()
	<-arrived
	if p := until(j, StateDownloading); p.BytesDone < 16<<10 || p.BytesTotal == 0 {
		t.Errorf("%+v", p)
	}
	j.Pause()
	until(j, StatePaused)
	if h.total() != served {
		t.Error("bytes came twice")
	}
	j.Cancel(true)
	_, err = j.Wait(t.Context())
	wantError(t, err, ErrCancelled, "removed")
	if _, err := os.Stat(filepath.Join(o.Cache, repoFolder(repo))); !errors.Is(err, os.ErrNotExist) {
		t.Error("not removed:", err)
	}
	// Cancelled without cleanup: it goes on from there.
	j = d.Start(Request{Repo: repo})
	<-arrived
	gate <- struct{}{}
	<-arrived
	j.Cancel(false)
	_, err = j.Wait(t.Context())
	wantError(t, err, ErrCancelled, "resumes")
	if j.Progress().State != StateCancelled || len(leftovers(o.Cache)) == 0 {
		t.Error(j.Progress(), leftovers(o.Cache))
	}
	close(gate)
	before := h.total()
	got, err := download(t, o, Request{Repo: repo})
	if err != nil {
		t.Fatal(err)
	}
	check(t, got[0].Path, wanted(files))
	if n := h.total() - before; n > int64(len(files["model.safetensors"])-16<<10) {
		t.Errorf("%d bytes came again", n)
	}
	// Cleanup of an update leaves the older snapshot alone.
	newer := modelFiles(t)
	newer["generation_config.json"] = []byte(`{"top_k": 3}`)
	newer["tokenizer.json"] = noise(77, 30000)
	h.add(repo, newer)
	h.setFault(func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool { w.WriteHeader(500); return true })
	j = d.Start(Request{Repo: repo})
	<-j.Done()
	j2 := d.Start(Request{Repo: repo})
	j2.Cancel(true)
	<-j2.Done()
	check(t, got[0].Path, wanted(files))
	if m, _ := NewCatalogue(CatalogueOptions{Places: Places{Hub: o.Cache}}).Find(repo); !m.Loadable() {
		t.Errorf("%+v", m)
	}
}

func TestProgressRate(t *testing.T) {
	c := &quickClock{}
	d, err := NewDownloader(HubOptions{clock: c, Cache: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	j := &Job{d: d, p: Progress{State: StateDownloading, BytesTotal: 40e6}}
	j.add(10e6, false) // found on disk
	for range 20 {
		j.add(1e6, true)
		c.After(time.Second)
	}
	p := j.Progress()
	if p.BytesDone != 30e6 || p.BytesPerSecond < 0.9e6 || p.BytesPerSecond > 1.1e6 || p.ETA < 9*time.Second || p.ETA > 12*time.Second {
		t.Errorf("%+v", p)
	}
}

func TestDiskFull(t *testing.T) {
	h := newHubDouble(t)
	files := modelFiles(t)
	h.add(repo, files)
	o := h.options(t)
	o.free = func(string) (int64, error) { return 50_000, nil }
	_, err := download(t, o, Request{Repo: repo})
	wantError(t, err, ErrDiskFull, "50.0 kB free", "HF_HUB_CACHE")
	if h.total() != 0 {
		t.Error("bytes came before the check")
	}
	o.free = nil
	var written atomic.Int64
	o.disk.hook = func(op, path string, at, n int64) error {
		if op == "write" && written.Add(n) > 100_000 {
			return &os.PathError{Op: op, Path: path, Err: syscall.ENOSPC}
		}
		return nil
	}
	_, err = download(t, o, Request{Repo: repo})
	wantError(t, err, ErrDiskFull, "is full", "is kept")
	if len(leftovers(o.Cache)) == 0 {
		t.Error("nothing is kept")
	}
	o.disk.hook = nil
	before := h.total()
	got, err := download(t, o, Request{Repo: repo})
	if err != nil {
		t.Fatal(err)
	}
	check(t, got[0].Path, wanted(files))
	if n := h.total() - before; n > 100_000 {
		t.Errorf("%d bytes came again", n)
	}
}

// Two downloaders of one cache share the work.
func TestTogether(t *testing.T) {
	h := newHubDouble(t)
	files := modelFiles(t)
	h.add(repo, files)
	o := h.options(t)
	o.clock = nil
	var jobs []*Job
	for range 3 {
		d, err := NewDownloader(o)
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, d.Start(Request{Repo: repo}))
	}
	total := int64(0)
	for _, data := range wanted(files) {
		total += int64(len(data))
	}
	for _, j := range jobs {
		got, err := j.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		check(t, got[0].Path, wanted(files))
		if p := j.Progress(); p.BytesDone != total {
			t.Errorf("%+v, wants %d", p, total)
		}
	}
	if n := h.total(); n != total {
		t.Errorf("%d bytes served, the model has %d", n, total)
	}
}

// A volume without symbolic links, as those of cameras and cars.
func TestWithoutLinks(t *testing.T) {
	h := newHubDouble(t)
	files := modelFiles(t)
	files["added_tokens.json"] = files["generation_config.json"] // two names for one content
	h.add(repo, files)
	o := h.options(t)
	o.disk.hook = func(op, path string, at, n int64) error {
		if op == "symlink" {
			return &os.LinkError{Op: op, Old: path, New: path, Err: syscall.ENOTSUP}
		}
		return nil
	}
	for range 2 {
		got, err := download(t, o, Request{Repo: repo})
		if err != nil {
			t.Fatal(err)
		}
		check(t, got[0].Path, wanted(files))
		if m, _ := NewCatalogue(CatalogueOptions{Places: Places{Hub: o.Cache}}).Find(repo); !m.Loadable() {
			t.Errorf("%+v", m)
		}
	}
	if total := h.total(); total > 200_000 {
		t.Error(total, "bytes came, some twice")
	}
}

// The branch moves on while a download is broken off: what came of the old
// commit and is not in the new one goes.
func TestOutdated(t *testing.T) {
	h := newHubDouble(t)
	files := modelFiles(t)
	old := h.add(repo, files)
	o := h.options(t)
	partial := filepath.Join(o.Cache, repoFolder(repo), "blobs", old.files["model.safetensors"].etag()+dataSuffix)
	o.disk.hook = func(op, path string, at, n int64) error {
		if op == "write" && path == partial && at > 0 {
			return &os.PathError{Op: op, Path: path, Err: errKilled}
		}
		return nil
	}
	if _, err := download(t, o, Request{Repo: repo}); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	o.disk.hook = nil
	if _, err := os.Stat(partial); err != nil {
		t.Fatal(err)
	}
	newer := modelFiles(t)
	newer["model.safetensors"] = read(t, "../testdata/models/qwen3/yarn/model.safetensors")
	newer["config.json"] = read(t, "../testdata/models/qwen3/yarn/config.json")
	h.add(repo, newer)
	got, err := download(t, o, Request{Repo: repo})
	if err != nil {
		t.Fatal(err)
	}
	check(t, got[0].Path, wanted(newer))
	if l := leftovers(o.Cache); len(l) > 0 {
		t.Error("left over:", l)
	}
	blobs, _ := os.ReadDir(filepath.Join(o.Cache, repoFolder(repo), "blobs"))
	etags := map[string]bool{}
	for name := range wanted(newer) {
		etags[h.repos[repo].files[name].etag()] = true
	}
	if len(blobs) != len(etags) {
		t.Errorf("%d blobs for %d files", len(blobs), len(etags))
	}
}
