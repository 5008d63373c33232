package packaging

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

var (
	tbdName = regexp.MustCompile(`(?m)^install-name:\s*'?([^'\n]+?)'?\s*$`)
	tbdList = regexp.MustCompile(`(?s)\b(?:weak-|thread-local-)?symbols:\s*\[([^\]]*)\]`)
)

// ReadStub reads the exports of a text-based stub library, which may hold
// several libraries; the first one passes on those of the others.
func ReadStub(path string) (install string, symbols []string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	for _, doc := range strings.Split(string(b), "--- !tapi-tbd")[1:] {
		if m := tbdName.FindStringSubmatch(doc); m != nil && install == "" {
			install = m[1]
		}
		for _, m := range tbdList.FindAllStringSubmatch(doc, -1) {
			for _, s := range strings.Split(m[1], ",") {
				if s = strings.Trim(strings.TrimSpace(s), `'"`); s != "" {
					symbols = append(symbols, s)
				}
			}
		}
	}
	if install == "" || len(symbols) == 0 {
		return "", nil, fmt.Errorf("%s is no stub library", path)
	}
	return install, symbols, nil
}
