package metalkern

import (
	"fmt"
	"time"
)

// Recorder is a Device that runs nothing: it keeps count of what it is asked to
// do, for plans of what a GPU would do. Memory reads as zeros.
type Recorder struct {
	Lists   []Recorded // in order of submission
	Wrapped int64      // bytes of weights that are read where they lie
	Copied  int64      // bytes of all other buffers
	// CopiedWeights are bytes of weights that could not be read where they lie.
	CopiedWeights int64

	kernels []string // by pipeline
	weights map[uint32]bool
	caches  map[uint32]bool // buffers that kv_write fills
	next    uint32
}

// Recorded is what one list asks for.
type Recorded struct {
	Rows     int // of the step: those of its embedding; 0 without one
	Barriers int
	Weights  int64 // bytes of weights that it reads, without the embedding
	// Other is the bytes of activations, numbers of the step and partial results that
	// its dispatches read or write, without the caches.
	Other      int64
	Dispatches []RecordedDispatch
}

// RecordedDispatch is one dispatch of a list.
type RecordedDispatch struct {
	Kernel  string
	Barrier bool
	Groups  [3]uint32
	Threads uint32
	Weights int64 // bytes of weights that it reads, once each
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder { return &Recorder{weights: map[uint32]bool{}, caches: map[uint32]bool{}} }

var _ Device = (*Recorder)(nil)

// Name says that this is no GPU.
func (*Recorder) Name() string { return "recorder" }

// Alloc returns memory of the Go heap.
func (r *Recorder) Alloc(bytes int) (Memory, error) {
	r.Copied += int64(bytes)
	r.next++
	return Memory{ID: r.next, Bytes: make([]byte, bytes)}, nil
}

// Wrap notes a weight.
func (r *Recorder) Wrap(b []byte) (Memory, error) {
	if err := CheckWords(b); err != nil {
		r.CopiedWeights += int64(len(b))
		return Memory{}, err
	}
	r.Wrapped += int64(len(b))
	r.next++
	r.weights[r.next] = true
	return Memory{ID: r.next, Bytes: b}, nil
}

// Free forgets nothing.
func (*Recorder) Free(Memory) {}

// Pipeline takes every kernel that exists.
func (r *Recorder) Pipeline(kernel string, _ []Constant) (uint32, error) {
	r.kernels = append(r.kernels, kernel)
	return uint32(len(r.kernels)), nil
}

// Submit counts.
func (r *Recorder) Submit(l *List) (Fence, error) {
	var x Recorded
	for _, d := range l.Dispatches {
		if d.Pipeline == 0 || int(d.Pipeline) > len(r.kernels) {
			return nil, fmt.Errorf("no pipeline %d", d.Pipeline)
		}
		y := RecordedDispatch{Kernel: r.kernels[d.Pipeline-1], Barrier: d.Barrier == 1, Groups: d.Groups, Threads: d.Threads}
		binds := l.Binds[d.Bind:][:d.Binds]
		if y.Kernel == "kv_write" { // its results come last
			for _, b := range binds[len(binds)-2:] {
				r.caches[b.Buffer] = true
			}
		}
		for _, b := range binds {
			switch {
			case r.weights[b.Buffer]:
				if y.Kernel != "embed" {
					y.Weights += int64(b.Len)
				}
			case !r.caches[b.Buffer]:
				x.Other += int64(b.Len)
			}
		}
		if y.Kernel == "embed" {
			x.Rows = int(d.Groups[1])
		}
		if y.Barrier {
			x.Barriers++
		}
		x.Weights += y.Weights
		x.Dispatches = append(x.Dispatches, y)
	}
	r.Lists = append(r.Lists, x)
	return recorded{}, nil
}

// Await and Answer have nobody to wait for.
func (*Recorder) Await(uint64, time.Duration) bool { return true }

// Answer does nothing.
func (*Recorder) Answer(uint64) {}

type recorded struct{}

func (recorded) Wait(time.Duration) (time.Duration, error) { return 0, nil }

// Close does nothing.
func (*Recorder) Close() error { return nil }
