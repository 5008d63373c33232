package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
)

// Call sends a request to a route that has no method of its own here and
// decodes the JSON answer into answer, unless that is nil.
func (c *Client) Call(ctx context.Context, method, path string, body, answer any) error {
	v, err := decode[json.RawMessage](c.do(ctx, method, path, body))
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal(v, answer)
}

// Stream posts body and hands over the events of the answer until it ends or
// on returns an error, which is returned.
func (c *Client) Stream(ctx context.Context, path string, body any, on func(Event) error) error {
	resp, err := c.do(ctx, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for r := newEventReader(resp.Body); ; {
		e, err := r.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
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

// Absent reports whether err says that the server has no such route.
func Absent(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Type == "not_found" && e.Status == http.StatusNotFound
}
