package arch

import "sparkbar/engine/compute"

// Convolve is a causal depthwise convolution along each sequence; layer keeps
// the last inputs.
func (f *Forward) Convolve(x, taps, bias compute.View, act compute.Act, layer int) compute.View {
	op := &compute.ShortConv{X: x, W: taps, Bias: bias, Act: act, State: f.Step.Layers[layer].State, Rows: f.Step.Rows, Out: f.New(x.Rows, x.Cols)}
	f.recur(*op, op.State, compute.StateCommit{Conv: op})
	return op.Out
}

// GatedDelta runs the gated delta rule; layer keeps the matrix of each head.
// State, rows and result are filled in.
func (f *Forward) GatedDelta(op compute.GatedDelta, layer int) compute.View {
	op.State, op.Rows, op.Out = f.Step.Layers[layer].State, f.Step.Rows, f.New(op.V.Rows, op.V.Cols)
	f.recur(op, op.State, compute.StateCommit{Delta: &op})
	return op.Out
}

// Scan runs the Mamba-2 recurrence; layer keeps the matrix of each head. State,
// rows and result are filled in.
func (f *Forward) Scan(op compute.SSMScan, layer int) compute.View {
	op.State, op.Rows, op.Out = f.Step.Layers[layer].State, f.Step.Rows, f.New(op.X.Rows, op.X.Cols)
	f.recur(op, op.State, compute.StateCommit{SSM: &op})
	return op.Out
}

// recur records a state op. When it only logs, its commit is left to the cache.
func (f *Forward) recur(op compute.Op, s compute.State, commit compute.StateCommit) {
	f.P.Add(op)
	if s.Log.Given() {
		f.Step.Logged = append(f.Step.Logged, commit)
	}
}

// convCache is what a convolution of the given channels keeps.
func convCache(channels, kernel int) compute.CacheSpec {
	return compute.CacheSpec{Kind: compute.CacheState, Size: (kernel - 1) * channels, Log: channels}
}
