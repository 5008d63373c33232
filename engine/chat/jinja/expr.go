package jinja

func (e *constExpr) eval(*run, *scope) any { return e.val }

func (e *nameExpr) eval(r *run, s *scope) any {
	r.step(0)
	if v, ok := s.get(e.name); ok {
		return v
	}
	if v, ok := globals[e.name]; ok {
		return v
	}
	return undefinedName(e.name)
}

func (r *run) evalAll(items []expr, s *scope) []any {
	r.enter()
	defer r.leave()
	r.allocItems(len(items))
	out := make([]any, len(items))
	for i, it := range items {
		out[i] = it.eval(r, s)
	}
	return out
}

func (e *tupleExpr) eval(r *run, s *scope) any { return tuple(r.evalAll(e.items, s)) }

func (e *listExpr) eval(r *run, s *scope) any { return r.evalAll(e.items, s) }

func (e *dictExpr) eval(r *run, s *scope) any {
	r.enter()
	defer r.leave()
	m := NewMap()
	for i, k := range e.keys {
		key := k.eval(r, s)
		val := e.vals[i].eval(r, s)
		r.line = int(e.line)
		r.setKey(m, key, val)
	}
	return m
}

func (e *attrExpr) eval(r *run, s *scope) any {
	r.enter()
	obj := e.obj.eval(r, s)
	r.leave()
	r.step(0)
	r.line = int(e.line)
	return r.attr(obj, e.name)
}

// attr is obj.name as a template sees it: an attribute if the type has one,
// else an item, else undefined.
func (r *run) attr(obj any, name string) any {
	if v, ok := r.attribute(obj, name); ok {
		return v
	}
	if m, ok := obj.(*Map); ok {
		if v, ok := m.Get(name); ok {
			return v
		}
	}
	return r.undefinedAttr(obj, name)
}

func (e *itemExpr) eval(r *run, s *scope) any {
	r.enter()
	obj := e.obj.eval(r, s)
	key := e.arg.eval(r, s)
	r.leave()
	r.step(0)
	r.line = int(e.line)
	return r.item(obj, key)
}

func (e *sliceExpr) eval(r *run, s *scope) any {
	part := func(e expr) any {
		if e == nil {
			return nil
		}
		return e.eval(r, s)
	}
	return sliceValue{part(e.lo), part(e.hi), part(e.step)}
}

func (r *run) evalArgs(l *argList, s *scope) args {
	var a args
	if len(l.pos) > 0 {
		a.pos = r.evalAll(l.pos, s)
	}
	for i, name := range l.kwNames {
		a.kw = append(a.kw, kwarg{name, l.kwVals[i].eval(r, s)})
	}
	if l.star != nil {
		a.pos = r.joinLists(a.pos, r.list(l.star.eval(r, s)))
	}
	if l.dstar != nil {
		v := l.dstar.eval(r, s)
		m, ok := v.(*Map)
		if !ok {
			r.fail(TypeError, "argument after ** must be a mapping, not %s", typeName(v))
		}
		for i, k := range m.keys {
			name, ok := k.(string)
			if !ok {
				r.fail(TypeError, "keywords must be strings")
			}
			for _, have := range a.kw {
				if have.name == name {
					r.fail(TypeError, "got two values for argument '%s'", name)
				}
			}
			r.step(len(a.kw))
			a.kw = append(a.kw, kwarg{name, m.vals[i]})
		}
	}
	return a
}

func (e *callExpr) eval(r *run, s *scope) any {
	r.enter()
	defer r.leave()
	fn := e.fn.eval(r, s)
	a := r.evalArgs(&e.args, s)
	r.line = int(e.line)
	return r.call(fn, a)
}

func (r *run) call(fn any, a args) any {
	r.step(0)
	switch fn := fn.(type) {
	case *function:
		return fn.call(r, a)
	case *macro:
		return fn.call(r, a)
	case *loopContext:
		return fn.recurse(r, a)
	case *joiner:
		if len(a.pos)+len(a.kw) > 0 {
			r.fail(TypeError, "a joiner takes no arguments")
		}
		if !fn.used {
			fn.used = true
			return ""
		}
		return fn.sep
	}
	r.useUndefined(fn)
	r.fail(TypeError, "'%s' object is not callable", typeName(fn))
	return nil
}

// bodyText stands for the body of a filter or set block in its filter chain.
const bodyText = " body"

func (e *filterExpr) eval(r *run, s *scope) any {
	r.enter()
	defer r.leave()
	var obj any
	if e.obj == nil {
		obj, _ = s.get(bodyText)
	} else {
		obj = e.obj.eval(r, s)
	}
	a := r.evalArgs(&e.args, s)
	r.line = int(e.line)
	r.step(0)
	if e.fn == nil {
		r.fail(RuntimeError, "no filter named '%s'", e.name)
	}
	return e.fn(r, obj, a)
}

func (e *testExpr) eval(r *run, s *scope) any {
	r.enter()
	defer r.leave()
	obj := e.obj.eval(r, s)
	a := r.evalArgs(&e.args, s)
	r.line = int(e.line)
	r.step(0)
	if e.fn == nil {
		r.fail(RuntimeError, "no test named '%s'", e.name)
	}
	return e.fn(r, obj, a)
}

func (e *condExpr) eval(r *run, s *scope) any {
	r.enter()
	defer r.leave()
	if r.truth(e.test.eval(r, s)) {
		return e.yes.eval(r, s)
	}
	if e.no == nil {
		return undefined{UndefinedError, "the inline if-expression evaluated to false and has no else"}
	}
	return e.no.eval(r, s)
}

func (e *andExpr) eval(r *run, s *scope) any {
	r.enter()
	defer r.leave()
	if v := e.left.eval(r, s); !r.truth(v) {
		return v
	}
	return e.right.eval(r, s)
}

func (e *orExpr) eval(r *run, s *scope) any {
	r.enter()
	defer r.leave()
	if v := e.left.eval(r, s); r.truth(v) {
		return v
	}
	return e.right.eval(r, s)
}

func (e *notExpr) eval(r *run, s *scope) any {
	r.enter()
	defer r.leave()
	return !r.truth(e.arg.eval(r, s))
}

func (e *cmpExpr) eval(r *run, s *scope) any {
	r.enter()
	defer r.leave()
	left := e.first.eval(r, s)
	for i, op := range e.ops {
		right := e.rest[i].eval(r, s)
		r.line = int(e.line)
		ok := false
		switch op {
		case "==":
			ok = r.equal(left, right)
		case "!=":
			ok = !r.equal(left, right)
		case "in":
			ok = r.contains(right, left)
		case "not in":
			ok = !r.contains(right, left)
		default:
			ok = r.compare(op, left, right)
		}
		if !ok {
			return false
		}
		left = right
	}
	return true
}

func (e *binExpr) eval(r *run, s *scope) any {
	r.enter()
	defer r.leave()
	left := e.left.eval(r, s)
	right := e.right.eval(r, s)
	r.step(0)
	r.line = int(e.line)
	return r.binary(e.op, left, right)
}

func (e *unaryExpr) eval(r *run, s *scope) any {
	r.enter()
	defer r.leave()
	v := e.arg.eval(r, s)
	r.line = int(e.line)
	if !isNumber(v) {
		r.useUndefined(v)
		r.fail(TypeError, "bad operand type for unary %s: '%s'", e.op, typeName(v))
	}
	if f, ok := v.(float64); ok {
		if e.op == "-" {
			return -f
		}
		return f
	}
	op := "+"
	if e.op == "-" {
		op = "-"
	}
	return r.arith(op, int64(0), v)
}

func (e *concatExpr) eval(r *run, s *scope) any {
	parts := r.evalAll(e.parts, s)
	n := 0
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = r.str(p)
		n += len(texts[i])
	}
	r.alloc(n)
	out := make([]byte, 0, n)
	for _, t := range texts {
		out = append(out, t...)
	}
	return string(out)
}
