package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPage(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "page.out")
	if err := write(dir, page); err == nil {
		t.Error("a page without results")
	}
	for name, text := range map[string]string{
		"b.json": `{"title": "Second", "about": "x", "figures": [{"name": "slow", "value": 1, "unit": "x", "want": ">= 2"}, {"name": "fast", "value": 2, "unit": "x", "want": ">= 2", "note": "n"}]}`,
		"a.json": `{"title": "First", "about": "y", "figures": []}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(dir, page); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, want := range []string{"## First", "## Second", strings.Repeat("#", 15) + " ", "wants >= 2: MISSED", strings.Repeat("#", 30), "wants >= 2: reached  (n)", "## Where the time goes"} {
		i := strings.Index(string(text), want)
		if i <= at {
			t.Errorf("%q is missing or out of place in\n%s", want, text)
		}
		at = max(at, i)
	}
	if err := os.WriteFile(filepath.Join(dir, "c.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(dir, page); err == nil || !strings.Contains(err.Error(), "c.json") {
		t.Errorf("a damaged result: %v", err)
	}
}
