package decode

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkbar/engine/cache"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/internal/testmodel"
)

// recordings lists every file that the reference's recordings of speculation
// consist of: the test that replays it (package: function, or the copy in that
// package's testdata), or why nothing does.
var recordings = map[string]string{
	"generate_*.json":                                  "decode: TestGoldenGenerations",
	"prefix_reuse_dspark.json":                         "decode: TestPrefixReuseGolden",
	"window_restore_dflash2.safetensors":               "decode: TestWindowRestoreGolden",
	"rollback_hybrid_nemotron_h.safetensors":           "decode: TestRollbackGoldens",
	"rollback_hybrid_qwen3_5.safetensors":              "decode: TestRollbackGoldens",
	"lookup_hybrid_nemotron_h.json":                    "decode: TestLookupOnRecurrentModels",
	"lookup_hybrid_qwen3_5.json":                       "decode: TestLookupOnRecurrentModels",
	"rotating_window_defect.json":                      "decode: TestRejectedRowsLeaveTheWindow",
	"batch_baseline.json":                              "decode: TestBatchGoldens",
	"batch_masks.json":                                 "decode: TestBatchMasks",
	"prefix_cache.json":                                "cache: TestStoreGoldens",
	"batch_spec_*.json":                                "decode: TestBatchGoldens",
	"forward_*.safetensors":                            "draft: TestForwardGoldens",
	"drafter_config.json":                              "draft: TestDrafterConfigGoldens",
	"tiny-dspark-bf16.gguf":                            "draft: TestGGUFDrafter",
	"resolve_mode.json":                                "models: TestResolveGoldens",
	"defaults.json":                                    "models: TestDefaultsGoldens",
	"../../checkpoint/testdata/gguf/gguf_convert.json": "",
	"../../checkpoint/testdata/nvfp4.json":             "",
	"../../calibrate/testdata/cap_controller.json":     "",
	"../../calibrate/testdata/cap_model.json":          "",
	"../../draft/ngram/testdata/lookup_gate.json":      "",
	"../../draft/ngram/testdata/lookup_index.json":     "",
	"../../machine/testdata/memory_guard.json":         "",
	"../../sample/testdata/penalties.json":             "",
	"../../sample/testdata/spec_accept.json":           "",
	"../../sample/testdata/truncate_probs.json":        "",
	"../../telemetry/testdata/race_verdict.json":       "",
	"../../telemetry/testdata/roofline.json":           "",
	"../../telemetry/testdata/telemetry.json":          "",
}

// notRecorded are recordings without a copy here.
var notRecorded = map[string]string{
	"kernel_plans.json": "launch arithmetic that is not shared: skinny_plan and skinny_geometry lay few rows on the matrix units, where linear_rows gives outputs to simdgroups; " +
		"multirow_plan packs the rows of a head into tiles of 8, where attention gives each split of the cache a threadgroup; partition, split_chunk_rows and " +
		"split_window_from_costs go around a cliff of MLX's own attention; cpu_split_rows and pick_fraction are replayed by metalkern",
}

// Every recording is replayed by a test that exists, or has a reason not to be.
func TestEveryRecordingIsUsed(t *testing.T) {
	files, err := os.ReadDir(specDir)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, f := range files {
		if f.IsDir() {
			continue
		}
		found := false
		for pattern := range recordings {
			if ok, _ := filepath.Match(pattern, f.Name()); ok {
				found, used[pattern] = true, true
			}
		}
		if _, listed := notRecorded[f.Name()]; listed == found {
			t.Errorf("%s: replayed %v, listed as not replayed %v", f.Name(), found, listed)
		}
	}
	for pattern, where := range recordings {
		if where == "" {
			if _, err := os.Stat(filepath.Join(specDir, pattern)); err != nil {
				t.Error(err)
			}
			continue
		}
		if !used[pattern] {
			t.Errorf("%s: no such file", pattern)
		}
		pkg, name, _ := strings.Cut(where, ": ")
		sources, err := filepath.Glob("../" + pkg + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(sources, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "func "+name+"(")
		}) {
			t.Errorf("%s: there is no test %s", pattern, where)
		}
	}
}

// After a verify step of which only some rows are kept, a recurrent model goes
// on as if only these had been run.
func TestRollbackGoldens(t *testing.T) {
	for _, name := range []string{"hybrid_qwen3_5", "hybrid_nemotron_h"} {
		ck, err := checkpoint.Open(specDir + "/rollback_" + name + ".safetensors")
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		var prompt []int32
		var pending int32
		var rows []struct {
			Keep     int
			Draft    []int32
			Argmax   []int32 `json:"verify_argmax"`
			Accepted int     `json:"n_accepted"`
			Next     []int32 `json:"continuation"`
		}
		for key, v := range map[string]any{"prompt_ids": &prompt, "pending": &pending, "rows": &rows} {
			if err := json.Unmarshal([]byte(ck.FileMetadata()[key]), v); err != nil {
				t.Fatal(key, err)
			}
		}
		tensor := func(key string) []float32 {
			w, err := ck.Tensor(key)
			if err != nil {
				t.Fatal(err)
			}
			f, err := w.Float32()
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		near := func(what string, got, want []float32) {
			t.Helper()
			for i := range want {
				if d := math.Abs(float64(got[i] - want[i])); !(d <= 2e-4) {
					t.Fatalf("%s: logit %d differs by %v", what, i, d)
				}
			}
		}
		for _, b := range backends(t) {
			g := open(t, b, specDir+"/checkpoints/"+name, "", 0, nil)
			tg := &g.run.t
			step := func(q *cache.Seq, ids []int32, want outputs, keep int) share {
				t.Helper()
				p := share{seq: q, ids: ids, want: want}
				if err := tg.forward(tg.model, []*share{&p}, false, nil); err != nil {
					t.Fatal(err)
				}
				q.Advance(keep)
				return p
			}
			for _, r := range rows {
				what := fmt.Sprintf("%s, %d rows kept", name, r.Keep)
				q, err := tg.cache.NewSeq()
				if err != nil {
					t.Fatal(err)
				}
				step(q, prompt, lastRow, len(prompt))
				ids := append([]int32{pending}, r.Draft...)
				p := step(q, ids, allRows, r.Keep)
				verify := tensor(fmt.Sprintf("keep%d.verify_logits", r.Keep))
				for i := range ids {
					near(what, p.logits.F32(i), verify[i*272:(i+1)*272])
				}
				if !slices.Equal(p.best, r.Argmax) {
					t.Errorf("%s: chooses %v, wants %v", what, p.best, r.Argmax)
				}
				for s, id := range r.Next {
					p := step(q, []int32{id}, allRows, 1)
					near(fmt.Sprintf("%s, step %d", what, s), p.logits.F32(0), tensor(fmt.Sprintf("keep%d.next%d", r.Keep, s)))
				}
				q.Close()
			}
		}
	}
}

// Copies on a model with recurrent layers, round by round.
func TestLookupOnRecurrentModels(t *testing.T) {
	for _, name := range []string{"hybrid_qwen3_5", "hybrid_nemotron_h"} {
		var doc struct {
			Prompt  []int32 `json:"prompt_ids"`
			Max     int     `json:"max_new_tokens"`
			Tokens  []int32 `json:"token_ids"`
			Base    []int32 `json:"baseline"`
			Accepts []int   `json:"accept_lengths"`
		}
		readJSON(t, specDir+"/lookup_"+name+".json", &doc)
		for _, b := range backends(t) {
			g := open(t, b, specDir+"/checkpoints/"+name, "", 0, nil)
			var accepts []int
			j := Job{Prompt: doc.Prompt, MaxTokens: doc.Max, Logprobs: -1, NoStore: true, Mode: Lookup}
			j.Round = func(r Round) { accepts = append(accepts, len(r.Committed)) }
			out := g.generate(t, j)
			if !slices.Equal(out.Tokens, doc.Tokens[:doc.Max]) || !slices.Equal(accepts, doc.Accepts) {
				t.Errorf("%s: %v in rounds of %v, wants %v in %v", name, out.Tokens, accepts, doc.Tokens, doc.Accepts)
			}
			if out := g.generate(t, baseline(j)); !slices.Equal(out.Tokens, doc.Base) {
				t.Errorf("%s alone: %v, wants %v", name, out.Tokens, doc.Base)
			}
		}
	}
}

// A prompt longer than a sliding window: rejected rows must leave the window,
// also before plain steps. (Where the reference leaves them visible, its text is
// wrong; the recording has the right one.)
func TestRejectedRowsLeaveTheWindow(t *testing.T) {
	t.Parallel()
	var doc struct {
		Prompt  []int32 `json:"prompt_ids"`
		Correct []int32
	}
	readJSON(t, specDir+"/rotating_window_defect.json", &doc)
	steep := &calibrate.Costs{Verify: calibrate.NewCurve(map[int]float64{1: 10, 2: 22, 3: 34, 8: 94}), Drafter: calibrate.Constant(9), Overhead: 3}
	for _, b := range backends(t) {
		g := open(t, b, specDir+"/checkpoints/target_gemma4", specDir+"/checkpoints/dspark_gemma4", 0, nil)
		var clock time.Time // every round takes 46 ms
		g.run.SetClock(func() time.Time { clock = clock.Add(46 * time.Millisecond); return clock })
		plain, drafted := 0, 0
		var want []int32 // the recorded text and what follows
		for _, j := range []Job{
			{Mode: Baseline}, {Mode: Lookup}, {Mode: Draft}, {Mode: Draft, Cap: 2},
			{Mode: Draft, Controller: calibrate.NewController(steep, calibrate.ControllerConfig{MaxCap: 7, Park: true, PriorP: 0.2})},
		} {
			j.Prompt, j.MaxTokens, j.Logprobs, j.NoStore = doc.Prompt, 120, -1, true
			j.Round = func(r Round) {
				if j.Controller != nil && r.Source == Plain {
					plain++
				}
				if r.RolledBack > 0 {
					drafted++
				}
			}
			out := g.generate(t, j)
			if want == nil {
				want = append(slices.Clone(doc.Correct), out.Tokens[len(doc.Correct):]...)
			}
			if !slices.Equal(out.Tokens, want) {
				t.Errorf("%s, cap %d, controller %v: %v, wants %v", j.Mode, j.Cap, j.Controller != nil, out.Tokens, want)
			}
		}
		if plain < 8 || drafted < 8 {
			t.Errorf("%d plain steps and %d with rejected rows: too few to mean anything", plain, drafted)
		}
	}
}

// A greedy round costs one program of the drafter and one of the target.
func TestProgramsPerRound(t *testing.T) {
	t.Parallel()
	for _, b := range backends(t) {
		for n, w := range ways(t) {
			if w.mode != Draft || w.lookup || testmodel.Race && n%5 != 1 {
				continue
			}
			g := w.open(t, b)
			j := w.job(ids(texts[0]), 24, 4)
			target, drafter := b.Submits(compute.LabelTarget), b.Submits(compute.LabelDraft)
			out := g.generate(t, j)
			target, drafter = b.Submits(compute.LabelTarget)-target, b.Submits(compute.LabelDraft)-drafter
			// What the last round committed is read when the context ends.
			if target != int64(out.TargetForwards) || drafter > int64(out.Rounds)+1 {
				t.Errorf("%s: %d target and %d drafter programs for %d forwards in %d rounds", w.name, target, drafter, out.TargetForwards, out.Rounds)
			}
		}
	}
}
