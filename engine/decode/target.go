package decode

import (
	"context"
	"errors"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// target runs forwards of the model.
type target struct {
	b      compute.Backend
	model  *arch.Model
	cache  *cache.Cache
	params *compute.Params
	s      *compute.Scratch
	prog   compute.Program
	taps   []int
}

// share is one sequence's part of a forward: what is run at its end, and the
// result, whose views live until the next forward.
type share struct {
	seq  *cache.Seq
	ids  []int32
	want outputs

	logits compute.View // [outputs, vocabulary]
	best   []int32      // argmax of each row
	fused  compute.View // [rows, taps*hidden]
}

// forward runs every share at the end of its sequence, in one program; those
// that read a prompt must come last. tap says whether the drafter's taps are
// needed. The rows count once Seq.Advance is called.
func (t *target) forward(m *arch.Model, shares []*share, tap bool, stop *compute.Stop) error {
	t.s.Reset()
	t.params.Next()
	t.prog.Reset(compute.LabelTarget)
	var parts []cache.Part
	var outputs []int32 // rows whose logits are wanted
	rows := 0
	for _, h := range shares {
		prompt := h.want != allRows
		parts = append(parts, cache.Part{Seq: h.seq, IDs: h.ids, Verify: !prompt && len(h.ids) > 1, Prefill: prompt})
		first := rows
		rows += len(h.ids)
		if h.want == noRows {
			continue
		}
		if h.want == lastRow {
			first = rows - 1
		}
		for i := first; i < rows; i++ {
			outputs = append(outputs, int32(i))
		}
	}
	st, err := t.cache.Plan(&t.prog, t.params, parts)
	if err != nil {
		return err
	}
	f := &arch.Forward{P: &t.prog, S: t.s, Step: st, NoLogits: len(outputs) == 0}
	if n := len(outputs); n > 0 && n < rows {
		if f.Outputs, err = t.params.Ints(1, outputs); err != nil {
			return err
		}
	}
	if tap && len(t.taps) > 0 {
		if f.Fused, err = t.s.F32(rows, len(t.taps)*m.Hidden); err != nil {
			return err
		}
		f.Taps = t.taps
	}
	m.Forward(f)
	var best compute.View
	if !f.NoLogits {
		if best, err = t.s.I32(1, f.Logits.Rows); err != nil {
			return err
		}
		t.prog.Add(compute.Argmax{X: f.Logits, Out: best})
	}
	t.cache.Ran(st, parts)
	if err := compute.Run(t.b, &t.prog, stop); err != nil {
		return err
	}
	row, out := 0, 0
	for _, h := range shares {
		n := len(h.ids)
		if f.Fused.Given() {
			h.fused = f.Fused.Slice(row, row+n)
		}
		row += n
		if h.want == noRows {
			continue
		}
		if h.want == lastRow {
			n = 1
		}
		h.logits, h.best = f.Logits.Slice(out, out+n), best.I32(0)[out:out+n]
		out += n
	}
	return nil
}

type outputs int

const (
	allRows outputs = iota
	lastRow
	noRows
	promptRows // all, of a prompt
)

func (t *target) close() {
	t.s.Close()
	t.params.Close()
	t.cache.Close()
}

// stopError turns a stopped program into the reason of the context.
func stopError(ctx context.Context, err error) error {
	if errors.Is(err, compute.ErrStopped) && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Options sizes a Runner.
type Options struct {
	// Positions is how many tokens of context all conversations together may
	// hold, Stored how many finished conversations are kept for reuse.
	Positions int
	Stored    int
	// Running is how many jobs may run at once; 0 = 8.
	Running int
	// Rungs is the number of prompt tokens between the places that are remembered
	// on the way where a past cannot be cut later; 0 = 8192, below = none.
	Rungs int
	// KVType is how keys and values are kept; KVBits 4 or 8 quantizes them.
	KVType  layout.DType
	KVBits  int
	KVGroup int
	// Chunk is the number of prompt tokens per prefill forward.
	Chunk int
}

func (o *Options) defaults() {
	if o.Running <= 0 {
		o.Running = 8
	}
	if o.Rungs == 0 {
		o.Rungs = 8192
	}
	if o.Chunk <= 0 {
		o.Chunk = 512
	}
	if o.KVType == 0 {
		o.KVType = layout.F32
	}
	if o.KVBits > 0 && o.KVGroup == 0 {
		o.KVGroup = 64
	}
}
