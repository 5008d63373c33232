package chat

import "strings"

// thoughtTags is how a family marks reasoning in its text.
type thoughtTags struct {
	open, close string

	// after is dropped behind open when white space around thoughts is
	// trimmed: it belongs to the marker.
	after string

	// tokens must all be in the vocabulary for the family to be recognised
	// by it; a template is recognised by containing all of them.
	tokens []string

	// drop are markers without meaning for the text.
	drop []string

	// channels is set for families whose messages name a channel: see
	// channelFormat.
	channels *channelFormat
}

// channelFormat describes messages made of parts, each HEADER<|message|>BODY
// and an end marker. The header says what the body is.
type channelFormat struct {
	ends  []string // markers that end a body
	route func(header string) route

	// call is the beginning of a call, see Format.BeginCall; nil: calls stand in
	// the body of an answer, whose header is answer.
	call   func(name string) string
	answer string
}

// route is where the body of a channel goes.
type route struct {
	thought bool
	tool    string // name of the function whose arguments the body is, or ""
}

const (
	channelStart   = "<|start|>"
	channelMessage = "<|message|>"
	channelName    = "<|channel|>" // gpt-oss only, inside headers
)

// thoughtTable lists the families by how they mark reasoning. The first one
// that fits is taken.
var thoughtTable = []*thoughtTags{
	{open: "<think>", close: "</think>", tokens: []string{"<think>", "</think>"}},
	{open: "<longcat_think>", close: "</longcat_think>", tokens: []string{"<longcat_think>", "</longcat_think>"}},
	{open: "<|think:start|>", close: "<|think:end|>", tokens: []string{"<|think:start|>", "<|think:end|>"}},
	{open: "[THINK]", close: "[/THINK]", tokens: []string{"[THINK]", "[/THINK]"}},
	// Gemma 4
	{open: "<|channel>thought", close: "<channel|>", after: "\n", tokens: []string{"<|channel>", "<channel|>"}},
	// Kimi K3
	{open: "<|open|>think<|sep|>", close: "<|close|>think<|sep|>",
		tokens: []string{"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"},
		drop:   []string{"<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"}},
	// gpt-oss (harmony)
	{tokens: []string{channelStart, channelMessage, channelName},
		channels: &channelFormat{ends: []string{"<|end|>", "<|return|>", "<|call|>"}, route: harmonyRoute, call: beginHarmony}},
	// Muse
	{tokens: []string{channelStart, channelMessage, "<|eom|>"},
		channels: &channelFormat{ends: []string{"<|eom|>"}, route: museRoute, answer: " to=user" + channelMessage}},
}

// harmonyRoute reads headers such as "assistant<|channel|>analysis" and
// "assistant<|channel|>commentary to=functions.f <|constrain|>json".
func harmonyRoute(header string) route {
	channel := header
	if i := strings.LastIndex(header, channelName); i >= 0 {
		channel = header[i+len(channelName):]
	}
	if i := strings.Index(header, "to=functions."); i >= 0 {
		name := header[i+len("to=functions."):]
		if j := strings.IndexAny(name, " \t\n<"); j >= 0 {
			name = name[:j]
		}
		return route{tool: name}
	}
	return route{thought: strings.HasPrefix(strings.TrimSpace(channel), "analysis")}
}

// museRoute reads headers that end in a recipient, such as "to=self".
func museRoute(header string) route {
	return route{thought: strings.HasSuffix(strings.TrimSpace(header), "to=self")}
}

// findThought chooses the tags by vocabulary, then by template. A model that
// shows none is read with the most common ones, undeclared.
func findThought(template string, has func(string) bool) (tags *thoughtTags, declared bool) {
	inTemplate := func(token string) bool { return strings.Contains(template, token) }
	for _, found := range []func(string) bool{has, inTemplate} {
	next:
		for _, t := range thoughtTable {
			for _, token := range t.tokens {
				if !found(token) {
					continue next
				}
			}
			return t, true
		}
	}
	return thoughtTable[0], false
}

// opens reports whether the prompt ends inside a thought that it has just
// opened.
func (t *thoughtTags) opens(prompt string) bool {
	return t.open != "" && strings.HasSuffix(strings.TrimRight(prompt, " \t\r\n"), t.open)
}

// inside reports whether the last thought in text is still open.
func (t *thoughtTags) inside(text string) bool {
	return t.open != "" && strings.LastIndex(text, t.open) > strings.LastIndex(text, t.close)
}
