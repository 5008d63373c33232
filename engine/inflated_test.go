package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
)

// stored is a tensor of a safetensors file.
type stored struct {
	DType   string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets [2]int `json:"data_offsets"`
	data    []byte
}

func readTensors(t testing.TB, file []byte) map[string]*stored {
	t.Helper()
	n := binary.LittleEndian.Uint64(file)
	var header map[string]json.RawMessage
	if err := json.Unmarshal(file[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	all := map[string]*stored{}
	for name, text := range header {
		if name == "__metadata__" {
			continue
		}
		s := &stored{}
		if err := json.Unmarshal(text, s); err != nil {
			t.Fatal(err)
		}
		s.data = file[8+n:][s.Offsets[0]:s.Offsets[1]]
		all[name] = s
	}
	return all
}

func writeTensors(t testing.TB, all map[string]*stored) []byte {
	t.Helper()
	var body []byte
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s := all[name]
		s.Offsets = [2]int{len(body), len(body) + len(s.data)}
		body = append(body, s.data...)
	}
	header, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	header = append(header, bytes.Repeat([]byte(" "), (8-len(header)%8)%8)...)
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), body...)
}

// inflate makes the demo's target heavy without changing what it says: its inner
// width grows by columns that are zero on the way out, and layers are added whose
// output projections are zero. What is added is random otherwise.
func inflate(t testing.TB, files map[string][]byte, layers, width int) map[string][]byte {
	t.Helper()
	var config map[string]any
	if err := json.Unmarshal(files["config.json"], &config); err != nil {
		t.Fatal(err)
	}
	old, inner := int(config["num_hidden_layers"].(float64)), int(config["intermediate_size"].(float64))
	all := readTensors(t, files["model.safetensors"])
	rng := rand.New(rand.NewPCG(1, 1))
	noise := func(s *stored, from int) {
		for i := from; i < len(s.data); i++ {
			if s.data[i] = byte(rng.IntN(256)); s.DType == "BF16" && i%2 == 1 { // a small number, of either sign
				s.data[i] = 0x3a | s.data[i]&0x80
			}
		}
	}
	// widen a matrix of an MLP, of which side is the one that grows (0 rows, 1
	// columns); out has zeros there.
	widen := func(s *stored, side int) {
		rows, cols := s.Shape[0], s.Shape[1]
		size := len(s.data) / (rows * cols)
		w := &stored{DType: s.DType, Shape: slices.Clone(s.Shape)}
		w.Shape[side] = s.Shape[side] * width / inner
		w.data = make([]byte, w.Shape[0]*w.Shape[1]*size)
		for r := range rows {
			copy(w.data[r*w.Shape[1]*size:], s.data[r*cols*size:(r+1)*cols*size])
		}
		if side == 0 {
			noise(w, len(s.data))
		}
		*s = *w
	}
	for name, s := range all {
		switch {
		case strings.Contains(name, "mlp.down_proj."):
			widen(s, 1)
		case strings.Contains(name, "mlp."):
			widen(s, 0)
		}
	}
	for l := old; l < old+layers; l++ {
		for name, s := range maps.Clone(all) {
			rest, ok := strings.CutPrefix(name, "model.layers.0.")
			if !ok {
				continue
			}
			c := &stored{DType: s.DType, Shape: s.Shape, data: make([]byte, len(s.data))}
			switch {
			case strings.Contains(rest, "norm"):
				copy(c.data, s.data)
			case strings.Contains(rest, "o_proj.weight"), strings.Contains(rest, "down_proj.weight"), !strings.Contains(rest, "o_proj") && !strings.Contains(rest, "down_proj"):
				noise(c, 0)
			}
			all[fmt.Sprintf("model.layers.%d.%s", l, rest)] = c
		}
	}
	config["num_hidden_layers"], config["intermediate_size"] = old+layers, width
	out := maps.Clone(files)
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	out["config.json"], out["model.safetensors"] = text, writeTensors(t, all)
	return out
}

// inflated is the demo with a heavy target and the demo's drafters.
func inflated(t testing.TB, layers, width int) map[string]engine.Builtin {
	demo := demoBuiltins()["demo"]
	demo.Target = inflate(t, demo.Target, layers, width)
	return map[string]engine.Builtin{"inflated": demo}
}

// TestInflatedDemo: the heavy demo answers as the demo does, in every mode.
func TestInflatedDemo(t *testing.T) {
	x := expected(t)
	builtins := inflated(t, 2, 1152)
	for _, mode := range []string{"baseline", "dspark", "dflash", "lookup"} {
		e := engine.New(engine.Options{Builtins: builtins, Version: "test", Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }})
		if _, err := e.LoadFrom(context.Background(), engine.LoadRequest{Model: "inflated", Mode: mode, Warmup: ptr(false)}); err != nil {
			t.Fatal(err)
		}
		for i, p := range x.Prompts {
			res, err := e.Generate(context.Background(), x.request(i), nil)
			if err != nil {
				t.Fatal(err)
			}
			if res.Text != p.Text {
				t.Errorf("%s, %s: %q, the demo says %q", mode, p.Name, res.Text, p.Text)
			}
		}
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}
