package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sparkbar/engine/cpu"
	"sparkbar/resources"
)

// benchCommand runs a command line and returns what it wrote to standard output.
func benchCommand(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := root()
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// only decodes the one JSON value that a text must be.
func only(t *testing.T, text string, into any) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(into); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		t.Fatalf("more than one value: %q", text)
	}
}

func TestBenchmarkTrials(t *testing.T) {
	text, err := benchCommand("benchmark", "--model", "demo", "--mode", "baseline", "--threads", "1", "--prompt-tokens", "20", "--max-tokens", "7", "--trials", "3", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Trials []struct {
			Prefill    float64 `json:"prefill_tokens_per_sec"`
			Decode     float64 `json:"decode_tokens_per_sec"`
			Prompt     int     `json:"prompt_tokens"`
			Completion int     `json:"completion_tokens"`
		}
	}
	only(t, text, &got)
	if len(got.Trials) != 3 {
		t.Fatalf("%d trials", len(got.Trials))
	}
	for _, x := range got.Trials {
		if x.Prefill <= 0 || x.Decode <= 0 || x.Prompt != 20 || x.Completion != 7 {
			t.Errorf("trial %+v", x)
		}
	}
}

// The file may be a pipe, as in --json >(jq .): it is not opened before there is
// something to write, which would wait for its reader or show it an end.
func TestBenchmarkPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writable(pipe); err != nil {
		t.Error(err)
	}
}

// What one token costs is a part of a millisecond here, and no reason for rates
// that no machine has; a rate of decoding where nothing was decoded is none.
func TestBenchmarkOneToken(t *testing.T) {
	text, err := benchCommand("benchmark", "--model", "demo", "--mode", "lookup", "--threads", "1", "--prompt-tokens", "1", "--max-tokens", "1", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Mode   string
		Trials []trial
	}
	only(t, text, &got)
	x := got.Trials[0]
	if got.Mode != "lookup" || x.Prefill <= 0 || x.Prefill > 1e8 || x.TTFT <= 0 || x.Decode != 0 {
		t.Errorf("%+v", got)
	}
}

// A mode alone makes a plain measurement of it, of the default lengths.
func TestBenchmarkMode(t *testing.T) {
	text, err := benchCommand("benchmark", "--mode", "baseline", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Trials []trial }
	only(t, text, &got)
	if len(got.Trials) != 1 || got.Trials[0].PromptTokens != 512 || got.Trials[0].CompletionTokens != 128 {
		t.Errorf("%s", text)
	}
}

// A model without a drafter is compared in the mode that needs none, unless
// another was named; what has been measured before a failure is not lost.
func TestBenchmarkWithoutDrafter(t *testing.T) {
	target, _ := resources.Demo()
	dir := t.TempDir()
	for name, content := range target {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runs := func(args ...string) (string, error) {
		t.Helper()
		text, err := benchCommand(append([]string{"benchmark", "--caps", "2,2", "--max-new-tokens", "5", "--json"}, args...)...)
		if text == "" {
			return "", err
		}
		var got comparison
		only(t, text, &got)
		var names []string
		for _, r := range got.Runs {
			names = append(names, r.Run)
		}
		return strings.Join(names, ", "), err
	}
	if got, err := runs("--model", dir); err != nil || got != "baseline, lookup" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := runs("--model", dir, "--modes", "dspark,lookup"); err == nil || got != "" {
		t.Errorf("named: %q, %v", got, err)
	}
	if got, err := runs("--model", "demo", "--modes", "lookup,dspark,dspark,draft"); err == nil || !strings.Contains(err.Error(), "draft model") || got != "baseline, dspark cap 2, lookup" {
		t.Errorf("a failure after others: %q, %v", got, err)
	}
}

func TestBenchmarkModes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.json")
	table, err := benchCommand("benchmark", "--model", "demo", "--modes", "dspark,dflash,lookup", "--caps", "2,auto", "--max-new-tokens", "12", "--json", file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Device, MLX, Target string
		Runs                []struct {
			Run       string
			TokS      float64 `json:"tok_s"`
			Decode    float64 `json:"decode_tok_s"`
			Accept    float64
			PerPrompt map[string]struct {
				Decode float64 `json:"decode_tok_s"`
			} `json:"per_prompt"`
		}
	}
	only(t, string(text), &got)
	var names []string
	for _, r := range got.Runs {
		names = append(names, r.Run)
		if r.TokS <= 0 || r.Decode <= 0 || r.Accept < 1 || len(r.PerPrompt) != 3 || r.PerPrompt["code"].Decode <= 0 {
			t.Errorf("run %+v", r)
		}
	}
	if want := "baseline,dspark cap 2,dspark cap auto,lookup,dflash cap 2,dflash cap auto"; strings.Join(names, ",") != want || got.Target != "demo" {
		t.Errorf("runs %v of %s, want %s", names, got.Target, want)
	}
	if !strings.Contains(table, "AGAINST PLAIN") {
		t.Errorf("table %q", table)
	}
}

func TestBenchmarkRefuses(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--modes warp", "warp"}, {"--caps 0", "cap"}, {"--caps x", "cap"}, {"--trials 0", "trials"}, {"--prompt-tokens 0", "prompt-tokens"},
		{"--prompt-tokens 9999 --mode baseline", "context"}, {"--prompt-tokens 9223372036854775807", "context"}, {"--max-tokens 9223372036854775807", "context"},
		{"--caps ,", "cap"}, {"--json=" + filepath.Join(t.TempDir(), "none", "out.json"), "--json"}, {"--json=a b", "argument"}, {"x", "argument"},
	} {
		text, err := benchCommand(append([]string{"benchmark", "--model", "demo"}, strings.Fields(c.args)...)...)
		var usage *usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), c.says) || text != "" {
			t.Errorf("%s: %v, output %q", c.args, err, text)
		}
	}
}

func TestCalibrateCommand(t *testing.T) {
	text, err := benchCommand("calibrate", "demo", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Key     string
		Verify  map[string]float64
		Drafter map[string]float64
		Derived int `json:"derived_cap"`
	}
	only(t, text, &got)
	if got.Key == "" || got.Verify["1"] <= 0 || len(got.Drafter) == 0 || got.Derived < 1 {
		t.Errorf("%+v", got)
	}
	text, err = benchCommand("calibrate", "demo", "--mode", "lookup", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var none map[string]any
	only(t, text, &none)
	if report, ok := none["recommendation"]; !ok || report != nil || none["derived_cap"] != nil || none["key"] == "" {
		t.Errorf("without a drafter: %s", text)
	}
	table, err := benchCommand("calibrate", "demo")
	if err != nil || !strings.Contains(table, "VERIFY ms") || !strings.Contains(table, "drafts per round") {
		t.Errorf("%v, %q", err, table)
	}
}

// What one instruction set computes and costs is never taken for another's.
func TestLevelsApart(t *testing.T) {
	keys := map[string]string{}
	for _, level := range cpu.Levels() {
		t.Setenv(cpu.LevelVariable, level)
		v := configOf(t)
		if key := arithmetic(v, backendChoice{}); keys[key] != "" {
			t.Errorf("%s and %s are both %q", keys[key], level, key)
		} else {
			keys[key] = level
		}
	}
	t.Setenv(cpu.LevelVariable, "")
	v := configOf(t)
	if list := cpu.Levels(); len(list) > 0 && keys[arithmetic(v, backendChoice{})] != list[0] {
		t.Errorf("not forced: %q, best is %s", arithmetic(v, backendChoice{}), list[0])
	}
}
