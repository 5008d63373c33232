package httpapi

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
)

type modelList struct {
	Object string       `json:"object"`
	Data   []modelEntry `json:"data"`
}

// modelEntry is a model in the words of OpenAI; display_name is what pickers
// of Anthropic clients show.
type modelEntry struct {
	ID          string      `json:"id"`
	Object      string      `json:"object"`
	Created     int64       `json:"created"`
	OwnedBy     string      `json:"owned_by,omitempty"`
	DisplayName string      `json:"display_name,omitempty"`
	Extra       *modelExtra `json:"x_mlx_dspark,omitempty"`
}

type modelExtra struct {
	Mode    string  `json:"mode"`
	Target  string  `json:"target"`
	Drafter *string `json:"drafter"`
}

func (s *Server) modelEntry(m *engine.ModelInfo) modelEntry {
	e := modelEntry{ID: m.ID, Object: "model", Created: m.LoadedAt.Unix()}
	if s.profile.Extras {
		e.OwnedBy = "sparkbar"
		e.DisplayName = fmt.Sprintf("%s (Sparkbar %s)", m.ID, m.Mode)
		e.Extra = &modelExtra{m.Mode, m.Target, optional(m.Drafter)}
	}
	return e
}

func (s *Server) models(c *gin.Context) *apiError {
	st, err := s.ready()
	if err != nil {
		return err
	}
	s.reply(c, http.StatusOK, modelList{"list", []modelEntry{s.modelEntry(st.Model)}})
	return nil
}

func (s *Server) model(c *gin.Context) *apiError {
	st, err := s.ready()
	if err != nil {
		return err
	}
	id := strings.TrimPrefix(c.Param("id"), "/")
	if id != st.Model.ID && id != strings.TrimPrefix(st.Model.Target, "/") {
		return &apiError{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "model_not_found", Field: "model",
			Message: fmt.Sprintf("model '%s' is not loaded here; GET /v1/models lists what is", shorten(id))}
	}
	s.reply(c, http.StatusOK, s.modelEntry(st.Model))
	return nil
}
