package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sparkbar/app/menubar"
)

// releases is the address of the list of releases, in the form of GitHub's
// API; set by the build. Without one there is no look for updates.
var releases = ""

// How updates are looked for.
const (
	updatePeriod  = 24 * time.Hour
	updateTimeout = 6 * time.Second
	updateLimit   = 1 << 20 // bytes of an answer
)

// latest asks for the newest release; nil means that none is newer than have.
// Drafts, pre-releases and names that are no version do not count.
func latest(ctx context.Context, c *http.Client, address, have string) (*menubar.Update, error) {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "sparkbar/"+have)
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", address, resp.Status)
	}
	var list []struct {
		Tag        string `json:"tag_name"`
		Notes      string `json:"body"`
		URL        string `json:"html_url"`
		Draft      bool   `json:"draft"`
		Prerelease bool   `json:"prerelease"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, updateLimit)).Decode(&list); err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	var best *menubar.Update
	for _, r := range list {
		v := strings.TrimPrefix(r.Tag, "v")
		if r.Draft || r.Prerelease || !plainVersion.MatchString(v) || !newer(v, have) || best != nil && !newer(v, best.Version) {
			continue
		}
		best = &menubar.Update{Version: v, Notes: r.Notes}
		if strings.HasPrefix(r.URL, "https://") {
			best.URL = r.URL
		}
	}
	return best, nil
}

var plainVersion = regexp.MustCompile(`^\d+(\.\d+){1,3}$`)

// newer compares dotted numbers; what follows them counts for nothing.
func newer(a, b string) bool {
	x, y := numbers(a), numbers(b)
	for i := range max(len(x), len(y)) {
		var m, n int
		if i < len(x) {
			m = x[i]
		}
		if i < len(y) {
			n = y[i]
		}
		if m != n {
			return m > n
		}
	}
	return false
}

func numbers(v string) (out []int) {
	v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "-")
	for _, part := range strings.Split(v, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		out = append(out, n)
	}
	return out
}

// brewCommand updates an app that brew installed, "" for others.
func brewCommand() string {
	for _, room := range []string{"/opt/homebrew/Caskroom/sparkbar", "/usr/local/Caskroom/sparkbar"} {
		if _, err := os.Stat(room); err == nil {
			return "brew upgrade --cask sparkbar"
		}
	}
	return ""
}
