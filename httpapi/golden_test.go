package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/machine"
	"sparkbar/engine/telemetry"
	"sparkbar/httpapi/internal/enginetest"
)

// additive are keys that answers have beyond the recorded ones.
var additive = map[string]string{
	"system_fingerprint": "always sent", "reasoning": "beside reasoning_content", "cache_read_input_tokens": "W15",
	"input_tokens_details": "W18", "x_mlx_dspark": "W17",
	"error": "W18", "instructions": "W18", "max_output_tokens": "W18", "metadata": "W18", "parallel_tool_calls": "W18",
	"output_tokens_details": "W18, OpenAI's libraries require it", "logprobs": "the same, in text events", "name": "the same, of a finished call",
	"temperature": "W18", "tool_choice": "W18", "tools": "W18", "top_p": "W18",
	"state": "W26", "version": "W39", "uptime_seconds": "W26", "in_flight": "W26", "queued": "W26", "last_round_age_seconds": "W26",
	"backend": "engine facts", "architecture": "engine facts", "weight_bytes": "engine facts", "drafter_bytes": "engine facts",
	"progress": "W31", "serving": "the model that answers during a swap",
}

// own are values that hold the name of the program.
var own = map[string]bool{"owned_by": true, "display_name": true, "signature": true}

// volatile values differ from run to run.
var volatile = map[string]bool{"active_bytes": true, "peak_bytes": true, "cache_bytes": true, "id": true, "created": true, "created_at": true, "item_id": true, "call_id": true,
	"t": true, "seq": true, "req": true, "ms": true}

type golden struct {
	Name    string `json:"name"`
	Request struct {
		Method  string            `json:"method"`
		Path    string            `json:"path"`
		Headers map[string]string `json:"headers"`
		Body    json.RawMessage   `json:"body"`
	} `json:"request"`
	Response struct {
		Status      int             `json:"status"`
		Body        json.RawMessage `json:"body"`
		SSE         string          `json:"sse_text"`
		Closed      bool            `json:"closed_without_response"`
		ContentType string          `json:"content_type"`
	} `json:"response"`
}

func (g *golden) body() []byte {
	var raw string
	if json.Unmarshal(g.Request.Body, &raw) == nil && g.Request.Body[0] == '"' {
		if strings.HasSuffix(g.Name, "bad-utf8") { // recorded as Latin-1
			return bytes.ReplaceAll([]byte(raw), []byte("\u00ff"), []byte{0xff})
		}
		return []byte(raw)
	}
	if string(g.Request.Body) == "null" {
		return nil
	}
	return g.Request.Body
}

// TestGoldens replays recorded exchanges of mlx-dspark against a scripted
// engine that says what the recorded model said.
func TestGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/dspark/*.json")
	if err != nil || len(files) < 100 {
		t.Fatalf("goldens: %d files, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var g golden
			if err := json.Unmarshal(b, &g); err != nil {
				t.Fatal(err)
			}
			g.Name = name
			replay(t, &g)
		})
	}
	scripted.checkUsed(t)
}

func replay(t *testing.T, g *golden) {
	e := goldenEngine(t, g)
	var o Options
	if strings.HasPrefix(g.Name, "api-key-") {
		o.Keys = []string{"sekret"}
	}
	r := httptest.NewRequest(g.Request.Method, g.Request.Path, bytes.NewReader(g.body()))
	r.Host = "127.0.0.1:8080"
	for k, v := range g.Request.Headers {
		if k != "Origin" {
			r.Header.Set(k, v)
		}
	}
	if strings.HasSuffix(g.Name, "events-503") || g.Name == "no-model-admin-events" {
		e.SetStatus(engine.Status{State: engine.StateIdle})
	}
	w := httptest.NewRecorder()
	New(e, o).ServeHTTP(w, r)

	want := g.Response.Status
	if right := scripted.rightStatus(g.Name); right != 0 {
		if w.Code != right || right == want {
			t.Fatalf("status %d, want %d: %s", w.Code, right, w.Body)
		}
		return
	}
	if w.Code != want {
		t.Fatalf("status %d, want %d: %s", w.Code, want, w.Body)
	}
	if g.Response.SSE != "" {
		compareStreams(t, g, w.Body.String())
		return
	}
	if len(g.Response.Body) == 0 || string(g.Response.Body) == "null" {
		if w.Body.Len() > 0 {
			t.Errorf("a body where none is due: %s", w.Body)
		}
		return
	}
	if got := w.Header().Get("Content-Type"); got != g.Response.ContentType {
		t.Errorf("content type %q, want %q", got, g.Response.ContentType)
	}
	compare(t, g.Name, "", parseTree(t, g.Response.Body), parseTree(t, w.Body.Bytes()))
}

// tree is JSON with the order of keys.
type tree struct {
	kind byte // '{', '[', '"', '0', 't', 'n'
	keys []string
	kids map[string]*tree
	list []*tree
	text string
}

func parseTree(t *testing.T, b []byte) *tree {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	v, err := readTree(d)
	if err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return v
}

func readTree(d *json.Decoder) (*tree, error) {
	tok, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch v := tok.(type) {
	case json.Delim:
		n := &tree{kind: byte(v), kids: map[string]*tree{}}
		for d.More() {
			key := ""
			if v == '{' {
				k, err := d.Token()
				if err != nil {
					return nil, err
				}
				key = k.(string)
			}
			kid, err := readTree(d)
			if err != nil {
				return nil, err
			}
			if v == '{' {
				n.keys, n.kids[key] = append(n.keys, key), kid
			} else {
				n.list = append(n.list, kid)
			}
		}
		_, err := d.Token()
		return n, err
	case string:
		return &tree{kind: '"', text: v}, nil
	case json.Number:
		return &tree{kind: '0', text: v.String()}, nil
	case bool:
		return &tree{kind: 't', text: strconv.FormatBool(v)}, nil
	}
	return &tree{kind: 'n'}, nil
}

// compare checks keys, their order, types and values.
func compare(t *testing.T, name, path string, want, got *tree) {
	t.Helper()
	if scripted.excepted(name, path, want, got) {
		return
	}
	if want.kind != got.kind {
		t.Errorf("%s is %c %q, want %c %q", path, got.kind, got.text, want.kind, want.text)
		return
	}
	switch want.kind {
	case '{':
		at := -1
		for _, k := range want.keys {
			p := strings.TrimPrefix(path+"."+k, ".")
			kid, ok := got.kids[k]
			if scripted.excepted(name, p, want.kids[k], kid) {
				continue
			}
			if !ok {
				t.Errorf("%s is missing", p)
				continue
			}
			i := slices.Index(got.keys, k)
			if i < at {
				t.Errorf("%s comes too early: %v, want %v", p, got.keys, want.keys)
			}
			at = max(at, i)
			if kid.kind != 'n' && volatile[k] && want.kids[k].kind == kid.kind {
				continue
			}
			compare(t, name, p, want.kids[k], kid)
		}
		for _, k := range got.keys {
			if _, ok := want.kids[k]; !ok && additive[k] == "" && !scripted.excepted(name, strings.TrimPrefix(path+"."+k, "."), nil, got.kids[k]) {
				t.Errorf("%s.%s is not in the recorded answer", path, k)
			}
		}
	case '[':
		if len(want.list) != len(got.list) {
			t.Errorf("%s has %d entries, want %d", path, len(got.list), len(want.list))
			return
		}
		for i := range want.list {
			compare(t, name, fmt.Sprintf("%s[%d]", path, i), want.list[i], got.list[i])
		}
	case '0':
		a, _ := strconv.ParseFloat(want.text, 64)
		b, _ := strconv.ParseFloat(got.text, 64)
		if a != b {
			t.Errorf("%s is %s, want %s", path, got.text, want.text)
		}
	default:
		if own[path[strings.LastIndexByte(path, '.')+1:]] && strings.EqualFold(strings.ReplaceAll(want.text, "mlx-dspark", "sparkbar"), got.text) {
			return
		}
		if want.text != got.text {
			t.Errorf("%s is %q, want %q", path, got.text, want.text)
		}
	}
}

// sseEvent is one event of a stream.
type sseEvent struct{ name, data string }

// parseSSE splits a stream; comments are left out.
func parseSSE(text string) []sseEvent {
	var events []sseEvent
	for _, frame := range strings.Split(text, "\n\n") {
		var e sseEvent
		for _, line := range strings.Split(frame, "\n") {
			if v, ok := strings.CutPrefix(line, "event: "); ok {
				e.name = v
			} else if v, ok := strings.CutPrefix(line, "data: "); ok {
				e.data = v
			}
		}
		if e.data != "" {
			events = append(events, e)
		}
	}
	return events
}

// ownEvents are events that streams have beyond the recorded ones.
var ownEvents = map[string]string{
	"response.in_progress": "W18", "response.reasoning_summary_part.added": "W18", "response.reasoning_summary_text.delta": "W18",
	"response.reasoning_summary_text.done": "W18", "response.reasoning_summary_part.done": "W18",
}

// compareStreams matches the events one by one. Left out on either side: the
// empty text block that the reference opens before a tool call (W16), events
// of reasoning that it does not send (W18), the usage chunk.
func compareStreams(t *testing.T, g *golden, body string) {
	t.Helper()
	want, got := comparable(t, g.Response.SSE), comparable(t, body)
	if len(want) != len(got) {
		t.Fatalf("%d events, want %d:\n%s\nwant\n%s", len(got), len(want), show(got), show(want))
	}
	for i := range want {
		if want[i].name != got[i].name {
			t.Fatalf("event %d is %s, want %s:\n%s\nwant\n%s", i, got[i].name, want[i].name, show(got), show(want))
		}
		if want[i].data == "[DONE]" || got[i].data == "[DONE]" {
			if want[i].data != got[i].data {
				t.Errorf("event %d is %s, want %s", i, got[i].data, want[i].data)
			}
			continue
		}
		name := g.Name
		compare(t, name, "", parseTree(t, []byte(want[i].data)), parseTree(t, []byte(got[i].data)))
	}
	if strings.Contains(g.Response.SSE, `"usage": {"prompt_tokens"`) && !strings.Contains(body, `"choices":[],"usage":{"prompt_tokens"`) {
		t.Errorf("no usage chunk in %s", body)
	}
}

func show(events []sseEvent) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "%s %.140s\n", e.name, e.data)
	}
	return b.String()
}

// comparable brings both servers' streams into one form: numbers that count
// events or items are taken out, pieces of a text are one.
func comparable(t *testing.T, text string) []sseEvent {
	var out []sseEvent
	for _, e := range parseSSE(text) {
		if ownEvents[e.name] != "" || e.name == "ping" || e.data != "[DONE]" && strings.Contains(e.data, `"choices":[]`) {
			continue
		}
		if strings.Contains(e.data, `"delta": {}, "finish_reason": null`) { // how mlx-dspark keeps a stream of chat alive
			continue
		}
		if e.data == "[DONE]" {
			out = append(out, e)
			continue
		}
		var o map[string]any
		if err := json.Unmarshal([]byte(e.data), &o); err != nil {
			t.Fatalf("%v in %s", err, e.data)
		}
		if item, ok := o["item"].(map[string]any); ok && item["type"] == "reasoning" {
			continue
		}
		if item, ok := o["item"].(map[string]any); ok && e.name == "response.output_item.added" && item["type"] == "function_call" {
			item["arguments"] = "" // W25: arguments come in deltas
		}
		if r, ok := o["response"].(map[string]any); ok {
			if list, ok := r["output"].([]any); ok {
				r["output"] = slices.DeleteFunc(list, func(v any) bool { return v.(map[string]any)["type"] == "reasoning" })
			}
		}
		for _, key := range []string{"sequence_number", "output_index", "index"} {
			if _, ok := o[key]; ok {
				o[key] = 0
			}
		}
		e.data = string(encode(o))
		out = append(out, e)
	}
	out = joinDeltas(out)
	// W16: drop blocks that have no text.
	for i := 0; i+1 < len(out); i++ {
		if out[i].name != "content_block_start" {
			continue
		}
		end := i + 1
		if end+1 < len(out) && strings.Contains(out[end].data, "signature_delta") {
			end++
		}
		if out[end].name == "content_block_stop" && !strings.Contains(out[i].data, "tool_use") {
			out = slices.Delete(out, i, end+1)
			i--
		}
	}
	return out
}

// joinDeltas makes one event of neighbouring pieces of the same text.
func joinDeltas(events []sseEvent) []sseEvent {
	var out []sseEvent
	for _, e := range events {
		if n := len(out); n > 0 && out[n-1].name == e.name {
			if joined, ok := joinPair(out[n-1].data, e.data); ok {
				out[n-1].data = joined
				continue
			}
		}
		out = append(out, e)
	}
	for i, e := range out { // outer whitespace of Anthropic texts is the reference's fault W16
		if e.name == "content_block_delta" {
			var o map[string]any
			_ = json.Unmarshal([]byte(e.data), &o)
			if d := o["delta"].(map[string]any); d["type"] == "text_delta" {
				d["text"] = strings.TrimSpace(d["text"].(string))
				out[i].data = string(encode(o))
			}
		}
	}
	return out
}

func joinPair(a, b string) (string, bool) {
	var x, y map[string]any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return "", false
	}
	if s, ok := x["delta"].(string); ok { // responses
		if u, ok := y["delta"].(string); ok && x["type"] == y["type"] {
			x["delta"] = s + u
			return string(encode(x)), true
		}
		return "", false
	}
	dx, ok := x["delta"].(map[string]any)
	dy, ok2 := y["delta"].(map[string]any)
	if !ok || !ok2 { // chat
		cx, ok := first(x["choices"])
		cy, ok2 := first(y["choices"])
		if !ok || !ok2 || cy["finish_reason"] != nil {
			return "", false
		}
		dx, ok = cx["delta"].(map[string]any)
		dy, ok2 = cy["delta"].(map[string]any)
		if !ok || !ok2 {
			if s, ok := cx["text"].(string); ok { // completions
				cx["text"] = s + cy["text"].(string)
				return string(encode(x)), true
			}
			return "", false
		}
		if lx, ok := dx["tool_calls"].([]any); ok {
			ly, ok := dy["tool_calls"].([]any)
			if ok {
				dx["tool_calls"] = append(lx, ly...)
			}
			return string(encode(x)), ok
		}
	}
	joined := false
	for _, key := range []string{"content", "reasoning_content", "reasoning", "text", "thinking", "partial_json"} {
		s, ok := dx[key].(string)
		u, ok2 := dy[key].(string)
		if ok != ok2 {
			if key == "reasoning" {
				continue
			}
			return "", false
		}
		if ok {
			dx[key] = s + u
			joined = true
		}
	}
	if joined {
		return string(encode(x)), true
	}
	return "", false
}

func first(v any) (map[string]any, bool) {
	l, ok := v.([]any)
	if !ok || len(l) == 0 {
		return nil, false
	}
	m, ok := l[0].(map[string]any)
	return m, ok
}

// goldenEngine scripts an engine that is in the state of the recording and
// says what its model said.
func goldenEngine(t *testing.T, g *golden) *enginetest.Engine {
	var answer struct {
		Choices []struct {
			Text    string
			Message struct {
				Content          string
				ReasoningContent string `json:"reasoning_content"`
				ToolCalls        []struct {
					ID       string
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			}
			FinishReason string `json:"finish_reason"`
			Logprobs     struct {
				Content []struct {
					Token   string
					Logprob float64
					Bytes   []int
					Top     []struct {
						Token   string
						Logprob float64
						Bytes   []int
					} `json:"top_logprobs"`
				}
				Tokens        []string
				TokenLogprobs []float64 `json:"token_logprobs"`
				TopLogprobs   []any     `json:"top_logprobs"`
			}
		}
		Content []struct {
			Type, Text, Thinking, ID, Name string
			Input                          json.RawMessage
		}
		Output []struct {
			Type, Name, Arguments string
			CallID                string `json:"call_id"`
			Summary               []struct{ Text string }
			Content               []struct{ Text string }
		}
		StopReason string `json:"stop_reason"`
		Status     string
		Usage      struct {
			Completion int `json:"completion_tokens"`
			Prompt     int `json:"prompt_tokens"`
			Input      int `json:"input_tokens"`
			Output     int `json:"output_tokens"`
			Details    struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		InputTokens int                           `json:"input_tokens"`
		Stats       *telemetry.RequestSummary     `json:"x_mlx_dspark"`
		Error       struct{ Message string }      `json:"error"`
		Data        []struct{ ID, Object string } `json:"data"`
		Health      map[string]any                `json:"-"`
		Rounds      json.RawMessage               `json:"rounds"`
	}
	_ = json.Unmarshal(g.Response.Body, &answer) // other shapes leave it empty
	var scripts []enginetest.Script
	stats := telemetry.RequestSummary{Mode: "baseline"}
	if answer.Stats != nil {
		stats = *answer.Stats
	}
	finish := func(s string) engine.FinishReason {
		switch s {
		case "max_tokens", "incomplete":
			return engine.FinishLength
		case "tool_use":
			return engine.FinishToolCalls
		case "length", "tool_calls":
			return engine.FinishReason(s)
		}
		return engine.FinishStop
	}
	add := func(s enginetest.Script, reason string) {
		for _, step := range s.Steps {
			s.Result.Text += step.Delta.Text
			s.Result.Reasoning += step.Delta.Reasoning
			if c := step.Delta.ToolCall; c != nil {
				s.Result.ToolCalls = append(s.Result.ToolCalls, *c)
			}
		}
		s.Result.FinishReason, s.Result.Stats = finish(reason), stats
		scripts = append(scripts, s)
	}
	step := func(d engine.Delta) enginetest.Step { return enginetest.Step{Delta: &d} }
	raw := func(ints []int) []byte {
		b := make([]byte, len(ints))
		for i, v := range ints {
			b[i] = byte(v)
		}
		return b
	}
	for i, c := range answer.Choices {
		s := enginetest.Script{}
		s.Steps = append(s.Steps, step(engine.Delta{Reasoning: c.Message.ReasoningContent}), step(engine.Delta{Text: c.Message.Content + c.Text}))
		for k, call := range c.Message.ToolCalls {
			s.Steps = append(s.Steps, step(engine.Delta{ToolCall: &engine.ToolCall{Index: k, ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments}}))
		}
		for _, l := range c.Logprobs.Content {
			tok := engine.Token{Text: l.Token, Bytes: raw(l.Bytes), Logprob: l.Logprob}
			for _, alt := range l.Top {
				tok.Top = append(tok.Top, engine.TokenProb{Text: alt.Token, Bytes: raw(alt.Bytes), Logprob: alt.Logprob})
			}
			s.Result.Tokens = append(s.Result.Tokens, tok)
		}
		for k, text := range c.Logprobs.Tokens {
			tok := engine.Token{Text: text, Bytes: []byte(text), Logprob: c.Logprobs.TokenLogprobs[k]}
			for alt, p := range c.Logprobs.TopLogprobs[k].(map[string]any) {
				tok.Top = append(tok.Top, engine.TokenProb{Text: alt, Bytes: []byte(alt), Logprob: p.(float64)})
			}
			slices.SortFunc(tok.Top, func(a, b engine.TokenProb) int { return int(1e6 * (b.Logprob - a.Logprob)) })
			s.Result.Tokens = append(s.Result.Tokens, tok)
		}
		if i > 0 { // the block is the first choice's; the rest is the others'
			if rest := answer.Usage.Completion - answer.Stats.CompletionTokens; rest > 0 {
				stats.CompletionTokens = rest / (len(answer.Choices) - 1)
			}
		}
		add(s, c.FinishReason)
	}
	if len(answer.Content) > 0 {
		s := enginetest.Script{}
		for k, b := range answer.Content {
			switch b.Type {
			case "thinking":
				s.Steps = append(s.Steps, step(engine.Delta{Reasoning: b.Thinking}))
			case "text":
				s.Steps = append(s.Steps, step(engine.Delta{Text: b.Text}))
			case "tool_use":
				s.Steps = append(s.Steps, step(engine.Delta{ToolCall: &engine.ToolCall{Index: k, ID: b.ID, Name: b.Name, Arguments: string(b.Input)}}))
			}
		}
		if g.Name == "baseline-messages-stop-sequence" {
			s.Result.StopString = "END"
		}
		add(s, answer.StopReason)
	}
	if answer.Status == "completed" || answer.Status == "incomplete" {
		s := enginetest.Script{}
		for k, item := range answer.Output {
			switch item.Type {
			case "reasoning":
				s.Steps = append(s.Steps, step(engine.Delta{Reasoning: item.Summary[0].Text}))
			case "message":
				s.Steps = append(s.Steps, step(engine.Delta{Text: item.Content[0].Text}))
			case "function_call":
				s.Steps = append(s.Steps, step(engine.Delta{ToolCall: &engine.ToolCall{Index: k, ID: item.CallID, Name: item.Name, Arguments: item.Arguments}}))
			}
		}
		add(s, answer.Status)
	}
	if g.Response.SSE != "" {
		s, reason := streamScript(t, g, &stats, step)
		add(s, reason)
	}
	if len(scripts) == 0 {
		add(enginetest.Script{}, "")
	}
	e := enginetest.New(scripts[0])
	e.Answer(func(req engine.Request) enginetest.Script {
		i := 0
		if _, n, ok := strings.Cut(req.ID, "-"); ok {
			if _, k, ok := strings.Cut(n, "-"); ok {
				i, _ = strconv.Atoi(k)
			}
		}
		if strings.Contains(g.Name, "too-long") {
			return enginetest.Script{Steps: []enginetest.Step{{Err: &engine.Error{Kind: engine.ErrContextLength, Message: tooLong(answer.Error.Message)}}}}
		}
		if strings.HasSuffix(g.Name, "message-not-object") {
			return enginetest.Script{Steps: []enginetest.Step{{Err: &engine.Error{Kind: engine.ErrInvalid, Field: "messages", Message: "messages[0] must be an object"}}}}
		}
		return scripts[min(i, len(scripts)-1)]
	})
	if e.Count = answer.InputTokens; e.Count == 0 {
		e.Count = stats.PromptTokens
	}
	goldenState(e, g)
	return e
}

// tooLong keeps the recorded words, and has some for recordings without.
func tooLong(recorded string) string {
	if recorded == "" {
		return "prompt is too long: 128 tokens > 40 maximum"
	}
	return recorded
}

// goldenState puts the engine where the recorded server was.
func goldenState(e *enginetest.Engine, g *golden) {
	st := e.Status()
	var want struct {
		Status, Mode, Drafter, Target, Model, Type string
		MaxDraft                                   string `json:"max_draft"`
		LookupDrafts                               *bool  `json:"lookup_drafts"`
		DrafterWindow                              *int   `json:"drafter_window"`
		ContextWindow                              *int   `json:"context_window"`
		ThinkingDefault                            string `json:"thinking_default"`
		ReasoningEffort                            string `json:"reasoning_effort"`
		Warmup                                     *bool
		SupportsEffort                             bool `json:"supports_reasoning_effort"`
		MaxOutput                                  int  `json:"max_output_tokens"`
		Error                                      any
		Loading                                    bool
		Ready                                      *bool
		Phase                                      *string
		Guard                                      struct {
			Enabled bool
			Level   string
		} `json:"memory_guard"`
	}
	_ = json.Unmarshal(g.Response.Body, &want)
	if guard := want.Guard; guard.Enabled {
		st.Guard = engine.GuardStatus{Enabled: true, Level: machine.Level(guard.Level)}
	}
	e.Info.Peak = 1 // known
	switch {
	case strings.HasPrefix(g.Name, "loading-"):
		st = engine.Status{State: engine.StateLoading, Loading: &engine.LoadProgress{Model: "x"}}
	case want.Status == "ok" && want.Mode != "":
		m := st.Model
		m.ID, m.Mode, m.Target, m.Drafter = want.Model, want.Mode, want.Target, want.Drafter
		m.MaxDraft, _ = strconv.Atoi(want.MaxDraft)
		m.LookupDrafts, m.Warmup = *want.LookupDrafts, *want.Warmup
		if want.DrafterWindow != nil {
			m.DrafterWindow = *want.DrafterWindow
		}
		if want.ContextWindow != nil {
			m.ContextWindow = *want.ContextWindow
		}
		m.SupportsEffort, st.MaxTokensCap = want.SupportsEffort, want.MaxOutput
		m.ThinkingDefault, m.ReasoningEffort = want.ThinkingDefault == "on", want.ReasoningEffort
	case strings.HasPrefix(g.Name, "no-model-"):
		st = engine.Status{State: engine.StateIdle}
		if s, ok := want.Error.(string); ok {
			st.LastError = s
		}
		if g.Response.Status >= 400 && strings.Contains(g.Request.Path, "/admin/load") {
			text := "refused"
			if m, ok := want.Error.(map[string]any); ok {
				text = fmt.Sprint(m["message"])
			}
			e.FailLoads(&engine.Error{Kind: engine.ErrInvalid, Message: text})
			if g.Response.Status == 500 {
				e.FailLoads(&engine.Error{Kind: engine.ErrInternal, Message: text})
			}
		}
	}
	e.SetStatus(st)
	var rounds struct{ Rounds []telemetry.Round }
	if json.Unmarshal(g.Response.Body, &rounds) == nil && len(rounds.Rounds) > 0 {
		for range 2483 - len(rounds.Rounds) {
			e.Log.Record(telemetry.Round{Committed: 1, Source: "plain"}, st.StartedAt)
		}
		for _, r := range rounds.Rounds {
			e.Log.Record(r, st.StartedAt)
		}
	}
}

// streamScript reads a recorded stream back into deltas.
func streamScript(t *testing.T, g *golden, stats *telemetry.RequestSummary, step func(engine.Delta) enginetest.Step) (s enginetest.Script, reason string) {
	for _, e := range parseSSE(g.Response.SSE) {
		if e.data == "[DONE]" {
			continue
		}
		var o struct {
			Type    string
			Choices []struct {
				Text         string
				FinishReason string `json:"finish_reason"`
				Delta        struct {
					Content          string
					ReasoningContent string `json:"reasoning_content"`
					ToolCalls        []struct {
						Index    int
						ID       string
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
			}
			Usage struct {
				Prompt int `json:"prompt_tokens"`
				Output int `json:"output_tokens"`
			}
			Index       int
			OutputIndex int `json:"output_index"`
			Message     struct {
				Usage struct {
					Input int `json:"input_tokens"`
				}
			}
			Block struct{ Type, ID, Name string } `json:"content_block"`
			Delta json.RawMessage
			Item  struct {
				Type, Name string
				CallID     string `json:"call_id"`
			}
			Response struct {
				Status string
				Usage  struct {
					Input  int `json:"input_tokens"`
					Output int `json:"output_tokens"`
				}
			}
			Stats *telemetry.RequestSummary `json:"x_mlx_dspark"`
		}
		if err := json.Unmarshal([]byte(e.data), &o); err != nil {
			t.Fatalf("%v in %s", err, e.data)
		}
		if o.Stats != nil {
			*stats = *o.Stats
		}
		for _, c := range o.Choices {
			if c.FinishReason != "" {
				reason = c.FinishReason
			}
			if c.Delta.ReasoningContent != "" {
				s.Steps = append(s.Steps, step(engine.Delta{Reasoning: c.Delta.ReasoningContent}))
			}
			if text := c.Delta.Content + c.Text; text != "" {
				s.Steps = append(s.Steps, step(engine.Delta{Text: text}))
			}
			for _, call := range c.Delta.ToolCalls {
				s.Steps = append(s.Steps, step(engine.Delta{ToolCall: &engine.ToolCall{Index: call.Index, ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments}}))
			}
		}
		var text string
		_ = json.Unmarshal(o.Delta, &text)
		var d struct {
			Text, Thinking string
			PartialJSON    string `json:"partial_json"`
			StopReason     string `json:"stop_reason"`
		}
		_ = json.Unmarshal(o.Delta, &d)
		switch o.Type {
		case "message_start":
			stats.PromptTokens = o.Message.Usage.Input
		case "content_block_start":
			if o.Block.Type == "tool_use" {
				s.Steps = append(s.Steps, step(engine.Delta{ToolCall: &engine.ToolCall{Index: o.Index, ID: o.Block.ID, Name: o.Block.Name}}))
			}
		case "content_block_delta":
			switch {
			case d.PartialJSON != "":
				s.Steps = append(s.Steps, step(engine.Delta{ToolCall: &engine.ToolCall{Index: o.Index, Arguments: d.PartialJSON}}))
			case d.Text+d.Thinking != "":
				s.Steps = append(s.Steps, step(engine.Delta{Text: d.Text, Reasoning: d.Thinking}))
			}
		case "message_delta":
			reason, stats.CompletionTokens = d.StopReason, o.Usage.Output
		case "response.output_text.delta":
			s.Steps = append(s.Steps, step(engine.Delta{Text: text}))
		case "response.output_item.added":
			if o.Item.Type == "function_call" {
				s.Steps = append(s.Steps, step(engine.Delta{ToolCall: &engine.ToolCall{Index: o.OutputIndex, ID: o.Item.CallID, Name: o.Item.Name}}))
			}
		case "response.function_call_arguments.delta":
			s.Steps = append(s.Steps, step(engine.Delta{ToolCall: &engine.ToolCall{Index: o.OutputIndex, Arguments: text}}))
		case "response.completed", "response.incomplete":
			reason = o.Response.Status
			stats.PromptTokens, stats.CompletionTokens = o.Response.Usage.Input, o.Response.Usage.Output
		}
	}
	return s, reason
}

// TestClientRequests sends what real clients sent.
func TestClientRequests(t *testing.T) {
	files, err := filepath.Glob("testdata/clients/*.json")
	if err != nil || len(files) != 11 {
		t.Fatalf("client recordings: %d files, %v", len(files), err)
	}
	// What an answer of each route holds, and only of that.
	marks := map[string]string{"/v1/chat/completions": `"object":"chat.completion`, "/v1/messages": `"type":"message"`, "/v1/messages/count_tokens": `{"input_tokens":`,
		"/v1/responses": `"object":"response"`, "/v1/models": `"data":[`}
	asked := map[string]int{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rec struct {
			Client   string
			Requests []struct {
				Method, Path string
				Headers      map[string]string
				Body         json.RawMessage
			}
		}
		if err := json.Unmarshal(b, &rec); err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			e := enginetest.New(enginetest.Say("ready"))
			s := New(e, Options{})
			for i, q := range rec.Requests {
				// The recordings hide every text; this one has to be a level.
				q.Body = bytes.ReplaceAll(q.Body, []byte(`"reasoning_effort":"<text 6 chars>"`), []byte(`"reasoning_effort":"medium"`))
				send := func() *httptest.ResponseRecorder {
					var body io.Reader
					if string(q.Body) != "null" && len(q.Body) > 0 {
						body = bytes.NewReader(q.Body)
					}
					r := httptest.NewRequest(q.Method, q.Path, body)
					r.Host = "127.0.0.1:8080"
					for k, v := range q.Headers {
						r.Header.Set(k, v)
					}
					w := httptest.NewRecorder()
					s.ServeHTTP(w, r)
					return w
				}
				w := send()
				if w.Code != http.StatusOK {
					t.Errorf("request %d %s %s: %d %s", i, q.Method, q.Path, w.Code, w.Body)
				}
				checkEnd(t, q.Path, w)
				path, _, _ := strings.Cut(q.Path, "?")
				asked[q.Method+" "+path]++
				if mark := marks[path]; q.Method != http.MethodHead && (mark == "" || !strings.Contains(w.Body.String(), mark)) {
					t.Errorf("request %d %s %s is answered as if it were another route: %s", i, q.Method, q.Path, w.Body)
				}
				if q.Method != http.MethodPost {
					continue
				}
				st := e.Status()
				e.SetStatus(engine.Status{State: engine.StateIdle})
				if w := send(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
					t.Errorf("request %d without a model: %d, Retry-After %q", i, w.Code, w.Header().Get("Retry-After"))
				} else if text := message(t, q.Path, w.Body.Bytes()); text != msgNoModel {
					t.Errorf("request %d without a model: %s", i, text)
				}
				e.SetStatus(st)
			}
			for _, r := range e.Asked() {
				if bytes.Contains(r.Prompt.Messages, []byte(billingHeader)) {
					t.Error("the billing header reached the prompt")
				}
				if bytes.Contains(r.Prompt.Tools, []byte("DeferredToolPlaceholder")) {
					t.Error("a deferred tool reached the prompt")
				}
			}
		})
	}
	if want := map[string]int{"GET /v1/models": 1, "HEAD /": 1, "HEAD /api/hello": 2, "POST /v1/chat/completions": 9, "POST /v1/messages": 9, "POST /v1/messages/count_tokens": 25, "POST /v1/responses": 2}; !reflect.DeepEqual(asked, want) {
		t.Errorf("asked %v, want %v", asked, want)
	}
}

// TestMLXLMValidation compares refusals with recorded ones of mlx_lm.server.
func TestMLXLMValidation(t *testing.T) {
	differs := map[string]string{ // recorded text → why ours is another
		"Invalid JSON in request body: ":      "quotes Python behind the colon",
		"'str' object has no attribute 'get'": "quotes Python",
		"'NoneType' object is not iterable":   "quotes Python",
	}
	b, err := os.ReadFile("testdata/mlx-lm-validation.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Name, Body, Error string }
	if err := json.Unmarshal(b, &cases); err != nil || len(cases) < 40 {
		t.Fatal(len(cases), err)
	}
	e := enginetest.New(enginetest.Say("x"))
	e.Answer(func(engine.Request) enginetest.Script { // what the engine's template says to odd messages
		return enginetest.Script{Steps: []enginetest.Step{{Err: &engine.Error{Kind: engine.ErrInvalid, Field: "messages[0]", Message: "must be an object"}}}}
	})
	s := New(e, Options{Profile: MLXLMProfile()})
	for _, c := range cases {
		w := call(s, "POST", "/v1/chat/completions", c.Body)
		excused := false
		for text := range differs {
			excused = excused || strings.HasPrefix(c.Error, text)
		}
		if want := string(encode(map[string]string{"error": c.Error})); !excused && (w.Code != 400 || w.Body.String() != want) || excused && w.Code/100 != 4 {
			t.Errorf("%s: %d %s, want %s", c.Name, w.Code, w.Body, want)
		}
	}
}

// checkEnd looks for the regular end of a stream.
func checkEnd(t *testing.T, path string, w *httptest.ResponseRecorder) {
	t.Helper()
	if w.Header().Get("Content-Type") != "text/event-stream" {
		return
	}
	events := parseSSE(w.Body.String())
	last := events[len(events)-1]
	end := map[dialect]string{dialectOpenAI: "[DONE]", dialectAnthropic: "message_stop", dialectResponses: "response.completed"}
	path, _, _ = strings.Cut(path, "?")
	if want := end[dialectOf(path)]; last.name != want && last.data != want {
		t.Errorf("%s ends with %s %s", path, last.name, last.data)
	}
}
