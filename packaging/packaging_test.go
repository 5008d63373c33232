package packaging

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sparkbar/engine/testneed"
)

// program builds a small Go program for macOS; that needs no C.
func program(t *testing.T, arch string) string {
	t.Helper()
	dir := t.TempDir()
	for f, text := range map[string]string{"go.mod": "module small\n\ngo 1.26\n", "main.go": "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello\") }\n"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "build", "-o", "small", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOOS=darwin", "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "small")
}

func TestReadMachO(t *testing.T) {
	for _, arch := range []string{"arm64", "amd64"} {
		m, err := ReadMachO(program(t, arch))
		if err != nil {
			t.Fatal(err)
		}
		if m.Arch != arch || m.MinOS == "" || m.Signed != (arch == "arm64") || !slices.Contains(m.Libraries, "/usr/lib/libSystem.B.dylib") || len(m.Imports) < 10 {
			t.Errorf("%+v", m)
		}
		libs, err := Libraries(goroot(t))
		if err != nil {
			t.Fatal(err)
		}
		var system []string
		for _, i := range m.Imports {
			if i.Library == "" || i.Library == "/usr/lib/libSystem.B.dylib" {
				system = append(system, i.Symbol)
			}
		}
		all := map[string][]string{"/usr/lib/libSystem.B.dylib": system}
		if bad := m.Unresolved(libs, all); len(bad) > 0 {
			t.Errorf("unresolved: %v", bad)
		}
		all["/usr/lib/libSystem.B.dylib"] = system[1:] // now one is missing, and found
		if bad := m.Unresolved(libs, all); len(bad) != 1 || bad[0].Symbol != system[0] {
			t.Errorf("a missing symbol: %v", bad)
		}
	}
	for _, bad := range [][]byte{nil, []byte("#!/bin/sh\n"), bytes.Repeat([]byte{0xcf, 0xfa, 0xed, 0xfe}, 9)} {
		p := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(p, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		if m, err := ReadMachO(p); err == nil {
			t.Errorf("%q was read as %+v", bad, m)
		}
	}
}

// bundled makes a signed bundle of the small program.
func bundled(t *testing.T, arch string) string {
	t.Helper()
	app := filepath.Join(t.TempDir(), "Sparkbar.app")
	if err := Bundle(BundleOptions{Binary: program(t, arch), Template: "../Info.plist.tmpl", License: "../LICENSE", Version: "1.2-7-gabcdef0", Out: app}); err != nil {
		t.Fatal(err)
	}
	if err := Sign(app, "15.0"); err != nil {
		t.Fatal(err)
	}
	return app
}

// TestBundle: what is signed can be read again; every change of it is found.
func TestBundle(t *testing.T) {
	for _, arch := range []string{"arm64", "amd64"} {
		app := bundled(t, arch)
		if err := Verify(app); err != nil {
			t.Fatal(err)
		}
		exe := filepath.Join(app, "Contents/MacOS/sparkbar")
		m, err := ReadMachO(exe)
		if err != nil || !m.Signed || m.SDK != "15.0" {
			t.Fatalf("%v %+v", err, m)
		}
		// The only thing that this program lacks is that it is not for macOS 14.
		if err := CheckBundle(app); err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), "Info.plist says 14.0") {
			t.Errorf("%v", err)
		}
		info, err := os.ReadFile(filepath.Join(app, "Contents/Info.plist"))
		if err != nil || !bytes.Contains(info, []byte("<string>1.2.0</string>")) || !bytes.Contains(info, []byte("<string>1.2.7</string>")) {
			t.Errorf("%v %s", err, info)
		}
		if err := Sign(app, ""); err != nil { // again, over the old signature
			t.Fatal(err)
		}
		if err := Verify(app); err != nil {
			t.Fatal(err)
		}
		for name, change := range map[string]func() error{
			"a byte of the program": func() error { return flip(exe, 5000) },
			"the property list":     func() error { return flip(filepath.Join(app, "Contents/Info.plist"), 60) },
			"a resource":            func() error { return flip(filepath.Join(app, "Contents/Resources/LICENSE"), 10) },
			"a new file": func() error {
				return os.WriteFile(filepath.Join(app, "Contents/Resources/new"), []byte("x"), 0o644)
			},
			"a missing file": func() error { return os.Remove(filepath.Join(app, "Contents/Resources/AppIcon.icns")) },
		} {
			app2 := filepath.Join(t.TempDir(), "Copy.app")
			if err := os.CopyFS(app2, os.DirFS(app)); err != nil {
				t.Fatal(err)
			}
			app, app2 = app2, app
			exe2 := exe
			exe = filepath.Join(app, "Contents/MacOS/sparkbar")
			if err := change(); err != nil {
				t.Fatal(err)
			}
			if err := Verify(app); err == nil {
				t.Errorf("%s was changed and nobody saw it", name)
			}
			app, exe = app2, exe2
		}
	}
}

// TestCheckBundle: each thing that macOS asks of a bundle is missed when it is
// not there.
func TestCheckBundle(t *testing.T) {
	app := bundled(t, "arm64")
	file := filepath.Join(app, "Contents/Info.plist")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// What the small program is for, so that nothing else is wrong.
	m, err := ReadMachO(filepath.Join(app, "Contents/MacOS/sparkbar"))
	if err != nil {
		t.Fatal(err)
	}
	good = bytes.Replace(good, []byte("<string>14.0</string>"), []byte("<string>"+m.MinOS+"</string>"), 1)
	check := func() error {
		t.Helper()
		return CheckBundle(app)
	}
	if err := os.WriteFile(file, good, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := check(); err != nil {
		t.Fatalf("a good one: %v", err)
	}
	for old, change := range map[string]string{
		"<key>CFBundleExecutable</key><string>sparkbar":       "<key>CFBundleExecutable</key><string>other",
		"<string>app.sparkbar.Sparkbar</string>":              "<string>Sparkbar</string>",
		"<key>CFBundlePackageType</key><string>APPL":          "<key>CFBundlePackageType</key><string>BNDL",
		"<string>1.2.0</string>":                              "<string>dev</string>",
		"<string>1.2.7</string>":                              "<string>1.2.0.7</string>",
		"<key>LSUIElement</key><true/>":                       "<key>LSUIElement</key><false/>",
		"<key>NSHighResolutionCapable</key><true/>":           "",
		"<key>NSSupportsSuddenTermination</key><false/>":      "<key>NSSupportsSuddenTermination</key><true/>",
		"<key>NSAllowsLocalNetworking</key><true/>":           "",
		"<key>CFBundleIconFile</key><string>AppIcon":          "<key>CFBundleIconFile</key><string>None",
		"<key>NSPrincipalClass</key><string>NSApplication":    "<key>NSPrincipalClass</key><string>NSObject",
		"<key>LSMinimumSystemVersion</key><string>" + m.MinOS: "<key>LSMinimumSystemVersion</key><string>99.0",
		"<key>CFBundleInfoDictionaryVersion</key><string>6.0": "<key>CFBundleInfoDictionaryVersion</key><string>5.0",
	} {
		bad := bytes.Replace(good, []byte(old), []byte(change), 1)
		if bytes.Equal(bad, good) {
			t.Fatalf("Info.plist has no %q", old)
		}
		if err := os.WriteFile(file, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		if check() == nil {
			t.Errorf("%q instead of %q is accepted", change, old)
		}
	}
}

func flip(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 1
	_, err = f.WriteAt(b, at)
	return err
}

// FuzzVerify: no file makes the reader of signatures fall over.
func FuzzVerify(f *testing.F) {
	f.Add([]byte{0xcf, 0xfa, 0xed, 0xfe, 12, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x1d, 0, 0, 0, 16, 0, 0, 0, 32, 0, 0, 0, 16, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = verifyMachO(b, "x", map[uint32][]byte{slotInfo: nil})
		if s, err := signMachO(b, "x", nil, nil, "15.0"); err == nil {
			if err := verifyMachO(s, "x", nil); err != nil {
				t.Errorf("what was just signed: %v", err)
			}
		}
		_, _ = readPlist(b)
		_, _ = unwrapImage(b)
		_ = checkICNS(b)
	})
}

func TestPlistRefusals(t *testing.T) {
	for _, bad := range []string{"", "<plist>", plistHead + "<array/></plist>", plistHead + "<dict><key>a</key></dict></plist>", plistHead + "<dict><string>a</string></dict></plist>",
		plistHead + "<dict><key>a</key><true/><key>a</key><true/></dict></plist>", plistHead + "<dict><key>a</key><thing/></dict></plist>", plistHead + strings.Repeat("<array>", 99)} {
		if v, err := readPlist([]byte(bad)); err == nil {
			t.Errorf("%q was read as %v", bad, v)
		}
	}
}

func TestVersions(t *testing.T) {
	for in, want := range map[string]string{"v1.4.0": "1.4.0 1.4.0", "v1.4-12-gdeadbee": "1.4.0 1.4.12", "1.4.2-3-gdeadbee-dirty": "1.4.2 1.4.2003", "1.4.2-30000-gdeadbee": "1.4.2 1.4.2999", "1.4.0-dirty": "1.4.0 1.4.0",
		"0.1.0-dev+148.8ad2d93a": "0.1.0 0.0.148", "0.1.0-dev+148.8ad2d93a.dirty": "0.1.0 0.0.148", "0.1.0-dev": "0.1.0 0.0.0"} {
		short, build, err := Versions(in)
		if got := short + " " + build; got != want || err != nil {
			t.Errorf("%s: %s %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"dev", "33d0f15", "", "v1", "1.2.3.4", "1.2-beta"} {
		if short, build, err := Versions(in); err == nil {
			t.Errorf("%s: %s %s", in, short, build)
		}
	}
	out, err := exec.Command("./version.sh").Output() // with git and without
	if _, _, bad := Versions(strings.TrimSpace(string(out))); err != nil || bad != nil {
		t.Errorf("version.sh prints %q: %v %v", out, err, bad)
	}
}

func TestICNS(t *testing.T) {
	b, err := ICNS()
	if err != nil {
		t.Fatal(err)
	}
	if err := checkICNS(b); err != nil {
		t.Error(err)
	}
	if err := checkICNS(b[:len(b)-1]); err == nil {
		t.Error("a cut icon passes")
	}
	im := Icon(64)
	if _, _, _, a := im.At(0, 0).RGBA(); a != 0 {
		t.Error("the corner is not empty")
	}
	if r, g, b, a := im.At(32, 30).RGBA(); a != 0xffff || r != 0xffff || g != 0xffff || b != 0xffff {
		t.Error("the bolt is not white")
	}
}

// TestDiskImage: the image is read again by this package and by a tool of
// others.
func TestDiskImage(t *testing.T) {
	disk := append(bytes.Repeat([]byte("sector"), 300_000), make([]byte, 3<<20)...)
	for i := range 1 << 20 { // a part that does not compress
		disk[2<<20+i] = byte(i * 2654435761 >> 13)
	}
	b, err := wrapImage(slices.Clone(disk))
	if err != nil {
		t.Fatal(err)
	}
	back, err := unwrapImage(b)
	if err != nil || !bytes.Equal(back[:len(disk)], disk) {
		t.Fatalf("%v", err)
	}
	for _, at := range []int{10, len(b) - 300, len(b) - kolySize + 40} {
		c := slices.Clone(b)
		c[at] ^= 1
		if got, err := unwrapImage(c); err == nil && at < len(b)-kolySize {
			t.Errorf("a change at %d of %d is not seen: %d bytes", at, len(b), len(got))
		}
	}
	if _, err := exec.LookPath("xorrisofs"); err != nil {
		testneed.Missing(t, "xorrisofs", "run `make setup-cross`")
	}
	out := filepath.Join(t.TempDir(), "x.dmg")
	app := bundled(t, "arm64")
	if err := DiskImage(app, "Sparkbar", out); err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(out); err != nil {
		t.Fatal(err)
	}
	if back, err = unwrapImage(b); err != nil {
		t.Fatal(err)
	}
	info, err := os.ReadFile(filepath.Join(app, "Contents/Info.plist"))
	if err != nil || !bytes.Contains(back, info) || !bytes.Contains(back, []byte("Applications")) {
		t.Errorf("the disk does not hold the app: %v", err)
	}
}

func darwinkit(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/progrium/darwinkit").Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		testneed.Missing(t, "darwinkit", "run `make setup`")
	}
	return dir
}

func TestPatchDarwinkit(t *testing.T) {
	src, dst := darwinkit(t), filepath.Join(t.TempDir(), "kit")
	if err := PatchDarwinkit(src, dst); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dst, "objc/sparkbar.go"))
	if err != nil || !bytes.Contains(b, []byte("SparkbarPatched")) {
		t.Errorf("%v %s", err, b)
	}
	if _, err := os.Stat(filepath.Join(dst, "macos")); err == nil {
		t.Error("the generated bindings were copied")
	}
	// A second copy of a repaired one cannot be made: the edits no longer match.
	if err := PatchDarwinkit(dst, filepath.Join(t.TempDir(), "again")); err == nil {
		t.Error("a copy that is not darwinkit as it was is accepted")
	}
}

// sent is a message that app/cocoa sends.
type sent struct {
	selector string
	args     int
	result   string
	where    string
}

// messages reads the calls of send out of the sources of app/cocoa.
func messages(t *testing.T) []sent {
	t.Helper()
	files, err := filepath.Glob("../app/cocoa/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v %v", files, err)
	}
	var out []sent
	set := token.NewFileSet()
	for _, f := range files {
		file, err := parser.ParseFile(set, f, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			index, ok := call.Fun.(*ast.IndexExpr)
			if !ok || fmt.Sprint(index.X) != "send" {
				return true
			}
			lit, ok := call.Args[1].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: a selector is not written out", set.Position(call.Pos()))
				return true
			}
			name, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			var result strings.Builder
			switch r := index.Index.(type) {
			case *ast.SelectorExpr:
				result.WriteString(r.Sel.Name)
			case *ast.Ident:
				result.WriteString(r.Name)
			}
			out = append(out, sent{name, len(call.Args) - 2, result.String(), set.Position(call.Pos()).String()})
			return true
		})
	}
	return out
}

// TestSelectors holds every message that the app sends against darwinkit's
// declarations of AppKit and Foundation, which are from before macOS 15: the
// selector exists, has that many arguments, and a result of that kind. The few
// that darwinkit lacks are listed in sdk/selectors.tsv with the page that
// documents them.
func TestSelectors(t *testing.T) {
	declared := map[string]map[string]bool{} // selector → kinds of result
	call := regexp.MustCompile(`objc\.Call\[([^\]]*(?:\[\])?[^\]]*)\]\([^,]+, objc\.Sel\("([^"]+)"\)`)
	for _, pkg := range []string{"appkit", "foundation"} {
		files, err := filepath.Glob(filepath.Join(darwinkit(t), "macos", pkg, "*.go"))
		if err != nil || len(files) < 100 {
			t.Fatalf("%d files of %s: %v", len(files), pkg, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range call.FindAllStringSubmatch(string(b), -1) {
				if declared[m[2]] == nil {
					declared[m[2]] = map[string]bool{}
				}
				declared[m[2]][kind(m[1])] = true
			}
		}
	}
	b, err := sdkFiles.ReadFile("sdk/selectors.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 || !strings.HasPrefix(f[3], "https://developer.apple.com/documentation/") {
			t.Fatalf("selectors.tsv:%d: want selector, result, first macOS, page", i+1)
		}
		var major int
		if _, err := fmt.Sscan(f[2], &major); err != nil || major > 14 {
			t.Errorf("selectors.tsv:%d: %s is newer than macOS 14; ask for it before it is sent", i+1, f[0])
		}
		if declared[f[0]] != nil {
			t.Errorf("selectors.tsv:%d: darwinkit declares %s, the row is not needed", i+1, f[0])
		}
		declared[f[0]] = map[string]bool{f[1]: true}
	}
	all := messages(t)
	for _, m := range all {
		kinds := declared[m.selector]
		switch {
		case kinds == nil:
			t.Errorf("%s: nobody knows %s", m.where, m.selector)
		case m.args != strings.Count(m.selector, ":"):
			t.Errorf("%s: %s has %d arguments", m.where, m.selector, m.args)
		case !kinds[kind(m.result)]:
			t.Errorf("%s: %s does not return %s but one of %v", m.where, m.selector, m.result, kinds)
		}
	}
	if len(all) < 40 {
		t.Errorf("only %d messages were found", len(all))
	}
}

// kind groups Go's types of results by how they are returned.
func kind(t string) string {
	switch t = strings.TrimPrefix(t, "objc."); t {
	case "Void", "bool", "string":
		return t
	case "int", "uint", "int64", "uint64", "ModalResponse", "EventModifierFlags", "WindowOcclusionState":
		return "integer"
	case "float64", "float32":
		return t
	}
	return "object"
}

// TestSDKCompletes: names of headers in the stub SDK are documented, and no
// library is listed twice.
func TestSDKCompletes(t *testing.T) {
	libs, err := Libraries(goroot(t))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, l := range libs {
		if seen[l.Install] {
			t.Errorf("%s is listed twice", l.Install)
		}
		seen[l.Install] = true
		for _, r := range l.Reexports {
			if !slices.ContainsFunc(libs, func(o Library) bool { return o.Install == r }) {
				t.Errorf("%s passes on %s, which is not listed", l.Install, r)
			}
		}
	}
	dir := filepath.Join(t.TempDir(), "sdk")
	if err := WriteSDK(dir, libs); err != nil {
		t.Fatal(err)
	}
	for _, l := range libs {
		install, symbols, err := ReadStub(filepath.Join(dir, l.File+".tbd"))
		if len(l.Symbols) == 0 {
			continue
		}
		if err != nil || install != l.Install || !slices.Equal(symbols, l.Symbols) {
			t.Errorf("%s: %v", l.File, err)
		}
	}
	headers, err := filepath.Glob("sdk/include/*/*.h")
	if err != nil {
		t.Fatal(err)
	}
	deeper, err := filepath.Glob("sdk/include/*/*/*.h")
	if err != nil {
		t.Fatal(err)
	}
	headers = append(headers, deeper...)
	for _, h := range headers {
		b, err := os.ReadFile(h)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(b, []byte("https://developer.apple.com/")) && !bytes.Contains(b, []byte("#import <Foundation/Foundation.h>")) {
			t.Errorf("%s cites no page of Apple's", h)
		}
	}
}

func goroot(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
