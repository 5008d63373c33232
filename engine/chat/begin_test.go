package chat

import (
	"strings"
	"testing"

	"sparkbar/engine/chat/jinja"
)

// TestBeginCall: in every format, what BeginCall gives is how a call begins that is
// written as the family's templates write it, and a parser that has read it takes
// the rest for that call.
func TestBeginCall(t *testing.T) {
	args := jinja.NewMap()
	args.Set("city", "Rome")
	schema := jinja.NewMap()
	props, city := jinja.NewMap(), jinja.NewMap()
	city.Set("type", "string")
	props.Set("city", city)
	schema.Set("properties", props)
	fn := jinja.NewMap()
	fn.Set("name", "get_weather")
	fn.Set("parameters", schema)
	for _, tf := range toolTable {
		block := tf.render([]parsedCall{{name: "get_weather", args: args}})
		for _, name := range []string{"", "get_weather"} {
			f := &Format{thought: thoughtTable[0], tools: []*toolFormat{tf}, toolName: tf.name,
				templates: &templates{source: map[string]string{defaultName: "[ARGS]"}}} // what render does for mistral
			begin := f.BeginCall(name)
			if begin == "" || !strings.HasPrefix(block, begin) {
				t.Errorf("%s of %q begins with %q, but a call is %q", tf.name, name, begin, block)
				continue
			}
			p := f.NewParser(ParserOptions{Rules: SparkbarRules, Calls: true, Tools: []any{fn}})
			events := p.Feed(begin)
			if len(events) > 0 {
				t.Errorf("%s: %q tells %v already", tf.name, begin, events)
			}
			events = append(p.Feed(block[len(begin):]), p.Finish()...)
			if len(events) != 3 || events[0].Kind != CallStart || events[0].Name != "get_weather" || events[1].Text != `{"city": "Rome"}` || events[2].Kind != CallEnd {
				t.Errorf("%s after %q: %v", tf.name, begin, events)
			}
		}
	}
}

// TestBeginCallOfFamilies: the formats that depend on more than the table.
func TestBeginCallOfFamilies(t *testing.T) {
	none := func(string) bool { return false }
	for _, c := range []struct {
		template, name, want, rest string
	}{
		{"[TOOL_CALLS]{{ name }}[ARGS]", "", "[TOOL_CALLS]", `f[ARGS]{"a": 1}`},
		{"[TOOL_CALLS]{{ name }}[ARGS]", "f", "[TOOL_CALLS]f[ARGS]", `{"a": 1}`},
		{"[TOOL_CALLS] [", "f", `[TOOL_CALLS][{"name": "f",`, ` "arguments": {"a": 1}}]`},
		{"<|start|><|message|><|channel|>", "", "<|channel|>commentary to=functions.", `f <|constrain|>json<|message|>{"a": 1}<|call|>`},
		{"<|start|><|message|><|channel|>", "f", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", `{"a": 1}<|call|>`},
		{"<|start|><|message|><|eom|><atem:function_calls>", "f", " to=user<|message|><atem:function_calls>\n<atem:invoke name=\"f\">\n",
			"<atem:parameter name=\"a\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>"},
		{"{{ messages }}", "f", "", ""}, // no known format
		{"<|start|><|message|><|eom|>", "f", "", ""},
		{`<tool_call> tool_call.name`, `a"b`, "<tool_call>\n{\"name\": \"a\\\"b\",", ""},
	} {
		f, err := NewFormat(Config{TemplateFiles: map[string]string{"default": "{# " + c.template + " #}"}, HasToken: none})
		if strings.HasPrefix(c.template, "{{") {
			f, err = NewFormat(Config{TemplateFiles: map[string]string{"default": c.template}, HasToken: none})
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := f.BeginCall(c.name); got != c.want {
			t.Errorf("%s of %q: %q, want %q", c.template, c.name, got, c.want)
			continue
		}
		if c.rest == "" {
			continue
		}
		p := f.NewParser(ParserOptions{Rules: SparkbarRules, Calls: true})
		events := append(p.Feed(c.want), append(p.Feed(c.rest), p.Finish()...)...)
		if len(events) != 3 || events[0].Kind != CallStart || events[0].Name != "f" || events[1].Text != `{"a": 1}` && events[1].Text != `{"a": "1"}` {
			t.Errorf("%s of %q: %v", c.template, c.name, events)
		}
	}
}
