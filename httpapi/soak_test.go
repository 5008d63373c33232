package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/httpapi"
	"sparkbar/resources"
)

// soakTime is how long TestSoak runs: SPARKBAR_SOAK, else two minutes where
// everything is asked for, else seconds.
func soakTime(t *testing.T) time.Duration {
	if v := os.Getenv("SPARKBAR_SOAK"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatalf("SPARKBAR_SOAK: %v", err)
		}
		return d
	}
	switch {
	case testing.Short():
		return 3 * time.Second
	case os.Getenv("SPARKBAR_REQUIRE") == "all":
		return 2 * time.Minute
	}
	return 5 * time.Second
}

// question is one request of the soak, and what it is answered with when
// nobody else asks.
type question struct {
	path, body string
	solo       string
}

// soakQuestions ask all four routes, streaming and not, greedy and seeded.
func soakQuestions() (list []*question) {
	prompts := []string{"Hello", "Tell me about the sea, please.", "Count from one to ten", "What is a model?", "Write a line of code: 🙂", "Name three colours"}
	for i, p := range prompts {
		for _, stream := range []bool{false, true} {
			sampling := map[string]any{"stream": stream, "temperature": 0, "max_tokens": 12 + 4*i}
			if i%2 == 1 {
				sampling["temperature"], sampling["seed"], sampling["top_p"] = 0.9, 100+i, 0.95
			}
			add := func(path string, extra map[string]any) {
				body := map[string]any{}
				for k, v := range sampling {
					body[k] = v
				}
				for k, v := range extra {
					body[k] = v
				}
				b, _ := json.Marshal(body)
				list = append(list, &question{path: path, body: string(b)})
			}
			turn := []any{map[string]any{"role": "user", "content": p}}
			add("/v1/chat/completions", map[string]any{"messages": turn})
			add("/v1/completions", map[string]any{"prompt": p, "stop": []string{"zz"}})
			add("/v1/messages", map[string]any{"messages": turn})
			add("/v1/responses", map[string]any{"input": p})
		}
	}
	return list
}

// said is what an answer says: its text, its reasoning and how it ended.
func said(path, body string) (string, error) {
	var text, thought, end strings.Builder
	frames := []string{body}
	if !strings.HasPrefix(body, "{") {
		frames = frames[:0]
		for line := range strings.SplitSeq(body, "\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				frames = append(frames, data)
			}
		}
	}
	type part struct {
		Type, Text, Thinking string
		Content, Summary     []struct{ Text string }
	}
	for _, f := range frames {
		if f == "[DONE]" {
			end.WriteString(" done")
			continue
		}
		var o struct {
			Type, Text string
			Error      any
			Choices    []struct {
				Text           string
				Finish         string `json:"finish_reason"`
				Message, Delta struct {
					Content   string
					Reasoning string
				}
			}
			Content, Output []part
			Status          string
			StopReason      string `json:"stop_reason"`
			Delta           json.RawMessage
			Response        struct{ Status string }
		}
		if err := json.Unmarshal([]byte(f), &o); err != nil || o.Error != nil {
			return "", fmt.Errorf("%s: %v in %s", path, err, f)
		}
		for _, c := range o.Choices {
			text.WriteString(c.Text + c.Message.Content + c.Delta.Content)
			thought.WriteString(c.Message.Reasoning + c.Delta.Reasoning)
			if c.Finish != "" {
				end.WriteString(c.Finish)
			}
		}
		for _, c := range append(o.Content, o.Output...) {
			text.WriteString(c.Text)
			thought.WriteString(c.Thinking)
			for _, x := range c.Content {
				text.WriteString(x.Text)
			}
			for _, x := range c.Summary {
				thought.WriteString(x.Text)
			}
		}
		var d struct {
			Type, Text, Thinking string
			StopReason           string `json:"stop_reason"`
		}
		var s string
		switch o.Type {
		case "content_block_delta", "message_delta":
			if err := json.Unmarshal(o.Delta, &d); err != nil {
				return "", err
			}
			text.WriteString(d.Text)
			thought.WriteString(d.Thinking)
			end.WriteString(d.StopReason)
		case "response.output_text.delta", "response.reasoning_summary_text.delta":
			if err := json.Unmarshal(o.Delta, &s); err != nil {
				return "", err
			}
			if strings.Contains(o.Type, "output") {
				text.WriteString(s)
			} else {
				thought.WriteString(s)
			}
		case "response.completed", "response.incomplete":
			end.WriteString(o.Response.Status)
		}
		end.WriteString(o.StopReason)
		if o.Status != "" && o.Type == "" {
			end.WriteString(o.Status)
		}
	}
	if end.Len() == 0 {
		return "", fmt.Errorf("%s has no end: %s", path, body)
	}
	return text.String() + "\x00" + thought.String() + "\x00" + end.String(), nil
}

// held is what a server may lose bit by bit.
type held struct{ goroutines, files, pages, running int }

// TestSoak keeps 64 clients asking, a third of them going away in the middle.
// Those that stay get byte for byte what they get alone, and in the end nothing
// is left of any of them.
func TestSoak(t *testing.T) {
	const clients = 64
	target, drafter := resources.Demo()
	e := engine.New(engine.Options{Version: "test", Builtins: map[string]engine.Builtin{"demo": {Target: target, Drafter: drafter}}, QueueLimit: 64 * clients, Slots: -1,
		Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }})
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if _, err := e.LoadFrom(t.Context(), engine.LoadRequest{Model: "demo"}); err != nil {
		t.Fatal(err)
	}
	base := listen(t, httpapi.New(e, httpapi.Options{}))
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	client := &http.Client{Transport: transport}
	// ask returns the whole body, or what came before the client went away.
	ask := func(ctx context.Context, q *question, leaveAfter int) (string, int, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "POST", base+q.path, strings.NewReader(q.body))
		if err != nil {
			return "", 0, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", 0, err
		}
		defer resp.Body.Close()
		var b bytes.Buffer
		if leaveAfter > 0 {
			_, err = io.CopyN(&b, resp.Body, int64(leaveAfter))
		} else {
			_, err = b.ReadFrom(resp.Body)
		}
		return b.String(), resp.StatusCode, err
	}
	now := func() held {
		transport.CloseIdleConnections()
		st := e.Status()
		h := held{running: st.InFlight + st.Queued, goroutines: runtime.NumGoroutine()}
		if g := e.Gauges(); g != nil {
			h.pages = g.PagesUsed
		}
		files, _ := filepath.Glob("/proc/self/fd/*") // none where there is no /proc
		h.files = len(files)
		return h
	}
	// settled waits until nothing runs and connections are closed.
	settled := func(most held) held {
		t.Helper()
		var h held
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
			h = now()
			if h.running == 0 && h.goroutines <= most.goroutines && h.files <= most.files && h.pages <= most.pages {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		return h
	}
	questions := soakQuestions()
	answers := map[string]bool{}
	for _, q := range questions {
		body, status, err := ask(t.Context(), q, 0)
		if err != nil || status != http.StatusOK {
			t.Fatalf("%s %s: %d %v %s", q.path, q.body, status, err, body)
		}
		if q.solo, err = said(q.path, body); err != nil {
			t.Fatal(err)
		}
		answers[q.solo] = true
	}
	if len(answers) < len(questions)/4 {
		t.Fatalf("only %d different answers", len(answers))
	}
	time.Sleep(50 * time.Millisecond) // goroutines of the last connections end
	before := settled(held{goroutines: 1 << 30, files: 1 << 30, pages: 1 << 30})

	ctx, stop := context.WithTimeout(t.Context(), soakTime(t))
	defer stop()
	var whole, left, wrong atomic.Int64
	var wg sync.WaitGroup
	for n := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(n)))
			for (ctx.Err() == nil || whole.Load() < clients || left.Load() < clients/4) && wrong.Load() < 5 { // enough to mean something
				q := questions[rng.IntN(len(questions))]
				own, cancel := context.WithCancel(t.Context())
				after := 0
				switch rng.IntN(6) {
				case 0: // goes away in the middle of the answer
					after = 1 + rng.IntN(600)
				case 1: // or at any time, perhaps while it waits
					wait := time.Duration(rng.IntN(60_000)) * time.Microsecond
					time.AfterFunc(wait, cancel)
				}
				body, status, err := ask(own, q, after)
				gone := after > 0 || own.Err() != nil
				cancel()
				if gone {
					left.Add(1)
					continue
				}
				got, serr := said(q.path, body)
				if err != nil || status != http.StatusOK || serr != nil || got != q.solo {
					wrong.Add(1)
					t.Errorf("%s %s: %d %v %v\ngot   %q\nalone %q", q.path, q.body, status, err, serr, got, q.solo)
					continue
				}
				whole.Add(1)
			}
		})
	}
	wg.Wait()
	after := settled(before)
	if after.running != 0 || after.goroutines > before.goroutines || after.files > before.files || after.pages != before.pages {
		buf := make([]byte, 1<<20)
		t.Errorf("after %+v, before %+v\n%s", after, before, buf[:runtime.Stack(buf, true)])
	}
	for _, q := range questions[:8] { // and it still answers
		body, status, err := ask(t.Context(), q, 0)
		if got, serr := said(q.path, body); err != nil || serr != nil || status != http.StatusOK || got != q.solo {
			t.Errorf("afterwards %s: %d %v %v %q", q.path, status, err, serr, got)
		}
	}
	t.Logf("%d answers as alone, %d clients left; before %+v, after %+v", whole.Load(), left.Load(), before, after)
}
