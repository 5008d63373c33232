package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"sparkbar/engine/models"
)

// Owner does for the dashboard what only the program around the server can: it
// reaches the owner's files. Safe for concurrent use.
type Owner interface {
	// RemoveModel deletes a downloaded model from this machine. What is not the
	// hub cache's is refused with a *Refusal.
	RemoveModel(id string) error
	// WriteClientFile puts a client program's settings into its file, which may
	// hold more than they, and keeps a copy of the old one. Without apply it only
	// says what would change. What must be left alone is refused with a *Refusal.
	WriteClientFile(path, content string, apply bool) (FileChange, error)
	// Log returns the lines of the log after the one with that number, oldest
	// first, as far as they are kept.
	Log(after int64) []LogLine
}

// FileChange is a change of a file.
type FileChange struct {
	Path    string `json:"path"`
	Diff    string `json:"diff"`    // "" = nothing is to change
	Created bool   `json:"created"` // there was no file
	Written bool   `json:"written"`
	Backup  string `json:"backup"` // where the old file is kept; "" = none was needed
}

// LogLine is a line of the log.
type LogLine struct {
	Number int64     `json:"n"` // counts from 1 at the start of the program
	Time   time.Time `json:"time"`
	Level  string    `json:"level"` // DEBUG, INFO, WARN, ERROR
	Text   string    `json:"text"`
}

// Refusal is an error that says what its reader should do instead.
type Refusal struct{ Message string }

func (e *Refusal) Error() string { return e.Message }

func noOwner() *apiError {
	return &apiError{Status: http.StatusNotFound, Type: "not_found", Message: "this server has no access to its owner's files"}
}

// owned turns an error of the owner into an answer.
func owned(err error) *apiError {
	var no *Refusal
	if errors.As(err, &no) {
		return &apiError{Status: http.StatusConflict, Type: "invalid_request_error", Message: no.Message}
	}
	return &apiError{Status: http.StatusInternalServerError, Type: "server_error", Message: err.Error()}
}

type removedReply struct {
	Removed string `json:"removed"`
}

// adminRemoveModel is POST /admin/models/remove.
func (s *Server) adminRemoveModel(c *gin.Context) *apiError {
	f, err := s.body(c)
	if err != nil {
		return err
	}
	id, err := f.named("model")
	if err != nil {
		return err
	}
	if s.options.Owner == nil {
		return noOwner()
	}
	if st := s.engine.Status(); st.Model != nil && slices.ContainsFunc(s.engine.Models(), func(m models.Model) bool {
		return m.ID == id && (same(m, st.Model.Target) || m.ID == st.Model.Drafter)
	}) {
		return owned(&Refusal{fmt.Sprintf("'%s' is in use; unload it first", shorten(id))})
	}
	if err := s.options.Owner.RemoveModel(id); err != nil {
		return owned(err)
	}
	s.reply(c, http.StatusOK, removedReply{id})
	return nil
}

// named reads a text that must be there and not empty.
func (f *fields) named(key string) (string, *apiError) {
	v, _ := f.get(key)
	var text string
	if len(v) == 0 || json.Unmarshal(v, &text) != nil || strings.TrimSpace(text) == "" {
		return "", invalid(key, "'%s' must be a text that is not empty", key)
	}
	return strings.TrimSpace(text), nil
}

// adminFit is GET /admin/fit: whether a model of this machine fits at a context.
func (s *Server) adminFit(c *gin.Context) *apiError {
	id, context := c.Query("model"), 0
	if text := c.Query("context"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 10_000_000 {
			return invalid("context", "'context' must be a number of tokens, 0 to 10000000; 0 is the model's own maximum")
		}
		context = n
	}
	local := s.engine.Models()
	i := slices.IndexFunc(local, func(m models.Model) bool { return m.ID == id })
	if i < 0 {
		return &apiError{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "model_not_found", Field: "model",
			Message: fmt.Sprintf("there is no model '%s' on this machine; GET /admin/models lists what is", shorten(id))}
	}
	s.reply(c, http.StatusOK, s.fitOf(local[i], context))
	return nil
}

// adminWriteIntegration is POST /admin/integrations/{id}/write.
func (s *Server) adminWriteIntegration(c *gin.Context) *apiError {
	f, err := s.body(c)
	if err != nil {
		return err
	}
	apply, err := f.switched("apply", false)
	if err != nil {
		return err
	}
	all, err := s.integrations(c)
	if err != nil {
		return err
	}
	if s.options.Owner == nil {
		return noOwner()
	}
	id := c.Param("id")
	i := slices.IndexFunc(all.Integrations, func(x integration) bool { return x.ID == id })
	if i < 0 {
		return &apiError{Status: http.StatusNotFound, Type: "not_found", Message: "there is no client '" + shorten(id) + "'; GET /admin/integrations lists them"}
	}
	x := all.Integrations[i]
	k := slices.IndexFunc(x.Setup, func(st setupStep) bool { return st.Kind == "file" })
	if k < 0 {
		return owned(&Refusal{x.Name + " has no file to write; its other steps say what to do"})
	}
	change, werr := s.options.Owner.WriteClientFile(x.Setup[k].Path, x.Setup[k].Content, apply)
	if werr != nil {
		return owned(werr)
	}
	s.reply(c, http.StatusOK, change)
	return nil
}

type logReply struct {
	Lines []LogLine `json:"lines"`
}

// adminLog is GET /admin/log.
func (s *Server) adminLog(c *gin.Context) *apiError {
	after := int64(0)
	if text := c.Query("after"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return invalid("after", "'after' must be the number of a line, 0 or more")
		}
		after = n
	}
	if s.options.Owner == nil {
		return noOwner()
	}
	s.reply(c, http.StatusOK, logReply{nonNil(s.options.Owner.Log(after))})
	return nil
}

// tokenHeader carries the token of the dashboard's page.
const tokenHeader = "X-Sparkbar-Token"

// fromAnyPage tells requests that a web page of a browser made.
func fromAnyPage(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}

// pageSecurity allows the page its own files and this server, nothing else.
const pageSecurity = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// page is GET /: the dashboard, with the token of this launch in it.
func (s *Server) page(c *gin.Context) *apiError {
	text, err := fs.ReadFile(s.options.Web, "index.html")
	if err != nil {
		return &apiError{Status: http.StatusInternalServerError, Type: "server_error", Message: "the page could not be read: " + err.Error()}
	}
	c.Header("Cache-Control", "no-store")
	s.file(c, "text/html; charset=utf-8", []byte(strings.ReplaceAll(string(text), "{{token}}", s.token)))
	return nil
}

// contentTypes are those of the files that the dashboard consists of.
var contentTypes = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

// asset is GET /ui/{file}.
func (s *Server) asset(c *gin.Context) *apiError {
	name := c.Param("file")
	kind := contentTypes[name[max(0, strings.LastIndexByte(name, '.')):]]
	text, err := fs.ReadFile(s.options.Web, name)
	if err != nil || kind == "" {
		return &apiError{Status: http.StatusNotFound, Type: "not_found", Message: "unknown file " + rawPath(c)}
	}
	c.Header("Cache-Control", "no-cache")
	s.file(c, kind, text)
	return nil
}

func (s *Server) file(c *gin.Context, contentType string, text []byte) {
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(writeTimeout))
	c.Header("Content-Security-Policy", pageSecurity)
	c.Header("X-Content-Type-Options", "nosniff")
	c.Header("Referrer-Policy", "no-referrer")
	c.Header("Cross-Origin-Opener-Policy", "same-origin")
	c.Header("Cross-Origin-Resource-Policy", "same-origin")
	c.Header("Content-Length", strconv.Itoa(len(text)))
	c.Data(http.StatusOK, contentType, text)
}

// ofPage reports paths of the dashboard's own files, which hold no secret.
func ofPage(path string) bool { return path == "/" || strings.HasPrefix(path, "/ui/") }
