package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/machine"
	"sparkbar/engine/testbench"
	"sparkbar/engine/testneed"
)

// process is an engine over a folder of prefixes: what lives between a start and
// an end of the program.
type process struct {
	*engine.Engine
	t    *testing.T
	disk *cache.Disk
}

func start(t *testing.T, folder, version string, r engine.LoadRequest) *process {
	t.Helper()
	d, err := cache.OpenDisk(folder, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(engine.Options{Builtins: demoBuiltins(), Version: version, Disk: d, Arithmetic: "test",
		Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }})
	r.Warmup = ptr(false)
	if _, err := e.LoadFrom(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	return &process{e, t, d}
}

func (p *process) end() {
	p.t.Helper()
	// A slow disk has its time: the end does not wait for it for long.
	for was := int64(-1); was != p.disk.Stats().Written; time.Sleep(200 * time.Millisecond) {
		was = p.disk.Stats().Written
	}
	if err := p.Close(context.Background()); err != nil {
		p.t.Fatal(err)
	}
	if err := p.disk.Close(); err != nil {
		p.t.Fatal(err)
	}
}

// ask returns the answer and how many prompt tokens had to be read.
func (p *process) ask(prompt []int32, n int) (tokens []int32, read int) {
	p.t.Helper()
	res, err := p.Generate(context.Background(), engine.Request{Prompt: engine.Prompt{Tokens: prompt}, MaxTokens: n, Logprobs: -1}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, tok := range res.Tokens {
		tokens = append(tokens, tok.ID)
	}
	return tokens, len(prompt) - res.Stats.CachedTokens
}

func randomPrompt(seed uint64, n, vocab int) []int32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(3 + rng.IntN(vocab-3))
	}
	return ids
}

// TestPrefixesOutliveTheEngine: after a restart a prompt is read again from its
// last whole page on, and the answer is the same; another version reads all of
// it.
func TestPrefixesOutliveTheEngine(t *testing.T) {
	prompt := randomPrompt(1, 1000, 500)
	loads := []engine.LoadRequest{{Mode: "baseline"}, {Mode: "dspark"}, {Mode: "dflash"}, {Mode: "dspark", MaxDraft: ptr(3)}}
	if testing.Short() {
		loads = loads[2:3]
	}
	for _, r := range loads {
		r.Model = "demo"
		t.Run(r.Mode, func(t *testing.T) {
			folder := t.TempDir()
			a := start(t, folder, "1", r)
			want, read := a.ask(prompt, 24)
			if read != len(prompt) {
				t.Fatalf("%d tokens were read of a prompt of %d", read, len(prompt))
			}
			a.end()
			b := start(t, folder, "1", r)
			got, read := b.ask(prompt, 24)
			if read > compute.PageSize || !slices.Equal(got, want) {
				t.Errorf("after a restart %d tokens are read\nanswer %v\nbefore %v", read, got, want)
			}
			longer := slices.Concat(prompt, got, randomPrompt(2, 10, 500))
			again, read := b.ask(longer, 8)
			if most := 10 + len(got); read > most {
				t.Errorf("%d tokens of a continued conversation are read, wants at most %d", read, most)
			}
			b.end()
			c := start(t, folder, "1", r)
			if got, read := c.ask(longer, 8); read > compute.PageSize+10 || !slices.Equal(got, again) {
				t.Errorf("after another restart %d tokens are read\nanswer %v\nbefore %v", read, got, again)
			}
			c.end()
			d := start(t, folder, "2", r)
			if got, read := d.ask(prompt, 24); read != len(prompt) || !slices.Equal(got, want) {
				t.Errorf("another version reads %d tokens of %d", read, len(prompt))
			}
			d.end()
		})
	}
}

// TestLongPromptSmolLM2: a long prompt (8000 tokens in `make bench`, where there
// is time) is read once; the second time, and after a restart, at most a page and
// what is new. The memory stays within what the load says beforehand.
func TestLongPromptSmolLM2(t *testing.T) {
	if testing.Short() {
		t.Skip("reads a long prompt")
	}
	dir := testneed.SmolLM2(t)
	const tail = 40
	n := 1500
	if testbench.On() {
		n = 8000
	}
	long := randomPrompt(3, n, 40_000)
	r := engine.LoadRequest{Model: filepath.Join(dir, "model.gguf"), Mode: "lookup", KVBits: ptr(8), ContextWindow: ptr(8192)}
	folder := t.TempDir()
	before := machine.Resident()
	a := start(t, folder, "1", r)
	first, read := a.ask(long, 8)
	if read != len(long) {
		t.Fatalf("%d tokens were read of %d", read, len(long))
	}
	second := slices.Concat(long, randomPrompt(4, tail, 40_000))
	_, warm := a.ask(second, 8)
	if read := warm; read > compute.PageSize+tail {
		t.Errorf("the second request reads %d tokens, wants at most a page and its tail of %d", read, tail)
	} else {
		t.Logf("second request: %d tokens read", read)
	}
	info := a.Status().Model
	stated := info.WeightBytes + info.KVBytesPerToken*int64(a.Gauges().PagesUsed*compute.PageSize)
	grown := machine.Resident() - before
	t.Logf("memory: grown by %d MB; weights and pages in use %d MB", grown>>20, stated>>20)
	limit := stated + stated/4 + 96<<20 // activations of a chunk, the tokenizer, buffers of Go
	if before > 0 && grown > limit {
		t.Errorf("the process grew by %d MB, stated are %d MB", grown>>20, stated>>20)
	}
	a.end()
	b := start(t, folder, "1", r)
	got, read := b.ask(second, 8)
	if read > compute.PageSize+tail {
		t.Errorf("after a restart %d tokens are read", read)
	}
	t.Logf("after a restart: %d tokens read", read)
	if testbench.On() {
		testbench.Write(t, "prefix", "A long prompt again", fmt.Sprintf("SmolLM2-135M, 8-bit keys and values, a prompt of %d tokens and %d new ones: tokens that are read.", n, tail), []testbench.Figure{
			{Name: "the first time", Value: float64(n), Unit: "tokens"},
			{Name: "from memory", Value: float64(warm), Unit: "tokens", Want: fmt.Sprintf("<= %d", compute.PageSize+tail)},
			{Name: "from disk, after a restart", Value: float64(read), Unit: "tokens", Want: fmt.Sprintf("<= %d", compute.PageSize+tail)},
			{Name: "growth of the process", Value: float64(grown >> 20), Unit: "MB", Want: fmt.Sprintf("<= %d", limit>>20), Note: fmt.Sprintf("%d MB of weights and pages", stated>>20)}})
	}
	if got2, _ := b.ask(long, 8); !slices.Equal(got2, first) {
		t.Errorf("after a restart the answer is %v, was %v (longer prompt: %v)", got2, first, got)
	}
	b.end()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".tmp") {
			t.Errorf("%s is left behind", e.Name())
		}
	}
}
