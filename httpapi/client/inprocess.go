package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// Transport returns a RoundTripper that calls h directly. Answers stream as
// over a network: the handler runs while the body is read, and closing the
// body or ending the request's context ends the handler's context.
func Transport(h http.Handler) http.RoundTripper { return handlerTransport{h} }

type handlerTransport struct{ handler http.Handler }

func (t handlerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	r := req.Clone(ctx)
	r.RequestURI = req.URL.RequestURI()
	r.RemoteAddr = "in-process"
	if r.Host == "" {
		r.Host = req.URL.Host
	}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	reader, writer := io.Pipe()
	w := &pipeWriter{header: http.Header{}, pipe: writer, sent: make(chan struct{})}
	// What the handler writes for a caller that is gone must not block it.
	stop := context.AfterFunc(ctx, func() { reader.CloseWithError(ctx.Err()) })
	go func() {
		defer stop()
		defer r.Body.Close()
		defer func() {
			var err error
			if p := recover(); p != nil {
				err = fmt.Errorf("the handler broke off: %v", p)
			}
			w.WriteHeader(http.StatusOK)
			writer.CloseWithError(err)
		}()
		t.handler.ServeHTTP(w, r)
	}()
	select {
	case <-w.sent:
	case <-ctx.Done():
		cancel()
		return nil, ctx.Err()
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), StatusCode: w.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.snapshot, Body: &pipeBody{reader, cancel}, ContentLength: -1, Request: req,
	}, nil
}

// pipeBody ends the handler when the caller closes the body.
type pipeBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *pipeBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// pipeWriter is the handler's side of an answer.
type pipeWriter struct {
	header   http.Header
	pipe     *io.PipeWriter
	once     sync.Once
	sent     chan struct{} // closed when the head is out
	status   int
	snapshot http.Header
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.snapshot = status, w.header.Clone()
		close(w.sent)
	})
}

func (w *pipeWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.pipe.Write(b)
}

// Flush sends the head; the pipe holds nothing back.
func (w *pipeWriter) Flush() { w.WriteHeader(http.StatusOK) }
