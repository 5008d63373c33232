//go:build !(darwin && cgo) && !double

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// plain is what `sparkbar` without a command does where there is no menu bar.
func plain(serve *cobra.Command) error { return serve.RunE(serve, nil) }

// savedKey is the key of the Keychain, which there is none of here.
func savedKey() (string, error) {
	return "", &usageError{errors.New("server.api_key says that the key is in the Keychain of macOS; give one with --api-key, or `sparkbar config set server.api_key`")}
}
