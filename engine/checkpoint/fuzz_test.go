package checkpoint

import (
	"os"
	"runtime"
	"testing"
)

// allocated is what f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// FuzzSafetensors: any file is refused or every view has the size its type and shape say, within bounded memory.
func FuzzSafetensors(f *testing.F) {
	f.Add(safetensors(f, []fileTensor{{"a.weight", "F32", []int{2, 1}, make([]byte, 8)}, {"b", "BF16", nil, make([]byte, 2)}}))
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Add([]byte("\x10\x00\x00\x00\x00\x00\x00\x00{\"a\":[[[[[[[[[["))
	f.Fuzz(func(t *testing.T, file []byte) {
		checkAllocation(t, len(file), func() {
			list, _, err := parseSafetensors(file)
			if err != nil {
				return
			}
			for _, e := range list {
				if n, ok := product(e.shape, e.dtype.Size()); !ok || n != uint64(len(e.data)) {
					t.Errorf("%q: %s %v in %d bytes", e.name, e.dtype, e.shape, len(e.data))
				}
			}
		})
	})
}

// FuzzGGUF: any file is refused or can be read from end to end.
func FuzzGGUF(f *testing.F) {
	f.Add(base("llama").f32("blk.0.attn_q.weight", 0, 8, 8).bytes())
	f.Add(base("lfm2").key("lfm2.attention.head_count_kv", []int{0}).key("lfm2.shortconv.l_cache", 3).bytes())
	f.Add(base("gemma3").f32("output_norm.weight", 0, 8).bytes())
	f.Add(must(os.ReadFile("testdata/gguf/blocks.gguf"))(f))
	f.Fuzz(func(t *testing.T, file []byte) {
		checkAllocation(t, len(file), func() {
			meta, list, err := parseGGUF(file)
			if err != nil {
				return
			}
			for _, key := range meta.Keys() {
				meta.Int(key)
				meta.Float(key)
				meta.String(key)
			}
			c := &Checkpoint{path: "fuzz", gguf: meta, tensors: map[string]*entry{}, files: []mapped{{path: "fuzz"}}}
			defer c.Close()
			if c.adoptGGUF(list) != nil {
				return
			}
			if _, err := ParseConfig("fuzz", c.RawConfig()); err != nil {
				t.Errorf("the generated config does not parse: %v", err)
			}
			for _, name := range c.Names() {
				if m, err := c.Matrix(name); err == nil && m.Cols < 1<<16 {
					if err := m.Row(make([]float32, m.Cols), 0, m.Rows-1); err != nil {
						t.Errorf("%q: %v", name, err)
					}
				}
			}
		})
	})
}

// FuzzConfig: any text is refused or every getter can be called on it, and it survives being written again.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"a": 1, "b": [1.5, Infinity, -Infinity, NaN], "c": {"__float__": "Infinity"}, "d": null, "e": "\u00e9\ud83d\ude00"}`))
	f.Add([]byte(`{"quantization": {"group_size": 64, "bits": 4, "model.layers.0": {"group_size": 32, "bits": 8}, "lm_head.x": false}}`))
	f.Add([]byte(`{"a":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[`))
	f.Fuzz(func(t *testing.T, text []byte) {
		checkAllocation(t, len(text), func() {
			c, err := ParseConfig("fuzz", text)
			if err != nil {
				return
			}
			for _, key := range c.Keys() {
				c.IntOr(key, 1)
				c.FloatOr(key, 1)
				c.BoolOr(key, true)
				c.StringOr(key, "")
				c.Ints(key)
				c.Floats(key)
				c.Strings(key)
				c.Sub(key, key)
			}
			_, _ = readQuantization(c.obj)
		})
		if c, err := ParseConfig("fuzz", text); err == nil {
			again, err := ParseConfig("fuzz", appendJSON(nil, c.obj.values))
			if err != nil {
				t.Fatalf("written as %s: %v", appendJSON(nil, c.obj.values), err)
			}
			if a, b := appendJSON(nil, c.obj.values), appendJSON(nil, again.obj.values); string(a) != string(b) {
				t.Errorf("%s became %s", a, b)
			}
		}
	})
}

// FuzzIndex: a shard index never names a file outside its folder.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata": {"total_size": 1}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}`))
	f.Add([]byte(`{"weight_map": {"a": "../../etc/passwd"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		index, err := parseIndex(text)
		if err != nil {
			return
		}
		for _, file := range index {
			for _, b := range []byte(file) {
				if b == '/' || b == '\\' {
					t.Errorf("%q is not a name", file)
				}
			}
			if file == "" || file == "." || file == ".." {
				t.Errorf("%q is not a name", file)
			}
		}
	})
}
