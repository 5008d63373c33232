package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// clip shortens foreign text for an error.
func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// maxNesting bounds how deep arrays and objects may nest in any JSON we read.
const maxNesting = 64

// scanner reads JSON by pulling, so that a large header never becomes a tree. It is as tolerant as the programs that
// write model files: Infinity, -Infinity and NaN are numbers.
type scanner struct {
	text  []byte
	at    int
	depth int
}

func (s *scanner) errorf(format string, args ...any) error {
	return fmt.Errorf("byte %d: %s", s.at, fmt.Sprintf(format, args...))
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for s.at < len(s.text) {
		switch b := s.text[s.at]; b {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return b
		}
	}
	return 0
}

func (s *scanner) expect(b byte) error {
	if got := s.peek(); got != b {
		if s.at >= len(s.text) {
			return s.errorf("the JSON ends where %q is expected", b)
		}
		return s.errorf("found %q where %q is expected", got, b)
	}
	s.at++
	return nil
}

// end makes sure that nothing but white space follows.
func (s *scanner) end() error {
	if s.peek(); s.at < len(s.text) {
		return s.errorf("text after the end of the JSON value")
	}
	return nil
}

// list walks the elements of an array or object between open and close; f reads one.
func (s *scanner) list(open, close byte, f func() error) error {
	if err := s.expect(open); err != nil {
		return err
	}
	if s.depth++; s.depth > maxNesting {
		return s.errorf("nested deeper than %d levels", maxNesting)
	}
	if s.peek() == close {
		s.at++
		s.depth--
		return nil
	}
	for {
		if err := f(); err != nil {
			return err
		}
		if s.peek() == ',' {
			s.at++
			continue
		}
		s.depth--
		return s.expect(close)
	}
}

// object calls f for every member; f reads the value.
func (s *scanner) object(f func(key string) error) error {
	return s.list('{', '}', func() error {
		key, err := s.string()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return f(key)
	})
}

func (s *scanner) array(f func() error) error { return s.list('[', ']', f) }

func (s *scanner) string() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	start := s.at
	for ; s.at < len(s.text); s.at++ {
		switch b := s.text[s.at]; {
		case b == '"':
			s.at++
			return string(s.text[start : s.at-1]), nil
		case b == '\\':
			return s.escaped(start)
		case b < ' ':
			return "", s.errorf("control character %#x in a string", b)
		}
	}
	return "", s.errorf("string without an end")
}

// escaped reads the rest of a string whose first backslash is at s.at.
func (s *scanner) escaped(start int) (string, error) {
	out := append([]byte(nil), s.text[start:s.at]...)
	for s.at < len(s.text) {
		b := s.text[s.at]
		s.at++
		switch {
		case b == '"':
			return string(out), nil
		case b < ' ':
			return "", s.errorf("control character %#x in a string", b)
		case b != '\\':
			out = append(out, b)
			continue
		}
		if s.at >= len(s.text) {
			break
		}
		b = s.text[s.at]
		s.at++
		switch b {
		case '"', '\\', '/':
			out = append(out, b)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, err := s.hex4()
			if err != nil {
				return "", err
			}
			if utf16.IsSurrogate(r) {
				pair := rune(utf8.RuneError)
				if s.at+1 < len(s.text) && s.text[s.at] == '\\' && s.text[s.at+1] == 'u' {
					mark := s.at
					s.at += 2
					low, err := s.hex4()
					if err != nil {
						return "", err
					}
					if pair = utf16.DecodeRune(r, low); pair == utf8.RuneError {
						s.at = mark // the second escape stands for itself
					}
				}
				r = pair
			}
			out = utf8.AppendRune(out, r)
		default:
			return "", s.errorf("unknown escape \\%c in a string", b)
		}
	}
	return "", s.errorf("string without an end")
}

func (s *scanner) hex4() (rune, error) {
	if s.at+4 > len(s.text) {
		return 0, s.errorf("string without an end")
	}
	v, err := strconv.ParseUint(string(s.text[s.at:s.at+4]), 16, 16)
	if err != nil {
		return 0, s.errorf("bad \\u escape in a string")
	}
	s.at += 4
	return rune(v), nil
}

// word reads a bare literal or number.
func (s *scanner) word() string {
	s.peek()
	start := s.at
	for s.at < len(s.text) {
		b := s.text[s.at]
		if b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '-' || b == '+' || b == '.' {
			s.at++
			continue
		}
		break
	}
	return string(s.text[start:s.at])
}

// scalar reads true, false, null or a number: bool, nil, int64 (a whole number that fits) or float64.
func (s *scanner) scalar() (any, error) {
	start := s.at
	w := s.word()
	switch w {
	case "true":
		return true, nil
	case "false":
		return false, nil
	case "null":
		return nil, nil
	}
	if f, ok := nonFinite(w); ok {
		return f, nil
	}
	if w == "" || w[0] == '+' || w[0] == '.' || w[len(w)-1] < '0' || w[len(w)-1] > '9' {
		s.at = start
		if b := s.peek(); b == 0 && s.at >= len(s.text) {
			return nil, s.errorf("the JSON ends where a value is expected")
		}
		return nil, s.errorf("%q is not a JSON value", clip(string(s.text[s.at:min(len(s.text), s.at+max(len(w), 1))])))
	}
	for _, b := range []byte(w) {
		if (b < '0' || b > '9') && b != '-' && b != '+' && b != '.' && b != 'e' && b != 'E' {
			return nil, s.errorf("%q is not a JSON value", clip(w))
		}
	}
	if n, err := strconv.ParseInt(w, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(w, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return nil, s.errorf("%q is not a JSON number", clip(w))
	}
	return f, nil
}

func nonFinite(w string) (float64, bool) {
	switch w {
	case "Infinity", "inf", "+Infinity":
		return math.Inf(1), true
	case "-Infinity", "-inf":
		return math.Inf(-1), true
	case "NaN", "nan":
		return math.NaN(), true
	}
	return 0, false
}

// value reads anything into map[string]any, []any, string, bool, int64, float64 or nil. A repeated key keeps its last
// value, and the tagged form {"__float__": "Infinity"} becomes the number.
func (s *scanner) value() (any, error) {
	switch s.peek() {
	case '"':
		return s.string()
	case '[':
		list := []any{}
		err := s.array(func() error {
			v, err := s.value()
			list = append(list, v)
			return err
		})
		return list, err
	case '{':
		m := map[string]any{}
		err := s.object(func(key string) error {
			v, err := s.value()
			m[key] = v
			return err
		})
		if tag, ok := m["__float__"].(string); ok && len(m) == 1 {
			if f, ok := nonFinite(tag); ok {
				return f, err
			}
			if f, perr := strconv.ParseFloat(tag, 64); perr == nil {
				return f, err
			}
		}
		return m, err
	}
	return s.scalar()
}

// skip reads anything and forgets it.
func (s *scanner) skip() error {
	switch s.peek() {
	case '"':
		_, err := s.string()
		return err
	case '[':
		return s.array(s.skip)
	case '{':
		return s.object(func(string) error { return s.skip() })
	}
	_, err := s.scalar()
	return err
}
