package jinja

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tokenKind is the class of a token. Operators use their own text as val.
type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokVarBegin
	tokVarEnd
	tokBlockBegin
	tokBlockEnd
	tokName
	tokString
	tokNumber
	tokOp
)

type token struct {
	kind tokenKind
	line int
	val  string // name, operator, data or decoded string
	num  any    // int64, *big.Int or float64 for tokNumber
}

func (t token) describe() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokData:
		return "template text"
	case tokVarBegin, tokVarEnd, tokBlockBegin, tokBlockEnd:
		return "'" + t.val + "'"
	case tokString:
		return "a string"
	case tokNumber:
		return "a number"
	}
	return "'" + t.val + "'"
}

// isSpace is Python's str.isspace for one character.
func isSpace(c rune) bool { return unicode.IsSpace(c) || c >= 0x1c && c <= 0x1f }

// lexer splits a source into tokens. Whitespace control happens here: "-"
// signs strip, the newline after a block or comment goes (trim_blocks), and
// blanks between a line start and a block go (lstrip_blocks).
type lexer struct {
	src       string
	pos       int
	line      int
	lineStart bool // the previous match consumed its line's newline
	toks      []token
}

func lex(src string) []token {
	src = strings.ToValidUTF8(src, "\uFFFD")
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.ReplaceAll(src, "\r", "\n")
	src = strings.TrimSuffix(src, "\n")
	l := &lexer{src: src, line: 1, lineStart: true}
	for l.pos < len(src) {
		l.root()
	}
	l.emit(token{kind: tokEOF})
	return l.toks
}

func (l *lexer) fail(format string, args ...any) {
	panic(&Error{Kind: SyntaxError, Line: l.line, Message: fmt.Sprintf(format, args...)})
}

func (l *lexer) emit(t token) {
	t.line = l.line
	l.toks = append(l.toks, t)
}

// advance moves to end and keeps the line count and the line-start flag.
func (l *lexer) advance(end int) {
	seg := l.src[l.pos:end]
	l.line += strings.Count(seg, "\n")
	l.lineStart = strings.HasSuffix(seg, "\n")
	l.pos = end
}

// root lexes template text up to and including the next opening marker.
func (l *lexer) root() {
	i := l.pos
	for {
		j := strings.IndexByte(l.src[i:], '{')
		if j < 0 || i+j+1 >= len(l.src) {
			l.emit(token{kind: tokData, val: l.src[l.pos:]})
			l.advance(len(l.src))
			return
		}
		i += j
		if c := l.src[i+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		i++
	}
	marker := l.src[i+1]
	end := i + 2
	sign := byte(0)
	if end < len(l.src) && (l.src[end] == '-' || l.src[end] == '+') {
		sign = l.src[end]
		end++
	}
	l.data(i, sign, marker != '{')
	switch marker {
	case '{':
		l.emit(token{kind: tokVarBegin, val: "{{"})
		l.advance(end)
		l.tag("}}", tokVarEnd)
	case '#':
		l.advance(end)
		j := strings.Index(l.src[end:], "#}")
		if j < 0 {
			l.fail("comment is never closed with '#}'")
		}
		l.closeTag(end+j, "#}", end)
	default:
		if e := l.rawBegin(end); e > 0 {
			l.advance(e)
			l.raw()
			return
		}
		l.emit(token{kind: tokBlockBegin, val: "{%"})
		l.advance(end)
		l.tag("%}", tokBlockEnd)
	}
}

// data emits the text before an opening marker at end, stripped as its sign
// and lstrip_blocks ask.
func (l *lexer) data(end int, sign byte, lstrip bool) {
	text := l.src[l.pos:end]
	out := text
	if sign == '-' {
		out = strings.TrimRightFunc(text, isSpace)
	} else if sign != '+' && lstrip {
		start := strings.LastIndexByte(text, '\n') + 1
		if (start > 0 || l.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
			out = text[:start]
		}
	}
	if out != "" {
		l.emit(token{kind: tokData, val: out})
	}
	l.advance(end)
}

// closeTag consumes a closing marker at pos, with the sign that may precede it
// (not before floor), and the whitespace the marker takes along.
func (l *lexer) closeTag(pos int, marker string, floor int) {
	end := pos + len(marker)
	sign := byte(0)
	if pos > floor {
		sign = l.src[pos-1]
	}
	switch {
	case sign == '-':
		end = len(l.src) - len(strings.TrimLeftFunc(l.src[end:], isSpace))
	case sign == '+' || marker == "}}":
	case end < len(l.src) && l.src[end] == '\n':
		end++
	}
	l.advance(end)
}

// rawBegin reports where a raw block's opening tag ends if one stands at pos.
func (l *lexer) rawBegin(pos int) int {
	rest := strings.TrimLeftFunc(l.src[pos:], isSpace)
	if !strings.HasPrefix(rest, "raw") {
		return 0
	}
	rest = strings.TrimLeftFunc(rest[3:], isSpace)
	if strings.HasPrefix(rest, "-%}") {
		rest = strings.TrimLeftFunc(rest[3:], isSpace)
	} else if strings.HasPrefix(rest, "%}") {
		rest = rest[2:]
	} else {
		return 0
	}
	return len(l.src) - len(rest)
}

// raw emits everything up to the endraw tag as text.
func (l *lexer) raw() {
	for i := l.pos; ; {
		j := strings.Index(l.src[i:], "{%")
		if j < 0 {
			l.fail("raw block is never closed with '{%% endraw %%}'")
		}
		open := i + j
		i = open + 2
		sign := byte(0)
		p := i
		if p < len(l.src) && (l.src[p] == '-' || l.src[p] == '+') {
			sign = l.src[p]
			p++
		}
		rest := strings.TrimLeftFunc(l.src[p:], isSpace)
		if !strings.HasPrefix(rest, "endraw") {
			continue
		}
		rest = strings.TrimLeftFunc(rest[len("endraw"):], isSpace)
		floor := len(l.src) - len(rest)
		closing := floor
		if strings.HasPrefix(rest, "-%}") || strings.HasPrefix(rest, "+%}") {
			closing++
		} else if !strings.HasPrefix(rest, "%}") {
			continue
		}
		l.data(open, sign, true)
		l.closeTag(closing, "%}", floor)
		return
	}
}

const operatorChars = "+-/*%~[](){}><=.:|,;"

// tag lexes the inside of a variable or block tag and its closing marker.
func (l *lexer) tag(marker string, end tokenKind) {
	var open []byte
	for {
		if l.pos >= len(l.src) {
			// The parser reports what is missing.
			return
		}
		rest := l.src[l.pos:]
		if len(open) == 0 {
			closing := -1
			switch {
			case strings.HasPrefix(rest, marker):
				closing = l.pos
			case strings.HasPrefix(rest[1:], marker) && (rest[0] == '-' || rest[0] == '+' && marker == "%}"):
				closing = l.pos + 1
			}
			if closing >= 0 {
				l.emit(token{kind: end, val: marker})
				l.closeTag(closing, marker, l.pos)
				return
			}
		}
		c, size := utf8.DecodeRuneInString(rest)
		switch {
		case isSpace(c):
			l.advance(l.pos + size)
		case c >= '0' && c <= '9':
			l.number(rest)
		case c == '_' || unicode.IsLetter(c):
			n := 0
			for i, c := range rest {
				if c != '_' && !unicode.IsLetter(c) && !unicode.IsDigit(c) && !unicode.IsMark(c) {
					break
				}
				n = i + utf8.RuneLen(c)
			}
			l.emit(token{kind: tokName, val: rest[:n]})
			l.advance(l.pos + n)
		case c == '\'' || c == '"':
			l.str(rest)
		default:
			op := ""
			for _, two := range [...]string{"//", "**", "==", "!=", ">=", "<="} {
				if strings.HasPrefix(rest, two) {
					op = two
				}
			}
			if op == "" && strings.ContainsRune(operatorChars, c) {
				op = string(c)
			}
			if op == "" {
				l.fail("unexpected character %q", c)
			}
			switch op {
			case "{":
				open = append(open, '}')
			case "(":
				open = append(open, ')')
			case "[":
				open = append(open, ']')
			case "}", ")", "]":
				if len(open) == 0 {
					l.fail("unexpected '%s'", op)
				}
				if want := open[len(open)-1]; want != op[0] {
					l.fail("unexpected '%s', expected '%c'", op, want)
				}
				open = open[:len(open)-1]
			}
			l.emit(token{kind: tokOp, val: op})
			l.advance(l.pos + len(op))
		}
	}
}

// digits returns how many bytes of s are digits of the base, with single
// underscores between them.
func digits(s string, ok func(byte) bool) int {
	n := 0
	for n < len(s) {
		if ok(s[n]) {
			n++
		} else if s[n] == '_' && n > 0 && n+1 < len(s) && ok(s[n+1]) {
			n += 2
		} else {
			break
		}
	}
	return n
}

func isDec(c byte) bool { return c >= '0' && c <= '9' }
func isHex(c byte) bool { return isDec(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }

func (l *lexer) number(s string) {
	n := digits(s, isDec)
	isFloat := false
	if !(l.pos > 0 && l.src[l.pos-1] == '.') {
		if n+1 < len(s) && s[n] == '.' && isDec(s[n+1]) {
			isFloat = true
			n += 1 + digits(s[n+1:], isDec)
		}
		if n < len(s) && s[n]|0x20 == 'e' {
			e := n + 1
			if e < len(s) && (s[e] == '+' || s[e] == '-') {
				e++
			}
			if e < len(s) && isDec(s[e]) {
				isFloat = true
				n = e + digits(s[e:], isDec)
			}
		}
	}
	var v any
	if isFloat {
		// An overflow gives an infinity, as in Python.
		f, _ := strconv.ParseFloat(strings.ReplaceAll(s[:n], "_", ""), 64)
		v = f
	} else {
		base := 10
		if s[0] == '0' && len(s) > 1 {
			var m int
			switch s[1] | 0x20 {
			case 'x':
				base, m = 16, digits(s[2:], isHex)
			case 'o':
				base, m = 8, digits(s[2:], func(c byte) bool { return c >= '0' && c <= '7' })
			case 'b':
				base, m = 2, digits(s[2:], func(c byte) bool { return c == '0' || c == '1' })
			}
			if m > 0 {
				n = 2 + m
			} else {
				base = 10
				n = digits(s, func(c byte) bool { return c == '0' })
			}
		}
		text := strings.ReplaceAll(s[:n], "_", "")
		if base != 10 {
			text = text[2:]
		}
		if len(text) > maxIntDigits {
			l.fail("integer literal of %d digits is too long", len(text))
		}
		b, ok := new(big.Int).SetString(text, base)
		if !ok {
			l.fail("bad integer literal %q", s[:n])
		}
		v = normInt(b)
	}
	l.emit(token{kind: tokNumber, val: s[:n], num: v})
	l.advance(l.pos + n)
}

// str lexes a string literal and decodes its escapes.
func (l *lexer) str(s string) {
	quote := s[0]
	end := -1
	escaped := false
	for i := 1; i < len(s); i++ {
		if s[i] == '\\' {
			escaped = true
			i++
		} else if s[i] == quote {
			end = i
			break
		}
	}
	if end < 0 {
		l.fail("string is never closed with %c", quote)
	}
	val := s[1:end]
	if escaped {
		val = l.unescape(val)
	}
	l.emit(token{kind: tokString, val: val})
	l.advance(l.pos + end + 1)
}

var simpleEscapes = map[byte]string{'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b",
	'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v"}

func (l *lexer) unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 >= len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		c := s[i]
		if r, ok := simpleEscapes[c]; ok {
			b.WriteString(r)
			continue
		}
		width := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		switch {
		case width > 0:
			if i+width >= len(s) {
				l.fail("truncated \\%c escape in a string", c)
			}
			n, err := strconv.ParseUint(s[i+1:i+1+width], 16, 32)
			if err != nil || n > unicode.MaxRune {
				l.fail("bad \\%c escape in a string", c)
			}
			b.WriteRune(rune(n))
			i += width
		case c >= '0' && c <= '7':
			n := rune(0)
			j := i
			for ; j < len(s) && j < i+3 && s[j] >= '0' && s[j] <= '7'; j++ {
				n = n*8 + rune(s[j]-'0')
			}
			b.WriteRune(n)
			i = j - 1
		case c == 'N':
			l.fail("\\N escapes are not supported; write the character itself")
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}
