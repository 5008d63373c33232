package arch

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/internal/testmodel"
	"sparkbar/engine/layout"
)

const (
	adapterRank  = 3
	adapterScale = 0.7
)

// adapt writes a random adapter for every matrix of a checkpoint that one can be
// made for, and a copy of the checkpoint with the adapter merged into it, worked
// out here from what the formulas say.
func adapt(t *testing.T, dir string, dora bool) (adapter, merged string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, uint64(len(dir))))
	random := func(shape ...int) testmodel.Tensor {
		n := 1
		for _, s := range shape {
			n *= s
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64()) * 0.2
		}
		return testmodel.F32(shape, v...)
	}
	numbers := func(x testmodel.Tensor) []float32 {
		n := 1
		for _, s := range x.Shape {
			n *= s
		}
		v := make([]float32, n)
		types := map[string]layout.DType{"F32": layout.F32, "BF16": layout.BF16, "F16": layout.F16}
		if types[x.DType] == 0 {
			t.Fatal(x.DType)
		}
		layout.Widen(v, x.Data, types[x.DType])
		return v
	}
	tensors := map[string]testmodel.Tensor{}
	model := map[string]testmodel.Tensor{}
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	for _, n := range ck.Names() {
		w, err := ck.Tensor(n)
		if err != nil {
			t.Fatal(err)
		}
		model[n] = testmodel.Tensor{DType: w.DType.String(), Shape: w.Shape, Data: slices.Clone(w.Data)}
	}
	tied := model["lm_head.weight"].Shape == nil && model["language_model.lm_head.weight"].Shape == nil
	var names []string
	for n := range model {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		name, ok := strings.CutSuffix(n, ".weight")
		w := model[n]
		if !ok || len(w.Shape) < 2 || slices.ContainsFunc([]string{"conv", "kv_b_proj", "embed_q", "unembed_out"}, func(s string) bool { return strings.Contains(n, s) }) {
			continue
		}
		table := strings.Contains(n, "embed_tokens") || strings.Contains(n, "embeddings")
		stacked := len(w.Shape) == 3
		experts, rows, cols := 1, w.Shape[len(w.Shape)-2], w.Shape[len(w.Shape)-1]
		if stacked {
			experts = w.Shape[0]
		}
		withMag := dora && !stacked && (!table || !tied || strings.Contains(n, "per_layer"))
		if dora && table && !withMag {
			continue // its two uses differ, so there is no merged table
		}
		var a, b testmodel.Tensor
		switch {
		case stacked:
			a, b = random(experts, adapterRank, cols), random(experts, rows, adapterRank)
		case table:
			a, b = random(rows, adapterRank), random(adapterRank, cols)
		default:
			a, b = random(cols, adapterRank), random(adapterRank, rows)
		}
		tensors[name+".lora_a"], tensors[name+".lora_b"] = a, b
		av, bv, wv := numbers(a), numbers(b), numbers(w)
		for e := range experts {
			for r := range rows {
				row := wv[(e*rows+r)*cols:][:cols]
				for c := range row {
					var sum float64
					for k := range adapterRank {
						switch {
						case stacked:
							sum += float64(av[(e*adapterRank+k)*cols+c]) * float64(bv[(e*rows+r)*adapterRank+k])
						case table:
							sum += float64(av[r*adapterRank+k]) * float64(bv[k*cols+c])
						default:
							sum += float64(av[c*adapterRank+k]) * float64(bv[k*rows+r])
						}
					}
					row[c] += float32(adapterScale * sum)
				}
			}
		}
		if withMag {
			mag := make([]float32, rows)
			for r := range rows {
				var sum float64
				row := wv[r*cols:][:cols]
				for _, v := range row {
					sum += float64(v) * float64(v)
				}
				mag[r] = float32(math.Sqrt(sum) * (0.5 + rng.Float64()))
				for c := range row {
					row[c] *= float32(float64(mag[r]) / math.Sqrt(sum))
				}
			}
			tensors[name+".m"] = testmodel.F32([]int{rows}, mag...)
		}
		model[n] = testmodel.F32(w.Shape, wv...)
	}
	merged = testmodel.Write(t, nil, model)
	if err := os.WriteFile(filepath.Join(merged, "config.json"), ck.RawConfig(), 0o600); err != nil { // as it is: it may not be strict JSON
		t.Fatal(err)
	}
	kind := "lora"
	if dora {
		kind = "dora"
	}
	return writeAdapter(t, fmt.Sprintf(`{"fine_tune_type": %q, "num_layers": 99, "lora_parameters": {"rank": %d, "scale": %v, "dropout": 0.0}}`, kind, adapterRank, adapterScale), tensors), merged
}

func writeAdapter(t *testing.T, config string, tensors map[string]testmodel.Tensor) string {
	t.Helper()
	dir := testmodel.Write(t, map[string]any{}, tensors)
	if err := os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "adapters.safetensors")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAdapters: on every family the model with an adapter gives what a model
// gives into which it was merged; rows have the same bits together and alone;
// and without the adapter the model is what it was.
func TestAdapters(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/models/*/*/golden.json")
	if err != nil || len(dirs) < 57 {
		t.Fatal(len(dirs), err)
	}
	seen := map[string]bool{}
	for i, file := range dirs {
		dir := filepath.Dir(file)
		family := filepath.Base(filepath.Dir(dir))
		forms := seen[family] && family != "gemma4"
		if strings.Contains(filepath.Base(dir), "-") || forms || underRace && family != "gpt_oss" && family != "qwen3_next" {
			continue
		}
		seen[family] = true
		for _, b := range backends(t) {
			for _, dora := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/dora %v/%s", family, filepath.Base(dir), dora, b.Name()), func(t *testing.T) {
					adapter, merged := adapt(t, dir, dora)
					r, want := newRig(t, b, dir, cache.Options{Type: layout.F32}), newRig(t, b, merged, cache.Options{Type: layout.F32})
					ids := randomIDs(20, r.m.Vocab)
					plain := r.prompt(ids)
					a, err := LoadAdapter(r.m, adapter)
					if err != nil {
						t.Fatal(err)
					}
					base := r.m
					r.m = base.WithAdapter(a)
					got, exp := r.prompt(ids), want.prompt(ids)
					most := 0.0
					for i := range exp {
						for _, v := range exp[i] {
							most = max(most, math.Abs(float64(v)))
						}
					}
					for i := range exp {
						near(t, fmt.Sprintf("row %d", i), got[i], exp[i], 2e-4*max(most, 1))
					}
					if slices.Equal(got[0], plain[0]) {
						t.Error("the adapter changes nothing")
					}
					if i%5 == 0 || family == "gpt_oss" {
						r.rollback(randomIDs(compute.PageSize+12, r.m.Vocab))
						r.ragged()
					}
					r.m = base.WithAdapter(nil)
					a.Close()
					sameRows(t, "without the adapter", r.prompt(ids), plain)
				})
			}
		}
	}
	if !underRace && len(seen) < 20 {
		t.Errorf("only %d families", len(seen))
	}
}

// TestAdapterErrors: an adapter that does not fit names what is wrong, and leaves
// nothing behind.
func TestAdapterErrors(t *testing.T) {
	b := compute.NewReference()
	defer b.Close()
	load := func(dir string) (*Model, func()) {
		ck, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Load(ck, b)
		if err != nil {
			t.Fatal(err)
		}
		return m, func() { m.Close(); ck.Close() }
	}
	const dir = "../testdata/adapters/"
	m, done := load(dir + "model")
	defer done()
	small, smallDone := load(dir + "small")
	defer smallDone()
	full := `{"fine_tune_type": "full"}`
	lora := `{"lora_parameters": {"rank": 1, "scale": 2.0}}`
	q := "model.layers.0.self_attn.q_proj"
	zeros := func(shape ...int) testmodel.Tensor {
		n := 1
		for _, s := range shape {
			n *= s
		}
		return testmodel.F32(shape, make([]float32, n)...)
	}
	for _, c := range []struct {
		what, dir string
		m         *Model
		want      []string
	}{
		{"no folder", dir + "none", m, []string{"does not exist", "none"}},
		{"alpha", dir + "bad", m, []string{"missing required key 'scale'", "alpha"}},
		{"another model", dir + "lora", small, []string{"model.layers.1.self_attn.v_proj.lora_a: not an adapter parameter in the model", "model.layers.0.mlp.down_proj.lora_b: adapter shape [4 64] does not match model parameter shape [4 32]"}},
		{"no file", t.TempDir(), m, []string{"adapter_config.json"}},
		{"not JSON", writeAdapter(t, `{`, nil), m, []string{"adapter_config.json"}},
		{"endless", writeAdapter(t, strings.Repeat(" ", maxAdapterConfig)+`{}`, nil), m, []string{"adapter_config.json", "larger than"}},
		{"full, of another model", writeAdapter(t, full, map[string]testmodel.Tensor{"x": zeros(1), "model.norm.weight": zeros(63), q + ".weight": {DType: "I32", Shape: []int{64, 64}, Data: make([]byte, 4*64*64)}, "lm_head.weight": zeros(2, 64), q + ".lora_a": zeros(64, 1)}), m,
			[]string{"x: not a parameter of the model", "model.norm.weight: adapter shape [63] does not match model parameter shape [64]", q + ".weight: adapter type I32 does not match", "lm_head.weight: ", q + ".lora_a: not a parameter"}},
		{"a kind", writeAdapter(t, `{"fine_tune_type": "ia3", "lora_parameters": {"rank": 1, "scale": 2}}`, nil), m, []string{"ia3"}},
		{"no rank", writeAdapter(t, `{"lora_parameters": {"scale": 2}}`, nil), m, []string{"rank"}},
		{"half", writeAdapter(t, lora, map[string]testmodel.Tensor{q + ".lora_a": zeros(64, 1)}), m, []string{q + ".lora_b", "missing"}},
		{"another rank", writeAdapter(t, lora, map[string]testmodel.Tensor{q + ".lora_a": zeros(64, 2), q + ".lora_b": zeros(2, 64)}), m, []string{"[64 2] does not match model parameter shape [64 1]"}},
		{"a name", writeAdapter(t, lora, map[string]testmodel.Tensor{"x": zeros(1), "model.norm.lora_a": zeros(64, 1)}), m, []string{"x: not an adapter parameter", "model.norm.lora_a: not an adapter parameter"}},
		{"a magnitude in LoRA", writeAdapter(t, lora, map[string]testmodel.Tensor{q + ".lora_a": zeros(64, 1), q + ".lora_b": zeros(1, 64), q + ".m": zeros(64)}), m, []string{q + ".m: not an adapter parameter"}},
	} {
		a, err := LoadAdapter(c.m, c.dir)
		if err == nil {
			a.Close()
			t.Errorf("%s: no error", c.what)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", c.what, err, w)
			}
		}
	}
	a, err := LoadAdapter(m, dir+"dora")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.Of(small) || !a.Of(m) || !a.Of(m.WithAdapter(a)) || a.Bytes() <= 0 {
		t.Error("whose adapter it is")
	}
	m.WithAdapter(a).Close() // the weights stay
	if m.load.weights == nil {
		t.Error("the model's weights are gone")
	}
}

// FuzzAdapter: no adapter folder makes loading panic.
func FuzzAdapter(f *testing.F) {
	const dir = "../testdata/adapters/"
	norm := testmodel.Write(f, nil, map[string]testmodel.Tensor{"model.norm.weight": testmodel.F32([]int{64}, make([]float32, 64)...)})
	weights, err := os.ReadFile(filepath.Join(norm, "model.safetensors"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"fine_tune_type": "full"}`), weights)
	for _, name := range []string{"lora", "dora", "bad"} {
		config, err := os.ReadFile(dir + name + "/adapter_config.json")
		if err != nil {
			f.Fatal(err)
		}
		weights, err := os.ReadFile(dir + name + "/adapters.safetensors")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(config, weights)
	}
	b := compute.NewReference()
	ck, err := checkpoint.Open(dir + "model")
	if err != nil {
		f.Fatal(err)
	}
	m, err := Load(ck, b)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { m.Close(); ck.Close(); b.Close() })
	f.Fuzz(func(t *testing.T, config, weights []byte) {
		folder := t.TempDir()
		for name, data := range map[string][]byte{"adapter_config.json": config, "adapters.safetensors": weights} {
			if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a, err := LoadAdapter(m, folder)
		if err != nil {
			return
		}
		a.Close()
	})
}

// replace draws other values for every other tensor of a checkpoint that passes,
// and returns the tensors alone and the whole with them. Packed weights get other
// bits; scales stay what they are.
func (f file) replace(t *testing.T, passes func(name string) bool) (replaced, merged file) {
	rng := rand.New(rand.NewPCG(3, uint64(len(f))))
	replaced, merged = file{}, maps.Clone(f)
	for i, n := range slices.Sorted(maps.Keys(f)) {
		s := f[n]
		if i%2 == 0 || !passes(n) || strings.HasSuffix(n, ".scales") || strings.HasSuffix(n, ".biases") {
			continue
		}
		switch s.DType {
		case "F32", "BF16":
			v := s.floats()
			for k := range v {
				v[k] += float32(rng.NormFloat64() * 0.05)
			}
			if to := floats(v, s.Shape...); s.DType == "F32" || strings.Contains(n, "norm") {
				s = to
			} else {
				s.data = nil
				for k := 2; k < len(to.data); k += 4 {
					s.data = append(s.data, to.data[k], to.data[k+1])
				}
			}
		case "U32", "U8":
			s.data = slices.Clone(s.data)
			for k := range s.data {
				s.data[k] ^= byte(rng.Uint32())
			}
		default:
			t.Fatalf("%s is %s", n, s.DType) // this test knows no such type
		}
		replaced[n], merged[n] = s, s
	}
	return replaced, merged
}

// fullAdapter writes tensors as an adapter of type full.
func (f file) fullAdapter(t *testing.T) string {
	dir := f.write(t, "{}")
	if err := os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "adapters.safetensors")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(`{"fine_tune_type": "full", "num_layers": 2, "lora_parameters": {"rank": 8, "dropout": 0.0, "scale": 20.0}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// testFull: the model in dir with an adapter of type full gives the bits of the
// merged model, and without it what it gave before.
func testFull(t *testing.T, b compute.Backend, dir, adapter, merged string) {
	r, want := newRig(t, b, dir, cache.Options{Type: layout.F32}), newRig(t, b, merged, cache.Options{Type: layout.F32})
	ids := randomIDs(20, r.m.Vocab)
	plain := r.prompt(ids)
	a, err := LoadAdapter(r.m, adapter)
	if err != nil {
		t.Fatal(err)
	}
	base := r.m
	r.m = base.WithAdapter(a)
	got := r.prompt(ids)
	sameRows(t, "with the adapter", got, want.prompt(ids))
	if slices.Equal(got[0], plain[0]) {
		t.Error("the adapter changes nothing")
	}
	if own, all := len(a.own.weights), len(base.load.weights); own >= all {
		t.Errorf("the adapter has %d weights of its own, the whole model %d", own, all)
	}
	r.m = base
	a.Close()
	sameRows(t, "without the adapter", r.prompt(ids), plain)
}

// TestFullAdapters: on every family and every layout of its files.
func TestFullAdapters(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/models/*/*/golden.json")
	if err != nil || len(dirs) < 57 {
		t.Fatal(len(dirs), err)
	}
	every := func(string) bool { return true }
	for i, path := range dirs {
		dir := filepath.Dir(path)
		for k, b := range backends(t) {
			if k == 0 && i%4 > 0 || underRace && i%8 > 0 {
				continue
			}
			t.Run(filepath.Join(filepath.Base(filepath.Dir(dir)), filepath.Base(dir), b.Name()), func(t *testing.T) {
				replaced, merged := readTensors(t, dir+"/model.safetensors").replace(t, every)
				testFull(t, b, dir, replaced.fullAdapter(t), merged.write(t, string(readFile(t, dir+"/config.json"))))
			})
		}
	}
	_, exact := backends(t)[0], backends(t)[1]
	for _, test := range layouts {
		if underRace {
			break
		}
		t.Run(test.name, func(t *testing.T) {
			dir := "../testdata/models/" + test.from
			f, config := readTensors(t, dir+"/model.safetensors"), string(readFile(t, dir+"/config.json"))
			replaced, merged := f.replace(t, func(n string) bool { // what has no counterpart in the other layout stays
				return !slices.ContainsFunc([]string{"switch_", "experts", "embed_q", "unembed_out", ".w1.", ".w2.", ".w3."}, func(part string) bool { return strings.Contains(n, part) })
			})
			whole := merged.write(t, config)
			test.change(f, &config)
			testFull(t, exact, f.write(t, config), replaced.fullAdapter(t), whole)
			if slices.Contains([]string{"mixtral", "qwen3_moe", "nemotron_h", "deepseek_v3"}, test.name) { // some of the experts that lie one by one
				replaced, merged = f.replace(t, func(n string) bool {
					return !strings.Contains(n, "mtp.") && !strings.HasSuffix(n, "inv_freq") && !strings.HasPrefix(n, "model.layers.3.") && !strings.HasPrefix(n, "model.layers.61.")
				})
				testFull(t, exact, f.write(t, config), replaced.fullAdapter(t), merged.write(t, config))
			}
		})
	}
}
