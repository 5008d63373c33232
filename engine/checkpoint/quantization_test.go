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

	"sparkbar/engine/layout"
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

func rows(t testing.TB, m layout.Matrix) [][]float32 {
	out := make([][]float32, 0, max(m.Batch, 1)*m.Rows)
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
				t.Fatalf("read as %s", m)
			}
			if m.String() != byShape.String() {
				t.Fatalf("with config %s, by shape %s", m, byShape)
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
			if m.Scheme != layout.NVFP4 || m.GlobalScale != nc.Scale2 {
				t.Fatalf("case %d: read as %s, global scale %v", i, m, m.GlobalScale)
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

func bfloat16(f float32) float32 { return math.Float32frombits(uint32(layout.F32ToBF16(f)) << 16) }

// MLX nvfp4 with a scale for the whole tensor.
func TestNVFP4GlobalScale(t *testing.T) {
	c := must(Open("testdata/quant/nvfp4_global.safetensors"))(t)
	defer c.Close()
	m := must(c.Matrix("p"))(t)
	want := must(must(c.Tensor("dequant"))(t).Float32())(t)
	if m.Scheme != layout.NVFP4 || m.GlobalScale == 1 {
		t.Fatalf("read as %s, global scale %v", m, m.GlobalScale)
	}
	for r, row := range rows(t, m) {
		for i, v := range row {
			if w := want[r*m.Cols+i]; math.Abs(float64(v-w)) > 1e-6*math.Abs(float64(w)) {
				t.Errorf("[%d, %d]: %v, want %v", r, i, v, w)
			}
		}
	}
}

func f32bytes(v ...float32) (b []byte) {
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

// The three ways Hugging Face files scale 8-bit float weights.
func TestFP8(t *testing.T) {
	data := make([]byte, 130*132)
	for i := range data {
		data[i] = byte(i % 127)
	}
	values := make([]float32, len(data))
	layout.Widen(values, data, layout.F8E4M3)
	perRow := make([]float32, 130)
	for i := range perRow {
		perRow[i] = float32(i) + 0.5
	}
	for _, tc := range []struct {
		name   string
		scale  fileTensor
		factor func(r, c int) float32
	}{
		{"tensor", fileTensor{"p.weight_scale_inv", "F32", nil, f32bytes(3)}, func(int, int) float32 { return 3 }},
		{"row", fileTensor{"p.weight_scale", "F32", []int{130, 1}, f32bytes(perRow...)}, func(r, _ int) float32 { return float32(r) + 0.5 }},
		{"block", fileTensor{"p.weight_scale_inv", "F32", []int{2, 2}, f32bytes(1, 2, 3, 4)}, func(r, c int) float32 { return float32(r/128*2 + c/128 + 1) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := must(Open(writeSafetensors(t, []fileTensor{{"p.weight", "F8_E4M3", []int{130, 132}, data}, tc.scale})))(t)
			defer c.Close()
			m := must(c.Matrix("p"))(t)
			if m.Scheme != layout.Dense || m.DType != layout.BF16 {
				t.Fatalf("read as %s", m)
			}
			for r, row := range rows(t, m) {
				for i, v := range row {
					if want := bfloat16(values[r*132+i] * tc.factor(r, i)); v != want {
						t.Fatalf("[%d, %d]: %v, want %v", r, i, v, want)
					}
				}
			}
		})
	}
	c := must(Open(writeSafetensors(t, []fileTensor{{"p.weight", "F8_E4M3", []int{130, 132}, data}, {"p.weight_scale", "F32", []int{3}, f32bytes(1, 2, 3)}, {"q.weight", "F8_E4M3", []int{1, 1}, []byte{1}}})))(t)
	defer c.Close()
	for _, p := range []string{"p", "q"} {
		if _, err := c.Matrix(p); err == nil || !strings.Contains(err.Error(), `"`+p+`.weight"`) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// What a config says about a tensor must agree with how it is stored; the error names the tensor.
func TestQuantizationMismatch(t *testing.T) {
	// affine: 2 rows of 128 columns, 4 bits, group 64.
	affine := func(p string) []fileTensor {
		return []fileTensor{{p + ".weight", "U32", []int{2, 16}, make([]byte, 128)}, {p + ".scales", "F16", []int{2, 2}, make([]byte, 8)}, {p + ".biases", "F16", []int{2, 2}, make([]byte, 8)}}
	}
	bytesScales := func(p string, scales int) []fileTensor {
		return []fileTensor{{p + ".weight", "U32", []int{2, 16}, make([]byte, 128)}, {p + ".scales", "U8", []int{2, scales}, make([]byte, 2*scales)}}
	}
	dense := []fileTensor{{"a.p.weight", "BF16", []int{2, 128}, make([]byte, 512)}}
	const all = `{"quantization": {"bits": 4, "group_size": 64%s}}`
	for _, tc := range []struct {
		name, config string
		tensors      []fileTensor
		cols         int
		want         string // an error, or "= " and how it is read
	}{
		{"agrees", fmt.Sprintf(all, ""), affine("a.p"), 0, "= affine [2, 128] F16, 4 bits, group 64"},
		{"agrees and the width is known", fmt.Sprintf(all, ""), affine("a.p"), 128, "= affine [2, 128] F16, 4 bits, group 64"},
		{"quantization_config", `{"quantization_config": {"bits": 4, "group_size": 64}}`, affine("a.p"), 0, "= affine [2, 128] F16, 4 bits, group 64"},
		{"below text_config", `{"text_config": {"quantization": {"bits": 4, "group_size": 64}}}`, affine("a.p"), 0, "= affine [2, 128] F16, 4 bits, group 64"},
		{"same shapes, read as the config says", `{"quantization": {"bits": 8, "group_size": 32}}`, affine("a.p"), 0, "= affine [2, 64] F16, 8 bits, group 32"},
		{"same shapes, but the width is known", `{"quantization": {"bits": 8, "group_size": 32}}`, affine("a.p"), 128, "says affine, 8 bits, group 32"},
		{"other bits", `{"quantization": {"bits": 8, "group_size": 64}}`, affine("a.p"), 0, "says affine, 8 bits, group 64"},
		{"named with other bits", fmt.Sprintf(all, `, "a.p": {"bits": 2, "group_size": 64}`), affine("a.p"), 0, "says affine, 2 bits, group 64"},
		{"another path named", fmt.Sprintf(all, `, "a.q": {"bits": 2, "group_size": 64}`), affine("a.p"), 0, "= affine [2, 128] F16, 4 bits, group 64"},
		{"named false but quantized", fmt.Sprintf(all, `, "a.p": false`), affine("a.p"), 0, "says it is not quantized"},
		{"named false and dense", fmt.Sprintf(all, `, "a.p": false`), dense, 0, "= dense [2, 128] BF16"},
		{"not named and dense", fmt.Sprintf(all, ""), dense, 0, "= dense [2, 128] BF16"},
		{"named but dense", fmt.Sprintf(all, `, "a.p": {"bits": 8, "group_size": 64}`), dense, 0, "says it is quantized"},
		{"dense of another width", "{}", dense, 64, "has 128 columns where the model needs 64"},
		{"no entry", "{}", affine("a.p"), 0, `no "quantization" entry`},
		{"no entry, width known", "{}", affine("a.p"), 128, "= affine [2, 128] F16, 4 bits, group 64"},
		{"no entry, other width", "{}", affine("a.p"), 64, "= affine [2, 64] F16, 8 bits, group 32"},
		{"no entry, impossible width", "{}", affine("a.p"), 96, "do not make rows of 96 columns"},
		{"mxfp4 by shape", "{}", bytesScales("a.p", 4), 0, "= mxfp4 [2, 128], 4 bits, group 32"},
		{"nvfp4 by shape", "{}", bytesScales("a.p", 8), 0, "= nvfp4 [2, 128], 4 bits, group 16"},
		{"mxfp8 by shape", "{}", bytesScales("a.p", 2), 0, "= mxfp8 [2, 64], 8 bits, group 32"},
		{"mxfp4 without its mode", `{"quantization": {"bits": 4, "group_size": 32}}`, bytesScales("a.p", 4), 0, "= mxfp4 [2, 128], 4 bits, group 32"},
		{"mxfp4 called affine", `{"quantization": {"bits": 4, "group_size": 32, "mode": "affine"}}`, bytesScales("a.p", 4), 0, "says affine, 4 bits, group 32, but it is stored as mxfp4"},
		{"mxfp4 called nvfp4", `{"quantization": {"mode": "nvfp4"}}`, bytesScales("a.p", 4), 0, "says nvfp4, 4 bits, group 16"},
		{"affine called mxfp4", `{"quantization": {"mode": "mxfp4"}}`, affine("a.p"), 0, "says mxfp4, 4 bits, group 32"},
		{"byte scales of no mode", "{}", bytesScales("a.p", 16), 0, "none of nvfp4, mxfp4 and mxfp8"},
		{"byte scales and biases", "{}", append(bytesScales("a.p", 4), fileTensor{"a.p.biases", "U8", []int{2, 4}, make([]byte, 8)}), 0, "have no biases"},
		{"no biases", fmt.Sprintf(all, ""), affine("a.p")[:2], 0, "needs biases like its scales"},
		{"biases of another shape", fmt.Sprintf(all, ""), append(affine("a.p")[:2], fileTensor{"a.p.biases", "F16", []int{2, 1}, make([]byte, 4)}), 0, "needs biases like its scales"},
		{"scales for other rows", fmt.Sprintf(all, ""), append(affine("a.p")[:1], fileTensor{"a.p.scales", "F16", []int{4, 2}, make([]byte, 16)}), 0, "does not fit the shape [4 2]"},
		{"scales that do not divide", fmt.Sprintf(all, ""), append(affine("a.p")[:1], fileTensor{"a.p.scales", "F16", []int{2, 3}, make([]byte, 12)}), 0, "does not fit the shape [2 3]"},
		{"integer scales", fmt.Sprintf(all, ""), append(affine("a.p")[:1], fileTensor{"a.p.scales", "I32", []int{2, 2}, make([]byte, 16)}), 0, "its scales are I32"},
		{"scalar scales", fmt.Sprintf(all, ""), append(affine("a.p")[:1], fileTensor{"a.p.scales", "F16", nil, make([]byte, 2)}), 0, "does not fit the shape []"},
		{"float weight next to scales", "{}", []fileTensor{{"a.p.weight", "F32", []int{2, 2}, make([]byte, 16)}, {"a.p.scales", "F16", []int{2, 1}, make([]byte, 4)}}, 0, "packed weights are U32"},
		{"integer weight", "{}", []fileTensor{{"a.p.weight", "I32", []int{2, 2}, make([]byte, 16)}}, 0, "without scales"},
		{"a vector", "{}", []fileTensor{{"a.p.weight", "F32", []int{2}, make([]byte, 8)}}, 0, "has shape [2]"},
		{"empty", "{}", []fileTensor{{"a.p.weight", "F32", []int{2, 0}, nil}}, 0, "empty shape"},
		{"gptq", `{"quantization_config": {"quant_method": "gptq", "bits": 4}}`, []fileTensor{{"a.p.qweight", "I32", []int{2, 2}, make([]byte, 16)}}, 0, `"a.p.qweight" is in a packing that cannot be read (quant_method gptq)`},
		{"modelopt", `{"quantization_config": {"quant_method": "modelopt"}}`, []fileTensor{{"a.p.weight", "U8", []int{2, 16}, make([]byte, 32)}, {"a.p.weight_scale", "F8_E4M3", []int{2, 2}, make([]byte, 4)}, {"a.p.weight_scale_2", "F32", []int{1}, f32bytes(2)}, {"a.p.input_scale", "F32", nil, f32bytes(2)}}, 32, "= nvfp4 [2, 32], 4 bits, group 16"},
		{"modelopt with wrong scales", "{}", []fileTensor{{"a.p.weight", "U8", []int{2, 16}, make([]byte, 32)}, {"a.p.weight_scale", "F8_E4M3", []int{2, 1}, make([]byte, 2)}}, 0, "does not fit the shape [2 1]"},
		{"modelopt with an endless scale", "{}", []fileTensor{{"a.p.weight", "U8", []int{2, 16}, make([]byte, 32)}, {"a.p.weight_scale", "U8", []int{2, 2}, make([]byte, 4)}, {"a.p.weight_scale_2", "F32", nil, f32bytes(float32(math.Inf(1)))}}, 0, "is +Inf"},
		{"absent", "{}", dense[:0], 0, `"a.p.weight" is missing`},
		{"without .weight", "{}", []fileTensor{{"a.p", "F16", []int{2, 3, 4}, make([]byte, 48)}}, 0, "= dense [2, 3, 4] F16"},
		{"gpt_oss blocks", `{"quantization_config": {"quant_method": "mxfp4"}}`, []fileTensor{{"a.p.weight", "U8", []int{2, 3, 4, 16}, make([]byte, 384)}, {"a.p.scales", "U8", []int{2, 3, 4}, make([]byte, 24)}}, 0, "= mxfp4 [2, 3, 128], 4 bits, group 32"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := folder(t, tc.config, "")
			if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), safetensors(t, tc.tensors), 0o600); err != nil {
				t.Fatal(err)
			}
			c := must(Open(dir))(t)
			defer c.Close()
			m, err := c.MatrixCols("a.p", tc.cols)
			if want, ok := strings.CutPrefix(tc.want, "= "); ok {
				if err != nil || m.String() != want {
					t.Errorf("%s, %v; want %s", m, err, want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), `"a.p.`) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	// After a rename the config still means the stored names.
	dir := folder(t, `{"quantization": {"bits": 8, "group_size": 64, "a.p": {"bits": 4, "group_size": 64}}}`, "")
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), safetensors(t, affine("a.p")), 0o600); err != nil {
		t.Fatal(err)
	}
	c := must(Open(dir))(t)
	defer c.Close()
	if err := c.Rename(func(s string) (string, bool) { return strings.Replace(s, "a.", "model.", 1), true }); err != nil {
		t.Fatal(err)
	}
	if m := must(c.Matrix("model.p"))(t); m.Bits != 4 {
		t.Errorf("after the rename it is %s", m)
	}
}

// A quantization entry of the wrong kind is refused when the folder is opened, naming file and key.
func TestBadQuantizationEntry(t *testing.T) {
	for config, want := range map[string]string{
		`{"quantization": {"bits": "4", "group_size": 64}}`:                                    `"bits" must be a whole number`,
		`{"quantization": {"bits": 4.5, "group_size": 64}}`:                                    `"bits" must be a whole number`,
		`{"quantization": {"bits": 4, "group_size": 64, "mode": "mxfp5"}}`:                     `mode "mxfp5" is unknown`,
		`{"quantization": {"bits": 4, "group_size": 64, "a.p": {"bits": 9}}}`:                  `a.p: affine quantization with 9 bits`,
		`{"quantization": {"bits": 4, "group_size": 64, "a.p": {"mode": "mxfp8", "bits": 4}}}`: `a.p: mxfp8 quantization has 8 bits`,
		`{"quantization": 4}`: `"quantization" must be an object`,
	} {
		_, err := Open(folder(t, config, "testdata/quant/quant.safetensors"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "config.json") {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
}
