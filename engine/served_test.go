package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/internal/exact"
	"sparkbar/engine/internal/testmodel"
	"sparkbar/engine/sample"
	"sparkbar/httpapi"
)

// letters writes a tokenizer beside a random model: token i is the i-th letter,
// so that a text of n letters names n tokens.
func letters(t *testing.T, dir string) {
	t.Helper()
	vocab := map[string]int{}
	for i := range testmodel.Vocab {
		vocab[string(rune('a'+i))] = i
	}
	text, err := json.Marshal(map[string]any{"version": "1.0", "added_tokens": []any{},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"decoder":       map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []any{}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// eager accepts too often: a planted error in the acceptance rule.
type eager struct{ sample.Source }

func (e eager) Uniforms(u []float32) {
	e.Source.Uniforms(u)
	for i := range u {
		u[i] *= 0.8
	}
}

// ask draws one answer of six tokens over HTTP and returns the index of its first
// three in a joint distribution.
func ask(url string, body map[string]any) (int, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	resp, err := http.Post(url+"/v1/completions", "application/json", bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	var r struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal(answer, &r); err != nil || resp.StatusCode != 200 || len(r.Choices) != 1 || len(r.Choices[0].Text) != 6 {
		return 0, fmt.Errorf("%v: %s: %s, %v", body, resp.Status, answer, err)
	}
	at := 0
	for _, c := range r.Choices[0].Text[:3] {
		at = at*testmodel.Vocab + int(c-'a')
	}
	return at, nil
}

// drawn counts the first three tokens of n answers, one per seed, of several
// clients at a time.
func drawn(t *testing.T, url string, prompt []int32, p sample.Params, n int) []int {
	t.Helper()
	total := make([]int, testmodel.Vocab*testmodel.Vocab*testmodel.Vocab)
	var next atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				seed := int(next.Add(1)) - 1
				if seed >= n {
					return
				}
				at, err := ask(url, map[string]any{"prompt": prompt, "max_tokens": 6, "seed": seed, "temperature": p.Temperature, "top_p": p.TopP, "top_k": p.TopK,
					"presence_penalty": p.PresencePenalty, "frequency_penalty": p.FrequencyPenalty, "repetition_penalty": p.RepetitionPenalty})
				mu.Lock()
				if err != nil {
					t.Error(err)
					next.Store(int64(n))
				} else {
					total[at]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return total
}

// TestSampledAnswersAreExact: whatever proposes the tokens, the answers of the
// server have the target's distribution, enumerated exactly, and a rule that
// accepts too often is noticed.
func TestSampledAnswersAreExact(t *testing.T) {
	draws := 20000
	if testing.Short() {
		draws = 400
	}
	target, other := testmodel.Target(t, 1), testmodel.Target(t, 5)
	letters(t, target)
	letters(t, other)
	// Every token follows "1 2" somewhere, so that there is always a copy to try.
	var repeats []int32
	for id := range int32(testmodel.Vocab) {
		repeats = append(repeats, 1, 2, id, (id*7+3)%testmodel.Vocab, (id*5+1)%testmodel.Vocab)
	}
	repeats = append(repeats, 1, 2)
	short := []int32{3, 7}
	all := sample.Params{Temperature: 0.8, TopP: 0.95, TopK: 9, PresencePenalty: 0.5, FrequencyPenalty: 0.3, RepetitionPenalty: 1.1}
	served := func(t *testing.T, drafter, mode string, random func(seed uint64) sample.Source) (*engine.Engine, string) {
		t.Helper()
		e := engine.New(engine.Options{Version: "test", Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{Exact: true}) }})
		t.Cleanup(func() { e.Close(context.Background()) })
		e.SetRandom(random)
		if _, err := e.LoadFrom(t.Context(), engine.LoadRequest{Model: target, Drafter: drafter, Mode: mode, MaxDraft: ptr(2), Warmup: ptr(false)}); err != nil {
			t.Fatal(err)
		}
		s := httptest.NewServer(httpapi.New(e, httpapi.Options{}))
		t.Cleanup(s.Close)
		return e, s.URL
	}
	for _, c := range []struct {
		name, drafter, mode string
		prompt              []int32
		params              sample.Params
	}{
		{"baseline", "", "baseline", short, all},
		{"lookup", "", "lookup", repeats, all},
		{"dspark", testmodel.DSpark(t, 2), "dspark", short, all},
		{"dflash 1", testmodel.DFlash(t, 3, false), "dflash", short, sample.Params{Temperature: 1.1, TopP: 1, TopK: 8, PresencePenalty: 0.4, RepetitionPenalty: 1}},
		{"dflash 2", testmodel.DFlash(t, 4, true), "dflash", short, sample.Params{Temperature: 0.9, TopP: 0.9, RepetitionPenalty: 1.2}},
		{"draft model", other, "draft", short, all},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, url := served(t, c.drafter, c.mode, nil)
			p := exact.ChiSquare(drawn(t, url, c.prompt, c.params, draws), exact.Joint(t, target, c.prompt, c.params, 3))
			r := e.Rounds().Stats()
			offered := 0
			for _, n := range r.PositionOffered {
				offered += n
			}
			accepted := int(r.DraftAcceptance * float64(offered))
			t.Logf("p = %.3g over %d answers; %d of %d drafts accepted", p, draws, accepted, offered)
			if !(p > 1e-4) {
				t.Errorf("p = %g: the distribution is not the target's", p)
			}
			if least := draws / 20; c.mode != "baseline" && (accepted < least || offered-accepted < least) {
				t.Errorf("%d of %d drafts accepted: too few to mean anything", accepted, offered)
			}
		})
	}
	t.Run("planted error", func(t *testing.T) {
		_, url := served(t, testmodel.DSpark(t, 2), "dspark", func(seed uint64) sample.Source { return eager{sample.NewRNG(seed)} })
		p := exact.ChiSquare(drawn(t, url, short, all, max(draws/4, 400)), exact.Joint(t, target, short, all, 3))
		t.Logf("p = %.3g", p)
		if !testing.Short() && !(p < 1e-6) {
			t.Errorf("p = %g: a rule that accepts too often is not noticed", p)
		}
	})
}
