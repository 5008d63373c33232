package jinja

import (
	"math/big"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// method is a method of a builtin type.
type method func(r *run, self any, a args) any

// dunders are attributes that every Python object has, and functionDunders
// those of functions and types. They lead out of the sandbox: reaching for one
// is a security error.
var (
	dunders = names(`__class__ __delattr__ __dict__ __dir__ __doc__ __eq__ __format__ __ge__ __getattribute__
		__getstate__ __gt__ __hash__ __init__ __init_subclass__ __le__ __lt__ __module__ __ne__ __new__ __reduce__
		__reduce_ex__ __repr__ __setattr__ __sizeof__ __str__ __subclasshook__ __add__ __contains__ __getitem__
		__iter__ __len__ __mod__ __mul__ __call__ __bool__ __int__ __float__`)
	functionDunders = names(`__annotations__ __builtins__ __closure__ __code__ __defaults__ __func__ __get__
		__globals__ __kwdefaults__ __name__ __qualname__ __self__ __subclasses__ __mro__ __bases__ __base__`)
)

var (
	strMethods, listMethods, tupleMethods, dictMethods, viewMethods, floatMethods, intMethods map[string]method
	listMutators                                                                              = names("append clear pop reverse insert sort extend remove")
	dictMutators                                                                              = names("clear pop popitem setdefault update")
)

func names(s string) map[string]bool {
	m := map[string]bool{}
	for _, n := range strings.Fields(s) {
		m[n] = true
	}
	return m
}

// attribute returns a Python attribute of obj; one the sandbox forbids comes
// back undefined, so that using it fails.
func (r *run) attribute(obj any, name string) (any, bool) {
	if _, undef := obj.(undefined); dunders[name] || functionDunders[name] && !undef {
		return unsafeAttr(obj, name), true
	}
	var table map[string]method
	switch o := obj.(type) {
	case string, markup:
		table = strMethods
	case *Map:
		if dictMutators[name] {
			return unsafeAttr(obj, name), true
		}
		table = dictMethods
	case []any:
		if listMutators[name] {
			return unsafeAttr(obj, name), true
		}
		table = listMethods
	case tuple, rangeValue:
		table = tupleMethods
	case *group:
		switch name {
		case "grouper":
			return o.grouper, true
		case "list":
			return o.list, true
		}
		table = tupleMethods
	case dictView:
		table = viewMethods
	case float64:
		table = floatMethods
	case bool, int64, *big.Int:
		table = intMethods
	case *loopContext:
		return o.attribute(r, name)
	case *namespace:
		return o.attrs.Get(name)
	case *macro:
		switch name {
		case "name":
			return o.def.name, true
		case "arguments":
			list := make([]any, len(o.def.params))
			for i, p := range o.def.params {
				list[i] = p
			}
			return list, true
		case "caller":
			return o.def.caller, true
		case "catch_kwargs":
			return o.def.kwargs, true
		case "catch_varargs":
			return o.def.varargs, true
		}
	case *cycler:
		switch name {
		case "items":
			return tuple(o.items), true
		case "current":
			return o.items[o.pos], true
		case "next":
			return &function{name, func(r *run, a args) any {
				r.bind(name, a, 0)
				v := o.items[o.pos]
				o.pos = (o.pos + 1) % len(o.items)
				return v
			}}, true
		case "reset":
			return &function{name, func(r *run, a args) any {
				r.bind(name, a, 0)
				o.pos = 0
				return nil
			}}, true
		}
	case *function:
		if o == dictGlobal && name == "fromkeys" {
			return &function{name, dictFromKeys}, true
		}
	}
	if m := table[name]; m != nil {
		return &function{name, func(r *run, a args) any { return m(r, obj, a) }}, true
	}
	return nil, false
}

func dictFromKeys(r *run, a args) any {
	v := r.bind("fromkeys", a, 1, "iterable", "value")
	if v[1] == missing {
		v[1] = nil
	}
	m := NewMap()
	next := r.mustIterate(v[0])
	for k, ok := next(); ok; k, ok = next() {
		r.setKey(m, k, v[1])
	}
	return m
}

// A cases.Caser has state, so each use makes its own.
func toUpper(s string) string { return cases.Upper(language.Und).String(s) }
func toLower(s string) string { return cases.Lower(language.Und).String(s) }

func (r *run) upper(s string) string {
	r.alloc(mul(len(s), 3))
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	r.step(len(s))
	return toUpper(s)
}

func (r *run) lower(s string) string {
	r.alloc(mul(len(s), 3))
	if isASCII(s) {
		return strings.ToLower(s)
	}
	r.step(len(s))
	return toLower(s)
}

func (r *run) capitalize(s string) string {
	if s == "" {
		return ""
	}
	_, n := utf8.DecodeRuneInString(s)
	first := s[:n]
	if n == 1 {
		first = strings.ToUpper(first)
	} else {
		first = cases.Title(language.Und, cases.NoLower).String(first)
	}
	// Lowered as a whole, because the form of a letter can depend on the one
	// before it.
	return first + strings.TrimPrefix(r.lower(s), toLower(s[:n]))
}

// titleCase is Python's str.title.
func (r *run) titleCase(s string) string {
	var b strings.Builder
	r.alloc(mul(len(s), 3))
	inWord := false
	for _, c := range s {
		cased := unicode.IsLetter(c) && (unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c))
		switch {
		case !cased:
			b.WriteRune(c)
		case inWord:
			b.WriteString(toLower(string(c)))
		default:
			b.WriteString(r.capitalize(string(c)))
		}
		inWord = cased
	}
	return b.String()
}

// strip removes characters of the set (whitespace if none was given) from the
// sides asked for.
func (r *run) strip(s string, set any, left, right bool) string {
	r.work(len(s))
	in := isSpace
	if set != missing && set != nil {
		chars, ok := text(set)
		if !ok {
			r.useUndefined(set)
			r.fail(TypeError, "strip characters must be a str or none, not %s", typeName(set))
		}
		r.work(mul(len(chars), 8))
		in = func(c rune) bool { return strings.ContainsRune(chars, c) }
		if len(chars) > 32 {
			table := map[rune]bool{}
			for _, c := range chars {
				table[c] = true
			}
			in = func(c rune) bool { return table[c] }
		}
	}
	if left {
		s = strings.TrimLeftFunc(s, in)
	}
	if right {
		s = strings.TrimRightFunc(s, in)
	}
	return s
}

// splitLines is Python's str.splitlines.
func (r *run) splitLines(s string, keepEnds bool) []any {
	r.work(len(s))
	out := []any{}
	start := 0
	for i := 0; i < len(s); {
		c, n := utf8.DecodeRuneInString(s[i:])
		end := i
		i += n
		switch c {
		case '\r':
			if i < len(s) && s[i] == '\n' {
				i++
			}
		case '\n', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		default:
			continue
		}
		if keepEnds {
			end = i
		}
		r.allocItems(1)
		out = append(out, s[start:end])
		start = i
	}
	if start < len(s) {
		out = append(out, s[start:])
	}
	return out
}

// split is Python's str.split and, with fromRight, str.rsplit.
func (r *run) split(s string, sep any, limit int, fromRight bool) []any {
	r.work(len(s))
	out := []any{}
	add := func(p string) {
		r.allocItems(1)
		if mul(len(out), itemSize) > r.lim.Value {
			r.allocItems(len(out))
		}
		out = append(out, p)
	}
	done := func() bool { return limit >= 0 && len(out) >= limit }
	if sep == missing || sep == nil {
		if fromRight {
			for s = strings.TrimRightFunc(s, isSpace); s != ""; {
				i := strings.LastIndexFunc(s, isSpace)
				if i < 0 || done() {
					add(s)
					break
				}
				_, n := utf8.DecodeRuneInString(s[i:])
				add(s[i+n:])
				s = strings.TrimRightFunc(s[:i], isSpace)
			}
		} else {
			for s = strings.TrimLeftFunc(s, isSpace); s != ""; {
				i := strings.IndexFunc(s, isSpace)
				if done() {
					add(s)
					break
				}
				if i < 0 {
					add(s)
					break
				}
				add(s[:i])
				s = strings.TrimLeftFunc(s[i:], isSpace)
			}
		}
	} else {
		by, ok := text(sep)
		if !ok {
			r.useUndefined(sep)
			r.fail(TypeError, "the separator must be a str or none, not %s", typeName(sep))
		}
		if by == "" {
			r.fail(ValueError, "empty separator")
		}
		for !done() {
			if fromRight {
				i := strings.LastIndex(s, by)
				if i < 0 {
					break
				}
				add(s[i+len(by):])
				s = s[:i]
			} else {
				i := strings.Index(s, by)
				if i < 0 {
					break
				}
				add(s[:i])
				s = s[i+len(by):]
			}
		}
		add(s)
	}
	if fromRight {
		for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
			out[i], out[j] = out[j], out[i]
		}
	}
	return out
}

// replace is Python's str.replace with at most n replacements (all if < 0).
func (r *run) replace(s, old, new string, n int) string {
	r.work(len(s))
	if n == 0 {
		return s
	}
	count := utf8.RuneCountInString(s) + 1
	if old != "" {
		count = strings.Count(s, old)
	}
	if n > 0 {
		count = min(count, n)
	}
	r.alloc(len(s) + mul(count, len(new)))
	return strings.Replace(s, old, new, n)
}

// join is Python's sep.join(items) over texts.
func (r *run) join(sep string, parts []string) string {
	n := 0
	for _, p := range parts {
		n += len(p) + len(sep)
		if n > r.lim.Value+len(sep) {
			break
		}
	}
	r.alloc(max(n-len(sep), 0))
	return strings.Join(parts, sep)
}

// wantText returns the text of a str argument or fails.
func (r *run) wantText(what string, v any) string {
	s, ok := text(v)
	if !ok {
		r.useUndefined(v)
		r.fail(TypeError, "%s must be a str, not %s", what, typeName(v))
	}
	return s
}

// wantInt returns an int argument, def if absent, or fails.
func (r *run) wantInt(what string, v any, def int) int {
	if v == missing {
		return def
	}
	i, ok := clampInt(v)
	if !ok {
		r.useUndefined(v)
		r.fail(TypeError, "%s must be an integer, not %s", what, typeName(v))
	}
	return i
}

// window cuts s to the [start:end] that find, count and their like take, and
// returns how many characters were cut off in front; ok is false if start lies
// behind the end.
func (r *run) window(s string, start, end any) (string, int, bool) {
	if start == missing && end == missing {
		return s, 0, true
	}
	n := r.length(s)
	norm := func(v any, def int) int {
		if v == missing || v == nil {
			return def
		}
		i := r.wantInt("start and end", v, 0)
		if i < 0 {
			i = max(i+n, 0)
		}
		return i
	}
	lo, hi := norm(start, 0), min(norm(end, n), n)
	if lo > n {
		return "", 0, false
	}
	if hi < lo {
		return "", lo, lo <= hi
	}
	return r.slice(s, sliceValue{int64(lo), int64(hi), nil}).(string), lo, true
}

// pad fills s to width with fill; it centres as Python does.
func (r *run) pad(s string, width int, fill string, left, right bool) string {
	n := width - r.length(s)
	if n <= 0 {
		return s
	}
	r.alloc(len(s) + mul(n, len(fill)))
	l, rt := 0, n
	if left && right {
		l = n/2 + n&width&1
		rt = n - l
	} else if left {
		l, rt = n, 0
	}
	return strings.Repeat(fill, l) + s + strings.Repeat(fill, rt)
}

func allRunes(s string, ok func(rune) bool) bool {
	for _, c := range s {
		if !ok(c) {
			return false
		}
	}
	return s != ""
}

// isCased reports whether s has cased characters and all of them pass.
func isCased(s string, ok func(rune) bool) bool {
	any := false
	for _, c := range s {
		if unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c) {
			any = true
			if !ok(c) {
				return false
			}
		}
	}
	return any
}

func isTitle(s string) bool {
	any, inWord := false, false
	for _, c := range s {
		switch {
		case unicode.IsUpper(c) || unicode.IsTitle(c):
			if inWord {
				return false
			}
			any, inWord = true, true
		case unicode.IsLower(c):
			if !inWord {
				return false
			}
			any = true
		default:
			inWord = false
		}
	}
	return any
}

// simple makes a str method without arguments whose result keeps the type of
// its receiver.
func simple(name string, f func(r *run, s string) string) method {
	return func(r *run, self any, a args) any {
		r.bind(name, a, 0)
		return like(self, f(r, r.str(self)))
	}
}

func predicate(name string, f func(s string) bool) method {
	return func(r *run, self any, a args) any {
		r.bind(name, a, 0)
		s := r.str(self)
		r.work(len(s))
		return f(s)
	}
}

// like returns s as Markup if self is Markup.
func like(self any, s string) any {
	if _, ok := self.(markup); ok {
		return markup(s)
	}
	return s
}

func likeAll(self any, items []any) []any {
	if _, ok := self.(markup); ok {
		for i, it := range items {
			items[i] = markup(it.(string))
		}
	}
	return items
}

// arg returns v's text, escaped if self is Markup and v is not.
func (r *run) arg(self, v any, what string) string {
	s := r.wantText(what, v)
	if _, ok := self.(markup); ok {
		return r.escape(v)
	}
	return s
}

func init() {
	find := func(name string, last, must bool) method {
		return func(r *run, self any, a args) any {
			v := r.bind(name, a, 1, "sub", "start", "end")
			s, off, ok := r.window(r.str(self), v[1], v[2])
			r.work(len(s))
			i := -1
			if ok {
				if last {
					i = strings.LastIndex(s, r.wantText("sub", v[0]))
				} else {
					i = strings.Index(s, r.wantText("sub", v[0]))
				}
			}
			if i < 0 {
				if must {
					r.fail(ValueError, "substring not found")
				}
				return int64(-1)
			}
			return int64(off + utf8.RuneCountInString(s[:i]))
		}
	}
	affix := func(name string, has func(s, affix string) bool) method {
		return func(r *run, self any, a args) any {
			v := r.bind(name, a, 1, "affix", "start", "end")
			s, _, ok := r.window(r.str(self), v[1], v[2])
			options := []any{v[0]}
			if t, isTuple := v[0].(tuple); isTuple {
				options = t
			}
			for _, o := range options {
				t := r.wantText("the argument of "+name, o)
				r.work(len(t))
				if ok && has(s, t) {
					return true
				}
			}
			return false
		}
	}
	stripper := func(name string, left, right bool) method {
		return func(r *run, self any, a args) any {
			return like(self, r.strip(r.str(self), r.bind(name, a, 0, "chars")[0], left, right))
		}
	}
	splitter := func(name string, fromRight bool) method {
		return func(r *run, self any, a args) any {
			v := r.bind(name, a, 0, "sep", "maxsplit")
			return likeAll(self, r.split(r.str(self), v[0], r.wantInt("maxsplit", v[1], -1), fromRight))
		}
	}
	padder := func(name string, left, right bool) method {
		return func(r *run, self any, a args) any {
			v := r.bind(name, a, 1, "width", "fillchar")
			fill := " "
			if v[1] != missing {
				fill = r.arg(self, v[1], "fillchar")
				if _, marked := self.(markup); !marked && utf8.RuneCountInString(fill) != 1 {
					r.fail(TypeError, "fillchar must be one character")
				}
			}
			return like(self, r.pad(r.str(self), r.wantInt("width", v[0], 0), fill, left, right))
		}
	}
	partition := func(name string, last bool) method {
		return func(r *run, self any, a args) any {
			s := r.str(self)
			sep := r.wantText("sep", r.bind(name, a, 1, "sep")[0])
			if sep == "" {
				r.fail(ValueError, "empty separator")
			}
			r.work(len(s))
			i := strings.Index(s, sep)
			if last {
				i = strings.LastIndex(s, sep)
			}
			parts := []any{s, "", ""}
			if i >= 0 {
				parts = []any{s[:i], sep, s[i+len(sep):]}
			} else if last {
				parts = []any{"", "", s}
			}
			return tuple(likeAll(self, parts))
		}
	}
	strMethods = map[string]method{
		"upper":      simple("upper", (*run).upper),
		"lower":      simple("lower", (*run).lower),
		"casefold":   simple("casefold", func(r *run, s string) string { r.alloc(mul(len(s), 3)); return cases.Fold().String(s) }),
		"capitalize": simple("capitalize", (*run).capitalize),
		"title":      simple("title", (*run).titleCase),
		"swapcase": simple("swapcase", func(r *run, s string) string {
			r.alloc(mul(len(s), 3))
			var b strings.Builder
			for _, c := range s {
				switch {
				case unicode.IsUpper(c):
					b.WriteString(toLower(string(c)))
				case unicode.IsLower(c):
					b.WriteString(toUpper(string(c)))
				default:
					b.WriteRune(c)
				}
			}
			return b.String()
		}),
		"strip":      stripper("strip", true, true),
		"lstrip":     stripper("lstrip", true, false),
		"rstrip":     stripper("rstrip", false, true),
		"split":      splitter("split", false),
		"rsplit":     splitter("rsplit", true),
		"startswith": affix("startswith", strings.HasPrefix),
		"endswith":   affix("endswith", strings.HasSuffix),
		"find":       find("find", false, false),
		"rfind":      find("rfind", true, false),
		"index":      find("index", false, true),
		"rindex":     find("rindex", true, true),
		"center":     padder("center", true, true),
		"ljust":      padder("ljust", false, true),
		"rjust":      padder("rjust", true, false),
		"partition":  partition("partition", false),
		"rpartition": partition("rpartition", true),
		"isspace":    predicate("isspace", func(s string) bool { return allRunes(s, isSpace) }),
		"isalpha":    predicate("isalpha", func(s string) bool { return allRunes(s, unicode.IsLetter) }),
		"isdigit":    predicate("isdigit", func(s string) bool { return allRunes(s, isDigitRune) }),
		"isdecimal":  predicate("isdecimal", func(s string) bool { return allRunes(s, isDigitRune) }),
		"isnumeric":  predicate("isnumeric", func(s string) bool { return allRunes(s, unicode.IsNumber) }),
		"isalnum": predicate("isalnum", func(s string) bool {
			return allRunes(s, func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) })
		}),
		"isascii":     predicate("isascii", isASCII),
		"isprintable": predicate("isprintable", func(s string) bool { return s == "" || allRunes(s, printable) }),
		"isupper":     predicate("isupper", func(s string) bool { return isCased(s, unicode.IsUpper) }),
		"islower":     predicate("islower", func(s string) bool { return isCased(s, unicode.IsLower) }),
		"istitle":     predicate("istitle", isTitle),
		"isidentifier": predicate("isidentifier", func(s string) bool {
			c, _ := utf8.DecodeRuneInString(s)
			return !unicode.IsDigit(c) && !unicode.IsMark(c) && allRunes(s, func(c rune) bool {
				return c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c) || unicode.IsMark(c)
			})
		}),
		"replace": func(r *run, self any, a args) any {
			v := r.bind("replace", a, 2, "old", "new", "count")
			n := r.wantInt("count", v[2], -1)
			return like(self, r.replace(r.str(self), r.wantText("old", v[0]), r.arg(self, v[1], "new"), n))
		},
		"count": func(r *run, self any, a args) any {
			v := r.bind("count", a, 1, "sub", "start", "end")
			s, _, ok := r.window(r.str(self), v[1], v[2])
			sub := r.wantText("sub", v[0])
			r.work(len(s))
			if !ok {
				return int64(0)
			}
			return int64(strings.Count(s, sub))
		},
		"join": func(r *run, self any, a args) any {
			next := r.mustIterate(r.bind("join", a, 1, "iterable")[0])
			var parts []string
			for v, ok := next(); ok; v, ok = next() {
				if _, isText := text(v); !isText {
					r.useUndefined(v)
					r.fail(TypeError, "sequence item %d: expected str, %s found", len(parts), typeName(v))
				}
				r.allocItems(1)
				parts = append(parts, r.arg(self, v, "item"))
			}
			return like(self, r.join(r.str(self), parts))
		},
		"splitlines": func(r *run, self any, a args) any {
			v := r.bind("splitlines", a, 0, "keepends")
			return likeAll(self, r.splitLines(r.str(self), v[0] != missing && r.truth(v[0])))
		},
		"removeprefix": func(r *run, self any, a args) any {
			p := r.wantText("prefix", r.bind("removeprefix", a, 1, "prefix")[0])
			return like(self, strings.TrimPrefix(r.str(self), p))
		},
		"removesuffix": func(r *run, self any, a args) any {
			p := r.wantText("suffix", r.bind("removesuffix", a, 1, "suffix")[0])
			return like(self, strings.TrimSuffix(r.str(self), p))
		},
		"zfill": func(r *run, self any, a args) any {
			s := r.str(self)
			width := r.wantInt("width", r.bind("zfill", a, 1, "width")[0], 0)
			sign := ""
			if s != "" && (s[0] == '-' || s[0] == '+') {
				sign = s[:1]
			}
			return like(self, sign+r.pad(s[len(sign):], width-len(sign), "0", true, false))
		},
		"expandtabs": func(r *run, self any, a args) any {
			size := r.wantInt("tabsize", r.bind("expandtabs", a, 0, "tabsize")[0], 8)
			var b strings.Builder
			col := 0
			for _, c := range r.str(self) {
				switch c {
				case '\t':
					if size > 0 {
						n := size - col%size
						r.put(&b, strings.Repeat(" ", r.bounded(n)))
						col += n
					}
					continue
				case '\n', '\r':
					col = 0
				default:
					col++
				}
				r.put(&b, string(c))
			}
			return like(self, b.String())
		},
		"format":     func(r *run, self any, a args) any { return r.strFormat(self, a) },
		"format_map": func(r *run, self any, a args) any { return r.strFormatMap(self, a) },
	}

	count := func(r *run, self any, a args) any {
		want := r.bind("count", a, 1, "value")[0]
		n := int64(0)
		next := r.iterate(self)
		for v, ok := next(); ok; v, ok = next() {
			if r.equal(v, want) {
				n++
			}
		}
		return n
	}
	index := func(r *run, self any, a args) any {
		v := r.bind("index", a, 1, "value", "start", "stop")
		items := r.list(self)
		norm := func(v any, def int) int {
			i := r.wantInt("start and stop", v, def)
			if i < 0 {
				i = max(i+len(items), 0)
			}
			return i
		}
		for i := norm(v[1], 0); i < min(norm(v[2], len(items)), len(items)); i++ {
			if r.equal(items[i], v[0]) {
				return int64(i)
			}
		}
		r.fail(ValueError, "value is not in %s", typeName(self))
		return nil
	}
	same := func(r *run, self any, a args) any {
		r.bind("copy", a, 0)
		return self
	}
	listMethods = map[string]method{"count": count, "index": index, "copy": same}
	tupleMethods = map[string]method{"count": count, "index": index}
	view := func(name string) method {
		return func(r *run, self any, a args) any {
			r.bind(name, a, 0)
			return dictView{self.(*Map), name}
		}
	}
	dictMethods = map[string]method{
		"keys":   view("keys"),
		"values": view("values"),
		"items":  view("items"),
		"copy":   same,
		"get": func(r *run, self any, a args) any {
			v := r.bind("get", a, 1, "key", "default")
			if got, ok := r.lookup(self.(*Map), v[0]); ok {
				return got
			}
			if v[1] == missing {
				return nil
			}
			return v[1]
		},
		"fromkeys": func(r *run, _ any, a args) any { return dictFromKeys(r, a) },
	}
	viewMethods = map[string]method{
		"isdisjoint": func(r *run, self any, a args) any {
			next := r.mustIterate(r.bind("isdisjoint", a, 1, "other")[0])
			for v, ok := next(); ok; v, ok = next() {
				if r.contains(self, v) {
					return false
				}
			}
			return true
		},
	}
	floatMethods = map[string]method{
		"is_integer": func(r *run, self any, a args) any {
			r.bind("is_integer", a, 0)
			_, ok := floatToInt(self.(float64))
			return ok
		},
	}
	intMethods = map[string]method{
		"bit_length": func(r *run, self any, a args) any {
			r.bind("bit_length", a, 0)
			b, _ := asInt(self)
			return int64(b.BitLen())
		},
	}
}

// bounded returns n after making sure that a string of n bytes is allowed.
func (r *run) bounded(n int) int {
	if n > r.lim.Value {
		r.alloc(n)
	}
	return n
}
