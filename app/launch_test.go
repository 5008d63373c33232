package main

import (
	"slices"
	"strings"
	"testing"
)

// TestLaunch: the environment of a client program comes from the server; a
// wrong key and a missing server are told.
func TestLaunch(t *testing.T) {
	s := startServe(t, "--backend", "reference", "--no-warmup", "--mode", "baseline", "--api-key", "sec'ret")
	for {
		if _, h := s.call("GET", "/health", ""); h["status"] == "ok" {
			break
		}
	}
	out, err := command1(t, "", "claude", "--url", s.base, "--api-key", "sec'ret", "--print-env")
	for _, want := range []string{"unset ANTHROPIC_API_KEY\n", "export ANTHROPIC_BASE_URL='" + s.base + "'\n", `export ANTHROPIC_AUTH_TOKEN='sec'\''ret'` + "\n", "export ANTHROPIC_MODEL='demo'\n", "export CLAUDE_CODE_MAX_CONTEXT_TOKENS='2048'\n"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%q is missing: %s %v", want, out, err)
		}
	}
	out, err = command1(t, "", "codex", "--url", s.base, "--api-key", "sec'ret", "--print-env", "--", "exec", "hi")
	if err != nil || !strings.Contains(out, `wire_api="responses"`) || !strings.HasSuffix(out, "'exec' 'hi'\n") {
		t.Errorf("%s %v", out, err)
	}
	if _, err = command1(t, "", "claude", "--url", s.base, "--api-key", "wrong", "--print-env"); err == nil || !strings.Contains(err.Error(), "--api-key") {
		t.Errorf("a wrong key: %v", err)
	}
	if _, err = command1(t, "", "claude", "--url", "http://127.0.0.1:1", "--print-env"); err == nil || !strings.Contains(err.Error(), "sparkbar serve") {
		t.Errorf("no server: %v", err)
	}
	out, err = command1(t, "", "integrations", "codex", "--url", s.base, "--key", "sec'ret")
	if err != nil || !strings.Contains(out, "~/.codex/mlx-dspark.config.toml") || strings.Contains(out, "OpenCode") {
		t.Errorf("%s %v", out, err)
	}
	l := launch{set: map[string]string{"A": "1"}, unset: []string{"B"}}
	if got := l.environment([]string{"A=0", "B=2", "C=3", "AB=4"}); !slices.Equal(got, []string{"C=3", "AB=4", "A=1"}) {
		t.Errorf("%q", got)
	}
}
