package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"
)

// Settings keeps the owner's settings, by dotted keys such as
// "model.context_window". Safe for concurrent use.
type Settings interface {
	// Path is the file that holds them.
	Path() string
	// Values are those that are in force, each a value that JSON can write.
	Values() map[string]any
	// Locked are settings that a flag or an environment variable decides, by
	// key, with its name: what the file says of them has no effect.
	Locked() map[string]string
	// Change sets the given keys, null removes one; all or none. A bad key or
	// value is a *SettingError.
	Change(map[string]json.RawMessage) error
}

// SettingError is a setting that cannot be.
type SettingError struct {
	Key     string
	Message string // names the key and says what it may be
}

func (e *SettingError) Error() string { return e.Message }

type settingsReply struct {
	Path   string         `json:"path"`
	Values map[string]any `json:"values"`
	// Locked are those that a flag or variable decides, with its name.
	Locked map[string]string `json:"locked"`
}

func (s *Server) adminSettings(c *gin.Context) *apiError {
	if s.options.Settings == nil {
		return noSettings()
	}
	s.reply(c, http.StatusOK, settingsReply{s.options.Settings.Path(), s.options.Settings.Values(), s.options.Settings.Locked()})
	return nil
}

func (s *Server) adminChangeSettings(c *gin.Context) *apiError {
	f, err := s.body(c)
	if err != nil {
		return err
	}
	if s.options.Settings == nil {
		return noSettings()
	}
	if len(f.raw) == 0 {
		return invalid("", "send an object of settings to change, such as {\"model.context_window\": 8192}")
	}
	if err := s.options.Settings.Change(f.raw); err != nil {
		var bad *SettingError
		if errors.As(err, &bad) {
			return invalid(bad.Key, "%s", bad.Message)
		}
		return &apiError{Status: http.StatusInternalServerError, Type: "server_error", Message: "the settings could not be saved: " + err.Error()}
	}
	return s.adminSettings(c)
}

func noSettings() *apiError {
	return &apiError{Status: http.StatusNotFound, Type: "not_found", Message: "this server was started without a settings file"}
}
