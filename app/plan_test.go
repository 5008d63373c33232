package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkbar/resources"
)

// TestPlanCommand: the demo and its drafter on a device that only counts.
func TestPlanCommand(t *testing.T) {
	var out, errs bytes.Buffer
	cmd := root()
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs([]string{"plan", "demo", "--chip", "m4-pro", "--context", "1000", "--json"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err, errs.String())
	}
	var p plan
	if err := json.Unmarshal(out.Bytes(), &p); err != nil {
		t.Fatal(err, out.String())
	}
	if p.Chip.BandwidthGBs == nil || *p.Chip.BandwidthGBs != 273 || p.Roofline.CeilingTPS == nil || p.Roofline.Context != 1000 || p.DrafterBytes == 0 {
		t.Errorf("%+v", p)
	}
	if len(p.Forwards) != 2 || p.Forwards[0].Rows != 1 || p.Forwards[1].Rows < 100 {
		t.Fatalf("forwards %+v", p.Forwards)
	}
	const layers = 4
	for _, f := range p.Forwards {
		if f.Dispatches < 8*layers || f.Dispatches > 12*layers+6 || f.Barriers >= f.Dispatches {
			t.Errorf("%d rows: %d dispatches, %d barriers", f.Rows, f.Dispatches, f.Barriers)
		}
	}
	// bytes moved: every weight of a token once, the tied embedding as the head
	if f := p.Forwards[0]; float64(f.Weights) > 1.05*float64(p.WeightBytes) || float64(f.Weights) < 0.95*float64(p.WeightBytes) {
		t.Errorf("a token reads %d bytes of weights, the model has %d", f.Weights, p.WeightBytes)
	}
	if f := p.Forwards[0]; p.moved(f) > 1.05 || f.CommandBuffers != 1 || f.Calls != 1 || p.Copied != 0 || p.KVBytes == 0 || f.Other == 0 {
		t.Errorf("a token moves %.3f of what it must, in %v command buffers and %v calls; %d bytes are copied", p.moved(f), f.CommandBuffers, f.Calls, p.Copied)
	}
	if len(p.Chips) < 17 || p.Chips[0].Name != "M1" || p.Chips[0].GBs != 68 {
		t.Errorf("chips %+v", p.Chips)
	}
	out.Reset()
	cmd = root()
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs([]string{"plan", "demo", "--chip", "M4-Pro"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/plan-demo.txt" // SPARKBAR_UPDATE=1 writes it anew
	if os.Getenv("SPARKBAR_UPDATE") != "" {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != out.String() {
		t.Errorf("the plan is no longer that of %s (%v):\n%s", golden, err, out.String())
	}
	// A model in files: its weights are read where they are mapped.
	dir := t.TempDir()
	target, _ := resources.Demo()
	for name, text := range target {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out.Reset()
	cmd = root()
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs([]string{"plan", dir, "--json"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err, errs.String())
	}
	var files plan
	if err := json.Unmarshal(out.Bytes(), &files); err != nil || files.Copied != 0 || files.WeightBytes == 0 || files.moved(files.Forwards[0]) > 1.05 {
		t.Errorf("%d bytes of %d are copied, %v", files.Copied, files.WeightBytes, err)
	}
	if len(p.Speculation) == 0 || p.Speculation[0].Tokens <= 1 {
		t.Errorf("speculation %+v", p.Speculation)
	}

	cmd = root()
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs([]string{"plan", "--chip", "M99"})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "M99") {
		t.Errorf("an unknown chip: %v", err)
	}
}
