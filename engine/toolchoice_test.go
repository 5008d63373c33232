package engine

import (
	"encoding/json"
	"strings"
	"testing"

	"sparkbar/engine/decode"
	"sparkbar/engine/tokenizer"
	"sparkbar/resources"
)

func demoVoice(t *testing.T) *voice {
	t.Helper()
	files, _ := resources.Demo()
	tok, err := tokenizer.New(files["tokenizer.json"], files["tokenizer_config.json"])
	if err != nil {
		t.Fatal(err)
	}
	v := &voice{tok: tok}
	if v.format, err = newFormat(tok, ""); err != nil {
		t.Fatal(err)
	}
	return v
}

var twoTools = json.RawMessage(`[{"type":"function","function":{"name":"read"}},{"type":"function","function":{"name":"write"}}]`)

// TestOneCall: with OneCall the answer ends with its first usable call, however
// many tokens come at once, and what comes after it is neither told nor counted.
func TestOneCall(t *testing.T) {
	v := demoVoice(t)
	long := strings.Repeat("one two three ", 20)
	first := `<tool_call>{"name": "write", "arguments": {"text": "` + long + `"}}</tool_call>`
	second := `<tool_call>{"name": "read", "arguments": {}}</tool_call>`
	for what, c := range map[string]struct {
		text  string
		end   string // what of the text is generated with OneCall
		calls [2]int // without OneCall and with it
		first string
	}{
		"two blocks": {"Now. " + first + "\n" + second + " And then?", "Now. " + first, [2]int{2, 1}, "write"},
		"one block":  {`<tool_call>[{"name": "read", "arguments": {}}, {"name": "write", "arguments": {}}]</tool_call> more`, `<tool_call>[{"name": "read", "arguments": {}}, {"name": "write", "arguments": {}}]</tool_call>`, [2]int{2, 1}, "read"},
		"broken":     {`<tool_call>{"name": "other", "arguments": {}}</tool_call>` + second + first, `<tool_call>{"name": "other", "arguments": {}}</tool_call>` + second, [2]int{2, 1}, "read"},
		"no call":    {"Nothing to call here.", "Nothing to call here.", [2]int{0, 0}, ""},
	} {
		for _, streamed := range []bool{false, true} {
			for _, mlx := range []bool{false, true} {
				if mlx && what == "broken" {
					continue // these rules ask for no names
				}
				for _, atOnce := range []int{1, 1000} {
					for i, one := range []bool{false, true} {
						told := map[int]string{}
						a := newAnswer(&loaded{voice: v, end: map[int32]bool{}}, Request{Tools: true, Logprobs: -1, StreamCalls: streamed, OneCall: one, Prompt: Prompt{Tools: twoTools, MLXRules: mlx}}, "", func(d Delta) {
							if d.ToolCall != nil {
								told[d.ToolCall.Index] += d.ToolCall.Name + d.ToolCall.Arguments
							}
						})
						ids, stopped := v.tok.Encode(c.text, false), false
						for len(ids) > 0 && !stopped {
							var round []decode.Token
							for _, id := range ids[:min(atOnce, len(ids))] {
								round = append(round, decode.Token{ID: id})
							}
							ids, stopped = ids[len(round):], a.add(round)
						}
						res := a.finish()
						if len(res.ToolCalls) != c.calls[i] || len(told) != c.calls[i] || c.first != "" && res.ToolCalls[0].Name != c.first {
							t.Errorf("%s, streamed %v, mlx %v, %d at once, one call %v: %+v, told %v", what, streamed, mlx, atOnce, one, res.ToolCalls, told)
							continue
						}
						if !one {
							continue
						}
						var said []int32
						for _, x := range res.Tokens {
							said = append(said, x.ID)
						}
						if got := v.tok.Decode(said, false); !strings.HasPrefix(got, c.end) || len(got) > len(c.end)+1 {
							t.Errorf("%s, streamed %v, mlx %v, %d at once: generated %q, want %q", what, streamed, mlx, atOnce, got, c.end)
						}
						if want := c.first != ""; stopped != want || (res.FinishReason == FinishToolCalls) != want || want && strings.Contains(res.Text, "then") {
							t.Errorf("%s, streamed %v, mlx %v, %d at once: stopped %v, %s, %q", what, streamed, mlx, atOnce, stopped, res.FinishReason, res.Text)
						}
					}
				}
			}
		}
	}
}

// TestMustCall: a prompt whose answer must be a call ends in the beginning of one,
// outside of any thought, and the answer goes on from there.
func TestMustCall(t *testing.T) {
	v := demoVoice(t)
	for _, name := range []string{"", "write"} {
		p := Prompt{Messages: json.RawMessage(`[{"role":"user","content":"Hello"}]`), Tools: twoTools, MustCall: true, CallName: name, Kwargs: map[string]any{"enable_thinking": true}}
		ids, text, err := v.encode(p)
		if err != nil {
			t.Fatal(err)
		}
		whole, lead := v.tok.Decode(ids, false), v.lead(p)
		if lead == "" || !strings.HasSuffix(whole, lead) || strings.HasSuffix(text, lead) || strings.LastIndex(text, "<think>") > strings.LastIndex(text, "</think>") {
			t.Errorf("%q: the prompt is %q, the conversation %q, the beginning %q", name, whole, text, lead)
		}
		rest := strings.TrimPrefix(`<tool_call>`+"\n"+`{"name": "write", "arguments": {"a": 1}}`+"\n</tool_call>", lead)
		a := newAnswer(&loaded{voice: v, end: map[int32]bool{}}, Request{Tools: true, Reasoning: true, Logprobs: -1, Prompt: p}, text, func(Delta) {})
		for _, id := range v.tok.Encode(rest, false) {
			a.add([]decode.Token{{ID: id}})
		}
		if res := a.finish(); len(res.ToolCalls) != 1 || res.ToolCalls[0].Name != "write" || res.ToolCalls[0].Arguments != `{"a": 1}` || res.Text+res.Reasoning != "" {
			t.Errorf("%q: %+v", name, res)
		}
		p.Tools = nil
		if plain, _, err := v.encode(p); err != nil || strings.Contains(v.tok.Decode(plain, false), "tool_call") {
			t.Errorf("%q: a call of nothing: %v", name, err)
		}
	}
}
