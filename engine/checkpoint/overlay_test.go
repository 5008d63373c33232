package checkpoint

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOverlay: an overlay has the tensors of both, those above first, and frees
// nothing of theirs; what is read privately does not see the file change.
func TestOverlay(t *testing.T) {
	dir := t.TempDir()
	weights, err := os.ReadFile("../testdata/adapters/lora/adapters.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "adapters.safetensors")
	if err := os.WriteFile(path, weights, 0o644); err != nil {
		t.Fatal(err)
	}
	over, err := OpenCopy(path)
	if err != nil {
		t.Fatal(err)
	}
	defer over.Close()
	const own = "model.embed_tokens.weight"
	name := over.Names()[0]
	if err := over.Rename(func(n string) (string, bool) {
		if n == name {
			return own, true
		}
		return n, true
	}); err != nil {
		t.Fatal(err)
	}
	base, err := Open("../testdata/adapters/model")
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	want, err := over.Tensor(own)
	if err != nil {
		t.Fatal(err)
	}
	before := string(want.Data)
	below, err := base.Tensor(own)
	if err != nil {
		t.Fatal(err)
	}
	v := base.Overlay(over)
	got, err := v.Tensor(own)
	if err != nil || string(got.Data) != before {
		t.Errorf("the tensor above is not that of the upper checkpoint: %v", err)
	}
	if shape, kind := v.Form(own); len(shape) != len(want.Shape) || kind != want.DType {
		t.Errorf("%v %v, want %v %v", shape, kind, want.Shape, want.DType)
	}
	if shape, _ := v.Form("none"); shape != nil || v.Has("none") {
		t.Error("a tensor that is not there")
	}
	if got, want := len(v.Names()), len(base.Names())+len(over.Names())-1; got != want {
		t.Errorf("%d tensors, want %d", got, want)
	}
	if err := os.WriteFile(path, make([]byte, 8), 0o644); err != nil {
		t.Fatal(err)
	}
	if string(got.Data) != before {
		t.Error("the file has changed what was read of it")
	}
	for range 2 {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
	if string(want.Data) != before {
		t.Error("closing an overlay frees what lies below")
	}
	if again, err := base.Tensor(own); err != nil || &again.Data[0] != &below.Data[0] {
		t.Errorf("the lower checkpoint is another: %v", err)
	}
}
