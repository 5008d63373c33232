package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Read and change the settings file", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(&cobra.Command{Use: "path", Short: "Print where the settings file lies", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		p, err := settingsPath()
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), p)
		}
		return err
	}}, &cobra.Command{Use: "get [key]", Short: "Print a setting, or all there are", Args: cobra.MaximumNArgs(1), RunE: getSetting},
		&cobra.Command{Use: "set <key> <value>", Short: "Change a setting; a running server takes it over", Args: cobra.ExactArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
			return changeSetting(args[0], args[1])
		}}, &cobra.Command{Use: "unset <key>", Short: "Take a setting out, so that its default holds", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			return changeSetting(args[0], "null")
		}})
	return cmd
}

func getSetting(cmd *cobra.Command, args []string) error {
	s, err := openSettings()
	if err != nil {
		return &usageError{err}
	}
	values, out := s.Values(), cmd.OutOrStdout()
	if len(args) == 1 {
		v, ok := values[args[0]]
		if !ok {
			if findSetting(args[0]) == nil {
				return &usageError{fmt.Errorf("there is no setting '%s'; `sparkbar config get` lists them", args[0])}
			}
			return fmt.Errorf("%s is not set, so its default holds", args[0])
		}
		fmt.Fprintln(out, settingText(v))
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, x := range schema {
		v := "-"
		if value, ok := values[x.key]; ok {
			v = settingText(value)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", x.key, v, x.about)
	}
	for _, key := range sortedAny(values) {
		if strings.HasPrefix(key, "models.") {
			fmt.Fprintf(w, "%s\t%s\t\n", key, settingText(values[key]))
		}
	}
	return w.Flush()
}

func sortedAny(m map[string]any) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func settingText(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, _ := json.Marshal(v) // plain values always encode
	return string(b)
}

// changeSetting sets a key to a value that is written as JSON, or as a plain
// text.
func changeSetting(key, value string) error {
	s, err := openSettings()
	if err != nil {
		return &usageError{err}
	}
	raw := json.RawMessage(value)
	check := findSetting(key)
	if check != nil {
		var v any
		if json.Unmarshal(raw, &v) != nil {
			raw, _ = json.Marshal(value)
		} else if _, must := check(v); must != "" && v != nil { // "8" may be meant as a text
			if _, must := check(value); must == "" {
				raw, _ = json.Marshal(value)
			}
		}
	}
	if err := s.Change(map[string]json.RawMessage{key: raw}); err != nil {
		return &usageError{err}
	}
	return nil
}
