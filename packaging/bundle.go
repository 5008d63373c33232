package packaging

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
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
	Version  string // as version.sh prints it
	Out      string // the folder Sparkbar.app to make; it is replaced
}

var (
	tagVersion = regexp.MustCompile(`^v?(\d+)\.(\d+)(?:\.(\d+))?(?:-(\d+)-g[0-9a-f]+)?(?:-dirty)?$`)
	devVersion = regexp.MustCompile(`^(\d+\.\d+\.\d+)-dev(?:\+(\d+)\.[0-9a-f]+(?:\.dirty)?)?$`)
)

// perPatch is how many commits between two releases the build version tells
// apart.
const perPatch = 1000

// Versions turns what version.sh prints into the two versions of a bundle: three
// numbers for people (CFBundleShortVersionString), and three that grow with each
// commit (CFBundleVersion); before the first tag those are 0.0 and the commits.
func Versions(version string) (short, build string, err error) {
	if m := devVersion.FindStringSubmatch(version); m != nil {
		if m[2] == "" {
			m[2] = "0"
		}
		return m[1], "0.0." + m[2], nil
	}
	m := tagVersion.FindStringSubmatch(version)
	if m == nil {
		return "", "", fmt.Errorf("%q is no version; a tag is called v1.2.3", version)
	}
	patch, _ := strconv.Atoi(m[3]) // absent: 0
	commits, _ := strconv.Atoi(m[4])
	return fmt.Sprintf("%s.%s.%d", m[1], m[2], patch), fmt.Sprintf("%s.%s.%d", m[1], m[2], patch*perPatch+min(commits, perPatch-1)), nil
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
	short, build, err := Versions(o.Version)
	if err != nil {
		return err
	}
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
	text("CFBundleVersion", `^\d+(\.\d+){0,2}$`)
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
