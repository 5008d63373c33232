package engine

import (
	"strings"

	"sparkbar/engine/chat"
	"sparkbar/engine/decode"
	"sparkbar/engine/tokenizer"
)

// answer turns the tokens of one generation into text, reasoning and tool
// calls as they come, and adds them up.
type answer struct {
	l   *loaded
	req Request
	put func(Delta)

	pending []Delta // of the present round; text pieces are joined
	stream  *tokenizer.Stream
	stop    *chat.Stopper
	mlx     *mlxStop     // nil: stop is the rule
	parser  *chat.Parser // nil: the text is passed on as it is

	prompt    []Token // see Request.EchoPrompt
	tokens    []Token
	ended     bool // by an end token, a stop string or the only call
	called    bool // the only call is complete: nothing comes after it
	text      strings.Builder
	reasoning strings.Builder
	calls     []ToolCall
	broken    []string
}

func newAnswer(l *loaded, req Request, prompt string, put func(Delta)) *answer {
	a := &answer{l: l, req: req, put: put, stream: l.tok.Stream(false), stop: chat.NewStopper(req.Stop)}
	if req.Prompt.MLXRules {
		a.mlx = newMLXStop(req.Stop, func(s string) []int32 { return l.tok.Encode(s, false) })
	}
	if req.Reasoning || req.Tools {
		var tools []any
		if req.Tools {
			tools, _ = decodeList(req.Prompt.Tools) // render has checked them
		}
		rules, streamed := chat.SparkbarRules, req.StreamCalls
		rules.KnownTools = len(tools) > 0
		if req.Prompt.MLXRules { // that server asks for no names, and waits for the end
			rules, streamed = chat.MLXRules, false
		}
		a.parser = l.format.NewParser(chat.ParserOptions{Rules: rules, Prompt: prompt, Continued: req.Prompt.ContinueFinal,
			Calls: req.Tools, Tools: tools, StreamCalls: streamed, NoThought: !req.Reasoning})
		if lead := l.lead(req.Prompt); lead != "" {
			a.events(a.parser.Feed(lead))
		}
	}
	return a
}

// add takes the tokens of a round, up to the one that completes a stop string;
// true ends the generation there.
func (a *answer) add(ts []decode.Token) (stop bool) {
	var round []Token
	for _, t := range ts {
		tok := a.token(t)
		a.tokens = append(a.tokens, tok)
		if a.req.Logprobs >= 0 {
			round = append(round, tok)
		}
		if a.l.end[t.ID] && !a.req.IgnoreEnd {
			a.ended = true
			break
		}
		if a.mlx != nil {
			if a.mlx.token(t.ID) { // the token's own text and what was held back are never shown
				a.ended = true
				break
			}
			a.pass(a.mlx.cut(a.stream.Add(t.ID)))
			if a.called {
				break
			}
			continue
		}
		safe, hit := a.stop.Feed(a.stream.Add(t.ID))
		a.pass(safe)
		if hit || a.called {
			a.ended = true
			break
		}
	}
	if len(round) > 0 { // with what they made visible, if they did
		if len(a.pending) == 0 {
			a.pending = append(a.pending, Delta{})
		}
		a.pending[0].Tokens = round
	}
	a.flush()
	return a.ended
}

// emit adds a delta to the round, joined with the one before where both are
// text or both are reasoning.
func (a *answer) emit(d Delta) {
	if n := len(a.pending) - 1; n >= 0 && d.ToolCall == nil {
		last := &a.pending[n]
		if last.ToolCall == nil && (d.Text != "" && last.Text != "" || d.Reasoning != "" && last.Reasoning != "") {
			last.Text += d.Text
			last.Reasoning += d.Reasoning
			return
		}
	}
	a.pending = append(a.pending, d)
}

func (a *answer) flush() {
	for _, d := range a.pending {
		a.put(d)
	}
	a.pending = a.pending[:0]
}

func (a *answer) token(t decode.Token) Token {
	out := Token{ID: t.ID, Text: a.l.tok.Token(t.ID), Bytes: a.l.tok.TokenBytes(t.ID), Logprob: t.Logprob}
	for _, p := range t.Top {
		out.Top = append(out.Top, TokenProb{ID: p.ID, Text: a.l.tok.Token(p.ID), Bytes: a.l.tok.TokenBytes(p.ID), Logprob: float64(p.Logprob)})
	}
	return out
}

// pass hands decoded text on, through the parser if there is one.
func (a *answer) pass(text string) {
	switch {
	case text == "":
	case a.parser == nil:
		a.text.WriteString(text)
		a.emit(Delta{Text: text})
	default:
		a.events(a.parser.Feed(text))
	}
}

func (a *answer) events(list []chat.Event) {
	for _, e := range list {
		if a.called {
			return
		}
		switch e.Kind {
		case chat.Text:
			a.text.WriteString(e.Text)
			a.emit(Delta{Text: e.Text})
		case chat.Thought:
			a.reasoning.WriteString(e.Text)
			a.emit(Delta{Reasoning: e.Text})
		case chat.TextWasThought: // a closing tag came late; what was streamed cannot be taken back
			a.reasoning.WriteString(a.text.String())
			a.text.Reset()
		case chat.CallStart:
			c := ToolCall{Index: e.Call, ID: callID(), Name: e.Name}
			a.calls = append(a.calls, c)
			a.emit(Delta{ToolCall: &c})
		case chat.CallArgs:
			last := &a.calls[len(a.calls)-1]
			last.Arguments += e.Text
			a.emit(Delta{ToolCall: &ToolCall{Index: last.Index, Arguments: e.Text}})
		case chat.CallEnd:
			a.called = a.req.OneCall
			a.ended = a.ended || a.called
		case chat.CallDrop:
			last := len(a.calls) - 1
			a.emit(Delta{ToolCall: &ToolCall{Index: a.calls[last].Index, Dropped: true}})
			a.calls = a.calls[:last]
		case chat.BrokenCall:
			why := "unreadable"
			if e.Err != nil {
				why = e.Err.Error()
			}
			a.broken = append(a.broken, why)
		}
	}
}

// finish flushes what was held back and returns the whole answer.
func (a *answer) finish() Result {
	switch {
	case a.mlx != nil && !a.ended:
		a.pass(a.mlx.cut(a.stream.Finish()) + a.mlx.held)
	case a.mlx != nil:
	case a.stop.Matched() == "":
		safe, hit := a.stop.Feed(a.stream.Finish())
		if !hit {
			safe += a.stop.Flush()
		}
		a.pass(safe)
		a.ended = a.ended || hit
	}
	if a.parser != nil {
		a.events(a.parser.Finish())
	}
	a.flush()
	r := Result{Text: a.text.String(), Reasoning: a.reasoning.String(), ToolCalls: a.calls, BrokenCalls: a.broken, Prompt: a.prompt, Tokens: a.tokens,
		FinishReason: FinishLength, StopString: a.stop.Matched()}
	called := len(a.calls) > 0
	if a.mlx != nil { // a block that was closed counts, whatever was in it
		r.StopString, called = a.mlx.matched, a.ended && len(a.calls)+len(a.broken) > 0
	}
	switch {
	case called:
		r.FinishReason = FinishToolCalls
	case a.ended:
		r.FinishReason = FinishStop
	}
	return r
}
