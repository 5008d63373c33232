package models

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sparkbar/engine/checkpoint"
)

// put writes files below a folder.
func put(t testing.TB, dir string, files map[string][]byte) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func tiny(t testing.TB) map[string][]byte {
	dir := "../testdata/models/qwen3/dense-q4/"
	return map[string][]byte{"config.json": read(t, dir+"config.json"), "model.safetensors": read(t, dir+"model.safetensors"), "tokenizer.json": []byte("{}")}
}

// with is a copy of files with changes; nil removes.
func with(files map[string][]byte, changes map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for k, v := range files {
		out[k] = v
	}
	for k, v := range changes {
		if out[k] = v; v == nil {
			delete(out, k)
		}
	}
	return out
}

func TestFolders(t *testing.T) {
	root := t.TempDir()
	model := tiny(t)
	config := func(change string) []byte {
		var c map[string]any
		json.Unmarshal(model["config.json"], &c)
		json.Unmarshal([]byte(change), &c)
		text, _ := json.Marshal(c)
		return text
	}
	drafter := map[string][]byte{}
	for _, f := range []string{"config.json", "model.safetensors"} {
		drafter[f] = read(t, "../testdata/speculation/checkpoints/dspark_deepspec/"+f)
	}
	gguf := read(t, "../checkpoint/testdata/gguf/tiny-llama.gguf")
	weights := model["model.safetensors"]
	index := []byte(`{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`)
	for _, k := range []struct {
		name   string
		files  map[string][]byte
		reason string // "" = loadable
	}{
		{"good", model, ""},
		{"publisher/good", model, ""},
		{"drafter", drafter, ""},
		{"gguf", map[string][]byte{"tiny.gguf": gguf, "mmproj-tiny.gguf": gguf}, ""},
		{"index of other files", with(model, map[string][]byte{"model.safetensors.index.json": index}), ""},
		{"cut", with(model, map[string][]byte{"model.safetensors": weights[:len(weights)-1]}), "cut off"},
		{"cut in the header", with(model, map[string][]byte{"model.safetensors": weights[:100]}), "cut off"},
		{"longer", with(model, map[string][]byte{"model.safetensors": append(slices.Clone(weights), 0)}), "damaged"},
		{"empty weights", with(model, map[string][]byte{"model.safetensors": {}}), "too few"},
		{"no tokenizer", with(model, map[string][]byte{"tokenizer.json": nil}), "tokenizer.json is missing"},
		{"old tokenizer", with(model, map[string][]byte{"tokenizer.json": nil, "tokenizer.model": {1}}), "tokenizer.model alone"},
		{"no config", with(model, map[string][]byte{"config.json": nil}), "config.json is missing"},
		{"broken config", with(model, map[string][]byte{"config.json": []byte("{")}), "config.json"},
		{"odd config", with(model, map[string][]byte{"config.json": config(`{"num_hidden_layers":"many"}`)}), "num_hidden_layers"},
		{"no weights", with(model, map[string][]byte{"model.safetensors": nil}), "no weights have arrived"},
		{"half", with(model, map[string][]byte{"model.safetensors": nil, "model-00001-of-00002.safetensors": weights}), "model-00002-of-00002.safetensors is missing"},
		{"half with index", with(model, map[string][]byte{"model.safetensors": nil, "model-00001-of-00002.safetensors": weights, "model.safetensors.index.json": index}), "model-00002-of-00002.safetensors is missing"},
		{"only the index", with(model, map[string][]byte{"model.safetensors": nil, "model.safetensors.index.json": index}), "model-00001-of-00002.safetensors is missing"},
		{"broken index", with(model, map[string][]byte{"model.safetensors.index.json": []byte("{")}), "index.json"},
		{"torch", with(model, map[string][]byte{"model.safetensors": nil, "pytorch_model.bin": {1}}), "not safetensors"},
		{"bert", with(model, map[string][]byte{"config.json": config(`{"model_type":"bert"}`)}), `"bert"`},
		{"untyped", with(model, map[string][]byte{"config.json": config(`{"model_type":null}`)}), `""`},
		{"adapter", map[string][]byte{"adapter_config.json": []byte("{}"), "adapters.safetensors": weights}, "adapter"},
		{"eagle", with(model, map[string][]byte{"config.json": config(`{"architectures":["EagleLlamaForCausalLM"]}`)}), "not supported"},
		{"eagle speculator", with(model, map[string][]byte{"config.json": config(`{"speculators_config":{"algorithm":"eagle3"}}`)}), `"eagle3"`},
		{"cut gguf", map[string][]byte{"cut.gguf": gguf[:len(gguf)-1]}, "tensors end at"},
		{"no gguf", map[string][]byte{"no.gguf": weights}, "does not begin"},
	} {
		put(t, filepath.Join(root, k.name), k.files)
		t.Run(k.name, func(t *testing.T) {
			m, ok := NewCatalogue(CatalogueOptions{Places: Places{Folders: []string{root}}}).Find(k.name)
			if !ok {
				t.Fatal("not listed")
			}
			if (k.reason == "") != m.Loadable() || !strings.Contains(m.Reason, k.reason) {
				t.Errorf("%+v, wants %q", m, k.reason)
			}
			// What is offered opens; what is called incomplete does not.
			c, err := checkpoint.Open(m.Path)
			if err == nil {
				defer c.Close()
			}
			if m.Loadable() && err != nil {
				t.Error(err)
			}
			if !m.Complete && err == nil && !strings.Contains(k.name, "tokenizer") && k.name != "odd config" {
				t.Error("opens all the same")
			}
		})
	}
	put(t, filepath.Join(root, "notes"), map[string][]byte{"todo.txt": {1}})
	put(t, root, map[string][]byte{"alone.gguf": gguf, "readme.txt": {1}})
	if err := os.Symlink(filepath.Join(root, "nowhere"), filepath.Join(root, "good", "generation_config.json")); err != nil {
		t.Fatal(err)
	}
	c := NewCatalogue(CatalogueOptions{Places: Places{Folders: []string{root, filepath.Join(root, "publisher", "good"), filepath.Join(root, "absent")}}})
	// A root that is a model goes by its own name; of two of a name, the one that loads counts.
	if m, ok := c.Find("good"); !ok || !m.Loadable() || m.Path != filepath.Join(root, "publisher", "good") {
		t.Errorf("%+v", m)
	}
	if m, _ := NewCatalogue(CatalogueOptions{Places: Places{Folders: []string{root}}}).Find("good"); m.Complete || !strings.Contains(m.Reason, "generation_config.json is a link to a file that is gone") {
		t.Errorf("%+v", m)
	}
	if m, ok := c.Find("alone"); !ok || !m.Loadable() || m.Kind != KindGGUF || m.Type != "llama" || m.Context == 0 || m.Geometry.PerToken == 0 {
		t.Errorf("%+v", m)
	}
	for _, m := range c.List() {
		if m.ID == "notes" || m.ID == "" {
			t.Errorf("%+v", m)
		}
	}
	if m, ok := c.Find("PUBLISHER/Good"); !ok || m.Quantization != "4-bit" || m.Bytes != int64(len(weights)) || m.Context == 0 || m.Snapshot.IsZero() || m.Drafter {
		t.Errorf("%+v", m)
	}
	if m, ok := c.Find("drafter"); !ok || !m.Drafter {
		t.Errorf("%+v", m)
	}
	list := c.List()
	if i := slices.IndexFunc(list, func(m Model) bool { return !m.Loadable() }); slices.ContainsFunc(list[i:], Model.Loadable) {
		t.Error("models that cannot be loaded stand between those that can")
	}
}

// The hub cache in the states that programs leave it in.
func TestHubCache(t *testing.T) {
	cache := t.TempDir()
	model := tiny(t)
	commit := func(c byte) string { return strings.Repeat(string(c), 40) }
	at := func(repo string, c byte) string {
		return filepath.Join(cache, repoFolder(repo), "snapshots", commit(c))
	}
	ref := func(repo string, c byte) {
		put(t, filepath.Join(cache, repoFolder(repo)), map[string][]byte{"refs/main": []byte(commit(c))})
	}
	// An update was broken off: main points to the new one, the old one is whole.
	put(t, at("org/updated", 'a'), model)
	put(t, at("org/updated", 'b'), with(model, map[string][]byte{"model.safetensors": nil}))
	ref("org/updated", 'b')
	// Two whole ones.
	put(t, at("org/two", 'a'), model)
	put(t, at("org/two", 'b'), model)
	ref("org/two", 'a')
	// Blobs only, as the hub library leaves them when it is killed.
	put(t, filepath.Join(cache, repoFolder("org/killed")), map[string][]byte{"blobs/0123.12345678.incomplete": model["model.safetensors"]})
	put(t, filepath.Join(cache, repoFolder("z-lab/Qwen3-4B-DFlash-b16")), map[string][]byte{"blobs/0123.12345678.incomplete": {1}})
	// A blob was removed.
	put(t, at("org/pruned", 'a'), with(model, map[string][]byte{"model.safetensors": nil}))
	if err := os.Symlink("../../blobs/gone", filepath.Join(at("org/pruned", 'a'), "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	put(t, at("org/embedding", 'a'), map[string][]byte{"README.md": {1}, "model.onnx": {1}})
	gguf := read(t, "../checkpoint/testdata/gguf/tiny-llama.gguf")
	put(t, at("org/one-gguf", 'a'), map[string][]byte{"m-Q4_K_M.gguf": gguf})
	put(t, at("org/ggufs", 'a'), map[string][]byte{"m-Q4_K_M.gguf": gguf, "big/m-Q8_0.gguf": gguf, "m-F16-00001-of-00002.gguf": gguf})
	put(t, cache, map[string][]byte{"datasets--org--data/snapshots/x/config.json": {1}, "version.txt": {1}, "blobs/ab/abcd": {1}, ".locks/models--a--b/x.lock": {}})
	os.MkdirAll(filepath.Join(cache, repoFolder("org/empty"), "blobs"), 0o755)
	os.MkdirAll(filepath.Join(cache, repoFolder("org/looked-up"), "refs"), 0o755)
	want := map[string]string{
		"org/updated": "", "org/two": "", "org/killed": "no file of the model has arrived", "z-lab/Qwen3-4B-DFlash-b16": "no file of the model has arrived", "org/pruned": "model.safetensors is missing", "org/embedding": "not safetensors|nothing here",
		"org/one-gguf": "", "org/ggufs/m-Q4_K_M.gguf": "", "org/ggufs/big/m-Q8_0.gguf": "", "org/ggufs/m-F16-00001-of-00002.gguf": "m-F16-00002-of-00002.gguf is missing",
	}
	c := NewCatalogue(CatalogueOptions{Places: Places{Hub: cache}})
	for _, m := range c.List() {
		reason, ok := want[m.ID]
		if !ok {
			t.Errorf("%q is listed: %+v", m.ID, m)
			continue
		}
		fits := false
		for r := range strings.SplitSeq(reason, "|") {
			fits = fits || strings.Contains(m.Reason, r)
		}
		if !fits || m.Loadable() != (reason == "") || m.Source != SourceHub {
			t.Errorf("%+v, wants %q", m, reason)
		}
		delete(want, m.ID)
	}
	if len(want) > 0 {
		t.Error("not listed:", want)
	}
	if m, _ := c.Find("org/updated"); m.Revision != commit('a') {
		t.Errorf("%+v", m)
	}
	if m, _ := c.Find("z-lab/Qwen3-4B-DFlash-b16"); !m.Drafter {
		t.Errorf("%+v", m)
	}
	if m, _ := c.Find("org/two"); m.Revision != commit('a') || m.Path != at("org/two", 'a') {
		t.Errorf("%+v", m)
	}
}

func TestSources(t *testing.T) {
	home := t.TempDir()
	for k, v := range map[string]string{"HOME": home, "HF_HOME": "", "HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "XDG_CACHE_HOME": "", "OLLAMA_MODELS": ""} {
		t.Setenv(k, v)
	}
	model := tiny(t)
	gguf := read(t, "../checkpoint/testdata/gguf/tiny-llama.gguf")
	put(t, home, map[string][]byte{".lmstudio-home-pointer": []byte(filepath.Join(home, "LM") + "\n")})
	put(t, filepath.Join(home, "LM", "models", "pub", "model"), model)
	put(t, filepath.Join(home, ".cache", "lm-studio", "models", "pub", "gguf"), map[string][]byte{"x-Q4.gguf": gguf, "x-Q8.gguf": gguf})
	put(t, filepath.Join(home, ".cache", "huggingface", "hub", repoFolder("pub/model"), "snapshots", "x"), with(model, map[string][]byte{"tokenizer.json": nil}))
	digest := func(c string) string { return strings.Repeat(c, 64) }
	manifest := func(c string, n int) []byte {
		return fmt.Appendf(nil, `{"schemaVersion":2,"layers":[{"mediaType":"application/vnd.ollama.image.template","digest":"sha256:%s","size":1},{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:%s","size":%d}]}`, digest("f"), digest(c), n)
	}
	put(t, filepath.Join(home, ".ollama", "models"), map[string][]byte{
		"manifests/registry.ollama.ai/library/llama/8b": manifest("a", len(gguf)), "manifests/registry.ollama.ai/someone/llama/latest": manifest("a", len(gguf)), "manifests/hf.co/org/llama/Q4": manifest("a", len(gguf)),
		"manifests/registry.ollama.ai/library/partial/1b": manifest("b", len(gguf)), "manifests/registry.ollama.ai/library/gone/1b": manifest("c", len(gguf)),
		"manifests/registry.ollama.ai/library/evil/1b": []byte(`{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:../../../etc/passwd","size":1}]}`),
		"manifests/registry.ollama.ai/library/odd/1b":  []byte(`[`), "manifests/registry.ollama.ai/library/cloud/1b": []byte(`{}`),
		"blobs/sha256-" + digest("a"): gguf, "blobs/sha256-" + digest("b"): gguf[:len(gguf)-500],
	})
	before := tree(t, filepath.Join(home, ".ollama"))
	c := NewCatalogue(CatalogueOptions{Places: DefaultPlaces(), Builtins: []Model{{ID: "demo", Kind: KindFolder, Type: "qwen3"}}})
	got := map[string]Source{}
	for _, m := range c.List() {
		if m.Loadable() {
			got[m.ID] = m.Source
		} else if m.Reason == "" {
			t.Errorf("%+v", m)
		}
	}
	want := map[string]Source{"demo": SourceBuiltin, "pub/model": SourceLMStudio, "pub/gguf/x-Q4": SourceLMStudio, "pub/gguf/x-Q8": SourceLMStudio,
		"llama:8b": SourceOllama, "someone/llama:latest": SourceOllama, "hf.co/org/llama:Q4": SourceOllama}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v\nwants %v", got, want)
	}
	if m, ok := c.Find("partial:1b"); !ok || m.Complete {
		t.Errorf("%+v", m)
	}
	if tree(t, filepath.Join(home, ".ollama")) != before {
		t.Error("Ollama's folder was changed")
	}
}

func tree(t *testing.T, dir string) string {
	var s strings.Builder
	filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		info, _ := e.Info()
		fmt.Fprintln(&s, path, info.Mode(), info.Size(), info.ModTime())
		return err
	})
	return s.String()
}

// fakeClock moves by hand.
type fakeClock struct {
	mu      sync.Mutex
	changed sync.Cond
	now     time.Time
	timers  []fakeTimer
}

type fakeTimer struct {
	at time.Time
	ch chan time.Time
}

func newFakeClock() *fakeClock {
	c := &fakeClock{now: time.Unix(1e9, 0)}
	c.changed.L = &c.mu
	return c
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := fakeTimer{c.now.Add(d), make(chan time.Time, 1)}
	c.timers = append(c.timers, t)
	c.changed.Broadcast()
	return t.ch
}

// waiters waits until n timers are set.
func (c *fakeClock) waiters(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.timers) < n {
		c.changed.Wait()
	}
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.timers = slices.DeleteFunc(c.timers, func(t fakeTimer) bool {
		if t.at.After(c.now) {
			return false
		}
		t.ch <- c.now
		return true
	})
}

// TestWatch adds, removes and renames among 500 folders; the list is right
// after each batch of events, and after 30 seconds without any.
func TestWatch(t *testing.T) {
	root := t.TempDir()
	model := tiny(t)
	name := func(i int) string { return fmt.Sprintf("model-%03d", i) }
	for i := range 500 {
		put(t, filepath.Join(root, name(i)), model)
	}
	clock := newFakeClock()
	events := make(chan struct{})
	c := NewCatalogue(CatalogueOptions{Places: Places{Folders: []string{root}}, clock: clock, events: func([]string) (<-chan struct{}, func([]string), func()) {
		return events, func([]string) {}, func() {}
	}})
	changed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		c.Watch(ctx, func() { changed <- struct{}{} })
		close(ended)
	}()
	<-changed
	if n := len(c.List()); n != 500 {
		t.Fatal(n)
	}
	clock.waiters(1)
	expect := func(what string, n int, there, gone string) {
		t.Helper()
		<-changed
		list := c.List()
		_, yes := c.Find(there)
		_, no := c.Find(gone)
		if len(list) != n || !yes || no {
			t.Errorf("%s: %d models, %v %v", what, len(list), yes, no)
		}
	}
	batch := func() {
		for range 7 { // events of one batch
			events <- struct{}{}
		}
		clock.waiters(2)
		clock.advance(settleTime)
	}
	put(t, filepath.Join(root, "added"), model)
	batch()
	expect("added", 501, "added", "none")
	if err := os.RemoveAll(filepath.Join(root, name(250))); err != nil {
		t.Fatal(err)
	}
	batch()
	expect("removed", 500, name(251), name(250))
	if err := os.Rename(filepath.Join(root, name(7)), filepath.Join(root, "renamed")); err != nil {
		t.Fatal(err)
	}
	batch()
	expect("renamed", 500, "renamed", name(7))
	// Many at once, in one batch: two change names, twenty come, go and are
	// renamed each, and a publisher with two models gets another name.
	for _, m := range []string{"a", "b"} {
		put(t, filepath.Join(root, "publisher", m), model)
	}
	batch()
	expect("a publisher", 502, "publisher/a", "a")
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Join(root, from), filepath.Join(root, to)); err != nil {
			t.Fatal(err)
		}
	}
	odd := filepath.Join(root, name(20), "config.json")
	text, err := os.ReadFile(odd)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(odd, regexp.MustCompile(`("max_position_embeddings": *)\d+`).ReplaceAll(text, []byte("${1}77")), 0o644); err != nil {
		t.Fatal(err)
	}
	rename(name(20), "swap")
	rename(name(21), name(20))
	rename("swap", name(21))
	rename("publisher", "house")
	for i := range 20 {
		put(t, filepath.Join(root, fmt.Sprint("new-", i)), model)
		if err := os.RemoveAll(filepath.Join(root, name(100+i))); err != nil {
			t.Fatal(err)
		}
		rename(name(200+i), fmt.Sprint("other-", i))
	}
	batch()
	expect("many", 502, "house/b", "publisher/b")
	for i := range 20 {
		for id, want := range map[string]bool{fmt.Sprint("new-", i): true, name(100 + i): false, name(200 + i): false, fmt.Sprint("other-", i): true} {
			if m, ok := c.Find(id); ok != want || want && !m.Loadable() {
				t.Errorf("%s is there: %v %+v", id, ok, m)
			}
		}
	}
	if m, _ := c.Find(name(21)); m.Context != 77 {
		t.Errorf("two changed names: %s has a context of %d", name(21), m.Context)
	}
	if m, _ := c.Find(name(20)); m.Context == 77 {
		t.Error("two changed names: the old one is still taken for the new")
	}
	if err := os.RemoveAll(filepath.Join(root, "house")); err != nil {
		t.Fatal(err)
	}
	batch()
	expect("the publisher has gone", 500, "new-3", "house/a")
	// The root itself goes and comes back.
	away := root + "-away"
	if err := os.Rename(root, away); err != nil {
		t.Fatal(err)
	}
	batch()
	<-changed
	if n := len(c.List()); n != 0 {
		t.Errorf("%d models without the folder", n)
	}
	if err := os.Rename(away, root); err != nil {
		t.Fatal(err)
	}
	batch()
	expect("back again", 500, name(20), name(100))
	// Below a root no event comes: the regular scan sees it.
	if err := os.Remove(filepath.Join(root, name(8), "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	clock.advance(rescanTime)
	<-changed
	if m, ok := c.Find(name(8)); !ok || m.Loadable() || len(c.List()) != 500 {
		t.Errorf("%+v", m)
	}
	// Nothing changed: nobody is told.
	clock.waiters(1)
	batch()
	clock.waiters(1)
	if c.Rescan() {
		t.Error("an unchanged folder changed")
	}
	select {
	case <-changed:
		t.Error("told of nothing")
	default:
	}
	cancel()
	<-ended
}

// TestFileEvents uses the system's events, for roots that come and go.
func TestFileEvents(t *testing.T) {
	root := filepath.Join(t.TempDir(), "later")
	c := NewCatalogue(CatalogueOptions{Places: Places{Folders: []string{root}}})
	changed := make(chan struct{}, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	go func() {
		c.Watch(ctx, func() { changed <- struct{}{} })
		close(ended)
	}()
	<-changed
	put(t, filepath.Join(t.TempDir(), "m"), nil)
	whole := filepath.Join(t.TempDir(), "whole")
	put(t, whole, tiny(t))
	if err := os.Rename(whole, filepath.Join(root, "moved")); err != nil {
		t.Fatal(err)
	}
	<-changed
	if m, ok := c.Find("moved"); !ok || !m.Loadable() {
		t.Errorf("%+v", m)
	}
	cancel()
	<-ended
}

// Scanning and reading at once.
func TestConcurrentCatalogue(t *testing.T) {
	root := t.TempDir()
	put(t, filepath.Join(root, "a"), tiny(t))
	c := NewCatalogue(CatalogueOptions{Places: Places{Folders: []string{root}}})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				if m, ok := c.Find("a"); !ok || !m.Loadable() {
					t.Error(m)
				}
				c.Rescan()
			}
		})
	}
	wg.Wait()
}

// A pipe in a model folder must not block the scan.
func TestOddFiles(t *testing.T) {
	root := t.TempDir()
	put(t, filepath.Join(root, "piped"), with(tiny(t), map[string][]byte{"config.json": nil, "model.safetensors": nil}))
	for _, name := range []string{"config.json", "model.safetensors", "x.gguf"} {
		if err := mkfifo(filepath.Join(root, "piped", name)); err != nil {
			t.Skip(err)
		}
	}
	for _, m := range NewCatalogue(CatalogueOptions{Places: Places{Folders: []string{root}}}).List() {
		if m.Loadable() {
			t.Errorf("%+v", m)
		}
	}
}
