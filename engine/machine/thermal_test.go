package machine

import (
	"testing"
)

func TestThermalOf(t *testing.T) {
	for _, c := range []struct {
		zones []zone
		want  Thermal
	}{
		{nil, Thermal{}},
		{[]zone{{now: 0}, {now: -5}, {now: 2000}}, Thermal{}}, // no temperatures
		{[]zone{{now: 45}}, Thermal{Nominal, 45}},
		{[]zone{{now: 81}}, Thermal{Fair, 81}},
		{[]zone{{now: 91}}, Thermal{Serious, 91}},
		{[]zone{{now: 98}}, Thermal{Scorched, 98}},
		{[]zone{{now: 55, slow: 60, off: 90}, {now: 70, slow: 95, off: 105}}, Thermal{Fair, 70}}, // the worst counts, not the hottest
		{[]zone{{now: 62, slow: 60, off: 90}}, Thermal{Serious, 62}},
		{[]zone{{now: 88, slow: 60, off: 90}}, Thermal{Scorched, 88}},
		{[]zone{{now: 96, slow: 110, off: 127}}, Thermal{Nominal, 96}}, // limits beyond the usual
		{[]zone{{now: 93, slow: 200, off: 127}}, Thermal{Serious, 93}}, // a limit that is none
	} {
		if got := thermalOf(c.zones); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.zones, got, c.want)
		}
	}
	for level, want := range []Heat{Nominal, Fair, Serious, Scorched, Scorched} {
		if got := pressureHeat(uint64(level)); got != want {
			t.Errorf("level %d: %s, want %s", level, got, want)
		}
	}
}

// TestReadThermal: what this machine tells is plausible, or nothing.
func TestReadThermal(t *testing.T) {
	if x := ReadThermal(); x.Celsius < 0 || x.Celsius > hottest || x.Celsius > 0 && x.Heat == "" {
		t.Errorf("%+v", x)
	}
}
