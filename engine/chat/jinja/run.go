package jinja

import (
	"fmt"
	"time"
)

// run is the state of one rendering. Failures travel as panics of *Error up
// to Render, as in text/template; nothing else may panic.
type run struct {
	lim   Limits
	now   func() time.Time
	out   []byte // text of the innermost output buffer
	line  int    // of the node that is being evaluated
	steps int64
	total int64
	depth int
}

func (r *run) fail(k Kind, format string, args ...any) {
	panic(&Error{Kind: k, Line: r.line, Message: fmt.Sprintf(format, args...)})
}

// step counts 1+extra units of work.
func (r *run) step(extra int) {
	r.steps += 1 + int64(extra)
	if r.steps > r.lim.Steps {
		r.fail(LimitError, "template needs more than %d steps", r.lim.Steps)
	}
}

// work counts the reading of n bytes.
func (r *run) work(n int) { r.step(n / 32) }

// alloc counts a value of n bytes before it is built.
func (r *run) alloc(n int) {
	if n < 0 || n > r.lim.Value {
		r.fail(LimitError, "template builds a value of more than %d bytes", r.lim.Value)
	}
	r.total += int64(n)
	if r.total > r.lim.Total {
		r.fail(LimitError, "template builds more than %d bytes of values", r.lim.Total)
	}
	r.work(n)
}

// mul returns a*b for counts that are not negative, saturating.
func mul(a, b int) int {
	if a > 0 && b > (1<<40)/a {
		return 1 << 40
	}
	return a * b
}

const itemSize = 16 // bytes of a list item, as alloc counts it

func (r *run) allocItems(n int) { r.alloc(mul(n, itemSize)) }

// enter goes one level deeper; every enter is followed by a deferred or
// straight leave, which a failure may skip.
func (r *run) enter() {
	if r.depth++; r.depth > r.lim.Depth {
		r.fail(LimitError, "template nests deeper than %d levels", r.lim.Depth)
	}
}

func (r *run) leave() { r.depth-- }

func (r *run) write(s string) {
	if len(s) > r.lim.Output-len(r.out) {
		r.fail(LimitError, "rendered text is longer than %d bytes", r.lim.Output)
	}
	r.total += int64(len(s))
	if r.total > r.lim.Total {
		r.fail(LimitError, "template builds more than %d bytes of values", r.lim.Total)
	}
	r.work(len(s))
	r.out = append(r.out, s...)
}

// capture returns what f writes.
func (r *run) capture(f func()) string {
	outer := r.out
	r.out = nil
	f()
	s := string(r.out)
	r.out = outer
	return s
}

// scope holds the names bound at one level of the template.
type scope struct {
	parent *scope
	root   *scope // the top-level scope
	names  []string
	vals   []any
}

func (s *scope) child() *scope { return &scope{parent: s, root: s.root} }

func (s *scope) set(name string, v any) {
	for i, n := range s.names {
		if n == name {
			s.vals[i] = v
			return
		}
	}
	s.names = append(s.names, name)
	s.vals = append(s.vals, v)
}

func (s *scope) get(name string) (any, bool) {
	for ; s != nil; s = s.parent {
		for i, n := range s.names {
			if n == name {
				return s.vals[i], true
			}
		}
	}
	return nil, false
}

// args is the arguments of one call.
type args struct {
	pos []any
	kw  []kwarg
}

type kwarg struct {
	name string
	val  any
}

// missing marks an absent argument in bind's result.
type missingType struct{}

var missing any = missingType{}

// bind matches arguments to parameter names; the first required of them must
// be given. Absent ones are missing.
func (r *run) bind(what string, a args, required int, params ...string) []any {
	if len(a.pos) > len(params) {
		r.fail(TypeError, "%s takes at most %d arguments, %d were given", what, len(params), len(a.pos))
	}
	out := make([]any, len(params))
	copy(out, a.pos)
	for i := len(a.pos); i < len(out); i++ {
		out[i] = missing
	}
next:
	for _, k := range a.kw {
		for i, p := range params {
			if p == k.name {
				if out[i] != missing {
					r.fail(TypeError, "%s got two values for argument '%s'", what, p)
				}
				out[i] = k.val
				continue next
			}
		}
		r.fail(TypeError, "%s has no argument '%s'", what, k.name)
	}
	for i := range required {
		if out[i] == missing {
			r.fail(TypeError, "%s needs the argument '%s'", what, params[i])
		}
	}
	return out
}
