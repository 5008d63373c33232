package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Profile holds everything that differs on the wire between the servers that
// this one stands in for. Handlers read its fields and never its name.
type Profile struct {
	Name string

	// ErrorBody dresses an error. EngineStatus is the status of an error that
	// comes up in the engine, after the request was validated here.
	ErrorBody    func(dialect, *apiError) any
	EngineStatus func(*apiError) int

	// Texts of validation: a body that is not JSON or not an object, a value
	// of the wrong type or out of range, a missing prompt.
	BadJSON, NotAnObject string
	TypeMessage          func(field, want string) string
	ValueMessage         func(field, rule string) string
	NoMessages, NoPrompt string

	// RefuseNull names the fields in which null is a value of the wrong type;
	// elsewhere it is the same as absent.
	RefuseNull map[string]bool

	// Fractions names the fields in which an integer is a value of the wrong
	// type, as Python has it.
	Fractions map[string]bool
	// PythonNumbers has numbers as Python's isinstance has them: true and false are
	// 1 and 0, and 5.0 is no integer.
	PythonNumbers bool

	// Smallest max_tokens and top_k that are accepted; 0 tokens mean the
	// default, and any top_k below 1 means off.
	MinMaxTokens, MinTopK int64
	// Largest top_logprobs, and largest integer in logprobs (0 = only booleans).
	MaxTopLogprobs, MaxLogprobs int64

	// Defaults of a request that says nothing; 0 and nil leave it to the engine.
	MaxTokens     int
	Temperature   *float64
	PenaltyWindow *int

	// NoModelName is what an answer calls the model if the request named none; ""
	// = its id.
	NoModelName string
	// TokenIDs puts the ids of tokens and their names in the vocabulary into
	// log-probabilities, which then have the same form on both OpenAI routes.
	TokenIDs bool

	// ReasoningKeys are the names that carry reasoning in messages and deltas.
	ReasoningKeys []string
	// MLXRules reads prompts and answers as mlx_lm.server does, see
	// engine.Prompt.
	MLXRules bool
	// NullContent writes null instead of "" for an answer without text.
	NullContent bool
	// RoleInEveryDelta repeats the role in all chunks of a chat stream.
	RoleInEveryDelta bool
	// CheckOrder are fields of which the first that is wrong is told, before any
	// other; empty: the first that is read.
	CheckOrder []string
	// UsageChunkObject is the object name of the usage chunk, "" = as the others.
	UsageChunkObject string
	// PlainModels makes /v1/models like mlx_lm.server's: ids as given, and a list
	// also where one is asked for.
	PlainModels bool
	// Extras adds x_mlx_dspark and the extra fields of /v1/models.
	Extras bool
}

// SparkbarProfile is the default: the routes of mlx-dspark with the request
// fields of both mlx-dspark and mlx_lm.server.
func SparkbarProfile() Profile {
	words := map[string]string{"string": "a string", "boolean": "a boolean", "number": "a number",
		"integer": "an integer", "list": "a list", "object": "an object"}
	return Profile{
		Name:         "sparkbar",
		ErrorBody:    envelope,
		EngineStatus: func(e *apiError) int { return e.Status },
		BadJSON:      "invalid JSON body",
		NotAnObject:  "the JSON body must be an object",
		TypeMessage: func(field, want string) string {
			if w, ok := words[want]; ok {
				want = w
			}
			return fmt.Sprintf("'%s' must be %s", field, want)
		},
		ValueMessage:   func(field, rule string) string { return fmt.Sprintf("'%s' %s", field, rule) },
		NoMessages:     "'messages' must be a non-empty list",
		NoPrompt:       "'prompt' must be a string",
		MinTopK:        -1 << 31,
		MaxTopLogprobs: 20, MaxLogprobs: 10,
		ReasoningKeys: []string{"reasoning_content", "reasoning"},
		Extras:        true,
	}
}

// MLXLMProfile answers OpenAI routes in the manner of mlx_lm.server.
func MLXLMProfile() Profile {
	zero, window := 0.0, 20
	names := func(field string) string {
		switch field { // what that server calls them in its messages
		case "max_completion_tokens":
			return "max_tokens"
		case "model":
			return "requested_model"
		case "adapters":
			return "adapter"
		}
		return field
	}
	order := []string{"stream", "max_completion_tokens", "max_tokens", "temperature", "top_p", "top_k", "min_p", "num_draft_tokens", "repetition_penalty",
		"repetition_context_size", "presence_penalty", "presence_context_size", "frequency_penalty", "frequency_context_size",
		"logprobs", "top_logprobs", "xtc_probability", "xtc_threshold", "model", "adapters", "seed", "logit_bias"}
	refuseNull := map[string]bool{}
	for _, f := range order {
		refuseNull[f] = !slices.Contains([]string{"max_completion_tokens", "adapters", "seed", "logit_bias"}, f)
	}
	words := map[string]string{"string": "str", "boolean": "bool", "number": "('float', 'int')",
		"integer": "int", "list": "list", "object": "dict"}
	return Profile{
		Name: "mlx-lm",
		ErrorBody: func(d dialect, e *apiError) any {
			if d != dialectOpenAI { // routes that mlx_lm.server does not have
				return envelope(d, e)
			}
			return struct {
				Error string `json:"error"`
			}{e.Message}
		},
		EngineStatus: func(e *apiError) int {
			// That server answers 404 to whatever fails behind its validation;
			// requests that would end its worker are refused by field instead.
			field := e.Field != "" && e.Field != "adapters" && e.Field != "draft_model" && !strings.HasPrefix(e.Field, "messages")
			if e.Status == http.StatusInternalServerError || e.Status == http.StatusBadRequest && !field {
				return http.StatusNotFound
			}
			return e.Status
		},
		BadJSON:     "Invalid JSON in request body",
		NotAnObject: "Request should be a JSON dictionary",
		TypeMessage: func(field, want string) string {
			if w, ok := words[want]; ok {
				want = w
			}
			return fmt.Sprintf("%s must be of type %s", names(field), want)
		},
		ValueMessage:     func(field, rule string) string { return names(field) + " " + rule },
		CheckOrder:       order,
		RefuseNull:       refuseNull,
		Fractions:        map[string]bool{"xtc_probability": true, "xtc_threshold": true},
		PythonNumbers:    true,
		NoMessages:       "Request did not contain messages",
		NoPrompt:         "Request did not contain a prompt",
		MinMaxTokens:     1,
		MaxTopLogprobs:   11,
		MaxTokens:        512,
		Temperature:      &zero,
		PenaltyWindow:    &window,
		NoModelName:      "default_model",
		TokenIDs:         true,
		ReasoningKeys:    []string{"reasoning"},
		MLXRules:         true,
		PlainModels:      true,
		NullContent:      true,
		RoleInEveryDelta: true,
		UsageChunkObject: "chat.completion",
	}
}
