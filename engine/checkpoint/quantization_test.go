package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

type quantCase struct {
	Name, Mode, Dtype string
	Bits              int
	GroupSize         int `json:"group_size"`
	Shape             []int
	Tensors           map[string]string
	Args              map[string]any
	Error             *string
}

func quantCases(t testing.TB) []quantCase {
	var doc struct{ Cases []quantCase }
	if err := json.Unmarshal(must(os.ReadFile("testdata/quant/quant.json"))(t), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Cases) < 30 {
		t.Fatalf("only %d cases", len(doc.Cases))
	}
	return doc.Cases
}

// folder writes a model folder with the given config text and links the weights of src into it.
func folder(t testing.TB, config, src string) string {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if src != "" {
		if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), must(os.ReadFile(src))(t), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func rows(t testing.TB, m Matrix) [][]float32 {
	out := make([][]float32, 0, m.count())
	for b := range max(m.Batch, 1) {
		for r := range m.Rows {
			row := make([]float32, m.Cols)
			if err := m.Row(row, b, r); err != nil {
				t.Fatal(err)
			}
			out = append(out, row)
		}
	}
	return out
}

// Every quantized case of the goldens: dequantization is bit equal in float32, and the matrix product agrees.
func TestQuantGoldens(t *testing.T) {
	cases := quantCases(t)
	entries := map[string]any{"group_size": 64, "bits": 4}
	for _, qc := range cases {
		if qc.Tensors != nil {
			entry := map[string]any{"group_size": qc.GroupSize, "bits": qc.Bits}
			if qc.Mode != "affine" {
				entry["mode"] = qc.Mode
			}
			entries[qc.Name] = entry
		}
	}
	config := must(json.Marshal(map[string]any{"model_type": "test", "quantization": entries}))(t)
	named := must(Open(folder(t, string(config), "testdata/quant/quant.safetensors")))(t)
	defer named.Close()
	lone := must(Open("testdata/quant/quant.safetensors"))(t)
	defer lone.Close()

	for _, qc := range cases {
		if qc.Tensors == nil {
			continue
		}
		t.Run(qc.Name, func(t *testing.T) {
			m := must(named.Matrix(qc.Name))(t)
			byShape := must(lone.MatrixCols(qc.Name, qc.Shape[1]))(t)
			if m.Scheme.String() != qc.Mode || m.Bits != qc.Bits || m.Group != qc.GroupSize || m.Rows != qc.Shape[0] || m.Cols != qc.Shape[1] {
				t.Fatalf("read as %s", m.describe())
			}
			if m.describe() != byShape.describe() {
				t.Fatalf("with config %s, by shape %s", m.describe(), byShape.describe())
			}
			floats := func(kind string) []float32 {
				tensor := must(lone.Tensor(qc.Tensors[kind]))(t)
				return must(tensor.Float32())(t)
			}
			got, want := rows(t, m), floats("dequant")
			tol := map[string]float64{"float32": 0, "float16": 0x1p-10, "bfloat16": 0x1p-7}[qc.Dtype]
			for r, row := range got {
				largest := 0.0
				for _, w := range want[r*m.Cols:][:m.Cols] {
					largest = max(largest, math.Abs(float64(w)))
				}
				for i, v := range row {
					w := want[r*m.Cols+i]
					if tol == 0 && math.Float32bits(v) != math.Float32bits(w) {
						t.Fatalf("row %d column %d: %v, want %v", r, i, v, w)
					}
					// The half cases round the product and the sum to the type of the scales.
					if math.Abs(float64(v-w)) > tol*largest*2 {
						t.Fatalf("row %d column %d: %v, want %v", r, i, v, w)
					}
				}
			}
			checkProduct(t, floats("x"), floats("y"), got, m.Cols, max(2*tol, 1e-6))
			if qc.Tensors["x2"] != "" {
				columns := make([][]float32, m.Cols)
				for i := range columns {
					columns[i] = make([]float32, m.Rows)
					for r := range got {
						columns[i][r] = got[r][i]
					}
				}
				checkProduct(t, floats("x2"), floats("y2"), columns, m.Rows, max(2*tol, 1e-6))
			}
		})
	}
}

// checkProduct checks y = x w^T relative to the sum of the magnitudes that were added.
func checkProduct(t *testing.T, x, y []float32, w [][]float32, cols int, tol float64) {
	t.Helper()
	for r := 0; r*cols < len(x); r++ {
		for o, row := range w {
			sum, size := 0.0, 0.0
			for i, v := range row {
				p := float64(v) * float64(x[r*cols+i])
				sum, size = sum+p, size+math.Abs(p)
			}
			if got := float64(y[r*len(w)+o]); math.Abs(sum-got) > tol*size {
				t.Fatalf("x row %d output %d: %v, want %v (magnitudes %v)", r, o, sum, got, size)
			}
		}
	}
}

// The combinations the quantizer refuses are refused when a config names them, and the config key is named.
func TestRefusedCombinations(t *testing.T) {
	n := 0
	for _, qc := range quantCases(t) {
		if qc.Name != "call" {
			continue
		}
		n++
		for _, key := range []string{"", "model.layers.3.mlp.gate"} {
			entry := any(qc.Args)
			if key != "" {
				entry = map[string]any{"bits": 4, "group_size": 64, key: qc.Args}
			}
			config := must(json.Marshal(map[string]any{"quantization": entry}))(t)
			_, err := Open(folder(t, string(config), "testdata/quant/quant.safetensors"))
			if err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "quantization") {
				t.Errorf("%v below %q: %v", qc.Args, key, err)
			}
			bad := fmt.Sprint(qc.Args["group_size"])
			if qc.Args["bits"] != 4.0 {
				bad = fmt.Sprint(qc.Args["bits"])
			}
			if err != nil && !strings.Contains(err.Error(), bad) {
				t.Errorf("the error does not name %s: %v", bad, err)
			}
		}
	}
	if n < 4 {
		t.Fatalf("only %d refused calls", n)
	}
}

func TestFloatTables(t *testing.T) {
	c := must(Open("testdata/quant/quant.safetensors"))(t)
	defer c.Close()
	for name, f := range map[string]func(int) float32{
		"lut.fp8_e4m3":   func(i int) float32 { return e4m3[i] },
		"lut.fp4_e2m1":   func(i int) float32 { return e2m1[i] },
		"lut.e8m0_scale": func(i int) float32 { return e8m0(byte(i)) },
		"lut.e4m3_scale": func(i int) float32 { return e4m3[i] },
	} {
		tensor := must(c.Tensor(name))(t)
		for i, want := range must(tensor.Float32())(t) {
			got := f(i)
			if got != want && !(got != got && want != want) {
				t.Errorf("%s[%d]: %v, want %v", name, i, got, want)
			}
		}
	}
	// Every float16 against the definition.
	for i := range 1 << 16 {
		exp, man := i>>10&31, float64(i&1023)
		want := math.Ldexp(1+man/1024, exp-15)
		switch {
		case exp == 0:
			want = math.Ldexp(man, -24)
		case exp == 31 && man == 0:
			want = math.Inf(1)
		case exp == 31:
			want = math.NaN()
		}
		if i&0x8000 != 0 {
			want = -want
		}
		if got := half(uint16(i)); float64(got) != want && !(want != want && got != got) || math.Signbit(float64(got)) != (i&0x8000 != 0) {
			t.Fatalf("float16 %#04x: %v, want %v", i, got, want)
		}
	}
}

// modelopt NVFP4 drafters: the stored bytes are NVFP4 matrices; rounded to bfloat16 they equal the golden.
func TestModeloptNVFP4(t *testing.T) {
	var doc struct {
		Cases []struct {
			Weight [][]int     `json:"weight_u8"`
			Scale  [][]int     `json:"scale_e4m3_u8"`
			Scale2 float32     `json:"scale_2"`
			Out    [][]float32 `json:"out_bf16_as_float"`
		}
	}
	if err := json.Unmarshal(must(os.ReadFile("testdata/nvfp4.json"))(t), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Cases) == 0 {
		t.Fatal("no cases")
	}
	for i, nc := range doc.Cases {
		flat := func(rows [][]int) (b []byte) {
			for _, r := range rows {
				for _, v := range r {
					b = append(b, byte(v))
				}
			}
			return b
		}
		global := binary.LittleEndian.AppendUint32(nil, math.Float32bits(nc.Scale2))
		for _, scaleType := range []string{"U8", "F8_E4M3"} {
			path := writeSafetensors(t, []fileTensor{
				{"layers.0.mlp.up_proj.weight", "U8", []int{len(nc.Weight), len(nc.Weight[0])}, flat(nc.Weight)},
				{"layers.0.mlp.up_proj.weight_scale", scaleType, []int{len(nc.Scale), len(nc.Scale[0])}, flat(nc.Scale)},
				{"layers.0.mlp.up_proj.weight_scale_2", "F32", nil, global},
			})
			c := must(Open(path))(t)
			m := must(c.Matrix("layers.0.mlp.up_proj"))(t)
			if m.Scheme != NVFP4 || m.GlobalScale != nc.Scale2 {
				t.Fatalf("case %d: read as %s, global scale %v", i, m.describe(), m.GlobalScale)
			}
			for r, row := range rows(t, m) {
				for j, v := range row {
					if got, want := bfloat16(v), nc.Out[r][j]; got != want && !(got != got && want != want) {
						t.Errorf("case %d [%d, %d]: %v, want %v", i, r, j, got, want)
					}
				}
			}
			c.Close()
		}
	}
}

// bfloat16 rounds to nearest even.
func bfloat16(f float32) float32 {
	b := math.Float32bits(f)
	if f != f {
		return f
	}
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}
