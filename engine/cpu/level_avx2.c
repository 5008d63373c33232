// x86 with AVX2, FMA and F16C. Only these functions use them: the rest of the
// program runs on any x86-64.
#if defined(__x86_64__)
#include "sb.h"

#include <math.h>
#include <string.h>

#include <immintrin.h>

#define SB_AVX2
#define LEVEL sb_level_avx2
#define LEVEL_NAME "avx2"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
