package jinja

import "math/big"

// test is a builtin test: value is name(args).
type test func(r *run, v any, a args) any

var tests map[string]test

func init() {
	is := func(name string, f func(v any) bool) test {
		return func(r *run, v any, a args) any {
			r.bind(name, a, 0)
			return f(v)
		}
	}
	cmp := func(op string) test {
		return func(r *run, v any, a args) any { return r.compare(op, v, r.bind(op, a, 1, "other")[0]) }
	}
	eq := func(r *run, v any, a args) any { return r.equal(v, r.bind("eq", a, 1, "other")[0]) }
	ne := func(r *run, v any, a args) any { return !r.equal(v, r.bind("ne", a, 1, "other")[0]) }
	isInt := func(v any) bool {
		switch v.(type) {
		case int64, *big.Int:
			return true
		}
		return false
	}
	tests = map[string]test{
		"odd":  func(r *run, v any, a args) any { r.bind("odd", a, 0); return r.equal(modulo2(r, v), int64(1)) },
		"even": func(r *run, v any, a args) any { r.bind("even", a, 0); return r.equal(modulo2(r, v), int64(0)) },
		"divisibleby": func(r *run, v any, a args) any {
			n := r.bind("divisibleby", a, 1, "num")[0]
			return r.equal(r.binary("%", v, n), int64(0))
		},
		"defined":   is("defined", func(v any) bool { _, u := v.(undefined); return !u }),
		"undefined": is("undefined", func(v any) bool { _, u := v.(undefined); return u }),
		"filter": func(r *run, v any, a args) any {
			s, _ := text(v)
			return filters[s] != nil
		},
		"test": func(r *run, v any, a args) any {
			s, _ := text(v)
			return tests[s] != nil
		},
		"none":    is("none", func(v any) bool { return v == nil }),
		"boolean": is("boolean", func(v any) bool { _, ok := v.(bool); return ok }),
		"false":   is("false", func(v any) bool { b, ok := v.(bool); return ok && !b }),
		"true":    is("true", func(v any) bool { b, ok := v.(bool); return ok && b }),
		"integer": is("integer", isInt),
		"float":   is("float", func(v any) bool { _, ok := v.(float64); return ok }),
		"number":  is("number", isNumber),
		"lower": func(r *run, v any, a args) any {
			return strMethods["islower"](r, r.str(v), a)
		},
		"upper": func(r *run, v any, a args) any {
			return strMethods["isupper"](r, r.str(v), a)
		},
		"string":  is("string", func(v any) bool { _, ok := text(v); return ok }),
		"mapping": is("mapping", func(v any) bool { _, ok := v.(*Map); return ok }),
		"sequence": is("sequence", func(v any) bool {
			switch v.(type) {
			case string, markup, []any, tuple, *Map, rangeValue, *group, undefined:
				return true
			}
			return false
		}),
		"iterable": func(r *run, v any, a args) any {
			r.bind("iterable", a, 0)
			return r.iterate(v) != nil
		},
		"callable": is("callable", func(v any) bool {
			switch v.(type) {
			case *function, *macro, *loopContext, *joiner, undefined:
				return true
			}
			return false
		}),
		"sameas": func(r *run, v any, a args) any { return sameAs(v, r.bind("sameas", a, 1, "other")[0]) },
		"escaped": is("escaped", func(v any) bool {
			_, ok := v.(markup)
			return ok
		}),
		"in": func(r *run, v any, a args) any { return r.contains(r.bind("in", a, 1, "seq")[0], v) },
		"==": eq, "eq": eq, "equalto": eq,
		"!=": ne, "ne": ne,
		">": cmp(">"), "gt": cmp(">"), "greaterthan": cmp(">"),
		">=": cmp(">="), "ge": cmp(">="),
		"<": cmp("<"), "lt": cmp("<"), "lessthan": cmp("<"),
		"<=": cmp("<="), "le": cmp("<="),
	}
}

func modulo2(r *run, v any) any { return r.binary("%", v, int64(2)) }

// sameAs is Python's "is": identity. Equal ints and texts are the same object
// here, which Python promises for neither.
func sameAs(a, b any) bool {
	switch x := a.(type) {
	case []any:
		y, ok := b.([]any)
		return ok && len(x) == len(y) && (len(x) > 0 && &x[0] == &y[0])
	case tuple:
		y, ok := b.(tuple)
		return ok && len(x) == len(y) && (len(x) == 0 || &x[0] == &y[0])
	case *big.Int, dictView, sliceValue:
		return false
	}
	switch b.(type) {
	case []any, tuple, dictView, sliceValue:
		return false
	}
	return a == b
}
