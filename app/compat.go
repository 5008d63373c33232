package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sparkbar/engine"
	"sparkbar/httpapi"
)

// `serve` stands in for `mlx-dspark serve` and `mlx_lm.server`, so it takes the
// flags of both. This file holds what they call otherwise, and those that there
// is nothing to set for here.

// flagAliases are other names of flags of `serve`.
var flagAliases = map[string]string{
	"family":             "target",
	"adapters":           "adapter-path",
	"draft-model":        "drafter",
	"num-draft-tokens":   "max-draft",
	"allowed-origins":    "cors-origin",
	"temp":               "default-temperature",
	"top-p":              "default-top-p",
	"top-k":              "default-top-k",
	"min-p":              "default-min-p",
	"max-tokens":         "default-max-tokens",
	"prompt-cache-size":  "prefix-cache-slots",
	"decode-concurrency": "max-batch",
}

// unusedFlag is a flag that is taken so that command lines keep working. Who
// gives it is told why it changes nothing.
type unusedFlag struct{ name, kind, why string }

// unusedModelFlags are those of every command that loads a model,
// unusedServeFlags those of `serve`.
var (
	unusedModelFlags = []unusedFlag{
		{"wired-limit", "bool", "the system's limit of wired memory is left as it is; see `sparkbar doctor`"},
		{"trust-remote-code", "bool", "code that comes with a model is never run; a model works if its family is built in"},
		{"wide-gemm-min", "int", kernelsMeasured},
		{"small-m", "bool", kernelsMeasured},
		{"no-small-m", "bool", kernelsMeasured},
		{"sdpa-split", "bool", kernelsMeasured},
		{"no-sdpa-split", "bool", kernelsMeasured},
		{"multirow-attn", "bool", kernelsMeasured},
		{"no-multirow-attn", "bool", kernelsMeasured},
	}
	unusedServeFlags = []unusedFlag{
		{"prefix-cache-max-ram-mb", "float", "what memory holds is set by --prefix-cache-slots, what the disk holds by --prefix-cache-disk"},
		{"prompt-cache-bytes", "string", "what memory holds is set by --prefix-cache-slots, and by the context window"},
		{"prompt-concurrency", "int", "prompts are read in turn, between the steps of running answers"},
		{"quantized-kv-start", "int", "with --kv-bits the cache is quantized from the first token on"},
		{"use-default-chat-template", "bool", "a model without a template gets a fitting one by itself"},
	}
)

const kernelsMeasured = "kernels are chosen by measurement"

// takeUnused adds flags that help does not show.
func takeUnused(f *pflag.FlagSet, list []unusedFlag) {
	for _, u := range list {
		switch u.kind {
		case "bool":
			f.Bool(u.name, false, u.why)
		case "int":
			f.Int(u.name, 0, u.why)
		case "float":
			f.Float64(u.name, 0, u.why)
		default:
			f.String(u.name, "", u.why)
		}
		_ = f.MarkHidden(u.name) // it exists
	}
}

// compatFlags adds the flags of the two servers that `serve` has no other use for.
func compatFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("adapter-path", "", "folder of an adapter (LoRA, DoRA or full) for the model")
	f.String("chat-template", "", "chat template, in Jinja, instead of the model's own")
	f.String("chat-template-args", "", "JSON object of further variables of the chat template")
	f.Int("kv-group-size", 64, "values that share a scale with --kv-bits: 32, 64 or 128")
	f.Int("lookup-long-draft", 32, "longest copy from the context, in tokens")
	f.Int("prefill-step-size", 0, "tokens of a prompt that are read at once (0 = by measurement)")
	f.Int("prefix-cache-rungs", 8192, "tokens between the places of a prompt that are remembered where a past cannot be cut (0 = none)")
	f.Float64("default-min-p", 0, "min_p when a request does not say")
	f.Bool("pipeline", false, "not available: models are not spread over machines")
	takeUnused(f, unusedServeFlags)
	_ = f.MarkHidden("pipeline")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if to, ok := flagAliases[name]; ok {
			name = to
		}
		return pflag.NormalizedName(name)
	})
}

// compatLoad lays what the flags of compatFlags say over a load.
func compatLoad(v *config, r *engine.LoadRequest) error {
	r.Adapter, r.ChatTemplate = v.GetString("adapter-path"), v.GetString("chat-template")
	if v.IsSet("kv-group-size") {
		r.KVGroup = pointer(v.GetInt("kv-group-size"))
	}
	if v.IsSet("lookup-long-draft") {
		r.LookupLongDraft = pointer(v.GetInt("lookup-long-draft"))
	}
	if s := strings.TrimSpace(v.GetString("chat-template-args")); s != "" {
		if err := json.Unmarshal([]byte(s), &r.TemplateArgs); err != nil || r.TemplateArgs == nil {
			return &usageError{fmt.Errorf("--chat-template-args must be a JSON object, such as '{\"enable_thinking\":false}', got '%s'", s)}
		}
	}
	if v.GetBool("pipeline") {
		return &usageError{errors.New("--pipeline is not available: models are not spread over machines")}
	}
	return nil
}

// tellUnused names the flags that were given and change nothing.
func tellUnused(v *config, log *slog.Logger) {
	for _, u := range slices.Concat(unusedModelFlags, unusedServeFlags) {
		if v.given(u.name) {
			log.Warn("--"+u.name+" changes nothing here", "why", u.why)
		}
	}
}

// profileOf is the wire profile of --compat. Defaults of the profile yield to
// flags.
func profileOf(v *config) (httpapi.Profile, error) {
	f, ok := profiles[v.GetString("compat")]
	if !ok {
		return httpapi.Profile{}, &usageError{fmt.Errorf("--compat must be sparkbar or mlx-lm, got '%s'", v.GetString("compat"))}
	}
	p := f()
	if v.IsSet("default-max-tokens") {
		p.MaxTokens = 0
	}
	if v.IsSet("default-temperature") {
		p.Temperature = nil
	}
	return p, nil
}

// arguments are those of the command line. Under the name of mlx_lm.server the
// program is that server; flags of `generate` without a command are for it, as
// mlx-dspark has it.
func arguments(args []string) []string {
	if len(args) > 0 && strings.TrimSuffix(filepath.Base(args[0]), ".exe") == "mlx_lm.server" {
		return append([]string{"serve", "--compat", "mlx-lm"}, args[1:]...)
	}
	args = args[min(1, len(args)):]
	if isFlat(args) {
		return append([]string{"generate"}, args...)
	}
	return args
}

// isFlat reports that arguments begin with a flag of `generate` and name no command.
func isFlat(args []string) bool {
	if len(args) == 0 || !strings.HasPrefix(args[0], "--") {
		return false
	}
	flag, _, _ := strings.Cut(args[0][2:], "=")
	if generateCommand().Flags().Lookup(flag) == nil {
		return false
	}
	all := root()
	named, _, err := all.Find(args)
	return err != nil || named == all
}

// logLevel reads a level in the words of either server.
func logLevel(name string) (slog.Level, error) {
	var level slog.Level
	switch strings.ToLower(name) {
	case "warning":
		return slog.LevelWarn, nil
	case "critical":
		return slog.LevelError + 4, nil
	}
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return level, &usageError{fmt.Errorf("--log-level must be debug, info, warn or error, got '%s'", name)}
	}
	return level, nil
}

// args are the arguments of this process.
func args() []string { return arguments(os.Args) }
