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

// weather is a request that the demo answers with a call of get_weather.
const weather = `"messages":[{"role":"user","content":"What is the weather in Rome?"}],"num_draft_tokens":0,"max_tokens":%d,"stream":%t,
	"tools":[{"type":"function","function":{"name":%q,"description":"Get the weather for a city","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}]`

// chatCalls are the calls of an answer, whole or streamed, its end, and how many
// calls were broken.
func chatCalls(t *testing.T, body string) (names, arguments []string, end string, broken int) {
	t.Helper()
	type part struct {
		Content string
		Calls   []struct {
			Index    int
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	for _, line := range strings.Split(body, "\n") {
		line = strings.TrimPrefix(line, "data: ")
		var a struct {
			Choices []struct {
				Message, Delta part
				Finish         *string `json:"finish_reason"`
			}
			Stats *struct {
				Broken []string `json:"broken_tool_calls"`
			} `json:"x_mlx_dspark"`
		}
		if line == "" || line == "[DONE]" {
			continue
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		for _, c := range a.Choices {
			if strings.Contains(c.Delta.Content+c.Message.Content, "tool_call") {
				t.Errorf("markup is shown: %s", line)
			}
			for i, call := range append(c.Message.Calls, c.Delta.Calls...) {
				if c.Message.Calls != nil {
					call.Index = i
				}
				if call.Index == len(names) {
					names, arguments = append(names, call.Function.Name), append(arguments, "")
				}
				arguments[call.Index] += call.Function.Arguments
			}
			if c.Finish != nil {
				end = *c.Finish
			}
		}
		if a.Stats != nil {
			broken = len(a.Stats.Broken)
		}
	}
	return
}

// TestCallsStreamedOrNot: a call is the same in a whole answer and in a stream; one
// that is cut off is none in either, and both end alike and say so.
func TestCallsStreamedOrNot(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	for limit, want := range map[int]string{80: "tool_calls", 17: "length"} {
		for _, stream := range []bool{false, true} {
			w := send(h, "/v1/chat/completions", "{"+fmt.Sprintf(weather, limit, stream, "get_weather")+"}")
			if w.Code != http.StatusOK {
				t.Fatal(w.Code, w.Body)
			}
			names, args, end, broken := chatCalls(t, w.Body.String())
			whole := len(names) == 1 && names[0] == "get_weather" && args[0] == `{"city": "Rome"}` && broken == 0
			cut := len(names) == 0 && broken == 1
			if end != want || limit == 80 && !whole || limit == 17 && !cut {
				t.Errorf("%d tokens, stream %v: %v %q, %s, %d broken", limit, stream, names, args, end, broken)
			}
		}
	}
}

// TestUnknownFunction: a function that the request does not offer is not called.
func TestUnknownFunction(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	for _, stream := range []bool{false, true} {
		w := send(h, "/v1/chat/completions", "{"+fmt.Sprintf(weather, 80, stream, "get_time")+"}")
		names, _, end, broken := chatCalls(t, w.Body.String())
		if w.Code != http.StatusOK || len(names) > 0 || end != "stop" || broken != 1 || !strings.Contains(w.Body.String(), "offers no tool 'get_weather'") {
			t.Errorf("stream %v: %d %v %s %d: %s", stream, w.Code, names, end, broken, w.Body)
		}
	}
}

// TestDroppedCall: what a call that came to nothing looks like on the other routes.
func TestDroppedCall(t *testing.T) {
	dropped := engine.Delta{ToolCall: &engine.ToolCall{Dropped: true}}
	script := replay(engine.FinishLength, call(0, "call_1", "f", ""), call(0, "", "", `{"a": 1`))
	script.Steps = append(script.Steps, enginetest.Step{Delta: &dropped})
	script.Result.ToolCalls = nil
	for path, c := range map[string]struct {
		body string
		want []string
	}{
		"/v1/chat/completions": {`{"stream":true,"messages":[{"role":"user","content":"x"}]}`, []string{`"arguments":"{\"a\": 1"`, `"finish_reason":"length"`}},
		"/v1/messages":         {`{"stream":true,"messages":[{"role":"user","content":"x"}]}`, []string{`"partial_json":"{\"a\": 1"`, `"stop_reason":"max_tokens"`}},
		"/v1/responses": {`{"stream":true,"input":"x"}`, []string{`"type":"function_call","status":"incomplete","call_id":"call_1","name":"f","arguments":"{\"a\": 1"`,
			"event: response.incomplete\n"}},
	} {
		w := send(httpapi.New(enginetest.New(script), httpapi.Options{}), path, c.body)
		for _, part := range c.want {
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), part) {
				t.Errorf("%s: %d, %s is missing in %s", path, w.Code, part, w.Body)
			}
		}
	}
}
