package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/models"
	"sparkbar/engine/telemetry"
	"sparkbar/metalkern"
	"sparkbar/resources"
)

func planCommand() *cobra.Command {
	cmd := command("plan [MODEL]", "What a GPU would do for a model: dispatches, bytes, and the speed that memory allows", cobra.MaximumNArgs(1), func(cmd *cobra.Command, v *config, args []string) error {
		if len(args) == 1 {
			v.Set("model", args[0])
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		p, err := planOf(ctx, v)
		if err != nil {
			return err
		}
		if v.GetBool("json") {
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", " ")
			return enc.Encode(p)
		}
		return p.write(cmd.OutOrStdout())
	})
	cmd.Long = "What the Metal backend would hand to a GPU for a model, and the tokens per second that the memory of a chip allows at most. Nothing is\n" +
		"computed: the model is loaded on a device that only counts, so this works on any machine. The gain of speculation assumes that a\n" +
		"verify step and a draft cost what their bytes cost."
	modelFlags(cmd)
	cmd.Flags().String("chip", "M4-Pro", "Apple chip, such as M1, M3-Max or M4-Pro")
	cmd.Flags().Int("context", 4096, "tokens of context that a decoded token sees")
	cmd.Flags().Bool("json", false, "write JSON")
	return cmd
}

// plan is what a GPU would do for a model.
type plan struct {
	Model        string                  `json:"model"`
	Drafter      string                  `json:"drafter,omitempty"`
	Chip         telemetry.Chip          `json:"chip"`
	WeightBytes  int64                   `json:"weight_bytes"`
	DrafterBytes int64                   `json:"drafter_bytes,omitempty"`
	KVBytes      int64                   `json:"kv_bytes"` // of the context
	Copied       int64                   `json:"copied_weight_bytes"`
	Roofline     telemetry.RooflinePoint `json:"roofline"`
	Forwards     []planForward           `json:"forwards"`
	Chips        []planChip              `json:"chips"`
	Speculation  []planGain              `json:"speculation,omitempty"`
}

// planChip is the ceiling of a chip of the table.
type planChip struct {
	Name       string  `json:"name"`
	GBs        float64 `json:"bandwidth_gb_s"`
	CeilingTPS float64 `json:"ceiling_tps"`
}

// planForward is one forward pass of the target.
type planForward struct {
	Rows       int `json:"rows"`
	Dispatches int `json:"dispatches"`
	Barriers   int `json:"barriers"`
	// CommandBuffers and Calls into C are those of one forward, besides the call that
	// waits for its end.
	CommandBuffers float64     `json:"command_buffers"`
	Calls          float64     `json:"cgo_calls"`
	Weights        int64       `json:"weight_bytes"`
	Other          int64       `json:"other_bytes"` // activations and numbers, each time they are read or written
	Kernels        []planCount `json:"kernels"`
}

type planCount struct {
	Kernel string `json:"kernel"`
	Times  int    `json:"times"`
}

// planGain is what a number of drafts brings at an acceptance.
type planGain struct {
	Drafts     int     `json:"drafts"`
	Acceptance float64 `json:"acceptance"` // of each draft, given that those before were accepted
	Tokens     float64 `json:"tokens_per_round"`
	Gain       float64 `json:"speedup"`
}

const planPrompt = 256 // tokens of the prompt that is recorded

func planOf(ctx context.Context, v *config) (*plan, error) {
	chip := telemetry.LookupChip(chipOf(v.GetString("chip")), 0)
	if chip.BandwidthGBs == nil {
		return nil, &usageError{fmt.Errorf("--chip %s is not in the table of Apple chips; use a name such as M2, M3-Max or M4-Pro", v.GetString("chip"))}
	}
	length := v.GetInt("context")
	if length < 0 {
		return nil, &usageError{fmt.Errorf("--context must not be negative, got %d", length)}
	}
	v.Set("no-warmup", true)
	load, err := loadRequest(v)
	if err != nil {
		return nil, err
	}
	r := metalkern.NewRecorder()
	eng := bareEngine(v, func() (compute.Backend, error) { return metalkern.New(r, metalkern.Options{}), nil })
	defer eng.Close(context.WithoutCancel(ctx))
	if _, err := eng.LoadFrom(ctx, load); err != nil {
		return nil, err
	}
	m := eng.Status().Model
	if m == nil {
		return nil, errors.New("the model went away")
	}
	p := &plan{Model: m.ID, Drafter: m.Drafter, Chip: chip, WeightBytes: m.Weights.ActiveBytes, DrafterBytes: m.DrafterBytes,
		Roofline: telemetry.Roofline(*chip.BandwidthGBs, m.Weights.ActiveBytes, m.KVBytesPerToken, length)}
	r.Lists = nil
	prompt := promptOf(min(planPrompt, m.ContextWindow/2), m.Vocab, 0)
	_, err = eng.Generate(ctx, engine.Request{Prompt: engine.Prompt{Tokens: prompt}, MaxTokens: 3, Sampling: greedy(), IgnoreEnd: true, Logprobs: -1, Arm: &engine.Arm{Mode: "baseline"}}, nil)
	if err != nil {
		return nil, err
	}
	p.KVBytes = m.KVBytesPerToken * int64(length)
	if load.Model != demoID { // which lies in the program, wherever the linker put it
		p.Copied = r.CopiedWeights
	}
	p.record(r.Lists)
	for _, c := range telemetry.Chips() {
		if point := telemetry.Roofline(*c.BandwidthGBs, m.Weights.ActiveBytes, m.KVBytesPerToken, length); point.CeilingTPS != nil {
			p.Chips = append(p.Chips, planChip{strings.TrimPrefix(c.Name, "Apple "), *c.BandwidthGBs, *point.CeilingTPS})
		}
	}
	if p.DrafterBytes > 0 {
		p.speculate()
	}
	return p, nil
}

// bareEngine is an engine that answers nobody: it keeps nothing, on disk or in
// memory, and measures nothing of the machine.
func bareEngine(v *config, backend func() (compute.Backend, error)) *engine.Engine {
	target, drafter := resources.Demo()
	places, _, _ := storage(v)
	return engine.New(engine.Options{Version: version, Backend: backend,
		Builtins:  map[string]engine.Builtin{demoID: {Target: target, Drafter: drafter, DFlash: resources.DemoDFlash()}},
		Catalogue: models.NewCatalogue(models.CatalogueOptions{Places: places, Builtins: []models.Model{demoModel(target)}}), Places: places, Slots: -1, ModelRoot: "."})
}

// chipOf turns a name as it is typed, such as m4-pro, into Apple's.
func chipOf(s string) string {
	out := []byte("Apple ")
	upper := true
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '-' || c == '_' || c == ' ':
			c, upper = ' ', true
		case upper && c >= 'a' && c <= 'z':
			c, upper = c-'a'+'A', false
		default:
			upper = false
		}
		out = append(out, c)
	}
	return string(out)
}

// record keeps the largest forward (of the prompt) and that of one row.
func (p *plan) record(lists []metalkern.Recorded) {
	var largest, one *metalkern.Recorded
	forwards := 0
	for i, l := range lists {
		if l.Rows > 0 {
			forwards++
		}
		if l.Rows > 1 && (largest == nil || l.Rows > largest.Rows) {
			largest = &lists[i]
		}
		if l.Rows == 1 {
			one = &lists[i]
		}
	}
	for _, l := range []*metalkern.Recorded{one, largest} {
		if l == nil {
			continue
		}
		each := float64(len(lists)) / float64(forwards) // a list is one command buffer, encoded by one call
		f := planForward{Rows: l.Rows, Dispatches: len(l.Dispatches), Barriers: l.Barriers, CommandBuffers: each, Calls: each, Weights: l.Weights, Other: l.Other}
		at := map[string]int{}
		for _, d := range l.Dispatches {
			i, ok := at[d.Kernel]
			if !ok {
				i = len(f.Kernels)
				at[d.Kernel] = i
				f.Kernels = append(f.Kernels, planCount{Kernel: d.Kernel})
			}
			f.Kernels[i].Times++
		}
		p.Forwards = append(p.Forwards, f)
	}
}

// speculate computes what drafts bring when time is bytes: a round reads the
// target once and the drafter once.
func (p *plan) speculate() {
	round := 1 + float64(p.DrafterBytes)/float64(p.Roofline.BytesPerToken)
	for _, drafts := range []int{2, 4, 7} {
		for _, a := range []float64{0.5, 0.7, 0.85} {
			tokens := (1 - math.Pow(a, float64(drafts+1))) / (1 - a)
			p.Speculation = append(p.Speculation, planGain{drafts, a, tokens, tokens / round})
		}
	}
}

// moved is what a decode forward moves, relative to the least it must: all weights
// of a token and the cache.
func (p *plan) moved(f planForward) float64 {
	return float64(f.Weights+f.Other+p.KVBytes) / float64(p.WeightBytes+p.KVBytes)
}

func (p *plan) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s on an %s with %.0f GB/s\n\n", p.Model, p.Chip.Name, *p.Chip.BandwidthGBs)
	fmt.Fprintf(w, "weights\t%.2f MB, %.2f MB of them copied\n", float64(p.WeightBytes)/1e6, float64(p.Copied)/1e6)
	fmt.Fprintf(w, "bytes of a token\t%.1f MB with %d tokens of context\n", float64(p.Roofline.BytesPerToken)/1e6, p.Roofline.Context)
	if p.Roofline.CeilingTPS != nil {
		fmt.Fprintf(w, "ceiling\t%.0f tokens per second\n", *p.Roofline.CeilingTPS)
	}
	for _, f := range p.Forwards {
		fmt.Fprintf(w, "\nFORWARD OF %d ROWS\t%.3g command buffers, %.3g cgo calls, %d dispatches, %d barriers\n", f.Rows, f.CommandBuffers, f.Calls, f.Dispatches, f.Barriers)
		fmt.Fprintf(w, "  bytes moved\t%.2f MB of weights, %.2f MB of activations", float64(f.Weights)/1e6, float64(f.Other)/1e6)
		if f.Rows == 1 {
			fmt.Fprintf(w, ", %.2f MB of KV: %.3f x (weights + KV)", float64(p.KVBytes)/1e6, p.moved(f))
		}
		fmt.Fprintln(w)
		for _, k := range f.Kernels {
			fmt.Fprintf(w, "  %s\t%d\n", k.Kernel, k.Times)
		}
	}
	fmt.Fprintf(w, "\nCHIP\tGB/S\tCEILING, TOKENS/S\t(bandwidths: Apple's, as collected in mlx-dspark 0.20.3, roofline.py; the larger memory where there are two)\n")
	for _, c := range p.Chips {
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\n", c.Name, c.GBs, c.CeilingTPS)
	}
	if len(p.Speculation) > 0 {
		fmt.Fprintf(w, "\nDRAFTS\tACCEPTANCE\tTOKENS A ROUND\tSPEED\n")
		for _, g := range p.Speculation {
			fmt.Fprintf(w, "%d\t%.2f\t%.2f\t%.2f x\n", g.Drafts, g.Acceptance, g.Tokens, g.Gain)
		}
	}
	return w.Flush()
}
