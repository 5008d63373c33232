package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"sparkbar/engine"
)

// apiError is an answer that is not a success, before a dialect dresses it.
type apiError struct {
	Status  int
	Type    string // OpenAI's name of the class
	Code    string // OpenAI's string code, "" = none
	Field   string // request field at fault, "" = none
	Message string
	Allow   string // methods of the route, for 405
}

func (e *apiError) Error() string { return e.Message }

func invalid(field, format string, args ...any) *apiError {
	return &apiError{Status: http.StatusBadRequest, Type: "invalid_request_error", Field: field,
		Message: fmt.Sprintf(format, args...)}
}

// The texts that clients of the reference know.
const (
	msgNoModel = "no model is loaded — load one with POST /admin/load"
	msgLoading = "a model is loading — try again in a moment"
)

func noModel() *apiError {
	return &apiError{Status: http.StatusServiceUnavailable, Type: "service_unavailable", Message: msgNoModel}
}

func loading() *apiError {
	return &apiError{Status: http.StatusServiceUnavailable, Type: "service_unavailable", Message: msgLoading}
}

// fromEngine maps an error of the engine to an answer. what says what failed
// ("generation failed", "could not load 'x'") and starts the text of faults
// that are the server's own.
func fromEngine(err error, what string) *apiError {
	var own *apiError
	if errors.As(err, &own) {
		return own
	}
	var e *engine.Error
	if !errors.As(err, &e) && errors.Is(err, context.Canceled) {
		e = &engine.Error{Kind: engine.ErrCancelled, Message: "the request was cancelled"}
	}
	if e == nil {
		return &apiError{Status: http.StatusInternalServerError, Type: "server_error", Message: what + ": " + err.Error()}
	}
	switch e.Kind {
	case engine.ErrNoModel:
		return noModel()
	case engine.ErrLoading:
		return loading()
	case engine.ErrBusy:
		return &apiError{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Message: e.Message}
	case engine.ErrInvalid, engine.ErrLoadFailed:
		return invalid(e.Field, "%s", e.Message)
	case engine.ErrContextLength:
		a := invalid(e.Field, "%s", e.Message)
		a.Code = "context_length_exceeded"
		return a
	case engine.ErrModelNotFound:
		return &apiError{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "model_not_found",
			Field: cmp.Or(e.Field, "model"), Message: e.Message}
	case engine.ErrDownload:
		return &apiError{Status: http.StatusBadGateway, Type: "download_error", Message: e.Message}
	case engine.ErrCancelled:
		return &apiError{Status: http.StatusConflict, Type: "cancelled", Message: e.Message}
	case engine.ErrShuttingDown:
		return &apiError{Status: http.StatusServiceUnavailable, Type: "service_unavailable", Message: e.Message}
	}
	return &apiError{Status: http.StatusInternalServerError, Type: "server_error",
		Message: what + ": " + strings.TrimPrefix(e.Message, what+": ")}
}

// dialect chooses the envelope of errors.
type dialect int

const (
	dialectOpenAI dialect = iota
	dialectAnthropic
	dialectResponses
)

// dialectOf follows the path, so that also requests that never reach a
// handler are answered in the words of their caller.
func dialectOf(path string) dialect {
	switch {
	case strings.HasSuffix(path, "/messages"), strings.HasSuffix(path, "/messages/count_tokens"):
		return dialectAnthropic
	case strings.HasSuffix(path, "/responses"):
		return dialectResponses
	}
	return dialectOpenAI
}

// dialectOfRequest is dialectOf, and looks at the header on the routes that
// both dialects have under one path.
func dialectOfRequest(r *http.Request) dialect {
	path := r.URL.Path
	if r.Header.Get("Anthropic-Version") != "" && (strings.HasSuffix(path, "/models") || strings.Contains(path, "/models/")) && !strings.HasPrefix(path, "/admin") {
		return dialectAnthropic
	}
	return dialectOf(path)
}

type openAIError struct {
	Error openAIErrorBody `json:"error"`
}

type openAIErrorBody struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Code    any    `json:"code"` // the HTTP status, or a string where OpenAI has one
}

type anthropicError struct {
	Type  string             `json:"type"`
	Error anthropicErrorBody `json:"error"`
}

type anthropicErrorBody struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

type responsesError struct {
	Error responsesErrorBody `json:"error"`
}

type responsesErrorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Code    *string `json:"code"`
	Param   *string `json:"param"`
}

// envelope is the error body of sparkbar's own profile.
func envelope(d dialect, e *apiError) any {
	switch d {
	case dialectAnthropic:
		return anthropicError{"error", anthropicErrorBody{anthropicType(e), e.Message}}
	case dialectResponses:
		return responsesError{responsesErrorBody{e.Message, e.Type, optional(e.Code), optional(e.Field)}}
	}
	var code any = e.Status
	if e.Code != "" {
		code = e.Code
	}
	return openAIError{openAIErrorBody{e.Message, e.Type, code}}
}

// anthropicType names the class as Anthropic does.
func anthropicType(e *apiError) string {
	switch e.Status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	if e.Status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
