package chat

import (
	"fmt"
	"slices"
	"strings"

	"sparkbar/engine/chat/jinja"
)

// Call is one tool call that a model made.
type Call struct {
	ID        string // only if the model's format carries one
	Name      string
	Arguments string // JSON text, normally of an object
}

// toolFormat is how a family writes tool calls into its text.
type toolFormat struct {
	name       string // as tool_parser_type spells it
	start, end string // markers around a block; an empty end means the end of the text

	// parse reads what stands between the markers. Its errors say what is
	// wrong with the block.
	parse func(body string, s schemas) ([]parsedCall, error)

	// partial says of an unfinished block whose call it is and how the JSON of
	// the arguments begins, or is nil. What it returns for a longer block must
	// begin with what it returned for a shorter one.
	partial func(body string, s schemas) (name, args string, ok bool)

	// begin is how a call of a function begins, as far as that is the same for all
	// arguments; with name "", as far as it is the same for all functions. template
	// is the model's.
	begin func(name, template string) string

	// render is the inverse of parse: markers and all, as the family's templates do.
	render func(calls []parsedCall) string

	// inValue tells that body ends inside an argument, so that the end marker
	// found behind it is part of that argument. It may be nil.
	inValue func(body string) bool

	// detect recognises the family by its template, or is nil.
	detect func(template string) bool
}

// parsedCall is a Call with its arguments decoded.
type parsedCall struct {
	id, name string
	args     any // *jinja.Map, or what stood in its place
}

func contains(parts ...string) func(string) bool {
	return func(t string) bool {
		for _, p := range parts {
			if !strings.Contains(t, p) {
				return false
			}
		}
		return true
	}
}

func containsAny(parts ...string) func(string) bool {
	return func(t string) bool {
		for _, p := range parts {
			if strings.Contains(t, p) {
				return true
			}
		}
		return false
	}
}

// toolTable lists the tool-call formats. Detection by template takes the first
// that fits.
var toolTable = []*toolFormat{
	{
		name: "minimax_m2", start: "<minimax:tool_call>", end: "</minimax:tool_call>",
		begin: beginning("<minimax:tool_call>\n<invoke name=\"", "\">\n"),
		parse: parseInvoke, render: renderInvoke, inValue: openTag("<parameter name=", "</parameter>"),
		detect: contains("<minimax:tool_call>"),
	},
	{
		name: "gemma4", start: "<|tool_call>", end: "<tool_call|>",
		begin:   beginning("<|tool_call>call:", "{"),
		parse:   func(b string, _ schemas) ([]parsedCall, error) { return parseGemma(b, gemmaQuote, false) },
		render:  func(c []parsedCall) string { return renderGemma(c, gemmaQuote) },
		inValue: oddQuotes(gemmaQuote), detect: contains("<|tool_call>", "<tool_call|>"),
	},
	{
		name: "function_gemma", start: "<start_function_call>", end: "<end_function_call>",
		begin:   beginning("<start_function_call>call:", "{"),
		parse:   func(b string, _ schemas) ([]parsedCall, error) { return parseGemma(b, escapeQuote, true) },
		render:  func(c []parsedCall) string { return renderGemma(c, escapeQuote) },
		inValue: oddQuotes(escapeQuote), detect: contains("<start_function_call>"),
	},
	{
		name: "longcat", start: "<longcat_tool_call>", end: "</longcat_tool_call>",
		begin:   beginning("<longcat_tool_call>", ""),
		parse:   func(b string, s schemas) ([]parsedCall, error) { return parseLongcat(b, s) },
		render:  func(c []parsedCall) string { return renderArgKeys(c, "longcat_") },
		inValue: openTag("<longcat_arg_value>", "</longcat_arg_value>"), detect: contains("<longcat_tool_call>"),
	},
	{
		name: "glm47", start: "<tool_call>", end: "</tool_call>",
		begin: beginning("<tool_call>", ""),
		parse: parseGLM, render: func(c []parsedCall) string { return renderArgKeys(c, "") },
		inValue: openTag("<arg_value>", "</arg_value>"), detect: contains("<arg_key>"),
	},
	{
		name: "pythonic", start: "<|tool_call_start|>", end: "<|tool_call_end|>",
		begin: beginning("<|tool_call_start|>[", "("),
		parse: parsePythonic, render: renderPythonic, inValue: inPythonString,
		detect: containsAny("<|tool_list_start|>", "<|tool_call_start|>"),
	},
	{
		name: "qwen3_coder", start: "<tool_call>", end: "</tool_call>",
		begin: beginning("<tool_call>\n<function=", ">\n"),
		parse: parseQwenXML, partial: partialQwen, render: renderQwenXML, inValue: openTag("<parameter=", "</parameter>"),
		detect: containsAny("<tool_call>\\n<function=", "<tool_call>\n<function="),
	},
	{
		name: "kimi_k2", start: "<|tool_calls_section_begin|>", end: "<|tool_calls_section_end|>",
		begin: beginning("<|tool_calls_section_begin|><|tool_call_begin|>functions.", ":"),
		parse: parseKimi2, render: renderKimi2, detect: contains("<|tool_calls_section_begin|>"),
	},
	{
		name: "minicpm5", start: "<function name=", end: "</function>",
		begin: beginning("<function name=\"", "\">"),
		parse: parseMiniCPM, render: renderMiniCPM, inValue: openTag("<![CDATA[", "]]>"),
		detect: contains(`<function name="`, `<param name="`),
	},
	{
		name: "mistral", start: "[TOOL_CALLS]",
		begin: beginMistral,
		parse: parseMistral, render: renderMistral, detect: contains("[TOOL_CALLS]"),
	},
	{
		name: "muse_spark", start: "<atem:function_calls>", end: "</atem:function_calls>",
		begin: beginning("<atem:function_calls>\n<atem:invoke name=\"", "\">\n"),
		parse: parseAtem, render: renderAtem, inValue: openTag("<atem:parameter ", "</atem:parameter>"),
		detect: contains("<atem:function_calls>"),
	},
	{
		name: "json_tools", start: "<tool_call>", end: "</tool_call>",
		begin: beginning("<tool_call>\n{\"name\": \"", "\","),
		parse: parseJSONCalls, partial: partialJSON, render: renderJSONCalls, inValue: inJSONString,
		detect: contains("<tool_call>", "tool_call.name"),
	},
	{
		name: "kimi_k3", start: "<|open|>tools<|sep|>", end: "<|close|>tools<|sep|>",
		begin: beginning("<|open|>tools<|sep|><|open|>call tool=\"", "\""),
		parse: parseKimi3, render: renderKimi3,
	},
}

// bareAtem reads a Muse call without the block around it.
var bareAtem = &toolFormat{
	name: "muse_spark", start: "<atem:invoke ", end: "</atem:invoke>",
	parse: func(b string, s schemas) ([]parsedCall, error) {
		return parseAtem("<atem:invoke "+b+"</atem:invoke>", s)
	},
	inValue: openTag("<atem:parameter ", "</atem:parameter>"),
}

func toolFormatNamed(name string) *toolFormat {
	if name == "laguna" { // the same text under another name
		name = "glm47"
	}
	for _, t := range toolTable {
		if t.name == name {
			return t
		}
	}
	return nil
}

// findTools chooses the formats to look for in a model's text: the one that is
// configured, recognised by the template or by the vocabulary; else all those
// whose markers cannot be mistaken.
func findTools(configured, template string, has func(string) bool) ([]*toolFormat, string, error) {
	found := toolFormatNamed(configured)
	if configured != "" && found == nil {
		return nil, "", fmt.Errorf("tool_parser_type '%s' is not known; known are %s", configured, strings.Join(toolNames(), ", "))
	}
	for _, t := range toolTable {
		if found == nil && t.detect != nil && t.detect(template) {
			found = t
		}
	}
	if found == nil {
		switch {
		case has("<|open|>") && has("<|close|>") && has("<|sep|>") && has("<|end_of_msg|>"):
			found = toolFormatNamed("kimi_k3")
		case has("<|tool_call_start|>") && has("<|tool_call_end|>"):
			found = toolFormatNamed("pythonic")
		}
	}
	if found == nil {
		var all []*toolFormat
		for _, name := range [...]string{"json_tools", "qwen3_coder", "minicpm5", "gemma4", "muse_spark", "pythonic"} {
			all = append(all, toolFormatNamed(name))
		}
		return append(all, bareAtem), "", nil
	}
	formats := []*toolFormat{found}
	switch found.name {
	case "json_tools":
		formats = append(formats, toolFormatNamed("qwen3_coder"))
	case "qwen3_coder":
		formats = append(formats, toolFormatNamed("json_tools"))
	case "muse_spark":
		formats = append(formats, bareAtem)
	}
	return formats, found.name, nil
}

func toolNames() []string {
	names := []string{"laguna"}
	for _, t := range toolTable {
		names = append(names, t.name)
	}
	slices.Sort(names)
	return names
}

// --- schemas ---

// schemas holds the parameters of the tools of a request, by function name.
type schemas map[string]*jinja.Map

// toolSchemas reads tools in the shape of OpenAI or of Anthropic.
func toolSchemas(tools []any) schemas {
	s := schemas{}
	for _, t := range tools {
		m, ok := t.(*jinja.Map)
		if !ok {
			continue
		}
		if fn, _ := m.Get("function"); fn != nil {
			if f, ok := fn.(*jinja.Map); ok {
				m = f
			}
		}
		name, _ := m.Get("name")
		key, ok := name.(string)
		if !ok || key == "" {
			continue
		}
		params := jinja.NewMap()
		for _, at := range [...]string{"parameters", "input_schema"} {
			if schema, _ := m.Get(at); schema != nil {
				if sm, ok := schema.(*jinja.Map); ok {
					if p, _ := sm.Get("properties"); p != nil {
						if pm, ok := p.(*jinja.Map); ok {
							params = pm
						}
					}
				}
			}
		}
		s[key] = params
	}
	return s
}

// param returns the schema of a parameter, nil if there is none.
func (s schemas) param(function, name string) *jinja.Map {
	params := s[function]
	if params == nil {
		return nil
	}
	v, _ := params.Get(name)
	m, _ := v.(*jinja.Map)
	return m
}

// types collects the types that a schema allows, from type, enum and the
// alternatives of anyOf, oneOf and allOf.
func types(schema *jinja.Map) []string { return collectTypes(schema, 0) }

func collectTypes(schema *jinja.Map, depth int) []string {
	var out []string
	if schema == nil || depth > 16 {
		return nil
	}
	add := func(t string) {
		if t = strings.ToLower(strings.TrimSpace(t)); !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	switch t, _ := schema.Get("type"); t := t.(type) {
	case string:
		add(t)
	case []any:
		for _, it := range t {
			if s, ok := it.(string); ok {
				add(s)
			}
		}
	}
	if enum, _ := schema.Get("enum"); enum != nil {
		if list, ok := enum.([]any); ok {
			for _, v := range list {
				add(jsonType(v))
			}
		}
	}
	for _, key := range [...]string{"anyOf", "oneOf", "allOf"} {
		if v, _ := schema.Get(key); v != nil {
			if list, ok := v.([]any); ok {
				for _, it := range list {
					if m, ok := it.(*jinja.Map); ok {
						for _, t := range collectTypes(m, depth+1) {
							add(t)
						}
					}
				}
			}
		}
	}
	return out
}

func jsonType(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case float64:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	case *jinja.Map:
		return "object"
	}
	return "integer"
}

// --- where an end marker is part of a value ---

// openTag tells that the last open in the body is not closed.
func openTag(open, close string) func(string) bool {
	return func(body string) bool { return strings.LastIndex(body, open) > strings.LastIndex(body, close) }
}

func oddQuotes(quote string) func(string) bool {
	return func(body string) bool { return strings.Count(body, quote)%2 == 1 }
}

// inJSONString tells that the body ends inside a string of JSON.
func inJSONString(body string) bool {
	in := false
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '\\':
			if in {
				i++
			}
		case '"':
			in = !in
		}
	}
	return in && strings.HasPrefix(strings.TrimSpace(body), "{")
}

// inPythonString tells that the body ends inside a Python string.
func inPythonString(body string) bool {
	quote := byte(0)
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quote != 0 && c == '\\':
			i++
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case c == quote:
			quote = 0
		}
	}
	return quote != 0
}
