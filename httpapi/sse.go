package httpapi

import (
	"fmt"
	"net/http"
	"time"
)

// eventStream writes server-sent events. Each frame is flushed and has its own
// write deadline, so a client that stops reading ends its own stream only.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
	frames  int // written
}

func newEventStream(w http.ResponseWriter) *eventStream {
	return &eventStream{w: w, control: http.NewResponseController(w)}
}

// data writes an unnamed event.
func (e *eventStream) data(v any) error {
	return e.write("data: " + string(encode(v)) + "\n\n")
}

// event writes a named event.
func (e *eventStream) event(name string, v any) error {
	return e.write("event: " + name + "\ndata: " + string(encode(v)) + "\n\n")
}

// done ends an OpenAI stream.
func (e *eventStream) done() error { return e.write("data: [DONE]\n\n") }

// progress keeps the connection alive and shows how far the prompt is read.
func (e *eventStream) progress(done, total int) error {
	return e.write(fmt.Sprintf(": keepalive %d/%d\n\n", done, total))
}

func (e *eventStream) write(frame string) error {
	_ = e.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // not every writer has deadlines
	if !e.begun {
		e.begun = true
		h := e.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // proxies must not collect frames
		e.w.WriteHeader(http.StatusOK)
	}
	if _, err := e.w.Write([]byte(frame)); err != nil {
		return err
	}
	e.frames++
	return e.control.Flush()
}
