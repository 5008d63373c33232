package engine_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
)

// TestCostsAreKept: the first load of a pair measures its rounds and derives the
// number of drafts; later ones find both in the file, and Calibrate measures
// again. The answers do not depend on it.
func TestCostsAreKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "calibration.json")
	x := expected(t)
	load := func(r engine.LoadRequest) *engine.Engine {
		t.Helper()
		e := engine.New(engine.Options{Builtins: demoBuiltins(), Version: "test", Calibrations: file, Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }})
		t.Cleanup(func() { e.Close(context.Background()) })
		r.Model, r.Warmup = "demo", ptr(false)
		if _, err := e.LoadFrom(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		return e
	}
	text := func(c engine.Calibration) string {
		t.Helper()
		if c.Costs == nil {
			t.Fatal("nothing was measured")
		}
		b, err := json.Marshal(c.Costs)
		if err != nil {
			t.Fatal(err)
		}
		return c.Key + string(b)
	}
	e := load(engine.LoadRequest{Mode: "dspark"})
	first := text(e.Calibration())
	m := e.Status().Model
	if most := 8; m.MaxDraft < 1 || m.MaxDraft > most {
		t.Errorf("derived cap %d", m.MaxDraft)
	}
	res, err := e.Generate(context.Background(), x.request(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	var ids []int32
	for _, tok := range res.Tokens {
		ids = append(ids, tok.ID)
	}
	if !slices.Equal(ids, x.Prompts[0].Tokens) || res.Stats.Cap == nil || *res.Stats.Cap > m.MaxDraft {
		t.Errorf("answer %v at cap %v, wants %v", ids, res.Stats.Cap, x.Prompts[0].Tokens)
	}
	if text(load(engine.LoadRequest{Mode: "dspark"}).Calibration()) != first {
		t.Error("the second load measures again")
	}
	if text(load(engine.LoadRequest{Mode: "dspark", MaxDraft: ptr(0)}).Calibration()) != first {
		t.Error("the controller does not work on the stored costs")
	}
	if c := load(engine.LoadRequest{Mode: "dflash"}).Calibration(); text(c) == first || c.Key == e.Calibration().Key {
		t.Error("another drafter has the same costs")
	}
	if c := load(engine.LoadRequest{Mode: "dspark", MaxDraft: ptr(3)}).Status().Model; c.MaxDraft != 3 {
		t.Errorf("a cap of 3 became %d", c.MaxDraft)
	}
	again, err := e.Calibrate(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if text(*again) == first || text(e.Calibration()) != text(*again) {
		t.Error("Calibrate did not measure")
	}
	if text(load(engine.LoadRequest{Mode: "dspark"}).Calibration()) != text(*again) {
		t.Error("what Calibrate measured is not kept")
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if load(engine.LoadRequest{Mode: "dspark"}).Calibration().Costs == nil {
		t.Error("a damaged file keeps a load from measuring")
	}
}

// TestCostsOfLookup: what a model without a drafter costs with several streams is
// measured once too, and kept apart by how many they are; what cannot be kept is
// said to whoever asked for a measurement.
func TestCostsOfLookup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "calibration.json")
	load := func(file string, streams int) *engine.Engine {
		t.Helper()
		e := engine.New(engine.Options{Builtins: demoBuiltins(), Version: "test", Calibrations: file, MaxBatch: streams, Backend: func() (compute.Backend, error) { return cpu.New(cpu.Options{}) }})
		t.Cleanup(func() { e.Close(context.Background()) })
		if _, err := e.LoadFrom(context.Background(), engine.LoadRequest{Model: "demo", Mode: "lookup", Warmup: ptr(true)}); err != nil {
			t.Fatal(err)
		}
		return e
	}
	key := load(file, 3).Calibration().Key
	var kept map[string]map[string]any
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if err != nil || kept[key] == nil {
		t.Fatalf("%q is not kept: %v in %s", key, err, text)
	}
	kept[key]["verify"] = map[string]float64{"1": 12345, "2": 12346}
	if text, err = json.Marshal(kept); err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if c := load(file, 3).Calibration(); c.Verify.At(1) != 12345 {
		t.Errorf("measured again: %v ms", c.Verify.At(1))
	}
	other := load(file, 2)
	if c := other.Calibration(); c.Verify.At(1) == 12345 {
		t.Error("two streams have the costs of three")
	}
	if c, err := other.Calibrate(context.Background()); err != nil || c.Unkept != nil {
		t.Errorf("%v, %v", c, err)
	}
	if _, err := other.LoadFrom(context.Background(), engine.LoadRequest{Model: "demo", Mode: "lookup", ContextWindow: ptr(64)}); err != nil {
		t.Fatal(err)
	}
	if short := other.Calibration().Key; short == key || !strings.Contains(short, "w64") {
		t.Errorf("what a short context costs has the key %q", short)
	}
	c, err := load(filepath.Join(file, "below a file"), 3).Calibrate(context.Background())
	if err != nil || c.Unkept == nil || c.Verify.Empty() {
		t.Errorf("%v, %v", c, err)
	}
}
