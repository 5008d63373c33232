package machine

// Heat says how far heat slows the machine down, in the words of macOS.
type Heat string

// The states of heat. "" is not known: the system does not tell.
const (
	Nominal  Heat = "nominal"  // not at all
	Fair     Heat = "fair"     // fans may be heard
	Serious  Heat = "serious"  // clocks are lower
	Scorched Heat = "critical" // it has to cool down
)

// Thermal is how hot the machine is.
type Thermal struct {
	Heat    Heat
	Celsius float64 // of the hottest zone; 0 = not known
}

// zone is a place where a temperature is taken, in degrees Celsius, with those
// at which the system slows down and switches off; 0 = it does not say.
type zone struct {
	now, slow, off float64
}

// Where a zone does not say when it slows down, and how near to a limit counts
// as on the way to it.
const (
	usualSlow, usualOff = 90.0, 100.0
	nearSlow, nearOff   = 10.0, 3.0
	hottest             = 150.0 // beyond, it is no temperature
)

// thermalOf judges by the zone that is worst off.
func thermalOf(zones []zone) Thermal {
	var t Thermal
	rank := map[Heat]int{Nominal: 1, Fair: 2, Serious: 3, Scorched: 4}
	for _, z := range zones {
		if z.now <= 0 || z.now > hottest {
			continue
		}
		t.Celsius = max(t.Celsius, z.now)
		if z.off <= 0 || z.off > hottest {
			z.off = max(usualOff, z.slow)
		}
		if z.slow <= 0 || z.slow >= z.off {
			z.slow = min(usualSlow, z.off-nearOff)
		}
		heat := Nominal
		switch {
		case z.now >= z.off-nearOff:
			heat = Scorched
		case z.now >= z.slow:
			heat = Serious
		case z.now >= z.slow-nearSlow:
			heat = Fair
		}
		if rank[heat] > rank[t.Heat] {
			t.Heat = heat
		}
	}
	return t
}

// pressureHeat translates the levels of macOS's notification of thermal
// pressure.
func pressureHeat(level uint64) Heat {
	switch level {
	case 0:
		return Nominal
	case 1:
		return Fair
	case 2:
		return Serious
	}
	return Scorched // trapping, sleeping
}
