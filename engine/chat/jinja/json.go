package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// EncodeJSON writes a template value as tojson does by default: ", " and ": "
// between items, raw UTF-8, dicts in their own order.
func EncodeJSON(v any) (s string, err error) {
	defer func() {
		if e, ok := recover().(*Error); ok {
			err = e
		}
	}()
	v, err = convert(v, 0)
	if err != nil {
		return "", err
	}
	lim := DefaultLimits
	lim.Steps, lim.Total, lim.Value = math.MaxInt64/2, math.MaxInt64/2, math.MaxInt/2
	w := jsonWriter{r: &run{lim: lim}, itemSep: ", ", keySep: ": "}
	w.value(v, "")
	return w.b.String(), nil
}

// jsonWriter is Python's json.dumps.
type jsonWriter struct {
	r               *run
	b               strings.Builder
	indent          string
	pretty          bool
	itemSep, keySep string
	ascii, sortKeys bool
}

func tojsonFilter(r *run, v any, a args) any {
	b := r.bind("tojson", a, 0, "ensure_ascii", "indent", "separators", "sort_keys")
	w := jsonWriter{r: r, itemSep: ", ", keySep: ": ", ascii: flag(r, b[0]), sortKeys: flag(r, b[3])}
	if b[1] != missing && b[1] != nil {
		w.pretty = true
		w.itemSep = ","
		if s, ok := text(b[1]); ok {
			w.indent = s
		} else {
			n := max(r.wantInt("indent", b[1], 0), 0)
			r.alloc(n)
			w.indent = strings.Repeat(" ", n)
		}
	}
	if b[2] != missing && b[2] != nil {
		sep := r.list(b[2])
		if len(sep) != 2 {
			r.fail(ValueError, "separators must be a pair")
		}
		w.itemSep, w.keySep = r.wantText("a separator", sep[0]), r.wantText("a separator", sep[1])
	}
	w.value(v, "\n")
	return w.b.String()
}

func (w *jsonWriter) put(s string) { w.r.put(&w.b, s) }

func (w *jsonWriter) value(v any, newline string) {
	switch v := v.(type) {
	case nil:
		w.put("null")
	case bool:
		w.put(map[bool]string{true: "true", false: "false"}[v])
	case int64, *big.Int:
		w.put(w.r.repr(v))
	case float64:
		w.put(jsonFloat(v))
	case string:
		w.str(v)
	case markup:
		w.str(string(v))
	case []any:
		w.list(v, newline)
	case tuple:
		w.list(v, newline)
	case *group:
		w.list(v.tuple(), newline)
	case *Map:
		w.dict(v, newline)
	default:
		w.r.fail(TypeError, "object of type %s is not JSON serializable", typeName(v))
	}
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatRepr(f)
}

// open starts a container's next line, one level deeper than newline.
func (w *jsonWriter) open(newline string) string {
	if !w.pretty {
		return ""
	}
	inner := newline + w.indent
	w.put(inner)
	return inner
}

func (w *jsonWriter) list(items []any, newline string) {
	if len(items) == 0 {
		w.put("[]")
		return
	}
	w.r.enter()
	w.put("[")
	inner := w.open(newline)
	for i, it := range items {
		if i > 0 {
			w.put(w.itemSep)
			if w.pretty {
				w.put(inner)
			}
		}
		w.value(it, inner)
	}
	if w.pretty {
		w.put(newline)
	}
	w.put("]")
	w.r.leave()
}

func (w *jsonWriter) dict(m *Map, newline string) {
	if m.Len() == 0 {
		w.put("{}")
		return
	}
	w.r.enter()
	w.put("{")
	inner := w.open(newline)
	pairs := w.r.list(dictView{m, "items"})
	if w.sortKeys {
		pairs = w.r.sorted(pairs, func(p any) any { return p.(tuple)[0] }, false)
	}
	for i, p := range pairs {
		if i > 0 {
			w.put(w.itemSep)
			if w.pretty {
				w.put(inner)
			}
		}
		p := p.(tuple)
		switch k := p[0].(type) {
		case string:
			w.str(k)
		case markup:
			w.str(string(k))
		case nil, bool, float64, int64, *big.Int:
			w.put("\"")
			w.value(k, "")
			w.put("\"")
		default:
			w.r.fail(TypeError, "JSON keys must be str, int, float, bool or None, not %s", typeName(k))
		}
		w.put(w.keySep)
		w.value(p[1], inner)
	}
	if w.pretty {
		w.put(newline)
	}
	w.put("}")
	w.r.leave()
}

func (w *jsonWriter) str(s string) {
	w.r.alloc(mul(len(s), 2))
	var b strings.Builder
	b.Grow(len(s) + 2)
	b.WriteByte('"')
	for i := 0; i < len(s); {
		c, n := utf8.DecodeRuneInString(s[i:])
		i += n
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\b':
			b.WriteString(`\b`)
		case c == '\f':
			b.WriteString(`\f`)
		case c < 0x20 || w.ascii && c >= 0x7f && c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		case w.ascii && c >= 0x10000:
			c -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+c>>10, 0xdc00+c&0x3ff)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	w.put(b.String())
}
