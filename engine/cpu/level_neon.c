// 64-bit Arm, whatever it has.
#if defined(__aarch64__)
#include "sb.h"

#include <math.h>
#include <string.h>

#include <arm_neon.h>

#define SB_NEON
#define LEVEL sb_level_neon
#define LEVEL_NAME "neon"

#include "kernels.h"
#endif
