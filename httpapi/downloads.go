package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
)

// downloadList is GET /admin/downloads: those under way, then the latest that
// have ended.
type downloadList struct {
	Downloads []downloadProgress `json:"downloads"`
}

func (s *Server) adminDownloads(c *gin.Context) *apiError {
	list := downloadList{[]downloadProgress{}}
	for _, d := range s.engine.Downloads() {
		list.Downloads = append(list.Downloads, downloadOf(d))
	}
	s.reply(c, http.StatusOK, list)
	return nil
}

// adminDownload fetches a model without loading it.
func (s *Server) adminDownload(c *gin.Context) *apiError {
	f, err := s.body(c)
	if err != nil {
		return err
	}
	model, err := f.named("model")
	if err != nil {
		return invalid("model", "a download needs a 'model': a repo of the hub, such as mlx-community/Qwen3-4B-8bit")
	}
	drafter, err := f.switched("drafter", true)
	if err != nil {
		return err
	}
	d, derr := s.engine.StartDownload(model, drafter)
	if derr != nil {
		return fromEngine(derr, "could not download")
	}
	s.reply(c, http.StatusAccepted, downloadOf(d))
	return nil
}

func (s *Server) adminPauseDownload(c *gin.Context) *apiError {
	return s.changeDownload(c, func(id string, _ bool) (engine.Download, bool) { return s.engine.PauseDownload(id) })
}

func (s *Server) adminResumeDownload(c *gin.Context) *apiError {
	return s.changeDownload(c, func(id string, _ bool) (engine.Download, bool) { return s.engine.ResumeDownload(id) })
}

func (s *Server) adminCancelDownload(c *gin.Context) *apiError {
	return s.changeDownload(c, s.engine.CancelDownload)
}

// changeDownload answers with how the download stands after do.
func (s *Server) changeDownload(c *gin.Context, do func(id string, cleanup bool) (engine.Download, bool)) *apiError {
	f, err := s.body(c)
	if err != nil {
		return err
	}
	cleanup, err := f.switched("cleanup", false)
	if err != nil {
		return err
	}
	id := c.Param("id")
	d, ok := do(id, cleanup)
	if !ok {
		return &apiError{Status: http.StatusNotFound, Type: "not_found_error", Code: "download_not_found", Field: "id",
			Message: "no download '" + shorten(id) + "' is under way; GET /admin/downloads lists those that are"}
	}
	s.reply(c, http.StatusOK, downloadOf(d))
	return nil
}

// switched reads a boolean that is def where it is absent.
func (f *fields) switched(name string, def bool) (bool, *apiError) {
	v, ok := f.get(name)
	if !ok {
		return def, nil
	}
	if !isTruth(v) {
		return false, invalid(name, "'%s' must be a boolean", name)
	}
	return string(v) == "true", nil
}
