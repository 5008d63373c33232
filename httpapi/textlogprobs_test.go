package httpapi

import (
	"strings"
	"testing"

	"sparkbar/httpapi/internal/enginetest"
)

// TestTextLogprobs: what /completions makes of logprobs and top_logprobs, by profile.
func TestTextLogprobs(t *testing.T) {
	for _, c := range []struct {
		profile Profile
		fields  string
		want    int    // alternatives
		fails   string // "" = not
	}{
		{SparkbarProfile(), ``, -1, ""},
		{SparkbarProfile(), `,"logprobs":false`, -1, ""},
		{SparkbarProfile(), `,"logprobs":null`, -1, ""},
		{SparkbarProfile(), `,"logprobs":0`, 0, ""},
		{SparkbarProfile(), `,"logprobs":5`, 5, ""},
		{SparkbarProfile(), `,"logprobs":true`, 1, ""},
		{SparkbarProfile(), `,"logprobs":true,"top_logprobs":3`, 3, ""},
		{SparkbarProfile(), `,"logprobs":"3"`, 0, "'logprobs' must be an integer"},
		{SparkbarProfile(), `,"top_logprobs":99`, 0, "'top_logprobs' must be at most 20"},
		{MLXLMProfile(), `,"logprobs":true,"top_logprobs":3`, 3, ""},
		{MLXLMProfile(), `,"logprobs":3`, 0, "logprobs must be of type bool"},
		{MLXLMProfile(), `,"logprobs":null`, 0, "logprobs must be of type bool"},
		{MLXLMProfile(), `,"top_logprobs":12`, 0, "top_logprobs must be at most 11"},
	} {
		e := enginetest.New(enginetest.Say("ok"))
		w := call(New(e, Options{Profile: c.profile}), "POST", "/v1/completions", `{"prompt":"x"`+c.fields+`}`)
		switch {
		case c.fails != "":
			if w.Code != 400 || !strings.Contains(w.Body.String(), c.fails) || len(e.Asked()) > 0 {
				t.Errorf("%s%s: %d %s, want %q", c.profile.Name, c.fields, w.Code, w.Body, c.fails)
			}
		case w.Code != 200 || e.Asked()[0].Logprobs != c.want:
			t.Errorf("%s%s: %d %s", c.profile.Name, c.fields, w.Code, w.Body)
		}
	}
}
