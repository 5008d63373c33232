package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/chat/jinja"
)

// vocabulary makes a HasToken from a list of tokens.
func vocabulary(tokens ...string) func(string) bool {
	return func(t string) bool { return slices.Contains(tokens, t) }
}

func newFormat(t testing.TB, c Config) *Format {
	t.Helper()
	f, err := NewFormat(c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func quoted(s string) json.RawMessage {
	b, _ := json.Marshal(s)
	return b
}

var (
	thinkFormat   = Config{HasToken: vocabulary("<think>", "</think>")}
	gemmaFormat   = Config{HasToken: vocabulary("<|channel>", "<channel|>"), ToolParser: "gemma4"}
	kimi3Format   = Config{HasToken: vocabulary("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")}
	harmonyFormat = Config{HasToken: vocabulary("<|start|>", "<|message|>", "<|channel|>")}
	museFormat    = Config{HasToken: vocabulary("<|start|>", "<|message|>", "<|eom|>"), ToolParser: "muse_spark"}
)

// answers are texts of models with what is to become of them.
var answers = []struct {
	name   string
	config Config
	rules  Rules
	o      ParserOptions
	text   string
	want   Message
	broken int
}{
	// Thoughts.
	{name: "plain", config: thinkFormat, rules: SparkbarRules, text: " Hello \n world \n", want: Message{Text: " Hello \n world \n"}},
	{name: "blank", config: thinkFormat, rules: SparkbarRules, text: " \n ", want: Message{Text: " \n "}},
	{name: "thought", config: thinkFormat, rules: SparkbarRules, text: "\n<think>\nWell.\n</think>\n\nHello ", want: Message{Thought: "\nWell.\n", Text: "Hello "}},
	{name: "thought, mlx", config: thinkFormat, rules: MLXRules, text: "<think>\nWell.\n</think>\n\nHello ", want: Message{Thought: "\nWell.\n", Text: "\n\nHello "}},
	{name: "unclosed thought", config: thinkFormat, rules: SparkbarRules, text: "<think>\nWell. </thin", want: Message{Thought: "\nWell. </thin"}},
	{name: "only thought", config: thinkFormat, rules: SparkbarRules, text: "<think>a</think>\n", want: Message{Thought: "a"}},
	{name: "prompt opened it", config: thinkFormat, rules: SparkbarRules, o: ParserOptions{Prompt: "<|im_start|>assistant\n<think>\n"}, text: "Well.\n</think>\n\nHello", want: Message{Thought: "Well.\n", Text: "Hello"}},
	{name: "prompt closed it", config: thinkFormat, rules: SparkbarRules, o: ParserOptions{Prompt: "<think>\n\n</think>\n\n"}, text: "Hello", want: Message{Text: "Hello"}},
	{name: "prompt opened it, cut", config: thinkFormat, rules: SparkbarRules, o: ParserOptions{Prompt: "<think>"}, text: "Well.", want: Message{Thought: "Well."}},
	{name: "prompt speaks of it", config: thinkFormat, rules: SparkbarRules, o: ParserOptions{Prompt: "user: what is <think>?\nassistant:"}, text: "A tag.", want: Message{Text: "A tag."}},
	{name: "continued thought", config: thinkFormat, rules: SparkbarRules, o: ParserOptions{Prompt: "assistant\n<think>\nWe", Continued: true}, text: "ll.</think>Hi", want: Message{Thought: "ll.", Text: "Hi"}},
	{name: "late thought", config: thinkFormat, rules: SparkbarRules, text: "Well.\n</think>\n\nHello", want: Message{Thought: "Well.\n", Text: "Hello"}},
	{name: "late thought, mlx", config: thinkFormat, rules: MLXRules, text: "Well.\n</think>\n\nHello", want: Message{Text: "Well.\n</think>\n\nHello"}},
	{name: "second closing tag", config: thinkFormat, rules: SparkbarRules, text: "<think>a</think>b</think>c", want: Message{Thought: "a", Text: "b</think>c"}},
	{name: "tag in answer", config: thinkFormat, rules: SparkbarRules, text: "Use <think> and < think", want: Message{Text: "Use <think> and < think"}},
	{name: "tag in answer, mlx", config: thinkFormat, rules: MLXRules, text: "So <think>hm</think> yes", want: Message{Thought: "hm", Text: "So  yes"}},
	{name: "no reasoning wanted", config: thinkFormat, rules: SparkbarRules, o: ParserOptions{NoThought: true}, text: "<think>a</think>b", want: Message{Text: "<think>a</think>b"}},
	{name: "other tags", config: Config{HasToken: vocabulary("<longcat_think>", "</longcat_think>")}, rules: SparkbarRules, text: "<longcat_think>a</longcat_think>b", want: Message{Thought: "a", Text: "b"}},
	{name: "undeclared", rules: SparkbarRules, text: "<think>a</think>b", want: Message{Thought: "a", Text: "b"}},
	{name: "gemma", config: gemmaFormat, rules: SparkbarRules, text: "<|channel>thought\nHm.\n<channel|>Hi", want: Message{Thought: "Hm.\n", Text: "Hi"}},
	{name: "gemma, mlx", config: gemmaFormat, rules: MLXRules, text: "<|channel>thought\nHm.\n<channel|>Hi", want: Message{Thought: "\nHm.\n", Text: "Hi"}},
	{name: "gemma, prompt", config: gemmaFormat, rules: SparkbarRules, o: ParserOptions{Prompt: "<|turn>model\n<|channel>thought\n"}, text: "Hm.<channel|>Hi", want: Message{Thought: "Hm.", Text: "Hi"}},
	{name: "kimi k3", config: kimi3Format, rules: SparkbarRules, text: "<|open|>think<|sep|>Hm<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|><|close|>message<|sep|>", want: Message{Thought: "Hm", Text: "Hi"}},
	{name: "harmony", config: harmonyFormat, rules: SparkbarRules, text: "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi <b>!<|return|>", want: Message{Thought: "Hm.", Text: "Hi <b>!"}},
	{name: "harmony, cut", config: harmonyFormat, rules: SparkbarRules, text: "<|channel|>analysis<|message|>Hm. <|e", want: Message{Thought: "Hm. <|e"}},
	{name: "harmony, no channels", config: harmonyFormat, rules: SparkbarRules, text: "Just text", want: Message{Text: "Just text"}},
	{name: "harmony, preamble", config: harmonyFormat, rules: SparkbarRules, text: "<|channel|>commentary<|message|>Let me see.<|end|>", want: Message{Text: "Let me see."}},
	{name: "harmony, call", config: harmonyFormat, rules: SparkbarRules, o: ParserOptions{Calls: true},
		text: "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Rome\"}<|call|>",
		want: Message{Thought: "Hm.", Calls: []Call{{Name: "get_weather", Arguments: `{"city": "Rome"}`}}}},
	{name: "harmony, call at the end", config: harmonyFormat, rules: SparkbarRules, o: ParserOptions{Calls: true},
		text: "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}", want: Message{Calls: []Call{{Name: "f", Arguments: `{}`}}}},
	{name: "harmony, broken call", config: harmonyFormat, rules: SparkbarRules, o: ParserOptions{Calls: true},
		text: "<|channel|>commentary to=functions.f<|message|>{\"a\":<|call|>", want: Message{Text: "<|channel|>commentary to=functions.f<|message|>{\"a\":<|call|>"}, broken: 1},
	{name: "harmony, calls not wanted", config: harmonyFormat, rules: SparkbarRules, text: "<|channel|>commentary to=functions.f<|message|>{}<|call|>", want: Message{Text: "{}"}},
	{name: "muse", config: museFormat, rules: SparkbarRules, o: ParserOptions{Calls: true},
		text: " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Hi <atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter name=\"a\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>",
		want: Message{Thought: "Hm.", Text: "Hi", Calls: []Call{{Name: "f", Arguments: `{"a": 1}`}}}},
	{name: "muse, bare call", config: museFormat, rules: SparkbarRules, o: ParserOptions{Calls: true},
		text: "to=user<|message|><atem:invoke name=\"f\"><atem:parameter name=\"a\">x</atem:parameter></atem:invoke>", want: Message{Calls: []Call{{Name: "f", Arguments: `{"a": "x"}`}}}},

	// Calls.
	{name: "call", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>\n",
		want: Message{Text: "Sure.", Calls: []Call{{Name: "f", Arguments: `{"a": 1}`}}}},
	{name: "call, mlx", rules: MLXRules, o: ParserOptions{Calls: true}, text: "Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>\n",
		want: Message{Text: "Sure.\n\n", Calls: []Call{{Name: "f", Arguments: `{"a": 1}`}}}},
	{name: "two calls and text", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": \"{}\"}</tool_call>\n\nDone. ",
		want: Message{Text: "Done.", Calls: []Call{{Name: "f", Arguments: "{}"}, {Name: "g", Arguments: "{}"}}}},
	{name: "text around", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "A\n<tool_call>{\"name\": \"f\"}</tool_call>\nB",
		want: Message{Text: "A\n\nB", Calls: []Call{{Name: "f", Arguments: "{}"}}}},
	{name: "calls not wanted", rules: SparkbarRules, text: "<tool_call>{\"name\": \"f\"}</tool_call>", want: Message{Text: "<tool_call>{\"name\": \"f\"}</tool_call>"}},
	{name: "end marker in an argument", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: `<tool_call>{"name": "f", "arguments": {"a": "x</tool_call>\"y"}}</tool_call>z`,
		want: Message{Text: "z", Calls: []Call{{Name: "f", Arguments: `{"a": "x</tool_call>\"y"}`}}}},
	{name: "call cut", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "A <tool_call>{\"name\": \"f\", \"argum", want: Message{Text: "A <tool_call>{\"name\": \"f\", \"argum"}, broken: 1},
	{name: "closing marker missing", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "A <tool_call>{\"name\": \"f\"}\n", want: Message{Text: "A", Calls: []Call{{Name: "f", Arguments: "{}"}}}},
	{name: "marker cut", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "A <tool_", want: Message{Text: "A <tool_"}},
	{name: "broken call, then text", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "A <tool_call>{nope}</tool_call> B", want: Message{Text: "A <tool_call>{nope}</tool_call> B"}, broken: 1},
	{name: "end marker in a string that never ends", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "A <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x</tool_call> B <b> C",
		want: Message{Text: "A <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x</tool_call> B <b> C"}, broken: 1},
	{name: "the same, then a call", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x</tool_call><tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"y</tool_call>\"}}</tool_call>",
		want: Message{Text: "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x</tool_call>", Calls: []Call{{"", "f", `{"a": "y</tool_call>"}`}}}, broken: 1},
	{name: "no name", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "<tool_call>{\"nam\": 1}</tool_call>", want: Message{Text: "<tool_call>{\"nam\": 1}</tool_call>"}, broken: 1},
	{name: "closing marker alone", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "A </tool_call> B", want: Message{Text: "A </tool_call> B"}},
	{name: "xml under the json marker", rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "<tool_call>\n<function=f>\n<parameter=a>\n1</tool_call>2\n</parameter>\n</function>\n</tool_call>",
		want: Message{Calls: []Call{{Name: "f", Arguments: `{"a": "1</tool_call>2"}`}}}},
	{name: "thought, then call", config: thinkFormat, rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "<think>I call <tool_call>{\"name\": \"x\"}</tool_call></think>\n\n<tool_call>{\"name\": \"f\"}</tool_call>",
		want: Message{Thought: "I call <tool_call>{\"name\": \"x\"}</tool_call>", Calls: []Call{{Name: "f", Arguments: "{}"}}}},
	{name: "call in thought, mlx", config: thinkFormat, rules: MLXRules, o: ParserOptions{Calls: true}, text: "<think>So<tool_call>{\"name\": \"f\"}</tool_call>Hi",
		want: Message{Thought: "So", Text: "Hi", Calls: []Call{{Name: "f", Arguments: "{}"}}}},
	{name: "unknown tool", rules: Rules{KnownTools: true}, o: ParserOptions{Calls: true}, text: "<tool_call>{\"name\": \"f\"}</tool_call>", want: Message{Text: "<tool_call>{\"name\": \"f\"}</tool_call>"}, broken: 1},
	{name: "mistral", config: Config{ToolParser: "mistral"}, rules: SparkbarRules, o: ParserOptions{Calls: true}, text: "Ok[TOOL_CALLS]f[ARGS]{\"a\": \"]\"}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}",
		want: Message{Text: "Ok", Calls: []Call{{Name: "f", Arguments: `{"a": "]"}`}, {ID: "abc", Name: "g", Arguments: "{}"}}}},
	{name: "kimi k2", config: Config{ToolParser: "kimi_k2"}, rules: SparkbarRules, o: ParserOptions{Calls: true},
		text: "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_calls_section_end|>",
		want: Message{Calls: []Call{{ID: "functions.f:0", Name: "f", Arguments: `{"a": 1}`}}}},
	{name: "minicpm with markup in text", config: Config{ToolParser: "minicpm5"}, rules: SparkbarRules, o: ParserOptions{Calls: true},
		text: "<function name=\"f\"><param name=\"a\"><![CDATA[</function>]]></param></function>", want: Message{Calls: []Call{{Name: "f", Arguments: `{"a": "</function>"}`}}}},
	{name: "gemma nested", config: gemmaFormat, rules: SparkbarRules, o: ParserOptions{Calls: true}, text: `<|tool_call>call:f{o:{k:[1,{z:<|"|>a,}<tool_call|><|"|>}]},b:true}<tool_call|>`,
		want: Message{Calls: []Call{{Name: "f", Arguments: `{"o": {"k": [1, {"z": "a,}<tool_call|>"}]}, "b": true}`}}}},
}

// TestAnswers parses every answer whole and in pieces of all small sizes.
func TestAnswers(t *testing.T) {
	for _, a := range answers {
		t.Run(a.name, func(t *testing.T) {
			f := newFormat(t, a.config)
			o := a.o
			o.Rules = a.rules
			whole := f.Parse(a.text, o)
			if len(whole.Broken) != a.broken {
				t.Errorf("broken: %v; want %d", whole.Broken, a.broken)
			}
			for n := 1; n <= 24; n++ {
				o.StreamCalls = n > 12
				got := feed(f, a.text, n%12+1, o)
				got.Broken = nil
				if len(got.Calls) == 0 {
					got.Calls = nil
				}
				if !reflect.DeepEqual(got, a.want) {
					t.Fatalf("in pieces of %d:\ngot  %+v\nwant %+v", n, got, a.want)
				}
			}
		})
	}
}

// TestEventOrder wants the events of a call in their order, with indices that
// count up.
func TestEventOrder(t *testing.T) {
	f := newFormat(t, Config{})
	p := f.NewParser(ParserOptions{Calls: true, Rules: SparkbarRules})
	events := append(p.Feed("A<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"g\"}</tool_call>"), p.Finish()...)
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprint(e.Kind, " ", e.Call, " ", e.Name))
	}
	want := []string{fmt.Sprint(Text, " 0 "), fmt.Sprint(CallStart, " 0 f"), fmt.Sprint(CallArgs, " 0 "), fmt.Sprint(CallEnd, " 0 "),
		fmt.Sprint(CallStart, " 1 g"), fmt.Sprint(CallArgs, " 1 "), fmt.Sprint(CallEnd, " 1 ")}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestStreamCalls wants the arguments of long calls reported while they are
// being written.
func TestStreamCalls(t *testing.T) {
	tools := decode(t, `[{"function": {"name": "write", "parameters": {"properties": {"path": {"type": "string"}, "n": {"type": "integer"}, "text": {"type": "string"}}}}}]`).([]any)
	long := strings.Repeat("Line with \"quotes\", \\ and é😀.\n", 200)
	args := jinja.NewMap()
	args.Set("path", "a.txt")
	args.Set("n", int64(12))
	args.Set("text", long)
	calls := []parsedCall{{name: "write", args: args}}
	texts := map[string]string{"harmony": "<|start|>assistant<|channel|>commentary to=functions.write<|message|>" + toJSON(args) + "<|call|>"}
	for _, name := range []string{"json_tools", "qwen3_coder"} {
		texts[name] = toolFormatNamed(name).render(calls)
	}
	for name, text := range texts {
		c := Config{ToolParser: name}
		if name == "harmony" {
			c = harmonyFormat
		}
		f := newFormat(t, c)
		o := ParserOptions{Calls: true, Tools: tools, StreamCalls: true, Rules: SparkbarRules}
		for _, n := range []int{1, 3, 7, 50} {
			p := f.NewParser(o)
			got, deltas, first := "", 0, 0
			for at := 0; at < len(text); at += n {
				for _, e := range p.Feed(text[at:min(at+n, len(text))]) {
					if e.Kind == CallArgs {
						got += e.Text
						if deltas++; deltas == 1 {
							first = at
						}
					} else if e.Kind == CallDrop {
						t.Fatalf("%s: the call was dropped", name)
					}
				}
			}
			p.Finish()
			if got != toJSON(args) || deltas < 40 || first > 200 {
				t.Errorf("%s by %d: %d deltas, first after %d bytes\ngot  %.300s\nwant %.300s", name, n, deltas, first, got, toJSON(args))
			}
		}
		// Cut off, all of it comes back as text.
		cut := text[:len(text)-40]
		if m := feed(f, cut, 5, o); m.Text != strings.TrimPrefix(cut, channelStart) || len(m.Calls) > 0 || len(m.Broken) != 1 {
			t.Errorf("%s, cut: %.200q, %v, %v", name, m.Text, m.Calls, m.Broken)
		}
	}
}

// TestJSONPrefix wants every beginning of a JSON text rewritten to a beginning
// of its final form.
func TestJSONPrefix(t *testing.T) {
	for _, raw := range []string{
		`{"a":1,"b" : [1.0, -2e3 ,true,null,{}],"c":{"d":"x\\y\"z\u00e9\ud83d\ude00\n\/"},"é😀":"é😀"} tail`,
		`{}`, `{ "a" : { } , "b":[ ]}`, `{"a":"\ud83d"}`, `{"a": "tab	raw"}`, `{"a":12345678901234567890123,"b":0.1}`, `{"a":"\\\\","b":"\\"}`,
	} {
		v, err := looseJSON(raw[:jsonEnd(raw)])
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		want := toJSON(v)
		last := ""
		for i := range len(raw) + 1 {
			got := jsonPrefix(raw[:i])
			if !strings.HasPrefix(want, got) || !strings.HasPrefix(got, last) {
				t.Fatalf("%q became %q after %q; want a beginning of %q", raw[:i], got, last, want)
			}
			last = got
		}
		if last != want {
			t.Errorf("got  %s\nwant %s", last, want)
		}
	}
}

// TestPromptness wants text passed on as soon as it cannot be a marker.
func TestPromptness(t *testing.T) {
	f := newFormat(t, thinkFormat)
	p := f.NewParser(ParserOptions{Calls: true, Rules: SparkbarRules})
	for _, step := range []struct{ in, out string }{{"<", ""}, {"b", "<b"}, {"> x", "> x"}, {" ", ""}, {"y", " y"}, {"<tool", ""}, {"s>", "<tools>"}} {
		got := ""
		for _, e := range p.Feed(step.in) {
			got += e.Text
		}
		if got != step.out {
			t.Errorf("after %q: got %q; want %q", step.in, got, step.out)
		}
	}
}

// TestRenderCalls renders calls in every format and parses them back.
func TestRenderCalls(t *testing.T) {
	tools := decode(t, `[{"type": "function", "function": {"name": "get_it", "parameters": {"type": "object", "properties": {
		"s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
		"o": {"type": "object"}, "a": {"type": "array"}}}}}, {"name": "other", "input_schema": {"properties": {"s": {"type": "string"}}}}]`).([]any)
	calls := []parsedCall{
		{name: "get_it", args: decode(t, `{"s": "two words, é \"q\" {x}", "i": 42, "n": 2.5, "b": true, "o": {"k": [1, "x", null]}, "a": [{"z": 1}, []]}`)},
		{name: "other", args: decode(t, `{"s": "12"}`)},
		{name: "noargs", args: decode(t, `{}`)},
	}
	for _, format := range toolTable {
		f := newFormat(t, Config{ToolParser: format.name})
		text := format.render(calls)
		m := feed(f, "Before "+text, 5, ParserOptions{Calls: true, Tools: tools, Rules: SparkbarRules})
		if m.Text != "Before" || len(m.Broken) > 0 || len(m.Calls) != len(calls) {
			t.Errorf("%s: %+v\nfrom %s", format.name, m, text)
			continue
		}
		for i, c := range calls {
			if m.Calls[i].Name != c.name || m.Calls[i].Arguments != toJSON(c.args) {
				t.Errorf("%s: got %+v; want %s %s\nfrom %s", format.name, m.Calls[i], c.name, toJSON(c.args), text)
			}
		}
	}
}

// TestDetection wants families recognised as the references do.
func TestDetection(t *testing.T) {
	for _, c := range []struct {
		template, tokens, parser, open string
		thinks                         bool
	}{
		{template: "<tool_call> {{ tool_call.name }}", parser: "json_tools", open: "<think>"},
		{template: "<tool_call>\\n<function=", parser: "qwen3_coder", open: "<think>"},
		{template: "<tool_call>\n<function=f> <arg_key>", parser: "glm47", open: "<think>"},
		{template: "<minimax:tool_call> <tool_call> tool_call.name", parser: "minimax_m2", open: "<think>"},
		{template: "<|tool_call>call:<tool_call|>", parser: "gemma4", open: "<think>"},
		{template: "<start_function_call>", parser: "function_gemma", open: "<think>"},
		{template: "<longcat_tool_call>", parser: "longcat", open: "<think>"},
		{template: "<|tool_list_start|>", parser: "pythonic", open: "<think>"},
		{template: "<|tool_calls_section_begin|>", parser: "kimi_k2", open: "<think>"},
		{template: `<function name="f"><param name="p">`, parser: "minicpm5", open: "<think>"},
		{template: "[TOOL_CALLS]", parser: "mistral", open: "<think>"},
		{template: "<atem:function_calls>", parser: "muse_spark", open: "<think>"},
		{template: "x", tokens: "<|open|> <|close|> <|sep|> <|end_of_msg|>", parser: "kimi_k3", open: "<|open|>think<|sep|>", thinks: true},
		{template: "x", tokens: "<|tool_call_start|> <|tool_call_end|>", parser: "pythonic", open: "<think>"},
		{template: "x", tokens: "<think>", open: "<think>"},
		{template: "x <think> </think>", open: "<think>", thinks: true},
		{template: "x", tokens: "<|channel> <channel|>", open: "<|channel>thought", thinks: true},
		{template: "x", tokens: "[THINK] [/THINK]", open: "[THINK]", thinks: true},
		{template: "<|start|>assistant<|channel|>analysis<|message|>", thinks: true},
	} {
		f := newFormat(t, Config{ChatTemplate: quoted(c.template), HasToken: vocabulary(strings.Fields(c.tokens)...)})
		if f.ToolParser() != c.parser || f.thought.open != c.open || f.Thinks() != c.thinks {
			t.Errorf("%q %s: got %q, %q, %v", c.template, c.tokens, f.ToolParser(), f.thought.open, f.Thinks())
		}
	}
	if f := newFormat(t, Config{ToolParser: "laguna"}); f.ToolParser() != "glm47" {
		t.Error("laguna is glm47")
	}
	if _, err := NewFormat(Config{ToolParser: "nosuch"}); err == nil || !strings.Contains(err.Error(), "json_tools") {
		t.Errorf("got %v; want the known parsers listed", err)
	}
	for _, bad := range []string{`5`, `"{% if %}"`, `{"default": "{{"}`, `[1]`} {
		if _, err := NewFormat(Config{ChatTemplate: json.RawMessage(bad)}); err == nil {
			t.Errorf("chat_template %s was accepted", bad)
		}
	}
}

// TestNamedTemplates wants the template chosen as transformers does.
func TestNamedTemplates(t *testing.T) {
	list := json.RawMessage(`[{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T{{ tools | length }}"}, {"name": "rag", "template": "R{{ documents | length }}"}]`)
	f := newFormat(t, Config{ChatTemplate: list})
	m := messages(t, `[{"role": "user", "content": "x"}]`)
	tools := decode(t, `[{"name": "f"}]`).([]any)
	for _, c := range []struct {
		o     Options
		tools []any
		want  string
	}{
		{want: "D"}, {tools: tools, want: "T1"}, {tools: []any{}, want: "D"}, {o: Options{Template: "rag", Documents: []any{"a"}}, tools: tools, want: "R1"},
		{o: Options{Template: "default"}, tools: tools, want: "D"},
	} {
		if got, err := f.Render(m, c.tools, c.o); err != nil || got != c.want {
			t.Errorf("got %q, %v; want %q", got, err, c.want)
		}
	}
	if _, err := f.Render(m, nil, Options{Template: "nosuch"}); err == nil || !strings.Contains(err.Error(), "rag") {
		t.Errorf("got %v; want the known templates listed", err)
	}
	f = newFormat(t, Config{ChatTemplate: list, TemplateFiles: map[string]string{"default": "F"}})
	if got, _ := f.Render(m, tools, Options{}); got != "F" {
		t.Errorf("the file did not win: %q", got)
	}
	f = newFormat(t, Config{ChatTemplate: list, Override: "O"})
	if got, _ := f.Render(m, tools, Options{}); got != "O" {
		t.Errorf("the override did not win: %q", got)
	}
}

const echo = `{% for m in messages %}[{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}|{{ c.function.arguments }}{% endfor %}{{ m.reasoning_content }}]{% endfor %}`

// TestPrepare checks what happens to messages before they reach a template.
func TestPrepare(t *testing.T) {
	f := newFormat(t, Config{ChatTemplate: quoted(echo)})
	for _, c := range []struct{ in, want string }{
		{`[{"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"text": "c"}, {"type": "input_text", "text": "d"}]}]`, "[user:a,b,c,d]"},
		{`[{"role": "user", "content": []}]`, "[user:]"},
		{`[{"role": "assistant", "content": null}]`, "[assistant:]"},
		{`[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [true]}"}}]}]`, "[assistant:|{'b': 1, 'a': [True]}]"},
		{`[{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{bad"}}]}]`, "[assistant:|{bad]"},
		{`[{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}, {"function": {"name": "f", "arguments": null}}, {"function": {"name": "f", "arguments": " "}}, {"function": {"name": "f", "arguments": "null"}}]}]`, "[assistant:|{}|{}|{}|{}]"},
		{`[{"role": "assistant", "content": "x", "tool_calls": null}]`, "[assistant:x]"},
		{`[{"role": "developer", "content": "x"}]`, "[system:x]"},
		{`[{"role": "assistant", "content": "x", "reasoning": "r"}]`, "[assistant:xr]"},
		{`[{"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "s"}]`, "[assistant:xs]"},
		{`[{"role": "assistant", "content": "x", "cache_control": {"type": "ephemeral"}}]`, "[assistant:x]"},
	} {
		m := messages(t, c.in)
		got, err := f.Render(m, nil, Options{PartSeparator: ","})
		if err != nil || got != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.in, got, err, c.want)
		}
		if after, _ := jinja.EncodeJSON([]any{m[0]}); after != strings.ReplaceAll(c.in, "\n", "") {
			t.Errorf("the messages of the caller changed: %s", after)
		}
	}
	for in, want := range map[string]string{
		`[]`: "at least one message", `[{"content": "x"}]`: "messages[0].role", `[{"role": 5, "content": "x"}]`: "messages[0].role",
		`[{"role": "user", "content": 5}]`:                                        "messages[0].content",
		`[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]`: "'image_url'",
		`[{"role": "user", "content": [{"type": "text"}]}]`:                       "messages[0].content[0].text",
		`[{"role": "user", "content": [5]}]`:                                      "messages[0].content[0]",
		`[{"role": "user", "content": "x", "tool_calls": 5}]`:                     "messages[0].tool_calls",
		`[{"role": "user", "content": "x", "tool_calls": [{"function": 5}]}]`:     "messages[0].tool_calls[0].function",
		`[{"role": "user", "tool_calls": [{"function": {"arguments": "{}"}}]}]`:   "messages[0].tool_calls[0].function.name",
		`[{"role": "user", "tool_calls": [{"function": {"name": 5}}]}]`:           "messages[0].tool_calls[0].function.name",
		`[{"role": "user", "tool_calls": [{"type": "custom"}]}]`:                  "messages[0].tool_calls[0].function.name",
	} {
		if _, err := f.Render(messages(t, in), nil, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v; want it to name %s", in, err, want)
		}
	}
	var pe *PartError
	if _, err := f.Render(messages(t, `[{"role": "user", "content": [{"type": "audio"}]}]`), nil, Options{}); !errors.As(err, &pe) || pe.Type != "audio" {
		t.Errorf("got %v; want a PartError", err)
	}
	if _, err := f.Render([]*jinja.Map{nil}, nil, Options{}); err == nil {
		t.Error("a nil message was rendered")
	}
	dev := newFormat(t, Config{ChatTemplate: quoted(echo + "{# developer #}")})
	if got, _ := dev.Render(messages(t, `[{"role": "developer", "content": "x"}]`), nil, Options{}); got != "[developer:x]" {
		t.Errorf("a template that knows the developer role got %q", got)
	}
}

// TestFoldSystem wants system messages made acceptable to templates that
// refuse or drop them, and left alone for others.
func TestFoldSystem(t *testing.T) {
	in := `[{"role": "system", "content": "S1"}, {"role": "developer", "content": "S2"}, {"role": "user", "content": "U1"},
		{"role": "system", "content": "S3"}, {"role": "assistant", "content": "A"}, {"role": "system", "content": "S4"}, {"role": "user", "content": "U2"}]`
	folded := "[system:S1\n\nS2][user:U1\n\nS3][assistant:A][user:S4\n\nU2]"
	for src, want := range map[string]string{
		echo: "[system:S1][system:S2][user:U1][system:S3][assistant:A][system:S4][user:U2]",
		`{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system message must be first') }}{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}`: folded,
		`{% for m in messages %}{% if loop.first or m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endif %}{% endfor %}`:                                                           folded,
		`{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}`:                       "[user:S1\n\nS2\n\nU1\n\nS3][assistant:A][user:S4\n\nU2]",
		`{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endif %}{% endfor %}`:                                                                         "[user:S1\n\nS2\n\nU1\n\nS3][assistant:A][user:S4\n\nU2]",
	} {
		f := newFormat(t, Config{ChatTemplate: quoted(src)})
		if got, err := f.Render(messages(t, in), nil, Options{FoldSystem: true}); err != nil || got != want {
			t.Errorf("%s:\ngot  %q, %v\nwant %q", src, got, err, want)
		}
		if _, err := f.Render(messages(t, in), nil, Options{}); (err != nil) != strings.Contains(src, "raise_exception") {
			t.Errorf("%s without folding: %v", src, err)
		}
	}
	f := newFormat(t, Config{ChatTemplate: quoted(`{{ raise_exception('never') }}`)})
	if _, err := f.Render(messages(t, in), nil, Options{FoldSystem: true}); err == nil || err.Error() != "never" {
		t.Errorf("got %v; want the template's own words", err)
	}
	for in, want := range map[string]string{
		`[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "system", "content": "c"}]`: "user:a assistant:b user:c",
		`[{"role": "system", "content": "c"}]`: "user:c", `[{"role": "system", "content": "c"}, {"role": "assistant", "content": "b"}]`: "user:c assistant:b",
	} {
		var got []string
		for _, m := range foldSystem(messages(t, in), false) {
			got = append(got, role(m)+":"+contentText(m))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s became %v", in, got)
		}
	}
}

// TestThinkingSwitch checks enable_thinking and reasoning_effort.
func TestThinkingSwitch(t *testing.T) {
	src := `{{ messages[0].content }}{% if add_generation_prompt %}{% set e = reasoning_effort | default('xhigh') %}{% if e not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('Unsupported: ' ~ e) }}{% endif %}<{{ e }}><think>
{% endif %}`
	f := newFormat(t, Config{ChatTemplate: quoted(src)})
	m := messages(t, `[{"role": "user", "content": "x"}]`)
	kw := func(s string) *jinja.Map { return decode(t, s).(*jinja.Map) }
	for in, want := range map[string]string{
		`{}`: "x<xhigh><think>\n", `{"enable_thinking": true}`: "x<xhigh><think>\n", `{"enable_thinking": null}`: "x<xhigh><think>\n",
		`{"enable_thinking": false, "reasoning_effort": "low"}`: "x<low><think>\n</think>\n\n",
	} {
		if got, err := f.Render(m, nil, Options{AddGenerationPrompt: true, Kwargs: kw(in)}); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", in, got, err, want)
		}
	}
	for _, name := range []string{"messages", "tools", "documents", "add_generation_prompt"} {
		if _, err := f.Render(m, nil, Options{Kwargs: kw(`{"` + name + `": []}`)}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s as a template variable: got %v", name, err)
		}
	}
	for in, want := range map[string]string{"low": "low", "medium": "medium", "high": "medium", "xhigh": "xhigh", "nosuch": "nosuch"} {
		if got := f.Effort(in); got != want {
			t.Errorf("Effort(%s) = %s; want %s", in, got, want)
		}
	}
	if got := newFormat(t, Config{ChatTemplate: quoted("x")}).Effort("high"); got != "high" {
		t.Errorf("a template without efforts got %s", got)
	}
}

// TestNoTemplate checks the stand-ins for a missing template.
func TestNoTemplate(t *testing.T) {
	m := messages(t, `[{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]`)
	o := Options{AddGenerationPrompt: true}
	plain := newFormat(t, Config{})
	if got, err := plain.Render(m, nil, o); err != nil || got != "ASSISTANT's RULE: Be brief.\nUSER: Hi\nASSISTANT:" || plain.HasTemplate() {
		t.Errorf("got %q, %v", got, err)
	}
	chatml := newFormat(t, Config{HasToken: vocabulary("<|im_start|>", "<|im_end|>")})
	want := "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
	if got, err := chatml.Render(m, nil, o); err != nil || got != want || chatml.HasTemplate() {
		t.Errorf("got %q, %v", got, err)
	}
	if chatml.ToolParser() != "json_tools" {
		t.Errorf("ChatML calls tools as %q", chatml.ToolParser())
	}
	o.RoleMapping = decode(t, `{"user": "U:", "assistant": "A:"}`).(*jinja.Map)
	if got, err := chatml.Render(m, nil, o); err != nil || got != "Be brief.U:HiA:" {
		t.Errorf("got %q, %v", got, err)
	}
	o.RoleMapping = decode(t, `{"user": 5}`).(*jinja.Map)
	if _, err := plain.Render(m, nil, o); err == nil {
		t.Error("a role mapping with a number was accepted")
	}
	calls := messages(t, `[{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}, {"function": {"name": "g", "arguments": "x"}}]}, {"role": "tool", "content": "r1"}, {"role": "tool", "content": "r2"}]`)
	got, err := chatml.Render(calls, decode(t, `[{"type": "function", "function": {"name": "f"}}]`).([]any), Options{AddGenerationPrompt: true})
	for _, part := range []string{"<|im_start|>system\nS\n\n# Tools", "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n</tools>",
		"<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": x}\n</tool_call><|im_end|>\n",
		"<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response><|im_end|>\n<|im_start|>assistant\n"} {
		if err != nil || !strings.Contains(got, part) {
			t.Errorf("%v: %q is missing in\n%s", err, part, got)
		}
	}
	if strings.Count(got, "<|im_start|>system") != 1 {
		t.Errorf("not one system message in\n%s", got)
	}
}

func TestContinueFinalMessage(t *testing.T) {
	m := messages(t, `[{"role": "user", "content": "x"}, {"role": "assistant", "content": "partial  "}]`)
	for src, want := range map[string]string{
		`{% for m in messages %}{{ m.content }}<end>{% endfor %}`:        "x<end>partial  ",
		`{% for m in messages %}{{ m.content | trim }}<end>{% endfor %}`: "x<end>partial",
	} {
		f := newFormat(t, Config{ChatTemplate: quoted(src)})
		if got, err := f.Render(m, nil, Options{ContinueFinalMessage: true}); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", src, got, err, want)
		}
		if _, err := f.Render(m, nil, Options{ContinueFinalMessage: true, AddGenerationPrompt: true}); err == nil {
			t.Error("both options at once were accepted")
		}
	}
	f := newFormat(t, Config{ChatTemplate: quoted("{{ messages[0].content }}")})
	if _, err := f.Render(m, nil, Options{ContinueFinalMessage: true}); err == nil {
		t.Error("a template that drops the final message was accepted")
	}
	if _, err := f.Render(messages(t, `[{"role": "assistant"}]`), nil, Options{ContinueFinalMessage: true}); err == nil {
		t.Error("a message without text was continued")
	}
}

// TestStopper feeds texts in pieces of all sizes.
func TestStopper(t *testing.T) {
	for _, c := range []struct {
		stops         []string
		in, out, stop string
	}{
		{nil, "abc", "abc", ""},
		{[]string{""}, "abc", "abc", ""},
		{[]string{"STOP"}, "one STOP two", "one ", "STOP"},
		{[]string{"STOP"}, "one STO", "one STO", ""},
		{[]string{"STOP"}, "SSTSTOSTOP", "SSTSTO", "STOP"},
		{[]string{"\n\n", "\n"}, "a\n\nb", "a", "\n"},
		{[]string{"c", "bcd"}, "abcd", "ab", "c"},
		{[]string{"cd", "bcd", "d"}, "abcd", "a", "bcd"},
		{[]string{"aab"}, "aaab", "a", "aab"},
		{[]string{"abab"}, "aabaababx", "aaba", "abab"},
		{[]string{"é😀"}, "xé é😀", "xé ", "é😀"},
		{[]string{"END"}, "END", "", "END"},
		{[]string{"x", "y"}, "ay x", "a", "y"},
	} {
		for n := 1; n <= len(c.in)+1; n++ {
			s := NewStopper(c.stops)
			out, hit := "", false
			for rest := c.in; rest != "" && !hit; {
				k := min(n, len(rest))
				var safe string
				safe, hit = s.Feed(rest[:k])
				out += safe
				rest = rest[k:]
			}
			if out += s.Flush(); out != c.out || s.Matched() != c.stop || hit != (c.stop != "") {
				t.Errorf("%q in %q by %d: got %q, %q, %v; want %q, %q", c.stops, c.in, n, out, s.Matched(), hit, c.out, c.stop)
			}
			if safe, _ := s.Feed("more"); c.stop != "" && safe != "" {
				t.Errorf("%q leaked behind the stop", safe)
			}
		}
	}
}

// FuzzStopper compares with a search in the whole text.
func FuzzStopper(f *testing.F) {
	f.Add("one STOP two", "STOP", "TO", uint8(3))
	f.Add("aabaabab", "abab", "", uint8(1))
	f.Fuzz(func(t *testing.T, text, a, b string, n uint8) {
		stops := []string{a, b}
		s := NewStopper(stops)
		out, hit := "", false
		for rest := text; rest != "" && !hit; {
			k := min(int(n%16)+1, len(rest))
			var safe string
			safe, hit = s.Feed(rest[:k])
			out += safe
			rest = rest[k:]
		}
		out += s.Flush()
		want := text
		for end := range len(text) + 1 {
			start := -1
			for _, st := range stops {
				if st != "" && strings.HasSuffix(text[:end], st) && (start < 0 || end-len(st) < start) {
					start = end - len(st)
				}
			}
			if start >= 0 {
				want = text[:start]
				break
			}
		}
		if out != want {
			t.Errorf("%q in %q: got %q; want %q", stops, text, out, want)
		}
	})
}

// allFormats returns a Format for every way to mark thoughts and calls.
func allFormats(t testing.TB) []*Format {
	configs := []Config{thinkFormat, gemmaFormat, kimi3Format, harmonyFormat, museFormat, {}}
	for _, format := range toolTable {
		configs = append(configs, Config{ToolParser: format.name})
	}
	var formats []*Format
	for _, c := range configs {
		formats = append(formats, newFormat(t, c))
	}
	return formats
}

// TestRandomAnswers strings markers and pieces of calls together at random:
// the result must not depend on how the text is cut.
func TestRandomAnswers(t *testing.T) {
	words := []string{"a", " ", "\n", "{", "}", "\"", "é", "<", "|", "call:f{s:", "f[ARGS]{}", "[f(s='x')]", `{"name": "f", "arguments": {"i": 1}}`,
		"<function=f>", "</function>", "<parameter=s>", "</parameter>", "<invoke name=\"f\">", "</invoke>", "<atem:invoke name=\"f\">", "</atem:invoke>",
		"f<arg_key>s</arg_key><arg_value>1</arg_value>", "assistant", "analysis", "commentary to=functions.f", " to=self", "<|end|>", "<|eom|>", "<|call|>", gemmaQuote}
	for _, tags := range thoughtTable {
		words = append(words, tags.tokens...)
		words = append(words, tags.open, tags.close)
	}
	for _, f := range toolTable {
		words = append(words, f.start, f.end)
	}
	r := rand.New(rand.NewPCG(1, 2))
	formats := allFormats(t)
	for range 3000 {
		var b strings.Builder
		for range r.IntN(14) {
			w := words[r.IntN(len(words))]
			if r.IntN(12) == 0 && w != "" {
				w = w[:r.IntN(len(w))]
			}
			b.WriteString(w)
		}
		text := b.String()
		f := formats[r.IntN(len(formats))]
		bit := func() bool { return r.IntN(2) == 0 }
		o := ParserOptions{Calls: bit(), NoThought: r.IntN(4) == 0, Rules: Rules{bit(), bit(), bit(), bit(), false}}
		if bit() {
			o.Prompt = f.thought.open
		}
		whole := f.Parse(text, o)
		for _, n := range []int{1, 2, 3, 5, 8} {
			o.StreamCalls = bit()
			if got := feed(f, text, n, o); !slices.Equal(got.Calls, whole.Calls) || got.Text != whole.Text || got.Thought != whole.Thought {
				t.Fatalf("%s %q %+v\nwhole        %+v\nin pieces of %d %+v", f.ToolParser(), text, o, whole, n, got)
			}
		}
		if !o.Calls && o.NoThought && whole.Text != text {
			t.Fatalf("%q became %+v", text, whole)
		}
	}
}

// FuzzParser feeds arbitrary text to every format: the result must not depend
// on the pieces, and text without markers must come out as it went in.
func FuzzParser(f *testing.F) {
	for i, a := range answers {
		f.Add(a.text, uint8(i), uint8(i*7), a.o.Prompt)
	}
	formats := allFormats(f)
	tools := decode(f, `[{"function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}, "i": {"type": ["integer", "null"]}, "o": {"type": "object"}}}}}]`).([]any)
	f.Fuzz(func(t *testing.T, text string, which, flags uint8, prompt string) {
		o := ParserOptions{Prompt: prompt, Calls: flags&1 > 0, Continued: flags&2 > 0, NoThought: flags&4 > 0, Tools: tools,
			Rules: Rules{flags&8 > 0, flags&16 > 0, flags&32 > 0, flags&64 > 0, flags&128 > 0}}
		format := formats[int(which)%len(formats)]
		whole := format.Parse(text, o)
		o.StreamCalls = which&8 > 0
		pieces := feed(format, text, int(which)%7+1, o)
		if !slices.Equal(whole.Calls, pieces.Calls) || whole.Text != pieces.Text || whole.Thought != pieces.Thought {
			t.Fatalf("%q\nwhole  %+v\npieces %+v", text, whole, pieces)
		}
		if !strings.ContainsAny(text, "<[") && whole.Thought+whole.Text != text && !o.Rules.Trim {
			t.Fatalf("%q became %+v", text, whole)
		}
		for _, c := range whole.Calls {
			if !json.Valid([]byte(c.Arguments)) {
				t.Fatalf("arguments are no JSON: %s", c.Arguments)
			}
		}
	})
}
