package packaging

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
)

// AppName is the name of the bundle.
const AppName = "Sparkbar"

// BundleOptions say what goes into a bundle.
type BundleOptions struct {
	Binary   string // the linked program
	Template string // Info.plist.tmpl
	License  string // "" = none
	Version  string // as git describes it
	Out      string // the folder Sparkbar.app to make; it is replaced
}

var tagVersion = regexp.MustCompile(`^v?(\d+(?:\.\d+){1,2})(?:-(\d+)-g[0-9a-f]+)?(?:-dirty)?$`)

// Versions turns what `git describe` says into the two versions of a bundle:
// three numbers for people, and a number that grows with each commit.
func Versions(describe string) (short, build string) {
	m := tagVersion.FindStringSubmatch(describe)
	if m == nil {
		return "0.0.0", "0"
	}
	short, build = m[1], m[2]
	if strings.Count(short, ".") == 1 {
		short += ".0"
	}
	if build == "" {
		build = "0"
	}
	return short, short + "." + build
}

// Bundle makes the folder that macOS shows as the app. It is not signed yet.
func Bundle(o BundleOptions) error {
	text, err := os.ReadFile(o.Template)
	if err != nil {
		return err
	}
	t, err := template.New(filepath.Base(o.Template)).Option("missingkey=error").Parse(string(text))
	if err != nil {
		return err
	}
	short, build := Versions(o.Version)
	var info bytes.Buffer
	if err := t.Execute(&info, map[string]string{"Version": escapeXML(short), "Build": escapeXML(build)}); err != nil {
		return err
	}
	p, err := readPlist(info.Bytes())
	if err != nil {
		return fmt.Errorf("%s: %w", o.Template, err)
	}
	exe, _ := p["CFBundleExecutable"].(string)
	if exe == "" || exe != filepath.Base(exe) {
		return fmt.Errorf("%s names no executable", o.Template)
	}
	program, err := os.ReadFile(o.Binary)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(o.Out); err != nil {
		return err
	}
	icns, err := ICNS()
	if err != nil {
		return err
	}
	files := map[string][]byte{"Info.plist": info.Bytes(), "PkgInfo": []byte("APPL????"), "MacOS/" + exe: program, "Resources/AppIcon.icns": icns}
	if o.License != "" {
		if files["Resources/LICENSE"], err = os.ReadFile(o.License); err != nil {
			return err
		}
	}
	for name, b := range files {
		path, mode := filepath.Join(o.Out, "Contents", filepath.FromSlash(name)), os.FileMode(0o644)
		if strings.HasPrefix(name, "MacOS/") {
			mode = 0o755
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, b, mode); err != nil {
			return err
		}
	}
	return nil
}

// CheckBundle holds a bundle against what macOS asks of one: the keys of
// Info.plist, the files that they name, and a program for the promised system.
func CheckBundle(app string) error {
	b, err := os.ReadFile(filepath.Join(app, "Contents", "Info.plist"))
	if err != nil {
		return err
	}
	p, err := readPlist(b)
	if err != nil {
		return err
	}
	var faults []error
	fault := func(f string, a ...any) { faults = append(faults, fmt.Errorf(f, a...)) }
	text := func(key, pattern string) string {
		s, _ := p[key].(string)
		if !regexp.MustCompile(pattern).MatchString(s) {
			fault("Info.plist: %s is %q", key, s)
		}
		return s
	}
	truth := func(key string) {
		if p[key] != true {
			fault("Info.plist: %s must be true", key)
		}
	}
	exe := text("CFBundleExecutable", `^[\w-]+$`)
	text("CFBundleIdentifier", `^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$`)
	text("CFBundleName", `^.{1,15}$`)
	text("CFBundlePackageType", `^APPL$`)
	text("CFBundleInfoDictionaryVersion", `^6\.0$`)
	text("CFBundleShortVersionString", `^\d+\.\d+\.\d+$`)
	text("CFBundleVersion", `^\d+(\.\d+){0,3}$`)
	text("NSPrincipalClass", `^NSApplication$`)
	icon := text("CFBundleIconFile", `^\w+$`)
	low := text("LSMinimumSystemVersion", `^\d+\.\d+$`)
	truth("LSUIElement")
	truth("NSHighResolutionCapable")
	if p["NSSupportsSuddenTermination"] != false || p["NSSupportsAutomaticTermination"] != false {
		fault("Info.plist: the system must not end the app without asking it")
	}
	if ats, _ := p["NSAppTransportSecurity"].(map[string]any); ats["NSAllowsLocalNetworking"] != true {
		fault("Info.plist: the window could not load the dashboard from this machine")
	}
	m, err := ReadMachO(filepath.Join(app, "Contents", "MacOS", exe))
	if err != nil {
		fault("%w", err)
	} else if m.MinOS != low {
		fault("the program needs macOS %s, Info.plist says %s", m.MinOS, low)
	}
	if i, err := os.ReadFile(filepath.Join(app, "Contents", "Resources", icon+".icns")); err != nil {
		fault("%w", err)
	} else if err := checkICNS(i); err != nil {
		fault("%s.icns: %w", icon, err)
	}
	if b, err := os.ReadFile(filepath.Join(app, "Contents", "PkgInfo")); err != nil || string(b) != "APPL????" {
		fault("PkgInfo is missing or wrong")
	}
	return errors.Join(faults...)
}
