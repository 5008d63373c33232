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
