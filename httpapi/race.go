package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
	"sparkbar/engine/telemetry"
)

// raceArm is an arm as the events show it. Cap is nil, a number or "auto".
type raceArm struct {
	Mode       string   `json:"mode"`
	Cap        any      `json:"cap"`
	Confidence *float64 `json:"confidence"`
}

func (a raceArm) label() string {
	l := a.Mode
	if a.Cap != nil {
		l += fmt.Sprint(" cap ", a.Cap)
	}
	if a.Confidence != nil {
		l += " conf " + strconv.FormatFloat(*a.Confidence, 'f', -1, 64)
	}
	return l
}

// arm is what the engine is told.
func (a raceArm) arm() *engine.Arm {
	out := &engine.Arm{Mode: a.Mode, Confidence: a.Confidence, Auto: a.Cap == "auto"}
	if n, ok := a.Cap.(int); ok {
		out.Cap = n
	}
	return out
}

// The payloads of the race's events.
type (
	raceStart struct {
		Arms      []raceArm `json:"arms"`
		MaxTokens int       `json:"max_tokens"`
		Model     string    `json:"model"`
		Thinking  *bool     `json:"thinking,omitempty"`
		Effort    *string   `json:"reasoning_effort,omitempty"`
	}
	raceArmStart struct {
		Index int `json:"index"`
		raceArm
		Label string `json:"label"`
	}
	raceToken struct {
		Index int     `json:"index"`
		Text  string  `json:"text"`
		MS    float64 `json:"t_ms"`
	}
	raceArmDone struct {
		Index          int     `json:"index"`
		Label          string  `json:"label"`
		Mode           string  `json:"mode"`
		Cap            any     `json:"cap"`
		Tokens         int     `json:"tokens"`
		Seconds        float64 `json:"seconds"`
		TokensPerSec   float64 `json:"tokens_per_sec"`
		AcceptLen      float64 `json:"accept_len"`
		TargetForwards int     `json:"target_forwards"`
		LookupRounds   int     `json:"lookup_rounds"`
	}
	raceError struct {
		Message string `json:"message"`
	}
)

const (
	minArms, maxArms = 2, 4
	raceTokens       = 200
	raceTop          = 20 // alternatives that a margin is looked for in
)

// race runs the loaded model in several ways, one after another, each without
// the prefix cache and greedy, and compares the tokens.
func (s *Server) race(c *gin.Context) *apiError {
	f, err := s.body(c)
	if err != nil {
		return err
	}
	st, err := s.ready()
	if err != nil {
		return err
	}
	start, req, err := s.raceRequest(f, st)
	if err != nil {
		return err
	}
	id := "race_" + randomHex(12)
	setRequestID(c, id)
	out := newEventStream(c.Writer)
	ctx, cancel := s.untilStop(c)
	defer cancel()
	if out.event("start", start) != nil {
		return nil
	}
	var arms []telemetry.Arm
	var prompt []int32
	for i, a := range start.Arms {
		if out.event("arm_start", raceArmStart{i, a, a.label()}) != nil {
			return nil
		}
		r := req
		r.ID, r.Arm = id+"-"+strconv.Itoa(i), a.arm()
		res, gerr := s.raceArm(ctx, out, i, r)
		if gerr != nil {
			_ = out.event("error", raceError{s.failure(gerr).Message})
			_ = out.event("done", struct{}{})
			return nil
		}
		t := res.Stats
		done := raceArmDone{i, a.label(), a.Mode, a.Cap, len(res.Tokens), math.Round(1000*(t.PrefillSeconds+t.DecodeSeconds)) / 1000, t.TokensPerSec, t.AcceptLen, t.TargetForwards, t.LookupRounds}
		if out.event("arm_done", done) != nil {
			return nil
		}
		arm := telemetry.Arm{Index: i, Label: a.label()}
		for _, tok := range res.Tokens {
			arm.Tokens = append(arm.Tokens, tok.ID)
		}
		arms, prompt = append(arms, arm), res.PromptTokens
	}
	v := telemetry.CompareArms(arms)
	if v.Divergences != nil {
		for i := range *v.Divergences {
			d := &(*v.Divergences)[i]
			if !d.LengthOnly && d.ReferenceToken != nil && d.ArmToken != nil {
				d.Margin = s.margin(ctx, slices.Concat(prompt, arms[0].Tokens[:d.FirstDiff]), *d.ReferenceToken, *d.ArmToken)
			}
		}
	}
	if out.event("verdict", v) == nil {
		_ = out.event("done", struct{}{})
	}
	return nil
}

// raceRequest reads the body of a race.
func (s *Server) raceRequest(f *fields, st engine.Status) (start raceStart, req engine.Request, err *apiError) {
	bad := func(field, format string, args ...any) (raceStart, engine.Request, *apiError) {
		return start, req, invalid(field, format, args...)
	}
	v, _ := f.get("prompt")
	prompt := unquote(v)
	if len(v) == 0 || v[0] != '"' || strings.TrimSpace(prompt) == "" {
		return bad("prompt", "race needs a non-empty 'prompt'")
	}
	have := s.engine.Arms()
	list := f.list("arms")
	if f.err != nil {
		return start, req, f.err
	}
	if list == nil && len(have) > 0 { // the loaded mode against plain decoding, or what else there is
		first := have[0]
		if first == "baseline" {
			first = "lookup"
		}
		start.Arms = []raceArm{{Mode: first}, {Mode: "baseline"}}
	} else if len(list) < minArms || len(list) > maxArms {
		return bad("arms", "race takes between %d and %d arms", minArms, maxArms)
	}
	for _, v := range list {
		a, err := readArm(v, have)
		if err != nil {
			return start, req, err
		}
		start.Arms = append(start.Arms, a)
	}
	start.MaxTokens, start.Model = raceTokens, st.Model.ID
	if n := f.integer("max_tokens", 1, math.MaxInt32); n != nil {
		start.MaxTokens = *n
	}
	if st.MaxTokensCap > 0 {
		start.MaxTokens = min(start.MaxTokens, st.MaxTokensCap)
	}
	req = engine.Request{MaxTokens: start.MaxTokens, Logprobs: -1, Sampling: engine.Sampling{Temperature: new(float64)}}
	req.Prompt.Messages, req.Prompt.Kwargs = encode([]orderedObject{textMessage("user", prompt)}), map[string]any{}
	if v, ok := f.get("thinking"); ok {
		if !isTruth(v) {
			return bad("thinking", "'thinking' must be a boolean (omit it to use the server's default)")
		}
		start.Thinking = new(bool)
		*start.Thinking = string(v) == "true"
	}
	start.Effort = f.text("reasoning_effort")
	f.thinking(req.Prompt.Kwargs, nil)
	return start, req, f.err
}

func readArm(v json.RawMessage, have []string) (a raceArm, err *apiError) {
	if v[0] == '"' {
		v = encode(map[string]string{"mode": unquote(v)})
	}
	var o map[string]json.RawMessage
	if v[0] != '{' || json.Unmarshal(v, &o) != nil {
		return a, invalid("arms", "an arm must be a mode or an object with 'mode', 'cap' and 'confidence', got %s", quote(v))
	}
	a.Mode = unquote(o["mode"])
	if !slices.Contains(have, a.Mode) {
		return a, invalid("arms", "mode '%s' is not available with the loaded model (have: %s)", shorten(a.Mode), strings.Join(slices.Sorted(slices.Values(have)), ", "))
	}
	drafts := a.Mode != "baseline" && a.Mode != "lookup"
	switch v := o["cap"]; {
	case len(v) == 0 || string(v) == "null":
	case string(v) == `"auto"`:
		if !drafts {
			return a, invalid("arms", "cap 'auto' needs a drafter mode, not '%s'", a.Mode)
		}
		a.Cap = "auto"
	default:
		n, ok := parseInteger(v)
		if !ok {
			return a, invalid("arms", "arm cap must be an integer or 'auto', got %s", quote(v))
		}
		if n < 1 || n > 64 {
			return a, invalid("arms", "arm cap must be in 1..64")
		}
		a.Cap = int(n)
	}
	if v := o["confidence"]; len(v) > 0 && string(v) != "null" {
		if a.Mode != "dspark" {
			return a, invalid("arms", "arm 'confidence' needs a dspark arm (only the DSpark drafter has a confidence head)")
		}
		x, ok := parseNumber(v)
		if !ok || x < 0 || x > 1 {
			return a, invalid("arms", "arm 'confidence' must be a number in [0, 1]")
		}
		a.Confidence = &x
	}
	return a, nil
}

// raceArm runs one arm and shows its text as it comes; while there is none the
// connection is kept alive.
func (s *Server) raceArm(ctx context.Context, out *eventStream, index int, req engine.Request) (engine.Result, error) {
	type outcome struct {
		res engine.Result
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	texts, ended := make(chan string), make(chan outcome, 1)
	began := time.Now()
	go func() {
		res, err := s.generate(ctx, req, func(d engine.Delta) error {
			if d.Text == "" {
				return nil
			}
			select {
			case texts <- d.Text:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		ended <- outcome{res, err}
	}()
	timer := time.NewTicker(keepAlivePeriod)
	defer timer.Stop()
	for {
		var err error
		select {
		case text := <-texts:
			err = out.event("token", raceToken{index, text, float64(time.Since(began).Microseconds()/100) / 10})
		case <-timer.C:
			err = out.write(eventComment)
		case o := <-ended:
			return o.res, o.err
		}
		if err != nil {
			cancel()
			<-ended
			return engine.Result{}, err
		}
	}
}

// margin asks the target how close its decision between two tokens is. nil
// where one of them is not among its best. The values are log-probabilities,
// which differ from logits by the same constant.
func (s *Server) margin(ctx context.Context, prompt []int32, reference, arm int32) *telemetry.Margin {
	req := engine.Request{ID: "race_margin", Prompt: engine.Prompt{Tokens: prompt}, MaxTokens: 1, Logprobs: raceTop,
		Sampling: engine.Sampling{Temperature: new(float64)}, Arm: &engine.Arm{Mode: "baseline"}}
	res, err := s.generate(ctx, req, func(engine.Delta) error { return nil })
	if err != nil || len(res.Tokens) == 0 || len(res.Tokens[0].Top) < 2 {
		return nil
	}
	m := telemetry.Margin{Approximate: true}
	found := 0
	top := res.Tokens[0].Top
	for _, t := range top {
		switch t.ID {
		case reference:
			m.Logits.Reference = t.Logprob
			found++
		case arm:
			m.Logits.Arm = t.Logprob
			found++
		}
	}
	if found < 2 {
		return nil
	}
	m.Margin, m.Top2 = m.Logits.Reference-m.Logits.Arm, top[0].Logprob-top[1].Logprob
	return &m
}
