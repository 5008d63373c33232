package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"sparkbar/engine"
)

// config is what a command was told: a value is taken from the flag, else from
// SPARKBAR_<NAME>, else from MLX_DSPARK_<NAME>, else from the settings file,
// else it is the flag's default. Nothing is ever written back.
type config struct {
	*viper.Viper
	flags  *pflag.FlagSet
	file   *settings
	reread func() (*config, error) // with what the settings file says now
	// apply takes over what follow does not, before anything else; it may refuse.
	apply  func(now *config) error
	latest atomic.Pointer[config] // that follow has applied
	// findings are what the engine made from it reports of the process.
	findings func() []engine.Finding
}

// now is what holds after the latest edit of the settings file.
func (c *config) now() *config {
	if l := c.latest.Load(); l != nil {
		return l
	}
	return c
}

// bind reads flags, environment and settings file.
func bind(cmd *cobra.Command) (*config, error) {
	file, err := openSettings()
	if err != nil {
		return nil, &usageError{err}
	}
	return bindTo(cmd, file)
}

func bindTo(cmd *cobra.Command, file *settings) (*config, error) {
	v := viper.New()
	if err := v.BindPFlags(cmd.Flags()); err != nil {
		return nil, err
	}
	for _, key := range v.AllKeys() {
		if err := v.BindEnv(append([]string{key}, envNames(key)...)...); err != nil {
			return nil, err
		}
	}
	if err := checkEnvironment(cmd.Flags()); err != nil {
		return nil, &usageError{err}
	}
	if err := v.MergeConfigMap(file.flags()); err != nil {
		return nil, err
	}
	return &config{Viper: v, flags: cmd.Flags(), file: file, reread: func() (*config, error) { return bindTo(cmd, file) }}, nil
}

// envNames are the variables that stand for a flag, the first that is set counts.
func envNames(flag string) []string {
	name := strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
	return []string{"SPARKBAR_" + name, "MLX_DSPARK_" + name}
}

// checkEnvironment refuses variables that their flags could not hold: viper reads them
// as zero or false.
func checkEnvironment(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		if err != nil || f.Changed || f.Name == "help" || f.Name == "version" {
			return
		}
		for _, name := range envNames(f.Name) {
			text := os.Getenv(name)
			if text == "" {
				continue
			}
			if fault := holds(f.Value, text); fault != nil {
				want := "a value that --" + f.Name + " takes"
				if known, ok := valueNames[f.Value.Type()]; ok {
					want = known
				}
				err = fmt.Errorf("%s must be %s, got '%s'", name, want, text)
			}
			return
		}
	})
	return err
}

// valueNames are kinds of flags as people call their values.
var valueNames = map[string]string{"bool": "true or false", "int": "a whole number", "uint64": "a whole number, at least 0", "float64": "a number", "duration": "a duration, such as 30m"}

// holds tries a text on a new value of a flag's kind; a list takes any text.
func holds(flag pflag.Value, text string) error {
	kind := reflect.TypeOf(flag)
	if _, list := flag.(pflag.SliceValue); list || kind.Kind() != reflect.Pointer {
		return nil
	}
	value, ok := reflect.New(kind.Elem()).Interface().(pflag.Value)
	if !ok {
		return nil
	}
	return value.Set(text)
}

// list is a flag with several values; in the environment commas separate them.
func (c *config) list(key string) []string {
	if s, ok := c.Get(key).(string); ok {
		return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
	}
	return c.GetStringSlice(key)
}

// texts is a flag that may be repeated, whose values may hold commas; in the environment
// and in the settings it has one value. Blank ones do not count.
func (c *config) texts(key string) []string {
	list := []string{c.GetString(key)}
	if _, ok := c.Get(key).(string); !ok {
		list = slices.Clone(c.GetStringSlice(key))
	}
	return slices.DeleteFunc(list, func(s string) bool { return strings.TrimSpace(s) == "" })
}

// folders is a list of folders; in the environment it is separated as PATH is.
func (c *config) folders(key string) []string {
	if s, ok := c.Get(key).(string); ok {
		return filepath.SplitList(s)
	}
	return c.GetStringSlice(key)
}

// modelFlags are those that say how a model is loaded.
func modelFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("model", "", "model to load: the id of a model on this machine or the hub, a folder, a GGUF file, or demo (default demo)")
	f.String("target", "", "alias of --model")
	f.String("drafter", "", "drafter folder (default: the pair's own)")
	f.String("mode", "auto", "auto, dspark, dflash, lookup, draft or baseline")
	f.String("max-draft", "", "drafted tokens per round: a number, or auto")
	f.Float64("confidence-threshold", 0, "cut drafts whose confidence falls below this (0 = never)")
	f.Bool("lookup-drafts", true, "copy from the context where it repeats itself, beside a drafter")
	f.Bool("no-lookup-drafts", false, "never copy from the context beside a drafter")
	f.Int("context-window", 0, "longest prompt and answer in tokens (0 = the model's own)")
	f.Int("kv-bits", 0, "quantize the KV cache to 4 or 8 bits (0 = not)")
	f.Int("drafter-window", 4096, "positions of context that a draft block attends (0 = all)")
	f.Int("drafter-bits", 4, "quantize a drafter head at load (0 = keep its precision)")
	f.Float64("cpu-split", 0, "of the metal backend: share of a prompt's layers that the CPU computes beside the GPU, 0 = none (default: measured)")
	f.Bool("warmup", true, "run a short generation after loading")
	f.Bool("no-warmup", false, "skip the warm-up")
	f.Bool("no-thinking", false, "thinking off by default")
	f.String("reasoning-effort", "", "default effort: low, medium, high or xhigh")
	f.Bool("memory-guard", true, "give memory back when the system is short of it")
	f.Bool("no-memory-guard", false, "never give memory back on its own")
	f.StringSlice("model-dirs", nil, "folders with models, besides those of the Hugging Face cache, LM Studio and Ollama")
	f.Bool("offline", false, "never use the network for models")
	f.StringSlice("hub-hosts", nil, "further hosts that the hub may redirect downloads to")
	f.String("hub-ca", "", "file of certificates trusted for downloads besides the system's")
	f.Float64("memory-bandwidth", 0, "GB/s at which memory is read, for the roofline (0 = measured once)")
	f.String("calibrations", "", "file that keeps what rounds cost on this machine (default: in the user's cache folder)")
	f.Int("threads", 0, "threads of the CPU backend (0 = all cores)")
	f.Bool("exact", false, "float32 arithmetic everywhere (slower)")
	f.String("backend", "auto", "auto (metal where its kernels pass their trials on this machine, else cpu), cpu, metal or reference")
	f.String("identity", "strict", "of the metal backend: strict (speculation changes no token) or relaxed (9 to 16 rows may use the matrix units, which round otherwise)")
	f.String("activations", "f32", "of the metal backend: what lies between operations, f32, f16 or bf16; sums are float32")
	takeUnused(f, unusedModelFlags)
}

// loadRequest reads the model flags.
func loadRequest(v *config) (engine.LoadRequest, error) {
	if err := checkRanges(v); err != nil {
		return engine.LoadRequest{}, err
	}
	r := engine.LoadRequest{Model: v.GetString("model"), Drafter: v.GetString("drafter"), Mode: v.GetString("mode")}
	if r.Model == "" {
		r.Model = v.GetString("target")
	}
	if r.Model == "" {
		r.Model = demoID
	}
	if r.Mode != "" && !slices.Contains(engine.Modes, r.Mode) {
		return r, &usageError{fmt.Errorf("--mode must be one of %s, got '%s'", strings.Join(engine.Modes, ", "), r.Mode)}
	}
	if s := v.GetString("max-draft"); s == "auto" {
		r.MaxDraft = pointer(0)
	} else if s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			return r, &usageError{fmt.Errorf("--max-draft must be an integer or 'auto', got '%s'", s)}
		}
		n = max(n, 1)
		r.MaxDraft = &n
	}
	if v.IsSet("confidence-threshold") {
		r.ConfidenceThreshold = pointer(v.GetFloat64("confidence-threshold"))
	}
	if v.GetBool("no-lookup-drafts") {
		r.LookupDrafts = pointer(false)
	} else if v.IsSet("lookup-drafts") {
		r.LookupDrafts = pointer(v.GetBool("lookup-drafts"))
	}
	r.ContextWindow = pointer(v.GetInt("context-window"))
	r.KVBits = pointer(v.GetInt("kv-bits"))
	r.DrafterWindow = pointer(v.GetInt("drafter-window"))
	if v.IsSet("drafter-bits") {
		r.DrafterBits = pointer(v.GetInt("drafter-bits"))
	}
	if v.IsSet("cpu-split") {
		r.CPUSplit = pointer(v.GetFloat64("cpu-split"))
	}
	if err := compatLoad(v, &r); err != nil {
		return r, err
	}
	r.Warmup = pointer(v.GetBool("warmup") && !v.GetBool("no-warmup"))
	r.MemoryGuard = pointer(v.GetBool("memory-guard") && !v.GetBool("no-memory-guard"))
	if v.GetBool("no-thinking") {
		r.EnableThinking = pointer(false)
	}
	if s := v.GetString("reasoning-effort"); s != "" {
		if !slices.Contains(engine.Efforts, s) {
			return r, &usageError{fmt.Errorf("--reasoning-effort must be one of low, medium, high, xhigh, got '%s'", s)}
		}
		r.ReasoningEffort = &s
	}
	return r, nil
}

func pointer[T any](v T) *T { return &v }

// The config is the httpapi.Settings of a server.

// Path implements httpapi.Settings.
func (c *config) Path() string { return c.file.path }

// Values implements httpapi.Settings.
func (c *config) Values() map[string]any { return c.file.Values() }

// Change implements httpapi.Settings.
func (c *config) Change(change map[string]json.RawMessage) error { return c.file.Change(change) }

// Locked implements httpapi.Settings.
func (c *config) Locked() map[string]string {
	out := map[string]string{}
	for _, s := range schema {
		for _, flag := range flagsOf(s.flag) {
			if by := c.origin(flag); by != "" && out[s.key] == "" {
				out[s.key] = by
			}
		}
	}
	return out
}

// flagsOf are the flags that decide what a setting decides.
func flagsOf(flag string) []string {
	switch flag {
	case "":
		return nil
	case "model":
		return []string{"model", "target", "no-model"}
	case "thinking", "model-switch":
		return []string{"no-" + flag}
	case "lookup-drafts", "memory-guard":
		return []string{flag, "no-" + flag}
	case "api-key":
		return []string{flag, "api-key-file"}
	}
	return []string{flag}
}
