package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sparkbar/engine"
)

// generateCommand answers one prompt, with the flags of `mlx-dspark generate`.
func generateCommand() *cobra.Command {
	cmd := command("generate", "Answer one prompt in the terminal, and say how fast", cobra.NoArgs, func(cmd *cobra.Command, v *config, _ []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return generate(ctx, v, cmd.OutOrStdout())
	})
	modelFlags(cmd)
	compatFlags(cmd)
	f := cmd.Flags()
	f.SetNormalizeFunc(nil) // --top-p and its like are the prompt's own here
	f.String("prompt", "Explain how rainbows form, in a few sentences.", "what to answer; - reads standard input")
	f.Int("max-new-tokens", 220, "longest answer")
	f.Float64("temperature", 0, "sampling temperature (0 = the likeliest token)")
	f.Float64("top-p", 1, "share of the likeliest tokens to sample from")
	f.Int("top-k", 0, "number of the likeliest tokens to sample from (0 = all)")
	f.Uint64("seed", 0, "seed of the random numbers (default: another each time)")
	f.Bool("no-chat-template", false, "continue the prompt as it is")
	f.Bool("no-stream", false, "print the answer when it is complete")
	return cmd
}

// modeNames are the ways of decoding as people call them.
var modeNames = map[string]string{"dspark": "DSpark", "dflash": "DFlash", "lookup": "Lookup (n-gram drafts)", "draft": "Draft model", "baseline": "Baseline (plain decoding)"}

const rule = 64 // characters of a line across

// generate answers one prompt. Everything goes to out, as in the reference.
func generate(ctx context.Context, v *config, out io.Writer) error {
	load, err := loadRequest(v)
	if err != nil {
		return err
	}
	req, err := generateRequest(v, os.Stdin)
	if err != nil {
		return err
	}
	eng, err := newEngine(v, load)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = eng.Close(ctx)
	}()
	fmt.Fprintf(out, "loading %s: target=%s", load.Mode, load.Model)
	if load.Drafter != "" {
		fmt.Fprintf(out, ", drafter=%s", load.Drafter)
	}
	fmt.Fprintln(out)
	st, err := eng.LoadFrom(ctx, load)
	if err != nil {
		return badLoad(err)
	}
	m := st.Model
	for _, w := range st.Warnings {
		fmt.Fprintf(out, "%s: %s\n", w.Level, w.Message)
	}
	across := strings.Repeat("=", rule)
	fmt.Fprintf(out, "\n%s\n  ▶  %s   ·   %s\n%s\n", across, modeNames[m.Mode], m.ID, across)
	began, streamed := time.Now(), !v.GetBool("no-stream")
	res, err := eng.Generate(ctx, req, func(d engine.Delta) error {
		if !streamed {
			return nil
		}
		_, err := io.WriteString(out, d.Text)
		return err
	})
	if err != nil {
		fmt.Fprintln(out)
		return err
	}
	if !streamed {
		fmt.Fprint(out, res.Text)
	}
	thin := strings.Repeat("-", rule)
	fmt.Fprintf(out, "\n%s\n  %s\n%s\n", thin, generateStats(res, time.Since(began), isTerminal(out), eng.Gauges()), thin)
	return nil
}

// generateRequest is the request that the flags describe.
func generateRequest(v *config, in io.Reader) (engine.Request, error) {
	prompt := v.GetString("prompt")
	if prompt == "-" {
		text, err := io.ReadAll(io.LimitReader(in, 64<<20))
		if err != nil {
			return engine.Request{}, fmt.Errorf("--prompt -: %w", err)
		}
		prompt = string(text)
	}
	bad := func(format string, args ...any) (engine.Request, error) {
		return engine.Request{}, &usageError{fmt.Errorf(format, args...)}
	}
	n, t, p, k := v.GetInt("max-new-tokens"), v.GetFloat64("temperature"), v.GetFloat64("top-p"), v.GetInt("top-k")
	switch {
	case prompt == "":
		return bad("--prompt must not be empty")
	case n < 1:
		return bad("--max-new-tokens must be at least 1, got %d", n)
	case !(t >= 0):
		return bad("--temperature must be at least 0, got %v", t)
	case !(p >= 0 && p <= 1):
		return bad("--top-p must be from 0 to 1, got %v", p)
	}
	k = max(k, 0)
	req := engine.Request{ID: "generate", MaxTokens: n, Logprobs: -1, Sampling: engine.Sampling{Temperature: &t, TopP: &p, TopK: &k}}
	if v.IsSet("seed") {
		req.Sampling.Seed = pointer(v.GetUint64("seed"))
	}
	if v.GetBool("no-chat-template") {
		req.Prompt.Text = &prompt
		return req, nil
	}
	messages, err := json.Marshal([]map[string]string{{"role": "user", "content": prompt}})
	req.Prompt.Messages = messages
	return req, err
}

// generateStats is the line behind an answer.
func generateStats(res engine.Result, took time.Duration, bold bool, g *engine.Gauges) string {
	s := res.Stats
	total := fmt.Sprintf("%.1f tok/s", float64(s.CompletionTokens)/max(took.Seconds(), 1e-9))
	if bold {
		total = "\x1b[1m" + total + "\x1b[0m"
	}
	line := fmt.Sprintf("%d tokens · %.2fs · %s end-to-end · %.1f tok/s decode", s.CompletionTokens, took.Seconds(), total, s.DecodeTokensPerSec)
	if s.PrefillSeconds > 0 {
		line += fmt.Sprintf(" · prefill %.2fs", s.PrefillSeconds)
	}
	if s.Mode != "baseline" {
		line += fmt.Sprintf(" · accept %.2f/round · %d target fwds", s.AcceptLen, s.TargetForwards)
	}
	if s.LookupRounds > 0 {
		line += fmt.Sprintf(" · %d lookup rounds", s.LookupRounds)
	}
	if g != nil && g.Controller != nil {
		line += fmt.Sprintf(" · auto-cap now %d (p≈%.2f)", g.Controller.Cap, g.Controller.P)
	}
	return line
}

// badLoad makes the mistakes of who typed the command usage errors.
func badLoad(err error) error {
	var e *engine.Error
	if errors.As(err, &e) && (e.Kind == engine.ErrInvalid || e.Kind == engine.ErrModelNotFound) {
		return &usageError{err}
	}
	return err
}

// publishedCommand lists the published pairs, as `mlx-dspark models` does.
func publishedCommand() *cobra.Command {
	return &cobra.Command{Use: "models", Short: "List published models that have a drafter", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return published(cmd.OutOrStdout())
	}}
}

func published(out io.Writer) error {
	rows := [][4]string{{"target (--model)", "DSpark drafter", "DFlash drafter", "RAM"}}
	for _, r := range engine.Registry() {
		row := [4]string{r.Target, r.DSpark, r.DFlash, r.RAM}
		for i := range row {
			if row[i] == "" {
				row[i] = "—"
			}
		}
		rows = append(rows, row)
	}
	var width [4]int
	for _, r := range rows {
		for i, c := range r {
			width[i] = max(width[i], len([]rune(c)))
		}
	}
	fmt.Fprint(out, "Models whose drafter is found by itself: pass one as --model, in any quantization.\n\n")
	for _, r := range rows {
		for i, c := range r {
			fmt.Fprintf(out, "  %s%s", c, strings.Repeat(" ", width[i]-len([]rune(c))))
		}
		fmt.Fprintln(out)
	}
	fmt.Fprint(out, "\nAny other model works too: a repository, a folder or a GGUF file as --model, and --drafter where there is one.\n`sparkbar ls` lists what is on this machine, `sparkbar pull` fetches.\n")
	return nil
}
