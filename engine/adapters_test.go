package engine_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sparkbar/engine"
)

const recorded = "../httpapi/testdata/mlx-lm/models" // of mlx_lm.server's sessions

func tinyEngine(t *testing.T, o engine.Options, load engine.LoadRequest) *engine.Engine {
	t.Helper()
	o.Backend, load.Warmup = reference, ptr(false)
	e := engine.New(o)
	t.Cleanup(func() { e.Close(context.Background()) })
	if _, err := e.LoadFrom(context.Background(), load); err != nil {
		t.Fatal(err)
	}
	return e
}

func fieldOf(err error) string {
	var e *engine.Error
	if errors.As(err, &e) {
		return e.Field
	}
	return ""
}

// copyDir copies a folder of files.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
}

// TestAdapters: adapters of requests change the answers of those requests only,
// also when they come together and in turn; pasts are kept apart; a folder that
// changes is read again.
func TestAdapters(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"tiny-chat", "tiny-draft", "adapters"} {
		copyDir(t, filepath.Join(recorded, name), filepath.Join(root, name))
	}
	in := func(name string) string { return filepath.Join(root, name) }
	e := tinyEngine(t, engine.Options{ModelRoot: root, Slots: 4}, engine.LoadRequest{Model: in("tiny-chat"), Mode: "baseline"})
	ask := func(adapter string) engine.Request {
		return engine.Request{ID: "r", Prompt: message("Count to twelve."), MaxTokens: 12, Logprobs: -1, Adapter: adapter}
	}
	kinds := []string{"", in("adapters/lora"), in("adapters/dora")}
	var want []string
	for _, k := range kinds {
		want = append(want, answer(t, e, ask(k)).Text)
	}
	if want[0] == want[1] || want[0] == want[2] || want[1] == want[2] {
		t.Fatalf("adapters change nothing: %q", want)
	}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			if res, err := e.Generate(context.Background(), ask(kinds[i%3]), nil); err != nil || res.Text != want[i%3] {
				t.Errorf("%s: %q %v, want %q", kinds[i%3], res.Text, err, want[i%3])
			}
		})
	}
	wg.Wait()

	// More adapters than are kept: each is right whenever it comes again.
	for i := range 6 {
		copyDir(t, in("adapters/lora"), in("more/"+string(rune('a'+i))))
	}
	for range 2 {
		for i := range 6 {
			if got := answer(t, e, ask(in("more/"+string(rune('a'+i))))).Text; got != want[1] {
				t.Errorf("adapter %d: %q, want %q", i, got, want[1])
			}
		}
	}
	// Another adapter in the same folder.
	for _, f := range []string{"adapter_config.json", "adapters.safetensors"} {
		b, err := os.ReadFile(in("adapters/dora/" + f))
		if err == nil {
			err = os.WriteFile(in("more/a/"+f), b, 0o644)
		}
		if err == nil {
			err = os.Chtimes(in("more/a/"+f), time.Time{}, time.Unix(1, 0))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := answer(t, e, ask(in("more/a"))).Text; got != want[2] {
		t.Errorf("the changed folder: %q, want %q", got, want[2])
	}

	outside := t.TempDir()
	copyDir(t, in("adapters/lora"), outside)
	if err := os.Symlink(outside, in("link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		adapter, text string
		kind          engine.ErrorKind
	}{
		{outside, "outside", engine.ErrInvalid}, {in("link"), "outside", engine.ErrInvalid}, {in("none"), "does not exist", engine.ErrModelNotFound},
		{in("adapters/bad"), "scale", engine.ErrLoadFailed}, {in("tiny-chat"), "adapter_config.json", engine.ErrLoadFailed},
	} {
		_, err := e.Generate(context.Background(), ask(c.adapter), nil)
		if kindOf(err) != c.kind || fieldOf(err) != "adapters" || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v (%s)", c.adapter, err, kindOf(err))
		}
	}
	if got := answer(t, e, ask("")).Text; got != want[0] {
		t.Errorf("the model itself is another after its adapters: %q, want %q", got, want[0])
	}

	// An adapter of the load: for all requests that name none.
	own := tinyEngine(t, engine.Options{ModelRoot: root}, engine.LoadRequest{Model: in("tiny-chat"), Mode: "baseline", Adapter: in("adapters/lora")})
	if got := answer(t, own, ask("")).Text; got != want[1] {
		t.Errorf("loaded with an adapter: %q, want %q", got, want[1])
	}
	if got := answer(t, own, ask(in("adapters/dora"))).Text; got != want[2] {
		t.Errorf("another than the loaded adapter: %q, want %q", got, want[2])
	}
	if _, err := own.LoadFrom(context.Background(), engine.LoadRequest{Model: in("tiny-draft"), Mode: "baseline", Adapter: in("adapters/lora"), Warmup: ptr(false)}); kindOf(err) != engine.ErrLoadFailed {
		t.Errorf("an adapter of another model: %v", err)
	}
}

// TestSeedsOfMLX: where copies are only our own idea, a seed draws for clients of
// mlx_lm.server what it draws there.
func TestSeedsOfMLX(t *testing.T) {
	root, err := filepath.Abs(recorded)
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"auto", "lookup"} {
		e := tinyEngine(t, engine.Options{ModelRoot: root}, engine.LoadRequest{Model: filepath.Join(root, "tiny-chat"), Mode: mode})
		for _, c := range []struct {
			mlx         bool
			temperature float64
			seed        *uint64
			want        string
		}{{true, 1, ptr(uint64(7)), map[string]string{"auto": "baseline", "lookup": "lookup"}[mode]}, {true, 1, nil, "lookup"}, {true, 0, ptr(uint64(7)), "lookup"}, {false, 1, ptr(uint64(7)), "lookup"}} {
			r := engine.Request{ID: "r", Prompt: message("Count to twelve."), MaxTokens: 8, Logprobs: -1}
			r.Prompt.MLXRules, r.Sampling.Temperature, r.Sampling.Seed = c.mlx, ptr(c.temperature), c.seed
			if got := answer(t, e, r).Stats.Mode; got != c.want {
				t.Errorf("loaded with %s, %+v: answered with %s", mode, c, got)
			}
		}
	}
}

// TestRequestDrafter: a request may name a draft model, or none; the answer is
// the same, only who proposes is another.
func TestRequestDrafter(t *testing.T) {
	root, err := filepath.Abs(recorded)
	if err != nil {
		t.Fatal(err)
	}
	chat, small := filepath.Join(root, "tiny-chat"), filepath.Join(root, "tiny-draft")
	e := tinyEngine(t, engine.Options{ModelRoot: root}, engine.LoadRequest{Model: chat, Drafter: small, Mode: "auto"})
	ask := func(drafter string, n *int) engine.Request {
		return engine.Request{ID: "r", Prompt: message("Count to twelve."), MaxTokens: 20, Logprobs: -1, Drafter: drafter, MaxDraft: n}
	}
	plain := answer(t, e, ask("", ptr(0)))
	if plain.Stats.Mode != "baseline" || plain.Stats.Cap != nil {
		t.Errorf("no drafts: %+v", plain.Stats)
	}
	for _, c := range []struct {
		drafter, loaded string
		n               *int
		cap             int
	}{{"", small, nil, 3}, {"", small, ptr(5), 5}, {"", small, ptr(1000), 16}, {"tiny-draft", small, ptr(2), 2}, {chat, chat, ptr(4), 4}, {"", chat, nil, 3}, {small, small, ptr(1), 1}} {
		res := answer(t, e, ask(c.drafter, c.n))
		if res.Text != plain.Text || res.Stats.Mode != "draft" || res.Stats.Cap == nil || *res.Stats.Cap != c.cap {
			t.Errorf("drafter %q, %v drafts: %q %+v", c.drafter, c.n, res.Text, res.Stats)
		}
		if got := e.Status().Model.Drafter; got != c.loaded {
			t.Errorf("drafter %q: %s is loaded, want %s", c.drafter, got, c.loaded)
		}
	}
	for _, c := range []struct {
		drafter, text string
		kind          engine.ErrorKind
	}{{"org/none", "org/none", engine.ErrModelNotFound}, {t.TempDir(), "outside", engine.ErrInvalid}} {
		_, err := e.Generate(context.Background(), ask(c.drafter, nil), nil)
		if kindOf(err) != c.kind || fieldOf(err) != "draft_model" || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v (%s, %s)", c.drafter, err, kindOf(err), fieldOf(err))
		}
	}
	fixed := tinyEngine(t, engine.Options{ModelRoot: root, Live: engine.Live{NoModelSwitch: true}}, engine.LoadRequest{Model: chat, Mode: "baseline"})
	if _, err := fixed.Generate(context.Background(), ask(small, nil), nil); kindOf(err) != engine.ErrInvalid || !strings.Contains(err.Error(), "--no-model-switch") {
		t.Errorf("a fixed model: %v", err)
	}
	if res := answer(t, fixed, ask("", ptr(7))); res.Text != plain.Text || res.Stats.Mode != "baseline" {
		t.Errorf("drafts without a drafter: %+v", res.Stats)
	}
}

// TestOtherTokenizer: a draft model whose tokens are others is told.
func TestOtherTokenizer(t *testing.T) {
	dir := t.TempDir()
	copyDir(t, filepath.Join(recorded, "tiny-draft"), dir)
	e := tinyEngine(t, engine.Options{}, engine.LoadRequest{Model: filepath.Join(recorded, "tiny-chat"), Drafter: dir, Mode: "draft"})
	for _, w := range e.Status().Warnings {
		if strings.Contains(w.Message, "tokenizer") {
			t.Errorf("the same tokens: %v", w)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	swapped := strings.NewReplacer(`"0": 32`, `"0": 33`, `"0":32`, `"0":33`, `"1": 33`, `"1": 32`, `"1":33`, `"1":32`).Replace(string(b))
	if swapped == string(b) {
		t.Fatal("nothing to swap")
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(swapped), 0o644); err != nil {
		t.Fatal(err)
	}
	st, err := e.LoadFrom(context.Background(), engine.LoadRequest{Model: filepath.Join(recorded, "tiny-chat"), Drafter: dir, Mode: "draft", Warmup: ptr(false)})
	found := false
	for _, w := range st.Warnings {
		found = found || w.Level == "attention" && strings.Contains(w.Message, "Draft model tokenizer does not match model tokenizer") && strings.Contains(w.Message, "2 of ")
	}
	if err != nil || !found {
		t.Errorf("%v %v", st.Warnings, err)
	}
}
