package httpapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
)

// maxChoices bounds prompts times n, or best_of, of one request; maxBestOf is what
// OpenAI allows.
const (
	maxChoices = 128
	maxBestOf  = 20
)

// maxScored bounds the bytes of text, or token ids, of the prompts in an answer that
// has their log-probabilities: each becomes a thousand times as much.
const maxScored = 512 << 10

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
	Tokens        []string         `json:"tokens"`
	TokenLogprobs []*float64       `json:"token_logprobs"` // null for the first token of an echoed prompt
	TopLogprobs   []*orderedObject `json:"top_logprobs"`   // token → log-probability, best first
	TextOffset    []int            `json:"text_offset"`
	Content       []chatLogprob    `json:"content,omitempty"` // see Profile.TokenIDs
}

type completionRequest struct {
	s        *Server
	id       string
	created  int64
	model    asked
	usage    bool
	logprobs bool
	n, best  int      // choices per prompt: shown, and made to choose from
	echo     bool     // the prompt is repeated before its answer
	silent   bool     // nothing but the prompt is shown: max_tokens is 0
	texts    []string // per choice: its prompt, where that is a text
	offset   []int    // per choice: characters that its tokens make up so far
	shown    []bool   // per choice: the stream has shown its prompt
}

func (s *Server) completions(c *gin.Context) *apiError {
	f, model, err := s.open(c)
	if err != nil {
		return err
	}
	r := &completionRequest{s: s, id: "cmpl-" + randomHex(16), created: time.Now().Unix(), model: model, n: 1, best: 1}
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
	r.best = r.n
	if n := f.integer("best_of", 1, maxBestOf); n != nil {
		r.best = *n
	}
	streaming := f.flag("stream")
	r.usage = f.streamUsage()
	r.echo = f.flag("echo")
	if v, _ := f.get("max_tokens"); r.echo && string(v) == "0" { // to score the prompt
		r.silent, req.MaxTokens = true, 1
	}
	f.refuse()
	switch {
	case streaming && r.n > 1:
		f.fail(invalid("n", "'n' > 1 is not supported with stream=true"))
	case r.best < r.n:
		f.fail(invalid("best_of", "'best_of' must be at least 'n', which is %d", r.n))
	case streaming && r.best > 1:
		f.fail(invalid("best_of", "'best_of' > 1 is not supported with stream=true: which answer is the best is known at the end"))
	case len(prompts)*r.best > maxChoices:
		f.fail(invalid("prompt", "'prompt' times 'n' or 'best_of' asks for %d answers, at most %d are possible", len(prompts)*r.best, maxChoices))
	}
	scored := 0
	for _, p := range prompts {
		n := len(p.Tokens)
		if p.Text != nil {
			n = len(*p.Text)
		}
		scored += n * r.n
	}
	if r.echo && r.logprobs && scored > maxScored {
		f.fail(invalid("echo", "'echo' with 'logprobs' would repeat prompts of %d bytes or token ids, times 'n'; at most %d are possible, send fewer at a time", scored, maxScored))
	}
	if f.err != nil {
		return f.err
	}
	var reqs []engine.Request
	for _, p := range prompts {
		for i := range r.best {
			one := req
			one.Prompt = p
			one.Prompt.MLXRules = s.profile.MLXRules
			one.EchoPrompt = r.echo && (r.logprobs || p.Text == nil) && i == 0 // it is the same for all
			if r.best > r.n {
				one.Logprobs = max(one.Logprobs, 0)
			}
			reqs = append(reqs, one)
		}
		text := ""
		if p.Text != nil {
			text = *p.Text
		}
		r.texts = append(r.texts, text)
	}
	for i, one := range choices(req, len(reqs)) {
		reqs[i].ID, reqs[i].Sampling.Seed = one.ID, derivedSeed(req.Sampling.Seed, i%r.best)
	}
	r.offset, r.shown = make([]int, len(prompts)*r.n), make([]bool, len(prompts)*r.n)
	setRequestID(c, r.id)
	if streaming {
		return s.stream(c, reqs, r)
	}
	results, err := s.collect(c, reqs, nil)
	if err != nil {
		return err
	}
	answer := r.object()
	for p := range prompts {
		all := results[p*r.best:][:r.best]
		prompt := all[0].Prompt
		for _, res := range likeliest(all, r.n) {
			choice := r.echoed(len(answer.Choices), prompt)
			choice.FinishReason = r.reason(res)
			r.append(&choice, res.Text, res.Tokens)
			answer.Choices = append(answer.Choices, choice)
		}
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

// likeliest are the n results with the highest mean log-probability, best first
// where they were chosen among more.
func likeliest(all []engine.Result, n int) []engine.Result {
	if len(all) == n {
		return all
	}
	mean := func(r engine.Result) float64 {
		sum := 0.0
		for _, t := range r.Tokens {
			sum += t.Logprob
		}
		return sum / float64(max(len(r.Tokens), 1))
	}
	best := slices.Clone(all)
	slices.SortStableFunc(best, func(a, b engine.Result) int { return cmp.Compare(mean(b), mean(a)) })
	return best[:n]
}

// echoed begins a choice with its prompt, if that is to be repeated.
func (r *completionRequest) echoed(index int, prompt []engine.Token) textChoice {
	c := textChoice{Index: index}
	if !r.echo {
		return c
	}
	var b strings.Builder
	for _, t := range prompt {
		b.Write(t.Bytes)
	}
	raw := b.String()
	if c.Text = r.texts[index/r.n]; c.Text == "" { // token ids
		c.Text = strings.ToValidUTF8(raw, "\ufffd")
	}
	if !r.logprobs || len(prompt) == 0 {
		return c
	}
	c.Logprobs = r.tokens(index, prompt)
	c.Logprobs.TokenLogprobs[0], c.Logprobs.TopLogprobs[0] = nil, nil // there is nothing before it
	if strings.HasPrefix(raw, " ") && raw == " "+c.Text {             // a space that the tokenizer puts before every text
		for i := range c.Logprobs.TextOffset {
			c.Logprobs.TextOffset[i] = max(0, c.Logprobs.TextOffset[i]-1)
		}
		r.offset[index]--
	}
	return c
}

// reason is why an answer ends: one of no tokens at their limit.
func (r *completionRequest) reason(res engine.Result) *string {
	if r.silent {
		res.FinishReason = engine.FinishLength
	}
	return reason(res)
}

// append adds generated text and tokens to a choice.
func (r *completionRequest) append(c *textChoice, text string, tokens []engine.Token) {
	if r.silent {
		return
	}
	c.Text += text
	if !r.logprobs {
		return
	}
	more := r.tokens(c.Index, tokens)
	if r.s.profile.TokenIDs {
		more.Content = r.s.profile.logprobs(tokens)
	}
	if l := c.Logprobs; l != nil {
		more.Tokens, more.TokenLogprobs = append(l.Tokens, more.Tokens...), append(l.TokenLogprobs, more.TokenLogprobs...)
		more.TopLogprobs, more.TextOffset = append(l.TopLogprobs, more.TopLogprobs...), append(l.TextOffset, more.TextOffset...)
	}
	c.Logprobs = more
}

// usageOf counts each prompt once, however many choices it has.
func (r *completionRequest) usageOf(results []engine.Result) *usage {
	var u usage
	for i, res := range results {
		if i%r.best == 0 {
			u.PromptTokens += res.Stats.PromptTokens
			u.PromptDetails.CachedTokens += res.Stats.CachedTokens
		}
		if !r.silent {
			u.CompletionTokens += res.Stats.CompletionTokens
		}
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return &u
}

func (r *completionRequest) tokens(choice int, tokens []engine.Token) *textLogprobs {
	l := &textLogprobs{Tokens: []string{}, TokenLogprobs: []*float64{}, TopLogprobs: []*orderedObject{}, TextOffset: []int{}}
	for _, t := range tokens {
		text, top, p := tokenText(t.Text, t.Bytes), alternatives(t), finite(t.Logprob)
		l.TopLogprobs = append(l.TopLogprobs, &top)
		l.Tokens = append(l.Tokens, text)
		l.TokenLogprobs = append(l.TokenLogprobs, &p)
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
	choice := textChoice{Index: index}
	switch {
	case d.Prompt != nil:
		choice, r.shown[index] = r.echoed(index, d.Prompt), true
	case d.Text != "" || len(d.Tokens) > 0:
		if r.append(&choice, d.Text, d.Tokens); len(d.Tokens) == 0 {
			choice.Logprobs = nil
		}
	}
	if choice.Text == "" && choice.Logprobs == nil {
		return nil
	}
	if !r.shown[index] {
		r.shown[index] = true
		choice.Text = r.echoed(index, nil).Text + choice.Text
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
		choice := textChoice{Index: i, FinishReason: r.reason(res)}
		if !r.shown[i] {
			choice.Text = r.echoed(i, nil).Text
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
