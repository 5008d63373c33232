package layout

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// The goldens are those of the reader, which also tests that it finds them in the files; here their bytes are cut out
// of the files by hand.
const goldens = "../checkpoint/testdata/"

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(goldens + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// tensors are the arrays of a safetensors file.
type tensors map[string]struct {
	DType   string
	Shape   []int
	Offsets [2]int `json:"data_offsets"`
	data    []byte
}

func readTensors(t testing.TB, name string) tensors {
	t.Helper()
	file := read(t, name)
	n := binary.LittleEndian.Uint64(file)
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(file[8:8+n], &entries); err != nil {
		t.Fatal(err)
	}
	out := tensors{}
	for name, text := range entries {
		e := out[name]
		if name == "__metadata__" {
			continue
		}
		if err := json.Unmarshal(text, &e); err != nil {
			t.Fatal(err)
		}
		e.data = file[8+n:][e.Offsets[0]:e.Offsets[1]]
		out[name] = e
	}
	return out
}

func (ts tensors) dtype(t testing.TB, name string) DType {
	t.Helper()
	d, ok := ParseDType(ts[name].DType)
	if !ok {
		t.Fatalf("there is no tensor %q of a known type", name)
	}
	return d
}

func (ts tensors) floats(t testing.TB, name string) []float32 {
	t.Helper()
	d := ts.dtype(t, name)
	out := make([]float32, len(ts[name].data)/d.Size())
	Widen(out, ts[name].data, d)
	return out
}

func readGoldens(t testing.TB) tensors { return readTensors(t, "quant/quant.safetensors") }

// quantCase is one case of quant.json.
type quantCase struct {
	Name, Mode, Dtype string
	Bits              int
	Group             int `json:"group_size"`
	Shape             []int
	Tensors           map[string]string
}

// matrix is the quantized matrix of a case.
func (qc quantCase) matrix(t testing.TB, ts tensors) Matrix {
	t.Helper()
	m := Matrix{Name: qc.Name, Rows: qc.Shape[0], Cols: qc.Shape[1], Bits: qc.Bits, Group: qc.Group, GlobalScale: 1,
		Weight: ts[qc.Tensors["packed"]].data, Scales: ts[qc.Tensors["scales"]].data}
	for s := Affine; s <= NVFP4; s++ {
		if s.String() == qc.Mode {
			m.Scheme = s
		}
	}
	if m.Scheme == Affine {
		m.DType, m.Biases = ts.dtype(t, qc.Tensors["scales"]), ts[qc.Tensors["biases"]].data
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	return m
}

// quantCases are the cases with tensors.
func quantCases(t testing.TB) (out []quantCase) {
	t.Helper()
	var doc struct{ Cases []quantCase }
	if err := json.Unmarshal(read(t, "quant/quant.json"), &doc); err != nil {
		t.Fatal(err)
	}
	for _, qc := range doc.Cases {
		if qc.Tensors != nil {
			out = append(out, qc)
		}
	}
	if len(out) < 30 {
		t.Fatalf("only %d cases", len(out))
	}
	return out
}

func quantized(t testing.TB, ts tensors, name string) Matrix {
	t.Helper()
	for _, qc := range quantCases(t) {
		if qc.Name == name {
			return qc.matrix(t, ts)
		}
	}
	t.Fatalf("there is no case %q", name)
	return Matrix{}
}

func rows(t testing.TB, m Matrix) [][]float32 {
	t.Helper()
	out := make([][]float32, 0, m.count())
	for r := range m.count() {
		row := make([]float32, m.Cols)
		if err := m.Row(row, r/m.Rows, r%m.Rows); err != nil {
			t.Fatal(err)
		}
		out = append(out, row)
	}
	return out
}

// Row gives what mx.dequantize gives for float32 scales, to the bit. It rounds once per operation in float32; with half
// scales MLX rounds to their type, which Row does not.
func TestRowGoldens(t *testing.T) {
	ts := readGoldens(t)
	schemes := map[Scheme]int{}
	for _, qc := range quantCases(t) {
		if qc.Dtype != "float32" {
			continue
		}
		m, want := qc.matrix(t, ts), ts.floats(t, qc.Tensors["dequant"])
		schemes[m.Scheme]++
		for r, row := range rows(t, m) {
			for i, got := range row {
				if w := want[r*m.Cols+i]; !same(got, w) {
					t.Fatalf("%s row %d column %d: %v, want %v", qc.Name, r, i, got, w)
				}
			}
		}
	}
	if schemes[Affine] < 20 || schemes[MXFP4] == 0 || schemes[MXFP8] == 0 || schemes[NVFP4] == 0 {
		t.Errorf("only %v", schemes)
	}
}

// The GGUF blocks have the values that the format's own Python package gives, to the bit.
func TestBlockGoldens(t *testing.T) {
	file, want := read(t, "gguf/blocks.gguf"), readTensors(t, "gguf/blocks.safetensors")
	// A tensor description: length of the name, name, number of dimensions, dimensions, type, offset in the data. The
	// data starts at the first multiple of 32 after the last of them.
	at, start := map[string]int{}, 0
	for name := range want {
		b := bytes.Index(file, append(binary.LittleEndian.AppendUint64(nil, uint64(len(name)+7)), name+".weight"...))
		if b < 0 {
			t.Fatalf("%s is not in the file", name)
		}
		b += 8 + len(name) + 7
		b += 4 + 8*int(binary.LittleEndian.Uint32(file[b:])) + 4
		at[name] = int(binary.LittleEndian.Uint64(file[b:]))
		start = max(start, (b+8+31)/32*32)
	}
	for s := Q4_0; s <= GGUFMXFP4; s++ {
		name := strings.TrimPrefix(strings.ToLower(s.String()), "gguf-")
		values, shape := want.floats(t, name), want[name].Shape
		m := Matrix{Name: name, Scheme: s, Rows: shape[0], Cols: shape[1], Bits: s.CodeBits(), Group: s.BlockSize(), GlobalScale: 1}
		m.Weight = file[start+at[name]:][:m.Rows*m.RowBytes()]
		for r, row := range rows(t, m) {
			for i, got := range row {
				if w := values[r*m.Cols+i]; !same(got, w) && !(got == 0 && w == 0) {
					t.Fatalf("%s [%d, %d]: %v, want %v", name, r, i, got, w)
				}
			}
		}
	}
}
