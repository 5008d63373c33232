package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAddAModelPage: every file and every name in docs/add-a-model.md exists.
func TestAddAModelPage(t *testing.T) {
	const root = "../.."
	known := map[string]bool{}
	for prefix, dir := range map[string]string{"": ".", "compute.": root + "/engine/compute", "cfg.": root + "/engine/checkpoint"} {
		declared(t, dir, prefix, known)
	}
	for alias, name := range map[string]string{"f.": "Forward.", "l.": "Loader.", "f.S.": "compute.Scratch.", "f.P.": "compute.Program.", "cfg.": "cfg.Config."} {
		for n := range known {
			if rest, ok := strings.CutPrefix(n, name); ok {
				known[alias+rest] = true
			}
		}
	}
	known["cfg"] = true
	keys := map[string]bool{"model_type": true} // of config.json
	files, names := 0, 0
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(string(readFile(t, root+"/docs/add-a-model.md")), -1) {
		s := m[1]
		if strings.Contains(s, "/") {
			files++
			if _, err := os.Stat(filepath.Join(root, s)); err != nil {
				t.Errorf("%s: %v", s, err)
			}
			continue
		}
		if inner, ok := strings.CutPrefix(s, "f.P.Add("); ok {
			s = strings.TrimSuffix(inner, "{...})")
		}
		names++
		if !known[s] && !keys[s] {
			t.Errorf("nothing is called %s", s)
		}
	}
	if files < 8 || names < 40 {
		t.Errorf("found %d files and %d names: the page was not read", files, names)
	}
}

// declared adds the names that the Go files of a folder declare: functions,
// types, variables, and as Type.Name methods and fields.
func declared(t *testing.T, dir, prefix string, known map[string]bool) {
	t.Helper()
	paths, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: no Go files, %v", dir, err)
	}
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					r := d.Recv.List[0].Type
					if p, ok := r.(*ast.StarExpr); ok {
						r = p.X
					}
					if id, ok := r.(*ast.Ident); ok {
						name = id.Name + "." + name
					}
				}
				known[prefix+name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						known[prefix+s.Name.Name] = true
						if body, ok := s.Type.(*ast.StructType); ok {
							for _, field := range body.Fields.List {
								for _, n := range field.Names {
									known[prefix+s.Name.Name+"."+n.Name] = true
								}
							}
						}
					case *ast.ValueSpec:
						for _, n := range s.Names {
							known[prefix+n.Name] = true
						}
					}
				}
			}
		}
	}
}
