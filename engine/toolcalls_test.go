package engine

import (
	"encoding/json"
	"strings"
	"testing"

	"sparkbar/engine/chat"
	"sparkbar/engine/decode"
)

// TestToolCallDeltas: what the tokens of a call become. A long one arrives while it
// is written, if that was asked for; one that comes to nothing is taken back; a
// function that is not offered is not called.
func TestToolCallDeltas(t *testing.T) {
	v := demoVoice(t)
	long := strings.Repeat("one two three ", 30)
	block := `<tool_call>{"name": "write", "arguments": {"text": "` + long + `"}}</tool_call>`
	tools := json.RawMessage(`[{"type":"function","function":{"name":"write","parameters":{"type":"object","properties":{"text":{"type":"string"}}}}}]`)
	run := func(text string, req Request) (Result, []ToolCall) {
		var told []ToolCall
		req.Tools, req.Logprobs = true, -1
		a := newAnswer(&loaded{voice: v, end: map[int32]bool{}}, req, "", func(d Delta) {
			if d.ToolCall != nil {
				told = append(told, *d.ToolCall)
			}
		})
		for _, id := range v.tok.Encode(text, false) {
			a.add([]decode.Token{{ID: id}})
		}
		return a.finish(), told
	}
	arguments := func(told []ToolCall) (all string, pieces int) {
		for _, c := range told {
			if all += c.Arguments; c.Arguments != "" {
				pieces++
			}
		}
		return all, pieces
	}
	want := `{"text": "` + long + `"}`
	for _, streamed := range []bool{false, true} {
		res, told := run("Now. "+block, Request{Prompt: Prompt{Tools: tools}, StreamCalls: streamed})
		got, pieces := arguments(told)
		if got != want || len(res.ToolCalls) != 1 || res.ToolCalls[0].Arguments != want || (pieces > 10) != streamed || strings.TrimSpace(res.Text) != "Now." {
			t.Errorf("streamed %v: %d pieces, %q, %+v", streamed, pieces, got, res.ToolCalls)
		}
		// Cut off in the middle.
		res, told = run(block[:len(block)-60], Request{Prompt: Prompt{Tools: tools}, StreamCalls: streamed})
		got, _ = arguments(told)
		if len(res.ToolCalls) > 0 || len(res.BrokenCalls) != 1 || res.Text != "" || streamed != (len(told) > 0 && told[len(told)-1].Dropped) || !strings.HasPrefix(want, got) {
			t.Errorf("streamed %v, cut off: %q, %+v", streamed, got, res)
		}
		// A function that is not offered.
		other := json.RawMessage(strings.ReplaceAll(string(tools), `"write"`, `"read"`))
		res, told = run(block, Request{Prompt: Prompt{Tools: other}, StreamCalls: streamed})
		if len(res.ToolCalls)+len(told) > 0 || len(res.BrokenCalls) != 1 || !strings.Contains(res.BrokenCalls[0], "no tool 'write'") || res.FinishReason != FinishLength {
			t.Errorf("streamed %v, not offered: %+v %+v", streamed, res, told)
		}
		// No tools at all: nothing to compare with. mlx_lm.server never compares.
		if res, _ = run(block, Request{StreamCalls: streamed}); len(res.ToolCalls) != 1 {
			t.Errorf("streamed %v, without tools: %+v", streamed, res)
		}
		res, told = run(block, Request{Prompt: Prompt{Tools: other, MLXRules: true}, StreamCalls: streamed})
		if _, pieces := arguments(told); len(res.ToolCalls) != 1 || pieces != 1 {
			t.Errorf("streamed %v, by the rules of mlx_lm.server: %+v in %d pieces", streamed, res, pieces)
		}
	}
	if chat.SparkbarRules.KnownTools {
		t.Error("the rules of the package were changed")
	}
}
