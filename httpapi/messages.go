package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
)

// signature stands where Anthropic signs thinking. Clients send it back and
// need it not to be empty.
const signature = "sparkbar"

// billingHeader starts a system block that changes with every conversation and
// says nothing to a model; rendering it would defeat the prefix cache.
const billingHeader = "x-anthropic-billing-header:"

// anthropicMessage is an answer of /messages.
type anthropicMessage struct {
	ID           string         `json:"id"`
	Type         string         `json:"type"`
	Role         string         `json:"role"`
	Model        string         `json:"model"`
	Content      []any          `json:"content"`
	StopReason   *string        `json:"stop_reason"`
	StopSequence *string        `json:"stop_sequence"`
	Usage        anthropicUsage `json:"usage"`
	Stats        *statsBlock    `json:"x_mlx_dspark,omitempty"`
}

// anthropicUsage counts as Anthropic does: input and cache reads are disjoint,
// their sum is the prompt.
type anthropicUsage struct {
	InputTokens     int `json:"input_tokens"`
	OutputTokens    int `json:"output_tokens"`
	CacheReadTokens int `json:"cache_read_input_tokens,omitempty"`
}

func anthropicUsageOf(res engine.Result) anthropicUsage {
	st := res.Stats
	return anthropicUsage{st.PromptTokens - st.CachedTokens, st.CompletionTokens, st.CachedTokens}
}

type textBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type thinkingBlock struct {
	Type      string `json:"type"`
	Thinking  string `json:"thinking"`
	Signature string `json:"signature"`
}

type toolUseBlock struct {
	Type  string          `json:"type"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}

// messageRequest is a validated request of /messages. It builds the content
// blocks from the deltas in one way for both kinds of answer: a stream shows
// each step as an event, a whole answer only the blocks.
type messageRequest struct {
	s            *Server
	id           string
	model        asked
	hideThinking bool
	inputTokens  int // of the prompt, for message_start

	blocks []any           // closed ones
	open   any             // *textBlock, *thinkingBlock, *toolUseBlock or nil
	call   int             // index of the open tool call
	text   strings.Builder // of the open block: text, thinking or tool input
	space  string          // whitespace that may turn out to be trailing
}

func (s *Server) messages(c *gin.Context) *apiError {
	f, model, err := s.open(c)
	if err != nil {
		return err
	}
	r := &messageRequest{s: s, id: "msg_" + randomHex(12), model: model}
	req := engine.Request{Model: model.id, ID: r.id, Client: clientName(c.Request), Reasoning: true, Tools: true, Logprobs: -1}
	req.Prompt, r.hideThinking = f.anthropicPrompt()
	req.MaxTokens = s.maxTokens(f, "max_tokens")
	req.Sampling = s.sampling(f)
	req.Stop = f.texts("stop_sequences")
	if v, ok := f.get("tool_choice"); ok && v[0] == '{' {
		choice := f.object("tool_choice")
		if req.OneCall = choice.flag("disable_parallel_tool_use"); choice.err != nil {
			f.fail(choice.err)
		}
	}
	streaming := f.flag("stream")
	if f.err != nil {
		return f.err
	}
	setRequestID(c, r.id)
	c.Header("Request-Id", r.id)
	if streaming {
		n, err := s.engine.CountTokens(c.Request.Context(), model.id, req.Prompt)
		if err != nil {
			return s.failure(err)
		}
		r.inputTokens = n
		return s.stream(c, []engine.Request{req}, r)
	}
	results, err := s.collect(c, []engine.Request{req}, func(_ int, d engine.Delta) error { return r.add(d, discard) })
	if err != nil {
		return err
	}
	if err := r.finish(discard); err != nil {
		return s.failure(err)
	}
	res := results[0]
	answer := r.message()
	answer.Content = r.blocks
	answer.StopReason, answer.StopSequence = stopReason(res)
	answer.Usage = anthropicUsageOf(res)
	answer.Stats = s.stats(results)
	s.reply(c, http.StatusOK, answer)
	return nil
}

// tokenCount is an answer of /messages/count_tokens.
type tokenCount struct {
	InputTokens int `json:"input_tokens"`
}

func (s *Server) countTokens(c *gin.Context) *apiError {
	f, model, err := s.open(c)
	if err != nil {
		return err
	}
	prompt, _ := f.anthropicPrompt()
	if f.err != nil {
		return f.err
	}
	n, cerr := s.engine.CountTokens(c.Request.Context(), model.id, prompt)
	if cerr != nil {
		return s.failure(cerr)
	}
	s.reply(c, http.StatusOK, tokenCount{n})
	return nil
}

func (r *messageRequest) message() *anthropicMessage {
	return &anthropicMessage{ID: r.id, Type: "message", Role: "assistant", Model: r.model.name(), Content: []any{}}
}

func stopReason(res engine.Result) (reason, sequence *string) {
	switch {
	case res.FinishReason == engine.FinishToolCalls:
		return optional("tool_use"), nil
	case res.FinishReason == engine.FinishLength:
		return optional("max_tokens"), nil
	case res.StopString != "":
		return optional("stop_sequence"), &res.StopString
	}
	return optional("end_turn"), nil
}

// eventSink takes the named events of a stream.
type eventSink func(name string, v any) error

func discard(string, any) error { return nil }

// The payloads of the stream; their type is also the event's name.
type (
	messageStart struct {
		Type    string            `json:"type"`
		Message *anthropicMessage `json:"message"`
	}
	blockStart struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
		Block any    `json:"content_block"`
	}
	blockDelta struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
		Delta any    `json:"delta"`
	}
	blockStop struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
	}
	textDelta struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	thinkingDelta struct {
		Type     string `json:"type"`
		Thinking string `json:"thinking"`
	}
	signatureDelta struct {
		Type      string `json:"type"`
		Signature string `json:"signature"`
	}
	inputDelta struct {
		Type        string `json:"type"`
		PartialJSON string `json:"partial_json"`
	}
	messageDelta struct {
		Type  string `json:"type"`
		Delta struct {
			StopReason   *string `json:"stop_reason"`
			StopSequence *string `json:"stop_sequence"`
		} `json:"delta"`
		Usage anthropicUsage `json:"usage"`
	}
	messageStop struct {
		Type  string      `json:"type"`
		Stats *statsBlock `json:"x_mlx_dspark,omitempty"`
	}
	ping struct {
		Type string `json:"type"`
	}
)

// add takes one delta into the blocks. Outer whitespace of a text block is
// dropped, so a block exists only when there is text for it.
func (r *messageRequest) add(d engine.Delta, sink eventSink) error {
	if d.Reasoning != "" && !r.hideThinking {
		if _, ok := r.open.(*thinkingBlock); !ok {
			if err := r.start(&thinkingBlock{Type: "thinking"}, sink); err != nil {
				return err
			}
		}
		if err := r.grow(d.Reasoning, thinkingDelta{"thinking_delta", d.Reasoning}, sink); err != nil {
			return err
		}
	}
	if err := r.addText(d.Text, sink); err != nil {
		return err
	}
	t := d.ToolCall
	if t == nil || t.Dropped { // such a block ends in the middle, as one that was cut off does
		return nil
	}
	if _, ok := r.open.(*toolUseBlock); !ok || r.call != t.Index {
		b := &toolUseBlock{Type: "tool_use", ID: toolUseID(t.ID), Name: t.Name, Input: json.RawMessage("{}")}
		if err := r.start(b, sink); err != nil {
			return err
		}
		r.call = t.Index
	}
	if t.Arguments == "" {
		return nil
	}
	return r.grow(t.Arguments, inputDelta{"input_json_delta", t.Arguments}, sink)
}

func (r *messageRequest) addText(text string, sink eventSink) error {
	if text == "" {
		return nil
	}
	_, inText := r.open.(*textBlock)
	if inText {
		text = r.space + text
	}
	const blank = " \t\r\n"
	body := strings.TrimRight(text, blank)
	r.space = text[len(body):]
	if !inText {
		if body = strings.TrimLeft(body, blank); body == "" {
			r.space = ""
			return nil
		}
		space := r.space
		if err := r.start(&textBlock{Type: "text"}, sink); err != nil {
			return err
		}
		r.space = space
	}
	if body == "" {
		return nil
	}
	return r.grow(body, textDelta{"text_delta", body}, sink)
}

// toolUseID gives a call the prefix that Anthropic's clients expect.
func toolUseID(id string) string {
	if id == "" {
		return "toolu_" + randomHex(12)
	}
	return "toolu_" + strings.TrimPrefix(strings.TrimPrefix(id, "call_"), "toolu_")
}

func (r *messageRequest) start(block any, sink eventSink) error {
	if err := r.close(sink); err != nil {
		return err
	}
	r.open = block
	return sink("content_block_start", blockStart{"content_block_start", len(r.blocks), block})
}

func (r *messageRequest) grow(text string, delta any, sink eventSink) error {
	r.text.WriteString(text)
	return sink("content_block_delta", blockDelta{"content_block_delta", len(r.blocks), delta})
}

// close ends the open block, if there is one.
func (r *messageRequest) close(sink eventSink) error {
	if r.open == nil {
		return nil
	}
	index := len(r.blocks)
	switch b := r.open.(type) {
	case *textBlock:
		b.Text = r.text.String()
	case *thinkingBlock:
		b.Thinking, b.Signature = r.text.String(), signature
		if err := sink("content_block_delta", blockDelta{"content_block_delta", index, signatureDelta{"signature_delta", signature}}); err != nil {
			return err
		}
	case *toolUseBlock:
		b.Input = objectOrEmpty(r.text.String())
	}
	r.blocks = append(r.blocks, r.open)
	r.open, r.space = nil, ""
	r.text.Reset()
	return sink("content_block_stop", blockStop{"content_block_stop", index})
}

// objectOrEmpty keeps JSON objects; anything else becomes {}.
func objectOrEmpty(s string) json.RawMessage {
	var o map[string]json.RawMessage
	if json.Unmarshal([]byte(s), &o) != nil || o == nil {
		return json.RawMessage("{}")
	}
	return json.RawMessage(s)
}

// finish closes the last block. An answer has at least one.
func (r *messageRequest) finish(sink eventSink) error {
	if len(r.blocks) == 0 && r.open == nil {
		if err := r.start(&textBlock{Type: "text"}, sink); err != nil {
			return err
		}
	}
	return r.close(sink)
}

func (r *messageRequest) begin(out *eventStream) error {
	m := r.message()
	m.Usage.InputTokens = r.inputTokens
	if err := out.event("message_start", messageStart{"message_start", m}); err != nil {
		return err
	}
	return out.event("ping", ping{"ping"})
}

func (r *messageRequest) delta(out *eventStream, _ int, d engine.Delta) error {
	return r.add(d, out.event)
}

func (r *messageRequest) keepAlive(out *eventStream, _ engine.Progress) error {
	return out.event("ping", ping{"ping"})
}

func (r *messageRequest) end(out *eventStream, results []engine.Result) error {
	if err := r.finish(out.event); err != nil {
		return err
	}
	d := messageDelta{Type: "message_delta", Usage: anthropicUsageOf(results[0])}
	d.Delta.StopReason, d.Delta.StopSequence = stopReason(results[0])
	if err := out.event("message_delta", d); err != nil {
		return err
	}
	return out.event("message_stop", messageStop{"message_stop", r.s.stats(results)})
}

func (r *messageRequest) fail(out *eventStream, e *apiError) error {
	return out.event("error", r.s.profile.ErrorBody(dialectAnthropic, e))
}

// anthropicPrompt turns the body into OpenAI-shaped messages and tools.
// hideThinking is true if the client switched thinking off.
func (f *fields) anthropicPrompt() (p engine.Prompt, hideThinking bool) {
	raw, ok := f.get("messages")
	var list []json.RawMessage
	if !ok || raw[0] != '[' || json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		f.fail(invalid("messages", "'messages': must be a non-empty array"))
		return p, false
	}
	var turns anthropicTurns
	if v, ok := f.get("system"); ok {
		text, err := systemText(v)
		if err != nil {
			f.fail(err)
			return p, false
		}
		turns.addSystem(text)
	}
	for i, v := range list {
		if err := turns.add(f.nested("", v), v, fmt.Sprintf("messages[%d]", i)); err != nil {
			f.fail(err)
			return p, false
		}
	}
	p.Messages, p.FoldSystem = encode(turns.messages()), true
	f.anthropicTools(&p)
	p.Kwargs = map[string]any{}
	hideThinking = f.thinking(p.Kwargs, nil)
	if o := f.object("output_config"); o != nil && !hideThinking {
		level := o.text("effort")
		if o.err != nil {
			f.fail(o.err)
		}
		if _, given := f.get("reasoning_effort"); level != nil && !given {
			if strings.EqualFold(*level, "max") {
				*level = "xhigh"
			}
			setEffort(p.Kwargs, *level) // one that nobody knows is left out
		}
	}
	return p, hideThinking
}

// systemText reads the system field and drops billing headers from it.
func systemText(v json.RawMessage) (string, *apiError) {
	var texts []string
	switch v[0] {
	case '"':
		texts = []string{unquote(v)}
	case '[':
		parts, err := textParts(v, "system")
		if err != nil {
			return "", err
		}
		for _, p := range parts {
			texts = append(texts, p.Text)
		}
	default:
		return "", invalid("system", "'system' must be a string or a list of text blocks")
	}
	kept := texts[:0]
	for _, t := range texts {
		if strings.HasPrefix(t, billingHeader) {
			if v[0] == '[' || !strings.Contains(t, "\n") {
				continue
			}
			_, t, _ = strings.Cut(t, "\n") // in a plain string only its line
		}
		kept = append(kept, t)
	}
	return strings.Join(kept, "\n"), nil
}

// anthropicTurns collects the messages of a conversation.
type anthropicTurns struct {
	system  []string
	list    []orderedObject
	pending []string // reminders for the next user turn
}

func (t *anthropicTurns) addSystem(text string) {
	if text != "" {
		t.system = append(t.system, text)
	}
}

func (t *anthropicTurns) messages() []orderedObject {
	if len(t.pending) > 0 {
		t.list = append(t.list, textMessage("user", strings.Join(t.pending, "\n\n")))
		t.pending = nil
	}
	if len(t.system) == 0 {
		return t.list
	}
	return append([]orderedObject{textMessage("system", strings.Join(t.system, "\n\n"))}, t.list...)
}

// anthropicBlock is any content block of a request.
type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`
}

// anthropicBlocks reads a content value; a string is one text block.
func anthropicBlocks(v json.RawMessage, path string) ([]anthropicBlock, *apiError) {
	if len(v) == 0 || string(v) == "null" {
		return nil, nil
	}
	if v[0] == '"' {
		return []anthropicBlock{{Type: "text", Text: unquote(v)}}, nil
	}
	var list []json.RawMessage
	if v[0] != '[' || json.Unmarshal(v, &list) != nil {
		return nil, invalid(path, "'%s' must be a string or a list of content blocks", path)
	}
	blocks := make([]anthropicBlock, len(list))
	for i, b := range list {
		if b[0] == '"' {
			blocks[i] = anthropicBlock{Type: "text", Text: unquote(b)}
		} else if b[0] != '{' || json.Unmarshal(b, &blocks[i]) != nil {
			return nil, invalid(path, "'%s[%d]' is not a content block", path, i)
		}
	}
	return blocks, nil
}

func (t *anthropicTurns) add(o *fields, raw json.RawMessage, path string) *apiError {
	if o == nil {
		return invalid(path, "'%s' must be an object with role and content", path)
	}
	role := o.text("role")
	blocks, err := anthropicBlocks(o.raw["content"], path+".content")
	switch {
	case role == nil:
		return invalid(path+".role", "'%s.role' must be a string", path)
	case err != nil:
		return err
	case *role == "user":
		return t.addUser(blocks, path)
	case *role == "assistant":
		return t.addAssistant(blocks, path)
	case *role == "system", *role == "developer":
		return t.addReminder(blocks, path)
	}
	return invalid(path+".role", "'%s.role' must be user, assistant or system, got '%s'", path, shorten(*role))
}

// foreign refuses a block that the prompt cannot carry.
func foreign(b anthropicBlock, path string, i int) *apiError {
	at := fmt.Sprintf("%s.content[%d]", path, i)
	return invalid(at, "'%s' has the type '%s', but this server reads text only", at, shorten(b.Type))
}

func (t *anthropicTurns) addUser(blocks []anthropicBlock, path string) *apiError {
	texts := t.pending
	t.pending = nil
	results := 0
	for i, b := range blocks {
		switch b.Type {
		case "text":
			texts = append(texts, b.Text)
		case "tool_result":
			text, err := resultText(b, fmt.Sprintf("%s.content[%d].content", path, i))
			if err != nil {
				return err
			}
			results++
			t.list = append(t.list, orderedObject{{"role", encode("tool")}, {"tool_call_id", encode(b.ToolUseID)}, {"content", encode(text)}})
		default:
			return foreign(b, path, i)
		}
	}
	if len(texts) > 0 || results == 0 {
		t.list = append(t.list, textMessage("user", strings.Join(texts, "\n")))
	}
	return nil
}

// resultText is what a tool returned. A client cannot take back a result, so
// parts that are not text leave a note instead of failing the conversation.
func resultText(b anthropicBlock, path string) (string, *apiError) {
	blocks, err := anthropicBlocks(b.Content, path)
	if err != nil {
		return "", err
	}
	var texts []string
	for _, p := range blocks {
		switch p.Type {
		case "text":
			texts = append(texts, p.Text)
		case "image", "document":
			texts = append(texts, "["+p.Type+" left out: this model reads text only]")
		}
	}
	text := strings.Join(texts, "\n")
	if b.IsError {
		text = "Error: " + text
	}
	return text, nil
}

func (t *anthropicTurns) addAssistant(blocks []anthropicBlock, path string) *apiError {
	var texts, thoughts []string
	var calls []chatToolCall
	for i, b := range blocks {
		switch b.Type {
		case "text":
			texts = append(texts, b.Text)
		case "thinking":
			thoughts = append(thoughts, b.Thinking)
		case "redacted_thinking":
		case "tool_use":
			if b.Name == "" {
				at := fmt.Sprintf("%s.content[%d].name", path, i)
				return invalid(at, "'%s' must be a non-empty string", at)
			}
			calls = append(calls, chatToolCall{ID: b.ID, Type: "function", Function: chatFunction{b.Name, string(objectOrEmpty(string(b.Input)))}})
		default:
			return foreign(b, path, i)
		}
	}
	m := textMessage("assistant", strings.Join(texts, "\n"))
	if len(thoughts) > 0 {
		m.set("reasoning_content", encode(strings.Join(thoughts, "\n")))
	}
	if len(calls) > 0 {
		m.set("tool_calls", encode(calls))
	}
	t.list = append(t.list, m)
	return nil
}

// addReminder places a system message. Templates allow one at the start only,
// so a later one travels inside a user turn.
func (t *anthropicTurns) addReminder(blocks []anthropicBlock, path string) *apiError {
	var texts []string
	for i, b := range blocks {
		if b.Type != "text" {
			return foreign(b, path, i)
		}
		texts = append(texts, b.Text)
	}
	text := strings.Join(texts, "\n")
	if text == "" {
		return nil
	}
	if len(t.list) == 0 {
		t.addSystem(text)
		return nil
	}
	text = "<system-reminder>\n" + text + "\n</system-reminder>"
	last := t.list[len(t.list)-1]
	switch role(last) {
	case "user":
		v, _ := last.get("content")
		last.set("content", encode(unquote(v)+"\n\n"+text))
	case "tool": // a user turn of results only
		t.list = append(t.list, textMessage("user", text))
	default:
		t.pending = append(t.pending, text)
	}
	return nil
}

// anthropicTools reads tools and tool_choice into a prompt, in OpenAI's shape.
func (f *fields) anthropicTools(p *engine.Prompt) {
	var tools []json.RawMessage
	var names []string
	for i, v := range f.list("tools") {
		var t struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"input_schema"`
			Deferred    bool            `json:"defer_loading"`
		}
		if v[0] != '{' || json.Unmarshal(v, &t) != nil {
			f.fail(invalid("tools", "'tools[%d]' must be an object with name and input_schema", i))
			return
		}
		if t.Name == "" || t.Deferred { // a deferred tool is not for the prompt yet
			continue
		}
		if len(t.Schema) == 0 || t.Schema[0] != '{' {
			t.Schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		tools = append(tools, encode(tool{"function", function{t.Name, t.Description, t.Schema}}))
		names = append(names, t.Name)
	}
	f.offer(p, tools, names)
}
