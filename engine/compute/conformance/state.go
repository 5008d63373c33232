package conformance

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

const (
	stateSeqs   = 4  // sequences of a state case
	stateTokens = 33 // tokens of each
)

// stateCase is an op with a recurrent state. Token t of sequence q is row
// q*stateTokens+t of its inputs.
type stateCase struct {
	name             string
	size, log, width int         // floats of a slot, of a logged row, of an output row
	init             [][]float32 // state of each sequence before its first token
	// record makes the op over the given tokens.
	record func(m *memory, tokens []int, st compute.State, rows compute.Rows) stateRun
	// want computes the outputs and log rows of the tokens of a sequence, and its
	// last state.
	want func(seq int) (outs, logs [][]approx, last []approx)
}

// stateRun is a recorded state op and its commit.
type stateRun struct {
	op     compute.Op
	out    compute.View
	commit compute.StateCommit // without Keep
}

// chunk is a segment of a step: tokens [from, to) of a sequence; seq -1 is an
// empty segment without a slot.
type chunk struct{ seq, from, to int }

// stateStep is one program.
type stateStep struct {
	chunks  []chunk
	prefill bool
	keep    []int32 // log, and commit so many rows at the start of the next program
}

// played is what came of a list of steps.
type played struct {
	outs, logs map[int][]float32 // by token
	states     [][]float32       // by sequence
}

// play runs steps one after another over one memory of slots.
func (s *suite) play(c stateCase, lay memLayout, steps []stateStep) (played, error) {
	m := &memory{b: s.b, layout: lay}
	defer m.close()
	const spare = 3
	mem := m.view(layout.F32, stateSeqs+spare, c.size)
	slots := rng(fmt.Sprint(c.name, lay, len(steps))).Perm(stateSeqs + spare)
	slot := func(seq int) []float32 {
		if c.size == 0 {
			return nil
		}
		return mem.F32(slots[seq])
	}
	for q := range stateSeqs {
		copy(slot(q), c.init[q])
	}
	p := played{map[int][]float32{}, map[int][]float32{}, nil}
	var pending []compute.Op
	for _, step := range steps {
		var tokens []int
		var pos, of, which []int32
		start := []int32{0}
		for i, ch := range step.chunks {
			at := int32(-1)
			if ch.seq >= 0 {
				at = int32(slots[ch.seq])
			}
			which = append(which, at)
			for t := ch.from; t < ch.to; t++ {
				tokens = append(tokens, ch.seq*stateTokens+t)
				pos, of = append(pos, int32(t)), append(of, int32(i))
			}
			start = append(start, int32(len(tokens)))
		}
		rows := compute.Rows{N: len(tokens), Segments: len(step.chunks), Prefill: len(tokens), Pos: m.ints(pos...), Of: m.ints(of...), Start: m.ints(start...)}
		if step.prefill {
			rows.Prefill = 0
		}
		st := compute.State{Mem: mem, Slots: m.ints(which...)}
		if step.keep != nil {
			st.Log = m.view(layout.F32, len(tokens), c.log)
		}
		run := c.record(m, tokens, st, rows)
		var before [][]float32
		for q := range stateSeqs {
			before = append(before, slices.Clone(slot(q)))
		}
		if err := m.run(append(pending, run.op)...); err != nil {
			return p, err
		}
		for i, t := range tokens {
			p.outs[t] = floats(run.out, i)
			if step.keep != nil {
				p.logs[t] = slices.Clone(st.Log.F32(i))
			}
		}
		if step.keep != nil {
			for q := range stateSeqs {
				if len(pending) == 0 && !same(before[q], slot(q)) {
					return p, fmt.Errorf("the op logged and still changed the state of sequence %d", q)
				}
			}
		}
		pending = nil
		if step.keep != nil {
			run.commit.Keep = m.ints(step.keep...)
			pending = []compute.Op{run.commit}
		}
	}
	if err := m.run(pending...); err != nil {
		return p, err
	}
	for q := range stateSeqs {
		p.states = append(p.states, slices.Clone(slot(q)))
	}
	for _, at := range slots[stateSeqs:] {
		for i := range c.size {
			if binary.LittleEndian.Uint32(mem.Buf.Bytes[mem.Off+(at*mem.Stride+i)*4:]) != guardWord {
				return p, fmt.Errorf("slot %d belongs to nobody and was written", at)
			}
		}
	}
	return p, nil
}

// state judges one run of all tokens, and wants the same bits when they come in
// other chunks.
func (s *suite) state(c stateCase) {
	var whole []chunk
	for q := range stateSeqs {
		whole = append(whole, chunk{q, 0, stateTokens}, chunk{seq: -1})
	}
	var backwards []chunk
	var byRow, chunks, halves []stateStep
	for q := range stateSeqs {
		backwards = append([]chunk{{q, 0, stateTokens}}, backwards...)
		at := 0
		for _, n := range []int{1, 2, 7, 8, 9, stateTokens - 27} {
			chunks = append(chunks, stateStep{chunks: []chunk{{q, at, at + n}}})
			at += n
		}
	}
	for t := range stateTokens {
		var step stateStep
		for q := range stateSeqs {
			if (t+q)%2 == 0 {
				step.chunks = append(step.chunks, chunk{q, t, t + 1})
			} else {
				step.chunks = append([]chunk{{q, t, t + 1}}, step.chunks...)
			}
		}
		byRow = append(byRow, step)
	}
	for _, cut := range [][2]int{{0, 16}, {16, 16}, {16, stateTokens}} { // with a step of nothing but empty segments
		var step stateStep
		for q := range stateSeqs {
			step.chunks = append(step.chunks, chunk{q, cut[0], cut[1]})
		}
		halves = append(halves, step)
	}
	one := []stateStep{{chunks: whole}}
	schedules := []struct {
		what  string
		lay   memLayout
		steps []stateStep
		bits  bool
	}{
		{"all at once", memPacked, one, true},
		{"all at once, spread in memory", memSpread, one, true},
		{"segments in reverse", memPacked, []stateStep{{chunks: backwards}}, true},
		{"row by row", memPacked, byRow, true},
		{"in chunks", memSpread, chunks, true},
		{"in halves", memPacked, halves, true},
		{"as prefill", memPacked, []stateStep{{chunks: whole, prefill: true}}, !s.opt.RelaxedPrefill},
	}
	var first played
	for i, sch := range schedules {
		s.cases++
		name := c.name + ", " + sch.what
		got, err := s.play(c, sch.lay, sch.steps)
		if err != nil {
			s.fail(name, "%v", err)
			return
		}
		if i == 0 {
			first = got
		}
		for q := range stateSeqs {
			var outs [][]approx
			var last []approx
			if i == 0 || !sch.bits {
				outs, _, last = c.want(q)
				s.judge32(name+", state", q, got.states[q], last, s.opt.Tol)
			}
			if sch.bits && !same(first.states[q], got.states[q]) {
				s.fail(name, "the state of sequence %d has other bits than in one run", q)
				return
			}
			for t := range stateTokens {
				row := q*stateTokens + t
				if outs != nil {
					s.judge(name, row, got.outs[row], outs[t], s.opt.Tol)
				}
				if sch.bits && !same(first.outs[row], got.outs[row]) {
					s.fail(name, "token %d of sequence %d has other bits than in one run", t, q)
					return
				}
			}
		}
	}
	s.lostSlots(c)
}

// lostSlots: rows of a segment whose slot does not exist give zeros.
func (s *suite) lostSlots(c stateCase) {
	s.cases++
	got, err := s.run(memPacked, 4, func(m *memory) ([]compute.Op, []compute.View) {
		mem := m.floats(1, c.size, c.init[1])
		rows := compute.Rows{N: 4, Segments: 3, Prefill: 4, Pos: m.ints(0, 1, 0, 0), Of: m.ints(0, 0, 1, 2), Start: m.ints(0, 2, 3, 4)}
		r := c.record(m, ascending(4), compute.State{Mem: mem, Slots: m.ints(-1, 1, math.MaxInt32)}, rows)
		return []compute.Op{r.op}, []compute.View{r.out}
	})
	for r := range got {
		if slices.ContainsFunc(got[r], func(x float32) bool { return x != 0 }) {
			s.fail(c.name+", no slot", "row %d is not zero", r)
			return
		}
	}
	if err != nil {
		s.fail(c.name+", no slot", "%v", err)
	}
}

// commit wants that logging changes no output, and that a commit of k rows
// leaves the bits of a forward of k rows, for every k.
func (s *suite) commit(c stateCase) {
	widths := []int{9, 1, 8, 2}
	// the state after each number of tokens, and the outputs
	const most = 9 + 9 + 3 // tokens that the steps below get to
	plain, after := played{}, make([][][]float32, most+1)
	for n := range most + 1 {
		var step stateStep
		for q := range stateSeqs {
			step.chunks = append(step.chunks, chunk{q, 0, n})
		}
		p, err := s.play(c, memPacked, []stateStep{step})
		if err != nil {
			s.fail(c.name, "%v", err)
			return
		}
		plain, after[n] = p, p.states
	}
	var logs [stateSeqs][][]approx
	for q := range logs {
		_, logs[q], _ = c.want(q)
	}
	for j := range 10 {
		s.cases++
		name := fmt.Sprintf("%s, commit %d", c.name, j)
		// verify; then verify again from what was kept, whose program commits first; then go on plainly
		var first, second, third stateStep
		var kept [stateSeqs]int
		for i, w := range widths {
			q := (i + j) % stateSeqs
			k := (j + i) % (w + 1)
			keep := int32(k)
			switch {
			case j == 7 && k == w:
				keep = math.MaxInt32 // cut to the rows
			case j == 8 && k == 0:
				keep = -3
			}
			first.chunks = append(first.chunks, chunk{q, 0, w}, chunk{seq: -1})
			first.keep = append(first.keep, keep, 0)
			w2 := widths[(i+1)%len(widths)]
			k2 := (j * 2) % (w2 + 1)
			second.chunks = append(second.chunks, chunk{q, k, k + w2})
			second.keep = append(second.keep, int32(k2))
			third.chunks = append(third.chunks, chunk{q, k + k2, k + k2 + 3})
			kept[q] = k + k2
		}
		for n, steps := range [][]stateStep{{first}, {first, second}, {first, second, third}} {
			got, err := s.play(c, memLayout(j%int(memLayouts)), steps)
			if err != nil {
				s.fail(name, "%v", err)
				return
			}
			for row, out := range got.outs {
				if !same(out, plain.outs[row]) {
					s.fail(name, "token %d of sequence %d has other bits than in a plain run, after %d steps", row%stateTokens, row/stateTokens, n+1)
					return
				}
			}
			for i := range widths {
				q := (i + j) % stateSeqs
				want := kept[q]
				switch n {
				case 0:
					want = second.chunks[i].from
				case 2:
					want += 3
				}
				if !same(got.states[q], after[want][q]) {
					s.fail(name, "the state of sequence %d is not that of %d tokens, after %d steps", q, want, n+1)
					return
				}
			}
			if n == 0 {
				for q := range stateSeqs {
					for t, want := range logs[q] {
						if log := got.logs[q*stateTokens+t]; log != nil {
							s.judge32(name+", log", q*stateTokens+t, log, want, s.opt.Tol)
						}
					}
				}
			}
		}
	}
}

func testShortConv(s *suite)  { forEach(shortConvs(s.opt.Tol), s.state) }
func testGatedDelta(s *suite) { forEach(gatedDeltas(s.opt.Tol), s.state) }
func testSSMScan(s *suite)    { forEach(ssmScans(s.opt.Tol), s.state) }
func testStateCommit(s *suite) {
	forEach(shortConvs(s.opt.Tol), s.commit)
	forEach(gatedDeltas(s.opt.Tol), s.commit)
	forEach(ssmScans(s.opt.Tol), s.commit)
}

func forEach(cases []stateCase, f func(stateCase)) {
	for _, c := range cases {
		f(c)
	}
}

// states makes the first states: nothing for the first sequence.
func states(name string, size int) [][]float32 {
	r := rng(name + " states")
	init := [][]float32{make([]float32, size)}
	for range stateSeqs - 1 {
		init = append(init, normals(r, size))
	}
	return init
}

func shortConvs(tol float64) []stateCase {
	var cases []stateCase
	for i, c := range []struct{ cols, taps int }{{37, 4}, {1, 3}, {64, 2}, {8, 1}, {20, 5}} {
		name := fmt.Sprintf("ShortConv of %d taps over %d columns", c.taps, c.cols)
		act := []compute.Act{compute.ActNone, compute.ActSiLU}[i%2]
		r := rng(name)
		x, w, bias := normals(r, stateSeqs*stateTokens*c.cols), normals(r, c.cols*c.taps), normals(r, c.cols)
		hasBias := i%3 == 0
		init := states(name, (c.taps-1)*c.cols)
		cases = append(cases, stateCase{name: name, size: (c.taps - 1) * c.cols, log: c.cols, width: c.cols, init: init,
			record: func(m *memory, tokens []int, st compute.State, rows compute.Rows) stateRun {
				op := compute.ShortConv{X: m.pick(tokens, c.cols, x), W: m.floats(c.cols, c.taps, w), Act: act, State: st, Rows: rows, Out: m.out(len(tokens), c.cols)}
				if hasBias {
					op.Bias = m.floats(1, c.cols, bias)
				}
				return stateRun{op, op.Out, compute.StateCommit{Conv: &op}}
			},
			want: func(seq int) (outs, logs [][]approx, last []approx) {
				past := slices.Clone(init[seq])
				for t := range stateTokens {
					past = append(past, x[(seq*stateTokens+t)*c.cols:][:c.cols]...)
					out, log := make([]approx, c.cols), make([]approx, c.cols)
					for col := range c.cols {
						var sum total
						for j := range c.taps {
							sum.dot(float64(w[col*c.taps+j]), float64(past[(t+j)*c.cols+col]))
						}
						if hasBias {
							sum.add(exactly(float64(bias[col])))
						}
						out[col] = activation(act, sum.result(), approx{}, tol)
						log[col] = exactly(float64(x[(seq*stateTokens+t)*c.cols+col]))
					}
					outs, logs = append(outs, out), append(logs, log)
				}
				for _, v := range past[stateTokens*c.cols:] {
					last = append(last, exactly(float64(v)))
				}
				return outs, logs, last
			}})
	}
	return cases
}

func gatedDeltas(tol float64) []stateCase {
	var cases []stateCase
	for _, c := range []struct{ headsK, headsV, dimK, dimV int }{{1, 1, 16, 16}, {2, 4, 16, 24}, {2, 2, 64, 8}, {1, 3, 7, 5}, {1, 1, 128, 64}} {
		name := fmt.Sprintf("GatedDelta %+v", c)
		r := rng(name)
		n, nk, nv := stateSeqs*stateTokens, c.headsK*c.dimK, c.headsV*c.dimV
		q, k, v, a, b := normals(r, n*nk), normals(r, n*nk), normals(r, n*nv), normals(r, n*c.headsV), normals(r, n*c.headsV)
		for i := range k { // about unit length
			k[i] /= float32(math.Sqrt(float64(c.dimK)))
		}
		aLog, dtBias := normals(r, c.headsV), normals(r, c.headsV)
		a[0], a[1], b[2] = 30, -30, 20 // forget all, forget nothing, take all
		size := c.headsV * c.dimV * c.dimK
		init := states(name, size)
		cases = append(cases, stateCase{name: name, size: size, log: nk + nv + 2*c.headsV, width: nv, init: init,
			record: func(m *memory, tokens []int, st compute.State, rows compute.Rows) stateRun {
				op := compute.GatedDelta{Q: m.pick(tokens, nk, q), K: m.pick(tokens, nk, k), V: m.pick(tokens, nv, v), A: m.pick(tokens, c.headsV, a), B: m.pick(tokens, c.headsV, b),
					ALog: m.floats(1, c.headsV, aLog), DtBias: m.floats(1, c.headsV, dtBias), HeadsK: c.headsK, HeadsV: c.headsV, DimK: c.dimK, DimV: c.dimV,
					State: st, Rows: rows, Out: m.out(len(tokens), nv)}
				return stateRun{op, op.Out, compute.StateCommit{Delta: &op}}
			},
			want: func(seq int) (outs, logs [][]approx, last []approx) {
				state := make([]approx, size)
				for i := range state {
					state[i] = exactly(float64(init[seq][i]))
				}
				for t := range stateTokens {
					row := seq*stateTokens + t
					out, log := make([]approx, nv), make([]approx, 0, nk+nv+2*c.headsV)
					var gs, betas []approx
					for _, x := range k[row*nk:][:nk] {
						log = append(log, exactly(float64(x)))
					}
					for _, x := range v[row*nv:][:nv] {
						log = append(log, exactly(float64(x)))
					}
					for j := range c.headsV {
						dt := exactly(float64(a[row*c.headsV+j])).add(exactly(float64(dtBias[j]))).apply(softplus, 0, tol)
						rate := exactly(float64(aLog[j])).apply(math.Exp, 0, tol).mul(dt)
						gs = append(gs, rate.apply(func(x float64) float64 { return math.Exp(-x) }, 0, tol))
						betas = append(betas, exactly(float64(b[row*c.headsV+j])).apply(sigmoid, 0, tol))
						head := j / (c.headsV / c.headsK)
						kv, qv := k[row*nk+head*c.dimK:][:c.dimK], q[row*nk+head*c.dimK:][:c.dimK]
						for i := range c.dimV {
							st := state[(j*c.dimV+i)*c.dimK:][:c.dimK]
							var sk, y total
							for n := range st {
								st[n] = st[n].mul(gs[j])
								sk.add(st[n].times(float64(kv[n])))
							}
							d := exactly(float64(v[row*nv+j*c.dimV+i])).add(sk.result().times(-1)).mul(betas[j])
							for n := range st {
								st[n] = st[n].add(d.times(float64(kv[n])))
								y.add(st[n].times(float64(qv[n])))
							}
							out[j*c.dimV+i] = y.result()
						}
					}
					outs, logs = append(outs, out), append(logs, append(append(log, gs...), betas...))
				}
				return outs, logs, state
			}})
	}
	return cases
}

func ssmScans(tol float64) []stateCase {
	var cases []stateCase
	for i, c := range []struct{ heads, dim, groups, n int }{{1, 16, 1, 16}, {4, 8, 2, 24}, {6, 5, 3, 7}, {2, 64, 1, 128}, {3, 10, 1, 9}} {
		name := fmt.Sprintf("SSMScan %+v", c)
		r := rng(name)
		n, nx, nb := stateSeqs*stateTokens, c.heads*c.dim, c.groups*c.n
		x, b, cc, dt := normals(r, n*nx), normals(r, n*nb), normals(r, n*nb), normals(r, n*c.heads)
		aLog, d, dtBias := normals(r, c.heads), normals(r, c.heads), normals(r, c.heads)
		dt[0], dt[1], dt[2] = 30, -30, 5
		limits := [][2]float32{{0, inf}, {0.001, 0.1}, {0.5, 3}}[i%3]
		size := nx * c.n
		init := states(name, size)
		cases = append(cases, stateCase{name: name, size: size, log: nx + nb + c.heads, width: nx, init: init,
			record: func(m *memory, tokens []int, st compute.State, rows compute.Rows) stateRun {
				op := compute.SSMScan{X: m.pick(tokens, nx, x), B: m.pick(tokens, nb, b), C: m.pick(tokens, nb, cc), Dt: m.pick(tokens, c.heads, dt),
					ALog: m.floats(1, c.heads, aLog), D: m.floats(1, c.heads, d), DtBias: m.floats(1, c.heads, dtBias),
					Heads: c.heads, Dim: c.dim, Groups: c.groups, StateDim: c.n, DtMin: limits[0], DtMax: limits[1], State: st, Rows: rows, Out: m.out(len(tokens), nx)}
				return stateRun{op, op.Out, compute.StateCommit{SSM: &op}}
			},
			want: func(seq int) (outs, logs [][]approx, last []approx) {
				state := make([]approx, size)
				for i := range state {
					state[i] = exactly(float64(init[seq][i]))
				}
				for t := range stateTokens {
					row := seq*stateTokens + t
					out, log := make([]approx, nx), make([]approx, 0, nx+nb+c.heads)
					for _, v := range x[row*nx:][:nx] {
						log = append(log, exactly(float64(v)))
					}
					for _, v := range b[row*nb:][:nb] {
						log = append(log, exactly(float64(v)))
					}
					for h := range c.heads {
						step := exactly(float64(dt[row*c.heads+h])).add(exactly(float64(dtBias[h]))).apply(softplus, 0, tol)
						step = step.apply(func(x float64) float64 { return min(max(x, float64(limits[0])), float64(limits[1])) }, 0, tol)
						log = append(log, step)
						decay := exactly(float64(aLog[h])).apply(math.Exp, 0, tol).mul(step).apply(func(x float64) float64 { return math.Exp(-x) }, 0, tol)
						g := h / (c.heads / c.groups)
						for i := range c.dim {
							xi := float64(x[row*nx+h*c.dim+i])
							st := state[(h*c.dim+i)*c.n:][:c.n]
							var y total
							for n := range st {
								st[n] = st[n].mul(decay).add(step.times(xi).times(float64(b[row*nb+g*c.n+n])))
								y.add(st[n].times(float64(cc[row*nb+g*c.n+n])))
							}
							y.dot(float64(d[h]), xi)
							out[h*c.dim+i] = y.result()
						}
					}
					outs, logs = append(outs, out), append(logs, log)
				}
				return outs, logs, state
			}})
	}
	return cases
}
