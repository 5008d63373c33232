package models

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	mrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// hubDouble is a model hub for tests: the part of the Hugging Face API that
// downloads need, over repositories in memory. Large files are served from
// /cdn after a redirect, as the hub does.
type hubDouble struct {
	*httptest.Server
	mu       sync.Mutex
	repos    map[string]*repoDouble
	cdn      string // where large files are redirected to; "" = the hub itself
	other    string // the same for the hub library, which takes redirects to the hub for moved repositories
	faulty   fault
	requests []string    // "GET path"
	auth     atomic.Bool // a CDN request carried credentials
	served   atomic.Int64
	active   atomic.Int64
	onServed func(total int64)
}

// fault may answer a request for file content itself, by returning true.
type fault func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool

func (h *hubDouble) setFault(f fault) {
	h.mu.Lock()
	h.faulty = f
	h.mu.Unlock()
}

type repoDouble struct {
	commit string
	files  map[string]*fileDouble
	token  string // needed to see it
	gated  bool
}

type fileDouble struct {
	path string
	data []byte
	lfs  bool
	sum  string
}

func (f *fileDouble) etag() string { return f.sum }

func (f *fileDouble) blobID() string {
	return fmt.Sprintf("%x", sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(f.data)), f.data...)))
}

func newHubDouble(t testing.TB) *hubDouble {
	h := &hubDouble{repos: map[string]*repoDouble{}}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

// add makes a repository; large files are those of 10 kB and more.
func (h *hubDouble) add(repo string, files map[string][]byte) *repoDouble {
	r := &repoDouble{files: map[string]*fileDouble{}}
	sum := sha1.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := &fileDouble{path: name, data: files[name], lfs: len(files[name]) >= 10000}
		if f.sum = f.blobID(); f.lfs {
			f.sum = fmt.Sprintf("%x", sha256.Sum256(f.data))
		}
		r.files[name] = f
		fmt.Fprintln(sum, name, f.etag())
	}
	r.commit = fmt.Sprintf("%x", sum.Sum(nil))
	h.mu.Lock()
	h.repos[repo] = r
	h.mu.Unlock()
	return r
}

func (h *hubDouble) fail(w http.ResponseWriter, status int, code, text string) {
	w.Header().Set("X-Error-Code", code)
	w.Header().Set("X-Error-Message", text)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": text})
}

// total waits until no answer is on its way and returns the bytes served.
func (h *hubDouble) total() int64 {
	for h.active.Load() > 0 {
		time.Sleep(100 * time.Microsecond)
	}
	return h.served.Load()
}

func (h *hubDouble) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.active.Add(1)
	defer h.active.Add(-1)
	h.mu.Lock()
	h.requests = append(h.requests, r.Method+" "+r.URL.Path)
	h.mu.Unlock()
	if sum, ok := strings.CutPrefix(r.URL.Path, "/cdn/"); ok {
		if r.Header.Get("Authorization") != "" {
			h.auth.Store(true)
		}
		h.mu.Lock()
		var found *fileDouble
		for _, repo := range h.repos {
			for _, f := range repo.files {
				if f.lfs && f.etag() == sum {
					found = f
				}
			}
		}
		h.mu.Unlock()
		if found == nil {
			http.Error(w, "no such object", http.StatusNotFound)
			return
		}
		h.content(w, r, found)
		return
	}
	api, rest := strings.HasPrefix(r.URL.Path, "/api/models/"), strings.TrimPrefix(r.URL.Path, "/api/models/")
	if api {
		rest = strings.TrimPrefix(r.URL.EscapedPath(), "/api/models/") // a revision may hold an escaped slash
	}
	parts := strings.Split(strings.Trim(rest, "/"), "/")
	for i := range parts {
		parts[i], _ = url.PathUnescape(parts[i])
	}
	if len(parts) < 2 {
		http.NotFound(w, r)
		return
	}
	name, parts := parts[0]+"/"+parts[1], parts[2:]
	h.mu.Lock()
	repo := h.repos[name]
	h.mu.Unlock()
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case token == "bad":
		h.fail(w, 401, "", "Invalid credentials in Authorization header")
		return
	case repo == nil || repo.token != "" && token != repo.token && !repo.gated:
		status := 404
		if token == "" {
			status = 401
		}
		h.fail(w, status, "RepoNotFound", "Repository not found")
		return
	}
	revision := func(at int) bool {
		if len(parts) > at && parts[at] != "main" && parts[at] != repo.commit && parts[at] != "refs/pr/1" {
			h.fail(w, 404, "RevisionNotFound", "Invalid rev id: "+parts[at])
			return false
		}
		return true
	}
	switch {
	case api && (len(parts) == 0 || parts[0] == "revision"):
		if revision(1) {
			h.info(w, r, name, repo)
		}
	case api && parts[0] == "tree":
		if revision(1) {
			h.tree(w, repo)
		}
	case !api && len(parts) >= 3 && parts[0] == "resolve":
		if repo.gated && token != repo.token {
			status := 403
			if token == "" {
				status = 401
			}
			h.fail(w, status, "GatedRepo", "Access to model "+name+" is restricted")
			return
		}
		f := repo.files[strings.Join(parts[2:], "/")]
		if !revision(1) {
			return
		}
		if f == nil {
			h.fail(w, 404, "EntryNotFound", "Entry not found")
			return
		}
		w.Header().Set("X-Repo-Commit", repo.commit)
		if !f.lfs {
			h.content(w, r, f)
			return
		}
		w.Header().Set("X-Linked-Etag", `"`+f.etag()+`"`)
		w.Header().Set("X-Linked-Size", fmt.Sprint(len(f.data)))
		base := h.cdn
		if base == "" {
			base = h.URL
		}
		if h.other != "" && strings.Contains(r.UserAgent(), "hf_hub") {
			base = h.other
		}
		w.Header().Set("Location", base+"/cdn/"+f.etag()+"?signature=1")
		w.WriteHeader(http.StatusFound)
	default:
		http.NotFound(w, r)
	}
}

func (h *hubDouble) info(w http.ResponseWriter, r *http.Request, name string, repo *repoDouble) {
	var siblings []map[string]any
	for _, path := range slices.Sorted(maps.Keys(repo.files)) {
		f := repo.files[path]
		s := map[string]any{"rfilename": path}
		if r.URL.Query().Get("blobs") != "" {
			s["blobId"], s["size"] = f.blobID(), len(f.data)
			if f.lfs {
				s["lfs"] = map[string]any{"sha256": f.etag(), "size": len(f.data), "pointerSize": 130}
			}
		}
		siblings = append(siblings, s)
	}
	json.NewEncoder(w).Encode(map[string]any{"id": name, "modelId": name, "sha": repo.commit, "private": false, "disabled": false,
		"gated": repo.gated, "downloads": 0, "likes": 0, "tags": []string{}, "siblings": siblings})
}

func (h *hubDouble) tree(w http.ResponseWriter, repo *repoDouble) {
	list := []map[string]any{}
	for _, path := range slices.Sorted(maps.Keys(repo.files)) {
		f := repo.files[path]
		e := map[string]any{"type": "file", "path": path, "oid": f.blobID(), "size": len(f.data)}
		if f.lfs {
			e["lfs"] = map[string]any{"oid": f.etag(), "size": len(f.data), "pointerSize": 130}
		}
		list = append(list, e)
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(list)
}

// content serves bytes and counts them.
func (h *hubDouble) content(w http.ResponseWriter, r *http.Request, f *fileDouble) {
	h.mu.Lock()
	faulty := h.faulty
	h.mu.Unlock()
	if faulty != nil && faulty(w, r, f) {
		return
	}
	w.Header().Set("ETag", `"`+f.etag()+`"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(&countingWriter{w, h}, r, "", time.Time{}, bytes.NewReader(f.data))
}

type countingWriter struct {
	http.ResponseWriter
	h *hubDouble
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	total := c.h.served.Add(int64(n))
	c.h.mu.Lock()
	f := c.h.onServed
	c.h.mu.Unlock()
	if f != nil {
		f(total)
	}
	return n, err
}

func (h *hubDouble) count(part string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, r := range h.requests {
		if strings.Contains(r, part) {
			n++
		}
	}
	return n
}

// quickClock makes every wait end at once, and moves on by it.
type quickClock struct{ now atomic.Int64 }

func (c *quickClock) Now() time.Time { return time.Unix(1e9, c.now.Load()) }
func (c *quickClock) After(d time.Duration) <-chan time.Time {
	c.now.Add(int64(d))
	ch := make(chan time.Time, 1)
	ch <- c.Now()
	return ch
}

// options are those of a downloader that talks to the double.
func (h *hubDouble) options(t testing.TB) HubOptions {
	return HubOptions{Cache: filepath.Join(t.TempDir(), "hub"), Endpoint: h.URL, Workers: 4, clock: &quickClock{}, chunk: 16 << 10, disk: disk{lazy: true},
		Proxy: noProxy}
}

func download(t testing.TB, o HubOptions, reqs ...Request) ([]Snapshot, error) {
	t.Helper()
	d, err := NewDownloader(o)
	if err != nil {
		t.Fatal(err)
	}
	return d.Start(reqs...).Wait(t.Context())
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// modelFiles is a tiny Qwen3 as a repository holds it, with files that a load
// does not need.
func modelFiles(t testing.TB) map[string][]byte {
	dir := "../testdata/models/qwen3/dense/"
	return map[string][]byte{
		"config.json": read(t, dir+"config.json"), "model.safetensors": read(t, dir+"model.safetensors"),
		"tokenizer.json": noise(1, 40000), "tokenizer_config.json": []byte(`{"model_max_length": 64}`), "generation_config.json": []byte("{}"),
		"special_tokens_map.json": {}, "chat_template.jinja": []byte("{{ messages }}"), "additional_chat_templates/tools.jinja": []byte("{{ tools }}"),
		"README.md": []byte("# model"), ".gitattributes": []byte("*"), "pytorch_model.bin": noise(2, 90000), "onnx/model.onnx": noise(3, 20000),
		"consolidated.safetensors": noise(4, 30000), "original/model.safetensors": noise(5, 30000),
	}
}

// wanted are those of modelFiles that a load needs.
func wanted(files map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for name, data := range files {
		if isSmallFile(name) || name == "model.safetensors" {
			out[name] = data
		}
	}
	return out
}

func noise(seed uint64, n int) []byte {
	r := mrand.NewChaCha8([32]byte{byte(seed)})
	b := make([]byte, n)
	r.Read(b)
	return b
}

// check compares a folder with files, byte by byte.
func check(t testing.TB, dir string, files map[string][]byte) {
	t.Helper()
	found := 0
	filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		found++
		rel, _ := filepath.Rel(dir, path)
		want, ok := files[filepath.ToSlash(rel)]
		if got := read(t, path); !ok || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, wants %d (listed: %v)", rel, len(got), len(want), ok)
		}
		return nil
	})
	if found != len(files) {
		t.Errorf("%d files in %s, want %d", found, dir, len(files))
	}
}

// leftovers lists the files of unfinished downloads in a cache, which Sparkbar
// and the hub library mark by their names.
func leftovers(cache string) []string {
	var list []string
	filepath.WalkDir(cache, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Name() == ".locks" {
			return filepath.SkipDir // locks stay, as those of the hub library
		}
		if err == nil && (strings.Contains(e.Name(), "sparkbar") || strings.HasSuffix(path, ".incomplete")) {
			list = append(list, filepath.Base(path))
		}
		return nil
	})
	return list
}

// cdnDouble serves the double by https under a name of the hub's CDN, and
// returns options with which that name leads to it.
func cdnDouble(t testing.TB, h *hubDouble, host string) func(o *HubOptions) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // connections that a client breaks off
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	h.cdn = "https://" + host
	return func(o *HubOptions) {
		o.CAFile = ca
		o.dial = redial(map[string]string{"93.184.216.34:443": s.Listener.Addr().String()})
	}
}
