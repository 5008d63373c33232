package engine

import (
	"sparkbar/engine/cache"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/machine"
	"sparkbar/engine/telemetry"
)

// Gauges is the inside of the loaded model as of its latest generation.
type Gauges struct {
	Store     cache.StoreStats
	Trimmable bool // pasts can be cut anywhere; else they are used whole
	// Pages of 64 positions in the cache, and the bytes of one position.
	PagesUsed, Pages int
	PositionBytes    int64
	Controller       *calibrate.ControllerInfo // nil: the cap is fixed
	Batching         *Batching                 // nil: generations run one at a time
}

// Batching counts the generations that ran together.
type Batching struct {
	MaxBatch int `json:"max_batch"`
	Requests int `json:"batched_requests"` // beside which another ran
	Batches  int `json:"batches"`          // times that several came together
	Most     int `json:"max_batch_seen"`
	Serial   int `json:"serial_requests"` // that were alone from start to end
}

// together follows how many generations of a model run, for Batching. It lives
// on the model's goroutine.
type together struct {
	Batching
	alone bool // one runs, and no other has run beside it
	open  bool // several came together, and not all of them have ended
}

// began counts a generation that has just begun; n run now.
func (t *together) began(n int) {
	t.Most = max(t.Most, n)
	if n < 2 {
		t.alone = true
		return
	}
	if !t.open {
		t.open = true
		t.Batches++
	}
	if t.alone {
		t.alone = false
		t.Requests++
	}
	t.Requests++
}

// ended counts one that has just ended; n still run.
func (t *together) ended(n int) {
	if n > 0 {
		return
	}
	if t.alone {
		t.Serial++
	}
	t.alone, t.open = false, false
}

// Gauges returns nil without a model.
func (e *Engine) Gauges() *Gauges {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.model == nil {
		return nil
	}
	return e.model.gauge.Load()
}

// PrefixCache reports whether finished conversations are kept.
func (e *Engine) PrefixCache() bool { return e.opts.Slots > 0 }

// MachineInfo is the computer as far as the engine knows it.
type MachineInfo struct {
	Chip      machine.Chip
	Memory    machine.Memory
	Thermal   machine.Thermal
	Bandwidth machine.Bandwidth // zero before the first load, or if unknown
	// Resident and Peak are the bytes of this process, now and at most; 0 =
	// unknown.
	Resident, Peak int64
}

// Machine reads the machine now.
func (e *Engine) Machine() MachineInfo {
	m := MachineInfo{Chip: e.opts.Chip, Memory: machine.Memory{Pressure: machine.Unknown}, Resident: machine.Resident(), Peak: machine.PeakResident()}
	if e.opts.Memory != nil {
		m.Memory = e.opts.Memory()
	}
	if e.opts.Thermal != nil {
		m.Thermal = e.opts.Thermal()
	}
	e.mu.Lock()
	m.Bandwidth = e.bandwidth
	e.mu.Unlock()
	return m
}

// bandwidthFor is the bandwidth in GB/s that bounds a model, 0 = unknown: of a
// GPU by the table of chips, of the processor as measured.
func (e *Engine) bandwidthFor(backend string) float64 {
	if backend != "cpu" && backend != "reference" {
		if c := telemetry.LookupChip(e.opts.Chip.Name, 0); c.BandwidthGBs != nil {
			return *c.BandwidthGBs
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bandwidth.GBs
}

// Roofline is the ceiling of plain decoding of a model at a context.
func (e *Engine) Roofline(m *ModelInfo, context int) telemetry.RooflinePoint {
	return telemetry.Roofline(e.bandwidthFor(m.Backend), m.Weights.ActiveBytes, m.KVBytesPerToken, context)
}

func (e *Engine) swapUsed() int64 {
	if e.opts.Memory == nil {
		return 0
	}
	return int64(e.opts.Memory().SwapUsed)
}
