package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	return withHeader(must(json.Marshal(header))(t), data)
}

func withHeader(header, data []byte) []byte {
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(file, header...), data...)
}

func writeFile(t testing.TB, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeSafetensors(t testing.TB, list []fileTensor) string {
	return writeFile(t, filepath.Join(t.TempDir(), "weights.safetensors"), safetensors(t, list))
}

func TestTensorTypes(t *testing.T) {
	le := binary.LittleEndian
	list := []fileTensor{
		{"f64", "F64", []int{1}, le.AppendUint64(nil, 0x3ff8000000000000)}, {"f32", "F32", nil, f32bytes(-2.5)}, {"bf16", "BF16", []int{2}, []byte{0x80, 0x3f, 0x00, 0xc0}},
		{"f16", "F16", []int{1, 1}, []byte{0x00, 0x3e}}, {"e4m3", "F8_E4M3", []int{1}, []byte{0x3c}}, {"e5m2", "F8_E5M2", []int{1}, []byte{0x3e}}, {"e8m0", "F8_E8M0", []int{1}, []byte{128}},
		{"i8", "I8", []int{1}, []byte{0xfe}}, {"u8", "U8", []int{1}, []byte{0xfe}}, {"bool", "BOOL", []int{2}, []byte{0, 1}},
		{"i16", "I16", []int{1}, le.AppendUint16(nil, 0xfffe)}, {"u16", "U16", []int{1}, le.AppendUint16(nil, 0xfffe)},
		{"i32", "I32", []int{1}, le.AppendUint32(nil, 0xfffffffe)}, {"u32", "U32", []int{1}, le.AppendUint32(nil, 0xfffffffe)},
		{"i64", "I64", []int{1}, le.AppendUint64(nil, 1<<64-2)}, {"u64", "U64", []int{1}, le.AppendUint64(nil, 1<<64-2)}, {"none", "F32", []int{0, 3}, nil},
	}
	c := must(Open(writeSafetensors(t, list)))(t)
	defer c.Close()
	for name, want := range map[string][]float32{"f64": {1.5}, "f32": {-2.5}, "bf16": {1, -2}, "f16": {1.5}, "e4m3": {1.5}, "e5m2": {1.5}, "e8m0": {2}, "i8": {-2}, "u8": {254}, "bool": {0, 1},
		"i16": {-2}, "u16": {65534}, "i32": {-2}, "u32": {4294967294}, "i64": {-2}, "u64": {1 << 64}, "none": {}} {
		tensor := must(c.Tensor(name))(t)
		if got := must(tensor.Float32())(t); !slices.Equal(got, want) {
			t.Errorf("%s reads %v, want %v", name, got, want)
		}
		ints, err := tensor.Int64()
		if isInt := strings.ContainsAny(name[:1], "iu") && name != "u64" || name == "bool"; isInt {
			if err != nil || float32(ints[len(ints)-1]) != want[len(want)-1] {
				t.Errorf("%s reads %v, %v", name, ints, err)
			}
		} else if err == nil && name != "none" {
			t.Errorf("%s reads as integers %v", name, ints)
		}
	}
	if got := c.FileMetadata()["format"]; got != "mlx" {
		t.Errorf("the header's format is %q", got)
	}
	if c.Config().Err() != nil || !c.Config().Empty() || c.RawConfig() != nil || !c.GenerationConfig().Empty() {
		t.Error("a lone file has a config")
	}
	bare := must(Open(writeFile(t, filepath.Join(t.TempDir(), "w.safetensors"), withHeader([]byte(`{"__metadata__":null,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   `), []byte{1}))))(t)
	defer bare.Close()
	if !bare.Has("a") || len(bare.FileMetadata()) != 0 {
		t.Error("a header with a null metadata map reads wrong")
	}
	if names := c.Names(); len(names) != len(list) || !slices.IsSorted(names) {
		t.Errorf("names %v", names)
	}
}

// Each planted fault is refused with an error that names file and fault, and the tensor when there is one.
func TestSafetensorsFaults(t *testing.T) {
	entry := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"dtype":%q,"shape":%s,"data_offsets":%s}`, dtype, shape, offsets)
	}
	one := func(e string, n int) []byte { return withHeader([]byte(`{"bad":`+e+`}`), make([]byte, n)) }
	two := func(a, b string, n int) []byte { return withHeader([]byte(`{"a":`+a+`,"bad":`+b+`}`), make([]byte, n)) }
	ok := entry("F32", "[2]", "[0,8]")
	for _, tc := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "is empty"},
		{"four bytes", []byte{1, 2, 3, 4}, "too few for a safetensors header"},
		{"header of 2^63 bytes", []byte("\x00\x00\x00\x00\x00\x00\x00\x80{}"), "claims 9223372036854775808 bytes"},
		{"header cut off", []byte("\x40\x00\x00\x00\x00\x00\x00\x00{}"), "cut off inside its header"},
		{"no JSON", withHeader([]byte("hello"), nil), "bad safetensors header"},
		{"a list", withHeader([]byte("[]"), nil), "bad safetensors header"},
		{"JSON cut off", withHeader([]byte(`{"bad":`), nil), "the JSON ends"},
		{"text after the JSON", withHeader([]byte(`{} x`), nil), "text after the end"},
		{"deep nesting", withHeader([]byte(`{"bad":`+strings.Repeat(`{"x":`, 100)), nil), "nested deeper"},
		{"deep lists", withHeader([]byte(`{"bad":{"x":`+strings.Repeat(`[`, 1<<20)), nil), "nested deeper"},
		{"unknown type", one(entry("F4", "[2]", "[0,1]"), 1), `tensor "bad": element type "F4" is unknown`},
		{"no type", one(`{"shape":[2],"data_offsets":[0,8]}`, 8), `tensor "bad": element type "" is unknown`},
		{"no shape", one(`{"dtype":"F32","data_offsets":[0,8]}`, 8), `tensor "bad": shape or data_offsets`},
		{"no offsets", one(`{"dtype":"F32","shape":[2]}`, 8), `tensor "bad": shape or data_offsets`},
		{"one offset", one(entry("F32", "[2]", "[0]"), 8), `tensor "bad": shape or data_offsets`},
		{"three offsets", one(entry("F32", "[2]", "[0,8,9]"), 8), `tensor "bad": data_offsets has more than two`},
		{"offsets backwards", one(entry("F32", "[2]", "[8,0]"), 8), `tensor "bad": data_offsets [8, 0] run backwards`},
		{"negative offset", one(entry("F32", "[2]", "[-8,0]"), 8), `tensor "bad": bad data_offsets`},
		{"fractional offset", one(entry("F32", "[2]", "[0,8.0]"), 8), `tensor "bad": bad data_offsets`},
		{"offset beyond 2^64", one(entry("F32", "[2]", "[0,18446744073709551616]"), 8), "too large"},
		{"negative dimension", one(entry("F32", "[-2]", "[0,8]"), 8), `tensor "bad": bad shape`},
		{"dimension of 2^63", one(entry("F32", "[9223372036854775808]", "[0,8]"), 8), `tensor "bad": dimension 9223372036854775808`},
		{"product beyond 2^63", one(entry("F32", "[4294967296,4294967296]", "[0,8]"), 8), `tensor "bad": shape [4294967296 4294967296] is too large`},
		{"product that wraps to 8", one(entry("F32", "[4611686018427387906]", "[0,8]"), 8), `tensor "bad": shape [4611686018427387906] is too large`},
		{"nine dimensions", one(entry("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4), `tensor "bad": more than 8 dimensions`},
		{"shape larger than the range", one(entry("F32", "[3]", "[0,8]"), 8), `tensor "bad": F32 [3] needs 12 bytes`},
		{"shape smaller than the range", one(entry("F32", "[1]", "[0,8]"), 8), `tensor "bad": F32 [1] needs 4 bytes`},
		{"past the end", one(ok, 7), `tensor "bad" ends at data byte 8, but the file ends at 7: it is cut off`},
		{"far past the end", one(entry("U8", "[4611686018427387904]", "[0,4611686018427387904]"), 7), `tensor "bad" ends at data byte 4611686018427387904`},
		{"overlap", two(ok, entry("F32", "[2]", "[4,12]"), 12), `tensor "bad" overlaps tensor "a"`},
		{"the same range twice", two(ok, ok, 8), `overlaps`},
		{"gap", two(ok, entry("F32", "[2]", "[12,20]"), 20), `gap of 4 bytes before tensor "bad"`},
		{"gap at the start", one(entry("F32", "[2]", "[4,12]"), 12), `gap of 4 bytes before tensor "bad"`},
		{"bytes after the end", one(ok, 9), "1 bytes follow the last tensor"},
		{"a tensor twice", withHeader([]byte(`{"bad":`+ok+`,"bad":`+ok+`}`), make([]byte, 8)), `tensor "bad" is listed twice`},
		{"a huge name", withHeader([]byte(`{"`+strings.Repeat("x", 1<<20)+`":`+ok+`}`), make([]byte, 8)), "a tensor name has 1048576 bytes"},
		{"a huge number", one(entry("F32", "["+strings.Repeat("1", 1<<20)+"]", "[0,8]"), 8), "too large"},
		{"a string that never ends", withHeader([]byte(`{"bad`), nil), "string without an end"},
		{"control character", withHeader([]byte("{\"b\x01\":1}"), nil), "control character"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := writeFile(t, filepath.Join(t.TempDir(), "weights.safetensors"), tc.file)
			c, err := Open(path)
			if err == nil || c != nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "download") || len(err.Error()) > 500 {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	whole := must(os.ReadFile("testdata/quant/nvfp4_global.safetensors"))(t)
	for n := range len(whole) {
		if _, _, err := parseSafetensors(whole[:n]); err == nil {
			t.Fatalf("cut to %d of %d bytes and accepted", n, len(whole))
		}
	}
}

func TestFolders(t *testing.T) {
	file := func(names ...string) []byte {
		var list []fileTensor
		for _, n := range names {
			list = append(list, fileTensor{n, "F32", []int{1, 1}, f32bytes(1)})
		}
		return safetensors(t, list)
	}
	index := func(pairs ...string) []byte {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return must(json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 8}, "weight_map": m}))(t)
	}
	const config, ix = `{"model_type": "test"}`, "model.safetensors.index.json"
	first, second := "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	for _, tc := range []struct {
		name  string
		files map[string][]byte
		want  string // an error, or "= " and the names
	}{
		{"single", map[string][]byte{"model.safetensors": file("a", "b")}, "= a b"},
		{"sharded with an index", map[string][]byte{first: file("a"), second: file("b"), ix: index("a", first, "b", second)}, "= a b"},
		{"sharded without an index", map[string][]byte{first: file("a"), second: file("b")}, "= a b"},
		{"other files beside the index", map[string][]byte{first: file("a"), second: file("b"), "model.safetensors": file("a", "b"), ix: index("a", first, "b", second)}, "= a b"},
		{"index with free names", map[string][]byte{"w1.safetensors": file("a"), ix: index("a", "w1.safetensors")}, "= a"},
		{"index of another packaging", map[string][]byte{"model.safetensors": file("a"), ix: index("a", first, "b", second)}, "= a"},
		{"other safetensors are no weights", map[string][]byte{"model.safetensors": file("a"), "consolidated.safetensors": file("a"), "adapters.safetensors": file("z")}, "= a"},
		{"a shard of the index is missing", map[string][]byte{first: file("a"), ix: index("a", first, "b", second)}, second + " is missing"},
		{"a shard is missing, no index", map[string][]byte{second: file("b")}, first + " is missing"},
		{"a tensor in two files", map[string][]byte{first: file("a"), second: file("a")}, `tensor "a" is also in`},
		{"no weights", map[string][]byte{}, "holds no weights"},
		{"an index that leaves the folder", map[string][]byte{"model.safetensors": file("a"), ix: index("a", "../model.safetensors")}, "not a file name"},
		{"a damaged index", map[string][]byte{"model.safetensors": file("a"), ix: []byte(`{"weight_map": [`)}, ix},
		{"no config", map[string][]byte{"model.safetensors": file("a"), "config.json": nil}, "no config.json"},
		{"a damaged config", map[string][]byte{"model.safetensors": file("a"), "config.json": []byte(`{"model_type": `)}, "config.json is not valid JSON"},
		{"a config that is a list", map[string][]byte{"model.safetensors": file("a"), "config.json": []byte(`[]`)}, "config.json is not a JSON object"},
		{"a tagged number as config", map[string][]byte{"model.safetensors": file("a"), "config.json": []byte(`{"__float__": "NaN"}`)}, "config.json is not a JSON object"},
		{"a huge config", map[string][]byte{"model.safetensors": file("a"), "config.json": bytes.Repeat([]byte(" "), maxConfigBytes+1)}, "config.json is larger than"},
		{"a damaged generation config", map[string][]byte{"model.safetensors": file("a"), "generation_config.json": []byte(`{`)}, "generation_config.json"},
		{"a cut-off shard", map[string][]byte{"model.safetensors": file("a", "b")[:150]}, "cut off"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if _, own := tc.files["config.json"]; !own {
				writeFile(t, filepath.Join(dir, "config.json"), []byte(config))
			}
			for name, data := range tc.files {
				if data != nil {
					writeFile(t, filepath.Join(dir, name), data)
				}
			}
			c, err := Open(dir)
			if want, good := strings.CutPrefix(tc.want, "= "); good {
				if err != nil || strings.Join(c.Names(), " ") != want || c.Bytes() != int64(4*len(c.Names())) || c.Config().String("model_type") != "test" {
					t.Fatalf("%v, want %s", err, want)
				}
				c.Close()
				return
			}
			if err == nil || c != nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}

	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "config.json"), []byte(config))
	writeFile(t, filepath.Join(dir, "generation_config.json"), []byte(`{"eos_token_id": [1, 2]}`))
	writeFile(t, filepath.Join(dir, ix), index("a", first, "b", second, "gone", second))
	writeFile(t, filepath.Join(dir, second), file("b"))
	c := must(Open(filepath.Join(dir, writeBase(t, dir, first, file("a")))))(t) // any shard stands for its folder
	defer c.Close()
	if got := c.GenerationConfig().Ints("eos_token_id"); !slices.Equal(got, []int{1, 2}) || len(c.Names()) != 2 {
		t.Errorf("eos %v, names %v", got, c.Names())
	}
	if _, err := c.Tensor("gone"); err == nil || !strings.Contains(err.Error(), `"gone"`) || !strings.Contains(err.Error(), second) {
		t.Errorf("a tensor the index promises: %v", err)
	}
	if _, err := c.Tensor("never"); err == nil || !strings.Contains(err.Error(), `"never"`) {
		t.Errorf("an unknown tensor: %v", err)
	}
	writeFile(t, filepath.Join(dir, "adapters.safetensors"), file("z"))
	lone := must(Open(filepath.Join(dir, "adapters.safetensors")))(t)
	defer lone.Close()
	if names := lone.Names(); !slices.Equal(names, []string{"z"}) {
		t.Errorf("adapters hold %v", names)
	}
	for _, path := range []string{filepath.Join(dir, "absent"), filepath.Join(dir, "config.json")} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.gguf"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(dir, "folder.gguf")); err == nil {
		t.Error("an empty folder called .gguf opened")
	}
}

func writeBase(t testing.TB, dir, name string, data []byte) string {
	writeFile(t, filepath.Join(dir, name), data)
	return name
}

func TestRename(t *testing.T) {
	c := must(Open(writeSafetensors(t, []fileTensor{{"x.a", "F32", nil, f32bytes(1)}, {"x.b", "F32", nil, f32bytes(2)}, {"vision.c", "F32", nil, f32bytes(3)}})))(t)
	defer c.Close()
	if err := c.Rename(func(string) (string, bool) { return "one", true }); err == nil || !strings.Contains(err.Error(), `"x.a"`) {
		t.Errorf("two tensors of one name: %v", err)
	}
	if err := c.Rename(func(n string) (string, bool) { return strings.TrimPrefix(n, "x."), strings.HasPrefix(n, "x.") }); err != nil {
		t.Fatal(err)
	}
	if names := c.Names(); !slices.Equal(names, []string{"a", "b"}) || c.Has("vision.c") || c.Bytes() != 8 {
		t.Errorf("names %v", names)
	}
	if got := must(must(c.Tensor("b"))(t).Float32())(t); got[0] != 2 {
		t.Errorf("b reads %v", got)
	}
}
