package chat

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"

	"sparkbar/engine/chat/jinja"
)

// Config is what a model's files say about how it speaks.
type Config struct {
	// ChatTemplate is the chat_template value of tokenizer_config.json: a
	// string, an object of named templates or a list of {name, template}.
	ChatTemplate json.RawMessage

	// TemplateFiles are the templates that lie beside it as files: under
	// "default" the text of chat_template.jinja, under their base names those
	// of the additional_chat_templates folder. They win over ChatTemplate.
	TemplateFiles map[string]string

	// Override replaces every template of the model if not empty.
	Override string

	// SpecialTokens are the tokenizer's named tokens that are set, such as
	// bos_token, as template variables.
	SpecialTokens *jinja.Map

	// ToolParser is the tool_parser_type of tokenizer_config.json, "" if
	// absent.
	ToolParser string

	// HasToken reports whether a string is one token of the vocabulary. Nil
	// means that the vocabulary is not known.
	HasToken func(token string) bool
}

// Format says how one model speaks: how conversations become its prompts and
// how its text becomes messages. It is safe for concurrent use.
type Format struct {
	templates *templates // nil: role mapping
	own       bool       // the template is the model's or an override, not a stand-in
	special   *jinja.Map
	thought   *thoughtTags
	declared  bool // the model is known to have the thought tags
	tools     []*toolFormat
	toolName  string

	effortOnce sync.Once
	efforts    []string
}

// chatML is the template of models that have its tokens but no template.
const chatML = `{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- '# Tools\n\nYou may call functions. Their signatures, as JSON:\n<tools>' }}
    {%- for tool in tools %}{{- '\n' + tool | tojson }}{%- endfor %}
    {{- '\n</tools>\n\nTo call one, answer with a JSON object between these tags:\n<tool_call>\n{"name": <function-name>, "arguments": <arguments-object>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set tool_call = tool_call.function or tool_call %}
            {%- if message.content or not loop.first %}{{- '\n' }}{%- endif %}
            {{- '<tool_call>\n{"name": ' + tool_call.name | tojson + ', "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}`

// NewFormat works out how a model speaks. It fails if a template does not
// compile or the tool parser is unknown.
//
// A model without a template gets ChatML if <|im_start|> and <|im_end|> are in
// its vocabulary, else plain text with a prefix for each role. The thought
// tags and the tool-call format come from the tables of families, by
// tool_parser_type, the template's text and the vocabulary, in this order.
func NewFormat(c Config) (*Format, error) {
	has := c.HasToken
	if has == nil {
		has = func(string) bool { return false }
	}
	source, err := parseTemplates(c.ChatTemplate)
	if err != nil {
		return nil, err
	}
	if len(c.TemplateFiles) > 0 {
		source = c.TemplateFiles
	}
	if c.Override != "" {
		source = map[string]string{defaultName: c.Override}
	}
	f := &Format{special: c.SpecialTokens, own: len(source) > 0}
	if !f.own && has("<|im_start|>") && has("<|im_end|>") {
		source = map[string]string{defaultName: chatML}
	}
	if len(source) > 0 {
		f.templates = &templates{source: source}
		if err := f.templates.compile(); err != nil {
			return nil, err
		}
	}
	text := ""
	if f.templates != nil {
		text = f.text()
	}
	f.thought, f.declared = findThought(text, has)
	f.tools, f.toolName, err = findTools(c.ToolParser, text, has)
	return f, err
}

// text is the template that detection goes by.
func (f *Format) text() string {
	for _, name := range [...]string{"tool_use", defaultName} {
		if s, ok := f.templates.source[name]; ok {
			return s
		}
	}
	for _, s := range f.templates.source {
		return s
	}
	return ""
}

// HasTemplate reports whether the model has a chat template of its own. The
// prompt of one that has not is encoded with the tokenizer's special tokens.
func (f *Format) HasTemplate() bool { return f.own }

// Uses reports whether a template of the model reads the variable name, such
// as enable_thinking.
func (f *Format) Uses(name string) bool {
	if f.templates == nil {
		return false
	}
	for _, t := range f.templates.compiled {
		if slices.Contains(t.Inputs(), name) {
			return true
		}
	}
	return false
}

// Thinks reports whether the model is known to mark its reasoning: by its
// vocabulary or its template.
func (f *Format) Thinks() bool { return f.declared }

// ToolParser returns the name of the model's tool-call format, as
// tool_parser_type spells it; "" if none was recognised and calls are found
// by their markers only.
func (f *Format) ToolParser() string { return f.toolName }

// Render makes the prompt of a conversation. tools is nil or a list of
// OpenAI-shaped tool objects (*jinja.Map).
//
// Messages are prepared for templates first: content parts are joined, null
// content becomes "", tool-call arguments given as JSON text become objects,
// developer becomes system unless the template knows that role; o.FoldSystem
// does more for system messages. With enable_thinking false, a thought that
// the template opens all the same is closed at once.
//
// Without a template, messages are written with prefixes by role:
// o.RoleMapping, with the keys system, user, assistant and stop, or the
// default. A RoleMapping also replaces ChatML where it only stands in.
//
// Errors of the template are *jinja.Error; of parts that are not text,
// *PartError.
func (f *Format) Render(messages []*jinja.Map, tools []any, o Options) (string, error) {
	if len(messages) == 0 {
		return "", errors.New("a conversation needs at least one message")
	}
	if len(tools) == 0 {
		tools = nil
	}
	messages, err := prepare(messages, o.PartSeparator)
	if err != nil {
		return "", err
	}
	if f.templates == nil || !f.own && o.RoleMapping != nil {
		roles := o.RoleMapping
		if roles == nil {
			roles = DefaultRoleMapping()
		}
		return renderRoles(withRole(messages, "developer", "system"), roles, o)
	}
	name, err := f.templates.choose(o.Template, tools != nil)
	if err != nil {
		return "", err
	}
	if !strings.Contains(f.templates.source[name], "developer") {
		messages = withRole(messages, "developer", "system")
	}
	prompt, err := f.templates.apply(f.special, messages, tools, o)
	for _, keepFirst := range [...]bool{true, false} {
		if o.FoldSystem && (err != nil || dropsSystem(prompt, messages)) {
			folded, ferr := f.templates.apply(f.special, foldSystem(messages, keepFirst), tools, o)
			if ferr == nil {
				prompt, err = folded, nil
			}
		}
	}
	if err != nil {
		return "", err
	}
	if off, _ := kwarg(o.Kwargs, "enable_thinking").(bool); !off && kwarg(o.Kwargs, "enable_thinking") != nil {
		if f.thought.opens(prompt) {
			prompt += f.thought.close + "\n\n"
		}
	}
	return prompt, nil
}

func kwarg(m *jinja.Map, name string) any {
	if m == nil {
		return nil
	}
	v, _ := m.Get(name)
	return v
}

// dropsSystem tells whether the text of a system message is missing in the
// prompt.
func dropsSystem(prompt string, messages []*jinja.Map) bool {
	for _, m := range messages {
		if role(m) == "system" && !strings.Contains(prompt, strings.TrimSpace(contentText(m))) {
			return true
		}
	}
	return false
}

// Efforts are the values of reasoning_effort that clients may send, from
// little thought to much.
var Efforts = []string{"low", "medium", "high", "xhigh"}

// Effort maps one of Efforts to the nearest value that the template accepts,
// the lower of two equally near ones. A template that does not read
// reasoning_effort, and any other value, leaves want as it is.
func (f *Format) Effort(want string) string {
	at := slices.Index(Efforts, want)
	if at < 0 || !f.Uses("reasoning_effort") {
		return want
	}
	f.effortOnce.Do(f.probeEfforts)
	best, dist := want, len(Efforts)
	for _, e := range f.efforts {
		d := slices.Index(Efforts, e) - at
		if d < 0 {
			d = -d
		}
		if d < dist {
			best, dist = e, d
		}
	}
	return best
}

// probeEfforts finds the accepted efforts by rendering with each.
func (f *Format) probeEfforts() {
	m := jinja.NewMap()
	m.Set("role", "user")
	m.Set("content", "hi")
	for _, e := range Efforts {
		kw := jinja.NewMap()
		kw.Set("enable_thinking", true)
		kw.Set("reasoning_effort", e)
		if _, err := f.Render([]*jinja.Map{m}, nil, Options{AddGenerationPrompt: true, Kwargs: kw}); err == nil {
			f.efforts = append(f.efforts, e)
		}
	}
}
