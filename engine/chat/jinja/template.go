package jinja

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Template is a compiled template. It is immutable: any number of goroutines
// may render it at once.
type Template struct {
	body   []stmt
	inputs []string
	lim    Limits
}

// Compile parses a template. The limits hold for it and for every rendering;
// the zero Limits are DefaultLimits. Every error is an *Error.
func Compile(source string, limits Limits) (t *Template, err error) {
	defer func() {
		if e := recover(); e != nil {
			t, err = nil, asError(e)
		}
	}()
	lim := limits.withDefaults()
	if len(source) > lim.Source {
		return nil, &Error{Kind: LimitError, Message: fmt.Sprintf("template source of %d bytes is longer than %d", len(source), lim.Source)}
	}
	body, free := parse(source)
	for name := range globals {
		delete(free, name)
	}
	return &Template{body, slices.Sorted(maps.Keys(free)), lim}, nil
}

// asError passes an *Error on and lets any other panic go its way.
func asError(e any) error {
	err, ok := e.(*Error)
	if !ok {
		panic(e)
	}
	return err
}

// Inputs returns, sorted, the names that the template reads without having
// set them before: the variables it understands.
func (t *Template) Inputs() []string { return slices.Clone(t.inputs) }

// Render renders the template with the given variables. now is the clock
// behind strftime_now; nil means time.Now. The values may be nil, bool, ints,
// floats, strings, slices, *Map and maps with string keys (which are sorted),
// nested at will. Every error about the template is an *Error.
func (t *Template) Render(vars *Map, now func() time.Time) (out string, err error) {
	defer func() {
		if e := recover(); e != nil {
			out, err = "", asError(e)
		}
	}()
	if now == nil {
		now = time.Now
	}
	r := &run{lim: t.lim, now: now}
	top := &scope{}
	for name, v := range vars.All() {
		v, err := convert(v, 0)
		if err != nil {
			return "", fmt.Errorf("template variable '%s': %w", name, err)
		}
		top.set(name, v)
	}
	s := &scope{parent: top}
	s.root = s
	r.execAll(t.body, s)
	return string(r.out), nil
}

var dictGlobal = &function{name: "dict"}

var globals map[string]any

func init() {
	dictGlobal.call = func(r *run, a args) any { return r.newDict("dict", a) }
	fn := func(name string, f func(r *run, a args) any) { globals[name] = &function{name, f} }
	globals = map[string]any{"dict": dictGlobal}
	fn("namespace", func(r *run, a args) any {
		m := r.newDict("namespace", a)
		for _, k := range m.keys {
			if s, ok := text(k); ok {
				r.checkNamespaceName(s)
			}
		}
		return &namespace{m}
	})
	fn("range", func(r *run, a args) any {
		v := r.bind("range", a, 1, "start", "stop", "step")
		lo, hi, step := 0, r.wantInt("range", v[0], 0), 1
		if v[1] != missing {
			lo, hi = hi, r.wantInt("range", v[1], 0)
		}
		step = r.wantInt("range", v[2], 1)
		if step == 0 {
			r.fail(ValueError, "the step of range must not be zero")
		}
		// Counted in unsigned arithmetic, which cannot overflow here.
		count := uint64(0)
		if step > 0 && hi > lo {
			count = (uint64(hi)-uint64(lo)-1)/uint64(step) + 1
		} else if step < 0 && lo > hi {
			count = (uint64(lo)-uint64(hi)-1)/-uint64(step) + 1
		}
		if count > uint64(r.lim.Range) {
			r.fail(LimitError, "range of more than %d items", r.lim.Range)
		}
		return rangeValue{int64(lo), int64(hi), int64(step), int64(count)}
	})
	fn("cycler", func(r *run, a args) any {
		if len(a.pos) == 0 || len(a.kw) > 0 {
			r.fail(RuntimeError, "cycler needs at least one item, and no names")
		}
		return &cycler{items: a.pos}
	})
	fn("joiner", func(r *run, a args) any {
		v := r.bind("joiner", a, 0, "sep")
		if v[0] == missing {
			v[0] = ", "
		}
		return &joiner{sep: v[0]}
	})
	fn("raise_exception", func(r *run, a args) any {
		r.fail(Raised, "%s", r.str(r.bind("raise_exception", a, 1, "message")[0]))
		return nil
	})
	fn("strftime_now", func(r *run, a args) any {
		return r.strftime(r.now(), r.wantText("the format", r.bind("strftime_now", a, 1, "format")[0]))
	})
}

// newDict is Python's dict(mapping or pairs, **kw).
func (r *run) newDict(what string, a args) *Map {
	if len(a.pos) > 1 {
		r.fail(TypeError, "%s takes at most one positional argument", what)
	}
	m := NewMap()
	if len(a.pos) == 1 {
		switch src := a.pos[0].(type) {
		case *Map:
			r.allocItems(mul(src.Len(), 3))
			m = src.Clone()
		default:
			next := r.mustIterate(src)
			for it, ok := next(); ok; it, ok = next() {
				pair := r.list(it)
				if len(pair) != 2 {
					r.fail(ValueError, "%s needs pairs of key and value", what)
				}
				r.setKey(m, pair[0], pair[1])
			}
		}
	}
	for _, k := range a.kw {
		r.setKey(m, k.name, k.val)
	}
	return m
}
