package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sparkbar/engine"
	"sparkbar/engine/telemetry"
)

func benchmarkCommand() *cobra.Command {
	cmd := command("benchmark", "Measure the speed of a model, plain and with speculation", cobra.MaximumNArgs(1), func(cmd *cobra.Command, v *config, args []string) error {
		file := v.GetString("json")
		if len(args) == 1 { // --json FILE: the flag's value may be left out, so FILE stands alone
			if file != "-" {
				return &usageError{fmt.Errorf("unknown argument %q; name the model with --model", args[0])}
			}
			file = args[0]
		}
		v.Set("no-prefix-cache", true)
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		out := cmd.OutOrStdout()
		if file == "-" {
			out = io.Discard
		}
		var result any
		var err error
		if v.IsSet("prompt-tokens") {
			result, err = trials(ctx, v, out, cmd.ErrOrStderr())
		} else {
			result, err = compare(ctx, v, out, cmd.ErrOrStderr())
		}
		if err != nil || file == "" {
			return err
		}
		text, err := json.MarshalIndent(result, "", " ")
		if err != nil {
			return err
		}
		if text = append(text, '\n'); file == "-" {
			_, err = cmd.OutOrStdout().Write(text)
			return err
		}
		return os.WriteFile(file, text, 0o644)
	})
	cmd.Long = "Measure the speed of a model. Without --prompt-tokens three prompts (chat, code, math) are answered in each of --modes and with each of\n" +
		"--caps, beside plain decoding, interleaved; medians are reported. With --prompt-tokens a prompt of that length is read and --max-tokens\n" +
		"tokens are made in --mode, --trials times. --json alone writes one JSON value and nothing else to standard output, --json FILE to a file."
	modelFlags(cmd)
	f := cmd.Flags()
	f.Int("prompt-tokens", 512, "length of the prompt; makes a plain measurement of one mode")
	f.Int("max-tokens", 128, "tokens that are made after the prompt")
	f.Int("max-new-tokens", 200, "longest answer to each of the three prompts")
	f.Int("trials", 1, "runs of each")
	f.String("modes", "dspark,lookup", "modes that are compared with plain decoding, which runs in any case")
	f.String("caps", "2,auto", "drafts per round of the modes with a drafter")
	f.String("json", "", "write the result as JSON: to standard output, or to a FILE")
	f.Lookup("json").NoOptDefVal = "-"
	return cmd
}

// trial is one run of a plain measurement.
type trial struct {
	Prefill          float64 `json:"prefill_tokens_per_sec"`
	Decode           float64 `json:"decode_tokens_per_sec"`
	TTFT             float64 `json:"ttft_seconds"`
	PromptTokens     int     `json:"prompt_tokens"`
	CompletionTokens int     `json:"completion_tokens"`
	AcceptLen        float64 `json:"accept_len"`
}

// trials reads a prompt and makes tokens, a number of times.
func trials(ctx context.Context, v *config, out, stderr io.Writer) (any, error) {
	prompt, tokens, n := v.GetInt("prompt-tokens"), v.GetInt("max-tokens"), v.GetInt("trials")
	if prompt < 1 || tokens < 1 || n < 1 {
		return nil, &usageError{errors.New("--prompt-tokens, --max-tokens and --trials must be at least 1")}
	}
	eng, end, err := open(ctx, v, stderr)
	if err != nil {
		return nil, err
	}
	defer end()
	m := eng.Status().Model
	if window := m.ContextWindow; prompt+tokens > window {
		return nil, &usageError{fmt.Errorf("a prompt of %d and %d more tokens do not fit into the context of %d tokens", prompt, tokens, window)}
	}
	result := struct {
		Model   string  `json:"model"`
		Mode    string  `json:"mode"`
		Backend string  `json:"backend"`
		Version string  `json:"version"`
		Threads int     `json:"threads"` // 0 = all cores
		Trials  []trial `json:"trials"`
	}{m.ID, m.Mode, m.Backend, version, v.GetInt("threads"), nil}
	for i := range n {
		res, err := eng.Generate(ctx, engine.Request{Prompt: engine.Prompt{Tokens: promptOf(prompt, m.Vocab, i)}, MaxTokens: tokens, Sampling: greedy(), IgnoreEnd: true, Logprobs: -1}, nil)
		if err != nil {
			return nil, err
		}
		s := res.Stats
		t := trial{Prefill: s.PrefillTokensPerSec, Decode: s.DecodeTokensPerSec, TTFT: s.TTFTSeconds, PromptTokens: s.PromptTokens, CompletionTokens: s.CompletionTokens, AcceptLen: s.AcceptLen}
		if t.Prefill == 0 { // too short for a rate in reports
			t.Prefill = float64(s.PromptTokens) / max(s.PrefillSeconds, 1e-9)
		}
		result.Trials = append(result.Trials, t)
		fmt.Fprintf(out, "%d: prefill %.1f tok/s, decode %.1f tok/s, first token after %.3f s\n", i+1, t.Prefill, t.Decode, t.TTFT)
	}
	return result, nil
}

// greedy is sampling that gives the same answer each time.
func greedy() (s engine.Sampling) {
	s.Temperature = pointer(0.0)
	return s
}

// promptOf returns n arbitrary tokens; each trial has others.
func promptOf(n, vocab, trial int) []int32 {
	ids := make([]int32, n)
	x := uint64(trial)*0x9e3779b97f4a7c15 + 1
	for i := range ids {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		ids[i] = int32(x % uint64(min(vocab, 32_000)))
	}
	return ids
}

// benchPrompts are what compare asks.
var benchPrompts = []struct{ name, text string }{
	{"chat", "What makes a good explanation? Answer in a short paragraph."},
	{"code", "Write a Python function that merges two sorted lists into one sorted list, with a docstring."},
	{"math", "A train leaves at 9:40 and arrives at 13:05. How long does it travel? Work it out step by step."},
}

// way is one row of the comparison.
type way struct {
	name string
	load string // mode that the model is loaded in
	arm  engine.Arm
}

type promptResult struct {
	TokS   float64 `json:"tok_s"`
	Decode float64 `json:"decode_tok_s"`
	Accept float64 `json:"accept"`
}

type runResult struct {
	Run string `json:"run"`
	promptResult
	PerPrompt map[string]promptResult `json:"per_prompt"`
}

// compare answers the prompts in all ways.
func compare(ctx context.Context, v *config, out, stderr io.Writer) (any, error) {
	n, tokens := v.GetInt("trials"), v.GetInt("max-new-tokens")
	if n < 1 || tokens < 1 {
		return nil, &usageError{errors.New("--trials and --max-new-tokens must be at least 1")}
	}
	ways, err := waysOf(v)
	if err != nil {
		return nil, err
	}
	result := struct {
		Device  string      `json:"device"`
		Version string      `json:"mlx"` // where the reference names its library
		Target  string      `json:"target"`
		Runs    []runResult `json:"runs"`
	}{Version: "sparkbar " + version}
	seen := map[string][]telemetry.RequestSummary{} // by way and prompt
	key := func(w way, prompt string) string { return w.name + "\x00" + prompt }
	for len(ways) > 0 {
		mode := ways[0].load
		i := 0
		for i < len(ways) && ways[i].load == mode {
			i++
		}
		group := ways[:i]
		ways = ways[i:]
		v.Set("mode", mode)
		eng, end, err := open(ctx, v, stderr)
		var e *engine.Error
		if errors.As(err, &e) && e.Field == "mode" && !v.IsSet("modes") {
			fmt.Fprintf(stderr, "left out: %v\n", err)
			if len(ways) == 0 || ways[0].load == mode {
				return nil, err
			}
			ways = append([]way{{"baseline", ways[0].load, engine.Arm{Mode: "baseline"}}}, ways...)
			continue
		}
		if err != nil {
			return nil, err
		}
		result.Device, result.Target = eng.Machine().Chip.Name, eng.Status().Model.ID
		for trial := range n {
			for _, p := range benchPrompts {
				for _, w := range group {
					text, err := json.Marshal([]map[string]string{{"role": "user", "content": p.text}})
					if err != nil {
						end()
						return nil, err
					}
					arm := w.arm
					res, err := eng.Generate(ctx, engine.Request{Prompt: engine.Prompt{Messages: text}, MaxTokens: tokens, Sampling: greedy(), Arm: &arm, Logprobs: -1}, nil)
					if err != nil {
						end()
						return nil, fmt.Errorf("%s: %w", w.name, err)
					}
					seen[key(w, p.name)] = append(seen[key(w, p.name)], res.Stats)
					fmt.Fprintf(stderr, "%s %s %d/%d: %.1f tok/s\n", w.name, p.name, trial+1, n, res.Stats.DecodeTokensPerSec)
				}
			}
		}
		end()
		for _, w := range group {
			r := runResult{Run: w.name, PerPrompt: map[string]promptResult{}}
			for _, p := range benchPrompts {
				s := seen[key(w, p.name)]
				x := promptResult{median(s, func(t telemetry.RequestSummary) float64 { return t.TokensPerSec }),
					median(s, func(t telemetry.RequestSummary) float64 { return t.DecodeTokensPerSec }),
					median(s, func(t telemetry.RequestSummary) float64 { return t.AcceptLen })}
				r.PerPrompt[p.name] = x
				k := float64(len(benchPrompts))
				r.TokS, r.Decode, r.Accept = r.TokS+x.TokS/k, r.Decode+x.Decode/k, r.Accept+x.Accept/k
			}
			r.TokS, r.Decode, r.Accept = hundredths(r.TokS), hundredths(r.Decode), hundredths(r.Accept)
			result.Runs = append(result.Runs, r)
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RUN\ttok/s\tDECODE tok/s\tACCEPT\tAGAINST PLAIN")
	for _, r := range result.Runs {
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.2f\t%.2f x\n", r.Run, r.TokS, r.Decode, r.Accept, r.Decode/max(result.Runs[0].Decode, 1e-9))
	}
	return result, w.Flush()
}

// waysOf reads --modes and --caps. Plain decoding comes first.
func waysOf(v *config) ([]way, error) {
	var ways []way
	caps := strings.Split(v.GetString("caps"), ",")
	first := ""
	for _, m := range strings.Split(v.GetString("modes"), ",") {
		m = strings.TrimSpace(m)
		if m == "" || m == "baseline" {
			continue
		}
		if m == "auto" || !slices.Contains(engine.Modes, m) {
			return nil, &usageError{fmt.Errorf("--modes names %q; the modes are dspark, dflash, lookup, draft and baseline", m)}
		}
		load := m
		if first == "" {
			first = m
		}
		if m == "lookup" {
			load = first // any loaded model can do it
			ways = append(ways, way{m, load, engine.Arm{Mode: m}})
			continue
		}
		for _, c := range caps {
			arm := engine.Arm{Mode: m}
			switch n, err := strconv.Atoi(strings.TrimSpace(c)); {
			case strings.TrimSpace(c) == "auto":
				arm.Auto = true
			case err == nil && n >= 1 && n <= 64:
				arm.Cap = n
			default:
				return nil, &usageError{fmt.Errorf("--caps names %q; a cap is a number from 1 to 64, or auto", c)}
			}
			ways = append(ways, way{m + " cap " + strings.TrimSpace(c), load, arm})
		}
	}
	if first == "" {
		first = "baseline"
	}
	ways = append([]way{{"baseline", first, engine.Arm{Mode: "baseline"}}}, ways...)
	slices.SortStableFunc(ways[1:], func(a, b way) int { // those of one load together
		return strings.Compare(order(a.load, first), order(b.load, first))
	})
	return ways, nil
}

func order(load, first string) string {
	if load == first {
		return ""
	}
	return load
}

func median(list []telemetry.RequestSummary, of func(telemetry.RequestSummary) float64) float64 {
	var x []float64
	for _, s := range list {
		x = append(x, of(s))
	}
	slices.Sort(x)
	if len(x) == 0 {
		return 0
	}
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

func hundredths(x float64) float64 { return math.Round(x*100) / 100 }
