package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// TestNewerThanMinimum: what is newer than the oldest macOS we promise does not
// compile with the flags of app/cocoa, unless the code asks for it first.
func TestNewerThanMinimum(t *testing.T) {
	t.Chdir("../..")
	python, _, err := zig()
	if err != nil {
		testneed.Missing(t, "the cross compiler", "run `make setup-cross`")
	}
	sdk, _, err := stubs()
	if err != nil {
		t.Fatal(err)
	}
	bridge, err := os.ReadFile("app/cocoa/bridge.go")
	if err != nil {
		t.Fatal(err)
	}
	var flags []string
	for line := range strings.Lines(string(bridge)) {
		for _, start := range []string{"// #cgo CFLAGS:", "// #cgo darwin CFLAGS:"} {
			if rest, ok := strings.CutPrefix(line, start); ok {
				flags = append(flags, strings.Fields(rest)...)
			}
		}
	}
	for name, c := range map[string]struct {
		call string
		ok   bool
	}{
		"old":           {"[Old go];", true},
		"new":           {"[New go];", false},
		"new, if there": {"if (@available(macOS 15.0, *)) [New go];", true},
		"no such":       {"[Old gone];", false},
	} {
		file := filepath.Join(t.TempDir(), "x.m")
		text := "#import <Foundation/Foundation.h>\n@interface Old : NSObject\n+ (void)go;\n@end\nAPI_AVAILABLE(macos(15.0)) @interface New : NSObject\n+ (void)go;\n@end\nvoid f(void) { " + c.call + " }\n"
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		args := append([]string{"-m", "ziglang", "cc", "-target", "aarch64-macos." + minimum, "-c", "-o", filepath.Join(t.TempDir(), "x.o"), "-I" + filepath.Join(sdk, "usr", "include")}, flags...)
		out, err := exec.Command(python, append(args, file)...).CombinedOutput()
		if (err == nil) != c.ok {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
