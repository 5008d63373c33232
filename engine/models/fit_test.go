package models

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sparkbar/engine/arch"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
)

// The geometry read from a config must be what the loaded model keeps.
func TestGeometryOfEveryFamily(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/models/*/*/config.json")
	if err != nil || len(dirs) < 30 {
		t.Fatal(len(dirs), err)
	}
	families := map[string]bool{}
	for _, path := range dirs {
		dir := filepath.Dir(path)
		c, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		b := compute.NewReference()
		m, err := arch.Load(c, b)
		if err != nil {
			t.Fatal(err)
		}
		want := Geometry{}
		for _, s := range m.Caches {
			n := int64(s.Heads * (s.KDim + s.VDim))
			if s.VInK {
				n = int64(s.Heads * s.KDim)
			}
			switch s.Kind {
			case compute.CacheFull:
				want.PerToken += n
			case compute.CacheWindow:
				if len(want.Windows) == 0 {
					want.Windows = []CacheWindow{{Tokens: s.Window}}
				}
				if want.Windows[0].Tokens != s.Window {
					t.Fatal(dir, "has windows of two sizes")
				}
				want.Windows[0].PerToken += n
			case compute.CacheState:
				want.State += int64(s.Size)
			}
		}
		got := GeometryOf(c.Config())
		if got.Hidden != m.Hidden || got.Vocab != m.Vocab {
			t.Errorf("%s: %+v, wants hidden %d and vocab %d", dir, got, m.Hidden, m.Vocab)
		}
		got.Hidden, got.Inter, got.Vocab = 0, 0, 0
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s (%s): %+v, the model keeps %+v", dir, m.Type, got, want)
		}
		families[m.Type] = true
		m.Close()
		c.Close()
		b.Close()
	}
	if len(families) < 20 {
		t.Error("only", len(families), "families")
	}
}

// Published figures: the numbers of well-known configurations.
func TestGeometryOfPublishedModels(t *testing.T) {
	for _, k := range []struct {
		config   string
		perToken int64
	}{
		// Llama 3.1 8B: 32 layers, 8 KV heads of 128: 128 KiB a token at 16 bits.
		{`{"model_type":"llama","num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"hidden_size":4096}`, 65536},
		// Qwen3-4B: 36 layers, 8 KV heads of 128.
		{`{"model_type":"qwen3","num_hidden_layers":36,"num_attention_heads":32,"num_key_value_heads":8,"hidden_size":2560,"head_dim":128}`, 73728},
		// DeepSeek-V3: 61 layers of 512 + 64.
		{`{"model_type":"deepseek_v3","num_hidden_layers":61,"num_attention_heads":128,"hidden_size":7168,"kv_lora_rank":512,"qk_rope_head_dim":64}`, 35136},
	} {
		cfg, err := checkpoint.ParseConfig("config.json", []byte(k.config))
		if err != nil {
			t.Fatal(err)
		}
		if g := GeometryOf(cfg); g.PerToken != k.perToken {
			t.Errorf("%s: %d, wants %d", k.config, g.PerToken, k.perToken)
		}
	}
}

func TestFit(t *testing.T) {
	const gb = 1_000_000_000
	g := Geometry{PerToken: 65536, Hidden: 4096, Inter: 14336, Vocab: 128256}
	need := Need{Weights: 8 * gb, Drafter: 1 * gb, Target: g, DrafterContext: Geometry{PerToken: 5 * 2048}, Context: 8192, MaxContext: 131072, ValueBytes: 2}
	// By hand: cache 8192·65536·2, drafter 1 GB + 8192·10240·2, activations
	// 4·(512·(6·4096+3·14336)+16·128256).
	const cache, drafter, activations = 8192 * 65536 * 2, gb + 8192*10240*2, 4 * (512*(6*4096+3*14336) + 16*128256)
	for _, k := range []struct {
		name    string
		m       Memory
		verdict Verdict
		limit   int64
		reason  string
	}{
		{"plenty", Memory{Total: 64 * gb, Free: 40 * gb, WorkingSet: 48 * gb}, Fits, 48 * gb, "needs 10.4 GB"},
		{"others use it", Memory{Total: 64 * gb, Free: 6 * gb, WorkingSet: 48 * gb}, Tight, 48 * gb, "other programs"},
		{"nearly full", Memory{Total: 16 * gb, Free: 15 * gb, WorkingSet: 11 * gb}, Tight, 11 * gb, "leaves little"},
		{"too big for the GPU", Memory{Total: 64 * gb, Free: 60 * gb, WorkingSet: 10 * gb}, TooBig, 10 * gb, "of 10.0 GB; no useful context fits"},
		{"no GPU", Memory{Total: 20 * gb, Free: 19 * gb}, Fits, 16 * gb, ""},
		{"too big for the machine", Memory{Total: 8 * gb, Free: 7 * gb}, TooBig, 6.4 * gb, "choose a smaller model"},
		{"nothing known", Memory{}, Unknown, 0, "could not be found out"},
		{"a working set beyond the memory", Memory{Total: 16 * gb, WorkingSet: 1000 * gb}, Fits, 12.8 * gb, ""},
	} {
		f := need.Fit(k.m)
		if f.Verdict != k.verdict || f.Limit != k.limit || !strings.Contains(f.Reason, k.reason) {
			t.Errorf("%s: %+v", k.name, f)
		}
		if f.Needed != 8*gb+cache+drafter+activations || f.Cache != cache || f.Drafter != drafter || f.Activity != activations || f.Weights != 8*gb {
			t.Errorf("%s: %+v", k.name, f)
		}
	}
}

// The largest context that fits does, and the next step does not.
func TestFitContext(t *testing.T) {
	const gb = 1_000_000_000
	steps := 0
	for weights := int64(0); weights < 12; weights++ {
		for _, g := range []Geometry{
			{PerToken: 65536}, {PerToken: 1 << 20}, {PerToken: 10, State: 1 << 28},
			{PerToken: 4096, Windows: []CacheWindow{{1024, 65536}, {16384, 65536}}}, {Windows: []CacheWindow{{4096, 1 << 16}}},
		} {
			for _, m := range []Memory{{Total: 12 * gb}, {Total: 24 * gb, Free: 9 * gb, WorkingSet: 16 * gb}} {
				n := Need{Weights: weights * gb, Target: g, MaxContext: 262144}
				f := n.Fit(m)
				if f.Context == n.MaxContext {
					n.Context = f.Context
					if got := n.Fit(m); got.Verdict != Fits {
						t.Errorf("%+v in %+v: %+v", n, m, got)
					}
					continue
				}
				step := 8192
				if f.Context < 8192 {
					step = 1024
				}
				if f.Context > 0 {
					n.Context = f.Context
					if got := n.Fit(m); got.Verdict != Fits {
						t.Errorf("%+v in %+v: %+v", n, m, got)
					}
				}
				n.Context = f.Context + step
				if got := n.Fit(m); got.Verdict == Fits && f.Context != 7*1024 {
					t.Errorf("%+v in %+v: %d tokens fit too: %+v", n, m, n.Context, got)
				}
				steps++
			}
		}
	}
	if steps < 20 {
		t.Error("only", steps, "cases had a limit")
	}
	// Huge numbers do not overflow.
	f := Need{Weights: 1 << 60, Target: Geometry{PerToken: 1 << 60, State: 1 << 60, Vocab: 1 << 28, Hidden: 1 << 28, Inter: 1 << 28}, MaxContext: 1 << 30}.Fit(Memory{Total: 1 << 40})
	if f.Verdict != TooBig || f.Context != 0 || f.Needed < 0 {
		t.Errorf("%+v", f)
	}
}
