package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// allowed is the import table of the house: which rooms a room may enter. A
// room that is not listed here may not exist.
var allowed = map[string][]string{
	"app":                         {"app/cocoa", "app/menubar", "metalkern", "httpapi", "httpapi/client", "engine", "engine/cache", "engine/calibrate", "engine/checkpoint", "engine/compute", "engine/cpu", "engine/layout", "engine/machine", "engine/models", "engine/telemetry", "engine/wholefile", "resources"},
	"app/menubar":                 {"httpapi/client"},
	"app/cocoa":                   {"app/menubar"},
	"httpapi":                     {"engine", "engine/calibrate", "engine/telemetry", "engine/models"},
	"httpapi/client":              {"httpapi", "engine/telemetry"},
	"resources":                   {},
	"metalkern":                   {"engine/compute", "engine/layout", "engine/wholefile"},
	"metalkern/metaltest":         {"engine/compute", "engine/testneed", "metalkern"}, // for tests only
	"packaging":                   {},
	"packaging/mac":               {"packaging"},
	"packaging/double":            {},
	"engine":                      {"engine/arch", "engine/cache", "engine/calibrate", "engine/chat", "engine/chat/jinja", "engine/checkpoint", "engine/compute", "engine/decode", "engine/draft", "engine/layout", "engine/machine", "engine/models", "engine/sample", "engine/telemetry", "engine/tokenizer", "engine/wholefile"},
	"engine/layout":               {},
	"engine/checkpoint":           {"engine/layout", "engine/wholefile"},
	"engine/tokenizer":            {"engine/wholefile"},
	"engine/chat":                 {"engine/chat/jinja"},
	"engine/chat/jinja":           {},
	"engine/sample":               {},
	"engine/calibrate":            {},
	"engine/telemetry":            {},
	"engine/machine":              {"engine/wholefile"},
	"engine/wholefile":            {},
	"engine/models":               {"engine/checkpoint", "engine/arch", "engine/wholefile"},
	"engine/compute":              {"engine/layout"},
	"engine/compute/conformance":  {"engine/compute", "engine/layout"},
	"engine/cpu":                  {"engine/compute", "engine/layout"},
	"engine/arch":                 {"engine/checkpoint", "engine/compute", "engine/layout", "engine/wholefile"},
	"engine/cache":                {"engine/compute", "engine/layout"},
	"engine/draft":                {"engine/arch", "engine/cache", "engine/checkpoint", "engine/compute", "engine/draft/ngram", "engine/layout", "engine/sample"},
	"engine/draft/ngram":          {},
	"engine/decode":               {"engine/arch", "engine/cache", "engine/calibrate", "engine/compute", "engine/draft", "engine/draft/ngram", "engine/layout", "engine/sample"},
	"engine/testhub":              {}, // for tests only, like the next five
	"engine/testbench":            {},
	"engine/testneed":             {},
	"engine/internal/testmodel":   {"engine/checkpoint", "engine/layout"},
	"engine/internal/bench":       {"engine/machine", "engine/testbench"},
	"engine/internal/exact":       {"engine/arch", "engine/cache", "engine/checkpoint", "engine/compute", "engine/internal/testmodel", "engine/layout", "engine/sample"},
	"httpapi/internal/enginetest": {"engine", "engine/models", "engine/telemetry"},
}

// outside lists modules that only some rooms may use.
var outside = map[string][]string{
	"github.com/gin-gonic/gin":   {"httpapi"},
	"github.com/spf13/viper":     {"app"},
	"github.com/spf13/cobra":     {"app"},
	"github.com/gdamore/tcell":   {"app"},
	"github.com/progrium/darwin": {"app/cocoa"},
}

func TestImportTable(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,GoFiles,CgoFiles", "sparkbar/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		seen++
		room := strings.TrimPrefix(p.ImportPath, "sparkbar/")
		may, ok := allowed[room]
		if !ok {
			t.Errorf("package %s is not in the import table", room)
			continue
		}
		for _, imp := range p.Imports {
			if to, ok := strings.CutPrefix(imp, "sparkbar/"); ok && !slices.Contains(may, to) {
				t.Errorf("%s imports %s, which the table does not allow", room, to)
			}
			for module, rooms := range outside {
				if strings.HasPrefix(imp, module) && !slices.Contains(rooms, room) {
					t.Errorf("%s imports %s, which only %v may", room, imp, rooms)
				}
			}
		}
	}
	if seen < len(allowed)/2 {
		t.Errorf("only %d packages were checked", seen)
	}
}
