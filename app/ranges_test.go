package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestRanges: numbers that cannot be end the program at its start, with the name of
// the flag; they are nothing that a client should be told of later.
func TestRanges(t *testing.T) {
	for args, want := range map[string]string{
		"serve --kv-bits 3":                "--kv-bits must be one of 0, 4, 8, got 3",
		"serve --kv-group-size 5":          "--kv-group-size must be one of 32, 64, 128, got 5",
		"serve --default-top-p 7":          "--default-top-p must be 0 to 1, got 7",
		"serve --top-p -0.5":               "--default-top-p must be 0 to 1, got -0.5",
		"serve --temp -1":                  "--default-temperature must be at least 0, got -1",
		"serve --min-p NaN":                "--default-min-p must be 0 to 1, got NaN",
		"serve --max-tokens 0":             "--default-max-tokens must be at least 1, got 0",
		"serve --max-tokens-cap -4":        "--max-tokens-cap must be at least 1, got -4",
		"serve --context-window -5":        "--context-window must be 16 to 10000000, or 0, got -5",
		"serve --confidence-threshold 5":   "--confidence-threshold must be 0 to 1, got 5",
		"serve --drafter-bits 7":           "--drafter-bits must be one of 0, 2, 3, 4, 5, 6, 8, got 7",
		"serve --max-batch 0":              "--max-batch must be 1 to 1024, got 0",
		"serve --queue-limit -1":           "--queue-limit must be 1 to 100000, got -1",
		"serve --port 99999":               "--port must be 0 to 65535, got 99999",
		"serve --lookup-long-draft 99":     "--lookup-long-draft must be 1 to 64, got 99",
		"serve --prefill-step-size -4":     "--prefill-step-size must be at least 0, got -4",
		"serve --idle-unload -3m":          "--idle-unload must be at least 0, got -3m",
		"generate --top-p 2":               "--top-p must be 0 to 1, got 2",
		"generate --max-new-tokens 0":      "--max-new-tokens must be at least 1, got 0",
		"serve --default-top-k x":          "invalid argument",
		"benchmark --threads 300":          "--threads must be 0 to 256, got 300",
		"calibrate --drafter-window -1":    "--drafter-window must be at least 0, got -1",
		"benchmark --kv-bits 5 --json x.j": "--kv-bits must be one of 0, 4, 8, got 5",
		"serve --activations f8":           "--activations must be f32, f16 or bf16, got 'f8'",
		"benchmark --model ./nowhere":      "\"./nowhere\" is neither",
		"calibrate nowhere":                "\"nowhere\" is neither",
		"calibrate demo --drafter nowhere": "nowhere",
		"serve --identity loose":           "--identity must be strict or relaxed, got 'loose'",
	} {
		if _, err := command1(t, "", strings.Fields(args)...); err == nil || exitCode(err) != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, exit code %d, want %q and 2", args, err, exitCode(err), want)
		}
	}
}

// TestEnvironmentValues: a variable that its flag could not hold ends the program and is
// named; an empty one is none, and a flag on the command line goes before.
func TestEnvironmentValues(t *testing.T) {
	for set, want := range map[string]string{
		"SPARKBAR_PORT=abc":                "SPARKBAR_PORT must be a whole number, got 'abc'",
		"MLX_DSPARK_MAX_BATCH=4.5":         "MLX_DSPARK_MAX_BATCH must be a whole number, got '4.5'",
		"SPARKBAR_NO_MODEL=maybe":          "SPARKBAR_NO_MODEL must be true or false, got 'maybe'",
		"SPARKBAR_DEFAULT_TEMPERATURE=hot": "SPARKBAR_DEFAULT_TEMPERATURE must be a number, got 'hot'",
		"SPARKBAR_IDLE_UNLOAD=30":          "SPARKBAR_IDLE_UNLOAD must be a duration, such as 30m, got '30'",
		"SPARKBAR_PORT=99999":              "--port must be 0 to 65535, got 99999",
	} {
		name, value, _ := strings.Cut(set, "=")
		t.Run(set, func(t *testing.T) {
			t.Setenv(name, value)
			if _, err := command1(t, "", "serve"); err == nil || exitCode(err) != 2 || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, exit code %d, want %q and 2", err, exitCode(err), want)
			}
		})
	}
	t.Setenv("SPARKBAR_PORT", "")
	t.Setenv("MLX_DSPARK_PORT", "0")
	t.Setenv("SPARKBAR_NO_MODEL", "1")
	t.Setenv("SPARKBAR_MAX_BATCH", "many")
	startAnyServe(t, "--max-batch", "2")
}

// TestHolds: every kind of flag that commands have is one whose values can be tried, or a
// text or list that holds any.
func TestHolds(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			kind := f.Value.Type()
			if err := holds(f.Value, f.DefValue); err != nil {
				t.Errorf("%s --%s does not hold its default: %v", cmd.Name(), f.Name, err)
			}
			if err := holds(f.Value, "\x00"); (err == nil) != slices.Contains([]string{"string", "stringSlice", "stringArray"}, kind) {
				t.Errorf("%s --%s (%s): %v", cmd.Name(), f.Name, kind, err)
			}
			if valueNames[kind] == "" && holds(f.Value, "\x00") != nil {
				t.Errorf("%s --%s: nobody says what a %s is", cmd.Name(), f.Name, kind)
			}
		})
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(root())
}
