// 64-bit Arm with dot products (Apple M1 and later, Armv8.4).
#if defined(__aarch64__)
#include "sb.h"

#include <math.h>
#include <string.h>

#include <arm_neon.h>

#define SB_NEON
#define SB_DOTPROD
#define SB_BASE sb_level_neon
#define LEVEL sb_level_dotprod
#define LEVEL_NAME "dotprod"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

#include "kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
