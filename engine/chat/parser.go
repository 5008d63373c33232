package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sparkbar/engine/chat/jinja"
)

// EventKind says what an Event reports.
type EventKind int

// The kinds of events. A call is reported as CallStart, one or more CallArgs
// and CallEnd, without other events in between. CallDrop only comes with
// ParserOptions.StreamCalls, and is followed by the block's BrokenCall or by
// other calls.
const (
	Text           EventKind = iota // Text goes on with the answer
	Thought                         // Text goes on with the reasoning
	CallStart                       // call number Call begins: ID (often empty) and Name
	CallArgs                        // Text goes on with the JSON of the arguments
	CallEnd                         // the call is complete
	CallDrop                        // instead of CallEnd: call Call is no usable call after all
	BrokenCall                      // Text is tool markup that is no usable call, verbatim; Err says why
	TextWasThought                  // all Text so far was reasoning: see Rules.LateThought
)

// Event is a piece of a message.
type Event struct {
	Kind EventKind
	Text string
	Call int // index of the call in the message, from 0
	ID   string
	Name string
	Err  error
}

// Rules are the points in which servers read the same text differently.
type Rules struct {
	// ThoughtAnywhere lets a thought begin in the middle of an answer;
	// otherwise its tag counts only before the first visible character.
	ThoughtAnywhere bool

	// LateThought lets a closing tag without an opening one turn the text
	// before it into reasoning. Otherwise such a tag is text.
	LateThought bool

	// CallsInThought lets a tool call end a thought.
	CallsInThought bool

	// Trim drops white space around the parts of a message: before a thought,
	// between a thought and the answer, around tool calls. White space inside
	// the answer, and at its end if there is no call, is kept.
	Trim bool

	// KnownTools refuses calls of functions that the request does not offer.
	KnownTools bool
}

// SparkbarRules read an answer as mlx-dspark does, MLXRules as
// mlx_lm.server does.
var (
	SparkbarRules = Rules{LateThought: true, Trim: true}
	MLXRules      = Rules{ThoughtAnywhere: true, CallsInThought: true}
)

// ParserOptions describe one answer to be read.
type ParserOptions struct {
	Rules Rules

	// Prompt is the rendered prompt, or its end: it tells whether the model
	// begins inside a thought.
	Prompt string

	// Continued says that the prompt ends in the text of a message which the
	// model continues, see Options.ContinueFinalMessage.
	Continued bool

	// Calls looks for tool calls. Tools are those of the request; their
	// schemas give arguments their types.
	Calls bool
	Tools []any

	// StreamCalls reports calls while they are being written, where the
	// format allows it; else a call is reported once it is complete. A call
	// whose function is not among Tools, if there are any, is never reported
	// early.
	StreamCalls bool

	// NoThought leaves reasoning markup in the text.
	NoThought bool
}

// state is where in a message the parser is.
type state int

const (
	inText state = iota
	inThought
	inCall
	inHeader // of a channel
	betweenChannels
)

// maxHeader is the length beyond which text before a <|message|> marker is no
// channel header.
const maxHeader = 300

// maxEndRetries bounds how often an end marker may be taken for part of an
// argument.
const maxEndRetries = 64

// Parser reads the text of one answer as it is generated. What it returns does
// not depend on how the text is cut into pieces, and no character is lost: all
// text comes out again, except for markers, trimmed white space and the markup
// of calls that were understood.
type Parser struct {
	o       ParserOptions
	tags    *thoughtTags // nil: no reasoning
	formats []*toolFormat
	schemas schemas

	state state
	buf   string // text not decided yet
	out   []Event
	calls int

	marker  string // in a call: its start marker
	scanned int    // in a call: how much of buf holds no end marker
	retries int
	skipped int    // in a call with retries: where the first end marker stood
	looked  int    // in a call: the length of the block when last looked at
	header  string // in a channel: its header
	tool    string // in a channel that is a tool call: the function

	started  bool   // visible text, a call or a thought has come
	visible  bool   // text of the answer has come
	thought  bool   // a thought has come
	called   bool   // a call has come
	skipping bool   // white space is to be dropped
	blanks   string // white space held back

	reporting    bool // a call has been started that is not complete
	reportedName string
	reported     string // its arguments so far
}

// NewParser returns a Parser for one answer of the model.
func (f *Format) NewParser(o ParserOptions) *Parser {
	p := &Parser{o: o}
	if !o.NoThought {
		p.tags = f.thought
	}
	if o.Calls {
		p.formats = f.tools
		p.schemas = toolSchemas(o.Tools)
	}
	if p.tags != nil {
		switch {
		case p.tags.channels != nil:
			// The prompt ends in "<|start|>assistant", so the answer begins
			// inside a header.
			p.state = inHeader
			if o.Continued {
				p.state = inText
			}
		case o.Continued && p.tags.inside(o.Prompt), !o.Continued && p.tags.opens(o.Prompt):
			p.enterThought()
		}
	}
	return p
}

// Feed takes the next piece of text and returns what it makes certain.
func (p *Parser) Feed(piece string) []Event {
	p.buf += piece
	for p.step(false) {
	}
	return p.take()
}

// Finish returns the rest once the text is complete.
func (p *Parser) Finish() []Event {
	for p.step(true) {
	}
	if p.blanks != "" && !p.called && !p.skipping {
		p.emit(Event{Kind: Text, Text: p.blanks})
	}
	p.blanks = ""
	return p.take()
}

func (p *Parser) take() []Event {
	out := p.out
	p.out = nil
	return out
}

// emit appends an event, joining texts of the same kind.
func (p *Parser) emit(e Event) {
	if n := len(p.out) - 1; n >= 0 && p.out[n].Kind == e.Kind && (e.Kind == Text || e.Kind == Thought) {
		p.out[n].Text += e.Text
		return
	}
	p.out = append(p.out, e)
}

// step decides as much of buf as the current state allows, up to the next
// change of state. It returns false when more text is needed.
func (p *Parser) step(final bool) bool {
	switch p.state {
	case inCall:
		return p.stepCall(final)
	case inHeader:
		return p.stepHeader(final)
	case betweenChannels:
		return p.stepBetween(final)
	}
	if p.state == inText && !p.started && !p.ready(final) {
		return false
	}
	marks := p.markers()
	i, m := first(p.buf, marks)
	if i < 0 {
		n := 0
		if !final {
			n = heldBack(p.buf, marks)
		}
		s := p.buf[:len(p.buf)-n]
		p.buf = p.buf[len(s):]
		p.pass(s)
		if final && p.tool != "" {
			p.closeChannel("")
		}
		return false
	}
	p.pass(p.buf[:i])
	p.buf = p.buf[i+len(m):]
	p.mark(m)
	return true
}

// ready holds back the beginning of an answer while it may still be an opening
// tag, and notes once it is not.
func (p *Parser) ready(final bool) bool {
	lead := strings.TrimLeft(p.buf, blankChars)
	if lead == "" {
		return final && p.buf != ""
	}
	if p.tags != nil && p.tags.open != "" && !final && len(lead) < len(p.tags.open) && strings.HasPrefix(p.tags.open, lead) {
		return false
	}
	if p.tags == nil || p.tags.open == "" || !strings.HasPrefix(lead, p.tags.open) {
		p.started = true
	}
	return true
}

const blankChars = " \t\r\n\v\f"

// markers returns the texts that mean something in the current state.
func (p *Parser) markers() []string {
	var marks []string
	if p.tool != "" {
		return append(marks, p.channelEnds()...)
	}
	if t := p.tags; t != nil {
		switch {
		case t.channels != nil:
			marks = append(marks, p.channelEnds()...)
		case p.state == inThought:
			marks = append(marks, t.close)
		default:
			if !p.started || p.o.Rules.ThoughtAnywhere {
				marks = append(marks, t.open)
			}
			if p.o.Rules.LateThought && !p.thought && p.calls == 0 {
				marks = append(marks, t.close)
			}
		}
		marks = append(marks, t.drop...)
	}
	if p.state == inText || p.o.Rules.CallsInThought {
		for _, f := range p.formats {
			marks = append(marks, f.start)
		}
	}
	return marks
}

func (p *Parser) channelEnds() []string {
	return append([]string{channelStart, channelMessage, channelName}, p.tags.channels.ends...)
}

// first finds the first marker in s, the longest of those at the same place.
func first(s string, marks []string) (int, string) {
	at, found := -1, ""
	for _, m := range marks {
		limit := len(s)
		if at >= 0 {
			limit = min(len(s), at+len(m))
		}
		if i := strings.Index(s[:limit], m); i >= 0 && (at < 0 || i < at || i == at && len(m) > len(found)) {
			at, found = i, m
		}
	}
	return at, found
}

// begun is the length of the longest end of s that a marker may begin with.
func begun(s string, marks []string) int {
	for n := min(len(s), maxHeader); n > 0; n-- {
		for _, m := range marks {
			if n < len(m) && strings.HasSuffix(s, m[:n]) {
				return n
			}
		}
	}
	return 0
}

// mark acts on a marker that has just been removed from buf.
func (p *Parser) mark(m string) {
	if t := p.tags; t != nil {
		switch {
		case t.channels != nil && (m == channelStart || m == channelName):
			p.closeChannel(m)
			p.state, p.header = inHeader, ""
			return
		case t.channels != nil && m == channelMessage:
			return // a stray one changes nothing
		case t.channels != nil && isOneOf(m, t.channels.ends):
			p.closeChannel(m)
			p.state = betweenChannels
			return
		case isOneOf(m, t.drop):
			return
		case m == t.open:
			p.enterThought()
			return
		case m == t.close && p.state == inThought:
			p.leaveThought()
			return
		case m == t.close:
			if p.blanks != "" {
				p.emit(Event{Kind: Text, Text: p.blanks})
			}
			p.emit(Event{Kind: TextWasThought})
			p.visible = false
			p.leaveThought()
			return
		}
	}
	p.state, p.marker, p.scanned, p.retries = inCall, m, 0, 0
}

func isOneOf(s string, list []string) bool {
	for _, it := range list {
		if s == it {
			return true
		}
	}
	return false
}

func (p *Parser) enterThought() {
	p.state, p.started, p.thought = inThought, true, true
	if !p.visible && p.o.Rules.Trim {
		p.blanks = ""
	}
	if p.o.Rules.Trim && p.tags.after != "" {
		p.skipping = true // dropped by pass
	}
}

func (p *Parser) leaveThought() {
	p.state, p.thought, p.started = inText, true, true
	p.blanks = ""
	p.skipping = p.o.Rules.Trim
}

// pass sends text on in the current state.
func (p *Parser) pass(s string) {
	if s == "" {
		return
	}
	if p.tool != "" {
		p.header += s // the body of a call, kept behind its header
		if _, body, _ := strings.Cut(p.header, channelMessage); p.o.StreamCalls && strings.HasPrefix(strings.TrimSpace(body), "{") {
			if len(body) >= p.looked+1+p.looked/32 {
				p.looked = len(body)
				p.report(p.tool, jsonPrefix(body))
			}
		}
		return
	}
	if p.state == inThought {
		if p.skipping {
			p.skipping = false
			if s = strings.TrimPrefix(s, p.tags.after); s == "" {
				return
			}
		}
		p.emit(Event{Kind: Thought, Text: s})
		return
	}
	if !p.o.Rules.Trim {
		p.started, p.visible = p.started || strings.Trim(s, blankChars) != "", true
		p.emit(Event{Kind: Text, Text: s})
		return
	}
	if p.skipping {
		if s = strings.TrimLeft(s, blankChars); s == "" {
			return
		}
		p.skipping = false
	}
	body := strings.TrimRight(s, blankChars)
	if body == "" {
		p.blanks += s
		return
	}
	if p.called && !p.visible {
		p.blanks = ""
		body = strings.TrimLeft(body, blankChars)
	}
	p.emit(Event{Kind: Text, Text: p.blanks + body})
	p.blanks = s[len(strings.TrimRight(s, blankChars)):]
	p.started, p.visible = true, true
}

// --- tool calls ---

func (p *Parser) candidates() []*toolFormat {
	var out []*toolFormat
	for _, f := range p.formats {
		if f.start == p.marker {
			out = append(out, f)
		}
	}
	return out
}

func (p *Parser) stepCall(final bool) bool {
	formats := p.candidates()
	end := formats[0].end
	if end != "" {
		for {
			i := strings.Index(p.buf[p.scanned:], end)
			if i < 0 {
				p.scanned = max(p.scanned, len(p.buf)-len(end)+1)
				break
			}
			i += p.scanned
			p.scanned = i + len(end)
			body := p.buf[:i]
			calls, err := p.parse(formats, body)
			if err != nil && p.retries < maxEndRetries && inValue(formats, body) {
				if p.retries == 0 {
					p.skipped = i
				}
				p.retries++
				continue
			}
			if err != nil && p.retries > 0 {
				p.breakCall(formats, end)
				return true
			}
			p.buf = p.buf[i+len(end):]
			p.closeCall(calls, err, p.marker+body+end)
			return true
		}
	}
	if !final {
		p.progress(formats, p.buf)
		return false
	}
	body := p.buf
	calls, err := p.parse(formats, body)
	if err != nil && p.retries > 0 {
		p.breakCall(formats, end)
		return true
	}
	p.buf = ""
	if err != nil && end != "" {
		err = fmt.Errorf("the call is cut off before %s: %w", end, err)
	}
	p.closeCall(calls, err, p.marker+body)
	return true
}

// breakCall ends a block whose argument never ended at the first end marker,
// which was no part of it then. What follows is read anew.
func (p *Parser) breakCall(formats []*toolFormat, end string) {
	body := p.buf[:p.skipped]
	_, err := p.parse(formats, body)
	p.buf = p.buf[p.skipped+len(end):]
	p.closeCall(nil, err, p.marker+body+end)
}

func inValue(formats []*toolFormat, body string) bool {
	for _, f := range formats {
		if f.inValue != nil && f.inValue(body) {
			return true
		}
	}
	return false
}

// parse reads a block in the first format that understands it. The error is
// that of the format that the block resembles most: the first.
func (p *Parser) parse(formats []*toolFormat, body string) (calls []Call, err error) {
	for _, f := range formats {
		parsed, ferr := f.parse(body, p.schemas)
		if ferr == nil {
			calls, ferr = p.encode(parsed)
		}
		if ferr == nil {
			return calls, nil
		}
		if err == nil {
			err = ferr
		}
	}
	return nil, err
}

// encode turns decoded calls into Calls, all or none.
func (p *Parser) encode(parsed []parsedCall) ([]Call, error) {
	var calls []Call
	for _, c := range parsed {
		if _, known := p.schemas[c.name]; !known && p.o.Rules.KnownTools {
			return nil, fmt.Errorf("the request offers no tool '%s'", c.name)
		}
		args, err := jinja.EncodeJSON(c.args)
		if err != nil {
			return nil, err
		}
		if !json.Valid([]byte(args)) {
			return nil, fmt.Errorf("the arguments of '%s' hold a number that JSON cannot express", c.name)
		}
		calls = append(calls, Call{c.id, c.name, args})
	}
	return calls, nil
}

// closeCall reports the calls of a block, or the block itself if there is
// something wrong with it.
func (p *Parser) closeCall(calls []Call, err error, raw string) {
	p.state, p.started = inText, true
	calls = p.conclude(calls)
	if err != nil {
		p.broken(raw, err)
		return
	}
	p.skipping = false
	for _, c := range calls {
		p.called = true
		p.emit(Event{Kind: CallStart, Call: p.calls, ID: c.ID, Name: c.Name})
		p.emit(Event{Kind: CallArgs, Call: p.calls, Text: c.Arguments})
		p.emit(Event{Kind: CallEnd, Call: p.calls})
		p.calls++
	}
}

func (p *Parser) broken(raw string, err error) {
	if p.blanks != "" {
		p.emit(Event{Kind: Text, Text: p.blanks})
		p.blanks = ""
	}
	p.started, p.visible, p.skipping = true, true, false
	p.emit(Event{Kind: BrokenCall, Text: raw, Err: err})
}

// --- channels ---

// stepHeader reads up to the <|message|> that ends a header.
func (p *Parser) stepHeader(final bool) bool {
	marks := append([]string{channelStart, channelMessage}, p.tags.channels.ends...)
	i, m := first(p.buf, marks)
	if i < 0 && !final && len(p.header)+len(p.buf)-begun(p.buf, marks) <= maxHeader {
		return false
	}
	if i < 0 || len(p.header)+i > maxHeader {
		// No header at all: an answer without channels.
		p.state = inText
		p.buf = p.header + p.buf
		p.header = ""
		return p.buf != ""
	}
	p.header += p.buf[:i]
	p.buf = p.buf[i+len(m):]
	switch m {
	case channelMessage:
		r := p.tags.channels.route(p.header)
		switch {
		case r.tool != "" && p.o.Calls:
			p.state, p.tool = inText, r.tool
			p.header = p.header + channelMessage
		case r.thought:
			p.state, p.thought, p.started = inThought, true, true
			p.header = ""
		default:
			p.state, p.header = inText, ""
			p.skipping = p.skipping || p.o.Rules.Trim && p.thought && !p.visible
		}
	case channelStart:
		// The next header begins; what stood before it was none.
		p.pass(p.header)
		p.header = ""
	default:
		p.header += m
	}
	return true
}

// stepBetween expects the next header; other text belongs to the answer.
func (p *Parser) stepBetween(final bool) bool {
	lead := strings.TrimLeft(p.buf, blankChars)
	if !p.o.Rules.Trim {
		p.pass(p.buf[:len(p.buf)-len(lead)])
	}
	p.buf = lead
	if lead == "" {
		return false
	}
	for _, m := range [...]string{channelStart, channelName, channelMessage} {
		if rest, ok := strings.CutPrefix(lead, m); ok {
			p.buf = rest
			p.state, p.header = inHeader, ""
			if m == channelMessage {
				p.state = inText // a body without a header
			}
			return true
		}
		if !final && strings.HasPrefix(m, lead) {
			return false
		}
	}
	p.state = inText
	return true
}

var errNotObject = errors.New("the arguments are not a JSON object")

// closeChannel ends a body. If it was a tool call, header holds its header and
// its text.
func (p *Parser) closeChannel(marker string) {
	if p.tool == "" {
		if p.state == inThought {
			p.leaveThought()
		}
		return
	}
	head, body, _ := strings.Cut(p.header, channelMessage)
	name := p.tool
	p.tool, p.header = "", ""
	v, err := looseJSON(strings.TrimSpace(body))
	if m, ok := v.(*jinja.Map); err == nil && ok {
		var calls []Call
		if calls, err = p.encode([]parsedCall{{name: name, args: m}}); err == nil {
			p.closeCall(calls, nil, "")
			return
		}
	} else if err == nil {
		err = errNotObject
	}
	if marker == channelStart || marker == channelName {
		marker = ""
	}
	p.conclude(nil)
	p.broken(head+channelMessage+body+marker, err)
}

// --- whole messages ---
