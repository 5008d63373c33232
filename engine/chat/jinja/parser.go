package jinja

import (
	"fmt"
	"slices"
)

// maxParseDepth bounds how deep source may nest; each level costs several Go
// frames.
const maxParseDepth = 200

type parser struct {
	toks  []token
	pos   int
	depth int

	loops int // enclosing for loops of the current macro

	// An unknown filter or test fails the compilation, except in conditionals,
	// where it fails only when it is reached. Since "a | f if x" shows the
	// conditional late, failures wait in unknown until their surroundings
	// are known; fatal ones stay.
	unknown, fatal []*Error

	// declared holds the names bound so far, one set per open scope; free
	// collects the names that are read while not bound: the inputs of the
	// template. mentioned collects every name read, for macros and loops.
	declared  []map[string]bool
	free      map[string]bool
	mentioned []map[string]bool
}

func parse(src string) (body []stmt, free map[string]bool) {
	p := &parser{toks: lex(src), free: map[string]bool{}}
	p.openScope()
	p.hard(func() { body = p.statements("", nil) })
	if len(p.fatal) > 0 {
		panic(p.fatal[0])
	}
	return body, p.free
}

func (p *parser) fail(format string, args ...any) {
	panic(&Error{Kind: SyntaxError, Line: p.cur().line, Message: fmt.Sprintf(format, args...)})
}

func (p *parser) cur() token { return p.toks[p.pos] }

func (p *parser) look() token {
	if p.pos+1 < len(p.toks) {
		return p.toks[p.pos+1]
	}
	return p.toks[len(p.toks)-1]
}

func (p *parser) next() token {
	t := p.toks[p.pos]
	if p.pos < len(p.toks)-1 {
		p.pos++
	}
	return t
}

func (p *parser) isOp(op string) bool     { t := p.cur(); return t.kind == tokOp && t.val == op }
func (p *parser) isName(name string) bool { t := p.cur(); return t.kind == tokName && t.val == name }

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expectOp(op string) token {
	if !p.isOp(op) {
		p.fail("expected '%s', found %s", op, p.cur().describe())
	}
	return p.next()
}

func (p *parser) expect(kind tokenKind, what string) token {
	if p.cur().kind != kind {
		p.fail("expected %s, found %s", what, p.cur().describe())
	}
	return p.next()
}

func (p *parser) enter() {
	if p.depth++; p.depth > maxParseDepth {
		p.fail("nested deeper than %d levels", maxParseDepth)
	}
}

func (p *parser) leave() { p.depth-- }

func (p *parser) openScope()  { p.declared = append(p.declared, map[string]bool{}) }
func (p *parser) closeScope() { p.declared = p.declared[:len(p.declared)-1] }

func (p *parser) declareName(name string) { p.declared[len(p.declared)-1][name] = true }

func (p *parser) declare(t target) {
	if t.tuple {
		for _, it := range t.items {
			p.declare(it)
		}
	} else if t.attr == "" {
		p.declareName(t.name)
	}
}

func (p *parser) mention(name string) {
	for _, m := range p.mentioned {
		m[name] = true
	}
	for _, d := range p.declared {
		if d[name] {
			return
		}
	}
	p.free[name] = true
}

// collect runs f and returns the names that it read.
func (p *parser) collect(f func()) map[string]bool {
	m := map[string]bool{}
	p.mentioned = append(p.mentioned, m)
	f()
	p.mentioned = p.mentioned[:len(p.mentioned)-1]
	return m
}

// --- statements ---

// statements parses up to a block tag whose name is in ends, leaving that name
// as the current token. open is the tag that waits for it ("" at top level).
func (p *parser) statements(open string, ends []string) []stmt {
	p.enter()
	defer p.leave()
	openLine := p.cur().line
	var body []stmt
	for {
		t := p.cur()
		switch t.kind {
		case tokEOF:
			if open != "" {
				p.fail("template ends inside the '%s' block of line %d; add {%% %s %%}", open, openLine, ends[len(ends)-1])
			}
			return body
		case tokData:
			body = append(body, &textStmt{t.val})
			p.next()
		case tokVarBegin:
			p.next()
			e := p.tuple(true, nil)
			body = append(body, &outputStmt{line(t.line), e})
			p.expect(tokVarEnd, "'}}'")
		case tokBlockBegin:
			p.next()
			if n := p.cur(); n.kind == tokName && slices.Contains(ends, n.val) {
				return body
			}
			body = append(body, p.statement()...)
			p.expect(tokBlockEnd, "'%}'")
		default:
			p.fail("unexpected %s", t.describe())
		}
	}
}

// block parses the rest of the current tag, then statements up to one of ends,
// and returns the end tag's name with that token consumed.
func (p *parser) block(open string, ends ...string) ([]stmt, string) {
	p.skipOp(":")
	p.expect(tokBlockEnd, "'%}'")
	body := p.statements(open, ends)
	return body, p.next().val
}

// soft parses something conditional: unknown filters in it are forgiven.
func (p *parser) soft(f func()) {
	mark := len(p.unknown)
	f()
	p.unknown = p.unknown[:mark]
}

// hard parses a body with a scope of its own: unknown filters in it are
// errors even inside a conditional.
func (p *parser) hard(f func()) {
	mark := len(p.unknown)
	f()
	p.fatal = append(p.fatal, p.unknown[mark:]...)
	p.unknown = p.unknown[:mark]
}

// scoped parses a body in a scope of its own.
func (p *parser) scoped(open, end string, params ...target) (body []stmt) {
	p.hard(func() {
		p.openScope()
		for _, t := range params {
			p.declare(t)
		}
		body, _ = p.block(open, end)
		p.closeScope()
	})
	return body
}

func (p *parser) statement() []stmt {
	t := p.expect(tokName, "a tag name")
	at := line(t.line)
	switch t.val {
	case "set":
		to := p.target(true, nil)
		if p.skipOp("=") {
			val := p.tuple(true, nil)
			p.declare(to)
			return []stmt{&assignStmt{at, to, val}}
		}
		f := p.filterChain(nil)
		body := p.scoped("set", "endset")
		p.declare(to)
		return []stmt{&assignBlock{at, to, f, body}}
	case "if":
		return []stmt{p.ifTag()}
	case "for":
		return []stmt{p.forTag(at)}
	case "with":
		w := &withStmt{line: at}
		for p.cur().kind != tokBlockEnd {
			if len(w.to) > 0 {
				p.expectOp(",")
			}
			to := p.target(false, nil)
			p.expectOp("=")
			w.to = append(w.to, to)
			w.vals = append(w.vals, p.expression())
		}
		w.body = p.scoped("with", "endwith", w.to...)
		return []stmt{w}
	case "macro":
		name := p.targetName()
		p.declareName(name)
		return []stmt{&macroStmt{at, p.macro(name, "macro", true)}}
	case "call":
		def := p.signature(&macroDef{}, false)
		call, ok := p.expression().(*callExpr)
		if !ok {
			p.fail("a call block needs a call, such as {%% call name() %%}")
		}
		p.macroBody(def, "call")
		return []stmt{&callStmt{at, call, def}}
	case "generation":
		// The reference turns the tag into a call block that returns its body.
		return []stmt{&scopeStmt{body: p.scoped("generation", "endgeneration")}}
	case "filter":
		f := p.oneFilter(nil)
		f = p.filterChain(f)
		return []stmt{&filterStmt{at, f, p.scoped("filter", "endfilter")}}
	case "block":
		name := p.expect(tokName, "a block name").val
		inner := p.skipName("scoped")
		p.skipName("required")
		body := p.scoped("block", "endblock")
		p.skipName(name)
		return []stmt{&scopeStmt{top: !inner, body: body}}
	case "autoescape":
		if c, ok := p.expression().(*constExpr); !ok || c.val != false {
			p.fail("autoescape can only be set to false: prompts are not HTML")
		}
		return []stmt{&scopeStmt{body: p.scoped("autoescape", "endautoescape")}}
	case "print":
		var out []stmt
		for p.cur().kind != tokBlockEnd {
			if len(out) > 0 {
				p.expectOp(",")
			}
			out = append(out, &outputStmt{at, p.expression()})
		}
		return out
	case "break", "continue":
		if p.loops == 0 {
			p.fail("'%s' outside a for loop", t.val)
		}
		if t.val == "break" {
			return []stmt{&jumpStmt{sigBreak}}
		}
		return []stmt{&jumpStmt{sigContinue}}
	case "extends", "include", "import", "from":
		for p.cur().kind != tokBlockEnd && p.cur().kind != tokEOF {
			p.next()
		}
		return []stmt{&loaderStmt{at, t.val}}
	}
	p.pos--
	p.fail("unknown tag '%s'", t.val)
	return nil
}

func (p *parser) ifTag() stmt {
	n := &ifStmt{}
	p.soft(func() {
		for end := "elif"; end != "endif"; {
			open := "else"
			if end == "elif" {
				open = "if"
				n.tests = append(n.tests, p.tuple(false, nil))
			}
			var body []stmt
			if open == "if" {
				body, end = p.block(open, "elif", "else", "endif")
			} else {
				body, end = p.block(open, "endif")
			}
			n.bodies = append(n.bodies, body)
		}
	})
	return n
}

func (p *parser) forTag(at line) stmt {
	n := &forStmt{line: at}
	n.to = p.target(false, []string{"in"})
	if n.to.name == "loop" {
		panic(&Error{AssertionError, int(at), "the loop variable cannot be called 'loop'"})
	}
	if !p.skipName("in") {
		p.fail("expected 'in' after the loop variable, found %s", p.cur().describe())
	}
	n.iter = p.tuple(false, []string{"recursive"})
	p.openScope()
	p.declare(n.to)
	p.declareName("loop")
	if p.skipName("if") {
		n.test = p.expression()
	}
	n.recursive = p.skipName("recursive")
	var end string
	p.hard(func() {
		p.loops++
		names := p.collect(func() { n.body, end = p.block("for", "else", "endfor") })
		n.usesLoop = names["loop"]
		p.loops--
	})
	p.closeScope()
	if end == "else" {
		p.hard(func() {
			p.openScope()
			n.els, _ = p.block("else", "endfor")
			p.closeScope()
		})
	}
	return n
}

func (p *parser) macro(name, tag string, signature bool) *macroDef {
	def := p.signature(&macroDef{name: name}, signature)
	p.macroBody(def, tag)
	return def
}

// signature parses "(a, b=1)". Without required it may be absent.
func (p *parser) signature(def *macroDef, required bool) *macroDef {
	if !required && !p.isOp("(") {
		return def
	}
	p.expectOp("(")
	for !p.isOp(")") {
		if len(def.params) > 0 {
			p.expectOp(",")
		}
		name := p.targetName()
		if slices.Contains(def.params, name) {
			p.fail("parameter '%s' appears twice", name)
		}
		def.params = append(def.params, name)
		if p.skipOp("=") {
			def.defaults = append(def.defaults, p.expression())
		} else if len(def.defaults) > 0 {
			p.fail("parameter '%s' needs a default, because the one before it has one", name)
		}
	}
	p.next()
	return def
}

func (p *parser) macroBody(def *macroDef, tag string) {
	loops := p.loops
	p.loops = 0
	p.hard(func() {
		p.openScope()
		for _, name := range append([]string{"varargs", "kwargs", "caller"}, def.params...) {
			p.declareName(name)
		}
		names := p.collect(func() { def.body, _ = p.block(tag, "end"+tag) })
		def.varargs = names["varargs"] && !slices.Contains(def.params, "varargs")
		def.kwargs = names["kwargs"] && !slices.Contains(def.params, "kwargs")
		def.caller = names["caller"]
		p.closeScope()
	})
	p.loops = loops
}

// --- assignment targets ---

func (p *parser) targetName() string {
	t := p.expect(tokName, "a name")
	if isLiteralName(t.val) {
		p.pos--
		p.fail("cannot assign to '%s'", t.val)
	}
	return t.val
}

func isLiteralName(s string) bool {
	switch s {
	case "true", "false", "none", "True", "False", "None":
		return true
	}
	return false
}

// target parses what stands left of "=" or "in": names, optionally attributes
// of a namespace, possibly several with commas or in parentheses.
func (p *parser) target(attrs bool, ends []string) target {
	p.enter()
	defer p.leave()
	var items []target
	tuple := false
	for {
		if len(items) > 0 && p.tupleEnd(ends) {
			break
		}
		if p.skipOp("(") {
			items = append(items, p.target(attrs, nil))
			p.expectOp(")")
		} else {
			t := target{name: p.targetName()}
			if attrs && p.skipOp(".") {
				t.attr = p.expect(tokName, "an attribute name").val
				// Assigning to ns.x reads ns.
				p.mention(t.name)
			}
			items = append(items, t)
		}
		if !p.skipOp(",") {
			break
		}
		tuple = true
	}
	if !tuple {
		return items[0]
	}
	return target{items: items, tuple: true}
}

func (p *parser) tupleEnd(ends []string) bool {
	t := p.cur()
	switch t.kind {
	case tokVarEnd, tokBlockEnd:
		return true
	case tokOp:
		return t.val == ")"
	case tokName:
		return slices.Contains(ends, t.val)
	}
	return false
}

// --- expressions ---

// tuple parses one expression, or a tuple if there is a comma. Without cond,
// "if" does not start a conditional expression but ends the tuple.
func (p *parser) tuple(cond bool, ends []string) expr { return p.tupleIn(cond, ends, false) }

func (p *parser) tupleIn(cond bool, ends []string, parens bool) expr {
	var items []expr
	isTuple := false
	for {
		if p.tupleEnd(ends) {
			break
		}
		if cond {
			items = append(items, p.expression())
		} else {
			items = append(items, p.or())
		}
		if !p.skipOp(",") {
			break
		}
		isTuple = true
	}
	if !isTuple {
		if len(items) == 1 {
			return items[0]
		}
		if !parens {
			p.fail("expected an expression, found %s", p.cur().describe())
		}
	}
	return &tupleExpr{items}
}

func (p *parser) expression() expr {
	p.enter()
	defer p.leave()
	at := line(p.cur().line)
	mark := len(p.unknown)
	e := p.or()
	for p.skipName("if") {
		test := p.or()
		var no expr
		if p.skipName("else") {
			no = p.expression()
		}
		p.unknown = p.unknown[:mark]
		e = &condExpr{at, test, e, no}
		at = line(p.cur().line)
	}
	return e
}

func (p *parser) or() expr {
	e := p.and()
	for p.skipName("or") {
		e = &orExpr{e, p.and()}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for p.skipName("and") {
		e = &andExpr{e, p.not()}
	}
	return e
}

func (p *parser) not() expr {
	if p.isName("not") {
		p.enter()
		defer p.leave()
		p.next()
		return &notExpr{p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	at := line(p.cur().line)
	first := p.sum()
	n := &cmpExpr{line: at, first: first}
	for {
		op := ""
		t := p.cur()
		if t.kind == tokOp {
			switch t.val {
			case "==", "!=", "<", "<=", ">", ">=":
				op = t.val
				p.next()
			}
		} else if p.skipName("in") {
			op = "in"
		} else if p.isName("not") && p.look().kind == tokName && p.look().val == "in" {
			op = "not in"
			p.next()
			p.next()
		}
		if op == "" {
			break
		}
		n.ops = append(n.ops, op)
		n.rest = append(n.rest, p.sum())
	}
	if len(n.ops) == 0 {
		return first
	}
	return n
}

// binary parses a left-associative chain of the given operators.
func (p *parser) binary(operand func() expr, ops ...string) expr {
	at := line(p.cur().line)
	e := operand()
	for {
		t := p.cur()
		if t.kind != tokOp || !slices.Contains(ops, t.val) {
			return e
		}
		p.next()
		e = &binExpr{at, t.val, e, operand()}
		at = line(p.cur().line)
	}
}

func (p *parser) sum() expr { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() expr {
	e := p.product()
	if !p.isOp("~") {
		return e
	}
	parts := []expr{e}
	for p.skipOp("~") {
		parts = append(parts, p.product())
	}
	return &concatExpr{parts}
}

func (p *parser) product() expr { return p.binary(p.power, "*", "/", "//", "%") }

// power is left-associative and binds looser than a sign here: -2 ** 2 is 4.
func (p *parser) power() expr {
	return p.binary(func() expr { return p.unary(true) }, "**")
}

func (p *parser) unary(filters bool) expr {
	p.enter()
	defer p.leave()
	t := p.cur()
	var e expr
	if t.kind == tokOp && (t.val == "-" || t.val == "+") {
		p.next()
		e = &unaryExpr{line(t.line), t.val, p.unary(false)}
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	if filters {
		for {
			switch {
			case p.isOp("|"):
				e = p.filterChain(e)
			case p.isName("is"):
				e = p.test(e)
			case p.isOp("("):
				e = p.call(e)
			default:
				return e
			}
		}
	}
	return e
}

func (p *parser) primary() expr {
	t := p.cur()
	switch t.kind {
	case tokName:
		p.next()
		switch t.val {
		case "true", "True":
			return &constExpr{true}
		case "false", "False":
			return &constExpr{false}
		case "none", "None":
			return &constExpr{nil}
		}
		p.mention(t.val)
		return &nameExpr{line(t.line), t.val}
	case tokString:
		p.next()
		s := t.val
		for p.cur().kind == tokString {
			s += p.next().val
		}
		return &constExpr{s}
	case tokNumber:
		p.next()
		return &constExpr{t.num}
	case tokOp:
		switch t.val {
		case "(":
			p.next()
			e := p.tupleIn(true, nil, true)
			p.expectOp(")")
			return e
		case "[":
			p.next()
			n := &listExpr{}
			for !p.isOp("]") {
				n.items = append(n.items, p.expression())
				if !p.skipOp(",") {
					break
				}
			}
			p.expectOp("]")
			return n
		case "{":
			p.next()
			n := &dictExpr{line: line(t.line)}
			for !p.isOp("}") {
				n.keys = append(n.keys, p.expression())
				p.expectOp(":")
				n.vals = append(n.vals, p.expression())
				if !p.skipOp(",") {
					break
				}
			}
			p.expectOp("}")
			return n
		}
	}
	p.fail("unexpected %s", t.describe())
	return nil
}

func (p *parser) postfix(e expr) expr {
	for {
		t := p.cur()
		switch {
		case p.skipOp("."):
			a := p.next()
			switch a.kind {
			case tokName:
				e = &attrExpr{line(t.line), e, a.val}
			case tokNumber:
				if _, ok := a.num.(float64); ok {
					p.fail("expected a name or an integer after '.'")
				}
				e = &itemExpr{line(t.line), e, &constExpr{a.num}}
			default:
				p.fail("expected a name or an integer after '.', found %s", a.describe())
			}
		case p.skipOp("["):
			var args []expr
			for !p.isOp("]") {
				args = append(args, p.subscript())
				if !p.skipOp(",") {
					break
				}
			}
			p.expectOp("]")
			var arg expr = &tupleExpr{args}
			if len(args) == 1 {
				arg = args[0]
			}
			e = &itemExpr{line(t.line), e, arg}
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

// subscript parses an index or a slice.
func (p *parser) subscript() expr {
	var n sliceExpr
	if !p.isOp(":") {
		n.lo = p.expression()
		if !p.isOp(":") {
			return n.lo
		}
	}
	p.next()
	if !p.isOp(":") && !p.isOp("]") && !p.isOp(",") {
		n.hi = p.expression()
	}
	if p.skipOp(":") && !p.isOp("]") && !p.isOp(",") {
		n.step = p.expression()
	}
	return &n
}

func (p *parser) call(fn expr) expr {
	at := line(p.cur().line)
	return &callExpr{at, fn, p.arguments()}
}

func (p *parser) arguments() (a argList) {
	p.expectOp("(")
	for !p.isOp(")") {
		switch {
		case p.isOp("*"):
			if a.star != nil || a.dstar != nil {
				p.fail("misplaced * argument")
			}
			p.next()
			a.star = p.expression()
		case p.isOp("**"):
			if a.dstar != nil {
				p.fail("misplaced ** argument")
			}
			p.next()
			a.dstar = p.expression()
		case p.cur().kind == tokName && p.look().kind == tokOp && p.look().val == "=":
			name := p.next().val
			p.next()
			if a.dstar != nil || slices.Contains(a.kwNames, name) {
				p.fail("misplaced or repeated argument '%s'", name)
			}
			a.kwNames = append(a.kwNames, name)
			a.kwVals = append(a.kwVals, p.expression())
		default:
			if a.star != nil || a.dstar != nil || len(a.kwNames) > 0 {
				p.fail("positional argument after a keyword argument")
			}
			a.pos = append(a.pos, p.expression())
		}
		if !p.skipOp(",") {
			break
		}
	}
	p.expectOp(")")
	return a
}

func (p *parser) dottedName(what string) string {
	name := p.expect(tokName, what).val
	for p.skipOp(".") {
		name += "." + p.expect(tokName, what).val
	}
	return name
}

// filterChain parses "| a | b(1)" after e; without any it returns e.
func (p *parser) filterChain(e expr) expr {
	for p.skipOp("|") {
		e = p.oneFilter(e)
	}
	return e
}

func (p *parser) oneFilter(e expr) expr {
	t := p.cur()
	n := &filterExpr{line: line(t.line), obj: e, name: p.dottedName("a filter name")}
	if p.isOp("(") {
		n.args = p.arguments()
	}
	n.fn = filters[n.name]
	if n.fn == nil {
		p.unknown = append(p.unknown, &Error{AssertionError, t.line, fmt.Sprintf("no filter named '%s'", n.name)})
	}
	return n
}

func (p *parser) test(e expr) expr {
	t := p.next() // is
	negate := p.skipName("not")
	n := &testExpr{line: line(t.line), obj: e, name: p.dottedName("a test name")}
	if p.isOp("(") {
		n.args = p.arguments()
	} else if p.startsTestArgument() {
		if p.isName("is") {
			p.fail("tests cannot be chained with 'is'")
		}
		n.args.pos = []expr{p.postfix(p.primary())}
	}
	n.fn = tests[n.name]
	if n.fn == nil {
		p.unknown = append(p.unknown, &Error{AssertionError, t.line, fmt.Sprintf("no test named '%s'", n.name)})
	}
	if negate {
		return &notExpr{n}
	}
	return n
}

func (p *parser) startsTestArgument() bool {
	t := p.cur()
	switch t.kind {
	case tokName:
		return t.val != "else" && t.val != "or" && t.val != "and"
	case tokString, tokNumber:
		return true
	case tokOp:
		return t.val == "(" || t.val == "[" || t.val == "{"
	}
	return false
}
