package machine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ReadThermal returns how hot the machine is now; nothing is known where the
// kernel shows no zones, as in most virtual machines.
func ReadThermal() Thermal { return thermalOf(zonesBelow("/sys/class/thermal")) }

// zonesBelow reads the kernel's thermal zones: thermal_zone*/temp, and their trip
// points by type (passive and hot slow the machine down, critical ends it).
func zonesBelow(root string) []zone {
	dirs, _ := filepath.Glob(filepath.Join(root, "thermal_zone*"))
	var list []zone
	for _, dir := range dirs {
		z := zone{now: celsius(filepath.Join(dir, "temp"))}
		types, _ := filepath.Glob(filepath.Join(dir, "trip_point_*_type"))
		for _, file := range types {
			kind, _ := os.ReadFile(file)
			at := celsius(strings.TrimSuffix(file, "_type") + "_temp")
			if at <= 0 {
				continue
			}
			switch strings.TrimSpace(string(kind)) {
			case "passive", "hot":
				if z.slow == 0 || at < z.slow {
					z.slow = at
				}
			case "critical":
				z.off = at
			}
		}
		list = append(list, z)
	}
	return list
}

// celsius reads thousandths of a degree; 0 = there is no number.
func celsius(file string) float64 {
	text, _ := os.ReadFile(file)
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return float64(n) / 1000
}
