package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"
)

// kindOf maps the exceptions recorded in the goldens to kinds.
var kindOf = map[string]Kind{
	"TemplateSyntaxError": SyntaxError, "TemplateAssertionError": AssertionError, "TemplateError": Raised,
	"UndefinedError": UndefinedError, "SecurityError": SecurityError, "TypeError": TypeError, "ValueError": ValueError,
}

// TestGoldens renders the recorded cases that are pure template language; the
// others, which go through message normalization, are run by package chat.
func TestGoldens(t *testing.T) {
	data, err := os.ReadFile("testdata/templates.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Clock string
		Cases []struct {
			Name, Kind, Template string
			Variables            *Map
			Output               *string
			Error                struct{ Type, Message string }
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	clock, err := time.Parse("2006-01-02T15:04:05", file.Clock)
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, c := range file.Cases {
		if c.Kind != "env" {
			continue
		}
		ran++
		t.Run(c.Name, func(t *testing.T) {
			tmpl, err := Compile(c.Template, Limits{})
			var got string
			if err == nil {
				got, err = tmpl.Render(c.Variables, func() time.Time { return clock })
			}
			if c.Output != nil {
				if err != nil {
					t.Fatalf("failed: %v", err)
				}
				if got != *c.Output {
					t.Errorf("got  %q\nwant %q", got, *c.Output)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %q, %v; want %s", got, err, c.Error.Type)
			}
			if want := kindOf[c.Error.Type]; e.Kind != want {
				t.Errorf("got %s: %v; want %s", e.Kind, e, want)
			}
			if e.Kind == Raised && e.Error() != c.Error.Message {
				t.Errorf("got message %q; want %q", e, c.Error.Message)
			}
		})
	}
	if ran != 59 {
		t.Errorf("ran %d cases, the file should hold 59", ran)
	}
}
