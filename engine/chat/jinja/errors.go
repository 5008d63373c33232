package jinja

import "fmt"

// Kind says what class of failure an Error is. It follows the exception that
// the reference environment would raise.
type Kind int

// The kinds of failure. Compile fails with the first two and LimitError.
const (
	SyntaxError    Kind = iota + 1 // the source is not a template
	AssertionError                 // unknown filter or test, found while compiling
	Raised                         // the template called raise_exception
	UndefinedError                 // an undefined value was used, not just printed
	SecurityError                  // mutation or access to interpreter internals
	TypeError                      // an operation on values of the wrong type
	ValueError                     // a value out of an operation's domain, division by zero included
	RuntimeError                   // any other failure of a filter or tag, such as an unknown one inside a conditional
	LimitError                     // a limit of this renderer was reached
)

var kindNames = [...]string{SyntaxError: "SyntaxError", AssertionError: "AssertionError", Raised: "Raised",
	UndefinedError: "UndefinedError", SecurityError: "SecurityError", TypeError: "TypeError",
	ValueError: "ValueError", RuntimeError: "RuntimeError", LimitError: "LimitError"}

// String returns the constant's name.
func (k Kind) String() string {
	if k > 0 && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Error is what Compile and Render fail with.
type Error struct {
	Kind    Kind
	Line    int    // line of the template source, from 1; 0 if it has none
	Message string // for Raised: the template's own text, verbatim
}

// Error returns the message, with the template line in front unless the
// template raised it itself: then the text is meant for the caller as it is.
func (e *Error) Error() string {
	if e.Kind == Raised || e.Line == 0 {
		return e.Message
	}
	return fmt.Sprintf("template line %d: %s", e.Line, e.Message)
}
