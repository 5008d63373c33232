package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/httpapi"
	"sparkbar/httpapi/internal/enginetest"
)

// textAnswer is an answer of /completions.
type textAnswer struct {
	Choices []struct {
		Index    int
		Text     string
		Finish   *string `json:"finish_reason"`
		Logprobs *struct {
			Tokens  []string
			Chosen  []*float64           `json:"token_logprobs"`
			Top     []map[string]float64 `json:"top_logprobs"`
			Offsets []int                `json:"text_offset"`
		}
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
}

// complete asks /completions, whole or streamed; the pieces of a stream are put
// together.
func complete(t *testing.T, h http.Handler, fields string, stream bool) (a textAnswer) {
	t.Helper()
	if stream {
		fields += `,"stream":true,"stream_options":{"include_usage":true}`
	}
	w := send(h, "/v1/completions", "{"+fields+"}")
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", fields, w.Code, w.Body)
	}
	if !stream {
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, line := range strings.Split(w.Body.String(), "\n") {
		line, ok := strings.CutPrefix(line, "data: ")
		if !ok || line == "[DONE]" {
			continue
		}
		var piece textAnswer
		if err := json.Unmarshal([]byte(line), &piece); err != nil {
			t.Fatal(err, line)
		}
		if piece.Usage != nil {
			a.Usage = piece.Usage
		}
		for _, c := range piece.Choices {
			for len(a.Choices) <= c.Index {
				a.Choices = append(a.Choices, textAnswer{Choices: piece.Choices[:1]}.Choices[0])
				last := &a.Choices[len(a.Choices)-1]
				last.Index, last.Text, last.Finish, last.Logprobs = len(a.Choices)-1, "", nil, nil
			}
			all := &a.Choices[c.Index]
			all.Text += c.Text
			if c.Finish != nil {
				all.Finish = c.Finish
			}
			switch l := c.Logprobs; {
			case l == nil:
			case all.Logprobs == nil:
				all.Logprobs = l
			default:
				m := all.Logprobs
				m.Tokens, m.Chosen, m.Top, m.Offsets = append(m.Tokens, l.Tokens...), append(m.Chosen, l.Chosen...), append(m.Top, l.Top...), append(m.Offsets, l.Offsets...)
			}
		}
	}
	return a
}

// TestEcho: echo with log-probabilities and with token ids, as OpenAI does it: the
// prompt's own come first, its first token's are null; with max_tokens 0 there is
// nothing else.
func TestEcho(t *testing.T) {
	e, h := demo(t, engine.LoadRequest{}, nil)
	const prompt = "Speculative decoding lets a small drafter, naïve or not,"
	text := prompt
	base, err := e.Generate(context.Background(), engine.Request{ID: "x", Prompt: engine.Prompt{Text: &text}, MaxTokens: 8, Logprobs: 0}, nil)
	if err != nil {
		t.Fatal(err)
	}
	list, _ := json.Marshal(base.PromptTokens)
	for _, form := range []string{fmt.Sprintf("%q", prompt), string(list)} {
		for _, stream := range []bool{false, true} {
			fields := `"prompt":` + form + `,"echo":true,"temperature":0,"max_tokens":%d`
			without := complete(t, h, fmt.Sprintf(fields, 8), stream)
			if c := without.Choices[0]; c.Text != prompt+base.Text || c.Logprobs != nil || without.Usage.Completion != 8 {
				t.Errorf("%s, stream %v: %q, %+v", form, stream, c.Text, without.Usage)
			}
			for _, limit := range []int{8, 0} {
				a := complete(t, h, fmt.Sprintf(fields, limit)+`,"logprobs":2`, stream)
				c, tokens := a.Choices[0], len(base.PromptTokens)+limit
				wantText, wantEnd := prompt+base.Text, base.FinishReason
				if limit == 0 {
					wantText, wantEnd = prompt, engine.FinishLength
				}
				l := c.Logprobs
				if c.Text != wantText || *c.Finish != string(wantEnd) || a.Usage.Prompt != len(base.PromptTokens) || a.Usage.Completion != limit ||
					l == nil || len(l.Tokens) != tokens || len(l.Chosen) != tokens || len(l.Top) != tokens || len(l.Offsets) != tokens {
					t.Fatalf("%s, stream %v, %d tokens: %q %s %+v %+v", form, stream, limit, c.Text, *c.Finish, a.Usage, l)
				}
				if l.Chosen[0] != nil || l.Top[0] != nil || l.Offsets[0] != 0 {
					t.Errorf("the first token: %v %v at %d", l.Chosen[0], l.Top[0], l.Offsets[0])
				}
				runes := []rune(c.Text)
				for i := 1; i < tokens; i++ {
					if l.Chosen[i] == nil || *l.Chosen[i] > 0 || len(l.Top[i]) < 2 || len(l.Top[i]) > 3 {
						t.Errorf("token %d: %v %v", i, l.Chosen[i], l.Top[i])
					}
					if rest := string(runes[l.Offsets[i]:]); !strings.Contains(l.Tokens[i], "\ufffd") && !strings.HasPrefix(rest, l.Tokens[i]) {
						t.Errorf("token %d is %q at %d, where the text is %q", i, l.Tokens[i], l.Offsets[i], rest)
					}
				}
				for i := range limit {
					if at := len(base.PromptTokens) + i; math.Abs(*l.Chosen[at]-base.Tokens[i].Logprob) > 1e-6 {
						t.Errorf("generated token %d: %v, want %v", i, *l.Chosen[at], base.Tokens[i].Logprob)
					}
				}
			}
		}
	}
	// Several prompts, several choices.
	a := complete(t, h, `"prompt":["One","Two three"],"n":2,"echo":true,"logprobs":1,"max_tokens":2,"temperature":0`, false)
	if len(a.Choices) != 4 {
		t.Fatalf("%+v", a)
	}
	for i, c := range a.Choices {
		if p := []string{"One", "One", "Two three", "Two three"}[i]; c.Index != i || !strings.HasPrefix(c.Text, p) || c.Logprobs.Chosen[0] != nil || c.Logprobs.Offsets[0] != 0 || len(c.Logprobs.Tokens) != len(a.Choices[i/2*2].Logprobs.Tokens) {
			t.Errorf("choice %d: %+v", i, c)
		}
	}
}

// TestEchoIsBounded: an answer that scores its prompts is a thousand times as long as
// they are, so there are only so many.
func TestEchoIsBounded(t *testing.T) {
	e := enginetest.New(enginetest.Script{})
	h := httpapi.New(e, httpapi.Options{})
	long := strings.Repeat("a ", 100_000)
	for _, body := range []string{
		`"prompt":["` + long + `","` + long + `","` + long + `"]`,
		`"prompt":"` + long + `","n":3`,
		`"prompt":[` + strings.Repeat("7,", 199_999) + `7],"n":3`,
	} {
		w := send(h, "/v1/completions", `{`+body+`,"echo":true,"logprobs":5}`)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "'echo' with 'logprobs' would repeat prompts of 600000 bytes") || len(e.Asked()) > 0 {
			t.Fatalf("%d %.200s, asked %d times", w.Code, w.Body, len(e.Asked()))
		}
	}
	for _, fields := range []string{`,"echo":true`, `,"logprobs":5`} {
		if w := send(h, "/v1/completions", `{"prompt":"`+long+`","n":3`+fields+`}`); w.Code != http.StatusOK {
			t.Errorf("%s: %d %.200s", fields, w.Code, w.Body)
		}
	}
}

// TestBestOf: of the answers to each prompt those are shown that the model finds
// likeliest; all count.
func TestBestOf(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	const fields = `"prompt":["Tell me","Name the"],"max_tokens":8,"temperature":1.5,"seed":11`
	all := complete(t, h, fields+`,"n":6,"logprobs":0`, false)
	mean := func(i int) float64 {
		sum := 0.0
		for _, p := range all.Choices[i].Logprobs.Chosen {
			sum += *p
		}
		return sum / float64(len(all.Choices[i].Logprobs.Chosen))
	}
	got := complete(t, h, fields+`,"n":2,"best_of":6`, false)
	if len(got.Choices) != 4 || got.Usage.Completion != all.Usage.Completion || got.Usage.Prompt != all.Usage.Prompt {
		t.Fatalf("%+v, of %+v", got, all.Usage)
	}
	for p := range 2 {
		best, second := -1, -1
		for i := 6 * p; i < 6*p+6; i++ {
			switch {
			case best < 0 || mean(i) > mean(best):
				best, second = i, best
			case second < 0 || mean(i) > mean(second):
				second = i
			}
		}
		for k, want := range []int{best, second} {
			c := got.Choices[2*p+k]
			if c.Index != 2*p+k || c.Text != all.Choices[want].Text || c.Logprobs != nil {
				t.Errorf("prompt %d, choice %d: %+v, want %q", p, k, c, all.Choices[want].Text)
			}
		}
	}
}
