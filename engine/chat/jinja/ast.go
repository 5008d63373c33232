package jinja

// An expr yields a value, a stmt writes output or changes a scope. The methods
// that evaluate them are in expr.go and stmt.go.
type (
	expr interface {
		eval(r *run, s *scope) any
	}
	stmt interface {
		exec(r *run, s *scope) signal
	}
	// signal tells a loop that a break or continue is on its way out.
	signal uint8
)

const (
	sigNone signal = iota
	sigBreak
	sigContinue
)

// line is the source line of a node.
type line int

type (
	constExpr struct{ val any }
	nameExpr  struct {
		line
		name string
	}
	tupleExpr struct{ items []expr }
	listExpr  struct{ items []expr }
	dictExpr  struct {
		line
		keys, vals []expr
	}
	attrExpr struct {
		line
		obj  expr
		name string
	}
	itemExpr struct {
		line
		obj, arg expr
	}
	sliceExpr struct{ lo, hi, step expr } // nil parts are None
	callExpr  struct {
		line
		fn   expr
		args argList
	}
	filterExpr struct {
		line
		obj  expr // nil stands for the body of a filter or set block
		name string
		fn   filter
		args argList
	}
	testExpr struct {
		line
		obj  expr
		name string
		fn   test
		args argList
	}
	condExpr struct {
		line
		test, yes, no expr // no may be nil
	}
	andExpr struct{ left, right expr }
	orExpr  struct{ left, right expr }
	notExpr struct{ arg expr }
	cmpExpr struct {
		line
		first expr
		ops   []string
		rest  []expr
	}
	binExpr struct {
		line
		op          string
		left, right expr
	}
	unaryExpr struct {
		line
		op  string
		arg expr
	}
	concatExpr struct{ parts []expr }
)

// argList is the arguments of a call, filter or test as written.
type argList struct {
	pos     []expr
	kwNames []string
	kwVals  []expr
	star    expr // *args or nil
	dstar   expr // **kwargs or nil
}

type (
	textStmt   struct{ text string }
	outputStmt struct {
		line
		val expr
	}
	assignStmt struct {
		line
		to  target
		val expr
	}
	assignBlock struct {
		line
		to     target
		filter expr // nil or a filter chain over the body
		body   []stmt
	}
	ifStmt struct {
		tests  []expr
		bodies [][]stmt // one more than tests if there is an else
	}
	forStmt struct {
		line
		to         target
		iter, test expr // test may be nil
		body, els  []stmt
		recursive  bool
		usesLoop   bool
	}
	withStmt struct {
		line
		to   []target
		vals []expr
		body []stmt
	}
	macroStmt struct {
		line
		def *macroDef
	}
	callStmt struct {
		line
		call *callExpr
		def  *macroDef
	}
	filterStmt struct {
		line
		filter expr
		body   []stmt
	}
	// scopeStmt runs its body in a scope of its own. A block's body sees the
	// top-level names only, unless it is marked scoped.
	scopeStmt struct {
		top  bool
		body []stmt
	}
	loaderStmt struct { // extends, include, import
		line
		tag string
	}
	jumpStmt struct{ sig signal }
)

// macroDef is a macro or the body of a call block.
type macroDef struct {
	name     string
	params   []string
	defaults []expr // of the last len(defaults) params
	body     []stmt
	varargs  bool // the body mentions varargs
	kwargs   bool // … kwargs
	caller   bool // … caller
}

// target is what an assignment or loop binds: a name, an attribute of a
// namespace, or a tuple of targets.
type target struct {
	name  string
	attr  string // of the namespace called name
	items []target
	tuple bool
}
