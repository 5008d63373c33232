package httpapi

import (
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
	"sparkbar/engine/telemetry"
)

// chatCompletion is the answer of /chat/completions, whole or one chunk of it.
type chatCompletion struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	Model       string       `json:"model"`
	Fingerprint string       `json:"system_fingerprint"`
	Choices     []chatChoice `json:"choices"`
	Usage       *usage       `json:"usage,omitempty"`
	Stats       *statsBlock  `json:"x_mlx_dspark,omitempty"`
}

type chatChoice struct {
	Index        int            `json:"index"`
	Message      orderedObject  `json:"message,omitempty"`
	Delta        *orderedObject `json:"delta,omitempty"`
	FinishReason *string        `json:"finish_reason"`
	Logprobs     *chatLogprobs  `json:"logprobs,omitempty"`
}

type usage struct {
	PromptTokens     int          `json:"prompt_tokens"`
	CompletionTokens int          `json:"completion_tokens"`
	TotalTokens      int          `json:"total_tokens"`
	PromptDetails    usageDetails `json:"prompt_tokens_details"`
}

type usageDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// usageOf counts the prompt once and every token that was generated.
func usageOf(results []engine.Result) *usage {
	first := results[0].Stats
	u := usage{PromptTokens: first.PromptTokens, PromptDetails: usageDetails{first.CachedTokens}}
	for _, r := range results {
		u.CompletionTokens += r.Stats.CompletionTokens
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return &u
}

// chatLogprobs has one entry per token. The arrays are there for requests
// that ask with an integer, as mlx_lm.server documents it.
type chatLogprobs struct {
	Content       []chatLogprob  `json:"content"`
	TokenLogprobs []float64      `json:"token_logprobs,omitempty"`
	Tokens        []int32        `json:"tokens,omitempty"`
	TopLogprobs   [][][2]float64 `json:"top_logprobs,omitempty"` // per token: [id, logprob], best first
}

type chatLogprob struct {
	logprob
	Top []logprob `json:"top_logprobs"`
}

type logprob struct {
	ID      *int32  `json:"id,omitempty"` // see Profile.TokenIDs
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

func newLogprob(text string, raw []byte, p float64) logprob {
	l := logprob{Token: tokenText(text, raw), Logprob: finite(p), Bytes: make([]int, len(raw))}
	for i, b := range raw {
		l.Bytes[i] = int(b)
	}
	return l
}

// tokenText is a token as text; a part of a code point shows as U+FFFD.
func tokenText(text string, raw []byte) string {
	if len(raw) == 0 {
		return text // a control token
	}
	if utf8.Valid(raw) {
		return string(raw)
	}
	return strings.ToValidUTF8(string(raw), "\ufffd")
}

// finite keeps a log-probability of zero within what JSON can write.
func finite(p float64) float64 {
	if math.IsNaN(p) || p < -9999 {
		return -9999 // OpenAI's value for "very unlikely"
	}
	return p
}

// chatRequest is a validated request of /chat/completions.
type chatRequest struct {
	s        *Server
	id       string
	created  int64
	model    asked
	usage    bool // stream_options.include_usage
	logprobs bool
	arrays   bool // logprobs was an integer
}

func (s *Server) chat(c *gin.Context) *apiError {
	f, model, err := s.open(c)
	if err != nil {
		return err
	}
	r := &chatRequest{s: s, id: "chatcmpl-" + randomHex(16), created: time.Now().Unix(), model: model}
	req := engine.Request{Model: model.id, ID: r.id, Client: clientName(c.Request), Reasoning: true}
	f.chatTools(&req.Prompt)
	req.Tools, req.OneCall = req.Prompt.Tools != nil, f.oneCall()
	req.Prompt.Kwargs = f.templateKwargs()
	req.Prompt.MLXRules = s.profile.MLXRules
	req.Prompt.RoleMapping = f.roleMapping()
	f.thinking(req.Prompt.Kwargs, nil)
	req.MaxTokens = s.maxTokens(f, "max_completion_tokens", "max_tokens")
	req.Sampling = s.sampling(f)
	f.beside(&req)
	req.Stop = f.texts("stop")
	req.Logprobs, r.arrays = f.chatLogprobs()
	r.logprobs = req.Logprobs >= 0
	n := 1
	if v := f.integer("n", 1, 8); v != nil {
		n = *v
	}
	streaming := f.flag("stream")
	r.usage = f.streamUsage()
	f.refuse()
	req.Prompt.Messages = f.chatMessages()
	if streaming && n > 1 {
		f.fail(invalid("n", "'n' > 1 is not supported with stream=true"))
	}
	if f.err != nil {
		return f.err
	}
	setRequestID(c, r.id)
	reqs := choices(req, n)
	if streaming {
		return s.stream(c, reqs, r)
	}
	results, err := s.collect(c, reqs, nil)
	if err != nil {
		return err
	}
	answer := r.object("chat.completion")
	for i, res := range results {
		choice := chatChoice{Index: i, Message: r.message(res), FinishReason: reason(res)}
		if r.logprobs {
			choice.Logprobs = r.tokens(res.Tokens)
		}
		answer.Choices = append(answer.Choices, choice)
	}
	answer.Usage = usageOf(results)
	answer.Stats = s.stats(results)
	s.reply(c, http.StatusOK, answer)
	return nil
}

// refuse names fields that would change the answer but that this server cannot
// honour; to ignore them would be to answer another question.
func (f *fields) refuse() {
	if o := f.object("response_format"); o != nil {
		if kind := o.text("type"); kind == nil || *kind != "text" {
			f.fail(invalid("response_format", "'response_format' supports the type 'text' only: this server cannot constrain its output to JSON or a schema yet; ask for JSON in the prompt"))
		}
	}
}

// beside reads what a request wants to run beside the model, in the words of
// mlx_lm.server: an adapter, a draft model (null = none), the number of drafts.
func (f *fields) beside(req *engine.Request) {
	req.MaxDraft = f.integer("num_draft_tokens", 0, math.MaxInt32)
	if v := f.text("adapters"); v != nil {
		req.Adapter = *v
	}
	if v, there := f.raw["draft_model"]; there && string(v) == "null" {
		req.MaxDraft = new(int)
	}
	if v := f.text("draft_model"); v != nil && *v != "default_model" {
		req.Drafter = *v
	}
}

// chatLogprobs reads logprobs and top_logprobs: how many alternatives to
// report, -1 for none at all, and whether the integer form was used.
func (f *fields) chatLogprobs() (n int, arrays bool) {
	top := f.integer("top_logprobs", 0, f.profile.MaxTopLogprobs)
	v, ok := f.typed("logprobs", "boolean")
	if !ok {
		return -1, false
	}
	if _, isNumber := parseNumber(v); isNumber && f.profile.MaxLogprobs > 0 {
		if k := f.integer("logprobs", 1, f.profile.MaxLogprobs); k != nil {
			return *k, true
		}
		return -1, false
	}
	if on := f.boolean("logprobs"); on == nil || !*on {
		return -1, false
	}
	if top != nil {
		return *top, false
	}
	return 0, false
}

// streamUsage reads stream_options.include_usage.
func (f *fields) streamUsage() bool {
	o := f.object("stream_options")
	if o == nil {
		return false
	}
	on := o.flag("include_usage")
	if o.err != nil {
		f.fail(o.err)
	}
	return on
}

func (r *chatRequest) object(name string) *chatCompletion {
	return &chatCompletion{ID: r.id, Object: name, Created: r.created, Model: r.model.name(),
		Fingerprint: r.model.fingerprint(), Choices: []chatChoice{}}
}

// message is the assistant's message of a finished generation.
func (r *chatRequest) message(res engine.Result) orderedObject {
	empty := strings.TrimSpace(res.Text) == ""
	content := encode(res.Text)
	if r.s.profile.NullContent {
		empty = res.Text == ""
	}
	if empty && (len(res.ToolCalls) > 0 || r.s.profile.NullContent) {
		content = json.RawMessage("null")
	}
	m := orderedObject{{"role", encode("assistant")}, {"content", content}}
	if res.Reasoning != "" {
		m = r.addReasoning(m, res.Reasoning)
	}
	if len(res.ToolCalls) > 0 {
		calls := make([]chatToolCall, len(res.ToolCalls))
		for i, t := range res.ToolCalls {
			calls[i] = chatToolCall{ID: t.ID, Type: "function", Function: chatFunction{t.Name, t.Arguments}}
		}
		m.set("tool_calls", encode(calls))
	}
	return m
}

func (r *chatRequest) addReasoning(m orderedObject, text string) orderedObject {
	for _, key := range r.s.profile.ReasoningKeys {
		m.set(key, encode(text))
	}
	return m
}

type chatToolCall struct {
	Index    *int         `json:"index,omitempty"` // streams only
	ID       string       `json:"id,omitempty"`    // absent in later pieces of a stream
	Type     string       `json:"type,omitempty"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

func (r *chatRequest) tokens(tokens []engine.Token) *chatLogprobs {
	l := &chatLogprobs{Content: r.s.profile.logprobs(tokens)}
	for _, t := range tokens {
		if !r.arrays {
			break
		}
		var pairs [][2]float64
		for _, alt := range t.Top {
			pairs = append(pairs, [2]float64{float64(alt.ID), finite(alt.Logprob)})
		}
		l.TokenLogprobs = append(l.TokenLogprobs, finite(t.Logprob))
		l.Tokens = append(l.Tokens, t.ID)
		l.TopLogprobs = append(l.TopLogprobs, pairs)
	}
	return l
}

// logprobs has an entry for each token, the alternatives best first.
func (p *Profile) logprobs(tokens []engine.Token) []chatLogprob {
	entry := func(id int32, text string, raw []byte, prob float64) logprob {
		e := newLogprob(text, raw, prob)
		if p.TokenIDs {
			e.ID, e.Token = &id, text
		}
		return e
	}
	list := make([]chatLogprob, len(tokens))
	for i, t := range tokens {
		list[i] = chatLogprob{entry(t.ID, t.Text, t.Bytes, t.Logprob), make([]logprob, len(t.Top))}
		for k, alt := range t.Top {
			list[i].Top[k] = entry(alt.ID, alt.Text, alt.Bytes, alt.Logprob)
		}
	}
	return list
}

func reason(res engine.Result) *string { return optional(string(res.FinishReason)) }

// statsBlock is the x_mlx_dspark block.
type statsBlock struct {
	telemetry.RequestSummary
	// BrokenToolCalls says why calls that the model began were left out.
	BrokenToolCalls []string `json:"broken_tool_calls,omitempty"`
}

// stats is the block of an answer: that of its first choice.
func (s *Server) stats(results []engine.Result) *statsBlock {
	if !s.profile.Extras {
		return nil
	}
	return &statsBlock{results[0].Stats, results[0].BrokenCalls}
}

// chunk writes one chunk with one choice.
func (r *chatRequest) chunk(out *eventStream, choice chatChoice, delta orderedObject) error {
	if r.s.profile.RoleInEveryDelta {
		delta = append(orderedObject{{"role", encode("assistant")}}, delta...)
	}
	choice.Delta = &delta
	c := r.object("chat.completion.chunk")
	c.Choices = append(c.Choices, choice)
	return out.data(c)
}

func (r *chatRequest) begin(out *eventStream) error {
	if r.s.profile.RoleInEveryDelta {
		return nil // no chunk of its own
	}
	return r.chunk(out, chatChoice{}, orderedObject{{"role", encode("assistant")}})
}

// delta writes a chunk per kind of content. Log-probabilities go with the
// first; tokens whose text is held back get a chunk without content.
func (r *chatRequest) delta(out *eventStream, _ int, d engine.Delta) error {
	var choice chatChoice
	if r.logprobs && len(d.Tokens) > 0 {
		choice.Logprobs = r.tokens(d.Tokens)
	}
	send := func(delta orderedObject) error {
		err := r.chunk(out, choice, delta)
		choice.Logprobs = nil
		return err
	}
	if d.Reasoning != "" {
		if err := send(r.addReasoning(nil, d.Reasoning)); err != nil {
			return err
		}
	}
	if d.Text != "" {
		if err := send(orderedObject{{"content", encode(d.Text)}}); err != nil {
			return err
		}
	}
	if t := d.ToolCall; t != nil && !t.Dropped { // a client cannot be told that: like one that was cut off, the call ends in the middle
		call := chatToolCall{Index: &t.Index, Function: chatFunction{t.Name, t.Arguments}}
		if t.ID != "" {
			call.ID, call.Type = t.ID, "function"
		}
		if err := send(orderedObject{{"tool_calls", encode([]chatToolCall{call})}}); err != nil {
			return err
		}
	}
	if choice.Logprobs != nil {
		return send(orderedObject{})
	}
	return nil
}

func (r *chatRequest) keepAlive(out *eventStream, p engine.Progress) error {
	return out.progress(p.Done, p.Total)
}

func (r *chatRequest) end(out *eventStream, results []engine.Result) error {
	last := r.object("chat.completion.chunk")
	delta := orderedObject{}
	if r.s.profile.RoleInEveryDelta {
		delta = orderedObject{{"role", encode("assistant")}}
	}
	last.Choices = append(last.Choices, chatChoice{Delta: &delta, FinishReason: reason(results[0])})
	last.Stats = r.s.stats(results)
	if err := out.data(last); err != nil {
		return err
	}
	if r.usage {
		u := r.object("chat.completion.chunk")
		if name := r.s.profile.UsageChunkObject; name != "" {
			u.Object = name
		}
		u.Usage = usageOf(results)
		if err := out.data(u); err != nil {
			return err
		}
	}
	return out.done()
}

func (r *chatRequest) fail(out *eventStream, e *apiError) error {
	return out.data(r.s.profile.ErrorBody(dialectOpenAI, e))
}
