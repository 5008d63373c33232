package httpapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
)

// maxChoices bounds prompts times n of one request.
const maxChoices = 128

// textCompletion is the answer of /completions, whole or one chunk of it.
type textCompletion struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	Model       string       `json:"model"`
	Fingerprint string       `json:"system_fingerprint"`
	Choices     []textChoice `json:"choices"`
	Usage       *usage       `json:"usage,omitempty"`
	Stats       *statsBlock  `json:"x_mlx_dspark,omitempty"`
}

type textChoice struct {
	Index        int           `json:"index"`
	Text         string        `json:"text"`
	FinishReason *string       `json:"finish_reason"`
	Logprobs     *textLogprobs `json:"logprobs,omitempty"`
}

// textLogprobs has one entry per token in each list. Offsets count characters
// from the start of the choice's text.
type textLogprobs struct {
	Tokens        []string        `json:"tokens"`
	TokenLogprobs []float64       `json:"token_logprobs"`
	TopLogprobs   []orderedObject `json:"top_logprobs"` // token → log-probability, best first
	TextOffset    []int           `json:"text_offset"`
	Content       []chatLogprob   `json:"content,omitempty"` // see Profile.TokenIDs
}

type completionRequest struct {
	s        *Server
	id       string
	created  int64
	model    asked
	usage    bool
	logprobs bool
	n        int      // choices per prompt
	echo     []string // text to repeat before each prompt's answer, nil = none
	offset   []int    // per choice: characters that its tokens make up so far
	echoed   []bool   // per choice: the stream has shown its prompt
}

func (s *Server) completions(c *gin.Context) *apiError {
	f, model, err := s.open(c)
	if err != nil {
		return err
	}
	r := &completionRequest{s: s, id: "cmpl-" + randomHex(16), created: time.Now().Unix(), model: model, n: 1}
	// That server reads thoughts and calls out of any text, and shows neither here.
	req := engine.Request{Model: model.id, ID: r.id, Client: clientName(c.Request), Reasoning: s.profile.MLXRules, Tools: s.profile.MLXRules}
	prompts := f.prompts()
	req.MaxTokens = s.maxTokens(f, "max_completion_tokens", "max_tokens")
	req.Sampling = s.sampling(f)
	f.beside(&req)
	req.Stop = f.texts("stop")
	req.Logprobs = f.textLogprobs()
	r.logprobs = req.Logprobs >= 0
	if n := f.integer("n", 1, 8); n != nil {
		r.n = *n
	}
	streaming := f.flag("stream")
	r.usage = f.streamUsage()
	echo := f.flag("echo")
	f.refuse()
	switch {
	case streaming && r.n > 1:
		f.fail(invalid("n", "'n' > 1 is not supported with stream=true"))
	case len(prompts)*r.n > maxChoices:
		f.fail(invalid("prompt", "'prompt' times 'n' asks for %d answers, at most %d are possible", len(prompts)*r.n, maxChoices))
	case echo && r.logprobs:
		f.fail(invalid("echo", "'echo' cannot be combined with 'logprobs': prompts are read without keeping their log-probabilities"))
	}
	if f.err != nil {
		return f.err
	}
	var reqs []engine.Request
	for _, p := range prompts {
		if echo {
			if p.Text == nil {
				return invalid("echo", "'echo' needs a text prompt, not token ids")
			}
			r.echo = append(r.echo, *p.Text)
		}
		for range r.n {
			one := req
			one.Prompt = p
			one.Prompt.MLXRules = s.profile.MLXRules
			reqs = append(reqs, one)
		}
	}
	for i, one := range choices(req, len(reqs)) {
		reqs[i].ID, reqs[i].Sampling.Seed = one.ID, derivedSeed(req.Sampling.Seed, i%r.n)
	}
	r.offset, r.echoed = make([]int, len(reqs)), make([]bool, len(reqs))
	setRequestID(c, r.id)
	if streaming {
		return s.stream(c, reqs, r)
	}
	results, err := s.collect(c, reqs, nil)
	if err != nil {
		return err
	}
	answer := r.object()
	for i, res := range results {
		choice := textChoice{Index: i, Text: r.prefix(i) + res.Text, FinishReason: reason(res)}
		if r.logprobs {
			choice.Logprobs = r.tokens(i, res.Tokens)
		}
		answer.Choices = append(answer.Choices, choice)
	}
	answer.Usage = r.usageOf(results)
	answer.Stats = s.stats(results)
	s.reply(c, http.StatusOK, answer)
	return nil
}

// prompts reads the four forms of prompt: a text, texts, token ids, lists of
// token ids.
func (f *fields) prompts() []engine.Prompt {
	bad := func(format string, args ...any) []engine.Prompt {
		f.fail(invalid("prompt", format, args...))
		return nil
	}
	v, ok := f.get("prompt")
	if !ok {
		return bad("%s", f.profile.NoPrompt)
	}
	if v[0] == '"' {
		v = encode([]json.RawMessage{v})
	}
	var list []json.RawMessage
	if v[0] != '[' || json.Unmarshal(v, &list) != nil {
		return bad("%s", f.profile.NoPrompt)
	}
	if len(list) == 0 {
		return bad("'prompt' must not be empty")
	}
	if ids, ok := tokenIDs(v); ok {
		return []engine.Prompt{{Tokens: ids}}
	}
	var prompts []engine.Prompt
	for i, p := range list {
		if ids, ok := tokenIDs(p); ok && len(ids) > 0 {
			prompts = append(prompts, engine.Prompt{Tokens: ids})
			continue
		}
		if p[0] != '"' {
			return bad("%s: entry %d is neither a text nor a list of token ids", f.profile.NoPrompt, i)
		}
		text := unquote(p)
		if text == "" {
			return bad("'prompt' must not be empty")
		}
		prompts = append(prompts, engine.Prompt{Text: &text})
	}
	return prompts
}

func tokenIDs(v json.RawMessage) ([]int32, bool) {
	var ids []int32
	if v[0] != '[' || hasNull(v) || json.Unmarshal(v, &ids) != nil {
		return nil, false
	}
	for _, id := range ids {
		if id < 0 {
			return nil, false
		}
	}
	return ids, true
}

// textLogprobs reads logprobs: the number of alternatives, true for one, -1 for
// off; or true and false alone, where the profile has it so.
func (f *fields) textLogprobs() int {
	top := f.integer("top_logprobs", 0, f.profile.MaxTopLogprobs)
	v, ok := f.typed("logprobs", "boolean")
	switch {
	case !ok || string(v) == "false":
		return -1
	case string(v) == "true" && top != nil:
		return *top
	case string(v) == "true":
		return 1
	case f.profile.MaxLogprobs == 0:
		f.badType("logprobs", "boolean")
		return -1
	}
	if n := f.integer("logprobs", 0, f.profile.MaxTopLogprobs); n != nil {
		return *n
	}
	return -1
}

func (r *completionRequest) object() *textCompletion {
	return &textCompletion{ID: r.id, Object: "text_completion", Created: r.created, Model: r.model.name(),
		Fingerprint: r.model.fingerprint(), Choices: []textChoice{}}
}

// prefix is what echo puts before a choice.
func (r *completionRequest) prefix(choice int) string {
	if r.echo == nil {
		return ""
	}
	return r.echo[choice/r.n]
}

// usageOf counts each prompt once, however many choices it has.
func (r *completionRequest) usageOf(results []engine.Result) *usage {
	var u usage
	for i, res := range results {
		if i%r.n == 0 {
			u.PromptTokens += res.Stats.PromptTokens
			u.PromptDetails.CachedTokens += res.Stats.CachedTokens
		}
		u.CompletionTokens += res.Stats.CompletionTokens
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return &u
}

func (r *completionRequest) tokens(choice int, tokens []engine.Token) *textLogprobs {
	l := &textLogprobs{Tokens: []string{}, TokenLogprobs: []float64{}, TopLogprobs: []orderedObject{}, TextOffset: []int{}}
	if r.s.profile.TokenIDs {
		l.Content = r.s.profile.logprobs(tokens)
	}
	for _, t := range tokens {
		text := tokenText(t.Text, t.Bytes)
		l.TopLogprobs = append(l.TopLogprobs, alternatives(t))
		l.Tokens = append(l.Tokens, text)
		l.TokenLogprobs = append(l.TokenLogprobs, finite(t.Logprob))
		l.TextOffset = append(l.TextOffset, r.offset[choice])
		r.offset[choice] += runeStarts(t.Bytes)
	}
	return l
}

// alternatives lists the candidates at a token's place and always the token
// itself. Of two with the same text the likelier one is shown.
func alternatives(t engine.Token) orderedObject {
	all := append([]engine.TokenProb{{Text: t.Text, Bytes: t.Bytes, Logprob: t.Logprob}}, t.Top...)
	slices.SortStableFunc(all, func(a, b engine.TokenProb) int { return cmp.Compare(b.Logprob, a.Logprob) })
	o := orderedObject{}
	for _, alt := range all {
		name := tokenText(alt.Text, alt.Bytes)
		if _, ok := o.get(name); !ok {
			o.set(name, encode(finite(alt.Logprob)))
		}
	}
	return o
}

// runeStarts counts the code points that begin in b, so that the parts of a
// split one advance the offset once.
func runeStarts(b []byte) int {
	n := 0
	for _, c := range b {
		if utf8.RuneStart(c) {
			n++
		}
	}
	return n
}

func (r *completionRequest) begin(*eventStream) error { return nil }

func (r *completionRequest) delta(out *eventStream, index int, d engine.Delta) error {
	choice := textChoice{Index: index, Text: d.Text}
	if r.logprobs && len(d.Tokens) > 0 {
		choice.Logprobs = r.tokens(index, d.Tokens)
	}
	if choice.Text == "" && choice.Logprobs == nil {
		return nil
	}
	if !r.echoed[index] {
		r.echoed[index] = true
		choice.Text = r.prefix(index) + choice.Text
	}
	c := r.object()
	c.Choices = append(c.Choices, choice)
	return out.data(c)
}

func (r *completionRequest) keepAlive(out *eventStream, p engine.Progress) error {
	return out.progress(p.Done, p.Total)
}

func (r *completionRequest) end(out *eventStream, results []engine.Result) error {
	for i, res := range results {
		last := r.object()
		choice := textChoice{Index: i, FinishReason: reason(res)}
		if !r.echoed[i] {
			choice.Text = r.prefix(i)
		}
		last.Choices = append(last.Choices, choice)
		if i == len(results)-1 {
			last.Stats = r.s.stats(results)
		}
		if err := out.data(last); err != nil {
			return err
		}
	}
	if r.usage {
		u := r.object()
		if name := r.s.profile.UsageChunkObject; name != "" {
			u.Object = name
		}
		u.Usage = r.usageOf(results)
		if err := out.data(u); err != nil {
			return err
		}
	}
	return out.done()
}

func (r *completionRequest) fail(out *eventStream, e *apiError) error {
	return out.data(r.s.profile.ErrorBody(dialectOpenAI, e))
}
