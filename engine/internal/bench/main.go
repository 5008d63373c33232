package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkbar/engine/machine"
	"sparkbar/engine/testbench"
)

// notes is the end of the page: what the figures do not say by themselves.
//
//go:embed notes.md
var notes string

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: bench FOLDER PAGE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func write(folder, page string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return err
	}
	slices.Sort(files)
	var chapters []testbench.Chapter
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		var c testbench.Chapter
		if err := json.Unmarshal(text, &c); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		chapters = append(chapters, c)
	}
	if len(chapters) == 0 {
		return fmt.Errorf("%s holds no results; run make bench", folder)
	}
	chip := machine.ReadChip()
	var b strings.Builder
	fmt.Fprintf(&b, "# Performance\n\nWritten by `make bench` from its results and engine/internal/bench/notes.md; do not edit. %s, %s, %d cores, %s/%s, %s.\n", time.Now().Format("2006-01-02"), or(chip.Name, "unknown processor"), chip.Cores, runtime.GOOS, runtime.GOARCH, runtime.Version())
	b.WriteString("Peers and ways of one comparison run interleaved in the same run; ratios are of medians or of sums, as each chapter says. Bars are drawn to the largest value of their unit in a chapter.\n")
	for _, c := range chapters {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n```\n%s```\n", c.Title, c.About, plot(c.Figures))
	}
	fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(notes))
	return os.WriteFile(page, []byte(b.String()), 0o644)
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// plot draws bars, and says what was wanted and whether it was reached.
func plot(figures []testbench.Figure) string {
	most := map[string]float64{}
	name := 0
	for _, f := range figures {
		most[f.Unit] = max(most[f.Unit], f.Value)
		name = max(name, len(f.Name))
	}
	const width = 30
	var b strings.Builder
	for _, f := range figures {
		n := 0
		if most[f.Unit] > 0 {
			n = int(math.Round(f.Value / most[f.Unit] * width))
		}
		line := fmt.Sprintf("%-*s  %-*s  %8s %-5s", name, f.Name, width, strings.Repeat("#", n), number(f.Value), f.Unit)
		if f.Want != "" {
			line += "  wants " + f.Want + verdict(f)
		}
		if f.Note != "" {
			line += "  (" + f.Note + ")"
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

func number(x float64) string {
	if math.Abs(x) >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}

// verdict compares with a wish of the form ">= 2.5" or "<= 3".
func verdict(f testbench.Figure) string {
	op, text, ok := strings.Cut(f.Want, " ")
	limit, err := strconv.ParseFloat(text, 64)
	switch {
	case !ok || err != nil:
		return ""
	case op == ">=" && f.Value >= limit, op == "<=" && f.Value <= limit:
		return ": reached"
	}
	return ": MISSED"
}
