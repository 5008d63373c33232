package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sparkbar/httpapi/client"
)

// launch is a client program as it is to be started.
type launch struct {
	program string
	args    []string
	set     map[string]string
	unset   []string
}

// claudeCommand, codexCommand, opencodeCommand and piCommand start a client
// program for one session: only the started process is configured, and no file
// of the client is written.
func claudeCommand() *cobra.Command {
	return launchCommand("claude", "Start Claude Code with the local model", func(c launchContext) (launch, error) {
		set := maps.Clone(c.step("claude-code", "env").Env)
		for name := range c.step("claude-code", "env").Env {
			if strings.HasPrefix(name, "ANTHROPIC_DEFAULT_") && strings.HasSuffix(name, "_MODEL") {
				set[name+"_DESCRIPTION"] = "Local " + c.health.Mode + " on this machine via Sparkbar"
			}
		}
		if w := c.health.ContextWindow; w >= 100_000 {
			set["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = fmt.Sprint(w / 5 * 4)
		}
		return launch{program: "claude", set: set, unset: []string{"ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX",
			"CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_MANTLE", "CLAUDE_CODE_USE_ANTHROPIC_AWS"}}, nil
	})
}

func codexCommand() *cobra.Command {
	return launchCommand("codex", "Start the Codex CLI with the local model", func(c launchContext) (launch, error) {
		quote := func(s string) string { b, _ := json.Marshal(s); return string(b) } // JSON strings are TOML
		args := []string{"-m", c.health.Model, "-c", "model_provider=" + product, "-c", "web_search=disabled"}
		if w := c.health.ContextWindow; w > 0 {
			args = append(args, "-c", fmt.Sprintf("model_context_window=%d", w))
		}
		args = append(args, "-c", fmt.Sprintf("model_providers.%s={name=%s,base_url=%s,wire_api=\"responses\",env_key=\"MLX_DSPARK_KEY\"}", product, quote(product), quote(c.url+"/v1")))
		key := c.key
		if key == "" {
			key = product
		}
		return launch{program: "codex", args: args, set: map[string]string{"MLX_DSPARK_KEY": key}}, nil
	})
}

// OpenCode lays what stands in OPENCODE_CONFIG_CONTENT over its files.
func opencodeCommand() *cobra.Command {
	return launchCommand("opencode", "Start OpenCode with the local model", func(c launchContext) (launch, error) {
		var config map[string]any
		if err := json.Unmarshal([]byte(c.step("opencode", "file").Content), &config); err != nil {
			return launch{}, fmt.Errorf("the server at %s does not say how OpenCode is configured: %w", c.url, err)
		}
		model := product + "/" + c.health.Model
		config["model"], config["small_model"] = model, model
		text, err := json.Marshal(config)
		return launch{program: "opencode", set: map[string]string{"OPENCODE_CONFIG_CONTENT": string(text)}}, err
	})
}

// piExtension is what pi runs to learn of the server; it says nothing of its own.
const piExtension = `// Written by sparkbar: pi learns of the local model from its environment.
export default function (pi) {
  for (const [name, provider] of Object.entries(JSON.parse(process.env.SPARKBAR_PI ?? "{}"))) pi.registerProvider(name, provider);
}
`

// pi takes providers from its own file or from an extension. The extension lies
// in this program's cache and holds neither address nor key.
func piCommand() *cobra.Command {
	return launchCommand("pi", "Start pi with the local model", func(c launchContext) (launch, error) {
		var config struct{ Providers map[string]map[string]any }
		if err := json.Unmarshal([]byte(c.step("pi", "file").Content), &config); err != nil || config.Providers[product] == nil {
			return launch{}, fmt.Errorf("the server at %s does not say how pi is configured: %v", c.url, err)
		}
		if list, ok := config.Providers[product]["models"].([]any); ok {
			for _, m := range list {
				if m, ok := m.(map[string]any); ok { // an extension has to say all
					maps.Copy(m, map[string]any{"name": m["id"], "reasoning": false, "input": []string{"text"}, "cost": map[string]int{"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}})
				}
			}
		}
		text, err := json.Marshal(config.Providers)
		if err != nil {
			return launch{}, err
		}
		dir, err := os.UserCacheDir()
		if err != nil {
			return launch{}, err
		}
		path := filepath.Join(dir, "sparkbar", "pi-provider.js")
		if have, err := os.ReadFile(path); err != nil || string(have) != piExtension {
			if err := writeWhole(path, []byte(piExtension), 0o644); err != nil {
				return launch{}, err
			}
		}
		return launch{program: "pi", args: []string{"--extension", path, "--provider", product, "--model", c.health.Model}, set: map[string]string{"SPARKBAR_PI": string(text)}}, nil
	})
}

// launchContext is what is known about the server.
type launchContext struct {
	url, key string
	health   client.Health
	all      []client.Integration
}

// step is the step of a kind of an integration.
func (c launchContext) step(id, kind string) client.SetupStep {
	for _, x := range c.all {
		for _, s := range x.Setup {
			if x.ID == id && s.Kind == kind {
				return s
			}
		}
	}
	return client.SetupStep{}
}

func launchCommand(name, short string, plan func(launchContext) (launch, error)) *cobra.Command {
	cmd := &cobra.Command{Use: name + " [flags] [-- arguments of " + name + "]", Short: short, Args: cobra.ArbitraryArgs, RunE: func(cmd *cobra.Command, args []string) error {
		v, err := bind(cmd)
		if err != nil {
			return err
		}
		c, err := reach(cmd.Context(), v.GetString("url"), v.GetString("api-key"))
		if err != nil {
			return &usageError{err}
		}
		l, err := plan(c)
		if err != nil {
			return err
		}
		l.args = append(l.args, args...)
		if v.GetBool("print-env") {
			l.print(cmd.OutOrStdout())
			return nil
		}
		if v.GetBool("print-settings") {
			out := json.NewEncoder(cmd.OutOrStdout())
			out.SetIndent("", "  ")
			return out.Encode(map[string]any{"env": l.set})
		}
		path, err := exec.LookPath(l.program)
		if err != nil {
			return &usageError{fmt.Errorf("%s is not on the PATH; install it, or see `sparkbar integrations`", l.program)}
		}
		return syscall.Exec(path, append([]string{l.program}, l.args...), l.environment(os.Environ()))
	}}
	f := cmd.Flags()
	f.String("url", "http://127.0.0.1:8080", "the server")
	f.String("api-key", "", "its API key")
	f.Bool("print-env", false, "print the environment that would be set, and the arguments")
	f.Bool("print-settings", false, "print the environment as a settings file has it")
	return cmd
}

// reach asks the server who it is, and whether it takes the key.
func reach(ctx context.Context, url, key string) (launchContext, error) {
	c, err := client.New(url, key)
	if err != nil {
		return launchContext{}, err
	}
	if ctx == nil {
		ctx = context.Background()
	}
	l := launchContext{url: strings.TrimRight(url, "/"), key: key}
	if l.health, err = c.Health(ctx); err != nil {
		return l, fmt.Errorf("no server at %s (%w); start one with `sparkbar serve`", url, err)
	}
	if l.health.Status != "ok" && l.health.Serving == "" {
		return l, fmt.Errorf("the server at %s has no model (%s); load one with POST /admin/load", url, l.health.Status)
	}
	if l.all, err = c.Integrations(ctx); err != nil {
		var e *client.Error
		if errors.As(err, &e) && e.Status == 401 {
			return l, fmt.Errorf("the server at %s does not take this key; give its own with --api-key", url)
		}
		return l, err
	}
	return l, nil
}

// environment is that of the parent, changed.
func (l launch) environment(parent []string) []string {
	out := slices.DeleteFunc(slices.Clone(parent), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, replaced := l.set[name]
		return replaced || slices.Contains(l.unset, name)
	})
	for _, name := range sortedKeys(l.set) {
		out = append(out, name+"="+l.set[name])
	}
	return out
}

func (l launch) print(out io.Writer) {
	for _, name := range l.unset {
		fmt.Fprintf(out, "unset %s\n", name)
	}
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	for _, name := range sortedKeys(l.set) {
		fmt.Fprintf(out, "export %s=%s\n", name, quote(l.set[name]))
	}
	if len(l.args) > 0 || l.program != "claude" {
		words := []string{l.program}
		for _, a := range l.args {
			words = append(words, quote(a))
		}
		fmt.Fprintln(out, strings.Join(words, " "))
	}
}
