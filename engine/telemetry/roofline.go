package telemetry

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Chip is an Apple chip and its memory bandwidth by the table. Unknown fields
// are nil.
type Chip struct {
	Name            string   `json:"name"`
	Generation      *string  `json:"generation"` // e.g. "M4"
	Family          *string  `json:"family"`     // e.g. "M4 Pro"
	GPUCores        *int     `json:"gpu_cores"`
	BandwidthGBs    *float64 `json:"bandwidth_gb_s"`
	BandwidthSource string   `json:"bandwidth_source"` // "table", "table-binned" or "unknown"
}

// bandwidths lists GB/s by family. Where a family was sold with different
// memory systems, each is listed with its GPU core count, ascending.
var bandwidths = map[string][]struct {
	cores int
	gbs   float64
}{
	"M1": {{0, 68}}, "M2": {{0, 100}}, "M3": {{0, 102}}, "M4": {{0, 120}}, "M5": {{0, 153}},
	"M1 Pro": {{0, 200}}, "M2 Pro": {{0, 200}}, "M3 Pro": {{0, 150}}, "M4 Pro": {{0, 273}}, "M5 Pro": {{0, 307}},
	"M1 Max": {{0, 400}}, "M2 Max": {{0, 400}},
	"M3 Max":   {{30, 307}, {40, 410}},
	"M4 Max":   {{32, 410}, {40, 546}},
	"M5 Max":   {{32, 460}, {40, 614}},
	"M1 Ultra": {{0, 800}}, "M2 Ultra": {{0, 800}}, "M3 Ultra": {{0, 819}},
}

var chipName = regexp.MustCompile(`\bM\d+\b( (Pro|Max|Ultra)\b)?`)

// LookupChip finds a chip by its marketing name, e.g. "Apple M4 Max". gpuCores
// 0 means unknown: then the larger variant is assumed.
func LookupChip(name string, gpuCores int) Chip {
	c := Chip{Name: name, BandwidthSource: "unknown"}
	if gpuCores > 0 {
		c.GPUCores = &gpuCores
	}
	family := chipName.FindString(name)
	if family == "" {
		return c
	}
	generation, _, _ := strings.Cut(family, " ")
	c.Family, c.Generation = &family, &generation
	bins := bandwidths[family]
	if len(bins) == 0 {
		return c
	}
	best := bins[len(bins)-1]
	c.BandwidthSource = "table"
	if len(bins) > 1 {
		c.BandwidthSource = "table-binned"
		if gpuCores > 0 {
			for _, b := range bins {
				if abs(b.cores-gpuCores) < abs(best.cores-gpuCores) {
					best = b
				}
			}
		}
	}
	c.BandwidthGBs = &best.gbs
	return c
}

// Chips lists the chips of the table, each with its largest memory system: the plain
// ones by generation, then Pro, Max and Ultra.
func Chips() []Chip {
	families := slices.SortedFunc(maps.Keys(bandwidths), func(a, b string) int {
		kind := func(family string) int {
			_, kind, _ := strings.Cut(family, " ")
			return slices.Index([]string{"", "Pro", "Max", "Ultra"}, kind)
		}
		return cmp.Or(cmp.Compare(kind(a), kind(b)), cmp.Compare(a, b))
	})
	list := make([]Chip, len(families))
	for i, f := range families {
		list[i] = LookupChip("Apple "+f, 0)
	}
	return list
}

func abs(v int) int { return max(v, -v) }

// The bandwidth of the machine on which the reference figures were measured.
const (
	ReferenceGBs         = 273.0 // by the table
	referenceMeasuredGBs = 226.0
)

// BandwidthScale compares a machine with the reference one: by the table where
// the chip is known, else by measurement, else 1. 0 means unknown.
func BandwidthScale(theoreticalGBs, measuredGBs float64) float64 {
	switch {
	case theoreticalGBs > 0:
		return theoreticalGBs / ReferenceGBs
	case measuredGBs > 0:
		return measuredGBs / referenceMeasuredGBs
	}
	return 1
}

// RooflinePoint is the ceiling of single-stream decoding at one context
// length: every token must read all active weights and the KV cache once.
type RooflinePoint struct {
	Context       int      `json:"context"`
	BytesPerToken int64    `json:"bytes_per_token"`
	CeilingTPS    *float64 `json:"ceiling_tps"` // tokens per second; nil = unknown
}

// Roofline computes the ceiling for a bandwidth in GB/s (0 = unknown), active
// weight bytes and KV bytes per token of context.
func Roofline(bandwidthGBs float64, activeBytes, kvBytesPerToken int64, context int) RooflinePoint {
	p := RooflinePoint{Context: context, BytesPerToken: activeBytes + kvBytesPerToken*int64(context)}
	if bandwidthGBs > 0 && p.BytesPerToken > 0 {
		tps := bandwidthGBs * 1e9 / float64(p.BytesPerToken)
		p.CeilingTPS = &tps
	}
	return p
}

// KVBytesPerToken returns the KV cache bytes of one token of context, over
// the layers that attend to the whole context. kvBits 0 means 16-bit values;
// quantized values carry half a bit of scales.
func KVBytesPerToken(fullAttentionLayers, kvHeads, headDim, kvBits int) int64 {
	bytes := 2.0
	if kvBits > 0 {
		bytes = (float64(kvBits) + 0.5) / 8
	}
	return int64(float64(fullAttentionLayers*kvHeads*headDim*2) * bytes)
}

// Baseline is the health of plain decoding, from one measured step.
type Baseline struct {
	StepMS      float64  `json:"step_ms"`
	AchievedGBs float64  `json:"achieved_gb_s"`
	MBU         *float64 `json:"mbu"` // memory bandwidth utilisation; nil = bandwidth unknown
}

// BaselineMBU relates a plain step of stepMS milliseconds that reads
// bytesPerToken to the bandwidth in GB/s (0 = unknown). nil without a step.
func BaselineMBU(stepMS float64, bytesPerToken int64, bandwidthGBs float64) *Baseline {
	if stepMS <= 0 || bytesPerToken <= 0 {
		return nil
	}
	gbs := float64(bytesPerToken) / (stepMS / 1000) / 1e9
	b := &Baseline{StepMS: stepMS, AchievedGBs: roundTo(gbs, 1)}
	if bandwidthGBs > 0 {
		mbu := roundTo(gbs/bandwidthGBs, 4)
		b.MBU = &mbu
	}
	return b
}

// Weight is one tensor of a checkpoint.
type Weight struct {
	Name  string
	Bytes int64
}

// Footprint is how many bytes of weights there are and how many a token reads.
type Footprint struct {
	TotalBytes  int64 `json:"total_bytes"`
	ActiveBytes int64 `json:"active_bytes"`
	ExpertBytes int64 `json:"expert_bytes"`
	EmbedBytes  int64 `json:"embed_bytes"`
	MoE         bool  `json:"is_moe"`
	Experts     *int  `json:"n_experts"`
	PerToken    *int  `json:"experts_per_tok"`
	Estimate    bool  `json:"active_is_estimate"` // expert counts unknown: all experts counted
}

// WeightFootprint adds up a model's weights. experts and perToken come from
// its config, 0 if it has none. A token reads everything except the embedding
// table, from which it gathers one row; but without a separate lm_head the
// table is the output matrix and is read. Of the expert weights it reads
// perToken/experts.
func WeightFootprint(weights []Weight, experts, perToken int) Footprint {
	var f Footprint
	head := false
	for _, w := range weights {
		f.TotalBytes += w.Bytes
		switch {
		case strings.Contains(w.Name, ".switch_mlp."):
			f.ExpertBytes += w.Bytes
		case strings.Contains(w.Name, "embed_tokens.") || strings.Contains(w.Name, "backbone.embeddings."):
			f.EmbedBytes += w.Bytes
		case strings.Contains(w.Name, "lm_head."):
			head = true
		}
	}
	f.ActiveBytes = f.TotalBytes - f.ExpertBytes
	if head {
		f.ActiveBytes -= f.EmbedBytes
	}
	known := experts > 0 && perToken > 0
	if known {
		f.Experts, f.PerToken = &experts, &perToken
	}
	switch {
	case f.ExpertBytes == 0:
	case known:
		f.MoE = true
		f.ActiveBytes += int64(float64(f.ExpertBytes) * float64(perToken) / float64(experts))
	default:
		f.Estimate = true
		f.ActiveBytes += f.ExpertBytes
	}
	return f
}
