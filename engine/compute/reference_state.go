package compute

// segment returns the rows of segment s, cut to the rows that exist, and its
// state slot; nil if the slot does not exist.
func (s State) segment(r Rows, i int) (from, to int, slot []float32) {
	start := r.Start.I32(0)
	from, to = clamp(start[i], start[i+1], r.N)
	at := int(s.Slots.I32(0)[i])
	if at < 0 || at >= s.Mem.Rows {
		return from, to, nil
	}
	return from, to, slotRow(s.Mem, at)
}

// slotRow is never nil, so that a state of no elements is still a state.
func slotRow(mem View, at int) []float32 {
	if mem.Cols == 0 {
		return []float32{}
	}
	return mem.F32(at)
}

// run calls step for each row of each segment with the state to advance: the
// slot itself, or a copy of it when the op only logs. Rows of a segment without
// a slot are zeroed.
func (s State) run(r Rows, out View, step func(state []float32, row int)) {
	for i := range r.Segments {
		from, to, slot := s.segment(r, i)
		if slot != nil && s.Log.Given() {
			slot = append([]float32{}, slot...)
		}
		for t := from; t < to; t++ {
			if slot == nil {
				clear(out.F32(t))
				continue
			}
			step(slot, t)
		}
	}
}

// push advances the state of the convolution by one input row.
func (o ShortConv) push(state, x []float32) {
	if len(state) > 0 {
		copy(state, state[len(x):])
		copy(state[len(state)-len(x):], x)
	}
}

func refShortConv(o ShortConv) {
	taps := o.W.Cols
	o.State.run(o.Rows, o.Out, func(state []float32, t int) {
		x, out := o.X.F32(t), o.Out.F32(t)
		if o.State.Log.Given() {
			copy(o.State.Log.F32(t), x)
		}
		for c := range out {
			sum, w := biasAt(o.Bias, 0, c), o.W.F32(c)
			for j := range taps - 1 {
				sum += float32(w[j] * state[j*len(x)+c])
			}
			sum += float32(w[taps-1] * x[c])
			out[c] = o.Act.apply(sum, 0)
		}
		o.push(state, x)
	})
}

// split cuts a logged row.
func (o GatedDelta) split(log []float32) (k, v, g, beta []float32) {
	nk, nv := o.HeadsK*o.DimK, o.HeadsV*o.DimV
	return log[:nk], log[nk:][:nv], log[nk+nv:][:o.HeadsV], log[nk+nv+o.HeadsV:][:o.HeadsV]
}

// push advances the state by one token: S = g S; S += beta (v - S k) k^T.
func (o GatedDelta) push(state, log []float32) {
	keys, values, g, beta := o.split(log)
	for j := range o.HeadsV {
		k := keys[j*o.HeadsK/o.HeadsV*o.DimK:][:o.DimK]
		for i := range o.DimV {
			s := state[(j*o.DimV+i)*o.DimK:][:o.DimK]
			for n := range s {
				s[n] *= g[j]
			}
			d := beta[j] * (values[j*o.DimV+i] - dot(s, k))
			for n := range s {
				s[n] += float32(d * k[n])
			}
		}
	}
}

func refGatedDelta(o GatedDelta) {
	scratch := make([]float32, o.HeadsK*o.DimK+o.HeadsV*o.DimV+2*o.HeadsV)
	o.State.run(o.Rows, o.Out, func(state []float32, t int) {
		log := scratch
		if o.State.Log.Given() {
			log = o.State.Log.F32(t)
		}
		k, v, g, beta := o.split(log)
		copy(k, o.K.F32(t))
		copy(v, o.V.F32(t))
		for j := range o.HeadsV {
			g[j] = exp32(-exp32(o.ALog.F32(0)[j]) * softplus32(o.A.F32(t)[j]+o.DtBias.F32(0)[j]))
			beta[j] = sigmoid32(o.B.F32(t)[j])
		}
		o.push(state, log)
		out := o.Out.F32(t)
		for j := range o.HeadsV {
			q := o.Q.F32(t)[j*o.HeadsK/o.HeadsV*o.DimK:][:o.DimK]
			for i := range o.DimV {
				out[j*o.DimV+i] = dot(state[(j*o.DimV+i)*o.DimK:][:o.DimK], q)
			}
		}
	})
}

// split cuts a logged row.
func (o SSMScan) split(log []float32) (x, b, dt []float32) {
	nx, nb := o.Heads*o.Dim, o.Groups*o.StateDim
	return log[:nx], log[nx:][:nb], log[nx+nb:][:o.Heads]
}

// push advances the state by one token: S = exp(-exp(ALog) dt) S + (dt x) B^T.
func (o SSMScan) push(state, log []float32) {
	x, bs, dt := o.split(log)
	for h := range o.Heads {
		decay := exp32(-exp32(o.ALog.F32(0)[h]) * dt[h])
		b := bs[h*o.Groups/o.Heads*o.StateDim:][:o.StateDim]
		for i := range o.Dim {
			s := state[(h*o.Dim+i)*o.StateDim:][:o.StateDim]
			dx := dt[h] * x[h*o.Dim+i]
			for n := range s {
				s[n] = float32(decay*s[n]) + float32(dx*b[n])
			}
		}
	}
}

func refSSMScan(o SSMScan) {
	scratch := make([]float32, o.Heads*o.Dim+o.Groups*o.StateDim+o.Heads)
	o.State.run(o.Rows, o.Out, func(state []float32, t int) {
		log := scratch
		if o.State.Log.Given() {
			log = o.State.Log.F32(t)
		}
		x, b, dt := o.split(log)
		copy(x, o.X.F32(t))
		copy(b, o.B.F32(t))
		for h := range dt {
			dt[h] = min(max(softplus32(o.Dt.F32(t)[h]+o.DtBias.F32(0)[h]), o.DtMin), o.DtMax)
		}
		o.push(state, log)
		out := o.Out.F32(t)
		for h := range o.Heads {
			c := o.C.F32(t)[h*o.Groups/o.Heads*o.StateDim:][:o.StateDim]
			for i := range o.Dim {
				at := h*o.Dim + i
				out[at] = dot(state[at*o.StateDim:][:o.StateDim], c) + float32(o.D.F32(0)[h]*x[at])
			}
		}
	})
}

func refStateCommit(o StateCommit) {
	var state State
	var rows Rows
	var push func(slot, log []float32)
	switch {
	case o.Conv != nil:
		state, rows, push = o.Conv.State, o.Conv.Rows, o.Conv.push
	case o.Delta != nil:
		state, rows, push = o.Delta.State, o.Delta.Rows, o.Delta.push
	case o.SSM != nil:
		state, rows, push = o.SSM.State, o.SSM.Rows, o.SSM.push
	}
	for i := range rows.Segments {
		from, to, slot := state.segment(rows, i)
		if slot == nil {
			continue
		}
		keep := min(max(int(o.Keep.I32(0)[i]), 0), to-from)
		for t := from; t < from+keep; t++ {
			push(slot, state.Log.F32(t))
		}
	}
}
