package sample

// Penalizer applies logit bias and penalties to rows of logits and keeps the
// token history they need. Tokens may be taken back ([Penalizer.Truncate]),
// so the rows of a speculative block can be penalised as if their drafts had
// been generated.
//
// Order per row, on raw logits: logit_bias, repetition, presence, frequency.
type Penalizer struct {
	bias                            map[int32]float32
	repetition, presence, frequency float32
	views                           [3]view // repetition, presence, frequency
	tokens                          []int32 // prompt, then completion
	prompt                          int
}

// view counts the tokens that one penalty sees.
type view struct {
	on         bool
	completion bool // every completion token; window is unused
	window     int  // last n of prompt and completion, 0 = all
	count      map[int32]int32
}

// NewPenalizer returns the penalizer of a request with the given prompt. The
// prompt is copied.
func NewPenalizer(p Params, prompt []int32) *Penalizer {
	z := &Penalizer{
		repetition: float32(p.RepetitionPenalty),
		presence:   float32(p.PresencePenalty),
		frequency:  float32(p.FrequencyPenalty),
		prompt:     len(prompt),
	}
	if len(p.LogitBias) > 0 {
		z.bias = make(map[int32]float32, len(p.LogitBias))
		for id, b := range p.LogitBias {
			z.bias[id] = float32(b)
		}
	}
	for i, size := range []*int{p.RepetitionContextSize, p.PresenceContextSize, p.FrequencyContextSize} {
		v := &z.views[i]
		v.on = [...]bool{p.RepetitionPenalty != 0, p.PresencePenalty != 0, p.FrequencyPenalty != 0}[i]
		v.completion = size == nil
		if size != nil {
			v.window = *size
		}
		v.count = map[int32]int32{}
	}
	if z.tracks() {
		for _, t := range prompt {
			z.push(t)
		}
	}
	return z
}

// Active reports whether Apply would change anything, now or later.
func (z *Penalizer) Active() bool { return z.bias != nil || z.tracks() }

// tracks reports whether any penalty needs the history.
func (z *Penalizer) tracks() bool { return z.views[0].on || z.views[1].on || z.views[2].on }

// Push appends one completion token (committed or drafted) to the history.
func (z *Penalizer) Push(token int32) {
	if z.tracks() {
		z.push(token)
	}
}

func (z *Penalizer) push(token int32) {
	z.tokens = append(z.tokens, token)
	n := len(z.tokens)
	for i := range z.views {
		v := &z.views[i]
		if !v.on || (v.completion && n <= z.prompt) {
			continue
		}
		v.count[token]++
		if v.window > 0 && n > v.window {
			v.drop(z.tokens[n-1-v.window])
		}
	}
}

// Completion returns the number of completion tokens in the history; 0 when
// no penalty needs one.
func (z *Penalizer) Completion() int { return max(0, len(z.tokens)-z.prompt) }

// Truncate takes completion tokens back until n remain. It does nothing when
// there are no more than n.
func (z *Penalizer) Truncate(n int) {
	for len(z.tokens) > z.prompt+max(n, 0) {
		last := len(z.tokens) - 1
		for i := range z.views {
			v := &z.views[i]
			if !v.on {
				continue
			}
			v.drop(z.tokens[last])
			if v.window > 0 && last >= v.window {
				v.count[z.tokens[last-v.window]]++
			}
		}
		z.tokens = z.tokens[:last]
	}
}

func (v *view) drop(token int32) {
	if v.count[token]--; v.count[token] <= 0 {
		delete(v.count, token)
	}
}

// Apply changes the row in place. Tokens outside the row are ignored.
func (z *Penalizer) Apply(row []float32) {
	for id, b := range z.bias {
		if uint(id) < uint(len(row)) {
			row[id] += b
		}
	}
	if v := &z.views[0]; v.on {
		for id := range v.count {
			if uint(id) < uint(len(row)) {
				if row[id] < 0 {
					row[id] *= z.repetition
				} else {
					row[id] /= z.repetition
				}
			}
		}
	}
	if v := &z.views[1]; v.on {
		for id := range v.count {
			if uint(id) < uint(len(row)) {
				row[id] -= z.presence
			}
		}
	}
	if v := &z.views[2]; v.on {
		for id, n := range v.count {
			if uint(id) < uint(len(row)) {
				row[id] -= z.frequency * float32(n)
			}
		}
	}
}
