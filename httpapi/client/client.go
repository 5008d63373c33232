package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"sparkbar/engine/telemetry"
)

// Client calls one server. Safe for concurrent use.
type Client struct {
	base string
	key  string
	http *http.Client
}

// New returns a client of the server at baseURL ("http://127.0.0.1:8080"). key
// may be empty.
func New(baseURL, key string) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("%q is not an address like http://127.0.0.1:8080", baseURL)
	}
	u.RawQuery, u.Fragment = "", ""
	base := strings.TrimSuffix(strings.TrimRight(u.String(), "/"), "/v1")
	return &Client{base: base, key: key, http: &http.Client{}}, nil
}

// InProcess returns a client that calls a handler without a network.
func InProcess(h http.Handler, key string) *Client {
	return &Client{base: "http://localhost", key: key, http: &http.Client{Transport: Transport(h)}}
}

// Error is an answer of the server that is not a success.
type Error struct {
	Status  int    // HTTP status
	Type    string // class of the error, as the server names it
	Message string
}

func (e *Error) Error() string { return e.Message }

// Warning is a condition that the owner should know.
type Warning struct {
	Code    string `json:"code"`
	Level   string `json:"level"`
	Message string `json:"message"`
	Action  string `json:"action"`
}

// Progress is how far a load has come, in bytes; a total of 0 is unknown.
type Progress struct {
	Model      string `json:"model"`
	BytesDone  int64  `json:"bytes_done"`
	BytesTotal int64  `json:"bytes_total"`
}

// Health is GET /health. Fields of the model are set while Status is "ok".
type Health struct {
	Status   string    `json:"status"` // ok, loading, no_model
	State    string    `json:"state"`  // of the engine, finer than Status
	Model    string    `json:"model"`
	Serving  string    `json:"serving"` // the model that answers while another loads
	Phase    string    `json:"phase"`   // loading, warming_up
	Progress *Progress `json:"progress"`
	Download *Download `json:"download"` // while files are fetched
	Error    string    `json:"error"`    // of the last failed load
	Warnings []Warning `json:"warnings"`

	Mode            string  `json:"mode"`
	Target          string  `json:"target"`
	Drafter         string  `json:"drafter"`
	MaxDraft        string  `json:"max_draft"` // "auto" or a number
	LookupDrafts    bool    `json:"lookup_drafts"`
	Confidence      float64 `json:"confidence_threshold"`
	DrafterWindow   int     `json:"drafter_window"`
	ContextWindow   int     `json:"context_window"`
	KVBits          int     `json:"kv_bits"`
	MaxOutputTokens int     `json:"max_output_tokens"`
	SupportsEffort  bool    `json:"supports_reasoning_effort"`
	ThinkingDefault string  `json:"thinking_default"` // on, off
	ReasoningEffort string  `json:"reasoning_effort"`
	Backend         string  `json:"backend"`
	Architecture    string  `json:"architecture"`
	WeightBytes     int64   `json:"weight_bytes"`
	DrafterBytes    int64   `json:"drafter_bytes"`

	Version       string   `json:"version"`
	UptimeSeconds float64  `json:"uptime_seconds"`
	InFlight      int      `json:"in_flight"`
	Queued        int      `json:"queued"`
	LastRoundAge  *float64 `json:"last_round_age_seconds"` // nil before the first round
}

// Health asks how the server stands. It needs no key.
func (c *Client) Health(ctx context.Context) (Health, error) {
	return get[Health](ctx, c, "/health")
}

// Status is the answer of the control routes.
type Status struct {
	Ready    bool      `json:"ready"`
	Loading  bool      `json:"loading"`
	Model    string    `json:"model"`
	Error    string    `json:"error"`
	Phase    string    `json:"phase"`
	Progress *Progress `json:"progress"`
	Download *Download `json:"download"` // while files are fetched
	// Downloads are those under way, for loads and on their own.
	Downloads []Download `json:"downloads"`
}

// Status asks where loading stands.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return get[Status](ctx, c, "/admin/status")
}

// LoadRequest asks for a model. Nil and empty fields keep the server's setting.
type LoadRequest struct {
	Model               string   `json:"model"`
	Drafter             string   `json:"drafter,omitempty"`
	Mode                string   `json:"mode,omitempty"`
	MaxDraft            MaxDraft `json:"max_draft,omitzero"`
	LookupDrafts        *bool    `json:"lookup_drafts,omitempty"`
	ConfidenceThreshold *float64 `json:"confidence_threshold,omitempty"`
	ContextWindow       *int     `json:"context_window,omitempty"`
	KVBits              *int     `json:"kv_bits,omitempty"`
	DrafterWindow       *int     `json:"drafter_window,omitempty"`
	DrafterBits         *int     `json:"drafter_bits,omitempty"`
	Warmup              *bool    `json:"warmup,omitempty"`
	EnableThinking      *bool    `json:"enable_thinking,omitempty"`
	ReasoningEffort     *string  `json:"reasoning_effort,omitempty"`
	MemoryGuard         *bool    `json:"memory_guard,omitempty"`
	// Wait false makes Load return as soon as the load has begun.
	Wait *bool `json:"wait,omitempty"`
}

// MaxDraft is a draft cap: 0 = not said, AutoDraft, or a number of tokens.
type MaxDraft int

// AutoDraft lets the server choose the cap round by round.
const AutoDraft MaxDraft = -1

// MarshalJSON writes "auto" or the number.
func (m MaxDraft) MarshalJSON() ([]byte, error) {
	if m == AutoDraft {
		return []byte(`"auto"`), nil
	}
	return []byte(strconv.Itoa(int(m))), nil
}

// Load loads or swaps a model and, unless told otherwise, waits for the end.
func (c *Client) Load(ctx context.Context, r LoadRequest) (Status, error) {
	return post[Status](ctx, c, "/admin/load", r)
}

// LoadCancel cancels the load under way; false if there was none. cleanup also
// removes what was fetched for it.
func (c *Client) LoadCancel(ctx context.Context, cleanup bool) (bool, error) {
	r, err := post[struct {
		Cancelled bool `json:"cancelled"`
	}](ctx, c, "/admin/load/cancel", map[string]bool{"cleanup": cleanup})
	return r.Cancelled, err
}

// Unload frees the model; the server stays up.
func (c *Client) Unload(ctx context.Context) (Status, error) {
	return post[Status](ctx, c, "/admin/unload", struct{}{})
}

// Model is an entry of GET /v1/models.
type Model struct {
	ID          string `json:"id"`
	Created     int64  `json:"created"`
	DisplayName string `json:"display_name"`
	Extra       struct {
		Mode    string `json:"mode"`
		Target  string `json:"target"`
		Drafter string `json:"drafter"`
	} `json:"x_mlx_dspark"`
}

// Models lists what can answer.
func (c *Client) Models(ctx context.Context) ([]Model, error) {
	r, err := get[struct {
		Data []Model `json:"data"`
	}](ctx, c, "/v1/models")
	return r.Data, err
}

// Rounds returns the latest rounds, oldest first, and statistics over all
// since the load. limit 0 means all that are kept.
func (c *Client) Rounds(ctx context.Context, limit int) ([]telemetry.Round, telemetry.Stats, error) {
	r, err := get[struct {
		Rounds []telemetry.Round `json:"rounds"`
		Stats  telemetry.Stats   `json:"stats"`
	}](ctx, c, "/rounds?limit="+strconv.Itoa(limit))
	return r.Rounds, r.Stats, err
}

// Event is one message of the server's event stream.
type Event struct {
	Name string          // state, round, prefill, request, ...
	Data json.RawMessage // a state has the shape of Health, a round of telemetry.Round
}

// Events follows everything that happens on the server, across loads and
// swaps, until ctx ends, on returns an error (which is returned), or the server
// stops (io.EOF). The first event is the present state.
func (c *Client) Events(ctx context.Context, on func(Event) error) error {
	resp, err := c.do(ctx, http.MethodGet, "/admin/events", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	r := newEventReader(resp.Body)
	for {
		e, err := r.next()
		if err != nil {
			return orCancelled(ctx, err)
		}
		if e.data == "" {
			continue
		}
		if err := on(Event{e.name, json.RawMessage(e.data)}); err != nil {
			return err
		}
	}
}

// orCancelled prefers the reason of the caller.
func orCancelled(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func get[T any](ctx context.Context, c *Client, path string) (v T, err error) {
	return decode[T](c.do(ctx, http.MethodGet, path, nil))
}

func post[T any](ctx context.Context, c *Client, path string, body any) (v T, err error) {
	return decode[T](c.do(ctx, http.MethodPost, path, body))
}

// maxAnswer bounds an answer that is read whole.
const maxAnswer = 64 << 20

func decode[T any](resp *http.Response, err error) (v T, _ error) {
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("the server's answer to %s is not what was expected: %w", resp.Request.URL.Path, err)
	}
	return v, nil
}

// do sends a request; a status that is not a success becomes an *Error.
func (c *Client) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, r)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // what came is enough for a message
	return nil, errorOf(resp.StatusCode, b)
}

// errorOf reads an error body in any of the server's envelopes.
func errorOf(status int, body []byte) *Error {
	e := &Error{Status: status, Message: http.StatusText(status)}
	var envelope struct {
		Error json.RawMessage `json:"error"`
	}
	var detail struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &envelope) != nil {
		return e
	}
	if json.Unmarshal(envelope.Error, &detail) == nil && detail.Message != "" {
		e.Type, e.Message = detail.Type, detail.Message
	} else {
		_ = json.Unmarshal(envelope.Error, &e.Message) // the plain form of one wire profile
	}
	return e
}
