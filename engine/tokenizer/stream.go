package tokenizer

import "bytes"

// Stream decodes one sequence token by token. It never cuts a character: text is handed out when it is
// complete. The concatenation of everything Add and Finish return equals Decode of the same ids.
// A Stream is not safe for concurrent use.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	started     bool   // a token was taken
	trimming    int    // characters that may still be trimmed from the start
	open        []byte // bytes of an unfinished character
	held        []byte // complete text that was not handed out
}

// Stream returns a decoder for a new sequence.
func (t *Tokenizer) Stream(skipSpecial bool) *Stream {
	return &Stream{t: t, skipSpecial: skipSpecial, trimming: t.decoder.trimStart}
}

// Add takes the next id and returns the text that became final, often "".
//
// Text is held back while it ends in an unfinished or invalid character, as the next token may belong
// to it, and while the last token is a lone space of a byte-level vocabulary, which is handed out with
// the text after it.
func (s *Stream) Add(id int32) string {
	n := s.push(id)
	if len(s.open) > 0 || bytes.HasSuffix(s.held, []byte("\uFFFD")) {
		return ""
	}
	if s.t.decoder.byteLevel && n == 1 && bytes.HasSuffix(s.held, []byte(" ")) {
		return ""
	}
	keep := trimEnd(s.held, s.t.decoder.trim, s.t.decoder.trimEnd)
	text := string(s.held[:len(s.held)-keep])
	s.held = append(s.held[:0], s.held[len(s.held)-keep:]...)
	return text
}

// Finish ends the sequence and returns the rest; an unfinished character becomes U+FFFD.
func (s *Stream) Finish() string {
	text := s.rest()
	*s = *s.t.Stream(s.skipSpecial)
	return text
}

// push takes an id and returns the number of bytes it added.
func (s *Stream) push(id int32) int {
	t := s.t
	if !t.valid(id) || s.skipSpecial && t.special[id] {
		return 0
	}
	token := t.text[t.offsets[id]:t.offsets[id+1]]
	if t.decoder.positional && !s.started {
		token = []byte(t.decoder.bytes(t.tokens[id], true))
	}
	s.started = true
	if len(s.open) > 0 {
		s.open = append(s.open, token...)
		s.complete(s.open, false)
	} else {
		s.complete(token, false)
	}
	return len(token)
}

// complete moves the finished characters of b to held and leaves the rest in open.
func (s *Stream) complete(b []byte, final bool) {
	from := len(s.held)
	var used int
	s.held, used = appendValid(s.held, b, final)
	s.open = append(s.open[:0], b[used:]...)
	if s.trimming > 0 && len(s.held) > from {
		cut := trimStart(s.held[from:], s.t.decoder.trim, s.trimming)
		s.trimming -= cut / len(string(s.t.decoder.trim))
		if from+cut < len(s.held) {
			s.trimming = 0
		}
		s.held = append(s.held[:from], s.held[from+cut:]...)
	}
}

// rest returns all text not yet handed out.
func (s *Stream) rest() string {
	s.complete(s.open, true)
	return string(s.held[:len(s.held)-trimEnd(s.held, s.t.decoder.trim, s.t.decoder.trimEnd)])
}
