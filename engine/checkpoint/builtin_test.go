package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpenBytes(t *testing.T) {
	dir := "../testdata/models/llama/smollm2-q4"
	files := map[string][]byte{}
	for _, n := range []string{"config.json", "model.safetensors"} {
		b, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		files[n] = b
	}
	c, err := OpenBytes("built-in", files)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	disk, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if got, want := strings.Join(c.Names(), " "), strings.Join(disk.Names(), " "); got != want || got == "" {
		t.Fatalf("tensors %s, want %s", got, want)
	}
	a, err := c.Matrix("model.embed_tokens")
	if err != nil {
		t.Fatal(err)
	}
	b, err := disk.Matrix("model.embed_tokens")
	if err != nil || string(a.Weight) != string(b.Weight) || a.Bits != b.Bits || a.Group != b.Group {
		t.Fatalf("%v: the embedding differs from the file's", err)
	}

	files["model.safetensors"] = files["model.safetensors"][:1000]
	if _, err := OpenBytes("built-in", files); err == nil || !strings.Contains(err.Error(), "built-in/model.safetensors") {
		t.Errorf("a cut file gives %v", err)
	}
	delete(files, "config.json")
	if _, err := OpenBytes("built-in", files); err == nil || !strings.Contains(err.Error(), "config.json") {
		t.Errorf("a missing config gives %v", err)
	}
}

// TestOpenBlob: a GGUF file is known by its first bytes, whatever its name.
func TestOpenBlob(t *testing.T) {
	found, err := filepath.Glob("testdata/*.gguf")
	if more, e := filepath.Glob("testdata/*/*.gguf"); err == nil {
		found, err = append(found, more...), e
	}
	if err != nil || len(found) == 0 {
		t.Fatal("no GGUF file in testdata", err)
	}
	b, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(t.TempDir(), "sha256-0123abcd")
	if err := os.WriteFile(blob, b, 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := Open(blob)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if len(c.Names()) == 0 || c.GGUF() == nil {
		t.Errorf("%d tensors", len(c.Names()))
	}
}
