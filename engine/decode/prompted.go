package decode

import "sparkbar/engine/sample"

// promptLogits bounds the logits, in numbers, of the rows of a prompt that are all
// looked at in one step.
const promptLogits = 4 << 20

// readAll plans the rows of a prompt whose log-probabilities are wanted: fewer at a
// time, and the logits of all.
func (g *generation) readAll(end int) {
	g.plan(g.j.Prompt[g.at:min(end, g.at+max(1, promptLogits/g.model.Vocab))], promptRows)
}

// prompted tells the log-probabilities of the prompt's tokens that the rows of the
// step are followed by, and leaves the logits of the last row.
func (g *generation) prompted() {
	p := &g.share
	var tokens []Token
	for i, next := range g.j.Prompt[g.at+1 : min(g.at+1+len(p.ids), len(g.j.Prompt))] {
		lp, top := sample.Logprobs(p.logits.F32(i), next, max(g.j.Logprobs, 0), nil)
		tokens = append(tokens, Token{ID: next, Logprob: float64(lp), Top: top})
	}
	last := len(p.ids) - 1
	p.logits, p.best = p.logits.Slice(last, last+1), p.best[last:]
	g.j.Prompted(tokens)
}
