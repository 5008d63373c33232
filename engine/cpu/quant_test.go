package cpu

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// TestQuantGoldens: products with quantized weights that another implementation
// packed, on the reference and on every level, one row at a time and all
// together.
func TestQuantGoldens(t *testing.T) {
	const dir = "../checkpoint/testdata/quant/"
	text, err := os.ReadFile(dir + "quant.json")
	if err != nil {
		t.Fatal(err)
	}
	var g struct {
		Cases []struct {
			Name, Mode, Rule string
			Bits             int
			Group            int `json:"group_size"`
			DType            string
			Shape            []int
			Tensors          map[string]string
		}
	}
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	c, err := checkpoint.Open(dir + "quant.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rows := func(name string) (v []float32, cols int) {
		x, err := c.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		if v, err = x.Float32(); err != nil {
			t.Fatal(err)
		}
		return v, x.Shape[len(x.Shape)-1]
	}
	backends := map[string]compute.Backend{"reference": compute.NewReference()}
	for _, level := range Levels() {
		backends[level] = open(t, Options{Level: level, Threads: 2, Exact: true})
	}
	affine := 0
	for _, q := range g.Cases {
		if q.Tensors["y"] == "" || q.Tensors["packed"] == "" || len(q.Shape) != 2 {
			continue
		}
		if q.Mode == "affine" {
			affine++
		}
		m := layout.Matrix{Name: q.Name, Rows: q.Shape[0], Cols: q.Shape[1], Bits: q.Bits, Group: q.Group, GlobalScale: 1,
			Scheme: map[string]layout.Scheme{"affine": layout.Affine, "mxfp4": layout.MXFP4, "mxfp8": layout.MXFP8, "nvfp4": layout.NVFP4}[q.Mode]}
		part := func(name string) checkpoint.Tensor {
			x, err := c.Tensor(q.Tensors[name])
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		m.Weight, m.Scales = part("packed").Data, part("scales").Data
		if q.Mode == "affine" {
			m.Biases, m.DType = part("biases").Data, part("scales").DType
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		x, cols := rows(q.Tensors["x"])
		want, outs := rows(q.Tensors["y"])
		n := len(x) / cols
		tol := 1e-4 // of the largest product of a row
		if q.DType != "float32" {
			tol = 5e-2 // the recorded product was rounded to 16 bits
		}
		for name, b := range backends {
			w, err := b.Load(m)
			if err != nil {
				t.Errorf("%s on %s: %v", q.Name, name, err)
				continue
			}
			s := compute.NewScratch(b)
			in, err1 := s.F32(n, cols)
			out, err2 := s.F32(n, outs)
			one, err3 := s.F32(n, outs)
			if err1 != nil || err2 != nil || err3 != nil {
				t.Fatal(err1, err2, err3)
			}
			for i := range n {
				copy(in.F32(i), x[i*cols:])
			}
			var p compute.Program
			p.Add(compute.Linear{X: in, W: w, Scale: 1, Out: out, Prefill: n})
			for i := range n {
				p.Add(compute.Linear{X: in.Slice(i, i+1), W: w, Scale: 1, Out: one.Slice(i, i+1), Prefill: 1})
			}
			if err := compute.Run(b, &p, nil); err != nil {
				t.Fatalf("%s on %s: %v", q.Name, name, err)
			}
			for i := range n {
				top := 0.0
				for _, v := range want[i*outs : (i+1)*outs] {
					top = math.Max(top, math.Abs(float64(v)))
				}
				for o, v := range out.F32(i) {
					if d := math.Abs(float64(v - want[i*outs+o])); !(d <= tol*math.Max(top, 1e-30)) {
						t.Errorf("%s on %s: row %d output %d is %v, wants %v", q.Name, name, i, o, v, want[i*outs+o])
						break
					}
					if math.Float32bits(v) != math.Float32bits(one.F32(i)[o]) {
						t.Errorf("%s on %s: row %d output %d has other bits alone", q.Name, name, i, o)
						break
					}
				}
			}
			s.Close()
			b.Unload(w)
		}
	}
	if affine < 20 {
		t.Errorf("only %d affine cases were compared", affine)
	}
}
