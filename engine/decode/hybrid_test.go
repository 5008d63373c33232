package decode

import (
	"fmt"
	"slices"
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/internal/testmodel"
)

// span is n tokens of a text that only seed and position decide.
func span(seed, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*i*7+i*(seed*13+3)+seed*29)%90 + 1)
	}
	return out
}

// A past that cannot be cut is remembered where later prompts will go on: at
// the stable end of the prompt, at rungs, where prompts were seen to part, and at
// the end of the answer. Whatever is reused, the text and the rounds are those of
// a cold start.
func TestReuseOfPastsThatCannotBeCut(t *testing.T) {
	t.Parallel()
	const checkpoints = specDir + "/checkpoints/"
	for n, c := range []struct {
		target, drafter string
		mode            Mode
	}{
		{checkpoints + "hybrid_qwen3_5", "", Baseline},
		{checkpoints + "hybrid_nemotron_h", "", Lookup},
		{checkpoints + "hybrid_qwen3_5", checkpoints + "hybrid_qwen3_5", Draft},    // state on both sides
		{checkpoints + "hybrid_qwen3_5", checkpoints + "hybrid_nemotron_h", Draft}, // a drafter that is mostly wrong
		{"../testdata/models/lfm2/dense", "", Lookup},                              // convolutions
		{checkpoints + "target_gemma4", checkpoints + "dspark_gemma4", Draft},      // windows
		{"../testdata/models/gpt_oss/moe", "../testdata/models/gpt_oss/moe", Draft},
		{checkpoints + "target_qwen3", checkpoints + "dflash2", Draft},       // only the drafter forgets
		{checkpoints + "target_qwen3", checkpoints + "dspark_redhat", Draft}, // a window in a DSpark head
	} {
		for _, b := range backends(t) {
			if testmodel.Race && b.Name() == "reference" {
				continue
			}
			t.Run(fmt.Sprintf("%d %s/%s", n, c.mode, b.Name()), func(t *testing.T) {
				reuse(t, b, c.target, c.drafter, c.mode)
			})
		}
	}
}

func reuse(t *testing.T, b compute.Backend, target, drafter string, mode Mode) {
	const tail, limit = 5, 12
	g, cold := open(t, b, target, drafter, 0, nil), open(t, b, target, drafter, 0, nil)
	g.run.opts.Rungs = 100
	recurrent := slices.ContainsFunc(g.model.Caches, func(s compute.CacheSpec) bool { return s.Kind == compute.CacheState })
	ask := func(what string, prompt []int32, want int) []int32 {
		t.Helper()
		j := Job{Prompt: prompt, MaxTokens: limit, Logprobs: -1, Mode: mode, Cap: 4, Tail: tail}
		var rounds [2][]string
		j.Round = func(r Round) { rounds[0] = append(rounds[0], fmt.Sprint(r.Draft, r.Committed)) }
		out := g.generate(t, j)
		j.NoStore = true
		j.Round = func(r Round) { rounds[1] = append(rounds[1], fmt.Sprint(r.Draft, r.Committed)) }
		exp := cold.generate(t, j)
		if !slices.Equal(out.Tokens, exp.Tokens) || !slices.Equal(rounds[0], rounds[1]) {
			t.Errorf("%s, %d reused:\nwarm %v %v\ncold %v %v", what, out.Cached, out.Tokens, rounds[0], exp.Tokens, rounds[1])
		}
		// A window forgets whole pages, so it may be cut a little.
		if out.Cached != want && !(!recurrent && out.Cached > want && out.Cached < want+tail) {
			t.Errorf("%s: %d tokens reused, wants %d", what, out.Cached, want)
		}
		return append(slices.Clone(prompt), out.Tokens...)
	}
	system := span(1, 250)
	first := slices.Concat(system, span(2, 60))
	text := ask("the first turn", first, 0)
	// The template writes the end of the prompt differently next time.
	stable := len(first) - tail
	second := slices.Concat(first[:stable], []int32{91}, span(3, 40))
	ask("the next turn of a template that rewrites the end", second, stable)
	ask("the same prompt again", second, len(second)-tail)
	ask("a prompt that goes on from the answer", slices.Concat(text, span(4, 30)), len(text)-1)
	// Another conversation with the same beginning: a rung, and it learns where
	// they part.
	ask("another conversation", slices.Concat(system, []int32{92}, span(5, 50)), 200)
	ask("a third one", slices.Concat(system, []int32{93}, span(6, 50)), len(system))
	if used, total := g.run.Cache().Pages(); used >= total {
		t.Errorf("%d of %d pages are in use", used, total)
	}
	if n := g.run.Cache().Slots(); n != 0 {
		t.Errorf("%d state slots are in use", n)
	}
	g.run.Store().Clear()
	if used, _ := g.run.Cache().Pages(); used != 0 {
		t.Errorf("%d pages are in use after all was dropped", used)
	}
	if d := g.run.Drafter(); d != nil && d.Cache() != nil {
		if used, _ := d.Cache().Pages(); used != 0 || d.Cache().Slots() != 0 {
			t.Errorf("%d pages and %d slots of the drafter are in use after all was dropped", used, d.Cache().Slots())
		}
	}
}
