package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
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

// offered applies tool_choice: it returns the tools that the prompt offers and
// whether calls are wanted at all. names[i] belongs to tools[i]. Until decoding
// can be constrained, "required" offers the tools and leaves the call to the
// model.
func offered(choice json.RawMessage, tools []json.RawMessage, names []string) ([]json.RawMessage, *apiError) {
	if len(choice) == 0 || string(choice) == "null" {
		return tools, nil
	}
	bad := func() *apiError {
		return invalid("tool_choice", "'tool_choice' must be auto, none, required or name a function, got %s", quote(choice))
	}
	if choice[0] == '"' {
		switch unquote(choice) {
		case "auto", "required", "any":
			return tools, nil
		case "none":
			return nil, nil
		}
		return nil, bad()
	}
	var c struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if choice[0] != '{' || json.Unmarshal(choice, &c) != nil || c.Type == "" {
		return nil, bad()
	}
	name := c.Name
	if name == "" {
		name = c.Function.Name
	}
	switch c.Type {
	case "auto", "any", "required", "allowed_tools":
		return tools, nil
	case "none":
		return nil, nil
	case "function", "tool":
		for i, n := range names {
			if n == name && name != "" {
				return tools[i : i+1], nil
			}
		}
		return nil, invalid("tool_choice", "'tool_choice' names the function '%s', which is not in 'tools'", shorten(name))
	}
	return tools, nil // a tool type that this server does not offer
}

// toolList joins tools for the prompt; nil if there are none.
func toolList(tools []json.RawMessage) json.RawMessage {
	if len(tools) == 0 {
		return nil
	}
	return encode(tools)
}

// chatTools reads tools and tool_choice of a chat request. Functions pass as
// they are; other kinds of tools have no form in a template and are left out.
func (f *fields) chatTools() json.RawMessage {
	var tools []json.RawMessage
	var names []string
	for i, v := range f.list("tools") {
		path := fmt.Sprintf("tools[%d]", i)
		t := f.nested(path, v)
		if t == nil {
			f.fail(invalid(path, "'%s' must be an object", path))
			return nil
		}
		if kind := t.text("type"); t.err == nil && kind != nil && *kind != "function" {
			continue
		}
		fn := t.object("function")
		if fn == nil || t.err != nil {
			f.fail(invalid(path+".function", "'%s.function' must be an object with a name", path))
			return nil
		}
		name := fn.text("name")
		if name == nil || *name == "" {
			f.fail(invalid(path+".function.name", "'%s.function.name' must be a string", path))
			return nil
		}
		tools, names = append(tools, v), append(names, *name)
	}
	choice, _ := f.get("tool_choice")
	tools, err := offered(choice, tools, names)
	if err != nil {
		f.fail(err)
	}
	return toolList(tools)
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
