package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sparkbar/engine/chat/jinja"
)

// templates is the chat template of a model: one or several named ones,
// compiled when first needed.
type templates struct {
	source   map[string]string
	compiled map[string]*jinja.Template
}

// defaultName is the template that is used unless another fits better.
const defaultName = "default"

// parseTemplates reads the chat_template value of a tokenizer_config.json: a
// string, an object of named templates or a list of {name, template}.
func parseTemplates(raw json.RawMessage) (map[string]string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return map[string]string{defaultName: one}, nil
	}
	var named map[string]string
	if json.Unmarshal(raw, &named) == nil {
		return named, nil
	}
	var list []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, errors.New("chat_template must be a string, an object of named templates or a list of {name, template}")
	}
	named = map[string]string{}
	for _, t := range list {
		named[t.Name] = t.Template
	}
	return named, nil
}

// compile compiles every template, so that a broken one shows at load.
func (t *templates) compile() error {
	t.compiled = map[string]*jinja.Template{}
	for name, src := range t.source {
		c, err := jinja.Compile(src, jinja.Limits{})
		if err != nil {
			if len(t.source) > 1 {
				return fmt.Errorf("chat template '%s': %w", name, err)
			}
			return fmt.Errorf("chat template: %w", err)
		}
		t.compiled[name] = c
	}
	return nil
}

// choose returns the template's name for a request: the one asked for, else
// tool_use if tools are given, else the default.
func (t *templates) choose(name string, tools bool) (string, error) {
	if name == "" {
		name = defaultName
		if _, ok := t.source["tool_use"]; ok && tools {
			name = "tool_use"
		}
	}
	if _, ok := t.source[name]; !ok {
		have := strings.Join(slices.Sorted(maps.Keys(t.source)), ", ")
		return "", fmt.Errorf("the model has no chat template '%s', only: %s", name, have)
	}
	return name, nil
}

// thoughtKeys are the names under which a message's reasoning travels; the
// first is the one that templates read.
var thoughtKeys = [...]string{"reasoning_content", "thinking", "reasoning"}

// continueTag marks the end of the message to continue. Templates may trim
// the blank behind it, which tells whether they trim the message.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// apply renders one template as transformers' apply_chat_template does:
// null-valued keys dropped, reasoning under all its names, special tokens
// overridden by kwargs.
func (t *templates) apply(special *jinja.Map, messages []*jinja.Map, tools []any, o Options) (string, error) {
	if len(messages) == 0 {
		return "", errors.New("cannot apply chat template to an empty conversation: provide at least one message")
	}
	name, err := t.choose(o.Template, tools != nil)
	if err != nil {
		return "", err
	}
	list := make([]any, len(messages))
	for i, m := range messages {
		list[i] = withThought(dropNulls(m))
	}
	var tail string
	if o.ContinueFinalMessage {
		if o.AddGenerationPrompt {
			return "", errors.New("continue_final_message and add_generation_prompt exclude each other: leave one out")
		}
		last := list[len(list)-1].(*jinja.Map).Clone()
		if tail, err = tagContent(last); err != nil {
			return "", err
		}
		list[len(list)-1] = last
	}
	vars := jinja.NewMap()
	vars.Set("messages", list)
	if tools == nil {
		vars.Set("tools", nil)
	} else {
		vars.Set("tools", tools)
	}
	if o.Documents == nil {
		vars.Set("documents", nil)
	} else {
		vars.Set("documents", o.Documents)
	}
	vars.Set("add_generation_prompt", o.AddGenerationPrompt)
	if special != nil {
		for k, v := range special.All() {
			vars.Set(k, v)
		}
	}
	if o.Kwargs != nil {
		for k, v := range o.Kwargs.All() {
			switch k {
			case "messages", "tools", "documents", "add_generation_prompt":
				return "", fmt.Errorf("'%s' cannot be set as a template variable: it is given by the request itself", k)
			}
			vars.Set(k, v)
		}
	}
	out, err := t.compiled[name].Render(vars, o.Now)
	if err != nil || !o.ContinueFinalMessage {
		return out, err
	}
	return cutAtTag(out, tail)
}

func dropNulls(m *jinja.Map) *jinja.Map {
	out := jinja.NewMap()
	for k, v := range m.All() {
		if v != nil {
			out.Set(k, v)
		}
	}
	return out
}

// withThought writes the first reasoning text found under its standard name
// and, for templates that read it, as thinking.
func withThought(m *jinja.Map) *jinja.Map {
	for _, key := range thoughtKeys {
		v, ok := m.Get(key)
		if !ok || v == nil {
			continue
		}
		out := jinja.NewMap()
		out.Set("thinking", v)
		for k, v := range m.All() {
			out.Set(k, v)
		}
		out.Set("reasoning_content", v)
		return out
	}
	return m
}

// tagContent puts continueTag behind the text of the message and returns that
// text without the blanks around it.
func tagContent(m *jinja.Map) (string, error) {
	content, _ := m.Get("content")
	switch c := content.(type) {
	case string:
		m.Set("content", c+continueTag)
		return strings.TrimSpace(c), nil
	case []any:
		parts := slices.Clone(c)
		for i := len(parts) - 1; i >= 0; i-- {
			p, ok := parts[i].(*jinja.Map)
			if !ok {
				continue
			}
			text, _ := p.Get("text")
			if s, ok := text.(string); ok {
				p = p.Clone()
				p.Set("text", s+continueTag)
				parts[i] = p
				m.Set("content", parts)
				return strings.TrimSpace(s), nil
			}
		}
	}
	return "", errors.New("continue_final_message is set but the final message has no text to continue")
}

func cutAtTag(out, tail string) (string, error) {
	i := strings.LastIndex(out, strings.TrimSpace(continueTag))
	if i < 0 || !strings.Contains(out, tail) {
		return "", errors.New("continue_final_message is set but the chat template does not render the final message as it is")
	}
	if strings.HasPrefix(out[i:], continueTag) {
		return out[:i], nil
	}
	return strings.TrimRight(out[:i], " \t\r\n\v\f"), nil
}

// Options are the parts of a prompt that are not messages or tools.
type Options struct {
	AddGenerationPrompt  bool // end with the header of an assistant message
	ContinueFinalMessage bool // end inside the last message, for the model to go on

	// Kwargs are template variables such as enable_thinking or
	// reasoning_effort. They override special tokens of the same name.
	Kwargs *jinja.Map

	// FoldSystem accepts system messages that the template refuses or leaves
	// out: those at the start are joined, the others, and if need be all,
	// become part of the user turn beside them.
	FoldSystem bool

	Template      string     // name of a template, such as rag; "" chooses
	Documents     []any      // documents of a retrieval template
	PartSeparator string     // put between the text parts of one message
	RoleMapping   *jinja.Map // for models without a template: see Format.Render
	Now           func() time.Time
}
