package arch

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// TestWildConfigs puts wild values into every key of every family's
// configuration: the model is refused, or it runs.
func TestWildConfigs(t *testing.T) {
	if underRace {
		t.Skip("thousands of loads by one goroutine: run without the race detector")
	}
	paths, err := filepath.Glob("../testdata/models/*/*/config.json")
	if err != nil || len(paths) < 57 {
		t.Fatalf("%d configurations, %v", len(paths), err)
	}
	refused, ran := 0, 0
	for _, path := range paths {
		if strings.Contains(filepath.Base(filepath.Dir(path)), "-") {
			continue
		}
		var config map[string]any
		text := strings.ReplaceAll(string(readFile(t, path)), "Infinity", "1e300")
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			t.Fatal(err)
		}
		weights, err := filepath.Abs(filepath.Join(filepath.Dir(path), "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.Symlink(weights, filepath.Join(dir, "model.safetensors")); err != nil {
			t.Fatal(err)
		}
		hammer(config, func(what string) {
			text, err := json.Marshal(config)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if p := recover(); p != nil {
					t.Fatalf("%s with %s: %v", path, what, p)
				}
			}()
			if runs(t, dir) {
				ran++
			} else {
				refused++
			}
		})
	}
	if refused < 500 || ran < 500 {
		t.Errorf("%d refused, %d ran: the values are not wild", refused, ran)
	}
}

// hammer replaces one value after the other, here and in what lies below.
func hammer(object map[string]any, try func(what string)) {
	for key, value := range object {
		wild := []any{-1, 3, 1 << 62}
		switch value := value.(type) {
		case map[string]any:
			hammer(value, try)
			wild = []any{nil, 1, "x"}
		case []any:
			wild = []any{[]any{}, value[:len(value)/2], "M", 7}
		case string:
			wild = []any{"", 1, []any{"sliding_attention"}}
		case bool:
			wild = []any{!value, 0}
		}
		for _, w := range wild {
			object[key] = w
			try(fmt.Sprintf("%s = %v", key, w))
		}
		object[key] = value
	}
}

// runs loads a model and runs a step; false: it was refused.
func runs(t *testing.T, dir string) bool {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		return false
	}
	defer ck.Close()
	b := compute.NewReference()
	m, err := Load(ck, b)
	if err != nil {
		return false
	}
	defer m.Close()
	c, err := cache.New(b, m.Caches, cache.Options{Type: layout.F32, Positions: 64, Sequences: 1})
	if err != nil {
		return false
	}
	r := &rig{t: t, b: b, m: m, c: c, params: compute.NewParams(b), s: compute.NewScratch(b)}
	defer r.params.Close()
	defer r.s.Close()
	defer c.Close()
	q := r.seq()
	defer q.Close()
	r.step(q, []int32{1, 2}, 2)
	return true
}
