package menubar

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden menus anew")

type row struct {
	id, shown, enabled, title string
	special                   []row // titles by condition
}

// readItems reads testdata/items.tsv.
func readItems(t *testing.T) []row {
	t.Helper()
	b, err := os.ReadFile("testdata/items.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	for n, line := range strings.Split(strings.TrimRight(string(b), "\n"), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 {
			t.Fatalf("items.tsv:%d has %d fields, want 4", n+1, len(f))
		}
		if id, when, ok := strings.Cut(f[0], "@"); ok {
			last := &rows[len(rows)-1]
			if last.id != id {
				t.Fatalf("items.tsv:%d: %s does not follow its item", n+1, f[0])
			}
			last.special = append(last.special, row{shown: when, title: f[3]})
			continue
		}
		rows = append(rows, row{id: f[0], shown: f[1], enabled: f[2], title: f[3]})
	}
	return rows
}

// facts are what the conditions may name, derived from nothing but the names
// of state and overlay.
func facts(p Phase, over string) map[string]bool {
	f := map[string]bool{"always": true}
	for _, q := range Phases() {
		f[string(q)] = q == p
	}
	for _, o := range overlays {
		f[o] = o == over
	}
	in := func(ps ...Phase) bool { return slices.Contains(ps, p) }
	f["listening"] = !in(Starting, Stopped, Failed)
	f["loaded"] = in(Ready, Prefill, Generating) || in(Starting, Stopped, Failed) // the model stays in memory while the listener is away
	f["busy"] = in(Downloading, Loading, WarmingUp, Cancelling)
	f["spoke"] = p == Generating
	return f
}

func holds(t *testing.T, cond string, facts map[string]bool) bool {
	t.Helper()
	for _, or := range strings.Split(cond, "|") {
		all := true
		for _, and := range strings.Split(or, "&") {
			name, not := strings.CutPrefix(strings.TrimSpace(and), "!")
			v, known := facts[name]
			if !known {
				t.Fatalf("items.tsv names an unknown fact %q", name)
			}
			all = all && v != not
		}
		if all {
			return true
		}
	}
	return false
}

func TestItemTable(t *testing.T) {
	rows := readItems(t)
	checked := 0
	for _, p := range Phases() {
		for _, over := range overlays {
			s := overlay(t, inPhase(t, p), over)
			if got := s.Phase(); got != p {
				t.Fatalf("%s under %s is in %s", p, over, got)
			}
			f := facts(p, over)
			gb := "4.0"
			if !f["loaded"] {
				gb = "0.0"
			}
			fill := strings.NewReplacer("{model}", fixtureModel, "{next}", fixtureNext, "{gb}", gb)
			menu := Menu(s)
			if len(menu) != len(rows) {
				t.Fatalf("%d items, the table has %d", len(menu), len(rows))
			}
			for i, r := range rows {
				it := menu[i]
				at := fmt.Sprintf("%s in %s under %s", r.id, p, over)
				if it.ID != r.id {
					t.Fatalf("item %d is %s, want %s", i, it.ID, r.id)
				}
				checked++
				shown := holds(t, r.shown, f)
				if it.Hidden == shown {
					t.Errorf("%s: shown is %v", at, !it.Hidden)
					continue
				}
				if !shown || r.id == "separator" {
					continue
				}
				if want := holds(t, r.enabled, f); it.Enabled != want {
					t.Errorf("%s: enabled is %v", at, it.Enabled)
				}
				title := r.title
				for _, sp := range r.special {
					if holds(t, sp.shown, f) {
						if more, ok := strings.CutPrefix(sp.title, "+"); ok {
							title += more
						} else {
							title = sp.title
						}
					}
				}
				if want := fill.Replace(title); it.Title != want {
					t.Errorf("%s: title is %q, want %q", at, it.Title, want)
				}
			}
		}
	}
	if checked < 12*9*30 {
		t.Errorf("only %d checks", checked)
	}
}

// render writes a menu as text, a line an item.
func render(s State) string {
	var b strings.Builder
	title := Title(s)
	fmt.Fprintf(&b, "[%s] %q width %d, %q\n", title.Glyph, title.Text, title.Width, title.Label)
	var walk func(items []Item, indent string)
	walk = func(items []Item, indent string) {
		for _, it := range items {
			if it.Hidden {
				continue
			}
			if it.Kind == Separator {
				fmt.Fprintf(&b, "%s----\n", indent)
				continue
			}
			mark := " "
			switch it.Check {
			case Checked:
				mark = "✓"
			case Mixed:
				mark = "–"
			}
			fmt.Fprintf(&b, "%s%s %s", indent, mark, it.Title)
			if it.Key != "" {
				fmt.Fprintf(&b, "  ⌘%s", strings.ToUpper(it.Key))
			}
			if it.Alternate {
				b.WriteString("  ⌥")
			}
			switch {
			case it.Kind == Label:
				b.WriteString("  (label)")
			case !it.Enabled:
				b.WriteString("  (off)")
			}
			fmt.Fprintf(&b, "  #%s", it.ID)
			if it.Arg != "" {
				fmt.Fprintf(&b, " %s", it.Arg)
			}
			b.WriteByte('\n')
			walk(it.Items, indent+"    ")
		}
	}
	walk(Menu(s), "")
	return b.String()
}

// TestGoldenMenus holds the whole menu of each state, with its submenus and
// under each overlay, against a text file that people can read.
func TestGoldenMenus(t *testing.T) {
	for _, p := range Phases() {
		var b strings.Builder
		plain := ""
		for _, over := range overlays {
			text := render(overlay(t, inPhase(t, p), over))
			if over == "none" {
				plain = text
			}
			fmt.Fprintf(&b, "== %s, %s\n", p, over)
			if over == "none" {
				b.WriteString(text)
			} else {
				b.WriteString(difference(plain, text))
			}
		}
		path := filepath.Join("testdata", "menus", string(p)+".txt")
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("the menus of %s differ from %s; look at the difference after `go test -update`", p, path)
		}
	}
}

// difference lists the lines of b that a has not, and the other way round.
func difference(a, b string) string {
	var out strings.Builder
	la, lb := strings.Split(strings.TrimSpace(a), "\n"), strings.Split(strings.TrimSpace(b), "\n")
	for _, l := range la {
		if !slices.Contains(lb, l) {
			fmt.Fprintf(&out, "- %s\n", l)
		}
	}
	for _, l := range lb {
		if !slices.Contains(la, l) {
			fmt.Fprintf(&out, "+ %s\n", l)
		}
	}
	return out.String()
}
