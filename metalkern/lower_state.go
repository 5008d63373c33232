package metalkern

import (
	"fmt"

	"sparkbar/engine/compute"
)

type routeArgs struct {
	experts, topK, groups, topGroups, logits, ids, weights uint32
	eps, scale                                             float32
}

func (l *lowerer) route(o compute.MoERoute) error {
	const bias, normalize, perExpert = 1, 2, 4
	flags := flag(o.Bias.Given(), bias) | flag(o.Normalize, normalize) | flag(o.PerExpert.Given(), perExpert)
	groups := max(o.Groups, 1)
	return add(l, dispatch{kernel: "route", types: types(o.Logits, o.Weights), constants: []uint32{flags, uint32(o.Kind)}, groups: [3]int{o.Logits.Rows}, threads: 32, shared: 4 * (3*o.Logits.Cols + 2*groups)},
		routeArgs{u32(o.Logits.Cols), u32(o.TopK), u32(groups), u32(o.TopGroups), u32(o.Logits.Stride), u32(o.IDs.Stride), u32(o.Weights.Stride), o.NormEps, o.Scale},
		l.in(o.Logits), l.in(o.Bias), l.in(o.PerExpert), l.out(o.IDs), l.out(o.Weights))
}

type combineArgs struct {
	cols, topK, x, weights, shared, gate, res, out uint32
	scale                                          float32
}

func (l *lowerer) combine(o compute.MoECombine) error {
	const shared, sharedGate, residual = 8, 16, 32
	if o.Out.Rows == 0 {
		return nil
	}
	flags := flag(o.Shared.Given(), shared) | flag(o.SharedGate.Given(), sharedGate) | flag(o.Residual.Given(), residual)
	return add(l, dispatch{kernel: "combine", types: types(o.X, o.Weights, o.Shared, o.SharedGate, o.Residual, o.Out), constants: []uint32{flags}, groups: [3]int{blocks(o.Out.Cols), o.Out.Rows}, threads: 256},
		combineArgs{u32(o.Out.Cols), u32(o.Weights.Cols), u32(o.X.Stride), u32(o.Weights.Stride), u32(o.Shared.Stride), u32(o.SharedGate.Stride), u32(o.Residual.Stride), u32(o.Out.Stride), o.Scale},
		l.in(o.X), l.in(o.Weights), l.in(o.Shared), l.in(o.SharedGate), l.in(o.Residual), l.out(o.Out))
}

// The function constants of state kernels.
const (
	stateLog = 1 << iota
	stateCommit
	stateBias
	stateSiLU
)

// segmentArgs is Segments of state.metal.
type segmentArgs struct{ rows, slots, mem, log uint32 }

// stateBinds is what every state kernel reads of segments and state.
type stateBinds struct{ mem, slots, log, start, keep bind }

func (l *lowerer) state(s compute.State, r compute.Rows, keep compute.View) (segmentArgs, stateBinds, uint32) {
	b := stateBinds{mem: l.inout(s.Mem), slots: l.in(s.Slots), start: l.in(r.Start), keep: l.in(keep)}
	flags := flag(keep.Given(), stateCommit)
	switch {
	case keep.Given():
		b.log = l.in(s.Log)
	case s.Log.Given():
		b.log = l.out(s.Log)
		flags |= stateLog
	}
	return segmentArgs{u32(r.N), u32(s.Mem.Rows), u32(s.Mem.Stride), u32(s.Log.Stride)}, b, flags
}

// perLane is how many elements of a state row a lane holds.
func perLane(n int) (uint32, error) {
	for p := 1; p <= 16; p *= 2 {
		if n <= 32*p {
			return u32(p), nil
		}
	}
	return 0, fmt.Errorf("%w: states of %d columns have no kernel", compute.ErrUnfit, n)
}

type convArgs struct {
	g                         segmentArgs
	channels, taps, x, w, out uint32
}

func (l *lowerer) conv(o compute.ShortConv, keep compute.View) error {
	if o.Rows.Segments == 0 {
		return nil
	}
	g, s, flags := l.state(o.State, o.Rows, keep)
	flags |= flag(o.Bias.Given(), stateBias) | flag(o.Act == compute.ActSiLU, stateSiLU)
	out := bind{}
	if !keep.Given() {
		out = l.out(o.Out)
	}
	return add(l, dispatch{kernel: "short_conv", types: types(o.X, o.Out), constants: []uint32{flags}, groups: [3]int{ceil(o.W.Rows, 32), o.Rows.Segments}, threads: 32},
		convArgs{g, u32(o.W.Rows), u32(o.W.Cols), u32(o.X.Stride), u32(o.W.Stride), u32(o.Out.Stride)},
		l.in(o.X), l.in(o.W), l.in(o.Bias), s.mem, s.slots, s.log, s.start, s.keep, out)
}

type deltaArgs struct {
	g                                              segmentArgs
	headsK, headsV, dimK, dimV, q, k, v, a, b, out uint32
}

func (l *lowerer) delta(o compute.GatedDelta, keep compute.View) error {
	if o.Rows.Segments == 0 || o.DimV == 0 || o.HeadsV == 0 {
		return nil
	}
	per, err := perLane(o.DimK)
	if err != nil {
		return err
	}
	g, s, flags := l.state(o.State, o.Rows, keep)
	out := bind{}
	if !keep.Given() {
		out = l.out(o.Out)
	}
	return add(l, dispatch{kernel: "gated_delta", types: types(o.Q, o.K, o.V, o.A, o.B, o.Out), constants: []uint32{flags, per}, groups: [3]int{o.DimV, o.HeadsV, o.Rows.Segments}, threads: 32},
		deltaArgs{g, u32(o.HeadsK), u32(o.HeadsV), u32(o.DimK), u32(o.DimV), u32(o.Q.Stride), u32(o.K.Stride), u32(o.V.Stride), u32(o.A.Stride), u32(o.B.Stride), u32(o.Out.Stride)},
		l.in(o.Q), l.in(o.K), l.in(o.V), l.in(o.A), l.in(o.B), l.in(o.ALog), l.in(o.DtBias), s.mem, s.slots, s.log, s.start, s.keep, out)
}

type scanArgs struct {
	g                                       segmentArgs
	heads, dim, groups, n, x, b, c, dt, out uint32
	lo, hi                                  float32
}

func (l *lowerer) ssm(o compute.SSMScan, keep compute.View) error {
	if o.Rows.Segments == 0 || o.Dim == 0 || o.Heads == 0 {
		return nil
	}
	per, err := perLane(o.StateDim)
	if err != nil {
		return err
	}
	g, s, flags := l.state(o.State, o.Rows, keep)
	out := bind{}
	if !keep.Given() {
		out = l.out(o.Out)
	}
	return add(l, dispatch{kernel: "ssm_scan", types: types(o.X, o.B, o.C, o.Dt, o.Out), constants: []uint32{flags, per}, groups: [3]int{o.Dim, o.Heads, o.Rows.Segments}, threads: 32},
		scanArgs{g, u32(o.Heads), u32(o.Dim), u32(o.Groups), u32(o.StateDim), u32(o.X.Stride), u32(o.B.Stride), u32(o.C.Stride), u32(o.Dt.Stride), u32(o.Out.Stride), o.DtMin, o.DtMax},
		l.in(o.X), l.in(o.B), l.in(o.C), l.in(o.Dt), l.in(o.ALog), l.in(o.D), l.in(o.DtBias), s.mem, s.slots, s.log, s.start, s.keep, out)
}
