package layout

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// counting is a matrix of numbers that count up, and the copies its Alloc has handed out.
func counting(batch, rows, cols int) (Matrix, *[][]byte) {
	var copies [][]byte
	m := Matrix{Name: "counting", Scheme: Dense, DType: F32, Batch: batch, Rows: rows, Cols: cols, GlobalScale: 1}
	for i := range m.count() * cols {
		m.Weight = binary.LittleEndian.AppendUint32(m.Weight, math.Float32bits(float32(i)))
	}
	m.Alloc = func(n int) []byte {
		copies = append(copies, make([]byte, n))
		return copies[len(copies)-1]
	}
	return m, &copies
}

// within reports whether b is a part of region.
func within(region, b []byte) bool {
	lo, at := uintptr(unsafe.Pointer(unsafe.SliceData(region))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return at >= lo && at+uintptr(len(b)) <= lo+uintptr(len(region))
}

func join2(t *testing.T, f func(string, []Matrix) (Matrix, error), parts ...Matrix) Matrix {
	t.Helper()
	m, err := f("s", parts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Views share the bytes, copies come from Alloc and nowhere else.
func TestMatrixViews(t *testing.T) {
	plain, copiesOfPlain := counting(0, 3, 4)
	experts, copiesOfExperts := counting(2, 3, 4)
	for _, tc := range []struct {
		name string
		m    Matrix
		want []float32 // the first column
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
		{"stacked", join2(t, Stack, plain, plain.PickRows([]int{2, 1, 0})), []float32{0, 4, 8, 8, 4, 0}, false},
		{"joined", join2(t, Concat, plain, plain.RowRange(0, 1)), []float32{0, 4, 8, 0}, false},
	} {
		if tc.want == nil {
			if len(tc.m.Weight) != 0 || tc.m.Rows != 0 {
				t.Errorf("%s has %d rows", tc.name, tc.m.Rows)
			}
			continue
		}
		var got []float32
		for _, r := range rows(t, tc.m) {
			got = append(got, r[0])
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
		in := func(region []byte) bool { return within(region, tc.m.Weight) }
		if shares := in(plain.Weight) || in(experts.Weight); shares != tc.view {
			t.Errorf("%s shares the bytes: %v, want %v", tc.name, shares, tc.view)
		}
		if copied := slices.ContainsFunc(slices.Concat(*copiesOfPlain, *copiesOfExperts), in); copied == tc.view {
			t.Errorf("%s lies in memory of Alloc: %v", tc.name, copied)
		}
	}
	onHeap := plain
	onHeap.Alloc = nil
	if got := rows(t, onHeap.PickRows([]int{1})); got[0][0] != 4 {
		t.Errorf("without Alloc the row reads %v", got)
	}
	if m := join2(t, Stack, plain, plain); m.Batch != 2 || m.Rows != 3 || m.Bytes() != 2*plain.Bytes() || m.Name != "s" || m.String() != "dense [2, 3, 4] F32" {
		t.Errorf("stacked as %q, %s", m.Name, m)
	}
	if _, err := Stack("s", []Matrix{plain, plain.RowRange(0, 2)}); err == nil || !strings.Contains(err.Error(), "counting") {
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
}

// Quantized bytes move with their scales and biases.
func TestQuantizedViews(t *testing.T) {
	ts := readGoldens(t)
	for _, name := range []string{"affine_b3_g64", "mxfp4_b4_g32", "nvfp4_b4_g16", "mxfp8_b8_g32"} {
		m := quantized(t, ts, name)
		all := rows(t, m)
		picked, ranged := rows(t, m.PickRows([]int{5, 1})), rows(t, m.RowRange(5, 7))
		joined := rows(t, join2(t, Concat, m.RowRange(4, 8), m.RowRange(0, 4)))
		if !slices.Equal(picked[0], all[5]) || !slices.Equal(picked[1], all[1]) || !slices.Equal(ranged[1], all[6]) || !slices.Equal(joined[5], all[1]) {
			t.Errorf("%s: rows changed when they moved", name)
		}
	}
}

// Row refuses what is not there and every matrix whose fields do not fit each other; it never reads past the bytes.
func TestRowRefuses(t *testing.T) {
	plain, _ := counting(0, 3, 64)
	for _, bad := range []struct{ n, batch, row int }{{3, 0, 0}, {64, 1, 0}, {64, 0, 3}, {64, -1, 0}, {64, 0, -1}} {
		if err := plain.Row(make([]float32, bad.n), bad.batch, bad.row); err == nil {
			t.Errorf("Row accepted %v", bad)
		}
	}
	affine := quantized(t, readGoldens(t), "affine_b4_g64")
	for _, tc := range []struct {
		name  string
		m     Matrix
		spoil func(*Matrix)
		want  string
	}{
		{"no scheme", plain, func(m *Matrix) { m.Scheme = 0 }, "Scheme(0) is no weight format"},
		{"an unknown scheme", plain, func(m *Matrix) { m.Scheme = 99 }, "Scheme(99)"},
		{"no element type", plain, func(m *Matrix) { m.DType = 0 }, "DType(0) cannot hold weights"},
		{"integers", plain, func(m *Matrix) { m.DType = I32 }, "I32 cannot hold weights"},
		{"missing bytes", plain, func(m *Matrix) { m.Weight = m.Weight[:8] }, "do not fit"},
		{"no type of scales", affine, func(m *Matrix) { m.DType = 0 }, "DType(0) cannot hold weights"},
		{"7 bits", affine, func(m *Matrix) { m.Bits = 7 }, "7 bits does not exist"},
		{"40 bits", affine, func(m *Matrix) { m.Bits = 40 }, "40 bits does not exist"},
		{"no group", affine, func(m *Matrix) { m.Group = 0 }, "groups of 0 does not exist"},
		{"half a group", affine, func(m *Matrix) { m.Cols = 96 }, "96 columns are not whole groups of 64"},
		{"no biases", affine, func(m *Matrix) { m.Biases = nil }, "do not fit"},
		{"mxfp4 of 8 bits", affine, func(m *Matrix) { m.Scheme, m.Group, m.Bits = MXFP4, 32, 8 }, "mxfp4 quantization has 4 bits, not 8"},
		{"mxfp8 of 4 bits", affine, func(m *Matrix) { m.Scheme, m.Group = MXFP8, 32 }, "mxfp8 quantization has 8 bits, not 4"},
		{"nvfp4 in groups of 64", affine, func(m *Matrix) { m.Scheme = NVFP4 }, "nvfp4 quantization has groups of 16, not 64"},
		{"Q4_K in groups of 64", affine, func(m *Matrix) { m.Scheme = Q4_K }, "Q4_K quantization has groups of 256, not 64"},
	} {
		m := tc.m
		tc.spoil(&m)
		err := m.Row(make([]float32, m.Cols), 0, 2)
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), `"`+m.Name+`"`) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}
