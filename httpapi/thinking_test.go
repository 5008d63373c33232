package httpapi

import (
	"strings"
	"testing"

	"sparkbar/httpapi/internal/enginetest"
)

// TestThinkingFields: every route knows the words of all dialects for how much a
// model shall think.
func TestThinkingFields(t *testing.T) {
	for path, body := range map[string]string{"/v1/chat/completions": `{"messages":[{"role":"user","content":"x"}]`, "/v1/messages": `{"messages":[{"role":"user","content":"x"}]`, "/v1/responses": `{"input":"x"`} {
		for fields, want := range map[string][2]any{ // enable_thinking, reasoning_effort
			``:                               {nil, nil},
			`"enable_thinking":false`:        {false, nil},
			`"enable_thinking":true`:         {true, nil},
			`"thinking":{"type":"disabled"}`: {false, nil},
			`"thinking":{"type":"enabled","budget_tokens":9}`:         {true, nil},
			`"thinking":{"type":"adaptive"}`:                          {nil, nil},
			`"thinking":{}`:                                           {nil, nil},
			`"thinking":false`:                                        {false, nil},
			`"thinking":true`:                                         {true, nil},
			`"thinking":null,"enable_thinking":null`:                  {nil, nil},
			`"thinking":{"type":"disabled"},"enable_thinking":true`:   {true, nil},
			`"reasoning_effort":"HIGH"`:                               {nil, "high"},
			`"reasoning_effort":"minimal"`:                            {nil, "low"},
			`"reasoning_effort":"none"`:                               {false, nil},
			`"reasoning_effort":"none","enable_thinking":true`:        {true, nil},
			`"reasoning_effort":"low","thinking":{"type":"disabled"}`: {false, "low"},
		} {
			e := enginetest.New(enginetest.Say("ok"))
			if fields != "" {
				fields = "," + fields
			}
			w := call(New(e, Options{}), "POST", path, body+fields+"}")
			if w.Code != 200 {
				t.Errorf("%s %s: %d %s", path, fields, w.Code, w.Body)
				continue
			}
			if k := e.Asked()[0].Prompt.Kwargs; k["enable_thinking"] != want[0] || k["reasoning_effort"] != want[1] {
				t.Errorf("%s %s: %v, want %v", path, fields, k, want)
			}
		}
		for _, fields := range []string{`"enable_thinking":"no"`, `"thinking":5`, `"thinking":"on"`, `"thinking":{"type":1}`, `"reasoning_effort":"huge"`, `"reasoning_effort":3`} {
			e := enginetest.New(enginetest.Say("ok"))
			w := call(New(e, Options{}), "POST", path, body+","+fields+"}")
			if name := strings.Split(fields, `"`)[1]; w.Code != 400 || !strings.Contains(message(t, path, w.Body.Bytes()), name) || len(e.Asked()) > 0 {
				t.Errorf("%s %s: %d %s", path, fields, w.Code, w.Body)
			}
		}
	}
}

// TestEffortElsewhere: the efforts of Anthropic and of Responses; there an unknown
// one is left out, here it is refused.
func TestEffortElsewhere(t *testing.T) {
	for _, c := range []struct {
		path, body   string
		think, level any
	}{
		{"/v1/messages", `"output_config":{"effort":"medium"}`, nil, "medium"},
		{"/v1/messages", `"output_config":{"effort":"max"}`, nil, "xhigh"},
		{"/v1/messages", `"output_config":{"effort":"minimal"}`, nil, "low"},
		{"/v1/messages", `"output_config":{"effort":"galactic"}`, nil, nil},
		{"/v1/messages", `"output_config":{"effort":"high"},"thinking":{"type":"disabled"}`, false, nil},
		{"/v1/messages", `"output_config":{"effort":"high"},"reasoning_effort":"low"`, nil, "low"},
		{"/v1/responses", `"reasoning":{"effort":"xhigh"}`, nil, "xhigh"},
		{"/v1/responses", `"reasoning":{"effort":"none"}`, false, nil},
		{"/v1/responses", `"reasoning":{"effort":"low"},"reasoning_effort":"high"`, nil, "low"},
	} {
		body := `{"messages":[{"role":"user","content":"x"}],"input":"x",` + c.body + "}"
		e := enginetest.New(enginetest.Say("ok"))
		w := call(New(e, Options{}), "POST", c.path, body)
		if w.Code != 200 {
			t.Errorf("%s %s: %d %s", c.path, c.body, w.Code, w.Body)
			continue
		}
		if k := e.Asked()[0].Prompt.Kwargs; k["enable_thinking"] != c.think || k["reasoning_effort"] != c.level {
			t.Errorf("%s %s: %v", c.path, c.body, k)
		}
	}
	for _, c := range [][2]string{{"/v1/messages", `"output_config":{"effort":5}`}, {"/v1/messages", `"output_config":"high"`}, {"/v1/responses", `"reasoning":{"effort":"galactic"}`}} {
		if w := call(New(enginetest.New(enginetest.Say("ok")), Options{}), "POST", c[0], `{"messages":[{"role":"user","content":"x"}],"input":"x",`+c[1]+"}"); w.Code != 400 {
			t.Errorf("%s %s: %d %s", c[0], c[1], w.Code, w.Body)
		}
	}
}
