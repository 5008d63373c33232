package decode_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"sparkbar/engine/arch"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/cpu"
	"sparkbar/engine/decode"
	"sparkbar/engine/draft"
	"sparkbar/engine/testneed"
)

// BenchmarkStreams answers 1, 4 and 8 prompts at once with a real model, without
// speculation, with copies and with a DSpark head, in turn, and reports tokens per
// second in all (medians), each beside one plain stream: x4 and x8 are 4 and 8
// streams of the same kind over one of it. Reading of prompts is not counted.
func BenchmarkStreams(b *testing.B) {
	dir := testneed.SmolLM2(b)
	var prompts struct {
		Prompts []struct {
			IDs []int32 `json:"prompt_ids"`
		}
	}
	text, err := os.ReadFile("../testdata/smollm2/smollm2_expected.json")
	if err == nil {
		err = json.Unmarshal(text, &prompts)
	}
	if err != nil || len(prompts.Prompts) < 8 {
		b.Fatal(len(prompts.Prompts), err)
	}
	backend, err := cpu.New(cpu.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { backend.Close() })
	open := func(path string) *checkpoint.Checkpoint {
		c, err := checkpoint.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		return c
	}
	m, err := arch.Load(open(filepath.Join(dir, "mlx")), backend)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.Close)
	d, err := draft.Open(open("../testdata/smollm2/dspark"), draft.Host{Model: m, Backend: backend, Positions: 4096, Sequences: 24, Window: 4096, Bits: 4})
	if err != nil {
		b.Fatal(err)
	}
	r, err := decode.New(backend, m, d, decode.Options{Positions: 4096})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.Close)
	costs, err := r.Measure(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	r.SetCosts(costs)
	js, _ := json.Marshal(costs)
	b.Logf("costs %s", js)

	const limit = 48
	measure := func(j decode.Job, streams int) (rate float64) {
		tokens, begun, ended := make([]int, streams), 0, 0
		for i := range streams {
			j := j
			j.Prompt, j.MaxTokens, j.Logprobs, j.NoStore = prompts.Prompts[i].IDs, limit, -1, true
			j.Emit = func(ts []decode.Token) bool {
				if tokens[i] == 0 {
					begun++
				}
				tokens[i] += len(ts)
				return false
			}
			if err := r.Start(context.Background(), j, func(decode.Outcome, error) { ended++ }); err != nil {
				b.Fatal(err)
			}
		}
		for begun < streams {
			r.Step()
		}
		sum := func() (n int) {
			for _, t := range tokens {
				n += t
			}
			return n
		}
		before, began := sum(), time.Now()
		for ended == 0 {
			r.Step()
		}
		rate = float64(sum()-before) / time.Since(began).Seconds()
		for r.Active() > 0 {
			r.Step()
		}
		return rate
	}
	cap := costs.BestCap(calibrate.DerivedAcceptance, 0, d.MaxDraft())
	kinds := []struct {
		name string
		j    decode.Job
	}{
		{"plain", decode.Job{Mode: decode.Baseline}},
		{"lookup", decode.Job{Mode: decode.Lookup}},
		{"dspark", decode.Job{Mode: decode.Draft, Cap: cap}},
	}
	rates := map[string][]float64{}
	for b.Loop() {
		for _, streams := range []int{1, 4, 8} {
			for _, k := range kinds {
				name := fmt.Sprint(k.name, streams)
				rates[name] = append(rates[name], measure(k.j, streams))
			}
		}
	}
	median := func(name string) float64 {
		slices.Sort(rates[name])
		return rates[name][len(rates[name])/2]
	}
	for _, k := range kinds {
		one := median(k.name + "1")
		b.ReportMetric(one, k.name+"1-tok/s")
		for _, streams := range []int{4, 8} {
			n := median(fmt.Sprint(k.name, streams))
			b.ReportMetric(n/one, fmt.Sprintf("%s-x%d", k.name, streams))
			best := max(median(fmt.Sprint("plain", streams)), median(k.name+"1"))
			b.ReportMetric(n/best, fmt.Sprintf("%s%d-of-best", k.name, streams))
		}
	}
	b.Logf("cap %d", cap)
}
