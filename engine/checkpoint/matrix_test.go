package checkpoint

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// within reports whether b lies in one of the mappings.
func within(c *Checkpoint, b []byte) bool {
	return slices.ContainsFunc(c.Mappings(), func(m []byte) bool { return inside(m, b) })
}

func stacked(t testing.TB) *Checkpoint {
	var data []float32
	for i := range 2 * 3 * 4 {
		data = append(data, float32(i))
	}
	return must(Open(writeSafetensors(t, []fileTensor{{"experts.weight", "F32", []int{2, 3, 4}, f32bytes(data...)}, {"plain.weight", "F32", []int{3, 4}, f32bytes(data[:12]...)}})))(t)
}

func TestMatrixViews(t *testing.T) {
	c := stacked(t)
	defer c.Close()
	first := func(m Matrix) (out []float32) {
		for _, r := range rows(t, m) {
			out = append(out, r[0])
		}
		return out
	}
	plain, experts := must(c.Matrix("plain"))(t), must(c.Matrix("experts"))(t)
	for _, tc := range []struct {
		name string
		m    Matrix
		want []float32
		view bool
	}{
		{"plain", plain, []float32{0, 4, 8}, true},
		{"experts", experts, []float32{0, 4, 8, 12, 16, 20}, true},
		{"an expert", experts.Expert(1), []float32{12, 16, 20}, true},
		{"rows", plain.RowRange(1, 3), []float32{4, 8}, true},
		{"no rows", plain.RowRange(1, 1), nil, true},
		{"rows of an expert", experts.Expert(1).RowRange(0, 2), []float32{12, 16}, true},
		{"rows of every expert", experts.RowRange(1, 3), []float32{4, 8, 16, 20}, false},
		{"picked", plain.PickRows([]int{2, 0, 2}), []float32{8, 0, 8}, false},
		{"picked of every expert", experts.PickRows([]int{2, 0}), []float32{8, 0, 20, 12}, false},
		{"stacked", must(Stack("s", []Matrix{plain, plain.PickRows([]int{2, 1, 0})}))(t), []float32{0, 4, 8, 8, 4, 0}, false},
		{"joined", must(Concat("s", []Matrix{plain, plain.RowRange(0, 1)}))(t), []float32{0, 4, 8, 0}, false},
	} {
		if tc.want == nil {
			if len(tc.m.Weight) != 0 || tc.m.Rows != 0 {
				t.Errorf("%s has %d rows", tc.name, tc.m.Rows)
			}
			continue
		}
		if got := first(tc.m); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
		if !within(c, tc.m.Weight) {
			t.Errorf("%s lies outside the mappings", tc.name)
		}
		if shares := within(&Checkpoint{files: c.files}, tc.m.Weight); shares != tc.view {
			t.Errorf("%s shares the file's bytes: %v, want %v", tc.name, shares, tc.view)
		}
	}
	if m := must(Stack("s", []Matrix{plain, plain}))(t); m.Batch != 2 || m.Rows != 3 || m.Bytes() != 2*plain.Bytes() || m.Name != "s" {
		t.Errorf("stacked as %s", m.describe())
	}
	if _, err := Stack("s", []Matrix{plain, plain.RowRange(0, 2)}); err == nil || !strings.Contains(err.Error(), "plain") {
		t.Errorf("two heights stacked: %v", err)
	}
	if _, err := Concat("s", nil); err == nil {
		t.Error("nothing joined")
	}
	for _, f := range []func(){func() { experts.Expert(2) }, func() { plain.RowRange(2, 4) }, func() { plain.PickRows([]int{3}) }} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("out of range and no panic")
				}
			}()
			f()
		}()
	}
	// Quantized bytes move with their scales and biases.
	q := must(Open("testdata/quant/quant.safetensors"))(t)
	defer q.Close()
	for _, name := range []string{"affine_b3_g64", "mxfp4_b4_g32", "nvfp4_b4_g16", "mxfp8_b8_g32"} {
		m := must(q.MatrixCols(name, must(q.Tensor(name + ".w"))(t).Shape[1]))(t)
		all := rows(t, m)
		picked, ranged := rows(t, m.PickRows([]int{5, 1})), rows(t, m.RowRange(5, 7))
		joined := rows(t, must(Concat("j", []Matrix{m.RowRange(4, 8), m.RowRange(0, 4)}))(t))
		if !slices.Equal(picked[0], all[5]) || !slices.Equal(picked[1], all[1]) || !slices.Equal(ranged[1], all[6]) || !slices.Equal(joined[5], all[1]) {
			t.Errorf("%s: rows changed when they moved", name)
		}
	}
	for _, bad := range []struct{ n, batch, row int }{{3, 0, 0}, {4, 1, 0}, {4, 0, 3}, {4, -1, 0}, {4, 0, -1}} {
		if err := plain.Row(make([]float32, bad.n), bad.batch, bad.row); err == nil {
			t.Errorf("Row accepted %v", bad)
		}
	}
	broken := plain
	broken.Weight = broken.Weight[:8]
	if err := broken.Row(make([]float32, 4), 0, 2); err == nil {
		t.Error("Row accepted a matrix without its bytes")
	}
}

func TestMappings(t *testing.T) {
	path := writeSafetensors(t, []fileTensor{{"big", "U8", []int{1 << 20}, bytes.Repeat([]byte{7}, 1<<20)}, {"a.weight", "F32", []int{1, 2}, f32bytes(1, 2)}})
	c := must(Open(path))(t)
	page := uintptr(os.Getpagesize())
	small, large := c.alloc(10), c.alloc(3<<20)
	for _, b := range [][]byte{small, large, c.alloc(100)} {
		if !within(c, b) || cap(b) != len(b) {
			t.Errorf("a copy of %d bytes (capacity %d) is not in a mapping", len(b), cap(b))
		}
		b[len(b)-1] = 1
	}
	for _, m := range c.Mappings() {
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(m))); at%page != 0 {
			t.Errorf("a mapping starts at %#x", at)
		}
	}
	big := must(c.Tensor("big"))(t)
	c.Evict(big.Data)
	c.Evict(big.Data[:1])
	c.Evict(nil)
	c.Evict(large)
	c.Evict([]byte{1, 2})
	if large[len(large)-1] != 1 || big.Data[5] != 7 || must(must(c.Tensor("a.weight"))(t).Float32())(t)[1] != 2 {
		t.Error("the bytes changed")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Tensor("big"); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("after Close: %v", err)
	}
	if len(c.Names()) != 0 || len(c.Mappings()) != 0 || len(c.alloc(5)) != 5 {
		t.Error("a closed checkpoint holds something")
	}
}

// Volumes that may go away are read instead of mapped; the bytes are the same.
func TestReadInsteadOfMap(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("some bytes"))
	f := must(os.Open(path))(t)
	defer f.Close()
	data := must(readFile(f, 10))(t)
	if string(data) != "some bytes" {
		t.Errorf("read %q", data)
	}
	if err := freePages(data); err != nil {
		t.Error(err)
	}
	if _, err := readFile(f, 11); err == nil {
		t.Error("a file that shrank was read")
	}
	if _, err := mapPages(f, 10); err != nil {
		t.Errorf("a local file cannot be mapped: %v", err)
	}
}
