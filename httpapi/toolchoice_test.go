package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/httpapi"
	"sparkbar/httpapi/internal/enginetest"
)

// toolCalls are the calls of an answer in any dialect, whole or streamed, what else
// it says, and its end.
func toolCalls(t *testing.T, path, body string) (calls []string, text, end string) {
	t.Helper()
	if strings.HasPrefix(path, "/v1/chat") {
		names, args, end, _ := chatCalls(t, body)
		for i := range names {
			calls = append(calls, names[i]+args[i])
		}
		for _, line := range strings.Split(body, "\n") {
			var a struct {
				Choices []struct {
					Message, Delta struct{ Content, Reasoning string }
				}
			}
			if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &a) == nil {
				for _, c := range a.Choices {
					text += c.Message.Content + c.Delta.Content + c.Message.Reasoning + c.Delta.Reasoning
				}
			}
		}
		return calls, text, end
	}
	type block struct { // of /messages, or an item of /responses
		Type, Name, Text, Thinking, Arguments string
		Input                                 json.RawMessage
		Content, Summary                      []struct{ Text string }
	}
	take := func(b block) {
		switch b.Type {
		case "tool_use":
			calls = append(calls, b.Name+string(b.Input))
		case "function_call":
			calls = append(calls, b.Name+b.Arguments)
		}
		text += b.Text + b.Thinking
		for _, c := range append(b.Content, b.Summary...) {
			text += c.Text
		}
	}
	type answer struct {
		Content, Output []block
		Status          string
		StopReason      string `json:"stop_reason"`
	}
	for _, line := range strings.Split(body, "\n") {
		line, streamed := strings.CutPrefix(line, "data: ")
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var e struct {
			Type     string
			Response answer
			Block    block `json:"content_block"`
			Delta    json.RawMessage
			answer
		}
		var d struct {
			Text, Thinking string
			Partial        string `json:"partial_json"`
			StopReason     string `json:"stop_reason"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if strings.HasPrefix(string(e.Delta), "{") {
			if err := json.Unmarshal(e.Delta, &d); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
		}
		switch {
		case !streamed:
			for _, b := range append(e.Content, e.Output...) {
				take(b)
			}
			end = e.StopReason + e.Status
		case e.Type == "response.completed" || e.Type == "response.incomplete":
			for _, b := range e.Response.Output {
				take(b)
			}
			end = e.Response.Status
		case e.Type == "content_block_start" && e.Block.Type == "tool_use":
			calls = append(calls, e.Block.Name)
		case e.Type == "content_block_delta":
			if text += d.Text + d.Thinking; d.Partial != "" {
				calls[len(calls)-1] += d.Partial
			}
		case e.Type == "message_delta":
			end = d.StopReason
		}
	}
	return calls, text, end
}

// ask is a request of a route with some fields more: a conversation, and tools get_weather
// and get_time.
func ask(path, question, more string, stream bool) string {
	names, tools := []string{"get_weather", "get_time"}, []string(nil)
	const schema = `{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`
	for _, n := range names {
		switch path {
		case "/v1/chat/completions":
			tools = append(tools, fmt.Sprintf(`{"type":"function","function":{"name":%q,"description":"Get the weather for a city","parameters":%s}}`, n, schema))
		case "/v1/responses":
			tools = append(tools, fmt.Sprintf(`{"type":"function","name":%q,"description":"Get the weather for a city","parameters":%s}`, n, schema))
		default:
			tools = append(tools, fmt.Sprintf(`{"name":%q,"description":"Get the weather for a city","input_schema":%s}`, n, schema))
		}
	}
	conversation := fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, question)
	if path == "/v1/responses" {
		conversation = fmt.Sprintf(`"input":%q`, question)
	}
	return fmt.Sprintf(`{%s,"tools":[%s],"max_tokens":60,"temperature":0,"stream":%t%s}`, conversation, strings.Join(tools, ","), stream, more)
}

// TestToolChoice: where a call is required, nothing but a call comes, of the
// function that is named if one is; on all routes, streamed or not, whether the
// client wants thoughts or not.
func TestToolChoice(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	const question = "Tell me a story about a rabbit" // the demo answers it with a story
	forms := map[string][][2]string{                  // what the request says, and the function that it names
		"/v1/chat/completions": {{`"required"`, ""}, {`{"type":"function","function":{"name":"get_time"}}`, "get_time"},
			{`{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"get_weather"}}]}}`, "get_weather"}},
		"/v1/responses": {{`"required"`, ""}, {`{"type":"function","name":"get_time"}`, "get_time"},
			{`{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"get_time"}]}`, "get_time"}},
		"/v1/messages": {{`{"type":"any"}`, ""}, {`{"type":"tool","name":"get_time"}`, "get_time"}, {`{"type":"tool","name":"get_weather"},"thinking":{"type":"enabled","budget_tokens":1024}`, "get_weather"}},
	}
	ends := map[string]string{"/v1/chat/completions": "tool_calls", "/v1/responses": "completed", "/v1/messages": "tool_use"}
	for path, list := range forms {
		for _, stream := range []bool{false, true} {
			w := send(h, path, ask(path, question, "", stream))
			if calls, text, _ := toolCalls(t, path, w.Body.String()); w.Code != http.StatusOK || len(calls) > 0 || text == "" {
				t.Fatalf("%s: without a choice it calls %q: %s", path, calls, w.Body)
			}
			for _, form := range list {
				w := send(h, path, ask(path, question, `,"tool_choice":`+form[0], stream))
				calls, text, end := toolCalls(t, path, w.Body.String())
				if w.Code != http.StatusOK || len(calls) != 1 || !strings.HasPrefix(calls[0], "get_") || !strings.HasPrefix(calls[0], form[1]) || text != "" || end != ends[path] {
					t.Errorf("%s, stream %v, %s: %q %q %s: %s", path, stream, form[0], calls, text, end, w.Body)
				}
			}
		}
	}
}

// TestOneCallField: who wants no parallel calls is asked for one, in each dialect.
func TestOneCallField(t *testing.T) {
	for path, fields := range map[string]map[string]bool{
		"/v1/chat/completions": {`,"parallel_tool_calls":false`: true, `,"parallel_tool_calls":true`: false, `,"parallel_tool_calls":null`: false, ``: false},
		"/v1/responses":        {`,"parallel_tool_calls":false`: true, `,"parallel_tool_calls":true`: false, ``: false},
		"/v1/messages": {`,"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`: true, `,"tool_choice":{"type":"any","disable_parallel_tool_use":true}`: true,
			`,"tool_choice":{"type":"auto","disable_parallel_tool_use":false}`: false, `,"tool_choice":{"type":"auto"}`: false, ``: false},
	} {
		for more, want := range fields {
			for _, stream := range []bool{false, true} {
				e := enginetest.New(replay(engine.FinishStop, engine.Delta{Text: "x"}))
				w := send(httpapi.New(e, httpapi.Options{}), path, ask(path, "x", more, stream))
				if w.Code != http.StatusOK || len(e.Asked()) != 1 || e.Asked()[0].OneCall != want {
					t.Errorf("%s%s: %d %v %s", path, more, w.Code, e.Asked(), w.Body)
				}
				if path == "/v1/responses" && !strings.Contains(w.Body.String(), fmt.Sprintf(`"parallel_tool_calls":%t`, !want)) {
					t.Errorf("%s%s: the answer does not say so: %s", path, more, w.Body)
				}
			}
		}
	}
}

// TestAllowedTools: a tool that is allowed twice is offered once, and one that runs at
// the provider is none of this server's.
func TestAllowedTools(t *testing.T) {
	for path, list := range map[string]string{
		"/v1/chat/completions": `{"type":"function","function":{"name":"get_time"}}`,
		"/v1/responses":        `{"type":"function","name":"get_time"}`,
	} {
		for tools, want := range map[string]int{list: 1, list + "," + list: 1, `{"type":"web_search"},` + list: 1, `{"type":"web_search"}`: 0} {
			e := enginetest.New(replay(engine.FinishStop, engine.Delta{Text: "x"}))
			w := send(httpapi.New(e, httpapi.Options{}), path, ask(path, "x", `,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[`+tools+`]}`, false))
			if w.Code != http.StatusOK || len(e.Asked()) != 1 {
				t.Fatalf("%s, %s: %d %s", path, tools, w.Code, w.Body)
			}
			if n := strings.Count(string(e.Asked()[0].Prompt.Tools), "get_"); n != want {
				t.Errorf("%s, %s: %d tools are offered, wants %d", path, tools, n, want)
			}
		}
	}
}

// TestToolChoiceErrors: choices that mean nothing name the field.
func TestToolChoiceErrors(t *testing.T) {
	h := httpapi.New(enginetest.New(enginetest.Script{}), httpapi.Options{})
	for _, path := range []string{"/v1/chat/completions", "/v1/responses", "/v1/messages"} {
		for more, want := range map[string]string{
			`,"tool_choice":"function"`: "'tool_choice' must be", `,"tool_choice":5`: "'tool_choice' must be", `,"tool_choice":{"name":"get_time"}`: "'tool_choice' must be",
			`,"tool_choice":{"type":"function","name":"g"}`:                                        "'tool_choice' names the function 'g'",
			`,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"name":"g"}]}`:         "'tool_choice' names the function 'g'",
			`,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{}]}}`: "'tool_choice' names the function ''",
		} {
			if w := send(h, path, ask(path, "x", more, false)); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s%s: %d %s", path, more, w.Code, w.Body)
			}
		}
	}
	for path, more := range map[string]string{"/v1/chat/completions": `,"parallel_tool_calls":"no"`, "/v1/responses": `,"parallel_tool_calls":0`, "/v1/messages": `,"tool_choice":{"type":"auto","disable_parallel_tool_use":"yes"}`} {
		if w := send(h, path, ask(path, "x", more, false)); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "parallel_tool") {
			t.Errorf("%s%s: %d %s", path, more, w.Code, w.Body)
		}
	}
}
