package checkpoint_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sparkbar/engine/checkpoint"
	"sparkbar/engine/internal/testmodel"
)

func TestFingerprint(t *testing.T) {
	values := make([]float32, 1000)
	config := map[string]any{"model_type": "llama", "hidden_size": 8}
	tensors := map[string]testmodel.Tensor{"a.weight": testmodel.F32([]int{1000}, values...), "b.weight": testmodel.F32([]int{2, 2}, 1, 2, 3, 4)}
	dir := testmodel.Write(t, config, tensors)
	file := filepath.Join(dir, "model.safetensors")
	date := time.Unix(1_700_000_000, 0)
	of := func(dir string) string {
		t.Helper()
		if err := os.Chtimes(filepath.Join(dir, "model.safetensors"), date, date); err != nil {
			t.Fatal(err)
		}
		c, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.Fingerprint()
	}
	first := of(dir)
	if first != of(dir) || len(first) != 32 {
		t.Fatalf("not stable: %s", first)
	}
	seen := map[string]string{first: "the same"}
	differs := func(what, f string) {
		t.Helper()
		if was, there := seen[f]; there {
			t.Errorf("%s: as %s", what, was)
		}
		seen[f] = what
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	change := func(what string, at int) {
		t.Helper()
		b := bytes.Clone(whole)
		b[at] ^= 1
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		differs(what, of(dir))
	}
	change("the last byte", len(whole)-1)
	change("the middle of a", len(whole)-16-2000+10)
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	date = date.Add(time.Second)
	differs("another date", of(dir))
	date = date.Add(-time.Second)
	config["hidden_size"] = 9
	differs("another config", of(testmodel.Write(t, config, tensors)))
	config["hidden_size"] = 8
	tensors["c.weight"] = tensors["b.weight"]
	delete(tensors, "b.weight")
	differs("another name", of(testmodel.Write(t, config, tensors)))
}
