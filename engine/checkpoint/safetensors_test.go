package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

type fileTensor struct {
	name, dtype string
	shape       []int
	data        []byte
}

// safetensors builds a valid file.
func safetensors(t testing.TB, list []fileTensor) []byte {
	header := map[string]any{"__metadata__": map[string]string{"format": "mlx"}}
	var data []byte
	for _, ft := range list {
		shape := ft.shape
		if shape == nil {
			shape = []int{}
		}
		header[ft.name] = map[string]any{"dtype": ft.dtype, "shape": shape, "data_offsets": []int{len(data), len(data) + len(ft.data)}}
		data = append(data, ft.data...)
	}
	text := must(json.Marshal(header))(t)
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return append(append(file, text...), data...)
}

func writeSafetensors(t testing.TB, list []fileTensor) string {
	path := filepath.Join(t.TempDir(), "weights.safetensors")
	if err := os.WriteFile(path, safetensors(t, list), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
