package decode_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/decode"
	"sparkbar/engine/layout"
	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
	"sparkbar/resources"
)

// TestIdentityOnMetal is TestIdentity on the Metal kernels, emulated, with fewer
// tokens, with activations in float32, half and bfloat; in float32 the answers are
// those of the CPU.
func TestIdentityOnMetal(t *testing.T) {
	for _, mode := range []layout.DType{layout.F32, layout.F16, layout.BF16} {
		t.Run(mode.String(), func(t *testing.T) {
			if mode != layout.F32 && os.Getenv("SPARKBAR_REQUIRE") != "all" {
				t.Skip("float32 stands for all: `make test` runs the halves")
			}
			identityOnMetal(t, metalkern.Options{Activations: mode})
		})
	}
}

// TestIdentityOnMetalWithCPU is TestIdentityOnMetal in float32 while the CPU has 40 %
// of the prompts' layers.
func TestIdentityOnMetalWithCPU(t *testing.T) {
	parts := 0
	identityOnMetal(t, metalkern.Options{Split: &metalkern.Split{Tile: 16, Open: func() (compute.Backend, error) {
		b, err := cpu.New(cpu.Options{Threads: 1, Exact: true})
		return counting{b, &parts}, err
	}}})
	if !testing.Short() && parts < 100 {
		t.Errorf("the CPU had %d parts", parts)
	}
}

// counting counts the programs of a backend.
type counting struct {
	compute.Backend
	n *int
}

func (c counting) Submit(p *compute.Program, stop *compute.Stop) (compute.Pending, error) {
	*c.n++
	return c.Backend.Submit(p, stop)
}

func identityOnMetal(t *testing.T, o metalkern.Options) {
	mode := o.Activations
	if mode == 0 {
		mode = layout.F32
	}
	metaltest.Need(t)
	if testing.Short() {
		t.Skip("the plain run does this: the race detector does not watch the kernels")
	}
	text, err := os.ReadFile("../testdata/demo/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var x struct {
		Prompts []struct {
			IDs []int32 `json:"prompt_ids"`
		}
	}
	if err := json.Unmarshal(text, &x); err != nil || len(x.Prompts) < 10 {
		t.Fatal(len(x.Prompts), err)
	}
	generate := func(r *decode.Runner, j decode.Job) decode.Outcome {
		t.Helper()
		j.MaxTokens, j.End, j.Logprobs = 24, map[int32]bool{0: true, 2: true}, -1
		out, err := r.Generate(context.Background(), j)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	exact, err := cpu.New(cpu.Options{Threads: 1, Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	onCPU := openDemo(t, exact).runner(t, nil)
	defer onCPU.Close()
	b, _ := metaltest.OpenWith(t, metaltest.Build{}, metaltest.Order{}, o)
	if share := 0.4; o.Split != nil {
		b.(interface{ SetPromptSplit(*float64) }).SetPromptSplit(&share)
	}
	d := openDemo(t, b)
	plain := d.runner(t, nil)
	defer plain.Close()
	_, dspark := resources.Demo()
	ds, df := d.runner(t, d.drafter(t, dspark)), d.runner(t, d.drafter(t, resources.DemoDFlash()))
	defer ds.Close()
	defer df.Close()
	rounds, tokens := 0, 0
	prompts := x.Prompts[:4]
	if mode != layout.F32 {
		prompts = prompts[:2]
	}
	for i, p := range prompts {
		want := generate(plain, decode.Job{Prompt: p.IDs, Mode: decode.Baseline, NoStore: true}).Tokens
		if cpu := generate(onCPU, decode.Job{Prompt: p.IDs, Mode: decode.Baseline, NoStore: true}).Tokens; mode == layout.F32 && !slices.Equal(cpu, want) {
			t.Errorf("prompt %d: %v\non the CPU: %v", i, want, cpu)
		}
		check := func(name string, r *decode.Runner, j decode.Job) {
			t.Helper()
			j.Prompt, j.NoStore = p.IDs, true
			out := generate(r, j)
			rounds, tokens = rounds+out.Rounds, tokens+len(out.Tokens)
			if !slices.Equal(out.Tokens, want) {
				t.Errorf("%s, prompt %d: %v\nwithout speculation: %v", name, i, out.Tokens, want)
			}
		}
		for _, cap := range []int{2, 7} {
			check(fmt.Sprintf("dspark cap %d", cap), ds, decode.Job{Mode: decode.Draft, Cap: cap})
			check(fmt.Sprintf("dflash cap %d", cap), df, decode.Job{Mode: decode.Draft, Cap: cap})
		}
		check("lookup", plain, decode.Job{Mode: decode.Lookup, LongLookup: 5})
		r := d.runner(t, &oracle{answer: append(slices.Clone(p.IDs), want...), wrong: i%2 == 0, vocab: int32(d.model.Vocab)})
		check("oracle", r, decode.Job{Mode: decode.Draft, Cap: 4})
		r.Close()
	}
	t.Logf("%d tokens in %d rounds", tokens, rounds)
}
