package engine_test

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/internal/testmodel"
	"sparkbar/engine/machine"
	"sparkbar/resources"
)

// fineTuned writes the demo, an adapter of type full for it, and the demo into
// which that was merged, below root.
func fineTuned(t *testing.T, root string) (base, adapter, merged string) {
	t.Helper()
	target, _ := resources.Demo()
	write := func(name string, files map[string][]byte) string {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, data := range files {
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	base, merged = write("base", target), write("merged", target)
	config, tensors := testmodel.Read(t, base)
	replaced := map[string]testmodel.Tensor{}
	for name, x := range tensors {
		if !strings.Contains(name, "norm.weight") {
			continue
		}
		values := make([]float32, x.Shape[0])
		for i := range values {
			switch x.DType {
			case "BF16":
				values[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(x.Data[2*i:])) << 16)
			case "F32":
				values[i] = math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:]))
			default:
				t.Fatalf("%s is %s", name, x.DType)
			}
			values[i] *= 1 + 0.3*float32(i%7)
		}
		replaced[name] = testmodel.F32(x.Shape, values...)
		tensors[name] = replaced[name]
	}
	if len(replaced) == 0 {
		t.Fatal("the demo has no norms")
	}
	weights := func(tensors map[string]testmodel.Tensor) []byte {
		b, err := os.ReadFile(filepath.Join(testmodel.Write(t, config, tensors), "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	write("merged", map[string][]byte{"model.safetensors": weights(tensors)})
	adapter = write("adapter", map[string][]byte{"adapters.safetensors": weights(replaced), "adapter_config.json": []byte(`{"fine_tune_type": "full", "num_layers": 16}`)})
	return base, adapter, merged
}

// TestFullAdapter: an adapter of type full, in a request or of the load, answers
// as the model does into which it was merged, with speculation and without, beside
// requests of the model itself, and leaves nothing behind.
func TestFullAdapter(t *testing.T) {
	root := t.TempDir()
	base, adapter, merged := fineTuned(t, root)
	_, drafterFiles := resources.Demo()
	drafter := filepath.Join(root, "drafter")
	if err := os.MkdirAll(drafter, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range drafterFiles {
		if err := os.WriteFile(filepath.Join(drafter, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	x := expected(t)
	ask := func(adapter string) engine.Request {
		r := x.request(0)
		r.Adapter, r.MaxTokens, r.Logprobs = adapter, 40, 0
		return r
	}
	start := func(o engine.Options, r engine.LoadRequest) *engine.Engine {
		t.Helper()
		o.ModelRoot, o.Slots = root, 4
		o.Backend = func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }
		e := engine.New(o)
		t.Cleanup(func() { e.Close(context.Background()) })
		r.Warmup = ptr(false)
		if _, err := e.LoadFrom(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		return e
	}
	plain := answer(t, start(engine.Options{}, engine.LoadRequest{Model: base, Mode: "baseline"}), ask(""))
	want := answer(t, start(engine.Options{}, engine.LoadRequest{Model: merged, Mode: "baseline"}), ask(""))
	if slices.Equal(ids(plain), ids(want)) || len(ids(want)) < 12 {
		t.Fatalf("the adapter changes nothing: %q", want.Text)
	}
	for _, load := range []engine.LoadRequest{{Mode: "baseline"}, {Mode: "lookup"}, {Mode: "dspark", Drafter: drafter}} {
		load.Model = base
		e := start(engine.Options{}, load)
		for i := range 4 { // in turn, the second time from what is stored
			use, exp := "", plain
			if i%2 == 1 {
				use, exp = adapter, want
			}
			if got := answer(t, e, ask(use)); !slices.Equal(ids(got), ids(exp)) {
				t.Errorf("%s, adapter %q: %q, want %q", load.Mode, use, got.Text, exp.Text)
			}
		}
		load.Adapter = adapter
		if got := answer(t, start(engine.Options{}, load), ask("")); !slices.Equal(ids(got), ids(want)) {
			t.Errorf("%s, loaded with the adapter: %q, want %q", load.Mode, got.Text, want.Text)
		}
	}

	// One that does not fit into the memory is refused.
	free := uint64(1 << 40)
	e := start(engine.Options{Memory: func() machine.Memory { return machine.Memory{Total: 1 << 40, Available: free} }}, engine.LoadRequest{Model: base, Mode: "baseline"})
	free = 1 << 10
	_, err := e.Generate(context.Background(), ask(adapter), nil)
	if kindOf(err) != engine.ErrLoadFailed || fieldOf(err) != "adapters" || !strings.Contains(err.Error(), "memory") {
		t.Errorf("no room: %v", err)
	}
}

func ids(r engine.Result) []int32 {
	var all []int32
	for _, t := range r.Tokens {
		all = append(all, t.ID)
	}
	return all
}
