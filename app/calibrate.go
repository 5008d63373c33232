package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sparkbar/engine"
	"sparkbar/engine/calibrate"
)

func calibrateCommand() *cobra.Command {
	cmd := command("calibrate [model]", "Measure what rounds of a model cost on this machine", cobra.MaximumNArgs(1), func(cmd *cobra.Command, v *config, args []string) error {
		if len(args) == 1 {
			v.Set("model", args[0])
		}
		v.Set("no-warmup", true)
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		return calibrateModel(ctx, v, cmd.OutOrStdout(), cmd.ErrOrStderr())
	})
	cmd.Long = "Measure what rounds of a model cost on this machine: forwards of the target by their number of rows, and proposals of its drafter.\n" +
		"Loads find the result, choose the number of drafts by it and share drafts among streams. It takes about five seconds after the load;\n" +
		"other programs should rest meanwhile."
	modelFlags(cmd)
	cmd.Flags().Bool("json", false, "print the measurements as JSON")
	return cmd
}

// open loads what the model flags say into an engine of this process.
func open(ctx context.Context, v *config, stderr io.Writer) (*engine.Engine, func(), error) {
	load, err := loadRequest(v)
	if err != nil {
		return nil, nil, err
	}
	eng, err := newEngine(v, load)
	if err != nil {
		return nil, nil, err
	}
	end := func() { eng.Close(context.WithoutCancel(ctx)) }
	fmt.Fprintf(stderr, "loading %s ...\n", load.Model)
	if _, err := eng.LoadFrom(ctx, load); err != nil {
		end()
		return nil, nil, badLoad(err)
	}
	return eng, end, nil
}

func calibrateModel(ctx context.Context, v *config, out, stderr io.Writer) error {
	eng, end, err := open(ctx, v, stderr)
	if err != nil {
		return err
	}
	defer end()
	fmt.Fprintln(stderr, "measuring ...")
	c, err := eng.Calibrate(ctx)
	if err != nil {
		return err
	}
	if c.Unkept != nil {
		fmt.Fprintf(stderr, "later loads will not find this: %v; name a file that can be written with --calibrations\n", c.Unkept)
	}
	m := eng.Status().Model
	roof := eng.Roofline(m, calibrate.BaseDepth)
	if v.GetBool("json") {
		var report *calibrate.Report
		if m.Drafter != "" {
			report = pointer(c.Report())
		}
		enc := json.NewEncoder(out)
		enc.SetIndent("", " ")
		return enc.Encode(struct {
			Key string `json:"key"`
			*calibrate.Costs
			Report  *calibrate.Report `json:"recommendation"` // null without a drafter
			Derived int               `json:"derived_cap,omitempty"`
			Ceiling *float64          `json:"ceiling_tokens_per_sec"`
		}{c.Key, c.Costs, report, derivedCap(c, m), roof.CeilingTPS})
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s, mode %s, context %d\n\nROWS\tVERIFY ms\tPER ROW OF ONE", m.ID, m.Mode, calibrate.BaseDepth)
	if m.Drafter != "" {
		fmt.Fprint(w, "\tDRAFT ms\ttok/s AT ACCEPTANCE 0.7")
	}
	fmt.Fprintln(w)
	for _, rows := range c.Verify.Points() {
		fmt.Fprintf(w, "%d\t%.2f\t%.2f x", rows, c.Verify.At(rows), c.Verify.At(rows)/c.Verify.At(1))
		if m.Drafter != "" {
			draft := 0.0
			if rows > 1 {
				draft = c.Drafter.At(rows - 1)
			}
			fmt.Fprintf(w, "\t%.2f\t%.1f", draft, 1000*c.Rate(rows-1, calibrate.DerivedAcceptance, 0))
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if cap := derivedCap(c, m); cap > 0 {
		fmt.Fprintf(out, "\ndrafts per round where nothing else is said: %d\n", cap)
	}
	if rate := 1000 / c.Verify.At(1); roof.CeilingTPS != nil && rate <= *roof.CeilingTPS { // weights that fit into the caches are read faster
		fmt.Fprintf(out, "plain decoding reaches %.0f of at most %.0f tok/s that the memory allows\n", rate, *roof.CeilingTPS)
	}
	return nil
}

// derivedCap is what loads will use, 0 = there is no drafter.
func derivedCap(c *engine.Calibration, m *engine.ModelInfo) int {
	points := c.Verify.Points()
	if m.Drafter == "" || len(points) == 0 {
		return 0
	}
	return c.BestCap(calibrate.DerivedAcceptance, 0, max(1, points[len(points)-1]-1))
}
