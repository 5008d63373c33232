package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// spec is one conversion: of % formatting, of str.format or of both.
type spec struct {
	fill      string
	align     byte // < > ^ = or 0
	sign      byte // + space - or 0
	alt       bool // #
	width     int
	group     byte // , _ or 0
	precision int  // -1 if absent
	verb      byte // 0 if absent
}

// percentFormat is Python's format % values.
func (r *run) percentFormat(format, values any) any {
	f := r.str(format)
	_, marked := format.(markup)
	var pos []any
	var byName *Map
	single := true
	switch v := values.(type) {
	case tuple:
		pos, single = v, false
	case *Map:
		byName = v
		pos = []any{v}
	default:
		pos = []any{v}
	}
	used := 0
	take := func() any {
		if used >= len(pos) {
			r.fail(TypeError, "not enough arguments for format string")
		}
		used++
		return pos[used-1]
	}
	var b strings.Builder
	named := false
	for i := 0; i < len(f); {
		j := strings.IndexByte(f[i:], '%')
		if j < 0 {
			r.put(&b, f[i:])
			break
		}
		r.put(&b, f[i:i+j])
		i += j + 1
		next := func() byte {
			if i >= len(f) {
				r.fail(ValueError, "incomplete format")
			}
			return f[i]
		}
		sp := spec{fill: " ", precision: -1}
		var arg any = missing
		if next() == '(' {
			if byName == nil {
				r.fail(TypeError, "format requires a mapping")
			}
			depth, start := 1, i+1
			for depth > 0 {
				i++
				switch next() {
				case '(':
					depth++
				case ')':
					depth--
				}
			}
			key := f[start:i]
			i++
			v, ok := r.lookup(byName, key)
			if !ok {
				r.fail(ValueError, "format has no value for key %s", clip(strRepr(key)))
			}
			arg, named = v, true
		}
		zero := false
	flags:
		for ; ; i++ {
			switch next() {
			case '-':
				sp.align = '<'
			case '+':
				sp.sign = '+'
			case ' ':
				if sp.sign == 0 {
					sp.sign = ' '
				}
			case '#':
				sp.alt = true
			case '0':
				zero = true
			default:
				break flags
			}
		}
		number := func() int {
			if next() == '*' {
				i++
				return r.wantInt("* in a format", take(), 0)
			}
			n := 0
			for isDec(next()) {
				n = r.bounded(n*10 + int(next()-'0'))
				i++
			}
			return n
		}
		sp.width = number()
		if sp.width < 0 {
			sp.align, sp.width = '<', -sp.width
		}
		if next() == '.' {
			i++
			sp.precision = max(number(), 0)
		}
		for c := next(); c == 'l' || c == 'h' || c == 'L'; c = next() {
			i++
		}
		sp.verb = next()
		i++
		if sp.verb == '%' {
			r.put(&b, "%")
			continue
		}
		if arg == missing {
			arg = take()
		}
		if zero && sp.align == 0 {
			sp.fill, sp.align = "0", '='
		}
		r.put(&b, r.percentValue(sp, arg, marked))
	}
	if used < len(pos) && !(single && byName != nil) && !named {
		r.fail(TypeError, "not all arguments converted during string formatting")
	}
	return like(format, b.String())
}

func (r *run) percentValue(sp spec, v any, marked bool) string {
	switch sp.verb {
	case 's', 'r', 'a':
		var s string
		switch {
		case sp.verb == 'r':
			s = r.repr(v)
		case sp.verb == 'a':
			s = asciiRepr(r.repr(v))
		default:
			s = r.str(v)
		}
		if marked {
			if _, ok := v.(markup); !ok || sp.verb != 's' {
				s = r.escape(s)
			}
		}
		sp.fill, sp.sign = " ", 0
		if sp.align != '<' {
			sp.align = '>'
		}
		return r.padText(sp, cutRunes(s, sp.precision))
	case 'c':
		s, ok := text(v)
		if i, isInt := clampInt(v); isInt {
			if i < 0 || i > utf8.MaxRune {
				r.fail(ValueError, "%%c needs a character code below 0x110000")
			}
			s, ok = string(rune(i)), true
		}
		if !ok || utf8.RuneCountInString(s) != 1 {
			r.fail(TypeError, "%%c requires an int or a single character")
		}
		sp.fill = " "
		if sp.align != '<' {
			sp.align = '>'
		}
		return r.padText(sp, s)
	case 'd', 'i', 'u', 'x', 'X', 'o':
		b, ok := asInt(v)
		if f, isFloat := v.(float64); isFloat && (sp.verb == 'd' || sp.verb == 'i' || sp.verb == 'u') {
			if math.IsInf(f, 0) || math.IsNaN(f) {
				r.fail(ValueError, "cannot convert %s to an integer", floatRepr(f))
			}
			b, _ = big.NewFloat(math.Trunc(f)).Int(nil)
			ok = true
		}
		if !ok {
			r.useUndefined(v)
			r.fail(TypeError, "%%%c format: a number is required, not %s", sp.verb, typeName(v))
		}
		if sp.verb == 'i' || sp.verb == 'u' {
			sp.verb = 'd'
		}
		digits := sp.precision
		sp.precision = -1
		return r.formatInt(sp, b, digits)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		f, ok := asFloat(v)
		if !ok {
			r.useUndefined(v)
			r.fail(TypeError, "%%%c format: must be a real number, not %s", sp.verb, typeName(v))
		}
		return r.formatFloat(sp, f)
	}
	r.fail(ValueError, "unsupported format character %s", strRepr(string(rune(sp.verb))))
	return ""
}

func asciiRepr(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c < 0x80:
			b.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(&b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			fmt.Fprintf(&b, `\U%08x`, c)
		}
	}
	return b.String()
}

// cutRunes returns the first n characters of s, all if n < 0.
func cutRunes(s string, n int) string {
	if n < 0 {
		return s
	}
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

func (r *run) padText(sp spec, s string) string {
	switch sp.align {
	case '<', 0:
		return r.pad(s, sp.width, sp.fill, false, true)
	case '^':
		// str.format puts the odd blank behind, unlike str.center.
		n := sp.width - r.length(s)
		if n <= 0 {
			return s
		}
		s = r.pad(s, sp.width-(n+1)/2, sp.fill, true, false)
		return r.pad(s, sp.width, sp.fill, false, true)
	}
	return r.pad(s, sp.width, sp.fill, true, false)
}

// padNumber puts sign, prefix and digits together.
func (r *run) padNumber(sp spec, neg bool, prefix, digits string) string {
	sign := ""
	switch {
	case neg:
		sign = "-"
	case sp.sign == '+' || sp.sign == ' ':
		sign = string(rune(sp.sign))
	}
	sign += prefix
	switch sp.align {
	case '=':
		if n := sp.width - len(sign) - utf8.RuneCountInString(digits); n > 0 {
			r.alloc(mul(n, len(sp.fill)) + len(digits))
			digits = strings.Repeat(sp.fill, n) + digits
		}
		return sign + digits
	case 0:
		sp.align = '>'
	}
	return r.padText(sp, sign+digits)
}

// groupDigits puts a separator between groups of size digits in front of any
// fraction or exponent; zero padding that stands before the digits takes part.
func groupDigits(s string, sep byte, size, width int) string {
	end := 0
	for end < len(s) && isHex(s[end]) && !(s[end]|0x20 == 'e' && size == 3) {
		end++
	}
	head, tail := s[:end], s[end:]
	var b []byte
	for i := range len(head) {
		if i > 0 && (len(head)-i)%size == 0 {
			b = append(b, sep)
		}
		b = append(b, head[i])
	}
	out := string(b)
	for n := len(head); len(out)+len(tail) < width; n++ {
		if n%size == 0 {
			out = string(sep) + out
			if len(out)+len(tail) >= width {
				out = "0" + out
				break
			}
		}
		out = "0" + out
	}
	return out + tail
}

func (r *run) formatInt(sp spec, v *big.Int, minDigits int) string {
	r.intBits(v.BitLen())
	base, prefix := 10, ""
	switch sp.verb {
	case 'x', 'X':
		base, prefix = 16, "0"+string(rune(sp.verb))
	case 'o':
		base, prefix = 8, "0o"
	case 'b':
		base, prefix = 2, "0b"
	}
	s := new(big.Int).Abs(v).Text(base)
	if sp.verb == 'X' {
		s = strings.ToUpper(s)
	}
	if n := minDigits - len(s); n > 0 {
		s = strings.Repeat("0", r.bounded(n)) + s
	}
	if !sp.alt {
		prefix = ""
	}
	if sp.group != 0 {
		size := 3
		if base != 10 {
			size = 4
		}
		width := 0
		if sp.align == '=' && sp.fill == "0" {
			width = sp.width - len(prefix)
			if v.Sign() < 0 || sp.sign == '+' || sp.sign == ' ' {
				width--
			}
		}
		s = groupDigits(s, sp.group, size, r.bounded(width))
	}
	return r.padNumber(sp, v.Sign() < 0, prefix, s)
}

// formatFloat formats with the verbs e, f, g and %, or like repr for 0.
func (r *run) formatFloat(sp spec, f float64) string {
	neg := math.Signbit(f) && !math.IsNaN(f)
	upper := sp.verb == 'E' || sp.verb == 'F' || sp.verb == 'G'
	verb := sp.verb | 0x20
	prec := sp.precision
	if prec > 2000 {
		r.fail(ValueError, "a precision of %d is too big", prec)
	}
	a := math.Abs(f)
	percent := ""
	if sp.verb == '%' {
		a *= 100
		verb, percent = 'f', "%"
	}
	var s string
	switch {
	case math.IsInf(a, 0):
		s = "inf"
		if sp.fill == "0" && sp.align == '=' {
			sp.fill, sp.align = " ", '>'
		}
	case math.IsNaN(a):
		s = "nan"
		if sp.fill == "0" && sp.align == '=' {
			sp.fill, sp.align = " ", '>'
		}
	case sp.verb == 0 && prec < 0:
		s = floatRepr(a)
	case verb == 'f' || verb == 'e':
		if prec < 0 {
			prec = 6
		}
		s = strconv.FormatFloat(a, verb, prec, 64)
		if sp.alt && prec == 0 {
			if i := strings.IndexByte(s, 'e'); i >= 0 {
				s = s[:i] + "." + s[i:]
			} else {
				s += "."
			}
		}
	default:
		s = generalFloat(a, prec, sp.alt, sp.verb == 0)
	}
	if upper {
		s = strings.ToUpper(s)
	}
	if sp.group != 0 {
		width := 0
		if sp.align == '=' && sp.fill == "0" {
			width = sp.width - len(percent)
			if neg || sp.sign == '+' || sp.sign == ' ' {
				width--
			}
		}
		s = groupDigits(s, sp.group, 3, r.bounded(width))
	}
	return r.padNumber(sp, neg, "", s+percent)
}

// generalFloat is the g conversion; with point, a number in fixed notation
// keeps one digit after the point.
func generalFloat(a float64, prec int, alt, point bool) string {
	if prec < 0 {
		prec = 6
	}
	if prec == 0 {
		prec = 1
	}
	s := strconv.FormatFloat(a, 'e', prec-1, 64)
	i := strings.IndexByte(s, 'e')
	exp, _ := strconv.Atoi(s[i+1:])
	limit := prec
	if point {
		limit-- // str.format without a type switches one digit earlier
	}
	fixed := exp >= -4 && exp < limit
	mant, tail := s[:i], s[i:]
	if fixed {
		mant, tail = strconv.FormatFloat(a, 'f', max(prec-1-exp, 0), 64), ""
	}
	if !alt && strings.Contains(mant, ".") {
		mant = strings.TrimRight(strings.TrimRight(mant, "0"), ".")
	}
	if fixed && point && !strings.Contains(mant, ".") {
		mant += ".0"
	}
	return mant + tail
}

// --- str.format ---

func (r *run) strFormat(self any, a args) any {
	kw := NewMap()
	for _, k := range a.kw {
		kw.Set(k.name, k.val)
	}
	f := formatter{r: r, pos: a.pos, kw: kw, escape: isMarkup(self)}
	return like(self, f.format(r.str(self), 2))
}

func (r *run) strFormatMap(self any, a args) any {
	v := r.bind("format_map", a, 1, "mapping")[0]
	m, ok := v.(*Map)
	if !ok {
		r.fail(TypeError, "format_map needs a mapping, not %s", typeName(v))
	}
	f := formatter{r: r, kw: m, escape: isMarkup(self)}
	return like(self, f.format(r.str(self), 2))
}

func isMarkup(v any) bool { _, ok := v.(markup); return ok }

type formatter struct {
	r      *run
	pos    []any
	kw     *Map
	auto   int  // next automatic field number, -1 once fields are numbered by hand
	manual bool // fields are numbered by hand
	escape bool
}

// format fills the replacement fields of s; fields in format specs may nest
// depth-1 deep.
func (f *formatter) format(s string, depth int) string {
	r := f.r
	if depth == 0 {
		r.fail(ValueError, "format fields are nested too deeply")
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		j := strings.IndexAny(s[i:], "{}")
		if j < 0 {
			r.put(&b, s[i:])
			break
		}
		r.put(&b, s[i:i+j])
		i += j
		if i+1 < len(s) && s[i+1] == s[i] {
			r.put(&b, s[i:i+1])
			i += 2
			continue
		}
		if s[i] == '}' {
			r.fail(ValueError, "single '}' in a format string")
		}
		level, end := 1, i+1
		for ; end < len(s); end++ {
			if s[end] == '{' {
				level++
			} else if s[end] == '}' {
				if level--; level == 0 {
					break
				}
			}
		}
		if level > 0 {
			r.fail(ValueError, "expected '}' before the end of a format string")
		}
		r.put(&b, f.field(s[i+1:end], depth))
		i = end + 1
	}
	return b.String()
}

// field formats one "name!conversion:spec".
func (f *formatter) field(s string, depth int) string {
	r := f.r
	name, format, conv := s, "", byte(0)
	// A bracketed index may contain "!" and ":".
	inIndex := false
	for i := range len(s) {
		if s[i] == '[' {
			inIndex = true
		} else if s[i] == ']' {
			inIndex = false
		}
		if inIndex || s[i] != '!' && s[i] != ':' {
			continue
		}
		name, format = s[:i], s[i+1:]
		if s[i] == '!' {
			if format == "" || len(format) > 1 && format[1] != ':' {
				r.fail(ValueError, "bad conversion in a format field")
			}
			conv = format[0]
			format = strings.TrimPrefix(format[1:], ":")
		}
		break
	}
	v := f.value(name)
	if strings.ContainsAny(format, "{}") {
		format = f.format(format, depth-1)
	}
	switch conv {
	case 0:
	case 's':
		v = r.str(v)
	case 'r':
		v = r.repr(v)
	case 'a':
		v = asciiRepr(r.repr(v))
	default:
		r.fail(ValueError, "unknown conversion '!%c' in a format field", conv)
	}
	out := r.formatValue(v, format)
	if f.escape && !isMarkup(v) {
		out = r.escape(out)
	}
	return out
}

// value finds what a field name such as 0.attr[key] names.
func (f *formatter) value(name string) any {
	r := f.r
	end := strings.IndexAny(name, ".[")
	if end < 0 {
		end = len(name)
	}
	first, rest := name[:end], name[end:]
	var v any
	number, isNum := int64(0), false
	if first == "" {
		if f.manual {
			r.fail(ValueError, "cannot mix automatic and manual field numbering")
		}
		number, isNum = int64(f.auto), true
		f.auto++
	} else if n, ok := parseInt(first, 10); ok && allRunes(first, func(c rune) bool { return c < 0x80 && isDec(byte(c)) }) {
		if f.auto > 0 {
			r.fail(ValueError, "cannot mix automatic and manual field numbering")
		}
		f.manual = true
		number, isNum = math.MaxInt64, true
		if i, ok := n.(int64); ok {
			number = i
		}
	}
	if isNum {
		if number >= int64(len(f.pos)) {
			r.fail(ValueError, "format string needs more than %d arguments", len(f.pos))
		}
		v = f.pos[number]
	} else {
		got, ok := f.kw.Get(first)
		if !ok {
			r.fail(ValueError, "format string needs the argument %s", clip(strRepr(first)))
		}
		v = got
	}
	for rest != "" {
		r.step(0)
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[") + 1
			if end == 0 {
				end = len(rest)
			}
			v = r.attr(v, rest[1:end])
			rest = rest[end:]
			continue
		}
		end := strings.IndexByte(rest, ']')
		if rest[0] != '[' || end < 0 {
			r.fail(ValueError, "bad field name in a format string")
		}
		var key any = rest[1:end]
		if n, ok := parseInt(rest[1:end], 10); ok && isDec(rest[1]) {
			key = n
		}
		v = r.item(v, key)
		rest = rest[end+1:]
	}
	return v
}

// formatValue is Python's format(v, spec).
func (r *run) formatValue(v any, format string) string {
	if format == "" {
		return r.str(v)
	}
	sp := r.parseSpec(format)
	switch v := v.(type) {
	case string, markup:
		if sp.verb != 0 && sp.verb != 's' {
			r.fail(ValueError, "unknown format code '%c' for a str", sp.verb)
		}
		if sp.sign != 0 || sp.alt || sp.group != 0 || sp.align == '=' && sp.fill != "0" {
			r.fail(ValueError, "sign, '#', ',' and '=' are not allowed in the format of a str")
		}
		if sp.align == '=' {
			sp.align = '<'
		}
		return r.padText(sp, cutRunes(r.str(v), sp.precision))
	case bool, int64, *big.Int:
		b, _ := asInt(v)
		switch sp.verb {
		case 0, 'd', 'n', 'x', 'X', 'o', 'b':
			if sp.precision >= 0 {
				r.fail(ValueError, "precision not allowed in the format of an int")
			}
			return r.formatInt(sp, b, 0)
		case 'c':
			if !b.IsInt64() || b.Int64() < 0 || b.Int64() > utf8.MaxRune {
				r.fail(ValueError, "character code out of range")
			}
			return r.padText(sp, string(rune(b.Int64())))
		}
		f, _ := asFloat(v)
		return r.checkedFloat(sp, f)
	case float64:
		return r.checkedFloat(sp, v)
	}
	r.useUndefined(v)
	r.fail(TypeError, "unsupported format string for '%s'", typeName(v))
	return ""
}

func (r *run) checkedFloat(sp spec, f float64) string {
	if sp.verb != 0 && strings.IndexByte("eEfFgGn%", sp.verb) < 0 {
		r.fail(ValueError, "unknown format code '%c' for a number", sp.verb)
	}
	if sp.verb == 'n' {
		sp.verb = 'g'
	}
	return r.formatFloat(sp, f)
}

// parseSpec reads [[fill]align][sign][z][#][0][width][,|_][.precision][type].
func (r *run) parseSpec(s string) spec {
	whole := s
	sp := spec{fill: " ", precision: -1}
	isAlign := func(c byte) bool { return c == '<' || c == '>' || c == '^' || c == '=' }
	if _, n := utf8.DecodeRuneInString(s); len(s) > n && isAlign(s[n]) {
		sp.fill, sp.align = s[:n], s[n]
		s = s[n+1:]
	} else if s != "" && isAlign(s[0]) {
		sp.align = s[0]
		s = s[1:]
	}
	peek := func() byte {
		if s == "" {
			return 0
		}
		return s[0]
	}
	if c := peek(); c == '+' || c == '-' || c == ' ' {
		sp.sign = c
		s = s[1:]
	}
	if peek() == 'z' {
		s = s[1:]
	}
	if peek() == '#' {
		sp.alt = true
		s = s[1:]
	}
	if peek() == '0' {
		if sp.align == 0 {
			sp.fill, sp.align = "0", '='
		}
		s = s[1:]
	}
	number := func() int {
		n := 0
		for isDec(peek()) {
			n = r.bounded(n*10 + int(s[0]-'0'))
			s = s[1:]
		}
		return n
	}
	sp.width = number()
	if c := peek(); c == ',' || c == '_' {
		sp.group = c
		s = s[1:]
	}
	if peek() == '.' {
		s = s[1:]
		if !isDec(peek()) {
			r.fail(ValueError, "format specifier misses its precision")
		}
		sp.precision = number()
	}
	if s != "" {
		sp.verb = s[0]
		s = s[1:]
	}
	if s != "" {
		r.fail(ValueError, "invalid format specifier %s", clip(strRepr(whole)))
	}
	return sp
}
