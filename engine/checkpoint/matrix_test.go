package checkpoint

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"sparkbar/engine/layout"
)

// within reports whether b lies in one of the mappings.
func within(c *Checkpoint, b []byte) bool {
	return slices.ContainsFunc(c.mappings(), func(m []byte) bool { return inside(m, b) })
}

// Views share the file's bytes; copies of every kind lie in mappings of their own.
func TestMatrixMemory(t *testing.T) {
	var data []float32
	for i := range 2 * 3 * 64 {
		data = append(data, float32(i))
	}
	c := must(Open(writeSafetensors(t, []fileTensor{{"experts.weight", "F32", []int{2, 3, 64}, f32bytes(data...)}, {"plain.weight", "F32", []int{3, 64}, f32bytes(data[:192]...)}})))(t)
	defer c.Close()
	plain, experts := must(c.Matrix("plain"))(t), must(c.Matrix("experts"))(t)
	for _, tc := range []struct {
		name string
		m    layout.Matrix
		view bool
	}{
		{"plain", plain, true},
		{"experts", experts, true},
		{"an expert", experts.Expert(1), true},
		{"rows", plain.RowRange(1, 3), true},
		{"rows of every expert", experts.RowRange(1, 3), false},
		{"picked", plain.PickRows([]int{2, 0, 2}), false},
		{"picked of picked", plain.PickRows([]int{2, 0, 2}).PickRows([]int{1}), false},
		{"stacked", must(layout.Stack("s", []layout.Matrix{plain, plain}))(t), false},
		{"joined", must(layout.Concat("s", []layout.Matrix{plain, plain}))(t), false},
		{"quantized", must(plain.Quantize(4, 64))(t), false},
	} {
		for _, b := range [][]byte{tc.m.Weight, tc.m.Scales, tc.m.Biases} {
			if len(b) == 0 {
				continue
			}
			if !within(c, b) {
				t.Errorf("%s lies outside the mappings", tc.name)
			}
			if shares := within(&Checkpoint{files: c.files}, b); shares != tc.view {
				t.Errorf("%s shares the file's bytes: %v, want %v", tc.name, shares, tc.view)
			}
		}
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
	for _, m := range c.mappings() {
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
	if len(c.Names()) != 0 || len(c.mappings()) != 0 || len(c.alloc(5)) != 5 {
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

// mappings are the memory regions in which every Data, Weight, Scales and Biases slice of this checkpoint lies: the
// mapped files, then the anonymous regions that hold copies. Each starts at a page border.
// The list grows when a method copies.
func (c *Checkpoint) mappings() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all [][]byte
	for _, f := range c.files {
		all = append(all, f.data)
	}
	return append(all, c.copies...)
}
