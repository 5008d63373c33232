package engine

import (
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/machine"
	"sparkbar/engine/models"
)

// TestExamine: each planted fault is found, alone, with a fix; a sound machine
// has none.
func TestExamine(t *testing.T) {
	sound := func() facts {
		return facts{chip: machine.Chip{Name: "x", OS: "linux", Arch: "amd64", SIMD: true}, memory: machine.Memory{Total: 64 * gib, Available: 40 * gib, Pressure: machine.Normal},
			places: models.Places{Hub: "/hub", Folders: []string{"/models", "/default"}}, diskFree: 100 * gib, writable: true, exists: func(d string) bool { return d == "/models" },
			list: []models.Model{{ID: "org/good", Complete: true, Source: models.SourceHub}}}
	}
	s := sound()
	if got := s.examine(); len(got) != 0 {
		t.Errorf("a sound machine: %+v", got)
	}
	for code, plant := range map[string]func(*facts){
		"no_simd":         func(f *facts) { f.chip.SIMD = false },
		"small_memory":    func(f *facts) { f.memory.Total = 8 * gib },
		"memory_pressure": func(f *facts) { f.memory.Pressure = machine.Critical },
		"swap":            func(f *facts) { f.memory.SwapUsed = 20 * gib },
		"thermal":         func(f *facts) { f.thermal = machine.Thermal{Heat: machine.Serious, Celsius: 97} },
		"wired_limit":     func(f *facts) { f.chip.OS, f.chip.Arch = "darwin", "arm64" },
		"cache_read_only": func(f *facts) { f.writable = false },
		"disk":            func(f *facts) { f.diskFree = gib },
		"missing_folder":  func(f *facts) { f.places.Folders = []string{"/gone", "/default"} },
		"incomplete_model": func(f *facts) {
			f.list = append(f.list, models.Model{ID: "org/half", Source: models.SourceHub, Reason: "two of three files"})
		},
		"no_models": func(f *facts) { f.list = []models.Model{{ID: "demo", Complete: true, Source: models.SourceBuiltin}} },
		"missing_drafter": func(f *facts) {
			f.model = &ModelInfo{ID: "Qwen3-4B-8bit", Target: "mlx-community/Qwen3-4B-8bit", Mode: "lookup"}
		},
		"load_failed": func(f *facts) { f.lastErr = "no such file" },
	} {
		f := sound()
		plant(&f)
		got := f.examine()
		if len(got) != 1 || got[0].Code != code || got[0].Fix == "" || got[0].Message == "" || !slices.Contains([]string{LevelAttention, LevelProblem}, got[0].Level) {
			t.Errorf("%s: %+v", code, got)
		}
		if strings.Contains(got[0].Message, "%!") || strings.Contains(got[0].Fix, "%!") {
			t.Errorf("%+v", got[0])
		}
	}
}

func TestRegistry(t *testing.T) {
	rows := Registry()
	if len(rows) != 17 {
		t.Errorf("%d rows", len(rows))
	}
	for _, r := range rows {
		if r.DSpark == "" && r.DFlash == "" || r.Mode == "lookup" || r.RAMGB <= 0 || r.Target == "" {
			t.Errorf("%+v", r)
		}
	}
	if r := RowOf(models.Model{ID: "mlx-community/Qwen3.8-27B-8bit"}); r == nil || r.ID != "qwen3.8-27b-8bit" || r.Mode != "dflash" {
		t.Errorf("%+v", r)
	}
	if r := RowOf(models.Model{ID: "z-lab/Qwen3-4B-DFlash-b16", Drafter: true}); r == nil || r.ID != "qwen3-4b" {
		t.Errorf("%+v", r)
	}
	if r := RowOf(models.Model{ID: "org/unheard-of"}); r != nil {
		t.Errorf("%+v", r)
	}
	if r := RowOf(models.Model{ID: "me/Qwen3-8B-4bit"}); r == nil || r.ID != "qwen3-8b" {
		t.Errorf("%+v", r)
	}
}

// TestWorkingSet: an Apple GPU may use a part of the memory only, and a model
// has to fit into that.
func TestWorkingSet(t *testing.T) {
	mac := machine.Chip{OS: "darwin", Arch: "arm64"}
	for _, c := range []struct {
		chip machine.Chip
		m    machine.Memory
		want uint64
	}{
		{machine.Chip{OS: "linux", Arch: "arm64"}, machine.Memory{Total: 64 * gib}, 0},
		{machine.Chip{OS: "darwin", Arch: "amd64"}, machine.Memory{Total: 64 * gib}, 0},
		{mac, machine.Memory{}, 0},
		{mac, machine.Memory{Total: 24 * gib}, 16 * gib},
		{mac, machine.Memory{Total: 64 * gib}, 48 * gib},
		{mac, machine.Memory{Total: 64 * gib, WiredLimitMB: 57344}, 56 * gib},
	} {
		if got := workingSet(c.chip, c.m); got != c.want {
			t.Errorf("%+v %+v: %d, want %d", c.chip, c.m, got, c.want)
		}
	}
	e := New(Options{Chip: mac, Memory: func() machine.Memory { return machine.Memory{Total: 24 * gib, Available: 23 * gib} }})
	defer e.Close(t.Context())
	if f := e.Fit(models.Model{ID: "org/m", Bytes: 17 * gib, Context: 4096}, 0); f.Verdict != models.TooBig || f.Limit != 16*gib {
		t.Errorf("%+v", f)
	}
	if f := e.Fit(models.Model{ID: "org/m", Bytes: 12 * gib, Context: 4096}, 0); f.Verdict != models.Fits {
		t.Errorf("%+v", f)
	}
}
