package main

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"

	"sparkbar/engine"
	"sparkbar/engine/models"
	"sparkbar/httpapi/client"
)

// choose offers words, each perhaps with what it means behind a tab.
func choose(words ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// complete tells the shell what may stand where; `sparkbar completion` prints
// what a shell needs for it. Files are offered where nothing is said.
func complete(root *cobra.Command) {
	local := func(downloaded bool) cobra.CompletionFunc {
		return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			v, err := bind(cmd)
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			c, _ := catalogue(v)
			var list []cobra.Completion
			for _, m := range c.List() {
				if !downloaded || m.Source == models.SourceHub {
					list = append(list, cobra.CompletionWithDesc(m.ID, cmp.Or(m.Reason, gigabytes(m.Bytes))))
				}
			}
			return list, cobra.ShellCompDirectiveNoFileComp
		}
	}
	flags := map[string]cobra.CompletionFunc{"mode": choose(engine.Modes...), "reasoning-effort": choose(engine.Efforts...), "compat": choose("sparkbar", "mlx-lm"),
		"log-level": choose("debug", "info", "warn", "error"), "backend": choose("auto", "cpu", "metal", "reference"), "identity": choose("strict", "relaxed"), "activations": choose("f32", "f16", "bf16"), "kv-bits": choose("0", "4", "8"), "model": local(false), "max-draft": choose("auto")}
	args := map[string]cobra.CompletionFunc{"show": local(false), "rm": local(true), "integrations": clientIDs, "get": settingKeys, "set": settingKeys, "unset": settingKeys,
		"pull": func(*cobra.Command, []string, string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
			for _, r := range engine.Registry() {
				list = append(list, cobra.CompletionWithDesc(r.Target, r.RAM+", "+r.Speedup))
			}
			return list, cobra.ShellCompDirectiveNoFileComp
		}}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for name, f := range flags {
			if cmd.Flags().Lookup(name) != nil {
				_ = cmd.RegisterFlagCompletionFunc(name, f) // it fails only where it has been done
			}
		}
		if f := args[cmd.Name()]; f != nil {
			cmd.ValidArgsFunction = f
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(root)
}

// clientIDs asks the server, if one runs, else offers those whose files can be
// written.
func clientIDs(cmd *cobra.Command, args []string, _ string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if v, err := bind(cmd); err == nil {
		if c, err := client.New(v.GetString("url"), v.GetString("key")); err == nil {
			if all, err := c.Integrations(cmd.Context()); err == nil {
				for _, x := range all {
					list = append(list, cobra.CompletionWithDesc(x.ID, x.Name))
				}
				return list, cobra.ShellCompDirectiveNoFileComp
			}
		}
	}
	return []cobra.Completion{"claude-code", "codex", "opencode", "pi", "continue"}, cobra.ShellCompDirectiveNoFileComp
}

// settingKeys offers keys, and values where there are few.
func settingKeys(cmd *cobra.Command, args []string, _ string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
	switch {
	case len(args) == 0:
		for _, s := range schema {
			list = append(list, cobra.CompletionWithDesc(s.key, s.about))
		}
	case len(args) == 1 && cmd.Name() == "set":
		if check := findSetting(args[0]); check != nil {
			_, must := check(struct{}{}) // nothing that a setting can be
			switch words, some := strings.CutPrefix(must, "one of "); {
			case some:
				list = strings.Split(words, ", ")
			case must == "true or false":
				list = []cobra.Completion{"true", "false"}
			}
		}
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}
