package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sparkbar/httpapi"
)

// cliGolden is a recorded run of mlx-dspark's command line.
type cliGolden struct {
	Args   []string
	Code   int `json:"exit_code"`
	Stdout string
	Stderr string
}

// exitCode is what main would end with.
func exitCode(err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		return 2
	}
	return 1
}

// TestRecordedCommandLines: each recorded command line of mlx-dspark ends in the
// same way here and says the same; prose is the product's own.
func TestRecordedCommandLines(t *testing.T) {
	var s *server // one with a key, for claude
	recorded := func() *server {
		if s == nil {
			s = startServe(t, "--backend", "reference", "--no-warmup", "--mode", "baseline", "--api-key", "sekret", "--model", tinyChat)
			for {
				if _, h := s.call("GET", "/health", ""); h["status"] == "ok" {
					break
				}
			}
		}
		return s
	}
	at := func(args []string) []string { // the recorded server, and the recorded models
		out := slices.Clone(args)
		for i, a := range out {
			switch a {
			case "http://127.0.0.1:8080":
				out[i] = recorded().base
			case "/models/tiny-chat":
				out[i] = tinyChat
			}
		}
		return out
	}
	same := func(t *testing.T, g *cliGolden) string {
		t.Helper()
		out, err := command1(t, "", at(g.Args)...)
		if exitCode(err) != g.Code {
			t.Errorf("ends with %d (%v), want %d", exitCode(err), err, g.Code)
		}
		return out
	}
	checks := map[string]func(t *testing.T, g *cliGolden){
		// Without a command it is the app, or the server; --help is the overview (W45).
		"bare": func(t *testing.T, g *cliGolden) {
			out, err := command1(t, "", "--help")
			for _, name := range []string{"serve", "claude", "generate", "benchmark", "models", "doctor"} {
				if err != nil || !strings.Contains(out, "\n  "+name+" ") || !strings.Contains(g.Stdout, name) {
					t.Errorf("%s is not in the overview: %v\n%s", name, err, out)
				}
			}
		},
		"help-flag":      func(t *testing.T, g *cliGolden) { allFlags(t, "generate", g.Stdout) },
		"benchmark-help": func(t *testing.T, g *cliGolden) { allFlags(t, "benchmark", g.Stdout) },
		"serve-help":     func(t *testing.T, g *cliGolden) { allFlags(t, "serve", g.Stdout) },
		"serve-bad-max-draft": func(t *testing.T, g *cliGolden) {
			refused(t, g, "--max-draft must be an integer or 'auto', got 'lots'")
		},
		"serve-bad-mode":     func(t *testing.T, g *cliGolden) { refused(t, g, "--mode must be one of") },
		"unknown-subcommand": func(t *testing.T, g *cliGolden) { refused(t, g, "frobnicate") },
		// The server listens before it loads, and stays up when that fails; the
		// one-shot command ends.
		"serve-dspark-no-drafter": func(t *testing.T, g *cliGolden) {
			_, err := command1(t, "", "generate", "--mode", "dspark", "--model", tinyChat, "--backend", "reference")
			if exitCode(err) != g.Code || !strings.Contains(err.Error(), "drafter") {
				t.Errorf("%d %v", exitCode(err), err)
			}
		},
		"models": func(t *testing.T, g *cliGolden) {
			out := strings.Fields(same(t, g))
			for line := range strings.Lines(g.Stdout) {
				if row := strings.Fields(line); strings.HasPrefix(line, "  ") && len(row) > 0 && strings.Contains(row[0], "/") {
					for _, word := range row {
						if !slices.Contains(out, word) {
							t.Errorf("%s is not listed", word)
						}
					}
				}
			}
		},
		"generate": func(t *testing.T, g *cliGolden) {
			g.Args = append(g.Args, "--backend", "reference", "--no-warmup")
			got, want := generated(t, same(t, g)), generated(t, g.Stdout)
			if got != want {
				t.Errorf("the answer is %q, want %q", got, want)
			}
		},
		"doctor-json": func(t *testing.T, g *cliGolden) {
			out, err := command1(t, "", g.Args...)
			var got struct {
				OK       *bool
				Problems []string
				Findings []struct{ Level, Message, Fix string }
			}
			if e := json.Unmarshal([]byte(out), &got); e != nil || got.OK == nil || *got.OK != (exitCode(err) == 0) || *got.OK != (len(got.Problems) == 0) || got.Problems == nil {
				t.Errorf("%v %v in %s", e, err, out)
			}
			for _, f := range got.Findings {
				if f.Message == "" || f.Fix == "" {
					t.Errorf("a finding without its fix: %+v", f)
				}
			}
		},
		"claude-no-server":     func(t *testing.T, g *cliGolden) { refused(t, g, "http://127.0.0.1:9") },
		"claude-not-installed": func(t *testing.T, g *cliGolden) { recorded(); t.Setenv("PATH", "/nonexistent"); same(t, g) },
		"claude-print-env": func(t *testing.T, g *cliGolden) {
			claudeVariables(t, exports(same(t, g)), exports(g.Stdout), recorded().base)
		},
		"claude-print-settings": func(t *testing.T, g *cliGolden) {
			var got, want struct{ Env map[string]string }
			if err := json.Unmarshal([]byte(same(t, g)), &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(g.Stdout), &want); err != nil {
				t.Fatal(err)
			}
			claudeVariables(t, got.Env, want.Env, recorded().base)
		},
	}
	files, err := filepath.Glob("testdata/cli/*.json")
	if err != nil || len(files) != len(checks) {
		t.Fatal(len(files), len(checks), err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var g cliGolden
			if err := json.Unmarshal(b, &g); err != nil {
				t.Fatal(err)
			}
			if checks[name] == nil {
				t.Fatal("nothing checks this recording")
			}
			checks[name](t, &g)
		})
	}
}

const tinyChat = "../httpapi/testdata/dspark-real/models/tiny-chat"

func find1(t *testing.T, name string) *cobra.Command {
	t.Helper()
	cmd, _, err := root().Find([]string{name})
	if err != nil || cmd.Name() != name {
		t.Fatal(name, err)
	}
	return cmd
}

// allFlags: a command takes every flag of a usage text.
func allFlags(t *testing.T, name, usage string) {
	t.Helper()
	cmd, n := find1(t, name), 0
	for _, flag := range regexp.MustCompile(`--[a-z0-9-]+`).FindAllString(usage, -1) {
		if flag == "--help" {
			continue
		}
		n++
		if cmd.Flags().Lookup(flag[2:]) == nil {
			t.Errorf("%s does not take %s", name, flag)
		}
	}
	if n < 10 {
		t.Errorf("%d flags in %s", n, usage)
	}
}

// refused: the command line ends as it was recorded, with a text.
func refused(t *testing.T, g *cliGolden, text string) {
	t.Helper()
	if _, err := command1(t, "", g.Args...); exitCode(err) != g.Code || !strings.Contains(err.Error(), text) {
		t.Errorf("ends with %d (%v), want %d with %q", exitCode(err), err, g.Code, text)
	}
}

// generated is what stands between the banner and the line with the figures.
func generated(t *testing.T, out string) string {
	t.Helper()
	parts := regexp.MustCompile(`(?m)^(={64}|-{64})$`).Split(out, -1)
	if len(parts) != 5 || !regexp.MustCompile(`\d+ tokens · .*tok/s.* end-to-end · .* tok/s decode`).MatchString(parts[3]) {
		t.Fatalf("not the form of an answer: %q", out)
	}
	return strings.Trim(parts[2], "\n")
}

func exports(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "="); ok {
			out[name] = strings.Trim(value, "'")
		}
	}
	return out
}

// claudeVariables: all that were recorded are set; names and descriptions of
// models name this product.
func claudeVariables(t *testing.T, got, want map[string]string, base string) {
	t.Helper()
	for name, value := range want {
		if name == "ANTHROPIC_BASE_URL" {
			value = base
		}
		v, ok := got[name]
		if name == "CLAUDE_CODE_MAX_OUTPUT_TOKENS" {
			value = "2048" // not more than the model's window
		}
		prose := strings.HasSuffix(name, "_NAME") || strings.HasSuffix(name, "_DESCRIPTION")
		if !ok || !prose && v != value || prose && v == "" {
			t.Errorf("%s is %q, want %q", name, v, value)
		}
	}
}

// TestMLXLMCommandLine: the flags of mlx_lm.server mean here what they mean
// there, and its name is its command line.
func TestMLXLMCommandLine(t *testing.T) {
	all := strings.Fields("--model --adapter-path --host --port --allowed-origins --draft-model --num-draft-tokens --trust-remote-code --log-level --chat-template " +
		"--use-default-chat-template --temp --top-p --top-k --min-p --max-tokens --chat-template-args --decode-concurrency --prompt-concurrency --prefill-step-size " +
		"--prompt-cache-size --prompt-cache-bytes --kv-bits --kv-group-size --quantized-kv-start --pipeline")
	serve := find1(t, "serve")
	for _, flag := range all {
		if serve.Flags().Lookup(flag[2:]) == nil {
			t.Errorf("serve does not take %s", flag)
		}
	}
	args := arguments(strings.Fields("/usr/bin/mlx_lm.server --model m --adapter-path a --draft-model d --num-draft-tokens 5 --temp 0.5 --top-p 0.9 --top-k 7 --min-p 0.1 --max-tokens 99 " +
		`--chat-template-args {"x":1} --chat-template T --decode-concurrency 3 --prompt-cache-size 4 --kv-bits 8 --kv-group-size 32 --allowed-origins http://a,http://b --log-level WARNING --prefill-step-size 64 --trust-remote-code`))
	if len(args) < 3 || args[0] != "serve" {
		t.Fatal(args)
	}
	if err := serve.ParseFlags(args[1:]); err != nil {
		t.Fatal(err)
	}
	v, err := bind(serve)
	if err != nil {
		t.Fatal(err)
	}
	r, err := loadRequest(v)
	if err != nil {
		t.Fatal(err)
	}
	l := live(v, r)
	for name, ok := range map[string]bool{
		"model": r.Model == "m", "adapter": r.Adapter == "a", "drafter": r.Drafter == "d", "max draft": r.MaxDraft != nil && *r.MaxDraft == 5, "kv": *r.KVBits == 8 && *r.KVGroup == 32,
		"template": r.ChatTemplate == "T" && r.TemplateArgs["x"] == 1.0, "sampling": *l.Temperature == 0.5 && *l.TopP == 0.9 && *l.TopK == 7 && *l.MinP == 0.1, "tokens": l.DefaultMaxTokens == 99,
		"batch": v.GetInt("max-batch") == 3, "slots": v.GetInt("prefix-cache-slots") == 4, "origins": len(v.list("cors-origin")) == 2, "chunk": v.GetInt("prefill-step-size") == 64,
	} {
		if !ok {
			t.Errorf("%s was not taken over: %+v %+v", name, r, l)
		}
	}
	p, err := profileOf(v)
	if err != nil || p.Name != "mlx-lm" || p.MaxTokens != 0 || p.Temperature != nil {
		t.Errorf("the profile's defaults do not yield to flags: %+v %v", p, err)
	}
	if level, err := logLevel("WARNING"); err != nil || level.String() != "WARN" {
		t.Error(level, err)
	}
	for _, c := range []struct{ args, text string }{
		{"serve --pipeline", "--pipeline is not available"}, {"serve --chat-template-args [1]", "--chat-template-args must be a JSON object"}, {"serve --log-level loud", "--log-level must be"},
		{"serve --kv-bits x", "kv-bits"}, {"serve surplus", "surplus"},
	} {
		if _, err := command1(t, "", strings.Fields(c.args)...); exitCode(err) != 2 || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %d %v", c.args, exitCode(err), err)
		}
	}
	if got := arguments([]string{"sparkbar", "serve", "--port", "1"}); !slices.Equal(got, []string{"serve", "--port", "1"}) {
		t.Error(got)
	}
	// The flat form of mlx-dspark.
	for args, flat := range map[string]bool{"--prompt x --seed 1": true, "--prompt=x": true, "--model demo": true, "--model demo serve": false, "--prompt hi models": false, "--help": false, "--version": false, "--frob": false, "-h": false, "models": false, "": false} {
		want := strings.Fields(args)
		if flat {
			want = append([]string{"generate"}, want...)
		}
		if got := arguments(append([]string{"mlx-dspark"}, strings.Fields(args)...)); !slices.Equal(got, want) {
			t.Errorf("%q is read as %q", args, got)
		}
	}
	if d := httpapi.MLXLMProfile(); d.MaxTokens != 512 {
		t.Error(d.MaxTokens)
	}
}
