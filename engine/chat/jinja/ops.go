package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"unicode"
	"unicode/utf8"
)

// text returns the characters of a str or Markup.
func text(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case markup:
		return string(v), true
	}
	return "", false
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// truth is Python's bool(v).
func (r *run) truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	case []any:
		return len(v) > 0
	case tuple:
		return len(v) > 0
	case *Map:
		return v.Len() > 0
	case dictView:
		return v.m.Len() > 0
	case rangeValue:
		return v.count > 0
	case *loopContext:
		return true
	}
	return true
}

// length is Python's len(v), or -1 for a value without one.
func (r *run) length(v any) int {
	switch v := v.(type) {
	case string:
		r.work(len(v))
		return utf8.RuneCountInString(v)
	case markup:
		r.work(len(v))
		return utf8.RuneCountInString(string(v))
	case []any:
		return len(v)
	case tuple:
		return len(v)
	case *group:
		return 2
	case *Map:
		return v.Len()
	case dictView:
		return v.m.Len()
	case rangeValue:
		return int(v.count)
	case undefined:
		return 0
	case *loopContext:
		return v.length(r)
	}
	return -1
}

func (g *group) tuple() tuple { return tuple{g.grouper, g.list} }

func (v rangeValue) at(i int) int64 { return v.start + int64(i)*v.step }

// iterate returns a function that yields the items of v, or nil if v cannot
// be iterated.
func (r *run) iterate(v any) func() (any, bool) {
	i := 0
	list := func(items []any) func() (any, bool) {
		return func() (any, bool) {
			if i >= len(items) {
				return nil, false
			}
			r.step(0)
			i++
			return items[i-1], true
		}
	}
	switch v := v.(type) {
	case []any:
		return list(v)
	case tuple:
		return list(v)
	case *group:
		return list(v.tuple())
	case *Map:
		return list(v.keys)
	case dictView:
		return func() (any, bool) {
			if i >= v.m.Len() {
				return nil, false
			}
			r.step(0)
			i++
			return v.at(i - 1), true
		}
	case string:
		return chars(r, v, false)
	case markup:
		return chars(r, string(v), true)
	case rangeValue:
		return func() (any, bool) {
			if i >= int(v.count) {
				return nil, false
			}
			r.step(0)
			i++
			return v.at(i - 1), true
		}
	case *generator:
		return v.next
	case undefined:
		return list(nil)
	case *loopContext:
		return v.next
	}
	return nil
}

func chars(r *run, s string, marked bool) func() (any, bool) {
	return func() (any, bool) {
		if s == "" {
			return nil, false
		}
		r.step(0)
		_, n := utf8.DecodeRuneInString(s)
		c := s[:n]
		s = s[n:]
		if marked {
			return markup(c), true
		}
		return c, true
	}
}

func (v dictView) at(i int) any {
	switch v.name {
	case "keys":
		return v.m.keys[i]
	case "values":
		return v.m.vals[i]
	}
	return tuple{v.m.keys[i], v.m.vals[i]}
}

func (r *run) mustIterate(v any) func() (any, bool) {
	next := r.iterate(v)
	if next == nil {
		r.fail(TypeError, "'%s' object is not iterable", typeName(v))
	}
	return next
}

// list is Python's list(v); the result may share v's items.
func (r *run) list(v any) []any {
	switch v := v.(type) {
	case []any:
		return v
	case tuple:
		return v
	}
	next := r.mustIterate(v)
	var out []any
	for v, ok := next(); ok; v, ok = next() {
		r.allocItems(1)
		if mul(len(out), itemSize) > r.lim.Value {
			r.allocItems(len(out))
		}
		out = append(out, v)
	}
	return out
}

// mustHash returns the comparable form of a dict key.
func (r *run) mustHash(k any) any {
	h, ok := hashKey(k, 0)
	if !ok {
		r.fail(TypeError, "unhashable type: '%s'", typeName(k))
	}
	if s, ok := text(k); ok {
		r.work(len(s))
	}
	return h
}

// lookup is d[key] for any key; the second result tells whether it is there.
func (r *run) lookup(m *Map, key any) (any, bool) {
	if s, ok := key.(string); ok {
		r.step(0)
		return m.Get(s)
	}
	if i := m.findHashed(r.mustHash(key)); i >= 0 {
		return m.vals[i], true
	}
	return nil, false
}

func (r *run) setKey(m *Map, key, val any) {
	h := r.mustHash(key)
	if i := m.findHashed(h); i >= 0 {
		m.vals[i] = val
		return
	}
	r.allocItems(3)
	m.add(key, h, val)
}

// equal is Python's ==.
func (r *run) equal(a, b any) bool {
	r.step(0)
	if g, ok := a.(*group); ok {
		a = g.tuple()
	}
	if g, ok := b.(*group); ok {
		b = g.tuple()
	}
	if isNumber(a) && isNumber(b) {
		return r.compareNumbers(a, b) == 0
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case string, markup:
		x, _ := text(a)
		y, ok := text(b)
		if ok && len(x) == len(y) {
			r.work(len(x))
		}
		return ok && x == y
	case []any:
		b, ok := b.([]any)
		return ok && r.equalItems(a, b)
	case tuple:
		b, ok := b.(tuple)
		return ok && r.equalItems(a, b)
	case *Map:
		b, ok := b.(*Map)
		if !ok || a.Len() != b.Len() {
			return false
		}
		if a == b {
			return true
		}
		r.enter()
		for i, k := range a.keys {
			v, ok := r.lookup(b, k)
			if !ok || !r.equal(a.vals[i], v) {
				r.leave()
				return false
			}
		}
		r.leave()
		return true
	case undefined:
		_, ok := b.(undefined)
		return ok
	case rangeValue:
		b, ok := b.(rangeValue)
		return ok && r.equalItems(r.list(a), r.list(b))
	case dictView, sliceValue:
		return false
	}
	switch b.(type) {
	case []any, tuple, sliceValue:
		return false
	}
	return a == b // pointers
}

func (r *run) equalItems(a, b []any) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] {
		return true
	}
	r.enter()
	defer r.leave()
	for i := range a {
		if !r.equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// compareNumbers returns -1, 0 or 1, and 2 if a NaN takes part.
func (r *run) compareNumbers(a, b any) int {
	x, ok1 := a.(int64)
	y, ok2 := b.(int64)
	if ok1 && ok2 {
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	}
	fa, isFA := a.(float64)
	fb, isFB := b.(float64)
	if isFA && math.IsNaN(fa) || isFB && math.IsNaN(fb) {
		return 2
	}
	// Compare exactly, as Python does for an int and a float.
	toBig := func(v any, f float64, isF bool) *big.Float {
		if isF {
			return new(big.Float).SetPrec(64).SetFloat64(f)
		}
		i, _ := asInt(v)
		return new(big.Float).SetInt(i)
	}
	return toBig(a, fa, isFA).Cmp(toBig(b, fb, isFB))
}

// compare applies one of < <= > >=.
func (r *run) compare(op string, a, b any) bool {
	r.step(0)
	c := 0
	switch {
	case isNumber(a) && isNumber(b):
		if c = r.compareNumbers(a, b); c == 2 {
			return false
		}
	default:
		x, ok1 := text(a)
		y, ok2 := text(b)
		if ok1 && ok2 {
			r.work(min(len(x), len(y)))
			c = strings.Compare(x, y)
			break
		}
		l1, ok1 := a.([]any)
		l2, ok2 := b.([]any)
		if !ok1 || !ok2 {
			var t1, t2 tuple
			t1, ok1 = a.(tuple)
			t2, ok2 = b.(tuple)
			l1, l2 = t1, t2
		}
		if !ok1 || !ok2 {
			r.useUndefined(a)
			r.useUndefined(b)
			r.fail(TypeError, "'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
		}
		r.enter()
		defer r.leave()
		for i := 0; ; i++ {
			if i >= len(l1) || i >= len(l2) {
				c = len(l1) - len(l2)
				break
			}
			if !r.equal(l1[i], l2[i]) {
				return r.compare(op, l1[i], l2[i])
			}
		}
	}
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

// contains is Python's "item in seq".
func (r *run) contains(seq, item any) bool {
	switch seq := seq.(type) {
	case string, markup:
		s, _ := text(seq)
		sub, ok := text(item)
		if !ok {
			r.useUndefined(item)
			r.fail(TypeError, "'in <string>' requires string as left operand, not %s", typeName(item))
		}
		r.work(len(s))
		return strings.Contains(s, sub)
	case *Map:
		_, ok := r.lookup(seq, item)
		return ok
	case dictView:
		if seq.name == "keys" {
			_, ok := r.lookup(seq.m, item)
			return ok
		}
	}
	next := r.iterate(seq)
	if next == nil {
		r.fail(TypeError, "argument of type '%s' is not iterable", typeName(seq))
	}
	for v, ok := next(); ok; v, ok = next() {
		if r.equal(v, item) {
			return true
		}
	}
	return false
}

// useUndefined fails if v is undefined: it is used in a way that needs a value.
func (r *run) useUndefined(v any) {
	if u, ok := v.(undefined); ok {
		r.fail(u.kind, "%s", u.msg)
	}
}

func undefinedName(name string) undefined {
	return undefined{UndefinedError, fmt.Sprintf("'%s' is undefined", name)}
}

func (r *run) undefinedAttr(obj, name any) undefined {
	r.useUndefined(obj)
	owner := "'" + typeName(obj) + " object'"
	switch obj.(type) {
	case nil:
		owner = "None"
	case *generator, *macro, *loopContext:
		owner = "a " + typeName(obj)
	}
	if s, ok := name.(string); ok {
		if len(s) > 100 {
			s = s[:100] + "…"
		}
		return undefined{UndefinedError, fmt.Sprintf("%s has no attribute '%s'", owner, s)}
	}
	return undefined{UndefinedError, fmt.Sprintf("%s has no element %s", owner, clip(r.repr(name)))}
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

func unsafeAttr(obj any, name string) undefined {
	return undefined{SecurityError, fmt.Sprintf("access to attribute '%s' of '%s' object is unsafe", name, typeName(obj))}
}

// item is obj[key] as a template sees it: what is not there is undefined, and
// a str key falls back to an attribute.
func (r *run) item(obj, key any) any {
	switch o := obj.(type) {
	case *Map:
		if _, ok := hashKey(key, 0); ok {
			if v, ok := r.lookup(o, key); ok {
				return v
			}
		}
	case []any, tuple, string, markup, rangeValue:
		if sl, ok := key.(sliceValue); ok {
			return r.slice(obj, sl)
		}
		if i, ok := clampInt(key); ok {
			if v, ok := r.at(obj, i); ok {
				return v
			}
		}
	}
	if g, ok := obj.(*group); ok {
		if _, named := key.(string); !named {
			return r.item(g.tuple(), key)
		}
	}
	r.useUndefined(obj)
	if _, ok := key.(sliceValue); ok {
		if _, isMap := obj.(*Map); isMap {
			r.fail(TypeError, "unhashable type: 'slice'")
		}
		r.fail(TypeError, "'%s' object is not subscriptable", typeName(obj))
	}
	if name, ok := text(key); ok {
		if v, ok := r.attribute(obj, name); ok {
			return v
		}
	}
	return r.undefinedAttr(obj, key)
}

// at indexes a sequence; a negative i counts from the end.
func (r *run) at(seq any, i int) (any, bool) {
	switch s := seq.(type) {
	case []any:
		if i < 0 {
			i += len(s)
		}
		if i >= 0 && i < len(s) {
			return s[i], true
		}
	case tuple:
		return r.at([]any(s), i)
	case rangeValue:
		if i < 0 {
			i += int(s.count)
		}
		if i >= 0 && i < int(s.count) {
			return s.at(i), true
		}
	case markup:
		v, ok := r.at(string(s), i)
		if ok {
			v = markup(v.(string))
		}
		return v, ok
	case string:
		r.work(len(s))
		if isASCII(s) {
			if i < 0 {
				i += len(s)
			}
			if i >= 0 && i < len(s) {
				return s[i : i+1], true
			}
			return nil, false
		}
		if i < 0 {
			i += utf8.RuneCountInString(s)
		}
		if i < 0 {
			return nil, false
		}
		for _, c := range s {
			if i == 0 {
				return string(c), true
			}
			i--
		}
	}
	return nil, false
}

// slice is seq[lo:hi:step].
func (r *run) slice(seq any, sl sliceValue) any {
	bound := func(v any, what string) (int, bool) {
		if v == nil {
			return 0, false
		}
		i, ok := clampInt(v)
		if !ok {
			r.useUndefined(v)
			r.fail(TypeError, "slice %s must be an integer or none, not %s", what, typeName(v))
		}
		return i, true
	}
	step, ok := bound(sl.step, "step")
	if !ok {
		step = 1
	}
	if step == 0 {
		r.fail(ValueError, "slice step cannot be zero")
	}
	step = max(step, -math.MaxInt)
	n := r.length(seq)
	lo, hi := 0, n
	if step < 0 {
		lo, hi = n-1, -1
	}
	clampTo := func(i int) int {
		floor, ceil := 0, n
		if step < 0 {
			floor, ceil = -1, n-1
		}
		if i < 0 {
			i = max(i+n, floor)
		}
		return min(i, ceil)
	}
	if i, ok := bound(sl.lo, "start"); ok {
		lo = clampTo(i)
	}
	if i, ok := bound(sl.hi, "end"); ok {
		hi = clampTo(i)
	}
	count := 0
	if step > 0 && hi > lo {
		count = (hi-lo-1)/step + 1
	} else if step < 0 && lo > hi {
		count = (lo-hi-1)/-step + 1
	}
	pick := func(items []any) []any {
		r.step(count)
		if step == 1 {
			return items[lo : lo+count : lo+count]
		}
		r.allocItems(count)
		out := make([]any, count)
		for i := range out {
			out[i] = items[lo+i*step]
		}
		return out
	}
	switch s := seq.(type) {
	case []any:
		return pick(s)
	case tuple:
		return tuple(pick(s))
	case rangeValue:
		return rangeValue{s.at(lo), s.at(hi), s.step * int64(step), int64(count)}
	case markup:
		return markup(r.slice(string(s), sl).(string))
	}
	s := seq.(string)
	r.work(len(s))
	if isASCII(s) && step == 1 {
		return s[lo : lo+count]
	}
	if step == 1 {
		from, to := len(s), len(s)
		i := 0
		for off := range s {
			if i == lo {
				from = off
			}
			if i == lo+count {
				to = off
				break
			}
			i++
		}
		if count == 0 {
			return ""
		}
		return s[from:to]
	}
	r.alloc(len(s) * 5)
	rs := []rune(s)
	out := make([]rune, count)
	for i := range out {
		out[i] = rs[lo+i*step]
	}
	return string(out)
}

// add is a + b.
func (r *run) add(a, b any) any {
	if isNumber(a) && isNumber(b) {
		return r.arith("+", a, b)
	}
	switch x := a.(type) {
	case string:
		switch y := b.(type) {
		case string:
			r.alloc(len(x) + len(y))
			return x + y
		case markup:
			return markup(r.escape(x)) + y
		}
		r.useUndefined(b)
		r.fail(TypeError, "can only concatenate str (not \"%s\") to str", typeName(b))
	case markup:
		switch y := b.(type) {
		case string:
			e := r.escape(y)
			r.alloc(len(x) + len(e))
			return x + markup(e)
		case markup:
			r.alloc(len(x) + len(y))
			return x + y
		}
	case []any:
		if y, ok := b.([]any); ok {
			return r.joinLists(x, y)
		}
	case tuple:
		if y, ok := b.(tuple); ok {
			return tuple(r.joinLists(x, y))
		}
	}
	return r.badOperands("+", a, b)
}

func (r *run) joinLists(x, y []any) []any {
	r.allocItems(len(x) + len(y))
	out := make([]any, 0, len(x)+len(y))
	return append(append(out, x...), y...)
}

func (r *run) badOperands(op string, a, b any) any {
	r.useUndefined(a)
	r.useUndefined(b)
	r.fail(TypeError, "unsupported operand types for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	return nil
}

// repeat is seq * n.
func (r *run) repeat(seq any, n int) (any, bool) {
	n = max(n, 0)
	switch s := seq.(type) {
	case string:
		r.alloc(mul(len(s), n))
		return strings.Repeat(s, n), true
	case markup:
		r.alloc(mul(len(s), n))
		return markup(strings.Repeat(string(s), n)), true
	case []any:
		r.allocItems(mul(len(s), n))
		out := make([]any, 0, len(s)*n)
		for range n {
			if len(s) == 0 {
				break
			}
			out = append(out, s...)
		}
		return out, true
	case tuple:
		v, _ := r.repeat([]any(s), n)
		return tuple(v.([]any)), true
	}
	return nil, false
}

// binary applies an arithmetic operator.
func (r *run) binary(op string, a, b any) any {
	if op == "+" {
		return r.add(a, b)
	}
	if op == "%" {
		if _, ok := text(a); ok {
			return r.percentFormat(a, b)
		}
	}
	if isNumber(a) && isNumber(b) {
		return r.arith(op, a, b)
	}
	if op == "*" {
		for range 2 {
			if _, float := b.(float64); !float && isNumber(b) {
				n, _ := clampInt(b)
				if n > 0 && r.length(a) == 0 {
					n = 0
				}
				if v, ok := r.repeat(a, n); ok {
					return v
				}
			}
			a, b = b, a
		}
	}
	return r.badOperands(op, a, b)
}

// str is Python's str(v).
func (r *run) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case markup:
		return string(v)
	case undefined:
		return ""
	}
	return r.repr(v)
}

// repr is Python's repr(v).
func (r *run) repr(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int64:
		return fmt.Sprint(v)
	case *big.Int:
		r.intBits(v.BitLen())
		return v.String()
	case float64:
		return floatRepr(v)
	}
	var b strings.Builder
	r.writeRepr(&b, v)
	return b.String()
}

func (r *run) put(b *strings.Builder, s string) {
	if b.Len()+len(s) > r.lim.Value {
		r.alloc(b.Len() + len(s))
	}
	r.alloc(len(s))
	b.WriteString(s)
}

func (r *run) writeRepr(b *strings.Builder, v any) {
	items := func(open string, items []any, end string) {
		r.enter()
		r.put(b, open)
		for i, it := range items {
			if i > 0 {
				r.put(b, ", ")
			}
			r.writeRepr(b, it)
		}
		r.put(b, end)
		r.leave()
	}
	switch v := v.(type) {
	case string:
		r.alloc(mul(len(v), 4)) // escapes can make it longer
		r.put(b, strRepr(v))
	case markup:
		r.alloc(mul(len(v), 4))
		r.put(b, "Markup("+strRepr(string(v))+")")
	case []any:
		items("[", v, "]")
	case tuple:
		if len(v) == 1 {
			items("(", v, ",)")
		} else {
			items("(", v, ")")
		}
	case *group:
		r.writeRepr(b, v.tuple())
	case *Map:
		r.enter()
		r.put(b, "{")
		for i, k := range v.keys {
			if i > 0 {
				r.put(b, ", ")
			}
			r.writeRepr(b, k)
			r.put(b, ": ")
			r.writeRepr(b, v.vals[i])
		}
		r.put(b, "}")
		r.leave()
	case dictView:
		items("dict_"+v.name+"([", r.list(v), "])")
	case undefined:
		r.put(b, "Undefined")
	case rangeValue:
		if v.step == 1 {
			r.put(b, fmt.Sprintf("range(%d, %d)", v.start, v.stop))
		} else {
			r.put(b, fmt.Sprintf("range(%d, %d, %d)", v.start, v.stop, v.step))
		}
	case *namespace:
		r.put(b, "<Namespace ")
		r.writeRepr(b, v.attrs)
		r.put(b, ">")
	case nil, bool, int64, *big.Int, float64:
		r.put(b, r.repr(v))
	case *macro:
		r.put(b, "<Macro "+strRepr(v.def.name)+">")
	case *function:
		r.put(b, "<function "+v.name+">")
	default:
		r.put(b, "<"+typeName(v)+" object>")
	}
}

// printable is Python's str.isprintable for one character.
func printable(c rune) bool { return c == ' ' || unicode.IsPrint(c) }

// strRepr is Python's repr of a str.
func strRepr(s string) string {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, "\"") {
		quote = '"'
	}
	var b strings.Builder
	b.Grow(len(s) + 2)
	b.WriteByte(quote)
	for _, c := range s {
		switch {
		case c == rune(quote) || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case printable(c):
			b.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(&b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			fmt.Fprintf(&b, `\U%08x`, c)
		}
	}
	b.WriteByte(quote)
	return b.String()
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "\"", "&#34;", "'", "&#39;")

// escape returns the HTML-escaped text of v; Markup is left alone.
func (r *run) escape(v any) string {
	if m, ok := v.(markup); ok {
		return string(m)
	}
	s := r.str(v)
	r.alloc(mul(len(s), 6))
	return htmlEscaper.Replace(s)
}
