package client

import (
	"bufio"
	"errors"
	"io"
	"strings"
)

// maxEvent bounds one event of a stream.
const maxEvent = 16 << 20

// streamEvent is one event, or one comment.
type streamEvent struct {
	name, data, comment string
}

// eventReader reads server-sent events.
type eventReader struct{ r *bufio.Reader }

func newEventReader(r io.Reader) *eventReader { return &eventReader{bufio.NewReader(r)} }

// next returns the next event or comment, io.EOF at the end.
func (r *eventReader) next() (streamEvent, error) {
	var e streamEvent
	var data []string
	size := 0
	for {
		line, err := r.line()
		if err != nil {
			return e, err
		}
		if size += len(line); size > maxEvent {
			return e, errors.New("the server sent an event that is too large")
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if data != nil {
				e.data = strings.Join(data, "\n")
				return e, nil
			}
		case field == "":
			return streamEvent{comment: value}, nil
		case field == "event":
			e.name = value
		case field == "data":
			data = append(data, value)
		}
	}
}

func (r *eventReader) line() (string, error) {
	var b strings.Builder
	for {
		part, err := r.r.ReadSlice('\n')
		b.Write(part)
		switch {
		case err == nil:
			return strings.TrimRight(b.String(), "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		case b.Len() > maxEvent:
			return "", errors.New("the server sent a line that is too long")
		}
	}
}
