package jinja

import (
	"math"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// filter is a builtin filter: value | name(args).
type filter func(r *run, v any, a args) any

var filters map[string]filter

func init() {
	filters = map[string]filter{
		"abs": func(r *run, v any, a args) any {
			r.bind("abs", a, 0)
			if f, ok := v.(float64); ok {
				return math.Abs(f)
			}
			b, ok := asInt(v)
			if !ok {
				r.useUndefined(v)
				r.fail(TypeError, "bad operand type for abs: '%s'", typeName(v))
			}
			return normInt(new(big.Int).Abs(b))
		},
		"attr": func(r *run, v any, a args) any {
			name := r.wantText("the attribute name", r.bind("attr", a, 1, "name")[0])
			if got, ok := r.attribute(v, name); ok {
				return got
			}
			return r.undefinedAttr(v, name)
		},
		"batch":      batchFilter,
		"capitalize": textFilter("capitalize", (*run).capitalize),
		"center": func(r *run, v any, a args) any {
			w := r.wantInt("width", r.bind("center", a, 0, "width")[0], 80)
			return like(v, r.pad(r.str(v), w, " ", true, true))
		},
		"count":       lengthFilter,
		"d":           defaultFilter,
		"default":     defaultFilter,
		"dictsort":    dictsortFilter,
		"e":           escapeFilter,
		"escape":      escapeFilter,
		"forceescape": func(r *run, v any, a args) any { r.bind("forceescape", a, 0); return markup(r.escape(r.str(v))) },
		"filesizeformat": func(r *run, v any, a args) any {
			b := r.bind("filesizeformat", a, 0, "binary")
			return r.fileSize(v, b[0] != missing && r.truth(b[0]))
		},
		"first": func(r *run, v any, a args) any {
			r.bind("first", a, 0)
			if got, ok := r.mustIterate(v)(); ok {
				return got
			}
			return undefined{UndefinedError, "no first item, the sequence was empty"}
		},
		"float": func(r *run, v any, a args) any {
			d := r.bind("float", a, 0, "default")[0]
			if f, ok := r.toFloat(v); ok {
				return f
			}
			if d == missing {
				return 0.0
			}
			return d
		},
		"format": func(r *run, v any, a args) any {
			if len(a.pos) > 0 && len(a.kw) > 0 {
				r.fail(RuntimeError, "format takes positional or keyword arguments, not both")
			}
			if len(a.kw) > 0 {
				m := NewMap()
				for _, k := range a.kw {
					m.Set(k.name, k.val)
				}
				return r.percentFormat(softText(r, v), m)
			}
			return r.percentFormat(softText(r, v), tuple(a.pos))
		},
		"groupby": groupbyFilter,
		"indent":  indentFilter,
		"int":     intFilter,
		"items": func(r *run, v any, a args) any {
			r.bind("items", a, 0)
			if _, ok := v.(undefined); ok {
				return r.generate("generator", []any{})
			}
			m, ok := v.(*Map)
			if !ok {
				r.fail(TypeError, "can only get item pairs from a mapping")
			}
			return &generator{"generator", r.iterate(dictView{m, "items"})}
		},
		"join": joinFilter,
		"last": func(r *run, v any, a args) any {
			r.bind("last", a, 0)
			v = r.reversed(v)
			if got, ok := r.mustIterate(v)(); ok {
				return got
			}
			return undefined{UndefinedError, "no last item, the sequence was empty"}
		},
		"length": lengthFilter,
		"list": func(r *run, v any, a args) any {
			r.bind("list", a, 0)
			return r.list(v)
		},
		"lower": textFilter("lower", (*run).lower),
		"map":   mapFilter,
		"max":   extreme("max", ">"),
		"min":   extreme("min", "<"),
		"random": func(r *run, v any, a args) any {
			r.bind("random", a, 0)
			n := r.length(v)
			if n < 0 {
				r.fail(TypeError, "object of type '%s' has no len()", typeName(v))
			}
			if n == 0 {
				return undefined{UndefinedError, "no random item, the sequence was empty"}
			}
			return r.item(v, int64(rand.IntN(n)))
		},
		"reject":     selectFilter("reject", false, false),
		"rejectattr": selectFilter("rejectattr", true, false),
		"select":     selectFilter("select", false, true),
		"selectattr": selectFilter("selectattr", true, true),
		"replace": func(r *run, v any, a args) any {
			b := r.bind("replace", a, 2, "old", "new", "count")
			n := -1
			if b[2] != missing && b[2] != nil {
				n = r.wantInt("count", b[2], -1)
			}
			return r.replace(r.str(v), r.str(b[0]), r.str(b[1]), n)
		},
		"reverse": func(r *run, v any, a args) any {
			r.bind("reverse", a, 0)
			if _, ok := text(v); ok {
				return r.slice(v, sliceValue{nil, nil, int64(-1)})
			}
			return r.reversed(v)
		},
		"round":  roundFilter,
		"safe":   func(r *run, v any, a args) any { r.bind("safe", a, 0); return markup(r.str(v)) },
		"slice":  sliceFilter,
		"sort":   sortFilter,
		"string": func(r *run, v any, a args) any { r.bind("string", a, 0); return softText(r, v) },
		"striptags": func(r *run, v any, a args) any {
			r.bind("striptags", a, 0)
			return r.stripTags(r.str(v))
		},
		"sum":    sumFilter,
		"title":  textFilter("title", (*run).titleWords),
		"tojson": tojsonFilter,
		"trim": func(r *run, v any, a args) any {
			return like(v, r.strip(r.str(v), r.bind("trim", a, 0, "chars")[0], true, true))
		},
		"truncate": truncateFilter,
		"unique":   uniqueFilter,
		"upper":    textFilter("upper", (*run).upper),
		"urlencode": func(r *run, v any, a args) any {
			r.bind("urlencode", a, 0)
			return r.urlEncode(v)
		},
		"wordcount": func(r *run, v any, a args) any {
			r.bind("wordcount", a, 0)
			s := r.str(v)
			r.work(len(s))
			n, in := 0, false
			for _, c := range s {
				w := c == '_' || unicode.IsLetter(c) || unicode.IsNumber(c)
				if w && !in {
					n++
				}
				in = w
			}
			return int64(n)
		},
		"wordwrap": wordwrapFilter,
		"xmlattr": func(r *run, v any, a args) any {
			b := r.bind("xmlattr", a, 0, "autospace")
			m, ok := v.(*Map)
			if !ok {
				r.fail(TypeError, "xmlattr needs a mapping, not %s", typeName(v))
			}
			var parts []string
			for k, v := range m.All() {
				if _, undef := v.(undefined); undef || v == nil {
					continue
				}
				if strings.ContainsAny(k, " \t\n\r\f\v/>=") {
					r.fail(ValueError, "invalid character in attribute name %s", clip(strRepr(k)))
				}
				parts = append(parts, r.escape(k)+"=\""+r.escape(v)+"\"")
			}
			s := r.join(" ", parts)
			if s != "" && (b[0] == missing || r.truth(b[0])) {
				s = " " + s
			}
			return s
		},
	}
}

// softText is str(v) that keeps Markup.
func softText(r *run, v any) any {
	if m, ok := v.(markup); ok {
		return m
	}
	return r.str(v)
}

func textFilter(name string, f func(*run, string) string) filter {
	return func(r *run, v any, a args) any {
		r.bind(name, a, 0)
		return like(v, f(r, r.str(v)))
	}
}

func lengthFilter(r *run, v any, a args) any {
	r.bind("length", a, 0)
	n := r.length(v)
	if n < 0 {
		r.fail(TypeError, "object of type '%s' has no len()", typeName(v))
	}
	return int64(n)
}

func defaultFilter(r *run, v any, a args) any {
	b := r.bind("default", a, 0, "default_value", "boolean")
	if b[0] == missing {
		b[0] = ""
	}
	if _, ok := v.(undefined); ok || b[1] != missing && r.truth(b[1]) && !r.truth(v) {
		return b[0]
	}
	return v
}

func escapeFilter(r *run, v any, a args) any {
	r.bind("escape", a, 0)
	return markup(r.escape(v))
}

// generate returns a generator over items.
func (r *run) generate(name string, items []any) *generator {
	return &generator{name, r.iterate(items)}
}

// reversed is Python's reversed(v), or a reversed list of what only iterates.
func (r *run) reversed(v any) any {
	items := r.list(v)
	i := len(items)
	return &generator{"list_reverseiterator", func() (any, bool) {
		if i == 0 {
			return nil, false
		}
		r.step(0)
		i--
		return items[i], true
	}}
}

// attrGetter returns the function that filters use to read an attribute given
// by name, such as 'function.name' or 0. A nil attribute is the item itself.
func (r *run) attrGetter(attribute, def any) func(any) any {
	var path []any
	switch at := attribute.(type) {
	case missingType, nil:
	case string, markup:
		s, _ := text(at)
		for _, p := range strings.Split(s, ".") {
			if allRunes(p, isDigitRune) {
				n, _ := parseInt(p, 10)
				path = append(path, n)
			} else {
				path = append(path, p)
			}
		}
	default:
		path = []any{at}
	}
	return func(v any) any {
		for _, p := range path {
			r.step(0)
			v = r.item(v, p)
			if _, ok := v.(undefined); ok && def != missing && def != nil {
				v = def
			}
		}
		return v
	}
}

// sortKey is the attribute getter of sort, min, max, unique and groupby: texts
// compare without case unless asked otherwise.
func (r *run) sortKey(attribute, def, caseSensitive any) func(any) any {
	get := r.attrGetter(attribute, def)
	if caseSensitive != missing && r.truth(caseSensitive) {
		return get
	}
	return func(v any) any {
		v = get(v)
		if s, ok := text(v); ok {
			return r.lower(s)
		}
		return v
	}
}

// sorted returns items in stable order of key.
func (r *run) sorted(items []any, key func(any) any, reverse bool) []any {
	r.allocItems(2 * len(items))
	keys := make([]any, len(items))
	order := make([]int, len(items))
	for i, it := range items {
		keys[i] = key(it)
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool {
		if reverse {
			return r.compare("<", keys[order[j]], keys[order[i]])
		}
		return r.compare("<", keys[order[i]], keys[order[j]])
	})
	out := make([]any, len(items))
	for i, at := range order {
		out[i] = items[at]
	}
	return out
}

func flag(r *run, v any) bool { return v != missing && r.truth(v) }

func sortFilter(r *run, v any, a args) any {
	b := r.bind("sort", a, 0, "reverse", "case_sensitive", "attribute")
	attributes := []any{b[2]}
	if s, ok := text(b[2]); ok {
		attributes = nil
		for _, at := range strings.Split(s, ",") {
			attributes = append(attributes, at)
		}
	}
	keys := make([]func(any) any, len(attributes))
	for i, at := range attributes {
		keys[i] = r.sortKey(at, missing, b[1])
	}
	// The key is a list even for one attribute: lists of undefined values
	// compare as equal, where the values alone do not compare.
	key := func(v any) any {
		t := make([]any, len(keys))
		for i, k := range keys {
			t[i] = k(v)
		}
		return t
	}
	return r.sorted(r.list(v), key, flag(r, b[0]))
}

func dictsortFilter(r *run, v any, a args) any {
	b := r.bind("dictsort", a, 0, "case_sensitive", "by", "reverse")
	at := int64(0)
	if b[1] != missing {
		switch s, _ := text(b[1]); s {
		case "key":
		case "value":
			at = 1
		default:
			r.fail(RuntimeError, "dictsort sorts by 'key' or 'value'")
		}
	}
	m, ok := v.(*Map)
	if !ok {
		r.useUndefined(v)
		r.fail(TypeError, "dictsort needs a mapping, not %s", typeName(v))
	}
	return r.sorted(r.list(dictView{m, "items"}), r.sortKey(at, missing, b[0]), flag(r, b[2]))
}

func uniqueFilter(r *run, v any, a args) any {
	b := r.bind("unique", a, 0, "case_sensitive", "attribute")
	key := r.sortKey(b[1], missing, b[0])
	next := r.mustIterate(v)
	seen := NewMap()
	return &generator{"generator", func() (any, bool) {
		for {
			it, ok := next()
			if !ok {
				return nil, false
			}
			k := key(it)
			if seen.findHashed(r.mustHash(k)) < 0 {
				r.setKey(seen, k, nil)
				return it, true
			}
		}
	}}
}

func extreme(name, op string) filter {
	return func(r *run, v any, a args) any {
		b := r.bind(name, a, 0, "case_sensitive", "attribute")
		key := r.sortKey(b[1], missing, b[0])
		next := r.mustIterate(v)
		best, ok := next()
		if !ok {
			return undefined{UndefinedError, "no aggregated item, the sequence was empty"}
		}
		bestKey := key(best)
		for it, ok := next(); ok; it, ok = next() {
			if k := key(it); r.compare(op, k, bestKey) {
				best, bestKey = it, k
			}
		}
		return best
	}
}

func groupbyFilter(r *run, v any, a args) any {
	b := r.bind("groupby", a, 1, "attribute", "default", "case_sensitive")
	key := r.sortKey(b[0], b[1], b[2])
	show := r.attrGetter(b[0], b[1])
	items := r.sorted(r.list(v), key, false)
	out := []any{}
	for i := 0; i < len(items); {
		k := key(items[i])
		j := i + 1
		for j < len(items) && r.equal(k, key(items[j])) {
			j++
		}
		members := items[i:j:j]
		out = append(out, &group{show(members[0]), members})
		i = j
	}
	return out
}

func joinFilter(r *run, v any, a args) any {
	b := r.bind("join", a, 0, "d", "attribute")
	sep := ""
	if b[0] != missing {
		sep = r.str(b[0])
	}
	get := r.attrGetter(b[1], missing)
	next := r.mustIterate(v)
	var parts []string
	for it, ok := next(); ok; it, ok = next() {
		r.allocItems(1)
		parts = append(parts, r.str(get(it)))
	}
	return r.join(sep, parts)
}

// named returns the value of a keyword argument and the other ones.
func named(kw []kwarg, name string) (any, []kwarg) {
	for i, k := range kw {
		if k.name == name {
			return k.val, append(kw[:i:i], kw[i+1:]...)
		}
	}
	return missing, kw
}

func mapFilter(r *run, v any, a args) any {
	if !r.truth(v) {
		return r.generate("generator", nil)
	}
	var f func(any) any
	if attribute, rest := named(a.kw, "attribute"); len(a.pos) == 0 && attribute != missing {
		def, rest := named(rest, "default")
		if len(rest) > 0 {
			r.fail(RuntimeError, "map has no argument '%s'", rest[0].name)
		}
		f = r.attrGetter(attribute, def)
	} else {
		if len(a.pos) == 0 {
			r.fail(RuntimeError, "map needs a filter name or attribute=")
		}
		name := r.str(a.pos[0])
		fn := filters[name]
		if fn == nil {
			r.fail(RuntimeError, "no filter named '%s'", clip(name))
		}
		rest := args{a.pos[1:], a.kw}
		f = func(v any) any { return fn(r, v, rest) }
	}
	next := r.mustIterate(v)
	return &generator{"generator", func() (any, bool) {
		v, ok := next()
		if !ok {
			return nil, false
		}
		r.enter()
		defer r.leave()
		return f(v), true
	}}
}

func selectFilter(name string, byAttr, want bool) filter {
	return func(r *run, v any, a args) any {
		if !r.truth(v) {
			return r.generate("generator", nil)
		}
		get := func(v any) any { return v }
		if byAttr {
			if len(a.pos) == 0 {
				r.fail(RuntimeError, "%s needs an attribute name", name)
			}
			get = r.attrGetter(a.pos[0], missing)
			a.pos = a.pos[1:]
		}
		pass := r.truth
		if len(a.pos) > 0 {
			tn := r.str(a.pos[0])
			fn := tests[tn]
			if fn == nil {
				r.fail(RuntimeError, "no test named '%s'", clip(tn))
			}
			rest := args{a.pos[1:], a.kw}
			pass = func(v any) bool { return r.truth(fn(r, v, rest)) }
		}
		next := r.mustIterate(v)
		return &generator{"generator", func() (any, bool) {
			r.enter()
			defer r.leave()
			for {
				v, ok := next()
				if !ok {
					return nil, false
				}
				if pass(get(v)) == want {
					return v, true
				}
			}
		}}
	}
}

func sumFilter(r *run, v any, a args) any {
	b := r.bind("sum", a, 0, "attribute", "start")
	get := r.attrGetter(b[0], missing)
	total := b[1]
	if total == missing {
		total = int64(0)
	}
	if _, ok := text(total); ok {
		r.fail(TypeError, "sum cannot add texts, use join")
	}
	next := r.mustIterate(v)
	for it, ok := next(); ok; it, ok = next() {
		total = r.add(total, get(it))
	}
	return total
}

func batchFilter(r *run, v any, a args) any {
	b := r.bind("batch", a, 1, "linecount", "fill_with")
	n := r.wantInt("linecount", b[0], 0)
	next := r.mustIterate(v)
	done := false
	return &generator{"generator", func() (any, bool) {
		if done {
			return nil, false
		}
		var row []any
		for len(row) < n || n <= 0 {
			it, ok := next()
			if !ok {
				done = true
				break
			}
			r.allocItems(1)
			row = append(row, it)
		}
		if len(row) == 0 {
			return nil, false
		}
		if done && b[1] != missing && b[1] != nil && len(row) < n {
			r.allocItems(n)
			for len(row) < n {
				row = append(row, b[1])
			}
		}
		return row, true
	}}
}

func sliceFilter(r *run, v any, a args) any {
	b := r.bind("slice", a, 1, "slices", "fill_with")
	n := r.wantInt("slices", b[0], 0)
	items := r.list(v)
	if n == 0 {
		r.fail(ValueError, "slice needs at least one slice")
	}
	i, offset := 0, 0
	return &generator{"generator", func() (any, bool) {
		if i >= n {
			return nil, false
		}
		r.step(0)
		per, extra := len(items)/n, len(items)%n
		start := offset + i*per
		if i < extra {
			offset++
		}
		end := offset + (i+1)*per
		part := slices.Clip(items[start:end])
		if b[1] != missing && b[1] != nil && i >= extra {
			part = append(part, b[1])
		}
		i++
		return part, true
	}}
}

// toFloat is Python's float(v) for values that have one.
func (r *run) toFloat(v any) (float64, bool) {
	r.useUndefined(v)
	if s, ok := text(v); ok {
		r.work(len(s))
		return pyFloat(s)
	}
	return asFloat(v)
}

func intFilter(r *run, v any, a args) any {
	b := r.bind("int", a, 0, "default", "base")
	r.useUndefined(v)
	if s, ok := text(v); ok {
		r.work(len(s))
		base := r.wantInt("base", b[1], 10)
		if base == 0 || base >= 2 && base <= 36 {
			if i, ok := parseInt(s, base); ok {
				return i
			}
		}
	} else if i, ok := asInt(v); ok {
		return normInt(i)
	}
	if f, ok := r.toFloat(v); ok {
		if i, ok := floatToInt(math.Trunc(f)); ok {
			return i
		}
	}
	if b[0] == missing {
		return int64(0)
	}
	return b[0]
}

func roundFilter(r *run, v any, a args) any {
	b := r.bind("round", a, 0, "precision", "method")
	places := r.wantInt("precision", b[0], 0)
	how := "common"
	if b[1] != missing {
		how = r.str(b[1])
	}
	if !isNumber(v) {
		r.useUndefined(v)
		r.fail(TypeError, "round needs a number, not %s", typeName(v))
	}
	f, isFloat := v.(float64)
	switch how {
	case "common":
		if isFloat {
			return roundFloat(f, places)
		}
		i, _ := asInt(v)
		if places >= 0 {
			return normInt(i)
		}
		if places < -maxIntDigits {
			return int64(0)
		}
		n := roundRat(new(big.Rat).SetFrac(i, pow10(-places)))
		return normInt(n.Mul(n, pow10(-places)))
	case "ceil", "floor":
		if places < -300 || places > 300 {
			r.fail(ValueError, "precision %d is out of range", places)
		}
		f, _ = asFloat(v)
		scale := math.Pow(10, float64(places))
		x := f * scale
		if how == "ceil" {
			x = math.Ceil(x)
		} else {
			x = math.Floor(x)
		}
		if math.IsInf(x, 0) || math.IsNaN(x) {
			r.fail(ValueError, "cannot round %s", floatRepr(f))
		}
		return x / scale
	}
	r.fail(RuntimeError, "round's method must be common, ceil or floor")
	return nil
}

func indentFilter(r *run, v any, a args) any {
	b := r.bind("indent", a, 0, "width", "first", "blank")
	indent := "    "
	if s, ok := text(b[0]); ok {
		indent = s
	} else if b[0] != missing {
		n := max(r.wantInt("width", b[0], 4), 0)
		r.alloc(n)
		indent = strings.Repeat(" ", n)
	}
	if _, ok := text(v); !ok {
		r.useUndefined(v)
		r.fail(TypeError, "indent needs a str, not %s", typeName(v))
	}
	lines := r.splitLines(r.str(v)+"\n", false)
	blank := flag(r, b[2])
	parts := make([]string, len(lines))
	n := 0
	for i, l := range lines {
		parts[i] = l.(string)
		if i > 0 && (blank || parts[i] != "") || i == 0 && flag(r, b[1]) {
			r.alloc(len(indent) + len(parts[i]))
			parts[i] = indent + parts[i]
		}
		if n += len(parts[i]); n > r.lim.Value {
			r.alloc(n)
		}
	}
	return like(v, r.join("\n", parts))
}

func truncateFilter(r *run, v any, a args) any {
	b := r.bind("truncate", a, 0, "length", "killwords", "end", "leeway")
	length := r.wantInt("length", b[0], 255)
	end := "..."
	if b[2] != missing {
		end = r.wantText("end", b[2])
	}
	leeway := 5
	if b[3] != missing && b[3] != nil {
		leeway = r.wantInt("leeway", b[3], 5)
	}
	endLen := utf8.RuneCountInString(end)
	if length < endLen || leeway < 0 {
		r.fail(ValueError, "truncate needs a length of at least %d and no negative leeway", endLen)
	}
	if n := r.length(v); n >= 0 && (n <= length || n-length <= leeway) {
		return v
	}
	s := r.wantText("the text to truncate", v)
	cut := r.slice(s, sliceValue{nil, int64(length - endLen), nil}).(string)
	if !flag(r, b[1]) {
		if i := strings.LastIndexByte(cut, ' '); i >= 0 {
			cut = cut[:i]
		}
	}
	return like(v, cut+end)
}

var wordStart = regexp.MustCompile(`[-\s({\[<]+`)

// titleWords is the title filter: a capital after a blank, hyphen or bracket.
func (r *run) titleWords(s string) string {
	var b strings.Builder
	word := func(w string) {
		if w != "" {
			_, n := utf8.DecodeRuneInString(w)
			b.WriteString(r.upper(w[:n]))
			b.WriteString(r.lower(w[n:]))
		}
	}
	at := 0
	for _, m := range wordStart.FindAllStringIndex(s, -1) {
		word(s[at:m[0]])
		b.WriteString(s[m[0]:m[1]])
		at = m[1]
	}
	word(s[at:])
	return b.String()
}

var (
	htmlComment = regexp.MustCompile(`(?s)<!--.*?-->`)
	htmlTag     = regexp.MustCompile(`(?s)<.*?>`)
	htmlEntity  = strings.NewReplacer("&amp;", "&", "&lt;", "<", "&gt;", ">", "&#34;", "\"", "&quot;", "\"",
		"&#39;", "'", "&nbsp;", "\u00a0")
)

func (r *run) stripTags(s string) string {
	r.alloc(len(s))
	s = htmlTag.ReplaceAllString(htmlComment.ReplaceAllString(s, ""), "")
	return htmlEntity.Replace(strings.Join(strings.FieldsFunc(s, isSpace), " "))
}

func (r *run) fileSize(v any, binary bool) string {
	size, ok := r.toFloat(v)
	if _, isText := text(v); !ok && !isText {
		r.fail(TypeError, "filesizeformat needs a number, not %s", typeName(v))
	}
	if !ok || math.IsNaN(size) || math.IsInf(size, 0) {
		r.fail(ValueError, "filesizeformat needs a number")
	}
	base, units := 1000.0, []string{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"}
	if binary {
		base, units = 1024, []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}
	}
	if size == 1 {
		return "1 Byte"
	}
	if size < base {
		return strconv.FormatFloat(math.Trunc(size), 'f', 0, 64) + " Bytes"
	}
	unit := base
	for i, name := range units {
		unit *= base
		if size < unit || i == len(units)-1 {
			return strconv.FormatFloat(base*size/unit, 'f', 1, 64) + " " + name
		}
	}
	return ""
}

func (r *run) urlEncode(v any) string {
	quote := func(v any, query bool) string {
		s := r.str(v)
		r.alloc(mul(len(s), 3))
		var b strings.Builder
		for i := range len(s) {
			c := s[i]
			switch {
			case isDec(c) || c|0x20 >= 'a' && c|0x20 <= 'z' || strings.IndexByte("_.-~", c) >= 0, c == '/' && !query:
				b.WriteByte(c)
			case c == ' ' && query:
				b.WriteByte('+')
			default:
				b.WriteString("%" + strings.ToUpper(strconv.FormatUint(uint64(c)|0x100, 16)[1:]))
			}
		}
		return b.String()
	}
	if m, ok := v.(*Map); ok {
		v = dictView{m, "items"}
	}
	_, isText := text(v)
	next := r.iterate(v)
	if isText || next == nil {
		return quote(v, false)
	}
	var parts []string
	for it, ok := next(); ok; it, ok = next() {
		pair := r.list(it)
		if len(pair) != 2 {
			r.fail(ValueError, "urlencode needs pairs")
		}
		r.allocItems(1)
		parts = append(parts, quote(pair[0], true)+"="+quote(pair[1], true))
	}
	return r.join("&", parts)
}

// wordwrapFilter breaks lines at blanks so that none is longer than width.
// Words longer than a line are cut if break_long_words is set.
func wordwrapFilter(r *run, v any, a args) any {
	b := r.bind("wordwrap", a, 0, "width", "break_long_words", "wrapstring", "break_on_hyphens")
	width := r.wantInt("width", b[0], 79)
	if width <= 0 {
		r.fail(ValueError, "wordwrap needs a width above 0")
	}
	breakLong := b[1] == missing || r.truth(b[1])
	hyphens := b[3] == missing || r.truth(b[3])
	sep := "\n"
	if b[2] != missing && b[2] != nil {
		sep = r.wantText("wrapstring", b[2])
	}
	var out []string
	for _, line := range r.splitLines(r.wantText("the text to wrap", v), false) {
		lines := r.wrapLine(line.(string), width, breakLong, hyphens)
		if line == "" {
			lines = []string{""}
		}
		out = append(out, lines...)
	}
	return r.join(sep, out)
}

var (
	wrapChunk  = regexp.MustCompile(`\s+|\S+`)
	wrapHyphen = regexp.MustCompile(`[\p{L}\p{N}_][\p{L}\p{N}_]-+`)
)

// wrapChunks cuts a line into blanks and words, and words behind hyphens.
func (r *run) wrapChunks(s string, hyphens bool) []string {
	var chunks []string
	add := func(c string) {
		r.allocItems(1)
		chunks = append(chunks, c)
	}
	for _, c := range wrapChunk.FindAllString(s, -1) {
		if hyphens {
			for {
				m := wrapHyphen.FindStringIndex(c)
				if m == nil || m[1] >= len(c) {
					break
				}
				if next, _ := utf8.DecodeRuneInString(c[m[1]:]); !unicode.IsLetter(next) {
					break
				}
				add(c[:m[1]])
				c = c[m[1]:]
			}
		}
		add(c)
	}
	return chunks
}

func (r *run) wrapLine(s string, width int, breakLong, hyphens bool) []string {
	r.alloc(len(s))
	chunks := r.wrapChunks(s, hyphens)
	blank := func(c string) bool { return strings.TrimFunc(c, isSpace) == "" }
	var lines []string
	for len(chunks) > 0 {
		if len(lines) > 0 && blank(chunks[0]) {
			chunks = chunks[1:]
			continue
		}
		var line []string
		room := width
		for len(chunks) > 0 {
			if len(cutRunes(chunks[0], room)) < len(chunks[0]) {
				break
			}
			line = append(line, chunks[0])
			room -= utf8.RuneCountInString(chunks[0])
			chunks = chunks[1:]
		}
		if len(chunks) > 0 && len(cutRunes(chunks[0], width)) < len(chunks[0]) {
			if breakLong {
				cut := cutRunes(chunks[0], room)
				line = append(line, cut)
				chunks[0] = chunks[0][len(cut):]
			} else if len(line) == 0 {
				line = append(line, chunks[0])
				chunks = chunks[1:]
			}
		}
		if len(line) > 0 && blank(line[len(line)-1]) {
			line = line[:len(line)-1]
		}
		if len(line) > 0 {
			r.allocItems(1)
			lines = append(lines, strings.Join(line, ""))
		}
	}
	return lines
}
