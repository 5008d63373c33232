package engine_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/decode"
	"sparkbar/engine/layout"
	"sparkbar/engine/testbench"
	"sparkbar/engine/testneed"
	"sparkbar/engine/tokenizer"
)

// perplexity is that of a text of one sequence, read in chunks.
func perplexity(t *testing.T, path string, exact bool, kvBits int, ids []int32) float64 {
	t.Helper()
	b, err := cpu.New(cpu.Options{Exact: exact})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ck, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	m, err := arch.Load(ck, b)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if kvBits == 4 {
		if err := decode.TurnHeads(b, m); err != nil {
			t.Fatal(err)
		}
	}
	c, err := cache.New(b, m.Caches, cache.Options{Type: layout.F32, Bits: kvBits, Group: 64, Positions: len(ids) + 64, Sequences: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	q, err := c.NewSeq()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	params, s := compute.NewParams(b), compute.NewScratch(b)
	defer params.Close()
	defer s.Close()
	loss := 0.0
	const chunk = 128
	for at := 0; at < len(ids); at += chunk {
		part := ids[at:min(at+chunk, len(ids))]
		s.Reset()
		params.Next()
		var p compute.Program
		p.Reset(compute.LabelTarget)
		parts := []cache.Part{{Seq: q, IDs: part, Prefill: true}}
		st, err := c.Plan(&p, params, parts)
		if err != nil {
			t.Fatal(err)
		}
		f := &arch.Forward{P: &p, S: s, Step: st}
		m.Forward(f)
		c.Ran(st, parts)
		if err := compute.Run(b, &p, nil); err != nil {
			t.Fatal(err)
		}
		q.Advance(len(part))
		for i := range part {
			if at+i+1 == len(ids) {
				break
			}
			row := f.Logits.F32(i)
			most := float64(row[0])
			for _, x := range row {
				most = max(most, float64(x))
			}
			sum := 0.0
			for _, x := range row {
				sum += math.Exp(float64(x) - most)
			}
			loss += most + math.Log(sum) - float64(row[ids[at+i+1]])
		}
	}
	return math.Exp(loss / float64(len(ids)-1))
}

// TestPerplexity: what int8 activations and quantized keys and values cost on a
// text, the beginning of a book of 1865.
func TestPerplexity(t *testing.T) {
	if testing.Short() {
		t.Skip("reads a text four times")
	}
	dir := testneed.SmolLM2(t)
	tok, err := tokenizer.Load(filepath.Join(dir, "mlx"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/text/alice.txt")
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode(string(text), true)
	if len(ids) < 2000 {
		t.Fatalf("the text has %d tokens", len(ids))
	}
	path := filepath.Join(dir, "mlx")
	exact := perplexity(t, path, true, 0, ids)
	if !(exact > 2 && exact < 60) {
		t.Errorf("a perplexity of %.2f is not this model's", exact)
	}
	fast := perplexity(t, path, false, 0, ids)
	figures := []testbench.Figure{{Name: "exact", Value: exact, Note: "perplexity"}}
	for _, c := range []struct {
		name        string
		value, from float64
		most        float64
	}{
		{"int8 activations", fast, exact, 0.5},
		{"keys and values of 8 bits", perplexity(t, path, false, 8, ids), fast, 0.5},
		{"keys and values of 4 bits", perplexity(t, path, false, 4, ids), fast, 3},
	} {
		change := 100 * math.Abs(c.value/c.from-1)
		t.Logf("%s: %.4f instead of %.4f, a change of %.3f %%", c.name, c.value, c.from, change)
		figures = append(figures, testbench.Figure{Name: c.name, Value: change, Unit: "%", Want: fmt.Sprintf("<= %v", c.most), Note: fmt.Sprintf("perplexity %.4f", c.value)})
		if !(change <= c.most) {
			t.Errorf("%s change the perplexity by %.2f %%, at most %.1f %% is wanted", c.name, change, c.most)
		}
	}
	if testbench.On() {
		testbench.Write(t, "perplexity", "Perplexity", fmt.Sprintf("SmolLM2-135M (4-bit MLX) on %d tokens of a book of 1865: what int8 activations change against float32 arithmetic, and quantized keys and values against float32 ones.", len(ids)), figures)
	}
}
