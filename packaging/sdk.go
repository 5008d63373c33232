package packaging

import (
	"bufio"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:embed sdk
var sdkFiles embed.FS

// Library is a library of macOS and what it exports, as far as it is needed.
type Library struct {
	File      string // of the stub, below the SDK, without .tbd
	Install   string // the name by which binaries ask for it
	Compat    string
	Classes   []string
	Symbols   []string // with the leading underscore of the object file
	Reexports []string // install names
}

// Libraries reads the export lists below sdk/ and adds what the Go tree at
// goroot imports by itself.
func Libraries(goroot string) ([]Library, error) {
	f, err := sdkFiles.Open("sdk/symbols.txt")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var libs []Library
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		n++
		w := strings.Fields(lines.Text())
		if len(w) == 0 || w[0] == "#" {
			continue
		}
		if w[0] == "library" && len(w) == 4 {
			libs = append(libs, Library{File: w[1], Install: w[2], Compat: w[3]})
			continue
		}
		if len(libs) == 0 {
			return nil, fmt.Errorf("symbols.txt:%d: nothing may come before the first library", n)
		}
		l := &libs[len(libs)-1]
		switch w[0] {
		case "class":
			l.Classes = append(l.Classes, w[1:]...)
		case "symbol":
			for _, s := range w[1:] {
				l.Symbols = append(l.Symbols, "_"+s)
			}
		case "reexport":
			l.Reexports = append(l.Reexports, w[1:]...)
		default:
			return nil, fmt.Errorf("symbols.txt:%d: %q is not known", n, w[0])
		}
	}
	imports, err := goImports(goroot)
	if err != nil {
		return nil, err
	}
	for i := range libs {
		libs[i].Symbols = append(libs[i].Symbols, imports[libs[i].Install]...)
		slices.Sort(libs[i].Symbols)
		libs[i].Symbols = slices.Compact(libs[i].Symbols)
	}
	return libs, nil
}

var importLine = regexp.MustCompile(`(?m)^//go:cgo_import_dynamic \S+ (\S+) "([^"]+)"`)

// goImports lists the C symbols that the Go tree asks for, by install name.
func goImports(goroot string) (map[string][]string, error) {
	out := map[string][]string{}
	for _, g := range []string{"src/crypto/x509/internal/macos/*.go", "src/internal/syscall/unix/*darwin*.go", "src/syscall/*darwin*.go", "src/runtime/sys_darwin*.go", "src/os/user/*darwin*.go"} {
		files, err := filepath.Glob(filepath.Join(goroot, g))
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			for _, m := range importLine.FindAllStringSubmatch(string(b), -1) {
				out[m[2]] = append(out[m[2]], "_"+m[1])
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s does not look like a Go tree: it imports nothing on darwin", goroot)
	}
	return out, nil
}

// stub writes a library as a text-based stub.
func (l *Library) stub() string {
	var b strings.Builder
	list := func(key string, values []string, indent string) {
		if len(values) > 0 {
			fmt.Fprintf(&b, "%s%s: [ '%s' ]\n", indent, key, strings.Join(values, "', '"))
		}
	}
	fmt.Fprintf(&b, "--- !tapi-tbd\ntbd-version: 4\ntargets: [ x86_64-macos, arm64-macos ]\ninstall-name: '%s'\ncurrent-version: %s\ncompatibility-version: %s\n", l.Install, l.Compat, l.Compat)
	if len(l.Reexports) > 0 {
		b.WriteString("reexported-libraries:\n  - targets: [ x86_64-macos, arm64-macos ]\n")
		list("libraries", l.Reexports, "    ")
	}
	if len(l.Symbols)+len(l.Classes) > 0 {
		b.WriteString("exports:\n  - targets: [ x86_64-macos, arm64-macos ]\n")
		list("symbols", l.Symbols, "    ")
		list("objc-classes", l.Classes, "    ")
	}
	b.WriteString("...\n")
	return b.String()
}

// SDKKey identifies the content of the stub SDK, for names of caches.
func SDKKey(libs []Library) string {
	h := sha256.New()
	err := fs.WalkDir(sdkFiles, "sdk", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := sdkFiles.ReadFile(p)
		fmt.Fprintf(h, "%s %d\n", p, len(b))
		h.Write(b)
		return err
	})
	if err != nil {
		panic(err) // embedded at build time
	}
	for i := range libs {
		h.Write([]byte(libs[i].stub()))
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// WriteSDK writes the stub SDK into a new folder dir: headers and stub
// libraries, nothing of Apple's.
func WriteSDK(dir string, libs []Library) error {
	write := func(name string, text []byte) error {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		return os.WriteFile(p, text, 0o644)
	}
	err := fs.WalkDir(sdkFiles, "sdk/include", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := sdkFiles.ReadFile(p)
		if err != nil {
			return err
		}
		return write("usr/"+strings.TrimPrefix(p, "sdk/"), b)
	})
	if err != nil {
		return err
	}
	for i := range libs {
		l := &libs[i]
		names := []string{l.File + ".tbd"}
		// A linker follows re-exports by install name and -l by short name.
		if base := strings.TrimSuffix(path.Base(l.Install), ".dylib"); strings.HasPrefix(l.File, "usr/lib/") && base != path.Base(l.File) {
			names = append(names, path.Join(path.Dir(l.File), base+".tbd"))
		}
		for _, n := range names {
			if err := write(n, []byte(l.stub())); err != nil {
				return err
			}
		}
	}
	return nil
}
