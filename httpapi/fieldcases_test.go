package httpapi_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/httpapi"
	"sparkbar/httpapi/internal/enginetest"
	"sparkbar/resources"
)

// fieldCases are faults that users of similar servers met, each with the tests,
// by folder and name, that it would fail.
var fieldCases = map[string][]string{
	"billing-header":     {"httpapi TestFieldBillingHeader"},
	"count-tokens-query": {"httpapi TestFieldCountTokensQuery"},
	"null-content":       {"httpapi TestFieldNullContent"},
	"stream-tools":       {"httpapi TestFieldStreamTools", "engine/chat TestStreamCalls"},
	"greedy-spec":        {"httpapi TestFieldGreedySpec", "engine/decode TestGreedyIdentity", "engine/decode TestIdentitySmolLM2"},
	"disconnect":         {"httpapi TestFieldDisconnect", "httpapi TestDisconnect", "engine TestCancelWithinARound"},
	"responses-type":     {"httpapi TestFieldResponsesType"},
	"split-emoji":        {"httpapi TestFieldSplitEmoji", "engine/tokenizer TestSplitEmoji"},
	"stop-border":        {"httpapi TestFieldStopBorder", "engine/chat TestStopper"},
	"content-parts":      {"httpapi TestFieldContentParts"},
	"cache-control":      {"httpapi TestFieldCacheControl"},
	"gguf-huge-counts":   {"httpapi TestFieldGGUFHugeCounts", "engine/checkpoint TestHugeCounts"},
	"tensor-past-end":    {"httpapi TestFieldTensorPastEnd", "engine/checkpoint TestSafetensorsFaults", "engine/checkpoint TestGGUFFaults"},
	"rebinding":          {"httpapi TestHostAndOrigin"},
	"foreign-origin":     {"httpapi TestHostAndOrigin"},
	"false-complete":     {"engine/models TestKilledAnywhere", "engine/models TestKilled"},
	"reasoning-only":     {"httpapi TestFieldReasoningOnly"},
	"spec-and-batch":     {"httpapi TestFieldSpecAndBatch", "engine/decode TestBatchIdentity"},
	"developer-role":     {"httpapi TestFieldDeveloperRole"},
	"string-number":      {"httpapi TestFieldStringNumber", "httpapi TestBadRequests"},
	"anthropic-stop":     {"httpapi TestFieldAnthropicStop"},
}

// TestFieldCases: every test that a case names is there.
func TestFieldCases(t *testing.T) {
	if len(fieldCases) != 21 {
		t.Errorf("%d cases", len(fieldCases))
	}
	there := map[string]map[string]bool{} // by folder
	for name, tests := range fieldCases {
		if len(tests) == 0 {
			t.Errorf("%s has no test", name)
		}
		for _, test := range tests {
			folder, function, _ := strings.Cut(test, " ")
			if there[folder] == nil {
				there[folder] = testsIn(t, filepath.Join("..", filepath.FromSlash(folder)))
			}
			if !there[folder][function] {
				t.Errorf("%s: %s is not there", name, test)
			}
		}
	}
}

func testsIn(t *testing.T, folder string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s, %v", folder, err)
	}
	names := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}

// demo is a server with the demo model, loaded as r says.
func demo(t *testing.T, r engine.LoadRequest, more func(*engine.Options)) (*engine.Engine, http.Handler) {
	t.Helper()
	target, drafter := resources.Demo()
	o := engine.Options{Version: "test", Builtins: map[string]engine.Builtin{"demo": {Target: target, Drafter: drafter, DFlash: resources.DemoDFlash()}},
		Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{Threads: 1}) }}
	if more != nil {
		more(&o)
	}
	e := engine.New(o)
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if r.Model == "" {
		r.Model = "demo"
	}
	off := false
	r.Warmup = &off
	if _, err := e.LoadFrom(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	return e, httpapi.New(e, httpapi.Options{})
}

// send sends one request.
func send(h http.Handler, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Host = "localhost"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// answered sends one request that must be answered, and returns what the
// answer says, see said.
func answered(t *testing.T, h http.Handler, path, body string) (text, thought, end string) {
	t.Helper()
	w := send(h, path, body)
	s, err := said(path, w.Body.String())
	if w.Code != http.StatusOK || err != nil {
		t.Fatalf("%s %s: %d %v %s", path, body, w.Code, err, w.Body)
	}
	parts := strings.Split(s, "\x00")
	return parts[0], parts[1], parts[2]
}

func scripted(s enginetest.Script) http.Handler {
	return httpapi.New(enginetest.New(s), httpapi.Options{})
}

func TestFieldBillingHeader(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	long := "You are a careful assistant. " + strings.Repeat("Answer only what is asked, and say so when you do not know. ", 24)
	var usage [2]struct {
		Usage struct {
			Input  int `json:"input_tokens"`
			Cached int `json:"cache_read_input_tokens"`
		}
	}
	for i, cch := range []string{"aaaaa", "bbbbb"} {
		w := send(h, "/v1/messages", fmt.Sprintf(`{"max_tokens":4,"temperature":0,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1.0; cch=%s;"},{"type":"text","text":%q}],
			"messages":[{"role":"user","content":"Hello"}]}`, cch, long))
		if err := json.Unmarshal(w.Body.Bytes(), &usage[i]); err != nil || w.Code != http.StatusOK {
			t.Fatal(w.Code, err, w.Body)
		}
	}
	first, second := usage[0].Usage, usage[1].Usage
	if whole := first.Input + first.Cached; whole < 300 || second.Input+second.Cached != whole || whole-second.Cached > 64 {
		t.Errorf("%+v, then %+v", first, second)
	}
}

func TestFieldCountTokensQuery(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	body := `{"messages":[{"role":"user","content":"Hello there"}]}`
	plain, beta := send(h, "/v1/messages/count_tokens", body), send(h, "/v1/messages/count_tokens?beta=true", body)
	if beta.Code != http.StatusOK || beta.Body.String() != plain.Body.String() || !strings.HasPrefix(beta.Body.String(), `{"input_tokens":`) || strings.HasSuffix(beta.Body.String(), ":0}") {
		t.Errorf("%d %s, %d %s", plain.Code, plain.Body, beta.Code, beta.Body)
	}
}

func TestFieldNullContent(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	var texts []string
	for _, content := range []string{`"content":null,`, ``, `"content":"",`} {
		for _, stream := range []string{"false", "true"} {
			text, _, _ := answered(t, h, "/v1/chat/completions", `{"max_tokens":8,"temperature":0,"stream":`+stream+`,"messages":[{"role":"user","content":"What is 2+3?"},
				{"role":"assistant",`+content+`"tool_calls":[{"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\":2,\"b\":3}"}}]},{"role":"tool","tool_call_id":"c1","content":"5"}]}`)
			texts = append(texts, text)
		}
	}
	if len(slices.Compact(texts)) != 1 {
		t.Errorf("%q", texts)
	}
}

func TestFieldStreamTools(t *testing.T) {
	h := scripted(replay(engine.FinishToolCalls, text("I look."), call(0, "call_1", "get_weather", `{"city":`), call(0, "", "", ` "Paris"}`), call(1, "call_2", "get_time", `{}`)))
	want := []string{`get_weather {"city": "Paris"}`, `get_time {}`}
	// calls reads the calls and the end of a chat answer, whole or streamed.
	calls := func(body string) (list []string, finish string) {
		frames := []string{body}
		if !strings.HasPrefix(body, "{") {
			frames = frames[:0]
			for line := range strings.SplitSeq(body, "\n") {
				if d, ok := strings.CutPrefix(line, "data: {"); ok {
					frames = append(frames, "{"+d)
				}
			}
		}
		for _, f := range frames {
			type message struct {
				Calls []struct {
					Index    *int
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			}
			var o struct {
				Choices []struct {
					Message, Delta message
					Finish         string `json:"finish_reason"`
				}
			}
			if err := json.Unmarshal([]byte(f), &o); err != nil {
				t.Fatalf("%v in %s", err, f)
			}
			for _, c := range o.Choices {
				finish += c.Finish
				for _, x := range append(c.Message.Calls, c.Delta.Calls...) {
					if x.Function.Name != "" {
						list = append(list, x.Function.Name+" ")
					}
					list[len(list)-1] += x.Function.Arguments
				}
			}
		}
		return list, finish
	}
	for _, stream := range []string{"false", "true"} {
		w := send(h, "/v1/chat/completions", `{"stream":`+stream+`,"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"get_weather"}},{"type":"function","function":{"name":"get_time"}}]}`)
		if got, finish := calls(w.Body.String()); !slices.Equal(got, want) || finish != "tool_calls" {
			t.Errorf("stream %s: %q, %s", stream, got, finish)
		}
	}
}

func TestFieldGreedySpec(t *testing.T) {
	for mode, arms := range map[string]string{"dspark": `["baseline","dspark","lookup"]`, "dflash": `["baseline","dflash"]`} {
		_, h := demo(t, engine.LoadRequest{Mode: mode}, nil)
		w := send(h, "/admin/race", `{"prompt":"Tell me a long story about the sea.","max_tokens":500,"arms":`+arms+`}`)
		if body := w.Body.String(); w.Code != http.StatusOK || strings.Count(body, "event: arm_done") != strings.Count(arms, ",")+1 || !strings.Contains(body, `"identical":true`) {
			t.Errorf("%s: %d %s", mode, w.Code, body)
		}
	}
}

// watched is a backend that tells of each program before it runs.
type watched struct {
	compute.Backend
	before *atomic.Pointer[func()]
}

func (b watched) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	if f := b.before.Load(); f != nil {
		(*f)()
	}
	return b.Backend.Submit(p, stop)
}

// TestFieldDisconnect: a client that goes away while its prompt is read, or in
// the middle of its answer, streaming or not, costs no further round; one that
// waits never costs any. The next request is as if nothing had been.
func TestFieldDisconnect(t *testing.T) {
	var before atomic.Pointer[func()]
	e, h := demo(t, engine.LoadRequest{Mode: "baseline"}, func(o *engine.Options) {
		o.MaxBatch, o.Slots = 1, -1
		o.Backend = func() (compute.Backend, error) {
			b, err := cpu.New(cpu.Options{Threads: 1})
			return watched{b, &before}, err
		}
	})
	words := strings.Repeat("The sea is wide and the boat is small. ", 110)
	chat := func(prompt, stream string) string {
		return fmt.Sprintf(`{"temperature":0,"max_tokens":200,"stream":%s,"messages":[{"role":"user","content":%q}]}`, stream, prompt)
	}
	want, _, _ := answered(t, h, "/v1/chat/completions", chat("Hello", "false"))
	for _, c := range []struct {
		phase, prompt string
		at            int64 // program before which the client leaves
	}{{"prefill", words, 2}, {"decode", "Tell me a story", 12}} {
		for _, stream := range []string{"false", "true"} {
			ctx, leave := context.WithCancel(t.Context())
			var programs, after atomic.Int64
			f := func() {
				switch n := programs.Add(1); {
				case n == c.at:
					leave()
					time.Sleep(20 * time.Millisecond) // it takes a moment until everybody knows
				case n > c.at:
					after.Add(1)
				}
			}
			before.Store(&f)
			r := httptest.NewRequestWithContext(ctx, "POST", "/v1/chat/completions", strings.NewReader(chat(c.prompt, stream)))
			r.Host = "localhost"
			h.ServeHTTP(httptest.NewRecorder(), r)
			before.Store(nil)
			if programs.Load() < c.at || after.Load() > 1 {
				t.Errorf("%s, stream %s: %d programs after the client left, %d in all", c.phase, stream, after.Load(), programs.Load())
			}
			if st := e.Status(); st.InFlight+st.Queued != 0 {
				t.Errorf("%s: %d run, %d wait", c.phase, st.InFlight, st.Queued)
			}
			if got, _, _ := answered(t, h, "/v1/chat/completions", chat("Hello", stream)); got != want {
				t.Errorf("%s: the next answer is %q, want %q", c.phase, got, want)
			}
		}
	}

	// One that waits: while the first is held, the second comes and goes.
	for _, stream := range []string{"false", "true"} {
		held, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		var programs atomic.Int64
		f := func() {
			programs.Add(1)
			once.Do(func() { close(held); <-release })
		}
		before.Store(&f)
		first := make(chan *httptest.ResponseRecorder, 1)
		go func() { first <- send(h, "/v1/chat/completions", chat("Hello", "false")) }()
		<-held
		ctx, leave := context.WithCancel(t.Context())
		second := make(chan struct{})
		go func() {
			defer close(second)
			r := httptest.NewRequestWithContext(ctx, "POST", "/v1/chat/completions", strings.NewReader(chat("Tell me a story", stream)))
			r.Host = "localhost"
			h.ServeHTTP(httptest.NewRecorder(), r)
		}()
		for e.Status().Queued == 0 {
			time.Sleep(time.Millisecond)
		}
		leave()
		<-second // it ends while the first is still held
		close(release)
		alone := (<-first).Body.String()
		total := programs.Swap(0)
		if st := e.Status(); st.InFlight+st.Queued != 0 {
			t.Errorf("waiting: %d run, %d wait", st.InFlight, st.Queued)
		}
		if w := send(h, "/v1/chat/completions", chat("Hello", "false")); total != programs.Load() || !strings.Contains(alone, want) || w.Code != http.StatusOK {
			t.Errorf("waiting, stream %s: %d programs with a client that left, %d without", stream, total, programs.Load())
		}
		before.Store(nil)
	}
}

// TestCountTokensBurst: 25 counts at once, as Claude Code asks for, are answered
// while a generation holds the device.
func TestCountTokensBurst(t *testing.T) {
	var before atomic.Pointer[func()]
	_, h := demo(t, engine.LoadRequest{Mode: "baseline"}, func(o *engine.Options) {
		o.Backend = func() (compute.Backend, error) {
			b, err := cpu.New(cpu.Options{Threads: 1})
			return watched{b, &before}, err
		}
	})
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f := func() { once.Do(func() { close(held); <-release }) }
	before.Store(&f)
	done := make(chan int, 1)
	go func() {
		done <- send(h, "/v1/chat/completions", `{"max_tokens":4,"messages":[{"role":"user","content":"Hello"}]}`).Code
	}()
	<-held
	var wg sync.WaitGroup
	for i := range 25 {
		wg.Go(func() {
			w := send(h, "/v1/messages/count_tokens?beta=true", fmt.Sprintf(`{"messages":[{"role":"user","content":%q}]}`, strings.Repeat("word ", i)))
			if w.Code != http.StatusOK {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	wg.Wait() // all of them, while the generation is held
	close(release)
	if code := <-done; code != http.StatusOK {
		t.Errorf("the generation: %d", code)
	}
}

func TestFieldResponsesType(t *testing.T) {
	h := scripted(replay(engine.FinishToolCalls, thought("hm"), text("I look."), call(0, "call_1", "f", `{"a":1}`)))
	w := send(h, "/v1/responses", `{"input":"x","stream":true,"tools":[{"type":"function","name":"f"}]}`)
	var name, last string
	n := 0
	for lines := bufio.NewScanner(w.Body); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = v
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var o map[string]any
		if err := json.Unmarshal([]byte(data), &o); err != nil || o["type"] != name || name == "" {
			t.Errorf("event %q: %s, %v", name, data, err)
		}
		r, nested := o["response"].(map[string]any)
		if whole := slices.Contains([]string{"response.created", "response.in_progress", "response.completed"}, name); nested != whole || whole && r["object"] != "response" || o["object"] != nil {
			t.Errorf("event %q: %s", name, data)
		}
		last = name
		n++
	}
	if last != "response.completed" || n < 10 {
		t.Errorf("%d events, the last is %s", n, last)
	}
}

// TestFieldSplitEmoji streams code points that several tokens make up: with a
// high temperature the demo model says single bytes too.
func TestFieldSplitEmoji(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	for _, prompt := range []string{"Say 🙂🙂🙂🙂🙂🙂", "日本語日本語日本語"} {
		for seed := range 6 {
			body := fmt.Sprintf(`"prompt":%q,"max_tokens":48,"temperature":1.4,"seed":%d`, prompt, seed)
			whole, _, _ := answered(t, h, "/v1/completions", `{`+body+`}`)
			streamed, _, _ := answered(t, h, "/v1/completions", `{"stream":true,`+body+`}`)
			if whole != streamed {
				t.Errorf("seed %d: %q, streamed %q", seed, whole, streamed)
			}
		}
		// Every piece of an echoed prompt is whole.
		if got, _, _ := answered(t, h, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"echo":true,"stream":true,"max_tokens":1,"temperature":0}`, prompt)); !strings.HasPrefix(got, prompt) {
			t.Errorf("echo: %q", got)
		}
	}
	// Tokens that are parts of a code point, as the engine hands them on.
	var parts []engine.Delta
	want := "a🙂漢é"
	for i, b := range []byte(want) {
		d := engine.Delta{Tokens: []engine.Token{{ID: int32(i), Text: fmt.Sprintf("<0x%02X>", b), Bytes: []byte{b}}}}
		if i == len(want)-1 {
			d.Text = want
		}
		parts = append(parts, d)
	}
	for path, body := range map[string]string{"/v1/chat/completions": `{"stream":true,"logprobs":true,"messages":[{"role":"user","content":"x"}]}`, "/v1/completions": `{"stream":true,"logprobs":1,"prompt":"x"}`,
		"/v1/messages": `{"stream":true,"messages":[{"role":"user","content":"x"}]}`, "/v1/responses": `{"stream":true,"input":"x"}`} {
		if got, _, _ := answered(t, scripted(replay(engine.FinishStop, parts...)), path, body); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// TestFieldStopBorder takes stop strings out of the middle of a known answer, at
// every place: what is streamed ends before, and nothing of them is sent.
func TestFieldStopBorder(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	const ask = `"temperature":0,"max_tokens":40,"messages":[{"role":"user","content":"Tell me a story"}],"enable_thinking":false`
	whole, thoughts, _ := answered(t, h, "/v1/chat/completions", `{`+ask+`}`)
	if len(whole) < 40 || thoughts != "" {
		t.Fatalf("an answer of no use: %q, %q", whole, thoughts)
	}
	letters := []rune(whole)
	for i := 3; i+6 < len(letters); i += 3 {
		stop := string(letters[i : i+6])
		want := whole[:strings.Index(whole, stop)]
		for _, stream := range []string{"false", "true"} {
			got, _, end := answered(t, h, "/v1/chat/completions", fmt.Sprintf(`{%s,"stop":[%q,"never"],"stream":%s}`, ask, stop, stream))
			if strings.TrimSpace(got) != strings.TrimSpace(want) || !strings.HasPrefix(end, "stop") {
				t.Errorf("stop %q, stream %s: %q (%s), want %q", stop, stream, got, end, want)
			}
		}
	}
}

func TestFieldContentParts(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	for path, form := range map[string]string{"/v1/chat/completions": `{"temperature":0,"max_tokens":8,"messages":[{"role":"user","content":%s}]}`,
		"/v1/messages": `{"temperature":0,"max_tokens":8,"messages":[{"role":"user","content":%s}]}`, "/v1/responses": `{"temperature":0,"max_output_tokens":8,"input":[{"role":"user","content":%s}]}`} {
		plain, thought, _ := answered(t, h, path, fmt.Sprintf(form, `"Hello\nthere"`))
		parts, thought2, _ := answered(t, h, path, fmt.Sprintf(form, `[{"type":"text","text":"Hello"},{"type":"text","text":"there"}]`))
		if plain != parts || thought != thought2 {
			t.Errorf("%s: %q, in parts %q", path, plain+thought, parts+thought2)
		}
		for _, kind := range []string{"image_url", "input_audio", "novelty"} {
			w := send(h, path, fmt.Sprintf(form, `[{"type":"text","text":"Hello"},{"type":"`+kind+`"}]`))
			if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), kind) {
				t.Errorf("%s, %s: %d %s", path, kind, w.Code, w.Body)
			}
		}
	}
}

func TestFieldCacheControl(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	for path, form := range map[string]string{
		"/v1/chat/completions": `{"temperature":0,"max_tokens":8,"messages":[{"role":"system","content":[{"type":"text","text":"Be kind."@}]@},{"role":"user","content":[{"type":"text","text":"Hello"@}]}],
			"tools":[{"type":"function","function":{"name":"f"}@}]}`,
		"/v1/messages": `{"temperature":0,"max_tokens":8,"system":[{"type":"text","text":"Be kind."@}],"tools":[{"name":"f","input_schema":{"type":"object"}@}],"messages":[{"role":"user","content":[{"type":"text","text":"Hello"@}]},
			{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"f","input":{}@}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"5"@}]@}]}]}`,
		"/v1/responses": `{"temperature":0,"max_output_tokens":8,"input":[{"role":"user","content":[{"type":"input_text","text":"Hello"@}]@}]}`,
	} {
		var said [2]string
		for i, mark := range []string{"", `,"cache_control":{"type":"ephemeral","ttl":"1h"}`} {
			text, thought, _ := answered(t, h, path, strings.ReplaceAll(form, "@", mark))
			said[i] = text + thought
		}
		if said[0] != said[1] {
			t.Errorf("%s: %q", path, said)
		}
	}
}

// refused loads a folder or file, which must be refused with the given words
// and without an allocation far beyond it.
func refused(t *testing.T, h http.Handler, path, want string) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w := send(h, "/admin/load", fmt.Sprintf(`{"model":%q,"warmup":false}`, path))
	runtime.ReadMemStats(&after)
	size := int64(0)
	_ = filepath.WalkDir(path, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
		t.Errorf("%s: %d %s, want %q", filepath.Base(path), w.Code, w.Body, want)
	}
	if grown := int64(after.TotalAlloc-before.TotalAlloc) - size; grown > 64<<20 {
		t.Errorf("%s: %d bytes were allocated beyond the %d of the files", filepath.Base(path), grown, size)
	}
	if w := send(h, "/v1/completions", `{"prompt":"Hello","max_tokens":2}`); w.Code != http.StatusOK {
		t.Errorf("%s: the model before it is gone: %d %s", filepath.Base(path), w.Code, w.Body)
	}
}

func TestFieldGGUFHugeCounts(t *testing.T) {
	root := t.TempDir()
	_, h := demo(t, engine.LoadRequest{}, func(o *engine.Options) { o.ModelRoot = root })
	header := func(tensors, keys uint64, rest ...byte) []byte {
		b := append([]byte("GGUF"), 3, 0, 0, 0)
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, tensors), keys)
		b = append(b, rest...)
		return append(b, make([]byte, 100-len(b))...)
	}
	key := func(kind byte, length uint64) []byte { // a key "k" of a kind and its length
		b := append(binary.LittleEndian.AppendUint64(nil, 1), 'k', kind, 0, 0, 0)
		return binary.LittleEndian.AppendUint64(b, length)
	}
	for name, file := range map[string][]byte{
		"tensors": header(1<<60, 0), "keys": header(0, 1<<60), "name": header(0, 1, binary.LittleEndian.AppendUint64(nil, 1<<62)...),
		"string": header(0, 1, key(8, 1<<62)...), "array": header(0, 1, append(key(9, 4), 0, 0, 0, 0, 0, 0, 0, 64)...),
	} {
		path := filepath.Join(root, name+".gguf")
		if err := os.WriteFile(path, file, 0o644); err != nil || len(file) != 100 {
			t.Fatal(len(file), err)
		}
		refused(t, h, path, name+".gguf")
	}
}

// TestFieldTensorPastEnd spoils what the demo's file says of its first tensors.
func TestFieldTensorPastEnd(t *testing.T) {
	root := t.TempDir()
	_, h := demo(t, engine.LoadRequest{}, func(o *engine.Options) { o.ModelRoot = root })
	files, _ := resources.Demo()
	weights := files["model.safetensors"]
	if len(weights) < 8 {
		t.Fatalf("the demo has %v", slices.Sorted(maps.Keys(files)))
	}
	n := binary.LittleEndian.Uint64(weights)
	var header map[string]map[string]any
	if err := json.Unmarshal(weights[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	delete(header, "__metadata__")
	names := slices.Sorted(maps.Keys(header))
	victim, other := names[0], names[1]
	offsets := func(name string) (lo, hi float64) {
		l := header[name]["data_offsets"].([]any)
		return l[0].(float64), l[1].(float64)
	}
	lo, hi := offsets(victim)
	otherLo, _ := offsets(other)
	for name, spoil := range map[string]func(e map[string]any){
		"past":     func(e map[string]any) { e["data_offsets"] = []float64{lo, float64(len(weights)) + 1e6} },
		"far":      func(e map[string]any) { e["data_offsets"] = []int64{1 << 61, 1<<61 + int64(hi-lo)} },
		"negative": func(e map[string]any) { e["data_offsets"] = []float64{lo - hi, 0} },
		"reversed": func(e map[string]any) { e["data_offsets"] = []float64{hi, lo} },
		"overlap":  func(e map[string]any) { e["data_offsets"] = []float64{otherLo, otherLo + hi - lo} },
		"shape":    func(e map[string]any) { e["shape"] = []int64{1 << 31, 1 << 31} },
	} {
		folder := filepath.Join(root, name)
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		spoiled := map[string]any{}
		for k, v := range header {
			e := maps.Clone(v)
			if k == victim {
				spoil(e)
			}
			spoiled[k] = e
		}
		b, err := json.Marshal(spoiled)
		if err != nil {
			t.Fatal(err)
		}
		bad := append(binary.LittleEndian.AppendUint64(nil, uint64(len(b))), b...)
		for file, data := range files {
			if file == "model.safetensors" {
				data = append(bad, weights[8+n:]...)
			}
			if err := os.WriteFile(filepath.Join(folder, file), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if name == "overlap" || name == "far" { // the neighbour may be named
			refused(t, h, folder, "model.embed_tokens.")
		} else {
			refused(t, h, folder, victim)
		}
	}
}

func TestFieldReasoningOnly(t *testing.T) {
	h := scripted(replay(engine.FinishStop, thought("I think "), thought("so.")))
	for _, stream := range []string{"false", "true"} {
		for path, c := range map[string]struct{ body, end string }{
			"/v1/chat/completions": {`{"messages":[{"role":"user","content":"x"}]`, "stop"}, "/v1/messages": {`{"messages":[{"role":"user","content":"x"}]`, "end_turn"}, "/v1/responses": {`{"input":"x"`, "completed"},
		} {
			text, thoughts, end := answered(t, h, path, c.body+`,"stream":`+stream+`}`)
			if text != "" || thoughts != "I think so." || !strings.HasPrefix(end, c.end) {
				t.Errorf("%s, stream %s: %q, %q, %q", path, stream, text, thoughts, end)
			}
		}
	}
	w := send(h, "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}]}`)
	if !strings.Contains(w.Body.String(), `"content":"","reasoning_content":"I think so.","reasoning":"I think so."`) {
		t.Errorf("%s", w.Body)
	}
}

func TestFieldSpecAndBatch(t *testing.T) {
	for _, mode := range []string{"dspark", "dflash"} {
		cap := 4
		e, h := demo(t, engine.LoadRequest{Mode: mode, MaxDraft: &cap}, nil) // not what rounds cost here and now
		if m := e.Status().Model; m.Drafter == "" {
			t.Fatalf("%s without a drafter", mode)
		}
		type answer struct {
			Choices []struct {
				Message struct{ Content, Reasoning string }
			}
			Stats struct {
				Mode      string
				AcceptLen float64 `json:"accept_len"`
			} `json:"x_mlx_dspark"`
		}
		ask := func(i int) (a answer) {
			prompt := []string{"Tell me a story", "What is speculative decoding?", "Who are you?", "What is a token?"}[i]
			w := send(h, "/v1/chat/completions", fmt.Sprintf(`{"temperature":0,"max_tokens":60,"messages":[{"role":"user","content":%q}]}`, prompt))
			if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != http.StatusOK {
				t.Errorf("%d %v %s", w.Code, err, w.Body)
			}
			return a
		}
		var solo, together [4]answer
		for i := range solo {
			solo[i] = ask(i)
		}
		var wg sync.WaitGroup
		for i := range together {
			wg.Go(func() { together[i] = ask(i) })
		}
		wg.Wait()
		drafted := 0
		for i := range solo {
			if !reflect.DeepEqual(solo[i].Choices, together[i].Choices) || together[i].Stats.Mode != mode {
				t.Errorf("%s, request %d: %+v, alone %+v", mode, i, together[i], solo[i])
			}
			if together[i].Stats.AcceptLen > 1 {
				drafted++
			}
		}
		if drafted < 3 {
			t.Errorf("%s: only %d of 4 requests had accepted drafts", mode, drafted)
		}
	}
}

func TestFieldDeveloperRole(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	for path, form := range map[string]string{
		"/v1/chat/completions": `{"temperature":0,"max_tokens":16,"messages":[{"role":"%s","content":"Answer in one word."},{"role":"user","content":"Hello"}]}`,
		"/v1/responses":        `{"temperature":0,"max_output_tokens":16,"input":[{"role":"%s","content":"Answer in one word."},{"role":"user","content":"Hello"}]}`,
	} {
		text, thought, _ := answered(t, h, path, fmt.Sprintf(form, "system"))
		text2, thought2, _ := answered(t, h, path, fmt.Sprintf(form, "developer"))
		if text != text2 || thought != thought2 {
			t.Errorf("%s: %q, as developer %q", path, text+thought, text2+thought2)
		}
	}
}

func TestFieldStringNumber(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	for path, body := range map[string]string{"/v1/chat/completions": `{"messages":[{"role":"user","content":"x"}]`, "/v1/completions": `{"prompt":"x"`, "/v1/messages": `{"messages":[{"role":"user","content":"x"}]`, "/v1/responses": `{"input":"x"`} {
		fields := []string{"temperature", "top_p", "seed", "top_k"}
		if strings.Contains(path, "completions") {
			fields = append(fields, "n", "max_tokens")
		}
		for _, f := range fields {
			if w := send(h, path, body+`,"`+f+`":"2"}`); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "'"+f+"'") {
				t.Errorf("%s %s: %d %s", path, f, w.Code, w.Body)
			}
		}
	}
}

func TestFieldAnthropicStop(t *testing.T) {
	_, h := demo(t, engine.LoadRequest{}, nil)
	const ask = `"temperature":0,"max_tokens":40,"thinking":{"type":"disabled"},"messages":[{"role":"user","content":"Tell me a story"}]`
	whole, _, _ := answered(t, h, "/v1/messages", `{`+ask+`}`)
	if len(whole) < 30 {
		t.Fatalf("an answer of no use: %q", whole)
	}
	stop := whole[12:18]
	for _, stream := range []string{"false", "true"} {
		body := fmt.Sprintf(`{%s,"stop_sequences":["never",%q],"stream":%s}`, ask, stop, stream)
		text, _, end := answered(t, h, "/v1/messages", body)
		if w := send(h, "/v1/messages", body).Body.String(); strings.Contains(text, stop) || end != "stop_sequence" || !strings.Contains(w, fmt.Sprintf(`"stop_sequence":%q`, stop)) {
			t.Errorf("stream %s: %q (%s) %s", stream, text, end, w)
		}
	}
}
