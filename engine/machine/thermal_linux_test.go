package machine

import (
	"os"
	"path/filepath"
	"testing"
)

// TestZones reads zones as the kernel shows them.
func TestZones(t *testing.T) {
	root := t.TempDir()
	if got := thermalOf(zonesBelow(root)); got != (Thermal{}) {
		t.Errorf("none: %+v", got)
	}
	for name, text := range map[string]string{
		"thermal_zone0/type": "acpitz\n", "thermal_zone0/temp": "27800\n", "thermal_zone0/trip_point_0_type": "critical\n", "thermal_zone0/trip_point_0_temp": "119000\n",
		"thermal_zone1/type": "x86_pkg_temp\n", "thermal_zone1/temp": "84000\n", "thermal_zone1/trip_point_0_type": "passive\n", "thermal_zone1/trip_point_0_temp": "80000\n",
		"thermal_zone1/trip_point_1_type": "passive\n", "thermal_zone1/trip_point_1_temp": "-274000\n", "thermal_zone1/trip_point_2_type": "hot\n", "thermal_zone1/trip_point_2_temp": "95000\n",
		"thermal_zone2/temp": "not a number", "cooling_device0/temp": "500000",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := thermalOf(zonesBelow(root)); got != (Thermal{Serious, 84}) {
		t.Errorf("%+v", got)
	}
}
