package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/models"
	"sparkbar/httpapi"
	"sparkbar/resources"
)

// TestAPIProperties lets schemathesis make up requests from /openapi.json, with
// right and with wrong values, to the demo model behind the real server: every
// answer and every event of a stream must be as described, and none a server
// error. The same run against a server with planted faults must find each.
func TestAPIProperties(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	folder := clientFolder(t)
	t.Run("sound", func(t *testing.T) {
		t.Parallel()
		report, asked := schemathesis(t, folder, nil, nil)
		for _, f := range report.Failures {
			t.Errorf("%s %s: %v", f.Code, f.Title, f.Operations)
		}
		total := 0
		for _, n := range asked.all {
			total += n
		}
		for _, route := range report.routes {
			want := 10
			if strings.HasPrefix(route, "GET ") {
				want = 1 // there is nothing to make up
			}
			if asked.ok[route] < want {
				t.Errorf("%s was answered with success %d times in %d", route, asked.ok[route], asked.all[route])
			}
		}
		if total < 5000 || len(report.Failures) == 0 && !report.Complete {
			t.Errorf("%d requests, complete %v", total, report.Complete)
		}
		t.Logf("%d requests to %d routes, %d failures", total, len(report.routes), len(report.Failures))
	})
	t.Run("planted", func(t *testing.T) {
		t.Parallel()
		want, only := map[string]string{}, []string{}
		for _, f := range planted {
			want[f.route] = f.title + ";"
			_, path, _ := strings.Cut(f.route, " ")
			only = append(only, "--include-path", path)
		}
		report, _ := schemathesis(t, folder, plant, only)
		found := map[string]string{}
		for _, f := range report.Failures {
			for _, op := range f.Operations {
				found[op] += f.Title + ";"
			}
		}
		if !maps.Equal(found, want) {
			t.Errorf("found %v\nplanted %v", found, want)
		}
	})
}

// planted are faults of handlers that the run has to find, each as the one of
// its route.
var planted = []struct {
	route, title string
	spoil        func(r *http.Request, body []byte, w *httptest.ResponseRecorder)
}{
	{"GET /health", "Response violates schema", func(_ *http.Request, _ []byte, w *httptest.ResponseRecorder) { // a wrong type
		edit(w, func(o map[string]any) { o["in_flight"] = "0" })
	}},
	{"POST /v1/chat/completions", "Response violates schema", func(_ *http.Request, _ []byte, w *httptest.ResponseRecorder) { // a missing key
		edit(w, func(o map[string]any) { delete(o, "object") })
	}},
	{"POST /v1/responses", "Server error", func(_ *http.Request, body []byte, w *httptest.ResponseRecorder) { // 500 on a value
		var o struct {
			TopP *float64 `json:"top_p"`
		}
		if json.Unmarshal(body, &o) == nil && o.TopP != nil && *o.TopP == 1 {
			w.Code = http.StatusInternalServerError
		}
	}},
	{"GET /v1/models/{id}", "Undocumented status code", func(r *http.Request, _ []byte, w *httptest.ResponseRecorder) {
		if len(r.URL.Path) > len("/v1/models/")+12 {
			w.Code = http.StatusTeapot
		}
	}},
	{"GET /rounds", "Undocumented Content-Type", func(r *http.Request, _ []byte, w *httptest.ResponseRecorder) {
		if r.URL.Query().Get("limit") != "" {
			w.Header().Set("Content-Type", "text/html")
		}
	}},
	{"POST /admin/race", "SSE event violates schema", func(_ *http.Request, _ []byte, w *httptest.ResponseRecorder) { // a wrong type in an event
		w.Body = bytes.NewBuffer(bytes.ReplaceAll(w.Body.Bytes(), []byte(`"target_forwards":`), []byte(`"target_forwards":"x","_":`)))
	}},
}

// edit changes the JSON object of a success.
func edit(w *httptest.ResponseRecorder, change func(map[string]any)) {
	var o map[string]any
	if w.Code != http.StatusOK || json.Unmarshal(w.Body.Bytes(), &o) != nil {
		return
	}
	change(o)
	b, _ := json.Marshal(o) // it was JSON
	w.Body = bytes.NewBuffer(b)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
}

// plant spoils what the server answers.
func plant(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body) // what is missing is missed by the server
		r.Body = http.NoBody
		if body.Len() > 0 {
			r.Body = readCloser{bytes.NewReader(body.Bytes())}
		}
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, r)
		for _, f := range planted {
			if f.route == routeOf(r) {
				f.spoil(r, body.Bytes(), rec)
			}
		}
		maps.Copy(w.Header(), rec.Header())
		w.Header().Del("Content-Length")
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	})
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }

// routeOf names the operation of a request as the description does.
func routeOf(r *http.Request) string {
	path := r.URL.Path
	for _, p := range []struct{ prefix, suffix string }{{"/v1/models/", ""}, {"/admin/requests/", "/cancel"}, {"/admin/integrations/", "/write"},
		{"/admin/downloads/", "/pause"}, {"/admin/downloads/", "/resume"}, {"/admin/downloads/", "/cancel"}} {
		if strings.HasPrefix(path, p.prefix) && strings.HasSuffix(path, p.suffix) {
			path = p.prefix + "{id}" + p.suffix
			break
		}
	}
	return r.Method + " " + path
}

// stReport is what the tests read of schemathesis's report.
type stReport struct {
	Complete bool
	ExitCode int `json:"exit_code"`
	Failures []struct {
		Code, Title string
		Operations  []string
	}
	Errors     []any
	Operations struct{ Total, Tested int }

	routes []string // that the description has
}

// tally counts requests by route, and those that succeeded.
type tally struct {
	mu      sync.Mutex
	all, ok map[string]int
}

// schemathesis runs it against a server of its own, wrapped by wrap, and
// returns its report and what the server was asked. args narrow the run.
func schemathesis(t *testing.T, folder string, wrap func(http.Handler) http.Handler, args []string) (stReport, *tally) {
	t.Helper()
	target, drafter := resources.Demo()
	e := engine.New(engine.Options{Version: "test", Builtins: map[string]engine.Builtin{"demo": {Target: target, Drafter: drafter}},
		Live: engine.Live{MaxTokensCap: 4}, Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{Threads: 1}) }})
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	off := false
	load := func() {
		if _, err := e.LoadFrom(context.Background(), engine.LoadRequest{Model: "demo", Warmup: &off}); err != nil {
			t.Error(err)
		}
	}
	load()
	h := http.Handler(httpapi.New(obliging{e}, httpapi.Options{Settings: &memorySettings{}, Owner: owner{}}))
	if wrap != nil {
		h = wrap(h)
	}
	count := &tally{all: map[string]int{}, ok: map[string]int{}}
	base := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e.Status().Model == nil { // an unload has gone before
			load()
		}
		if strings.HasSuffix(r.URL.Path, "/events") { // streams without an end
			ctx, cancel := context.WithTimeout(r.Context(), 20*time.Millisecond)
			defer cancel()
			r = r.WithContext(ctx)
		}
		route := routeOf(r)
		rec := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(rec, r)
		count.mu.Lock()
		defer count.mu.Unlock()
		count.all[route]++
		if rec.status < 300 {
			count.ok[route]++
		}
	}))
	sdk, err := filepath.Abs("testdata/clients/sdk")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // a hanging run ends with its output shown
	defer cancel()
	whole := args == nil
	args = append([]string{"--config-file", filepath.Join(sdk, "schemathesis.toml"), "run", base + "/openapi.json", "--report", "json", "--report-json-path", "report.json"}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(folder, "python", "bin", "schemathesis"), args...)
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "PYTHONDONTWRITEBYTECODE=1", "NO_PROXY=*", "PYTHONPATH=" + sdk, "SCHEMATHESIS_HOOKS=schemathesis_hooks", "OTEL_SDK_DISABLED=true"}
	out, err := cmd.CombinedOutput()
	var report stReport
	b, rerr := os.ReadFile(filepath.Join(home, "report.json"))
	if rerr != nil || json.Unmarshal(b, &report) != nil {
		t.Fatalf("no report: %v, %v\n%s", err, rerr, out)
	}
	if report.ExitCode != min(len(report.Failures), 1) || len(report.Errors) > 0 || report.Operations.Total < 25 || whole && report.Operations.Tested != report.Operations.Total {
		t.Errorf("a run that is not whole: exit %d, errors %v, %+v\n%s", report.ExitCode, report.Errors, report.Operations, out)
	}
	var doc struct {
		Paths map[string]map[string]any
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/openapi.json", nil)
	r.Host = "localhost"
	h.ServeHTTP(w, r)
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	for path, methods := range doc.Paths {
		for m := range methods {
			report.routes = append(report.routes, strings.ToUpper(m)+" "+path)
		}
	}
	if len(report.Failures) > 0 && wrap == nil {
		t.Logf("%s", out)
	}
	return report, count
}

// obliging is an engine that also knows requests, downloads and a model that
// are not there: half of the ids that are made up.
type obliging struct{ *engine.Engine }

func half(id string) bool { return len(id)%2 == 0 }

func (o obliging) CancelRequest(id string) bool { return o.Engine.CancelRequest(id) || half(id) }

func (obliging) Downloads() []engine.Download { return []engine.Download{fetching("dl_1")} }

func (obliging) StartDownload(model string, _ bool) (engine.Download, error) {
	if half(model) {
		return fetching(model), nil
	}
	return engine.Download{}, &engine.Error{Kind: engine.ErrModelNotFound, Message: "the hub does not have it"}
}

func (obliging) PauseDownload(id string) (engine.Download, bool) { return fetching(id), half(id) }

func (obliging) ResumeDownload(id string) (engine.Download, bool) { return fetching(id), half(id) }

func (obliging) CancelDownload(id string, _ bool) (engine.Download, bool) {
	return fetching(id), half(id)
}

func (obliging) Models() []models.Model {
	return []models.Model{{ID: "org/m", Complete: true, Bytes: 1 << 30, Context: 4096}, {ID: "org/half", Reason: "half"}}
}

func fetching(id string) engine.Download {
	return engine.Download{ID: id, Model: "org/x", Repo: "org/x", State: "downloading", BytesDone: 3, BytesTotal: 9, BytesPerSecond: 1.5, ETA: 4 * time.Second}
}

// owner has files that nobody sees.
type owner struct{}

func (owner) RemoveModel(id string) error {
	if half(id) {
		return nil
	}
	return &httpapi.Refusal{Message: "it is not the hub's"}
}

func (owner) WriteClientFile(path, content string, apply bool) (httpapi.FileChange, error) {
	return httpapi.FileChange{Path: path, Diff: content, Created: true, Written: apply}, nil
}

func (owner) Log(after int64) []httpapi.LogLine {
	return []httpapi.LogLine{{Number: after + 1, Time: time.Unix(1_700_000_000, 0), Level: "INFO", Text: "a line"}}
}

// statusWriter notes the status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// memorySettings keeps settings in memory; keys need a dot.
type memorySettings struct {
	mu     sync.Mutex
	values map[string]any
}

func (m *memorySettings) Path() string { return "/etc/settings.yaml" }
func (m *memorySettings) Locked() map[string]string {
	return map[string]string{"server.port": "--port"}
}

func (m *memorySettings) Values() map[string]any {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]any{}
	maps.Copy(out, m.values)
	return out
}

func (m *memorySettings) Change(c map[string]json.RawMessage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := map[string]any{}
	for _, k := range slices.Sorted(maps.Keys(c)) {
		if len(k)%3 == 0 {
			return &httpapi.SettingError{Key: k, Message: "'" + k + "' is no setting"}
		}
		next[k] = c[k]
	}
	m.values = next
	return nil
}
