package telemetry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"testing"
	"time"
)

func loadJSON(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestLogGoldens(t *testing.T) {
	var f struct {
		Cases []struct {
			Capacity int
			Events   []Round
			Decay    *float64  `json:"decay_ratio"`
			Position []float64 `json:"position_acceptance"`
			Stats    Stats
			Kept     int
		}
	}
	loadJSON(t, "telemetry.json", &f)
	for i, c := range f.Cases {
		l := newLog(epoch, c.Capacity)
		for j, e := range c.Events {
			got := l.Record(e, epoch.Add(time.Duration(j)*time.Millisecond))
			if got.Seq != j+1 || got.T != float64(j) {
				t.Fatalf("case %d: event %d stamped seq %d, t %v", i, j, got.Seq, got.T)
			}
		}
		if got := l.Stats(); !reflect.DeepEqual(got, c.Stats) || !reflect.DeepEqual(got.PositionAcceptance, c.Position) {
			t.Errorf("case %d: stats %+v, want %+v", i, got, c.Stats)
		}
		if got := l.Decay("a"); !reflect.DeepEqual(got, c.Decay) {
			t.Errorf("case %d: decay %v, want %v", i, show(got), show(c.Decay))
		}
		if got := l.Rounds(0); len(got) != c.Kept || got[len(got)-1].I != c.Events[len(c.Events)-1].I {
			t.Errorf("case %d: %d rounds kept, want %d", i, len(got), c.Kept)
		}
	}
	t.Logf("%d cases", len(f.Cases))
}

func show(v *float64) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprint(*v)
}

func TestRing(t *testing.T) {
	l := NewLog(epoch)
	if got := l.Rounds(0); got == nil || len(got) != 0 {
		t.Errorf("empty log gives %v", got)
	}
	for i := range 700 {
		l.Record(Round{Req: "a", I: i, Committed: 1, MS: 1}, epoch)
	}
	for limit, want := range map[int][2]int{0: {189, 700}, 3: {698, 700}, 9999: {189, 700}, -500: {689, 700}, -9999: {}, math.MinInt: {}} {
		got := l.Rounds(limit)
		if want == [2]int{} {
			if len(got) != 0 {
				t.Errorf("limit %d gives %d rounds", limit, len(got))
			}
			continue
		}
		if len(got) != want[1]-want[0]+1 || got[0].Seq != want[0] || got[len(got)-1].Seq != want[1] {
			t.Errorf("limit %d gives %d rounds from %d", limit, len(got), got[0].Seq)
		}
	}
	if s := l.Stats(); s.Rounds != 700 || s.CommittedTokens != 700 {
		t.Errorf("stats forget rounds: %+v", s)
	}
	if d := l.Decay("a"); d == nil || *d != 1 {
		t.Errorf("decay %v", show(d))
	}
	if d := l.Decay("b"); d != nil {
		t.Errorf("decay of an unknown request %v", *d)
	}
	l.Record(Round{Drafted: 1 << 30, Committed: 1}, epoch)
	if s := l.Stats(); len(s.PositionOffered) != maxPositions {
		t.Errorf("%d positions", len(s.PositionOffered))
	}
	timeless := NewLog(epoch)
	for i := range 40 {
		timeless.Record(Round{Req: "a", I: i, Committed: 1}, epoch)
	}
	if d := timeless.Decay("a"); d != nil {
		t.Errorf("decay without times %v", *d)
	}
}

// wire holds recorded answers of the reference server.
type wire struct {
	Summaries, Rounds, Prefill, Chips, Weights, Roofline, Verdicts, Race, Totals []json.RawMessage
}

var wholeFloat = regexp.MustCompile(`(\d)\.0\b`)

// TestWireFormat reads recorded answers into the types and writes them again:
// every field must have its place, its name and its turn.
func TestWireFormat(t *testing.T) {
	var w wire
	loadJSON(t, "wire.json", &w)
	type roundsBody struct {
		Rounds []Round `json:"rounds"`
		Stats  Stats   `json:"stats"`
	}
	for _, g := range []struct {
		name string
		raw  []json.RawMessage
		make func() any
	}{
		{"summary", w.Summaries, func() any { return new(RequestSummary) }},
		{"rounds", w.Rounds, func() any { return new(roundsBody) }},
		{"prefill", w.Prefill, func() any { return new(Prefill) }},
		{"chip", w.Chips, func() any { return new(Chip) }},
		{"weights", w.Weights, func() any { return new(Footprint) }},
		{"roofline", w.Roofline, func() any { return new(RooflinePoint) }},
		{"verdict", w.Verdicts, func() any { return new(Verdict) }},
		{"race", w.Race, func() any { return new(RaceVerdict) }},
		{"totals", w.Totals, func() any { return new(TotalsReport) }},
	} {
		if len(g.raw) == 0 {
			t.Errorf("%s: nothing recorded", g.name)
		}
		for i, raw := range g.raw {
			v := g.make()
			dec := json.NewDecoder(bytes.NewReader(raw))
			dec.DisallowUnknownFields()
			if err := dec.Decode(v); err != nil {
				t.Errorf("%s %d: %v", g.name, i, err)
				continue
			}
			got, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			var want bytes.Buffer
			if err := json.Compact(&want, raw); err != nil {
				t.Fatal(err)
			}
			if w := wholeFloat.ReplaceAllString(want.String(), "$1"); string(got) != w {
				t.Errorf("%s %d: written as\n%s, recorded as\n%s", g.name, i, got, w)
			}
		}
	}
}

func TestSummaryFormulas(t *testing.T) {
	cap, decay := 3, 0.91
	r := Request{Mode: "dspark", PromptTokens: 120, CachedTokens: 100, CompletionTokens: 28, Rounds: 10, TargetForwards: 11, LookupRounds: 2, Cap: &cap,
		Seconds: 0.5, PrefillSeconds: 0.1, TTFTSeconds: 0.1234, Decay: &decay, SwapDeltaBytes: 5, Cold: true, CeilingTPS: 35}
	one := 2.0
	want := RequestSummary{Mode: "dspark", AcceptLen: 2.8, TokensPerSec: 56, DecodeTokensPerSec: 70, TargetForwards: 11, Cap: &cap, LookupRounds: 2,
		PromptTokens: 120, CachedTokens: 100, CompletionTokens: 28, ContextTokens: 148, PrefillSeconds: 0.1, DecodeSeconds: 0.4, TTFTSeconds: 0.123,
		PrefillTokensPerSec: 200, DecayRatio: &decay, SwapDeltaBytes: 5, Cold: true, CeilingTokensPerSec: 35, RooflineRatio: &one}
	if got := r.Summary(); !reflect.DeepEqual(got, want) {
		t.Errorf("summary %+v, want %+v", got, want)
	}
	r.CachedTokens = 105 // 15 fresh tokens say nothing about the prefill rate
	if got := r.Summary(); got.PrefillTokensPerSec != 0 {
		t.Errorf("prefill rate %v from 15 tokens", got.PrefillTokensPerSec)
	}
	// Nothing generated, no time: finite numbers all the same.
	b, err := json.Marshal((&Request{Mode: "baseline"}).Summary())
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"mode":"baseline","accept_len":0,"tokens_per_sec":0,"decode_tokens_per_sec":0,"target_forwards":0,"prompt_tokens":0,"cached_tokens":0,"completion_tokens":0,"context_tokens":0,"prefill_seconds":0,"decode_seconds":0,"ttft_seconds":0}`; string(b) != want {
		t.Errorf("empty request: %s", b)
	}

	var total Totals
	if got := total.Report(); got != (TotalsReport{}) {
		t.Errorf("before traffic: %+v", got)
	}
	total.Add(&r)
	total.Add(&Request{PromptTokens: 10, CompletionTokens: 12, Rounds: 12, Seconds: 0.3, PrefillSeconds: 0.1})
	if got, want := total.Report(), (TotalsReport{2, 130, 40, 2.26, 50, 66.7}); got != want {
		t.Errorf("totals %+v, want %+v", got, want)
	}
}

func TestRooflineGoldens(t *testing.T) {
	var f struct{ Cases []json.RawMessage }
	loadJSON(t, "roofline.json", &f)
	counts := map[string]int{}
	for _, raw := range f.Cases {
		var c struct {
			Fn           string
			Device       string
			GPUCores     *int `json:"gpu_cores"`
			Out          json.RawMessage
			Family       []*string
			Theoretical  float64
			Measured     float64
			BandwidthGBs float64 `json:"bandwidth_gb_s"`
			ActiveBytes  int64   `json:"active_bytes"`
			KVBytes      int64   `json:"kv_bytes_per_token"`
			Context      int
			StepMS       float64 `json:"step_ms"`
			BytesPerTok  int64   `json:"bytes_per_token"`
			Params       [][2]any
			Config       map[string]any
			In           struct {
				MBU           *float64
				RatioToCeil   *float64 `json:"ratio_to_ceiling"`
				DecodeTPS     float64  `json:"decode_tps"`
				Mode          string
				AcceptLen     float64 `json:"accept_len"`
				Pressure      string
				SwapDelta     int64    `json:"swap_delta_bytes"`
				Decay         *float64 `json:"decay_ratio"`
				Cold          bool
				ContextTokens int  `json:"context_tokens"`
				ContextWindow int  `json:"context_window"`
				MoEEstimate   bool `json:"is_moe_estimate"`
			}
			Level     string
			NFindings int `json:"n_findings"`
			NLevers   int `json:"n_levers"`
		}
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&c); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		counts[c.Fn]++
		var got any
		switch c.Fn {
		case "theoretical_bandwidth":
			cores := 0
			if c.GPUCores != nil {
				cores = *c.GPUCores
			}
			chip := LookupChip(c.Device, cores)
			got = []any{chip.BandwidthGBs, chip.BandwidthSource}
			if !reflect.DeepEqual([]*string{chip.Generation, chip.Family}, c.Family) {
				t.Errorf("%s: family %v %v", raw, chip.Generation, chip.Family)
			}
		case "bandwidth_scale":
			got = BandwidthScale(c.Theoretical, c.Measured)
		case "roofline":
			got = Roofline(c.BandwidthGBs, c.ActiveBytes, c.KVBytes, c.Context)
		case "baseline_mbu":
			got = BaselineMBU(c.StepMS, c.BytesPerTok, c.BandwidthGBs)
		case "weight_footprint":
			var weights []Weight
			for _, p := range c.Params {
				weights = append(weights, Weight{p[0].(string), int64(p[1].(float64))})
			}
			text := c.Config
			if nested, ok := text["text_config"].(map[string]any); ok {
				text = nested
			}
			number := func(keys ...string) int {
				for _, k := range keys {
					if v, ok := text[k].(float64); ok {
						return int(v)
					}
				}
				return 0
			}
			got = WeightFootprint(weights, number("num_experts", "num_local_experts"), number("num_experts_per_tok", "experts_per_token"))
		case "verdict":
			v := VerdictInput{MBU: c.In.MBU, DecodeTPS: c.In.DecodeTPS, RatioToCeiling: c.In.RatioToCeil, Mode: c.In.Mode, AcceptLen: c.In.AcceptLen, Pressure: c.In.Pressure,
				SwapDeltaBytes: c.In.SwapDelta, DecayRatio: c.In.Decay, Cold: c.In.Cold, ContextTokens: c.In.ContextTokens, ContextWindow: c.In.ContextWindow, MoEEstimate: c.In.MoEEstimate}.Verdict()
			if v.Level != c.Level || len(v.Findings) != c.NFindings || len(v.Levers) != c.NLevers || v.Headline == "" {
				t.Errorf("%s: verdict %+v", raw, v)
			}
			continue
		default:
			t.Fatalf("unknown function %q", c.Fn)
		}
		b, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var x, y any
		if json.Unmarshal(b, &x) != nil || json.Unmarshal(c.Out, &y) != nil {
			t.Fatal("not JSON")
		}
		if !reflect.DeepEqual(x, y) {
			t.Errorf("%s: got %s", raw, b)
		}
	}
	t.Logf("cases: %v", counts)
}

func TestVerdictRules(t *testing.T) {
	v := func(x float64) *float64 { return &x }
	for name, c := range map[string]struct {
		in    VerdictInput
		level string
	}{
		"small model":            {VerdictInput{MBU: v(0.5), DecodeTPS: 300}, LevelOK},
		"small and badly used":   {VerdictInput{MBU: v(0.2), DecodeTPS: 300}, LevelOK},
		"pressure beats unknown": {VerdictInput{Pressure: "critical"}, LevelProblem},
		"edges":                  {VerdictInput{MBU: v(0.75)}, LevelHealthy},
	} {
		if got := c.in.Verdict(); got.Level != c.level {
			t.Errorf("%s: %+v", name, got)
		}
	}
	pays := VerdictInput{MBU: v(0.8), RatioToCeiling: v(1.05), Mode: "dspark", AcceptLen: 3}.Verdict()
	loses := VerdictInput{MBU: v(0.8), RatioToCeiling: v(0.84), Mode: "dspark", AcceptLen: 1}.Verdict()
	if len(pays.Findings) != 1 || len(loses.Findings) != 1 || len(loses.Levers) != 1 || pays.Findings[0] == loses.Findings[0] {
		t.Errorf("pays %+v, loses %+v", pays, loses)
	}
}

func TestKVBytesPerToken(t *testing.T) {
	for _, c := range []struct {
		bits int
		want int64
	}{{0, 65536}, {8, 34816}, {4, 18432}} {
		if got := KVBytesPerToken(16, 4, 256, c.bits); got != c.want {
			t.Errorf("%d bits: %d bytes, want %d", c.bits, got, c.want)
		}
	}
}

func TestRaceGoldens(t *testing.T) {
	var f struct {
		Cases []struct {
			Arms    [][]int32
			Verdict map[string]any
		}
	}
	loadJSON(t, "race_verdict.json", &f)
	for i, c := range f.Cases {
		var arms []Arm
		for j, tokens := range c.Arms {
			arms = append(arms, Arm{j, fmt.Sprintf("arm%d", j), tokens})
		}
		v := CompareArms(arms)
		if v.Detail == nil || *v.Detail == "" {
			t.Errorf("case %d: no detail", i)
		}
		v.Detail = nil // the record leaves it out
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, c.Verdict) {
			t.Errorf("case %d: %s, want %v", i, b, c.Verdict)
		}
	}
	t.Logf("%d cases", len(f.Cases))
}

func TestRaceDetailAndMargin(t *testing.T) {
	v := CompareArms([]Arm{{0, "a", []int32{1, 2, 3, 4}}, {1, "b", []int32{1, 2, 3, 5}}, {2, "c", []int32{1, 9}}})
	if *v.Detail != "The arms agree on the first 1 tokens. A later difference is usually a near-tie: candidates whose scores differ by less than rounding." {
		t.Errorf("detail %q", *v.Detail)
	}
	(*v.Divergences)[0].Margin = &Margin{Margin: 0.25, Top2: 0.125, Logits: Logits{1, 0.75}, Approximate: true}
	b, err := json.Marshal((*v.Divergences)[0])
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"arm":1,"label":"b","first_diff":3,"length_only":false,"reference_token":4,"arm_token":5,"margin":0.25,"top2_margin":0.125,"logits":{"reference":1,"arm":0.75},"approximate":true}`; string(b) != want {
		t.Errorf("divergence %s", b)
	}
}
