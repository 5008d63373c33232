package telemetry

import "fmt"

// Levels of a [Verdict], from no statement to bad.
const (
	LevelInfo      = "info"
	LevelHealthy   = "healthy"
	LevelOK        = "ok"
	LevelAttention = "attention"
	LevelProblem   = "problem"
)

// Verdict says in words how well the machine is used.
type Verdict struct {
	Level    string   `json:"level"`
	Headline string   `json:"headline"`
	Findings []string `json:"findings"` // observations
	Levers   []string `json:"levers"`   // what the user can do
}

// VerdictInput is what a verdict is based on; zero and nil mean unknown.
type VerdictInput struct {
	MBU            *float64 // of [BaselineMBU]
	DecodeTPS      float64
	RatioToCeiling *float64 // decode rate over the roofline ceiling
	Mode           string
	AcceptLen      float64
	Pressure       string // memory pressure: "normal", "warn", "critical", "unknown"
	SwapDeltaBytes int64
	DecayRatio     *float64
	Cold           bool
	ContextTokens  int
	ContextWindow  int
	MoEEstimate    bool // active bytes were estimated
}

const (
	mbuHealthy    = 0.75
	mbuOK         = 0.5
	smallModelTPS = 200 // above this, launch overhead rather than bandwidth decides
	ratioPays     = 1.05
	ratioParity   = 0.85
	decaySlowing  = 0.85
	windowFull    = 0.9
	swapTolerated = 64 << 20
)

// Verdict weighs the input. Memory trouble outranks everything else.
func (in VerdictInput) Verdict() Verdict {
	v := Verdict{Findings: []string{}, Levers: []string{}}
	find := func(format string, args ...any) { v.Findings = append(v.Findings, fmt.Sprintf(format, args...)) }
	lever := func(text string) { v.Levers = append(v.Levers, text) }

	mbu := 0.0
	if in.MBU != nil {
		mbu = *in.MBU
	}
	switch {
	case in.MBU == nil:
		v.Level, v.Headline = LevelInfo, "No decode measured yet."
	case mbu >= mbuHealthy:
		v.Level = LevelHealthy
		v.Headline = fmt.Sprintf("Plain decoding uses %.0f%% of this machine's memory bandwidth: it is saturated, so only fewer bytes per token or more tokens per pass make it faster.", 100*mbu)
	case in.DecodeTPS > smallModelTPS:
		v.Level = LevelOK
		v.Headline = fmt.Sprintf("The model is small: at %.0f tokens/s fixed costs per step limit it, not memory bandwidth (%.0f%% used).", in.DecodeTPS, 100*mbu)
	case mbu >= mbuOK:
		v.Level = LevelOK
		v.Headline = fmt.Sprintf("Plain decoding uses %.0f%% of this machine's memory bandwidth, which is usual.", 100*mbu)
		lever("Close other programs that use the GPU or much memory bandwidth, then measure again.")
	default:
		v.Level = LevelAttention
		v.Headline = fmt.Sprintf("Plain decoding uses only %.0f%% of this machine's memory bandwidth.", 100*mbu)
		lever("Check for other GPU work, Low Power Mode and heat, then measure again.")
	}

	pressed := in.Pressure == "warn" || in.Pressure == "critical"
	swapped := in.SwapDeltaBytes > swapTolerated
	if pressed || swapped {
		v.Level = LevelProblem
		v.Headline = "Memory is short, and that slows everything else down."
		if pressed {
			find("The system reports memory pressure: %s.", in.Pressure)
		}
		if swapped {
			find("Swap grew by %d MB during the last request.", in.SwapDeltaBytes>>20)
		}
		lever("Free memory: close programs, choose a smaller or more strongly quantized model, or a shorter context window.")
	}
	if r := in.RatioToCeiling; r != nil && in.Mode != "" && in.Mode != "baseline" {
		switch {
		case *r >= ratioPays:
			find("Speculation (%s) reaches %.2f times the ceiling of plain decoding.", in.Mode, *r)
			if in.MBU != nil {
				lever("Acceptance depends on the text: code and mathematics gain far more than open chat.")
			}
		case *r >= ratioParity:
			find("Speculation (%s) runs level with the ceiling of plain decoding (%.2f times), accepting %.2f tokens per round.", in.Mode, *r, in.AcceptLen)
		default:
			find("Drafts do not pay for themselves (%s, %.2f times the ceiling, %.2f tokens per round).", in.Mode, *r, in.AcceptLen)
			lever("Let the cap adapt (--max-draft auto), or compare with --mode baseline.")
		}
	}
	if d := in.DecayRatio; d != nil && *d < decaySlowing {
		find("The request slowed to %.2f times its initial rate: growing context or heat.", *d)
	}
	if in.ContextWindow > 0 && float64(in.ContextTokens) >= windowFull*float64(in.ContextWindow) {
		find("The context window is %.0f%% full (%d of %d tokens).", 100*float64(in.ContextTokens)/float64(in.ContextWindow), in.ContextTokens, in.ContextWindow)
		lever("Start a new conversation or raise the context window.")
	}
	if in.Cold {
		find("This was the first request after a load without warm-up; the next one is the fairer measure.")
	}
	if in.MoEEstimate {
		find("The active weights of this mixture of experts are an estimate, so the ceiling is one too.")
	}
	return v
}
