package main

import (
	"cmp"
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
		if file != "" && file != "-" {
			if err := writable(file); err != nil {
				return &usageError{err}
			}
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
		if f := cmd.Flags(); v.IsSet("prompt-tokens") || f.Changed("mode") || f.Changed("max-tokens") {
			result, err = trials(ctx, v, out, cmd.ErrOrStderr())
		} else {
			result, err = compare(ctx, v, out, cmd.ErrOrStderr())
		}
		if result == nil || file == "" {
			return err
		}
		text, e := json.MarshalIndent(result, "", " ")
		if e != nil {
			return e
		}
		if text = append(text, '\n'); file == "-" {
			_, e = cmd.OutOrStdout().Write(text)
		} else {
			e = os.WriteFile(file, text, 0o644)
		}
		return cmp.Or(e, err)
	})
	cmd.Long = "Measure the speed of a model. Three prompts (chat, code, math) are answered in each of --modes and with each of --caps, beside plain\n" +
		"decoding, interleaved; medians are reported. With any of --mode, --prompt-tokens and --max-tokens a prompt of that length is read\n" +
		"instead and so many tokens are made in that mode, --trials times. --json alone writes one JSON value and nothing else to standard output, --json FILE to a file."
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

// writable reports why a result could not be written to a file, before it takes
// minutes to measure it.
func writable(file string) error {
	_, missing := os.Lstat(file)
	info, err := os.Stat(file)
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil // who reads a pipe would find its end
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	if err = f.Close(); err == nil && missing != nil {
		err = os.Remove(file)
	}
	return err
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

// trials reads a prompt and makes tokens, a number of times. With an error it
// returns the trials before, nil if there are none.
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
	if window := m.ContextWindow; prompt > window || tokens > window-prompt {
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
			if i == 0 {
				return nil, err
			}
			return result, fmt.Errorf("after %d of %d trials: %w", i, n, err)
		}
		s := res.Stats
		t := trial{Prefill: hundredths(float64(s.PromptTokens) / max(res.Prefill.Seconds(), 1e-9)), Decode: s.DecodeTokensPerSec, TTFT: res.TTFT.Seconds(),
			PromptTokens: s.PromptTokens, CompletionTokens: s.CompletionTokens, AcceptLen: s.AcceptLen}
		if t.CompletionTokens < 2 {
			t.Decode = 0 // the prompt gives the first token: nothing was decoded
		}
		result.Trials = append(result.Trials, t)
		if _, err := fmt.Fprintf(out, "%d: prefill %.1f tok/s, decode %.1f tok/s, first token after %.4f s\n", i+1, t.Prefill, t.Decode, t.TTFT); err != nil {
			return nil, err
		}
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
	arm  engine.Arm
}

// pass is what is measured with the model loaded once.
type pass struct {
	mode string // that it is loaded in
	ways []way
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

type comparison struct {
	Device  string      `json:"device"`
	Version string      `json:"mlx"` // where the reference names its library
	Target  string      `json:"target"`
	Runs    []runResult `json:"runs"`
}

// compare answers the prompts in all ways. With an error it returns what had been
// measured before, nil if that is nothing.
func compare(ctx context.Context, v *config, out, stderr io.Writer) (any, error) {
	if v.GetInt("trials") < 1 || v.GetInt("max-new-tokens") < 1 {
		return nil, &usageError{errors.New("--trials and --max-new-tokens must be at least 1")}
	}
	free, drafting, err := waysOf(v)
	if err != nil {
		return nil, err
	}
	named := v.IsSet("modes") || v.GetString("drafter") != "" // else what the model has no drafter for is left out
	result := &comparison{Version: "sparkbar " + version}
	for err == nil && len(free.ways)+len(drafting) > 0 {
		p := free
		if len(drafting) > 0 {
			p, drafting = drafting[0], drafting[1:]
			plain := min(1, len(free.ways))
			p.ways = slices.Concat(free.ways[:plain], p.ways, free.ways[plain:])
		}
		err = result.measure(ctx, v, p, stderr)
		var e *engine.Error
		if !named && p.mode != free.mode && errors.As(err, &e) && (e.Field == "mode" || e.Field == "drafter") {
			fmt.Fprintf(stderr, "left out: %v\n", err)
			err = nil
			continue
		}
		free.ways = nil
	}
	if len(result.Runs) == 0 {
		return nil, err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RUN\ttok/s\tDECODE tok/s\tACCEPT\tAGAINST PLAIN")
	for _, r := range result.Runs {
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.2f\t%.2f x\n", r.Run, r.TokS, r.Decode, r.Accept, r.Decode/max(result.Runs[0].Decode, 1e-9))
	}
	return result, cmp.Or(err, w.Flush())
}

// measure loads the model and answers each prompt in each way of a pass, in turn.
func (c *comparison) measure(ctx context.Context, v *config, p pass, stderr io.Writer) error {
	v.Set("mode", p.mode)
	eng, end, err := open(ctx, v, stderr)
	if err != nil {
		return err
	}
	defer end()
	c.Device, c.Target = eng.Machine().Chip.Name, eng.Status().Model.ID
	n, tokens := v.GetInt("trials"), v.GetInt("max-new-tokens")
	seen := map[string][]telemetry.RequestSummary{} // by way and prompt
	key := func(w way, prompt string) string { return w.name + "\x00" + prompt }
	for trial := range n {
		for _, q := range benchPrompts {
			text, err := json.Marshal([]map[string]string{{"role": "user", "content": q.text}})
			if err != nil {
				return err
			}
			for _, w := range p.ways {
				arm := w.arm
				res, err := eng.Generate(ctx, engine.Request{Prompt: engine.Prompt{Messages: text}, MaxTokens: tokens, Sampling: greedy(), Arm: &arm, Logprobs: -1}, nil)
				if err != nil {
					return fmt.Errorf("%s: %w", w.name, err)
				}
				seen[key(w, q.name)] = append(seen[key(w, q.name)], res.Stats)
				fmt.Fprintf(stderr, "%s %s %d/%d: %.1f tok/s\n", w.name, q.name, trial+1, n, res.Stats.DecodeTokensPerSec)
			}
		}
	}
	for _, w := range p.ways {
		r := runResult{Run: w.name, PerPrompt: map[string]promptResult{}}
		for _, q := range benchPrompts {
			s := seen[key(w, q.name)]
			x := promptResult{median(s, func(t telemetry.RequestSummary) float64 { return t.TokensPerSec }),
				median(s, func(t telemetry.RequestSummary) float64 { return t.DecodeTokensPerSec }),
				median(s, func(t telemetry.RequestSummary) float64 { return t.AcceptLen })}
			r.PerPrompt[q.name] = x
			k := float64(len(benchPrompts))
			r.TokS, r.Decode, r.Accept = r.TokS+x.TokS/k, r.Decode+x.Decode/k, r.Accept+x.Accept/k
		}
		r.TokS, r.Decode, r.Accept = hundredths(r.TokS), hundredths(r.Decode), hundredths(r.Accept)
		c.Runs = append(c.Runs, r)
	}
	return nil
}

// waysOf reads --modes and --caps. A mode with a drafter needs a load of its own;
// those that are free of one, of which plain decoding comes first, are measured
// beside the first of these.
func waysOf(v *config) (free pass, drafting []pass, err error) {
	free = pass{"baseline", []way{{"baseline", engine.Arm{Mode: "baseline"}}}}
	for _, m := range items(v, "modes") {
		switch {
		case m == "baseline":
			continue
		case m == "auto" || !slices.Contains(engine.Modes, m):
			return free, nil, &usageError{fmt.Errorf("--modes names %q; the modes are dspark, dflash, lookup, draft and baseline", m)}
		case m == "lookup":
			free.mode = m
			free.ways = append(free.ways, way{m, engine.Arm{Mode: m}})
			continue
		}
		p := pass{mode: m}
		for _, c := range items(v, "caps") {
			arm := engine.Arm{Mode: m}
			switch n, err := strconv.Atoi(c); {
			case c == "auto":
				arm.Auto = true
			case err == nil && n >= 1 && n <= 64:
				arm.Cap = n
			default:
				return free, nil, &usageError{fmt.Errorf("--caps names %q; a cap is a number from 1 to 64, or auto", c)}
			}
			p.ways = append(p.ways, way{m + " cap " + c, arm})
		}
		if len(p.ways) == 0 {
			return free, nil, &usageError{fmt.Errorf("--caps names none for %s; a cap is a number from 1 to 64, or auto", m)}
		}
		drafting = append(drafting, p)
	}
	return free, drafting, nil
}

// items are the values of a flag with commas between them, each once.
func items(v *config, flag string) (list []string) {
	for _, x := range strings.Split(v.GetString(flag), ",") {
		if x = strings.TrimSpace(x); x != "" && !slices.Contains(list, x) {
			list = append(list, x)
		}
	}
	return list
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
