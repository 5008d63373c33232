//go:build !(darwin && cgo) && !double

package main

import "github.com/spf13/cobra"

// plain is what `sparkbar` without a command does where there is no menu bar.
func plain(serve *cobra.Command) error { return serve.RunE(serve, nil) }
