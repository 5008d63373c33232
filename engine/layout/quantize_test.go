package layout

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

// Codes, scales and biases equal those of mx.quantize for every affine case, edge groups included.
func TestQuantizeGoldens(t *testing.T) {
	ts := readGoldens(t)
	n := 0
	for _, qc := range quantCases(t) {
		w := qc.Tensors["w"]
		if qc.Mode != "affine" || w == "" || qc.Bits == 1 {
			continue
		}
		m := Matrix{Name: qc.Name, Scheme: Dense, DType: ts.dtype(t, w), Rows: qc.Shape[0], Cols: qc.Shape[1], Weight: ts[w].data, GlobalScale: 1}
		q, err := m.Quantize(qc.Bits, qc.Group)
		if err != nil {
			t.Error(err)
			continue
		}
		n++
		want := qc.matrix(t, ts)
		if q.String() != want.String() || !bytes.Equal(q.Weight, want.Weight) || !bytes.Equal(q.Scales, want.Scales) || !bytes.Equal(q.Biases, want.Biases) {
			t.Errorf("%s: %s, want %s", qc.Name, q, want)
			for r := range q.Rows {
				for name, pair := range map[string][2][]byte{"codes": {q.Weight, want.Weight}, "scales": {q.Scales, want.Scales}, "biases": {q.Biases, want.Biases}} {
					s := len(pair[0]) / q.Rows
					if !bytes.Equal(pair[0][r*s:][:s], pair[1][r*s:][:s]) {
						t.Errorf("%s: row %d %s\n got %x\nwant %x", qc.Name, r, name, pair[0][r*s:][:s], pair[1][r*s:][:s])
					}
				}
			}
		}
	}
	if n < 25 {
		t.Fatalf("only %d cases", n)
	}
}

func TestQuantizeRefuses(t *testing.T) {
	f := func(cols int, v float32) Matrix {
		m := Matrix{Name: "w", Scheme: Dense, DType: F32, Rows: 1, Cols: cols, Weight: make([]byte, 4*cols), GlobalScale: 1}
		narrow(m.Weight[4:], v, F32)
		return m
	}
	for _, c := range []struct {
		m           Matrix
		bits, group int
		want        string
	}{
		{f(64, 1), 7, 64, "7 bits"},
		{f(64, 1), 1, 64, "1 bit"},
		{f(64, 1), 4, 16, "groups of 16"},
		{f(96, 1), 4, 64, "not whole groups"},
		{Matrix{Name: "w", Rows: 1, Cols: 64, Weight: make([]byte, 256)}, 4, 64, "no weight format"},
		{f(64, float32(math.NaN())), 4, 64, "not finite"},
		{f(64, float32(math.Inf(1))), 4, 64, "not finite"},
	} {
		if _, err := c.m.Quantize(c.bits, c.group); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, wants %q", err, c.want)
		}
	}
}

// Quantizing a quantized matrix starts from its exact values.
func TestQuantizeAgain(t *testing.T) {
	m := quantized(t, readGoldens(t), "nvfp4_b4_g16")
	q, err := m.Quantize(8, 64)
	if err != nil {
		t.Fatal(err)
	}
	a, b := rows(t, m), rows(t, q)
	for r := range a {
		top := 0.0
		for _, v := range a[r] {
			top = max(top, math.Abs(float64(v)))
		}
		for i := range a[r] {
			if d := math.Abs(float64(a[r][i] - b[r][i])); d > top/64 {
				t.Fatalf("row %d column %d: %v became %v", r, i, a[r][i], b[r][i])
			}
		}
	}
}
