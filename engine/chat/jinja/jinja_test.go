package jinja

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLimits runs templates that would eat the machine and wants each stopped
// by a limit.
func TestLimits(t *testing.T) {
	small := Limits{Steps: 50_000, Depth: 300, Output: 1 << 18, Value: 1 << 18, Total: 2 << 20, Range: 1000}
	for name, src := range map[string]string{
		"endless macro":         "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"endless recursion":     "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"mutual callers":        "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
		"nested loops":          "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
		"big range":             "{{ range(1000000000000) }}",
		"range overflow":        "{{ range(-9223372036854775808, 9223372036854775807) }}",
		"string repeat":         "{{ 'abc' * 1000000000 }}",
		"string repeat big":     "{{ 'abc' * (10 ** 30) }}",
		"list repeat":           "{{ [1] * 1000000000 }}",
		"doubling":              "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
		"doubling list":         "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"much output":           "{% for i in range(999) %}{{ 'abcdefghij' * 1000 }}{% endfor %}",
		"much output in set":    "{% set x %}{% for i in range(999) %}{{ 'abcdefghij' * 1000 }}{% endfor %}{% endset %}",
		"deep value":            "{% set ns = namespace(s=[]) %}{% for i in range(999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
		"deep value as json":    "{% set ns = namespace(s=[]) %}{% for i in range(999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s | tojson }}",
		"deep value compared":   "{% set a = namespace(s=[]) %}{% set b = namespace(s=[]) %}{% for i in range(999) %}{% set a.s = [a.s] %}{% set b.s = [b.s] %}{% endfor %}{{ a.s == b.s }}",
		"shared value printed":  "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
		"shared value compared": "{% set a = namespace(s=[1]) %}{% set b = namespace(s=[1]) %}{% for i in range(60) %}{% set a.s = [a.s, a.s] %}{% set b.s = [b.s, b.s] %}{% endfor %}{{ a.s == b.s }}",
		"cycle":                 "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
		"power":                 "{{ 10 ** 100000000 }}",
		"power of power":        "{{ 9 ** (9 ** (9 ** 9)) }}",
		"factorial":             "{% set ns = namespace(n=1) %}{% for i in range(1, 999) %}{% set ns.n = ns.n * ns.n * 7 %}{% endfor %}",
		"format width":          "{{ '%1000000000d' % 1 }}",
		"format star":           "{{ '%*d' % (1000000000, 1) }}",
		"format spec":           "{{ '{:>1000000000}'.format(1) }}",
		"format precision":      "{{ '%.1000000000d' % 1 }}",
		"center":                "{{ 'a' | center(1000000000) }}",
		"ljust":                 "{{ 'a'.ljust(1000000000, 'b') }}",
		"zfill":                 "{{ 'a'.zfill(1000000000) }}",
		"expandtabs":            "{{ '\t\t'.expandtabs(1000000000) }}",
		"indent":                "{{ 'a\nb' | indent(1000000000) }}",
		"replace":               "{{ ('a' * 1000) | replace('a', 'b' * 100000) }}",
		"replace empty":         "{{ ('a' * 1000).replace('', 'b' * 100000) }}",
		"join":                  "{{ range(1000) | join('b' * 100000) }}",
		"batch fill":            "{{ [1] | batch(1000000000, 0) | list }}",
		"slices":                "{{ [1] | slice(1000000000) | list }}",
		"tojson indent":         "{{ [1] | tojson(indent=1000000000) }}",
		"urlencode":             "{{ ('é' * 100000) | urlencode }}",
		"wordwrap":              "{{ ('a ' * 50000) | wordwrap(1, wrapstring='b' * 1000) }}",
		"many characters":       "{{ ('a' * 200000) | list | length }}",
		"sum of lists":          "{{ ([[1] * 1000] * 1000) | sum(start=[]) | length }}",
		"deep expression":       "{{ " + strings.Repeat("1 + ", 2000) + "1 }}",
		"deep concatenation":    "{{ x" + strings.Repeat(" or x", 2000) + " }}",
		"deep filters":          "{{ 1" + strings.Repeat(" | string", 2000) + " }}",
		"many kwargs":           "{% macro f() %}{{ kwargs }}{% endmacro %}{% set ns = namespace(d={}) %}{% for i in range(999) %}{% set ns.d = dict(ns.d, **{i | string: i}) %}{% endfor %}{{ f(**ns.d) }}",
	} {
		_, err := render(src, nil, small)
		var e *Error
		if !errors.As(err, &e) || e.Kind != LimitError {
			t.Errorf("%s: got %v; want a limit", name, err)
		} else if e.Line == 0 {
			t.Errorf("%s: no line in %v", name, e)
		}
	}
}

// TestCompileLimits wants source that nests too deeply or is too long refused.
func TestCompileLimits(t *testing.T) {
	for _, src := range []string{
		"{{ " + strings.Repeat("(", 5_000), "{{ " + strings.Repeat("[", 5_000), "{{ " + strings.Repeat("-", 5_000) + "1 }}",
		"{{ " + strings.Repeat("not ", 5_000) + "1 }}", strings.Repeat("{% if 1 %}", 5_000), strings.Repeat("{% for a in b %}", 5_000),
		"{{ " + strings.Repeat("1 if 1 else ", 5_000) + "1 }}", "{{ " + strings.Repeat("{1:", 5_000),
		"{% for " + strings.Repeat("(", 5_000), "{{ a" + strings.Repeat("[", 5_000), "{{ 1" + strings.Repeat("0", 5_000) + " }}",
		strings.Repeat("x", DefaultLimits.Source+1), "{{ " + strings.Repeat("1**", 5_000), strings.Repeat("{# ", 5_000), strings.Repeat("{% raw %}", 5_000),
	} {
		if _, err := Compile(src, Limits{}); err == nil {
			t.Errorf("%.30q… compiled", src)
		}
	}
}

// TestSandbox wants no way out of the given values.
func TestSandbox(t *testing.T) {
	v := vars(t, `{"d": {"a": 1}, "l": [1], "s": "x"}`)
	for _, src := range []string{
		"{{ ''.__class__.__mro__ }}", "{{ l.__class__.__base__.__subclasses__() }}", "{{ d['__class__'].x }}",
		"{{ (d | attr('__class__')).x }}", "{{ '{0.__class__.x}'.format(s) }}", "{{ '{0[__class__].x}'.format(s) }}",
		"{{ '{a.__init__.__globals__}'.format_map({'a': l}) }}", "{{ [l] | map(attribute='__class__.x') | list }}",
		"{{ l.append(1) }}", "{{ l.pop() }}", "{{ l.sort() }}", "{{ l.clear() }}", "{{ l.insert(0, 1) }}", "{{ l.remove(1) }}",
		"{{ d.update({}) }}", "{{ d.pop('a') }}", "{{ d.setdefault('b', 1) }}", "{{ d.clear() }}", "{{ d.popitem() }}",
		"{{ range.__self__.x }}", "{{ namespace.__init__.__globals__ }}", "{{ cycler.__init__.__globals__.os }}",
		"{% set ns = namespace() %}{% set ns._x = 1 %}", "{{ namespace(_x=1) }}", "{{ namespace({'__class__': 1}) }}",
	} {
		out, err := render(src, v, Limits{})
		var e *Error
		if !errors.As(err, &e) || e.Kind != SecurityError && !strings.Contains(src, "format") {
			t.Errorf("%s: got %q, %v; want a security error", src, out, err)
		}
	}
	if got, _ := v.Get("l"); !reflect.DeepEqual(got, []any{int64(1)}) {
		t.Errorf("a template changed its input: %v", got)
	}
}

// TestErrorLines wants errors to name the line they happened in.
func TestErrorLines(t *testing.T) {
	for src, want := range map[string]int{
		"a\n{{ x.y }}": 2, "\n\n{{ 1 + 'a' }}": 3, "{% if 1 %}\n{% for x in 5 %}{% endfor %}{% endif %}": 2,
		"{#\n\n#}\n{{ x | nosuch }}": 4, "{{\n\n1 2 }}": 3, "{% set a = 1 %}\n{{ 'a\nb' }}{{ 1 / 0 }}": 3, "{% if 1 %}\n\n": 1,
		"{% macro f() %}\n{{ 1 // 0 }}{% endmacro %}\n\n{{ f() }}": 2,
	} {
		_, err := render(src, nil, Limits{})
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%q: no error", src)
		} else if e.Line != want && e.Kind != SyntaxError {
			t.Errorf("%q: line %d in %v; want %d", src, e.Line, e, want)
		} else if !strings.Contains(err.Error(), "template line") {
			t.Errorf("%q: %v does not name the line", src, err)
		}
	}
}

func TestInputs(t *testing.T) {
	for src, want := range map[string]string{
		"{{ a }}{% set b = c %}{{ b }}":                                                          "a c",
		"{% if enable_thinking is defined and not enable_thinking %}{% endif %}":                 "enable_thinking",
		"{% set x = x if x is defined else 1 %}":                                                 "x",
		"{% for m in messages %}{{ m.role }}{{ loop.index }}{% endfor %}{{ m }}":                 "m messages",
		"{% macro f(a, b=c) %}{{ a }}{{ caller() }}{{ d }}{% endmacro %}{{ f() }}":               "c d",
		"{% set ns = namespace(q=1) %}{% set ns.q = range(2) %}{{ ns.q }}":                       "",
		"{{ raise_exception('x') }}{{ strftime_now('%Y') }}{% with w = v %}{{ w }}{% endwith %}": "v",
		"{{ 'text' }} reasoning_effort":                                                          "",
	} {
		tmpl, err := Compile(src, Limits{})
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		if got := strings.Join(tmpl.Inputs(), " "); got != want {
			t.Errorf("%s: got %q; want %q", src, got, want)
		}
	}
}

// TestMap checks that objects keep their order and numbers their type through
// JSON and back.
func TestMap(t *testing.T) {
	src := `{"z": 1, "a": {"y": [1.0, 1e2, -0.5, 123456789012345678901234567890, true, null], "b": "é<&>\u2028"}, "é": {}, "k1": 1, "k2": 2, "k3": 3, "k4": 4, "k5": 5, "k6": 6, "k7": 7}`
	m := vars(t, src)
	got, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	// encoding/json compacts and escapes what a Marshaler returns.
	var want strings.Builder
	want.WriteString(`{"z":1,"a":{"y":[1.0,100.0,-0.5,123456789012345678901234567890,true,null],"b":"é\u003c\u0026\u003e\u2028"},"é":{},"k1":1,"k2":2,"k3":3,"k4":4,"k5":5,"k6":6,"k7":7}`)
	if string(got) != want.String() {
		t.Errorf("got  %s\nwant %s", got, want.String())
	}
	s, err := EncodeJSON(m)
	if err != nil || !strings.HasPrefix(s, `{"z": 1, "a": {"y": [1.0, 100.0, `) || !strings.Contains(s, "é<&>\u2028") {
		t.Errorf("EncodeJSON: %s, %v", s, err)
	}
	m.Set("a", int64(2))
	m.Set("new", "x")
	m.Delete("z")
	m.Delete("absent")
	var keys []string
	for k := range m.All() {
		keys = append(keys, k)
	}
	if strings.Join(keys, " ") != "a é k1 k2 k3 k4 k5 k6 k7 new" || m.Len() != 10 {
		t.Errorf("keys are %v", keys)
	}
	if v, ok := m.Get("k7"); !ok || v != int64(7) {
		t.Errorf("k7 is %v", v)
	}
	if _, ok := m.Get("z"); ok {
		t.Error("a deleted key is still there")
	}
	c := m.Clone()
	c.Set("a", "changed")
	if v, _ := m.Get("a"); v != int64(2) {
		t.Error("a clone shares its entries")
	}
	for _, bad := range []string{`[1]`, `{"a": }`, `{"a": 1`, `{} x`, ``, `{"a": NaN}`, strings.Repeat(`{"a":`, 1000), strings.Repeat(`[`, 5000)} {
		if err := json.Unmarshal([]byte(bad), new(Map)); err == nil {
			t.Errorf("%.20q decoded", bad)
		}
		if _, err := DecodeJSON([]byte(bad)); err == nil && bad != "[1]" {
			t.Errorf("%.20q decoded", bad)
		}
	}
}

// TestConvert checks the Go values that Render takes.
func TestConvert(t *testing.T) {
	m := NewMap()
	m.Set("v", []any{1, int8(2), uint64(math.MaxUint64), float32(0.5), "s", nil, true, json.Number("7"), []string{"a"},
		map[string]any{"b": 1, "a": 2}, [2]int{1, 2}, (*Map)(nil)})
	got, err := render("{{ v }}", m, Limits{})
	want := "[1, 2, 18446744073709551615, 0.5, 's', None, True, 7, ['a'], {'a': 2, 'b': 1}, [1, 2], None]"
	if err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	for _, bad := range []any{make(chan int), func() {}, struct{}{}, map[int]int{}} {
		m := NewMap()
		m.Set("v", []any{bad})
		if _, err := render("{{ v }}", m, Limits{}); err == nil || !strings.Contains(err.Error(), "'v'") {
			t.Errorf("%T: got %v", bad, err)
		}
	}
	deep := []any{}
	for range 10_000 {
		deep = []any{deep, NewMap()}
	}
	m.Set("v", deep)
	if _, err := render("{{ v }}", m, Limits{}); err == nil {
		t.Error("an endlessly deep value was rendered")
	}
}

// TestConcurrent renders one template from many goroutines.
func TestConcurrent(t *testing.T) {
	tmpl, err := Compile("{% macro f(x) %}{{ x | upper }}{% endmacro %}{% for m in messages %}{{ f(m.k1) }}{{ m.k12 }}{{ 'ßé' | upper }}{% endfor %}", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	v := vars(t, `{"messages": [{"k1": "a", "k2": 2, "k3": 3, "k4": 4, "k5": 5, "k6": 6, "k7": 7, "k8": 8, "k9": 9, "k10": 10, "k11": 11, "k12": 12}]}`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if got, err := tmpl.Render(v, time.Now); err != nil || got != "A12SSÉ" {
					t.Errorf("got %q, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

// FuzzTemplate compiles and renders arbitrary source under tight limits: it
// must come back, with text or an *Error.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		"{% for m in messages %}{{ m.role ~ '\\n' + m['content'] | trim }}{% else %}x{% endfor %}",
		"{% macro f(a, b=1) %}{{ caller(a) }}{{ varargs }}{{ kwargs }}{% endmacro %}{% call(x) f(1) %}{{ x }}{% endcall %}",
		"{%- set ns = namespace(a=[1,2][::-1]) -%}{% set ns.a = ns.a + [3] %}{{ ns.a | map('string') | join(',') | tojson(indent=2) }}",
		"{{ '%5.2f|%-5s|%(a)d' % {'a': 1} }}{{ '{:>{w}}'.format(1, w=5) }}{{ 'a,b'.split(',', 1)[-1] }}",
		"{% raw %}{{ x }}{% endraw %}{# c #}{% filter upper %}a{% endfilter %}{% set x | title %}b c{% endset %}{{ x[1:] }}",
		"{% for a, (b, c) in d.items() recursive if a is odd %}{{ loop.cycle(1, 2) }}{{ loop(b) }}{% break %}{% endfor %}",
		"{{ 2 ** 100 // 3 % 7 - -1.5e3 < 1 == true and not x or 1 if y else 'z' is in 'abc' }}{{ strftime_now('%Y %-d %q') }}",
		"{% if x %}{% elif y %}{% else %}{% endif %}{% with a = 1 %}{{ a }}{% endwith %}{{ raise_exception('no') }}",
		"{{ [{'a': 1}] | selectattr('a', '>', 0) | groupby('a') | list }}{{ 'ab' | batch(1) | list | sort(attribute=0) | unique | first }}",
	} {
		f.Add(s)
	}
	lim := Limits{Source: 1 << 16, Steps: 20_000, Depth: 200, Output: 1 << 16, Value: 1 << 16, Total: 1 << 20, Range: 1000}
	v := vars(f, `{"messages": [{"role": "user", "content": " hé "}], "tools": null, "d": {"a": [1, [2.5, "x"]], "b": null}, "x": true, "s": "text"}`)
	f.Fuzz(func(t *testing.T, src string) {
		out, err := render(src, v, lim)
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("error of another type: %v", err)
		}
		if len(out) > lim.Output {
			t.Fatalf("%d bytes of output", len(out))
		}
	})
}
