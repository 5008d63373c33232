package metalkern_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

// fault is one mistake put into a copy of a kernel source: the n-th occurrence
// of a text behind another one is replaced.
type fault struct {
	number     int // see TestFaultsAreAll
	name, file string
	drill      string // that must notice
	behind     string
	old, new   string
	n          int
}

const (
	barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
	tiles   = "inline void one_tile" // the template of linear_tiles
)

var faults = []fault{
	{1, "tiles: no barrier after loading", "linear.metal", "tiles", tiles, barrier, "", 0},
	{2, "tiles: no barrier after multiplying", "linear.metal", "tiles", tiles, barrier, "", 1},
	{3, "tiles: no barrier before the results", "linear.metal", "tiles", tiles, barrier, "", 2},
	{4, "group_sum: no barrier", "rows.metal", "norms and turns", "", barrier, "", 0},
	{5, "attention: no barrier after the scores", "attention.metal", "attention", "", barrier, "", 3}, // two are in common.h, one comes before the pages
	{6, "attention: keys beyond the range", "attention.metal", "attention", "", "p >= lo[r] && p < hi[r] ? z : -INFINITY", "p >= lo[r] ? z : -INFINITY", 0},
	{7, "rows: outputs beyond the matrix", "linear.metal", "rows", "", "&& n0 + n < outs) store(", ") store(", 0},
	{8, "rows: a SIMD-group function under a condition", "linear.metal", "rows", "", "const float z = simd_sum(acc[0][r][n])", "const float z = lane < 31 ? simd_sum(acc[0][r][n]) : 0.0f", 0},
	{9, "rows: the next group's scale", "linear.metal", "rows", "", "col / GROUP;\n      scale = number", "(col + 8) / GROUP;\n      scale = number", 0},
	{25, "tiles: no barrier between the rows of an expert", "linear.metal", "experts", tiles, barrier, "", 3},
	{26, "tiles: the weights of the first expert", "linear.metal", "experts", tiles, "ulong(j.matrix) * j.outs + n0 + line", "n0 + line", 0},
	{27, "tiles: rows that are not the expert's", "linear.metal", "experts", tiles, "j.entries[j.first + row]", "j.entries[row]", 0},
	{14, "choose: the wrong kind of barrier", "rows.metal", "elements and choices", "", barrier, "simdgroup_barrier(mem_flags::mem_threadgroup);", 2},
	{15, "binary: out of bounds", "rows.metal", "elements and choices", "", "if (i >= a.cols) return;", "if (i > a.cols) return;", 0},
	{16, "log_sum_exp: the last lane to come decides", "rows.metal", "elements and choices", "", "if (id == 0) Out<1>{op}.put(ulong(tg.x)", "Out<1>{op}.put(ulong(tg.x)", 0},
	{17, "attention: threadgroup memory that nobody wrote", "attention.metal", "attention", "", "stat[3 * i] = -INFINITY, stat[3 * i + 1] = 0.0f;", "stat[3 * i] = -INFINITY;", 0},
}

// hostFault is one mistake in a copy of the host code.
type hostFault struct {
	number     int
	name, file string
	drill      string
	old, new   string
}

var hostFaults = []hostFault{
	{10, "no barrier before reading what was written", "lower.go", "chain", "overlaps(l.writes, s) && b.Len > 0 || b.writes && overlaps(l.reads, s)", "b.writes && overlaps(l.reads, s)"},
	{11, "no barrier before writing what was read", "lower.go", "chain", "overlaps(l.writes, s) && b.Len > 0 || b.writes && overlaps(l.reads, s)", "overlaps(l.writes, s) && b.Len > 0"},
	{12, "a grid too small", "lower_linear.go", "rows", "groups += ceil(p.W.Rows, t.wide())", "groups += p.W.Rows / t.wide()"},
	{18, "the CPU is not told", "split.go", "shared", "l.list.Marks = append(l.list.Marks, Mark{At: u32(len(l.list.Dispatches)), Value: uint64(len(l.work))})", "_ = Mark{}"},
	{19, "nothing waits for the CPU", "split.go", "shared", "(b.reads || b.writes) && overlaps(m.writes, s) ||", ""},
	{20, "what the CPU reads is written too early", "split.go", "shared", " || b.writes && overlaps(m.reads, s)", ""},
	{21, "the CPU's weights are off by a row", "split.go", "shared", "whole.RowRange(cut, whole.Rows)", "whole.RowRange(cut-1, whole.Rows-1)"},
	{22, "the CPU's results are off by a column", "split.go", "shared", "columns(o.Out, part.lo, part.hi)", "columns(o.Out, max(part.lo-1, 0), max(part.lo-1, 0)+part.hi-part.lo)"},
	{23, "the CPU begins too early", "split.go", "shared", "Mark{At: u32(len(l.list.Dispatches)), Value: uint64(len(l.work))}", "Mark{Value: uint64(len(l.work))}"},
	{24, "the CPU's rows are those of answers", "split.go", "shared", "cpu.Out.Slice(prefill, x.Rows)", "cpu.Out.Slice(0, x.Rows-prefill)"},
	{13, "scales and biases swapped", "lower.go", "rows", "at(h.weight), at(h.scales), at(h.biases)", "at(h.weight), at(h.biases), at(h.scales)"},
}

// TestFaultsAreAll: 1 to 13 are the mistakes by which an emulation of Metal is
// judged here: the three barriers of the tiles, those of the sum of a threadgroup
// and of attention, an unclipped range of keys and an unclipped row, a SIMD-group
// function that not all lanes reach, the wrong group of a quantized weight, two
// barriers between dispatches, a grid, swapped buffers. 14 to 17 came later: the
// wrong kind of barrier, memory out of bounds, a result that depends on the order of
// lanes, threadgroup memory that nobody wrote; 18 to 24 with the CPU's part in prompts, 25 to 27 with
// the experts of prompts.
func TestFaultsAreAll(t *testing.T) {
	planted := map[int]bool{}
	for _, f := range faults {
		planted[f.number] = true
	}
	for _, f := range hostFaults {
		planted[f.number] = true
	}
	for n := 1; n <= 13+4+7+3; n++ {
		if !planted[n] {
			t.Errorf("fault %d is not planted", n)
		}
	}
	if len(planted) != len(faults)+len(hostFaults) {
		t.Error("two faults have one number")
	}
}

// TestFaults puts each mistake into the sources and lets the drills find it. The
// sources without a mistake pass TestDrills.
func TestFaults(t *testing.T) {
	metaltest.Need(t)
	if testing.Short() {
		t.Skip("every fault is a compilation: the plain run does this")
	}
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			var broken []metalkern.Source
			for _, s := range sources {
				if s.Name != f.file {
					if needsAll(f.drill) {
						broken = append(broken, s)
					}
					continue
				}
				at, from := -1, strings.Index(s.Text, f.behind)
				for i := 0; i <= f.n && from >= 0; i++ {
					next := strings.Index(s.Text[from:], f.old)
					if next < 0 {
						t.Fatalf("the text of the fault is not in %s", f.file)
					}
					at = from + next
					from = at + len(f.old)
				}
				if at < 0 {
					t.Fatalf("%q is not in %s", f.behind, f.file)
				}
				s.Text = s.Text[:at] + f.new + s.Text[at+len(f.old):]
				broken = append(broken, s)
			}
			d, err := metaltest.NewDevice(broken, metaltest.Build{Checked: true}, metaltest.Order{Kind: metaltest.Shuffled, Seed: 5})
			if err != nil {
				t.Fatal(err)
			}
			b := metalkern.New(d, metalkern.Options{})
			defer b.Close()
			for _, x := range metalkern.Drills {
				if x.Name != f.drill {
					continue
				}
				err := x.Check(b)
				if err == nil {
					t.Fatal("nothing noticed it")
				}
				t.Log(err)
			}
		})
	}
}

// needsAll reports whether a drill has kernels of several files. Where it has not, the
// other files are left out: what headers they share would be linked from any of them.
func needsAll(drill string) bool {
	return slices.ContainsFunc(metalkern.Drills, func(x metalkern.Drill) bool { return x.Name == drill && x.File == "" })
}

// clumsy is a device whose host code makes mistakes.
type clumsy struct {
	metalkern.Device
	spoil func(*metalkern.List)
}

func (c clumsy) Submit(l *metalkern.List) (metalkern.Fence, error) {
	c.spoil(l)
	return c.Device.Submit(l)
}

// prober is a program that runs a drill with the host code it was built from.
const prober = `package main

import (
	"fmt"
	"os"

	"sparkbar/engine/compute"
	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

func main() {
	sources, err := metalkern.Sources()
	if err != nil {
		panic(err)
	}
	for _, o := range []metaltest.Order{{}, {Kind: metaltest.Reverse}, {Kind: metaltest.Shuffled, Seed: 5}} {
		d, err := metaltest.NewDevice(sources, metaltest.Build{Checked: true}, o)
		if err != nil {
			panic(err)
		}
		split := &metalkern.Split{Open: func() (compute.Backend, error) { return compute.NewReference(), nil }}
		b := metalkern.New(d, metalkern.Options{Split: split})
		share := 0.4
		b.(interface{ SetPromptSplit(*float64) }).SetPromptSplit(&share)
		for _, x := range metalkern.Drills {
			if x.Name != os.Args[1] {
				continue
			}
			if err := x.Check(b); err != nil {
				fmt.Println("noticed:", err)
				os.Exit(3)
			}
			fmt.Println("agrees")
		}
		b.Close()
	}
}
`

// TestHostFaults builds the host code with a mistake in it, and without, and lets a
// program made of it run the drill that must notice.
func TestHostFaults(t *testing.T) {
	metaltest.Need(t)
	if testing.Short() {
		t.Skip("every fault is a build: the plain run does this")
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	probe := func(t *testing.T, drill string, replace map[string]string) (string, int) {
		dir := t.TempDir()
		main := filepath.Join(dir, "main.go")
		if err := os.WriteFile(main, []byte(prober), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay := map[string]map[string]string{"Replace": {filepath.Join(here, "metaltest", "prober", "main.go"): main}}
		for name, text := range replace {
			copied := filepath.Join(dir, name)
			if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			overlay["Replace"][filepath.Join(here, name)] = copied
		}
		text, err := json.Marshal(overlay)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, "prober")
		if out, err := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-ldflags=-s -w", "-o", program, "./metaltest/prober").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, err := exec.Command(program, drill).CombinedOutput()
		var exit *exec.ExitError
		switch {
		case err == nil:
			return string(out), 0
		case errors.As(err, &exit):
			return string(out), exit.ExitCode()
		}
		t.Fatal(err)
		return "", 0
	}
	for _, drill := range []string{"chain", "rows", "shared"} {
		if out, code := probe(t, drill, nil); code != 0 || !strings.Contains(out, "agrees") {
			t.Fatalf("drill %s without a fault ends with %d: %s", drill, code, out)
		}
	}
	for _, f := range hostFaults {
		t.Run(f.name, func(t *testing.T) {
			text, err := os.ReadFile(f.file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(string(text), f.old) != 1 {
				t.Fatalf("the text of the fault is not in %s, or more than once", f.file)
			}
			out, code := probe(t, f.drill, map[string]string{f.file: strings.Replace(string(text), f.old, f.new, 1)})
			if code != 3 {
				t.Fatalf("nothing noticed it: %d %s", code, out)
			}
			t.Log(strings.TrimSpace(out))
		})
	}
}

// TestSpoiledLists changes lists between the host code and the device.
func TestSpoiledLists(t *testing.T) {
	metaltest.Need(t)
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		name, drill string
		spoil       func(*metalkern.List)
	}{
		{"a view too short", "rows", func(l *metalkern.List) { l.Binds[l.Dispatches[1].Bind].Len -= 4 }},
		{"an offset wrong by a row", "rows", func(l *metalkern.List) { l.Binds[l.Dispatches[2].Bind].Off += 4 }},
		{"too little threadgroup memory", "tiles", func(l *metalkern.List) { l.Dispatches[0].Shared -= 16 * 400 }},
	} {
		t.Run(f.name, func(t *testing.T) {
			d, err := metaltest.NewDevice(sources, metaltest.Build{Checked: true}, metaltest.Order{Kind: metaltest.Shuffled, Seed: 5})
			if err != nil {
				t.Fatal(err)
			}
			b := metalkern.New(clumsy{d, f.spoil}, metalkern.Options{})
			defer b.Close()
			for _, x := range metalkern.Drills {
				if x.Name != f.drill {
					continue
				}
				err := x.Check(b)
				if err == nil {
					t.Fatal("nothing noticed it")
				}
				t.Log(err)
			}
		})
	}
}
