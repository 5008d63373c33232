package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sparkbar/engine"
)

// Prompts are OpenAI-shaped messages, whatever the dialect. This file holds
// what all dialects need to build them.

// textMessage is a message whose content is plain text.
func textMessage(role, text string) orderedObject {
	return orderedObject{{"role", encode(role)}, {"content", encode(text)}}
}

func role(m orderedObject) string {
	v, _ := m.get("role")
	var r string
	_ = json.Unmarshal(v, &r) // checked where messages are read
	return r
}

// chatMessages reads the messages of a chat request. They go to the engine as
// they are: it knows what the model's template makes of roles and contents.
func (f *fields) chatMessages() json.RawMessage {
	raw, ok := f.get("messages")
	var list []json.RawMessage
	if !ok || raw[0] != '[' || json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		f.fail(invalid("messages", "%s", f.profile.NoMessages))
	}
	for i, m := range list {
		if m[0] != '{' {
			f.badType(fmt.Sprintf("messages[%d]", i), "object")
		}
	}
	return raw
}

type textPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// textParts reads a list of content parts. A part that is not text is refused
// by name: dropping it would change what the user asked.
func textParts(list json.RawMessage, path string) ([]textPart, *apiError) {
	var raw []json.RawMessage
	if err := json.Unmarshal(list, &raw); err != nil {
		return nil, invalid(path, "'%s' must be a list of parts", path)
	}
	parts := make([]textPart, 0, len(raw))
	for i, v := range raw {
		at := fmt.Sprintf("%s[%d]", path, i)
		if v[0] == '"' {
			parts = append(parts, textPart{"text", unquote(v)})
			continue
		}
		var p struct {
			Type    any `json:"type"`
			Text    any `json:"text"`
			Refusal any `json:"refusal"`
		}
		if v[0] != '{' || json.Unmarshal(v, &p) != nil {
			return nil, invalid(at, "'%s' must be an object with type and text", at)
		}
		text := p.Text
		switch p.Type {
		case nil, "text", "input_text", "output_text":
		case "refusal":
			text = p.Refusal
		default:
			kind := shorten(fmt.Sprint(p.Type))
			return nil, invalid(at, "'%s' has the type '%s', but this server reads text only", at, kind)
		}
		s, ok := text.(string)
		if !ok {
			return nil, invalid(at, "'%s.text' must be a string", at)
		}
		parts = append(parts, textPart{"text", s})
	}
	return parts, nil
}

func unquote(v json.RawMessage) string {
	var s string
	_ = json.Unmarshal(v, &s) // callers have seen the opening quote of valid JSON
	return s
}

// joinParts is the text of a list of parts.
func joinParts(parts []textPart) string {
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.Text
	}
	return strings.Join(texts, "\n")
}

// tool is a function that the model may call, as templates take it.
type tool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

// offer puts the tools that a request offers into its prompt, as tool_choice has
// it; names[i] belongs to tools[i]. An answer that must be a call begins as one:
// see engine.Prompt.
func (f *fields) offer(p *engine.Prompt, tools []json.RawMessage, names []string) {
	tools, names, p.MustCall = f.chosen(tools, names)
	if len(tools) == 0 {
		p.MustCall = false
		return
	}
	p.Tools = encode(tools)
	if p.MustCall && len(tools) == 1 {
		p.CallName = names[0]
	}
}

// chosen reads tool_choice: which of the tools the prompt offers, and whether one
// of them must be called.
func (f *fields) chosen(tools []json.RawMessage, names []string) (_ []json.RawMessage, _ []string, must bool) {
	choice, ok := f.get("tool_choice")
	if !ok {
		return tools, names, false
	}
	bad := func() (_ []json.RawMessage, _ []string, _ bool) {
		f.fail(invalid("tool_choice", "'tool_choice' must be auto, none, required or name a function, got %s", quote(choice)))
		return
	}
	type named struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	type allowed struct {
		Mode  string  `json:"mode"`
		Tools []named `json:"tools"`
	}
	var c struct {
		Type string `json:"type"`
		named
		allowed
		Nested *allowed `json:"allowed_tools"`
	}
	switch {
	case choice[0] == '"':
		if c.Type = unquote(choice); !slices.Contains([]string{"auto", "none", "required", "any"}, c.Type) {
			return bad()
		}
	case choice[0] != '{' || json.Unmarshal(choice, &c) != nil || c.Type == "":
		return bad()
	}
	var only []named
	switch c.Type {
	case "none":
		return nil, nil, false
	case "auto":
		return tools, names, false
	case "required", "any":
		return tools, names, true
	case "function", "tool":
		only, must = []named{c.named}, true
	case "allowed_tools":
		if c.Nested != nil {
			c.allowed = *c.Nested
		}
		only, must = c.Tools, c.Mode == "required"
	default:
		return tools, names, false // a tool type that this server does not offer
	}
	wanted := map[string]bool{} // and whether it is offered
	for _, n := range only {
		switch {
		case n.Type != "" && n.Type != "function": // one that this server does not offer
		case n.Name != "":
			wanted[n.Name] = false
		default:
			wanted[n.Function.Name] = false
		}
	}
	var list []json.RawMessage
	var kept []string
	for i, name := range names {
		if _, ok := wanted[name]; ok && name != "" {
			wanted[name] = true
			list, kept = append(list, tools[i]), append(kept, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if !wanted[name] {
			f.fail(invalid("tool_choice", "'tool_choice' names the function '%s', which is not in 'tools'", shorten(name)))
			return nil, nil, false
		}
	}
	return list, kept, must
}

// oneCall reads parallel_tool_calls: whether the answer ends with its first call.
func (f *fields) oneCall() bool {
	b := f.boolean("parallel_tool_calls")
	return b != nil && !*b
}

// chatTools reads tools and tool_choice of a chat request into its prompt. Functions
// pass as they are; other kinds of tools have no form in a template and are left out.
func (f *fields) chatTools(p *engine.Prompt) {
	var tools []json.RawMessage
	var names []string
	for i, v := range f.list("tools") {
		path := fmt.Sprintf("tools[%d]", i)
		t := f.nested(path, v)
		if t == nil {
			f.fail(invalid(path, "'%s' must be an object", path))
			return
		}
		if kind := t.text("type"); t.err == nil && kind != nil && *kind != "function" {
			continue
		}
		fn := t.object("function")
		if fn == nil || t.err != nil {
			f.fail(invalid(path+".function", "'%s.function' must be an object with a name", path))
			return
		}
		name := fn.text("name")
		if name == nil || *name == "" {
			f.fail(invalid(path+".function.name", "'%s.function.name' must be a string", path))
			return
		}
		tools, names = append(tools, v), append(names, *name)
	}
	f.offer(p, tools, names)
}

// roleMapping reads role_mapping: prefixes by role, for models without a chat
// template.
func (f *fields) roleMapping() json.RawMessage {
	o := f.object("role_mapping")
	if o == nil {
		return nil
	}
	for key := range o.raw {
		o.text(key)
	}
	if o.err != nil {
		f.fail(o.err)
	}
	raw, _ := f.get("role_mapping")
	return raw
}

// templateKwargs reads chat_template_kwargs.
func (f *fields) templateKwargs() map[string]any {
	kwargs := map[string]any{}
	if o := f.object("chat_template_kwargs"); o != nil {
		for key, v := range o.raw {
			var x any
			if json.Unmarshal(v, &x) == nil {
				kwargs[key] = x
			}
		}
	}
	return kwargs
}
