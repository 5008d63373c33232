package models

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sparkbar/engine/checkpoint"
)

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }

func FuzzListing(f *testing.F) {
	const sha = "0123456789abcdef0123456789abcdef01234567"
	f.Add([]byte(`{"sha":"` + sha + `","siblings":[{"rfilename":"config.json","size":5,"blobId":"` + sha + `"},{"rfilename":"a/b.gguf","lfs":{"sha256":"` + sha + `","size":9}}]}`))
	f.Add([]byte(`{"sha":null,"siblings":[null]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseListing(text)
		if err != nil {
			return
		}
		for _, file := range l.files {
			if !filepath.IsLocal(filepath.FromSlash(file.Path)) || file.Size < 0 || !isHex(file.ETag, len(file.ETag)) {
				t.Errorf("%+v", file)
			}
		}
		for _, r := range []Request{{Repo: "a/b"}, {Repo: "a/b", File: "Q4"}, {Repo: "a/b", Drafter: true}} {
			if files, _, err := choose(r, l.files); err == nil && len(files) == 0 {
				t.Error("nothing chosen, and no error")
			}
		}
	})
}

func FuzzTensorTable(f *testing.F) {
	f.Add([]byte(`{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}`), int64(4))
	f.Add([]byte(`{"a":{"data_offsets":[9223372036854775807,-1]}}`), int64(0))
	f.Fuzz(func(t *testing.T, text []byte, n int64) {
		sizes, err := readTensorTable(bytes.NewReader(text), n)
		var sum int64
		for _, v := range sizes {
			sum += v
		}
		if err == nil && sum != n {
			t.Errorf("%d bytes accepted as %d", n, sum)
		}
	})
}

func FuzzGGUF(f *testing.F) {
	for _, name := range []string{"tiny-llama.gguf", "blocks.gguf", "tiny-dspark-bf16.gguf"} {
		text, err := os.ReadFile("../checkpoint/testdata/gguf/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text[:min(len(text), 4096)])
	}
	huge := binary.LittleEndian.AppendUint64([]byte("GGUF\x03\x00\x00\x00"), 1<<60)
	f.Add(binary.LittleEndian.AppendUint64(huge, 1<<62))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := readGGUF(bytes.NewReader(text), int64(len(text)))
		if err == nil {
			var m Model
			h.describe(&m)
		}
	})
}

func FuzzGeometry(f *testing.F) {
	f.Add([]byte(`{"model_type":"nemotron_h","hybrid_override_pattern":"M*-E","num_hidden_layers":4}`))
	f.Add([]byte(`{"model_type":"gemma4","num_hidden_layers":1e9,"sliding_window_pattern":0,"head_dim":-5}`))
	f.Add([]byte(`{"model_type":"nanbeige","loop_loss_weights":[1,2],"num_hidden_layers":4096,"num_attention_heads":1,"hidden_size":268435456}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		cfg, err := checkpoint.ParseConfig("config.json", text)
		if err != nil {
			return
		}
		g := GeometryOf(cfg)
		if fit := (Need{Target: g, MaxContext: 1 << 20}).Fit(Memory{Total: 1 << 36}); fit.Needed < 0 || fit.Context < 0 {
			t.Errorf("%+v: %+v", g, fit)
		}
	})
}

// Every GGUF header that the loader takes is taken, and says the same.
func TestGGUFHeaders(t *testing.T) {
	paths, _ := filepath.Glob("../checkpoint/testdata/gguf/*.gguf")
	if len(paths) == 0 {
		t.Fatal("no files")
	}
	for _, path := range paths {
		m := inspectGGUF([]string{path})
		c, err := checkpoint.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if !m.Complete {
			t.Errorf("%s: %+v", path, m)
		}
		cfg := c.Config()
		if want := cfg.StringOr("model_type", ""); m.Type != want && m.Type != "dspark" {
			t.Errorf("%s: type %q, wants %q", path, m.Type, want)
		}
		if want := cfg.IntOr("max_position_embeddings", 0); m.Context != want {
			t.Errorf("%s: context %d, wants %d", path, m.Context, want)
		}
		if g := GeometryOf(cfg); g.PerToken != m.Geometry.PerToken {
			t.Errorf("%s: %+v, wants %+v", path, m.Geometry, g)
		}
		c.Close()
	}
}
