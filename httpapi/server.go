package httpapi

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
	"sparkbar/engine/models"
	"sparkbar/engine/telemetry"
)

// Engine is what the server needs of *engine.Engine.
type Engine interface {
	// Generate runs one generation. emit is called from one goroutine, in
	// order; a slow emit holds up no other generation. Its error, like the end
	// of ctx, stops the generation within a round.
	Generate(ctx context.Context, req engine.Request, emit func(engine.Delta) error) (engine.Result, error)
	// CountTokens renders and counts a prompt for a model ("" = the loaded one)
	// without waiting for generations.
	CountTokens(ctx context.Context, model string, p engine.Prompt) (int, error)
	// Check says whether a request that names a model would be answered.
	Check(model string) error
	Status() engine.Status
	// Load blocks until the load ends; a cancelled ctx only stops the waiting.
	Load(ctx context.Context, req engine.LoadRequest) (engine.Status, error)
	// StartLoad validates, starts the load and returns at once.
	StartLoad(req engine.LoadRequest) (engine.Status, error)
	// CancelLoad stops the load under way; false if there is none. cleanup
	// removes what was downloaded for it.
	CancelLoad(cleanup bool) bool
	Unload(ctx context.Context) (engine.Status, error)
	// Downloads are those under way, for loads and on their own, and the latest
	// that have ended. The others change one that is under way; false = there is
	// none of that id.
	Downloads() []engine.Download
	StartDownload(model string, drafter bool) (engine.Download, error)
	PauseDownload(id string) (engine.Download, bool)
	ResumeDownload(id string) (engine.Download, bool)
	CancelDownload(id string, cleanup bool) (engine.Download, bool)
	Events() *telemetry.Bus
	// Rounds is the log of the loaded model, empty without one.
	Rounds() *telemetry.Log
	// Totals counts what the loaded model has done since its load.
	Totals() telemetry.TotalsReport
	// Gauges is nil and Calibration the zero value where nothing is known.
	Gauges() *engine.Gauges
	Calibration() engine.Calibration
	Machine() engine.MachineInfo
	// Roofline is the ceiling of plain decoding of a model at a context.
	Roofline(m *engine.ModelInfo, context int) telemetry.RooflinePoint
	// PrefixCache reports whether finished conversations are kept.
	PrefixCache() bool

	// Models are those on this machine, Places where they are looked for.
	Models() []models.Model
	Places() models.Places
	Fit(m models.Model, context int) models.Fit
	// Arms are the modes that Request.Arm may name.
	Arms() []string
	Requests() []engine.RequestInfo
	CancelRequest(id string) bool
	Doctor() []engine.Finding
}

// Options of a server. The zero value is a server without keys for callers on
// this machine.
type Options struct {
	// Keys that clients may present; none = no authentication.
	Keys []string
	// HiddenKey is that of the program around the server: where there are keys, it
	// is taken as well, and no client is shown it. "" = none.
	HiddenKey string
	// AllowedHosts are names accepted in the Host header besides loopback, IP
	// literals, *.local and host.docker.internal. "*" accepts all.
	AllowedHosts []string
	// CORSOrigins are web origins ("https://app.example", "*" = all) whose
	// pages may call the routes outside /admin. None = no page may.
	CORSOrigins []string
	// BehindProxy believes X-Forwarded-Proto about the scheme that clients use.
	BehindProxy bool
	// MaxBody is the largest request body in bytes; 0 = 64 MiB.
	MaxBody int64
	// Profile is the wire profile; the zero value is SparkbarProfile.
	Profile Profile
	// Log gets one line per request; nil = no log. Keys are never logged, what
	// models read and write only with LogPrompts.
	Log        *slog.Logger
	LogPrompts bool
	// Settings are the owner's; nil = the routes of settings answer 404.
	Settings Settings
	// Web holds the dashboard: index.html, in which {{token}} stands for the token
	// of this launch, and the files that it refers to as /ui/NAME. nil = no page.
	Web fs.FS
	// Owner reaches the owner's files for the dashboard; nil = its routes answer 404.
	Owner Owner
	// DrainTimeout is how long Serve lets running requests finish; 0 = 10 s.
	DrainTimeout time.Duration
}

// Limits of one connection. A stream has no limit of its own: its frames do.
const (
	defaultMaxBody  = 64 << 20
	maxHeaderBytes  = 256 << 10
	headerTimeout   = 15 * time.Second
	bodyTimeout     = 2 * time.Minute
	restTimeout     = 5 * time.Second  // for the rest of a body that the answer did not wait for
	writeTimeout    = 30 * time.Second // for one answer or frame
	idleTimeout     = 2 * time.Minute
	defaultDrain    = 10 * time.Second
	abandonedGrace  = 2 * time.Second // for handlers to end once they were cancelled
	retryAfter      = "5"             // seconds, with every 503 and 429
	firstKeepAlive  = 900 * time.Millisecond
	keepAlivePeriod = 4 * time.Second
)

// Server answers HTTP requests with an engine. It is an http.Handler; Serve
// adds the listener's life. Safe for concurrent use.
type Server struct {
	engine   Engine
	options  Options
	profile  Profile
	access   atomic.Pointer[access]
	token    string // of the dashboard's page, new with each launch
	router   *gin.Engine
	methods  map[string]string // path with parameters → its methods, for 405
	stopping chan struct{}     // closed when Serve begins to drain
	latest   atomic.Pointer[telemetry.RequestSummary]

	abandoned time.Duration // abandonedGrace, except in a test
}

// New returns a server for e.
func New(e Engine, o Options) *Server {
	if o.MaxBody <= 0 {
		o.MaxBody = defaultMaxBody
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = defaultDrain
	}
	if o.Profile.Name == "" {
		o.Profile = SparkbarProfile()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{engine: e, options: o, profile: o.Profile, token: randomHex(32),
		methods: map[string]string{}, stopping: make(chan struct{}), abandoned: abandonedGrace}
	s.SetAccess(o.Keys, o.AllowedHosts, o.CORSOrigins)
	gin.SetMode(gin.ReleaseMode)
	s.router = gin.New()
	s.router.RedirectTrailingSlash = false
	s.router.RedirectFixedPath = false
	s.router.HandleMethodNotAllowed = false // 405 is answered in the caller's dialect
	s.router.Use(s.observe, s.guard)
	s.routes()
	s.router.NoRoute(s.noRoute)
	return s
}

// routes is the one table of all routes.
func (s *Server) routes() {
	for _, v := range []string{"", "/v1", "/v1/v1"} { // the doubled prefix is the commonest mistake of users
		s.handle(http.MethodPost, v+"/chat/completions", s.chat)
		s.handle(http.MethodPost, v+"/completions", s.completions)
		s.handle(http.MethodPost, v+"/messages", s.messages)
		s.handle(http.MethodPost, v+"/messages/count_tokens", s.countTokens)
		s.handle(http.MethodPost, v+"/responses", s.responses)
		s.handle(http.MethodGet, v+"/models", s.models)
		s.handle(http.MethodGet, v+"/models/*id", s.model)
	}
	s.handle(http.MethodGet, "/health", s.health)
	s.handle(http.MethodGet, "/metrics", s.metrics)
	s.handle(http.MethodGet, "/rounds", s.rounds)
	s.handle(http.MethodGet, "/events", s.events)
	s.handle(http.MethodGet, "/machine", s.machine)
	s.handle(http.MethodGet, "/calibration", s.calibration)
	s.handle(http.MethodGet, "/doctor", s.doctor)

	s.handle(http.MethodGet, "/openapi.json", s.openapi)

	s.handle(http.MethodPost, "/admin/load", s.adminLoad)
	s.handle(http.MethodPost, "/admin/load/cancel", s.adminLoadCancel)
	s.handle(http.MethodPost, "/admin/unload", s.adminUnload)
	s.handle(http.MethodGet, "/admin/status", s.adminStatus)
	s.handle(http.MethodGet, "/admin/events", s.adminEvents)
	s.handle(http.MethodGet, "/admin/models", s.adminModels)
	s.handle(http.MethodPost, "/admin/models/remove", s.adminRemoveModel)
	s.handle(http.MethodGet, "/admin/fit", s.adminFit)
	s.handle(http.MethodGet, "/admin/log", s.adminLog)
	s.handle(http.MethodGet, "/admin/downloads", s.adminDownloads)
	s.handle(http.MethodPost, "/admin/downloads", s.adminDownload)
	s.handle(http.MethodPost, "/admin/downloads/:id/pause", s.adminPauseDownload)
	s.handle(http.MethodPost, "/admin/downloads/:id/resume", s.adminResumeDownload)
	s.handle(http.MethodPost, "/admin/downloads/:id/cancel", s.adminCancelDownload)
	s.handle(http.MethodPost, "/admin/race", s.race)
	s.handle(http.MethodGet, "/admin/requests", s.adminRequests)
	s.handle(http.MethodPost, "/admin/requests/:id/cancel", s.adminCancelRequest)
	s.handle(http.MethodGet, "/admin/integrations", s.adminIntegrations)
	s.handle(http.MethodPost, "/admin/integrations/:id/write", s.adminWriteIntegration)
	s.handle(http.MethodGet, "/admin/settings", s.adminSettings)
	s.handle(http.MethodPatch, "/admin/settings", s.adminChangeSettings)

	if s.options.Web != nil {
		s.handle(http.MethodGet, "/", s.page)
		s.handle(http.MethodGet, "/ui/:file", s.asset)
	}
}

// handler answers a request; a returned error becomes the answer, so a handler
// returns one only before it has written anything.
type handler func(*gin.Context) *apiError

func (s *Server) handle(method, path string, h handler) {
	if known := s.methods[path]; known != "" {
		s.methods[path] = known + ", " + method
	} else {
		s.methods[path] = method
	}
	s.router.Handle(method, path, func(c *gin.Context) {
		if err := h(c); err != nil {
			s.fail(c, err)
		}
	})
}

func (s *Server) noRoute(c *gin.Context) {
	path := c.Request.URL.Path
	if method := s.methodsOf(path); method != "" {
		s.fail(c, &apiError{Status: http.StatusMethodNotAllowed, Type: "invalid_request_error", Allow: method + ", HEAD, OPTIONS",
			Message: c.Request.Method + " is not allowed on " + path + ", use " + method})
		return
	}
	s.fail(c, &apiError{Status: http.StatusNotFound, Type: "not_found", Message: "unknown route " + rawPath(c)})
}

// methodsOf are the methods of the route that a path belongs to, "" = none.
func (s *Server) methodsOf(path string) string {
	if m := s.methods[path]; m != "" {
		return m
	}
	parts := strings.Split(path, "/")
	for route, m := range s.methods {
		if prefix, found := strings.CutSuffix(route, "*id"); found && strings.HasPrefix(path, prefix) {
			return m
		}
		pattern := strings.Split(route, "/")
		fits := len(pattern) == len(parts)
		for i := 0; fits && i < len(parts); i++ {
			fits = pattern[i] == parts[i] || strings.HasPrefix(pattern[i], ":") && parts[i] != ""
		}
		if fits {
			return m
		}
	}
	return ""
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u := *r.URL
	u.RawPath = ""
	if trimmed := strings.TrimRight(u.Path, "/"); trimmed != "" {
		u.Path = trimmed
	}
	r2 := r.WithContext(context.WithValue(r.Context(), rawPathKey{}, r.URL.RequestURI()))
	r2.URL = &u
	s.router.ServeHTTP(w, r2)
}

type rawPathKey struct{}

// rawPath is path and query as the client sent them, shortened.
func rawPath(c *gin.Context) string {
	p, _ := c.Request.Context().Value(rawPathKey{}).(string)
	if len(p) > 512 {
		p = p[:512] + "…"
	}
	return p
}

// Serve answers requests on l until ctx ends, then stops listening and lets
// running requests finish for Options.DrainTimeout before it cancels them.
// It closes l. A clean end returns nil. Call it once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	h := &http.Server{
		Handler:           s,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.options.Log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- h.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	close(s.stopping)
	drain, done := context.WithTimeout(base, s.options.DrainTimeout)
	defer done()
	err := h.Shutdown(drain)
	if errors.Is(err, context.DeadlineExceeded) {
		cancel() // running generations end with an error frame
		grace, done := context.WithTimeout(context.WithoutCancel(ctx), s.abandoned)
		defer done()
		if err = h.Shutdown(grace); errors.Is(err, context.DeadlineExceeded) {
			err = h.Close()
		}
	}
	if e := <-failed; !errors.Is(e, http.ErrServerClosed) {
		return e
	}
	return err
}
