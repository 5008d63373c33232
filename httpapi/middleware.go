package httpapi

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"
)

// observe names the request, turns panics into a 500 and logs one line.
func (s *Server) observe(c *gin.Context) {
	start := time.Now()
	control := http.NewResponseController(c.Writer) // of in-process callers it has no deadlines, and they need none
	// A deadline of the connection's previous request must not meet this one.
	_ = control.SetWriteDeadline(time.Time{})
	if c.Request.ContentLength != 0 {
		// Also of a body that no handler reads: before it answers, net/http does.
		_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	}
	setRequestID(c, "req_"+randomHex(16))
	c.Header("Server", "sparkbar")
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
			s.options.Log.Error("panic", "request", requestID(c), "path", c.Request.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if c.Writer.Written() {
				panic(http.ErrAbortHandler) // half an answer is out: cut the connection
			}
			s.fail(c, &apiError{Status: http.StatusInternalServerError, Type: "server_error",
				Message: "internal error, see the log for request " + requestID(c)})
		}
		s.options.Log.LogAttrs(c, slog.LevelInfo, "request", slog.String("request", requestID(c)),
			slog.String("method", c.Request.Method), slog.String("path", c.Request.URL.Path),
			slog.Int("status", c.Writer.Status()), slog.Duration("took", time.Since(start)), slog.String("client", c.Request.RemoteAddr))
	}()
	c.Next()
}

func setRequestID(c *gin.Context, id string) { c.Header("X-Request-Id", id) }

func requestID(c *gin.Context) string { return c.Writer.Header().Get("X-Request-Id") }

// guard refuses what must not reach a handler: foreign hosts and origins, a
// missing key. It answers HEAD and OPTIONS, which clients use to probe.
func (s *Server) guard(c *gin.Context) {
	r := c.Request
	if !s.hostAllowed(r.Host) {
		s.refuse(c, http.StatusForbidden, "permission_error", fmt.Sprintf(
			"host %q is not allowed; start the server with --allow-host %s to accept it", hostName(r.Host), hostName(r.Host)))
		return
	}
	admin := r.URL.Path == "/admin" || strings.HasPrefix(r.URL.Path, "/admin/")
	if origin := r.Header.Get("Origin"); origin != "" && !sameOrigin(origin, r.Host) {
		if admin || !s.originAllowed(origin) {
			flag := fmt.Sprintf("; start the server with --cors-origin %s to accept it", origin)
			if admin {
				flag = " on /admin"
			}
			s.refuse(c, http.StatusForbidden, "permission_error", fmt.Sprintf("web origin %q is not allowed%s", origin, flag))
			return
		}
		s.allowOrigin(c, origin)
	}
	switch {
	case r.Method == http.MethodHead:
		c.Header("Content-Length", "0")
		c.AbortWithStatus(http.StatusOK)
		return
	case r.Method == http.MethodOptions:
		c.Header("Content-Length", "0")
		c.AbortWithStatus(http.StatusNoContent)
		return
	case r.URL.Path != "/health" && !(s.options.Web != nil && ofPage(r.URL.Path)) && !s.authorized(r):
		c.Header("WWW-Authenticate", "Bearer")
		s.refuse(c, http.StatusUnauthorized, "authentication_error", "invalid api key")
		return
	case admin && len(s.access.Load().hashes) == 0 && r.Method != http.MethodGet && fromAnyPage(r) && !s.fromPage(r):
		s.refuse(c, http.StatusForbidden, "permission_error", "only the dashboard of this launch may do that; reload the page")
		return
	case r.ContentLength > s.options.MaxBody:
		s.fail(c, s.tooLarge())
		c.Abort()
		return
	}
	c.Next()
}

func (s *Server) refuse(c *gin.Context, status int, class, message string) {
	s.fail(c, &apiError{Status: status, Type: class, Message: message})
	c.Abort()
}

func (s *Server) tooLarge() *apiError {
	return &apiError{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error",
		Message: fmt.Sprintf("the request body is larger than %d bytes", s.options.MaxBody)}
}

// hostName is the Host header without port, brackets and trailing dot.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// hostAllowed keeps pages of other sites away that had their name rebound to
// this machine's address: they arrive with their own name in Host.
func (s *Server) hostAllowed(host string) bool {
	h := hostName(host)
	if h == "" || h == "localhost" || strings.HasSuffix(h, ".localhost") || strings.HasSuffix(h, ".local") || h == "host.docker.internal" {
		return true
	}
	if _, err := netip.ParseAddr(h); err == nil {
		return true
	}
	return slices.ContainsFunc(s.access.Load().hosts, func(a string) bool { return a == "*" || hostName(a) == h })
}

// sameOrigin tells a page of this server from others.
func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.EqualFold(u.Host, host)
}

func (s *Server) originAllowed(origin string) bool {
	return slices.ContainsFunc(s.access.Load().origins, func(a string) bool {
		return a == "*" || strings.EqualFold(strings.TrimSuffix(a, "/"), origin)
	})
}

// allowOrigin adds the CORS headers for a configured origin.
func (s *Server) allowOrigin(c *gin.Context, origin string) {
	c.Header("Access-Control-Allow-Origin", origin)
	c.Header("Vary", "Origin")
	c.Header("Access-Control-Expose-Headers", "X-Request-Id, Retry-After")
	if c.Request.Method != http.MethodOptions {
		return
	}
	c.Header("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
	c.Header("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, Anthropic-Version, Anthropic-Beta, Anthropic-Dangerous-Direct-Browser-Access, *")
	c.Header("Access-Control-Max-Age", "600")
	if c.GetHeader("Access-Control-Request-Private-Network") == "true" {
		c.Header("Access-Control-Allow-Private-Network", "true")
	}
}

// access says who may call. It changes as a whole.
type access struct {
	keys           []string
	hashes         [][32]byte // of the keys
	hosts, origins []string
}

// SetAccess replaces Options.Keys, AllowedHosts and CORSOrigins from the next
// request on; requests under way go on.
func (s *Server) SetAccess(keys, hosts, origins []string) {
	hashes := hashKeys(keys)
	if len(hashes) > 0 {
		hashes = append(hashes, hashKeys([]string{s.options.HiddenKey})...)
	}
	s.access.Store(&access{keys, hashes, hosts, origins})
}

func hashKeys(keys []string) [][32]byte {
	var h [][32]byte
	for _, k := range keys {
		if k != "" {
			h = append(h, sha256.Sum256([]byte(k)))
		}
	}
	return h
}

// presentedKey is the key of a request, "" if none.
func presentedKey(r *http.Request) string {
	if scheme, key, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(key)
	}
	return r.Header.Get("X-Api-Key")
}

// authorized compares in constant time, and with every key.
func (s *Server) authorized(r *http.Request) bool {
	hashes := s.access.Load().hashes
	if len(hashes) == 0 {
		return true
	}
	try := func(key string) int {
		h, match := sha256.Sum256([]byte(key)), 0
		for i := range hashes {
			match |= subtle.ConstantTimeCompare(h[:], hashes[i][:])
		}
		return match
	}
	return try(presentedKey(r))|try(r.Header.Get("X-Api-Key")) == 1
}

// shownKey is the key that snippets for the sender of a request hold: its own, else
// the first; "" = there are none.
func (s *Server) shownKey(r *http.Request) string {
	keys := s.access.Load().keys
	for _, k := range []string{presentedKey(r), r.Header.Get("X-Api-Key")} {
		if k != "" && slices.Contains(keys, k) {
			return k
		}
	}
	i := slices.IndexFunc(keys, func(k string) bool { return k != "" })
	if i < 0 {
		return ""
	}
	return keys[i]
}

// fromPage reports whether the dashboard that this launch served made the request.
func (s *Server) fromPage(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(r.Header.Get(tokenHeader)), []byte(s.token)) == 1
}

// clientName tells clients apart for fairness, without keeping their key.
func clientName(r *http.Request) string {
	if key := presentedKey(r); key != "" {
		h := sha256.Sum256([]byte("client:" + key))
		return hex.EncodeToString(h[:6])
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}

// body reads a JSON object from the request.
func (s *Server) body(c *gin.Context) (*fields, *apiError) {
	r := c.Request
	if e := strings.ToLower(r.Header.Get("Content-Encoding")); e != "" && e != "identity" {
		return nil, &apiError{Status: http.StatusUnsupportedMediaType, Type: "invalid_request_error",
			Message: fmt.Sprintf("content encoding %q is not supported, send the body as it is", e)}
	}
	b, err := io.ReadAll(http.MaxBytesReader(c.Writer, r.Body, s.options.MaxBody))
	if err == nil { // from here on reads only tell whether the client is still there
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Time{})
	}
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, s.tooLarge()
		}
		return nil, invalid("", "the request body could not be read: %v", err)
	}
	if !utf8.Valid(b) {
		return nil, invalid("", "the request body is not valid UTF-8")
	}
	return parseObject(b, &s.profile)
}

// fail answers with an error in the dialect of the path.
func (s *Server) fail(c *gin.Context, e *apiError) {
	if e.Allow != "" {
		c.Header("Allow", e.Allow)
	}
	if e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests {
		c.Header("Retry-After", retryAfter)
	}
	s.reply(c, e.Status, s.profile.ErrorBody(dialectOfRequest(c.Request), e))
}

// reply writes a JSON answer.
func (s *Server) reply(c *gin.Context, status int, v any) {
	b := encode(v)
	control := http.NewResponseController(c.Writer)
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
	_ = control.SetReadDeadline(time.Now().Add(restTimeout))
	c.Header("Content-Length", fmt.Sprint(len(b)))
	c.Data(status, "application/json", b)
}

// randomHex returns n random bytes as hexadecimal.
func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails, by its documentation
	return hex.EncodeToString(b)
}
