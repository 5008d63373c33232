package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"sparkbar/engine"
	"sparkbar/metalkern"
)

// kernelTrial is a trial as the report has it.
type kernelTrial struct {
	Kernel   string  `json:"kernel"`
	Variant  string  `json:"variant,omitempty"`
	Shape    string  `json:"shape"`
	OK       bool    `json:"ok"`
	Why      string  `json:"why,omitempty"`
	MicroSec float64 `json:"gpu_us,omitempty"`
	Chosen   bool    `json:"chosen"`
}

// kernelReport is what `doctor --kernels` finds.
type kernelReport struct {
	OK       bool             `json:"ok"`
	GPU      string           `json:"gpu,omitempty"`
	Model    string           `json:"model,omitempty"`
	Drills   int              `json:"drills"` // that agree
	Trials   []kernelTrial    `json:"trials"`
	Findings []engine.Finding `json:"findings"`
}

// examineKernels runs the drills and then a model whose kernels are all tried
// anew, but for those that hung or crashed before.
func examineKernels(ctx context.Context, out io.Writer, v *config) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	r := kernelReport{Trials: []kernelTrial{}, Findings: []engine.Finding{}}
	problem := func(code, fix string, err error) {
		r.Findings = append(r.Findings, engine.Finding{Code: code, Level: engine.LevelProblem, Message: err.Error(), Fix: fix})
	}
	d, err := openGPU("")
	switch {
	case errors.Is(err, metalkern.ErrNoDevice):
		r.Findings = append(r.Findings, engine.Finding{Code: "no_gpu", Level: engine.LevelAttention, Message: "this machine has no GPU that Sparkbar can use, so models run on the CPU: " + err.Error(), Fix: "nothing to do; a Mac with Apple silicon has one"})
		r.OK = true
		return r.write(out, v.GetBool("json"))
	case err != nil:
		return err
	}
	r.GPU = d.Name()
	const update = "models run on the CPU meanwhile; update macOS or Sparkbar and try again"
	b := metalkern.New(d, metalkern.Options{})
	for _, x := range metalkern.Drills {
		if err := x.Check(b); err != nil {
			problem("kernel_drill", update, err)
			continue
		}
		r.Drills++
	}
	if err := b.Close(); err != nil {
		return err
	}
	if err := r.model(ctx, v); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		problem("kernel_unfit", update, err)
	}
	failed := map[string]bool{}
	for _, t := range r.Trials {
		if !t.OK && t.Variant != "" && !failed[t.Kernel+t.Variant] {
			failed[t.Kernel+t.Variant] = true
			r.Findings = append(r.Findings, engine.Finding{Code: "kernel_variant", Level: engine.LevelAttention, Message: fmt.Sprintf("the variant %q of kernel %s is not used: %s", t.Variant, t.Kernel, t.Why),
				Fix: "nothing to do: another variant is used; please report it"})
		}
	}
	r.OK = !slices.ContainsFunc(r.Findings, func(f engine.Finding) bool { return f.Level == engine.LevelProblem })
	return r.write(out, v.GetBool("json"))
}

// model loads the model on the GPU alone and runs prompts and answers.
func (r *kernelReport) model(ctx context.Context, v *config) error {
	load, err := loadRequest(v)
	if err != nil {
		return err
	}
	on := true
	load.Warmup = &on
	r.Model = load.Model
	o, _, err := metalOptions(v)
	if err != nil {
		return &usageError{err}
	}
	eng := bareEngine(v, metalOn(v, o, metalkern.Trials{Again: true, Heard: func(t metalkern.Trial) {
		k := kernelTrial{Kernel: t.Kernel, Variant: t.Variant, Shape: t.Key, OK: t.Why == nil, MicroSec: float64(t.Took) / float64(time.Microsecond), Chosen: t.Chosen}
		if t.Why != nil {
			k.Why = t.Why.Error()
		}
		r.Trials = append(r.Trials, k)
	}}))
	defer eng.Close(context.WithoutCancel(ctx))
	if _, err := eng.LoadFrom(ctx, load); err != nil {
		return err
	}
	m := eng.Status().Model
	if m == nil {
		return errors.New("the model went away")
	}
	// A long prompt, then rows one at a time and, with a drafter, several.
	prompt := promptOf(min(300, m.ContextWindow/2), m.Vocab, 0)
	_, err = eng.Generate(ctx, engine.Request{Prompt: engine.Prompt{Tokens: prompt}, MaxTokens: 16, Sampling: greedy(), IgnoreEnd: true, Logprobs: -1}, nil)
	return err
}

func (r *kernelReport) write(out io.Writer, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", " ")
		if err := enc.Encode(r); err != nil {
			return err
		}
	} else {
		if r.GPU != "" {
			fmt.Fprintf(out, "%s: %d of %d drills agree with the reference; %d trials with %s\n\n", r.GPU, r.Drills, len(metalkern.Drills), len(r.Trials), r.Model)
		}
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		plain := map[string]int{} // kernels with one way, by how often they agree
		var order []string
		for _, t := range r.Trials {
			if t.OK && t.Variant == "" {
				if plain[t.Kernel]++; plain[t.Kernel] == 1 {
					order = append(order, t.Kernel)
				}
			}
		}
		for _, k := range order {
			fmt.Fprintf(w, "%s\tagrees\tin %d shapes\n", k, plain[k])
		}
		for _, t := range r.Trials {
			switch {
			case !t.OK:
				fmt.Fprintf(w, "%s\t%s\tFAILS: %s\n", t.Kernel, t.Variant, t.Why)
			case t.Variant != "":
				mark := ""
				if t.Chosen {
					mark = "chosen"
				}
				fmt.Fprintf(w, "%s\t%s\t%.1f us\t%s\n", t.Shape, t.Variant, t.MicroSec, mark)
			}
		}
		if err := w.Flush(); err != nil {
			return err
		}
		for _, f := range r.Findings {
			fmt.Fprintf(out, "%-9s  %s\n           fix: %s\n", f.Level, f.Message, f.Fix)
		}
	}
	if !r.OK {
		return errProblems
	}
	return nil
}
