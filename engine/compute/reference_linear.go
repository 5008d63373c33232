package compute

import "math"

// dot sums in ascending order, one product at a time.
func dot(a, b []float32) float32 {
	b = b[:len(a)]
	var sum float32
	for i, x := range a {
		sum += float32(x * b[i])
	}
	return sum
}

func refEmbed(o Embed) error {
	buf := make([]float32, o.W.Cols)
	for r := range o.Out.Rows {
		out, id := o.Out.F32(r), o.IDs.I32(0)[r]
		if id < 0 || int(id) >= o.W.Rows {
			clear(out)
			continue
		}
		row, err := weightRow(o.W, buf, 0, int(id))
		if err != nil {
			return err
		}
		for i, v := range row {
			out[i] = o.Scale * v
		}
	}
	return nil
}

func refNorm(o Norm) {
	group := o.Group
	if group == 0 {
		group = o.X.Cols
	}
	z := make([]float32, group)
	for r := range o.X.Rows {
		x, out := o.X.F32(r), o.Out.F32(r)
		for at := 0; at < len(x); at += group {
			copy(z, x[at:])
			if o.Place == GateBefore {
				for i := range z {
					z[i] *= silu32(o.Gate.F32(r)[at+i])
				}
			}
			sum := dot(z, z)
			if o.Kind == RMS {
				sum /= float32(group)
			}
			inv := float32(1 / math.Sqrt(float64(sum+o.Eps)))
			for i, v := range z {
				y := v * inv * o.Scale
				if o.W.Given() {
					y *= o.Offset + o.W.F32(0)[(at+i)%o.W.Cols]
				}
				if o.Place == GateAfter {
					y *= silu32(o.Gate.F32(r)[at+i])
				}
				out[at+i] = y
			}
		}
	}
}

// linearSum returns x . row i of matrix b of w, with the low-rank addition a
// (whose A x is ax) and the bias.
func linearSum(x, w []float32, a *Adapter, ax, arow []float32, i int, bias float32) float32 {
	sum := dot(x, w)
	if a != nil {
		sum += a.Scale * dot(ax, arow)
		if a.Mag.Given() {
			sum *= a.Mag.F32(0)[i]
		}
	}
	return sum + bias
}

// adapterInputs returns A x of every row.
func adapterInputs(a *Adapter, x View) ([][]float32, error) {
	if a == nil {
		return make([][]float32, x.Rows), nil
	}
	all := make([][]float32, x.Rows)
	for r := range all {
		all[r] = make([]float32, a.A.Rows)
	}
	buf := make([]float32, a.A.Cols)
	for i := range a.A.Rows {
		row, err := weightRow(a.A, buf, 0, i)
		if err != nil {
			return nil, err
		}
		for r := range all {
			all[r][i] = dot(x.F32(r), row)
		}
	}
	return all, nil
}

// adapterRow returns row i of B, nil without an adapter.
func adapterRow(a *Adapter, i int) ([]float32, error) {
	if a == nil {
		return nil, nil
	}
	return weightRow(a.B, make([]float32, a.B.Cols), 0, i)
}

func biasAt(v View, row, i int) float32 {
	if !v.Given() {
		return 0
	}
	return v.F32(row)[i]
}

func refLinear(o Linear) error {
	if o.X.Rows == 0 {
		return nil
	}
	ax, err := adapterInputs(o.Adapter, o.X)
	if err != nil {
		return err
	}
	ux, err := adapterInputs(o.UpAdapter, o.X)
	if err != nil {
		return err
	}
	wbuf, ubuf := make([]float32, o.W.Cols), make([]float32, o.W.Cols)
	for i := range o.W.Rows {
		w, err := weightRow(o.W, wbuf, 0, i)
		if err != nil {
			return err
		}
		arow, err := adapterRow(o.Adapter, i)
		if err != nil {
			return err
		}
		var up, urow []float32
		if o.Up != nil {
			if up, err = weightRow(o.Up, ubuf, 0, i); err != nil {
				return err
			}
			if urow, err = adapterRow(o.UpAdapter, i); err != nil {
				return err
			}
		}
		for r := range o.X.Rows {
			x := o.X.F32(r)
			z, u := linearSum(x, w, o.Adapter, ax[r], arow, i, biasAt(o.Bias, 0, i)), float32(0)
			if o.Up != nil {
				u = linearSum(x, up, o.UpAdapter, ux[r], urow, i, biasAt(o.UpBias, 0, i))
			}
			y := o.Scale * o.Act.apply(z, u)
			if o.Residual.Given() {
				y += o.Residual.F32(r)[i]
			}
			o.Out.F32(r)[i] = y
		}
	}
	return nil
}

func refHeadLinear(o HeadLinear) error {
	buf := make([]float32, o.W.Cols)
	for h := range o.W.Batch {
		for i := range o.W.Rows {
			w, err := weightRow(o.W, buf, h, i)
			if err != nil {
				return err
			}
			for r := range o.X.Rows {
				o.Out.F32(r)[h*o.W.Rows+i] = dot(o.X.F32(r)[h*o.W.Cols:][:o.W.Cols], w)
			}
		}
	}
	return nil
}

// better reports whether score a wins over b when a comes later: NaN loses to
// everything, equal scores stay with the earlier one.
func better(a, b float32) bool { return a > b || (b != b && a == a) }

// best returns the k best indices of s, best first.
func best(s []float32, k int) []int {
	taken := make([]bool, len(s))
	top := make([]int, 0, k)
	for range k {
		at := -1
		for i, v := range s {
			if !taken[i] && (at < 0 || better(v, s[at])) {
				at = i
			}
		}
		taken[at] = true
		top = append(top, at)
	}
	return top
}

// softmax32 turns x into its softmax, in place.
func softmax32(x []float32) {
	m := x[best(x, 1)[0]]
	var sum float32
	for i, v := range x {
		x[i] = exp32(v - m)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
}

func refMoERoute(o MoERoute) {
	experts := o.Logits.Cols
	for r := range o.Logits.Rows {
		scores := append([]float32(nil), o.Logits.F32(r)...)
		switch o.Kind {
		case SoftmaxAll:
			softmax32(scores)
		case SigmoidTop:
			for i, v := range scores {
				scores[i] = sigmoid32(v)
			}
		}
		choice := append([]float32(nil), scores...)
		for i := range choice {
			choice[i] += biasAt(o.Bias, 0, i)
		}
		if o.Groups > 1 {
			size := experts / o.Groups
			sums := make([]float32, o.Groups)
			for g := range sums {
				for _, i := range best(choice[g*size:][:size], min(2, size)) {
					sums[g] += choice[g*size+i]
				}
			}
			keep := make([]bool, o.Groups)
			for _, g := range best(sums, o.TopGroups) {
				keep[g] = true
			}
			for i := range choice {
				if !keep[i/size] {
					choice[i] = 0
				}
			}
		}
		ids, weights := o.IDs.I32(r), o.Weights.F32(r)
		for j, e := range best(choice, o.TopK) {
			ids[j], weights[j] = int32(e), scores[e]
		}
		if o.Kind == SoftmaxTop {
			softmax32(weights)
		}
		if o.Normalize {
			var sum float32
			for _, w := range weights {
				sum += w
			}
			for j := range weights {
				weights[j] /= sum + o.NormEps
			}
		}
		for j, e := range ids {
			weights[j] *= o.Scale
			if o.PerExpert.Given() {
				weights[j] *= o.PerExpert.F32(0)[e]
			}
		}
	}
}

func refMoELinear(o MoELinear) error {
	wbuf, ubuf := make([]float32, o.W.Cols), make([]float32, o.W.Cols)
	topK := o.IDs.Cols
	for pair := range o.Out.Rows {
		e, out := int(o.IDs.I32(pair / topK)[pair%topK]), o.Out.F32(pair)
		if e < 0 || e >= o.W.Batch {
			clear(out)
			continue
		}
		x := o.X.F32(pair * o.X.Rows / o.Out.Rows)
		for i := range out {
			w, err := weightRow(o.W, wbuf, e, i)
			if err != nil {
				return err
			}
			z, u := dot(x, w)+biasAt(o.Bias, e, i), float32(0)
			if o.Up != nil {
				up, err := weightRow(o.Up, ubuf, e, i)
				if err != nil {
					return err
				}
				u = dot(x, up) + biasAt(o.UpBias, e, i)
			}
			out[i] = o.Act.apply(z, u)
		}
	}
	return nil
}

func refMoECombine(o MoECombine) {
	topK := o.Weights.Cols
	for r := range o.Out.Rows {
		out := o.Out.F32(r)
		gate := float32(1)
		if o.SharedGate.Given() {
			gate = sigmoid32(o.SharedGate.F32(r)[0])
		}
		for i := range out {
			var sum float32
			for j, w := range o.Weights.F32(r) {
				sum += float32(w * o.X.F32(r*topK + j)[i])
			}
			if o.Shared.Given() {
				sum += float32(o.Shared.F32(r)[i] * gate)
			}
			y := o.Scale * sum
			if o.Residual.Given() {
				y += o.Residual.F32(r)[i]
			}
			out[i] = y
		}
	}
}
