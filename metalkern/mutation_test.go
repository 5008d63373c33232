package metalkern_test

import (
	"strings"
	"testing"

	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

// fault is one mistake put into a copy of a kernel source: the n-th occurrence
// of a text is replaced.
type fault struct {
	name, file, drill string // the drill that must notice
	old, new          string
	n                 int
}

const barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"

var faults = []fault{
	{"tiles: no barrier after loading", "linear.metal", "tiles", barrier, "", 0},
	{"tiles: no barrier after multiplying", "linear.metal", "tiles", barrier, "", 0},
	{"tiles: no barrier before the results", "linear.metal", "tiles", barrier, "", 0},
	{"group_sum: no barrier", "rows.metal", "norms and turns", barrier, "", 0},
	{"attention: no barrier after the scores", "attention.metal", "attention", barrier, "", 3}, // two are in common.h, one comes before the pages
	{"attention: keys beyond the range", "attention.metal", "attention", "p >= lo[r] && p < hi[r] ? z : -INFINITY", "p >= lo[r] ? z : -INFINITY", 0},
	{"rows: outputs beyond the matrix", "linear.metal", "rows", "&& n0 + n < outs) store(", ") store(", 0},
	{"rows: a SIMD-group function under a condition", "linear.metal", "rows", "const float z = simd_sum(acc[0][r][n])", "const float z = lane < 31 ? simd_sum(acc[0][r][n]) : 0.0f", 0},
	{"rows: the next group's scale", "linear.metal", "rows", "col / GROUP;\n      scale = number", "(col + 8) / GROUP;\n      scale = number", 0},
	{"choose: the wrong kind of barrier", "rows.metal", "elements and choices", barrier, "simdgroup_barrier(mem_flags::mem_threadgroup);", 2},
	{"binary: out of bounds", "rows.metal", "elements and choices", "if (i >= a.cols) return;", "if (i > a.cols) return;", 0},
	{"log_sum_exp: the last lane to come decides", "rows.metal", "elements and choices", "if (id == 0) Out<1>{op}.put(ulong(tg.x)", "Out<1>{op}.put(ulong(tg.x)", 0},
	{"attention: threadgroup memory that nobody wrote", "attention.metal", "attention", "stat[3 * i] = -INFINITY, stat[3 * i + 1] = 0.0f;", "stat[3 * i] = -INFINITY;", 0},
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
	seen := map[string]int{} // later faults of the same text hit the next one
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			var broken []metalkern.Source
			for _, s := range sources {
				if s.Name != f.file {
					continue
				}
				at, from := -1, 0
				if strings.HasPrefix(f.name, "tiles") { // behind the head of its template
					from = strings.Index(s.Text, "inline void tile_of")
				}
				skip := f.n
				if f.n == 0 && strings.HasPrefix(f.name, "tiles") {
					skip = seen[f.file+f.old]
					seen[f.file+f.old]++
				}
				for i := 0; i <= skip; i++ {
					next := strings.Index(s.Text[from:], f.old)
					if next < 0 {
						t.Fatalf("the text of the fault is not in %s", f.file)
					}
					at = from + next
					from = at + len(f.old)
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

// clumsy is a device whose host code makes mistakes.
type clumsy struct {
	metalkern.Device
	spoil func(*metalkern.List)
}

func (c clumsy) Submit(l *metalkern.List) (metalkern.Fence, error) {
	c.spoil(l)
	return c.Device.Submit(l)
}

// TestHostFaults spoils the lists that the host code makes.
func TestHostFaults(t *testing.T) {
	metaltest.Need(t)
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		name, drill string
		spoil       func(*metalkern.List)
	}{
		{"the first barrier forgotten", "chain", func(l *metalkern.List) { forget(l, 0) }},
		{"the second barrier forgotten", "chain", func(l *metalkern.List) { forget(l, 1) }},
		{"a grid too small", "rows", func(l *metalkern.List) { l.Dispatches[2].Groups[0]-- }},
		{"scales and biases swapped", "rows", func(l *metalkern.List) {
			b := l.Binds[l.Dispatches[1].Bind:]
			b[2], b[3] = b[3], b[2]
		}},
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

// forget removes the n-th barrier of a list.
func forget(l *metalkern.List, n int) {
	for i := range l.Dispatches {
		if l.Dispatches[i].Barrier == 1 {
			if n == 0 {
				l.Dispatches[i].Barrier = 0
				return
			}
			n--
		}
	}
	panic("the list has no such barrier")
}
