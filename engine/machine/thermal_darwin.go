//go:build darwin && cgo

package machine

/*
#include <stdint.h>

// Of libSystem, as notify.h declares them; OSThermalNotification.h names the
// levels: 0 nominal, 1 moderate, 2 heavy, 3 trapping, 4 sleeping.
extern uint32_t notify_register_check(const char *name, int *token);
extern uint32_t notify_get_state(int token, uint64_t *state);
extern uint32_t notify_cancel(int token);

static int thermal_pressure(uint64_t *level) {
	int token;
	if (notify_register_check("com.apple.system.thermalpressurelevel", &token) != 0) return 0;
	int ok = notify_get_state(token, level) == 0;
	notify_cancel(token);
	return ok;
}
*/
import "C"

// ReadThermal returns how far heat slows the machine down now. Temperatures are
// not told.
func ReadThermal() Thermal {
	var level C.uint64_t
	if C.thermal_pressure(&level) == 0 {
		return Thermal{}
	}
	return Thermal{Heat: pressureHeat(uint64(level))}
}
