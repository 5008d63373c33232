package chat

import (
	"errors"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"sparkbar/engine/chat/jinja"
)

var identifier = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_]*(\.[\p{L}_][\p{L}\p{N}_]*)*$`)

var errLiteral = errors.New("not a Python literal")

// pyReader reads Python literals and lists of calls with literal arguments.
// true, false and null are read like True, False and None.
type pyReader struct {
	s     string
	depth int
}

// pyLiteral reads one Python literal: numbers, strings, lists, tuples (as
// lists), dicts with string keys, True, False and None.
func pyLiteral(s string) (any, error) {
	r := &pyReader{s: s}
	v, err := r.value()
	if err != nil {
		return nil, err
	}
	if r.space(); r.s != "" {
		return nil, errLiteral
	}
	return v, nil
}

// pyCalls reads "[f(a=1), g()]", starting at the first bracket and ending at
// the last.
func pyCalls(s string) ([]parsedCall, error) {
	i, j := strings.IndexByte(s, '['), strings.LastIndexByte(s, ']')
	if i < 0 || j <= i {
		return nil, errLiteral
	}
	r := &pyReader{s: s[i+1 : j+1]}
	var calls []parsedCall
	for !r.skip("]") {
		c, err := r.call()
		if err != nil {
			return nil, err
		}
		calls = append(calls, c)
		if r.space(); !r.skip(",") && !strings.HasPrefix(r.s, "]") {
			return nil, errLiteral
		}
	}
	if r.space(); r.s != "" || len(calls) == 0 {
		return nil, errLiteral
	}
	return calls, nil
}

func (r *pyReader) call() (parsedCall, error) {
	name := r.word(".")
	if !identifier.MatchString(name) || !r.skip("(") {
		return parsedCall{}, errLiteral
	}
	args := jinja.NewMap()
	for !r.skip(")") {
		key := r.word("")
		if !identifier.MatchString(key) || !r.skip("=") {
			return parsedCall{}, errLiteral
		}
		v, err := r.value()
		if err != nil {
			return parsedCall{}, err
		}
		args.Set(key, v)
		if r.space(); !r.skip(",") && !strings.HasPrefix(r.s, ")") {
			return parsedCall{}, errLiteral
		}
	}
	return parsedCall{name: name, args: args}, nil
}

func (r *pyReader) space() { r.s = strings.TrimLeft(r.s, " \t\r\n") }

func (r *pyReader) skip(prefix string) bool {
	r.space()
	if strings.HasPrefix(r.s, prefix) {
		r.s = r.s[len(prefix):]
		return true
	}
	return false
}

func (r *pyReader) word(extra string) string {
	r.space()
	n := strings.IndexFunc(r.s, func(c rune) bool {
		return c != '_' && !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune(extra, c)
	})
	if n < 0 {
		n = len(r.s)
	}
	w := r.s[:n]
	r.s = r.s[n:]
	return w
}

func (r *pyReader) value() (any, error) {
	if r.depth++; r.depth > 100 {
		return nil, errLiteral
	}
	defer func() { r.depth-- }()
	r.space()
	if r.s == "" {
		return nil, errLiteral
	}
	switch c := r.s[0]; {
	case c == '"' || c == '\'':
		return r.str()
	case c == '[':
		r.s = r.s[1:]
		return r.list("]")
	case c == '(':
		r.s = r.s[1:]
		return r.list(")")
	case c == '{':
		r.s = r.s[1:]
		m := jinja.NewMap()
		for !r.skip("}") {
			k, err := r.value()
			if err != nil {
				return nil, err
			}
			if !r.skip(":") {
				return nil, errLiteral
			}
			v, err := r.value()
			if err != nil {
				return nil, err
			}
			m.Set(text(k), v)
			if r.space(); !r.skip(",") && !strings.HasPrefix(r.s, "}") {
				return nil, errLiteral
			}
		}
		return m, nil
	case c == '-' || c == '+' || c == '.' || c >= '0' && c <= '9':
		return r.number()
	}
	switch r.word("") {
	case "True", "true":
		return true, nil
	case "False", "false":
		return false, nil
	case "None", "null":
		return nil, nil
	}
	return nil, errLiteral
}

func (r *pyReader) list(end string) (any, error) {
	list := []any{}
	comma := true
	for !r.skip(end) {
		if !comma {
			return nil, errLiteral
		}
		v, err := r.value()
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		comma = r.skip(",")
		if end == ")" && len(list) == 1 && !comma && r.skip(end) {
			return v, nil // parentheses, not a tuple
		}
	}
	return list, nil
}

func (r *pyReader) number() (any, error) {
	n := strings.IndexFunc(r.s[1:], func(c rune) bool {
		return !(c >= '0' && c <= '9' || c == '.' || c == '_' || c == 'e' || c == 'E' || c == '+' || c == '-' ||
			c == 'x' || c == 'X' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F')
	}) + 1
	if n == 0 {
		n = len(r.s)
	}
	t := strings.ReplaceAll(r.s[:n], "_", "")
	r.s = r.s[n:]
	if len(t) > 4000 {
		return nil, errLiteral
	}
	digits := strings.TrimLeft(t, "+-")
	if len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' && !strings.Contains(digits, ".") {
		return nil, errLiteral // Python refuses leading zeros
	}
	if b, ok := new(big.Int).SetString(t, 0); ok {
		return intValue(b), nil
	}
	if strings.ContainsAny(t, "xXpP") {
		return nil, errLiteral
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil {
		return nil, errLiteral
	}
	return f, nil
}

// str reads a string literal; neighbouring ones are joined.
func (r *pyReader) str() (any, error) {
	var b strings.Builder
	for r.s != "" && (r.s[0] == '"' || r.s[0] == '\'') {
		quote := r.s[:1]
		if strings.HasPrefix(r.s, strings.Repeat(quote, 3)) {
			quote = r.s[:3]
		}
		s := r.s[len(quote):]
		for {
			if s == "" {
				return nil, errLiteral
			}
			if strings.HasPrefix(s, quote) {
				s = s[len(quote):]
				break
			}
			if s[0] == '\n' && len(quote) == 1 {
				// Python forbids it, models write it.
				b.WriteByte('\n')
				s = s[1:]
				continue
			}
			if s[0] != '\\' || len(s) < 2 {
				c, n := utf8.DecodeRuneInString(s)
				b.WriteRune(c)
				s = s[n:]
				continue
			}
			n, err := pyEscape(&b, s[1:])
			if err != nil {
				return nil, err
			}
			s = s[1+n:]
		}
		r.s = s
		r.space()
	}
	return b.String(), nil
}

// pyEscape writes what the escape sequence at s (behind the backslash) stands
// for and returns its length.
func pyEscape(b *strings.Builder, s string) (int, error) {
	if i := strings.IndexByte("abfnrtv\\'\"\n", s[0]); i >= 0 {
		if s[0] != '\n' {
			b.WriteByte("\a\b\f\n\r\t\v\\'\""[i])
		}
		return 1, nil
	}
	if s[0] >= '0' && s[0] <= '7' {
		n := 1
		for n < 3 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			n++
		}
		v, _ := strconv.ParseUint(s[:n], 8, 32)
		b.WriteRune(rune(v))
		return n, nil
	}
	width := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[0]]
	if width == 0 {
		b.WriteByte('\\')
		c, n := utf8.DecodeRuneInString(s)
		b.WriteRune(c)
		return n, nil
	}
	if len(s) < 1+width {
		return 0, errLiteral
	}
	v, err := strconv.ParseUint(s[1:1+width], 16, 32)
	if err != nil || v > unicode.MaxRune {
		return 0, errLiteral
	}
	b.WriteRune(rune(v))
	return 1 + width, nil
}

// pyRepr writes a value as a Python literal.
func pyRepr(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case string:
		// A JSON string is a Python string, but for its \/ which is not
		// written here.
		return toJSON(v)
	case []any:
		parts := make([]string, len(v))
		for i, it := range v {
			parts[i] = pyRepr(it)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case *jinja.Map:
		var parts []string
		for k, it := range v.All() {
			parts = append(parts, toJSON(k)+": "+pyRepr(it))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return toJSON(v)
}
