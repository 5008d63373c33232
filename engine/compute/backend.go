package compute

import (
	"errors"
	"sync/atomic"

	"sparkbar/engine/layout"
)

// ErrStopped is returned by a program that was stopped between two ops.
var ErrStopped = errors.New("stopped")

// ErrUnfit is what a backend returns that cannot do the work on this machine,
// however often it is asked: another backend has to. The error that wraps it says
// why.
var ErrUnfit = errors.New("this backend does not work here")

// Stop asks a running program to end between two ops. The zero Stop is not set.
type Stop struct{ flag atomic.Int32 }

// Set asks for the stop; Clear takes it back.
func (s *Stop) Set()   { s.flag.Store(1) }
func (s *Stop) Clear() { s.flag.Store(0) }

// IsSet reports whether a stop is asked for. A nil Stop is never set.
func (s *Stop) IsSet() bool { return s != nil && s.flag.Load() != 0 }

// Flag is the word that C and GPU code polls.
func (s *Stop) Flag() *atomic.Int32 { return &s.flag }

// Backend runs programs. One goroutine at a time uses a backend.
type Backend interface {
	// Name is "reference", "cpu" or "metal".
	Name() string
	// Alloc returns zeroed memory; pages that nobody touches cost nothing where
	// the system allows it. The error says how much was asked for.
	Alloc(label string, bytes int) (*Buffer, error)
	// Load takes a weight over: wrapped where it lies, or repacked once. The
	// matrix' bytes must stay valid until Unload.
	Load(m layout.Matrix) (*Weight, error)
	// Unload frees what Load made.
	Unload(w *Weight)
	// Submit starts p. Errors of the recording (Program.Err) are returned here.
	// stop may be nil.
	Submit(p *Program, stop *Stop) (Pending, error)
	// Submits returns how many programs were submitted under the label.
	Submits(label string) int64
	Close() error
}

// Activations is the type that a backend keeps activations in between ops: F32,
// unless it says otherwise by a method of this name. Only such a backend takes
// views of other types.
func Activations(b Backend) layout.DType {
	if h, ok := b.(interface{ Activations() layout.DType }); ok {
		return h.Activations()
	}
	return layout.F32
}

// StridedPages reports whether a backend takes caches with a Stride (KV): whether it
// says so by a method of this name.
func StridedPages(b Backend) bool {
	s, ok := b.(interface{ StridedPages() bool })
	return ok && s.StridedPages()
}

// Pending is a program in flight.
type Pending interface {
	// Wait returns when the program has ended: nil, ErrStopped, or the device's
	// error. After ErrStopped or an error the outputs are undefined.
	Wait() error
}

// Run submits p and waits for its end.
func Run(b Backend, p *Program, stop *Stop) error {
	f, err := b.Submit(p, stop)
	if err != nil {
		return err
	}
	return f.Wait()
}

// Done is the Pending of a backend that runs a program within Submit.
type Done struct{ Err error }

// Wait returns the result.
func (d Done) Wait() error { return d.Err }

// SubmitCounter counts submits by label; backends embed it.
type SubmitCounter struct {
	target, draft, other atomic.Int64
}

// Count notes one submit.
func (c *SubmitCounter) Count(label string) { c.of(label).Add(1) }

// Submits returns the count of a label.
func (c *SubmitCounter) Submits(label string) int64 { return c.of(label).Load() }

func (c *SubmitCounter) of(label string) *atomic.Int64 {
	switch label {
	case LabelTarget:
		return &c.target
	case LabelDraft:
		return &c.draft
	}
	return &c.other
}

// Labels of programs: a forward of the target model, of a drafter; anything
// else is counted together.
const (
	LabelTarget = "target"
	LabelDraft  = "draft"
)
