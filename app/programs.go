package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// installed reports whether a client program is on this machine: an executable
// file on the PATH or where installers put them, or a bundle (a name that ends
// in .app). The menu bar is started with a short PATH, so that alone would find
// little.
func installed(program string) bool {
	for _, dir := range programFolders(os.Getenv("PATH"), program) {
		info, err := os.Stat(filepath.Join(dir, program))
		if err != nil {
			continue
		}
		if strings.HasSuffix(program, ".app") && info.IsDir() || info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

func programFolders(path, program string) []string {
	home, err := os.UserHomeDir()
	if err != nil {
		home = ""
	}
	if strings.HasSuffix(program, ".app") {
		return []string{"/Applications", filepath.Join(home, "Applications")}
	}
	var list []string
	for _, d := range filepath.SplitList(path) {
		if filepath.IsAbs(d) { // what lies in the working folder is nobody's installation
			list = append(list, d)
		}
	}
	if home != "" {
		for _, d := range []string{".local/bin", ".bun/bin", ".npm-global/bin", ".volta/bin", ".cargo/bin", "go/bin", ".opencode/bin", ".claude/local"} {
			list = append(list, filepath.Join(home, filepath.FromSlash(d)))
		}
	}
	list = append(list, "/usr/local/bin")
	if runtime.GOOS == "darwin" {
		list = append(list, "/opt/homebrew/bin", "/Applications/Visual Studio Code.app/Contents/Resources/app/bin", "/Applications/Zed.app/Contents/MacOS")
	}
	return list
}
