package chat

import (
	"fmt"
	"strings"

	"sparkbar/engine/chat/jinja"
)

// PartError reports a content part that is not text.
type PartError struct {
	Message int    // index in the conversation
	Part    int    // index in the message's content
	Type    string // the part's type, "" if it has none
}

// Error names the part and says what is accepted.
func (e *PartError) Error() string {
	what := "has no type"
	if e.Type != "" {
		what = fmt.Sprintf("has type '%s'", e.Type)
	}
	return fmt.Sprintf("messages[%d].content[%d] %s; only text parts are supported", e.Message, e.Part, what)
}

// textParts are the types whose "text" is plain text, in the dialects of chat
// completions and responses.
var textParts = map[string]bool{"text": true, "input_text": true, "output_text": true, "refusal": true}

// prepare makes the messages of an API request fit for a template: content
// parts become one text, null content becomes "", JSON texts of tool-call
// arguments become objects. The given messages stay as they are.
func prepare(messages []*jinja.Map, separator string) ([]*jinja.Map, error) {
	out := make([]*jinja.Map, len(messages))
	for i, m := range messages {
		if m == nil {
			return nil, fmt.Errorf("messages[%d] must be an object", i)
		}
		role, ok := m.Get("role")
		if s, isText := role.(string); !ok || !isText || s == "" {
			return nil, fmt.Errorf("messages[%d].role must be a non-empty string", i)
		}
		m = m.Clone()
		content, ok := m.Get("content")
		text, err := flatten(content, separator, i)
		if err != nil {
			return nil, err
		}
		calls, hasCalls := m.Get("tool_calls")
		if ok || hasCalls {
			m.Set("content", text)
		}
		if hasCalls && calls != nil {
			if calls, err = prepareCalls(calls, i); err != nil {
				return nil, err
			}
			m.Set("tool_calls", calls)
		}
		out[i] = m
	}
	return out, nil
}

func flatten(content any, separator string, at int) (string, error) {
	switch c := content.(type) {
	case nil:
		return "", nil
	case string:
		return c, nil
	case []any:
		texts := make([]string, len(c))
		for i, p := range c {
			switch p := p.(type) {
			case string:
				texts[i] = p
			case *jinja.Map:
				kind, _ := p.Get("type")
				name, _ := kind.(string)
				key := "text"
				if name == "refusal" {
					key = name
				}
				text, _ := p.Get(key)
				s, ok := text.(string)
				if !ok && textParts[name] {
					return "", fmt.Errorf("messages[%d].content[%d].%s must be a string", at, i, key)
				}
				if !ok || kind != nil && !textParts[name] {
					return "", &PartError{at, i, name}
				}
				texts[i] = s
			default:
				return "", &PartError{Message: at, Part: i}
			}
		}
		return strings.Join(texts, separator), nil
	}
	return "", fmt.Errorf("messages[%d].content must be a string, null or a list of parts", at)
}

// prepareCalls decodes the arguments of tool calls, which templates walk through: none,
// null and blank text are no arguments. Text that is no JSON stays text.
func prepareCalls(calls any, at int) (any, error) {
	list, ok := calls.([]any)
	if !ok {
		return nil, fmt.Errorf("messages[%d].tool_calls must be a list", at)
	}
	out := make([]any, len(list))
	for i, c := range list {
		call, ok := c.(*jinja.Map)
		if !ok {
			return nil, fmt.Errorf("messages[%d].tool_calls[%d] must be an object", at, i)
		}
		call = call.Clone()
		fn, wrapped := call.Get("function")
		f, ok := fn.(*jinja.Map)
		if wrapped && !ok {
			return nil, fmt.Errorf("messages[%d].tool_calls[%d].function must be an object", at, i)
		}
		if !wrapped {
			f = call
		} else {
			f = f.Clone()
			call.Set("function", f)
		}
		name, _ := f.Get("name")
		if s, ok := name.(string); !ok || s == "" {
			return nil, fmt.Errorf("messages[%d].tool_calls[%d].function.name must be a non-empty string", at, i)
		}
		a, _ := f.Get("arguments")
		if s, ok := a.(string); ok {
			if strings.TrimSpace(s) == "" {
				a = nil
			} else if v, err := jinja.DecodeJSON([]byte(s)); err == nil {
				a = v
			}
		}
		if a == nil {
			a = jinja.NewMap()
		}
		f.Set("arguments", a)
		out[i] = call
	}
	return out, nil
}

func role(m *jinja.Map) string {
	v, _ := m.Get("role")
	s, _ := v.(string)
	return s
}

func contentText(m *jinja.Map) string {
	v, _ := m.Get("content")
	s, _ := v.(string)
	return s
}

// withRole returns the messages with one role renamed.
func withRole(messages []*jinja.Map, from, to string) []*jinja.Map {
	out := make([]*jinja.Map, len(messages))
	for i, m := range messages {
		if role(m) == from {
			m = m.Clone()
			m.Set("role", to)
		}
		out[i] = m
	}
	return out
}

// foldSystem makes do with one system message, the first, or with none: system
// messages at the start are joined, others become part of the user turn beside
// them.
func foldSystem(messages []*jinja.Map, keepFirst bool) []*jinja.Map {
	var out []*jinja.Map
	pending := "" // system text waiting for the next user turn
	flush := func() {
		if pending != "" {
			u := jinja.NewMap()
			u.Set("role", "user")
			u.Set("content", pending)
			out = append(out, u)
			pending = ""
		}
	}
	for _, m := range messages {
		text := contentText(m)
		prev := len(out) - 1
		switch {
		case role(m) == "user":
			if pending != "" {
				m = m.Clone()
				m.Set("content", joinText(pending, text))
				pending = ""
			}
			out = append(out, m)
		case role(m) != "system" || keepFirst && prev < 0:
			flush()
			out = append(out, m)
		case prev >= 0 && pending == "" && (role(out[prev]) == "user" || role(out[prev]) == "system"):
			out[prev] = out[prev].Clone()
			out[prev].Set("content", joinText(contentText(out[prev]), text))
		default:
			pending = joinText(pending, text)
		}
	}
	flush()
	return out
}

func joinText(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n\n" + b
}

// defaultRoles is the text that stands around the messages of a model without
// a chat template.
var defaultRoles = [][2]string{{"system", "ASSISTANT's RULE: "}, {"user", "USER: "}, {"assistant", "ASSISTANT: "}, {"stop", "\n"}}

// DefaultRoleMapping returns the role mapping that mlx_lm.server uses when a
// request gives none.
func DefaultRoleMapping() *jinja.Map {
	m := jinja.NewMap()
	for _, kv := range defaultRoles {
		m.Set(kv[0], kv[1])
	}
	return m
}

// renderRoles writes messages with a prefix for each role.
func renderRoles(messages []*jinja.Map, roles *jinja.Map, o Options) (string, error) {
	get := func(key string) (string, error) {
		v, _ := roles.Get(key)
		s, ok := v.(string)
		if v != nil && !ok {
			return "", fmt.Errorf("role_mapping.%s must be a string", key)
		}
		return s, nil
	}
	var b strings.Builder
	stop, err := get("stop")
	if err != nil {
		return "", err
	}
	for i, m := range messages {
		prefix, err := get(role(m))
		if err != nil {
			return "", err
		}
		b.WriteString(prefix + contentText(m))
		if i < len(messages)-1 || !o.ContinueFinalMessage {
			b.WriteString(stop)
		}
	}
	if o.AddGenerationPrompt {
		prefix, err := get("assistant")
		if err != nil {
			return "", err
		}
		b.WriteString(prefix)
	}
	return strings.TrimRight(b.String(), " \t\r\n\v\f"), nil
}
