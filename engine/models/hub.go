package models

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// HubOptions configure a Downloader. The zero value of a field means its
// default; DefaultHub reads the environment.
type HubOptions struct {
	Cache    string // the hub cache that files go to
	Endpoint string // https://huggingface.co; plain http only on loopback
	Token    string
	Offline  bool
	// Hosts are further hosts that the hub may redirect to, besides
	// *.huggingface.co, *.hf.co and the endpoint: "cdn.example.com", or
	// "*.example.com" with those below it.
	Hosts     []string
	CAFile    string // PEM certificates trusted besides the system's
	UserAgent string
	Workers   int // parallel requests of a file; 8

	// Proxy chooses the proxy of a request; by default HTTPS_PROXY and NO_PROXY
	// do.
	Proxy func(*http.Request) (*url.URL, error)

	// For tests.
	clock   clock
	chunk   int64
	stall   time.Duration
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	free    func(path string) (int64, error)
	disk    disk
}

// DefaultHub are the options as the hub library takes them from the
// environment: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH,
// HF_HUB_OFFLINE, and the usual names for a file of certificates.
func DefaultHub() HubOptions {
	o := HubOptions{Cache: hubCache(), Endpoint: os.Getenv("HF_ENDPOINT")}
	o.Offline = isTrue(os.Getenv("HF_HUB_OFFLINE")) || isTrue(os.Getenv("TRANSFORMERS_OFFLINE"))
	for _, key := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if o.Token == "" {
			o.Token = strings.TrimSpace(os.Getenv(key))
		}
	}
	if o.Token == "" {
		path := expandPath(os.Getenv("HF_TOKEN_PATH"))
		if path == "" {
			path = filepath.Join(hfHome(), "token")
		}
		if text, err := os.ReadFile(path); err == nil {
			o.Token = strings.TrimSpace(string(text))
		}
	}
	for _, key := range []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"} {
		if o.CAFile == "" {
			o.CAFile = os.Getenv(key)
		}
	}
	return o
}

func isTrue(s string) bool {
	return slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(s))
}

// clock is time as downloads and the catalogue use it.
type clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

func sleep(ctx context.Context, c clock, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.After(d):
		return nil
	}
}

const (
	maxRedirects  = 5
	maxAttempts   = 6 // in a row, without a byte of progress
	maxRetryAfter = 5 * time.Minute
	maxListing    = 64 << 20 // bytes of the hub's answer about a repository
)

// hub speaks HTTP with a model hub and whom it redirects to.
type hub struct {
	endpoint *url.URL
	token    string
	hosts    []string
	agent    string
	stall    time.Duration
	clock    clock
	proxy    func(*http.Request) (*url.URL, error)
	resolve  func(ctx context.Context, host string) ([]netip.Addr, error)

	direct, proxied *http.Transport
}

func newHub(o HubOptions) (*hub, error) {
	h := &hub{token: o.Token, hosts: o.Hosts, agent: o.UserAgent, stall: o.stall, clock: o.clock, proxy: o.Proxy, resolve: o.resolve}
	text := strings.TrimRight(o.Endpoint, "/")
	if text == "" {
		text = "https://huggingface.co"
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, failure(ErrInvalid, "", err, "HF_ENDPOINT %q is not the address of a hub; it should look like https://huggingface.co", o.Endpoint)
	}
	if u.Scheme != "https" && !(u.Scheme == "http" && isLoopbackHost(u.Hostname())) {
		return nil, failure(ErrInvalid, "", nil, "HF_ENDPOINT %q must be https; plain http is accepted for localhost only", o.Endpoint)
	}
	h.endpoint = u
	if h.stall == 0 {
		h.stall = 30 * time.Second
	}
	if h.agent == "" {
		h.agent = "sparkbar"
	}
	if h.proxy == nil {
		h.proxy = http.ProxyFromEnvironment
	}
	if h.resolve == nil {
		h.resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	dial := o.dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, failure(ErrInvalid, "", err, "cannot read the certificates that SSL_CERT_FILE (or --hub-ca) names: %v", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, failure(ErrInvalid, "", nil, "%s holds no PEM certificate", o.CAFile)
		}
		tlsConfig.RootCAs = pool
	}
	transport := func() *http.Transport {
		return &http.Transport{
			TLSClientConfig: tlsConfig, TLSHandshakeTimeout: 15 * time.Second, ResponseHeaderTimeout: h.stall, IdleConnTimeout: 90 * time.Second,
			DisableCompression: true, MaxIdleConnsPerHost: 64, MaxResponseHeaderBytes: 256 << 10,
			// Parallel ranges shall be parallel connections.
			TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		}
	}
	h.direct, h.proxied = transport(), transport()
	h.direct.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == hostPort(h.endpoint) {
			return dial(ctx, network, addr)
		}
		return h.dialPublic(ctx, network, addr, dial)
	}
	h.proxied.DialContext = dial
	h.proxied.Proxy = h.proxy
	return h, nil
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

func sameOrigin(a, b *url.URL) bool { return a.Scheme == b.Scheme && hostPort(a) == hostPort(b) }

func isLoopbackHost(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().IsLoopback()
	}
	return strings.EqualFold(host, "localhost")
}

var carrierNAT = netip.MustParsePrefix("100.64.0.0/10")
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// isPublic reports whether an address is one of the open internet.
func isPublic(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if nat64.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	if ip.Is4() {
		b := ip.As4()
		if b[0] == 0 || b[0] >= 240 {
			return false
		}
	}
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !carrierNAT.Contains(ip)
}

// errRefused is a redirect that is not followed. It is never retried.
type errRefused struct{ text string }

func (e *errRefused) Error() string { return e.text }

// publicAddrs resolves a host to addresses, all of which must be public.
func (h *hub) publicAddrs(ctx context.Context, host string) ([]netip.Addr, error) {
	addrs := []netip.Addr{}
	if ip, err := netip.ParseAddr(host); err == nil {
		addrs = append(addrs, ip)
	} else if addrs, err = h.resolve(ctx, host); err != nil {
		return nil, err
	}
	for _, ip := range addrs {
		if !isPublic(ip) {
			return nil, &errRefused{fmt.Sprintf("the hub redirects to %s, which is the address %s of a private network; this is refused", host, ip.Unmap())}
		}
	}
	return addrs, nil
}

// dialPublic connects to an address that was checked, so that a name cannot
// change its meaning in between.
func (h *hub) dialPublic(ctx context.Context, network, addr string, dial func(context.Context, string, string) (net.Conn, error)) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	addrs, err := h.publicAddrs(ctx, host)
	if err != nil {
		return nil, err
	}
	err = fmt.Errorf("%s has no address", host)
	for _, ip := range addrs {
		var c net.Conn
		if c, err = dial(ctx, network, net.JoinHostPort(ip.String(), port)); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// mayRedirect decides whether a redirect to u is followed.
func (h *hub) mayRedirect(u *url.URL) error {
	if sameOrigin(u, h.endpoint) {
		return nil
	}
	if u.Scheme != "https" {
		return &errRefused{fmt.Sprintf("the hub redirects to %s://%s; only https is followed", u.Scheme, u.Host)}
	}
	host := strings.ToLower(u.Hostname())
	hosts := append([]string{"huggingface.co", "*.huggingface.co", "hf.co", "*.hf.co", h.endpoint.Hostname()}, h.hosts...)
	for _, allowed := range hosts {
		allowed = strings.ToLower(allowed)
		if below, ok := strings.CutPrefix(allowed, "*"); ok && strings.HasPrefix(below, ".") && strings.HasSuffix(host, below) || host == allowed {
			return nil
		}
	}
	return &errRefused{fmt.Sprintf("the hub redirects to %s, which is none of its known hosts; if you trust it, name it with --hub-hosts", u.Host)}
}

// statusError is an answer that is not the wanted one.
type statusError struct {
	status     int
	code, text string // X-Error-Code, and the server's words
	host       string
	redirected bool // it came from where the hub redirects to
	retryAfter time.Duration
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("%s answers %d %s", e.host, e.status, http.StatusText(e.status))
	if e.text != "" {
		s += ": " + e.text
	}
	return s
}

// errStalled is the cause of a request that was given up for silence.
var errStalled = errors.New("no data came for too long")

// request makes one GET of u, following redirects. With hi >= 0 it asks for the
// bytes [lo, hi). The answer is 200 or 206; anything else is an error. at is
// where the answer came from. The body fails when it stalls.
func (h *hub) request(ctx context.Context, u *url.URL, lo, hi int64) (resp *http.Response, at *url.URL, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer func() {
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			cancel(nil)
		}
	}()
	for hop := range maxRedirects + 1 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
		if err != nil {
			return nil, nil, err
		}
		req.Header.Set("User-Agent", h.agent)
		req.Header.Set("Accept-Encoding", "identity")
		if hi >= 0 {
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", lo, hi-1))
		}
		if h.token != "" && sameOrigin(u, h.endpoint) {
			req.Header.Set("Authorization", "Bearer "+h.token)
		}
		transport := h.direct
		proxy, err := h.proxy(req)
		if err != nil {
			return nil, nil, fmt.Errorf("the proxy setting is wrong: %w", err)
		}
		if proxy != nil {
			transport = h.proxied
			if !sameOrigin(u, h.endpoint) {
				// The proxy resolves names; what can be known here is checked.
				var refused *errRefused
				if _, err := h.publicAddrs(ctx, u.Hostname()); errors.As(err, &refused) {
					return nil, nil, err
				}
			}
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case resp.StatusCode == 200 || resp.StatusCode == 206:
			resp.Body = &watchedBody{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, stall: h.stall, timer: time.AfterFunc(h.stall, func() { cancel(errStalled) })}
			return resp, u, nil
		case slices.Contains([]int{301, 302, 303, 307, 308}, resp.StatusCode):
			resp.Body.Close()
			next, err := u.Parse(resp.Header.Get("Location"))
			if err != nil || resp.Header.Get("Location") == "" {
				return nil, nil, &errRefused{fmt.Sprintf("%s redirects to nowhere", u.Host)}
			}
			if err := h.mayRedirect(next); err != nil {
				return nil, nil, err
			}
			u = next
		default:
			return nil, nil, h.readError(resp, u, hop > 0)
		}
	}
	return nil, nil, &errRefused{fmt.Sprintf("%s redirects in circles", h.endpoint.Host)}
}

func (h *hub) readError(resp *http.Response, u *url.URL, redirected bool) error {
	defer resp.Body.Close()
	e := &statusError{status: resp.StatusCode, code: resp.Header.Get("X-Error-Code"), text: resp.Header.Get("X-Error-Message"), host: u.Host, redirected: redirected}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	var said struct {
		Error string `json:"error"`
	}
	if e.text == "" && json.Unmarshal(body, &said) == nil {
		e.text = said.Error
	}
	e.text = clip(e.text, 300)
	if v := resp.Header.Get("Retry-After"); v != "" {
		if n, err := strconv.Atoi(v); err == nil && n >= 0 {
			e.retryAfter = time.Duration(min(n, 86400)) * time.Second
		} else if t, err := http.ParseTime(v); err == nil {
			e.retryAfter = max(0, t.Sub(h.clock.Now()))
		}
	}
	return e
}

// clip cuts a text of a server to a length fit for a message.
func clip(s string, n int) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' }), " ")
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}

// watchedBody is a body that fails when nothing comes for too long.
type watchedBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.timer.Reset(b.stall)
	if err != nil && err != io.EOF {
		if cause := context.Cause(b.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// transient reports whether trying again may help, and how long the server
// asks to wait, if it does.
func transient(err error) (wait time.Duration, again bool) {
	var status *statusError
	var refused *errRefused
	var file *os.PathError
	var certificate *tls.CertificateVerificationError
	var ours *Error
	switch {
	case errors.As(err, &status):
		return status.retryAfter, status.status == 408 || status.status == 429 || status.status >= 500
	case errors.As(err, &refused), errors.As(err, &file), errors.As(err, &certificate), errors.As(err, &ours), errors.Is(err, context.Canceled):
		return 0, false
	}
	return 0, true
}

// retry runs op until it succeeds, fails for good, or fails too often without
// any progress in between.
func (h *hub) retry(ctx context.Context, progress func() int64, op func() error) error {
	failed, last := 0, progress()
	for {
		err := op()
		if err == nil || ctx.Err() != nil {
			return err
		}
		wait, again := transient(err)
		if p := progress(); p > last {
			failed, last = 0, p
		}
		if failed++; !again || failed >= maxAttempts || wait > maxRetryAfter {
			return err
		}
		if wait == 0 {
			wait = min(500*time.Millisecond<<failed, 30*time.Second)
			wait = wait/2 + rand.N(wait/2)
		}
		if err := sleep(ctx, h.clock, wait); err != nil {
			return err
		}
	}
}

// repoFile is one file of a repository.
type repoFile struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	ETag string `json:"etag"` // sha256 of files in large file storage, else the git blob id
}

// listing is what the hub says about a revision.
type listing struct {
	commit string
	files  []repoFile
}

// list asks the hub about a revision of a repository.
func (h *hub) list(ctx context.Context, repo, revision string) (listing, error) {
	u := *h.endpoint
	u.Path += "/api/models/" + repo + "/revision/" + revision
	u.RawPath = h.endpoint.EscapedPath() + "/api/models/" + repo + "/revision/" + url.PathEscape(revision)
	u.RawQuery = "blobs=true"
	var text []byte
	err := h.retry(ctx, func() int64 { return 0 }, func() error {
		resp, _, err := h.request(ctx, &u, 0, -1)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err = io.ReadAll(io.LimitReader(resp.Body, maxListing+1))
		return err
	})
	if err != nil {
		return listing{}, h.explain(repo, revision, err)
	}
	l, err := parseListing(text)
	if err != nil {
		return listing{}, failure(ErrNetwork, repo, err, "%s does not answer as a model hub does (%v); check HF_ENDPOINT, and whether a login page or a proxy stands in between", h.endpoint.Host, err)
	}
	return l, nil
}

func parseListing(text []byte) (listing, error) {
	if len(text) > maxListing {
		return listing{}, fmt.Errorf("the list of files is longer than %d bytes", maxListing)
	}
	var info struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name   string `json:"rfilename"`
			Size   *int64 `json:"size"`
			BlobID string `json:"blobId"`
			LFS    *struct {
				SHA256 string `json:"sha256"`
				Size   *int64 `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return listing{}, err
	}
	if !isHex(info.SHA, 40) {
		return listing{}, fmt.Errorf("the commit %q is not a hash", clip(info.SHA, 60))
	}
	l := listing{commit: info.SHA}
	for _, s := range info.Siblings {
		f := repoFile{Path: s.Name, ETag: s.BlobID}
		size := s.Size
		if s.LFS != nil {
			f.ETag, size = s.LFS.SHA256, s.LFS.Size
		}
		switch {
		case !isPlainPath(f.Path):
			continue // nothing that a load needs has such a name
		case size == nil || *size < 0 || !isHex(f.ETag, 40) && !isHex(f.ETag, 64):
			return listing{}, fmt.Errorf("%s has no size or no hash", clip(f.Path, 60))
		}
		f.Size = *size
		l.files = append(l.files, f)
	}
	return l, nil
}

func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// isPlainPath accepts relative paths with forward slashes that stay inside.
func isPlainPath(p string) bool {
	if p == "" || len(p) > 500 || strings.ContainsAny(p, "\\:\x00") || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' }) {
		return false
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == "" || part == "." || part == ".." || len(part) > 200 {
			return false
		}
	}
	return true
}

// fileURL is where a file is served.
func (h *hub) fileURL(repo, commit, path string) *url.URL {
	u := *h.endpoint
	u.Path += "/" + repo + "/resolve/" + commit + "/" + path
	u.RawPath = ""
	return &u
}

// explain turns a failed request into the cause and what to do.
func (h *hub) explain(repo, revision string, err error) error {
	var ours *Error
	var status *statusError
	var refused *errRefused
	var certificate *tls.CertificateVerificationError
	page := h.endpoint.String() + "/" + repo
	switch {
	case errors.As(err, &ours):
		return err
	case errors.Is(err, context.Canceled):
		return failure(ErrCancelled, repo, err, "the download was cancelled; what is here is kept, downloading again resumes")
	case errors.As(err, &refused):
		return failure(ErrNetwork, repo, err, "%s", refused.text)
	case errors.As(err, &certificate):
		return failure(ErrNetwork, repo, err, "%v; if your network inspects traffic, name its certificate with SSL_CERT_FILE", err)
	case !errors.As(err, &status):
		return failure(ErrNetwork, repo, err, "the transfer from %s failed: %v; check the connection and HTTPS_PROXY; what is here is kept", h.endpoint.Host, err)
	}
	said := ""
	if status.text != "" {
		said = " (" + status.text + ")"
	}
	switch {
	case strings.Contains(status.text, "resource is disabled"):
		return failure(ErrDenied, repo, err, "the hub has disabled this repository")
	case status.code == "GatedRepo" && h.token == "":
		return failure(ErrDenied, repo, err, "the model is gated: ask for access at %s, then set HF_TOKEN to a token of your account%s", page, said)
	case status.code == "GatedRepo":
		return failure(ErrDenied, repo, err, "the model is gated and the account of your HF_TOKEN has no access yet: ask for it at %s%s", page, said)
	case status.code == "RevisionNotFound":
		return failure(ErrNotFound, repo, err, "there is no revision %q; the branches are at %s/tree/main", revision, page)
	case status.code == "EntryNotFound":
		return failure(ErrNotFound, repo, err, "a file of the model is gone from the hub%s; try again", said)
	case status.status == 401 && !status.redirected && h.token != "" && status.code != "RepoNotFound":
		return failure(ErrDenied, repo, err, "the hub does not accept the HF_TOKEN%s; make a new one at %s/settings/tokens", said, h.endpoint)
	case status.status == 403 && !status.redirected:
		return failure(ErrDenied, repo, err, "the HF_TOKEN may not read this model%s; give it that right at %s/settings/tokens", said, h.endpoint)
	case (status.status == 401 || status.status == 404) && !status.redirected && h.token == "":
		return failure(ErrNotFound, repo, err, "%s has no such model, or it is private%s; check the name, and for a private model set HF_TOKEN", h.endpoint.Host, said)
	case (status.status == 401 || status.status == 404) && !status.redirected:
		return failure(ErrNotFound, repo, err, "%s has no such model, or the account of your HF_TOKEN may not see it%s; check the name", h.endpoint.Host, said)
	case status.status == 429:
		return failure(ErrNetwork, repo, err, "%v; the hub limits how much is asked of it: try again later, an HF_TOKEN raises the limit", status)
	}
	return failure(ErrNetwork, repo, err, "%v; try again later, what is here is kept", status)
}
