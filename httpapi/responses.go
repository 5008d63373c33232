package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
)

// responseObject is an answer of /responses. The fields behind Stats echo the
// request.
type responseObject struct {
	ID         string             `json:"id"`
	Object     string             `json:"object"`
	CreatedAt  int64              `json:"created_at"`
	Status     string             `json:"status"`
	Model      string             `json:"model"`
	Output     []any              `json:"output"`
	Usage      *responseUsage     `json:"usage,omitempty"`
	Incomplete *incompleteDetails `json:"incomplete_details,omitempty"`
	Stats      *statsBlock        `json:"x_mlx_dspark,omitempty"`

	Error             *responseFault  `json:"error"`
	Instructions      *string         `json:"instructions"`
	MaxOutputTokens   *int            `json:"max_output_tokens"`
	Metadata          json.RawMessage `json:"metadata"`
	ParallelToolCalls bool            `json:"parallel_tool_calls"`
	Temperature       *float64        `json:"temperature"`
	ToolChoice        json.RawMessage `json:"tool_choice"`
	Tools             json.RawMessage `json:"tools"`
	TopP              *float64        `json:"top_p"`
}

type responseUsage struct {
	InputTokens  int `json:"input_tokens"`
	OutputTokens int `json:"output_tokens"`
	TotalTokens  int `json:"total_tokens"`
	InputDetails struct {
		usageDetails
		CacheWriteTokens int `json:"cache_write_tokens"` // always 0: reuse needs no request to write
	} `json:"input_tokens_details"`
	OutputDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
}

// reasoningTokens counts the tokens up to the end of the thoughts.
func reasoningTokens(res engine.Result) int {
	if res.Reasoning == "" {
		return 0
	}
	var said strings.Builder
	for _, t := range res.Tokens {
		said.Write(t.Bytes)
	}
	end := max(0, strings.Index(said.String(), res.Reasoning)) + len(res.Reasoning)
	n := 0
	for _, t := range res.Tokens {
		if end <= 0 {
			break
		}
		end -= len(t.Bytes)
		n++
	}
	return n
}

type incompleteDetails struct {
	Reason string `json:"reason"`
}

type responseFault struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// The items of an output.
type (
	messageItem struct {
		ID      string       `json:"id"`
		Type    string       `json:"type"`
		Status  string       `json:"status"`
		Role    string       `json:"role"`
		Content []outputText `json:"content"`
	}
	outputText struct {
		Type        string `json:"type"`
		Text        string `json:"text"`
		Annotations []any  `json:"annotations"`
	}
	reasoningItem struct {
		ID      string        `json:"id"`
		Type    string        `json:"type"`
		Summary []summaryText `json:"summary"`
	}
	summaryText struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	callItem struct {
		ID        string `json:"id"`
		Type      string `json:"type"`
		Status    string `json:"status"`
		CallID    string `json:"call_id"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
)

// responseRequest is a validated request of /responses. Like messageRequest it
// builds its items in one way for streams and whole answers.
type responseRequest struct {
	s      *Server
	model  asked
	object responseObject
	id     string // without prefix, for the items
	seq    int

	items []any
	open  any // *messageItem, *reasoningItem, *callItem or nil
	call  int // index of the open tool call
	text  strings.Builder
	space string // whitespace before any text: it makes no item of its own
}

func (s *Server) responses(c *gin.Context) *apiError {
	f, model, err := s.open(c)
	if err != nil {
		return err
	}
	r := &responseRequest{s: s, model: model, id: randomHex(16)}
	r.object = responseObject{ID: "resp_" + r.id, Object: "response", CreatedAt: time.Now().Unix(), Status: "in_progress",
		Output: []any{}, Instructions: f.text("instructions"), ParallelToolCalls: true,
		Metadata: json.RawMessage("{}"), ToolChoice: json.RawMessage(`"auto"`), Tools: json.RawMessage("[]")}
	req := engine.Request{Model: model.id, ID: r.object.ID, Client: clientName(c.Request), Reasoning: true, Logprobs: -1}
	req.Prompt.Messages, req.Prompt.FoldSystem = f.responsesInput(r.object.Instructions), true
	f.responsesTools(&req.Prompt)
	req.Tools, req.OneCall = req.Prompt.Tools != nil, f.oneCall()
	req.Prompt.Kwargs = f.templateKwargs()
	var effort *string
	if o := f.object("reasoning"); o != nil {
		effort = o.text("effort")
		if o.err != nil {
			f.fail(o.err)
		}
	}
	f.thinking(req.Prompt.Kwargs, effort)
	req.MaxTokens = s.maxTokens(f, "max_output_tokens", "max_tokens")
	req.Sampling = s.sampling(f)
	req.Stop = f.texts("stop")
	streaming := f.flag("stream")
	if o := f.object("text"); o != nil {
		if format := o.object("format"); format != nil {
			if kind := format.text("type"); kind == nil || *kind != "text" {
				f.fail(invalid("text.format", "'text.format' supports the type 'text' only: this server cannot constrain its output to JSON or a schema yet; ask for JSON in the prompt"))
			}
		}
		if o.err != nil {
			f.fail(o.err)
		}
	}
	f.refuse()
	r.echo(f, req)
	if f.err != nil {
		return f.err
	}
	setRequestID(c, r.object.ID)
	if streaming {
		return s.stream(c, []engine.Request{req}, r)
	}
	results, err := s.collect(c, []engine.Request{req}, func(_ int, d engine.Delta) error { return r.add(d, r.number(discard)) })
	if err != nil {
		return err
	}
	if err := r.close(discard); err != nil {
		return s.failure(err)
	}
	answer := r.finished(results[0])
	answer.Stats = s.stats(results)
	s.reply(c, http.StatusOK, answer)
	return nil
}

// echo shows what the request asked for.
func (r *responseRequest) echo(f *fields, req engine.Request) {
	o := &r.object
	if req.MaxTokens > 0 {
		o.MaxOutputTokens = &req.MaxTokens
	}
	o.Temperature, o.TopP = req.Sampling.Temperature, req.Sampling.TopP
	o.ParallelToolCalls = !req.OneCall
	if m := f.object("metadata"); m != nil {
		for key := range m.raw {
			m.text(key)
		}
		if m.err != nil {
			f.fail(m.err)
		}
	}
	for key, dst := range map[string]*json.RawMessage{"metadata": &o.Metadata, "tool_choice": &o.ToolChoice, "tools": &o.Tools} {
		if v, ok := f.get(key); ok {
			*dst = v
		}
	}
}

func (r *responseRequest) finished(res engine.Result) *responseObject {
	o := r.object
	o.Model, o.Status, o.Output = r.model.name(), "completed", r.output()
	if res.FinishReason == engine.FinishLength {
		o.Status, o.Incomplete = "incomplete", &incompleteDetails{"max_output_tokens"}
	}
	st := res.Stats
	o.Usage = &responseUsage{InputTokens: st.PromptTokens, OutputTokens: st.CompletionTokens, TotalTokens: st.PromptTokens + st.CompletionTokens}
	o.Usage.InputDetails.CachedTokens = st.CachedTokens
	o.Usage.OutputDetails.ReasoningTokens = reasoningTokens(res)
	return &o
}

func (r *responseRequest) output() []any {
	if r.items == nil {
		return []any{}
	}
	return r.items
}

// responseEvent is any event of the stream; only the fields of its type are set.
type responseEvent struct {
	Type     string          `json:"type"`
	Response *responseObject `json:"response,omitempty"`

	ItemID       string  `json:"item_id,omitempty"`
	OutputIndex  *int    `json:"output_index,omitempty"`
	ContentIndex *int    `json:"content_index,omitempty"`
	SummaryIndex *int    `json:"summary_index,omitempty"`
	Item         any     `json:"item,omitempty"`
	Part         any     `json:"part,omitempty"`
	Delta        string  `json:"delta,omitempty"`
	Text         *string `json:"text,omitempty"`
	Name         string  `json:"name,omitempty"`
	Arguments    *string `json:"arguments,omitempty"`
	Logprobs     *[]any  `json:"logprobs,omitempty"` // of text events; never asked for, so empty

	Sequence int `json:"sequence_number"`
}

// eventOut takes one event of the stream.
type eventOut func(responseEvent) error

// number gives events their sequence numbers, from 1.
func (r *responseRequest) number(sink eventSink) eventOut {
	return func(e responseEvent) error {
		r.seq++
		e.Sequence = r.seq
		return sink(e.Type, e)
	}
}

// at starts an event of the open item, which is the next one of the output.
func (r *responseRequest) at(name, itemID string) responseEvent {
	index := len(r.items)
	return responseEvent{Type: name, ItemID: itemID, OutputIndex: &index}
}

var zero = 0

func (r *responseRequest) add(d engine.Delta, send eventOut) error {
	if d.Reasoning != "" {
		if err := r.addReasoning(d.Reasoning, send); err != nil {
			return err
		}
	}
	if d.Text != "" {
		if err := r.addText(d.Text, send); err != nil {
			return err
		}
	}
	if d.ToolCall != nil {
		return r.addCall(*d.ToolCall, send)
	}
	return nil
}

// start closes the open item and announces the next.
func (r *responseRequest) start(item any, send eventOut) error {
	if err := r.closeItem(send); err != nil {
		return err
	}
	r.open = item
	e := r.at("response.output_item.added", "")
	e.Item = item
	return send(e)
}

func (r *responseRequest) addReasoning(text string, send eventOut) error {
	item, ok := r.open.(*reasoningItem)
	if !ok {
		item = &reasoningItem{ID: "rs_" + randomHex(16), Type: "reasoning", Summary: []summaryText{}}
		if err := r.start(item, send); err != nil {
			return err
		}
		e := r.at("response.reasoning_summary_part.added", item.ID)
		e.SummaryIndex, e.Part = &zero, summaryText{"summary_text", ""}
		if err := send(e); err != nil {
			return err
		}
	}
	r.text.WriteString(text)
	e := r.at("response.reasoning_summary_text.delta", item.ID)
	e.SummaryIndex, e.Delta = &zero, text
	return send(e)
}

func (r *responseRequest) addText(text string, send eventOut) error {
	item, ok := r.open.(*messageItem)
	if !ok {
		text = r.space + text
		if strings.TrimSpace(text) == "" {
			r.space = text
			return nil
		}
		r.space = ""
		item = &messageItem{ID: "msg_" + randomHex(16), Type: "message", Status: "in_progress", Role: "assistant", Content: []outputText{}}
		if err := r.start(item, send); err != nil {
			return err
		}
		e := r.at("response.content_part.added", item.ID)
		e.ContentIndex, e.Part = &zero, outputText{"output_text", "", []any{}}
		if err := send(e); err != nil {
			return err
		}
	}
	r.text.WriteString(text)
	e := r.at("response.output_text.delta", item.ID)
	e.ContentIndex, e.Delta, e.Logprobs = &zero, text, &[]any{}
	return send(e)
}

func (r *responseRequest) addCall(t engine.ToolCall, send eventOut) error {
	item, ok := r.open.(*callItem)
	if !ok || r.call != t.Index {
		item = &callItem{ID: "fc_" + randomHex(16), Type: "function_call", Status: "in_progress", CallID: t.ID, Name: t.Name}
		if err := r.start(item, send); err != nil {
			return err
		}
		r.call = t.Index
	}
	if t.Dropped {
		item.Status = "incomplete"
	}
	if t.Arguments == "" {
		return nil
	}
	r.text.WriteString(t.Arguments)
	e := r.at("response.function_call_arguments.delta", item.ID)
	e.Delta = t.Arguments
	return send(e)
}

// closeItem ends the open item with its done events.
func (r *responseRequest) closeItem(send eventOut) error {
	if r.open == nil {
		return nil
	}
	text := r.text.String()
	var events []responseEvent
	var done any // a copy: the item went out as in_progress
	switch item := r.open.(type) {
	case *messageItem:
		part := outputText{"output_text", text, []any{}}
		e := r.at("response.output_text.done", item.ID)
		e.ContentIndex, e.Text, e.Logprobs = &zero, &text, &[]any{}
		p := r.at("response.content_part.done", item.ID)
		p.ContentIndex, p.Part = &zero, part
		events = append(events, e, p)
		final := *item
		final.Status, final.Content = "completed", []outputText{part}
		done = &final
	case *reasoningItem:
		part := summaryText{"summary_text", text}
		e := r.at("response.reasoning_summary_text.done", item.ID)
		e.SummaryIndex, e.Text = &zero, &text
		p := r.at("response.reasoning_summary_part.done", item.ID)
		p.SummaryIndex, p.Part = &zero, part
		events = append(events, e, p)
		final := *item
		final.Summary = []summaryText{part}
		done = &final
	case *callItem:
		e := r.at("response.function_call_arguments.done", item.ID)
		e.Name, e.Arguments = item.Name, &text
		events = append(events, e)
		final := *item
		if final.Arguments = text; final.Status == "in_progress" {
			final.Status = "completed"
		}
		done = &final
	}
	e := r.at("response.output_item.done", "")
	e.Item = done
	for _, e := range append(events, e) {
		if err := send(e); err != nil {
			return err
		}
	}
	r.items = append(r.items, done)
	r.open, r.space = nil, ""
	r.text.Reset()
	return nil
}

func (r *responseRequest) close(sink eventSink) error { return r.closeItem(r.number(sink)) }

func (r *responseRequest) begin(out *eventStream) error {
	r.object.Model = r.model.name()
	send := r.number(out.event)
	if err := send(responseEvent{Type: "response.created", Response: &r.object}); err != nil {
		return err
	}
	return send(responseEvent{Type: "response.in_progress", Response: &r.object})
}

func (r *responseRequest) delta(out *eventStream, _ int, d engine.Delta) error {
	return r.add(d, r.number(out.event))
}

func (r *responseRequest) keepAlive(out *eventStream, p engine.Progress) error {
	return out.progress(p.Done, p.Total)
}

func (r *responseRequest) end(out *eventStream, results []engine.Result) error {
	if err := r.close(out.event); err != nil {
		return err
	}
	o := r.finished(results[0])
	o.Stats = r.s.stats(results)
	return r.number(out.event)(responseEvent{Type: "response." + o.Status, Response: o})
}

func (r *responseRequest) fail(out *eventStream, e *apiError) error {
	o := r.object
	o.Status, o.Output = "failed", r.output()
	o.Error = &responseFault{Code: e.Code, Message: e.Message}
	if e.Code == "" {
		o.Error.Code = e.Type
	}
	return r.number(out.event)(responseEvent{Type: "response.failed", Response: &o})
}

// responsesInput turns instructions and input items into messages.
func (f *fields) responsesInput(instructions *string) json.RawMessage {
	v, ok := f.get("input")
	if !ok {
		f.fail(invalid("input", "'input' is required"))
		return nil
	}
	var in inputItems
	if instructions != nil && *instructions != "" {
		in.list = append(in.list, textMessage("system", *instructions))
	}
	given := len(in.list)
	var list []json.RawMessage
	switch {
	case v[0] == '"':
		if text := unquote(v); text != "" {
			in.list = append(in.list, textMessage("user", text))
		}
	case v[0] == '[' && json.Unmarshal(v, &list) == nil:
		for i, item := range list {
			if err := in.add(item, fmt.Sprintf("input[%d]", i)); err != nil {
				f.fail(err)
				return nil
			}
		}
	}
	if len(in.list) == given {
		f.fail(invalid("input", "'input' must be a non-empty string or list"))
		return nil
	}
	return encode(in.list)
}

// inputItems collects messages from input items. Items of one assistant turn
// (reasoning, text, calls) become one message.
type inputItems struct {
	list     []orderedObject
	thoughts []string // reasoning whose message is still to come
}

// assistant returns the assistant message that further items belong to.
func (in *inputItems) assistant() *orderedObject {
	if n := len(in.list); n > 0 && role(in.list[n-1]) == "assistant" && len(in.thoughts) == 0 {
		return &in.list[n-1]
	}
	m := textMessage("assistant", "")
	if len(in.thoughts) > 0 {
		m.set("reasoning_content", encode(strings.Join(in.thoughts, "\n")))
		in.thoughts = nil
	}
	in.list = append(in.list, m)
	return &in.list[len(in.list)-1]
}

func (in *inputItems) add(v json.RawMessage, path string) *apiError {
	if v[0] == '"' {
		in.list = append(in.list, textMessage("user", unquote(v)))
		return nil
	}
	var item struct {
		Type      string          `json:"type"`
		Role      string          `json:"role"`
		Content   json.RawMessage `json:"content"`
		ID        string          `json:"id"`
		CallID    string          `json:"call_id"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Output    json.RawMessage `json:"output"`
		Summary   []struct {
			Text string `json:"text"`
		} `json:"summary"`
	}
	if v[0] != '{' || json.Unmarshal(v, &item) != nil {
		return invalid(path, "'%s' is not an input item", path)
	}
	switch item.Type {
	case "", "message":
		return in.addMessage(item.Role, item.Content, path)
	case "function_call":
		if item.Name == "" {
			return invalid(path+".name", "'%s.name' must be a non-empty string", path)
		}
		id := item.CallID
		if id == "" {
			id = item.ID
		}
		arguments := string(item.Arguments)
		if len(item.Arguments) == 0 {
			arguments = "{}"
		} else if item.Arguments[0] == '"' {
			arguments = unquote(item.Arguments)
		}
		m := in.assistant()
		var calls []chatToolCall
		if old, ok := m.get("tool_calls"); ok {
			_ = json.Unmarshal(old, &calls) // written below
		}
		calls = append(calls, chatToolCall{ID: id, Type: "function", Function: chatFunction{item.Name, arguments}})
		m.set("tool_calls", encode(calls))
	case "function_call_output":
		text, err := outputOf(item.Output, path+".output")
		if err != nil {
			return err
		}
		in.list = append(in.list, orderedObject{{"role", encode("tool")}, {"tool_call_id", encode(item.CallID)}, {"content", encode(text)}})
	case "reasoning":
		for _, s := range item.Summary {
			if s.Text != "" {
				in.thoughts = append(in.thoughts, s.Text)
			}
		}
	}
	return nil // items of other kinds belong to tools that this server does not have
}

func (in *inputItems) addMessage(who string, content json.RawMessage, path string) *apiError {
	text := ""
	switch {
	case len(content) == 0 || string(content) == "null":
	case content[0] == '"':
		text = unquote(content)
	case content[0] == '[':
		parts, err := textParts(content, path+".content")
		if err != nil {
			return err
		}
		text = joinParts(parts)
	default:
		return invalid(path+".content", "'%s.content' must be a string or a list of text parts", path)
	}
	switch who {
	case "":
		who = "user"
	case "developer":
		who = "system"
	case "assistant":
		m := in.assistant()
		if old, _ := m.get("content"); unquote(old) != "" {
			text = unquote(old) + "\n" + text
		}
		m.set("content", encode(text))
		return nil
	}
	in.list = append(in.list, textMessage(who, text))
	return nil
}

// outputOf is the text of a tool's output: a string, a list of text parts, or
// any other JSON as it is.
func outputOf(v json.RawMessage, path string) (string, *apiError) {
	switch {
	case len(v) == 0 || string(v) == "null":
		return "", nil
	case v[0] == '"':
		return unquote(v), nil
	case v[0] == '[':
		var kinds []struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(v, &kinds) == nil && len(kinds) > 0 && strings.HasPrefix(kinds[0].Type, "input_") {
			parts, err := textParts(v, path)
			return joinParts(parts), err
		}
	}
	return string(v), nil
}

// responsesTools reads tools, flat or nested as in chat requests, and tool_choice
// into a prompt. Kinds other than functions have no form in a chat template and are
// left out.
func (f *fields) responsesTools(p *engine.Prompt) {
	var tools []json.RawMessage
	var names []string
	for i, v := range f.list("tools") {
		var t struct {
			Type     string   `json:"type"`
			function          // flat
			Nested   function `json:"function"`
		}
		if v[0] != '{' || json.Unmarshal(v, &t) != nil || t.Type == "" {
			f.fail(invalid("tools", "'tools[%d]' must be an object with type and name", i))
			return
		}
		fn := t.function
		if fn.Name == "" {
			fn = t.Nested
		}
		if t.Type != "function" || fn.Name == "" {
			continue
		}
		tools = append(tools, encode(tool{"function", fn}))
		names = append(names, fn.Name)
	}
	f.offer(p, tools, names)
}
