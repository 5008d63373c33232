package chat

import (
	"encoding/json"
	"regexp"
	"strings"
	"unicode/utf8"

	"sparkbar/engine/chat/jinja"
)

// A call in progress: the functions below say of an unfinished tool block what
// is certain of it, as the beginning of the JSON text that its arguments will
// have.

// progress reports more of a call that is being written, if its format allows
// it. Each look at the block costs its length, so looks become rarer as it
// grows.
func (p *Parser) progress(formats []*toolFormat, body string) {
	if !p.o.StreamCalls || len(body) < p.looked+1+p.looked/32 {
		return
	}
	p.looked = len(body)
	for _, f := range formats {
		if f.partial == nil {
			continue
		}
		if name, args, ok := f.partial(body, p.schemas); ok {
			p.report(name, args)
			return
		}
	}
}

// leastStreamed is how many bytes of arguments a call must have before it is
// reported in pieces: a shorter one is there in a moment, and then it is known
// whether it is usable.
const leastStreamed = 64

// report emits what args adds to what has been reported of the call.
func (p *Parser) report(name, args string) {
	if !p.reporting {
		if len(args) < leastStreamed {
			return
		}
		if _, known := p.schemas[name]; !known && (len(p.schemas) > 0 || p.o.Rules.KnownTools) {
			return
		}
		p.reporting, p.reportedName, p.reported = true, name, ""
		p.emit(Event{Kind: CallStart, Call: p.calls, Name: name})
	}
	if more, ok := strings.CutPrefix(args, p.reported); ok && more != "" && name == p.reportedName {
		p.emit(Event{Kind: CallArgs, Call: p.calls, Text: more})
		p.reported = args
	}
}

// conclude ends the call in progress: with the rest of its arguments if it
// turned out to be the first of calls, else by taking it back. It returns
// the calls still to be reported.
func (p *Parser) conclude(calls []Call) []Call {
	p.looked = 0
	if !p.reporting {
		return calls
	}
	p.reporting = false
	at := p.calls
	p.calls++
	if len(calls) > 0 && calls[0].Name == p.reportedName && calls[0].ID == "" {
		if more, ok := strings.CutPrefix(calls[0].Arguments, p.reported); ok {
			if more != "" {
				p.emit(Event{Kind: CallArgs, Call: at, Text: more})
			}
			p.emit(Event{Kind: CallEnd, Call: at})
			p.called = true
			return calls[1:]
		}
	}
	p.emit(Event{Kind: CallDrop, Call: at})
	return calls
}

var jsonCallHead = regexp.MustCompile(`^\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*\{`)

// partialJSON reads the beginning of {"name": f, "arguments": {…}}.
func partialJSON(body string, _ schemas) (name, args string, ok bool) {
	m := jsonCallHead.FindStringSubmatchIndex(body)
	if m == nil || json.Unmarshal([]byte(body[m[2]:m[3]]), &name) != nil || name == "" {
		return "", "", false
	}
	return name, jsonPrefix(body[m[1]-1:]), true
}

// jsonPrefix rewrites the beginning of a JSON value with the separators of
// EncodeJSON, as far as it is certain how the value goes on: numbers and
// literals once they have ended, strings up to the last whole character.
func jsonPrefix(s string) string {
	var b strings.Builder
	depth := 0
	for i := 0; i < len(s); {
		switch c := s[i]; c {
		case ' ', '\t', '\r', '\n':
			i++
		case '{', '[', '}', ']':
			b.WriteByte(c)
			i++
			if c == '{' || c == '[' {
				depth++
			} else if depth--; depth <= 0 {
				return b.String()
			}
		case ',', ':':
			b.WriteByte(c)
			b.WriteByte(' ')
			i++
		case '"':
			end := i + 1
			for end < len(s) && s[end] != '"' {
				if s[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(s) {
				b.WriteString(stringPrefix(s[i+1:]))
				return b.String()
			}
			v, err := looseJSON(s[i : end+1])
			if err != nil {
				return b.String()
			}
			b.WriteString(toJSON(v))
			i = end + 1
		default:
			end := i + strings.IndexAny(s[i:], ",:]} \t\r\n")
			if end < i {
				return b.String()
			}
			v, err := jinja.DecodeJSON([]byte(s[i:end]))
			if err != nil {
				return b.String()
			}
			b.WriteString(toJSON(v))
			i = end
		}
	}
	return b.String()
}

// stringPrefix rewrites the inside of a JSON string that has no end yet, with
// its opening quote and without a closing one.
func stringPrefix(s string) string {
	v, err := looseJSON(`"` + wholeRunes(s[:wholeEscapes(s)]) + `"`)
	if err != nil {
		return `"`
	}
	out := toJSON(v)
	return out[:len(out)-1]
}

// wholeEscapes returns how much of s there is before an escape sequence that
// is not complete. Two escapes that make one character count as one.
func wholeEscapes(s string) int {
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			continue
		}
		n := 2
		if i+1 < len(s) && s[i+1] == 'u' {
			n = 6
			if i+n <= len(s) && (s[i+2] == 'd' || s[i+2] == 'D') && strings.IndexByte("89abAB", s[i+3]) >= 0 {
				// The first half of a pair, unless something else follows.
				rest := s[i+n:]
				if len(rest) < 6 && strings.HasPrefix(`\u`, rest[:min(len(rest), 2)]) {
					return i
				}
			}
		}
		if i+n > len(s) {
			return i
		}
		i += n - 1
	}
	return len(s)
}

// wholeRunes cuts the beginning of a character off the end of s.
func wholeRunes(s string) string {
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if c := s[len(s)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRuneInString(s[len(s)-n:]) {
				return s[:len(s)-n]
			}
			break
		}
	}
	return s
}

var qwenHead = regexp.MustCompile(`^\s*<function=([^\s<>]+)>`)

// partialQwen reads the beginning of <function=f><parameter=p>v…: parameters
// that are complete and, if the next one is declared a string, its beginning.
func partialQwen(body string, s schemas) (name, args string, ok bool) {
	m := qwenHead.FindStringSubmatchIndex(body)
	if m == nil {
		return "", "", false
	}
	name = body[m[2]:m[3]]
	rest := body[m[1]:]
	var b strings.Builder
	b.WriteByte('{')
	for first := true; ; first = false {
		_, after, ok := strings.Cut(rest, "<parameter=")
		if !ok {
			break
		}
		raw, next, closed := strings.Cut(after, "</parameter>")
		n := qwenName.FindStringSubmatch(raw)
		if n == nil || !strings.HasSuffix(n[0], ">") {
			break
		}
		schema := s.param(name, n[1])
		value := raw[len(n[0]):]
		var text string
		if closed {
			v, err := qwenValue(trimNewlines(value), schema)
			if err != nil {
				break
			}
			text = toJSON(v)
		} else if !isStringParam(s, name, n[1]) || value == "" {
			break
		} else {
			// The end marker, or the newline in front of it, may have begun.
			value = value[:len(value)-heldBack(value, []string{"\n</parameter>", "</parameter>"})]
			value = wholeRunes(strings.TrimPrefix(value, "\n"))
			if len(value) <= len("null") {
				break
			}
			text = toJSON(value)
			text = text[:len(text)-1]
		}
		if !first {
			b.WriteString(", ")
		}
		b.WriteString(toJSON(n[1]) + ": " + text)
		if !closed {
			break
		}
		rest = next
	}
	return name, b.String(), true
}
