package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/testbench"
	"sparkbar/resources"
)

// noted is an engine that notes when it hands out the text of each stream.
type noted struct {
	*engine.Engine
	mu sync.Mutex
	at map[uint64][]time.Time // by seed
}

func (n *noted) Generate(ctx context.Context, req engine.Request, emit func(engine.Delta) error) (engine.Result, error) {
	return n.Engine.Generate(ctx, req, func(d engine.Delta) error {
		if d.Text != "" {
			n.mu.Lock()
			n.at[*req.Sampling.Seed] = append(n.at[*req.Sampling.Seed], time.Now())
			n.mu.Unlock()
		}
		return emit(d)
	})
}

// TestBenchFlush measures how long the text of a round takes from the engine to a
// client over TCP, while streams keep all cores busy.
func TestBenchFlush(t *testing.T) {
	testbench.Need(t)
	target, drafter := resources.Demo()
	e := &noted{at: map[uint64][]time.Time{}, Engine: engine.New(engine.Options{Version: "bench", Builtins: map[string]engine.Builtin{"demo": {Target: target, Drafter: drafter}},
		Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }})}
	defer e.Close(context.Background())
	if _, err := e.LoadFrom(context.Background(), engine.LoadRequest{Model: "demo", Mode: "dspark"}); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(New(e, Options{}))
	defer server.Close()
	const streams, rounds = 8, 12
	var mu sync.Mutex
	var waits []float64
	var wg sync.WaitGroup
	for s := range streams {
		wg.Go(func() {
			for r := range rounds {
				seed := uint64(s*rounds + r + 1)
				body, err := json.Marshal(map[string]any{"model": "demo", "stream": true, "seed": seed, "temperature": 0, "max_tokens": 60,
					"messages": []map[string]string{{"role": "user", "content": fmt.Sprintf("Tell me about the number %d and what speculative decoding is.", seed)}}})
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := http.Post(server.URL+"/v1/chat/completions", "application/json", bytes.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				var got []time.Time
				for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
					if bytes.Contains(lines.Bytes(), []byte(`"content":`)) {
						got = append(got, time.Now())
					}
				}
				resp.Body.Close()
				e.mu.Lock()
				sent := e.at[seed]
				e.mu.Unlock()
				if len(got) < len(sent) { // the role's chunk may have an empty content
					t.Errorf("%d frames of text for %d deltas", len(got), len(sent))
					return
				}
				got = got[len(got)-len(sent):]
				mu.Lock()
				for i, at := range sent {
					waits = append(waits, max(0, got[i].Sub(at).Seconds()*1000))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(waits) == 0 {
		t.Fatal("no text came")
	}
	slices.Sort(waits)
	at := func(q float64) float64 { return waits[int(q*float64(len(waits)-1))] }
	var figures []testbench.Figure
	for _, q := range []struct {
		name string
		q    float64
	}{{"median", 0.5}, {"90 of 100", 0.9}, {"99 of 100", 0.99}, {"longest", 1}} {
		figures = append(figures, testbench.Figure{Name: q.name, Value: at(q.q), Unit: "ms"})
	}
	testbench.Write(t, "flush", "From a round to the client", fmt.Sprintf("Time of a round's text from the engine through the server-sent events to a client over TCP, %d streams of the demo at once on all cores, %d frames.", streams, len(waits)), figures)
}
