// 64-bit Arm with dot products and int8 matrix products (Apple M2 and later, Armv8.6).
#if defined(__aarch64__)
#include "sb.h"

#include <math.h>
#include <string.h>

#include <arm_neon.h>

#define SB_NEON
#define SB_DOTPROD
#define SB_I8MM
#define SB_BASE sb_level_neon
#define LEVEL sb_level_i8mm
#define LEVEL_NAME "i8mm"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#endif

#include "kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
