package jinja

func (r *run) execAll(body []stmt, s *scope) signal {
	r.enter()
	for _, st := range body {
		if sig := st.exec(r, s); sig != sigNone {
			r.leave()
			return sig
		}
	}
	r.leave()
	return sigNone
}

func (n *textStmt) exec(r *run, _ *scope) signal {
	r.write(n.text)
	return sigNone
}

func (n *outputStmt) exec(r *run, s *scope) signal {
	r.line = int(n.line)
	r.write(r.str(n.val.eval(r, s)))
	return sigNone
}

func (n *assignStmt) exec(r *run, s *scope) signal {
	r.line = int(n.line)
	v := n.val.eval(r, s)
	r.line = int(n.line)
	r.assign(s, &n.to, v)
	return sigNone
}

// assign binds v to a target in s.
func (r *run) assign(s *scope, to *target, v any) {
	r.step(0)
	if to.tuple {
		next := r.mustIterate(v)
		items := make([]any, 0, len(to.items))
		for range to.items {
			v, ok := next()
			if !ok {
				r.fail(ValueError, "not enough values to unpack (expected %d, got %d)", len(to.items), len(items))
			}
			items = append(items, v)
		}
		if _, more := next(); more {
			r.fail(ValueError, "too many values to unpack (expected %d)", len(to.items))
		}
		for i := range to.items {
			r.assign(s, &to.items[i], items[i])
		}
		return
	}
	if to.attr == "" {
		s.set(to.name, v)
		return
	}
	holder, _ := s.get(to.name)
	ns, ok := holder.(*namespace)
	if !ok {
		r.fail(RuntimeError, "cannot assign attribute '%s': '%s' is not a namespace", to.attr, to.name)
	}
	r.checkNamespaceName(to.attr)
	r.setKey(ns.attrs, to.attr, v)
}

func (r *run) checkNamespaceName(name string) {
	if len(name) > 0 && name[0] == '_' {
		r.fail(SecurityError, "a namespace cannot hold '%s': rename the attribute, it starts with an underscore", name)
	}
}

// captureBody returns what body writes in a scope of its own, through the
// filter chain if there is one.
func (r *run) captureBody(body []stmt, filter expr, s *scope) (any, signal) {
	inner := s.child()
	var sig signal
	var v any = r.capture(func() { sig = r.execAll(body, inner) })
	if filter != nil && sig == sigNone {
		fs := s.child()
		fs.set(bodyText, v)
		v = filter.eval(r, fs)
	}
	return v, sig
}

func (n *assignBlock) exec(r *run, s *scope) signal {
	v, sig := r.captureBody(n.body, n.filter, s)
	if sig == sigNone {
		r.line = int(n.line)
		r.assign(s, &n.to, v)
	}
	return sig
}

func (n *filterStmt) exec(r *run, s *scope) signal {
	v, sig := r.captureBody(n.body, n.filter, s)
	if sig == sigNone {
		r.write(r.str(v))
	}
	return sig
}

func (n *ifStmt) exec(r *run, s *scope) signal {
	for i, t := range n.tests {
		if r.truth(t.eval(r, s)) {
			return r.execAll(n.bodies[i], s)
		}
	}
	if len(n.bodies) > len(n.tests) {
		return r.execAll(n.bodies[len(n.tests)], s)
	}
	return sigNone
}

func (n *withStmt) exec(r *run, s *scope) signal {
	inner := s.child()
	for i := range n.to {
		v := n.vals[i].eval(r, s)
		r.line = int(n.line)
		r.assign(inner, &n.to[i], v)
	}
	return r.execAll(n.body, inner)
}

func (n *scopeStmt) exec(r *run, s *scope) signal {
	if n.top {
		s = s.root
	}
	return r.execAll(n.body, s.child())
}

func (n *loaderStmt) exec(r *run, _ *scope) signal {
	r.line = int(n.line)
	r.fail(TypeError, "'%s' is not possible: a chat template stands alone", n.tag)
	return sigNone
}

func (n *jumpStmt) exec(*run, *scope) signal { return n.sig }

// --- loops ---

// loopContext is the variable loop. It reads ahead only as far as its
// attributes ask.
type loopContext struct {
	src     func() (any, bool)
	ahead   []any // items read but not visited
	drained bool
	cur     any
	prev    any
	index0  int
	depth0  int
	changed []any
	again   func(v any) any // runs the loop body over v, for recursive loops
}

func (l *loopContext) next() (any, bool) {
	v, ok := l.peek()
	if !ok {
		return nil, false
	}
	l.ahead = l.ahead[1:]
	l.prev, l.cur = l.cur, v
	l.index0++
	return v, true
}

func (l *loopContext) peek() (any, bool) {
	if len(l.ahead) == 0 {
		if l.drained {
			return nil, false
		}
		v, ok := l.src()
		if !ok {
			l.drained = true
			return nil, false
		}
		l.ahead = append(l.ahead, v)
	}
	return l.ahead[0], true
}

func (l *loopContext) length(r *run) int {
	for !l.drained {
		v, ok := l.src()
		if !ok {
			l.drained = true
			break
		}
		r.allocItems(1)
		l.ahead = append(l.ahead, v)
	}
	return l.index0 + 1 + len(l.ahead)
}

func (l *loopContext) recurse(r *run, a args) any {
	if l.again == nil {
		r.fail(TypeError, "only a loop marked 'recursive' can be called")
	}
	return l.again(r.bind("loop", a, 1, "iterable")[0])
}

func (l *loopContext) attribute(r *run, name string) (any, bool) {
	switch name {
	case "index":
		return int64(l.index0 + 1), true
	case "index0":
		return int64(l.index0), true
	case "revindex":
		return int64(l.length(r) - l.index0), true
	case "revindex0":
		return int64(l.length(r) - l.index0 - 1), true
	case "length":
		return int64(l.length(r)), true
	case "first":
		return l.index0 == 0, true
	case "last":
		_, more := l.peek()
		return !more, true
	case "depth":
		return int64(l.depth0 + 1), true
	case "depth0":
		return int64(l.depth0), true
	case "previtem":
		if l.index0 == 0 {
			return undefined{UndefinedError, "there is no previous item"}, true
		}
		return l.prev, true
	case "nextitem":
		if v, ok := l.peek(); ok {
			return v, true
		}
		return undefined{UndefinedError, "there is no next item"}, true
	case "cycle":
		return &function{"cycle", func(r *run, a args) any {
			if len(a.pos) == 0 {
				r.fail(TypeError, "loop.cycle needs items to cycle through")
			}
			return a.pos[l.index0%len(a.pos)]
		}}, true
	case "changed":
		return &function{"changed", func(r *run, a args) any {
			if l.changed != nil && r.equalItems(l.changed, a.pos) {
				return false
			}
			l.changed = a.pos
			return true
		}}, true
	}
	return nil, false
}

func (n *forStmt) exec(r *run, s *scope) signal {
	r.line = int(n.line)
	n.loop(r, s, n.iter.eval(r, s), 0)
	return sigNone
}

func (n *forStmt) loop(r *run, s *scope, seq any, depth int) {
	r.enter()
	defer r.leave()
	r.line = int(n.line)
	next := r.mustIterate(seq)
	if n.test != nil {
		all := next
		next = func() (any, bool) {
			for {
				v, ok := all()
				if !ok {
					return nil, false
				}
				inner := s.child()
				r.assign(inner, &n.to, v)
				if r.truth(n.test.eval(r, inner)) {
					return v, true
				}
			}
		}
	}
	var ctx *loopContext
	if n.usesLoop || n.recursive {
		ctx = &loopContext{src: next, index0: -1, depth0: depth}
		if n.recursive {
			ctx.again = func(v any) any {
				return r.capture(func() { n.loop(r, s, v, depth+1) })
			}
		}
		next = ctx.next
	}
	ran := false
	for {
		v, ok := next()
		if !ok {
			break
		}
		ran = true
		r.step(0)
		inner := s.child()
		r.assign(inner, &n.to, v)
		if ctx != nil {
			inner.set("loop", ctx)
		}
		if r.execAll(n.body, inner) == sigBreak {
			break
		}
	}
	if !ran {
		r.execAll(n.els, s.child())
	}
}

// --- macros ---

// macro is a macro or a caller, bound to the scope it was defined in.
type macro struct {
	def   *macroDef
	scope *scope
}

func (n *macroStmt) exec(r *run, s *scope) signal {
	s.set(n.def.name, &macro{n.def, s})
	return sigNone
}

func (n *callStmt) exec(r *run, s *scope) signal {
	r.line = int(n.line)
	fn := n.call.fn.eval(r, s)
	a := r.evalArgs(&n.call.args, s)
	a.kw = append(a.kw, kwarg{"caller", &macro{n.def, s}})
	r.line = int(n.line)
	r.write(r.str(r.call(fn, a)))
	return sigNone
}

func (m *macro) call(r *run, a args) any {
	r.enter()
	defer r.leave()
	d := m.def
	s := m.scope.child()
	given := min(len(a.pos), len(d.params))
	for i := range given {
		s.set(d.params[i], a.pos[i])
	}
	extra := NewMap()
	kw := a.kw
	take := func(name string) (any, bool) {
		for i, k := range kw {
			if k.name == name {
				kw = append(kw[:i:i], kw[i+1:]...)
				return k.val, true
			}
		}
		return nil, false
	}
	explicitCaller := false
	for i, name := range d.params {
		explicitCaller = explicitCaller || name == "caller"
		if i < given {
			continue
		}
		v, ok := take(name)
		if !ok {
			if j := i - len(d.params) + len(d.defaults); j >= 0 {
				v = d.defaults[j].eval(r, s)
			} else {
				v = undefined{UndefinedError, "parameter '" + name + "' was not provided"}
			}
		}
		s.set(name, v)
	}
	if d.caller && !explicitCaller {
		v, ok := take("caller")
		if !ok {
			v = undefined{UndefinedError, "no caller defined: use the macro in a call block"}
		}
		s.set("caller", v)
	}
	for _, k := range kw {
		if !d.kwargs {
			r.fail(TypeError, "macro '%s' takes no keyword argument '%s'", d.name, k.name)
		}
		extra.Set(k.name, k.val)
	}
	if d.kwargs {
		s.set("kwargs", extra)
	}
	if d.varargs {
		s.set("varargs", tuple(a.pos[given:]))
	} else if len(a.pos) > len(d.params) {
		r.fail(TypeError, "macro '%s' takes not more than %d argument(s)", d.name, len(d.params))
	}
	return r.capture(func() { r.execAll(d.body, s) })
}
