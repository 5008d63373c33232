package compute

import (
	"math"

	"sparkbar/engine/layout"
)

func refBinary(o Binary) {
	for r := range o.A.Rows {
		a, b, out := o.A.F32(r), o.B.F32(min(r, o.B.Rows-1)), o.Out.F32(r)
		for i, x := range a {
			at := i
			if o.BGroup > 0 {
				at = i / o.BGroup
			}
			y := b[at]
			switch o.Kind {
			case BinAdd:
				y = x + y
			case BinMul:
				y = x * y
			case BinSigmoidMul:
				y = x * sigmoid32(y)
			case BinSiLUMul:
				y = x * silu32(y)
			}
			out[i] = o.Scale * y
		}
	}
}

func refUnary(o Unary) {
	for r := range o.X.Rows {
		out := o.Out.F32(r)
		for i, x := range o.X.F32(r) {
			switch o.Kind {
			case UnScale:
				out[i] = o.V * x
			case UnSoftcap:
				out[i] = o.V * tanh32(x/o.V)
			case UnSigmoid:
				out[i] = sigmoid32(x)
			case UnSiLU:
				out[i] = silu32(x)
			}
		}
	}
}

func refCopyRows(o CopyRows) {
	for r := range o.Dst.Rows {
		from := r
		if o.Index.Given() {
			from = int(o.Index.I32(0)[r])
		}
		outside := from < 0 || from >= o.Src.Rows
		if o.Src.Type == layout.I32 {
			if outside {
				clear(o.Dst.I32(r))
			} else {
				copy(o.Dst.I32(r), o.Src.I32(from))
			}
		} else {
			if outside {
				clear(o.Dst.F32(r))
			} else {
				copy(o.Dst.F32(r), o.Src.F32(from))
			}
		}
	}
}

// setInt writes element i of a row or a column.
func setInt(v View, i int, x int32) {
	if v.Rows == 1 {
		v.I32(0)[i] = x
	} else {
		v.I32(i)[0] = x
	}
}

func refArgmax(o Argmax) {
	for r := range o.X.Rows {
		at := 0
		x := o.X.F32(r)
		for i, v := range x {
			if better(v, x[at]) {
				at = i
			}
		}
		setInt(o.Out, r, int32(at))
	}
}

func refTopK(o TopK) {
	for r := range o.X.Rows {
		x, ids, vals := o.X.F32(r), o.IDs.I32(r), o.Vals.F32(r)
		for j, i := range best(x, len(ids)) {
			ids[j], vals[j] = int32(i), x[i]
		}
	}
}

func refLogSumExp(o LogSumExp) {
	for r := range o.X.Rows {
		m := float32(math.Inf(-1))
		x := o.X.F32(r)
		for _, v := range x {
			m = max(m, v)
		}
		if !math.IsInf(float64(m), 0) {
			var sum float32
			for _, v := range x {
				sum += exp32(v - m)
			}
			m += float32(math.Log(float64(sum)))
		}
		o.Out.F32(r)[0] = m
	}
}

func refMapIDs(o MapIDs) {
	ids, out := o.IDs.I32(0), o.Out.I32(0)
	for i, id := range ids {
		if id < 0 || int(id) >= o.Offset.Cols {
			out[i] = 0
			continue
		}
		out[i] = id + o.Offset.I32(0)[id]
	}
}

func refBlockConv(o BlockConv) {
	groups := o.X.Cols / o.Group
	for t := range o.X.Rows {
		out, p := o.Out.F32(t), o.P.F32(t)
		for c := range out {
			var sum float32
			for j := range min(o.Base.Rows, t%o.Block+1) {
				sum += float32((o.Base.F32(j)[c] + p[j*groups+c/o.Group]) * o.X.F32(t - j)[c])
			}
			out[c] = sum
		}
	}
}

func refPairSelect(o PairSelect) error {
	rank := o.H.Cols
	abuf, bbuf, ah := make([]float32, rank), make([]float32, rank), make([]float32, rank)
	prev := int32(0)
	for s := range o.Unary.Rows {
		if s%o.Slots == 0 {
			prev = o.Anchor.I32(0)[s/o.Slots]
		}
		clear(ah)
		if prev >= 0 && int(prev) < o.A.Rows {
			a, err := weightRow(o.A, abuf, 0, int(prev))
			if err != nil {
				return err
			}
			for i, h := range o.H.F32(s) {
				ah[i] = a[i] * h
			}
		}
		score := append([]float32(nil), o.Unary.F32(s)...)
		cand := o.Cand.I32(s)
		for c, id := range cand {
			if id < 0 || int(id) >= o.B.Rows {
				continue
			}
			b, err := weightRow(o.B, bbuf, 0, int(id))
			if err != nil {
				return err
			}
			score[c] += dot(ah, b)
		}
		pick := best(score, 1)[0]
		if o.Uniform.Given() {
			for c := range score {
				score[c] /= o.Temperature
			}
			softmax32(score)
			pick = 0
			var sum float32
			for _, p := range score {
				if sum += p; o.Uniform.F32(0)[s] >= sum {
					pick++
				}
			}
			pick = min(pick, len(score)-1)
		}
		if o.Probs.Given() {
			copy(o.Probs.F32(s), score)
		}
		prev = cand[pick]
		o.IDs.I32(0)[s] = prev
	}
	return nil
}
