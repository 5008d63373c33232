package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
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
