package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sparkbar/engine/calibrate"
)

func TestCalibrationFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a", "calibration.json")
	costs := calibrate.Costs{Verify: calibrate.NewCurve(map[int]float64{1: 20, 8: 31}), Drafter: calibrate.Constant(4), Overhead: 0.5,
		Depth: &calibrate.DepthCosts{From: 512, To: 4096, Slope: calibrate.NewCurve(map[int]float64{1: 0.001})}, Grid: map[int]calibrate.Curve{4: calibrate.NewCurve(map[int]float64{1: 30})}}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if len(readCalibrations(file)) != 0 {
		t.Fatal("there is no file yet")
	}
	for i := range maxCalibrations + 3 {
		if err := writeCalibration(file, fmt.Sprint("key ", i), calibration{costs, at.Add(time.Duration(i) * time.Hour)}); err != nil {
			t.Fatal(err)
		}
	}
	known := readCalibrations(file)
	if _, old := known["key 2"]; len(known) != maxCalibrations || old {
		t.Errorf("%d entries, the oldest there: %v", len(known), old)
	}
	// A clock that went wrong and was set back is no reason to forget what is new.
	if err := writeCalibration(file, "now", calibration{costs, at}); err != nil {
		t.Fatal(err)
	}
	if known = readCalibrations(file); len(known) != maxCalibrations || known["now"].MeasuredAt != at {
		t.Errorf("%d entries, the new one of %v", len(known), known["now"].MeasuredAt)
	}
	c, ok := known["key 9"]
	want, _ := json.Marshal(calibration{costs, at.Add(9 * time.Hour)})
	if got, _ := json.Marshal(c); !ok || string(got) != string(want) {
		t.Errorf("read back %s, wrote %s", got, want)
	}
	if n, _ := filepath.Glob(filepath.Dir(file) + "/*"); len(n) != 1 {
		t.Errorf("left behind: %v", n)
	}
	// An entry that is damaged is measured anew; the others stay.
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for what, damaged := range map[string]string{
		"another type":   strings.Replace(string(text), `"1": 20`, `"1": "x"`, 1),
		"a time of zero": strings.Replace(string(text), `"1": 20`, `"1": 0`, 1),
		"no times":       strings.Replace(string(text), `"verify": {`, `"verify": {}, "was": {`, 1),
	} {
		if err := os.WriteFile(file, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if n := len(readCalibrations(file)); n != maxCalibrations-1 {
			t.Errorf("%s: %d entries", what, n)
		}
	}
	for _, damaged := range []string{"", "null", "[]", "{", "\x00\x01", string(text[:len(text)/2])} {
		if err := os.WriteFile(file, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if n := len(readCalibrations(file)); n != 0 {
			t.Errorf("%d entries in %.20q", n, damaged)
		}
		if err := writeCalibration(file, "new", calibration{costs, at}); err != nil || len(readCalibrations(file)) != 1 {
			t.Errorf("%.20q cannot be written over: %v", damaged, err)
		}
	}
}

func FuzzCalibrations(f *testing.F) {
	f.Add([]byte(`{"k": {"verify": {"1": 20, "8": 31}, "drafter": 4, "overhead": 0, "measured_at": "2026-01-02T03:04:05Z"}}`))
	f.Add([]byte(`{"k": {"verify": 3}}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(dir, "c.json")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, c := range readCalibrations(file) {
			if best := c.BestCap(0.7, 0, 7); best < 1 || best > 7 {
				t.Errorf("cap %d", best)
			}
		}
	})
}
