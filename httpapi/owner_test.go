package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"sparkbar/engine/models"
	"sparkbar/httpapi/internal/enginetest"
)

// keeper is an owner that notes what it is asked to do.
type keeper struct{ removed, written []string }

func (k *keeper) RemoveModel(id string) error {
	if id == "org/yours" {
		return &Refusal{"it lies in a folder of yours"}
	}
	k.removed = append(k.removed, id)
	return nil
}

func (k *keeper) WriteClientFile(path, content string, apply bool) (FileChange, error) {
	if apply {
		k.written = append(k.written, path)
	}
	return FileChange{Path: path, Diff: content, Created: true, Written: apply}, nil
}

func (k *keeper) Log(after int64) []LogLine {
	all := []LogLine{{1, time.Unix(1, 0), "INFO", "one"}, {2, time.Unix(2, 0), "WARN", "two"}}
	return all[min(after, 2):]
}

// TestOwnersRoutes: what the dashboard does with the owner's files.
func TestOwnersRoutes(t *testing.T) {
	e := enginetest.New(enginetest.Say("x"))
	e.Local = []models.Model{{ID: "org/m", Complete: true, Bytes: 1 << 30, Context: 4096}, {ID: e.Status().Model.Target, Complete: true}}
	k := &keeper{}
	s := New(e, Options{Owner: k})
	for _, c := range []struct {
		method, path, body string
		status             int
		wants              string
	}{
		{"POST", "/admin/models/remove", `{"model":"org/m"}`, 200, `"removed":"org/m"`},
		{"POST", "/admin/models/remove", `{"model":"org/yours"}`, 409, "a folder of yours"},
		{"POST", "/admin/models/remove", `{"model":"` + e.Status().Model.Target + `"}`, 409, "unload it first"},
		{"POST", "/admin/models/remove", `{}`, 400, "'model'"},
		{"GET", "/admin/fit?model=org/m&context=2048", "", 200, `"context":2048`},
		{"GET", "/admin/fit?model=org/m", "", 200, `"context":4096`},
		{"GET", "/admin/fit?model=nobody", "", 404, "GET /admin/models"},
		{"GET", "/admin/fit?model=org/m&context=-1", "", 400, "'context'"},
		{"GET", "/admin/log", "", 200, `"one"`},
		{"GET", "/admin/log?after=2", "", 200, `{"lines":[]}`},
		{"GET", "/admin/log?after=x", "", 400, "'after'"},
		{"POST", "/admin/integrations/codex/write", `{}`, 200, `"written":false`},
		{"POST", "/admin/integrations/codex/write", `{"apply":true}`, 200, `"written":true`},
		{"POST", "/admin/integrations/codex/write", `{"apply":1}`, 400, "'apply'"},
		{"POST", "/admin/integrations/claude-code/write", `{}`, 409, "no file to write"},
		{"POST", "/admin/integrations/nobody/write", `{}`, 404, "there is no client"},
	} {
		w := call(s, c.method, c.path, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.wants) {
			t.Errorf("%s %s %s: %d %s, want %d with %s", c.method, c.path, c.body, w.Code, w.Body, c.status, c.wants)
		}
	}
	if len(k.removed) != 1 || len(k.written) != 1 {
		t.Errorf("removed %v, wrote %v", k.removed, k.written)
	}
	for _, c := range [][2]string{{"GET", "/admin/log"}, {"POST", "/admin/models/remove"}, {"POST", "/admin/integrations/codex/write"}} {
		if w := call(New(e, Options{}), c[0], c[1], `{"model":"m"}`); w.Code != 404 {
			t.Errorf("%v without an owner: %d", c, w.Code)
		}
	}
}

// TestPage: the dashboard is served without a key, only its own files are, and
// only it may change anything from within a browser.
func TestPage(t *testing.T) {
	web := fstest.MapFS{"index.html": {Data: []byte(`<meta content="{{token}}">`)}, "app.js": {Data: []byte("let x")}, "notes.txt": {Data: []byte("no")}}
	ask := func(s *Server, method, path string, headers ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "http://127.0.0.1:8080"+path, strings.NewReader("{}"))
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w
	}
	const own = "http://127.0.0.1:8080"
	s := New(enginetest.New(enginetest.Say("x")), Options{Web: web})
	page := ask(s, "GET", "/")
	token := strings.TrimSuffix(strings.TrimPrefix(page.Body.String(), `<meta content="`), `">`)
	if page.Code != 200 || len(token) != 64 || !strings.Contains(page.Header().Get("Content-Security-Policy"), "default-src 'none'") || page.Header().Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v %s", page.Code, page.Header(), page.Body)
	}
	if other := ask(New(enginetest.New(enginetest.Say("x")), Options{Web: web}), "GET", "/"); other.Body.String() == page.Body.String() {
		t.Error("two launches have the same token")
	}
	for _, c := range []struct {
		name, method, path string
		headers            []string
		status             int
	}{
		{"own file", "GET", "/ui/app.js", nil, 200},
		{"file of another kind", "GET", "/ui/notes.txt", nil, 404},
		{"no file", "GET", "/ui/gone.js", nil, 404},
		{"way out", "GET", "/ui/..%2fserver.js", nil, 404},
		{"the page", "POST", "/admin/unload", []string{"Origin", own, tokenHeader, token}, 200},
		{"own origin, no token", "POST", "/admin/unload", []string{"Origin", own}, 403},
		{"own origin, wrong token", "POST", "/admin/unload", []string{"Origin", own, tokenHeader, strings.Repeat("0", 64)}, 403},
		{"a fetch without an origin", "POST", "/admin/unload", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		{"another origin with the token", "POST", "/admin/unload", []string{"Origin", "http://127.0.0.1:9", tokenHeader, token}, 403},
		{"a program", "POST", "/admin/unload", nil, 200},
	} {
		if w := ask(s, c.method, c.path, c.headers...); w.Code != c.status {
			t.Errorf("%s: %d %s, want %d", c.name, w.Code, w.Body, c.status)
		}
	}
	keyed := New(enginetest.New(enginetest.Say("x")), Options{Web: web, Keys: []string{"k"}})
	for _, c := range []struct {
		path    string
		headers []string
		status  int
	}{
		{"/", nil, 200}, {"/ui/app.js", nil, 200}, {"/admin/status", nil, http.StatusUnauthorized}, {"/admin/status", []string{tokenHeader, keyed.token}, http.StatusUnauthorized},
		{"/admin/status", []string{"Authorization", "Bearer k"}, 200},
	} {
		if w := ask(keyed, "GET", c.path, c.headers...); w.Code != c.status {
			t.Errorf("%s %v with a key: %d, want %d", c.path, c.headers, w.Code, c.status)
		}
	}
	if w := ask(keyed, "POST", "/admin/unload", "Origin", own, "Authorization", "Bearer k"); w.Code != 200 {
		t.Errorf("the page with the key: %d %s", w.Code, w.Body)
	}
	if w := ask(New(enginetest.New(enginetest.Say("x")), Options{}), "GET", "/"); w.Code != 404 {
		t.Errorf("a page without one: %d", w.Code)
	}
}
