package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"
)

var testClock = time.Date(2026, 3, 5, 7, 8, 9, 0, time.UTC)

// render compiles and renders a template with the given limits.
func render(src string, vars *Map, lim Limits) (string, error) {
	t, err := Compile(src, lim)
	if err != nil {
		return "", err
	}
	if vars == nil {
		vars = NewMap()
	}
	return t.Render(vars, func() time.Time { return testClock })
}

func vars(t testing.TB, s string) *Map {
	t.Helper()
	var m Map
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		t.Fatal(err)
	}
	return &m
}

// TestLanguage compares two thousand small templates with what the reference
// implementation made of them: the text, or the kind of failure.
func TestLanguage(t *testing.T) {
	data, err := os.ReadFile("testdata/language.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			T   string
			V   *Map
			Out *string
			Err string
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 2000 {
		t.Fatalf("only %d cases", len(file.Cases))
	}
	for _, c := range file.Cases {
		got, err := render(c.T, c.V, Limits{})
		var e *Error
		switch {
		case c.Out != nil && err != nil:
			t.Errorf("%q failed: %v; want %q", c.T, err, *c.Out)
		case c.Out != nil && got != *c.Out:
			t.Errorf("%q:\ngot  %q\nwant %q", c.T, got, *c.Out)
		case c.Out == nil && !errors.As(err, &e):
			t.Errorf("%q: got %q, %v; want %s", c.T, got, err, c.Err)
		case c.Out == nil && e.Kind.String() != c.Err:
			t.Errorf("%q: got %s: %v; want %s", c.T, e.Kind, e, c.Err)
		}
	}
}
