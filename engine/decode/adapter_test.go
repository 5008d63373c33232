package decode

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/arch"
)

const adapterDir = "../testdata/adapters"

// The texts of the reference with its LoRA and DoRA adapters, in every mode, from
// one model whose jobs change adapters; pasts of different adapters never mix.
func TestAdapterGoldens(t *testing.T) {
	var doc struct {
		Cases []struct {
			Name, Adapter string
			Prompt        []int32 `json:"prompt_ids"`
			Tokens        []int32 `json:"token_ids"`
			Logprobs      []float64
		}
	}
	readJSON(t, adapterDir+"/expected.json", &doc)
	if len(doc.Cases) < 8 {
		t.Fatal(len(doc.Cases), "cases")
	}
	for _, b := range backends(t) {
		g := open(t, b, adapterDir+"/model", adapterDir+"/model", 0, nil)
		adapters := map[string]*arch.Adapter{"": nil}
		for _, name := range []string{"lora", "dora"} {
			a, err := arch.LoadAdapter(g.model, adapterDir+"/"+name)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			adapters[name] = a
		}
		cached := 0
		for _, mode := range []Mode{Baseline, Lookup, Draft} {
			for _, c := range doc.Cases {
				j := Job{Prompt: c.Prompt, MaxTokens: len(c.Tokens), Logprobs: 0, Mode: mode, Cap: 3, Adapter: adapters[c.Adapter]}
				var got []Token
				j.Emit = func(ts []Token) bool { got = append(got, ts...); return false }
				out := g.generate(t, j)
				if !slices.Equal(out.Tokens, c.Tokens) {
					t.Errorf("%s, %s, %s: %v, wants %v", b.Name(), mode, c.Name, out.Tokens, c.Tokens)
					continue
				}
				for i, lp := range c.Logprobs {
					if math.Abs(got[i].Logprob-lp) > 2e-4 {
						t.Errorf("%s, %s, %s: log-probability %d is %v, wants %v", b.Name(), mode, c.Name, i, got[i].Logprob, lp)
					}
				}
				cached += out.Cached
			}
		}
		if cached == 0 {
			t.Error("nothing was reused")
		}
		g.run.Forget(adapters["lora"])
		j := Job{Prompt: doc.Cases[0].Prompt, MaxTokens: 1, Logprobs: -1, Mode: Baseline, Adapter: adapters["lora"]}
		if out := g.generate(t, j); out.Cached != 0 {
			t.Errorf("%d tokens of a forgotten adapter were reused", out.Cached)
		}
	}
}

func TestAdapterOfAnotherModel(t *testing.T) {
	b := backends(t)[0]
	g, other := open(t, b, adapterDir+"/model", "", 0, nil), open(t, b, adapterDir+"/model", "", 0, nil)
	a, err := arch.LoadAdapter(other.model, adapterDir+"/lora")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	_, err = g.run.Generate(context.Background(), Job{Prompt: []int32{1, 2}, MaxTokens: 1, Mode: Baseline, Adapter: a})
	if err == nil || !strings.Contains(err.Error(), "another model") {
		t.Error(err)
	}
}
