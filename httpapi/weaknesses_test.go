package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/httpapi/internal/enginetest"
)

// weaknesses are what mlx-dspark 0.20 does badly, as W1 to W48 of its behaviour
// reference count them, and the tests that show it done right here.
var weaknesses = []struct{ what, tests string }{
	1:  {"/machine without a model", "TestMachineWithoutModel"},
	2:  {"spaces in streams", "TestDSparkReplay"},
	3:  {"errors after a stream began", "TestErrorInStream TestLateError"},
	4:  {"max_tokens is exact", "TestLimitsAreExact"},
	5:  {"one check of the context window", "TestContextWindow TestEngineErrors"},
	6:  {"each dialect's own envelope", "TestEngineErrors TestBadRequests"},
	7:  {"bad values are 400 naming the field", "TestBadRequests TestAPIProperties"},
	8:  {"bodies and lengths that are not good", "TestBadLengths TestBadRequests"},
	9:  {"chunked bodies", "TestChunkedBody"},
	10: {"broken tool calls", "TestBrokenToolCall"},
	11: {"n choices with a seed", "TestSeededChoices"},
	12: {"drafter and max_draft of /admin/load", "TestControl"},
	13: {"sampling options in every mode", "TestOptionsInEveryMode TestPenaltiesInEveryMode TestChatLogprobs"},
	14: {"true bytes and offsets of tokens", "TestChatLogprobs TestGoldens"},
	15: {"stop_sequence, cache reads, seed and tool_choice of messages", "TestAnthropicStream TestAnthropicPrompt TestMessagesSeed TestToolChoice TestOneCallField"},
	16: {"no empty text blocks", "TestAnthropicStream TestDSparkReplay"},
	17: {"x_mlx_dspark in every stream", "TestAnthropicStream TestResponsesStream"},
	18: {"the whole Responses API", "TestResponsesStream TestResponsesInput TestOpenAPIStreams"},
	19: {"lists of prompts, token ids, echo", "TestCompletionBatch TestEcho TestBestOf"},
	20: {"routes and methods", "TestRouting TestAnthropicModels"},
	21: {"counts of batched answers", "TestTogether"},
	22: {"prefill is timed in every mode", "TestPrefillIsTimed"},
	23: {"default arms of a race", "TestRace"},
	24: {"sampling fields of mlx-lm, images are refused", "TestRequestFields TestBadRequests"},
	25: {"tool calls are checked and streamed", "TestStreamCalls TestToolCallDeltas TestUnknownFunction TestToolParserGoldens"},
	26: {"liveness in /health, stalls are told", "TestPrometheus TestStalled TestGoldens"},
	27: {"keep-alive", "TestKeepAlive TestKeepAliveWhileNothingShows"},
	28: {"clients that go away", "TestDisconnect TestCancelWithinARound TestCancelRequest"},
	29: {"a bounded, fair queue", "TestQueue TestEngineErrors"},
	30: {"a failed load leaves the old model", "TestSwapUnderLoad TestRollBack"},
	31: {"asynchronous loads, cancelled anywhere", "TestControl TestCancelInEveryPhase TestDownloadStatus"},
	32: {"the server listens at once", "TestListensBeforeReading"},
	33: {"an error costs one conversation's cache at most", "TestFailuresAreAlone TestDSparkReplay"},
	34: {"pasts on disk", "TestPrefixesOutliveTheEngine TestDiskLeavesOtherFilesAlone"},
	35: {"prefill events", "TestEvents TestPrefillEnds TestDSparkReplay"},
	36: {"one id of a request everywhere", "TestEvents TestRequestsRoute"},
	37: {"a verdict from real decoding", "TestVerdict"},
	38: {"the list of models", "TestLocalModels TestHubCache TestFit"},
	39: {"request log, ids, version, Prometheus", "TestRequestLog TestPrometheus"},
	40: {"foreign pages", "TestHostAndOrigin"},
	41: {"headers of CORS", "TestHostAndOrigin"},
	42: {"several keys, from files, compared in constant time", "TestAuth TestSetAccess"},
	43: {"limits of bodies and time", "TestBodyLimit TestStuckClient TestUnsentBody"},
	44: {"addresses in snippets", "TestIntegrations TestForwardedScheme"},
	45: {"help and version", "TestRecordedCommandLines"},
	46: {"claude checks key and model", "TestLaunch"},
	47: {"snippets are verified, files merged", "TestIntegrations TestWriteEveryIntegration TestWriteIntegration"},
	48: {"why a download failed", "TestDownloadFails TestDownloadCancel TestDSparkReplay"},
}

// TestWeaknesses: none of the weaknesses is without a test.
func TestWeaknesses(t *testing.T) {
	if len(weaknesses) != 49 {
		t.Fatalf("%d weaknesses", len(weaknesses)-1)
	}
	var have []string
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	for _, dir := range []string{".", "../engine", "../app"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range declared.FindAllSubmatch(text, -1) {
				have = append(have, string(m[1]))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, w := range weaknesses[1:] {
		names := strings.Fields(w.tests)
		if len(names) == 0 {
			t.Errorf("W%d (%s) is shown by no test", i+1, w.what)
		}
		for _, name := range names {
			if !slices.Contains(have, name) {
				t.Errorf("W%d (%s): there is no %s", i+1, w.what, name)
			}
		}
	}
}

// TestMachineWithoutModel (W1).
func TestMachineWithoutModel(t *testing.T) {
	w := call(New(enginetest.Empty(), Options{}), "GET", "/machine", "")
	var m map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil || w.Code != http.StatusOK || m["chip"] == nil || m["memory"] == nil || m["bandwidth"] == nil || m["model"] != nil || m["verdict"] != nil {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestBadLengths (W8): a length that is none is refused, and nobody waits.
func TestBadLengths(t *testing.T) {
	s := New(enginetest.New(enginetest.Say("x")), Options{})
	for _, length := range []string{"abc", "-5", "", "1 2", "99999999999999999999"} {
		x := mlxExchange{}
		x.Request.Method, x.Request.Path, x.Request.Headers = "POST", "/v1/chat/completions", map[string]string{"Content-Length": length}
		if status, _, body := overTCP(t, s, &x); status != http.StatusBadRequest {
			t.Errorf("Content-Length %q: %d %s", length, status, body)
		}
	}
}

// TestSeededChoices (W11): each choice has its own draws, and the same seed gives
// the same choices; all are counted.
func TestSeededChoices(t *testing.T) {
	s, _ := startReal(t, []string{"--mode", "baseline", "--model", "/models/tiny-chat"})
	ask := func() (texts []string, tokens int) {
		w := call(s, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hello"}],"n":4,"seed":5,"temperature":3,"max_tokens":8,"enable_thinking":false}`)
		var a struct {
			Choices []struct{ Message struct{ Content string } }
			Usage   struct {
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || len(a.Choices) != 4 {
			t.Fatal(w.Code, w.Body)
		}
		for _, c := range a.Choices {
			texts = append(texts, c.Message.Content)
		}
		return texts, a.Usage.Completion
	}
	first, n := ask()
	again, _ := ask()
	if !slices.Equal(first, again) {
		t.Errorf("one seed, two answers: %q %q", first, again)
	}
	if slices.Sort(first); len(slices.Compact(first)) < 3 {
		t.Errorf("choices with the same draws: %q", again)
	}
	if n < 20 || n > 32 {
		t.Errorf("%d tokens in four choices of up to 8", n)
	}
}

// TestMessagesSeed (W15).
func TestMessagesSeed(t *testing.T) {
	e := enginetest.New(enginetest.Say("x"))
	if w := call(New(e, Options{}), "POST", "/v1/messages", `{"max_tokens":4,"seed":7,"messages":[{"role":"user","content":"Hi"}]}`); w.Code != http.StatusOK {
		t.Fatal(w.Code, w.Body)
	}
	if seed := e.Asked()[0].Sampling.Seed; seed == nil || *seed != 7 {
		t.Errorf("seed %v", seed)
	}
}

// TestPrefillIsTimed (W22): reading a prompt takes a time in lookup mode too.
func TestPrefillIsTimed(t *testing.T) {
	s, _ := startReal(t, []string{"--mode", "lookup", "--model", "/models/tiny-chat"})
	res, err := s.engine.Generate(t.Context(), engine.Request{ID: "r", Logprobs: -1, MaxTokens: 4, Prompt: engine.Prompt{Messages: json.RawMessage(fmt.Sprintf(`[{"role":"user","content":%q}]`, strings.Repeat("apple pear ", 100)))}}, func(engine.Delta) error { return nil })
	if err != nil || res.Stats.Mode != "lookup" || res.Stats.PrefillSeconds <= 0 || res.Stats.TTFTSeconds <= 0 {
		t.Errorf("%+v %v", res.Stats, err)
	}
}

// TestRequestLog (W39): one line per request with its id; what models read and
// write only where the owner wants it, keys never.
func TestRequestLog(t *testing.T) {
	for _, prompts := range []bool{false, true} {
		var log bytes.Buffer
		s := New(enginetest.New(enginetest.Say("a secret ", "answer")), Options{Keys: []string{"the-key"}, Log: slog.New(slog.NewTextHandler(&log, nil)), LogPrompts: prompts})
		w := call(s, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"my question"}]}`, "Authorization", "Bearer the-key")
		id := w.Header().Get("X-Request-Id")
		if w.Code != http.StatusOK || !strings.HasPrefix(id, "chatcmpl-") || !strings.Contains(log.String(), "request="+id+" method=POST path=/v1/chat/completions status=200") {
			t.Errorf("%d %s: %s", w.Code, id, log.String())
		}
		if shown := strings.Contains(log.String(), "my question") && strings.Contains(log.String(), "a secret answer"); shown != prompts || strings.Contains(log.String(), "the-key") {
			t.Errorf("with prompts %v: %s", prompts, log.String())
		}
	}
}

// TestForwardedScheme (W44): only a proxy that the owner names is believed.
func TestForwardedScheme(t *testing.T) {
	for behind, want := range map[bool]string{false: `"base_url":"http://localhost:8080"`, true: `"base_url":"https://localhost:8080"`} {
		w := call(New(enginetest.New(enginetest.Say("x")), Options{BehindProxy: behind}), "GET", "/admin/integrations", "", "X-Forwarded-Proto", "https")
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("behind a proxy %v: %d %.200s", behind, w.Code, w.Body)
		}
	}
}
