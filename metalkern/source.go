package metalkern

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"
)

//go:embed kernels
var kernelFiles embed.FS

// Source is the text of one kernel file, complete in itself: Metal's run-time
// compiler knows no include folders, so local headers are put in their place.
type Source struct {
	Name    string // such as "linear.metal"
	Text    string
	Kernels []string // its kernels
}

// Sources returns every kernel file, in order of name.
func Sources() ([]Source, error) {
	files, err := kernelFiles.ReadDir("kernels")
	if err != nil {
		return nil, err
	}
	var all []Source
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".metal") {
			continue
		}
		s := Source{Name: f.Name()}
		if s.Text, err = inline(f.Name(), map[string]bool{}); err != nil {
			return nil, err
		}
		for line := range strings.Lines(s.Text) {
			if rest, ok := strings.CutPrefix(line, "kernel void "); ok {
				name, _, _ := strings.Cut(rest, "(")
				s.Kernels = append(s.Kernels, name)
			}
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// inline returns a file with its local headers in place, each once, and line
// directives so that compilers name the file that was written.
func inline(name string, seen map[string]bool) (string, error) {
	if seen[name] {
		return "", nil
	}
	seen[name] = true
	text, err := kernelFiles.ReadFile(path.Join("kernels", name))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "#line 1 %q\n", name)
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		header, local := strings.CutPrefix(strings.TrimSpace(line), `#include "`)
		switch {
		case strings.HasPrefix(line, "#pragma once"):
			b.WriteString("\n")
		case local:
			inner, err := inline(strings.TrimSuffix(header, `"`), seen)
			if err != nil {
				return "", fmt.Errorf("%s:%d: %w", name, n, err)
			}
			fmt.Fprintf(&b, "%s#line %d %q\n", inner, n+1, name)
		default:
			b.WriteString(line)
		}
	}
	return b.String(), nil
}
