package main

import (
	"os"
	"path/filepath"
	"testing"

	"sparkbar/engine/testneed"
)

// TestCross links the app for Apple silicon and packs it: every import is in a
// library, the bundle is what macOS asks for, the signature can be read again,
// the size is within its limit. `make cross` does the same for both kinds of Mac.
func TestCross(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector has nothing to find in another compiler")
	}
	t.Chdir("../..")
	if _, err := os.Stat(filepath.Join("build", "darwin", "zig", "bin", "python")); err != nil {
		testneed.Missing(t, "the cross compiler", "run `make setup-cross`")
	}
	for _, step := range []string{"build", "bundle"} {
		if err := run([]string{step, "arm64"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range [][]string{nil, {"build"}, {"build", "sparc"}, {"bake", "arm64"}} {
		if err := run(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
