package models

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func golden(t *testing.T, name string, v any) {
	t.Helper()
	text, err := os.ReadFile("../testdata/speculation/" + name)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestResolveGoldens(t *testing.T) {
	var doc struct {
		Cases []struct {
			Model, Mode, Drafter string
			Out                  json.RawMessage
		}
	}
	golden(t, "resolve_mode.json", &doc)
	if len(doc.Cases) < 150 {
		t.Fatal(len(doc.Cases), "cases")
	}
	for _, k := range doc.Cases {
		c, err := Resolve(k.Model, k.Mode, k.Drafter)
		if string(k.Out) == `"error"` {
			if err == nil || !strings.Contains(err.Error(), "lookup") {
				t.Errorf("%s, mode %s: %+v, %v", k.Model, k.Mode, c, err)
			}
			continue
		}
		var w []string // null stays ""
		if json.Unmarshal(k.Out, &w) != nil || len(w) != 3 {
			t.Fatal(string(k.Out))
		}
		if want := (Choice{w[0], w[1], w[2]}); err != nil || c != want {
			t.Errorf("%s, mode %s, drafter %q: %+v (%v), wants %+v", k.Model, k.Mode, k.Drafter, c, err, want)
		}
	}
}

func TestDefaultsGoldens(t *testing.T) {
	var doc struct {
		Cases []struct {
			Model    *string
			Lookup   *bool `json:"lookup_drafts_default"`
			Window   int   `json:"drafter_window_default"`
			Explicit *int  `json:"explicit_window"`
			Resolved *int  `json:"resolve_drafter_window"`
			Route    *string
		}
	}
	golden(t, "defaults.json", &doc)
	n := 0
	for _, k := range doc.Cases {
		switch {
		case k.Route != nil: // which Python package runs a model: nothing to us
		case k.Lookup != nil:
			n++
			if got := LookupDrafts(*k.Model); got != *k.Lookup || k.Window != DrafterWindow {
				t.Errorf("%s: lookup %v, wants %v; window %d", *k.Model, got, *k.Lookup, k.Window)
			}
		default:
			n++
			want := 0
			if k.Resolved != nil {
				want = *k.Resolved
			}
			if got := Window(k.Explicit); got != want {
				t.Errorf("window %d, wants %d", got, want)
			}
		}
	}
	if n < 20 {
		t.Fatal(n, "cases")
	}
}

func TestResolveErrors(t *testing.T) {
	for want, args := range map[string][3]string{
		"auto, baseline": {"x", "turbo", ""},
		"draft model":    {"x", "draft", ""},
		"mode dspark (deepseek-ai/dspark_qwen3_14b_block7)": {"Qwen3-14B", "dflash", ""},
	} {
		if c, err := Resolve(args[0], args[1], args[2]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %+v, %v, wants %q", args, c, err, want)
		}
	}
	if c, err := Resolve("x/y", "draft", "x/z"); err != nil || c != (Choice{"draft", "x/y", "x/z"}) {
		t.Error(c, err)
	}
}

func TestOnHub(t *testing.T) {
	for name, want := range map[string]bool{"mlx-community/Qwen3-4B-8bit": true, "org/name:Q4_K_M": true, "o/n.gguf": true, "_a/b-c.d_e": true,
		"": false, "name": false, "/abs/path": false, "./rel": false, "../up": false, "~/home": false, "a/b/c": false, `a\b/c`: false, "org/": false, "/name": false, "org/na me": false,
		"https://hub/x": false, "org/.hidden": false, "org/a--b": false, "org/a..b": false, "org/a.git": false, "org/name\n": false, ":file": false} {
		if OnHub(name) != want {
			t.Errorf("%q is on the hub: %v", name, !want)
		}
		if r := Named(name); (r.check() == nil) != want {
			t.Errorf("%q would be asked for: %v", name, !want)
		}
	}
}
