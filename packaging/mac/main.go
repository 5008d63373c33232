package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"sparkbar/packaging"
)

const (
	minimum = "14.0"     // of macOS
	sdk     = "15.0"     // whose looks and behaviour the app is made for
	limit   = 30_000_000 // bytes of a program
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mac:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "patch":
		_, err := patched()
		return err
	case len(args) == 2 && args[0] == "cask":
		return cask(args[1])
	case len(args) == 2 && args[0] == "prepare":
		v, err := version()
		if err != nil {
			return err
		}
		return packaging.Bundle(packaging.BundleOptions{Binary: filepath.Join("dist", "sparkbar"), Template: "Info.plist.tmpl", License: "LICENSE", Version: v, Out: args[1]})
	}
	if len(args) != 2 || !slices.Contains([]string{"arm64", "amd64"}, args[1]) {
		return errors.New("usage: mac build|check|bundle arm64|amd64, mac cask URL, mac patch, or mac prepare APP")
	}
	switch args[0] {
	case "build":
		return build(args[1])
	case "check":
		return check(args[1])
	case "bundle":
		return bundle(args[1])
	}
	return fmt.Errorf("nobody knows how to %q; build, check, bundle or patch", args[0])
}

// cache is where everything that can be made again lies.
func cache(parts ...string) string {
	return filepath.Join(append([]string{"build", "darwin"}, parts...)...)
}

func binary(arch string) string { return filepath.Join("dist", "sparkbar-darwin-"+arch) }

func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// patched makes the patched copy of darwinkit and returns the go.mod that uses
// it. The copy's folder is named by its content, so that Go's build cache works.
func patched() (modfile string, err error) {
	const module = "github.com/progrium/darwinkit"
	if _, err := output("go", "mod", "download", module); err != nil {
		return "", fmt.Errorf("%s cannot be fetched: %w", module, err)
	}
	src, err := output("go", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", err
	}
	dst, err := filepath.Abs(cache("darwinkit"))
	if err != nil {
		return "", err
	}
	tmp := dst + ".new"
	if err := errors.Join(os.RemoveAll(tmp), packaging.PatchDarwinkit(src, tmp), os.RemoveAll(dst)); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dst); err != nil {
		return "", err
	}
	modfile, err = filepath.Abs(cache("go.mod"))
	if err != nil {
		return "", err
	}
	return modfile, packaging.Modfile("go.mod", dst, modfile)
}

// zig returns the compiler's interpreter and folder.
func zig() (python, dir string, err error) {
	python, err = filepath.Abs(cache("zig", "bin", "python"))
	if err != nil {
		return "", "", err
	}
	dir, err = output(python, "-c", "import ziglang, os; print(os.path.dirname(ziglang.__file__))")
	if err != nil {
		return "", "", fmt.Errorf("the cross compiler is missing; run `make setup-cross`: %w", err)
	}
	return python, dir, nil
}

// stubs writes the stub SDK unless it is there.
func stubs() (dir string, libs []packaging.Library, err error) {
	goroot, err := output("go", "env", "GOROOT")
	if err != nil {
		return "", nil, err
	}
	if libs, err = packaging.Libraries(goroot); err != nil {
		return "", nil, err
	}
	dir, err = filepath.Abs(cache("sdk-" + packaging.SDKKey(libs)))
	if err != nil {
		return "", nil, err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, libs, nil
	}
	tmp := dir + ".new"
	if err := errors.Join(os.RemoveAll(tmp), packaging.WriteSDK(tmp, libs)); err != nil {
		return "", nil, err
	}
	return dir, libs, os.Rename(tmp, dir)
}

// version of the program, from the repository.
func version() (string, error) { return output(filepath.Join("packaging", "version.sh")) }

func build(arch string) error {
	modfile, err := patched()
	if err != nil {
		return err
	}
	python, _, err := zig()
	if err != nil {
		return err
	}
	dir, _, err := stubs()
	if err != nil {
		return err
	}
	target := map[string]string{"arm64": "aarch64", "amd64": "x86_64"}[arch] + "-macos." + minimum
	frameworks := filepath.Join(dir, "System", "Library", "Frameworks")
	// The SDK's path holds its key: Go's build cache sees the flags, and so a
	// changed SDK. -w: no debug records, which would need a tool of Apple's.
	flags := fmt.Sprintf("-F%s -I%s", frameworks, filepath.Join(dir, "usr", "include"))
	env := append(os.Environ(),
		"GOOS=darwin", "GOARCH="+arch, "CGO_ENABLED=1",
		fmt.Sprintf("CC=%s -m ziglang cc -target %s", python, target),
		fmt.Sprintf("CXX=%s -m ziglang c++ -target %s", python, target),
		"CGO_CFLAGS=-O2 "+flags, "CGO_CXXFLAGS=-O2 "+flags, "CGO_OBJCFLAGS=-O2 "+flags,
		fmt.Sprintf("CGO_LDFLAGS=-F%s -L%s", frameworks, filepath.Join(dir, "usr", "lib")),
		"ZIG_GLOBAL_CACHE_DIR="+mustAbs(cache("zig-global")), "ZIG_LOCAL_CACHE_DIR="+mustAbs(cache("zig-local")))
	v, err := version()
	if err != nil {
		return err
	}
	jobs := min(runtime.NumCPU(), 2) // each may take a gigabyte
	cmd := exec.Command("go", "build", "-p", fmt.Sprint(jobs), "-modfile", modfile, "-trimpath", "-ldflags", "-s -w -X main.version="+v+" -X main.releases="+os.Getenv("UPDATES"), "-o", binary(arch), "./app")
	cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stdout, os.Stderr
	err = cmd.Run()
	// zig leaves a file of this name where cgo feeds it a program on its input.
	for _, d := range []string{"-.o", "app/-.o"} {
		if rm := os.Remove(d); rm != nil && !errors.Is(rm, os.ErrNotExist) {
			return rm
		}
	}
	if err != nil {
		return fmt.Errorf("the build for %s failed: %w", arch, err)
	}
	return check(arch)
}

func mustAbs(p string) string {
	a, err := filepath.Abs(p)
	if err != nil {
		panic(err) // the working folder is gone
	}
	return a
}

func check(arch string) error {
	m, err := packaging.ReadMachO(binary(arch))
	if err != nil {
		return err
	}
	_, libs, err := stubs()
	if err != nil {
		return err
	}
	_, zigdir, err := zig()
	if err != nil {
		return err
	}
	install, symbols, err := packaging.ReadStub(filepath.Join(zigdir, "lib", "libc", "darwin", "libSystem.tbd"))
	if err != nil {
		return err
	}
	bad := m.Unresolved(libs, map[string][]string{install: symbols})
	for _, i := range bad {
		fmt.Fprintf(os.Stderr, "unresolved: %s from %s\n", i.Symbol, i.Library)
	}
	fmt.Printf("%s: %s, %.1f MB, macOS %s or later, sdk %s, %d libraries, %d imports, %d unresolved\n", binary(arch), m.Arch, float64(m.Size)/1e6, m.MinOS, m.SDK, len(m.Libraries), len(m.Imports), len(bad))
	switch {
	case len(bad) > 0:
		return fmt.Errorf("%s would not start: %d imports are in no library", binary(arch), len(bad))
	case slices.ContainsFunc(m.Imports, func(i packaging.Import) bool { return i.Library == "" }):
		return fmt.Errorf("%s does not say which library each import comes from", binary(arch))
	case m.Arch != arch:
		return fmt.Errorf("%s is for %s", binary(arch), m.Arch)
	case m.MinOS != minimum:
		return fmt.Errorf("%s is for macOS %s, not %s", binary(arch), m.MinOS, minimum)
	case !m.PIE:
		return fmt.Errorf("%s cannot be loaded at any address", binary(arch))
	case m.Size > limit:
		return fmt.Errorf("%s has %d bytes, more than the %d that are allowed", binary(arch), m.Size, limit)
	}
	return nil
}

func bundle(arch string) error {
	if err := check(arch); err != nil {
		return err
	}
	dir := filepath.Join("dist", arch)
	app := filepath.Join(dir, packaging.AppName+".app")
	v, err := version()
	if err != nil {
		return err
	}
	err = packaging.Bundle(packaging.BundleOptions{Binary: binary(arch), Template: "Info.plist.tmpl", License: "LICENSE", Version: v, Out: app})
	if err == nil {
		err = packaging.Sign(app, sdk)
	}
	if err == nil {
		err = packaging.Verify(app)
	}
	if err == nil {
		err = packaging.CheckBundle(app)
	}
	if err != nil {
		return err
	}
	image, err := image(arch)
	if err != nil {
		return err
	}
	if err := packaging.DiskImage(app, packaging.AppName, image); err != nil {
		return err
	}
	info, err := os.Stat(image)
	if err != nil {
		return err
	}
	fmt.Printf("%s: signed and verified; %s: %.1f MB\n", app, image, float64(info.Size())/1e6)
	return nil
}

// image is the name of the disk image for arch.
func image(arch string) (string, error) {
	v, err := version()
	if err != nil {
		return "", err
	}
	short, _, err := packaging.Versions(v)
	return filepath.Join("dist", fmt.Sprintf("%s-%s-%s.dmg", packaging.AppName, short, arch)), err
}

// cask writes the recipe by which brew installs the disk images.
func cask(releases string) error {
	v, err := version()
	if err != nil {
		return err
	}
	short, _, err := packaging.Versions(v)
	if err != nil {
		return err
	}
	sums := map[string]string{}
	for _, arch := range []string{"arm64", "amd64"} {
		file, err := image(arch)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("the disk image is missing; run mac bundle %s first: %w", arch, err)
		}
		sums[arch] = fmt.Sprintf("%x", sha256.Sum256(b))
	}
	out := filepath.Join("dist", "sparkbar.rb")
	return os.WriteFile(out, []byte(packaging.Cask(releases, short, sums["arm64"], sums["amd64"], minimum)), 0o644)
}
