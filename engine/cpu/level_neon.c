// 64-bit Arm. Uses dot products where the compiler targets them (Apple silicon).
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
