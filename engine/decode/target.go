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
	base   *arch.Model
	model  *arch.Model // base, or base with a job's adapter
	cache  *cache.Cache
	params *compute.Params
	s      *compute.Scratch
	prog   compute.Program
	taps   []int
}

// pass is the result of a forward; its views live until the next one.
type pass struct {
	logits compute.View // [outputs, vocabulary]
	best   []int32      // argmax of each row
	fused  compute.View // [rows, taps*hidden]
}

// forward runs ids at the end of q. want says which rows' logits are needed, tap
// whether the drafter's taps are. The rows count once q.Advance is called.
func (t *target) forward(q *cache.Seq, ids []int32, want outputs, tap bool, stop *compute.Stop) (pass, error) {
	t.s.Reset()
	t.params.Next()
	t.prog.Reset(compute.LabelTarget)
	parts := []cache.Part{{Seq: q, IDs: ids, Verify: want == allRows && len(ids) > 1, Prefill: want != allRows}}
	st, err := t.cache.Plan(&t.prog, t.params, parts)
	if err != nil {
		return pass{}, err
	}
	f := &arch.Forward{P: &t.prog, S: t.s, Step: st, NoLogits: want == noRows}
	if want == lastRow {
		if f.Outputs, err = t.params.Ints(1, []int32{int32(len(ids) - 1)}); err != nil {
			return pass{}, err
		}
	}
	var r pass
	if tap && len(t.taps) > 0 {
		if r.fused, err = t.s.F32(len(ids), len(t.taps)*t.model.Hidden); err != nil {
			return pass{}, err
		}
		f.Taps, f.Fused = t.taps, r.fused
	}
	t.model.Forward(f)
	var best compute.View
	if want != noRows {
		if best, err = t.s.I32(1, f.Logits.Rows); err != nil {
			return pass{}, err
		}
		t.prog.Add(compute.Argmax{X: f.Logits, Out: best})
	}
	t.cache.Ran(st, parts)
	if err := compute.Run(t.b, &t.prog, stop); err != nil {
		return pass{}, err
	}
	if want != noRows {
		r.logits, r.best = f.Logits, best.I32(0)
	}
	return r, nil
}

type outputs int

const (
	allRows outputs = iota
	lastRow
	noRows
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
