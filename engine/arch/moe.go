package arch

import (
	"fmt"
	"strings"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// Experts is a mixture-of-experts block: a router that picks TopK of the
// experts for each row, and the experts' stacked projections.
type Experts struct {
	Router Linear
	Rule   compute.MoERoute // how logits become choices; its views are filled in when recording

	Gate, Up, Down             *compute.Weight // Gate nil: experts of two matrices
	GateBias, UpBias, DownBias compute.View    // F32 [experts, out], optional
	Act                        compute.Act

	// Shared runs on every row beside the chosen ones; SharedGate [1, in] scales
	// it by a sigmoid. Both optional.
	Shared     *MLP
	SharedGate *Linear
}

// experts checks the numbers of a mixture-of-experts block.
func (l *Loader) experts(n, topK int) {
	l.Positive("number of experts", n)
	if l.err == nil && (topK < 1 || topK > n) {
		l.Fail("%w: %d of %d experts cannot be chosen for each token", errConfig, topK, n)
	}
}

// GatedExperts loads gate, up and down projections of n experts into e, a token
// using e.Rule.TopK of them. Files hold them stacked (below stacked:
// gate_proj...), one by one (below each: 0.gate_proj...), or with gate and up
// fused (below each: gate_up_proj, gate first).
func (l *Loader) GatedExperts(e *Experts, stacked, each string, n, hidden, inter int) {
	k := e.Rule.TopK
	switch {
	case l.Has(each + "gate_up_proj"):
		both := l.matrix(each+"gate_up_proj", n, 2*inter, hidden)
		e.Gate = l.stacked(l.rows(both, 0, inter), k)
		e.Up = l.stacked(l.rows(both, inter, 2*inter), k)
		e.Down = l.Experts(each+"down_proj", n, k, hidden, inter)
	case l.Has(each + "0.gate_proj.weight"):
		e.Gate = l.stack(each, "gate_proj", n, k, inter, hidden)
		e.Up = l.stack(each, "up_proj", n, k, inter, hidden)
		e.Down = l.stack(each, "down_proj", n, k, hidden, inter)
	default:
		e.Gate = l.Experts(stacked+"gate_proj", n, k, inter, hidden)
		e.Up = l.Experts(stacked+"up_proj", n, k, inter, hidden)
		e.Down = l.Experts(stacked+"down_proj", n, k, hidden, inter)
		return
	}
	l.alias(stacked+"gate_proj", e.Gate)
	l.alias(stacked+"up_proj", e.Up)
	l.alias(stacked+"down_proj", e.Down)
}

// stack joins the matrices of n experts that a file holds one by one.
func (l *Loader) stack(each, name string, n, active, rows, cols int) *compute.Weight {
	var parts []layout.Matrix
	kept := 0
	for i := 0; i < n && l.err == nil; i++ {
		parts = append(parts, l.matrix(fmt.Sprintf("%s%d.%s", each, i, name), 0, rows, cols))
		if l.kept[parts[i].Name] {
			kept++
		}
	}
	m := layout.Matrix{Name: each + name, Batch: n, Rows: rows, Cols: cols}
	if kept == n {
		return l.load(l.keep(m))
	}
	for i := 0; kept > 0 && i < n && l.err == nil; i++ {
		parts[i] = l.stored(parts[i].Name, 0, rows, cols)
	}
	if l.err == nil {
		var err error
		if m, err = layout.Stack(each+name, parts); err != nil {
			l.err = err
		}
		l.evict(parts...)
	}
	return l.stacked(m, active)
}

// mixtralNames brings w1, w2, w3 (gate, down, up) of experts or feed-forward
// blocks below a folder to the names of the others.
func mixtralNames(folder string) func(string) (string, bool) {
	return func(n string) (string, bool) {
		if strings.Contains(n, folder) {
			n = strings.NewReplacer(".w1.", ".gate_proj.", ".w2.", ".down_proj.", ".w3.", ".up_proj.").Replace(n)
		}
		return n, true
	}
}

// Route picks the experts of each row of x: ids and weights [N, TopK].
func (f *Forward) Route(x compute.View, router Linear, rule compute.MoERoute) (ids, weights compute.View) {
	ids, err := f.S.I32(x.Rows, rule.TopK)
	if err != nil {
		f.P.Fail(err)
	}
	rule.Logits, rule.IDs, rule.Weights = f.Linear(x, router), ids, f.New(x.Rows, rule.TopK)
	f.P.Add(rule)
	return ids, rule.Weights
}

// Experts runs the chosen experts on each row of x: [N*TopK, out].
func (f *Forward) Experts(x, ids compute.View, e Experts) compute.View {
	var h compute.View
	if f.adapter.adapts(e.Gate, e.Up) {
		h = f.adaptedExperts(x, ids, e)
	} else {
		op := compute.MoELinear{X: x, IDs: ids, W: e.Up, Bias: e.UpBias, Act: e.Act, Prefill: f.Step.Rows.Prefill}
		if e.Act.Gated() {
			op.W, op.Bias, op.Up, op.UpBias = e.Gate, e.GateBias, e.Up, e.UpBias
		}
		op.Out = f.New(ids.Rows*ids.Cols, op.W.Rows)
		f.P.Add(op)
		h = op.Out
	}
	return f.expertLinear(h, ids, e.Down, e.DownBias)
}

// MixtureAdd adds the mixture-of-experts block of h to the residual stream x, in
// place.
func (f *Forward) MixtureAdd(h compute.View, e Experts, x compute.View) {
	ids, weights := f.Route(h, e.Router, e.Rule)
	op := compute.MoECombine{X: f.Experts(h, ids, e), Weights: weights, Scale: 1, Residual: x, Out: x}
	if e.Shared != nil {
		op.Shared = f.MLP(h, *e.Shared, e.Act)
	}
	if e.SharedGate != nil {
		op.SharedGate = f.Linear(h, *e.SharedGate)
	}
	f.P.Add(op)
}
