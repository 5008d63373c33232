package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the build from the repository's tags.
var version = "dev"

func main() {
	cmd := root()
	cmd.SetArgs(args())
	if err := cmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "sparkbar:", err)
		var usage *usageError
		if errors.As(err, &usage) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func root() *cobra.Command {
	serve := serveCommand()
	cmd := &cobra.Command{
		Use:           "sparkbar",
		Short:         "A private LLM endpoint with lossless speculative decoding",
		Long:          "Sparkbar serves local language models over the OpenAI and Anthropic HTTP APIs,\nwith an engine of its own and lossless speculative decoding.\n\nWithout a command it is the app of the menu bar on macOS, and `sparkbar serve` elsewhere; flags of\n`sparkbar generate` without a command are for that.\n\nA command ends with 0, with 1 where something failed, and with 2 for a mistake on the command line.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(*cobra.Command, []string) error { return plain(serve) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	cmd.AddCommand(serve, chatCommand(), topCommand(), lsCommand(), showCommand(), pullCommand(), rmCommand(), doctorCommand(), integrationsCommand(), claudeCommand(), codexCommand(), opencodeCommand(), piCommand(), configCommand(), generateCommand(), publishedCommand(), versionCommand())
	cmd.Version = version
	cmd.AddCommand(benchmarkCommand(), calibrateCommand(), planCommand())
	complete(cmd)
	misuse(cmd)
	return cmd
}

// misuse makes arguments that a command does not take mistakes on the command
// line.
func misuse(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return &usageError{err}
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		misuse(c)
	}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			rev := ""
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						rev = " " + s.Value[:min(12, len(s.Value))]
					}
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "sparkbar %s%s %s %s/%s\n", version, rev, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}
