package chat

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkbar/engine/chat/jinja"
)

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// decode turns JSON text into template values.
func decode(t testing.TB, s string) any {
	t.Helper()
	v, err := jinja.DecodeJSON([]byte(s))
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return v
}

func messages(t testing.TB, s string) []*jinja.Map {
	t.Helper()
	var out []*jinja.Map
	for _, m := range decode(t, s).([]any) {
		out = append(out, m.(*jinja.Map))
	}
	return out
}

// TestApplyGoldens renders the recorded cases that go through transformers'
// message normalization.
func TestApplyGoldens(t *testing.T) {
	var file struct {
		Clock string
		Cases []struct {
			Name, Kind    string
			Template      *string
			Messages      []*jinja.Map
			Tools         json.RawMessage
			SpecialTokens *jinja.Map `json:"special_tokens"`
			Kwargs        *jinja.Map
			Output        *string
			Error         struct{ Type, Message string }
		}
	}
	readJSON(t, "jinja/testdata/templates.json", &file)
	clock, err := time.Parse("2006-01-02T15:04:05", file.Clock)
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, c := range file.Cases {
		if c.Kind != "apply" {
			continue
		}
		ran++
		t.Run(c.Name, func(t *testing.T) {
			if c.Template == nil {
				f, err := NewFormat(Config{})
				if err != nil || f.HasTemplate() || f.templates != nil {
					t.Errorf("a model without a template got one: %v", err)
				}
				return
			}
			src, _ := json.Marshal(*c.Template)
			f, err := NewFormat(Config{ChatTemplate: src, SpecialTokens: c.SpecialTokens})
			if err != nil {
				t.Fatal(err)
			}
			o := Options{Kwargs: c.Kwargs, Now: func() time.Time { return clock }}
			o.AddGenerationPrompt, _ = kwarg(c.Kwargs, "add_generation_prompt").(bool)
			o.ContinueFinalMessage, _ = kwarg(c.Kwargs, "continue_final_message").(bool)
			var tools []any
			if len(c.Tools) > 0 && string(c.Tools) != "null" {
				tools = decode(t, string(c.Tools)).([]any)
			}
			o.Kwargs = o.Kwargs.Clone()
			o.Kwargs.Delete("add_generation_prompt")
			o.Kwargs.Delete("continue_final_message")
			got, err := f.templates.apply(f.special, c.Messages, tools, o)
			if c.Output != nil {
				if err != nil {
					t.Fatalf("failed: %v", err)
				}
				if got != *c.Output {
					t.Errorf("got  %q\nwant %q", got, *c.Output)
				}
				return
			}
			if err == nil {
				t.Fatalf("got %q; want %s: %s", got, c.Error.Type, c.Error.Message)
			}
			var e *jinja.Error
			switch c.Error.Type {
			case "TemplateError":
				if !errors.As(err, &e) || e.Kind != jinja.Raised || err.Error() != c.Error.Message {
					t.Errorf("got %v; want the template's %q", err, c.Error.Message)
				}
			case "TypeError":
				if !errors.As(err, &e) || e.Kind != jinja.TypeError {
					t.Errorf("got %v; want a type error", err)
				}
			case "ValueError":
				if errors.As(err, &e) {
					t.Errorf("got the template error %v; want one about the request", err)
				}
			default:
				t.Fatalf("unknown error type %s", c.Error.Type)
			}
		})
	}
	if ran != 49 {
		t.Errorf("ran %d cases, the file should hold 49", ran)
	}
}

// TestToolParserGoldens parses the recorded tool blocks of all formats, whole
// and streamed.
func TestToolParserGoldens(t *testing.T) {
	var file struct {
		Tools   json.RawMessage
		Markers map[string][2]string
		Cases   []struct {
			Parser, Text string
			Result       json.RawMessage
			Error        *struct{ Message string }
		}
	}
	readJSON(t, "testdata/tool_parsers.json", &file)
	tools := decode(t, string(file.Tools)).([]any)
	for name, m := range file.Markers {
		f := toolFormatNamed(name)
		if f == nil || f.start != m[0] || f.end != m[1] {
			t.Errorf("format %s: markers differ from %q", name, m)
		}
	}
	if len(file.Cases) != 66 {
		t.Fatalf("the file should hold 66 cases, not %d", len(file.Cases))
	}
	for _, c := range file.Cases {
		f := toolFormatNamed(c.Parser)
		parsed, err := f.parse(c.Text, toolSchemas(tools))
		if c.Error != nil {
			if err == nil {
				t.Errorf("%s %q: got %v; want the error %q", c.Parser, c.Text, parsed, c.Error.Message)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %q: %v", c.Parser, c.Text, err)
			continue
		}
		want, _ := decode(t, string(c.Result)).([]any)
		if want == nil {
			want = []any{decode(t, string(c.Result))}
		}
		var got []any
		for _, p := range parsed {
			m := jinja.NewMap()
			if p.id != "" {
				m.Set("id", p.id)
			}
			m.Set("name", p.name)
			m.Set("arguments", p.args)
			got = append(got, m)
		}
		if g, w := sorted(t, got), sorted(t, want); g != w {
			t.Errorf("%s %q:\ngot  %s\nwant %s", c.Parser, c.Text, g, w)
		}

		// The same block in a stream, between texts.
		format, err := NewFormat(Config{ToolParser: c.Parser})
		if err != nil {
			t.Fatal(err)
		}
		stream := "Before. " + f.start + c.Text + f.end
		if strings.HasPrefix(c.Text, f.start) {
			stream = "Before. " + c.Text // a case with markers of its own
		}
		after := " After."
		if f.end == "" {
			after = ""
		}
		m := feed(format, stream+after, 3, ParserOptions{Calls: true, Tools: tools, Rules: MLXRules})
		if len(m.Calls) != len(want) || len(m.Broken) > 0 || m.Text != "Before. "+after {
			t.Errorf("%s %q streamed: %+v", c.Parser, c.Text, m)
		}
	}
}

// sorted encodes a value as JSON with sorted keys.
func sorted(t *testing.T, v any) string {
	t.Helper()
	tmpl, err := jinja.Compile("{{ v | tojson(sort_keys=true) }}", jinja.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	vars := jinja.NewMap()
	vars.Set("v", v)
	s, err := tmpl.Render(vars, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// feed parses text in pieces of n bytes.
func feed(f *Format, text string, n int, o ParserOptions) Message {
	p := f.NewParser(o)
	var m Message
	for text != "" {
		k := min(n, len(text))
		m.Add(p.Feed(text[:k])...)
		text = text[k:]
	}
	m.Add(p.Finish()...)
	return m
}

// TestDemoPrompts checks the prompts of the demo model against strings made
// with the reference implementation of the template language.
func TestDemoPrompts(t *testing.T) {
	var file struct {
		ChatTemplate json.RawMessage `json:"chat_template"`
		Prompts      []struct {
			Name     string
			Messages []*jinja.Map
			Kwargs   *jinja.Map
			Prompt   string
		}
	}
	readJSON(t, "testdata/demo_prompts.json", &file)
	f, err := NewFormat(Config{ChatTemplate: file.ChatTemplate})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range file.Prompts {
		tools, _ := kwarg(p.Kwargs, "tools").([]any)
		p.Kwargs.Delete("tools")
		got, err := f.Render(p.Messages, tools, Options{AddGenerationPrompt: true, Kwargs: p.Kwargs})
		if err != nil || got != p.Prompt {
			t.Errorf("%s: %v\ngot  %q\nwant %q", p.Name, err, got, p.Prompt)
		}
	}
	if len(file.Prompts) != 13 {
		t.Errorf("the file should hold 13 prompts, not %d", len(file.Prompts))
	}
	for name, want := range map[string]bool{"reasoning_effort": true, "enable_thinking": true, "tool_call": false, "nosuch": false} {
		if f.Uses(name) != want {
			t.Errorf("Uses(%q) = %v", name, !want)
		}
	}
	if f.ToolParser() != "json_tools" || !f.Thinks() {
		t.Errorf("tool parser %q, thinks %v", f.ToolParser(), f.Thinks())
	}
}

// TestRecordedAnswers parses what the toy model of the recorded exchanges
// writes, in every tool-call notation, without knowing the model's family, and
// wants the messages that were recorded.
func TestRecordedAnswers(t *testing.T) {
	tools := decode(t, `[{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
		{"type": "function", "function": {"name": "write_file", "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"},
		"lines": {"type": "integer"}, "force": {"type": "boolean"}, "tags": {"type": "array"}}}}}]`).([]any)
	f, err := NewFormat(Config{HasToken: func(s string) bool { return s == "<think>" || s == "</think>" }})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		answer, text string
		args         []string
	}{
		{"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>", "", []string{`{"city": "Paris", "days": 3}`}},
		{"Let me check both.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 1}}\n</tool_call>",
			"Let me check both.", []string{`{"city": "Rome"}`, `{"city": "Oslo", "days": 1}`}},
		{"<tool_call>\n<function=write_file>\n<parameter=path>\nnotes.txt\n</parameter>\n<parameter=content>\nline one\nline two\n</parameter>\n<parameter=lines>\n12\n</parameter>\n<parameter=force>\ntrue\n</parameter>\n</function>\n</tool_call>",
			"", []string{`{"path": "notes.txt", "content": "line one\nline two", "lines": 12, "force": true}`}},
		{`<|tool_call>call:write_file{path:<|"|>notes.txt<|"|>,lines:3,force:true}<tool_call|>`, "", []string{`{"path": "notes.txt", "lines": 3, "force": true}`}},
		{"<atem:function_calls>\n<atem:invoke name=\"write_file\">\n<atem:parameter name=\"path\">notes.txt</atem:parameter>\n<atem:parameter name=\"lines\">7</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
			"", []string{`{"path": "notes.txt", "lines": 7}`}},
		{`<function name="write_file"><param name="path">notes.txt</param><param name="content"><![CDATA[a < b]]></param><param name="lines">5</param></function>`,
			"", []string{`{"path": "notes.txt", "content": "a < b", "lines": 5}`}},
		{`<|tool_call_start|>[write_file(path="notes.txt", lines=9, tags=["a", "b"])]<|tool_call_end|>`, "", []string{`{"path": "notes.txt", "lines": 9, "tags": ["a", "b"]}`}},
		{"Saving now.\n<tool_call>\n{\"name\": \"write_file\", \"arguments\": {\"path\": notes.txt}}\n</tool_call>\nDone.",
			"Saving now.\n<tool_call>\n{\"name\": \"write_file\", \"arguments\": {\"path\": notes.txt}}\n</tool_call>\nDone.", nil},
		{"<tool_call>\n{\"name\": \"get_weather\", \"arguments", "<tool_call>\n{\"name\": \"get_weather\", \"arguments", nil},
	} {
		for n := 1; n < 9; n++ {
			m := feed(f, "<think>\nUse it.\n</think>\n\n"+c.answer, n, ParserOptions{Rules: SparkbarRules, Calls: true, Tools: tools})
			var args []string
			for _, call := range m.Calls {
				args = append(args, call.Arguments)
			}
			if m.Thought != "\nUse it.\n" || m.Text != c.text || !slices.Equal(args, c.args) {
				t.Errorf("%q: got %+v; want %q and %q", c.answer, m, c.text, c.args)
			}
		}
	}
}
