package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sparkbar/engine/calibrate"
	"sparkbar/engine/decode"
	"sparkbar/engine/wholefile"
)

// Calibration is what the rounds of the loaded model cost on this machine.
type Calibration struct {
	Key              string // names machine, pair and settings that it holds for
	*calibrate.Costs        // nobody changes them; nil = nothing was measured
	// Unkept says why later loads will not find what has just been measured; nil
	// where they will, and where nothing has.
	Unkept error
}

// Calibration returns the zero value where no model is loaded.
func (e *Engine) Calibration() Calibration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.model == nil {
		return Calibration{}
	}
	return Calibration{Key: e.model.costKey, Costs: e.model.costs.Load()}
}

// Calibrate measures the rounds of the loaded model anew, in about five seconds,
// in which nothing else runs on it, and keeps the result for later loads.
func (e *Engine) Calibrate(ctx context.Context) (*Calibration, error) {
	e.mu.Lock()
	l := e.model
	if l == nil {
		defer e.mu.Unlock()
		return nil, e.noneLocked()
	}
	l.users.Add(1)
	e.mu.Unlock()
	defer l.users.Done()
	var costs *calibrate.Costs
	var unkept, err error
	l.do(func() {
		if costs, unkept, err = l.measureCosts(ctx); err == nil {
			l.costs.Store(costs)
			if l.sharesDrafts() {
				l.run.SetCosts(costs)
			}
		}
	})
	if err != nil {
		return nil, generationError(ctx, err)
	}
	return &Calibration{l.costKey, costs, unkept}, nil
}

// costKey names all that costs depend on.
func (e *Engine) costKey(l *loaded) string {
	m := &l.info
	key := fmt.Sprintf("v2|%s x%d|sparkbar %s|%s|%s|%s|%s|%s|ctx%d", e.opts.Chip.Name, e.opts.Chip.Cores, e.opts.Version, m.Backend, e.opts.Arithmetic, m.Mode, m.ID, modelID(m.Drafter), calibrate.BaseDepth)
	jobs, _ := l.run.Room()
	key += fmt.Sprintf("|b%d", jobs) // as many streams are measured together
	if m.ContextWindow < decode.DeepContext {
		key += fmt.Sprintf("|w%d", m.ContextWindow)
	}
	if e.opts.Threads > 0 {
		key += fmt.Sprintf("|t%d", e.opts.Threads)
	}
	if m.KVBits > 0 {
		key += fmt.Sprintf("|kv%d", m.KVBits)
	}
	return key + "|" + l.print[:8]
}

// measureCosts measures and keeps the result for later loads; unkept says why it
// could not. It runs on the model's goroutine.
func (l *loaded) measureCosts(ctx context.Context) (costs *calibrate.Costs, unkept, err error) {
	if costs, err = l.run.Measure(ctx); err == nil {
		err = costs.Validate()
	}
	if err != nil {
		return nil, nil, err
	}
	if l.costFile != "" {
		unkept = writeCalibration(l.costFile, l.costKey, calibration{*costs, time.Now().UTC().Truncate(time.Second)})
	}
	return costs, unkept, nil
}

// calibrate takes the costs of rounds from the file of calibrations, or measures
// them, the first time that they are asked for. It runs on the model's goroutine.
func (l *loaded) calibrate(ctx context.Context) error {
	if l.costs.Load() != nil {
		return nil
	}
	if c, ok := readCalibrations(l.costFile)[l.costKey]; ok {
		l.costs.Store(&c.Costs)
		return nil
	}
	costs, _, err := l.measureCosts(ctx) // a file that cannot be written only costs the next measurement
	if err == nil {
		l.costs.Store(costs)
	}
	return err
}

// derive lets the costs decide the number of drafts per round.
func (l *loaded) derive() {
	k := &l.controls
	k.derived = true
	k.cap = l.costs.Load().BestCap(calibrate.DerivedAcceptance, 0, l.run.Drafter().MaxDraft())
	l.info.MaxDraft = k.cap
}

// capAt is the derived cap of a request with a prompt of n tokens.
func (l *loaded) capAt(n int) int {
	return l.costs.Load().CapAtDepth(l.controls.cap, calibrate.DerivedAcceptance, n, l.run.Drafter().MaxDraft())
}

// calibration is one entry of the file.
type calibration struct {
	calibrate.Costs
	MeasuredAt time.Time `json:"measured_at"`
}

const (
	maxCalibrations    = 64
	maxCalibrationFile = 4 << 20
)

// readCalibrations reads the file. What is damaged in it does not exist.
func readCalibrations(file string) map[string]calibration {
	known := map[string]calibration{}
	text, err := wholefile.Read(file, maxCalibrationFile)
	if err != nil {
		return known
	}
	var raw map[string]json.RawMessage
	if json.Unmarshal(text, &raw) != nil {
		return known
	}
	for key, text := range raw {
		var c calibration
		if json.Unmarshal(text, &c) == nil && c.Validate() == nil {
			known[key] = c
		}
	}
	return known
}

// writeCalibration adds an entry to the file; the oldest ones go when there are
// many.
func writeCalibration(file, key string, c calibration) error {
	known := readCalibrations(file)
	known[key] = c
	for len(known) > maxCalibrations {
		oldest := ""
		for k, v := range known {
			if k != key && (oldest == "" || v.MeasuredAt.Before(known[oldest].MeasuredAt)) {
				oldest = k
			}
		}
		delete(known, oldest)
	}
	text, err := json.MarshalIndent(known, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return wholefile.Write(file, text, 0o600)
}
