package testbench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Figure is a measured number. Want is what it should reach, in the form ">= 2.5";
// "" = nothing.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Want  string  `json:"want,omitempty"`
	Note  string  `json:"note,omitempty"`
}

// Chapter is a measurement with all its figures.
type Chapter struct {
	Title   string   `json:"title"`
	About   string   `json:"about"`
	Figures []Figure `json:"figures"`
}

// folder is where the chapters go; "" = nobody asks for them.
func folder() string { return os.Getenv("SPARKBAR_BENCH") }

// On reports whether this run measures.
func On() bool { return folder() != "" }

// Need skips a test that does nothing else than measure where nobody asks for it.
func Need(t testing.TB) {
	t.Helper()
	if !On() {
		t.Skip("measures: SPARKBAR_BENCH names the folder for results (make bench)")
	}
}

// Write logs a chapter and writes it as file.json.
func Write(t testing.TB, file, title, about string, figures []Figure) {
	t.Helper()
	for _, f := range figures {
		t.Logf("%s: %.3g %s (wants %s) %s", f.Name, f.Value, f.Unit, f.Want, f.Note)
	}
	text, err := json.MarshalIndent(Chapter{title, about, figures}, "", " ")
	if err == nil {
		err = os.WriteFile(filepath.Join(folder(), file+".json"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
