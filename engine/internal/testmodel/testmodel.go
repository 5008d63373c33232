package testmodel

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sparkbar/engine/checkpoint"
)

// Tensor is one array of a safetensors file.
type Tensor struct {
	DType string
	Shape []int
	Data  []byte
}

// F32 makes a float32 tensor.
func F32(shape []int, v ...float32) Tensor {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return Tensor{"F32", shape, b}
}

// Write writes config.json and model.safetensors into a new folder that is
// removed after the test.
func Write(t testing.TB, config map[string]any, tensors map[string]Tensor) string {
	t.Helper()
	type entry struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	header := map[string]entry{}
	var names []string
	for n := range tensors {
		names = append(names, n)
	}
	slices.Sort(names)
	var body []byte
	for _, n := range names {
		w := tensors[n]
		header[n] = entry{w.DType, w.Shape, [2]int{len(body), len(body) + len(w.Data)}}
		body = append(body, w.Data...)
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	head, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	file = append(append(file, head...), body...)
	dir := t.TempDir()
	for name, data := range map[string][]byte{"config.json": text, "model.safetensors": file} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Read reads a model folder as Write takes it.
func Read(t testing.TB, dir string) (map[string]any, map[string]Tensor) {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	var config map[string]any
	if err := json.Unmarshal(ck.RawConfig(), &config); err != nil {
		t.Fatal(err)
	}
	tensors := map[string]Tensor{}
	for _, n := range ck.Names() {
		w, err := ck.Tensor(n)
		if err != nil {
			t.Fatal(err)
		}
		tensors[n] = Tensor{w.DType.String(), w.Shape, slices.Clone(w.Data)}
	}
	return config, tensors
}

// Edit writes a changed copy of a stored folder.
func Edit(t testing.TB, dir string, change func(config map[string]any, tensors map[string]Tensor)) string {
	t.Helper()
	config, tensors := Read(t, dir)
	change(config, tensors)
	return Write(t, config, tensors)
}
